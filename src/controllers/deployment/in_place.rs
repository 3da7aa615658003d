//! Deployments with strategy `InPlaceUpdate`.
//!
//! Their sets are made, scaled and kept in line like others; the update of existing machines is not carried out. Such a
//! deployment says so, and its machines stay as they are: none is deleted, and no second set is made.

use super::{fleet::Fleet, observe::DeploymentObservation, plan::Plan, revision};

/// Whether machines wait for an update in place.
pub fn waits(fleet: &Fleet<'_>) -> bool {
    fleet.is_rolling()
}

/// What the deployment says while its machines wait.
pub fn text(fleet: &Fleet<'_>) -> String {
    format!(
        "machinedeployment \"{}\": this version does not carry out in-place updates; {} machines stay as they are. \
         Take the change of the template back, or set spec.strategy to RollingUpdate to replace them",
        fleet.deployment.metadata.name.as_deref().unwrap_or_default(),
        fleet.old.iter().map(|set| set.counts.replicas).sum::<i32>(),
    )
}

/// Adds what is to be done when no machine waits.
pub fn step(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    if waits(fleet) {
        return;
    }
    match &fleet.new {
        None => {
            revision::make(seen, fleet, fleet.replicas(), plan);
        }
        Some(new) => {
            fleet.resize_set("in-place/size", new, fleet.replicas(), plan);
        }
    }
}
