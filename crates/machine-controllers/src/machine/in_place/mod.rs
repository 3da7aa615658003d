//! The machine half of an in-place update: it marks the Node's progress through the update, drains the Node once it is
//! selected, and takes over the result.
//!
//! The sequence: the deployment half labels a Node as candidate and as selected; this module drains it and sets
//! `ReadyForUpdate`; the node's agent updates it and labels the result; this module copies the result into the Node's
//! condition and the machine's phase. Without the label `candidate-for-update` nothing happens here, and a running drain
//! stops. Source: spec/machine-controller §5.5. `health` decides the health that follows, `health::timeout` the time limits;
//! the module `drain` moves the pods.

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    node::steps::condition_now,
    observation::{DrainState, NodeStep, NodeView, Observation, condition},
    plan::{
        Effect, Next, Plan, RuleResult,
        reporting::{Worth, report_missing_views, reported_reason, views_pause, wait_for_views, write_if},
        status_change::{StatusChange, TimeoutClock},
        waits::Wait,
    },
    retry::RetryPeriod,
    standing::{Standing, Waiting},
    time_limit::node_limit,
};
use crate::{
    drain::{
        order::{DrainFlow, DrainOrder, Force},
        progress::{Attempt, Failure},
    },
    snapshots::{MachineSnapshot, NodeSnapshot},
    times::after,
};
use controller_runtime::snapshot::Snapshot;
use machine_api::{
    names::{annotation, label, machine_condition, machine_reason, node_condition, stage_text, update_result},
    v1alpha1::{MachinePhase, OperationState, OperationType},
};

/// A forced drain may take this long.
const FORCED_DRAIN: Duration = Duration::from_secs(60);

/// The progress of a Node's update: the reason of its condition `InPlaceUpdate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum UpdateStage {
    /// The Node may be selected.
    Candidate,
    /// The Node is selected and is being drained.
    Selected,
    /// The Node is drained.
    DrainSuccessful,
    /// The node's agent may begin.
    ReadyForUpdate,
    /// The Node is updated.
    Successful,
    /// The update failed.
    Failed,
}

impl UpdateStage {
    const ALL: [Self; 6] =
        [Self::Candidate, Self::Selected, Self::DrainSuccessful, Self::ReadyForUpdate, Self::Successful, Self::Failed];

    /// The condition's reason.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Candidate => node_condition::REASON_CANDIDATE_FOR_UPDATE,
            Self::Selected => node_condition::REASON_SELECTED_FOR_UPDATE,
            Self::DrainSuccessful => node_condition::REASON_DRAIN_SUCCESSFUL,
            Self::ReadyForUpdate => node_condition::REASON_READY_FOR_UPDATE,
            Self::Successful => node_condition::REASON_UPDATE_SUCCESSFUL,
            Self::Failed => node_condition::REASON_UPDATE_FAILED,
        }
    }

    /// The stage of a Node; `None` when it was never part of an update.
    pub fn of(node: &NodeSnapshot) -> Option<Self> {
        let reason = condition(node.conditions(), node_condition::IN_PLACE_UPDATE)?.reason.as_deref()?;
        Self::ALL.into_iter().find(|stage| stage.reason() == reason)
    }

    fn message(self, node: &NodeSnapshot) -> String {
        match self {
            Self::Candidate => "Node is a candidate for in-place update".to_owned(),
            Self::Selected => "Node is selected for in-place update".to_owned(),
            Self::DrainSuccessful => "Node draining successful".to_owned(),
            Self::ReadyForUpdate => "Node is ready for in-place update".to_owned(),
            Self::Successful => "Node in-place update successful".to_owned(),
            Self::Failed => format!("Node in-place update failed: {}", failure_of(node)),
        }
    }
}

/// The result of the update, as the node's agent reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    /// The update succeeded.
    Successful,
    /// The update failed.
    Failed,
}

/// The result on the Node's label; `None` for any other value.
pub fn result_of(node: &NodeSnapshot) -> Option<UpdateResult> {
    match node.label(label::UPDATE_RESULT) {
        Some(update_result::SUCCESSFUL) => Some(UpdateResult::Successful),
        Some(update_result::FAILED) => Some(UpdateResult::Failed),
        Some(_) | None => None,
    }
}

