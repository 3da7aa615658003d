//! The shape of a `DrainPlan`.
//!
//! Source: spec/extension-apiserver §1.4.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::common::Incomplete;
use kube_values::duration::GoDuration;

/// The effects of a drain of a node now, pod by pod. The object has the name of the machine or the node, unless the review has a
/// name.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DrainPlan {
    /// The request.
    pub spec: Spec,
    /// The plan.
    pub status: Status,
}

/// The request. For fields that are absent, the values of the machine controller are used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The machine whose node is to be drained. Set either this or `nodeName`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine_name: String,
    /// The node. Set either this or `machineName`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Whether pods are deleted at once, without evictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// The time after which pods are deleted by force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<GoDuration>,
    /// The number of refused evictions after which a pod is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_evict_retries: Option<i32>,
    /// The longest time for the detachment of a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pv_detach_timeout: Option<GoDuration>,
    /// The longest time for the attachment of a volume to another node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pv_reattach_timeout: Option<GoDuration>,
}

/// The plan.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The time at which the plan was computed.
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: String,
    /// The machine. Absent for a node without a machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine_name: String,
    /// The Node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Normal: pods are evicted. Force: they are deleted. Skipped: nothing is drained.
    #[schemars(extend("enum" = ["Normal", "Force", "Skipped"]))]
    pub mode: &'static str,
    /// Why nothing is drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_because: Option<String>,
    /// The pods that leave the node, in order.
    pub waves: Vec<WaveView>,
    /// The pods that stay.
    pub ignored: Vec<Ignored>,
    /// The pods whose eviction is blocked by a disruption budget.
    pub blocked: Vec<Blocked>,
    /// Counts of the pods.
    pub totals: Totals,
    /// The estimated duration of the drain. It is rather too long than too short.
    pub estimated_duration: GoDuration,
    /// The time at which this attempt ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub deadline: Option<String>,
    /// Whether pods are deleted by force, now or at the deadline.
    pub will_force: bool,
    /// Whether the plan is incomplete.
    pub truncated: bool,
    /// Why the plan is incomplete: there are more pods than fit in the lists, or more than can be simulated in two seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_because: Option<String>,
    /// Missing inputs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}

/// Pods that are evicted or deleted at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct WaveView {
    /// The number of the wave, from 1 on.
    pub index: i32,
    /// `EvictParallel`: the pods are evicted together. `EvictSerial`: they are evicted one after the other, because their volumes
    /// move. Delete: they are deleted.
    #[schemars(extend("enum" = ["EvictParallel", "EvictSerial", "Delete"]))]
    pub kind: &'static str,
    /// The pods.
    pub pods: Vec<PodStep>,
    /// The estimated time until the pods and their volumes have left the node.
    pub estimate: GoDuration,
}

/// A pod that leaves the node.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodStep {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The priority.
    pub priority: i32,
    /// The time for the pod to end; zero if it is deleted by force.
    pub grace_period: GoDuration,
    /// The volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// The disruption budgets that cover the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disruption_budgets: Vec<String>,
    /// How the pod is removed.
    #[schemars(extend("enum" = ["Evict", "Delete"]))]
    pub action: &'static str,
}

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Volume {
    /// The claim.
    pub pvc: String,
    /// The `PersistentVolume`.
    pub pv: String,
    /// The id of the volume at the storage, if the `PersistentVolume` has it.
    #[serde(rename = "volumeID", skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// Whether several pods of the node use the volume. The drain does not wait for such a volume.
    pub shared: bool,
}

/// A pod that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ignored {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// Why the pod stays. Mirror: it is a static pod of the kubelet. `DaemonSet`: it belongs to a daemon set.
    #[schemars(extend("enum" = ["Mirror", "DaemonSet"]))]
    pub reason: &'static str,
}

/// A pod whose eviction is blocked by a disruption budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The disruption budget.
    pub budget: Budget,
    /// Whether the budget can never allow an eviction: it allows none although all its pods are healthy.
    pub misconfigured: bool,
    /// The time at which the pod is deleted without an eviction.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub forced_after: Option<String>,
}

/// A disruption budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The number of evictions that the budget allows now.
    pub disruptions_allowed: i32,
    /// The number of healthy pods.
    pub current_healthy: i32,
    /// The number of pods that must be healthy.
    pub desired_healthy: i32,
}

/// Counts of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Pods that leave the node.
    pub pods: i32,
    /// Pods that leave the node and whose volumes move.
    pub with_volumes: i32,
    /// Pods that stay.
    pub ignored: i32,
    /// Pods whose eviction is blocked by a disruption budget.
    pub blocked: i32,
}
