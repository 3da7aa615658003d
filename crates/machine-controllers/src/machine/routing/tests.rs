//! Changes, and the machines that they wake.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rstest::rstest;

use super::*;
use crate::machine::testing::*;
use machine_api::names::taint;
use machine_api::v1alpha1::Machine;

fn update(change: fn(&mut Machine)) -> bool {
    let old = running();
    let mut new = running();
    change(&mut new);
    let views = ControlViews::default();
    !after_machine(&Change { old: Some(old.into()), new: Some(new.into()) }, &views).is_empty()
}

#[rstest]
#[case::mc_011_status_alone(update(|new| new.status.last_known_state = "x".to_owned()), false)]
#[case::mc_012_the_specification(update(|new| new.metadata.generation = Some(2)), true)]
#[case::mc_013_a_deletion_by_force(update(|new| drop(new.labels_mut().insert(label::FORCE_DELETION.to_owned(), "true".to_owned()))), true)]
#[case::mc_015_preservation(update(|new| drop(new.annotations_mut().insert(annotation::PRESERVE.to_owned(), "now".to_owned()))), true)]
#[case::a_priority(update(|new| drop(new.annotations_mut().insert(annotation::MACHINE_PRIORITY.to_owned(), "1".to_owned()))), false)]
#[case::a_deletion(update(|new| new.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH))), true)]
#[case::our_finalizer_was_taken_off(update(|new| new.metadata.finalizers = None), true)]
fn an_update_of_a_machine_wakes_it(#[case] woken: bool, #[case] expected: bool) {
    assert_eq!(woken, expected);
}

#[test]
fn mc_014_a_phase_change_wakes_a_machine_with_preservation() {
    let with = |phase| {
        let mut machine = running();
        machine.annotations_mut().insert(annotation::PRESERVE.to_owned(), "now".to_owned());
        machine.status.current_status.phase = phase;
        Some(machine.into())
    };
    let change = Change { old: with(MachinePhase::Running), new: with(MachinePhase::Failed) };
    assert_eq!(after_machine(&change, &ControlViews::default()).len(), 1);
}

#[test]
fn mc_031_a_machine_that_a_relist_no_longer_shows_is_looked_at_like_one_whose_deletion_was_seen() {
    let change = Change { old: Some(running().into()), new: None };
    assert_eq!(after_machine(&change, &ControlViews::default()), BTreeSet::from([ObjectKey::new("ns", "m-abcde")]));
    assert_eq!(crate::class::after_machine(&change).len(), 1, "its class is looked at, too");
}

#[test]
fn mc_265_a_class_whose_virtual_capacity_changes_wakes_its_machines() {
    let views = ControlViews::default();
    views.machines.apply(running());
    let of_another_class = |machine: &mut Machine| machine.spec.class.name = "other".to_owned();
    let mut other = running();
    other.metadata.name = Some("m-other".to_owned());
    other.metadata.uid = Some("uid-2".to_owned());
    of_another_class(&mut other);
    views.machines.apply(other);
    let class = |capacity: &str| {
        let mut class = MachineClass::default();
        class.metadata.name = Some("c".to_owned());
        class.metadata.namespace = Some("ns".to_owned());
        let template = class.node_template.get_or_insert_default();
        let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(capacity.to_owned());
        template.virtual_capacity.insert("x.io/y".to_owned(), quantity);
        Some(Arc::new(class))
    };
    let woken = |old: &str, new: &str| after_class(&Change { old: class(old), new: class(new) }, &views).len();
    assert_eq!((woken("4", "5"), woken("4", "4")), (1, 0));
    // A machine that is being deleted is woken, too: its deletion may wait for a change of the class. Its Node is not
    // changed.
    views.machines.apply(deleted_at(running(), 1));
    assert_eq!(woken("4", "5"), 1);
}

#[test]
fn mc_016_a_machine_that_is_there_at_the_start_is_looked_at() {
    let change = Change { old: None, new: Some(deleted_at(running(), 1).into()) };
    assert_eq!(after_machine(&change, &ControlViews::default()).len(), 1);
}

