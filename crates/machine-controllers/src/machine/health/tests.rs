//! Scenarios of spec/machine-controller §17.6 on the pure decision.

use k8s_openapi::{
    api::core::v1::NodeCondition,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use rstest::rstest;

use super::{conditions_changed, is_healthy, timeout::blocking_siblings};
use crate::machine::{
    decide::decide,
    observation::{NodeSource, NodeView, Observation, Permit, Sibling},
    plan::{Effect, Next},
    settings::{HealthTimeout, MachineSettings},
    testing::*,
};
use machine_api::{
    names::{machine_condition, machine_reason, node_condition, taint},
    v1alpha1::{Machine, MachinePhase, OperationState, OperationType},
};

fn ready(status: &str) -> Vec<NodeCondition> {
    vec![condition("Ready", status)]
}

fn phase_after(seen: &Observation) -> MachinePhase {
    after(&decide(seen), &seen.machine).phase().clone()
}

fn unknown(since: i64) -> Machine {
    let mut machine = in_phase(MachinePhase::Unknown, since, OperationType::HealthCheck, OperationState::Processing);
    machine.status.conditions = ready("False");
    machine
}

fn sibling(phase: &str) -> Sibling {
    Sibling { name: format!("s-{phase}"), phase: phase.to_owned(), preserved: false }
}

#[rstest]
#[case::all_is_well(vec![condition("Ready", "True"), condition("DiskPressure", "False")], true)]
#[case::mc_107_a_deadlock(vec![condition("Ready", "True"), condition("KernelDeadlock", "True")], false)]
#[case::mc_108_unknown_counts_as_bad(vec![condition("Ready", "True"), condition("DiskPressure", "Unknown")], false)]
#[case::mc_124_ready_was_never_reported(vec![condition("DiskPressure", "False")], false)]
#[case::not_ready(vec![condition("Ready", "False")], false)]
#[case::other_conditions_do_not_matter(vec![condition("Ready", "True"), condition("Terminating", "True")], true)]
#[case::nothing_reported(vec![], false)]
fn health_follows_from_conditions(#[case] conditions: Vec<NodeCondition>, #[case] healthy: bool) {
    let limits = MachineSettings::default().limits_of(&Machine::default().into());
    assert_eq!(is_healthy(&conditions, &limits.unhealthy_conditions), healthy);
}

fn with_reason(kind: &str, reason: &str) -> Vec<NodeCondition> {
    vec![NodeCondition { reason: Some(reason.to_owned()), ..condition(kind, "True") }]
}

#[rstest]
#[case::mc_018_only_a_heartbeat(ready("True"), vec![NodeCondition { last_heartbeat_time: Some(Time(at(9))), ..condition("Ready", "True") }], false)]
#[case::mc_019_only_a_reason(with_reason("Ready", "a"), with_reason("Ready", "b"), false)]
#[case::mc_019_the_reason_of_an_in_place_update(
    with_reason(node_condition::IN_PLACE_UPDATE, "a"),
    with_reason(node_condition::IN_PLACE_UPDATE, "b"),
    true
)]
#[case::mc_020_a_type_disappeared(vec![condition("Ready", "True"), condition("X", "True")], ready("True"), true)]
#[case::a_status_changed(ready("True"), ready("False"), true)]
fn conditions_differ(#[case] one: Vec<NodeCondition>, #[case] other: Vec<NodeCondition>, #[case] differ: bool) {
    assert_eq!(conditions_changed(&one, &other), differ);
}

#[test]
fn mc_106_a_healthy_node_makes_the_machine_running_in_one_write_that_holds_the_conditions() {
    let seen = with_node(seen(pending(), 90), node(ready("True")));
    let plan = decide(&seen);
    assert_eq!(machine_writes(&plan), ["status"]);
    assert!(plan.effects.contains(&Effect::DeleteToken));
    let status = after(&plan, &pending()).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::Running);
    assert!(!status.current_status.timeout_active);
    assert_eq!(status.conditions, ready("True"));
    assert_eq!(status.last_operation.operation, OperationType::Create);
    assert_eq!(status.last_operation.state, OperationState::Successful);
    assert_eq!(status.last_operation.description, "Machine m-abcde successfully joined the cluster in 1m30s");
}

#[test]
fn mc_105_a_node_without_its_critical_components_keeps_the_machine_pending_and_is_shown_once() {
    let waiting = tainted(node(ready("True")), taint::CRITICAL_COMPONENTS_NOT_READY);
    let plan = decide(&with_node(seen(pending(), 30), waiting.clone()));
    let shown = after(&plan, &pending());
    assert_eq!(*shown.phase(), MachinePhase::Pending);
    assert_eq!(shown.conditions(), ready("True"));
    assert!(decide(&with_node(seen(shown, 40), waiting)).effects.is_empty());
}

