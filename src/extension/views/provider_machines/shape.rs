//! The shape of a `ProviderMachine`.
//!
//! Source: spec/extension-apiserver §1.2.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::common::Incomplete;
use kube_values::duration::GoDuration;

/// A VM at the provider, or a machine whose VM is not there. The name is that of the VM, and some digits of its provider ID.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderMachine {
    /// Written apart, before everything else.
    #[serde(skip)]
    pub metadata: ObjectMeta,
    /// The class that lists the VM, or the machine's.
    pub class: ClassRef,
    /// Identity of the VM at the provider.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Name of the machine that the VM was made for, as the provider tells it.
    pub vm_name: String,
    /// Owned: a machine has the VM. Orphan: none has. Missing: a machine has it, and the provider does not. Duplicate: its
    /// machine has another VM. Foreign: none has it, and classes of different inventories list it. Unknown: it can't be
    /// told.
    #[schemars(extend("enum" = ["Owned", "Orphan", "Missing", "Duplicate", "Foreign", "Unknown"]))]
    pub state: &'static str,
    /// The machine that has the VM, or should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_ref: Option<MachineRef>,
    /// The machine's Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// What becomes of a VM that no machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orphan: Option<Orphan>,
    /// How the answer came about.
    pub status: Status,
    /// No machine has it: on an older list, that is worth another look.
    #[serde(skip)]
    pub is_nobodys: bool,
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
    /// When it was deleted.
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

/// What becomes of an orphan.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// Since when no machine is known to have the VM.
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
    /// When it is deleted at the earliest; absent where nobody deletes orphans, or this process can't tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub will_be_deleted_after: Option<String>,
    /// Why it is an orphan.
    pub reason: String,
}

/// How an answer came about.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// When it was computed.
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: String,
    /// Age of the provider's list.
    pub snapshot_age: GoDuration,
    /// live: the provider was asked for this answer; cached: it was asked before.
    #[schemars(extend("enum" = ["live", "cached"]))]
    pub source: &'static str,
    /// Inputs that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}
