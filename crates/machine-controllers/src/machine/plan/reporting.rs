//! Whether a machine's standing is worth a write, decided in one place by comparing values.
//!
//! The status holds the standing as a sentence with a reason, and the last operation beside it. This process remembers the
//! [`Stated`] standing that it wrote itself. No code parses a sentence: texts are only compared as a whole. A difference in
//! the text alone is written rarely, since providers put times and IDs into their texts. Pure. Source:
//! spec/machine-controller §4.10, §7.9; decisions.md 30.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{
    Effect,
    deletion_stage::DeletionStage,
    status_change::{StatusChange, TimeoutClock, progressing},
};
use crate::{
    machine::{
        observation::Observation,
        standing::{Standing, Stated, Waiting},
    },
    snapshots::MachineSnapshot,
    times::since,
};
use machine_api::names::machine_condition;
use machine_driver::Code;

/// After this time an unchanged failure is written again (spec §4.10).
const REPEAT_AFTER: Duration = Duration::from_secs(30 * 60);
/// A failure of which only the text differs is written again after this time, or as soon as its inputs have changed.
const REWORDED_AFTER: Duration = Duration::from_secs(10 * 60);
/// At most one text about the progress of a drain is written per this time (spec §7.9).
pub const PROGRESS_EVERY: Duration = Duration::from_secs(30);

/// When a change of the status that may contain nothing new is worth a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worth {
    /// When the condition gets another reason. For a wait that only grows older.
    NewReason,
    /// When the wait or the failure is another one than the status shows; rarely for another text alone.
    NewValues,
    /// For the progress of a drain: at once when a budget begins to block it; otherwise for another text, once per
    /// [`PROGRESS_EVERY`].
    Progress,
}

/// Whether a change is worth a write.
pub fn is_worth_a_write(seen: &Observation, change: &StatusChange, worth: Worth) -> bool {
    match worth {
        Worth::NewReason => !shows_reason(seen, change),
        Worth::NewValues => {
            !shows_values(seen, change)
                || if has_same_text(seen, change) {
                    change.operation.is_some() && last_operation_age(seen).is_none_or(|age| age > REPEAT_AFTER)
                } else {
                    has_new_inputs(seen) || is_reported_for(seen, REWORDED_AFTER)
                }
        }
        Worth::Progress => {
            begins_to_block(seen, change) || (!shows_message(seen, change) && is_reported_for(seen, PROGRESS_EVERY))
        }
    }
}

/// The write of a change, or nothing when it is not worth one.
pub fn write_if(seen: &Observation, change: &StatusChange, worth: Worth) -> Option<Effect> {
    is_worth_a_write(seen, change, worth).then(|| change.effect(seen))
}

/// Whether the text of a change is the stored one. For a failure this is the text of its operation: the condition beside it
/// contains the times of attempts.
fn has_same_text(seen: &Observation, change: &StatusChange) -> bool {
    match &change.operation {
        Some(operation) => operation.description == seen.machine.last_operation().description,
        None => shows_message(seen, change),
    }
}

fn shows_reason(seen: &Observation, change: &StatusChange) -> bool {
    let stored = progressing(&seen.machine);
    let says = |stored: &Condition, standing: &Standing| {
        (stored.status.as_str(), stored.reason.as_str()) == (standing.status(), standing.reason())
    };
    change.standing.as_ref().is_none_or(|standing| stored.is_some_and(|stored| says(stored, standing)))
}

fn shows_message(seen: &Observation, change: &StatusChange) -> bool {
    let stored = progressing(&seen.machine);
    change.standing.as_ref().is_none_or(|standing| stored.is_some_and(|stored| stored.message == standing.message()))
}

/// Whether the status has the values of a change. The other values of the condition, in addition to its reason, are known only if
/// this process has written it.
fn shows_values(seen: &Observation, change: &StatusChange) -> bool {
    let stored = seen.machine.status();
    let last = &stored.last_operation;
    let same_phase = change.phase.as_ref().is_none_or(|(phase, clock)| {
        *phase == stored.current_status.phase
            && (*clock == TimeoutClock::Active) == stored.current_status.timeout_active
    });
    let same_operation = change.operation.as_ref().is_none_or(|operation| {
        operation.operation == last.operation
            && operation.state == last.state
            && operation.code.map(Code::as_str).unwrap_or_default() == last.error_code
            && operation.stage.is_none_or(|stage| DeletionStage::of(&seen.machine) == Some(stage))
    });
    let same_memory = change.last_known_state.as_ref().is_none_or(|state| *state == stored.last_known_state);
    let same_wait = match (stated(seen), &change.standing) {
        (Some(stated), Some(standing)) => stated.standing.is_same_as(standing),
        (None, _) | (_, None) => true,
    };
    let is_small = change.conditions.is_none() && change.addresses.is_none();
    is_small && same_phase && same_operation && same_memory && shows_reason(seen, change) && same_wait
}

