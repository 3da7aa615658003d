//! Accessors of deployments.

use controller_runtime::snapshot::Snapshot;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube_values::selector::Labels;
use machine_api::v1alpha1::{
    MachineDeployment, MachineDeploymentStatus, MachineDeploymentStrategy, MachineTemplateSpec, RollbackConfig,
};

use super::{
    metadata::{Described, Metadata, metadata},
    snapshot,
};

snapshot! {
    /// A deployment.
    DeploymentSnapshot of MachineDeployment
}
metadata!(DeploymentSnapshot of MachineDeployment);

impl DeploymentSnapshot {
    /// The wanted number of machines.
    pub fn replicas(&self) -> i32 {
        self.0.spec.replicas
    }

    /// Which sets and machines belong to the deployment.
    pub fn selector(&self) -> Option<&LabelSelector> {
        self.0.spec.selector.as_ref()
    }

    /// The template of new machines. Templates are compared and hashed as a whole.
    pub fn template(&self) -> &MachineTemplateSpec {
        &self.0.spec.template
    }

    /// How machines are replaced.
    pub fn strategy(&self) -> &MachineDeploymentStrategy {
        &self.0.spec.strategy
    }

    /// Seconds that a machine must be ready to count as available.
    pub fn min_ready_seconds(&self) -> i32 {
        self.0.spec.min_ready_seconds
    }

    /// How many old sets are kept; absent keeps all.
    pub fn revision_history_limit(&self) -> Option<i32> {
        self.0.spec.revision_history_limit
    }

    /// Whether rollouts are stopped.
    pub fn is_paused(&self) -> bool {
        self.0.spec.paused
    }

    /// The request to return to an earlier revision.
    pub fn rollback_to(&self) -> Option<&RollbackConfig> {
        self.0.spec.rollback_to.as_ref()
    }

    /// Seconds without progress after which the rollout counts as stuck; absent means never.
    pub fn progress_deadline_seconds(&self) -> Option<i32> {
        self.0.spec.progress_deadline_seconds
    }

    /// The maximum number of Failed machines that a set may preserve automatically.
    pub fn auto_preserve_failed_machine_max(&self) -> i32 {
        self.0.spec.auto_preserve_failed_machine_max
    }

    /// Whether both have the same `spec`.
    pub fn has_spec_of(&self, other: &Self) -> bool {
        self.0.spec == other.0.spec
    }

    /// The status. A new status is made from the stored one and compared with it as a whole.
    pub fn status(&self) -> &MachineDeploymentStatus {
        &self.0.status
    }
}
