//! The strategy Recreate: old machines are deleted first, then new ones are created.
//!
//! Source: spec/deployment-and-set §10. Pure.

use super::{fleet::Fleet, observe::DeploymentObservation, plan::Plan, revision};

/// The stage of a recreation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is something to do or to wait for.
    UnderWay,
    /// The old machines are gone and the new set has its size.
    Reached,
}

/// Adds the next step of a recreation.
pub fn step(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) -> Stage {
    let mut shrinks = false;
    for set in fleet.old.iter().filter(|set| set.is_active()) {
        shrinks |= fleet.resize_set("recreate/old", set, 0, plan);
    }
    if shrinks || fleet.old.iter().any(|set| set.counts.replicas > 0 || set.may_be_making()) {
        return Stage::UnderWay;
    }
    match &fleet.new {
        None => {
            revision::make(seen, fleet, fleet.replicas(), plan);
            Stage::UnderWay
        }
        Some(new) if fleet.resize_set("recreate/new", new, fleet.replicas(), plan) => Stage::UnderWay,
        Some(_) => Stage::Reached,
    }
}
