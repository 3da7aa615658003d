//! Scenarios of spec/deployment-and-set §22.11, on fleets of a few machines. The selection of Nodes is tested in
//! [`super::selection_tests`].

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use rstest::rstest;
use serde_json::json;

use super::{
    testing::{Is::*, *},
    *,
};
use crate::{
    deployment::{
        decide::decide,
        node_change::{Cordon, Guard, TaintChange},
        patches,
        plan::Step,
        settling::Unsettled,
        testing::*,
    },
    set::testing::{at, meta},
    views::{ControlViews, node_store},
};
use controller_runtime::{
    key::ObjectKey,
    objects::Patch,
    snapshot::{Snapshot, Whole},
};
use machine_api::{
    names::{annotation, node_condition, taint},
    v1alpha1::{
        Machine,
        OrchestrationType::{self, Auto, Manual},
    },
};

#[rstest]
#[case::s_inpl_01_nothing_to_repair(of(2, &[Candidate, Candidate]), of(3, &[Plain, Plain, Plain]), &[2, 3])]
#[case::s_inpl_02_a_machine_that_moved_is_counted(of(1, &[Candidate]), of(2, &[Plain, Plain, HandedOver]), &[1, 3])]
#[case::s_inpl_03_an_old_set_wants_what_it_has(of(2, &[Candidate]), of(3, &[Plain, Plain, Plain]), &[1, 3])]
#[case::also_in_a_set_that_is_old_by_now(of(0, &[HandedOver]), of(2, &[Plain, Plain]), &[1, 2])]
#[case::a_machine_too_many_that_did_not_move_is_not_counted(of(1, &[Candidate]), of(2, &[Plain, Plain, Plain]), &[1, 2])]
fn a_pass_that_broke_off_is_repaired(
    #[case] old: (i32, &'static [Is]),
    #[case] new: (i32, &'static [Is]),
    #[case] expected: &[i32],
) {
    let seen = fleet(Auto, old, new);
    assert_eq!(repaired(&Fleet::of(&seen)), expected);
}

#[test]
fn a_machine_that_moved_is_counted_also_when_its_node_is_created_again() {
    let mut seen = fleet(Auto, of(1, &[Candidate]), of(2, &[Plain, Plain, HandedOver]));
    seen.nodes.as_mut().unwrap().remove("node-md-new-2");
    seen.sets[1].machines[2].to_mut().status.conditions.clear();
    assert_eq!(repaired(&Fleet::of(&seen)), [1, 3]);
}

#[test]
fn s_inpl_02_the_node_is_released_before_the_machine_loses_its_label() {
    let mut seen = fleet(Auto, of(0, &[]), of(3, &[Plain, Plain, HandedOver]));
    assert_eq!(rules(&seen), ["in-place/release node-md-new-2", "in-place/finished md-new-2"]);
    // Before the controller of the set has observed the new size, it could delete the machine as surplus.
    seen.sets[1].set.to_mut().metadata.generation = Some(2);
    assert_eq!(rules(&seen), ["in-place/release node-md-new-2"]);
}

fn operations(effect: &Effect) -> Option<Vec<serde_json::Value>> {
    match patches::of_machine(effect)? {
        (_, Patch::Json(operations)) => Some(operations),
        other => panic!("{other:?}"),
    }
}

#[test]
fn s_inpl_02_a_released_node_takes_pods_again_when_its_critical_components_are_there() {
    let mut seen = fleet(Auto, of(0, &[]), of(3, &[Plain, Plain, HandedOver]));
    let ours = json!({ "key": taint::PREFER_NO_SCHEDULE, "value": "True", "effect": "PreferNoSchedule" });
    let theirs = json!({ "key": "dedicated", "value": "db", "effect": "NoSchedule" });
    let node = seen.nodes.as_mut().unwrap().get_mut("node-md-new-2").unwrap().to_mut();
    node.metadata.annotations = Some([(annotation::UPDATE_FAILED_REASON.to_owned(), "x".to_owned())].into());
    node.spec.as_mut().unwrap().taints = Some(serde_json::from_value(json!([ours, theirs])).unwrap());
    let plan = decide(&seen);
    let Effect::ChangeNode { node, change, .. } = &plan.steps[0].effect else { panic!("{plan:?}") };
    assert_eq!(change.guard, Guard::Observed);
    let released = changed(change, node.whole_object());
    assert!(released.metadata.labels.unwrap_or_default().is_empty());
    assert!(released.metadata.annotations.unwrap_or_default().is_empty());
    let spec = released.spec.unwrap();
    assert_eq!(spec.unschedulable, None);
    let taints: Vec<String> = spec.taints.unwrap().into_iter().map(|taint| taint.key).collect();
    assert_eq!(taints, ["dedicated", taint::CRITICAL_COMPONENTS_NOT_READY]);
}

