//! What the command line decides about rollouts.

use serde::Serialize;

use super::availability::AvailabilityRule;

/// Whether nodes are kept from cluster-autoscaler while a rollout runs (`--autoscaler-scaledown-annotation-during-rollout`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum AutoscalerAnnotations {
    /// Nodes get the annotations and lose them when the rollout is complete.
    #[default]
    DuringRollouts,
    /// Nodes are left alone.
    Never,
}

/// Whether old sets get new timeouts while their machines are replaced (`--sync-old-machine-sets`, D-51).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum OldSets {
    /// They keep what they were made with, as in the original.
    #[default]
    Left,
    /// They get the deployment's machine configuration, and their machines with them.
    Synced,
}

/// Settings of the deployment controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeploymentSettings {
    /// Whether nodes are kept from cluster-autoscaler while a rollout runs.
    pub autoscaler_annotations: AutoscalerAnnotations,
    /// Which machines rollouts count on.
    pub availability: AvailabilityRule,
    /// Whether old sets get new timeouts.
    pub old_sets: OldSets,
}
