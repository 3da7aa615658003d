//! `MachineSet`: a number of equal machines.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClassSpec, LastOperation, MachineSummary, MachineTemplateSpec, resource};
use crate::schema::nodes;
use kube_values::{
    serde_helpers::{is_default, null_as_default},
    string_enum,
};

/// Keeps a number of equal machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineSet {
    /// Standard object metadata.
    #[schemars(schema_with = "nodes::object_metadata")]
    pub metadata: ObjectMeta,
    /// Desired state of the set.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub spec: MachineSetSpec,
    /// Observed state of the set.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub status: MachineSetStatus,
}
resource!(MachineSet, "machinesets");

/// Desired state of a set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSetSpec {
    /// Wanted number of machines.
    #[serde(deserialize_with = "null_as_default")]
    pub replicas: i32,
    /// Selector of the machines of the set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nodes::label_selector")]
    pub selector: Option<LabelSelector>,
    /// Unused field; only a metric reads it.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub machine_class: ClassSpec,
    /// Template of new machines.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub template: MachineTemplateSpec,
    /// Seconds a machine must be ready to count as available.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub min_ready_seconds: i32,
    /// Number of Failed machines that may be kept automatically.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub auto_preserve_failed_machine_max: i32,
}

/// Observed state of a set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSetStatus {
    /// Machines of the set, including terminating machines.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub replicas: i32,
    /// Machines that have all labels of the template.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub fully_labeled_replicas: i32,
    /// Machines in phase Running.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub ready_replicas: i32,
    /// Machines in phase Available or Running.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub available_replicas: i32,
    /// Failed machines that are preserved.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub preserved_failed_replicas: i32,
    /// Machines preserved automatically.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub auto_preserve_failed_machine_count: i32,
    /// Generation that the status describes.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub observed_generation: i64,
    /// Conditions; the name is singular in JSON.
    #[serde(
        rename = "machineSetCondition",
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<MachineSetCondition>,
    /// Only its time is written.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub last_operation: LastOperation,
    /// Machines whose last operation failed.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub failed_machines: Vec<MachineSummary>,
    /// String form of `spec.selector`, for the scale subresource. Not in the original.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub selector: String,
}

string_enum! {
    /// Conditions of a set.
    pub enum MachineSetConditionType {
        /// Machines could not be created or deleted.
        ReplicaFailure = "ReplicaFailure",
        /// The overshoot guard has frozen the set.
        Frozen = "Frozen",
        /// The specification cannot be acted on; only while False. Not in the original.
        Valid = "Valid",
    }
}

string_enum! {
    /// Whether a condition holds.
    pub enum ConditionStatus {
        /// It is unknown whether the condition holds.
        Unknown = "Unknown",
        /// The condition holds.
        True = "True",
        /// The condition does not hold.
        False = "False",
    }
}

/// A condition of a set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["status", "type"]))]
pub struct MachineSetCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub condition_type: MachineSetConditionType,
    /// Whether the condition holds.
    pub status: ConditionStatus,
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
