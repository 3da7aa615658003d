//! How a machine moves from its old set to the new one, and what is cleared up behind it.
//!
//! Three writes: the machine changes its owner and gets a label that keeps the set controller from deleting it, the old
//! set shrinks, the new set grows. After each of them the process may end; whatever was left is seen in the next pass. Then
//! the Node is released and, once the new set's controller has seen the new size, the label comes off.
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

/// Clears up behind machines that were handed over, and takes marks off Nodes that need no update any more. Done in every
/// pass, whatever the strategy: what was begun is finished also when the user has changed his mind.
pub fn finish(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    for set in fleet.all() {
        let is_new = fleet.new.as_ref().is_some_and(|new| new.name() == set.name());
        for machine in set.machines.iter().filter(|machine| !is_terminating(machine)) {
            if let Some((node, marks)) = marks::node_of(seen, machine) {
                // In an old set an updated Node without the label on its machine is one that is yet to be handed over.
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

/// Whether marks are on the Node for an update that will not come: the template was changed back (D-14). One that has
/// begun is let end, and a success is released instead.
fn is_left_over(marks: Marks<'_>) -> bool {
    let succeeds = marks.result == Some(update_result::SUCCESSFUL);
    (marks.candidate || marks.selected) && !marks.is_in_the_middle() && !succeeds
}

/// Whether a success is told of an update that was never begun. Left on the Node, it would be taken for that of the next
/// update, which would then never happen. One that comes after its marks were withdrawn is first taken over by the machine
/// controller.
fn is_late_success(marks: Marks<'_>) -> bool {
    marks.result == Some(update_result::SUCCESSFUL) && !marks.candidate && !marks.selected && marks.reason.is_none()
}

/// Whether the set wants all its machines and its controller knows. Before, a machine without the label might be taken
/// for one too many.
fn has_seen_its_size(set: &SetState<'_>) -> bool {
    set.knows_its_size() && set.spec() >= set.counts.staying
}

/// Moves machines whose Nodes were updated to the new set; whether there are any.
pub fn transfer(seen: &DeploymentObservation, fleet: &Fleet<'_>, new: &SetState<'_>, plan: &mut Plan) -> bool {
    // Beside a complete new set an old machine is superfluous, updated or not.
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

/// Whether the set's controller is about to delete machines; it might choose one that is being moved.
fn is_deleting_machines(set: &SetState<'_>) -> bool {
    set.counts.staying > set.spec()
}

fn may_move(seen: &DeploymentObservation, machine: &MachineSnapshot) -> bool {
    let is_ready = is_active(machine)
        && *machine.phase() != MachinePhase::InPlaceUpdating
        && marks::is_updated(machine)
        // Still marked from an earlier hand-over: that was another update.
        && !marks::is_handed_over(machine);
    is_ready && marks::node_of(seen, machine).is_some_and(|(_, marks)| marks.result == Some(update_result::SUCCESSFUL))
}

/// Whether the set is among the owners.
fn is_owned_by(machine: Metadata<'_>, set: &SetSnapshot) -> bool {
    machine.owner_references.iter().any(|owner| owner.uid == set.uid())
}
