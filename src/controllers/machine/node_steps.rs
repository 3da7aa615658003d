//! Single facts about Nodes that the flows which drain them write or ask for.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    deletion_stage::was_failed,
    observation::{condition, conditions_of, since},
    status_change::rfc3339,
};
use crate::api::{
    names::{finalizer, node_condition},
    v1alpha1::Machine,
};

/// Whether the Node takes no new pods.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// A node that is not Ready or read-only this long is drained by force.
const UNHEALTHY_FORCES_AFTER: Duration = Duration::from_secs(5 * 60);

/// Whether pods of this node can't be moved gently any more: not Ready or read-only for five minutes, by the Node's own
/// conditions (M-05).
pub fn is_lastingly_unhealthy(node: &Node, now: Timestamp) -> bool {
    let lasting = |kind: &str, bad: fn(&str) -> bool| {
        condition(conditions_of(node), kind).is_some_and(|condition| {
            let began = condition.last_transition_time.as_ref().map(|time| time.0);
            bad(&condition.status) && began.is_some_and(|began| since(now, began) > UNHEALTHY_FORCES_AFTER)
        })
    };
    lasting("Ready", |status| status != "True") || lasting("ReadonlyFilesystem", |status| status != "False")
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
