//! `Machine`: one VM.

use k8s_openapi::{
    api::core::v1::{NodeAddress, NodeCondition},
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClassReference, NodeTemplateSpec, Operation};
use crate::{
    schema::nodes,
    v1alpha1::{MachinePhase, resource},
};
use kube_values::{
    duration::GoDuration,
    serde_helpers::{is_default, null_as_default},
    string_enum,
};

/// One VM that joins the target cluster as one Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Machine {
    /// Standard object metadata.
    #[schemars(schema_with = "nodes::object_metadata")]
    pub metadata: ObjectMeta,
    /// Desired state of the machine.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub spec: MachineSpec,
    /// Observed state of the machine.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub status: MachineStatus,
}
resource!(Machine, "machines", crate::names::V1BETA1);

/// Desired state of a machine. Also the `spec` of the templates of sets and deployments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSpec {
    /// Class with the configuration of the VM.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub class_ref: ClassReference,
    /// The VM's identity at the provider; written by the machine controller.
    #[serde(rename = "providerID", deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// Labels, annotations and taints of the Node.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub node_template: NodeTemplateSpec,
    /// Time limits and health settings; flags set the values of absent fields.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub lifecycle: Lifecycle,
}

/// Time limits and health settings of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Lifecycle {
    /// Time after which pods are deleted by force. Flag: `--machine-drain-timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<GoDuration>,
    /// Time after which a machine that never ran is Failed. Flag: `--machine-creation-timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timeout: Option<GoDuration>,
    /// Time after which an unhealthy machine is Failed. Flag: `--machine-health-timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_timeout: Option<GoDuration>,
    /// Time after which an in-place update has failed. Flag: `--machine-inplace-update-timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_update_timeout: Option<GoDuration>,
    /// How long a failed machine is preserved. Flag: `--machine-preserve-timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_timeout: Option<GoDuration>,
    /// Whether the machine is declared Failed for its health; absent means yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// Evictions that may be refused before pods are deleted. Flag: `--machine-max-evict-retries`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_evict_retries: Option<i32>,
    /// Node conditions that make the machine unhealthy; the empty list means none. Flag: `--node-conditions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy_node_conditions: Option<Vec<String>>,
}

string_enum! {
    /// Whether a machine is declared Failed for its health.
    pub enum HealthCheck {
        /// It is.
        Enabled = "Enabled",
        /// It is not.
        Disabled = "Disabled",
    }
}

/// Observed state of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineStatus {
    /// Generation that the status describes.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub observed_generation: i64,
    /// Phase of the machine.
    #[serde(skip_serializing_if = "MachinePhase::is_empty")]
    pub phase: MachinePhase,
    /// Start of the counted timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_update_time: Option<Time>,
    /// Whether a creation or health timeout is being counted.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub timeout_active: bool,
    /// End of the preservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_expiry_time: Option<Time>,
    /// Last operation on the machine.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub operation: Operation,
    /// Conditions that explain the state of the machine.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "nodes::condition_map")]
    pub conditions: Vec<Condition>,
    /// The Node of the machine, from its label `node`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeReference>,
    /// Copy of the Node's conditions.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub node_conditions: Vec<NodeCondition>,
    /// Addresses of the VM; only without a target cluster.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
    /// State that only the driver reads.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub last_known_state: String,
}

/// Reference to a Node of the target cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeReference {
    /// Name of the Node.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
}
