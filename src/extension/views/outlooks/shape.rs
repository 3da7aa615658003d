//! The shape of a `MachineOutlook`.
//!
//! Source: spec/extension-apiserver §1.3.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::common::Incomplete;
use kube_values::duration::GoDuration;
use machine_controllers::machine::outlook::Stage;

/// Why a machine is as it is, and what the machine controller would do next. Name, labels and age are those of the machine.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineOutlook {
    /// Phase of the machine.
    pub phase: String,
    /// Where the machine stands on its way; from `GetVmStatus` on these are the stages of its deletion.
    #[schemars(extend("enum" = Stage::ALL.map(Stage::as_str)))]
    pub stage: &'static str,
    /// What was last done about the machine.
    pub last_operation: Operation,
    /// What happens to the machine, and when, unless it gets on before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deadlines: Vec<DeadlineView>,
    /// What the machine controller would do now, in order, and when it looks again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_effects: Vec<NextEffect>,
    /// Whom the machine waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<BlockerView>,
    /// Who owns the machine, from its set upwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<OwnerView>,
    /// Name of the machine's Node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// How the answer came about.
    pub status: Status,
}

/// What was last done about a machine.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// What it was.
    pub r#type: String,
    /// Where it stands.
    pub state: String,
    /// The provider's code, if it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error_code: String,
    /// When that was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_update_time: Option<String>,
}

/// A moment at which something happens.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadlineView {
    /// What is limited.
    #[schemars(extend("enum" = ["creation", "health", "drain", "inPlace", "preserve", "pvDetach", "pvReattach"]))]
    pub name: &'static str,
    /// When.
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    /// How long from now; zero when it has passed.
    pub remaining: GoDuration,
    /// What happens then.
    pub on_expiry: &'static str,
}

/// Something that would be done.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NextEffect {
    /// What.
    pub effect: String,
    /// To which object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetView>,
    /// When: now, or at the time in `at`.
    #[schemars(extend("enum" = ["now", "at"]))]
    pub when: &'static str,
    /// The time, unless it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub at: Option<String>,
}

/// An object that something would be done to.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TargetView {
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Whom a machine waits for.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockerView {
    /// Why, in one word in CamelCase.
    pub reason: String,
    /// The same in a sentence.
    pub message: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub since: Option<String>,
    /// What ends the wait; absent when the message is all that is known, because another process has written it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved_by: Option<String>,
}

/// An owner of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OwnerView {
    /// `MachineSet` or `MachineDeployment`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Machines that it wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired: Option<i32>,
}

/// How an outlook came about.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// When it was computed.
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: String,
    /// leader: by the process that acts, which knows of calls under way; standby: by another, from the stored objects alone.
    #[schemars(extend("enum" = ["leader", "standby"]))]
    pub computed_by: &'static str,
    /// Whether the process that computed it works on machines.
    pub controllers_running: bool,
    /// Inputs that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}
