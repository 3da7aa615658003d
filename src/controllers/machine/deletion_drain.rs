//! The part of a deletion that happens on the Node before the VM goes: cordon, mark, drain, detach.
//!
//! Source: spec/machine-controller §6.4, §6.5, §6.9. How pods are moved is the drain room's; here it is decided how hard,
//! and what follows.

use std::time::Duration;

use kube::ResourceExt;
use serde_json::json;

use super::{
    deletion::{Rest, pause_of, skip_drain},
    deletion_stage::{DeletionStage, was_failed},
    node_steps::{is_cordoned, is_lastingly_unhealthy, terminating_condition},
    observation::{DrainState, Force, NodeStep, NodeView, Observation, condition, conditions_of, since},
    plan::{DrainOrder, Effect, Memo, Next, Plan, VersionGuard},
    retry::RetryPeriod,
};
use crate::api::names::{machine_reason, node_condition};

/// A forced drain may take this long.
const FORCED_DRAIN: Duration = Duration::from_secs(60);
/// Attachments that can't be deleted hold a forced deletion this long beyond the drain timeout (M-02).
const ATTACHMENTS_HOLD: Duration = Duration::from_secs(10 * 60);
/// Pause while the views of pods and attachments fill.
const VIEWS_WAIT: Duration = Duration::from_millis(500);
/// At most one progress text per this time (spec §7.9).
const PROGRESS_EVERY: Duration = Duration::from_secs(30);

/// Why and how hard a drain is forced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainMode {
    /// Pods are evicted.
    Normal,
    /// Pods are deleted at once, and whatever fails does not stop the deletion.
    Forced,
}

/// How the Node is to be drained now, from the label, the time since the deletion, and the Node's own conditions (M-05).
pub fn drain_mode(seen: &Observation) -> DrainMode {
    let late = seen.deleting_for().is_some_and(|elapsed| elapsed > seen.limits.drain);
    let unhealthy = seen.node.ours().is_some_and(|node| is_lastingly_unhealthy(node, seen.now));
    if seen.force_deletion() == Force::Yes || late || unhealthy { DrainMode::Forced } else { DrainMode::Normal }
}

/// Cordon, mark and drain the Node.
pub(super) fn drain_node(seen: &Observation) -> Plan {
    let node = match &seen.node {
        NodeView::NoTarget | NodeView::NotLinked { .. } => return skip_drain(seen),
        NodeView::Absent | NodeView::Vanished => return to_delete_vm(seen, "Drain successful.", Vec::new()),
        NodeView::Foreign { name, why } => {
            let kept = Effect::Warn {
                reason: machine_reason::FOREIGN_NODE_KEPT,
                message: format!("Node {name} is left alone: {why}"),
            };
            return to_delete_vm(seen, "Node belongs to something else and is left alone.", vec![kept]);
        }
        NodeView::Ours(node) => node,
    };
    let mode = drain_mode(seen);
    match (&seen.trouble, mode) {
        (Some(trouble), DrainMode::Normal) => {
            let cause = match trouble.step {
                NodeStep::TerminatingCondition => {
                    format!(
                        "Drain failed due to failure in update of node conditions - {}. Will retry in next sync.",
                        trouble.error
                    )
                }
                _ => format!("Drain failed due to - {}. Will retry in next sync.", trouble.error),
            };
            return failed_drain(seen, &cause);
        }
        (Some(trouble), DrainMode::Forced) if trouble.step == NodeStep::Cordon => {
            return to_attachments(seen, &forced_on(&trouble.error));
        }
        _ => {}
    }
    let mut effects = Vec::new();
    if !is_cordoned(node) {
        effects.push(Effect::PatchNode {
            step: NodeStep::Cordon,
            patch: json!({ "spec": { "unschedulable": true } }),
            guard: VersionGuard::Any,
        });
    }
    let condition_failed = seen.trouble.as_ref().is_some_and(|trouble| trouble.step == NodeStep::TerminatingCondition);
    if condition(conditions_of(node), node_condition::TERMINATING).is_none() && !condition_failed {
        effects.push(Effect::AddNodeCondition(terminating_condition(was_failed(&seen.machine), seen.now)));
    }
    if !effects.is_empty() {
        return Plan::new("mark-node", effects, Next::Again);
    }
    match &seen.drain {
        DrainState::Due => Plan::wait("step-drain", Next::StepDrain(drain_order(seen, node.name_any(), mode))),
        DrainState::Warming => {
            Plan::wait("drain-awaits-views", Next::LookAgain(VIEWS_WAIT, "pods are not all known yet"))
        }
        DrainState::Running { progress, blocked_by, wake } => {
            drain_running(seen, progress, blocked_by.as_deref(), *wake)
        }
        DrainState::Drained => match mode {
            DrainMode::Normal => to_delete_vm(seen, "Drain successful.", Vec::new()),
            DrainMode::Forced => to_attachments(seen, "Force Drain successful."),
        },
        DrainState::Failed(error) => match mode {
            DrainMode::Normal => {
                failed_drain(seen, &format!("Drain failed due to - {error}. Will retry in next sync."))
            }
            DrainMode::Forced => to_attachments(seen, &forced_on(error)),
        },
    }
}

fn forced_on(error: &str) -> String {
    format!("Drain failed due to - {error}. However, since it's a force deletion shall continue deletion of VM.")
}

