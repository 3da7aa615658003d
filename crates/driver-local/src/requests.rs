//! The requests for the objects of machines in one cluster, counted by their kind (`mcm_cloud_api_requests_total`).

use controller_runtime::{
    error::ApiError,
    key::{ObjectKey, Target},
    objects::{ApiServer, DeleteHow, ListQuery, ObjectApi},
};
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::{Resource, core::PartialObjectMeta};
use machine_driver::{Code, OpContext, Status};
use serde::de::DeserializeOwned;
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

    /// Applies the pod of a machine.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn apply_pod(&self, subject: &Subject<'_>, pod: &Value) -> Result<Pod, Status> {
        self.applied("pod_apply", "pod", &subject.pods, &subject.pod, pod).await
    }

    /// Applies the Service of a machine.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn apply_service(&self, subject: &Subject<'_>, service: &Value) -> Result<(), Status> {
        let applied = self.applied("service_apply", "service", &subject.pods, &subject.pod, service).await;
        applied.map(|_: PartialObjectMeta<Service>| ())
    }

    /// Applies the Secret of a machine. The answer has no data.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn apply_secret(&self, subject: &Subject<'_>, secret: &Value) -> Result<(), Status> {
        let name = subject.secret();
        let applied = self.applied("secret_apply", "user data secret", &subject.pods, &name, secret).await;
        applied.map(|_: PartialObjectMeta<Secret>| ())
    }

    async fn applied<K>(
        &self,
        service: &'static str,
        what: &str,
        pods: &Pods,
        name: &str,
        object: &Value,
    ) -> Result<K, Status>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Send + Sync,
    {
        let (api, key) = (ApiServer::<K>::of_kind(self.client.clone(), ()), ObjectKey::new(&*pods.namespace, name));
        let apply = async {
            let applied = api.apply(&key, FIELD_MANAGER, object).await;
            applied.map(|object| K::clone(&object)).map_err(|error| {
                let failed = self.failures.of(&format!("error applying {what}"), &error);
                // An applied object needs no earlier one, so that only its namespace can be missing.
                let code = if failed.code == Code::NotFound { Code::FailedPrecondition } else { failed.code };
                Status { code, ..failed }
            })
        };
        self.cx.request(service, apply).await
    }

    /// Deletes a pod. A pod that is gone or has another UID counts as deleted.
    ///
    /// # Errors
    /// The error of the request.
    pub async fn delete(&self, pod: &Target) -> Result<(), Status> {
        let api = self.pods();
        let delete = async {
            match api.delete(pod, DeleteHow::default()).await {
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
