//! A creation with an unknown outcome, with a driver that makes a second VM for a repeated call.
//!
//! The driver is asked for the VM for a while longer. The intent that is stored before each call shows the calls that an
//! earlier process began. A surplus VM that appears later is deleted by the orphan check. Source: decisions.md 58.
//!
//! A machine that is being deleted waits equally long, with any driver: the answer that no VM of its name exists would be
//! believed too early, and the VM would outlive the machine. The deletion has overwritten the intent, so that the requests
//! of an earlier process are unknown then: the wait applies to every machine for which an earlier process may have asked for
//! a VM.

use std::time::Duration;

use jiff::Timestamp;

use super::CREATING;
use crate::{
    machine::{
        observation::{Answer, CreationGuarantee, Observation},
        plan::{Effect, Memo, Next, RuleResult, reporting::report_when_new, waits::Wait},
        standing::Waiting,
    },
    snapshots::MachineSnapshot,
    times::{after, since},
};
use machine_api::{
    names::machine_condition,
    v1alpha1::{OperationState, OperationType},
};
use machine_driver::Code;

/// A VM that was asked for appears within this time.
pub const SHOWS_ITSELF: Duration = Duration::from_secs(60);
/// The driver is asked for it this often.
pub(crate) const ASKED_EVERY: Duration = Duration::from_secs(5);
/// The largest difference between the API server's clock and this process's, including the rounding of stamps to whole
/// seconds.
const CLOCKS_DIFFER: Duration = Duration::from_secs(6);

/// An attempt that may have made a VM, and since when its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOutcome {
    since: Timestamp,
    waited: Duration,
}

/// The attempt that may have made a VM; `None` when another attempt does no harm.
pub fn unknown_outcome(seen: &Observation) -> Option<UnknownOutcome> {
    if seen.class.creation == CreationGuarantee::Idempotent {
        return None;
    }
    let last = seen.machine.last_operation();
    let written = last.last_update_time.as_ref().map(|time| time.0)?;
    let since_when = match (&last.operation, &last.state) {
        // An earlier process wrote it. Its call ended with that process at the latest, before this process began.
        (OperationType::Create, OperationState::Processing) if last.description == CREATING => {
            written.max(seen.first_seen)
        }
        // A code that this version does not know proves nothing.
        (OperationType::Create, OperationState::Failed)
            if Code::from_name(&last.error_code).is_none_or(may_have_made_a_vm) =>
        {
            written
        }
        // A later failure, such as a missing Secret, has replaced the one in the status.
        (OperationType::Create, OperationState::Failed) => seen.creation_unknown_since?,
        _ => return None,
    };
    still_unknown(seen, since_when)
}

/// The attempt of this time, as long as its VM may still appear. The driver's answer counts by the time of its question: a
/// pass may come long after the answer, and the VM may have appeared in between.
fn still_unknown(seen: &Observation, since_when: Timestamp) -> Option<UnknownOutcome> {
    let waited = waited_since(seen, since_when);
    let asked = seen.flow.asked_at.filter(|asked| since_when <= seen.now && *asked <= seen.now);
    let asked_after = asked.map_or(waited, |asked| since(asked, since_when));
    (waited.min(asked_after) < SHOWS_ITSELF).then_some(UnknownOutcome { since: since_when, waited })
}

/// The time since then. A stamp in the future was written before the clock was set back: at that step at the latest, or
/// before this process saw the machine.
fn waited_since(seen: &Observation, since_when: Timestamp) -> Duration {
    match seen.step {
        _ if since_when <= seen.now => since(seen.now, since_when),
        Some(step) => step.watched,
        None => since(seen.now, seen.first_seen),
    }
}

/// Whether a creation that ended with this code may have made a VM. A refused creation has made none.
const fn may_have_made_a_vm(code: Code) -> bool {
    match code {
        Code::Canceled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Uninitialized => true,
        Code::OK
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => false,
    }
}

/// Whether it is unknown after this answer whether a creation made a VM.
pub fn leaves_outcome_unknown(answer: &Answer) -> bool {
    matches!(answer, Answer::Created(Err(status)) if may_have_made_a_vm(status.code))
}

/// Whether earlier processes may have requested a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBefore {
    /// No VM of this machine.
    Nothing,
    /// Perhaps one.
    Perhaps,
}

