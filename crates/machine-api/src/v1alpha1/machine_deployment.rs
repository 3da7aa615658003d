//! `MachineDeployment`: declarative rollouts of machines.

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{LabelSelector, ObjectMeta, Time},
    util::intstr::IntOrString,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConditionStatus, MachineSummary, MachineTemplateSpec, resource};
use crate::schema::nodes;
use kube_values::{
    serde_helpers::{is_default, null_as_default},
    string_enum,
};

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
resource!(MachineDeployment, "machinedeployments");

/// Desired state of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["template"]))]
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
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
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
    /// Deprecated: return to an earlier revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<RollbackConfig>,
    /// Seconds without progress after which the rollout counts as stuck; absent means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
    /// Number of Failed machines that a set may keep automatically.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub auto_preserve_failed_machine_max: i32,
}

string_enum! {
    /// How machines are replaced.
    pub enum StrategyType {
        /// Never set; refused by validation.
        Unset = "",
        /// New machines come up while old ones go.
        RollingUpdate = "RollingUpdate",
        /// Old machines go first.
        Recreate = "Recreate",
        /// Machines are kept and updated.
        InPlaceUpdate = "InPlaceUpdate",
    }
}

string_enum! {
    /// Whether the controller or the user selects the machines of an in-place update.
    pub enum OrchestrationType {
        /// Never set; refused by validation.
        Unset = "",
        /// The controller.
        Auto = "Auto",
        /// The user.
        Manual = "Manual",
    }
}

/// How machines are replaced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineDeploymentStrategy {
    /// Type of the strategy.
    #[serde(rename = "type", skip_serializing_if = "StrategyType::is_empty")]
    pub strategy_type: StrategyType,
    /// Settings of `RollingUpdate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
    /// Settings of `InPlaceUpdate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_update: Option<InPlaceUpdate>,
}

/// Limits of a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Machines that may be missing; percentages round down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Machines that may exist in addition; percentages round up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
}

/// Settings of an in-place update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InPlaceUpdate {
    /// Machines that may be missing; percentages round down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Machines that may exist in addition; percentages round up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// Whether the controller or the user selects the machines.
    #[serde(skip_serializing_if = "OrchestrationType::is_empty")]
    pub orchestration_type: OrchestrationType,
}

/// Deprecated: a wish to return to an earlier revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RollbackConfig {
    /// The revision; 0 is the previous one.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub revision: i64,
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
    pub conditions: Vec<MachineDeploymentCondition>,
    /// Machines whose last operation failed.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub failed_machines: Vec<MachineSummary>,
    /// String form of `spec.selector`, for the scale subresource. Not in the original.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub selector: String,
}

string_enum! {
    /// Conditions of a deployment.
    pub enum MachineDeploymentConditionType {
        /// Enough machines are available.
        Available = "Available",
        /// The rollout makes progress.
        Progressing = "Progressing",
        /// Machines could not be created or deleted.
        ReplicaFailure = "ReplicaFailure",
        /// The overshoot guard has frozen the deployment.
        Frozen = "Frozen",
        /// The specification cannot be acted on; only while False. Not in the original.
        Valid = "Valid",
        /// A machine failed its in-place update. Not in the original.
        InPlaceUpdateFailed = "InPlaceUpdateFailed",
    }
}

/// A condition of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["status", "type"]))]
pub struct MachineDeploymentCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub condition_type: MachineDeploymentConditionType,
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// Time of the last update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// Time of the last change of the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Reason for programs, as one word.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message for people.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
}
