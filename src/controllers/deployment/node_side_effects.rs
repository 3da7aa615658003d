//! What a rollout does to Nodes: old ones repel new pods, and cluster-autoscaler is kept from scaling down meanwhile.
//!
//! Level-based: each pass looks at what is on the Nodes (D-41), so a Node that joins an old set late is tainted too.
//! Source: spec/deployment-and-set §15 with D-41, D-49. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Value, json};

use super::{
    fleet::{Fleet, SetState},
    in_place::marks::{Marks, is_handed_over},
    observe::DeploymentObservation,
    plan::{Effect, OnFailure, Plan},
    settings::AutoscalerAnnotations,
};
use crate::{
    api::{
        names::{annotation, label, taint},
        v1alpha1::Machine,
    },
    cluster::{key::Target, objects::Patch},
    controllers::set::counts::label_of,
};

const MARKER_VALUE: &str = "True";
const EFFECT: &str = "PreferNoSchedule";

/// The machines of a set whose Nodes exist, with these.
pub fn nodes_of<'a>(
    set: &'a SetState<'_>,
    nodes: &'a BTreeMap<String, Arc<Node>>,
) -> impl Iterator<Item = (&'a Arc<Machine>, &'a Arc<Node>)> {
    set.machines.iter().filter_map(|machine| Some((machine, nodes.get(label_of(machine, label::NODE)?)?)))
}

fn our_taint(node: &Node) -> Option<(usize, &Taint)> {
    let taints = node.spec.as_ref()?.taints.as_ref()?;
    taints.iter().enumerate().find(|(_, found)| found.key == taint::PREFER_NO_SCHEDULE && found.effect == EFFECT)
}

/// Whether a rollout has left something on the Node: marks of an update in place, the taint, the annotation.
pub fn bears_traces(node: &Node) -> bool {
    let Marks { candidate, selected, result, reason: _ } = Marks::of(node);
    let annotations = node.metadata.annotations.as_ref();
    candidate
        || selected
        || result.is_some()
        || our_taint(node).is_some()
        || annotations.is_some_and(|all| all.contains_key(annotation::SCALE_DOWN_DISABLED_BY_MCM))
}

/// Adds the taint to the Nodes of old sets and takes it off those of the new one. Left alone is a Node that was just
/// updated in place: its release deals with the taint.
pub fn taint_nodes(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(nodes) = &seen.nodes else { return };
    for set in &fleet.old {
        for (machine, node) in nodes_of(set, nodes) {
            if is_handed_over(machine) {
                continue;
            }
            if let Some(patch) = with_taint(node) {
                patch_node("taint/old", node, patch, OnFailure::GoOn, plan);
            }
        }
    }
    if let Some(new) = &fleet.new {
        for (_, node) in nodes_of(new, nodes) {
            if Marks::of(node).is_updated() {
                continue;
            }
            if let Some(patch) = without_taint(node) {
                patch_node("taint/new", node, patch, OnFailure::GoOn, plan);
            }
        }
    }
}

/// Takes the taint off the Nodes of a set that is about to become the new one, and the mark off the set. A failure ends
/// the plan.
pub fn untaint_first(seen: &DeploymentObservation, set: &SetState<'_>, plan: &mut Plan) {
    let Some(nodes) = &seen.nodes else { return };
    if set.annotation(annotation::PREFER_NO_SCHEDULE).is_none() {
        return;
    }
    for (_, node) in nodes_of(set, nodes) {
        if let Some(patch) = without_taint(node) {
            patch_node("rollback/untaint", node, patch, OnFailure::EndPlan, plan);
        }
    }
    plan.push("rollback/untaint", mark(set, &Value::Null));
}

fn mark(set: &SetState<'_>, value: &Value) -> Effect {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { annotation::PREFER_NO_SCHEDULE: value } } }));
    Effect::PatchSet { set: Target::of(&**set.set), patch }
}

/// The patch that takes the taint off a Node; `None` when it has none.
fn without_taint(node: &Node) -> Option<Patch> {
    let (index, found) = our_taint(node)?;
    let path = format!("/spec/taints/{index}");
    Some(Patch::Json(vec![
        json!({"op": "test", "path": format!("{path}/key"), "value": found.key}),
        json!({"op": "remove", "path": path}),
    ]))
}