#[test]
fn d_23_the_taint_of_critical_components_is_added_once() {
    let mut seen = fleet(Auto, of(0, &[]), of(3, &[Plain, Plain, HandedOver]));
    let there = json!([{ "key": taint::CRITICAL_COMPONENTS_NOT_READY, "effect": "NoSchedule" }]);
    seen.nodes.as_mut().unwrap().get_mut("node-md-new-2").unwrap().to_mut().spec.as_mut().unwrap().taints =
        Some(serde_json::from_value(there).unwrap());
    let plan = decide(&seen);
    let Effect::ChangeNode { change, .. } = &plan.steps[0].effect else { panic!("{plan:?}") };
    let TaintChange::Replace(taints) = &change.taints else { panic!("{change:?}") };
    assert_eq!(taints.len(), 1);
}

#[rstest]
#[case::s_inpl_25_a_machine_without_node_is_passed_over(
    of(2, &[Candidate, Candidate]), of(1, &[Starting]), &[])]
#[case::s_inpl_25_the_others_go_on(
    of(2, &[Updated, Candidate]), of(1, &[Starting]),
    &["in-place/hand-over md-old-0", "in-place/hand-over md-old 1", "in-place/hand-over md-new 2"])]
#[case::s_inpl_25_also_one_whose_node_is_gone(of(2, &[Candidate, Candidate]), of(1, &[WithoutNode]), &["in-place/select node-md-old-0"])]
fn d_23_a_surge_machine_that_is_still_starting_holds_nothing_up(
    #[case] old: (i32, &'static [Is]),
    #[case] new: (i32, &'static [Is]),
    #[case] expected: &[&str],
) {
    assert_eq!(rules(&fleet(Auto, old, new)), expected);
}

#[rstest]
#[case::s_inpl_04_it_is_complete(of(2, &[Candidate, Candidate]), of(3, &[Plain, Plain, Plain]), &[2, 3])]
#[case::s_inpl_05_it_is_too_large(of(2, &[Candidate, Candidate]), of(4, &[Plain, Plain, Plain, Plain]), &[2, 3])]
#[case::s_inpl_07_no_old_set_is_left(of(0, &[]), of(1, &[Plain]), &[0, 3])]
#[case::s_inpl_08_the_old_set_leaves_room(of(1, &[Candidate]), of(1, &[Plain]), &[1, 2])]
#[case::s_inpl_21_a_new_set_waits_for_nodes_to_be_picked(of(3, &[Candidate, Candidate, Candidate]), of(0, &[]), &[3, 0])]
#[case::what_the_old_set_has_yet_to_delete_takes_room(of(1, &[Candidate, Candidate]), of(1, &[Plain]), &[1, 1])]
fn the_new_set_takes_the_replicas_that_the_old_set_leaves(
    #[case] old: (i32, &'static [Is]),
    #[case] new: (i32, &'static [Is]),
    #[case] expected: &[i32],
) {
    let seen = fleet(Manual, old, new);
    let fleet = Fleet::of(&seen);
    assert_eq!(grown(&fleet, fleet.new.as_ref().unwrap()), expected);
}

#[test]
fn surge_is_used_also_by_a_set_that_was_there_before() {
    let seen = fleet_of(1, (1, 0), Auto, of(1, &[Candidate]), of(0, &[]));
    assert_eq!(rules(&seen), ["in-place/new md-new 1"]);
}

const MOVES: &[&str] = &["in-place/hand-over md-old-0", "in-place/hand-over md-old 1", "in-place/hand-over md-new 2"];

