//! The part of a deletion that happens on the Node before the VM is deleted: cordon, mark, drain, detach.
//!
//! Source: spec/machine-controller §6.4, §6.5, §6.9. The module `drain` moves the pods; this file decides whether that is
//! forced, and what follows.

use std::time::Duration;

use jiff::Timestamp;

use super::{StageStatus, course, pause_of, skip_drain, wait_in_deletion};
use crate::{
    drain::{
        order::{DrainFlow, DrainOrder, Force},
        progress::{Attempt, Failure},
        waiting::Waiting as DrainWaiting,
    },
    machine::{
        node::steps::{Leaving, terminating_condition},
        observation::{DrainState, NodeSource, NodeStep, NodeView, Observation, condition},
        plan::{
            Effect, Memo, Next, Plan,
            deletion_stage::DeletionStage,
            reporting::{
                PROGRESS_EVERY, Worth, report_missing_views, reported_reason, views_pause, wait_for_views, write_if,
            },
            status_change::StatusChange,
            waits::Wait,
        },
        retry::RetryPeriod,
        standing::{Standing, Waiting},
        time_limit::{TimeLimit, deletion_limit, drain_limit, node_limit},
    },
    times::{after, rfc3339},
};
use controller_runtime::snapshot::Snapshot;
use kube_values::duration::GoDuration;
use machine_api::names::{label, machine_condition, machine_reason, node_condition};

/// A forced drain may take this long.
const FORCED_DRAIN: Duration = Duration::from_secs(60);
/// Attachments that can't be deleted delay a forced deletion this long beyond the drain timeout (M-02).
const ATTACHMENTS_HOLD: Duration = Duration::from_secs(10 * 60);
/// A deletion by force, or a deletion whose drain timeout has passed, waits this long for the lists of pods and attachments.
const LISTS_HOLD: Duration = Duration::from_secs(60);

/// The degree of force of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainMode {
    /// Pods are evicted.
    Normal,
    /// Pods are deleted at once, because the Node has been unhealthy for long. A failure still stops the deletion: only a
    /// controller that reaches the Node's API server can know that the Node is unhealthy.
    UnhealthyNode,
    /// Pods are deleted at once, and a failure does not stop the deletion.
    Forced,
}

/// How the Node is drained now, by the label, the time since the deletion, and the faults of the Node (M-05).
pub fn drain_mode(seen: &Observation) -> DrainMode {
    let late = drain_limit(seen).is_some_and(TimeLimit::has_passed);
    if seen.force_deletion() == Force::Yes || late {
        DrainMode::Forced
    } else if seen.is_node_lastingly_unhealthy() {
        DrainMode::UnhealthyNode
    } else {
        DrainMode::Normal
    }
}

/// Cordons, marks and drains the Node.
pub(super) fn drain_node(seen: &Observation) -> Plan {
    let node = match &seen.node {
        NodeView::NoTarget | NodeView::NotLinked { .. } => return skip_drain(seen),
        NodeView::Absent | NodeView::Vanished => return without_node(seen),
        NodeView::Foreign { name, why } => {
            let kept = Effect::Warn {
                reason: machine_reason::FOREIGN_NODE_KEPT,
                message: format!("Node {name} is left alone: {why}"),
            };
            return to_delete_vm(seen, "Node belongs to something else and is left alone.", vec![kept]);
        }
        NodeView::Contested { name, why } => return contested(seen, name, why),
        NodeView::Ours(node) => node,
    };
    let mode = drain_mode(seen);
    match (seen.step_failures.latest(), mode) {
        (Some(failure), DrainMode::Normal) => {
            let cause = match failure.step {
                NodeStep::TerminatingCondition => {
                    format!(
                        "Drain failed due to failure in update of node conditions - {}. Will retry in next sync.",
                        failure.error
                    )
                }
                _ => format!("Drain failed due to - {}. Will retry in next sync.", failure.error),
            };
            return failed_drain(seen, &cause);
        }
        (Some(failure), DrainMode::UnhealthyNode) if failure.step == NodeStep::Cordon => {
            return failed_drain(seen, &format!("Drain failed due to - {}. Will retry in next sync.", failure.error));
        }
        (Some(failure), DrainMode::Forced) if failure.step == NodeStep::Cordon => {
            return to_attachments(seen, &forced_on(&failure.error));
        }
        _ => {}
    }
    let mut effects = Vec::new();
    if !node.is_cordoned() {
        effects.push(Effect::Cordon);
    }
    let condition_failed = seen.step_failures.at(NodeStep::TerminatingCondition).is_some();
    if condition(node.conditions(), node_condition::TERMINATING).is_none() && !condition_failed {
        // The condition stays, so that this happens once in the life of a Node, whichever process leads.
        effects.extend(replacement_event(seen));
        effects.push(Effect::AddNodeCondition(Box::new(terminating_condition(Leaving::of(&seen.machine), seen.now))));
    }
    if !effects.is_empty() {
        return Plan::new("mark-node", effects, Next::Again);
    }
    match &seen.drain {
        DrainState::Due => Plan::wait("step-drain", Next::StepDrain(drain_order(seen, node.name().to_owned(), mode))),
        DrainState::Warming => await_lists(seen, "drain-awaits-views", Wait::DrainViews),
        DrainState::Running { progress, waiting, attempt, wake, .. } => {
            drain_running(seen, progress, waiting.as_ref(), *attempt, *wake)
        }
        DrainState::Drained => match mode {
            DrainMode::Normal => to_delete_vm(seen, "Drain successful.", recovered(seen).into_iter().collect()),
            DrainMode::UnhealthyNode | DrainMode::Forced => to_attachments(seen, "Force Drain successful."),
        },
        DrainState::Failed(error) => match mode {
            // With an unhealthy Node, the failure may only mean that its pods could not be reached.
            DrainMode::Normal | DrainMode::UnhealthyNode => failed_drain_of(seen, error),
            DrainMode::Forced => to_attachments(seen, &forced_on(&error.text)),
        },
    }
}

