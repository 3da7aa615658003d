//! The deletion of namespaces and custom resource definitions: their objects first, then the namespace or definition itself.
//!
//! The conditions of a namespace say why it still exists ([`super::remains`]).
//! Source: spec/extension-apiserver §6.3 no. 7, §6.4.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    Place,
    remains::Remains,
    requests::{Refusal, Requests},
};
use crate::{
    builtin_rules::namespace_finalizers,
    crd,
    object::{self, text},
    store::{Collection, Stored},
};
use kube_protocol::options::Propagation;

impl Requests {
    /// Deletes the contents of a namespace, pods first, and removes its finalizer when it is empty.
    pub(super) async fn empty_namespace(&self, place: &Place, stored: &Stored) -> Result<(), Refusal> {
        if namespace_finalizers(&stored.value).is_empty() {
            // The namespace waits for other finalizers in its metadata.
            return Ok(());
        }
        let prefix = format!("{}/", object::name(&stored.value));
        let pods = Collection::new("", "pods");
        let mut remains = Remains::undiscovered(&self.server.aggregator.unavailable());
        let mut failed = self.empty_collection(&pods, &prefix, stored, &mut remains).await;
        let pods_remain = !self.server.store.list(&pods, &prefix).objects.is_empty();
        if pods_remain {
            remains.count_nothing();
        } else {
            for collection in self.server.store.collections() {
                failed = failed.or(self.empty_collection(&collection, &prefix, stored, &mut remains).await);
            }
        }
        let done = !pods_remain && remains.is_empty();
        self.write_conditions(place, stored, &remains, done);
        failed.map_or(Ok(()), Err)
    }

    /// Deletes the objects of a resource in a namespace, until a deletion is refused.
    async fn empty_collection(
        &self,
        collection: &Collection,
        prefix: &str,
        namespace: &Stored,
        remains: &mut Remains,
    ) -> Option<Refusal> {
        for (_, stored) in self.server.store.list(collection, prefix).objects {
            if object::is_deleting(&stored.value) {
                continue;
            }
            if let Err(refusal) = self.delete(collection, &stored.value, Propagation::Background).await {
                remains.fail(refusal.to_string());
                return Some(refusal);
            }
        }
        let left = self.server.store.list(collection, prefix).objects;
        let left: Vec<&Value> = left.iter().map(|(_, stored)| &stored.value).collect();
        remains.add(collection, &left);
        let held = left.iter().any(|value| !object::finalizers(value).is_empty());
        let has_grace = collection.group.is_empty() && collection.resource == "pods";
        if left.is_empty() || held || has_grace && ends_in_time(&left, &namespace.value, self.server.now()) {
            return None;
        }
        let version = self.served(collection).map_or_else(String::new, |served| served.resource.kind.version.clone());
        let message = format!(
            "unexpected items still remain in namespace: {} for gvr: {}/{version}, Resource={}",
            prefix.trim_end_matches('/'),
            collection.group,
            collection.resource
        );
        // A retry would not help. The controllers run again when the objects are gone.
        remains.fail(message);
        None
    }

    /// Writes the conditions of a namespace, and removes its finalizer if it is empty.
    fn write_conditions(&self, place: &Place, stored: &Stored, remains: &Remains, done: bool) {
        let Some(served) = self.served(&place.0) else { return };
        // A conflict needs no retry, because the other change of the namespace leads here again.
        let conditions = remains.conditions(&stored.value, self.server.now());
        if !done {
            if let Some(conditions) = conditions {
                let mut value = stored.whole();
                value["status"]["conditions"] = conditions;
                let _ = self.server.overwrite(&served, stored, Some(value));
            }
            return;
        }
        let mut value = stored.whole();
        value["spec"]["finalizers"] = json!([]);
        if let Some(conditions) = conditions {
            value["status"]["conditions"] = conditions;
        }
        let gone = object::finalizers(&value).is_empty();
        let _ = self.server.overwrite(&served, stored, if gone { None } else { Some(value) });
    }

    /// Accepts definitions that have waited for the names of a deleted definition of their group.
    pub(super) fn accept_waiting_names(&self, gone: &Value) {
        let Some(served) = self.served(&Collection::new("apiextensions.k8s.io", "customresourcedefinitions")) else {
            return;
        };
        let group = text(gone, "/spec/group");
        for (place, _) in self.server.store.list(&served.collection, "").objects {
            // The definitions are read again for each, because the previous one may have got the name.
            let all = self.server.store.list(&served.collection, "").objects;
            let Some((_, waits)) = all.iter().find(|(key, _)| *key == place) else { continue };
            if crd::is_accepted(&waits.value) || text(&waits.value, "/spec/group") != group {
                continue;
            }
            let mut value = waits.whole();
            let status = crd::status(&waits.value, all.iter().map(|(_, stored)| &stored.value), self.server.now());
            value["status"] = status;
            // A conflict needs no retry, because the other write has checked the names too.
            let _ = self.server.overwrite(&served, waits, Some(value));
        }
    }

    /// Deletes the objects of a definition, and removes its finalizer when there are none.
    pub(super) async fn empty_definition(&self, place: &Place, stored: &Stored) -> Result<(), Refusal> {
        let collection = Collection::new(text(&stored.value, "/spec/group"), text(&stored.value, "/spec/names/plural"));
        let content = self.server.store.list(&collection, "");
        if content.objects.is_empty() {
            return self.remove_finalizer(place, stored, crd::CLEANUP).await;
        }
        let mut failed = None;
        for (_, one) in content.objects {
            if !object::is_deleting(&one.value) {
                failed = failed.or(self.delete(&collection, &one.value, Propagation::Background).await.err());
            }
        }
        let terminating = crd::terminating(
            &stored.whole(),
            failed.as_ref().map(|refusal| refusal.message.as_str()),
            self.server.now(),
        );
        if let (Some(served), Some(terminating)) = (self.served(&place.0), terminating) {
            // A conflict needs no retry, because the other change of the definition leads here again.
            let _ = self.server.overwrite(&served, stored, Some(terminating));
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Whether the grace period of the pods has not ended yet, counted from the deletion of their namespace.
fn ends_in_time(left: &[&Value], namespace: &Value, now: Timestamp) -> bool {
    let runs = |pod: &&&Value| !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    let grace = left.iter().filter(runs).filter_map(|pod| pod["spec"]["terminationGracePeriodSeconds"].as_i64()).max();
    let deleted = text(namespace, "/metadata/deletionTimestamp").parse::<Timestamp>();
    match (grace, deleted) {
        (Some(grace), Ok(deleted)) => now.duration_since(deleted) < SignedDuration::from_secs(grace),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
