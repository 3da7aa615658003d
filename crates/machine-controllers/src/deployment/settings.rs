//! Settings of rollouts from the command line.

use serde::Serialize;

use super::availability::AvailabilityRule;

/// Whether Nodes are annotated during a rollout, so that cluster-autoscaler does not scale them down
/// (`--autoscaler-scaledown-annotation-during-rollout`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum AutoscalerAnnotations {
    /// Nodes get the annotations and lose them when the rollout is complete.
    #[default]
    DuringRollouts,
    /// Nodes are not annotated.
    Never,
}

/// Whether old sets get new timeouts while their machines are being replaced (`--sync-old-machine-sets`, D-51).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum OldSets {
    /// They keep their timeouts, as in the original.
    #[default]
    Left,
    /// They and their machines get the deployment's machine configuration.
    Synced,
}

/// Settings of the deployment controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeploymentSettings {
    /// Whether Nodes are annotated during a rollout.
    pub autoscaler_annotations: AutoscalerAnnotations,
    /// The machines that count as available in rollouts.
    pub availability: AvailabilityRule,
    /// Whether old sets get new timeouts.
    pub old_sets: OldSets,
}