/// The event that tells the users of a Node why it goes, if another machine takes the place of its machine.
fn replacement_event(seen: &Observation) -> Option<Effect> {
    let why = seen.replacement.as_ref()?.text();
    let message = format!("The Node will be drained and deleted, because machine {} is replaced: {why}", seen.name());
    Some(Effect::TellNode { reason: node_condition::REASON_NODE_REPLACEMENT, message })
}

/// A Node whose owner is unclear is not drained for this machine. The VM of the machine may be the VM of the Node, so the VM waits as well: until
/// the owner is known, or as long as a drain may take (decisions.md 44).
fn contested(seen: &Observation, node: &str, why: &str) -> Plan {
    if drain_mode(seen) == DrainMode::Forced {
        let kept = Effect::Warn {
            reason: machine_reason::NODE_CONTESTED,
            message: format!("Node {node} is left alone: {why}"),
        };
        return to_delete_vm(seen, "It can't be told whose the Node is; it is left alone.", vec![kept]);
    }
    let (reason, text) = (machine_reason::NODE_CONTESTED, format!("It can't be told whose Node {node} is: {why}."));
    let on = format!("somebody to tell whose Node {node} is, which is not drained meanwhile");
    let wait = wait_in_deletion(seen, reason, on).seen(why).ended_by(format!(
        "the other machine is deleted or relabelled, or this one is labelled {}",
        label::FORCE_DELETION
    ));
    StageStatus::failed(DeletionStage::Drain, text.clone(), None)
        .waits(until(wait, by_force_at(seen), "its VM goes without that"))
        .plan("node-is-contested", seen, Next::LookAgain(PROGRESS_EVERY, Wait::Contest))
        .warning_if_written(reason, text)
}

/// A Node that the store does not show has no pods only if the API server does not have the Node either (decisions.md 45). A
/// forced deletion does not wait for that answer.
fn without_node(seen: &Observation) -> Plan {
    match seen.step_failures.latest() {
        Some(failure) if failure.step == NodeStep::LastLook && drain_mode(seen) == DrainMode::Normal => {
            failed_drain(seen, &format!("Drain failed due to - {}. Will retry in next sync.", failure.error))
        }
        None if seen.node_source == NodeSource::View => {
            Plan::new("look-for-node-to-drain", vec![Effect::LookForNode], Next::Again)
        }
        _ => to_delete_vm(seen, "Drain successful.", Vec::new()),
    }
}

/// The time since which the deletion has been at its stage.
fn in_stage_since(seen: &Observation) -> Timestamp {
    seen.machine.last_operation().last_update_time.as_ref().map_or(seen.now, |time| time.0)
}

