//! The part of a deletion that happens on the Node before the VM goes: cordon, mark, drain, detach.
//!
//! Source: spec/machine-controller §6.4, §6.5, §6.9. How pods are moved is the drain room's; here it is decided how hard,
//! and what follows.

use std::time::Duration;

use jiff::Timestamp;

use super::{Rest, course, pause_of, skip_drain, wait_in_deletion};
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
            status_change::StatusChange,
            telling::{PROGRESS_EVERY, Worth, tell_of_views, told_reason, views_wait, views_waited_for, write_if},
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
/// Attachments that can't be deleted hold a forced deletion this long beyond the drain timeout (M-02).
const ATTACHMENTS_HOLD: Duration = Duration::from_secs(10 * 60);
/// A deletion by force, or one whose drain has had its time, waits so long for the lists of pods and attachments.
const LISTS_HOLD: Duration = Duration::from_secs(60);

/// Why and how hard a drain is forced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainMode {
    /// Pods are evicted.
    Normal,
    /// Pods are deleted at once, because the Node has been ill for long. Only who reaches the Node's API server knows that.
    ByIllness,
    /// Pods are deleted at once, and whatever fails does not stop the deletion.
    Forced,
}

/// How the Node is to be drained now, from the label, the time since the deletion, and what ails the Node (M-05).
pub fn drain_mode(seen: &Observation) -> DrainMode {
    let late = drain_limit(seen).is_some_and(TimeLimit::has_passed);
    if seen.force_deletion() == Force::Yes || late {
        DrainMode::Forced
    } else if seen.is_node_lastingly_ill() {
        DrainMode::ByIllness
    } else {
        DrainMode::Normal
    }
}

/// Cordon, mark and drain the Node.
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
    match (seen.troubles.latest(), mode) {
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
        (Some(trouble), DrainMode::ByIllness) if trouble.step == NodeStep::Cordon => {
            return failed_drain(seen, &format!("Drain failed due to - {}. Will retry in next sync.", trouble.error));
        }
        (Some(trouble), DrainMode::Forced) if trouble.step == NodeStep::Cordon => {
            return to_attachments(seen, &forced_on(&trouble.error));
        }
        _ => {}
    }
    let mut effects = Vec::new();
    if !node.is_cordoned() {
        effects.push(Effect::Cordon);
    }
    let condition_failed = seen.troubles.at(NodeStep::TerminatingCondition).is_some();
    if condition(node.conditions(), node_condition::TERMINATING).is_none() && !condition_failed {
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
            DrainMode::ByIllness | DrainMode::Forced => to_attachments(seen, "Force Drain successful."),
        },
        DrainState::Failed(error) => match mode {
            // A Node that is ill does not tell whether its pods were only not reached.
            DrainMode::Normal | DrainMode::ByIllness => failed_drain_of(seen, error),
            DrainMode::Forced => to_attachments(seen, &forced_on(&error.text)),
        },
    }
}

/// A Node of which nobody can tell whether it is this machine's is not drained for it, and its VM, which may be the one under
/// the Node, waits: until somebody can tell, or as long as a drain that can't be done (decisions.md 44).
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
    Rest::failed(DeletionStage::Drain, text.clone(), None)
        .waits(until(wait, by_force_at(seen), "its VM goes without that"))
        .plan("node-is-contested", seen, Next::LookAgain(PROGRESS_EVERY, Wait::Contest))
        .warning_if_written(reason, text)
}

/// A Node that the view does not show has no pods only if the API server does not have it either (decisions.md 45). A forced
/// deletion does not wait for the answer.
fn without_node(seen: &Observation) -> Plan {
    match seen.troubles.latest() {
        Some(trouble) if trouble.step == NodeStep::LastLook && drain_mode(seen) == DrainMode::Normal => {
            failed_drain(seen, &format!("Drain failed due to - {}. Will retry in next sync.", trouble.error))
        }
        None if seen.node_source == NodeSource::View => {
            Plan::new("look-for-node-to-drain", vec![Effect::LookForNode], Next::Again)
        }
        _ => to_delete_vm(seen, "Drain successful.", Vec::new()),
    }
}

/// Since when the deletion is at its stage.
fn in_stage_since(seen: &Observation) -> Timestamp {
    seen.machine.last_operation().last_update_time.as_ref().map_or(seen.now, |time| time.0)
}

