//! Single facts about Nodes that the deletion flow writes or asks for.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::status_change::rfc3339;
use crate::api::names::{finalizer, node_condition};

/// Whether the Node takes no new pods.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// Whether our finalizer is on the Node.
pub fn has_node_finalizer(node: &Node) -> bool {
    node.finalizers().iter().any(|name| name == finalizer::NODE)
}

/// The condition that tells why the Node goes away.
pub fn terminating_condition(had_failed: bool, now: Timestamp) -> Value {
    let (reason, message) = if had_failed {
        (node_condition::REASON_UNHEALTHY, node_condition::MESSAGE_UNHEALTHY)
    } else {
        (node_condition::REASON_SCALE_DOWN, node_condition::MESSAGE_SCALE_DOWN)
    };
    json!({
        "type": node_condition::TERMINATING,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": rfc3339(now),
        "lastTransitionTime": rfc3339(now),
    })
}
