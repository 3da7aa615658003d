//! Scenarios of spec/machine-controller §17.8 on the pure decision, carried out step by step until nothing is left to do.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use rstest::rstest;

use super::{Annotations, Verdict, Wish, verdict};
use crate::{
    drain::{
        order::{DrainOrder, Force},
        progress::Attempt,
        waiting::Waiting,
    },
    machine::{
        decide::decide,
        observation::{DrainState, NodeStep, NodeView, Observation, StepFailure, condition as find},
        plan::{Effect, Next, Plan, VersionGuard, deletion_stage::DeletionStage},
        testing::*,
    },
};
use machine_api::{
    names::{annotation, label, machine_condition, machine_reason, node_condition, taint},
    v1alpha1::{Machine, MachinePhase, OperationState, OperationType},
};

const HOUR: i64 = 3600;
const PRESERVE_TIMEOUT: i64 = 96 * HOUR;

/// A machine and its Node, as they become when plans are carried out.
struct Story {
    machine: Machine,
    node: Option<Node>,
    now: i64,
    /// The result of a drain.
    drain: DrainState,
    /// The drains that were ordered.
    orders: Vec<DrainOrder>,
    effects: Vec<Effect>,
    next: Next,
}

impl Story {
    fn of(machine: Machine) -> Self {
        let ready = if machine.status.current_status.phase == MachinePhase::Failed { "False" } else { "True" };
        let mut conditions = vec![condition("Ready", ready)];
        conditions[0].last_transition_time = Some(Time(at(900)));
        Self {
            machine,
            node: Some(node(conditions)),
            now: 1000,
            drain: DrainState::Drained,
            orders: Vec::new(),
            effects: Vec::new(),
            next: Next::Settled,
        }
    }

    fn on_machine(mut self, value: &str) -> Self {
        self.machine.annotations_mut().insert(annotation::PRESERVE.to_owned(), value.to_owned());
        self
    }

    fn on_node(mut self, value: &str) -> Self {
        let node = self.node.as_mut().unwrap();
        node.annotations_mut().insert(annotation::PRESERVE.to_owned(), value.to_owned());
        self
    }

    fn seen(&self) -> Observation {
        let seen = seen(self.machine.clone(), self.now);
        match &self.node {
            Some(node) => with_node(seen, node.clone()),
            None => seen,
        }
    }

    /// Decides and carries out plans until nothing is left to do.
    fn rest(mut self) -> Self {
        self.effects.clear();
        self.orders.clear();
        let mut drain = DrainState::Due;
        for _ in 0..20 {
            let mut seen = self.seen();
            seen.drain = drain.clone();
            let plan = decide(&seen);
            self.carry_out(&plan);
            match plan.next {
                Next::Again => {}
                Next::StepDrain(order) => {
                    self.orders.push(order);
                    drain = self.drain.clone();
                }
                next => {
                    self.next = next;
                    return self;
                }
            }
        }
        panic!("the decision goes in circles: {:#?}", self.effects);
    }

    fn carry_out(&mut self, plan: &Plan) {
        self.machine = after(plan, &self.machine).to_object();
        if let Some(node) = &mut self.node {
            *node = node_after(plan, node);
        }
        self.effects.extend(plan.effects.iter().cloned());
    }

    fn becomes(mut self, phase: MachinePhase) -> Self {
        let ready = if phase == MachinePhase::Failed { "False" } else { "True" };
        if let Some(conditions) = self.node.as_mut().and_then(|node| node.status.as_mut()?.conditions.as_mut()) {
            for condition in conditions.iter_mut().filter(|condition| condition.type_ == "Ready") {
                condition.status = ready.to_owned();
                condition.last_transition_time = Some(Time(at(self.now)));
            }
        }
        self.machine.status.current_status.phase = phase;
        self.machine.status.current_status.last_update_time = Some(Time(at(self.now)));
        self
    }

    fn at(mut self, second: i64) -> Self {
        self.now = second;
        self
    }

    fn ends(&self) -> Option<i64> {
        let end = self.machine.status.current_status.preserve_expiry_time.as_ref()?;
        Some(end.0.as_second() - at(0).as_second())
    }

    fn preserved(&self) -> Option<&NodeCondition> {
        find(self.node.as_ref()?.status.as_ref()?.conditions.as_ref()?, node_condition::PRESERVED)
    }

    fn says(&self) -> (&str, &str, &str) {
        let condition = self.preserved().expect("the node tells");
        (&condition.status, condition.reason.as_deref().unwrap(), condition.message.as_deref().unwrap_or_default())
    }

