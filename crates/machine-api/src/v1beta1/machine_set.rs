//! `MachineSet`: a number of equal machines.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FailedMachine, MachineTemplateSpec, Operation};
use crate::{schema::nodes, v1alpha1::resource};
use kube_values::serde_helpers::{is_default, null_as_default};

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
resource!(MachineSet, "machinesets", crate::names::V1BETA1);

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
    /// Generation that the status describes.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub observed_generation: i64,
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
    /// Conditions.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "nodes::condition_map")]
    pub conditions: Vec<Condition>,
    /// Last operation on the set.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub operation: Operation,
    /// Machines whose last operation failed.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub failed_machines: Vec<FailedMachine>,
    /// String form of `spec.selector`, for the scale subresource.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub selector: String,
}
