//! Scenarios of spec/machine-controller §17.9 on the pure decision.

mod drain;
mod end;
mod flow;
mod link;
mod shared_instance;
mod vm;
mod waits;

use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use kube::ResourceExt;
use rstest::rstest;

use super::{DeletionStep, next_deletion_step};
use crate::{
    drain::order::Force,
    machine::{
        decide::decide,
        observation::{
            Answer, AttachmentView, Call, ClassState, DrainState, Flow, LastGood, NodeStep, NodeView, Observation,
            Pause, Purpose, StepFailure, StepFailures, TargetCluster, shared_instance::VmOwner,
        },
        plan::{Effect, Memo, Next, Plan, deletion_stage::DeletionStage},
        testing::*,
    },
};
use machine_api::{
    names::{finalizer, label, machine_reason, node_condition, stage_text},
    v1alpha1::{Machine, MachinePhase, OperationState, OperationType},
};
use machine_driver::{Code, CreatedVm, DeletedVm, Status, VmIdentity};

fn stage_after(seen: &Observation) -> Option<DeletionStage> {
    DeletionStage::of(&after(&decide(seen), &seen.machine))
}

fn no_label(mut machine: Machine) -> Machine {
    machine.labels_mut().clear();
    machine
}

#[test]
fn mc_159_a_deleted_machine_becomes_terminating_at_the_drain_in_one_write() {
    let seen = with_node(seen(deleted_at(running(), 100), 100), node(vec![condition("Ready", "True")]));
    let plan = decide(&seen);
    assert_eq!(machine_writes(&plan), ["status"]);
    let status = after(&plan, &seen.machine).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::Terminating);
    assert_eq!(status.last_operation.description, stage_text::DRAIN);
    assert_eq!(status.last_operation.operation, OperationType::Delete);
    assert_eq!(status.last_operation.state, OperationState::Processing);
    assert!(!plan.effects.contains(&Effect::DeleteToken), "it has joined");
}

#[test]
fn mc_102_a_machine_that_never_joined_loses_its_token() {
    let plan = decide(&seen(deleted_at(pending(), 100), 100));
    assert!(plan.effects.contains(&Effect::DeleteToken));
}

#[test]
fn mc_035_without_our_finalizer_nothing_is_done() {
    let mut machine = resting(DeletionStage::DeleteVm);
    machine.metadata.finalizers = Some(vec!["other".to_owned()]);
    assert_eq!(decide(&seen(machine, 200)), Plan::wait("deletion-not-ours", Next::Settled));
}

#[test]
fn mc_017_mc_086_a_deletion_begins_only_after_the_create_call_returned() {
    let mut seen = seen(deleted_at(machine(), 1), 1);
    seen.flow = Flow { in_flight: Some(Call::Create), ..Flow::default() };
    assert_eq!(next_deletion_step(&seen), DeletionStep::AwaitCall(Call::Create));
}

#[test]
fn mc_037_a_freeze_does_not_stop_a_deletion() {
    let mut seen = seen(resting(DeletionStage::DeleteVm), 200);
    seen.freeze = crate::machine::observation::Freeze::Frozen;
    assert_eq!(starts(&decide(&seen)), Some(Call::Delete));
}

#[rstest]
#[case::mc_185_overwritten_by_hand("gone fishing")]
#[case::mc_186_written_by_the_set_controller("Machine deletion is triggered")]
fn a_terminating_machine_without_a_stage_starts_again(#[case] text: &str) {
    let mut machine = resting(DeletionStage::DeleteVm);
    machine.status.last_operation.description = text.to_owned();
    let mut seen = with_node(seen(no_label(machine.clone()), 200), node(vec![]));
    seen.node = NodeView::NotLinked { candidate: None, namesake: None };
    assert_eq!(stage_after(&seen), Some(DeletionStage::GetVmStatus));
    // When the machine's Node is known, the driver is not asked for it.
    let seen = with_node(crate::machine::testing::seen(machine, 200), node(vec![]));
    assert_eq!(stage_after(&seen), Some(DeletionStage::Drain));
}

fn new_vm(node: &str) -> VmIdentity {
    VmIdentity { provider_id: "cloud:///1".to_owned(), node_name: node.to_owned(), ..VmIdentity::default() }
}
