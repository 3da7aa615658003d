//! The journal in `ConfigMaps` of the control namespace: for clusters where the process has no disk of its own.
//!
//! `NAME` is the first, `NAME-1`, `NAME-2`, … follow when it is full ([`layout`]). The label says whose they are, an
//! annotation who writes them: a second process takes that annotation over when it starts, and the first one's next
//! request then fails on the resource version, so that two never write at once. After any request whose outcome is not
//! known everything is read again before the next one. Source: spec/providers §7.7.

mod layout;

use std::{fmt, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;

use self::layout::{Changes, Layout, MOST, NoRoom, Write, changes_of, entries_of};
use super::StateError;
use crate::cloud::Entry;
use machine_api::names::{annotation, label};

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// The namespace that state may be kept in.
#[derive(Clone)]
pub struct ConfigMapAccess {
    /// Client of the control cluster.
    pub client: kube::Client,
    /// The control namespace.
    pub namespace: String,
}

impl fmt::Debug for ConfigMapAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigMapAccess").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// What is remembered of one `ConfigMap`.
#[derive(Debug)]
struct Known {
    uid: Option<String>,
    version: Option<String>,
}

/// Whether what is remembered is what the API server holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Sure,
    MustRead,
}

/// State in `ConfigMaps`.
#[derive(Debug)]
pub struct ConfigMaps {
    access: ConfigMapAccess,
    name: String,
    writer: String,
    known: Vec<Known>,
    layout: Layout,
    trust: Trust,
    /// Changes that could not be written yet.
    pending: Changes,
}

impl ConfigMaps {
    /// Takes the `ConfigMaps` over and reads what they hold; `writer` is a number that no other process has.
    pub async fn open(access: &ConfigMapAccess, name: &str, writer: u64) -> Result<(Self, Vec<Entry>), StateError> {
        let mut store = Self {
            access: access.clone(),
            name: name.to_owned(),
            writer: format!("{writer:016x}"),
            known: Vec::new(),
            layout: Layout::default(),
            trust: Trust::MustRead,
            pending: Changes::new(),
        };
        let found = store.list().await?;
        let records = found.iter().filter_map(|object| object.data.as_ref()).flatten();
        let entries = entries_of(records).map_err(|problem| store.unreadable(problem))?;
        store.remember(&found);
        if found.is_empty() {
            store.create(&Write { shard: 0, changes: Changes::new() }).await?;
        }
        for shard in 0..found.len() {
            store.patch(shard, json!({})).await?;
        }
        store.trust = Trust::Sure;
        Ok((store, entries))
    }

    /// Whether the next write needs to know everything.
    pub fn wants_snapshot(&self) -> bool {
        self.trust == Trust::MustRead
    }

    /// Writes changes, or makes everything equal to a snapshot that holds them; kept on return.
    pub async fn write(&mut self, changes: Vec<Entry>, snapshot: Option<Vec<Entry>>) -> Result<(), StateError> {
        self.pending.extend(changes_of(&changes));
        if let Some(entries) = snapshot {
            return self.write_snapshot(&entries).await;
        }
        let pending = std::mem::take(&mut self.pending);
        let written = self.send(&pending).await;
        if written.is_err() {
            self.pending = pending;
        }
        written
    }

    /// Makes the records exactly those of a snapshot.
    pub async fn write_snapshot(&mut self, entries: &[Entry]) -> Result<(), StateError> {
        if self.trust == Trust::MustRead {
            let found = self.list().await?;
            let foreign =
                |object: &&ConfigMap| object.annotations().get(annotation::SIMULATION_WRITER) != Some(&self.writer);
            if let Some(object) = found.iter().find(foreign) {
                return Err(StateError::Taken { namespace: self.access.namespace.clone(), name: object.name_any() });
            }
            self.remember(&found);
            self.trust = Trust::Sure;
        }
        self.send(&self.layout.difference(changes_of(entries))).await?;
        self.pending.clear();
        Ok(())
    }

