//! What goes with a namespace or a definition: its objects first, then itself.
//!
//! Source: spec/extension-apiserver §6.3 no. 7, §6.4.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Helpers, Place};
use crate::dev_server::{
    aggregator::GroupVersion,
    crd,
    object::{self, text},
    store::{Collection, Stored},
};

impl Helpers {
    pub(super) async fn empty_namespace(&self, place: &Place, stored: &Stored) {
        let name = object::name(&stored.value);
        let prefix = format!("{name}/");
        let content = self.server.store.find(|_, value| object::namespace(value) == Some(name));
        let content: Vec<_> = content.into_iter().filter(|(_, key, _)| key.starts_with(&prefix)).collect();
        if content.is_empty() {
            let Some(served) = self.served(&place.0) else { return };
            let unanswered = self.server.aggregator.unanswered();
            if !unanswered.is_empty() {
                // Of these nobody knows whether something is left.
                if let Some(told) = with_discovery_failure(&stored.value, &unanswered, self.server.now()) {
                    let _ = self.server.overwrite(&served, stored, Some(told));
                }
                return;
            }
            let mut value = stored.value.clone();
            value["spec"]["finalizers"] = json!([]);
            let gone = object::finalizers(&value).is_empty();
            // Somebody else was quicker: the change wakes us again.
            let _ = self.server.overwrite(&served, stored, if gone { None } else { Some(value) });
            return;
        }
        for (collection, _, stored) in content {
            if !object::is_deleting(&stored.value) {
                self.delete(&collection, &stored.value).await;
            }
        }
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
            let mut value = waits.value.clone();
            let status = crd::status(&waits.value, all.iter().map(|(_, stored)| &stored.value), self.server.now());
            value["status"] = status;
            // Somebody else was quicker: that write has looked at the names too.
            let _ = self.server.overwrite(&served, waits, Some(value));
        }
    }

    pub(super) async fn empty_definition(&self, place: &Place, stored: &Stored) {
        let collection = Collection::new(text(&stored.value, "/spec/group"), text(&stored.value, "/spec/names/plural"));
        let content = self.server.store.list(&collection, "");
        if content.objects.is_empty() {
            self.release(place, stored, crd::CLEANUP).await;
        }
        for (_, stored) in content.objects {
            if !object::is_deleting(&stored.value) {
                self.delete(&collection, &stored.value).await;
            }
        }
    }
}

/// A namespace that stays because servers of some groups do not answer; none if it says so already.
fn with_discovery_failure(namespace: &Value, unanswered: &[GroupVersion], now: Timestamp) -> Option<Value> {
    const TYPE: &str = "NamespaceDeletionDiscoveryFailure";
    let names: Vec<String> = unanswered.iter().map(ToString::to_string).collect();
    let message = format!(
        "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
        names.len(),
        names.join(", ")
    );
    let mut conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    if conditions.iter().any(|condition| condition["type"] == TYPE && condition["message"] == *message) {
        return None;
    }
    conditions.retain(|condition| condition["type"] != TYPE);
    conditions.push(json!({
        "type": TYPE, "status": "True", "reason": "DiscoveryFailed", "message": message,
        "lastTransitionTime": object::time(now),
    }));
    let mut told = namespace.clone();
    told["status"]["conditions"] = json!(conditions);
    Some(told)
}