/// Why the update failed, in the words of the node's agent.
pub fn failure_of(node: &NodeSnapshot) -> &str {
    node.annotation(annotation::UPDATE_FAILED_REASON).unwrap_or_default()
}

/// Whether the Node of this machine is being drained for an update, as far as the machine's stored conditions show.
pub fn is_selected(machine: &MachineSnapshot) -> bool {
    condition(machine.conditions(), node_condition::IN_PLACE_UPDATE)
        .is_some_and(|condition| condition.reason.as_deref() == Some(node_condition::REASON_SELECTED_FOR_UPDATE))
}

/// The next step of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum InPlaceStep {
    /// There is nothing to do.
    None,
    /// Set the Node's condition to this stage.
    Mark(UpdateStage),
    /// Cordon and drain the Node.
    Drain,
}

/// The next step for this Node, from its labels and its condition.
pub fn next_in_place_step(node: &NodeSnapshot) -> InPlaceStep {
    let has = |key: &str| node.label(key).is_some();
    if !has(label::CANDIDATE_FOR_UPDATE) {
        // An update that was repaired after its marks had been withdrawn. A Node that stays marked as failed would never
        // become a candidate again.
        return match (UpdateStage::of(node), result_of(node)) {
            (Some(stage), Some(UpdateResult::Successful)) if stage != UpdateStage::Successful => {
                InPlaceStep::Mark(UpdateStage::Successful)
            }
            // The update was withdrawn before its drain had ended. A Node that stays marked as selected would be drained as
            // soon as it is a candidate again.
            (Some(UpdateStage::Selected), None) if !has(label::SELECTED_FOR_UPDATE) => {
                InPlaceStep::Mark(UpdateStage::Candidate)
            }
            _ => InPlaceStep::None,
        };
    }
    match (UpdateStage::of(node), result_of(node)) {
        (None, _) => InPlaceStep::Mark(UpdateStage::Candidate),
        (Some(UpdateStage::Successful), None) if !has(label::UPDATE_RESULT) => {
            InPlaceStep::Mark(UpdateStage::Candidate)
        }
        (Some(UpdateStage::Successful), Some(UpdateResult::Successful))
        | (Some(UpdateStage::Failed), Some(UpdateResult::Failed)) => InPlaceStep::None,
        (Some(_), Some(UpdateResult::Successful)) => InPlaceStep::Mark(UpdateStage::Successful),
        (Some(_), Some(UpdateResult::Failed)) => InPlaceStep::Mark(UpdateStage::Failed),
        (Some(UpdateStage::Candidate), None) if has(label::SELECTED_FOR_UPDATE) => {
            InPlaceStep::Mark(UpdateStage::Selected)
        }
        (Some(UpdateStage::Selected), None) => InPlaceStep::Drain,
        (Some(UpdateStage::DrainSuccessful), None) => InPlaceStep::Mark(UpdateStage::ReadyForUpdate),
        // Now the agent acts, or a person who repairs a failed update.
        (
            Some(UpdateStage::Candidate | UpdateStage::ReadyForUpdate | UpdateStage::Successful | UpdateStage::Failed),
            None,
        ) => InPlaceStep::None,
    }
}

/// The Node whose update this module handles: the Node of a machine that is not about to be replaced.
fn node_of(seen: &Observation) -> Option<&NodeSnapshot> {
    let NodeView::Ours(node) = &seen.node else { return None };
    let is_alive = !matches!(
        seen.phase(),
        MachinePhase::Unset | MachinePhase::CrashLoopBackOff | MachinePhase::Failed | MachinePhase::Terminating
    );
    is_alive.then_some(node)
}

/// Marks the Node's progress through the update (spec §3.1, step 10).
pub fn in_place_marks(seen: &Observation) -> RuleResult {
    let Some(node) = node_of(seen) else { return RuleResult::NOTHING };
    let InPlaceStep::Mark(stage) = next_in_place_step(node) else { return RuleResult::NOTHING };
    if seen.step_failures.at(NodeStep::InPlaceCondition).is_some() {
        return RuleResult::Pass(Some(RetryPeriod::Short.length(Duration::ZERO)));
    }
    RuleResult::act("in-place-mark", vec![mark(node, stage, seen.now)], Next::Again)
}