    async fn send(&mut self, changes: &Changes) -> Result<(), StateError> {
        let no_room =
            |NoRoom| StateError::Full { namespace: self.access.namespace.clone(), name: self.name.clone(), most: MOST };
        let writes = self.layout.plan(changes).map_err(no_room)?;
        for write in &writes {
            // Until the answer is here, nothing that is remembered can be trusted; a dropped call ends here too.
            self.trust = Trust::MustRead;
            if write.shard < self.known.len() {
                self.patch(write.shard, json!({ "data": write.changes })).await?;
            } else {
                self.create(write).await?;
            }
            self.layout.done(write);
            self.trust = Trust::Sure;
        }
        Ok(())
    }

    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.access.client.clone(), &self.access.namespace)
    }

    fn name_of(&self, shard: usize) -> String {
        if shard == 0 { self.name.clone() } else { format!("{}-{shard}", self.name) }
    }

    /// All `ConfigMaps` of this state, in their order.
    async fn list(&self) -> Result<Vec<ConfigMap>, StateError> {
        let selector = format!("{}={}", label::SIMULATION_STATE, self.name);
        let parameters = ListParams::default().labels(&selector);
        let found = self.within("read", &self.name, self.api().list(&parameters)).await?.items;
        let mut ordered = Vec::new();
        for shard in 0..found.len() {
            let name = self.name_of(shard);
            let object = found.iter().find(|object| object.name_any() == name);
            ordered.push(object.cloned().ok_or_else(|| {
                self.unreadable(format!("there are {} ConfigMaps with its label, but no {name}", found.len()))
            })?);
        }
        Ok(ordered)
    }

    fn remember(&mut self, found: &[ConfigMap]) {
        self.layout = Layout::default();
        for object in found {
            self.layout.read(object.data.iter().flatten());
        }
        let known = |object: &ConfigMap| Known { uid: object.uid(), version: object.resource_version() };
        self.known = found.iter().map(known).collect();
    }

    /// Changes one `ConfigMap` that nobody has changed since it was last seen, and signs it.
    async fn patch(&mut self, shard: usize, mut body: serde_json::Value) -> Result<(), StateError> {
        let name = self.name_of(shard);
        let known = self.known.get(shard);
        body["metadata"] = json!({
            "uid": known.and_then(|known| known.uid.as_ref()),
            "resourceVersion": known.and_then(|known| known.version.as_ref()),
            "annotations": { annotation::SIMULATION_WRITER: self.writer },
        });
        let (api, parameters, body) = (self.api(), PatchParams::default(), Patch::Merge(body));
        let answer = self.within("write", &name, api.patch_metadata(&name, &parameters, &body)).await?;
        if let Some(known) = self.known.get_mut(shard) {
            known.version = answer.metadata.resource_version;
        }
        Ok(())
    }

    async fn create(&mut self, write: &Write) -> Result<(), StateError> {
        let name = self.name_of(write.shard);
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some([(label::SIMULATION_STATE.to_owned(), self.name.clone())].into()),
                annotations: Some([(annotation::SIMULATION_WRITER.to_owned(), self.writer.clone())].into()),
                ..ObjectMeta::default()
            },
            data: Some(write.changes.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect()),
            ..ConfigMap::default()
        };
        let (api, parameters) = (self.api(), PostParams::default());
        let made = match self.within("create", &name, api.create(&parameters, &object)).await {
            Err(StateError::ConfigMap { source: Some(source), namespace, name, .. }) if is_conflict(&source) => {
                return Err(StateError::NotOurs { namespace, name });
            }
            made => made?,
        };
        self.known.push(Known { uid: made.uid(), version: made.resource_version() });
        Ok(())
    }

    async fn within<T>(
        &self,
        action: &'static str,
        name: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, StateError> {
        let failed = |source| StateError::ConfigMap {
            action,
            namespace: self.access.namespace.clone(),
            name: name.to_owned(),
            source,
        };
        match tokio::time::timeout(PATIENCE, call).await {
            Ok(answer) => answer.map_err(|error| failed(Some(Box::new(error)))),
            Err(_) => Err(failed(None)),
        }
    }

    fn unreadable(&self, problem: String) -> StateError {
        StateError::UnreadableConfigMap { namespace: self.access.namespace.clone(), name: self.name.clone(), problem }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
