//! The marks that rollouts, updates, drains and preservations must have removed from a Node.

use super::Differences;
use machine_api::{
    names::{annotation, label, node_condition, taint},
    v1alpha1::Machine,
};
use machine_controllers::{machine::in_place::UpdateStage, snapshots::NodeSnapshot};

/// Labels that a Node has only during its update.
const UPDATE_LABELS: [&str; 3] = [label::CANDIDATE_FOR_UPDATE, label::SELECTED_FOR_UPDATE, label::UPDATE_RESULT];
/// Annotations that keep the autoscaler away, during a rollout and while the machine is preserved.
const KEEPS_AUTOSCALER_AWAY: [&str; 2] = [annotation::SCALE_DOWN_DISABLED, annotation::SCALE_DOWN_DISABLED_BY_MCM];

/// Checks the Node of a healthy machine.
pub(super) fn look_at(found: &mut Differences, name: &str, node: &NodeSnapshot, machine: &Machine) {
    let is_kept = machine.status.current_status.preserve_expiry_time.is_some();
    let labels: Vec<&str> = UPDATE_LABELS.into_iter().filter(|key| node.label(key).is_some()).collect();
    found.expect(labels.is_empty(), || format!("node {name} was updated and has {labels:?} left"));
    let taints: Vec<&str> = node.taints().iter().map(|taint| taint.key.as_str()).collect();
    let is_ours = |key: &&str| [taint::PREFER_NO_SCHEDULE, taint::PRESERVED].contains(key);
    found.expect(!taints.iter().any(is_ours), || format!("node {name} has taints left: {taints:?}"));
    found.expect(!node.is_cordoned(), || format!("node {name} is cordoned for ever"));
    let keeps_away: Vec<&str> =
        KEEPS_AUTOSCALER_AWAY.into_iter().filter(|key| node.annotation(key).is_some()).collect();
    found.expect(keeps_away.is_empty() || is_kept, || format!("node {name} has annotations left: {keeps_away:?}"));
    let told_why = node.annotation(annotation::UPDATE_FAILED_REASON).is_some();
    found.expect(!told_why, || format!("node {name} says why its update failed"));
    look_at_conditions(found, name, node, is_kept);
}

fn look_at_conditions(found: &mut Differences, name: &str, node: &NodeSnapshot, is_kept: bool) {
    let stage = UpdateStage::of(node);
    let is_over = stage.is_none_or(|stage| matches!(stage, UpdateStage::Candidate | UpdateStage::Successful));
    found.expect(is_over, || format!("node {name} is in an update for ever: {stage:?}"));
    let preserved = node.conditions().iter().find(|condition| condition.type_ == node_condition::PRESERVED);
    let says = preserved.is_some_and(|condition| condition.status == "True");
    found.expect(says == is_kept, || {
        format!("node {name} says {preserved:?} of its preservation, which lasts: {is_kept}")
    });
    let ends = node.conditions().iter().any(|condition| condition.type_ == node_condition::TERMINATING);
    found.expect(!ends, || format!("node {name} says that it ends"));
}