/// Drains a selected Node (spec §3.1, step 11). The machine's status is written first, then the Node: a restart in between
/// drains an empty node once more, but the agent never begins while the machine counts as Running (MC-144).
pub fn in_place_drain(seen: &Observation) -> RuleResult {
    let Some(node) = node_of(seen) else { return RuleResult::NOTHING };
    if next_in_place_step(node) != InPlaceStep::Drain {
        return withdrawn(seen, node);
    }
    if let Some(failure) = seen.step_failures.at(NodeStep::Cordon) {
        return failed(seen, node, &failure.error.as_str().into());
    }
    if !seen.step_failures.is_empty() {
        return RuleResult::Pass(Some(RetryPeriod::Short.length(Duration::ZERO)));
    }
    if !node.is_cordoned() {
        return RuleResult::act("in-place-cordon", vec![Effect::Cordon], Next::Again);
    }
    match &seen.drain {
        DrainState::Due => RuleResult::act("in-place-drain", Vec::new(), Next::StepDrain(order(seen, node))),
        DrainState::Warming => {
            let began = selected_at(seen, node);
            let lists = wait_for_views(seen, began, None);
            let reported = report_missing_views(seen, began, &lists);
            let next = Next::LookAgain(views_pause(seen, began), Wait::UpdateViews);
            RuleResult::waits("in-place-drain-awaits-views", lists, reported, next)
        }
        DrainState::Running { progress, blocked_by, waiting, attempt, wake } => {
            let text = waiting
                .as_ref()
                .map_or_else(|| progress.clone(), |waiting| format!("{progress}, for {}", waiting.text()));
            RuleResult::Act(running(seen, node, &text, blocked_by.as_deref(), *attempt, *wake))
        }
        DrainState::Failed(error) => failed(seen, node, error),
        DrainState::Drained => {
            // If only the Node's condition was refused, the machine's status is written already.
            let mut effects = Vec::new();
            if *seen.phase() != MachinePhase::InPlaceUpdating {
                effects.push(begin(seen));
            }
            effects.push(mark(node, UpdateStage::DrainSuccessful, seen.now));
            RuleResult::act("in-place-drained", effects, Next::Again)
        }
    }
}

/// A machine whose update was withdrawn during the drain stays in service and waits for nothing any more.
fn withdrawn(seen: &Observation, node: &NodeSnapshot) -> RuleResult {
    let is_candidate = node.label(label::CANDIDATE_FOR_UPDATE).is_some();
    if !shows_drain(seen) || is_candidate || *seen.phase() != MachinePhase::Running {
        return RuleResult::NOTHING;
    }
    let text = "the update of its Node in place was withdrawn";
    let mut change = StatusChange::new().settled(machine_condition::REASON_SETTLED, text);
    if seen.machine.last_operation().operation == OperationType::DrainNode {
        let text = "Drain stopped: the update in place was withdrawn".to_owned();
        change = change.operation(OperationType::DrainNode, OperationState::Successful, text);
    }
    RuleResult::act("in-place-withdrawn", vec![change.effect(seen)], Next::Again)
}

/// When the Node was selected: the start of its drain.
fn selected_at(seen: &Observation, node: &NodeSnapshot) -> Timestamp {
    stored_selection(node).unwrap_or(seen.now)
}

/// When the Node was selected, if its condition shows it.
fn stored_selection(node: &NodeSnapshot) -> Option<Timestamp> {
    let stored = condition(node.conditions(), node_condition::IN_PLACE_UPDATE)?;
    stored.last_transition_time.as_ref().map(|time| time.0)
}

/// How the Node is drained: by force when label `force-drain` is exactly `True`, when the drain timeout has passed since the
/// selection, or when the Node has been not Ready or read-only for five minutes.
fn order(seen: &Observation, node: &NodeSnapshot) -> DrainOrder {
    let asked = seen.machine.labels().get(label::FORCE_DRAIN).is_some_and(|value| value == "True");
    let limit = node_limit(seen, seen.limits.drain, selected_at(seen, node));
    let (force, left) = if asked || limit.has_passed() || seen.is_node_lastingly_unhealthy() {
        (Force::Yes, FORCED_DRAIN)
    } else {
        (Force::No, limit.left())
    };
    DrainOrder {
        node: node.name().to_owned(),
        node_uid: node.uid().to_owned(),
        flow: DrainFlow::Update(stored_selection(node)),
        force,
        deadline: after(seen.steady, left),
    }
}

