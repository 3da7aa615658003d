//! What is seen of a set: all that a decision about it may depend on.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{back_off::Hold, counts::is_failed, new_machine::without_new_names, preservation::NodePreserve};
use crate::{
    checked::Checked,
    snapshots::{MachineSnapshot, NodeSnapshot, SetSnapshot},
    views::{BY_CONTROLLER, ControlViews, ORPHANS},
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Store};
use machine_api::names::{annotation, label};

/// Version of [`SetObservation`] as it is written down.
pub const OBSERVATION_VERSION: u32 = 1;

/// What went wrong the last time machines were created or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplicaFailure {
    /// `FailedCreate` or `FailedDelete`.
    pub reason: &'static str,
    /// The error.
    pub message: String,
    /// When an event told of it.
    pub told: Timestamp,
}

/// A failure that lasts is told by an event so often; its condition stays all the time, and events are forgotten after an
/// hour.
const TOLD_AGAIN_AFTER: SignedDuration = SignedDuration::from_hours(1);

impl ReplicaFailure {
    /// The failure, seen at this time after an earlier one of the same set. What differs in the names of new machines alone
    /// is the same failure: each pass draws new ones, and refusals quote them.
    pub fn after(reason: &'static str, message: String, seen: &SetObservation) -> Self {
        let set = seen.set.name();
        let lasts = |known: &&Self| {
            known.reason == reason
                && without_new_names(set, &known.message) == without_new_names(set, &message)
                && seen.now.duration_since(known.told) < TOLD_AGAIN_AFTER
        };
        match seen.failure.as_ref().filter(lasts) {
            Some(known) => known.clone(),
            None => Self { reason, message, told: seen.now },
        }
    }

    /// Whether an event is to tell of it.
    pub fn is_news(&self, seen: &SetObservation) -> bool {
        seen.failure.as_ref().is_none_or(|known| known.told != self.told)
    }
}

/// What a decision about a set may depend on.
#[derive(Clone, Debug, Serialize)]
pub struct SetObservation {
    /// Version of this structure.
    pub version: u32,
    /// The time of the observation.
    pub now: Timestamp,
    /// The set.
    pub set: SetSnapshot,
    /// What is known of whether it can be acted on; found out anew when absent.
    #[serde(skip)]
    pub checked: Option<Checked<SetSnapshot>>,
    /// The machines whose controller the set is.
    pub machines: Vec<MachineSnapshot>,
    /// The machines of the namespace that nobody controls.
    pub orphans: Vec<MachineSnapshot>,
    /// What the Nodes of Failed machines say about their preservation, by name of the machine.
    pub node_preserve: BTreeMap<String, NodePreserve>,
    /// Where new names are drawn from.
    pub name_seed: u64,
    /// Names under which a creation got no answer.
    pub unanswered: BTreeSet<String>,
    /// When this process last wrote the status.
    pub status_written: Option<Timestamp>,
    /// What went wrong the last time.
    pub failure: Option<ReplicaFailure>,
    /// The wait before machines that never joined are replaced.
    pub hold: Option<Hold>,
}

impl SetObservation {
    /// A set of which nothing else is known yet.
    pub fn of(set: SetSnapshot, now: Timestamp) -> Self {
        Self {
            version: OBSERVATION_VERSION,
            now,
            set,
            checked: None,
            machines: Vec::new(),
            orphans: Vec::new(),
            node_preserve: BTreeMap::new(),
            name_seed: 0,
            unanswered: BTreeSet::new(),
            status_written: None,
            failure: None,
            hold: None,
        }
    }

    /// Looks a set up with its machines and their nodes. `None` when there is no such set.
    pub fn look_up(
        views: &ControlViews,
        nodes: Option<&Store<NodeSnapshot>>,
        key: &ObjectKey,
        now: Timestamp,
    ) -> Option<Self> {
        let set = views.sets.get(key)?;
        let uid = set.uid().to_owned();
        let machines = views.machines.by_index(BY_CONTROLLER, &uid);
        let orphans = views.machines.by_index(ORPHANS, &key.namespace);
        let node_preserve = machines
            .iter()
            .filter(|machine| is_failed(machine))
            .map(|machine| (machine.name().to_owned(), preserve_of_node(machine, nodes)))
            .collect();
        Some(Self { machines, orphans, node_preserve, ..Self::of(set, now) })
    }
}

/// What the Node of a machine says about its preservation.
pub fn preserve_of_node(machine: &MachineSnapshot, nodes: Option<&Store<NodeSnapshot>>) -> NodePreserve {
    let name = machine.label(label::NODE).unwrap_or_default();
    let Some(nodes) = nodes.filter(|_| !name.is_empty()) else { return NodePreserve::NoNode };
    let Some(node) = nodes.get(&ObjectKey::cluster_scoped(name)) else { return NodePreserve::NodeMissing };
    let value = node.annotation(annotation::PRESERVE);
    NodePreserve::Value(value.unwrap_or_default().to_owned())
}
