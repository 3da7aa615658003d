//! What goes with a namespace or a definition: its objects first, then itself.
//!
//! Why a namespace stays is told in its conditions ([`super::remains`]).
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
    /// Deletes what is in a namespace, pods first, and lets it go once it is empty.
    pub(super) async fn empty_namespace(&self, place: &Place, stored: &Stored) -> Result<(), Refusal> {
        if namespace_finalizers(&stored.value).is_empty() {
            // It waits for finalizers of its own.
            return Ok(());
        }
        let prefix = format!("{}/", object::name(&stored.value));
        let pods = Collection::new("", "pods");
        let mut remains = Remains::undiscovered(&self.server.aggregator.unanswered());
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
        self.tell_of_remains(place, stored, &remains, done);
        failed.map_or(Ok(()), Err)
    }

    /// Deletes what a namespace has of one kind; the first refusal ends it.
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
        // Asking again would not help: their end wakes us.
        remains.fail(message);
        None
    }

    /// Says what remains; a namespace of which nothing does is let go.
    fn tell_of_remains(&self, place: &Place, stored: &Stored, remains: &Remains, done: bool) {
        let Some(served) = self.served(&place.0) else { return };
        // Somebody else was quicker: the change wakes us again. So it does if the namespace has changed meanwhile.
        let told = remains.conditions(&stored.value, self.server.now());
        if !done {
            if let Some(conditions) = told {
                let mut value = stored.whole();
                value["status"]["conditions"] = conditions;
                let _ = self.server.overwrite(&served, stored, Some(value));
            }
            return;
        }
        let mut value = stored.whole();
        value["spec"]["finalizers"] = json!([]);
        if let Some(conditions) = told {
            value["status"]["conditions"] = conditions;
        }
        let gone = object::finalizers(&value).is_empty();
        let _ = self.server.overwrite(&served, stored, if gone { None } else { Some(value) });
    }

    /// Names that a definition has had may be wanted by others of its group.
    pub(super) fn give_names_away(&self, gone: &Value) {
        let Some(served) = self.served(&Collection::new("apiextensions.k8s.io", "customresourcedefinitions")) else {
            return;
        };
        let group = text(gone, "/spec/group");
        for (place, _) in self.server.store.list(&served.collection, "").objects {
            // Read anew for each: one may have taken the name that the next one wants.
            let all = self.server.store.list(&served.collection, "").objects;
            let Some((_, waits)) = all.iter().find(|(key, _)| *key == place) else { continue };
            if crd::is_accepted(&waits.value) || text(&waits.value, "/spec/group") != group {
                continue;
            }
            let mut value = waits.whole();
            let status = crd::status(&waits.value, all.iter().map(|(_, stored)| &stored.value), self.server.now());
            value["status"] = status;
            // Somebody else was quicker: that write has looked at the names too.
            let _ = self.server.overwrite(&served, waits, Some(value));
        }
    }

    /// Deletes the objects of a definition, and lets it go once there are none.
    pub(super) async fn empty_definition(&self, place: &Place, stored: &Stored) -> Result<(), Refusal> {
        let collection = Collection::new(text(&stored.value, "/spec/group"), text(&stored.value, "/spec/names/plural"));
        let content = self.server.store.list(&collection, "");
        if content.objects.is_empty() {
            return self.release(place, stored, crd::CLEANUP).await;
        }
        let mut failed = None;
        for (_, one) in content.objects {
            if !object::is_deleting(&one.value) {
                failed = failed.or(self.delete(&collection, &one.value, Propagation::Background).await.err());
            }
        }
        let told = crd::terminating(
            &stored.whole(),
            failed.as_ref().map(|refusal| refusal.message.as_str()),
            self.server.now(),
        );
        if let (Some(served), Some(told)) = (self.served(&place.0), told) {
            // Somebody else was quicker: the change wakes us again.
            let _ = self.server.overwrite(&served, stored, Some(told));
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Whether pods have time left to end, counted from the deletion of their namespace.
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
