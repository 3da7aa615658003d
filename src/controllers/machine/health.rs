//! Whether a machine's Node is healthy, and what phase follows from it.
//!
//! Source: spec/machine-controller §5.1–5.3; decisions.md 40. Time limits live in `health_timeout`.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::{Node, NodeCondition};

use super::{
    measures::Measurement,
    observation::{NodeView, Observation, condition, conditions_of, since},
    plan::{Effect, Next, Say},
    status_change::{Moving, StatusChange, TimeoutClock},
};
use crate::api::{
    duration::GoDuration,
    names::{machine_condition, machine_reason, node_condition, taint},
    v1alpha1::{MachinePhase, OperationState, OperationType},
};

/// Conditions of a machine that has not joined are written at the latest after they differed this long (spec §16.2).
pub const CONDITIONS_WAIT: Duration = Duration::from_secs(60);

/// What the Node says about the machine.
#[derive(Clone, Debug, PartialEq)]
pub enum HealthVerdict {
    /// Nothing new; perhaps the conditions are to be written after this time.
    Unchanged(Option<Duration>),
    /// The conditions are to be written, nothing else.
    TakeConditions,
    /// The machine is healthy and becomes Running.
    Running(Arrival),
    /// The machine is not healthy any more.
    Unknown(Cause),
}

/// How a machine became Running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// For the first time.
    Joined,
    /// Again.
    Rejoined,
}

/// Why a machine is not healthy any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its Node is gone.
    NodeMissing,
    /// Its Node is unhealthy.
    NodeUnhealthy,
}

/// The health of the machine, as far as something follows from it.
pub fn health(seen: &Observation) -> Say {
    if seen.node_label().is_empty() || *seen.phase() == MachinePhase::Unset {
        return Say::NOTHING;
    }
    let conditions = seen.node.ours().map(|node| conditions_of(node)).unwrap_or_default();
    match health_verdict(seen) {
        HealthVerdict::Unchanged(wait) => Say::Pass(wait),
        HealthVerdict::TakeConditions => {
            Say::act("take-conditions", vec![StatusChange::new().conditions(conditions).effect(seen)], Next::Again)
        }
        HealthVerdict::Running(arrival) => Say::act("node-healthy", running(seen, conditions, arrival), Next::Again),
        HealthVerdict::Unknown(cause) => Say::act("node-unhealthy", unknown(seen, conditions, cause), Next::Again),
    }
}

/// What the Node says about the machine.
pub fn health_verdict(seen: &Observation) -> HealthVerdict {
    let stored = &seen.machine.status.conditions;
    let node = match &seen.node {
        NodeView::Ours(node) => node,
        NodeView::Absent | NodeView::Vanished | NodeView::Foreign { .. } => {
            return if *seen.phase() == MachinePhase::Running && !stored.is_empty() {
                HealthVerdict::Unknown(Cause::NodeMissing)
            } else {
                HealthVerdict::Unchanged(None)
            };
        }
        NodeView::NoTarget | NodeView::NotLinked { .. } => return HealthVerdict::Unchanged(None),
    };
    let conditions = conditions_of(node);
    let changed = conditions_changed(stored, conditions);
    let healthy = is_healthy(conditions, &seen.limits.unhealthy_conditions);
    match (seen.phase(), healthy) {
        // An in-place update has its own verdicts.
        (MachinePhase::InPlaceUpdating | MachinePhase::InPlaceUpdateFailed | MachinePhase::Terminating, _) => {
            take_if(changed)
        }
        (MachinePhase::Running, true) => take_if(changed),
        (MachinePhase::Running, false) => HealthVerdict::Unknown(Cause::NodeUnhealthy),
        (MachinePhase::Pending, true) if is_critical_component_missing(node) => {
            // Ready but tainted: whoever looks at the machine should see that the node is there.
            let ready_is_stored = condition(stored, "Ready").is_some_and(|ready| ready.status == "True");
            if changed && !ready_is_stored { HealthVerdict::TakeConditions } else { later(seen, changed) }
        }
        (_, true) => HealthVerdict::Running(arrival(seen)),
        (MachinePhase::Pending | MachinePhase::CrashLoopBackOff, false) => later(seen, changed),
        (_, false) => take_if(changed),
    }
}

fn take_if(changed: bool) -> HealthVerdict {
    if changed { HealthVerdict::TakeConditions } else { HealthVerdict::Unchanged(None) }
}

/// Conditions of a machine that has not joined wait for the write that makes it Running, but not for ever.
fn later(seen: &Observation, changed: bool) -> HealthVerdict {
    if !changed {
        return HealthVerdict::Unchanged(None);
    }
    let waited = seen.conditions_differ_since.map(|began| since(seen.now, began)).unwrap_or_default();
    if waited >= CONDITIONS_WAIT {
        HealthVerdict::TakeConditions
    } else {
        HealthVerdict::Unchanged(Some(CONDITIONS_WAIT.saturating_sub(waited)))
    }
}

