//! Scenarios of spec/machine-controller §17.7 on the pure decision.

use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use rstest::rstest;

use super::{InPlaceStep, UpdateStage, in_place_drain, next_in_place_step};
use crate::{
    drain::{order::Force, progress::Attempt, waiting::Waiting},
    machine::{
        decide::decide,
        observation::{DrainState, NodeSource, NodeStep, NodeView, Observation, Permit, StepFailure},
        plan::{Effect, Next, Plan, RuleResult, reporting::reported_reason},
        testing::*,
    },
    snapshots::NodeSnapshot,
};
use machine_api::{
    names::{annotation, label, machine_condition, machine_reason, node_condition, stage_text},
    v1alpha1::{Machine, MachinePhase, OperationState, OperationType},
};

/// The condition `InPlaceUpdate` at this stage, reached at this second.
fn at_stage(stage: UpdateStage, second: i64) -> NodeCondition {
    NodeCondition {
        reason: Some(stage.reason().to_owned()),
        last_transition_time: Some(Time(at(second))),
        ..condition(node_condition::IN_PLACE_UPDATE, "True")
    }
}

/// A healthy node with these labels at this stage.
fn updating_node(labels: &[(&str, &str)], stage: Option<UpdateStage>) -> Node {
    let mut conditions = vec![condition("Ready", "True")];
    conditions.extend(stage.map(|stage| at_stage(stage, 100)));
    let mut node = node(conditions);
    for (key, value) in labels {
        node.labels_mut().insert((*key).to_owned(), (*value).to_owned());
    }
    node
}

const CANDIDATE: (&str, &str) = (label::CANDIDATE_FOR_UPDATE, "true");
const SELECTED: (&str, &str) = (label::SELECTED_FOR_UPDATE, "true");
const SUCCESS: (&str, &str) = (label::UPDATE_RESULT, "successful");
const FAILURE: (&str, &str) = (label::UPDATE_RESULT, "failed");

#[rstest]
#[case::no_label(&[], None, InPlaceStep::None)]
#[case::mc_131_a_candidate(&[CANDIDATE], None, InPlaceStep::Mark(UpdateStage::Candidate))]
#[case::mc_132_candidate_and_selected_at_once(&[CANDIDATE, SELECTED], None, InPlaceStep::Mark(UpdateStage::Candidate))]
#[case::mc_132_selected_comes_second(
    &[CANDIDATE, SELECTED], Some(UpdateStage::Candidate), InPlaceStep::Mark(UpdateStage::Selected)
)]
#[case::mc_132_then_the_drain(&[CANDIDATE, SELECTED], Some(UpdateStage::Selected), InPlaceStep::Drain)]
#[case::a_candidate_waits_to_be_selected(&[CANDIDATE], Some(UpdateStage::Candidate), InPlaceStep::None)]
#[case::mc_133_drained(
    &[CANDIDATE, SELECTED], Some(UpdateStage::DrainSuccessful), InPlaceStep::Mark(UpdateStage::ReadyForUpdate)
)]
#[case::the_agents_turn(&[CANDIDATE, SELECTED], Some(UpdateStage::ReadyForUpdate), InPlaceStep::None)]
#[case::mc_137_success(
    &[CANDIDATE, SELECTED, SUCCESS], Some(UpdateStage::ReadyForUpdate), InPlaceStep::Mark(UpdateStage::Successful)
)]
#[case::mc_138_failure(
    &[CANDIDATE, SELECTED, FAILURE], Some(UpdateStage::ReadyForUpdate), InPlaceStep::Mark(UpdateStage::Failed)
)]
#[case::a_failed_update_that_was_repaired(
    &[CANDIDATE, SELECTED, SUCCESS], Some(UpdateStage::Failed), InPlaceStep::Mark(UpdateStage::Successful)
)]
#[case::repaired_after_the_marks_were_withdrawn(
    &[SUCCESS], Some(UpdateStage::Failed), InPlaceStep::Mark(UpdateStage::Successful)
)]
#[case::a_success_without_an_update(&[SUCCESS], None, InPlaceStep::None)]
#[case::mc_142_a_candidate_again(&[CANDIDATE], Some(UpdateStage::Successful), InPlaceStep::Mark(UpdateStage::Candidate))]
#[case::mc_142_not_while_the_last_result_stands(&[CANDIDATE, SUCCESS], Some(UpdateStage::Successful), InPlaceStep::None)]
#[case::a_failed_update_stays_failed(&[CANDIDATE, SELECTED], Some(UpdateStage::Failed), InPlaceStep::None)]
#[case::without_the_leash_no_drain(&[SELECTED], Some(UpdateStage::Selected), InPlaceStep::None)]
#[case::withdrawn_during_the_drain(&[], Some(UpdateStage::Selected), InPlaceStep::Mark(UpdateStage::Candidate))]
#[case::an_unknown_result(
    &[CANDIDATE, SELECTED, (label::UPDATE_RESULT, "perhaps")], Some(UpdateStage::ReadyForUpdate), InPlaceStep::None
)]
fn the_next_step_is(
    #[case] labels: &[(&str, &str)],
    #[case] stage: Option<UpdateStage>,
    #[case] expected: InPlaceStep,
) {
    assert_eq!(next_in_place_step(&updating_node(labels, stage).into()), expected);
}

