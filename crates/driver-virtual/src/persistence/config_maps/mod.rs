//! `configmap:` stores the records in `ConfigMaps` of the control namespace, for clusters where the process has no disk.
//!
//! The first `ConfigMap` is `NAME`. When it is full, `NAME-1`, `NAME-2`, … follow ([`super::shards`]). A label names the state, and an annotation
//! names the process that writes. A second process changes the annotation when it starts. The next request of the first process then fails because of
//! the resource version, so that two processes never write at the same time. After a request with an unknown outcome, everything is read again before
//! the next request. Source: spec/providers §7.7.

mod requests;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, api::ObjectMeta};
use machine_api::names::annotation;
use serde_json::json;

pub use self::requests::ConfigMapAccess;
use self::requests::Requests;
use super::{
    Sink, StateError,
    shards::{Changes, MOST, NoRoom, Shards, Write, changes_of, entries_of},
};
use crate::cloud::Entry;

/// The state in `ConfigMaps`.
#[derive(Debug)]
pub struct ConfigMaps {
    requests: Requests,
    /// The metadata of each `ConfigMap` in its current version.
    known: Vec<ObjectMeta>,
    shards: Shards,
    /// Whether the outcome of a request is unknown.
    must_read: bool,
}

impl ConfigMaps {
    /// Acquires the `ConfigMaps` and reads their records. `writer` is a number that no other process has.
    pub async fn open(access: &ConfigMapAccess, name: &str, writer: u64) -> Result<(Self, Vec<Entry>), StateError> {
        let requests = Requests { access: access.clone(), name: name.to_owned(), writer: format!("{writer:016x}") };
        let found = requests.list().await?;
        let records = found.iter().filter_map(|object| object.data.as_ref()).flatten();
        let entries = entries_of(records).map_err(|problem| requests.unreadable(&problem))?;
        let mut store = Self { requests, known: Vec::new(), shards: Shards::default(), must_read: false };
        store.remember(found);
        if store.known.is_empty() {
            store.known.push(store.requests.create(&Write { shard: 0, changes: Changes::new() }).await?);
        } else {
            for (shard, known) in store.known.iter_mut().enumerate() {
                store.requests.patch(shard, known, json!({})).await?;
            }
        }
        Ok((store, entries))
    }

    fn remember(&mut self, found: Vec<ConfigMap>) {
        self.shards = Shards::default();
        for object in &found {
            self.shards.read(object.data.iter().flatten());
        }
        self.known = found.into_iter().map(|object| object.metadata).collect();
    }

    async fn send(&mut self, changes: &Changes) -> Result<(), StateError> {
        let no_room = |NoRoom| StateError::Full { object: self.requests.object(0), most: MOST };
        for write in self.shards.plan(changes).map_err(no_room)? {
            // The memory may be wrong until the answer arrives. This is also true for a dropped call.
            self.must_read = true;
            match self.known.get_mut(write.shard) {
                Some(known) => self.requests.patch(write.shard, known, json!({ "data": write.changes })).await?,
                None => self.known.push(self.requests.create(&write).await?),
            }
            self.shards.done(&write);
            self.must_read = false;
        }
        Ok(())
    }
}

#[async_trait]
impl Sink for ConfigMaps {
    fn wants_snapshot(&self) -> bool {
        false
    }

    async fn append(&mut self, changes: &[Entry]) -> Result<(), StateError> {
        self.send(&changes_of(changes)).await
    }

    async fn replace(&mut self, snapshot: &[Entry]) -> Result<(), StateError> {
        if self.must_read {
            let found = self.requests.list().await?;
            let writer = |object: &ConfigMap| object.annotations().get(annotation::SIMULATION_WRITER).cloned();
            if let Some(shard) = found.iter().position(|object| writer(object).as_ref() != Some(&self.requests.writer))
            {
                return Err(StateError::Taken { object: self.requests.object(shard) });
            }
            self.remember(found);
            self.must_read = false;
        }
        self.send(&self.shards.difference(changes_of(snapshot))).await
    }
}

#[cfg(test)]
mod tests;