/// The standing that this process has written, if the status shows it.
fn stated(seen: &Observation) -> Option<&Stated> {
    let reason = reported_reason(&seen.machine);
    seen.stated.as_deref().filter(|stated| reason == Some(stated.standing.reason()))
}

fn begins_to_block(seen: &Observation, change: &StatusChange) -> bool {
    let blocked = machine_condition::REASON_DRAIN_BLOCKED;
    change.standing.as_ref().is_some_and(|standing| standing.reason() == blocked) && !shows_reason(seen, change)
}

/// Whether the last failure happened with another spec, class or Secret: people wait for the effect of their change.
fn has_new_inputs(seen: &Observation) -> bool {
    seen.pause.as_ref().is_some_and(|pause| pause.inputs != seen.inputs)
}

/// Whether the status has shown its text for this long, as far as it is known.
fn is_reported_for(seen: &Observation, length: Duration) -> bool {
    let age = seen.stated.as_ref().map(|stated| since(seen.steady, stated.at)).or_else(|| last_operation_age(seen));
    age.is_none_or(|age| age >= length)
}

fn last_operation_age(seen: &Observation) -> Option<Duration> {
    let written = seen.machine.last_operation().last_update_time.as_ref()?;
    Some(since(seen.now, written.0))
}

/// The reason of the wait that the machine's status shows, if it shows one.
pub fn reported_reason(machine: &MachineSnapshot) -> Option<&str> {
    progressing(machine).map(|condition| condition.reason.as_str())
}

/// The time since which the status shows a wait with this reason. The present time if it does not show the wait.
pub fn reported_since(seen: &Observation, reason: &'static str) -> Timestamp {
    let stored = progressing(&seen.machine).filter(|stored| stored.reason == reason);
    let Some(stored) = stored else { return seen.now };
    let began = stated(seen).and_then(|stated| stated.standing.wait()?.began());
    began.unwrap_or(stored.last_transition_time.0)
}

/// Writes the wait, with an event, unless the status shows a wait with this reason already.
pub fn report_when_new(seen: &Observation, wait: &Waiting) -> Vec<Effect> {
    report(seen, wait, Worth::NewReason)
}

fn report(seen: &Observation, wait: &Waiting, worth: Worth) -> Vec<Effect> {
    let change = StatusChange::new().waits(wait.clone());
    let write = write_if(seen, &change, worth);
    let warning = write.is_some().then(|| Effect::Warn { reason: wait.reason(), message: wait.message() });
    write.into_iter().chain(warning).collect()
}

/// After this long without progress a machine reports what it waits for, even if that costs a write of its own. A healthy
/// cloud is faster, so that a normal creation stays within its write budget.
pub const REPORTED_AFTER: Duration = Duration::from_secs(60);

/// Reports a wait for something that usually takes no time, once it has lasted; `Err` holds the remaining time while it may
/// still end by itself.
pub fn report_when_lasting(seen: &Observation, began: Timestamp, wait: &Waiting) -> Result<Vec<Effect>, Duration> {
    time_until_reported(seen, began).map_or_else(|| Ok(report_when_new(seen, wait)), Err)
}

/// How much longer a wait with this beginning is not reported, because it may still end by itself. `None` once it is reported.
pub fn time_until_reported(seen: &Observation, began: Timestamp) -> Option<Duration> {
    let lasted = since(seen.now, began);
    (lasted < REPORTED_AFTER).then(|| REPORTED_AFTER.saturating_sub(lasted))
}

/// At most this many characters of the reason why a list fails are reported.
const LONGEST_CAUSE: usize = 300;