/// Seed 1381 of `mcm simulate`: the machine reported for ever that it waited for the drain.
#[rstest]
#[case::while_it_moves(None)]
#[case::while_a_budget_stops_it(Some("ns/budget"))]
fn a_machine_whose_update_was_withdrawn_waits_for_nothing(#[case] budget: Option<&str>) {
    let drain = DrainState::Running {
        progress: "1 pod is left".to_owned(),
        blocked_by: budget.map(str::to_owned),
        waiting: None,
        attempt: Attempt::New,
        wake: std::time::Duration::from_secs(5),
    };
    let draining = Observation { drain, ..selected(110) };
    let reported = after(&decide(&draining), &draining.machine);
    assert_ne!(reported_reason(&reported), Some(machine_condition::REASON_SETTLED));
    let stopped = with_node(seen(reported, 120), updating_node(&[], Some(UpdateStage::Candidate)));
    let RuleResult::Act(plan) = in_place_drain(&stopped) else { panic!("nothing is decided") };
    assert_eq!(plan.rule, "in-place-withdrawn");
    let reported = after(&plan, &stopped.machine);
    assert_eq!(reported_reason(&reported), Some(machine_condition::REASON_SETTLED));
    assert_ne!(reported.last_operation().state, OperationState::Processing);
}

/// A Running machine whose node is selected and cordoned.
fn selected(second: i64) -> Observation {
    let mut node = updating_node(&[CANDIDATE, SELECTED], Some(UpdateStage::Selected));
    node.spec.get_or_insert_default().unschedulable = Some(true);
    let mut machine = running();
    machine.status.conditions = vec![condition("Ready", "True"), at_stage(UpdateStage::Selected, 100)];
    with_node(seen(machine, second), node)
}

fn marks(plan: &Plan) -> Vec<String> {
    plan.effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::SetNodeCondition { condition, .. } => condition.reason.clone(),
            _ => None,
        })
        .collect()
}

#[test]
fn mc_131_the_mark_of_a_candidate_is_one_write_of_the_nodes_status() {
    let seen = with_node(seen(running(), 200), updating_node(&[CANDIDATE], None));
    let plan = decide(&seen);
    assert_eq!(marks(&plan), ["CandidateForUpdate"]);
    assert_eq!(plan.effects.len(), 1);
}

#[test]
fn a_selected_node_is_cordoned_before_anything_is_evicted() {
    let mut open = selected(200);
    open.node = NodeView::Ours(updating_node(&[CANDIDATE, SELECTED], Some(UpdateStage::Selected)).into());
    let plan = decide(&open);
    assert_eq!(plan.rule, "in-place-cordon");
    assert!(matches!(&plan.effects[..], [Effect::Cordon]), "{plan:?}");
}

