//! The reports about the waits of a machine that is being deleted: the awaited object, the start, the limit and the
//! event that ends the wait.
//!
//! Source: decisions.md 30; spec/machine-controller §7.9.

use kube::ResourceExt;
use rstest::rstest;

use crate::{
    drain::{
        observe::MissingView,
        progress::{Attempt, Failure},
        waiting::Waiting,
    },
    machine::{
        decide::decide,
        observation::{AttachmentView, Call, DrainState, Flow, NodeStep, Observation, StepFailure},
        plan::{Effect, Next, deletion_stage::DeletionStage},
        testing::*,
    },
};
use controller_runtime::clock::Step;
use machine_api::names::{label, machine_condition, machine_reason};
use machine_driver::Code;

fn moving(waiting: Waiting) -> DrainState {
    DrainState::Running {
        progress: "1 of 3 pods left.".to_owned(),
        blocked_by: None,
        waiting: Some(waiting),
        attempt: Attempt::New,
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
    assert_eq!(status_change(&plan).is_some(), written);
    if written {
        let machine = after(&plan, &seen.machine);
        assert_eq!(DeletionStage::of(&machine), Some(DeletionStage::Drain));
        seen.machine = machine;
        seen.now = at(second + 60);
        assert_eq!(status_change(&decide(&seen)), None, "the same text is not written twice");
    }
}

/// A deletion whose last attempt to drain failed at second 130 on the budget `ns/web`.
fn after_a_failed_attempt(second: i64) -> Observation {
    let mut failed = draining(130);
    failed.drain = DrainState::Failed(FAILURE.into());
    let machine = after(&decide(&failed), &failed.machine);
    let mut seen = draining(second);
    seen.machine = machine;
    seen
}

const FAILURE: &str = "error while evicting pod \"ns/web-0\": pod disruption budget ns/web is misconfigured and requires zero voluntary evictions";

#[rstest]
#[case::it_has_just_begun(None, Attempt::Again, false)]
#[case::the_same_budget_refuses_again(Some(held_by_budget()), Attempt::Again, false)]
#[case::pods_have_gone_since(None, Attempt::New, true)]
#[case::it_waits_for_somebody_else(Some(terminating_pod()), Attempt::New, true)]
fn an_attempt_that_only_repeats_a_failure_is_no_news(
    #[case] waiting: Option<Waiting>,
    #[case] attempt: Attempt,
    #[case] written: bool,
) {
    let mut seen = after_a_failed_attempt(190);
    let progress = "2 of 2 pods left.".to_owned();
    seen.drain = DrainState::Running { progress, blocked_by: None, waiting, attempt, wake: MINUTE };
    assert_eq!(status_change(&decide(&seen)).is_some(), written);
    seen.drain = DrainState::Failed(FAILURE.into());
    assert!(decide(&seen).effects.is_empty(), "the same failure is no news either");
}

#[test]
fn a_drain_that_fails_on_something_else_is_reported_at_once() {
    let fails_on = |name: &str| {
        let on = [name.to_owned()].into();
        DrainState::Failed(Failure { text: format!("{name} stays"), on })
    };
    let mut seen = draining(130);
    seen.drain = fails_on("ns/db");
    let plan = decide(&seen);
    carry_out_report(&mut seen, &plan);
    let reported = seen.machine.machine_conditions()[0].message.clone();
    assert!(
        reported.contains("waiting for its node to be drained (ns/db): Drain failed due to - ns/db stays"),
        "{reported}"
    );
    assert_eq!(status_change(&decide(&seen)), None, "the same");
    seen.drain = fails_on("pv-1");
    assert!(status_change(&decide(&seen)).is_some());
}

#[rstest]
#[case::gently_nobody_goes_on(200, None, false)]
#[case::by_force_the_lists_have_a_minute(159, Some("true"), false)]
#[case::by_force_after_that(160, Some("true"), true)]
#[case::until_the_drains_time_is_over(7299, None, false)]
#[case::then_the_vm_goes(7300, None, true)]
fn lists_that_never_come_hold_a_deletion(#[case] second: i64, #[case] force: Option<&str>, #[case] goes: bool) {
    let at_stage = |stage: DeletionStage| {
        let mut machine = resting(stage);
        if let Some(value) = force {
            machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), value.to_owned());
        }
        let mut seen = Observation { machine: machine.into(), attachments: None, ..draining(second) };
        let why = Some("forbidden to list and watch pods".to_owned());
        seen.missing_views = vec![MissingView { kind: "pods", why }];
        seen
    };
    let mut drains = at_stage(DeletionStage::Drain);
    drains.drain = DrainState::Warming;
    for seen in [drains, at_stage(DeletionStage::DeleteVolumeAttachments)] {
        let plan = decide(&seen);
        let machine = after(&plan, &seen.machine);
        assert_eq!(DeletionStage::of(&machine) == Some(DeletionStage::DeleteVm), goes, "{plan:?}");
        let warns = plan.effects.iter().any(|effect| {
            matches!(effect, Effect::Warn { reason, message } if *reason == machine_reason::DRAIN_FORCED && message.contains("pods of the target"))
        });
        assert_eq!(warns, goes, "{plan:?}");
    }
}

