//! The deletion of a machine: mark, drain, detach, delete the VM, delete the Node, remove the finalizer.
//!
//! Source: spec/machine-controller §6. A step never starts while a driver call for the machine is in flight. Steps that wait
//! for nothing outside follow each other in one pass; the status is written at the stages where the flow may pause (§16.4).

pub mod drain;
mod end;
#[cfg(test)]
mod tests;

use std::time::Duration;

use self::{
    drain::{DrainMode, detach, drain_mode, drain_node},
    end::{delete_node, node_step_failed},
};
use super::{
    creation::{
        errors::{Fault, InputFault, class_fault, secret_fault},
        is_stale_node,
        outcome::{ASKED_EVERY, UnknownOutcome, unknown_before_the_end},
    },
    node::lost_link::link_before_the_vm_goes,
    observation::{
        Answer, Call, LastGood, NodeStep, NodeView, Observation, Purpose, TargetCluster, shared_instance::VmOwner,
    },
    plan::{
        Effect, Link, Memo, Next, Plan,
        deletion_stage::{DeletionStage, was_failed},
        is_linkable,
        reporting::{Worth, time_until_reported},
        status_change::{StatusChange, TimeoutClock},
        waits::Wait,
    },
    retry::{DeleteReaction, RetryPeriod, StatusReaction, after_failed_deletion, after_failed_status_in_deletion},
    standing::{Course, Waiting},
};
use crate::{
    drain::order::Force,
    times::{after, rfc3339},
};
use kube_values::duration::GoDuration;
use machine_api::{
    names::{WAS_FAILED_TEXT, label, machine_condition, machine_reason},
    v1alpha1::{MachinePhase, OperationState, OperationType},
};
use machine_driver::{Code, VmIdentity};

/// Another machine that deletes the VM wakes this one at its end; this period is for a lost change.
const OTHER_LOOKED_AT_EVERY: Duration = Duration::from_secs(30);

/// The next step of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionStep {
    /// Nothing: our finalizer is gone, and the remaining finalizers are not ours.
    NotOurs,
    /// This driver call of the machine is in flight.
    AwaitCall(Call),
    /// Remove the finalizer, and leave VM and Node to the machine of this name, which has the same instance and is not being
    /// deleted.
    LeaveVm(String),
    /// Wait for the end of the machine of this name, which has the same instance and deletes the VM.
    AwaitOther(String),
    /// Enter this stage; the machine becomes Terminating.
    MarkTerminating(DeletionStage),
    /// Link the machine's Node, and become Terminating; the drain follows.
    LinkNode(String),
    /// Ask the driver which Node the VM has.
    AskStatus,
    /// Drain the Node.
    DrainNode,
    /// Detach volumes by force.
    Detach,
    /// Delete the VM.
    DeleteVm,
    /// Delete the Node and remove the finalizer.
    DeleteNode,
    /// Remove the finalizer.
    RemoveFinalizer,
}

/// The next step of a deletion. An answer of the driver in this flow counts like a stage that has been written.
pub fn next_deletion_step(seen: &Observation) -> DeletionStep {
    if !seen.has_finalizer() {
        return DeletionStep::NotOurs;
    }
    if let Some(call) = seen.flow.in_flight {
        return DeletionStep::AwaitCall(call);
    }
    match &seen.vm_owner {
        VmOwner::Living(other) => return DeletionStep::LeaveVm(other.clone()),
        VmOwner::Leaving(other) if seen.force_deletion() == Force::No => {
            return DeletionStep::AwaitOther(other.clone());
        }
        VmOwner::Leaving(_) | VmOwner::This => {}
    }
    let stage = DeletionStage::of(&seen.machine);
    if vm_is_gone(seen) && stage.is_some_and(|stage| stage <= DeletionStage::DeleteVm) {
        return DeletionStep::DeleteNode;
    }
    if let Some(node) = link_before_the_vm_goes(seen, stage) {
        return DeletionStep::LinkNode(node.to_owned());
    }
    let Some(stage) = stage else {
        return match (&seen.node, seen.target) {
            (_, TargetCluster::None) => DeletionStep::MarkTerminating(DeletionStage::DeleteVm),
            (NodeView::NotLinked { .. }, _) => match node_of_answered_vm(seen) {
                Some(node) => DeletionStep::LinkNode(node.to_owned()),
                None => DeletionStep::MarkTerminating(DeletionStage::GetVmStatus),
            },
            _ => DeletionStep::MarkTerminating(DeletionStage::Drain),
        };
    };
    match stage {
        DeletionStage::GetVmStatus => match &seen.node {
            NodeView::NotLinked { .. } => DeletionStep::AskStatus,
            NodeView::NoTarget => DeletionStep::DeleteVm,
            NodeView::Absent
            | NodeView::Vanished
            | NodeView::Ours(_)
            | NodeView::Foreign { .. }
            | NodeView::Contested { .. } => DeletionStep::DrainNode,
        },
        DeletionStage::Drain => DeletionStep::DrainNode,
        DeletionStage::DeleteVolumeAttachments => DeletionStep::Detach,
        DeletionStage::DeleteVm => DeletionStep::DeleteVm,
        DeletionStage::DeleteNode => DeletionStep::DeleteNode,
        DeletionStage::RemoveFinalizer => DeletionStep::RemoveFinalizer,
    }
}