#[rstest]
#[case::gently(200, None, Force::No)]
#[case::mc_136_force_drain_in_lower_case(200, Some("true"), Force::No)]
#[case::mc_136_force_drain(200, Some("True"), Force::Yes)]
#[case::mc_135_after_the_drain_timeout(100 + 7201, None, Force::Yes)]
fn a_selected_node_is_drained(#[case] second: i64, #[case] force_drain: Option<&str>, #[case] force: Force) {
    let mut seen = selected(second);
    if let Some(value) = force_drain {
        seen.machine.to_mut().labels_mut().insert(label::FORCE_DRAIN.to_owned(), value.to_owned());
    }
    let Next::StepDrain(order) = decide(&seen).next else { panic!("no drain") };
    assert_eq!(order.force, force);
    if force == Force::No {
        assert_eq!(order.deadline, at(100 + 7200), "the clock starts when the node was selected");
    }
}

#[test]
fn mc_133_mc_144_after_the_drain_the_phase_is_stored_before_the_node_is_marked() {
    let mut seen = selected(200);
    seen.drain = DrainState::Drained;
    let plan = decide(&seen);
    assert!(matches!(&plan.effects[..], [Effect::WriteStatus { .. }, Effect::SetNodeCondition { .. }]), "{plan:?}");
    assert_eq!(marks(&plan), ["DrainSuccessful"]);
    let machine = after(&plan, &seen.machine);
    assert_eq!(*machine.phase(), MachinePhase::InPlaceUpdating);
    let last = machine.last_operation();
    assert_eq!((&last.operation, &last.state), (&OperationType::InPlaceUpdate, &OperationState::Processing));
    assert_eq!(last.description, "Machine m-abcde is undergoing an in-place update");
    assert_eq!(reported_reason(&machine), Some(machine_condition::REASON_WAITING_FOR_UPDATE));
    assert!(!plan.effects.iter().any(|effect| matches!(effect, Effect::Start(_))), "the VM is not touched");

    // The API server has refused the Node's condition: what is written already is not written again.
    let next = Observation { machine, ..seen };
    assert!(matches!(&decide(&next).effects[..], [Effect::SetNodeCondition { .. }]), "{:?}", decide(&next));
}

#[test]
fn mc_134_a_drain_that_fails_is_reported_and_the_phase_stays() {
    let mut seen = selected(200);
    seen.drain = DrainState::Failed("pod ns/a: budget b is misconfigured".into());
    let plan = decide(&seen);
    let status = after(&plan, &seen.machine).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::Running);
    assert_eq!(status.last_operation.operation, OperationType::DrainNode);
    assert_eq!(status.last_operation.state, OperationState::Processing);
    assert_eq!(
        status.last_operation.description,
        "Drain failed due to - pod ns/a: budget b is misconfigured. Will retry in next sync. Initiate node drain"
    );
    assert!(status.last_operation.description.ends_with(stage_text::DRAIN));
    assert!(matches!(plan.next, Next::LookAgain(wait, _) if wait.as_secs() == 5));
    assert!(
        plan.effects
            .iter()
            .any(|effect| matches!(effect, Effect::Warn { reason, .. } if *reason == machine_reason::DRAIN_BLOCKED))
    );
    assert!(marks(&plan).is_empty());
}

#[test]
fn mc_134_a_budget_that_blocks_is_reported_once() {
    let mut seen = selected(200);
    seen.drain = running_drain(Some("ns/pdb"));
    let plan = decide(&seen);
    let machine = after(&plan, &seen.machine);
    let last = machine.last_operation();
    assert_eq!((&last.operation, &last.state), (&OperationType::DrainNode, &OperationState::Processing));
    assert_eq!(
        last.description,
        "Drain is held up by PodDisruptionBudget ns/pdb, which refuses evictions. Initiate node drain"
    );
    assert_eq!(*machine.phase(), MachinePhase::Running);
    assert_eq!(reported_reason(&machine), Some(machine_reason::DRAIN_BLOCKED));
    assert!(machine.machine_conditions()[0].message.contains("ns/pdb"), "{:?}", machine.machine_conditions());
    seen.machine = machine;
    assert!(decide(&seen).effects.is_empty());
}

