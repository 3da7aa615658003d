//! What the command line decides about rollouts.

use serde::Serialize;

/// Whether nodes are kept from cluster-autoscaler while a rollout runs (`--autoscaler-scaledown-annotation-during-rollout`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum AutoscalerAnnotations {
    /// Nodes get the annotations and lose them when the rollout is complete.
    #[default]
    DuringRollouts,
    /// Nodes are left alone.
    Never,
}

/// Settings of the deployment controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeploymentSettings {
    /// Whether nodes are kept from cluster-autoscaler while a rollout runs.
    pub autoscaler_annotations: AutoscalerAnnotations,
}
