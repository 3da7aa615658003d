//! The shape of a `DrainPlan`.
//!
//! Source: spec/extension-apiserver §1.4.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::common::Incomplete;
use kube_values::duration::GoDuration;

/// What a drain of a node would do now, pod by pod. The name is that of the machine or the node unless a review says another.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DrainPlan {
    /// What is asked.
    pub spec: Spec,
    /// The answer.
    pub status: Status,
}

/// What is asked. What is left out is what the machine controller would use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The machine whose node is to be drained; this or `nodeName`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine_name: String,
    /// The node; this or `machineName`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Whether pods are deleted at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// After this time pods are deleted by force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<GoDuration>,
    /// Evictions that may be refused before a pod is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_evict_retries: Option<i32>,
    /// Time that a volume may take to be detached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pv_detach_timeout: Option<GoDuration>,
    /// Time that a volume may take to be attached elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pv_reattach_timeout: Option<GoDuration>,
}

/// What would happen.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// When the plan was computed.
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: String,
    /// The machine; empty for a node without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine_name: String,
    /// Its Node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Normal: pods are evicted. Force: they are deleted. Skipped: nothing is drained.
    #[schemars(extend("enum" = ["Normal", "Force", "Skipped"]))]
    pub mode: &'static str,
    /// Why nothing is drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_because: Option<String>,
    /// Pods in the order in which they go.
    pub waves: Vec<WaveView>,
    /// Pods that stay.
    pub ignored: Vec<Ignored>,
    /// Pods that no budget lets go.
    pub blocked: Vec<Blocked>,
    /// All of that, counted.
    pub totals: Totals,
    /// How long it takes: rather too long than too short.
    pub estimated_duration: GoDuration,
    /// When the attempt ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub deadline: Option<String>,
    /// Whether pods are deleted by force, now or at the deadline.
    pub will_force: bool,
    /// Whether not all is told that there is.
    pub truncated: bool,
    /// Why not: there are more pods than are listed, or more than could be played through in two seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_because: Option<String>,
    /// Inputs that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}

/// Pods that are asked to go at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct WaveView {
    /// Its number, from 1 on.
    pub index: i32,
    /// How they go: evicted together, evicted one after the other because their volumes move, or deleted.
    #[schemars(extend("enum" = ["EvictParallel", "EvictSerial", "Delete"]))]
    pub kind: &'static str,
    /// The pods.
    pub pods: Vec<PodStep>,
    /// How long until they and their volumes are gone.
    pub estimate: GoDuration,
}

/// A pod that goes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodStep {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// Time that it is given to end; none where it is deleted by force.
    pub grace_period: GoDuration,
    /// Its volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// The budgets that cover it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disruption_budgets: Vec<String>,
    /// What is done to it.
    #[schemars(extend("enum" = ["Evict", "Delete"]))]
    pub action: &'static str,
}

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Volume {
    /// Its claim.
    pub pvc: String,
    /// Its `PersistentVolume`.
    pub pv: String,
    /// What the storage calls it, where the `PersistentVolume` says so.
    #[serde(rename = "volumeID", skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// Whether several pods of the node use it; such a volume is not waited for.
    pub shared: bool,
}

/// A pod that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ignored {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who keeps it there: the kubelet, or a daemon set.
    #[schemars(extend("enum" = ["Mirror", "DaemonSet"]))]
    pub reason: &'static str,
}

/// A pod that no budget lets go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The budget.
    pub budget: Budget,
    /// Whether the budget can't ever allow an eviction: it allows none although all its pods are healthy.
    pub misconfigured: bool,
    /// When the pod is deleted all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub forced_after: Option<String>,
}

/// A disruption budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Evictions that it allows now.
    pub disruptions_allowed: i32,
    /// Healthy pods.
    pub current_healthy: i32,
    /// Pods that have to be healthy.
    pub desired_healthy: i32,
}

/// Pods, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Pods that go.
    pub pods: i32,
    /// Those of them whose volumes have to move.
    pub with_volumes: i32,
    /// Pods that stay.
    pub ignored: i32,
    /// Pods that no budget lets go.
    pub blocked: i32,
}
