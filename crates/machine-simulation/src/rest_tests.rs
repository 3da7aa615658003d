use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, NodeSpec, Taint},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use rstest::rstest;

use super::*;
use crate::{
    cloud::Vm,
    history::{Margin, Setup, Strategy},
    world::Start,
};
use machine_api::{
    names::{machine_condition, node_condition, taint},
    v1alpha1::{
        ConditionStatus, MachineDeploymentConditionType, MachineSetCondition, MachineSetConditionType, OperationState,
    },
};

/// The differences in a world at rest after this change.
fn after(change: impl FnOnce(&mut Api, &mut Cloud)) -> Vec<String> {
    let strategy = Strategy::Rolling { surge: Margin::Machines(1), unavailable: Margin::Machines(0) };
    let (Start { mut api, mut cloud, .. }, checks) = Start::of(Setup { replicas: 2, strategy });
    assert_eq!(checks.violation, None);
    assert_eq!(differences(&api, &cloud), Vec::<String>::new());
    change(&mut api, &mut cloud);
    differences(&api, &cloud)
}

fn first<K>(table: &std::collections::BTreeMap<String, std::sync::Arc<K>>) -> String {
    table.keys().next().unwrap().clone()
}

fn annotate(annotations: &mut Option<std::collections::BTreeMap<String, String>>, key: &str) {
    annotations.get_or_insert_default().insert(key.to_owned(), "true".to_owned());
}

#[rstest]
#[case::a_taint_of_a_rollout(|node: &mut Node| tainted(node, taint::PREFER_NO_SCHEDULE), "has taints left")]
#[case::a_taint_of_a_preservation(|node: &mut Node| tainted(node, taint::PRESERVED), "has taints left")]
#[case::a_cordon(|node: &mut Node| node.spec.as_mut().unwrap().unschedulable = Some(true), "is cordoned for ever")]
#[case::a_word_to_the_autoscaler(
    |node: &mut Node| annotate(&mut node.metadata.annotations, annotation::SCALE_DOWN_DISABLED), "has annotations left")]
#[case::a_sign_of_that(
    |node: &mut Node| annotate(&mut node.metadata.annotations, annotation::SCALE_DOWN_DISABLED_BY_MCM), "has annotations left")]
#[case::the_reason_of_a_failure(
    |node: &mut Node| annotate(&mut node.metadata.annotations, annotation::UPDATE_FAILED_REASON), "says why its update failed")]
#[case::a_mark_of_an_update(
    |node: &mut Node| annotate(&mut node.metadata.labels, label::CANDIDATE_FOR_UPDATE), "was updated")]
#[case::an_update(
    |node: &mut Node| set_condition(node, node_condition::IN_PLACE_UPDATE, node_condition::REASON_READY_FOR_UPDATE), "in an update for ever")]
#[case::a_preservation(|node: &mut Node| set_condition(node, node_condition::PRESERVED, ""), "of its preservation")]
#[case::an_end(|node: &mut Node| set_condition(node, node_condition::TERMINATING, ""), "says that it ends")]
fn remains_on_a_node_are_found(#[case] change: fn(&mut Node), #[case] expected: &str) {
    let found = after(|api, _| drop(api.edit(&first(&api.nodes), change)));
    assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
}

fn tainted(node: &mut Node, key: &str) {
    let taint = Taint { key: key.to_owned(), effect: "PreferNoSchedule".to_owned(), ..Taint::default() };
    node.spec.get_or_insert_with(NodeSpec::default).taints = Some(vec![taint]);
}

fn set_condition(node: &mut Node, kind: &str, reason: &str) {
    let condition = NodeCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        ..NodeCondition::default()
    };
    node.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
}

#[rstest]
#[case::it_waits(|machine: &mut Machine| says(machine, machine_condition::PROGRESSING, "True"), "says Condition")]
#[case::its_node_is_in_doubt(|machine: &mut Machine| says(machine, machine_condition::NODE_IDENTIFIED, "Unknown"), "says Condition")]
#[case::it_says_nothing(|machine: &mut Machine| machine.status.machine_conditions.clear(), "does not say that it is settled")]
#[case::something_failed(|machine: &mut Machine| machine.status.last_operation.state = OperationState::Failed, "last did")]
#[case::with_a_code(|machine: &mut Machine| machine.status.last_operation.error_code = "Internal".to_owned(), "has the code")]
#[case::it_has_another_vm(|machine: &mut Machine| machine.spec.provider_id = "sim:///x".to_owned(), "names VM \"sim:///x\"")]
#[case::it_has_no_node(
    |machine: &mut Machine| drop(machine.metadata.labels.get_or_insert_default().remove(label::NODE)), "is linked to None")]
