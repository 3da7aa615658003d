//! The node lifecycle controller: taints of Nodes by their conditions, and the deletion of the pods of deleted Nodes.
//!
//! Source: spec/extension-apiserver §6.1.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::{
    Helpers,
    requests::{Refusal, Requests},
};
use crate::{
    object::{self, text},
    store::{Change, Collection, Stored},
    write_rules::remove,
};

impl Helpers {
    /// Removes the taints from a Node that is ready, and taints a Node that is not ready.
    pub(super) fn taint_node(&self, node: &Stored) {
        const KEYS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
        let conditions = node.value["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ready =
            conditions.iter().find(|condition| condition["type"] == "Ready").map(|ready| text(ready, "/status"));
        let wanted = match ready {
            Some("True") => None,
            Some("Unknown") => Some(KEYS[1]),
            Some(_) => Some(KEYS[0]),
            // A new Node without this condition keeps the taints of its creation.
            None => return,
        };
        let taints = node.value["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let ours = |taint: &Value| KEYS.iter().any(|key| taint["key"] == *key);
        let has = |key: &str| taints.iter().any(|taint| taint["key"] == key);
        let settled = match wanted {
            None => !taints.iter().any(ours),
            Some(key) => has(key) && taints.iter().filter(|taint| ours(taint)).all(|taint| taint["key"] == key),
        };
        if settled {
            return;
        }
        let mut kept: Vec<Value> = taints.iter().filter(|taint| !ours(taint)).cloned().collect();
        if let Some(key) = wanted {
            kept.push(json!({"key": key, "effect": "NoSchedule"}));
            kept.push(json!({"key": key, "effect": "NoExecute", "timeAdded": object::time(self.server.now())}));
        }
        let mut value = node.whole();
        if kept.is_empty() {
            remove(&mut value["spec"], "taints");
        } else {
            value["spec"]["taints"] = json!(kept);
        }
        if let Some(served) = self.served(&Collection::new("", "nodes")) {
            let _ = self.server.overwrite(&served, node, Some(value));
        }
    }

    /// Records the Node of a pod.
    pub(super) fn track_node(&mut self, change: &Change) {
        let node = |stored: &Option<Arc<Stored>>| {
            stored.as_ref().map(|pod| text(&pod.value, "/spec/nodeName").to_owned()).filter(|node| !node.is_empty())
        };
        let (before, after) = (node(&change.before), node(&change.after));
        if let Some(left) = before.filter(|before| Some(before) != after.as_ref())
            && let Some(pods) = self.bound.get_mut(&left)
        {
            pods.remove(&change.key);
            if pods.is_empty() {
                self.bound.remove(&left);
            }
        }
        if let Some(node) = after {
            self.bound.entry(node).or_default().insert(change.key.clone());
        }
    }

    /// The keys of the pods of a deleted Node. Empty if a Node with its name exists again.
    pub(super) fn pods_left_on(&self, node: &str) -> BTreeSet<String> {
        let is_back = self.server.store.get(&Collection::new("", "nodes"), node).is_some();
        self.bound.get(node).filter(|_| !is_back).cloned().unwrap_or_default()
    }
}

impl Requests {
    /// Deletes pods whose Node is deleted. Returns the last error after all deletions.
    pub(super) async fn delete_pods(&self, keys: BTreeSet<String>) -> Result<(), Refusal> {
        let pods = Collection::new("", "pods");
        let mut result = Ok(());
        for key in keys {
            let Some(pod) = self.server.store.get(&pods, &key) else { continue };
            let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": object::uid(&pod.value)}});
            result = self.delete_with(&pods, &pod.value, &options).await.and(result);
        }
        result
    }
}
