//! How a failed creation is written to the machine, and what keeps a creation from beginning.
//!
//! Source: spec/machine-controller §4.4, §4.7, §4.9, §4.12. Every failure of the flow is written to the machine with a
//! code, and counts for the creation timeout.

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    machine::{
        health::timeout::failed_wait,
        observation::{ClassState, Observation, Purpose, SecretView, UserData},
        plan::{
            Effect, Memo, Next, Plan,
            reporting::Worth,
            status_change::{StatusChange, TimeoutClock},
            waits::Wait,
        },
        retry::{CreationReaction, DriverMemory, RetryPeriod, after_failed_creation},
        standing::{Waiting, attempts},
        time_limit::creation_limit,
    },
    times::after,
};
use machine_api::{
    names::{machine_reason, stage_text},
    v1alpha1::{MachinePhase, OperationState, OperationType},
};
use machine_driver::{Code, Status};

/// A failure on the way to a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct CreationFailure {
    code: Option<Code>,
    description: String,
    reason: &'static str,
    reaction: CreationReaction,
    phase: FailurePhase,
}

/// The phase of a machine after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailurePhase {
    /// `CrashLoopBackOff` until the creation timeout has passed, then Failed.
    ByAge,
    /// Failed at once.
    Failed,
}

impl CreationFailure {
    /// `GetMachineStatus` or `CreateMachine` failed.
    pub fn driver(status: &Status) -> Self {
        Self {
            code: Some(status.code),
            description: format!("Cloud provider message - {status}"),
            reason: machine_reason::CREATE_FAILED,
            reaction: after_failed_creation(status.code),
            phase: FailurePhase::ByAge,
        }
    }

    /// `InitializeMachine` failed.
    pub fn initialisation(status: &Status) -> Self {
        Self {
            description: format!("Provider error: {status}. {}", stage_text::INITIALIZE_VM),
            reason: machine_reason::INITIALIZE_FAILED,
            reaction: CreationReaction { retry: RetryPeriod::Short, memory: DriverMemory::Keep },
            ..Self::driver(status)
        }
    }

    /// The new VM would use an old Node.
    pub fn stale_node(description: &str) -> Self {
        Self {
            code: None,
            description: description.to_owned(),
            reason: machine_reason::STALE_NODE,
            reaction: CreationReaction { retry: RetryPeriod::Short, memory: DriverMemory::Keep },
            phase: FailurePhase::Failed,
        }
    }

    /// The creation can't begin.
    fn input(fault: &Fault) -> Self {
        Self {
            code: Some(fault.code),
            description: fault.message.clone(),
            reason: fault.reason,
            reaction: CreationReaction { retry: RetryPeriod::Long, memory: DriverMemory::Keep },
            phase: FailurePhase::ByAge,
        }
    }
}

/// Why a creation does not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputFault {
    /// Another controller has to do something first; no person needs to act.
    NotReady(&'static str),
    /// A person has to correct something.
    Fault(Fault),
}

/// Something that a person has to correct before a VM can be made or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Code of the last operation.
    pub code: Code,
    /// Reason of event and condition.
    pub reason: &'static str,
    /// The cause and the advice.
    pub message: String,
}

/// The fault of the machine's class that prevents a driver call.
pub fn class_fault(seen: &Observation) -> Option<InputFault> {
    let class = &seen.machine.class_ref().name;
    let fault = |code, reason, message| Some(InputFault::Fault(Fault { code, reason, message }));
    match &seen.class.state {
        ClassState::Usable => None,
        ClassState::WithoutFinalizer => Some(InputFault::NotReady("class-awaits-finalizer")),
        ClassState::NotNamed => fault(
            Code::InvalidArgument,
            machine_reason::CLASS_NOT_USABLE,
            "spec.class names no machine class; set its kind and name".to_owned(),
        ),
        ClassState::Absent => fault(
            Code::FailedPrecondition,
            machine_reason::CLASS_NOT_USABLE,
            format!("MachineClass \"{class}\" not found; create it or name another one"),
        ),
        ClassState::DeletingWithoutFinalizer => fault(
            Code::FailedPrecondition,
            machine_reason::CLASS_NOT_USABLE,
            format!("MachineClass \"{class}\" is being deleted; name another one"),
        ),
        ClassState::NodeTemplateInvalid(text) => fault(
            Code::FailedPrecondition,
            machine_reason::NODE_TEMPLATE_INVALID,
            format!("MachineClass \"{class}\": {text}"),
        ),
    }
}