#[rstest]
#[case::s_inpl_06_an_updated_machine_moves(Auto, &[Updated, Candidate], MOVES)]
#[case::s_inpl_21_also_when_the_user_picks(Manual, &[Updated, Candidate], MOVES)]
#[case::s_inpl_21_who_alone_picks(Manual, &[Candidate, Candidate], &[])]
#[case::s_inpl_22_not_while_its_phase_is_behind(Auto, &[UpdatedEarly, Candidate], &[])]
#[case::s_inpl_23_not_when_its_node_says_failed(Auto, &[Contradicting, Candidate], &[])]
#[case::not_while_the_set_deletes_a_machine(
    Auto, &[Updated, Candidate, Candidate], &["in-place/select node-md-old-1"])]
fn updated_machines_move(#[case] picks: OrchestrationType, #[case] old: &[Is], #[case] expected: &[&str]) {
    assert_eq!(rules(&fleet(picks, (2, old), of(1, &[Plain]))), expected);
}

#[test]
fn s_inpl_06_owner_and_labels_change_in_one_write() {
    let seen = fleet(Auto, of(2, &[Updated, Candidate]), of(1, &[Plain]));
    let plan = decide(&seen);
    let patch = plan.steps.iter().find_map(|step| match &step.effect {
        effect @ Effect::HandOver { .. } => operations(effect),
        _ => None,
    });
    let patch: json_patch::Patch = serde_json::from_value(patch.unwrap().into()).unwrap();
    let mut moved = serde_json::to_value(&seen.sets[0].machines[0]).unwrap();
    json_patch::patch(&mut moved, &patch).unwrap();
    let moved: Machine = serde_json::from_value(moved).unwrap();
    let owners = moved.metadata.owner_references.unwrap();
    assert_eq!((owners.len(), owners[0].name.as_str(), owners[0].uid.as_str()), (1, "md-new", "uid-md-new"));
    let labels = moved.metadata.labels.unwrap();
    assert_eq!(labels[label::MACHINE_TEMPLATE_HASH], "hash-md-new");
    assert_eq!(labels[label::UPDATE_RESULT], "successful");
    assert_eq!(labels[label::NODE], "node-md-old-0");
    // If another owner has adopted the machine meanwhile, that owner keeps it.
    let mut foreign = serde_json::to_value(&seen.sets[0].machines[0]).unwrap();
    foreign["metadata"]["ownerReferences"][0]["uid"] = "uid-other".into();
    assert!(json_patch::patch(&mut foreign, &patch).is_err());
}

#[test]
fn a_label_that_only_the_old_selector_asks_for_comes_off() {
    let mut seen = fleet(Auto, of(2, &[Updated, Candidate]), of(1, &[Plain]));
    let selector = seen.sets[0].set.to_mut().spec.selector.as_mut().unwrap();
    selector.match_labels.as_mut().unwrap().insert("example.com/gone".to_owned(), "x".to_owned());
    seen.sets[0].machines[0]
        .to_mut()
        .metadata
        .labels
        .get_or_insert_default()
        .insert("example.com/gone".to_owned(), "x".to_owned());
    let plan = decide(&seen);
    let removed = json!({"op": "remove", "path": "/metadata/labels/example.com~1gone"});
    assert!(plan.steps.iter().any(|step| matches!(
        &step.effect, Effect::HandOver { .. } if operations(&step.effect).unwrap().contains(&removed))));
}

#[test]
fn a_machine_handed_over_to_a_set_that_is_old_by_now_is_updated_once_more() {
    // The marks on its Node come from the update before; without the label on the machine it would move on at once.
    let seen = fleet(Auto, of(2, &[HandedOver, Candidate]), of(1, &[Plain]));
    assert_eq!(
        rules(&seen),
        ["in-place/release node-md-old-0", "in-place/finished md-old-0", "in-place/select node-md-old-1"]
    );
}

#[test]
fn s_inpl_20_nodes_of_old_sets_become_candidates() {
    let seen = fleet(Manual, of(3, &[Plain, Candidate, WithoutNode]), of(0, &[]));
    assert_eq!(rules(&seen), ["in-place/candidate node-md-old-0"]);
}