fn arrival(seen: &Observation) -> Arrival {
    let last = &seen.machine.status.last_operation;
    if last.operation == OperationType::Create && last.state != OperationState::Successful {
        Arrival::Joined
    } else {
        Arrival::Rejoined
    }
}

/// Whether a node with these conditions is healthy. A node that has never reported `Ready` is not (M-15).
pub fn is_healthy(conditions: &[NodeCondition], unhealthy_unless_false: &BTreeSet<String>) -> bool {
    condition(conditions, "Ready").is_some_and(|ready| ready.status == "True")
        && conditions
            .iter()
            .all(|condition| condition.status == "False" || !unhealthy_unless_false.contains(&condition.type_))
}

/// Whether conditions differ in more than times and texts: a type came or went, a status changed, or the reason of an
/// in-place update (spec §2.3).
pub fn conditions_changed(stored: &[NodeCondition], now: &[NodeCondition]) -> bool {
    let key = |condition: &NodeCondition| {
        let in_place = condition.type_ == node_condition::IN_PLACE_UPDATE;
        let reason = if in_place { condition.reason.clone() } else { None };
        (condition.type_.clone(), condition.status.clone(), reason)
    };
    stored.iter().map(key).collect::<BTreeSet<_>>() != now.iter().map(key).collect::<BTreeSet<_>>()
}

/// Whether pods that every node needs are not there yet.
pub fn is_critical_component_missing(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
        .iter()
        .any(|mark| mark.key == taint::CRITICAL_COMPONENTS_NOT_READY && mark.effect == "NoSchedule")
}

fn running(seen: &Observation, conditions: &[NodeCondition], arrival: Arrival) -> Vec<Effect> {
    let name = seen.name();
    let change = StatusChange::new()
        .phase(MachinePhase::Running, TimeoutClock::Inactive)
        .conditions(conditions)
        .progress(Moving::No, machine_condition::REASON_SETTLED, "the node is healthy");
    match arrival {
        Arrival::Joined => {
            let took = GoDuration::from_secs(i64::try_from(seen.age().as_secs()).unwrap_or(i64::MAX));
            let change = change.operation(
                OperationType::Create,
                OperationState::Successful,
                format!("Machine {name} successfully joined the cluster in {took}"),
            );
            vec![change.effect(seen), Effect::Measure(Measurement::Joined(seen.age())), Effect::DeleteToken]
        }
        Arrival::Rejoined => {
            let text = format!("Machine {name} successfully re-joined the cluster");
            let change = change.operation(OperationType::HealthCheck, OperationState::Successful, text.clone());
            vec![change.effect(seen), Effect::Tell { reason: machine_reason::REJOINED, message: text }]
        }
    }
}

fn unknown(seen: &Observation, conditions: &[NodeCondition], cause: Cause) -> Vec<Effect> {
    let name = seen.name();
    let (reason, text) = match cause {
        Cause::NodeMissing => (
            machine_reason::NODE_MISSING,
            format!("Node object went missing. Machine {name} is unhealthy - changing MachinePhase to Unknown"),
        ),
        Cause::NodeUnhealthy => (
            machine_reason::NODE_UNHEALTHY,
            format!(
                "Machine {name} is unhealthy - changing MachinePhase to Unknown. Node conditions: {}",
                in_words(conditions)
            ),
        ),
    };
    let waits = match seen.limits.health {
        super::settings::HealthTimeout::Never => "; the health timeout is disabled".to_owned(),
        super::settings::HealthTimeout::After(limit) => {
            format!("; waiting for the node to recover, at most {} minutes", limit.as_secs() / 60)
        }
    };
    let mut change = StatusChange::new()
        .phase(MachinePhase::Unknown, TimeoutClock::Inactive)
        .operation(OperationType::HealthCheck, OperationState::Processing, text.clone())
        .progress(Moving::Yes, reason, format!("{text}{waits}"));
    if cause == Cause::NodeUnhealthy {
        change = change.conditions(conditions);
    }
    vec![change.effect(seen), Effect::Warn { reason, message: text }]
}

/// Conditions in one line: `Ready=False (KubeletNotReady), DiskPressure=True`.
pub fn in_words(conditions: &[NodeCondition]) -> String {
    let words = conditions.iter().map(|condition| match condition.reason.as_deref() {
        Some(reason) if !reason.is_empty() => format!("{}={} ({reason})", condition.type_, condition.status),
        _ => format!("{}={}", condition.type_, condition.status),
    });
    words.collect::<Vec<_>>().join(", ")
}