/// Writes down on sets which of them have tainted Nodes, as the original does. Not guarded: nobody else writes this.
pub fn mark_sets(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(nodes) = &seen.nodes else { return };
    for set in fleet.old.iter().filter(|set| set.annotation(annotation::PREFER_NO_SCHEDULE).is_none()) {
        let mut all = nodes_of(set, nodes).peekable();
        if all.peek().is_some() && all.all(|(_, node)| with_taint(node).is_none()) {
            plan.push("taint/marker", mark(set, &MARKER_VALUE.into()));
        }
    }
    if let Some(new) = fleet.new.as_ref().filter(|new| new.annotation(annotation::PREFER_NO_SCHEDULE).is_some())
        && nodes_of(new, nodes).all(|(_, node)| our_taint(node).is_none())
    {
        plan.push("taint/marker", mark(new, &Value::Null));
    }
}

/// The taints of a Node but for the one of old sets.
pub fn without_old_taint(node: &Node) -> Vec<Taint> {
    let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    taints.retain(|found| !(found.key == taint::PREFER_NO_SCHEDULE && found.effect == EFFECT));
    taints
}

/// The patch that gives a Node the taint; `None` when it has it.
fn with_taint(node: &Node) -> Option<Patch> {
    let wanted = json!({"key": taint::PREFER_NO_SCHEDULE, "value": MARKER_VALUE, "effect": EFFECT});
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).filter(|taints| !taints.is_empty());
    let operations = match our_taint(node) {
        Some((_, found)) if found.value.as_deref() == Some(MARKER_VALUE) => return None,
        Some((index, found)) => {
            let path = format!("/spec/taints/{index}");
            vec![
                json!({"op": "test", "path": format!("{path}/key"), "value": found.key}),
                json!({"op": "replace", "path": path, "value": wanted}),
            ]
        }
        None if taints.is_some() => vec![json!({"op": "add", "path": "/spec/taints/-", "value": wanted})],
        None => {
            // An object without the field has no place to add to.
            let (path, value) = match &node.spec {
                Some(_) => ("/spec/taints", json!([wanted])),
                None => ("/spec", json!({ "taints": [wanted] })),
            };
            vec![
                json!({"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version}),
                json!({"op": "add", "path": path, "value": value}),
            ]
        }
    };
    Some(Patch::Json(operations))
}

/// Keeps cluster-autoscaler from scaling down the Nodes of all sets. A Node whose user has said so before is left alone;
/// one that says something else is overruled.
pub fn disable_scale_down(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(nodes) = enabled(seen) else { return };
    for set in fleet.all() {
        for (_, node) in nodes_of(set, nodes) {
            let all = node.metadata.annotations.as_ref();
            let says = all.and_then(|all| all.get(annotation::SCALE_DOWN_DISABLED)).map(String::as_str);
            if says != Some("true") {
                let annotations = json!({
                    annotation::SCALE_DOWN_DISABLED: "true", annotation::SCALE_DOWN_DISABLED_BY_MCM: "true",
                });
                let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
                patch_node("autoscaler/disable", node, patch, OnFailure::EndPlan, plan);
            }
        }
    }
}

/// Takes our annotations off again. A user's own stay, and those of machines that are being preserved.
pub fn enable_scale_down(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(nodes) = enabled(seen) else { return };
    for set in fleet.all() {
        for (machine, node) in nodes_of(set, nodes) {
            let all = node.metadata.annotations.as_ref();
            let is_ours = all.is_some_and(|all| all.contains_key(annotation::SCALE_DOWN_DISABLED_BY_MCM));
            if is_ours && machine.status.current_status.preserve_expiry_time.is_none() {
                let annotations = json!({
                    annotation::SCALE_DOWN_DISABLED: null, annotation::SCALE_DOWN_DISABLED_BY_MCM: null,
                });
                let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
                patch_node("autoscaler/enable", node, patch, OnFailure::EndPlan, plan);
            }
        }
    }
}

fn enabled(seen: &DeploymentObservation) -> Option<&BTreeMap<String, Arc<Node>>> {
    let wanted = seen.settings.autoscaler_annotations == AutoscalerAnnotations::DuringRollouts;
    seen.nodes.as_ref().filter(|_| wanted)
}

fn patch_node(rule: &'static str, node: &Node, patch: Patch, on_failure: OnFailure, plan: &mut Plan) {
    plan.push(rule, Effect::PatchNode { node: Target::of(node), patch, on_failure });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::controllers::{
        deployment::{observe::SetSeen, testing::*},
        set::testing::meta,
    };

    fn node(annotations: &[&str], tainted: bool) -> Node {
        let mut node = Node { metadata: meta("node"), ..Node::default() };
        node.metadata.annotations =
            Some(annotations.iter().map(|key| ((*key).to_owned(), "true".to_owned())).collect());
        if tainted {
            let ours = Taint {
                key: taint::PREFER_NO_SCHEDULE.to_owned(),
                value: Some(MARKER_VALUE.to_owned()),
                effect: EFFECT.to_owned(),
                time_added: None,
            };
            node.spec.get_or_insert_default().taints = Some(vec![ours]);
        }
        node
    }

    /// The first machine of the set runs on `node`.
    fn on_node(mut set: SetSeen, node: Node) -> DeploymentObservation {
        let machine = Arc::make_mut(&mut set.machines[0]);
        machine.metadata.labels.get_or_insert_default().insert(label::NODE.to_owned(), "node".to_owned());
        let mut seen = seeing_sets(deployment(1, 1, 0).build(), vec![set]);
        seen.nodes = Some(BTreeMap::from([("node".to_owned(), Arc::new(node))]));
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
    fn rollouts_leave_traces(#[case] node: Node, #[case] expected: bool) {
        assert_eq!(bears_traces(&node), expected);
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
    fn s_node_07_a_node_that_is_missing_is_passed_over() {
        let mut seen = on_node(old(1, 1), node(&[PLAIN, OURS], true));
        seen.nodes = Some(BTreeMap::new());
        for decide in [taint_nodes, disable_scale_down, enable_scale_down, mark_sets] {
            assert_eq!(rules(decide, &seen), Vec::<&str>::new());
        }
    }

    /// The old set has been marked as tainted.
    fn marked(mut set: SetSeen) -> SetSeen {
        Arc::make_mut(&mut set.set)
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(annotation::PREFER_NO_SCHEDULE.to_owned(), MARKER_VALUE.to_owned());
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
        let mut document = serde_json::to_value(&node).unwrap();
        let patch = with_taint(&node);
        assert_eq!(patch.is_some(), changes);
        if let Some(Patch::Json(operations)) = patch {
            let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
            json_patch::patch(&mut document, &patch).unwrap();
        }
        let taints = document["spec"]["taints"].as_array().unwrap().clone();
        assert_eq!(taints.len(), 1);
        assert_eq!(taints[0]["value"], MARKER_VALUE);
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

    #[rstest]
    #[case::s_node_04_a_plain_node(node(&[], false), &["autoscaler/disable"])]
    #[case::s_node_05_already_annotated(node(&[PLAIN, OURS], false), &[])]
    #[case::a_users_own_annotation(node(&[PLAIN], false), &[])]
    #[case::s_node_06_another_value(valued(&[(PLAIN, "false")]), &["autoscaler/disable"])]
    fn scale_down_is_disabled(#[case] node: Node, #[case] expected: &[&str]) {
        assert_eq!(rules(disable_scale_down, &on_node(old(1, 1), node)), expected);
    }

    #[rstest]
    #[case::s_node_08_both_are_there(node(&[PLAIN, OURS], false), &["autoscaler/enable"])]
    #[case::s_node_09_a_users_own_annotation(node(&[PLAIN], false), &[])]
    #[case::s_node_11_another_value(valued(&[(PLAIN, "false"), (OURS, "x")]), &["autoscaler/enable"])]
    #[case::s_node_10_none_is_there(node(&[], false), &[])]
    fn scale_down_is_enabled_again(#[case] node: Node, #[case] expected: &[&str]) {
        assert_eq!(rules(enable_scale_down, &on_node(new(1, 1), node)), expected);
    }

    #[test]
    fn s_node_12_a_preserved_machine_keeps_its_annotation() {
        let mut seen = on_node(new(1, 1), node(&[PLAIN, OURS], false));
        Arc::make_mut(&mut seen.sets[0].machines[0]).status.current_status.preserve_expiry_time =
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
