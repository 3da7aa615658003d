//! Whether a machine's Node is healthy, and which phase follows from it.
//!
//! Source: spec/machine-controller §5.1–5.3; decisions.md 40. Time limits live in `timeout`.

pub mod frozen;
#[cfg(test)]
mod tests;
pub mod timeout;
pub mod vm_gone;

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;

use super::{
    in_place::{UpdateResult, phase_after_update, take_result},
    measures::Measurement,
    observation::{NodeView, Observation, condition, shared_instance::VmOwner},
    plan::{
        Effect, Next, RuleResult,
        reporting::{report_when_new, reported_reason, reported_since},
        status_change::{StatusChange, TimeoutClock},
    },
    settings::HealthTimeout,
    standing::Waiting,
};
use crate::{
    snapshots::NodeSnapshot,
    times::{after, since},
};
use kube_values::duration::GoDuration;
use machine_api::{
    names::{machine_condition, machine_reason, node_condition, taint},
    v1alpha1::{MachinePhase, OperationState, OperationType},
};

/// Changed conditions of a machine that has not joined are written after this time at the latest (spec §16.2).
pub const CONDITIONS_WAIT: Duration = Duration::from_secs(60);

/// The health of the machine according to its Node.
#[derive(Clone, Debug, PartialEq)]
pub enum HealthVerdict {
    /// Nothing is new; perhaps the conditions are to be written after this time.
    Unchanged(Option<Duration>),
    /// The conditions are to be written, nothing else.
    TakeConditions,
    /// The machine is healthy and becomes Running.
    Running(Arrival),
    /// The machine is not healthy any more.
    Unknown(Cause),
    /// The node's agent has reported the result of the in-place update.
    Updated(UpdateResult),
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

/// Decides by the health of the machine.
pub fn health(seen: &Observation) -> RuleResult {
    if seen.node_label().is_empty() || *seen.phase() == MachinePhase::Unset {
        return RuleResult::NOTHING;
    }
    let conditions = seen.node.ours().map(NodeSnapshot::conditions).unwrap_or_default();
    match health_verdict(seen) {
        HealthVerdict::Unchanged(wait) => match foreign_node(seen) {
            effects if effects.is_empty() => RuleResult::Pass(wait),
            effects => RuleResult::act("node-is-foreign", effects, Next::Again),
        },
        HealthVerdict::TakeConditions => {
            let mut change = StatusChange::new().conditions(conditions);
            if let Some(wait) = node_wait(seen) {
                change = change.waits(wait);
            }
            RuleResult::act("take-conditions", vec![change.effect(seen)], Next::Again)
        }
        HealthVerdict::Updated(result) => {
            let NodeView::Ours(node) = &seen.node else { return RuleResult::NOTHING };
            let (change, event) = take_result(seen, node, result);
            RuleResult::act("take-update-result", vec![change.conditions(conditions).effect(seen), event], Next::Again)
        }
        HealthVerdict::Running(arrival) => {
            RuleResult::act("node-healthy", running(seen, conditions, arrival), Next::Again)
        }
        HealthVerdict::Unknown(cause) => {
            RuleResult::act("node-unhealthy", unknown(seen, conditions, cause), Next::Again)
        }
    }
}

/// The health of the machine according to its Node.
pub fn health_verdict(seen: &Observation) -> HealthVerdict {
    let stored = seen.machine.conditions();
    let node = match &seen.node {
        NodeView::Ours(node) => node,
        NodeView::Absent | NodeView::Vanished | NodeView::Foreign { .. } => {
            return if *seen.phase() == MachinePhase::Running && !stored.is_empty() {
                HealthVerdict::Unknown(Cause::NodeMissing)
            } else {
                HealthVerdict::Unchanged(None)
            };
        }
        // Nothing follows from a Node whose owner is not known.
        NodeView::NoTarget | NodeView::NotLinked { .. } | NodeView::Contested { .. } => {
            return HealthVerdict::Unchanged(None);
        }
    };
    let conditions = node.conditions();
    let changed = conditions_changed(stored, conditions);
    let healthy = is_healthy(conditions, &seen.limits.unhealthy_conditions);
    match (seen.phase(), healthy) {
        // An in-place update has its own verdicts.
        (phase, _) if phase_after_update(phase, node).is_some() => {
            phase_after_update(phase, node).map_or(HealthVerdict::Unchanged(None), HealthVerdict::Updated)
        }
        (MachinePhase::InPlaceUpdating | MachinePhase::InPlaceUpdateFailed | MachinePhase::Terminating, _) => {
            take_if(changed)
        }
        (MachinePhase::Running, true) => take_if(changed),
        (MachinePhase::Running, false) => HealthVerdict::Unknown(Cause::NodeUnhealthy),
        (MachinePhase::Pending, true) if is_critical_component_missing(node) => {
            // Ready but tainted: the machine should show that the node exists.
            let ready_is_stored = condition(stored, "Ready").is_some_and(|ready| ready.status == "True");
            if changed && !ready_is_stored { HealthVerdict::TakeConditions } else { later(seen, changed) }
        }
        // The node was Ready all the time while the update failed, so this is not a recovery.
        (MachinePhase::Failed, true) if failed_in_update(seen) => take_if(changed),
        (_, true) => HealthVerdict::Running(arrival(seen)),
        (MachinePhase::Pending | MachinePhase::CrashLoopBackOff, false) => later(seen, changed),
        (_, false) => take_if(changed),
    }
}

/// Whether the machine has failed because an in-place update failed.
fn failed_in_update(seen: &Observation) -> bool {
    seen.machine.last_operation().operation == OperationType::InPlaceUpdate
}

fn take_if(changed: bool) -> HealthVerdict {
    if changed { HealthVerdict::TakeConditions } else { HealthVerdict::Unchanged(None) }
}

/// Conditions of a machine that has not joined are written together with its phase Running, but wait no longer than
/// [`CONDITIONS_WAIT`].
fn later(seen: &Observation, changed: bool) -> HealthVerdict {
    if !changed {
        return HealthVerdict::Unchanged(None);
    }
    let waited = seen.conditions_differ_since.map(|began| since(seen.steady, began)).unwrap_or_default();
    if waited >= CONDITIONS_WAIT {
        HealthVerdict::TakeConditions
    } else {
        HealthVerdict::Unchanged(Some(CONDITIONS_WAIT.saturating_sub(waited)))
    }
}

fn arrival(seen: &Observation) -> Arrival {
    let last = seen.machine.last_operation();
    if last.operation == OperationType::Create && last.state != OperationState::Successful {
        Arrival::Joined
    } else {
        Arrival::Rejoined
    }
}

/// Whether a node with these conditions is healthy. A node that has never reported `Ready` is not healthy (M-15).
pub fn is_healthy(conditions: &[NodeCondition], unhealthy_unless_false: &BTreeSet<String>) -> bool {
    condition(conditions, "Ready").is_some_and(|ready| ready.status == "True")
        && conditions
            .iter()
            .all(|condition| condition.status == "False" || !unhealthy_unless_false.contains(&condition.type_))
}

/// Whether conditions differ in more than times and texts: a type was added or removed, a status changed, or the reason of
/// an in-place update changed (spec §2.3).
pub fn conditions_changed(stored: &[NodeCondition], now: &[NodeCondition]) -> bool {
    let key = |condition: &NodeCondition| {
        let in_place = condition.type_ == node_condition::IN_PLACE_UPDATE;
        let reason = if in_place { condition.reason.clone() } else { None };
        (condition.type_.clone(), condition.status.clone(), reason)
    };
    stored.iter().map(key).collect::<BTreeSet<_>>() != now.iter().map(key).collect::<BTreeSet<_>>()
}

/// Whether pods that every node needs are not running yet.
pub fn is_critical_component_missing(node: &NodeSnapshot) -> bool {
    node.taints().iter().any(|mark| mark.key == taint::CRITICAL_COMPONENTS_NOT_READY && mark.effect == "NoSchedule")
}

fn running(seen: &Observation, conditions: &[NodeCondition], arrival: Arrival) -> Vec<Effect> {
    let name = seen.name();
    let change = StatusChange::new()
        .phase(MachinePhase::Running, TimeoutClock::Inactive)
        .conditions(conditions)
        .settled(machine_condition::REASON_SETTLED, "the node is healthy");
    match arrival {
        Arrival::Joined => {
            let took = GoDuration::from_secs(i64::try_from(seen.age().as_secs()).unwrap_or(i64::MAX));
            let change = change.operation(
                OperationType::Create,
                OperationState::Successful,
                format!("Machine {name} successfully joined the cluster in {took}"),
            );
            let mut effects =
                vec![change.effect(seen), Effect::Measure(Measurement::Joined(seen.age())), Effect::DeleteToken];
            // For a Pending machine the status says enough (decisions.md 32).
            if *seen.phase() != MachinePhase::Pending {
                let message = format!("Machine {name} joined the cluster after {took}");
                effects.push(Effect::Tell { reason: machine_reason::JOINED, message });
            }
            effects
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
    let wait = unhealthy_since(seen, cause, seen.now);
    let mut change = StatusChange::new()
        .phase(MachinePhase::Unknown, TimeoutClock::Inactive)
        .operation(OperationType::HealthCheck, OperationState::Processing, text.clone())
        .waits(wait);
    if cause == Cause::NodeUnhealthy {
        change = change.conditions(conditions);
    }
    vec![change.effect(seen), Effect::Warn { reason, message: text }]
}

/// The wait of a machine in phase Unknown.
pub fn unhealthy_wait(seen: &Observation) -> Waiting {
    let cause = if seen.node.ours().is_some() { Cause::NodeUnhealthy } else { Cause::NodeMissing };
    let began = seen.machine.last_update_time().unwrap_or(seen.now);
    unhealthy_since(seen, cause, began)
}

fn unhealthy_since(seen: &Observation, cause: Cause, began: Timestamp) -> Waiting {
    let reason = match cause {
        Cause::NodeMissing => machine_reason::NODE_MISSING,
        Cause::NodeUnhealthy => machine_reason::NODE_UNHEALTHY,
    };
    let wait = Waiting::on(reason, format!("Node {} to recover", seen.node_label())).since(began);
    let wait = match (cause, &seen.node) {
        (_, NodeView::Foreign { why, .. }) => {
            wait.seen(format!("a Node of this name belongs to something else: {why}"))
        }
        (_, NodeView::Contested { why, .. }) => {
            wait.seen(format!("whose the Node of this name is can't be told: {why}"))
        }
        (Cause::NodeUnhealthy, NodeView::Ours(node)) => wait.seen(in_words(node.conditions())),
        (Cause::NodeMissing | Cause::NodeUnhealthy, _) => wait.seen("the Node object is gone"),
    };
    match seen.limits.health {
        HealthTimeout::Never => {
            wait.ended_by("the Node reports Ready and no bad condition; the health timeout is disabled")
        }
        HealthTimeout::After(limit) => wait
            .ended_by("the Node reports Ready and no bad condition")
            .at_most_until(after(began, limit), "the machine is declared Failed when its turn comes"),
    }
}

/// The wait of a machine whose Node exists but is not healthy. `None` when the machine has joined already.
fn node_wait(seen: &Observation) -> Option<Waiting> {
    let (MachinePhase::Pending, NodeView::Ours(node)) = (seen.phase(), &seen.node) else { return None };
    let name = seen.node_label();
    let is_tainted = is_critical_component_missing(node);
    let (reason, on, ended_by) = if is_healthy(node.conditions(), &seen.limits.unhealthy_conditions) && is_tainted {
        (
            machine_condition::REASON_WAITING_FOR_CRITICAL_COMPONENTS,
            format!("critical pods of Node {name}"),
            format!("taint {} is taken off the Node", taint::CRITICAL_COMPONENTS_NOT_READY),
        )
    } else {
        (
            machine_condition::REASON_WAITING_FOR_NODE_READY,
            format!("Node {name} to become Ready"),
            "the kubelet reports Ready and no bad condition".to_owned(),
        )
    };
    // The status must keep showing that the VM was taken over: this sets the start of the creation timeout (M-13).
    let adopted = machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM;
    let reason = if reported_reason(&seen.machine) == Some(adopted) { adopted } else { reason };
    Some(pending_wait(seen, reason, on).seen(in_words(node.conditions())).ended_by(ended_by))
}

/// A wait of a machine that has a VM and has not joined; the creation timeout limits it.
pub fn pending_wait(seen: &Observation, reason: &'static str, on: String) -> Waiting {
    let began = seen.machine.last_update_time();
    let began = began.filter(|_| *seen.phase() == MachinePhase::Pending).unwrap_or(seen.now);
    let is_adopted = reason == machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM;
    let left = seen.limits.creation.saturating_sub(if is_adopted { since(seen.now, began) } else { seen.age() });
    Waiting::on(reason, on).since(began).at_most_until(after(seen.now, left), "the machine is declared Failed")
}

/// Reports that the Node with the Node name of a machine that has not joined has another owner, or may have another owner.
fn foreign_node(seen: &Observation) -> Vec<Effect> {
    if *seen.phase() != MachinePhase::Pending {
        return Vec::new();
    }
    if let Some((node, why)) = contest(seen) {
        return report_contest(seen, node, &format!("the machine has not joined, and {why}"));
    }
    let (NodeView::Foreign { name, why } | NodeView::Contested { name, why }) = &seen.node else { return Vec::new() };
    if is_reported_as_adopted(seen) {
        return Vec::new();
    }
    let wait = pending_wait(seen, machine_reason::FOREIGN_NODE_KEPT, format!("a Node {name} of its own"))
        .seen(format!("the one that exists belongs to something else: {why}"))
        .ended_by("that one is gone and the VM registers");
    report_when_new(seen, &wait)
}

/// The Node whose owner is unclear, and the reason. The machine's VM may be the VM of the Node, and would be deleted with
/// the machine when its set replaces it. Therefore the machine's time limits rest. When the ids show that the VM belongs to
/// another machine, too, this machine has no VM: declaring it Failed then costs nothing, and its set creates a machine with
/// its own VM.
pub(super) fn contest(seen: &Observation) -> Option<(&str, &str)> {
    match (&seen.node, &seen.vm_owner) {
        (NodeView::Contested { name, why }, VmOwner::This) => Some((name, why)),
        _ => None,
    }
}

/// Reports once that nothing is concluded from a Node of unclear owner, and why that matters now.
pub(super) fn report_contest(seen: &Observation, node: &str, why: &str) -> Vec<Effect> {
    if is_reported_as_adopted(seen) {
        return Vec::new();
    }
    let wait = Waiting::on(machine_reason::NODE_CONTESTED, format!("somebody to tell whose Node {node} is"))
        .since(reported_since(seen, machine_reason::NODE_CONTESTED))
        .seen(why)
        .ended_by("the other machine is deleted or has another node on its label; creation and health timeout rest until then");
    report_when_new(seen, &wait)
}

/// Whether the condition shows that the VM was taken over. This condition must stay, see [`node_wait`]. It also shows the
/// wait for a Node.
fn is_reported_as_adopted(seen: &Observation) -> bool {
    reported_reason(&seen.machine) == Some(machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM)
}

/// Conditions in one line: `Ready=False (KubeletNotReady), DiskPressure=True`.
pub fn in_words(conditions: &[NodeCondition]) -> String {
    let words = conditions.iter().map(|condition| match condition.reason.as_deref() {
        Some(reason) if !reason.is_empty() => format!("{}={} ({reason})", condition.type_, condition.status),
        _ => format!("{}={}", condition.type_, condition.status),
    });
    words.collect::<Vec<_>>().join(", ")
}