/// Until when the VM waits for the lists of pods and attachments of its node (decisions.md 47): a deletion by force as long as this
/// process needs to list them, any other until the time of the drain is over too. What is left of the wait, and when it ends.
fn awaits_lists_until(seen: &Observation) -> (Duration, Timestamp) {
    let asked = in_stage_since(seen).max(seen.first_seen);
    let listing = node_limit(seen, LISTS_HOLD, asked);
    let listed_at = listing.ends_at_since(asked, seen.now);
    match (seen.force_deletion(), drain_limit(seen), by_force_at(seen)) {
        (Force::No, Some(drain), Some(late)) => (listing.left().max(drain.left()), listed_at.max(late)),
        _ => (listing.left(), listed_at),
    }
}

/// Without the lists of pods and attachments nobody can be moved away and nothing be detached. A target cluster that does not
/// give them must not keep a VM for ever.
fn await_lists(seen: &Observation, rule: &'static str, wait: Wait) -> Plan {
    let (began, (left, end)) = (in_stage_since(seen), awaits_lists_until(seen));
    if !left.is_zero() {
        let lists = views_waited_for(seen, began, Some((end, "the VM is deleted without them")));
        let pause = views_wait(seen, began).min(left).max(Duration::from_millis(1));
        return Plan::new(rule, tell_of_views(seen, began, &lists), Next::LookAgain(pause, wait))
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

/// A normal attempt ends when the drain timeout does; a forced one gets its own minute.
pub fn drain_order(seen: &Observation, node: String, mode: DrainMode) -> DrainOrder {
    let (force, left) = match mode {
        DrainMode::Normal => (Force::No, drain_limit(seen).map_or(seen.limits.drain, TimeLimit::left)),
        DrainMode::ByIllness | DrainMode::Forced => (Force::Yes, FORCED_DRAIN),
    };
    let node_uid = seen.node.ours().map(|node| node.uid().to_owned()).unwrap_or_default();
    DrainOrder { node, node_uid, flow: DrainFlow::Deletion, force, deadline: after(seen.steady, left) }
}

/// A wait until then at the most, if that is known.
fn until(wait: Waiting, end: Option<Timestamp>, then: &str) -> Waiting {
    match end {
        Some(end) => wait.at_most_until(end, then),
        None => wait,
    }
}

/// What becomes of pods that are not gone by the end of the drain timeout.
const BY_FORCE: &str = "pods are deleted by force";

/// Whom a drain under way waits for, and what an event tells besides, for as long as it holds: the same words are told once; `by_force` is the time from which on pods
/// are deleted.
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

/// Whether an attempt under way only tries again what the machine says has failed. To tell of it, and of the same failure a
/// moment later, costs two writes for nothing.
pub(crate) fn tries_again(seen: &Observation, attempt: Attempt) -> bool {
    attempt == Attempt::Again && told_reason(&seen.machine) == Some(machine_condition::REASON_DRAIN_FAILED)
}

/// How much of what a drain says is worth a write.
pub(crate) fn tells_of_drain(seen: &Observation, change: &StatusChange, attempt: Attempt) -> Option<Effect> {
    if tries_again(seen, attempt) { None } else { write_if(seen, change, Worth::Progress) }
}

/// When pods are deleted by force instead of evicted.
fn by_force_at(seen: &Observation) -> Option<Timestamp> {
    deletion_ends_at(seen, seen.limits.drain)
}

/// When something ends that holds a deletion up for so long.
fn deletion_ends_at(seen: &Observation, length: Duration) -> Option<Timestamp> {
    let deleted = seen.machine.deleting_since()?;
    Some(deletion_limit(seen, length)?.ends_at_since(deleted, seen.now))
}

/// A drain under way: how far it is gets written rarely, and only when it says something new.
fn drain_running(
    seen: &Observation,
    progress: &str,
    waiting: Option<&DrainWaiting>,
    attempt: Attempt,
    wake: Duration,
) -> Plan {
    let (wait, warning) = drain_wait(progress, waiting, by_force_at(seen));
    let wait = wait.in_course_of(course(seen));
    let change = Rest::at(DeletionStage::Drain, progress).waits(wait.clone()).change(seen);
    let mut effects: Vec<Effect> = tells_of_drain(seen, &change, attempt).into_iter().collect();
    effects.extend(warning.filter(|_| !tries_again(seen, attempt)));
    Plan::new("drain-running", effects, Next::LookAgain(wake, Wait::Drain)).stands(Standing::Waits(wait))
}

fn failed_drain(seen: &Observation, text: &str) -> Plan {
    failed_drain_on(seen, "its node to be drained", text)
}

/// An attempt that failed on other pods or volumes than the one before is another failure.
fn failed_drain_of(seen: &Observation, failure: &Failure) -> Plan {
    let text = format!("Drain failed due to - {}. Will retry in next sync.", failure.text);
    failed_drain_on(seen, &failure.named_behind("its node to be drained"), &text)
}

fn failed_drain_on(seen: &Observation, on: &str, text: &str) -> Plan {
    let pause = pause_of(RetryPeriod::Short, seen);
    let wait = wait_in_deletion(seen, machine_condition::REASON_DRAIN_FAILED, on)
        .seen(text)
        .ended_by(format!("what fails the drain has ended; attempts go on every {}", GoDuration::from(pause)));
    Rest::failed(DeletionStage::Drain, text, None)
        .waits(until(wait, by_force_at(seen), BY_FORCE))
        .plan("drain-failed", seen, Next::LookAgain(pause, Wait::DrainFailed))
        .warning_if_written(machine_reason::DRAIN_BLOCKED, text)
}

/// That a drain went well which had been held up. On the plain path the status says enough (decisions.md 32).
fn recovered(seen: &Observation) -> Option<Effect> {
    let was_held_up = matches!(
        told_reason(&seen.machine),
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

/// How long after its deletion a machine is held up no longer by what can't be undone on its Node (M-02).
pub(super) fn overdue_after(seen: &Observation) -> Duration {
    seen.limits.drain + ATTACHMENTS_HOLD
}

/// Whether that time has passed.
pub(super) fn is_overdue(seen: &Observation) -> bool {
    deletion_limit(seen, overdue_after(seen)).is_some_and(TimeLimit::has_passed)
}

/// Whether a deletion that came past its drain by force has no reason for force any more: its Node is well again, or was not seen
/// for as long as an illness must last.
fn is_forced_no_more(seen: &Observation) -> bool {
    drain_mode(seen) == DrainMode::Normal
}

/// Back to the drain. What the forced one has moved is gone; nobody else is moved without being asked.
fn drain_after_all(seen: &Observation) -> Plan {
    let rest = Rest::at(DeletionStage::Drain, "Nothing forces the drain any more.");
    Plan::new("drain-after-all", vec![rest.effect(seen)], Next::Again)
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
        return await_lists(seen, "detach-awaits-views", Wait::AttachmentViews);
    };
    if is_forced_no_more(seen) {
        return drain_after_all(seen);
    }
    let alive: Vec<_> = attachments.iter().filter(|attachment| !attachment.deleting).collect();
    if alive.is_empty() {
        return to_delete_vm(seen, "No Live VolumeAttachments for node. Moving to VM Deletion.", Vec::new());
    }
    if let Some(trouble) = seen.troubles.at(NodeStep::Attachments) {
        if is_overdue(seen) {
            let kept = Effect::Warn {
                reason: machine_reason::VOLUME_STILL_ATTACHED,
                message: format!("the VM is deleted although volume attachments can't be: {}", trouble.error),
            };
            return to_delete_vm(seen, "Volume attachments could not be deleted. Moving to VM Deletion.", vec![kept]);
        }
        let text = format!("Deletion of volume attachments failed due to - {}.", trouble.error);
        let pause = pause_of(RetryPeriod::Short, seen);
        let wait = wait_in_deletion(seen, machine_condition::REASON_WAITING_FOR_DETACHMENT, "volumes to be detached")
            .seen(&text)
            .ended_by(format!("an attempt succeeds, tried again every {}", GoDuration::from(pause)));
        let wait = until(wait, deletion_ends_at(seen, overdue_after(seen)), "the VM goes without that");
        return Rest::failed(DeletionStage::DeleteVolumeAttachments, text.clone(), None)
            .waits(wait)
            .plan("detach-failed", seen, Next::LookAgain(pause, Wait::DetachmentFailed))
            .also([Effect::Warn { reason: machine_reason::VOLUME_STILL_ATTACHED, message: text }]);
    }
    let effects = alive
        .into_iter()
        .map(|attachment| Effect::DeleteAttachment { name: attachment.name.clone(), uid: attachment.uid.clone() })
        .collect();
    // What was deleted is seen through the view; until then the next pass would delete it twice.
    Plan::new("detach-by-force", effects, Next::LookAgain(pause_of(RetryPeriod::Short, seen), Wait::Detachment))
}
