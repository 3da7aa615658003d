//! `MachineDeployment`: declarative rollouts of machines.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FailedMachine, MachineTemplateSpec};
use crate::{
    schema::nodes,
    v1alpha1::{InPlaceUpdate, RollingUpdate, StrategyType, resource},
};
use kube_values::serde_helpers::{is_default, null_as_default};

/// Rolls machines out and keeps their number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineDeployment {
    /// Standard object metadata.
    #[schemars(schema_with = "nodes::object_metadata")]
    pub metadata: ObjectMeta,
    /// Desired state of the deployment.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub spec: MachineDeploymentSpec,
    /// Observed state of the deployment.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub status: MachineDeploymentStatus,
}
resource!(MachineDeployment, "machinedeployments", crate::names::V1BETA1);

/// Desired state of a deployment. To return to an earlier revision, apply its template again or set the annotation
/// `deployment.machine.sapcloud.io/rollback-to`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["strategy", "template"]))]
pub struct MachineDeploymentSpec {
    /// Wanted number of machines.
    #[serde(deserialize_with = "null_as_default")]
    pub replicas: i32,
    /// Selector of the sets and machines of the deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nodes::label_selector")]
    pub selector: Option<LabelSelector>,
    /// Template of new machines.
    #[serde(deserialize_with = "null_as_default")]
    pub template: MachineTemplateSpec,
    /// How machines are replaced.
    #[serde(deserialize_with = "null_as_default")]
    pub strategy: MachineDeploymentStrategy,
    /// Seconds a machine must be ready to count as available.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub min_ready_seconds: i32,
    /// Number of old sets that are kept; absent keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
    /// Whether rollouts are paused.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub paused: bool,
    /// Seconds without progress after which the rollout counts as stuck; absent means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
    /// Number of Failed machines that a set may keep automatically.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub auto_preserve_failed_machine_max: i32,
}

/// How machines are replaced: `type` is the strategy, and the field of the same name has its settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["type"]))]
pub struct MachineDeploymentStrategy {
    /// Type of the strategy.
    #[serde(rename = "type")]
    pub strategy_type: StrategyType,
    /// Settings of `RollingUpdate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
    /// Settings of `InPlaceUpdate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_update: Option<InPlaceUpdate>,
}

/// Observed state of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineDeploymentStatus {
    /// Generation that the status describes.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub observed_generation: i64,
    /// Machines of all sets.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub replicas: i32,
    /// Machines of the newest set.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub updated_replicas: i32,
    /// Machines in phase Running.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub ready_replicas: i32,
    /// Machines in phase Available or Running.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub available_replicas: i32,
    /// Wanted machines of the sets that are not available.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub unavailable_replicas: i32,
    /// Failed machines that are preserved.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub preserved_failed_replicas: i32,
    /// Number of collisions of template hashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// Conditions.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "nodes::condition_map")]
    pub conditions: Vec<Condition>,
    /// Machines whose last operation failed.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub failed_machines: Vec<FailedMachine>,
    /// String form of `spec.selector`, for the scale subresource.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub selector: String,
}