#[test]
fn mc_114_a_sibling_that_becomes_running_wakes_those_that_wait_for_their_turn() {
    let views = ControlViews::default();
    let named = |mut machine: Machine, name: &str, phase: MachinePhase| {
        machine.metadata.name = Some(name.to_owned());
        machine.labels_mut().insert(label::NAME.to_owned(), "md".to_owned());
        machine.status.current_status.phase = phase;
        machine
    };
    views.machines.apply(named(running(), "waiting", MachinePhase::Unknown));
    let change = Change {
        old: Some(named(pending(), "other", MachinePhase::Pending).into()),
        new: Some(named(running(), "other", MachinePhase::Running).into()),
    };
    assert_eq!(after_machine(&change, &views), BTreeSet::from([ObjectKey::new("ns", "waiting")]));
}

#[test]
fn a_failed_machine_that_is_preserved_from_now_on_wakes_those_that_wait_for_their_turn() {
    let views = ControlViews::default();
    let of_group = |mut machine: Machine, name: &str, phase: MachinePhase| {
        machine.metadata.name = Some(name.to_owned());
        machine.labels_mut().insert(label::NAME.to_owned(), "md".to_owned());
        machine.status.current_status.phase = phase;
        machine
    };
    views.machines.apply(of_group(running(), "waiting", MachinePhase::Unknown));
    let preserved = |mut machine: Machine| {
        machine.status.current_status.preserve_expiry_time = Some(Time(at(1_000_000)));
        Some(MachineSnapshot::from(machine))
    };
    let woken = |phase: MachinePhase| {
        let machine = of_group(running(), "other", phase);
        let change = Change { old: Some(machine.clone().into()), new: preserved(machine) };
        after_machine(&change, &views)
    };
    assert_eq!(woken(MachinePhase::Failed), BTreeSet::from([ObjectKey::new("ns", "waiting")]));
    assert_eq!(woken(MachinePhase::Terminating), BTreeSet::new(), "it stands in the way even then");
    assert_eq!(woken(MachinePhase::Running), BTreeSet::new(), "it did not before");
}

#[test]
fn a_machine_that_gives_up_its_claim_on_a_node_wakes_the_others_that_have_it_on_their_label() {
    let views = ControlViews::default();
    let named = |name: &str, id: &str| {
        let mut machine = running();
        machine.metadata.name = Some(name.to_owned());
        machine.spec.provider_id = id.to_owned();
        machine
    };
    views.machines.apply(named("loser", "x"));
    let loser = || BTreeSet::from([ObjectKey::new("ns", "loser")]);
    let one = |machine: Machine| Some(MachineSnapshot::from(machine));
    let mut elsewhere = named("winner", "y");
    elsewhere.labels_mut().insert(label::NODE.to_owned(), "n2".to_owned());
    for (old, new) in [
        (one(named("winner", "y")), None),
        (one(named("winner", "")), one(named("winner", "y"))),
        (one(named("winner", "y")), one(elsewhere)),
        (one(named("winner", "y")), one(deleted_at(named("winner", "y"), 1))),
    ] {
        assert!(after_machine(&Change { old, new }, &views).is_superset(&loser()));
    }
    let same = Change { old: one(named("winner", "y")), new: one(named("winner", "y")) };
    assert_eq!(after_machine(&same, &views), BTreeSet::new());
}

fn node_update(machine: Machine, change: fn(&mut Node)) -> bool {
    let views = ControlViews::default();
    views.machines.apply(machine);
    let old = node(vec![condition("Ready", "True")]);
    let mut new = old.clone();
    change(&mut new);
    !after_node(&Change { old: Some(old.into()), new: Some(new.into()) }, &views).wake.is_empty()
}

fn with_reason(kind: &str, reason: &str) -> NodeCondition {
    NodeCondition { reason: Some(reason.to_owned()), ..condition(kind, "True") }
}

#[rstest]
#[case::mc_019_the_reason_of_a_condition("Ready", false)]
#[case::mc_019_the_reason_of_an_update_in_place("InPlaceUpdate", true)]
fn a_reason_that_changes_wakes_the_machine(#[case] kind: &str, #[case] expected: bool) {
    let views = ControlViews::default();
    views.machines.apply(running());
    let with = |reason: &str| Some(node(vec![with_reason(kind, reason)]).into());
    let change = Change { old: with("One"), new: with("Another") };
    assert_eq!(!after_node(&change, &views).wake.is_empty(), expected);
}