    fn is_tainted(&self) -> bool {
        let taints = self.node.as_ref().and_then(|node| node.spec.as_ref()?.taints.clone()).unwrap_or_default();
        taints.iter().any(|mark| mark.key == taint::PRESERVED)
    }

    fn scale_down(&self) -> (Option<&str>, Option<&str>) {
        let all = self.node.as_ref().unwrap().annotations();
        let value = |key: &str| all.get(key).map(String::as_str);
        (value(annotation::SCALE_DOWN_DISABLED), value(annotation::SCALE_DOWN_DISABLED_BY_MCM))
    }

    fn wakes_after(&self) -> Option<Duration> {
        match &self.next {
            Next::LookAgain(after, _) => Some(*after),
            _ => None,
        }
    }

    fn progressing(&self) -> (&str, &str) {
        let condition = &self.machine.status.machine_conditions[0];
        (&condition.reason, &condition.message)
    }
}

fn failed() -> Machine {
    let mut machine = in_phase(MachinePhase::Failed, 950, OperationType::HealthCheck, OperationState::Failed);
    machine.status.conditions = vec![condition("Ready", "False")];
    machine
}

#[rstest]
#[case::nothing(Wish::Nothing, false, MachinePhase::Failed, Verdict::Stop(Annotations::Stay))]
#[case::no(Wish::No, true, MachinePhase::Failed, Verdict::Stop(Annotations::Stay))]
#[case::mc_145_now(Wish::Now, false, MachinePhase::Running, Verdict::Preserve)]
#[case::now_is_over(Wish::Now, true, MachinePhase::Failed, Verdict::Stop(Annotations::Go))]
#[case::mc_147_not_failed(Wish::WhenFailed, false, MachinePhase::Running, Verdict::Stop(Annotations::Stay))]
#[case::when_failed(Wish::WhenFailed, false, MachinePhase::Failed, Verdict::Preserve)]
#[case::mc_148_over(Wish::WhenFailed, true, MachinePhase::Failed, Verdict::Stop(Annotations::Go))]
#[case::auto(Wish::Auto, false, MachinePhase::Failed, Verdict::Preserve)]
#[case::mc_149_recovered(Wish::Auto, false, MachinePhase::Running, Verdict::Stop(Annotations::Go))]
#[case::auto_is_over(Wish::Auto, true, MachinePhase::Failed, Verdict::Stop(Annotations::Go))]
fn a_wish_leads_to_a_verdict(
    #[case] wish: Wish,
    #[case] is_over: bool,
    #[case] phase: MachinePhase,
    #[case] expected: Verdict,
) {
    assert_eq!(verdict(wish, is_over, &phase), expected);
}

#[test]
fn mc_145_a_running_machine_is_preserved_at_once_without_a_drain() {
    let story = Story::of(running()).on_machine("now").rest();
    assert_eq!(story.ends(), Some(1000 + PRESERVE_TIMEOUT));
    assert_eq!(story.scale_down(), (Some("true"), Some("true")));
    let until = "Machine preserved until 2027-01-19T08:16:40Z.";
    assert_eq!(story.says(), ("True", node_condition::REASON_PRESERVED_BY_USER, until));
    assert!(story.orders.is_empty() && !story.is_tainted());
    assert_eq!(story.machine.status.current_status.phase, MachinePhase::Running);
    assert_eq!(story.machine.annotations()[annotation::PRESERVE], "now");
    let again = story.at(1060).rest();
    assert!(again.effects.is_empty(), "{:#?}", again.effects);
}

#[test]
fn mc_146_a_preserved_machine_that_fails_is_drained_behind_a_taint() {
    let story = Story::of(running()).on_machine("now").rest().at(2000).becomes(MachinePhase::Failed).rest();
    assert_eq!(story.orders.len(), 1);
    assert_eq!((story.orders[0].force, story.orders[0].deadline), (Force::No, at(2000 + 2 * HOUR)));
    assert!(story.is_tainted());
    assert_eq!(story.node.as_ref().unwrap().spec.as_ref().unwrap().unschedulable, None, "a taint and no cordon");
    let (status, _, message) = story.says();
    assert_eq!(status, "True");
    assert!(message.starts_with("Preserved node drained successfully. Machine preserved until "), "{message}");
    assert_eq!(story.progressing().0, machine_condition::REASON_PRESERVED);
    let again = story.at(2060).rest();
    assert!(again.effects.is_empty() && again.orders.is_empty(), "{:#?}", again.effects);
}

#[test]
fn mc_147_a_running_machine_that_is_to_be_kept_when_it_fails_is_left_alone() {
    let story = Story::of(running()).on_machine("when-failed").rest();
    assert!(story.effects.is_empty());
    assert_eq!((story.ends(), story.preserved()), (None, None));
}

