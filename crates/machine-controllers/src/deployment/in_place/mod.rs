//! Updates in place: machines are kept, their nodes are updated one after the other, and each updated machine moves
//! from its old set to the new one.
//!
//! This folder labels nodes as candidates, selects them (orchestration `Auto`; with `Manual` the user selects), and
//! moves machines between sets. The machine controller drains a selected node and copies the result of the update. An
//! agent on the node carries out the update and labels the node with the result. The parts: one pass ([`step`]), the
//! marks on Nodes ([`marks`]), the hand-over of machines ([`hand_over`]), the selection of nodes ([`selection`]).
//!
//! Source: spec/deployment-and-set §11 with D-12, D-14, D-16, D-23, D-24, D-47, D-49, D-54. Safer than the original in
//! two ways. A surplus old machine is deleted only when enough others are available. A machine that was handed over can
//! be deleted only after its set controller has observed the new size. Pure.

pub mod hand_over;
pub mod marks;
pub mod selection;

use controller_runtime::snapshot::Snapshot;

use super::{
    decide::is_frozen,
    fleet::{Fleet, SetState},
    node_side_effects,
    observe::DeploymentObservation,
    plan::{Effect, Growth, Plan},
    revision, rolling, scaling,
};
use crate::{set::ranking, snapshots::MachineSnapshot};
use machine_api::{
    names::label,
    v1alpha1::{OrchestrationType, StrategyType},
};

/// The message of a deployment that has no Nodes to update; the text of the original.
pub const NO_TARGET: &str = "in-place updates are not supported if running without a target cluster";

/// The stage of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is something to do or to wait for.
    UnderWay,
    /// There is nothing left to do; the rollout may be complete.
    Reached,
}

/// Whether the deployment's strategy can't be carried out because there is no target cluster.
pub fn lacks_target(seen: &DeploymentObservation) -> bool {
    seen.deployment.strategy().strategy_type == StrategyType::InPlaceUpdate && seen.nodes.is_none()
}

/// Whether the controller or the user selects the nodes; `None` for other strategies.
fn orchestration<'a>(fleet: &Fleet<'a>) -> Option<&'a OrchestrationType> {
    let strategy = fleet.deployment.strategy();
    let is_in_place = strategy.strategy_type == StrategyType::InPlaceUpdate;
    strategy.in_place_update.as_ref().filter(|_| is_in_place).map(|limits| &limits.orchestration_type)
}

/// The size of a set that is about to be created: the size that surge allows, or zero if the user selects the nodes.
/// Also zero while another set may still act on an earlier size, as in [`grown`]: a set to which a machine has just
/// moved may also create the machine that the moved one replaces.
pub fn first_size(fleet: &Fleet<'_>) -> i32 {
    match orchestration(fleet) {
        Some(OrchestrationType::Manual) => 0,
        Some(_) if fleet.settling().is_some() => 0,
        _ => rolling::new_target(fleet, 0),
    }
}

/// Lets old sets create machines again when updates in place are complete or abandoned (D-14).
pub fn unblock_growth(fleet: &Fleet<'_>, plan: &mut Plan) {
    if fleet.deployment.strategy().strategy_type == StrategyType::InPlaceUpdate {
        return;
    }
    for set in fleet.old.iter().filter(|set| is_blocked(set)) {
        plan.push("in-place/unblock", Effect::SetGrowth(set.set.clone(), Growth::Free));
    }
}

/// Keeps an old set from replacing a machine that has moved away.
fn block_growth(fleet: &Fleet<'_>, plan: &mut Plan) {
    for set in fleet.old.iter().filter(|set| !is_blocked(set)) {
        plan.push("in-place/block", Effect::SetGrowth(set.set.clone(), Growth::Blocked));
    }
}

/// Whether the set may not create machines.
pub fn is_blocked(set: &SetState<'_>) -> bool {
    set.set.label(label::SCALE_UP_DISABLED).is_some()
}

