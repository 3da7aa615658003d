//! What a machine that is being deleted says of its waits: whom, since when, until when, and what ends them.
//!
//! Source: decisions.md 30; spec/machine-controller §7.9.

use std::sync::Arc;

use rstest::rstest;

use super::{
    decide::decide,
    deletion_stage::DeletionStage,
    deletion_tests::{answered, deletes, draining, resting},
    observation::{Call, DrainState, Flow, Observation},
    plan::{Effect, Next, Plan},
    testing::*,
};
use crate::{
    api::names::{machine_condition, machine_reason},
    controllers::drain::waiting::Waiting,
    driver::Code,
};

fn moving(waiting: Waiting) -> DrainState {
    DrainState::Running {
        progress: "1 of 3 pods left.".to_owned(),
        blocked_by: None,
        waiting: Some(waiting),
        wake: MINUTE,
    }
}

fn terminating_pod() -> Waiting {
    Waiting::Pod { pod: "ns/a".to_owned(), since: at(105), until: at(165) }
}

fn held_by_budget() -> Waiting {
    Waiting::Budget { pod: "ns/web-0".to_owned(), budget: "ns/web".to_owned(), held: 2, since: at(105) }
}

#[rstest]
#[case::soon_after_the_last_write(terminating_pod(), 110, false)]
#[case::after_half_a_minute(terminating_pod(), 130, true)]
#[case::at_once_when_a_budget_refuses(held_by_budget(), 106, true)]
fn progress_of_a_drain_is_written_rarely(#[case] waiting: Waiting, #[case] second: i64, #[case] written: bool) {
    let mut seen = draining(second);
    seen.drain = moving(waiting);
    let plan = decide(&seen);
    assert_eq!(status_patch(&plan).is_some(), written);
    if written {
        let machine = after(&plan, &seen.machine);
        assert_eq!(DeletionStage::of(&machine), Some(DeletionStage::Drain));
        seen.machine = Arc::new(machine);
        seen.now = at(second + 60);
        assert_eq!(status_patch(&decide(&seen)), None, "the same text is not written twice");
    }
}

fn progressing_after(seen: &Observation) -> (String, String) {
    let plan = decide(seen);
    let conditions = after(&plan, &seen.machine).status.machine_conditions;
    (conditions[0].reason.clone(), conditions[0].message.clone())
}

#[test]
fn a_drain_names_the_pod_the_budget_and_the_end_with_an_event() {
    let mut seen = draining(106);
    seen.drain = moving(held_by_budget());
    let (reason, message) = progressing_after(&seen);
    assert_eq!(reason, machine_condition::REASON_DRAIN_BLOCKED);
    assert_eq!(
        message,
        "being deleted since 2027-01-15T08:01:40Z; waiting for PodDisruptionBudget ns/web to allow the eviction of pod \
         ns/web-0 (2 pods are held up), since 2027-01-15T08:01:45Z; asked again every 20s. 1 of 3 pods left; pods are deleted \
         by force from 2027-01-15T10:01:40Z on"
    );
    let warns = decide(&seen).effects.into_iter().any(|effect| {
        matches!(effect, Effect::Warn { reason, message } if reason == machine_reason::DRAIN_BLOCKED && message.contains("ns/web"))
    });
    assert!(warns);
}

#[test]
fn a_drain_names_the_volume_that_it_waits_for() {
    let mut seen = draining(140);
    seen.drain =
        moving(Waiting::Detach { volume: "pv-1".to_owned(), pod: "ns/db".to_owned(), since: at(105), until: at(225) });
    let (reason, message) = progressing_after(&seen);
    assert_eq!(reason, machine_condition::REASON_WAITING_FOR_DETACHMENT);
    assert!(message.contains("VolumeAttachment of PersistentVolume pv-1 (pod ns/db)"), "{message}");
    assert!(message.contains("until 2027-01-15T08:03:45Z"), "{message}");
}

#[test]
fn a_provider_that_refuses_is_quoted_with_code_and_next_attempt() {
    let seen = answered(seen(resting(DeletionStage::DeleteVm), 200), deletes(Code::Unavailable));
    let (reason, message) = progressing_after(&seen);
    assert_eq!(reason, machine_reason::VM_DELETION_FAILED);
    for part in ["since 2027-01-15T08:01:40Z", "failed at 2027-01-15T08:03:20Z", "Unavailable", "follows 5s after"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
}

#[test]
fn a_deletion_that_waits_for_a_creation_says_so_once() {
    let mut seen = seen(deleted_at(machine(), 1), 1);
    seen.flow = Flow { in_flight: Some(Call::Create), ..Flow::default() };
    let (reason, message) = progressing_after(&seen);
    assert_eq!(reason, machine_condition::REASON_AWAITING_DRIVER);
    assert!(message.contains("the creation of its VM"), "{message}");
    seen.machine = Arc::new(after(&decide(&seen), &seen.machine));
    assert_eq!(decide(&seen), Plan::wait("deletion-awaits-driver", Next::AwaitCall));
}