impl AskedBefore {
    /// Whether a VM may have been requested for this machine before this process began. It is certain that no earlier process requested a VM only if
    /// the machine was created later by both clocks.
    pub fn of(machine: &MachineSnapshot, began: Timestamp) -> Self {
        let made = machine.created();
        let is_later = made.is_some_and(|made| made > after(began, CLOCKS_DIFFER));
        if is_later { Self::Nothing } else { Self::Perhaps }
    }

    /// The time since which the outcome of a creation is unknown, for a process that sees the machine for the first time at `now`. The calls of
    /// earlier processes have ended by then.
    pub fn unknown_since(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Nothing => None,
            Self::Perhaps => Some(now),
        }
    }
}

/// The creation that may have made the VM of a machine that is being deleted. A VM whose identity is known needs no wait: it
/// is deleted by its identity.
pub(crate) fn unknown_before_the_end(seen: &Observation) -> Option<UnknownOutcome> {
    let since_when = seen.creation_unknown_since?;
    still_unknown(seen, since_when).filter(|_| seen.machine.provider_id().is_empty())
}

impl UnknownOutcome {
    /// When the attempt counts as one that made no VM.
    pub(crate) fn ends_at(self) -> Timestamp {
        after(self.since, SHOWS_ITSELF)
    }

    /// When the driver is asked again.
    pub(crate) fn asked_again_in(self) -> Duration {
        SHOWS_ITSELF.saturating_sub(self.waited).min(ASKED_EVERY)
    }
}

/// Asks the driver for the VM again in a moment, and reports why.
pub(super) fn await_outcome(seen: &Observation, outcome: UnknownOutcome) -> RuleResult {
    let wait = Waiting::on(
        machine_condition::REASON_WAITING_FOR_PROVIDER,
        "the provider to show whether the last attempt made a VM",
    )
    .since(outcome.since)
    .seen("its outcome is unknown, and the driver would make another one")
    .ended_by("the VM is found")
    .at_most_until(outcome.ends_at(), "another VM is asked for");
    let mut effects = report_when_new(seen, &wait);
    effects.push(Effect::Remember(Memo::AnswerDone));
    let again = Next::LookAgain(outcome.asked_again_in(), Wait::UnknownOutcome);
    RuleResult::waits("creation-outcome-unknown", wait, effects, again)
}

#[cfg(test)]
mod tests {

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;
    use crate::machine::{decide::decide, deletion::vm_is_gone, observation::Call, testing::*};
    use controller_runtime::clock::Step;
    use machine_api::v1alpha1::{Machine, MachinePhase};
    use machine_driver::Status;

    /// A machine whose last operation was written at second 100.
    fn last(state: OperationState, code: &str, description: &str) -> Machine {
        let mut machine = in_phase(MachinePhase::CrashLoopBackOff, 100, OperationType::Create, state);
        machine.spec.provider_id.clear();
        let last = &mut machine.status.last_operation;
        code.clone_into(&mut last.error_code);
        description.clone_into(&mut last.description);
        machine
    }

    /// The observation at this second of a process that saw the machine first at second 110; the driver finds no VM.
    fn without_vm(machine: Machine, second: i64, creation: CreationGuarantee) -> Observation {
        let mut seen = answered(seen(machine, second), Answer::Status(Err(Status::new(Code::NotFound, ""))));
        seen.first_seen = at(110);
        seen.class.creation = creation;
        seen
    }

    #[rstest]
    #[case::an_intent_without_outcome(OperationState::Processing, "", CREATING, 170)]
    #[case::another_operation_was_written_last(OperationState::Processing, "", "Machine x is unhealthy", 111)]
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

    /// The last attempt ended without an outcome; then a Secret was missing, and the status shows that.
    #[test]
    fn another_trouble_makes_the_outcome_of_an_attempt_no_clearer() {
        let creates = |second: i64| {
            let machine = last(OperationState::Failed, "InvalidArgument", "x");
            let mut seen = without_vm(machine, second, CreationGuarantee::RecordIntent);
            seen.creation_unknown_since = Some(at(95));
            starts(&decide(&seen)) == Some(Call::Create)
        };
        assert_eq!((111..400).find(|second| creates(*second)), Some(155));
    }

