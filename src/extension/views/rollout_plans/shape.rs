//! The shape of a `RolloutPlan`.
//!
//! Source: spec/extension-apiserver §1.5.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::common::Incomplete;
use kube_values::duration::GoDuration;
use machine_api::schema::nodes;

/// The effects of a change of a deployment, machine by machine. The object has the name of the deployment, unless the review has a
/// name.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RolloutPlan {
    /// The request.
    pub spec: Spec,
    /// The plan.
    pub status: Status,
}

/// The request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The deployment.
    pub machine_deployment_name: String,
    /// The proposed changes of the deployment. Absent: no changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposed: Option<Proposed>,
    /// A proposed change of a class. The content of a class never replaces machines; only another class name in the template does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposed_class: Option<ProposedClass>,
    /// The assumed durations and failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assume: Option<Assume>,
    /// The greatest number of steps in the plan; default: 200, at most 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<i32>,
}

/// New values for fields of a deployment's specification.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Proposed {
    /// The whole template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nodes::any_object")]
    pub template: Option<Value>,
    /// The whole strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nodes::any_object")]
    pub strategy: Option<Value>,
    /// Desired machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The time for which a machine must be Ready before it counts as available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,
    /// Whether rollouts are paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// A proposed change of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProposedClass {
    /// The name of the class.
    pub name: String,
    /// The new provider specification. The answer does not repeat it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nodes::any_object")]
    pub provider_spec: Option<Value>,
}

/// The assumed durations and failures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Assume {
    /// The time from the creation of a machine until it is Running; default: three minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_duration: Option<GoDuration>,
    /// The time from the deletion of a machine until it is gone; default: five minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_duration: Option<GoDuration>,
    /// The time from the end of a Node's drain until its agent has updated it in place; default: ten minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_duration: Option<GoDuration>,
    /// N: every Nth new machine fails. 0: no machine fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fail_every: Option<i32>,
}

/// The plan.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The time at which the plan was computed.
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: String,
    /// Whether the proposed template differs from the stored one, so that machines are replaced.
    pub changes_template: bool,
    /// The hash of the template.
    pub new_hash: String,
    /// The set of the template.
    pub new_machine_set: NewSet,
    /// The judgement of admission.
    pub admission: Admission,
    /// The strategy of the rollout.
    pub strategy: String,
    /// The number of machines that the rollout may have above the desired number.
    pub max_surge: i32,
    /// The number of machines that the rollout may have below the desired number.
    pub max_unavailable: i32,
    /// The machines that the rollout deletes, in order.
    pub to_replace: Vec<Replaced>,
    /// The machines that are updated in place, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to_update: Vec<Updated>,
    /// The number of machines that stay, including machines that are updated in place.
    pub to_keep: i32,
    /// The number of machines that the rollout creates.
    pub to_create: i32,
    /// The steps of the rollout.
    pub steps: Vec<StepView>,
    /// The greatest number of machines at one time, including machines that are being deleted.
    pub peak_machines: i32,
    /// The least number of available machines at one time.
    pub min_available: i32,
    /// The estimated duration of the rollout.
    pub estimated_duration: GoDuration,
    /// Why the rollout does not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<StuckView>,
    /// Whether the plan ends before the rollout does. All numbers then count up to the end of the plan.
    pub truncated: bool,
    /// Why the plan ends early: the rollout has more steps than the request asks for, or its simulation takes more than two seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_because: Option<String>,
    /// Missing inputs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}

/// A set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NewSet {
    /// The name.
    pub name: String,
    /// Whether the set exists.
    pub exists: bool,
}

/// The judgement of admission.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Admission {
    /// Whether the deployment would be admitted.
    pub allowed: bool,
    /// Why admission would deny the deployment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldMessage>,
    /// The warnings of admission.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A message about a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FieldMessage {
    /// The path of the field.
    pub field: String,
    /// The message.
    pub message: String,
}

/// A machine that the rollout deletes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replaced {
    /// The name.
    pub name: String,
    /// The set.
    pub machine_set: String,
    /// The Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The phase.
    pub phase: String,
    /// The position in the order of deletion, from 1 on.
    pub order: i32,
    /// Why the machine is deleted.
    #[schemars(extend("enum" = ["OldTemplate", "Scale", "Failed", "MarkedByScaler"]))]
    pub reason: String,
    /// Whether the machine is preserved.
    pub preserved: bool,
}

/// A machine that is updated in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Updated {
    /// The name.
    pub name: String,
    /// The present set of the machine.
    pub machine_set: String,
    /// The Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The phase.
    pub phase: String,
    /// The position in the order of updates, from 1 on.
    pub order: i32,
}

/// A change of a set at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepView {
    /// The number of the step, from 1 on.
    pub index: i32,
    /// The set.
    pub machine_set: String,
    /// Desired machines before the step.
    pub from: i32,
    /// Desired machines after the step.
    pub to: i32,
    /// The number of machines that the set creates.
    pub creates: i32,
    /// The machines that the set deletes. Machines that exist only in the plan have invented names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deletes: Vec<String>,
    /// The machines whose Nodes are selected for an update in place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<String>,
    /// The number of machines of the deployment after the step, without machines that are being deleted.
    pub total: i32,
    /// The number of available machines after the step.
    pub available: i32,
    /// The time from now until the step.
    pub at: GoDuration,
}

/// Why a rollout does not end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StuckView {
    /// The reason, as one word in CamelCase.
    pub reason: String,
    /// The reason, as a sentence.
    pub message: String,
}