#[rstest]
#[case::at_first_they_wait(Some(20), false)]
#[case::after_a_minute_they_are_written(Some(-30), true)]
fn mc_130_conditions_of_a_machine_that_has_not_joined_wait(#[case] differ_since: Option<i64>, #[case] written: bool) {
    let mut seen = with_node(seen(pending(), 30), node(ready("False")));
    seen.conditions_differ_since = differ_since.map(at);
    let plan = decide(&seen);
    assert_eq!(status_change(&plan).is_some(), written);
    if !written {
        assert!(matches!(plan.next, Next::LookAgain(after, _) if after.as_secs() == 50), "{:?}", plan.next);
    }
}

#[test]
fn mc_107_an_unhealthy_node_makes_a_running_machine_unknown() {
    let sick = node(vec![condition("Ready", "True"), condition("KernelDeadlock", "True")]);
    let plan = decide(&with_node(seen(running(), 600), sick));
    let status = after(&plan, &running()).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::Unknown);
    assert_eq!(status.current_status.last_update_time, Some(Time(at(600))));
    assert_eq!(status.last_operation.operation, OperationType::HealthCheck);
    assert_eq!(status.last_operation.state, OperationState::Processing);
    assert_eq!(status.conditions.len(), 2);
    assert!(status.last_operation.description.contains("Ready=True, KernelDeadlock=True"));
}

#[rstest]
#[case::mc_122_a_running_machine(running(), MachinePhase::Unknown)]
#[case::mc_123_a_pending_machine(pending(), MachinePhase::Pending)]
fn a_missing_node_matters_to(#[case] machine: Machine, #[case] phase: MachinePhase) {
    let seen = seen(machine, 600);
    assert_eq!(phase_after(&seen), phase);
    assert_eq!(after(&decide(&seen), &seen.machine).conditions(), seen.machine.conditions());
}

#[test]
fn mc_111_an_unknown_machine_that_recovers_has_rejoined() {
    let plan = decide(&with_node(seen(unknown(0), 540), node(ready("True"))));
    let status = after(&plan, &unknown(0)).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::Running);
    assert_eq!(status.last_operation.operation, OperationType::HealthCheck);
    assert_eq!(status.last_operation.description, "Machine m-abcde successfully re-joined the cluster");
}

#[test]
fn mc_121_a_failed_machine_whose_node_recovers_runs_again() {
    let failed = in_phase(MachinePhase::Failed, 0, OperationType::HealthCheck, OperationState::Failed);
    assert_eq!(phase_after(&with_node(seen(failed, 60), node(ready("True")))), MachinePhase::Running);
}

#[rstest]
#[case::mc_064_in_time(1200, MachinePhase::Pending)]
#[case::mc_119_mc_120_too_late(1201, MachinePhase::Failed)]
fn a_pending_machine_has_its_creation_timeout(#[case] second: i64, #[case] phase: MachinePhase) {
    let mut seen = seen(pending(), second);
    seen.limits.health = HealthTimeout::Never;
    assert_eq!(phase_after(&seen), phase);
}

#[rstest]
#[case::mc_051_adopted(machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM, MachinePhase::Pending)]
#[case::made(machine_condition::REASON_WAITING_FOR_NODE, MachinePhase::Failed)]
fn the_clock_of_a_taken_over_vm_starts_when_it_was_taken_over(#[case] reason: &str, #[case] phase: MachinePhase) {
    let mut machine = in_phase(MachinePhase::Pending, 5000, OperationType::Create, OperationState::Processing);
    machine.status.machine_conditions = vec![Condition {
        type_: machine_condition::PROGRESSING.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: Time(at(5000)),
    }];
    assert_eq!(phase_after(&seen(machine, 5060)), phase);
}

/// A machine in phase Unknown at this second, with siblings in these phases, that holds the permit.
fn with_permit(second: i64, siblings: Vec<Sibling>) -> Observation {
    let mut seen = with_node(seen(unknown(0), second), node(ready("False")));
    seen.siblings = Some(siblings);
    seen.permit = Permit::Held;
    seen
}

#[test]
fn mc_112_an_unknown_machine_fails_after_its_health_timeout() {
    assert_eq!(phase_after(&with_permit(600, vec![])), MachinePhase::Unknown);
    let seen = with_permit(601, vec![sibling("Running"), sibling("Unknown")]);
    let status = after(&decide(&seen), &seen.machine).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::Failed);
    assert_eq!(status.last_operation.operation, OperationType::HealthCheck);
    assert_eq!(status.last_operation.state, OperationState::Failed);
}

#[test]
fn mc_116_a_machine_fails_only_with_the_permit_of_its_group() {
    let mut seen = with_permit(601, vec![]);
    seen.permit = Permit::NotHeld;
    assert_eq!(decide(&seen).next, Next::TakePermit);
    assert!(decide(&seen).effects.is_empty());
}

#[test]
fn mc_113_a_machine_whose_sibling_is_replaced_reports_its_wait_once() {
    let seen = with_permit(601, vec![sibling("Pending")]);
    let plan = decide(&seen);
    let waiting = after(&plan, &seen.machine);
    assert_eq!(*waiting.phase(), MachinePhase::Unknown);
    let deferred = machine_reason::HEALTH_TIMEOUT_REPLACEMENT_DEFERRED;
    assert_eq!(waiting.machine_conditions()[0].reason, deferred);
    let warns = |effect: &Effect| matches!(effect, Effect::Warn { reason, .. } if *reason == deferred);
    assert_eq!(plan.effects.iter().filter(|effect| warns(effect)).count(), 1, "an event tells of it, too: {plan:?}");
    let mut again = with_permit(700, vec![sibling("Pending")]);
    again.machine = waiting;
    assert!(decide(&again).effects.is_empty());
}

