//! Changes that a rollout makes to Nodes: a taint on old Nodes, and annotations that keep cluster-autoscaler from
//! scaling down.
//!
//! Level-based: each pass compares the Nodes with the wanted state (D-41), so a Node that joins an old set late is
//! tainted too. Source: spec/deployment-and-set §15 with D-41, D-49. Pure.

use std::collections::BTreeMap;

use super::{
    fleet::{Fleet, SetState},
    in_place::marks::{Marks, is_handed_over},
    node_change::{NodeChange, TaintChange, is_marked, our_taint},
    observe::DeploymentObservation,
    plan::{Effect, OnFailure, Plan, Step, Tainted},
    settings::AutoscalerAnnotations,
};
use crate::{
    changes,
    snapshots::{MachineSnapshot, NodeSnapshot},
};
use controller_runtime::snapshot::Snapshot;
use machine_api::names::{annotation, label};

/// The machines of a set whose Nodes exist, with their Nodes.
pub fn nodes_of<'a>(
    set: &'a SetState<'_>,
    nodes: &'a BTreeMap<String, NodeSnapshot>,
) -> impl Iterator<Item = (&'a MachineSnapshot, &'a NodeSnapshot)> {
    set.machines.iter().filter_map(|machine| Some((machine, nodes.get(machine.label(label::NODE)?)?)))
}

/// Whether the Node still has something from a rollout: marks of an update in place, the taint, or the annotation.
pub fn bears_traces(node: &NodeSnapshot) -> bool {
    let Marks { candidate, selected, result, reason: _ } = Marks::of(node);
    candidate
        || selected
        || result.is_some()
        || our_taint(node).is_some()
        || node.annotation(annotation::SCALE_DOWN_DISABLED_BY_MCM).is_some()
}

/// Taints the Nodes of old sets and removes the taint from Nodes of the new set. A Node that was just updated in place
/// is skipped, because the step that releases it also removes the taint.
pub fn taint_nodes(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(nodes) = &seen.nodes else { return };
    for set in &fleet.old {
        for (machine, node) in nodes_of(set, nodes) {
            if is_handed_over(machine) {
                continue;
            }
            if !is_marked(node) {
                change_node("taint/old", node, NodeChange::of_taints(TaintChange::Add), OnFailure::GoOn, plan);
            }
        }
    }
    untaint_nodes(seen, fleet, plan);
}

/// Removes the taint from the Nodes of the new set, which may have been an old set before.
pub fn untaint_nodes(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    let (Some(nodes), Some(new)) = (&seen.nodes, &fleet.new) else { return };
    for (_, node) in nodes_of(new, nodes) {
        if Marks::of(node).is_updated() {
            continue;
        }
        if our_taint(node).is_some() {
            change_node("taint/new", node, NodeChange::of_taints(TaintChange::Remove), OnFailure::GoOn, plan);
        }
    }
}

/// Removes the taint from the Nodes of a set that is about to become the new set, and removes the mark from the set. A
/// failure ends the plan.
pub fn untaint_first(seen: &DeploymentObservation, set: &SetState<'_>, plan: &mut Plan) {
    let Some(nodes) = &seen.nodes else { return };
    if set.annotation(annotation::PREFER_NO_SCHEDULE).is_none() {
        return;
    }
    for (_, node) in nodes_of(set, nodes) {
        if our_taint(node).is_some() {
            change_node("rollback/untaint", node, NodeChange::of_taints(TaintChange::Remove), OnFailure::EndPlan, plan);
        }
    }
    plan.push("rollback/untaint", Effect::MarkTainted(set.set.clone(), Tainted::No));
}

/// Marks the sets whose Nodes are tainted, as the original does. Needs no guard: no other program writes this
/// annotation.
pub fn mark_sets(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(nodes) = &seen.nodes else { return };
    for set in fleet.old.iter().filter(|set| set.annotation(annotation::PREFER_NO_SCHEDULE).is_none()) {
        let mut all = nodes_of(set, nodes).peekable();
        if all.peek().is_some() && all.all(|(_, node)| is_marked(node)) {
            plan.push("taint/marker", Effect::MarkTainted(set.set.clone(), Tainted::Yes));
        }
    }
    if let Some(new) = fleet.new.as_ref().filter(|new| new.annotation(annotation::PREFER_NO_SCHEDULE).is_some())
        && nodes_of(new, nodes).all(|(_, node)| our_taint(node).is_none())
    {
        plan.push("taint/marker", Effect::MarkTainted(new.set.clone(), Tainted::No));
    }
}

