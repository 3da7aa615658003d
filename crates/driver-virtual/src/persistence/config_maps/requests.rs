//! The requests of the sink: lists, creates and patches `ConfigMaps` in their known versions.

use std::fmt;

use controller_runtime::{
    error::ApiError,
    key::ObjectKey,
    objects::{ApiServer, ListQuery, ObjectApi, Part, Patch},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{api::ObjectMeta, core::PartialObjectMeta};
use machine_api::names::{annotation, label};
use serde_json::{Value, json};

use super::super::{StateError, shards::Write};

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
    fn api(&self) -> ApiServer<ConfigMap> {
        ApiServer::of_kind(self.access.client.clone(), ())
    }

    fn key(&self, shard: usize) -> ObjectKey {
        let name = if shard == 0 { self.name.clone() } else { format!("{}-{shard}", self.name) };
        ObjectKey::new(&*self.access.namespace, name)
    }

    /// The namespace and the name.
    pub fn object(&self, shard: usize) -> String {
        self.key(shard).to_string()
    }

    /// All `ConfigMaps` of this state, in their order.
    pub async fn list(&self) -> Result<Vec<ConfigMap>, StateError> {
        let selector = Some(format!("{}={}", label::SIMULATION_STATE, self.name));
        let query = ListQuery { selector, ..ListQuery::within(&self.access.namespace) };
        let page = self.answer("read", 0, self.api().list_all(query)).await?;
        let decoded = |item| serde_json::from_value(item).map_err(|error| self.unreadable(&error.to_string()));
        let found: Vec<ConfigMap> = page.items.into_iter().map(decoded).collect::<Result<_, _>>()?;
        let at = |shard: usize| {
            let key = self.key(shard);
            let missing = || format!("there are {} ConfigMaps with its label, but no {}", found.len(), key.name);
            let object = found.iter().find(|object| object.metadata.name.as_ref() == Some(&key.name));
            object.cloned().ok_or_else(|| self.unreadable(&missing()))
        };
        (0..found.len()).map(at).collect()
    }

    /// Patches a `ConfigMap` that has not changed since it was read, and sets the writer.
    pub async fn patch(&self, shard: usize, known: &mut ObjectMeta, mut body: Value) -> Result<(), StateError> {
        body["metadata"] = json!({ "annotations": { annotation::SIMULATION_WRITER: self.writer } });
        let patch = Patch::Merge(body).guarded_by(known.resource_version.as_deref());
        let patch = patch.bound_to(known.uid.as_deref().unwrap_or_default());
        // The answer has no data, because it may be large.
        let api = ApiServer::<PartialObjectMeta<ConfigMap>>::of_kind(self.access.client.clone(), ());
        let answer = self.answer("write", shard, api.patch(&self.key(shard), Part::Main, &patch)).await?;
        known.resource_version.clone_from(&answer.metadata.resource_version);
        Ok(())
    }

    /// Creates a `ConfigMap`. Returns its metadata.
    pub async fn create(&self, write: &Write) -> Result<ObjectMeta, StateError> {
        let ObjectKey { namespace, name } = self.key(write.shard);
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace),
                labels: Some([(label::SIMULATION_STATE.to_owned(), self.name.clone())].into()),
                annotations: Some([(annotation::SIMULATION_WRITER.to_owned(), self.writer.clone())].into()),
                ..ObjectMeta::default()
            },
            data: Some(write.changes.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect()),
            ..ConfigMap::default()
        };
        Ok(self.answer("create", write.shard, self.api().create(&object)).await?.metadata.clone())
    }

    async fn answer<T>(
        &self,
        action: &'static str,
        shard: usize,
        call: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, StateError> {
        let object = self.object(shard);
        let problem = match call.await {
            Ok(answer) => return Ok(answer),
            Err(ApiError::AlreadyExists(_)) => return Err(StateError::NotOurs { object }),
            Err(refusal @ ApiError::Forbidden(_)) => {
                format!("{refusal}; grant what `mcm manifests rbac --simulation` prints")
            }
            Err(error) => error.to_string(),
        };
        Err(StateError::Failed { action, place: format!(", ConfigMap {object}"), problem })
    }

    /// The error for content that is no state.
    pub fn unreadable(&self, problem: &str) -> StateError {
        let problem = format!("{problem}; delete it to start with an empty cloud, or choose another name");
        StateError::Failed { action: "read", place: format!(", ConfigMap {}", self.object(0)), problem }
    }
}
