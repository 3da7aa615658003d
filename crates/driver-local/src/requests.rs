//! The requests for the objects of machines in one cluster, counted by their kind (`mcm_cloud_api_requests_total`).

use std::fmt::Debug;

use controller_runtime::{
    error::ApiError,
    key::{ObjectKey, Target},
    objects::{ApiServer, DeleteHow, ListQuery, ObjectApi, Part, Patch},
};
use k8s_openapi::{
    api::core::v1::{Pod, Secret, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Resource, core::PartialObjectMeta};
use machine_driver::{Code, OpContext, Status};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    errors::Failures,
    subject::{FIELD_MANAGER, Pods, Subject},
};

/// The requests of one call.
pub struct Requests<'a> {
    client: kube::Client,
    cx: &'a OpContext,
    failures: Failures,
}

impl<'a> Requests<'a> {
    /// The requests of a call to this cluster.
    pub fn new(client: kube::Client, cx: &'a OpContext, failures: Failures) -> Self {
        Self { client, cx, failures }
    }

    fn pods(&self) -> ApiServer<Pod> {
        ApiServer::of_kind(self.client.clone(), ())
    }

    /// The pod of a machine. `None` if there is none.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn pod(&self, subject: &Subject<'_>) -> Result<Option<Pod>, Status> {
        let (api, key) = (self.pods(), ObjectKey::new(&*subject.pods.namespace, &*subject.pod));
        let read = async {
            match api.read(&key).await {
                Ok(pod) => Ok(Some(Pod::clone(&pod))),
                Err(ApiError::NotFound(_)) => Ok(None),
                Err(error) => Err(self.failures.of("error reading pod", &error)),
            }
        };
        self.cx.request("pod_get", read).await
    }

    /// Makes the pod of a machine. A pod that was made meanwhile is left as it is.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn make_pod(&self, subject: &Subject<'_>, pod: &Value) -> Result<Pod, Status> {
        self.cx.request("pod_create", self.made("creating pod", &subject.pods, pod)).await
    }

    /// The metadata of the Service that has the name of the machine's.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn service(&self, subject: &Subject<'_>) -> Result<Option<ObjectMeta>, Status> {
        let read = self.metadata::<PartialObjectMeta<Service>>("reading service", &subject.pods, &subject.pod);
        self.cx.request("service_get", read).await
    }

    /// The metadata of the Secret that has the name of the machine's.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn secret(&self, subject: &Subject<'_>) -> Result<Option<ObjectMeta>, Status> {
        let name = subject.secret();
        let read = self.metadata::<PartialObjectMeta<Secret>>("reading user data secret", &subject.pods, &name);
        self.cx.request("secret_get", read).await
    }

    /// Makes the Service of a machine, or changes the Service that was found.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn write_service(
        &self,
        subject: &Subject<'_>,
        found: Option<&ObjectMeta>,
        service: &Value,
    ) -> Result<(), Status> {
        let Some(found) = found else {
            let made = self.made::<PartialObjectMeta<Service>>("creating service", &subject.pods, service);
            return self.cx.request("service_create", made).await.map(drop);
        };
        let changed =
            self.changed::<PartialObjectMeta<Service>>("changing service", &subject.pods, &subject.pod, found, service);
        self.cx.request("service_patch", changed).await
    }

    /// Makes the Secret of a machine, or changes the Secret that was found. The answer has no data.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn write_secret(
        &self,
        subject: &Subject<'_>,
        found: Option<&ObjectMeta>,
        secret: &Value,
    ) -> Result<(), Status> {
        let Some(found) = found else {
            let made = self.made::<PartialObjectMeta<Secret>>("creating user data secret", &subject.pods, secret);
            return self.cx.request("secret_create", made).await.map(drop);
        };
        let name = subject.secret();
        let changed =
            self.changed::<PartialObjectMeta<Secret>>("changing user data secret", &subject.pods, &name, found, secret);
        self.cx.request("secret_patch", changed).await
    }

    async fn made<K>(&self, what: &str, pods: &Pods, object: &Value) -> Result<K, Status>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Send + Sync,
    {
        let api = ApiServer::<K>::of_kind(self.client.clone(), ());
        let made = api.create_as(&pods.namespace, FIELD_MANAGER, object).await;
        made.map(|object| K::clone(&object)).map_err(|error| {
            let failed = self.failures.of(&format!("error {what}"), &error);
            // A new object needs no earlier one, so that only its namespace can be missing.
            let code = if failed.code == Code::NotFound { Code::FailedPrecondition } else { failed.code };
            Status { code, ..failed }
        })
    }

    async fn metadata<K>(&self, what: &str, pods: &Pods, name: &str) -> Result<Option<ObjectMeta>, Status>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        let api = ApiServer::<K>::of_kind(self.client.clone(), ());
        match api.read(&ObjectKey::new(&*pods.namespace, name)).await {
            Ok(object) => Ok(Some(object.meta().clone())),
            Err(ApiError::NotFound(_)) => Ok(None),
            Err(error) => Err(self.failures.of(&format!("error {what}"), &error)),
        }
    }

    async fn changed<K>(
        &self,
        what: &str,
        pods: &Pods,
        name: &str,
        found: &ObjectMeta,
        object: &Value,
    ) -> Result<(), Status>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        let api = ApiServer::<K>::of_kind(self.client.clone(), ());
        let patch = Patch::Merge(object.clone()).guarded_by(found.resource_version.as_deref());
        match api.patch(&ObjectKey::new(&*pods.namespace, name), Part::Main, &patch).await {
            Ok(_) => Ok(()),
            // It went with an earlier pod. The next attempt makes it again.
            Err(ApiError::NotFound(error)) => Err(Status::new(Code::Aborted, format!("error {what}: {error}"))),
            Err(error) => Err(self.failures.of(&format!("error {what}"), &error)),
        }
    }

    /// Deletes a pod. A pod that is gone or has another UID counts as deleted.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn delete(&self, pod: &Target, how: DeleteHow<'_>) -> Result<(), Status> {
        let api = self.pods();
        let delete = async {
            match api.delete(pod, how).await {
                Ok(_) | Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Ok(()),
                Err(error) => Err(self.failures.of("error deleting pod", &error)),
            }
        };
        self.cx.request("pod_delete", delete).await
    }

    /// The metadata of all pods of an owner.
    ///
    /// # Errors
    /// The error of any page.
    pub async fn list(&self, pods: &Pods) -> Result<Vec<PartialObjectMeta<Pod>>, Status> {
        let api = ApiServer::<PartialObjectMeta<Pod>>::of_kind(self.client.clone(), ());
        let query =
            ListQuery { selector: Some(pods.selector()), limit: Some(PAGE), ..ListQuery::within(&pods.namespace) };
        let list = async {
            let listed = api.list_all(query).await.map_err(|error| self.failures.of("error listing pods", &error))?;
            let decoded =
                listed.items.into_iter().map(|item| api.decode(item).map(|pod| PartialObjectMeta::clone(&pod)));
            decoded.collect::<Result<_, _>>().map_err(|error| self.failures.of("error listing pods", &error))
        };
        self.cx.request("pod_list", list).await
    }
}

/// The number of pods on a page.
const PAGE: u32 = 500;