#[rstest]
#[case::the_same_budget_again("ns/pdb", Attempt::Again, false)]
#[case::another_budget("ns/other", Attempt::New, true)]
#[case::pods_have_gone("ns/pdb", Attempt::New, true)]
fn an_attempt_that_only_repeats_a_failure_is_no_news(
    #[case] refuses: &str,
    #[case] attempt: Attempt,
    #[case] written: bool,
) {
    let mut seen = selected(200);
    seen.drain = DrainState::Failed("pod disruption budget ns/pdb is misconfigured".into());
    seen.machine = after(&decide(&seen), &seen.machine);
    let waiting = Waiting::Budget { pod: "ns/a".to_owned(), budget: refuses.to_owned(), held: 1, since: at(205) };
    seen.drain = DrainState::Running {
        progress: "1 of 2 pods left".to_owned(),
        blocked_by: Some(refuses.to_owned()),
        waiting: Some(waiting),
        attempt,
        wake: std::time::Duration::from_secs(5),
    };
    assert_eq!(!decide(&seen).effects.is_empty(), written);
}

fn running_drain(blocked_by: Option<&str>) -> DrainState {
    DrainState::Running {
        progress: "1 of 2 pods left".to_owned(),
        blocked_by: blocked_by.map(str::to_owned),
        waiting: None,
        attempt: Attempt::New,
        wake: std::time::Duration::from_secs(5),
    }
}

#[test]
fn a_drain_that_makes_progress_is_reported_without_an_event() {
    let mut seen = selected(200);
    seen.drain = running_drain(None);
    let plan = decide(&seen);
    assert_eq!(reported_reason(&after(&plan, &seen.machine)), Some(machine_condition::REASON_DRAINING_FOR_UPDATE));
    assert_eq!(plan.effects.len(), 1, "{plan:?}");
}

#[test]
fn a_cordon_that_fails_is_a_failed_drain() {
    let mut seen = selected(200);
    seen.step_failures = StepFailure { step: NodeStep::Cordon, error: "forbidden".to_owned() }.into();
    assert_eq!(decide(&seen).rule, "in-place-drain-failed");
}

/// A machine in this phase since second 300, its node at this stage with these labels; stored conditions are up to date.
fn in_update(phase: MachinePhase, second: i64, labels: &[(&str, &str)], stage: UpdateStage) -> Observation {
    let mut machine = in_phase(phase, 300, OperationType::InPlaceUpdate, OperationState::Processing);
    let node = updating_node(labels, Some(stage));
    machine.status.conditions = NodeSnapshot::from(node.clone()).conditions().to_vec();
    with_node(seen(machine, second), node)
}

#[test]
fn mc_137_a_successful_update_is_marked_then_stored_and_a_healthy_machine_runs() {
    let before =
        in_update(MachinePhase::InPlaceUpdating, 400, &[CANDIDATE, SELECTED, SUCCESS], UpdateStage::ReadyForUpdate);
    assert_eq!(marks(&decide(&before)), ["UpdateSuccessful"]);
    let marked =
        in_update(MachinePhase::InPlaceUpdating, 400, &[CANDIDATE, SELECTED, SUCCESS], UpdateStage::Successful);
    let plan = decide(&marked);
    let machine = after(&plan, &marked.machine);
    assert_eq!(*machine.phase(), MachinePhase::InPlaceUpdateSuccessful);
    assert_eq!(machine.last_operation().description, "Machine m-abcde successfully updated dependencies");
    assert_eq!(machine.last_operation().state, OperationState::Successful);
    let again = Observation { machine, ..marked };
    assert_eq!(*after(&decide(&again), &again.machine).phase(), MachinePhase::Running);
}