/// The fault of a Secret that prevents a driver call.
pub fn secret_fault(seen: &Observation) -> Option<Fault> {
    match &seen.secrets {
        SecretView::Missing(names) => Some(Fault {
            code: Code::FailedPrecondition,
            reason: machine_reason::SECRET_NOT_USABLE,
            message: format!(
                "Secret {} of MachineClass \"{}\" not found; create it",
                names.join(" and "),
                seen.machine.class_ref().name
            ),
        }),
        SecretView::Present(_) => None,
    }
}

/// The fault that prevents the beginning of a creation.
pub fn input_fault(seen: &Observation) -> Option<InputFault> {
    class_fault(seen).or_else(|| secret_fault(seen).map(InputFault::Fault)).or_else(|| match &seen.secrets {
        SecretView::Present(UserData::KeyMissing) => Some(InputFault::Fault(Fault {
            code: Code::InvalidArgument,
            reason: machine_reason::USER_DATA_MISSING,
            message: format!(
                "the Secrets of MachineClass \"{}\" have no key userData; add it",
                seen.machine.class_ref().name
            ),
        })),
        SecretView::Missing(_)
        | SecretView::Present(UserData::NotNamed | UserData::WithoutToken | UserData::NeedsToken) => None,
    })
}

/// Writes that the creation can't begin; a change of class or Secret wakes the machine.
pub fn report_input_fault(seen: &Observation, fault: &Fault) -> Plan {
    report(seen, &CreationFailure::input(fault))
}

/// Writes a failure and pauses.
pub fn report(seen: &Observation, failure: &CreationFailure) -> Plan {
    let too_old = creation_limit(seen).has_passed();
    let phase = match failure.phase {
        FailurePhase::ByAge if !too_old && *seen.phase() != MachinePhase::Failed => MachinePhase::CrashLoopBackOff,
        FailurePhase::ByAge | FailurePhase::Failed => MachinePhase::Failed,
    };
    let memory = seen.flow.unstored_state().map(str::to_owned).or(match failure.reaction.memory {
        DriverMemory::Keep => None,
        DriverMemory::Clear => (!seen.machine.last_known_state().is_empty()).then(String::new),
    });
    let pause = failure.reaction.retry.length(seen.limits.resource_exhausted_retry);
    let until = after(seen.now, pause);
    let has_failed = phase == MachinePhase::Failed;
    let change = StatusChange::new()
        .phase(phase, TimeoutClock::Inactive)
        .operation(OperationType::Create, OperationState::Failed, failure.description.clone())
        .code(failure.code)
        .last_known_state(memory);
    let change = if has_failed {
        change.rests(failed_wait(seen, failure.reason, &failure.description))
    } else {
        change.waits(creation_wait(seen, failure, until, pause))
    };
    let next = if seen.has_changed_since_asked() { Next::Again } else { Next::LookAgain(pause, Wait::Creation) };
    Plan::reporting("creation-failed", seen, change, Worth::NewValues, next)
        .warning_if_written(failure.reason, &failure.description)
        .also([
            Effect::Remember(Memo::FlowDone),
            Effect::Remember(Memo::Pause(Purpose::Creation, after(seen.steady, pause))),
        ])
}

/// The wait of a machine while its creation is tried again.
fn creation_wait(seen: &Observation, failure: &CreationFailure, next: Timestamp, every: Duration) -> Waiting {
    let began = seen.machine.created().unwrap_or(seen.first_seen);
    let on = if seen.machine.provider_id().is_empty() { "a VM" } else { "its VM to be ready for use" };
    Waiting::on(failure.reason, on)
        .since(began)
        .seen(&failure.description)
        .ended_by(format!(
            "an attempt succeeds ({}; at once when class, Secret or machine change)",
            attempts(next, every)
        ))
        .at_most_until(after(seen.now, creation_limit(seen).left()), "the machine is declared Failed")
}
