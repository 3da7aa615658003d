//! The shape of a `RolloutPlan`.
//!
//! Source: spec/extension-apiserver §1.5.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::common::Incomplete;
use kube_values::duration::GoDuration;
use machine_api::schema::nodes;

/// What a change of a deployment would do, machine by machine. The name is the deployment's unless a review says another.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RolloutPlan {
    /// What is asked.
    pub spec: Spec,
    /// The answer.
    pub status: Status,
}

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The deployment.
    pub machine_deployment_name: String,
    /// What is to be changed in it; absent: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposed: Option<Proposed>,
    /// A class that is to be changed. The content of a class never rolls machines; only another name in the template does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposed_class: Option<ProposedClass>,
    /// How long things are assumed to take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assume: Option<Assume>,
    /// Steps that are told at most, 200 unless said otherwise and never more than 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<i32>,
}

/// Fields of a deployment's specification that are to be replaced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Proposed {
    /// The template, whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nodes::any_object")]
    pub template: Option<Value>,
    /// The strategy, whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nodes::any_object")]
    pub strategy: Option<Value>,
    /// Wanted machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How long a machine must have been Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,
    /// Whether rollouts are stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// A class that is to be changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProposedClass {
    /// Its name.
    pub name: String,
    /// What it is to say; never echoed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nodes::any_object")]
    pub provider_spec: Option<Value>,
}

/// How long things are assumed to take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Assume {
    /// From a machine's creation until it runs; three minutes unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_duration: Option<GoDuration>,
    /// From a machine's deletion until it is gone; five minutes unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_duration: Option<GoDuration>,
    /// From a drained Node until its agent has updated it in place; ten minutes unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_duration: Option<GoDuration>,
    /// Every so manieth new machine fails; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fail_every: Option<i32>,
}

/// What would happen.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// When the plan was computed.
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: String,
    /// Whether machines are replaced at all: the template is another one.
    pub changes_template: bool,
    /// Hash of the template.
    pub new_hash: String,
    /// The set that the template asks for.
    pub new_machine_set: NewSet,
    /// What admission says.
    pub admission: Admission,
    /// How machines are replaced.
    pub strategy: String,
    /// Machines that may be too many.
    pub max_surge: i32,
    /// Machines that may be missing.
    pub max_unavailable: i32,
    /// Machines that go, in their order.
    pub to_replace: Vec<Replaced>,
    /// Machines that stay and are updated in place, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to_update: Vec<Updated>,
    /// Machines that stay, those included that are updated in place.
    pub to_keep: i32,
    /// Machines that are made.
    pub to_create: i32,
    /// Step by step.
    pub steps: Vec<StepView>,
    /// Most machines at once, those that are being deleted included.
    pub peak_machines: i32,
    /// Least machines that a rollout counts on.
    pub min_available: i32,
    /// How long it takes.
    pub estimated_duration: GoDuration,
    /// Why it does not come to an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<StuckView>,
    /// Whether the plan ends before the rollout does; all that is counted is then counted until there.
    pub truncated: bool,
    /// Why it does: there are more steps than were asked for, or it could not be computed further in two seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_because: Option<String>,
    /// Inputs that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}

/// A set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NewSet {
    /// Its name.
    pub name: String,
    /// Whether it exists.
    pub exists: bool,
}

/// What admission says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Admission {
    /// Whether the deployment would be admitted.
    pub allowed: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldMessage>,
    /// What it would warn of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FieldMessage {
    /// Its path.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

/// A machine that goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replaced {
    /// Its name.
    pub name: String,
    /// Its set.
    pub machine_set: String,
    /// Its Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its phase.
    pub phase: String,
    /// Its place among those that go, from 1 on.
    pub order: i32,
    /// Why.
    #[schemars(extend("enum" = ["OldTemplate", "Scale", "Failed", "MarkedByScaler"]))]
    pub reason: String,
    /// Whether it is kept for somebody to look at.
    pub preserved: bool,
}

/// A machine that is updated in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Updated {
    /// Its name.
    pub name: String,
    /// Its present set.
    pub machine_set: String,
    /// Its Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its phase.
    pub phase: String,
    /// Its place among those that are updated, from 1 on.
    pub order: i32,
}

/// What happens to a set at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepView {
    /// Its number, from 1 on.
    pub index: i32,
    /// The set.
    pub machine_set: String,
    /// Machines it wanted.
    pub from: i32,
    /// Machines it wants.
    pub to: i32,
    /// Machines that it makes.
    pub creates: i32,
    /// Machines that it deletes; those of the plan's own making have made-up names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deletes: Vec<String>,
    /// Machines whose Nodes are picked for their update in place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<String>,
    /// Machines of the deployment that are not being deleted, afterwards.
    pub total: i32,
    /// Those that a rollout counts on, afterwards.
    pub available: i32,
    /// When, from now on.
    pub at: GoDuration,
}

/// Why a rollout does not come to an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StuckView {
    /// In one word in CamelCase.
    pub reason: String,
    /// In a sentence.
    pub message: String,
}
