//! The overshoot guard: freezes sets that have far more machines than wanted, and unfreezes them again.
//!
//! This folder decides when a set and its deployment are frozen and unfrozen. Elsewhere: the effect of a freeze, which
//! sets and deployments implement themselves (they obey the label even when this loop is off, decisions.md 34); VMs
//! without a machine and the freeze while an API server is unreachable (`safety`). Source: spec/deployment-and-set §17
//! with D-15, D-17, D-18, D-19, D-52.

mod act;
pub mod decide;
pub mod freeze;
pub mod limits;
pub mod observe;
mod patches;
pub mod routing;

use std::time::Duration;

pub use self::limits::Margins;
use self::observe::OvershootObservation;
use super::views::ControlViews;
use crate::snapshots::{DeploymentSnapshot, SetSnapshot};
use controller_runtime::{
    clock::SharedClock, error::ApiError, events::Recorder, key::ObjectKey, objects::Objects, queue::Outcome,
};

/// Component name of this loop's events.
pub const COMPONENT: &str = "machine-controller-manager";

/// Minimum period between two runs if no change wakes the loop.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

/// The dependencies of the overshoot guard.
#[derive(Clone)]
pub struct OvershootDeps {
    /// Stores of the control cluster; machines, sets and deployments must have synced before the first run.
    pub views: ControlViews,
    /// Writes sets; its store must be `views.sets`.
    pub sets: Objects<SetSnapshot>,
    /// Writes deployments; its store must be `views.deployments`.
    pub deployments: Objects<DeploymentSnapshot>,
    /// The clock.
    pub clock: SharedClock,
    /// Writes events; made with [`COMPONENT`].
    pub recorder: Recorder,
    /// `--safety-up` and `--safety-down`.
    pub margins: Margins,
    /// `--machine-safety-overshooting-period`; at least one second.
    pub period: Duration,
}

/// Watches the sets of a namespace.
pub struct OvershootController {
    deps: OvershootDeps,
}

impl OvershootController {
    /// A guard with these dependencies.
    pub fn new(deps: OvershootDeps) -> Self {
        Self { deps }
    }

    /// One run over the namespace of the key ([`routing::key_of`]).
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let seen =
            OvershootObservation::look_up(&self.deps.views, &key.namespace, self.deps.margins, self.deps.clock.now());
        let errors = self.act(&decide::decide(&seen), seen.now).await;
        if errors.is_empty() || errors.iter().any(|error| matches!(error, ApiError::NotLeading(_))) {
            return Outcome::LookAgain(self.deps.period.max(SHORTEST_PERIOD), "the period of the overshoot guard");
        }
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let text = format!("overshoot guard of namespace {}: {}", key.namespace, texts.join("; "));
        // An error that is not a refusal is retried soon, so it decides about the outcome.
        let worst = errors.iter().find(|error| !error.is_refusal()).or(errors.first());
        worst.map_or(Outcome::Settled, |error| Outcome::after(error, text))
    }
}

#[cfg(test)]
mod tests;
