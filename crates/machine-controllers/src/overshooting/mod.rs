//! The overshoot guard: freezes sets that hold far more machines than anybody wants, and thaws them again.
//!
//! What lives here: when a set and its deployment are frozen and thawed. What does not: what a freeze means, which is the
//! set's and the deployment's own business (they honour the label also when this loop is off, decisions.md 34), VMs without
//! a machine and the freeze behind an unreachable API server (`safety`). Source: spec/deployment-and-set §17 with D-15,
//! D-17, D-18, D-19, D-52.

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

/// The shortest period between two runs that nothing has woken.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

/// What the overshoot guard works with.
#[derive(Clone)]
pub struct OvershootDeps {
    /// Cached views of the control cluster; machines, sets and deployments must have synced before the first run.
    pub views: ControlViews,
    /// Writes sets; its store must be `views.sets`.
    pub sets: Objects<SetSnapshot>,
    /// Writes deployments; its store must be `views.deployments`.
    pub deployments: Objects<DeploymentSnapshot>,
    /// The time.
    pub clock: SharedClock,
    /// Takes events; made with [`COMPONENT`].
    pub recorder: Recorder,
    /// `--safety-up` and `--safety-down`.
    pub margins: Margins,
    /// `--machine-safety-overshooting-period`; anything shorter than a second counts as one.
    pub period: Duration,
}

/// Guards the sets of a namespace.
pub struct OvershootController {
    deps: OvershootDeps,
}

impl OvershootController {
    /// A guard that works with these.
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
        // One error that is no refusal is reason enough to try again soon.
        let worst = errors.iter().find(|error| !error.is_refusal()).or(errors.first());
        worst.map_or(Outcome::Settled, |error| Outcome::after(error, text))
    }
}

#[cfg(test)]
mod tests;
