//! The shape of a `FleetSummary`.
//!
//! Source: spec/extension-apiserver §1.6.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::common::Observed;

/// Counts of the machines of a namespace. The object has the name of the namespace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetSummary {
    /// Counts of the machines.
    pub machines: Machines,
    /// The deployments, by name.
    pub deployments: Vec<Deployment>,
    /// The failed machines, by the error code of the provider.
    pub failures: Vec<Failure>,
    /// The resources of the machines.
    pub capacity: Capacity,
    /// Whether creations or verdicts about health are suspended.
    pub frozen: Frozen,
    /// Whether a list was cut at 500 entries.
    pub truncated: bool,
    /// How the answer was computed.
    pub status: Observed,
}

/// Counts of machines.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Machines {
    /// All machines.
    pub total: i32,
    /// Machines by phase. A machine without a phase counts as Creating.
    pub by_phase: BTreeMap<String, i32>,
    /// Machines by stage, as `machineoutlooks` shows it.
    pub by_stage: BTreeMap<&'static str, i32>,
    /// Machines whose Node exists and is not Ready.
    pub not_ready_nodes: i32,
    /// VMs without a machine. Absent if no recent list of the provider is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orphans: Option<i32>,
    /// Machines without a Node.
    pub without_node: i32,
}

/// A deployment and its status.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Deployment {
    /// The name.
    pub name: String,
    /// The class of the machines.
    pub class: String,
    /// The strategy for replacing machines.
    pub strategy: String,
    /// Desired machines.
    pub desired: i32,
    /// Existing machines.
    pub current: i32,
    /// Machines of the newest template.
    pub updated: i32,
    /// Machines that are Running.
    pub ready: i32,
    /// Machines that are available.
    pub available: i32,
    /// Whether rollouts are paused.
    pub paused: bool,
    /// Whether a rollout makes progress: True, False or Unknown.
    pub progressing: String,
    /// The zones of the class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zone: Vec<String>,
}

/// Machines that failed with the same error code.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The error code of the provider.
    pub error_code: String,
    /// The number of machines.
    pub count: i32,
    /// The message of the last failure, cut at 200 characters.
    pub last_message: String,
    /// The classes of these machines.
    pub classes: Vec<String>,
    /// The time of the earliest of these failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub since: Option<String>,
}

/// The resources of the machines.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Capacity {
    /// The capacity that the classes declare, for the desired machines of the deployments.
    #[schemars(with = "BTreeMap<String, String>")]
    pub declared: BTreeMap<String, resource::Quantity>,
    /// The capacity of the machines' Nodes.
    #[schemars(with = "BTreeMap<String, String>")]
    pub nodes: BTreeMap<String, resource::Quantity>,
    /// The allocatable resources of the machines' Nodes.
    #[schemars(with = "BTreeMap<String, String>")]
    pub allocatable: BTreeMap<String, resource::Quantity>,
}

/// Whether creations or verdicts about health are suspended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Frozen {
    /// Whether they are suspended.
    pub value: bool,
    /// The reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
