//! The shapes of the views, as far as commands need them. The server's shapes are in `extension/views`.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use kube_values::duration::GoDuration;

/// A `MachineOutlook`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outlook {
    /// Its metadata: the metadata of the machine.
    pub metadata: Named,
    /// The stage of the machine.
    pub stage: String,
    /// The time limits.
    pub deadlines: Vec<Limit>,
    /// The next effects.
    pub next_effects: Vec<Effect>,
    /// The waits.
    pub blockers: Vec<Blocker>,
}

/// The name of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Named {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// A time limit of a machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// The name of the limit.
    pub name: String,
    /// When it expires.
    pub at: Timestamp,
    /// The consequence.
    pub on_expiry: String,
}

/// An effect that the machine controller would have.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Effect {
    /// The effect.
    pub effect: String,
    /// The object that it changes.
    pub target: Option<Object>,
    /// When, unless it is now.
    pub at: Option<Timestamp>,
}

/// An object that an effect changes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Object {
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
}

/// A wait of a machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// The reason in CamelCase.
    pub reason: String,
    /// The reason as a sentence.
    pub message: String,
    /// Since when.
    pub since: Option<Timestamp>,
    /// What ends the wait.
    pub resolved_by: Option<String>,
}

/// A `ProviderMachine`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Vm {
    /// Its name.
    pub metadata: Named,
    /// The identity at the provider.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Whether a machine has the VM.
    pub state: String,
    /// The machine.
    pub machine_ref: Option<Named>,
    /// Details about a VM without a machine.
    pub orphan: Option<Orphan>,
}

/// Details about a VM without a machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// Since when.
    pub since: Timestamp,
    /// The earliest time of its deletion.
    pub will_be_deleted_after: Option<Timestamp>,
    /// Why it is an orphan.
    pub reason: String,
}

/// The status of a `RolloutPlan`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutPlan {
    /// The judgement of admission.
    pub admission: Admission,
    /// The strategy.
    pub strategy: String,
    /// The machines that are deleted, in order.
    pub to_replace: Vec<Replaced>,
    /// The machines that are updated in place, in order.
    pub to_update: Vec<Replaced>,
    /// Machines that stay.
    pub to_keep: i32,
    /// Machines that are made.
    pub to_create: i32,
    /// The steps.
    pub steps: Vec<Step>,
    /// Most machines at a time.
    pub peak_machines: i32,
    /// Least available machines at a time.
    pub min_available: i32,
    /// How long it takes.
    pub estimated_duration: GoDuration,
    /// Why it does not end.
    pub stuck: Option<Stuck>,
    /// Why the plan ends before the rollout.
    pub truncated_because: Option<String>,
}

/// The judgement of admission.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Admission {
    /// Whether the change would be admitted.
    pub allowed: bool,
    /// Why not.
    pub errors: Vec<FieldMessage>,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// A message about a field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FieldMessage {
    /// The path of the field.
    pub field: String,
    /// The message.
    pub message: String,
}

/// A machine that is replaced or updated in place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Replaced {
    /// The name.
    pub name: String,
    /// Its Node.
    pub node: Option<String>,
    /// Its phase.
    pub phase: String,
    /// Its place in the order.
    pub order: i32,
    /// Why.
    pub reason: String,
}

/// A step of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Step {
    /// The set.
    pub machine_set: String,
    /// Wanted machines before.
    pub from: i32,
    /// Wanted machines after.
    pub to: i32,
    /// Machines of the deployment after the step.
    pub total: i32,
    /// Available machines after the step.
    pub available: i32,
    /// Time from now.
    pub at: GoDuration,
}

/// Why a rollout does not end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Stuck {
    /// The reason in CamelCase.
    pub reason: String,
    /// The reason as a sentence.
    pub message: String,
}

/// The status of a `DrainPlan`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainPlan {
    /// The machine.
    pub machine_name: String,
    /// The Node.
    pub node_name: String,
    /// Normal, Force or Skipped.
    pub mode: String,
    /// Why nothing is drained.
    pub skipped_because: Option<String>,
    /// The pods that leave, in order.
    pub waves: Vec<Wave>,
    /// The pods that no budget lets go.
    pub blocked: Vec<BlockedPod>,
    /// Counts of pods.
    pub totals: Totals,
    /// How long it takes.
    pub estimated_duration: GoDuration,
    /// When the attempt ends.
    #[schemars(with = "Option<String>")]
    pub deadline: Option<Timestamp>,
    /// Whether pods are deleted by force.
    pub will_force: bool,
    /// Why the plan is not whole.
    pub truncated_because: Option<String>,
}

/// Pods that leave at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Wave {
    /// How they leave.
    pub kind: String,
    /// The pods.
    pub pods: Vec<Named>,
    /// How long it takes.
    pub estimate: GoDuration,
}

/// A pod that no budget lets go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BlockedPod {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The budget.
    pub budget: Budget,
    /// Whether the budget can never allow an eviction.
    pub misconfigured: bool,
    /// When the pod is deleted without an eviction.
    #[schemars(with = "Option<String>")]
    pub forced_after: Option<Timestamp>,
}

/// A disruption budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Budget {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// Evictions that it allows now.
    pub disruptions_allowed: i32,
}

/// Counts of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Totals {
    /// Pods that leave.
    pub pods: i32,
    /// Pods that leave and whose volumes move.
    pub with_volumes: i32,
    /// Pods that stay.
    pub ignored: i32,
}