/// How long the VM still waits for the lists of pods and attachments of its node, and when that wait ends (decisions.md 47).
/// A deletion by force waits for as long as this process needs to list them; any other deletion waits until the drain
/// timeout has passed, too.
fn awaits_lists_until(seen: &Observation) -> (Duration, Timestamp) {
    let asked = in_stage_since(seen).max(seen.first_seen);
    let listing = node_limit(seen, LISTS_HOLD, asked);
    let listed_at = listing.ends_at_since(asked, seen.now);
    match (seen.force_deletion(), drain_limit(seen), by_force_at(seen)) {
        (Force::No, Some(drain), Some(late)) => (listing.left().max(drain.left()), listed_at.max(late)),
        _ => (listing.left(), listed_at),
    }
}

/// Without the lists of pods and attachments, no pod can be moved and no volume can be detached. A target cluster that does
/// not give these lists must not keep a VM for ever.
fn await_lists(seen: &Observation, rule: &'static str, wait: Wait) -> Plan {
    let (began, (left, end)) = (in_stage_since(seen), awaits_lists_until(seen));
    if !left.is_zero() {
        let lists = wait_for_views(seen, began, Some((end, "the VM is deleted without them")));
        let pause = views_pause(seen, began).min(left).max(Duration::from_millis(1));
        return Plan::new(rule, report_missing_views(seen, began, &lists), Next::LookAgain(pause, wait))
            .stands(Standing::Waits(lists));
    }
    let missing: Vec<&str> = seen.missing_views.iter().map(|view| view.kind).collect();
    let missing = if missing.is_empty() { "pods and volume attachments".to_owned() } else { missing.join(", ") };
    let unseen = Effect::Warn {
        reason: machine_reason::DRAIN_FORCED,
        message: format!(
            "the VM is deleted although it is not known what runs on its node and which volumes are attached: {missing} of \
             the target cluster could not be listed"
        ),
    };
    to_delete_vm(seen, &forced_on(&format!("{missing} could not be listed")), vec![unseen])
}

fn forced_on(error: &str) -> String {
    format!("Drain failed due to - {error}. However, since it's a force deletion shall continue deletion of VM.")
}

/// A normal attempt ends with the drain timeout; a forced attempt gets one more minute.
pub fn drain_order(seen: &Observation, node: String, mode: DrainMode) -> DrainOrder {
    let (force, left) = match mode {
        DrainMode::Normal => (Force::No, drain_limit(seen).map_or(seen.limits.drain, TimeLimit::left)),
        DrainMode::UnhealthyNode | DrainMode::Forced => (Force::Yes, FORCED_DRAIN),
    };
    let node_uid = seen.node.ours().map(|node| node.uid().to_owned()).unwrap_or_default();
    DrainOrder { node, node_uid, flow: DrainFlow::Deletion, force, deadline: after(seen.steady, left) }
}

/// Limits the wait by this end, if it is known.
fn until(wait: Waiting, end: Option<Timestamp>, then: &str) -> Waiting {
    match end {
        Some(end) => wait.at_most_until(end, then),
        None => wait,
    }
}

/// The consequence for pods that are not gone at the end of the drain timeout.
const BY_FORCE: &str = "pods are deleted by force";

/// The wait of a running drain, and the event that reports it. The same message is recorded once for as long as it holds. From the time `by_force`,
/// pods are deleted.
pub(crate) fn drain_wait(
    progress: &str,
    waiting: Option<&DrainWaiting>,
    by_force: Option<Timestamp>,
) -> (Waiting, Option<Effect>) {
    let end = by_force.map(|at| format!("; at {} {BY_FORCE}", rfc3339(at))).unwrap_or_default();
    let (reason, warning) = match waiting {
        Some(DrainWaiting::Budget { budget, held, .. }) => (
            machine_condition::REASON_DRAIN_BLOCKED,
            Some((
                machine_reason::DRAIN_BLOCKED,
                format!("PodDisruptionBudget {budget} refuses the eviction of {held} pod(s){end}"),
            )),
        ),
        Some(DrainWaiting::Detach { volume, pod, .. }) => (
            machine_condition::REASON_WAITING_FOR_DETACHMENT,
            Some((
                machine_reason::VOLUME_STILL_ATTACHED,
                format!("PersistentVolume {volume} of pod {pod} is not detached from the node yet{end}"),
            )),
        ),
        Some(DrainWaiting::Reattach { .. }) => (machine_condition::REASON_WAITING_FOR_REATTACHMENT, None),
        Some(DrainWaiting::Pod { .. } | DrainWaiting::VolumeNames) | None => (machine_condition::REASON_DRAINING, None),
    };
    let wait = match waiting {
        Some(waiting) => {
            let bounds = waiting.bounds().map(|bounds| format!("{bounds}; ")).unwrap_or_default();
            let wait = Waiting::on(reason, waiting.whom()).seen(format!("{bounds}{progress}"));
            waiting.since().map_or(wait.clone(), |began| wait.since(began))
        }
        None => Waiting::on(reason, "its pods to go").seen(progress),
    };
    (until(wait, by_force, BY_FORCE), warning.map(|(reason, message)| Effect::Warn { reason, message }))
}

