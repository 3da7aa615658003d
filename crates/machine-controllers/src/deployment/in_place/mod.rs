//! Updates in place: machines are kept, their nodes are updated one after the other, and each machine then moves from its
//! old set to the new one.
//!
//! Who does what: this room labels nodes as candidates, selects them (orchestration `Auto`; with `Manual` the user does),
//! and moves machines between sets. The machine controller drains a selected node and mirrors what became of it; an agent
//! on the node carries the update out and labels the node with the result. What lives here: one pass ([`step`]); the marks
//! on Nodes ([`marks`]), the hand-over of machines ([`hand_over`]), the choice of nodes ([`selection`]).
//!
//! Source: spec/deployment-and-set §11 with D-12, D-14, D-16, D-23, D-24, D-47, D-49, D-54. Safer than in the
//! original: an old machine that surge has made superfluous goes only when enough others are available, and a machine
//! that was handed over may be deleted again only when its set controller has seen the new size. Pure.

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

/// What a deployment says that has no Nodes to update; the text of the original.
pub const NO_TARGET: &str = "in-place updates are not supported if running without a target cluster";

/// Where an update stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Something is to be done or waited for.
    UnderWay,
    /// Nothing is left to be done; the rollout may be complete.
    Reached,
}

/// Whether the deployment's strategy can't be carried out because there is no target cluster.
pub fn lacks_target(seen: &DeploymentObservation) -> bool {
    seen.deployment.strategy().strategy_type == StrategyType::InPlaceUpdate && seen.nodes.is_none()
}

/// Who picks the nodes; nobody for other strategies.
fn orchestration<'a>(fleet: &Fleet<'a>) -> Option<&'a OrchestrationType> {
    let strategy = fleet.deployment.strategy();
    let is_in_place = strategy.strategy_type == StrategyType::InPlaceUpdate;
    strategy.in_place_update.as_ref().filter(|_| is_in_place).map(|limits| &limits.orchestration_type)
}

/// Machines that a set has which is yet to be made: as many as surge allows, or none when the user picks. None as well while
/// another set may still act on an earlier size, as in [`grown`]: one that a machine has just moved to may make the machine
/// too whose place that one takes.
pub fn first_size(fleet: &Fleet<'_>) -> i32 {
    match orchestration(fleet) {
        Some(OrchestrationType::Manual) => 0,
        Some(_) if fleet.settling().is_some() => 0,
        _ => rolling::new_target(fleet, 0),
    }
}

/// Old sets may create machines again once updates in place are over or given up (D-14).
pub fn unblock_growth(fleet: &Fleet<'_>, plan: &mut Plan) {
    if fleet.deployment.strategy().strategy_type == StrategyType::InPlaceUpdate {
        return;
    }
    for set in fleet.old.iter().filter(|set| is_blocked(set)) {
        plan.push("in-place/unblock", Effect::SetGrowth(set.set.clone(), Growth::Free));
    }
}

/// While machines move, an old set that has one less must not make another.
fn block_growth(fleet: &Fleet<'_>, plan: &mut Plan) {
    for set in fleet.old.iter().filter(|set| !is_blocked(set)) {
        plan.push("in-place/block", Effect::SetGrowth(set.set.clone(), Growth::Blocked));
    }
}

/// Whether the set is kept from making machines.
pub fn is_blocked(set: &SetState<'_>) -> bool {
    set.set.label(label::SCALE_UP_DISABLED).is_some()
}

/// Adds the next step of an update in place. What was handed over before is dealt with first, whatever the strategy
/// ([`repair`], [`hand_over::finish`]).
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

/// Sizes of all sets, in the order of [`Fleet::all`]: the old ones, then the new one.
type Sizes = Vec<i32>;

fn sizes(fleet: &Fleet<'_>) -> Sizes {
    fleet.all().map(SetState::spec).collect()
}

/// Adds the effects for sets whose size changes; whether there are any.
fn size(rule: &'static str, fleet: &Fleet<'_>, sizes: Sizes, plan: &mut Plan) -> bool {
    let mut changes = false;
    for (set, to) in fleet.all().zip(sizes) {
        changes |= fleet.resize_set(rule, set, to, plan);
    }
    changes
}

/// Brings what the sets remember of the deployment's size up to date, where their own size stays (D-16).
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

/// The rule by which a set gets the size of what it has. It makes no machine, so that a frozen deployment has it too: else a
/// freeze would wait without end for machines that no set would delete.
pub const REPAIR: &str = "in-place/repair";

/// Mends what a pass that broke off has left, whatever the strategy; whether there was anything. Done before an old set that
/// has become the new one may grow again: it would replace machines that have only moved.
pub fn repair(fleet: &Fleet<'_>, plan: &mut Plan) -> bool {
    let mut mends = false;
    for (set, to) in fleet.all().zip(repaired(fleet)) {
        mends |= fleet.mend_set(REPAIR, set, to, plan);
    }
    mends
}