#[test]
fn a_step_of_the_clock_ends_no_preservation_before_it_was_watched_for_ten_minutes() {
    let kept = Story::of(failed()).on_machine("when-failed").rest();
    let end = kept.ends().unwrap();
    let rule = |stepped_ago: Option<u64>| {
        let mut seen = seen(kept.machine.clone(), end + 60);
        seen.step = stepped_ago.map(|ago| controller_runtime::clock::Step { watched: Duration::from_secs(ago) });
        decide(&seen).rule
    };
    assert_ne!(rule(None), rule(Some(90)), "it is over by the clock alone");
    assert_eq!(rule(None), rule(Some(600)));
}

#[test]
fn mc_148_mc_155_the_end_comes_to_the_second_and_takes_the_annotations_off() {
    let kept = Story::of(failed()).on_machine("when-failed").on_node("when-failed").rest();
    let end = kept.ends().unwrap();
    assert_eq!(kept.wakes_after(), Some(Duration::from_secs(PRESERVE_TIMEOUT.unsigned_abs())));
    let kept = kept.at(end - 1).rest();
    assert_eq!((kept.ends(), kept.wakes_after()), (Some(end), Some(Duration::from_secs(1))));
    let over = kept.at(end).rest();
    assert_eq!(over.ends(), None);
    for annotations in [over.machine.annotations(), over.node.as_ref().unwrap().annotations()] {
        assert!(!annotations.contains_key(annotation::PRESERVE));
        assert!(!annotations.contains_key(annotation::LAST_APPLIED_NODE_PRESERVE_VALUE));
    }
    assert_eq!(over.scale_down(), (None, None));
    assert!(!over.is_tainted());
    assert_eq!(over.says(), ("False", node_condition::REASON_PRESERVATION_STOPPED, ""));
    assert_eq!(over.machine.status.current_status.phase, MachinePhase::Failed, "its set may replace it now");
    let reported = |reason: &str| {
        over.effects.iter().any(|effect| matches!(effect, Effect::Tell { reason: r, .. } if *r == reason))
    };
    assert!(reported(machine_reason::PRESERVATION_STOPPED));
}

#[test]
fn mc_149_a_machine_that_its_set_keeps_is_released_when_it_runs_again() {
    let kept = Story::of(failed()).on_machine("auto-preserved").rest();
    assert_eq!(kept.says().1, node_condition::REASON_PRESERVED_BY_MCM);
    let back = kept.at(2000).becomes(MachinePhase::Running).rest();
    assert_eq!((back.ends(), back.is_tainted(), back.scale_down()), (None, false, (None, None)));
    assert!(!back.machine.annotations().contains_key(annotation::PRESERVE));
}

/// Seed 33257: a machine recovers after its set has chosen to keep it and before its preservation begins.
#[rstest]
#[case::chosen_by_its_set(Story::of(running()).on_machine("auto-preserved"), "patch-machine")]
#[case::said_by_the_node(Story::of(running()).on_node("auto-preserved"), "patch-node")]
#[case::asked_for_by_a_user(Story::of(running()).on_machine("when-failed"), "")]
fn mc_149_a_machine_that_recovers_before_its_preservation_begins_is_released(
    #[case] story: Story,
    #[case] expected: &str,
) {
    let is_users = expected.is_empty();
    let back = story.rest();
    let own = back.machine.annotations();
    assert_eq!(own.contains_key(annotation::PRESERVE), is_users, "it would count against the set's allowance for ever");
    assert!(!own.contains_key(annotation::LAST_APPLIED_NODE_PRESERVE_VALUE));
    assert!(!back.node.as_ref().unwrap().annotations().contains_key(annotation::PRESERVE));
    let names = back.effects.iter().map(|effect| match effect {
        Effect::Dress { .. } => "patch-node",
        Effect::ForgetPreservation(VersionGuard::Observed) => "patch-machine",
        other => panic!("{other:?}"),
    });
    assert_eq!(
        names.collect::<Vec<_>>().join(" "),
        expected,
        "nothing else has begun, and a user may decide meanwhile"
    );
}

#[test]
fn mc_150_the_annotation_of_the_node_has_precedence() {
    let kept = Story::of(failed()).on_machine("now").rest();
    assert!(kept.is_tainted());
    let stopped = kept.on_node("false").rest();
    assert_eq!((stopped.ends(), stopped.is_tainted()), (None, false));
    let own = stopped.machine.annotations();
    assert_eq!(own[annotation::LAST_APPLIED_NODE_PRESERVE_VALUE], "false");
    assert!(!own.contains_key(annotation::PRESERVE), "it does not count any longer");
    assert_eq!(stopped.node.as_ref().unwrap().annotations()[annotation::PRESERVE], "false", "it stays");
}