/// Decides the next step of a machine that is being deleted.
pub fn deletion(seen: &Observation) -> Plan {
    match next_deletion_step(seen) {
        DeletionStep::NotOurs => Plan::wait("deletion-not-ours", Next::Settled),
        DeletionStep::AwaitCall(call) => await_call(seen, call),
        DeletionStep::LeaveVm(other) => leave_vm(seen, &other),
        DeletionStep::AwaitOther(other) => await_other(seen, &other),
        DeletionStep::MarkTerminating(stage) => mark_terminating(seen, stage),
        DeletionStep::LinkNode(node) => link_node(seen, &node, answered_vm(seen).map_or("", |vm| &vm.provider_id)),
        DeletionStep::AskStatus => ask_status(seen),
        DeletionStep::DrainNode => drain_node(seen),
        DeletionStep::Detach => detach(seen),
        DeletionStep::DeleteVm => delete_vm(seen),
        // The finalizer is removed in one place only: a stage that another client has marked as done is checked again.
        DeletionStep::DeleteNode | DeletionStep::RemoveFinalizer => delete_node(seen),
    }
}

/// Whether the driver has answered in this flow that nothing is left of the VM. The answer does not count while a creation
/// may still turn out to have made a VM.
pub(super) fn vm_is_gone(seen: &Observation) -> bool {
    let is_said = match &seen.flow.answer {
        Some(Answer::Deleted(Ok(_))) => true,
        Some(Answer::Deleted(Err(status))) => after_failed_deletion(status.code) == DeleteReaction::Gone,
        _ => false,
    };
    is_said && unknown_before_the_end(seen).is_none()
}

/// A status that keeps the flow at a stage: the free text first, the stage's marker last.
pub(super) struct StageStatus {
    stage: DeletionStage,
    state: OperationState,
    text: String,
    code: Option<Code>,
    wait: Option<Waiting>,
}

/// The [`Course`] of a machine that is being deleted.
pub(super) fn course(seen: &Observation) -> Course {
    Course::Deletion(seen.machine.deleting_since())
}

/// A wait of a machine that is being deleted.
pub(super) fn wait_in_deletion(seen: &Observation, reason: &'static str, on: impl Into<String>) -> Waiting {
    Waiting::on(reason, on).in_course_of(course(seen))
}

impl StageStatus {
    pub(super) fn at(stage: DeletionStage, text: impl Into<String>) -> Self {
        Self { stage, state: OperationState::Processing, text: text.into(), code: None, wait: None }
    }

    pub(super) fn failed(stage: DeletionStage, text: impl Into<String>, code: Option<Code>) -> Self {
        Self { stage, state: OperationState::Failed, text: text.into(), code, wait: None }
    }