fn set_ready(node: &mut Node, status: &str) {
    node.status.get_or_insert_default().conditions = Some(vec![condition("Ready", status)]);
}

fn add_taint(node: &mut Node, key: &str) {
    *node = tainted(node.clone(), key);
}

#[rstest]
#[case::mc_018_a_heartbeat(node_update(running(), |new| {
    let status = new.status.get_or_insert_default();
    status.conditions.get_or_insert_default()[0].last_heartbeat_time = Some(Time(Timestamp::UNIX_EPOCH));
}), false)]
#[case::a_condition(node_update(running(), |new| set_ready(new, "False")), true)]
#[case::the_cloud_says_which_instance_it_is(node_update(running(), |new| {
    new.spec.get_or_insert_default().provider_id = Some("cloud://zone-b/n".to_owned());
}), true)]
#[case::mc_021_a_condition_of_a_terminating_machine(
    node_update(in_phase_terminating(), |new| set_ready(new, "False")), false
)]
#[case::mc_022_the_critical_components(
    node_update(pending(), |new| add_taint(new, taint::CRITICAL_COMPONENTS_NOT_READY)), true
)]
#[case::mc_023_another_taint(node_update(running(), |new| add_taint(new, "other")), false)]
#[case::mc_024_an_update_result(node_update(running(), |new| {
    new.labels_mut().insert(label::UPDATE_RESULT.to_owned(), "failed".to_owned());
}), true)]
#[case::mc_025_not_managed(node_update(running(), |new| {
    new.annotations_mut().insert(annotation::NOT_MANAGED.to_owned(), "1".to_owned());
    set_ready(new, "False");
}), false)]
#[case::mc_026_a_deletion(
    node_update(running(), |new| new.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH))), true
)]
#[case::our_finalizer_was_taken_off(node_update(running(), |new| new.metadata.finalizers = None), true)]
fn an_update_of_a_node_wakes_its_machine(#[case] woken: bool, #[case] expected: bool) {
    assert_eq!(woken, expected);
}

fn in_phase_terminating() -> Machine {
    let mut machine = running();
    machine.status.current_status.phase = MachinePhase::Terminating;
    machine
}

#[test]
fn mc_027_mc_029_a_node_that_is_added_or_removed_is_noted() {
    let views = ControlViews::default();
    views.machines.apply(running());
    let node = Some(NodeSnapshot::from(node(Vec::new())));
    let key = BTreeSet::from([ObjectKey::new("ns", "m-abcde")]);
    assert_eq!(after_node(&Change { old: None, new: node.clone() }, &views).appeared, key);
    assert_eq!(after_node(&Change { old: node, new: None }, &views).vanished, key);
}

#[test]
fn mc_030_a_node_without_a_linked_machine_wakes_no_machine() {
    let change = Change { old: None, new: Some(node(Vec::new()).into()) };
    assert_eq!(after_node(&change, &ControlViews::default()), NodeNews::default());
}

#[rstest]
#[case::mc_048_one_that_failed(MachinePhase::CrashLoopBackOff, 1)]
#[case::one_that_runs(MachinePhase::Running, 0)]
fn new_credentials_wake_machines_that_may_wait_for_them(#[case] phase: MachinePhase, #[case] woken: usize) {
    let views = ControlViews::default();
    let mut machine = running();
    machine.status.current_status.phase = phase;
    views.machines.apply(machine);
    let mut class = MachineClass::default();
    class.metadata.name = Some("c".to_owned());
    class.metadata.namespace = Some("ns".to_owned());
    class.credentials_secret_ref =
        Some(machine_api::v1alpha1::SecretReference { name: "s".to_owned(), namespace: String::new() });
    views.classes.apply(class);
    let mut secret = Secret::default();
    secret.metadata.name = Some("s".to_owned());
    secret.metadata.namespace = Some("ns".to_owned());
    assert_eq!(after_secret(&Change { old: None, new: Some(Arc::new(secret)) }, &views).len(), woken);
}
