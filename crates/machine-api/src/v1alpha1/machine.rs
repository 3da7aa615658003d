//! `Machine`: one VM.

use k8s_openapi::{
    api::core::v1::{NodeAddress, NodeCondition},
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClassSpec, LastOperation, NodeTemplateSpec, resource};
use crate::schema::nodes;
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
resource!(Machine, "machines");

/// Desired state of a machine. Also the `spec` of the templates of sets and deployments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSpec {
    /// Class with the configuration of the VM.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub class: ClassSpec,
    /// The VM's identity at the provider; written by the machine controller.
    #[serde(rename = "providerID", deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// Labels, annotations and taints of the Node.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub node_template: NodeTemplateSpec,
    /// Time limits and health settings.
    #[serde(flatten)]
    pub configuration: MachineConfiguration,
}

/// Time limits and health settings of a machine. Flags set the values of absent fields. Copied to existing machines without a
/// rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineConfiguration {
    /// Time after which pods are deleted by force. Flag: `--machine-drain-timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<GoDuration>,
    /// Time after which an unhealthy machine is Failed. Flag: `--machine-health-timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_timeout: Option<GoDuration>,
    /// Time after which a machine that never ran is Failed. Flag: `--machine-creation-timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timeout: Option<GoDuration>,
    /// Time after which an in-place update has failed. Flag: `--machine-inplace-update-timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_update_timeout: Option<GoDuration>,
    /// How long a failed machine is preserved. Flag: `--machine-preserve-timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_preserve_timeout: Option<GoDuration>,
    /// Never declare the machine Failed for its health.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_health_timeout: Option<bool>,
    /// Evictions that may be refused before pods are deleted. Flag: `--machine-max-evict-retries`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_evict_retries: Option<i32>,
    /// Comma separated node conditions that make the machine unhealthy. Flag: `--node-conditions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_conditions: Option<String>,
}

/// Observed state of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineStatus {
    /// Addresses of the VM; only without a target cluster.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
    /// Copy of the Node's conditions; other programs must not write it (decisions.md 30).
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<NodeCondition>,
    /// Last operation on the machine.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub last_operation: LastOperation,
    /// The phase and its time limit.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub current_status: CurrentStatus,
    /// State that only the driver reads.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub last_known_state: String,
    /// Reason why the machine is not in its intended state: one `Progressing` condition (decisions.md 30). Not in the original.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "nodes::condition_map")]
    pub machine_conditions: Vec<Condition>,
}

string_enum! {
    /// The phase of a machine (spec/machine-controller §1.7).
    pub enum MachinePhase {
        /// New, or restored without status.
        Unset = "",
        /// The VM exists and its node has not become healthy yet.
        Pending = "Pending",
        /// The VM exists; final state without a target cluster.
        Available = "Available",
        /// The node is healthy.
        Running = "Running",
        /// Deletion has begun.
        Terminating = "Terminating",
        /// The node of a Running machine vanished or is unhealthy.
        Unknown = "Unknown",
        /// A time limit passed; the machine is to be replaced.
        Failed = "Failed",
        /// The driver refused to create the VM and will be asked again.
        CrashLoopBackOff = "CrashLoopBackOff",
        /// An in-place update is under way.
        InPlaceUpdating = "InPlaceUpdating",
        /// An in-place update went well.
        InPlaceUpdateSuccessful = "InPlaceUpdateSuccessful",
        /// An in-place update failed.
        InPlaceUpdateFailed = "InPlaceUpdateFailed",
    }
}

/// The phase of a machine and its time limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CurrentStatus {
    /// The phase.
    #[serde(skip_serializing_if = "MachinePhase::is_empty")]
    pub phase: MachinePhase,
    /// Whether a creation or health timeout is being counted.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub timeout_active: bool,
    /// Start of the counted timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// End of the preservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_expiry_time: Option<Time>,
}
