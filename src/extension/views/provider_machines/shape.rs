//! The shape of a `ProviderMachine`.
//!
//! Source: spec/extension-apiserver §1.2.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::common::Incomplete;
use kube_values::duration::GoDuration;

/// A VM at the provider, or a machine whose VM is missing. The name consists of the name of the VM and some digits of a digest of its
/// provider ID.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderMachine {
    /// The metadata, which the renderer adds to the object.
    #[serde(skip)]
    pub metadata: ObjectMeta,
    /// The class that lists the VM, or the class of the machine.
    pub class: ClassRef,
    /// The identity of the VM at the provider.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// The name of the machine that the VM was made for, as listed by the provider.
    pub vm_name: String,
    /// Owned: a machine has the VM. Orphan: no machine has the VM. Missing: a machine has the VM, but the provider does not list it.
    /// Duplicate: the machine of the VM has another VM. Foreign: no machine has the VM, and classes of different inventories list
    /// it. Unknown: the state is not known.
    #[schemars(extend("enum" = ["Owned", "Orphan", "Missing", "Duplicate", "Foreign", "Unknown"]))]
    pub state: &'static str,
    /// The machine of the VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_ref: Option<MachineRef>,
    /// The Node of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// Details about a VM that no machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orphan: Option<Orphan>,
    /// How the answer was computed.
    pub status: Status,
    /// Whether no machine has the VM. If the list is old, the provider is asked again.
    #[serde(skip)]
    pub is_orphaned: bool,
}

/// A class.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ClassRef {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A machine.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineRef {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its phase.
    pub phase: String,
    /// The time at which it was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub deletion_timestamp: Option<String>,
}

/// A Node.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NodeRef {
    /// Its name.
    pub name: String,
    /// Whether it is Ready.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub ready: String,
}

/// Details about an orphan.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// The time since which no machine is known to have the VM.
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
    /// The earliest time of the deletion. Absent if orphans are not deleted, or if this process does not know the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub will_be_deleted_after: Option<String>,
    /// Why the VM is an orphan.
    pub reason: String,
}

/// How an answer was computed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The time at which the answer was computed.
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: String,
    /// The age of the provider's list.
    pub snapshot_age: GoDuration,
    /// live: the provider was asked for this answer. cached: the provider was asked earlier.
    #[schemars(extend("enum" = ["live", "cached"]))]
    pub source: &'static str,
    /// Missing inputs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}