/// Whether a running attempt only repeats one whose failure the machine shows already. Reporting the attempt, and the same
/// failure a moment later, would cost two writes for nothing.
pub(crate) fn tries_again(seen: &Observation, attempt: Attempt) -> bool {
    attempt == Attempt::Again && reported_reason(&seen.machine) == Some(machine_condition::REASON_DRAIN_FAILED)
}

/// The write that reports the progress of a drain, where it is worth one.
pub(crate) fn drain_progress_write(seen: &Observation, change: &StatusChange, attempt: Attempt) -> Option<Effect> {
    if tries_again(seen, attempt) { None } else { write_if(seen, change, Worth::Progress) }
}

/// When pods are deleted by force instead of evicted.
fn by_force_at(seen: &Observation) -> Option<Timestamp> {
    deletion_ends_at(seen, seen.limits.drain)
}

/// When something ends that may delay a deletion for this long.
fn deletion_ends_at(seen: &Observation, length: Duration) -> Option<Timestamp> {
    let deleted = seen.machine.deleting_since()?;
    Some(deletion_limit(seen, length)?.ends_at_since(deleted, seen.now))
}

/// A running drain: its progress is written rarely, and only when it is new.
fn drain_running(
    seen: &Observation,
    progress: &str,
    waiting: Option<&DrainWaiting>,
    attempt: Attempt,
    wake: Duration,
) -> Plan {
    let (wait, warning) = drain_wait(progress, waiting, by_force_at(seen));
    let wait = wait.in_course_of(course(seen));
    let change = StageStatus::at(DeletionStage::Drain, progress).waits(wait.clone()).change(seen);
    let mut effects: Vec<Effect> = drain_progress_write(seen, &change, attempt).into_iter().collect();
    effects.extend(warning.filter(|_| !tries_again(seen, attempt)));
    Plan::new("drain-running", effects, Next::LookAgain(wake, Wait::Drain)).stands(Standing::Waits(wait))
}

fn failed_drain(seen: &Observation, text: &str) -> Plan {
    failed_drain_on(seen, "its node to be drained", text)
}

/// A failure on other pods or volumes than in the attempt before is a new failure.
fn failed_drain_of(seen: &Observation, failure: &Failure) -> Plan {
    let text = format!("Drain failed due to - {}. Will retry in next sync.", failure.text);
    failed_drain_on(seen, &failure.named_behind("its node to be drained"), &text)
}

fn failed_drain_on(seen: &Observation, on: &str, text: &str) -> Plan {
    let pause = pause_of(RetryPeriod::Short, seen);
    let wait = wait_in_deletion(seen, machine_condition::REASON_DRAIN_FAILED, on)
        .seen(text)
        .ended_by(format!("what fails the drain has ended; attempts go on every {}", GoDuration::from(pause)));
    StageStatus::failed(DeletionStage::Drain, text, None)
        .waits(until(wait, by_force_at(seen), BY_FORCE))
        .plan("drain-failed", seen, Next::LookAgain(pause, Wait::DrainFailed))
        .warning_if_written(machine_reason::DRAIN_BLOCKED, text)
}

/// The event that a drain succeeded after it had been held up. Without a delay the status says enough (decisions.md 32).
fn recovered(seen: &Observation) -> Option<Effect> {
    let was_held_up = matches!(
        reported_reason(&seen.machine),
        Some(
            machine_condition::REASON_DRAIN_BLOCKED
                | machine_condition::REASON_DRAIN_FAILED
                | machine_condition::REASON_WAITING_FOR_DETACHMENT
        )
    );
    was_held_up.then(|| Effect::Tell {
        reason: machine_reason::DRAIN_SUCCEEDED,
        message: format!("Node {} is drained after all", seen.node_label()),
    })
}

