//! The observation of a deployment: everything that a decision about it may depend on.
//!
//! A rollout is decided from the machines themselves, not from the stored status of the sets. The counts are the ones
//! that the set controller will write, without the delay of that write.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    node_side_effects::bears_traces, settings::DeploymentSettings, settling::Unsettled, template_equality::is_equal,
    template_hash::new_set_identity,
};
use crate::{
    checked::Checked,
    snapshots::{DeploymentSnapshot, MachineSnapshot, NodeSnapshot, SetSnapshot},
    views::{BY_CONTROLLER, ControlViews, ORPHANS},
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Store};
use machine_api::{
    names::{annotation, label},
    v1alpha1::StrategyType,
};

/// Version of [`DeploymentObservation`] in its serialised form.
pub const OBSERVATION_VERSION: u32 = 1;

/// A set and the machines whose controller it is.
#[derive(Clone, Debug, Serialize)]
pub struct SetSeen {
    /// The set.
    pub set: SetSnapshot,
    /// Its machines.
    pub machines: Vec<MachineSnapshot>,
}

/// The input of a decision about a deployment.
#[derive(Clone, Debug, Serialize)]
pub struct DeploymentObservation {
    /// Version of this structure.
    pub version: u32,
    /// The time of the observation.
    pub now: Timestamp,
    /// The deployment.
    pub deployment: DeploymentSnapshot,
    /// The cached result of validation; evaluated again when absent.
    #[serde(skip)]
    pub checked: Option<Checked<DeploymentSnapshot>>,
    /// The sets whose controller the deployment is.
    pub sets: Vec<SetSeen>,
    /// The sets of the namespace without a controller.
    pub orphans: Vec<SetSnapshot>,
    /// The existing set that has the name of the next new set.
    pub namesake: Option<SetSnapshot>,
    /// The Nodes of the machines by name. All Nodes while there is more than one set or with updates in place.
    /// Otherwise the Nodes that still have marks from a rollout. Absent without a target cluster.
    pub nodes: Option<BTreeMap<String, NodeSnapshot>>,
    /// Sets that may still act on an earlier size, by UID, as far as this process has observed.
    pub unsettled: BTreeMap<String, Unsettled>,
    /// Settings of the process.
    pub settings: DeploymentSettings,
    /// When this process last wrote the status.
    pub status_written: Option<Timestamp>,
}

impl DeploymentObservation {
    /// An observation that contains only the deployment.
    pub fn of(deployment: DeploymentSnapshot, now: Timestamp) -> Self {
        Self {
            version: OBSERVATION_VERSION,
            now,
            deployment,
            checked: None,
            sets: Vec::new(),
            orphans: Vec::new(),
            namesake: None,
            nodes: None,
            unsettled: BTreeMap::new(),
            settings: DeploymentSettings::default(),
            status_written: None,
        }
    }

    /// Reads a deployment with its sets, machines and nodes from the stores. `None` when the deployment does not exist.
    pub fn look_up(
        views: &ControlViews,
        nodes: Option<&Store<NodeSnapshot>>,
        key: &ObjectKey,
        now: Timestamp,
    ) -> Option<Self> {
        let deployment = views.deployments.get(key)?;
        let uid = deployment.uid().to_owned();
        let sets: Vec<SetSeen> = views
            .sets
            .by_index(BY_CONTROLLER, &uid)
            .into_iter()
            .map(|set| {
                let machines = views.machines.by_index(BY_CONTROLLER, set.uid());
                SetSeen { set, machines }
            })
            .collect();
        let has_new = sets.iter().any(|seen| is_equal(seen.set.template(), deployment.template()));
        let namesake = if has_new {
            None
        } else {
            views.sets.get(&ObjectKey::new(key.namespace.clone(), new_set_identity(&deployment).0))
        };
        let nodes = nodes.map(|nodes| nodes_of(&deployment, &sets, nodes));
        let orphans = views.sets.by_index(ORPHANS, &key.namespace);
        Some(Self { sets, orphans, namesake, nodes, ..Self::of(deployment, now) })
    }
}

fn nodes_of(
    deployment: &DeploymentSnapshot,
    sets: &[SetSeen],
    nodes: &Store<NodeSnapshot>,
) -> BTreeMap<String, NodeSnapshot> {
    let has_marker = |seen: &SetSeen| seen.set.annotation(annotation::PREFER_NO_SCHEDULE).is_some();
    let is_in_place = deployment.strategy().strategy_type == StrategyType::InPlaceUpdate;
    let is_single = sets.len() < 2 && !sets.iter().any(has_marker) && !is_in_place;
    sets.iter()
        .flat_map(|seen| &seen.machines)
        .filter_map(|machine| machine.label(label::NODE))
        .filter_map(|name| nodes.get(&ObjectKey::cluster_scoped(name)))
        // A rollout that was abandoned may have left something on Nodes of the only remaining set.
        .filter(|node| !is_single || bears_traces(node))
        .map(|node| (node.name().to_owned(), node))
        .collect()
}
