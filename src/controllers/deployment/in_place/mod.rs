//! Updates in place: machines are kept, their nodes are updated one after the other, and each machine then moves from its
//! old set to the new one.
//!
//! Who does what: this room labels nodes as candidates, selects them (orchestration `Auto`; with `Manual` the user does),
//! and moves machines between sets. The machine controller drains a selected node and mirrors what became of it; an agent
//! on the node carries the update out and labels the node with the result. What lives here: one pass ([`step`]); the marks
//! on Nodes ([`marks`]), the hand-over of machines ([`hand_over`]), the choice of nodes ([`selection`]).
//!
//! Source: spec/deployment-and-set §11 with D-12, D-14, D-16, D-23, D-24, D-47, D-49, D-54. Two things are safer than in
//! the original: an old machine that surge has made superfluous goes only when enough others are available, and a machine
//! that was handed over may be deleted again only when its set controller has seen the new size. Pure.

pub mod hand_over;
pub mod marks;
pub mod selection;

use serde_json::json;

use super::{
    decide::is_frozen,
    fleet::{Fleet, SetState},
    node_side_effects,
    observe::DeploymentObservation,
    plan::{Effect, Plan},
    revision, rolling,
};
use crate::{
    api::{
        names::label,
        v1alpha1::{OrchestrationType, StrategyType},
    },
    cluster::{key::Target, objects::Patch},
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
    seen.deployment.spec.strategy.strategy_type == StrategyType::InPlaceUpdate && seen.nodes.is_none()
}

/// Who picks the nodes; nobody for other strategies.
fn orchestration<'a>(fleet: &Fleet<'a>) -> Option<&'a OrchestrationType> {
    let strategy = &fleet.deployment.spec.strategy;
    let is_in_place = strategy.strategy_type == StrategyType::InPlaceUpdate;
    strategy.in_place_update.as_ref().filter(|_| is_in_place).map(|limits| &limits.orchestration_type)
}

/// Machines that a set has which is yet to be made: as many as surge allows, or none when the user picks.
pub fn first_size(fleet: &Fleet<'_>) -> i32 {
    match orchestration(fleet) {
        Some(OrchestrationType::Manual) => 0,
        _ => rolling::new_target(fleet, 0),
    }
}

/// Old sets may create machines again once updates in place are over or given up (D-14).
pub fn unblock_growth(fleet: &Fleet<'_>, plan: &mut Plan) {
    if fleet.deployment.spec.strategy.strategy_type == StrategyType::InPlaceUpdate {
        return;
    }
    for set in fleet.old.iter().filter(|set| is_blocked(set)) {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { label::SCALE_UP_DISABLED: null } } }));
        plan.push("in-place/unblock", Effect::PatchSet { set: Target::of(&**set.set), patch });
    }
}

/// While machines move, an old set that has one less must not make another.
fn block_growth(fleet: &Fleet<'_>, plan: &mut Plan) {
    for set in fleet.old.iter().filter(|set| !is_blocked(set)) {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { label::SCALE_UP_DISABLED: "true" } } }));
        plan.push("in-place/block", Effect::PatchSet { set: Target::of(&**set.set), patch });
    }
}

fn is_blocked(set: &SetState<'_>) -> bool {
    set.set.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label::SCALE_UP_DISABLED))
}

/// Adds the next step of an update in place. Labels and sizes of nodes and sets that were just handed over are dealt with
/// before, whatever the strategy ([`hand_over::finish`]).
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
    let may_update = !is_frozen(&seen.deployment.metadata);
    let is_moving = size("in-place/repair", fleet, repaired(fleet, new), plan)
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
            Effect::ScaleSet { set, .. } => Some(set.key.name.clone()),
            _ => None,
        })
        .collect();
    for set in fleet.all().filter(|set| set.is_active() && !resized.iter().any(|name| name == set.name())) {
        fleet.size_set("in-place/remember", set, set.spec(), plan);
    }
}

/// What a pass that broke off has left: machines that moved are taken into account by their new set, and an old set wants
/// no more machines than it has, for it can make none.
fn repaired(fleet: &Fleet<'_>, new: &SetState<'_>) -> Sizes {
    let old = fleet.old.iter().map(|set| if is_blocked(set) { set.spec().min(set.counts.staying) } else { set.spec() });
    let moved = new.kept.iter().filter(|machine| marks::is_handed_over(machine) && marks::is_updated(machine)).count();
    let moved = i32::try_from(moved).unwrap_or(i32::MAX);
    let uncounted = (new.counts.staying - new.spec()).clamp(0, moved);
    old.chain([new.spec() + uncounted]).collect()
}

/// The new set fills what the old ones leave free.
fn grown(fleet: &Fleet<'_>, new: &SetState<'_>) -> Sizes {
    let replicas = fleet.replicas();
    let old: i32 = fleet.old.iter().map(SetState::spec).fold(0, i32::saturating_add);
    let wanted = if new.spec() >= replicas {
        replicas
    } else {
        let free = replicas.saturating_sub(old).max(new.spec());
        // What old sets have yet to delete takes room until it is on its way (decisions.md 39).
        let committed = fleet.sum(|set| set.spec().max(set.counts.staying));
        let room = replicas.saturating_add(fleet.limits.surge).saturating_sub(committed).max(0);
        free.min(new.spec().saturating_add(room))
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
        // A set deletes those first that are no use anyway.
        let useless = (set.spec() - set.kept_available).clamp(0, *size);
        let cut = excess.min(useless.saturating_add(to_spare)).min(*size);
        to_spare -= (cut - useless).max(0);
        *size -= cut;
        excess -= cut;
    }
    sizes
}

#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;