/// Adds the next step of an update in place. Earlier hand-overs are finished first, whatever the strategy ([`repair`],
/// [`hand_over::finish`]).
pub fn step(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) -> Stage {
    if seen.nodes.is_none() {
        return Stage::UnderWay;
    }
    let Some(new) = &fleet.new else {
        revision::make(seen, fleet, first_size(fleet), plan);
        return Stage::UnderWay;
    };
    if fleet.is_rolling() {
        block_growth(fleet, plan);
        node_side_effects::disable_scale_down(seen, fleet, plan);
    }
    node_side_effects::taint_nodes(seen, fleet, plan);
    marks::mark_candidates(seen, fleet, plan);
    if must_arrive_first(fleet) {
        return Stage::UnderWay;
    }
    let may_update = !is_frozen(seen.deployment.metadata());
    let is_moving = size("in-place/unmade", fleet, without_unmade(fleet), plan)
        || size("in-place/named", fleet, without_named(fleet), plan)
        || size("in-place/new", fleet, grown(fleet, new), plan)
        || (may_update && hand_over::transfer(seen, fleet, new, plan))
        || size("in-place/superfluous", fleet, shrunk(seen, fleet, new), plan)
        || (may_update && selection::select(seen, fleet, new, plan));
    remember_size(fleet, plan);
    if is_moving { Stage::UnderWay } else { Stage::Reached }
}

/// Sizes of all sets in the order of [`Fleet::all`]: the old sets, then the new one.
type Sizes = Vec<i32>;

fn sizes(fleet: &Fleet<'_>) -> Sizes {
    fleet.all().map(SetState::spec).collect()
}

/// Adds effects for the sets whose size changes; returns whether there are any.
fn size(rule: &'static str, fleet: &Fleet<'_>, sizes: Sizes, plan: &mut Plan) -> bool {
    let mut changes = false;
    for (set, to) in fleet.all().zip(sizes) {
        changes |= fleet.resize_set(rule, set, to, plan);
    }
    changes
}

/// Updates the deployment size that sets remember, for sets whose own size does not change (D-16).
fn remember_size(fleet: &Fleet<'_>, plan: &mut Plan) {
    let resized: Vec<String> = plan
        .steps
        .iter()
        .filter_map(|step| match &step.effect {
            Effect::ScaleSet { set, .. } => Some(set.name().to_owned()),
            _ => None,
        })
        .collect();
    for set in fleet.all().filter(|set| set.is_active() && !resized.iter().any(|name| name == set.name())) {
        fleet.size_set("in-place/remember", set, set.spec(), plan);
    }
}

/// The rule that sets a set's size to the number of its machines. It creates no machine, so it also applies to a frozen
/// deployment: otherwise the freeze would wait forever for machines that no set deletes.
pub const REPAIR: &str = "in-place/repair";

/// Corrects sizes after a pass that ended early, whatever the strategy; returns whether there was anything to correct.
/// This happens before an old set that has become the new one may grow again: it would replace machines that have only
/// moved.
pub fn repair(fleet: &Fleet<'_>, plan: &mut Plan) -> bool {
    let mut mends = false;
    for (set, to) in fleet.all().zip(repaired(fleet)) {
        mends |= fleet.mend_set(REPAIR, set, to, plan);
    }
    mends
}

/// A set counts the machines that have moved to it. A set that may not create machines wants no more than it has.
fn repaired(fleet: &Fleet<'_>) -> Sizes {
    let repaired = |set: &SetState<'_>| {
        let wanted = if is_blocked(set) { set.spec().min(set.counts.staying) } else { set.spec() };
        // A machine that the scaler has named is deleted all the same; counting it would create a replacement.
        let left = i32::try_from(set.kept.len()).unwrap_or(i32::MAX);
        wanted + (left - wanted).clamp(0, moved_in(set))
    };
    fleet.all().map(repaired).collect()
}

/// The machines that were handed over to the set and are not released yet. Only the label decides, as in the set
/// controller: a Node that was created again has no marks of the update.
fn moved_in(set: &SetState<'_>) -> i32 {
    let moved = set.kept.iter().filter(|machine| marks::is_handed_over(machine)).count();
    i32::try_from(moved).unwrap_or(i32::MAX)
}

/// Whether the scaler wants this machine deleted.
fn is_named(fleet: &Fleet<'_>, machine: &MachineSnapshot) -> bool {
    ranking::is_named(machine, fleet.deployment.metadata()) && !ranking::is_preserved(machine, fleet.now)
}