#[test]
fn d_47_a_foreign_machine_with_the_same_labels_is_not_changed() {
    use crate::set::testing::{controller_reference, now};
    let seen = fleet(Manual, of(1, &[Plain]), of(0, &[]));
    let (views, nodes) = (ControlViews::default(), node_store());
    views.deployments.apply_shared(Arc::clone(seen.deployment.whole_object()));
    for set in &seen.sets {
        views.sets.apply_shared(Arc::clone(set.set.whole_object()));
    }
    let own = seen.sets[0].machines[0].to_object();
    let mut foreign = own.clone();
    foreign.metadata.name = Some("foreign".to_owned());
    foreign.metadata.owner_references = Some(vec![controller_reference("MachineSet", "other", "uid-other")]);
    foreign.metadata.labels.get_or_insert_default().insert(label::NODE.to_owned(), "node-foreign".to_owned());
    views.machines.apply(own);
    views.machines.apply(foreign);
    for name in ["node-md-old-0", "node-foreign"] {
        let mut node = Node { metadata: meta(name), ..Node::default() };
        node.metadata.namespace = None;
        nodes.apply(node);
    }
    let key = ObjectKey::new("ns", "md");
    let seen = DeploymentObservation::look_up(&views, Some(&nodes), &key, now()).unwrap();
    assert_eq!(rules(&seen), ["in-place/candidate node-md-old-0", "in-place/new md-new 2"]);
}

#[test]
fn d_49_an_old_set_without_a_healthy_machine_is_blocked_as_well() {
    let mut seen = fleet(Manual, of(1, &[Unhealthy]), of(0, &[]));
    seen.sets[0].set.to_mut().metadata.labels.as_mut().unwrap().remove(label::SCALE_UP_DISABLED);
    assert_eq!(rules(&seen)[0], "in-place/block");
    // The annotation is part of the patch that marks the Node.
    assert!(serde_json::to_string(&decide(&seen)).unwrap().contains("scale-down-disabled"));
}

#[test]
fn d_14_marks_come_off_when_the_template_is_changed_back() {
    // The set of these machines is the new one again. One machine was selected, another is in the middle of its update.
    let seen = fleet_of(3, (0, 1), Auto, of(0, &[]), of(3, &[Candidate, Selected, Updating]));
    assert_eq!(rules(&seen), ["in-place/withdraw node-md-new-0", "in-place/withdraw node-md-new-1"]);
    let plan = decide(&seen);
    let uncordons = |name: &str| {
        plan.steps.iter().any(|step| match &step.effect {
            Effect::ChangeNode { node, change, .. } => node.name() == name && change.cordon == Cordon::Lift,
            _ => false,
        })
    };
    assert!(!uncordons("node-md-new-0") && uncordons("node-md-new-1"));
}

#[test]
fn d_14_a_result_that_comes_after_the_marks_were_withdrawn_is_not_taken_for_that_of_the_next_update() {
    // Seed 1503: the update failed, the template was changed back, and a user repaired the node afterwards.
    let mut seen = fleet(Auto, of(0, &[]), of(3, &[Plain, Plain, Plain]));
    let node = seen.nodes.as_mut().unwrap().get_mut("node-md-new-1").unwrap().to_mut();
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert(label::UPDATE_RESULT.to_owned(), "successful".to_owned());
    assert_eq!(rules(&seen), ["in-place/release node-md-new-1"]);
    // While the Node still counts as failed, the machine controller must process the result first.
    for (reason, expected) in [
        (node_condition::REASON_UPDATE_FAILED, Vec::new()),
        (node_condition::REASON_UPDATE_SUCCESSFUL, vec!["in-place/release node-md-new-1"]),
    ] {
        let node = seen.nodes.as_mut().unwrap().get_mut("node-md-new-1").unwrap().to_mut();
        node.status.get_or_insert_default().conditions = Some(vec![condition(reason)]);
        assert_eq!(rules(&seen), expected, "{reason}");
    }
}

#[test]
fn d_14_old_sets_may_grow_again_under_another_strategy() {
    let mut seen = fleet(Auto, of(3, &[Candidate, Candidate, Candidate]), of(0, &[]));
    seen.deployment.to_mut().spec.strategy = rolling(0, 1);
    assert_eq!(rules(&seen), ["in-place/unblock"]);
}