/// The wait for the views of pods and attachments, which a drain or a detachment needs. They fill within moments, unless the API
/// server does not give the list. `end` is the consequence when this takes too long.
pub fn wait_for_views(seen: &Observation, began: Timestamp, end: Option<(Timestamp, &str)>) -> Waiting {
    let missing = &seen.missing_views;
    let kinds: Vec<&str> = missing.iter().map(|view| view.kind).collect();
    let kinds = if kinds.is_empty() { "pods and volume attachments".to_owned() } else { kinds.join(", ") };
    let whys: Vec<String> = missing
        .iter()
        .filter_map(|view| {
            let why: String = view.why.as_ref()?.chars().take(LONGEST_CAUSE).collect();
            Some(format!("{} can't be listed: {why}", view.kind))
        })
        .collect();
    let reason = machine_condition::REASON_WAITING_FOR_POD_LIST;
    let wait = Waiting::on(reason, format!("{kinds} of the target cluster to be listed"))
        .since(began)
        .seen(whys.join("; "))
        .ended_by("the lists are complete");
    match end {
        Some((limit, then)) => wait.at_most_until(limit, then),
        None => wait,
    }
}

/// Reports a wait for views once it has lasted; again when other lists are missing than the reported lists, or when the reason
/// becomes known.
pub fn report_missing_views(seen: &Observation, began: Timestamp, wait: &Waiting) -> Vec<Effect> {
    if since(seen.now, began) < REPORTED_AFTER { Vec::new() } else { report(seen, wait, Worth::NewValues) }
}

