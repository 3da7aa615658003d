//! Nodes as their life cycle's controllers keep them: taints by their conditions, no pods left behind.
//!
//! Source: spec/extension-apiserver §6.1.

use http::Method;
use serde_json::{Value, json};

use super::Helpers;
use crate::dev_server::{
    object::{self, text},
    store::{Collection, Stored},
    write_rules::remove,
};

impl Helpers {
    /// A node that is ready is not kept from pods any more; one that is not, is.
    pub(super) fn taint_node(&self, node: &Stored) {
        const KEYS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
        let conditions = node.value["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ready =
            conditions.iter().find(|condition| condition["type"] == "Ready").map(|ready| text(ready, "/status"));
        let wanted = match ready {
            Some("True") => None,
            Some("Unknown") => Some(KEYS[1]),
            Some(_) => Some(KEYS[0]),
            // It keeps what it got when it was made.
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
        let mut value = node.value.clone();
        if kept.is_empty() {
            remove(&mut value["spec"], "taints");
        } else {
            value["spec"]["taints"] = json!(kept);
        }
        if let Some(served) = self.served(&Collection::new("", "nodes")) {
            let _ = self.server.overwrite(&served, node, Some(value));
        }
    }

    /// Pods of a node that is gone are gone too.
    pub(super) async fn drop_pods_of(&self, node: &str) {
        let pods = Collection::new("", "pods");
        let lost =
            self.server.store.find(|collection, value| *collection == pods && text(value, "/spec/nodeName") == node);
        for (_, _, pod) in lost {
            if let Some(path) = self.path(&pods, &pod.value) {
                let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": object::uid(&pod.value)}});
                self.send(Method::DELETE, &path, "application/json", &options).await;
            }
        }
    }
}
