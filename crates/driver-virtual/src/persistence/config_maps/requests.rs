//! The requests of the sink: lists, creates and patches `ConfigMaps` in their known versions.

use std::{fmt, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use machine_api::names::{annotation, label};
use serde_json::{Value, json};

use super::super::{StateError, shards::Write};

/// The timeout of a request.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// The access to the namespace of the state.
#[derive(Clone)]
pub struct ConfigMapAccess {
    /// The client of the control cluster.
    pub client: kube::Client,
    /// The control namespace.
    pub namespace: String,
}

impl fmt::Debug for ConfigMapAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigMapAccess").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// The settings of all requests of a sink.
#[derive(Debug)]
pub struct Requests {
    pub access: ConfigMapAccess,
    /// The name of the first `ConfigMap`.
    pub name: String,
    pub writer: String,
}

impl Requests {
    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.access.client.clone(), &self.access.namespace)
    }

    fn name_of(&self, shard: usize) -> String {
        if shard == 0 { self.name.clone() } else { format!("{}-{shard}", self.name) }
    }

    /// The namespace and the name.
    pub fn object(&self, shard: usize) -> String {
        format!("{}/{}", self.access.namespace, self.name_of(shard))
    }

    /// All `ConfigMaps` of this state, in their order.
    pub async fn list(&self) -> Result<Vec<ConfigMap>, StateError> {
        let parameters = ListParams::default().labels(&format!("{}={}", label::SIMULATION_STATE, self.name));
        let found = self.answer("read", 0, self.api().list(&parameters)).await?.items;
        let at = |shard: usize| {
            let name = self.name_of(shard);
            let missing = || format!("there are {} ConfigMaps with its label, but no {name}", found.len());
            let object = found.iter().find(|object| object.name_any() == name);
            object.cloned().ok_or_else(|| self.unreadable(&missing()))
        };
        (0..found.len()).map(at).collect()
    }

    /// Patches a `ConfigMap` that has not changed since it was read, and sets the writer.
    pub async fn patch(&self, shard: usize, known: &mut ObjectMeta, mut body: Value) -> Result<(), StateError> {
        body["metadata"] = json!({
            "uid": known.uid,
            "resourceVersion": known.resource_version,
            "annotations": { annotation::SIMULATION_WRITER: self.writer },
        });
        let (api, name, parameters, body) =
            (self.api(), self.name_of(shard), PatchParams::default(), Patch::Merge(body));
        let answer = self.answer("write", shard, api.patch_metadata(&name, &parameters, &body)).await?;
        known.resource_version = answer.metadata.resource_version;
        Ok(())
    }

    /// Creates a `ConfigMap`. Returns its metadata.
    pub async fn create(&self, write: &Write) -> Result<ObjectMeta, StateError> {
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.name_of(write.shard)),
                labels: Some([(label::SIMULATION_STATE.to_owned(), self.name.clone())].into()),
                annotations: Some([(annotation::SIMULATION_WRITER.to_owned(), self.writer.clone())].into()),
                ..ObjectMeta::default()
            },
            data: Some(write.changes.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect()),
            ..ConfigMap::default()
        };
        let (api, parameters) = (self.api(), PostParams::default());
        Ok(self.answer("create", write.shard, api.create(&parameters, &object)).await?.metadata)
    }

    async fn answer<T>(
        &self,
        action: &'static str,
        shard: usize,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, StateError> {
        let object = self.object(shard);
        let problem = match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 && action == "create" => {
                return Err(StateError::NotOurs { object });
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                let refusal = kube::Error::Api(status);
                format!("{refusal}; grant what `mcm manifests rbac --simulation` prints")
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the API server did not answer".to_owned(),
        };
        Err(StateError::Failed { action, place: format!(", ConfigMap {object}"), problem })
    }

    /// The error for content that is no state.
    pub fn unreadable(&self, problem: &str) -> StateError {
        let problem = format!("{problem}; delete it to start with an empty cloud, or choose another name");
        StateError::Failed { action: "read", place: format!(", ConfigMap {}", self.object(0)), problem }
    }
}