/// Whether deletions must wait until moved machines have lost their labels. A set that is made smaller before that
/// deletes another machine or none, and [`repair`] would set its size back. This applies to a frozen deployment too,
/// which only deletes machines. The labels are removed as soon as the set controller has observed a size that includes
/// the moved machines.
pub fn must_arrive_first(fleet: &Fleet<'_>) -> bool {
    let are_to_go = scaling::fewer(fleet) > 0 || is_frozen(fleet.deployment.metadata());
    are_to_go && fleet.all().any(|set| moved_in(set) > 0)
}

/// Old sets create no machines any more. A machine that an old set wants but does not have must not make other machines
/// surplus: they would be deleted now, and the next [`repair`] would remove the wanted machine as well.
fn without_unmade(fleet: &Fleet<'_>) -> Sizes {
    let old = fleet.old.iter().map(|set| set.spec().min(set.counts.staying));
    old.chain(fleet.new.iter().map(SetState::spec)).collect()
}

/// When the scaler shrinks a deployment, the machines that it has named are deleted, whatever their set. Otherwise the
/// new set would replace its named machines, and an old set would delete machines that are still to be updated and that
/// the scaler has not named.
fn without_named(fleet: &Fleet<'_>) -> Sizes {
    let mut fewer = scaling::fewer(fleet);
    let size_of = |set: &SetState<'_>| {
        // They come first in the set's order of deletion, unless other machines have a lower priority.
        let is_next = |machine: &&&MachineSnapshot| is_named(fleet, machine) && !marks::is_handed_over(machine);
        let named = set.kept.iter().take_while(is_next).count();
        let named = i32::try_from(named).unwrap_or(i32::MAX).min(fewer).min(set.spec());
        fewer -= named;
        set.spec() - named
    };
    fleet.all().map(size_of).collect()
}

/// The new set takes the replicas that the old sets leave, and with orchestration `Auto` also the surge. The original
/// uses surge only when it creates the set. There a set that existed before, or was created without free replicas, never
/// grows if no machine may be unavailable.
fn grown(fleet: &Fleet<'_>, new: &SetState<'_>) -> Sizes {
    let replicas = fleet.replicas();
    let wanted = if new.spec() >= replicas {
        replicas
    } else if fleet.settling().is_some() {
        // A set that may still be creating a machine for its earlier size would end up with one machine too many.
        new.spec()
    } else {
        // Machines that old sets have not started to delete still count (decisions.md 39).
        let committed = fleet.sum(SetState::taken);
        let room = replicas.saturating_add(fleet.limits.surge).saturating_sub(committed);
        new.spec() + room.clamp(0, replicas - new.spec())
    };
    let mut sizes = sizes(fleet);
    if let Some(last) = sizes.last_mut() {
        *last = wanted;
    }
    sizes
}

/// Deletes old machines that the new set, or a smaller deployment, has made surplus, as far as availability allows.
/// When the new set is complete, all old machines are surplus; before, those beyond replicas and surge (D-16). A
/// machine that was selected for its update does not count as available: it will be unavailable in any case.
fn shrunk(seen: &DeploymentObservation, fleet: &Fleet<'_>, new: &SetState<'_>) -> Sizes {
    let replicas = fleet.replicas();
    let beside = replicas.saturating_add(fleet.limits.surge).saturating_sub(new.spec());
    let allowed = if new.spec() >= replicas { 0 } else { beside.min(replicas) };
    let old: i32 = fleet.old.iter().map(SetState::spec).fold(0, i32::saturating_add);
    let mut excess = (old - allowed).max(0);
    let mut to_spare = selection::to_spare(seen, fleet);
    let mut sizes = sizes(fleet);
    for (size, set) in sizes.iter_mut().zip(&fleet.old) {
        // A set does not delete a machine that has just moved to it.
        let most = (*size - moved_in(set)).max(0).min(excess);
        let cut = fleet.available_by_size(set).cut(*size, most, to_spare);
        to_spare -= cut.cost;
        *size -= cut.machines;
        excess -= cut.machines;
    }
    sizes
}

#[cfg(test)]
mod property;
#[cfg(test)]
mod selection_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