#[test]
fn mc_138_a_failed_update_names_the_agents_reason() {
    let mut seen = in_update(MachinePhase::InPlaceUpdating, 400, &[CANDIDATE, SELECTED, FAILURE], UpdateStage::Failed);
    let NodeView::Ours(node) = &mut seen.node else { unreachable!() };
    node.to_mut().annotations_mut().insert(annotation::UPDATE_FAILED_REASON.to_owned(), "x".to_owned());
    let machine = after(&decide(&seen), &seen.machine);
    assert_eq!(*machine.phase(), MachinePhase::InPlaceUpdateFailed);
    assert_eq!(machine.last_operation().description, "Machine m-abcde failed to update dependencies: x");
    assert_eq!(reported_reason(&machine), Some(machine_reason::IN_PLACE_UPDATE_FAILED));
}

#[rstest]
#[case::mc_139_with_its_node(true)]
#[case::mc_285_whose_node_vanished_during_a_downtime(false)]
fn an_update_without_result_has_failed_after_its_time_limit(#[case] has_node: bool) {
    let phase_at = |second| {
        let mut seen =
            in_update(MachinePhase::InPlaceUpdating, second, &[CANDIDATE, SELECTED], UpdateStage::ReadyForUpdate);
        if !has_node {
            seen.node = NodeView::Absent;
        }
        after(&decide(&seen), &seen.machine).phase().clone()
    };
    assert_eq!(phase_at(300 + 1200), MachinePhase::InPlaceUpdating);
    assert_eq!(phase_at(300 + 1201), MachinePhase::InPlaceUpdateFailed);
}

/// A process that was suspended, or whose watch lags, has not seen the label with the result of the update.
#[test]
fn the_node_is_looked_at_once_more_before_an_update_has_failed() {
    let mut seen =
        in_update(MachinePhase::InPlaceUpdating, 300 + 1201, &[CANDIDATE, SELECTED], UpdateStage::ReadyForUpdate);
    seen.node_source = NodeSource::View;
    assert_eq!(decide(&seen).rule, "last-look-at-node");
}

fn failed_update(second: i64, change: impl FnOnce(&mut Machine)) -> Observation {
    let mut seen =
        in_update(MachinePhase::InPlaceUpdateFailed, second, &[CANDIDATE, SELECTED, FAILURE], UpdateStage::Failed);
    change(seen.machine.to_mut());
    seen.limits = crate::machine::settings::MachineSettings::default().limits_of(&seen.machine);
    seen.siblings = Some(Vec::new());
    seen.permit = Permit::Held;
    seen
}

#[rstest]
#[case::mc_140_after_the_health_timeout(failed_update(901, |_| {}), MachinePhase::Failed)]
#[case::not_before(failed_update(900, |_| {}), MachinePhase::InPlaceUpdateFailed)]
#[case::mc_141_unless_that_is_disabled(
    failed_update(9000, |machine| machine.spec.configuration.disable_health_timeout = Some(true)),
    MachinePhase::InPlaceUpdateFailed
)]
fn a_failed_update_makes_the_machine_fail(#[case] seen: Observation, #[case] phase: MachinePhase) {
    let machine = after(&decide(&seen), &seen.machine);
    assert_eq!(*machine.phase(), phase);
    // A Ready node does not bring the machine back: it was Ready all the time.
    let next = Observation { machine, ..seen };
    assert_eq!(*after(&decide(&next), &next.machine).phase(), phase);
}

#[rstest]
#[case::mc_143_when_the_update_begins(DrainState::Drained)]
#[case::mc_143_when_the_drain_fails(DrainState::Failed("x".into()))]
fn no_write_of_an_update_ends_a_preservation(#[case] drain: DrainState) {
    let mut seen = selected(200);
    seen.machine.to_mut().status.current_status.preserve_expiry_time = Some(Time(at(9999)));
    seen.drain = drain;
    let machine = after(&decide(&seen), &seen.machine);
    assert!(machine.preserve_expiry_time().is_some());
}

#[test]
fn a_failed_machine_is_not_drained_for_an_update_any_more() {
    let mut seen = selected(200);
    let failed = in_phase(MachinePhase::Failed, 150, OperationType::HealthCheck, OperationState::Failed);
    let conditions = seen.machine.conditions().to_vec();
    seen.machine = failed.into();
    seen.machine.to_mut().status.conditions = conditions;
    assert!(!matches!(decide(&seen).next, Next::StepDrain(_)));
}
