//! Moves a machine from its old set to the new one, and cleans up afterwards.
//!
//! A move takes three writes. The machine changes its owner and gets a label that keeps the set controller from
//! deleting it; the old set shrinks; the new set grows. The process may end after each write; the next pass continues
//! from what it observes. Then the Node is released. When the controller of the new set has observed the new size, the
//! label is removed.
//!
//! Source: spec/deployment-and-set §11.2, §11.3, §11.5 with D-14, D-23, D-47. Pure.

use super::marks::{self, Marks};
use crate::{
    changes::{Changes, removed},
    deployment::{
        fleet::{Fleet, SetState},
        observe::DeploymentObservation,
        plan::{Effect, Plan},
    },
    set::counts::{is_active, is_terminating},
    snapshots::{MachineSnapshot, Metadata, SetSnapshot},
};
use controller_runtime::snapshot::Snapshot;
use machine_api::{
    names::{label, update_result},
    v1alpha1::MachinePhase,
};

/// Cleans up after machines that were handed over, and removes marks from Nodes that need no update any more. This
/// happens in every pass with every strategy, so that a started hand-over is finished even if the user has changed the
/// strategy.
pub fn finish(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    for set in fleet.all() {
        let is_new = fleet.new.as_ref().is_some_and(|new| new.name() == set.name());
        for machine in set.machines.iter().filter(|machine| !is_terminating(machine)) {
            if let Some((node, marks)) = marks::node_of(seen, machine) {
                // In an old set, an updated Node whose machine lacks the label is still to be handed over.
                if marks.is_updated() && (is_new || marks::is_handed_over(machine)) {
                    marks::release(node, plan);
                } else if is_new && is_left_over(marks) {
                    marks::withdraw(node, marks, plan);
                } else if is_new && is_late_success(marks) {
                    marks::release(node, plan);
                }
            }
            if marks::is_handed_over(machine) && has_seen_its_size(set) {
                let labels = [removed(label::UPDATE_RESULT)].into();
                let machine = machine.clone();
                plan.push("in-place/finished", Effect::MarkMachine { machine, labels, annotations: Changes::new() });
            }
        }
    }
}

/// Whether the Node has marks of an update that will not happen because the template was changed back (D-14). An update
/// that has started continues, and a success is released instead.
fn is_left_over(marks: Marks<'_>) -> bool {
    let succeeds = marks.result == Some(update_result::SUCCESSFUL);
    (marks.candidate || marks.selected) && !marks.is_in_the_middle() && !succeeds
}

/// Whether the Node reports the success of an update that was never started. If the label stayed, it would count as the
/// result of the next update, which would then never happen. If the marks were withdrawn before the success came, the
/// machine controller processes the result first.
fn is_late_success(marks: Marks<'_>) -> bool {
    marks.result == Some(update_result::SUCCESSFUL) && !marks.candidate && !marks.selected && marks.reason.is_none()
}

/// Whether the set wants all its machines and its controller has observed that size. Before that, the set controller
/// could delete a machine that has lost the label as surplus.
fn has_seen_its_size(set: &SetState<'_>) -> bool {
    set.knows_its_size() && set.spec() >= set.counts.staying
}

/// Moves machines whose Nodes were updated to the new set; returns whether there are any.
pub fn transfer(seen: &DeploymentObservation, fleet: &Fleet<'_>, new: &SetState<'_>, plan: &mut Plan) -> bool {
    // When the new set is complete, old machines are surplus, updated or not.
    let most = fleet.replicas() - new.spec();
    let mut total = 0;
    for set in fleet.old.iter().filter(|set| !is_deleting_machines(set)) {
        let mut moved = 0;
        for machine in set.kept.iter().filter(|machine| may_move(seen, machine)) {
            if total + moved >= most {
                break;
            }
            if is_owned_by(machine.metadata(), set.set) {
                let (from, to) = (set.set.clone(), new.set.clone());
                plan.push("in-place/hand-over", Effect::HandOver { machine: (*machine).clone(), from, to });
                moved += 1;
            }
        }
        if moved > 0 {
            fleet.size_set("in-place/hand-over", set, set.spec() - moved, plan);
            total += moved;
        }
    }
    if total > 0 {
        fleet.size_set("in-place/hand-over", new, new.spec() + total, plan);
    }
    total > 0
}

/// Whether the set controller is about to delete machines. It might choose a machine that is being moved.
fn is_deleting_machines(set: &SetState<'_>) -> bool {
    set.counts.staying > set.spec()
}

fn may_move(seen: &DeploymentObservation, machine: &MachineSnapshot) -> bool {
    let is_ready = is_active(machine)
        && *machine.phase() != MachinePhase::InPlaceUpdating
        && marks::is_updated(machine)
        // The label is still there from an earlier hand-over, which belongs to another update.
        && !marks::is_handed_over(machine);
    is_ready && marks::node_of(seen, machine).is_some_and(|(_, marks)| marks.result == Some(update_result::SUCCESSFUL))
}

/// Whether the set is among the owners of the machine.
fn is_owned_by(machine: Metadata<'_>, set: &SetSnapshot) -> bool {
    machine.owner_references.iter().any(|owner| owner.uid == set.uid())
}