/// Keeps cluster-autoscaler from scaling down the Nodes of all sets. A Node on which the user has already set the
/// annotation stays as it is; another value is overwritten.
pub fn disable_scale_down(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(nodes) = enabled(seen) else { return };
    for set in fleet.all() {
        for (_, node) in nodes_of(set, nodes) {
            if node.annotation(annotation::SCALE_DOWN_DISABLED) != Some("true") {
                let keys = [annotation::SCALE_DOWN_DISABLED, annotation::SCALE_DOWN_DISABLED_BY_MCM];
                let change = NodeChange::of_annotations(keys.map(|key| changes::set(key, "true")));
                change_node("autoscaler/disable", node, change, OnFailure::EndPlan, plan);
            }
        }
    }
}

/// Removes our annotations. Annotations of the user and annotations of preserved machines stay.
pub fn enable_scale_down(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(nodes) = enabled(seen) else { return };
    for set in fleet.all() {
        for (machine, node) in nodes_of(set, nodes) {
            let is_ours = node.annotation(annotation::SCALE_DOWN_DISABLED_BY_MCM).is_some();
            if is_ours && machine.preserve_expiry_time().is_none() {
                let keys = [annotation::SCALE_DOWN_DISABLED, annotation::SCALE_DOWN_DISABLED_BY_MCM];
                let change = NodeChange::of_annotations(keys.map(changes::removed));
                change_node("autoscaler/enable", node, change, OnFailure::EndPlan, plan);
            }
        }
    }
}

/// Combines the changes of a Node into one. Otherwise they would run concurrently, and one change could break the
/// precondition of another.
pub fn combine(plan: &mut Plan) {
    let mut steps: Vec<Step> = Vec::with_capacity(plan.steps.len());
    // Indexes of the changes of Nodes since the last effect of another kind. Changes are not combined across such an
    // effect, because later changes may depend on it.
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for step in std::mem::take(&mut plan.steps) {
        let Step { rule, effect: Effect::ChangeNode { node, change, on_failure } } = step else {
            places.clear();
            steps.push(step);
            continue;
        };
        let before = places.get(node.name()).and_then(|place| steps.get_mut(*place));
        if let Some(first) = before
            && let Effect::ChangeNode { change: and, on_failure: ends, .. } = &mut first.effect
        {
            and.absorb(*change);
            if on_failure == OnFailure::EndPlan {
                *ends = OnFailure::EndPlan;
            }
            if is_side_effect(first.rule) {
                first.rule = rule;
            }
        } else {
            places.insert(node.name().to_owned(), steps.len());
            steps.push(Step { rule, effect: Effect::ChangeNode { node, change, on_failure } });
        }
    }
    plan.steps = steps;
}

/// Whether the rule belongs to this file. If a rule of another file changes the same Node, the combined patch has the
/// name of that rule.
fn is_side_effect(rule: &str) -> bool {
    ["taint/", "autoscaler/"].iter().any(|prefix| rule.starts_with(prefix))
}

fn enabled(seen: &DeploymentObservation) -> Option<&BTreeMap<String, NodeSnapshot>> {
    let wanted = seen.settings.autoscaler_annotations == AutoscalerAnnotations::DuringRollouts;
    seen.nodes.as_ref().filter(|_| wanted)
}