/// How soon the lists are checked again: in a moment at first, later more slowly.
pub fn views_pause(seen: &Observation, began: Timestamp) -> Duration {
    if since(seen.now, began) < REPORTED_AFTER { Duration::from_millis(500) } else { Duration::from_secs(5) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::machine::{
        observation::{Inputs, Pause, Purpose},
        plan::{Next, Plan},
        testing::*,
    };
    use machine_api::v1alpha1::{MachinePhase, OperationState, OperationType};

    fn wait() -> Waiting {
        Waiting::on("CreateFailed", "a VM").seen("no room at 12:00:01")
    }

    fn failure(text: &str) -> StatusChange {
        StatusChange::new()
            .phase(MachinePhase::CrashLoopBackOff, TimeoutClock::Inactive)
            .operation(OperationType::Create, OperationState::Failed, text.to_owned())
            .code(Some(Code::Unavailable))
            .waits(wait().seen(text))
    }

    /// The observation this many seconds after this process wrote the change.
    fn after_report(change: &StatusChange, seconds: i64) -> Observation {
        let before = seen(machine(), 0);
        let mut reported =
            seen(after(&Plan::new("test", vec![change.effect(&before)], Next::Settled), &before.machine), seconds);
        reported.stated = change.standing.clone().map(|standing| Arc::new(Stated { standing, at: at(0) }));
        reported
    }

    const MINUTES: i64 = 60;

    #[rstest]
    #[case::the_same(failure("no"), 29 * MINUTES, false)]
    #[case::the_same_for_half_an_hour(failure("no"), 31 * MINUTES, true)]
    #[case::in_other_words(failure("no room"), 9 * MINUTES, false)]
    #[case::in_other_words_after_a_while(failure("no room"), 10 * MINUTES, true)]
    #[case::with_another_code(failure("no").code(Some(Code::Internal)), 0, true)]
    #[case::without_a_code(failure("no").code(None), 0, true)]
    #[case::in_another_phase(failure("no").phase(MachinePhase::Failed, TimeoutClock::Inactive), 0, true)]
    #[case::with_the_clock_of_the_phase(failure("no").phase(MachinePhase::CrashLoopBackOff, TimeoutClock::Active), 0, true)]
    #[case::with_another_memory_of_the_driver(failure("no").last_known_state(Some("x".to_owned())), 0, true)]
    #[case::of_another_kind(failure("no").operation(OperationType::Create, OperationState::Processing, "no".to_owned()), 0, true)]
    #[case::for_another_reason(failure("no").waits(Waiting::on("StaleNode", "a VM").seen("no")), 0, true)]
    #[case::of_something_else(failure("no").waits(Waiting::on("CreateFailed", "its VM").seen("no")), 0, true)]
    #[case::with_addresses(failure("no").addresses(Vec::new()), 0, true)]
    fn a_failure_is_written_when_its_values_are_new(
        #[case] change: StatusChange,
        #[case] later: i64,
        #[case] expected: bool,
    ) {
        assert_eq!(is_worth_a_write(&after_report(&failure("no"), later), &change, Worth::NewValues), expected);
    }

    #[test]
    fn other_words_after_a_change_of_spec_class_or_secret_are_news_at_once() {
        let mut seen = after_report(&failure("no image"), 60);
        let until = at(240);
        seen.pause = Some(Pause { purpose: Purpose::Creation, until, inputs: seen.inputs.clone() });
        assert!(!is_worth_a_write(&seen, &failure("no flavor"), Worth::NewValues));
        seen.inputs = Inputs { machine: Some(7), ..seen.inputs };
        assert!(is_worth_a_write(&seen, &failure("no flavor"), Worth::NewValues));
        assert!(!is_worth_a_write(&seen, &failure("no image"), Worth::NewValues), "the same is none");
    }

    #[test]
    fn a_new_process_takes_the_time_of_the_last_operation_for_that_of_the_words() {
        let mut seen = after_report(&failure("no"), 9 * MINUTES);
        seen.stated = None;
        assert!(!is_worth_a_write(&seen, &failure("no room"), Worth::NewValues));
        seen.now = at(10 * MINUTES);
        assert!(is_worth_a_write(&seen, &failure("no room"), Worth::NewValues));
    }

    #[rstest]
    #[case::another_stage(DeletionStage::DeleteVm, true)]
    #[case::the_same(DeletionStage::Drain, false)]
    fn a_deletion_at_another_stage_is_written(#[case] stage: DeletionStage, #[case] expected: bool) {
        let rests_at = |stage: DeletionStage| {
            StatusChange::new()
                .phase(MachinePhase::Terminating, TimeoutClock::Inactive)
                .operation(OperationType::Delete, OperationState::Failed, "no ".to_owned())
                .at_stage(stage)
                .waits(wait())
        };
        let seen = after_report(&rests_at(DeletionStage::Drain), 1);
        assert_eq!(is_worth_a_write(&seen, &rests_at(stage), Worth::NewValues), expected);
    }

    #[rstest]
    #[case::the_same_reason(wait().seen("other").since(at(7)), false)]
    #[case::another_reason(Waiting::on("WaitingForNode", "a VM"), true)]
    fn a_wait_that_only_grows_older_is_not_written(#[case] now: Waiting, #[case] expected: bool) {
        let seen = after_report(&StatusChange::new().waits(wait()), 3600);
        assert_eq!(is_worth_a_write(&seen, &StatusChange::new().waits(now), Worth::NewReason), expected);
    }

    #[rstest]
    #[case::other_words_too_soon("DrainingNode", "2 left", 29, false)]
    #[case::other_words("DrainingNode", "2 left", 30, true)]
    #[case::the_same_words("DrainingNode", "3 left", 3600, false)]
    #[case::a_budget_begins_to_refuse(machine_condition::REASON_DRAIN_BLOCKED, "3 left", 1, true)]
    fn progress_of_a_drain_is_written(
        #[case] reason: &'static str,
        #[case] text: &str,
        #[case] later: i64,
        #[case] expected: bool,
    ) {
        let drain = |reason: &'static str, text: &str| StatusChange::new().waits(Waiting::on(reason, text));
        let seen = after_report(&drain("DrainingNode", "3 left"), later);
        assert_eq!(is_worth_a_write(&seen, &drain(reason, text), Worth::Progress), expected);
    }

    #[test]
    fn a_wait_keeps_its_beginning_for_as_long_as_it_is_reported() {
        assert_eq!(reported_since(&seen(machine(), 60), "CreateFailed"), at(60), "it begins");
        let mut reported = after_report(&StatusChange::new().waits(wait().since(at(-5))), 60);
        assert_eq!(reported_since(&reported, "CreateFailed"), at(-5));
        assert_eq!(reported_since(&reported, "StaleNode"), at(60));
        reported.stated = None;
        assert_eq!(reported_since(&reported, "CreateFailed"), at(0), "as the condition tells");
    }

    #[test]
    fn a_wait_is_written_once_with_an_event() {
        let before = seen(machine(), 5);
        let effects = report_when_new(&before, &wait());
        let reported = after(&Plan::new("test", effects.clone(), Next::Settled), &before.machine);
        assert_eq!(reported_reason(&reported), Some("CreateFailed"));
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Warn { .. })));
        assert!(report_when_new(&seen(reported, 65), &wait()).is_empty());
    }

    #[test]
    fn a_wait_that_may_end_by_itself_is_not_reported_at_once() {
        assert_eq!(report_when_lasting(&seen(machine(), 20), at(0), &wait()), Err(Duration::from_secs(40)));
        assert_eq!(report_when_lasting(&seen(machine(), 60), at(0), &wait()).map(|effects| effects.len()), Ok(2));
    }
}