#[test]
fn mc_151_the_removal_of_an_annotation_is_noticed() {
    let mut kept = Story::of(failed()).on_node("now").rest();
    assert_eq!(kept.machine.annotations()[annotation::LAST_APPLIED_NODE_PRESERVE_VALUE], "now");
    kept.node.as_mut().unwrap().annotations_mut().remove(annotation::PRESERVE);
    let stopped = kept.rest();
    assert_eq!(stopped.ends(), None);
    assert_eq!(stopped.machine.annotations()[annotation::LAST_APPLIED_NODE_PRESERVE_VALUE], "");
}

#[test]
fn mc_152_an_unknown_value_changes_nothing() {
    let kept = Story::of(failed()).on_machine("now").rest();
    let end = kept.ends();
    let same = kept.on_node("maybe").rest();
    assert_eq!((same.ends(), same.is_tainted()), (end, true));
    assert!(matches!(same.effects.as_slice(), [Effect::Warn { reason: machine_reason::PRESERVE_VALUE_UNKNOWN, .. }]));
    let never = Story::of(failed()).on_machine("perhaps").rest();
    assert_eq!(never.ends(), None);
}

#[test]
fn mc_153_a_users_own_annotation_for_the_autoscaler_stays() {
    let mut story = Story::of(failed()).on_machine("now");
    let all = story.node.as_mut().unwrap().annotations_mut();
    all.insert(annotation::SCALE_DOWN_DISABLED.to_owned(), "true".to_owned());
    let kept = story.rest();
    assert_eq!(kept.scale_down(), (Some("true"), None));
    assert_eq!(kept.on_machine("false").rest().scale_down(), (Some("true"), None));
}

#[test]
fn mc_154_a_machine_without_its_node_is_released_as_well() {
    let mut kept = Story::of(failed()).on_machine("now").rest();
    kept.node = None;
    kept.machine.annotations_mut().remove(annotation::PRESERVE);
    let stopped = kept.rest();
    assert_eq!(stopped.ends(), None);
}

#[test]
fn a_machine_without_a_node_is_preserved_by_its_time_alone() {
    let mut story = Story::of(failed()).on_machine("now");
    story.node = None;
    let kept = story.rest();
    assert_eq!(kept.ends(), Some(1000 + PRESERVE_TIMEOUT));
    assert!(kept.orders.is_empty());
}