#[rstest]
#[case::it_is_about_to_see_it(0, 0)]
#[case::nobody_answers_for_it(-10, 1)]
fn an_old_set_is_waited_for_until_it_has_seen_its_size(#[case] since: i64, #[case] expected: i32) {
    let mut seen = fleet_of(3, (1, 0), Auto, of(3, &[Candidate, Candidate, Candidate]), of(0, &[]));
    seen.sets[0].set.to_mut().metadata.generation = Some(2);
    seen.unsettled.insert("uid-md-old".to_owned(), Unsettled { since: at(since), deleting: 0, making_for: 0 });
    let fleet = Fleet::of(&seen);
    assert_eq!(grown(&fleet, fleet.new.as_ref().unwrap()), [3, expected]);
}

#[test]
fn a_surplus_machine_that_is_preserved_costs_the_healthy_machine_before_it() {
    let mut seen = fleet_of(2, (1, 1), Auto, of(2, &[Candidate, Unhealthy]), of(2, &[Plain, Starting]));
    assert_eq!(rules(&seen), ["in-place/superfluous md-old 0"]);
    // Now the set would delete the healthy machine first, and one machine is available.
    let status = &mut seen.sets[0].machines[1].to_mut().status.current_status;
    status.preserve_expiry_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(600)));
    seen.deployment.to_mut().spec.strategy = in_place(1, 0, Auto);
    assert_eq!(rules(&seen), Vec::<String>::new());
}

#[test]
fn a_machine_that_a_user_has_picked_is_not_deleted_while_it_still_runs_and_is_needed() {
    // Seed 501214.
    let seen = fleet_of(1, (1, 0), Auto, of(1, &[Selected]), of(1, &[Starting]));
    assert_eq!(rules(&seen), Vec::<String>::new());
}

#[test]
fn marks_of_an_update_that_was_given_up_come_off_although_its_set_is_the_only_one_and_never_was_tainted() {
    // Seed 61918: candidates were marked but not tainted; then the class was changed back, together with the strategy.
    let marked = fleet(Auto, of(0, &[]), of(2, &[Candidate, Plain]));
    let (views, nodes) = (ControlViews::default(), node_store());
    let mut rolls = (**marked.deployment.whole_object()).clone();
    rolls.spec.strategy = rolling(1, 0);
    rolls.spec.paused = true;
    views.deployments.apply(rolls);
    views.sets.apply_shared(Arc::clone(marked.sets[1].set.whole_object()));
    for machine in &marked.sets[1].machines {
        views.machines.apply(machine.to_object());
    }
    for node in marked.nodes.unwrap().into_values() {
        let mut node = Node::clone(node.whole_object());
        node.metadata.namespace = None;
        nodes.apply(node);
    }
    let seen = DeploymentObservation::look_up(&views, Some(&nodes), &ObjectKey::new("ns", "md"), at(0)).unwrap();
    assert_eq!(seen.nodes.as_ref().unwrap().keys().collect::<Vec<_>>(), ["node-md-new-0"]);
    assert_eq!(rules(&seen), ["in-place/withdraw node-md-new-0"]);
}

#[test]
fn s_scale_13_a_deployment_that_grows_in_the_middle_of_an_update_goes_on() {
    let mut seen = fleet(Auto, of(2, &[Candidate, Candidate]), of(1, &[Plain]));
    seen.deployment.to_mut().spec.replicas = 5;
    assert_eq!(rules(&seen), ["in-place/new md-new 3", "in-place/remember md-old 2"]);
}

#[test]
fn d_16_a_deployment_that_shrinks_in_the_middle_of_an_update_takes_from_the_old_set() {
    let mut seen = fleet(Auto, of(2, &[Candidate, Candidate]), of(1, &[Plain]));
    seen.deployment.to_mut().spec.replicas = 2;
    assert_eq!(rules(&seen), ["in-place/superfluous md-old 1", "in-place/remember md-new 1"]);
}

/// The scaler has named these machines and has shrunk the deployment from four to `replicas`; its time has not reached
/// the set.
fn scaled_in(replicas: i32, old: (i32, &[Is]), new: (i32, &[Is]), named: &[&str]) -> DeploymentObservation {
    let mut seen = fleet_of(4, (0, 1), Auto, old, new);
    let deployment = seen.deployment.to_mut();
    deployment.spec.replicas = replicas;
    let told = deployment.metadata.annotations.get_or_insert_default();
    told.insert(annotation::LAST_REPLICA_CHANGE_BY_SCALER.to_owned(), "2026-11-21T08:01:00Z".to_owned());
    for machine in seen.sets.iter_mut().flat_map(|set| &mut set.machines) {
        if named.contains(&machine.name()) {
            let told = machine.to_mut().metadata.annotations.get_or_insert_default();
            told.insert(annotation::MACHINE_PRIORITY.to_owned(), "1".to_owned());
            told.insert(annotation::MARKED_FOR_DELETION_TIME.to_owned(), "2026-11-21T08:00:00Z".to_owned());
        }
    }
    seen
}