/// Machines that moved are taken into account by the set they are in, and a set that can make no machines wants no more than
/// it has.
fn repaired(fleet: &Fleet<'_>) -> Sizes {
    let repaired = |set: &SetState<'_>| {
        let wanted = if is_blocked(set) { set.spec().min(set.counts.staying) } else { set.spec() };
        // One that the scaler has named goes all the same; in its place another one would be made.
        let left = i32::try_from(set.kept.len()).unwrap_or(i32::MAX);
        wanted + (left - wanted).clamp(0, moved_in(set))
    };
    fleet.all().map(repaired).collect()
}

/// Machines of a set that were handed over to it and are not released yet. The label alone says so, as it does to the set's
/// controller: a Node that was made anew meanwhile tells of no update.
fn moved_in(set: &SetState<'_>) -> i32 {
    let moved = set.kept.iter().filter(|machine| marks::is_handed_over(machine)).count();
    i32::try_from(moved).unwrap_or(i32::MAX)
}

/// Whether the scaler wants this machine gone.
fn is_named(fleet: &Fleet<'_>, machine: &MachineSnapshot) -> bool {
    ranking::is_named(machine, fleet.deployment.metadata()) && !ranking::is_preserved(machine, fleet.now)
}

/// Whether machines are to go while others have just moved: a set that is made smaller then does not delete the machine that it
/// is made smaller for, before the labels are off, and [`repair`] would give it its size back. A frozen deployment does nothing
/// but let machines go. The labels come off as soon as the set's controller has seen a size that counts what has moved.
pub fn must_arrive_first(fleet: &Fleet<'_>) -> bool {
    let are_to_go = scaling::fewer(fleet) > 0 || is_frozen(fleet.deployment.metadata());
    are_to_go && fleet.all().any(|set| moved_in(set) > 0)
}

/// Old sets make no machines any more. What one wants and has not got is no machine beside which others are superfluous:
/// those would go now, and the wish with the next [`repair`].
fn without_unmade(fleet: &Fleet<'_>) -> Sizes {
    let old = fleet.old.iter().map(|set| set.spec().min(set.counts.staying));
    old.chain(fleet.new.iter().map(SetState::spec)).collect()
}

/// When the scaler makes a deployment smaller, the machines that it has named go, in whichever set they are. Otherwise the new
/// set would replace its named ones and an old set would lose others, which are yet to be updated and which nobody named.
fn without_named(fleet: &Fleet<'_>) -> Sizes {
    let mut fewer = scaling::fewer(fleet);
    let size_of = |set: &SetState<'_>| {
        // They lead the set's order of deletion, unless somebody has given others a priority below theirs.
        let is_next = |machine: &&&MachineSnapshot| is_named(fleet, machine) && !marks::is_handed_over(machine);
        let named = set.kept.iter().take_while(is_next).count();
        let named = i32::try_from(named).unwrap_or(i32::MAX).min(fewer).min(set.spec());
        fewer -= named;
        set.spec() - named
    };
    fleet.all().map(size_of).collect()
}

/// The new set fills what the old ones leave free, and with orchestration `Auto` what surge allows. The original uses surge
/// only when it makes the set: one that was there before, or made when there was no room, then never moves when no machine
/// may be missing.
fn grown(fleet: &Fleet<'_>, new: &SetState<'_>) -> Sizes {
    let replicas = fleet.replicas();
    let wanted = if new.spec() >= replicas {
        replicas
    } else if fleet.settling().is_some() {
        // One that is about to make a machine for the size it had would make it beside the one that takes its room.
        new.spec()
    } else {
        // What old sets have yet to delete takes room until it is on its way (decisions.md 39).
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

/// Old machines that the new set or a smaller deployment has made superfluous go, as far as availability allows. Beside a
/// complete new set that is all of them; before, what exceeds replicas and surge (D-16). A machine that was picked for its
/// update is not counted on: it will be missing in any case.
fn shrunk(seen: &DeploymentObservation, fleet: &Fleet<'_>, new: &SetState<'_>) -> Sizes {
    let replicas = fleet.replicas();
    let beside = replicas.saturating_add(fleet.limits.surge).saturating_sub(new.spec());
    let allowed = if new.spec() >= replicas { 0 } else { beside.min(replicas) };
    let old: i32 = fleet.old.iter().map(SetState::spec).fold(0, i32::saturating_add);
    let mut excess = (old - allowed).max(0);
    let mut to_spare = selection::to_spare(seen, fleet);
    let mut sizes = sizes(fleet);
    for (size, set) in sizes.iter_mut().zip(&fleet.old) {
        // A set does not delete a machine that has just moved.
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
