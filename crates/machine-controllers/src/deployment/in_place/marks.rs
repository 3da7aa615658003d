//! The marks of an update in place on Nodes and machines, and the writes of these labels. Pure.
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

/// The marks of a Node: its labels and its condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks<'a> {
    /// The Node belongs to an old set.
    pub candidate: bool,
    /// The Node was selected, by this controller or by the user.
    pub selected: bool,
    /// The result of its update.
    pub result: Option<&'a str>,
    /// The stage that the machine controller has reached.
    pub reason: Option<&'a str>,
}

impl<'a> Marks<'a> {
    /// Reads the marks of a Node.
    pub fn of(node: &'a NodeSnapshot) -> Self {
        let condition = node.conditions().iter().find(|condition| condition.type_ == node_condition::IN_PLACE_UPDATE);
        Self {
            candidate: node.label(label::CANDIDATE_FOR_UPDATE).is_some(),
            selected: node.label(label::SELECTED_FOR_UPDATE).is_some(),
            result: node.label(label::UPDATE_RESULT),
            reason: condition.and_then(|condition| condition.reason.as_deref()),
        }
    }

    /// Whether the update has succeeded and the machine controller has recorded that.
    pub fn is_updated(&self) -> bool {
        self.result == Some(update_result::SUCCESSFUL) && self.reason == Some(node_condition::REASON_UPDATE_SUCCESSFUL)
    }

    /// Whether the node may be changing right now: it was drained for its update, and there is no result yet.
    pub fn is_in_the_middle(&self) -> bool {
        let drained = [node_condition::REASON_DRAIN_SUCCESSFUL, node_condition::REASON_READY_FOR_UPDATE]
            .map(Some)
            .contains(&self.reason);
        drained && self.result.is_none()
    }
}

/// Whether the machine was handed over to its present set and the hand-over is not finished yet.
pub fn is_handed_over(machine: &MachineSnapshot) -> bool {
    machine.label(label::UPDATE_RESULT) == Some(update_result::SUCCESSFUL)
}

/// Whether the machine's copy of the Node's condition says that the update has succeeded.
pub fn is_updated(machine: &MachineSnapshot) -> bool {
    reason_of(machine) == Some(node_condition::REASON_UPDATE_SUCCESSFUL)
}

/// The reason in the machine's copy of the Node's update condition.
pub fn reason_of(machine: &MachineSnapshot) -> Option<&str> {
    let mut conditions = machine.conditions().iter();
    conditions.find(|condition| condition.type_ == node_condition::IN_PLACE_UPDATE)?.reason.as_deref()
}

/// Whether the machine's update has failed and the node needs a repair.
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

/// Marks the Nodes of old sets as candidates. A machine whose hand-over is not finished keeps its labels.
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

/// Selects a Node for its update.
pub fn select(node: &NodeSnapshot, plan: &mut Plan) {
    change_node("in-place/select", node, NodeChange::of_labels([set(label::SELECTED_FOR_UPDATE, "true")]), plan);
}

/// Removes the marks from a Node whose set has become the new one again, because there is nothing to update. A selected
/// Node was cordoned for the update and is uncordoned.
pub fn withdraw(node: &NodeSnapshot, marks: Marks<'_>, plan: &mut Plan) {
    let labels = [label::CANDIDATE_FOR_UPDATE, label::SELECTED_FOR_UPDATE].map(removed);
    let cordon = if marks.selected && marks.result.is_none() { Cordon::Lift } else { Cordon::Keep };
    // The machine controller may be draining the Node, in which case the update continues. The guard makes this write
    // fail then.
    let change = NodeChange { cordon, guard: Guard::Observed, ..NodeChange::of_labels(labels) };
    change_node("in-place/withdraw", node, change, plan);
}

/// Makes an updated Node schedulable again: removes the labels, the failure reason, the cordon and the taint of old
/// Nodes, and adds the taint that keeps pods away until the critical components run. Fails if the Node has changed
/// meanwhile.
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