/// The next stage is the VM. It is written before the driver is asked, so that a restart does not drain again.
fn to_delete_vm(seen: &Observation, text: &str, more: Vec<Effect>) -> Plan {
    let mut effects =
        vec![StageStatus::at(DeletionStage::DeleteVm, text).effect(seen), Effect::Remember(Memo::FlowDone)];
    effects.extend(more);
    Plan::new("drained", effects, Next::Again)
}

/// After a forced drain, the attachments are deleted; if there are none, the VM.
fn to_attachments(seen: &Observation, text: &str) -> Plan {
    let forced = Effect::Warn { reason: machine_reason::DRAIN_FORCED, message: text.to_owned() };
    if seen.attachments.as_ref().is_some_and(|all| all.iter().all(|attachment| attachment.deleting)) {
        return to_delete_vm(seen, text, vec![forced]);
    }
    let rest = StageStatus::at(DeletionStage::DeleteVolumeAttachments, text);
    Plan::new("drained-by-force", vec![rest.effect(seen), forced], Next::Again)
}

/// How long after its deletion a machine stops waiting for steps on its Node that fail (M-02).
pub(super) fn overdue_after(seen: &Observation) -> Duration {
    seen.limits.drain + ATTACHMENTS_HOLD
}

/// Whether that time has passed since the machine's deletion.
pub(super) fn is_overdue(seen: &Observation) -> bool {
    deletion_limit(seen, overdue_after(seen)).is_some_and(TimeLimit::has_passed)
}

/// Whether a deletion that passed its drain by force has lost the reason for force: its Node is healthy again, or this
/// process has not seen the fault for as long as a fault must last.
fn is_forced_no_more(seen: &Observation) -> bool {
    drain_mode(seen) == DrainMode::Normal
}

/// Goes back to the drain. The pods that the forced drain deleted are gone; the other pods are evicted.
fn drain_after_all(seen: &Observation) -> Plan {
    let rest = StageStatus::at(DeletionStage::Drain, "Nothing forces the drain any more.");
    Plan::new("drain-after-all", vec![rest.effect(seen)], Next::Again)
}

/// Deletes the Node's attachments; attachments that are being deleted already are not waited for.
pub(super) fn detach(seen: &Observation) -> Plan {
    if !matches!(seen.node, NodeView::Ours(_)) {
        return to_delete_vm(
            seen,
            "Skipping deleteNodeVolAttachments as the node is gone. Moving to VM Deletion.",
            Vec::new(),
        );
    }
    let Some(attachments) = &seen.attachments else {
        return await_lists(seen, "detach-awaits-views", Wait::AttachmentViews);
    };
    if is_forced_no_more(seen) {
        return drain_after_all(seen);
    }
    let alive: Vec<_> = attachments.iter().filter(|attachment| !attachment.deleting).collect();
    if alive.is_empty() {
        return to_delete_vm(seen, "No Live VolumeAttachments for node. Moving to VM Deletion.", Vec::new());
    }
    if let Some(failure) = seen.step_failures.at(NodeStep::Attachments) {
        if is_overdue(seen) {
            let kept = Effect::Warn {
                reason: machine_reason::VOLUME_STILL_ATTACHED,
                message: format!("the VM is deleted although volume attachments can't be: {}", failure.error),
            };
            return to_delete_vm(seen, "Volume attachments could not be deleted. Moving to VM Deletion.", vec![kept]);
        }
        let text = format!("Deletion of volume attachments failed due to - {}.", failure.error);
        let pause = pause_of(RetryPeriod::Short, seen);
        let wait = wait_in_deletion(seen, machine_condition::REASON_WAITING_FOR_DETACHMENT, "volumes to be detached")
            .seen(&text)
            .ended_by(format!("an attempt succeeds, tried again every {}", GoDuration::from(pause)));
        let wait = until(wait, deletion_ends_at(seen, overdue_after(seen)), "the VM goes without that");
        return StageStatus::failed(DeletionStage::DeleteVolumeAttachments, text.clone(), None)
            .waits(wait)
            .plan("detach-failed", seen, Next::LookAgain(pause, Wait::DetachmentFailed))
            .also([Effect::Warn { reason: machine_reason::VOLUME_STILL_ATTACHED, message: text }]);
    }
    let effects = alive
        .into_iter()
        .map(|attachment| Effect::DeleteAttachment { name: attachment.name.clone(), uid: attachment.uid.clone() })
        .collect();
    // The store shows the deletions later; an earlier pass would delete the attachments twice.
    Plan::new("detach-by-force", effects, Next::LookAgain(pause_of(RetryPeriod::Short, seen), Wait::Detachment))
}