    /// Sets another wait than the one for the end of the stage.
    pub(super) fn waits(mut self, wait: Waiting) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The wait of the machine.
    fn wait(&self, seen: &Observation) -> Waiting {
        if let Some(wait) = &self.wait {
            return wait.clone();
        }
        let (reason, on) = match self.stage {
            DeletionStage::GetVmStatus => (machine_condition::REASON_DELETING_VM, "the provider to tell its node"),
            DeletionStage::Drain => (machine_condition::REASON_DRAINING, "its node to be drained"),
            DeletionStage::DeleteVolumeAttachments => (machine_condition::REASON_DRAINING, "volumes to be detached"),
            DeletionStage::DeleteVm => (machine_condition::REASON_DELETING_VM, "the provider to delete the VM"),
            DeletionStage::DeleteNode => (machine_condition::REASON_DELETING_NODE, "its Node to be deleted"),
            DeletionStage::RemoveFinalizer => (machine_condition::REASON_LETTING_GO, "its finalizer to be taken off"),
        };
        wait_in_deletion(seen, reason, on).seen(&self.text)
    }

    pub(super) fn change(&self, seen: &Observation) -> StatusChange {
        // The Node's condition needs to know later whether the machine had failed.
        let before = if was_failed(&seen.machine) && self.stage <= DeletionStage::Drain { WAS_FAILED_TEXT } else { "" };
        let blank = if self.text.is_empty() { "" } else { " " };
        StatusChange::new()
            .phase(MachinePhase::Terminating, TimeoutClock::Inactive)
            .operation(OperationType::Delete, self.state.clone(), format!("{before}{}{blank}", self.text))
            .at_stage(self.stage)
            .code(self.code)
            .preservation_ends()
            .last_known_state(seen.flow.unstored_state().map(str::to_owned))
            .waits(self.wait(seen))
    }

    pub(super) fn effect(&self, seen: &Observation) -> Effect {
        self.change(seen).effect(seen)
    }

    /// A plan of this rule that stays at the stage, and writes the status where it is new.
    pub(super) fn plan(&self, rule: &'static str, seen: &Observation, next: Next) -> Plan {
        Plan::reporting(rule, seen, self.change(seen), Worth::NewValues, next)
    }
}

/// The length of a period for this machine.
pub(super) fn pause_of(period: RetryPeriod, seen: &Observation) -> Duration {
    period.length(seen.limits.resource_exhausted_retry)
}

/// No step begins while a driver call is under way. A call of the creation is shown at once, because the status does not show
/// yet that the deletion waits for it. A call of the deletion is shown once it lasts. Either has an event once it lasts.
fn await_call(seen: &Observation, call: Call) -> Plan {
    const RULE: &str = "deletion-awaits-driver";
    let rest = time_until_reported(seen, seen.flow.asked_at.unwrap_or(seen.now));
    if let (Call::Status | Call::Delete, Some(rest)) = (call, rest) {
        return Plan::wait(RULE, Next::LookAgain(rest, Wait::SlowCall));
    }
    let wait = wait_for_call(seen, call);
    let warning = Effect::Warn { reason: wait.reason(), message: wait.message() };
    Plan::reporting(RULE, seen, StatusChange::new().waits(wait), Worth::NewReason, Next::AwaitCall)
        .also(rest.is_none().then_some(warning))
}

/// The wait of a machine that is being deleted while this call is under way.
fn wait_for_call(seen: &Observation, call: Call) -> Waiting {
    let calls = &seen.limits.calls;
    let (about, limit) = match call {
        Call::Create => ("the creation of its VM", calls.create),
        Call::Initialize => ("the initialisation of its VM", calls.initialize),
        Call::DeleteStale => ("the deletion of a VM with the name of an older Node", calls.delete),
        Call::Status => ("the state of its VM", calls.status),
        Call::Delete => ("the deletion of its VM", calls.delete),
    };
    let (before, ended_by, then) = match call {
        Call::Create | Call::Initialize | Call::DeleteStale => {
            (" (begun before the deletion)", "it answers; its VM is deleted then", "the call ends without an answer")
        }
        Call::Status | Call::Delete => ("", "it answers", "the call counts as failed and is tried again"),
    };
    let on = format!("the provider to answer about {about}{before}");
    let wait = wait_in_deletion(seen, machine_condition::REASON_AWAITING_DRIVER, on).ended_by(ended_by);
    match seen.flow.asked_at {
        Some(asked) => wait.since(asked).at_most_until(after(asked, limit), then),
        None => wait,
    }
}