    #[rstest]
    #[case::while_it_may_show_itself(159, false)]
    #[case::afterwards(160, true)]
    fn an_answer_counts_by_the_time_of_its_question(#[case] asked: i64, #[case] counts: bool) {
        let mut seen = without_vm(last(OperationState::Failed, "Internal", "x"), 900, CreationGuarantee::RecordIntent);
        seen.flow.asked_at = Some(at(asked));
        let plan = decide(&seen);
        assert_eq!(starts(&plan) == Some(Call::Create), counts);
        // The driver is asked again at once, not after a wait.
        let again = Next::LookAgain(Duration::ZERO, Wait::UnknownOutcome);
        assert_eq!(plan.next == again, !counts, "{plan:?}");
        seen.machine = deleted_at(seen.machine.to_object(), 850).into();
        seen.creation_unknown_since = Some(at(100));
        seen.flow.answer = Some(Answer::Deleted(Err(Status::new(Code::NotFound, ""))));
        assert_eq!(vm_is_gone(&seen), counts);
    }

    #[rstest]
    #[case::by_this_process(Some(59), 20_000, false)]
    #[case::by_this_process_a_minute_ago(Some(60), 20_000, true)]
    #[case::before_this_process_began(None, 110 - 59, false)]
    #[case::before_this_process_began_a_minute_ago(None, 110 - 60, true)]
    fn an_attempt_of_before_the_clock_was_set_back_is_waited_for_no_longer(
        #[case] stepped_ago: Option<u64>,
        #[case] first_seen: i64,
        #[case] creates: bool,
    ) {
        let mut machine = last(OperationState::Failed, "Internal", "x");
        machine.status.last_operation.last_update_time = Some(Time(at(7200)));
        let mut seen = without_vm(machine, 110, CreationGuarantee::RecordIntent);
        seen.first_seen = at(first_seen);
        seen.step = stepped_ago.map(|ago| Step { watched: Duration::from_secs(ago) });
        assert_eq!(starts(&decide(&seen)) == Some(Call::Create), creates);
    }

    #[rstest]
    #[case::this_process_made_it_possible(200, AskedBefore::Nothing)]
    #[case::an_earlier_one_may_have_asked(50, AskedBefore::Perhaps)]
    #[case::clocks_may_differ(105, AskedBefore::Perhaps)]
    fn requests_of_earlier_processes_are_not_known(#[case] made: i64, #[case] asked: AskedBefore) {
        let mut machine = crate::machine::testing::machine();
        machine.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(made)));
        let machine = MachineSnapshot::from(machine);
        assert_eq!(AskedBefore::of(&machine, at(100)), asked);
    }

    #[rstest]
    #[case::no_answer_in_time(Answer::Created(Err(Status::new(Code::DeadlineExceeded, ""))), true)]
    #[case::a_refusal(Answer::Created(Err(Status::new(Code::ResourceExhausted, ""))), false)]
    #[case::another_call(Answer::Status(Err(Status::new(Code::DeadlineExceeded, ""))), false)]
    fn an_answer_leaves_it_unknown_whether_there_is_a_vm(#[case] answer: Answer, #[case] unknown: bool) {
        assert_eq!(leaves_outcome_unknown(&answer), unknown);
        let mut memory = crate::machine::memory::Memory::new(String::new(), at(0), AskedBefore::Nothing);
        memory.learn(answer, at(7));
        assert_eq!(memory.creation_unknown_since, unknown.then_some(at(7)));
    }

    #[test]
    fn the_intent_is_stored_before_every_creation_and_is_the_last_thing_before_the_call() {
        for phase in [MachinePhase::Unset, MachinePhase::CrashLoopBackOff] {
            let mut machine = last(OperationState::Failed, "ResourceExhausted", "full");
            machine.status.current_status.phase = phase;
            let mut seen = without_vm(machine, 500, CreationGuarantee::RecordIntent);
            let mut status = Status::new(Code::NotFound, "");
            status.last_known_state = Some("keys".to_owned());
            seen.flow.answer = Some(Answer::Status(Err(status)));
            let plan = decide(&seen);
            let [.., Effect::WriteStatus { change, .. }, Effect::CheckInputs, Effect::Start(Call::Create)] =
                &plan.effects[..]
            else {
                panic!("{plan:?}")
            };
            let intent = change.operation.as_ref().unwrap();
            assert_eq!((intent.state.clone(), intent.description.as_str()), (OperationState::Processing, CREATING));
            assert_eq!(change.last_known_state.as_deref(), Some("keys"), "a call that is cut off returns no state");
        }
    }
}