#[rstest]
#[case::new_ones(3, &["md-new-1"], &["in-place/named md-new 1", "in-place/remember md-old 2"])]
#[case::old_ones(3, &["md-old-0"], &["in-place/named md-old 1", "in-place/remember md-new 2"])]
#[case::some_of_both(2, &["md-old-1", "md-new-0"], &["in-place/named md-old 1", "in-place/named md-new 1"])]
#[case::no_more_than_are_to_go(3, &["md-old-1", "md-new-0"], &["in-place/named md-old 1", "in-place/remember md-new 2"])]
#[case::nobody_is_to_go(4, &["md-new-1"], &[])]
fn d_16_only_machines_that_the_scaler_names_are_deleted_during_an_update(
    #[case] replicas: i32,
    #[case] named: &[&str],
    #[case] expected: &[&str],
) {
    let seen = scaled_in(replicas, of(2, &[Candidate, Candidate]), of(2, &[Plain, Plain]), named);
    assert_eq!(rules(&seen), expected);
    let tells = |step: &Step| match &step.effect {
        effect @ Effect::SyncSet { .. } => {
            let (_, patch) = patches::of_set(effect, &seen.deployment).unwrap();
            serde_json::to_string(&patch).unwrap().contains(annotation::LAST_REPLICA_CHANGE_BY_SCALER)
        }
        _ => false,
    };
    // With the time alone, the set would create replacements first.
    assert_eq!(decide(&seen).steps.iter().any(tells), replicas == 4);
}

#[test]
fn d_16_a_repair_does_not_hide_that_the_deployment_has_become_smaller() {
    // The hand-over ended after the machine had moved; then the scaler named the machine.
    let seen = scaled_in(3, of(4, &[Candidate, Candidate, Candidate]), of(0, &[HandedOver]), &["md-new-0"]);
    let plan = decide(&seen);
    let repairs: Vec<&Step> = plan.steps.iter().filter(|step| step.rule == "in-place/repair").collect();
    assert_eq!(repairs.len(), 2, "{plan:?}");
    for step in repairs {
        let Effect::ScaleSet { remembered, .. } = &step.effect else { panic!("{step:?}") };
        assert!(remembered.is_empty());
    }
}

#[test]
fn d_16_a_named_machine_is_not_counted_when_a_set_is_repaired() {
    let mut seen = scaled_in(3, of(2, &[Candidate, Candidate]), of(1, &[Plain, HandedOver]), &["md-new-0"]);
    let told = seen.deployment.annotations().clone();
    seen.sets[1].set.to_mut().metadata.annotations = Some(told);
    assert_eq!(repaired(&Fleet::of(&seen)), [2, 1]);
}

#[rstest]
#[case::the_one_that_is_named(&["md-new-1"])]
#[case::another_one(&["md-new-0"])]
#[case::although_none_is_named(&[])]
fn d_16_a_machine_that_has_just_moved_arrives_before_others_go(#[case] named: &[&str]) {
    let seen = scaled_in(3, of(2, &[Candidate, Candidate]), of(2, &[Plain, HandedOver]), named);
    assert_eq!(rules(&seen), ["in-place/release node-md-new-1", "in-place/finished md-new-1"]);
}

