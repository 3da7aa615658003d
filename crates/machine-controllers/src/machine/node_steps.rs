//! Single facts about Nodes that the flows which drain them write or ask for.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{deletion_stage::was_failed, status_change::rfc3339};
use machine_api::{
    names::{finalizer, node_condition},
    v1alpha1::Machine,
};

/// Whether the Node takes no new pods.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// Whether our finalizer is on the Node.
pub fn has_node_finalizer(node: &Node) -> bool {
    node.finalizers().iter().any(|name| name == finalizer::NODE)
}

/// Why a Node goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Its machine had failed.
    Unhealthy,
    /// Its machine is not wanted any more.
    ScaledDown,
}

impl Leaving {
    /// By what is known of the machine that is being deleted.
    pub fn of(machine: &Machine) -> Self {
        if was_failed(machine) { Self::Unhealthy } else { Self::ScaledDown }
    }
}

/// The condition that tells why the Node goes away.
pub fn terminating_condition(leaving: Leaving, now: Timestamp) -> Value {
    let (reason, message) = match leaving {
        Leaving::Unhealthy => (node_condition::REASON_UNHEALTHY, node_condition::MESSAGE_UNHEALTHY),
        Leaving::ScaledDown => (node_condition::REASON_SCALE_DOWN, node_condition::MESSAGE_SCALE_DOWN),
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