/// Enters a stage that needs a status write before anything is done.
fn mark_terminating(seen: &Observation, stage: DeletionStage) -> Plan {
    let text = if stage == DeletionStage::DeleteVm {
        "Running without target cluster, skipping node drain and volume attachment deletion."
    } else {
        ""
    };
    let mut effects: Vec<Effect> = record_provider_id(seen).into_iter().collect();
    effects.extend([StageStatus::at(stage, text).effect(seen), Effect::Remember(Memo::FlowDone)]);
    effects.extend(forget_token(seen));
    Plan::new("mark-terminating", effects, Next::Again)
}

/// The VM that the driver has named since the creation began, while the machine does not record it yet. A cloud may not list
/// it under the machine's name for minutes, so that only this answer leads to it.
fn answered_vm(seen: &Observation) -> Option<&VmIdentity> {
    let vm = &seen.flow.vm.as_ref()?.identity;
    seen.machine.provider_id().is_empty().then_some(vm)
}

/// The Node that this VM will have. An existing Node of this name that belongs to an older VM is not linked: it must be
/// neither drained nor deleted.
fn node_of_answered_vm(seen: &Observation) -> Option<&str> {
    let vm = answered_vm(seen)?;
    let takes_a_name = matches!(seen.flow.answer, Some(Answer::DeletedStale(_))) || is_stale_node(seen, vm);
    (is_linkable(&vm.node_name) && !takes_a_name).then_some(vm.node_name.as_str())
}

/// Records the identity of that VM when its Node can't be linked.
fn record_provider_id(seen: &Observation) -> Option<Effect> {
    let vm = answered_vm(seen).filter(|vm| !vm.provider_id.is_empty())?;
    Some(Effect::Link(Link { provider_id: Some(vm.provider_id.clone()), ..Link::default() }))
}

/// A machine that never became Running may have a token left.
fn forget_token(seen: &Observation) -> Option<Effect> {
    let joined = matches!(
        seen.phase(),
        MachinePhase::Running
            | MachinePhase::Unknown
            | MachinePhase::Available
            | MachinePhase::InPlaceUpdating
            | MachinePhase::InPlaceUpdateSuccessful
            | MachinePhase::InPlaceUpdateFailed
    );
    (!joined && seen.target == TargetCluster::Present).then_some(Effect::DeleteToken)
}

/// Links the Node, and records the VM's identity where the driver names it. Without the identity, a Node of this name that
/// belongs to an older VM would count as the machine's (M-07).
fn link_node(seen: &Observation, node: &str, provider_id: &str) -> Plan {
    let is_new = seen.machine.provider_id().is_empty() && !provider_id.is_empty();
    let link = Effect::Link(Link { provider_id: is_new.then(|| provider_id.to_owned()), ..Link::of_node(node) });
    let mut effects =
        vec![link, StageStatus::at(DeletionStage::Drain, "").effect(seen), Effect::Remember(Memo::FlowDone)];
    effects.extend(forget_token(seen));
    Plan::new("link-node", effects, Next::Again)
}

/// Asks the driver for the Node of a VM whose Node was never recorded.
fn ask_status(seen: &Observation) -> Plan {
    let by_force = seen.force_deletion() == Force::Yes;
    let stage = DeletionStage::GetVmStatus;
    match &seen.flow.answer {
        Some(Answer::Status(Ok(vm))) if is_linkable(&vm.node_name) => link_node(seen, &vm.node_name, &vm.provider_id),
        Some(Answer::Status(Ok(_))) => skip_drain(seen),
        Some(Answer::Status(Err(status))) => match after_failed_status_in_deletion(status.code) {
            StatusReaction::MoveOn => match status.partial.as_ref().filter(|vm| is_linkable(&vm.node_name)) {
                Some(vm) => link_node(seen, &vm.node_name.clone(), &vm.provider_id.clone()),
                None => match unknown_before_the_end(seen).filter(|_| status.code == Code::NotFound && !by_force) {
                    Some(outcome) => await_vm(seen, stage, outcome),
                    None => skip_drain(seen),
                },
            },
            StatusReaction::AskAgain(_) if by_force || has_waited_for_one_of_several(seen, status.code) => {
                skip_drain(seen)
            }
            StatusReaction::AskAgain(period) => {
                let text = if period == RetryPeriod::Short {
                    format!(
                        "Error occurred with decoding machine error status while getting VM status, aborting with retry. {status}."
                    )
                } else {
                    format!("Error occurred while getting VM status, aborting without retry. machine code: {status}.")
                };
                failed_call(
                    seen,
                    StageStatus::failed(stage, text, Some(status.code)),
                    period,
                    machine_reason::VM_DELETION_FAILED,
                )
            }
        },
        _ => match (fault_of(seen), seen.paused(Purpose::Deletion)) {
            (Some(_), _) if by_force => skip_drain(seen),
            (Some(fault), _) => blocked(seen, stage, &fault),
            (None, Some(pause)) => Plan::wait("deletion-paused", Next::LookAgain(pause, Wait::PauseOfDeletion)),
            (None, None) => Plan::new("ask-vm-status", vec![Effect::Start(Call::Status)], Next::AwaitCall),
        },
    }
}