#[test]
fn mc_156_a_drain_that_is_blocked_is_reported_and_holds_no_worker() {
    let mut story = Story::of(failed()).on_machine("now");
    story.drain = DrainState::Running {
        progress: "1 of 1 pods left, 1 blocked by PodDisruptionBudget ns/web.".to_owned(),
        blocked_by: Some("ns/web".to_owned()),
        waiting: Some(Waiting::Budget {
            pod: "ns/web-0".to_owned(),
            budget: "ns/web".to_owned(),
            held: 1,
            since: at(1000),
        }),
        attempt: Attempt::New,
        wake: Duration::from_secs(20),
    };
    let waiting = story.rest();
    assert_eq!(waiting.wakes_after(), Some(Duration::from_secs(20)), "it waits for a time, not for a worker");
    let (reason, message) = waiting.progressing();
    assert_eq!(reason, machine_condition::REASON_DRAIN_BLOCKED);
    for part in [
        "ns/web-0",
        "PodDisruptionBudget ns/web",
        "preserved until",
        "at 2027-01-15T10:16:40Z pods are deleted by force",
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert!(waiting.is_tainted());
    assert_eq!(waiting.preserved(), None, "nothing is known about the drain yet");
    let again = waiting.at(1020).rest();
    let reported_again = |effect: &Effect| matches!(effect, Effect::Warn { reason: machine_reason::DRAIN_BLOCKED, .. });
    assert!(again.effects.iter().all(reported_again), "an event with the same text is not new: {:#?}", again.effects);
}

#[test]
fn a_failed_drain_is_reported_on_the_node_and_repeated() {
    let mut story = Story::of(failed()).on_machine("now");
    story.drain = DrainState::Failed("pod disruption budget ns/web is misconfigured".into());
    let mut reported = story.rest();
    let (status, _, message) = reported.says();
    assert_eq!(status, "False");
    assert!(message.starts_with("Preserved node could not be drained. Machine preserved until "), "{message}");
    assert_eq!(reported.progressing().0, machine_condition::REASON_DRAIN_FAILED);
    assert_eq!(reported.wakes_after(), Some(Duration::from_secs(5)));
    reported.drain = DrainState::Drained;
    let drained = reported.at(1020).rest();
    assert_eq!((drained.says().0, drained.orders.len()), ("True", 1));
}

#[rstest]
#[case::soon(1000, None, Force::No)]
#[case::after_the_drain_timeout(1001 + 2 * HOUR, None, Force::Yes)]
#[case::by_label(1000, Some("True"), Force::Yes)]
#[case::the_label_is_exact(1000, Some("true"), Force::No)]
fn a_drain_of_a_preserved_machine_is_forced(#[case] second: i64, #[case] value: Option<&str>, #[case] force: Force) {
    let mut story = Story::of(failed()).on_machine("now").rest().at(second);
    // As if nothing had been drained yet.
    let conditions = story.node.as_mut().unwrap().status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions.retain(|condition| condition.type_ != node_condition::PRESERVED);
    for condition in conditions {
        condition.last_transition_time = Some(Time(at(second)));
    }
    if let Some(value) = value {
        story.machine.labels_mut().insert(label::FORCE_DRAIN.to_owned(), value.to_owned());
    }
    assert_eq!(story.rest().orders[0].force, force);
}

#[test]
fn mc_157_a_preserved_machine_that_is_deleted_goes_the_normal_way() {
    let kept = Story::of(failed()).on_machine("now").rest();
    let machine = deleted_at(kept.machine.clone(), 2000);
    let seen = with_node(seen(machine.clone(), 2000), kept.node.clone().unwrap());
    let marked = after(&decide(&seen), &machine);
    assert_eq!(marked.preserve_expiry_time(), None);
    assert_eq!(DeletionStage::of(&marked), Some(DeletionStage::Drain));
}

#[test]
fn mc_158_a_users_cordon_stays() {
    let mut story = Story::of(failed()).on_machine("now");
    story.node.as_mut().unwrap().spec.as_mut().unwrap().unschedulable = Some(true);
    let stopped = story.rest().on_machine("false").rest();
    assert_eq!(stopped.ends(), None);
    assert_eq!(stopped.node.unwrap().spec.unwrap().unschedulable, Some(true));
}

#[test]
fn a_machine_that_recovers_takes_pods_again_though_it_stays_preserved() {
    let back = Story::of(failed()).on_machine("now").rest().at(2000).becomes(MachinePhase::Running).rest();
    assert!(!back.is_tainted());
    assert_eq!(back.ends(), Some(1000 + PRESERVE_TIMEOUT));
    assert_eq!(back.says().0, "True");
}

#[test]
fn a_preservation_that_can_not_be_marked_is_reported() {
    let story = Story::of(failed()).on_machine("now");
    let kept = story.rest();
    let mut seen = kept.seen();
    seen.step_failures = StepFailure { step: NodeStep::Preservation, error: "forbidden".to_owned() }.into();
    let plan = decide(&seen);
    assert!(matches!(plan.next, Next::LookAgain(after, _) if after.as_secs() == 5));
    let reported = after(&plan, &kept.machine);
    assert!(reported.machine_conditions()[0].message.contains("forbidden"));
}

#[test]
fn a_foreign_node_is_not_marked() {
    let mut seen = Story::of(failed()).on_machine("now").seen();
    seen.node = NodeView::Foreign { name: "n".to_owned(), why: "another VM".to_owned() };
    let plan = decide(&seen);
    assert_eq!(node_writes(&plan), 0);
    seen.machine = after(&plan, &seen.machine);
    assert_eq!(node_writes(&decide(&seen)), 0);
}

/// The waits between these two are rows of `machine::tests::waits`.
#[test]
fn a_preserved_and_a_released_machine_report_start_and_end_of_their_wait() {
    let kept = Story::of(failed()).on_machine("now").rest();
    let (reason, message) = kept.progressing();
    assert_eq!(reason, machine_condition::REASON_PRESERVED);
    for part in ["until 2027-01-19T08:16:40Z", "since 2027-01-15T08:16:40Z", "its node recovers", "is set to false"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    let stopped = kept.on_machine("false").at(2000).rest();
    let (reason, message) = stopped.progressing();
    assert_eq!(reason, machine_reason::PRESERVATION_STOPPED);
    for part in
        ["since 2027-01-15T08:33:20Z", "not preserved any longer", "ends when it is deleted or its spec changes"]
    {
        assert!(message.contains(part), "{part} is not in {message}");
    }
}
