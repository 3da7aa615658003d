//! Selects the nodes that are updated next (orchestration `Auto`).
//!
//! Unhealthy machines come first, then the others in the order in which a set would delete them. Never more machines
//! are unavailable than the deployment allows; unavailable machines and machines being updated are counted as one set.
//!
//! Source: spec/deployment-and-set §11.4 with D-24 (ranked; a vanished node is not being updated) and D-54. Pure.

use super::marks;
use crate::{
    deployment::{
        fleet::{Fleet, SetState},
        observe::DeploymentObservation,
        plan::Plan,
    },
    set::{counts::is_terminating, ranking::sort_for_deletion},
    snapshots::{MachineSnapshot, NodeSnapshot},
};
use machine_api::{
    names::{label, update_result},
    v1alpha1::{MachinePhase, OrchestrationType},
};

/// Selects nodes; returns whether it selected any.
pub fn select(seen: &DeploymentObservation, fleet: &Fleet<'_>, new: &SetState<'_>, plan: &mut Plan) -> bool {
    if super::orchestration(fleet) != Some(&OrchestrationType::Auto) {
        return false;
    }
    // No more than this number need an update: surge has replaced the others.
    let mut needed = fleet.replicas() - new.spec() - under_way(seen, fleet);
    let mut to_spare = to_spare(seen, fleet);
    let mut picked = false;
    for set in &fleet.old {
        for (machine, node) in candidates(seen, set) {
            let cost = i32::from(fleet.is_available(machine));
            if needed > 0 && cost <= to_spare {
                marks::select(node, plan);
                needed -= 1;
                to_spare -= cost;
                picked = true;
            }
        }
    }
    picked
}

fn is_picked(seen: &DeploymentObservation, machine: &MachineSnapshot) -> bool {
    marks::node_of(seen, machine).is_some_and(|(_, marks)| marks.selected)
}

/// Selected and not updated yet. The machine is or will soon be unavailable, whatever its phase.
fn is_being_updated(seen: &DeploymentObservation, machine: &MachineSnapshot) -> bool {
    marks::node_of(seen, machine)
        .is_some_and(|(_, marks)| marks.selected && marks.result != Some(update_result::SUCCESSFUL))
}

/// Machines of old sets that were selected and have not moved yet.
pub fn under_way(seen: &DeploymentObservation, fleet: &Fleet<'_>) -> i32 {
    let picked = fleet.old.iter().flat_map(|set| &set.kept).filter(|machine| is_picked(seen, machine)).count();
    i32::try_from(picked).unwrap_or(i32::MAX)
}

/// Whether an old machine counts: it is available and was not selected. A machine without the label that names its Node
/// does not show whether it was selected, so it does not count; its controller restores the label.
fn counts(seen: &DeploymentObservation, fleet: &Fleet<'_>, machine: &MachineSnapshot) -> bool {
    fleet.is_available(machine) && machine.label(label::NODE).is_some() && !is_being_updated(seen, machine)
}

/// The number of available machines that may become unavailable for a while.
pub fn to_spare(seen: &DeploymentObservation, fleet: &Fleet<'_>) -> i32 {
    let old = fleet.old.iter().map(|set| left_available(set, |machine| counts(seen, fleet, machine)));
    let new = fleet.new.iter().map(|new| left_available(new, |machine| fleet.is_available(machine)));
    (old.chain(new).fold(0, i32::saturating_add) - fleet.min_available()).max(0)
}

/// The number of counted machines that certainly remain after the set has deleted its surplus. It is unknown which
/// machines the set deletes: it may have chosen them already, and a Node drained or updated since then has changed the
/// order.
fn left_available(set: &SetState<'_>, counts: impl Fn(&MachineSnapshot) -> bool) -> i32 {
    let available = set.machines.iter().filter(|machine| !is_terminating(machine) && counts(machine));
    // A machine that has just moved is never deleted.
    let (moved, others): (Vec<_>, Vec<_>) = available.partition(|machine| marks::is_handed_over(machine));
    let number = |machines: usize| i32::try_from(machines).unwrap_or(i32::MAX);
    let going = set.counts.staying - number(set.kept.len());
    number(moved.len()) + (number(others.len()) - going).max(0)
}

/// Machines of a set whose nodes may be selected, best first.
fn candidates<'a>(seen: &'a DeploymentObservation, set: &SetState<'a>) -> Vec<(&'a MachineSnapshot, &'a NodeSnapshot)> {
    let mut machines: Vec<&MachineSnapshot> = set.kept.iter().copied().filter(|machine| has_joined(machine)).collect();
    sort_for_deletion(&mut machines, seen.now);
    machines
        .into_iter()
        .filter_map(|machine| {
            let (node, marks) = marks::node_of(seen, machine)?;
            (marks.candidate && !marks.selected && !marks::is_handed_over(machine)).then_some((machine, node))
        })
        .collect()
}

/// Whether the machine has a node to update: it has joined, and is not going to be replaced.
fn has_joined(machine: &MachineSnapshot) -> bool {
    match machine.phase() {
        MachinePhase::Available
        | MachinePhase::Running
        | MachinePhase::Unknown
        | MachinePhase::InPlaceUpdating
        | MachinePhase::InPlaceUpdateSuccessful
        | MachinePhase::InPlaceUpdateFailed => true,
        MachinePhase::Unset
        | MachinePhase::Pending
        | MachinePhase::CrashLoopBackOff
        | MachinePhase::Failed
        | MachinePhase::Terminating
        | MachinePhase::Other(_) => false,
    }
}
