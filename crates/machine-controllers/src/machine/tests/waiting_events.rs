//! Events about the end of a failure (spec/machine-controller §13.2): recorded once, and never without a failure
//! (decisions.md 32).

use rstest::rstest;

use crate::{
    machine::{
        decide::decide,
        observation::{Answer, Call, DrainState, Observation},
        plan::{Effect, Plan, reporting::reported_reason, status_change::StatusChange},
        standing::Waiting,
        testing::*,
    },
    snapshots::MachineSnapshot,
};
use machine_api::{
    names::{machine_condition, machine_reason, stage_text},
    v1alpha1::{Machine, MachinePhase, OperationState, OperationType},
};
use machine_driver::{Code, CreatedVm, DeletedVm, VmIdentity};

fn recorded_events(plan: &Plan) -> Vec<&'static str> {
    plan.effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Tell { reason, .. } | Effect::Warn { reason, .. } => Some(*reason),
            _ => None,
        })
        .collect()
}

/// The machine with this reason in its condition.
fn with_reason(machine: &Machine, reason: &'static str) -> MachineSnapshot {
    let change = StatusChange::new().waits(Waiting::on(reason, "x")).effect(&seen(machine.clone(), 0));
    after(&Plan::new("test", vec![change], crate::machine::plan::Next::Settled), machine)
}

fn terminating(stage: &str) -> Machine {
    let mut machine = in_phase(MachinePhase::Terminating, 100, OperationType::Delete, OperationState::Processing);
    machine.status.last_operation.description = stage.to_owned();
    deleted_at(machine, 100)
}

fn drained(machine: impl Into<MachineSnapshot>) -> Observation {
    let mut node = node(vec![condition("Ready", "True"), condition("Terminating", "True")]);
    node.spec.get_or_insert_default().unschedulable = Some(true);
    let mut seen = with_node(seen(machine, 200), node);
    seen.drain = DrainState::Drained;
    seen
}

#[rstest]
#[case::at_the_first_try(terminating(stage_text::DRAIN), &[])]
#[case::after_a_budget_had_refused(
    with_reason(&terminating(stage_text::DRAIN), machine_condition::REASON_DRAIN_BLOCKED),
    &[machine_reason::DRAIN_SUCCEEDED]
)]
fn a_drain_that_was_held_up_is_reported_when_it_succeeds(
    #[case] machine: impl Into<MachineSnapshot>,
    #[case] events: &[&str],
) {
    assert_eq!(recorded_events(&decide(&drained(machine))), events);
}

/// The machine at its VM's deletion, after the provider has refused.
fn refused() -> MachineSnapshot {
    let seen = answered(seen(terminating(stage_text::DELETE_VM), 150), deletes(Code::Unavailable));
    after(&decide(&seen), &seen.machine)
}

/// The machine once this call has lasted.
fn after_lasting(call: Call, machine: impl Into<MachineSnapshot>) -> (Plan, MachineSnapshot) {
    let mut seen = seen(machine, 260);
    (seen.flow.in_flight, seen.flow.asked_at) = (Some(call), Some(at(200)));
    let plan = decide(&seen);
    let shown = after(&plan, &seen.machine);
    (plan, shown)
}

#[rstest]
#[case::creation(machine(), Call::Create, &[machine_condition::REASON_WAITING_FOR_VM])]
#[case::deletion(terminating(stage_text::DELETE_VM), Call::Delete, &[machine_condition::REASON_AWAITING_DRIVER])]
#[case::deletion_that_asks_for_the_vm(
    terminating(stage_text::GET_VM_STATUS), Call::Status, &[machine_condition::REASON_AWAITING_DRIVER]
)]
#[case::creation_of_a_deleted_machine(
    deleted_at(machine(), 210), Call::Create, &[machine_condition::REASON_AWAITING_DRIVER]
)]
fn a_driver_call_that_lasts_has_an_event(#[case] machine: Machine, #[case] call: Call, #[case] events: &[&str]) {
    let mut soon = seen(machine.clone(), 259);
    (soon.flow.in_flight, soon.flow.asked_at) = (Some(call), Some(at(200)));
    assert!(recorded_events(&decide(&soon)).is_empty(), "it may be answered yet");
    let (plan, shown) = after_lasting(call, machine);
    assert_eq!(recorded_events(&plan), events);
    assert_eq!(reported_reason(&shown), events.first().copied());
}

#[rstest]
#[case::at_the_first_try(terminating(stage_text::DELETE_VM), &[])]
#[case::after_the_provider_had_refused(refused(), &[machine_reason::VM_DELETED])]
#[case::after_a_refusal_and_a_call_that_lasted(after_lasting(Call::Delete, refused()).1, &[machine_reason::VM_DELETED])]
#[case::after_a_call_that_lasted(after_lasting(Call::Delete, terminating(stage_text::DELETE_VM)).1, &[])]
fn a_vm_whose_deletion_had_failed_is_reported_when_it_is_gone(
    #[case] machine: impl Into<MachineSnapshot>,
    #[case] events: &[&str],
) {
    let mut seen = seen(machine, 300);
    seen.flow.learn(Answer::Deleted(Ok(DeletedVm::default())));
    assert_eq!(recorded_events(&decide(&seen)), events);
}

fn with_vm(mut machine: Machine, phase: MachinePhase, description: &str) -> Observation {
    machine.status.current_status.phase = phase;
    machine.status.last_operation.operation = OperationType::Create;
    machine.status.last_operation.state = OperationState::Failed;
    machine.status.last_operation.description = description.to_owned();
    let mut seen = seen(machine, 20);
    let vm = VmIdentity { provider_id: "cloud:///n".to_owned(), node_name: "n".to_owned(), addresses: Vec::new() };
    seen.flow.learn(Answer::Created(Ok(CreatedVm { vm: vm.clone(), last_known_state: None })));
    seen.flow.learn(Answer::Initialized(Ok(vm)));
    seen
}

#[rstest]
#[case::at_the_first_try(MachinePhase::Unset, "", &[])]
#[case::after_the_provider_had_refused(MachinePhase::CrashLoopBackOff, "Cloud provider message - no", &[machine_reason::CREATED])]
#[case::after_the_initialisation_had_failed(
    MachinePhase::CrashLoopBackOff, "Provider error: no. Initialize VM Instance", &[machine_reason::INITIALIZED]
)]
fn a_creation_that_had_failed_is_reported_when_it_succeeds(
    #[case] phase: MachinePhase,
    #[case] description: &str,
    #[case] events: &[&str],
) {
    assert_eq!(recorded_events(&decide(&with_vm(recorded(), phase, description))), events);
}

#[rstest]
#[case::in_time(MachinePhase::Pending, &[])]
#[case::given_up_before(MachinePhase::Failed, &[machine_reason::JOINED])]
fn a_machine_that_had_failed_is_reported_when_it_joins(#[case] phase: MachinePhase, #[case] events: &[&str]) {
    let machine = in_phase(phase, 1, OperationType::Create, OperationState::Failed);
    let seen = with_node(seen(machine, 60), node(vec![condition("Ready", "True")]));
    assert_eq!(recorded_events(&decide(&seen)), events);
}