/// A normal attempt ends when the drain timeout does; a forced one gets its own minute.
fn drain_order(seen: &Observation, node: String, mode: DrainMode) -> DrainOrder {
    let (force, left) = match mode {
        DrainMode::Normal => (Force::No, seen.limits.drain.saturating_sub(seen.deleting_for().unwrap_or_default())),
        DrainMode::Forced => (Force::Yes, FORCED_DRAIN),
    };
    let left = jiff::SignedDuration::try_from(left).unwrap_or_default();
    DrainOrder { node, force, deadline: seen.now.checked_add(left).unwrap_or(seen.now) }
}

/// A drain under way: how far it is gets written rarely, and only when it says something new.
fn drain_running(seen: &Observation, progress: &str, blocked_by: Option<&str>, wake: Duration) -> Plan {
    let mut effects = Vec::new();
    let last = &seen.machine.status.last_operation;
    let written = last.last_update_time.as_ref().map(|time| since(seen.now, time.0));
    let rest = Rest::at(DeletionStage::Drain, progress);
    if written.is_none_or(|ago| ago >= PROGRESS_EVERY) && !last.description.contains(progress) {
        effects.push(rest.effect(seen));
    }
    if let Some(budget) = blocked_by {
        effects.push(Effect::Warn {
            reason: machine_reason::DRAIN_BLOCKED,
            message: format!(
                "evictions are refused by PodDisruptionBudget {budget}; pods are deleted by force once {} minutes have passed since the deletion",
                seen.limits.drain.as_secs() / 60
            ),
        });
    }
    Plan::new("drain-running", effects, Next::LookAgain(wake, "drain"))
}

fn failed_drain(seen: &Observation, text: &str) -> Plan {
    let rest = Rest::failed(DeletionStage::Drain, text, None);
    let effects = rest.change(seen).effect_unless_similar(seen).into_iter().collect();
    Plan::new("drain-failed", effects, Next::LookAgain(pause_of(RetryPeriod::Short, seen), "retry of the drain"))
}

/// On to the VM: written before the driver is asked, so that a restart does not drain again.
fn to_delete_vm(seen: &Observation, text: &str, more: Vec<Effect>) -> Plan {
    let mut effects = vec![Rest::at(DeletionStage::DeleteVm, text).effect(seen), Effect::Remember(Memo::FlowDone)];
    effects.extend(more);
    Plan::new("drained", effects, Next::Again)
}

/// After a forced drain come the attachments; without any, the VM.
fn to_attachments(seen: &Observation, text: &str) -> Plan {
    let forced = Effect::Warn { reason: machine_reason::DRAIN_FORCED, message: text.to_owned() };
    if seen.attachments.as_ref().is_some_and(|all| all.iter().all(|attachment| attachment.deleting)) {
        return to_delete_vm(seen, text, vec![forced]);
    }
    let rest = Rest::at(DeletionStage::DeleteVolumeAttachments, text);
    Plan::new("drained-by-force", vec![rest.effect(seen), forced], Next::Again)
}

/// Delete the Node's attachments; those that are being deleted already are not waited for.
pub(super) fn detach(seen: &Observation) -> Plan {
    if !matches!(seen.node, NodeView::Ours(_)) {
        return to_delete_vm(
            seen,
            "Skipping deleteNodeVolAttachments as the node is gone. Moving to VM Deletion.",
            Vec::new(),
        );
    }
    let Some(attachments) = &seen.attachments else {
        return Plan::wait("detach-awaits-views", Next::LookAgain(VIEWS_WAIT, "attachments are not all known yet"));
    };
    let alive: Vec<_> = attachments.iter().filter(|attachment| !attachment.deleting).collect();
    if alive.is_empty() {
        return to_delete_vm(seen, "No Live VolumeAttachments for node. Moving to VM Deletion.", Vec::new());
    }
    if let Some(trouble) = seen.trouble.as_ref().filter(|trouble| trouble.step == NodeStep::Attachments) {
        let overdue = seen.deleting_for().is_some_and(|elapsed| elapsed > seen.limits.drain + ATTACHMENTS_HOLD);
        if overdue {
            let kept = Effect::Warn {
                reason: machine_reason::VOLUME_STILL_ATTACHED,
                message: format!("the VM is deleted although volume attachments can't be: {}", trouble.error),
            };
            return to_delete_vm(seen, "Volume attachments could not be deleted. Moving to VM Deletion.", vec![kept]);
        }
        let text = format!("Deletion of volume attachments failed due to - {}.", trouble.error);
        let rest = Rest::failed(DeletionStage::DeleteVolumeAttachments, text, None);
        let effects = rest.change(seen).effect_unless_similar(seen).into_iter().collect();
        return Plan::new("detach-failed", effects, Next::LookAgain(pause_of(RetryPeriod::Short, seen), "detach"));
    }
    let effects = alive
        .into_iter()
        .map(|attachment| Effect::DeleteAttachment { name: attachment.name.clone(), uid: attachment.uid.clone() })
        .collect();
    // What was deleted is seen through the view; until then the next pass would delete it twice.
    Plan::new(
        "detach-by-force",
        effects,
        Next::LookAgain(pause_of(RetryPeriod::Short, seen), "attachments are deleted"),
    )
}
