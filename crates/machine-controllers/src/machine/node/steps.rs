//! Small facts about Nodes that the flows which drain them read or write.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};

use crate::{
    machine::{observation::condition, plan::deletion_stage::was_failed},
    snapshots::{MachineSnapshot, NodeSnapshot},
};
use machine_api::names::node_condition;

/// Why a Node is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Its machine had failed.
    Unhealthy,
    /// Its machine is not needed any more.
    ScaledDown,
}

impl Leaving {
    /// The reason, by what is known of the machine that is being deleted.
    pub fn of(machine: &MachineSnapshot) -> Self {
        if was_failed(machine) { Self::Unhealthy } else { Self::ScaledDown }
    }
}

/// The condition that shows why the Node is removed.
pub fn terminating_condition(leaving: Leaving, now: Timestamp) -> NodeCondition {
    let (reason, message) = match leaving {
        Leaving::Unhealthy => (node_condition::REASON_UNHEALTHY, node_condition::MESSAGE_UNHEALTHY),
        Leaving::ScaledDown => (node_condition::REASON_SCALE_DOWN, node_condition::MESSAGE_SCALE_DOWN),
    };
    NodeCondition {
        type_: node_condition::TERMINATING.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// A condition of this type, as of now; its transition time stays while status and reason stay.
pub fn condition_now(
    node: &NodeSnapshot,
    kind: &str,
    status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> NodeCondition {
    let changed_at = condition(node.conditions(), kind)
        .filter(|stored| stored.status == status && stored.reason.as_deref() == Some(reason))
        .and_then(|stored| stored.last_transition_time.as_ref())
        .map_or(now, |time| time.0);
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(changed_at)),
    }
}