fn change_node(rule: &'static str, node: &NodeSnapshot, change: NodeChange, on_failure: OnFailure, plan: &mut Plan) {
    plan.push(rule, Effect::ChangeNode { node: node.clone(), change: Box::new(change), on_failure });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{
        deployment::{node_change, observe::SetSeen, testing::*},
        set::testing::meta,
    };
    use k8s_openapi::api::core::v1::{Node, Taint};
    use machine_api::names::taint;

    fn node(annotations: &[&str], tainted: bool) -> Node {
        let mut node = Node { metadata: meta("node"), ..Node::default() };
        node.metadata.annotations =
            Some(annotations.iter().map(|key| ((*key).to_owned(), "true".to_owned())).collect());
        if tainted {
            let ours = Taint {
                key: taint::PREFER_NO_SCHEDULE.to_owned(),
                value: Some(node_change::MARKER_VALUE.to_owned()),
                effect: node_change::EFFECT.to_owned(),
                time_added: None,
            };
            node.spec.get_or_insert_default().taints = Some(vec![ours]);
        }
        node
    }

    /// The first machine of the set runs on `node`.
    fn on_node(mut set: SetSeen, node: Node) -> DeploymentObservation {
        let machine = set.machines[0].to_mut();
        machine.metadata.labels.get_or_insert_default().insert(label::NODE.to_owned(), "node".to_owned());
        let mut seen = seeing_sets(deployment(1, 1, 0).build(), vec![set]);
        seen.nodes = Some(BTreeMap::from([("node".to_owned(), node.into())]));
        seen
    }

    fn rules(
        decide: fn(&DeploymentObservation, &Fleet<'_>, &mut Plan),
        seen: &DeploymentObservation,
    ) -> Vec<&'static str> {
        let mut plan = Plan::default();
        decide(seen, &Fleet::of(seen), &mut plan);
        plan.steps.iter().map(|step| step.rule).collect()
    }

    #[rstest]
    #[case::nothing(Node::default(), false)]
    #[case::a_users_own_annotation(node(&[PLAIN], false), false)]
    #[case::the_taint(node(&[], true), true)]
    #[case::our_annotation(node(&[PLAIN, OURS], false), true)]
    #[case::a_mark({
        let mut node = node(&[], false);
        node.metadata.labels = Some([(label::CANDIDATE_FOR_UPDATE.to_owned(), "true".to_owned())].into());
        node
    }, true)]
    fn traces_of_a_rollout_are_found(#[case] node: Node, #[case] expected: bool) {
        assert_eq!(bears_traces(&node.into()), expected);
    }

    const PLAIN: &str = annotation::SCALE_DOWN_DISABLED;
    const OURS: &str = annotation::SCALE_DOWN_DISABLED_BY_MCM;

    fn valued(annotations: &[(&str, &str)]) -> Node {
        let mut node = node(&[], false);
        node.metadata.annotations =
            Some(annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
        node
    }

    #[test]
    fn s_node_07_a_missing_node_is_skipped() {
        let mut seen = on_node(old(1, 1), node(&[PLAIN, OURS], true));
        seen.nodes = Some(BTreeMap::new());
        for decide in [taint_nodes, disable_scale_down, enable_scale_down, mark_sets] {
            assert_eq!(rules(decide, &seen), Vec::<&str>::new());
        }
    }

    /// The old set is marked as tainted.
    fn marked(mut set: SetSeen) -> SetSeen {
        set.set
            .to_mut()
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(annotation::PREFER_NO_SCHEDULE.to_owned(), node_change::MARKER_VALUE.to_owned());
        set
    }

    #[test]
    fn s_node_03_a_marked_set_with_tainted_nodes_costs_no_call() {
        let seen = on_node(marked(old(1, 1)), node(&[], true));
        assert_eq!(rules(taint_nodes, &seen), Vec::<&str>::new());
        assert_eq!(rules(mark_sets, &seen), Vec::<&str>::new());
    }

    #[test]
    fn s_node_15_d_41_a_node_that_joins_after_the_mark_is_tainted() {
        let seen = on_node(marked(old(1, 1)), node(&[], false));
        assert_eq!(rules(taint_nodes, &seen), ["taint/old"]);
    }

    #[rstest]
    #[case::s_node_14_no_taint(node(&[], false), true)]
    #[case::s_node_14_another_value({
        let mut node = node(&[], true);
        node.spec.as_mut().unwrap().taints.as_mut().unwrap()[0].value = Some("other".to_owned());
        node
    }, true)]
    #[case::s_node_14_the_same(node(&[], true), false)]
    fn a_node_has_the_taint_once(#[case] node: Node, #[case] changes: bool) {
        assert_eq!(is_marked(&node.clone().into()), !changes);
        let after = changed(&NodeChange::of_taints(TaintChange::Add), &node);
        assert_eq!(after != node, changes);
        let document = serde_json::to_value(&after).unwrap();
        let taints = document["spec"]["taints"].as_array().unwrap().clone();
        assert_eq!(taints.len(), 1);
        assert_eq!(taints[0]["value"], node_change::MARKER_VALUE);
    }

    #[rstest]
    #[case::s_node_01_a_node_of_an_old_set_is_tainted(on_node(old(1, 1), node(&[], false)), &["taint/old"])]
    #[case::a_tainted_node_is_left_alone(on_node(old(1, 1), node(&[], true)), &[])]
    #[case::s_node_02_a_node_of_the_new_set_is_untainted(on_node(new(1, 1), node(&[], true)), &["taint/new"])]
    fn nodes_are_tainted(#[case] seen: DeploymentObservation, #[case] expected: &[&str]) {
        assert_eq!(rules(taint_nodes, &seen), expected);
    }

    #[rstest]
    #[case::s_node_01_all_nodes_are_tainted(on_node(old(1, 1), node(&[], true)), &["taint/marker"])]
    #[case::a_node_is_not_yet_tainted(on_node(old(1, 1), node(&[], false)), &[])]
    fn sets_with_tainted_nodes_are_marked(#[case] seen: DeploymentObservation, #[case] expected: &[&str]) {
        assert_eq!(rules(mark_sets, &seen), expected);
    }

    /// The Node's annotations after the decided change; `None` without a change.
    fn annotations_after(
        decide: fn(&DeploymentObservation, &Fleet<'_>, &mut Plan),
        set: SetSeen,
        node: &Node,
    ) -> Option<Vec<(String, String)>> {
        let seen = on_node(set, node.clone());
        let mut plan = Plan::default();
        decide(&seen, &Fleet::of(&seen), &mut plan);
        let [step] = plan.steps.as_slice() else {
            assert_eq!(plan.steps, []);
            return None;
        };
        let Effect::ChangeNode { change, .. } = &step.effect else { panic!("{step:?}") };
        let after = changed(change, node);
        Some(after.metadata.annotations.unwrap_or_default().into_iter().collect())
    }

    fn pairs(annotations: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut pairs: Vec<(String, String)> =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        pairs.sort();
        pairs
    }

    #[rstest]
    #[case::s_node_04_both_are_added_to_what_is_there(
        &[("anno1", "x")], Some(&[("anno1", "x"), (PLAIN, "true"), (OURS, "true")][..]))]
    #[case::a_plain_node(&[], Some(&[(PLAIN, "true"), (OURS, "true")][..]))]
    #[case::s_node_05_already_annotated(&[("anno1", "x"), (PLAIN, "true"), (OURS, "true")], None)]
    #[case::a_users_own_annotation(&[(PLAIN, "true")], None)]
    #[case::s_node_06_another_value_is_overwritten(&[(PLAIN, "false")], Some(&[(PLAIN, "true"), (OURS, "true")][..]))]
    fn scale_down_is_disabled(#[case] before: &[(&str, &str)], #[case] expected: Option<&[(&str, &str)]>) {
        let after = annotations_after(disable_scale_down, old(1, 1), &valued(before));
        assert_eq!(after, expected.map(pairs));
    }

    #[rstest]
    #[case::s_node_08_both_go_and_others_stay(&[("anno1", "x"), (PLAIN, "true"), (OURS, "true")], Some(&[("anno1", "x")][..]))]
    #[case::s_node_09_a_users_own_annotation_stays(&[(PLAIN, "true")], None)]
    #[case::s_node_10_none_is_there(&[("anno1", "x")], None)]
    #[case::s_node_11_also_with_another_value(&[(PLAIN, "false"), (OURS, "x")], Some(&[][..]))]
    fn scale_down_is_enabled_again(#[case] before: &[(&str, &str)], #[case] expected: Option<&[(&str, &str)]>) {
        let after = annotations_after(enable_scale_down, new(1, 1), &valued(before));
        assert_eq!(after, expected.map(pairs));
    }

    #[rstest]
    #[case::without_taints(node(&[], false), 3)]
    #[case::without_annotations({
        let mut node = node(&[], false);
        node.metadata.annotations = None;
        node
    }, 3)]
    #[case::with_another_taint({
        let mut node = node(&["anno1"], true);
        node.spec.as_mut().unwrap().taints.as_mut().unwrap()[0].key = "other".to_owned();
        node
    }, 3)]
    #[case::with_our_taint_of_another_value({
        let mut node = node(&["anno1"], true);
        node.spec.as_mut().unwrap().taints.as_mut().unwrap()[0].value = Some("x".to_owned());
        node
    }, 3)]
    fn a_node_that_gets_taint_and_annotation_gets_one_patch(#[case] node: Node, #[case] replicas: i32) {
        let mut seen = on_node(old(replicas, 3), node.clone());
        let mut plan = Plan::default();
        let fleet = Fleet::of(&seen);
        taint_nodes(&seen, &fleet, &mut plan);
        disable_scale_down(&seen, &fleet, &mut plan);
        assert_eq!(plan.steps.len(), 2);
        combine(&mut plan);
        let [step] = plan.steps.as_slice() else { panic!("{plan:?}") };
        let Effect::ChangeNode { change, on_failure: OnFailure::EndPlan, .. } = &step.effect else {
            panic!("{step:?}")
        };
        let after = changed(change, &node);
        let (expected, got) =
            (node.metadata.annotations.clone().unwrap_or_default(), after.metadata.annotations.as_ref());
        let mut expected = expected;
        expected.extend([PLAIN, OURS].map(|key| (key.to_owned(), "true".to_owned())));
        assert_eq!(got, Some(&expected));
        let [node, after] = [node, after].map(NodeSnapshot::from);
        assert_eq!(our_taint(&after).unwrap().1.value.as_deref(), Some(node_change::MARKER_VALUE));
        let others = |node| node_change::without_old_taint(node).len();
        assert_eq!(others(&after), others(&node));
        // With the Node after the change, there is nothing more to do.
        seen.nodes = Some(BTreeMap::from([("node".to_owned(), after)]));
        let mut plan = Plan::default();
        taint_nodes(&seen, &Fleet::of(&seen), &mut plan);
        disable_scale_down(&seen, &Fleet::of(&seen), &mut plan);
        assert_eq!(plan.steps, []);
    }

    #[test]
    fn patches_of_a_node_with_another_effect_between_them_stay_apart() {
        let seen = on_node(old(1, 1), node(&[], false));
        let mut plan = Plan::default();
        let fleet = Fleet::of(&seen);
        taint_nodes(&seen, &fleet, &mut plan);
        plan.push("between", Effect::MarkTainted(fleet.old[0].set.clone(), Tainted::No));
        disable_scale_down(&seen, &fleet, &mut plan);
        combine(&mut plan);
        assert_eq!(plan.steps.len(), 3);
    }

    #[test]
    fn s_node_12_a_preserved_machine_keeps_its_annotation() {
        let mut seen = on_node(new(1, 1), node(&[PLAIN, OURS], false));
        seen.sets[0].machines[0].to_mut().status.current_status.preserve_expiry_time =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(seen.now));
        assert_eq!(rules(enable_scale_down, &seen), Vec::<&str>::new());
    }

    #[test]
    fn s_node_13_nothing_is_annotated_when_switched_off() {
        let mut seen = on_node(old(1, 1), node(&[OURS], false));
        seen.settings.autoscaler_annotations = AutoscalerAnnotations::Never;
        assert_eq!(rules(disable_scale_down, &seen), Vec::<&str>::new());
        assert_eq!(rules(enable_scale_down, &seen), Vec::<&str>::new());
    }
}