#[rstest]
#[case::it_waits_for_the_set_to_see_its_size(2, false, &[])]
#[case::the_machine_has_arrived(1, false, &["in-place/finished md-new-2"])]
#[case::it_waits_in_a_freeze_as_well(2, true, &[])]
#[case::it_arrives_in_a_freeze_as_well(1, true, &["in-place/finished md-new-2"])]
fn d_16_also_when_it_is_the_last_one(#[case] generation: i64, #[case] is_frozen: bool, #[case] expected: &[&str]) {
    let mut seen = scaled_in(2, of(0, &[]), of(3, &[Plain, Plain, HandedOver]), &[]);
    let set = seen.sets[1].set.to_mut();
    set.metadata.generation = Some(generation);
    set.metadata.annotations.get_or_insert_default().insert(annotation::DESIRED_REPLICAS.to_owned(), "3".to_owned());
    if is_frozen {
        seen.deployment.to_mut().metadata.labels = Some([("freeze".to_owned(), "True".to_owned())].into());
    }
    let sizes = |step: &Step| match &step.effect {
        Effect::ScaleSet { to, .. } => Some(format!("{} {to}", step.rule)),
        Effect::MarkMachine { machine, .. } => Some(format!("{} {}", step.rule, machine.name())),
        _ => None,
    };
    assert_eq!(decide(&seen).steps.iter().filter_map(sizes).collect::<Vec<_>>(), expected);
}

#[test]
fn an_old_set_that_is_just_kept_from_growing_wants_no_more_than_it_has() {
    let mut seen = fleet_of(3, (1, 0), Auto, of(2, &[Candidate]), of(2, &[Plain, Starting]));
    seen.sets[0].set.to_mut().metadata.labels.as_mut().unwrap().remove(label::SCALE_UP_DISABLED);
    assert_eq!(rules(&seen), ["in-place/block", "in-place/unmade md-old 1"]);
}

#[test]
fn d_18_a_frozen_deployment_updates_nothing() {
    let mut seen = fleet(Auto, of(2, &[Updated, Candidate]), of(1, &[Plain]));
    seen.deployment.to_mut().metadata.labels = Some([("freeze".to_owned(), "True".to_owned())].into());
    assert_eq!(rules(&seen), Vec::<String>::new());
}

/// The hand-over of two machines ended before the sets got their sizes, or the set was made smaller at the same time.
/// The set controller never deletes these machines, and while there are too many the deployment stays frozen.
#[rstest]
#[case::before_the_sizes(3, of(3, &[Candidate]), of(0, &[HandedOver, HandedOver]), &["in-place/repair md-old 1", "in-place/repair md-new 2"])]
#[case::beside_a_smaller_size(1, of(0, &[]), of(1, &[Plain, HandedOver, HandedOver]), &["in-place/repair md-new 3"])]
fn d_18_a_freeze_does_not_wait_without_end_for_machines_that_have_just_moved(
    #[case] replicas: i32,
    #[case] old: (i32, &'static [Is]),
    #[case] new: (i32, &'static [Is]),
    #[case] expected: &[&str],
) {
    let mut seen = fleet_of(replicas, (0, 1), Auto, old, new);
    seen.deployment.to_mut().metadata.labels = Some([("freeze".to_owned(), "True".to_owned())].into());
    let sizes: Vec<String> = rules(&seen).into_iter().filter(|rule| !rule.starts_with("in-place/release")).collect();
    assert_eq!(sizes, expected);
}

#[rstest]
#[case::s_roll_17_surge_is_left(2, 3)]
#[case::s_roll_18_surge_is_used_up(1, 2)]
fn a_new_set_of_two_grows_beside_an_old_one_of_four(#[case] surge: i32, #[case] expected: i32) {
    let deployment = deployment(5, 0, 0).with(|d| d.spec.strategy = in_place(surge, 1, Auto)).build();
    let seen = seeing_sets(deployment, vec![super::super::testing::old(4, 4), super::super::testing::new(2, 2)]);
    assert_eq!(rolling::new_target(&Fleet::of(&seen), 2), expected);
}

#[rstest]
#[case::s_roll_16_with_nothing_when_the_user_picks(Manual, 1, 0)]
#[case::with_its_surge_when_the_controller_picks(Auto, 1, 1)]
#[case::with_nothing_while_another_may_act_on_an_earlier_size(Auto, 2, 0)]
fn the_new_set_begins(#[case] picks: OrchestrationType, #[case] generation: i64, #[case] expected: i32) {
    let deployment = deployment(4, 0, 0).with(|d| d.spec.strategy = in_place(1, 1, picks)).build();
    let mut old = super::super::testing::old(4, 4);
    old.set.to_mut().metadata.generation = Some(generation);
    let seen = seeing_sets(deployment, vec![old]);
    assert_eq!(first_size(&Fleet::of(&seen)), expected);
}