#[rstest]
#[case::at_once(0, false)]
#[case::almost_watched(599, false)]
#[case::watched_for_ten_minutes(600, true)]
fn after_a_step_of_hours_a_deletion_waits_until_its_time_was_watched(#[case] watched: u64, #[case] goes: bool) {
    let stepped = |stage: DeletionStage| {
        let mut seen = Observation { machine: resting(stage).into(), ..draining(4 * 3600) };
        seen.step = Some(Step { watched: std::time::Duration::from_secs(watched) });
        seen
    };
    let mut unlisted = stepped(DeletionStage::Drain);
    (unlisted.drain, unlisted.attachments) = (DrainState::Warming, None);
    let mut attached = stepped(DeletionStage::DeleteVolumeAttachments);
    attached.attachments = Some(vec![AttachmentView { name: "a".to_owned(), uid: "u".to_owned(), deleting: false }]);
    attached.step_failures = StepFailure { step: NodeStep::Attachments, error: "no".to_owned() }.into();
    for seen in [unlisted, attached] {
        let plan = decide(&seen);
        let machine = after(&plan, &seen.machine);
        assert_eq!(DeletionStage::of(&machine) == Some(DeletionStage::DeleteVm), goes, "{plan:?}");
    }
}

#[test]
fn a_process_that_has_just_begun_gives_the_lists_a_minute_too() {
    let mut seen = draining(9000);
    (seen.first_seen, seen.drain) = (at(8990), DrainState::Warming);
    assert!(matches!(decide(&seen).next, Next::LookAgain(..)));
    seen.now = at(9050);
    assert_eq!(decide(&seen).next, Next::Again);
}

#[test]
fn a_wait_for_lists_names_the_missing_ones_and_why_and_is_reported_again_when_others_are_missing() {
    let missing = |kinds: &[&'static str], why: Option<&str>| {
        kinds.iter().map(|kind| MissingView { kind, why: why.map(str::to_owned) }).collect::<Vec<_>>()
    };
    let mut seen = draining(200);
    seen.drain = DrainState::Warming;
    seen.missing_views = missing(&["pods", "poddisruptionbudgets"], None);
    let report = |seen: &mut Observation| {
        let plan = decide(seen);
        carry_out_report(seen, &plan);
        let condition = &seen.machine.machine_conditions()[0];
        assert_eq!(condition.reason, machine_condition::REASON_WAITING_FOR_POD_LIST);
        (!plan.effects.is_empty(), condition.message.clone())
    };
    let (_, message) = report(&mut seen);
    assert!(message.contains("waiting for pods, poddisruptionbudgets of the target cluster to be listed"), "{message}");
    assert!(message.contains("at 2027-01-15T10:01:40Z the VM is deleted without them"), "{message}");
    seen.missing_views = missing(&["pods"], Some("forbidden to list and watch pods"));
    let (_, message) = report(&mut seen);
    assert!(message.contains("pods can't be listed: forbidden to list and watch pods"), "{message}");
    assert!(!message.contains("poddisruptionbudgets"), "{message}");
    // The cause may change with every attempt; that alone is not reported.
    seen.missing_views = missing(&["pods"], Some("connection refused"));
    assert!(!report(&mut seen).0);
}

fn progressing_after(seen: &Observation) -> (String, String) {
    let plan = decide(seen);
    let reported = after(&plan, &seen.machine);
    let conditions = reported.machine_conditions();
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
         ns/web-0 (2 pods are held up) since 2027-01-15T08:01:45Z: asked again every 20s; 1 of 3 pods left; at \
         2027-01-15T10:01:40Z pods are deleted by force"
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
fn a_deletion_that_waits_for_a_creation_reports_it_once() {
    let mut seen = seen(deleted_at(machine(), 1), 1);
    seen.flow = Flow { in_flight: Some(Call::Create), asked_at: Some(at(0)), ..Flow::default() };
    let (reason, message) = progressing_after(&seen);
    assert_eq!(reason, machine_condition::REASON_AWAITING_DRIVER);
    assert_eq!(
        message,
        "being deleted since 2027-01-15T08:00:01Z; waiting for the provider to answer about the creation of its VM (begun before \
         the deletion) since 2027-01-15T08:00:00Z; ends when it answers; its VM is deleted then; at 2027-01-15T08:20:00Z the \
         call ends without an answer"
    );
    seen.machine = after(&decide(&seen), &seen.machine);
    let plan = decide(&seen);
    assert_eq!((plan.rule, plan.effects, plan.next), ("deletion-awaits-driver", Vec::new(), Next::AwaitCall));
    assert_eq!(plan.standing.map(|standing| standing.reason()), Some(machine_condition::REASON_AWAITING_DRIVER));
}