/// A driver that finds several VMs of the machine's name names the Node of none, however often it is asked. The VMs are
/// deleted without a drain after the drain timeout.
fn has_waited_for_one_of_several(seen: &Observation, code: Code) -> bool {
    code == Code::OutOfRange && drain_mode(seen) == DrainMode::Forced
}

/// Without the name of a Node there is nothing to drain.
pub(super) fn skip_drain(seen: &Observation) -> Plan {
    let rest = StageStatus::at(DeletionStage::DeleteVm, "Skipping drain as nodeName is not a valid one for machine.");
    Plan::new("drain-skipped", vec![rest.effect(seen), Effect::Remember(Memo::AnswerDone)], Next::Again)
}

/// The fault that prevents a driver call, unless the last good class and Secrets may still be used (decisions.md 15).
fn fault_of(seen: &Observation) -> Option<Fault> {
    if seen.class.last_good == LastGood::Remembered {
        return None;
    }
    match class_fault(seen) {
        Some(InputFault::Fault(fault)) if fault.reason != machine_reason::NODE_TEMPLATE_INVALID => Some(fault),
        // A missing finalizer or a bad node template does not matter for a VM that is to be deleted.
        Some(InputFault::Fault(_) | InputFault::NotReady(_)) | None => secret_fault(seen),
    }
}

/// Waits at a stage for class or Secret, and reports that.
fn blocked(seen: &Observation, stage: DeletionStage, fault: &Fault) -> Plan {
    let pause = pause_of(RetryPeriod::Long, seen);
    let wait = wait_in_deletion(seen, fault.reason, "what the provider needs to delete the VM")
        .seen(format!("{}. The VM is not released without it", fault.message))
        .ended_by(format!(
            "it is there; looked at again when the class, its Secrets or the machine change, and every {}",
            GoDuration::from(pause)
        ));
    StageStatus::failed(stage, format!("{}.", fault.message), Some(fault.code))
        .waits(wait)
        .plan("deletion-blocked", seen, Next::LookAgain(pause, Wait::ClassOrSecret))
        .also([Effect::Warn { reason: fault.reason, message: fault.message.clone() }])
}

/// Deletes the VM. After a restart the driver is called again, and answers `NotFound`.
fn delete_vm(seen: &Observation) -> Plan {
    let stage = DeletionStage::DeleteVm;
    match &seen.flow.answer {
        Some(Answer::Deleted(Err(status))) => {
            let (text, period) = match after_failed_deletion(status.code) {
                DeleteReaction::Gone => return after_vm(seen),
                DeleteReaction::SoonAgain => (
                    format!("VM deletion failed due to - {status}. However, will re-try in the next resync."),
                    RetryPeriod::Short,
                ),
                DeleteReaction::LaterAgain => {
                    (format!("VM deletion failed due to - {status}. Aborting operation."), RetryPeriod::Long)
                }
            };
            let rest = StageStatus::failed(stage, text, Some(status.code));
            failed_call(seen, rest, period, machine_reason::VM_DELETION_FAILED)
        }
        Some(Answer::Deleted(Ok(_))) => after_vm(seen),
        _ => match (fault_of(seen), seen.paused(Purpose::Deletion)) {
            (Some(fault), _) => blocked(seen, stage, &fault),
            (None, Some(pause)) => Plan::wait("deletion-paused", Next::LookAgain(pause, Wait::PauseOfDeletion)),
            (None, None) => Plan::new("delete-vm", vec![Effect::Start(Call::Delete)], Next::AwaitCall),
        },
    }
}