#[rstest]
#[case::mc_114_all_run(vec![sibling("Running")], &[])]
#[case::mc_113_one_is_pending(vec![sibling("Pending")], &["s-Pending"])]
#[case::mc_115_a_preserved_failure(vec![Sibling { preserved: true, ..sibling("Failed") }], &[])]
#[case::one_goes(vec![Sibling { preserved: true, ..sibling("Terminating") }], &["s-Terminating"])]
#[case::one_is_new(vec![sibling("")], &["s-"])]
#[case::no_siblings(vec![], &[])]
fn a_group_allows_one_failure_at_a_time(#[case] siblings: Vec<Sibling>, #[case] blocking: &[&str]) {
    assert_eq!(blocking_siblings(&siblings), blocking);
}

#[test]
fn mc_118_a_disabled_timeout_never_fails_a_machine() {
    let mut seen = with_permit(3600, vec![]);
    seen.limits.health = HealthTimeout::Never;
    assert_eq!(phase_after(&seen), MachinePhase::Unknown);
}

#[test]
fn mc_126_the_machine_may_have_a_timeout_of_its_own() {
    let mut seen = with_permit(121, vec![]);
    seen.limits.health = HealthTimeout::After(2 * MINUTE);
    assert_eq!(phase_after(&seen), MachinePhase::Failed);
}

#[test]
fn mc_128_after_a_restart_the_timeout_ends_when_it_would_have_anyway() {
    let mut seen = with_permit(480, vec![]);
    seen.first_seen = at(480);
    let Next::LookAgain(after, _) = decide(&seen).next else { panic!("no deadline") };
    assert_eq!(after.as_secs(), 120);
}

#[rstest]
#[case::mc_026_marked(NodeView::Ours({
    let mut gone = node(ready("True"));
    gone.metadata.deletion_timestamp = Some(Time(at(1)));
    gone.into()
}))]
#[case::mc_027_gone_before_our_eyes(NodeView::Vanished)]
fn a_deleted_node_takes_its_machine_along(#[case] node: NodeView) {
    let mut seen = seen(running(), 600);
    seen.node = node;
    seen.node_source = NodeSource::Live;
    assert_eq!(decide(&seen).effects, [Effect::DeleteMachine]);
}

#[test]
fn a_node_that_only_the_view_lacks_is_looked_for_before_its_machine_goes() {
    let mut seen = seen(running(), 600);
    seen.node = NodeView::Vanished;
    seen.node_source = NodeSource::View;
    let plan = decide(&seen);
    assert_eq!((plan.rule, &plan.effects[..]), ("look-for-vanished-node", &[Effect::RereadNode][..]));
}

#[test]
fn a_foreign_node_does_not_affect_the_machine_and_is_named_once() {
    let mut seen = seen(pending(), 60);
    seen.node = NodeView::Foreign { name: "n".to_owned(), why: "its providerID is \"x\"".to_owned() };
    let machine = after(&decide(&seen), &seen.machine);
    assert_eq!(*machine.phase(), MachinePhase::Pending);
    assert!(machine.conditions().is_empty());
    assert!(machine.machine_conditions()[0].message.contains("its providerID is"), "{machine:?}");
    seen.machine = machine;
    assert!(decide(&seen).effects.is_empty());
}

#[test]
fn mc_125_a_health_timeout_of_zero_fails_a_machine_at_the_first_look_after_it_became_unknown() {
    let mut seen = with_node(seen(unknown(100), 100), node(ready("False")));
    seen.limits.health = crate::machine::settings::HealthTimeout::After(std::time::Duration::ZERO);
    seen.siblings = Some(Vec::new());
    seen.permit = Permit::Held;
    assert_eq!(phase_after(&seen), MachinePhase::Unknown);
    seen.now = at(101);
    assert_eq!(phase_after(&seen), MachinePhase::Failed);
}

#[test]
fn missing_components_on_the_ready_node_of_a_pending_machine_are_reported() {
    let seen = with_node(seen(pending(), 60), tainted(node(ready("True")), taint::CRITICAL_COMPONENTS_NOT_READY));
    let machine = after(&decide(&seen), &seen.machine);
    let reported = &machine.machine_conditions()[0];
    assert_eq!(reported.reason, machine_condition::REASON_WAITING_FOR_CRITICAL_COMPONENTS);
    assert_eq!(
        reported.message,
        "waiting for critical pods of Node n since 2027-01-15T08:00:01Z: Ready=True; ends when taint \
         node.gardener.cloud/critical-components-not-ready is taken off the Node; at 2027-01-15T08:20:00Z the machine is \
         declared Failed"
    );
}