/// Sets the condition of the Node to a stage; its transition time stays when only the message changes.
fn mark(node: &NodeSnapshot, stage: UpdateStage, now: Timestamp) -> Effect {
    let (kind, message) = (node_condition::IN_PLACE_UPDATE, stage.message(node));
    let condition = Box::new(condition_now(node, kind, "True", stage.reason(), message, now));
    Effect::SetNodeCondition { step: NodeStep::InPlaceCondition, condition }
}

/// Writes that the machine is being updated until the agent is done.
fn begin(seen: &Observation) -> Effect {
    let wait =
        Waiting::on(machine_condition::REASON_WAITING_FOR_UPDATE, "the node's agent to update the node in place")
            .since(seen.now)
            .ended_by(format!("the agent sets label {} on Node {}", label::UPDATE_RESULT, seen.node_label()))
            .at_most_until(after(seen.now, seen.limits.in_place_update), "the update counts as failed");
    StatusChange::new()
        .phase(MachinePhase::InPlaceUpdating, TimeoutClock::Inactive)
        .operation(
            OperationType::InPlaceUpdate,
            OperationState::Processing,
            format!("Machine {} is undergoing an in-place update", seen.name()),
        )
        .waits(wait)
        .effect(seen)
}

/// A running drain is reported once, and once more when a budget blocks it; then the last operation shows it, too (MC-134).
/// An attempt that only repeats a failure which the machine shows already is not reported.
fn running(
    seen: &Observation,
    node: &NodeSnapshot,
    text: &str,
    blocked_by: Option<&str>,
    attempt: Attempt,
    wake: Duration,
) -> Plan {
    let wait = drain_wait(seen, node, text, blocked_by);
    let mut change = StatusChange::new().waits(wait.clone());
    if let Some(budget) = blocked_by {
        let text =
            format!("Drain is held up by PodDisruptionBudget {budget}, which refuses evictions. {}", stage_text::DRAIN);
        change = change.operation(OperationType::DrainNode, OperationState::Processing, text);
    }
    let is_reported = attempt == Attempt::Again && shows_drain(seen);
    let write = write_if(seen, &change, Worth::NewReason).filter(|_| !is_reported);
    // A drain that makes progress needs no warning; the condition shows it.
    let is_warned = write.is_some() && blocked_by.is_some();
    let warning = is_warned.then(|| Effect::Warn { reason: wait.reason(), message: wait.message() });
    let effects = write.into_iter().chain(warning).collect();
    Plan::new("in-place-drain-running", effects, Next::LookAgain(wake, Wait::UpdateDrain)).stands(Standing::Waits(wait))
}

/// Whether the machine shows that its Node is being drained for an update.
fn shows_drain(seen: &Observation) -> bool {
    matches!(
        reported_reason(&seen.machine),
        Some(machine_condition::REASON_DRAINING_FOR_UPDATE | machine_reason::DRAIN_BLOCKED)
    )
}

fn drain_wait(seen: &Observation, node: &NodeSnapshot, text: &str, blocked_by: Option<&str>) -> Waiting {
    let began = selected_at(seen, node);
    let wait = match blocked_by {
        Some(budget) => Waiting::on(
            machine_reason::DRAIN_BLOCKED,
            format!("PodDisruptionBudget {budget}, which refuses evictions from Node {}", node.name()),
        )
        .ended_by("the budget allows them"),
        None => Waiting::on(
            machine_condition::REASON_DRAINING_FOR_UPDATE,
            format!("Node {} to be drained for an in-place update", node.name()),
        )
        .ended_by("its pods are gone"),
    };
    wait.since(began).seen(text).at_most_until(after(began, seen.limits.drain), "pods are deleted by force")
}

