//! A creation of which nobody knows whether it made a VM, at a driver that would make another one if it were asked again.
//!
//! Such a driver is asked for the VM a while longer; the intent that is stored before each call tells of calls that an earlier
//! process began. A VM too many that shows itself later is ended by the orphan check. Source: decisions.md 58.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    creation::CREATING,
    observation::{CreationGuarantee, Observation, since},
    plan::{Effect, Memo, Next, Say},
    waiting::{Waiting, after, tell_when_new},
    waits::Wait,
};
use crate::{
    api::{
        names::machine_condition,
        v1alpha1::{OperationState, OperationType},
    },
    driver::Code,
};

/// A VM that was ordered shows itself within this time.
pub const SHOWS_ITSELF: Duration = Duration::from_secs(60);
/// The driver is asked for it this often.
const ASKED_EVERY: Duration = Duration::from_secs(5);

/// An attempt that may have made a VM, and since when nothing is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOutcome {
    since: Timestamp,
}

/// The attempt that may still turn out to have made a VM; `None` when another one can do no harm.
pub fn unknown_outcome(seen: &Observation) -> Option<UnknownOutcome> {
    if seen.class.creation == CreationGuarantee::Idempotent {
        return None;
    }
    let last = &seen.machine.status.last_operation;
    let written = last.last_update_time.as_ref().map(|time| time.0)?;
    let since_when = match (&last.operation, &last.state) {
        // Of an earlier process; its call ended with it at the latest, before this one began.
        (OperationType::Create, OperationState::Processing) if last.description == CREATING => {
            written.max(seen.first_seen)
        }
        (OperationType::Create, OperationState::Failed) if may_have_made_a_vm(&last.error_code) => written,
        _ => return None,
    };
    (since(seen.now, since_when) < SHOWS_ITSELF).then_some(UnknownOutcome { since: since_when })
}

/// Whether a creation that ended with this code may have made a VM. A refusal has not.
fn may_have_made_a_vm(code: &str) -> bool {
    match Code::from_name(code) {
        Some(
            Code::Canceled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
            | Code::Uninitialized,
        )
        | None => true,
        Some(
            Code::OK
            | Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated,
        ) => false,
    }
}

/// Asks the driver for the VM again in a moment, and says why.
pub(super) fn await_outcome(seen: &Observation, outcome: UnknownOutcome) -> Say {
    let wait = Waiting::on(
        machine_condition::REASON_WAITING_FOR_PROVIDER,
        "the provider to show whether the last attempt made a VM",
    )
    .since(outcome.since)
    .seen("nobody knows what became of it, and the driver would make another one")
    .ended_by("the VM is found")
    .at_most_until(after(outcome.since, SHOWS_ITSELF), "another VM is asked for");
    let mut effects = tell_when_new(seen, &wait);
    effects.push(Effect::Remember(Memo::AnswerDone));
    let left = SHOWS_ITSELF.saturating_sub(since(seen.now, outcome.since));
    Say::act("creation-outcome-unknown", effects, Next::LookAgain(left.min(ASKED_EVERY), Wait::UnknownOutcome))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{
        super::{
            decide::decide,
            deletion_tests::answered,
            observation::{Answer, Call},
            testing::*,
        },
        *,
    };
    use crate::{
        api::v1alpha1::{Machine, MachinePhase},
        driver::Status,
    };

    /// A machine whose last operation was written at second 100.
    fn last(state: OperationState, code: &str, description: &str) -> Machine {
        let mut machine = in_phase(MachinePhase::CrashLoopBackOff, 100, OperationType::Create, state);
        machine.spec.provider_id.clear();
        let last = &mut machine.status.last_operation;
        code.clone_into(&mut last.error_code);
        description.clone_into(&mut last.description);
        machine
    }

    /// What is seen at this second by a process that saw the machine first at second 110; the driver finds no VM.
    fn without_vm(machine: Machine, second: i64, creation: CreationGuarantee) -> Observation {
        let mut seen = answered(seen(machine, second), Answer::Status(Err(Status::new(Code::NotFound, ""))));
        seen.first_seen = at(110);
        seen.class.creation = creation;
        seen
    }

    #[rstest]
    #[case::an_intent_without_outcome(OperationState::Processing, "", CREATING, 170)]
    #[case::another_process_had_something_else_in_mind(OperationState::Processing, "", "Machine x is unhealthy", 111)]
    #[case::no_answer_in_time(OperationState::Failed, "DeadlineExceeded", "x", 160)]
    #[case::the_driver_crashed(OperationState::Failed, "Internal", "x", 160)]
    #[case::a_code_of_another_version(OperationState::Failed, "Odd", "x", 160)]
    #[case::a_refusal(OperationState::Failed, "ResourceExhausted", "x", 111)]
    #[case::another_refusal(OperationState::Failed, "InvalidArgument", "x", 111)]
    fn a_driver_that_repeats_itself_is_asked_for_the_vm_before_another_one(
        #[case] state: OperationState,
        #[case] code: &str,
        #[case] description: &str,
        #[case] again_at: i64,
    ) {
        let machine = last(state, code, description);
        let creates = |second, creation| {
            let plan = decide(&without_vm(machine.clone(), second, creation));
            starts(&plan) == Some(Call::Create)
        };
        assert!(creates(111, CreationGuarantee::Idempotent), "whoever repeats nothing is not waited for");
        let first = (111..400).find(|second| creates(*second, CreationGuarantee::RecordIntent));
        assert_eq!(first, Some(again_at));
    }

    #[test]
    fn the_intent_is_stored_before_every_creation_and_is_the_last_thing_before_the_call() {
        for phase in [MachinePhase::Unset, MachinePhase::CrashLoopBackOff] {
            let mut machine = last(OperationState::Failed, "ResourceExhausted", "full");
            machine.status.current_status.phase = phase;
            let seen = without_vm(machine, 500, CreationGuarantee::RecordIntent);
            let plan = decide(&seen);
            let [.., Effect::PatchStatus(intent), Effect::Start(Call::Create)] = &plan.effects[..] else {
                panic!("{plan:?}")
            };
            assert_eq!(intent["status"]["lastOperation"]["state"], "Processing");
            assert_eq!(intent["status"]["lastOperation"]["description"], CREATING);
        }
    }
}
