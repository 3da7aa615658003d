//! The shape of a `MachineOutlook`.
//!
//! Source: spec/extension-apiserver §1.3.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::common::Incomplete;
use kube_values::duration::GoDuration;
use machine_controllers::machine::outlook::Stage;

/// The reason for the state of a machine, and the next steps of the machine controller. Name, labels and age are the same as of the
/// machine.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineOutlook {
    /// Phase of the machine.
    pub phase: String,
    /// The stage of the machine. The stages from `GetVmStatus` on are stages of its deletion.
    #[schemars(extend("enum" = Stage::ALL.map(Stage::as_str)))]
    pub stage: &'static str,
    /// The last operation on the machine.
    pub last_operation: Operation,
    /// The deadlines of the machine's present stage.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deadlines: Vec<DeadlineView>,
    /// The next effects of the machine controller, in order, and the time of its next look.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_effects: Vec<NextEffect>,
    /// The reasons for which the machine waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<BlockerView>,
    /// The owners of the machine: its set, and the deployment of the set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<OwnerView>,
    /// The name of the machine's Node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// How the answer was computed.
    pub status: Status,
}

/// The last operation on a machine.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// The type of the operation.
    pub r#type: String,
    /// The state of the operation.
    pub state: String,
    /// The error code of the provider, if the operation failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error_code: String,
    /// The time of the last update of this information.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_update_time: Option<String>,
}

/// A time limit of a machine.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadlineView {
    /// The name of the limit.
    #[schemars(extend("enum" = ["creation", "health", "drain", "inPlace", "preserve", "pvDetach", "pvReattach"]))]
    pub name: &'static str,
    /// The time at which the limit expires.
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    /// The time from now until the limit expires; zero if it has expired.
    pub remaining: GoDuration,
    /// The consequence when the limit expires.
    pub on_expiry: &'static str,
}

/// A next effect of the machine controller.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NextEffect {
    /// The effect.
    pub effect: String,
    /// The object that the effect changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetView>,
    /// The time of the effect: now, or the time in `at`.
    #[schemars(extend("enum" = ["now", "at"]))]
    pub when: &'static str,
    /// The time, if it is not now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub at: Option<String>,
}

/// An object that an effect changes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TargetView {
    /// The kind.
    pub kind: &'static str,
    /// The namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The reason for which a machine waits.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockerView {
    /// The reason, as one word in CamelCase.
    pub reason: String,
    /// The reason, as a sentence.
    pub message: String,
    /// The beginning of the wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub since: Option<String>,
    /// The event that ends the wait. Absent if another process has written the message, so that only the message is known.
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

/// How an outlook was computed.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// When it was computed.
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: String,
    /// leader: the answer is computed by the process that acts on machines and knows of calls under way. standby: it is computed by
    /// another process, from the stored objects alone.
    #[schemars(extend("enum" = ["leader", "standby"]))]
    pub computed_by: &'static str,
    /// Whether the controllers of the process that computed the answer act on machines.
    pub controllers_running: bool,
    /// Missing inputs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}
