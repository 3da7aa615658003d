//! Types that several kinds share: class reference, template, operation.

use k8s_openapi::{
    api::core::v1::Taint,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MachineSpec;
use crate::{
    schema::nodes,
    v1alpha1::{OperationState, OperationType},
};
use kube_values::{
    selector::Labels,
    serde_helpers::{is_default, null_as_default},
    string_enum,
};

/// Reference to the class of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassReference {
    /// API group of the class.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// Kind of the class: `MachineClass`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Name of the class in the machine's namespace.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// Metadata and taints that are copied from a machine to its Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeTemplateSpec {
    /// Labels and annotations of the Node.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub metadata: NodeMetadata,
    /// Taints of the Node.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub spec: NodeTaints,
}

/// Labels and annotations of a Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeMetadata {
    /// Labels.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Annotations.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Labels::is_empty")]
    pub annotations: Labels,
}

/// Taints of a Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeTaints {
    /// Taints.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// Template of the new machines of a set or deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineTemplateSpec {
    /// Labels, annotations and finalizers of new machines.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    #[schemars(schema_with = "nodes::template_metadata")]
    pub metadata: ObjectMeta,
    /// Specification of new machines.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub spec: MachineSpec,
}

string_enum! {
    /// Next step of a deletion.
    pub enum NextStep {
        /// Nothing is planned.
        Unset = "",
        /// Check whether the VM exists.
        GetVmStatus = "GetVMStatus",
        /// Drain the node.
        InitiateDrain = "InitiateDrain",
        /// Remove the volume attachments.
        DeleteVolumeAttachments = "DeleteVolumeAttachments",
        /// Delete the VM.
        InitiateVmDeletion = "InitiateVMDeletion",
        /// Delete the Node.
        InitiateNodeDeletion = "InitiateNodeDeletion",
        /// Release the machine.
        InitiateFinalizerRemoval = "InitiateFinalizerRemoval",
    }
}

/// The last operation on an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Operation {
    /// Description for people.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Name of a machine code, such as `ResourceExhausted`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub error_code: String,
    /// When it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// State of the operation.
    #[serde(skip_serializing_if = "OperationState::is_empty")]
    pub state: OperationState,
    /// Type of the operation.
    #[serde(rename = "type", skip_serializing_if = "OperationType::is_empty")]
    pub operation: OperationType,
    /// Next step of a deletion.
    #[serde(skip_serializing_if = "NextStep::is_empty")]
    pub next_step: NextStep,
}

/// A failed machine in the status of a set or deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedMachine {
    /// Name of the machine.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its VM.
    #[serde(rename = "providerID", deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// Its last operation.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub operation: Operation,
    /// Name of its controller.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub owner_ref: String,
}
