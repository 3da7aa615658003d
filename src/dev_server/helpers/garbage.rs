//! Garbage collection: what is owned goes with its owners, first, after or not at all, as the deletion asks.
//!
//! Source: spec/extension-apiserver §6.3 no. 6.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};

use super::{Helpers, Place};
use crate::dev_server::{
    delete::{FOREGROUND, ORPHAN},
    object::{self, text},
    stand_ins::StandIn,
    store::{Collection, Stored, key},
};

impl Helpers {
    fn dependents_of(&self, uid: &str) -> Vec<(Place, Arc<Stored>)> {
        let places = self.dependents.get(uid).into_iter().flatten();
        places.filter_map(|place| Some((place.clone(), self.server.store.get(&place.0, &place.1)?))).collect()
    }

    pub(super) async fn collect_dependents(&mut self, uid: &str) {
        for ((collection, key), stored) in self.dependents_of(uid) {
            self.collect_if_ownerless(&collection, &key, &stored.value).await;
        }
        self.dependents.remove(uid);
    }

    /// Deletes an object whose owners are all gone.
    pub(super) async fn collect_if_ownerless(&self, collection: &Collection, key: &str, value: &Value) {
        let references = value["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
        if references.is_empty() || object::is_deleting(value) || !self.stands_in_for(StandIn::GarbageCollection) {
            return;
        }
        if references.iter().any(|reference| self.owner_exists(value, reference)) {
            return;
        }
        if let Some(stored) =
            self.server.store.get(collection, key).filter(|stored| object::uid(&stored.value) == object::uid(value))
        {
            self.delete(collection, &stored.value).await;
        }
    }

    fn owner_exists(&self, value: &Value, reference: &Value) -> bool {
        let registry = self.server.registry();
        let Some(served) = registry.of_kind(text(reference, "/apiVersion"), text(reference, "/kind")) else {
            // An unknown kind may come back.
            return true;
        };
        let namespace = if served.is_namespaced() { object::namespace(value) } else { None };
        let place = key(namespace, text(reference, "/name"));
        let owner = self.server.store.get(&served.collection, &place);
        owner.is_some_and(|owner| object::uid(&owner.value) == text(reference, "/uid"))
    }

    pub(super) async fn foreground(&self, place: &Place, stored: &Stored) {
        let dependents = self.dependents_of(object::uid(&stored.value));
        let mut blocked = false;
        for ((collection, _), dependent) in dependents {
            let reference = dependent.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let blocks = reference
                .filter(|reference| reference["uid"] == object::uid(&stored.value))
                .any(|reference| reference["blockOwnerDeletion"] == json!(true));
            blocked |= blocks;
            if !object::is_deleting(&dependent.value) {
                self.delete(&collection, &dependent.value).await;
            }
        }
        if !blocked {
            self.release(place, stored, FOREGROUND).await;
        }
    }

    pub(super) async fn orphan(&self, place: &Place, stored: &Stored) {
        let uid = object::uid(&stored.value);
        for ((collection, _), dependent) in self.dependents_of(uid) {
            let references = dependent.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let kept: Vec<&Value> = references.filter(|reference| reference["uid"] != uid).collect();
            if let Some(path) = self.path(&collection, &dependent.value) {
                let kept = if kept.is_empty() { Value::Null } else { json!(kept) };
                let patch = json!({"metadata": {"ownerReferences": kept, "uid": object::uid(&dependent.value)}});
                self.send(Method::PATCH, &path, "application/merge-patch+json", &patch).await;
            }
        }
        self.release(place, stored, ORPHAN).await;
    }
}

/// UIDs of the owners that an object names.
pub(super) fn owners(value: &Value) -> impl Iterator<Item = &str> {
    value["metadata"]["ownerReferences"].as_array().into_iter().flatten().map(|owner| text(owner, "/uid"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::dev_server::testing::{HandClock, ask, cluster, cluster_in, eventually, exists};

    const MAPS: &str = "/api/v1/namespaces/default/configmaps";

    fn owned(by: &Value) -> Value {
        let name = object::name(by);
        json!({"metadata": {"name": "owned", "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": object::uid(by)}]}})
    }

    #[tokio::test(start_paused = true)]
    async fn who_falls_behind_the_history_collects_all_the_same() {
        let cluster = cluster([]);
        let owner = ask(&cluster, "POST", MAPS, &json!({"metadata": {"name": "owner"}})).await.unwrap();
        ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
        // In this thread nobody else comes between the two.
        ask(&cluster, "DELETE", &format!("{MAPS}/owner"), &Value::Null).await.unwrap();
        cluster.server.compact();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(ask(&cluster, "GET", &format!("{MAPS}/owned"), &Value::Null).await.unwrap_err(), 404);
    }

    #[tokio::test]
    async fn what_lost_its_owner_before_a_restart_is_collected_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("data");
        let clock = HandClock::at(Timestamp::UNIX_EPOCH);
        {
            let without = [StandIn::GarbageCollection];
            let cluster = cluster_in(&folder, &clock, without).await;
            let owner = ask(&cluster, "POST", MAPS, &json!({"metadata": {"name": "owner"}})).await.unwrap();
            ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
            ask(&cluster, "DELETE", &format!("{MAPS}/owner"), &Value::Null).await.unwrap();
            exists(&cluster, &format!("{MAPS}/owned")).await;
        }
        let cluster = cluster_in(&folder, &clock, []).await;
        eventually("the dependent to go", async || {
            let found = ask(&cluster, "GET", &format!("{MAPS}/owned"), &Value::Null).await;
            (found == Err(404)).then_some(())
        })
        .await;
    }
}
