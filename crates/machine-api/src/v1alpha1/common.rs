//! Types that several kinds share: class reference, template, last operation, references.

use k8s_openapi::{
    api::core::v1::NodeSpec,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MachineSpec;
use crate::schema::nodes;
use kube_values::{
    serde_helpers::{is_default, null_as_default},
    string_enum,
};

/// Reference to the class of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassSpec {
    /// API group of the class; only metrics read it.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// Kind of the class; look-ups ignore it, finalizer rules count only `MachineClass`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Name of the class in the machine's namespace.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// Labels, annotations and taints that are copied from a machine to its Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeTemplateSpec {
    /// Only `labels` and `annotations` are used.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    #[schemars(schema_with = "nodes::template_metadata")]
    pub metadata: ObjectMeta,
    /// Only `taints` are used.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    #[schemars(schema_with = "nodes::node_spec")]
    pub spec: NodeSpec,
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
    /// State of the last operation.
    pub enum OperationState {
        /// Never set.
        Unset = "",
        /// In progress, or about to start.
        Processing = "Processing",
        /// It failed and may be tried again.
        Failed = "Failed",
        /// It is done.
        Successful = "Successful",
    }
}

string_enum! {
    /// Type of the last operation.
    pub enum OperationType {
        /// Never set.
        Unset = "",
        /// Creation of the VM until the node joined.
        Create = "Create",
        /// Never written by the original.
        Update = "Update",
        /// In-place update of the node.
        InPlaceUpdate = "InPlaceUpdate",
        /// Drain outside a deletion.
        DrainNode = "DrainNode",
        /// Health of a joined node.
        HealthCheck = "HealthCheck",
        /// Deletion of the VM and its node.
        Delete = "Delete",
    }
}

/// The last thing that was done with an object. `description` is program state during a deletion
/// (spec/machine-controller §1.8).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastOperation {
    /// Description for people, during a deletion with the stage.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Name of a machine code, such as `ResourceExhausted`; cluster-autoscaler reads it.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub error_code: String,
    /// When it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// State of the operation.
    #[serde(skip_serializing_if = "OperationState::is_empty")]
    pub state: OperationState,
    /// Type of the operation.
    #[serde(rename = "type", skip_serializing_if = "OperationType::is_empty")]
    pub operation: OperationType,
}

/// A failed machine in the status of a set or deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSummary {
    /// Name of the machine.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its VM.
    #[serde(rename = "providerID", deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// Its last operation.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub last_operation: LastOperation,
    /// Name of its controller.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub owner_ref: String,
}

/// A reference to a Secret by name and namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct SecretReference {
    /// Name of the Secret.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Namespace of the Secret.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// The owner reference that makes its object managed by a controller, if there is one.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}
