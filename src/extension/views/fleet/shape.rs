//! The shape of a `FleetSummary`.
//!
//! Source: spec/extension-apiserver §1.6.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::common::Observed;

/// How the machines of a namespace are. The name is that of the namespace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetSummary {
    /// The machines, counted.
    pub machines: Machines,
    /// The deployments, by name.
    pub deployments: Vec<Deployment>,
    /// What last failed, by the provider's code.
    pub failures: Vec<Failure>,
    /// What the machines offer.
    pub capacity: Capacity,
    /// Whether verdicts or creations are suspended.
    pub frozen: Frozen,
    /// Whether a list was cut at 500 entries.
    pub truncated: bool,
    /// How the answer came about.
    pub status: Observed,
}

/// Machines, counted.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Machines {
    /// All of them.
    pub total: i32,
    /// By their phase; a machine that has none yet counts as Creating.
    pub by_phase: BTreeMap<String, i32>,
    /// By where they stand, as `machineoutlooks` tells.
    pub by_stage: BTreeMap<&'static str, i32>,
    /// Those whose Node is there and not Ready.
    pub not_ready_nodes: i32,
    /// VMs without a machine, as far as the provider was asked lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orphans: Option<i32>,
    /// Those that have no Node.
    pub without_node: i32,
}

/// A deployment, as its status tells.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Deployment {
    /// Its name.
    pub name: String,
    /// Class of its machines.
    pub class: String,
    /// How it replaces machines.
    pub strategy: String,
    /// Machines that it wants.
    pub desired: i32,
    /// Machines that exist.
    pub current: i32,
    /// Machines of the newest template.
    pub updated: i32,
    /// Machines that are Running.
    pub ready: i32,
    /// Machines that are available.
    pub available: i32,
    /// Whether rollouts are stopped.
    pub paused: bool,
    /// Whether a rollout gets on: True, False or Unknown.
    pub progressing: String,
    /// Zones of its class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zone: Vec<String>,
}

/// Machines that failed with one code.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The provider's code.
    pub error_code: String,
    /// How many machines.
    pub count: i32,
    /// What was last said, cut at 200 characters.
    pub last_message: String,
    /// Classes of these machines.
    pub classes: Vec<String>,
    /// The earliest of these failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub since: Option<String>,
}

/// What the machines offer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Capacity {
    /// What the classes promise for the machines that deployments want.
    #[schemars(with = "BTreeMap<String, String>")]
    pub declared: BTreeMap<String, resource::Quantity>,
    /// What the Nodes of the machines have.
    #[schemars(with = "BTreeMap<String, String>")]
    pub nodes: BTreeMap<String, resource::Quantity>,
    /// What pods may use of it.
    #[schemars(with = "BTreeMap<String, String>")]
    pub allocatable: BTreeMap<String, resource::Quantity>,
}

/// Whether something is suspended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Frozen {
    /// Whether it is.
    pub value: bool,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