#[case::it_was_kept(
    |machine: &mut Machine| {
        machine.metadata.annotations.get_or_insert_default()
            .insert(annotation::PRESERVE.to_owned(), preserve_value::AUTO_PRESERVED.to_owned());
    }, "is kept because it had failed")]
fn wrong_values_of_a_machine_are_found(#[case] change: fn(&mut Machine), #[case] expected: &str) {
    let found = after(|api, _| drop(api.edit(&first(&api.machines), change)));
    assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
}

fn says(machine: &mut Machine, kind: &str, status: &str) {
    let condition = Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: "Because".to_owned(),
        message: String::new(),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: None,
    };
    machine.status.machine_conditions.push(condition);
}

#[rstest]
#[case::a_condition(|set: &mut MachineSet| set.status.conditions.push(failure()), "says [MachineSetCondition")]
#[case::fewer_available_ones(|set: &mut MachineSet| set.status.available_replicas = 1, "tells [2, 2, 1, 2]")]
#[case::fewer_labeled_ones(|set: &mut MachineSet| set.status.fully_labeled_replicas = 1, "tells [2, 2, 2, 1]")]
#[case::a_kept_one(|set: &mut MachineSet| set.status.preserved_failed_replicas = 1, "tells of failures")]
#[case::it_must_not_grow(|set: &mut MachineSet| annotate(&mut set.metadata.labels, label::SCALE_UP_DISABLED), "must not grow")]
#[case::it_is_frozen(|set: &mut MachineSet| annotate(&mut set.metadata.labels, label::FREEZE), "is frozen")]
#[case::its_nodes_are_tainted(
    |set: &mut MachineSet| annotate(&mut set.metadata.annotations, annotation::PREFER_NO_SCHEDULE), "has tainted Nodes")]
fn wrong_values_of_a_set_are_found(#[case] change: fn(&mut MachineSet), #[case] expected: &str) {
    let found = after(|api, _| drop(api.edit(&first(&api.sets), change)));
    assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
}

fn failure() -> MachineSetCondition {
    MachineSetCondition {
        condition_type: MachineSetConditionType::ReplicaFailure,
        status: ConditionStatus::True,
        last_transition_time: None,
        reason: "FailedCreate".to_owned(),
        message: String::new(),
    }
}

#[rstest]
#[case::one_is_missing(|deployment: &mut MachineDeployment| deployment.status.available_replicas = 1, "tells [2, 2, 2, 1]")]
#[case::one_has_failed(|deployment: &mut MachineDeployment| deployment.status.unavailable_replicas = 1, "tells of failures")]
#[case::it_does_not_progress(
    |deployment: &mut MachineDeployment| status(deployment, &MachineDeploymentConditionType::Progressing), "says Some")]
#[case::it_is_not_available(
    |deployment: &mut MachineDeployment| status(deployment, &MachineDeploymentConditionType::Available), "says Some")]
#[case::something_else_is_wrong(
    |deployment: &mut MachineDeployment| {
        let mut condition = deployment.status.conditions[0].clone();
        condition.condition_type = MachineDeploymentConditionType::ReplicaFailure;
        deployment.status.conditions.push(condition);
    }, "says [MachineDeploymentCondition")]
#[case::it_is_to_thaw(
    |deployment: &mut MachineDeployment| annotate(&mut deployment.metadata.annotations, annotation::UNFREEZE), "asked to thaw")]
fn wrong_values_of_a_deployment_are_found(#[case] change: fn(&mut MachineDeployment), #[case] expected: &str) {
    let found = after(|api, _| drop(api.edit(&first(&api.deployments), change)));
    assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
}

fn status(deployment: &mut MachineDeployment, kind: &MachineDeploymentConditionType) {
    let mut conditions = deployment.status.conditions.iter_mut();
    conditions.find(|condition| condition.condition_type == *kind).unwrap().status = ConditionStatus::False;
}

#[rstest]
#[case::of_the_same_machine(|vm: &mut Vm| vm.provider_id = "sim:///further".to_owned(), "several VMs for ever")]
#[case::of_no_machine(|vm: &mut Vm| vm.owner = "gone".to_owned(), "has no machine")]
fn a_vm_too_many_is_found(#[case] change: fn(&mut Vm), #[case] expected: &str) {
    let found = after(|_, cloud| {
        let mut vm = cloud.vms.values().next().unwrap().clone();
        change(&mut vm);
        cloud.vms.insert("sim:///further".to_owned(), vm);
    });
    assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
}