/// A failed attempt; the phase stays (MC-134).
fn failed(seen: &Observation, node: &NodeSnapshot, failure: &Failure) -> RuleResult {
    let error = &failure.text;
    let text = format!("Drain failed due to - {error}. Will retry in next sync. {}", stage_text::DRAIN);
    let wait = drain_wait(seen, node, &format!("the last attempt failed: {error}"), None);
    let on = failure.named_behind(wait.object());
    let wait = wait.for_object(on);
    let message = wait.message();
    let change = StatusChange::new().operation(OperationType::DrainNode, OperationState::Processing, text).waits(wait);
    let next = Next::LookAgain(RetryPeriod::Short.length(Duration::ZERO), Wait::UpdateDrainFailed);
    let warning = Effect::Warn { reason: machine_reason::DRAIN_BLOCKED, message };
    RuleResult::Act(Plan::reporting("in-place-drain-failed", seen, change, Worth::NewValues, next).also([warning]))
}

/// The result of an update, from the agent's label and the machine's phase; only while the machine is being updated, or after its update failed.
pub fn phase_after_update(phase: &MachinePhase, node: &NodeSnapshot) -> Option<UpdateResult> {
    match (phase, result_of(node)) {
        (MachinePhase::InPlaceUpdating | MachinePhase::InPlaceUpdateFailed, Some(UpdateResult::Successful)) => {
            Some(UpdateResult::Successful)
        }
        (MachinePhase::InPlaceUpdating, Some(UpdateResult::Failed)) => Some(UpdateResult::Failed),
        _ => None,
    }
}

/// The phase that follows from the agent's result. The caller takes over the conditions in the same write.
pub fn take_result(seen: &Observation, node: &NodeSnapshot, result: UpdateResult) -> (StatusChange, Effect) {
    let name = seen.name();
    let change = StatusChange::new();
    match result {
        UpdateResult::Successful => {
            let text = format!("Machine {name} successfully updated dependencies");
            let wait =
                Waiting::on(machine_condition::REASON_WAITING_FOR_NODE_READY, "the updated node to become healthy")
                    .since(seen.now)
                    .ended_by("the kubelet reports it Ready");
            let change = change
                .phase(MachinePhase::InPlaceUpdateSuccessful, TimeoutClock::Inactive)
                .operation(OperationType::InPlaceUpdate, OperationState::Successful, text.clone())
                .waits(wait);
            (change, Effect::Tell { reason: machine_reason::IN_PLACE_UPDATE_SUCCESSFUL, message: text })
        }
        UpdateResult::Failed => {
            let text = format!("Machine {name} failed to update dependencies: {}", failure_of(node));
            (
                failure(seen, change, text.clone()),
                Effect::Warn { reason: machine_reason::IN_PLACE_UPDATE_FAILED, message: text },
            )
        }
    }
}

/// The agent gave no result within the time limit.
pub fn timed_out(seen: &Observation) -> Vec<Effect> {
    let limit = kube_values::duration::GoDuration::from(seen.limits.in_place_update);
    let text = format!("Machine {} failed to in-place update in {limit}.", seen.name());
    let warn = Effect::Warn { reason: machine_reason::IN_PLACE_UPDATE_FAILED, message: text.clone() };
    vec![failure(seen, StatusChange::new(), text).effect(seen), warn]
}

fn failure(seen: &Observation, change: StatusChange, text: String) -> StatusChange {
    let wait = Waiting::on(machine_reason::IN_PLACE_UPDATE_FAILED, "somebody to repair the update, or a replacement")
        .since(seen.now)
        .seen(text.clone())
        .ended_by(format!(
            "label {} on Node {} becomes {}",
            label::UPDATE_RESULT,
            seen.node_label(),
            update_result::SUCCESSFUL
        ));
    let wait = match seen.limits.health {
        super::settings::HealthTimeout::Never => wait,
        super::settings::HealthTimeout::After(limit) => {
            wait.at_most_until(after(seen.now, limit), "the machine is declared Failed when its turn comes")
        }
    };
    change
        .phase(MachinePhase::InPlaceUpdateFailed, TimeoutClock::Inactive)
        .operation(OperationType::InPlaceUpdate, OperationState::Failed, text)
        .waits(wait)
}