/// The driver has answered that nothing is left of the VM: the Node follows, unless a VM may still appear.
fn after_vm(seen: &Observation) -> Plan {
    match unknown_before_the_end(seen) {
        Some(outcome) => await_vm(seen, DeletionStage::DeleteVm, outcome),
        None => delete_node(seen),
    }
}

/// Asks the driver again in a moment for a VM that may still appear, and reports why.
fn await_vm(seen: &Observation, stage: DeletionStage, outcome: UnknownOutcome) -> Plan {
    let text = "It is not known whether the last creation made a VM.";
    let reason = machine_condition::REASON_WAITING_FOR_PROVIDER;
    let wait = wait_in_deletion(seen, reason, "the provider to show whether the last creation made a VM")
        .seen(format!("its outcome is unknown; the provider is asked every {}", GoDuration::from(ASKED_EVERY)))
        .ended_by("the VM is found, which is deleted then")
        .at_most_until(outcome.ends_at(), "the machine goes");
    StageStatus::at(stage, text)
        .waits(wait)
        .plan("vm-may-show-itself", seen, Next::LookAgain(outcome.asked_again_in(), Wait::UnknownVm))
        .also([Effect::Remember(Memo::AnswerDone)])
}

/// Does nothing while another machine deletes the VM; the deletion of this machine continues after that machine's end.
fn await_other(seen: &Observation, other: &str) -> Plan {
    let text = format!("VM {} also belongs to machine {other}, which deletes it.", seen.machine.provider_id());
    let stage = DeletionStage::of(&seen.machine).unwrap_or(DeletionStage::GetVmStatus);
    let on = format!("the end of machine {other}, which has the same VM and deletes it");
    let wait = wait_in_deletion(seen, machine_condition::REASON_DELETING_VM, on)
        .ended_by(format!("that machine is gone, or label {} is set on this one", label::FORCE_DELETION));
    let next = Next::LookAgain(OTHER_LOOKED_AT_EVERY, Wait::OtherMachine);
    let plan = StageStatus::at(stage, text).waits(wait).plan("vm-is-being-deleted", seen, next);
    let is_news = !plan.effects.is_empty();
    plan.also(forget_token(seen).filter(|_| is_news))
}

/// Removes the finalizer, and leaves VM and Node to another machine. The stage stays: if the other machine is gone before
/// this one, this machine's deletion is done in full after all.
fn leave_vm(seen: &Observation, other: &str) -> Plan {
    if let Some(failure) = seen.step_failures.at(NodeStep::LetGo) {
        return node_step_failed(seen, failure);
    }
    let text = format!("VM {} is left to machine {other}, which names it too.", seen.machine.provider_id());
    let stage = DeletionStage::of(&seen.machine).unwrap_or(DeletionStage::GetVmStatus);
    let message = format!("VM and Node are neither drained nor deleted with this machine. {text}");
    let wait =
        wait_in_deletion(seen, machine_condition::REASON_LETTING_GO, "its finalizer to be taken off").seen(&text);
    StageStatus::at(stage, text)
        .waits(wait)
        .plan("vm-is-anothers", seen, Next::Settled)
        .also([Effect::Warn { reason: machine_reason::VM_LEFT_TO_ANOTHER, message }])
        .also(forget_token(seen))
        .also([Effect::RemoveMachineFinalizer])
}

/// Writes the failure of a driver call, and pauses.
fn failed_call(seen: &Observation, rest: StageStatus, period: RetryPeriod, reason: &'static str) -> Plan {
    let pause = pause_of(period, seen);
    let every = GoDuration::from(pause);
    let wait = wait_in_deletion(seen, reason, "the provider")
        .seen(format!("it failed at {}: {}", rfc3339(seen.now), rest.text))
        .ended_by(format!(
            "an attempt succeeds; the next attempt follows {every} after each failure, or when the machine, its class or their \
             Secrets change"
        ));
    let text = rest.text.clone();
    let change = rest.waits(wait).change(seen);
    let next = if seen.has_changed_since_asked() { Next::Again } else { Next::LookAgain(pause, Wait::CallOfDeletion) };
    Plan::reporting("driver-failed-in-deletion", seen, change, Worth::NewValues, next)
        .warning_if_written(reason, text)
        .also([
            Effect::Remember(Memo::FlowDone),
            Effect::Remember(Memo::Pause(Purpose::Deletion, after(seen.steady, pause))),
        ])
}
