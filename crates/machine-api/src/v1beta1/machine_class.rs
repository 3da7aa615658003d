//! `MachineClass`: how VMs of a kind are made.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_values::serde_helpers::{is_default, null_as_default};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    schema::nodes,
    v1alpha1::{MachineClassStatus, NodeTemplate, SecretReference, resource},
};

/// How VMs of a kind are made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["spec"]))]
pub struct MachineClass {
    /// Standard object metadata.
    #[schemars(schema_with = "nodes::object_metadata")]
    pub metadata: ObjectMeta,
    /// How VMs are made.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: MachineClassSpec,
    /// Observed state of the class.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub status: MachineClassStatus,
}
resource!(MachineClass, "machineclasses", crate::names::V1BETA1);

/// How VMs of a kind are made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["providerSpec"]))]
pub struct MachineClassSpec {
    /// Name of the driver, such as `AWS` or `virtual`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// Configuration for the driver.
    #[schemars(schema_with = "nodes::any_object")]
    pub provider_spec: Value,
    /// User data, and possibly credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data_secret_ref: Option<SecretReference>,
    /// Credentials; its keys have precedence over the keys of `userDataSecretRef`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretReference>,
    /// Resources of a node of this class, for scaling from zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_template: Option<NodeTemplate>,
}
