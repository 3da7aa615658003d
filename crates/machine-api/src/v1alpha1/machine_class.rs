//! `MachineClass`: how VMs of a kind are made.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{Condition, ObjectMeta},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{SecretReference, resource};
use crate::schema::nodes;
use kube_values::serde_helpers::{is_default, null_as_default};

/// How VMs of a kind are made. The payload is at the top level; there is neither `spec` nor a status subresource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["providerSpec"]))]
pub struct MachineClass {
    /// Standard object metadata.
    #[schemars(schema_with = "nodes::object_metadata")]
    pub metadata: ObjectMeta,
    /// Name of the driver, such as `AWS` or `virtual`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// Configuration for the driver.
    #[schemars(schema_with = "nodes::any_object")]
    pub provider_spec: Value,
    /// User data, and possibly credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Credentials; its keys have precedence over the keys of `secretRef`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretReference>,
    /// Resources of a node of this class, for scaling from zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_template: Option<NodeTemplate>,
    /// Observed state of the class. Not in the original.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub status: MachineClassStatus,
}
resource!(MachineClass, "machineclasses");

/// Resources of a node of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend(
    "required" = ["capacity", "instanceType", "region", "zone"],
    "x-kubernetes-preserve-unknown-fields" = true
))]
pub struct NodeTemplate {
    /// Resources of a node; `cpu`, `gpu` and `memory` are mandatory.
    #[serde(deserialize_with = "null_as_default")]
    pub capacity: BTreeMap<String, Quantity>,
    /// Extended resources patched into the Node's status.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub virtual_capacity: BTreeMap<String, Quantity>,
    /// Machine type at the provider.
    #[serde(deserialize_with = "null_as_default")]
    pub instance_type: String,
    /// Region.
    #[serde(deserialize_with = "null_as_default")]
    pub region: String,
    /// Zone.
    #[serde(deserialize_with = "null_as_default")]
    pub zone: String,
    /// CPU architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
}

/// Observed state of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineClassStatus {
    /// Generation that the status describes.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub observed_generation: i64,
    /// Machines that use the class.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub machines: i32,
    /// Conditions.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "nodes::condition_map")]
    pub conditions: Vec<Condition>,
}
