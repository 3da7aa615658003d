//! What Nodes and machines say about an update in place, and the labels that this room writes. Pure.
//!
//! Source: spec/deployment-and-set §2.2, §11.1 (step 4), §11.2 with D-14, D-23.

use k8s_openapi::api::core::v1::Taint;
use machine_api::{
    names::{annotation, label, node_condition, taint, update_result},
    v1alpha1::MachinePhase,
};

use crate::{
    changes::{removed, set},
    deployment::{
        fleet::Fleet,
        node_change::{Cordon, Guard, NodeChange, TaintChange, without_old_taint},
        node_side_effects::nodes_of,
        observe::DeploymentObservation,
        plan::{Effect, OnFailure, Plan},
    },
    set::counts::is_terminating,
    snapshots::{MachineSnapshot, NodeSnapshot},
};

/// What the labels and the condition of a Node say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks<'a> {
    /// It belongs to an old set.
    pub candidate: bool,
    /// It was picked, by us or by the user.
    pub selected: bool,
    /// What became of its update.
    pub result: Option<&'a str>,
    /// How far the machine controller has brought it.
    pub reason: Option<&'a str>,
}

impl<'a> Marks<'a> {
    /// The marks of a Node.
    pub fn of(node: &'a NodeSnapshot) -> Self {
        let condition = node.conditions().iter().find(|condition| condition.type_ == node_condition::IN_PLACE_UPDATE);
        Self {
            candidate: node.label(label::CANDIDATE_FOR_UPDATE).is_some(),
            selected: node.label(label::SELECTED_FOR_UPDATE).is_some(),
            result: node.label(label::UPDATE_RESULT),
            reason: condition.and_then(|condition| condition.reason.as_deref()),
        }
    }

    /// Whether the update has succeeded and the machine controller knows it.
    pub fn is_updated(&self) -> bool {
        self.result == Some(update_result::SUCCESSFUL) && self.reason == Some(node_condition::REASON_UPDATE_SUCCESSFUL)
    }

    /// Whether the node may be changing right now: drained for its update, and no result yet.
    pub fn is_in_the_middle(&self) -> bool {
        let drained = [node_condition::REASON_DRAIN_SUCCESSFUL, node_condition::REASON_READY_FOR_UPDATE]
            .map(Some)
            .contains(&self.reason);
        drained && self.result.is_none()
    }
}

/// Whether the machine carries the sign that it was handed over to its present set and that is not finished yet.
pub fn is_handed_over(machine: &MachineSnapshot) -> bool {
    machine.label(label::UPDATE_RESULT) == Some(update_result::SUCCESSFUL)
}

/// Whether the machine's mirror of its Node's condition says that the update has succeeded.
pub fn is_updated(machine: &MachineSnapshot) -> bool {
    reason_of(machine) == Some(node_condition::REASON_UPDATE_SUCCESSFUL)
}

/// The reason of the machine's mirror of its Node's condition about updates.
pub fn reason_of(machine: &MachineSnapshot) -> Option<&str> {
    let mut conditions = machine.conditions().iter();
    conditions.find(|condition| condition.type_ == node_condition::IN_PLACE_UPDATE)?.reason.as_deref()
}

/// Whether the machine's update has failed and waits for somebody to repair it.
pub fn has_failed(machine: &MachineSnapshot) -> bool {
    *machine.phase() == MachinePhase::InPlaceUpdateFailed && !is_terminating(machine)
}

/// The Node of a machine and its marks.
pub fn node_of<'a>(
    seen: &'a DeploymentObservation,
    machine: &MachineSnapshot,
) -> Option<(&'a NodeSnapshot, Marks<'a>)> {
    let node = seen.nodes.as_ref()?.get(machine.label(label::NODE)?)?;
    Some((node, Marks::of(node)))
}

fn change_node(rule: &'static str, node: &NodeSnapshot, change: NodeChange, plan: &mut Plan) {
    let on_failure = OnFailure::EndPlan;
    plan.push(rule, Effect::ChangeNode { node: node.clone(), change: Box::new(change), on_failure });
}

/// Marks the Nodes of old sets as candidates. One that was handed over and is not finished yet keeps its labels.
pub fn mark_candidates(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(nodes) = &seen.nodes else { return };
    for old in &fleet.old {
        for (machine, node) in nodes_of(old, nodes) {
            if !Marks::of(node).candidate && !is_handed_over(machine) && !is_terminating(machine) {
                let change = NodeChange::of_labels([set(label::CANDIDATE_FOR_UPDATE, "true")]);
                change_node("in-place/candidate", node, change, plan);
            }
        }
    }
}

/// Picks a Node.
pub fn select(node: &NodeSnapshot, plan: &mut Plan) {
    change_node("in-place/select", node, NodeChange::of_labels([set(label::SELECTED_FOR_UPDATE, "true")]), plan);
}

/// Takes the marks off a Node whose set has become the new one again, so that there is nothing to update. A picked one was
/// cordoned for us and takes pods again.
pub fn withdraw(node: &NodeSnapshot, marks: Marks<'_>, plan: &mut Plan) {
    let labels = [label::CANDIDATE_FOR_UPDATE, label::SELECTED_FOR_UPDATE].map(removed);
    let cordon = if marks.selected && marks.result.is_none() { Cordon::Lift } else { Cordon::Keep };
    // The machine controller may be draining it: then its update goes on.
    let change = NodeChange { cordon, guard: Guard::Observed, ..NodeChange::of_labels(labels) };
    change_node("in-place/withdraw", node, change, plan);
}

/// Lets an updated Node take pods again: labels and reason of failure off, uncordoned, without the taint of old nodes, and
/// with the one that keeps pods off until the critical components are there. Refused when the Node has changed meanwhile.
pub fn release(node: &NodeSnapshot, plan: &mut Plan) {
    let mut taints = without_old_taint(node);
    let holds_back = |found: &Taint| found.key == taint::CRITICAL_COMPONENTS_NOT_READY && found.effect == "NoSchedule";
    if !taints.iter().any(holds_back) {
        taints.push(Taint {
            key: taint::CRITICAL_COMPONENTS_NOT_READY.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
    }
    let labels = [label::CANDIDATE_FOR_UPDATE, label::SELECTED_FOR_UPDATE, label::UPDATE_RESULT].map(removed);
    let change = NodeChange {
        labels: labels.into(),
        annotations: [removed(annotation::UPDATE_FAILED_REASON)].into(),
        taints: TaintChange::Replace(taints),
        cordon: Cordon::Lift,
        guard: Guard::Observed,
    };
    change_node("in-place/release", node, change, plan);
}
