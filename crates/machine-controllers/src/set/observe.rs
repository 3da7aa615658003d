//! The observation of a set: everything that a decision about it may depend on.

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

/// Version of [`SetObservation`] in its serialised form.
pub const OBSERVATION_VERSION: u32 = 1;

/// The last failure to create or delete machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplicaFailure {
    /// `FailedCreate` or `FailedDelete`.
    pub reason: &'static str,
    /// The error.
    pub message: String,
    /// When an event reported it.
    pub told: Timestamp,
}

/// The period of events about a lasting failure. Its condition stays all the time, but events are deleted after an
/// hour.
const REPEAT_EVENT_AFTER: SignedDuration = SignedDuration::from_hours(1);

impl ReplicaFailure {
    /// The failure, observed now after an earlier failure of the same set. Texts that differ only in the names of new
    /// machines are the same failure: each pass draws new names, and refusals contain them.
    pub fn after(reason: &'static str, message: String, seen: &SetObservation) -> Self {
        let set = seen.set.name();
        let lasts = |known: &&Self| {
            known.reason == reason
                && without_new_names(set, &known.message) == without_new_names(set, &message)
                && seen.now.duration_since(known.told) < REPEAT_EVENT_AFTER
        };
        match seen.failure.as_ref().filter(lasts) {
            Some(known) => known.clone(),
            None => Self { reason, message, told: seen.now },
        }
    }

    /// Whether an event must report it.
    pub fn is_news(&self, seen: &SetObservation) -> bool {
        seen.failure.as_ref().is_none_or(|known| known.told != self.told)
    }
}

/// The input of a decision about a set.
#[derive(Clone, Debug, Serialize)]
pub struct SetObservation {
    /// Version of this structure.
    pub version: u32,
    /// The time of the observation.
    pub now: Timestamp,
    /// The set.
    pub set: SetSnapshot,
    /// The cached result of validation; evaluated again when absent.
    #[serde(skip)]
    pub checked: Option<Checked<SetSnapshot>>,
    /// The machines whose controller the set is.
    pub machines: Vec<MachineSnapshot>,
    /// The machines of the namespace without a controller.
    pub orphans: Vec<MachineSnapshot>,
    /// The preservation values on the Nodes of Failed machines, by name of the machine.
    pub node_preserve: BTreeMap<String, NodePreserve>,
    /// The seed of new names.
    pub name_seed: u64,
    /// Names under which a creation got no answer.
    pub unanswered: BTreeSet<String>,
    /// When this process last wrote the status.
    pub status_written: Option<Timestamp>,
    /// The failure of the last pass.
    pub failure: Option<ReplicaFailure>,
    /// The wait before machines that never joined are replaced.
    pub hold: Option<Hold>,
}

impl SetObservation {
    /// An observation that contains only the set.
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

    /// Reads a set with its machines and their Nodes from the stores. `None` when the set does not exist.
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

/// The preservation value on the Node of a machine.
pub fn preserve_of_node(machine: &MachineSnapshot, nodes: Option<&Store<NodeSnapshot>>) -> NodePreserve {
    let name = machine.label(label::NODE).unwrap_or_default();
    let Some(nodes) = nodes.filter(|_| !name.is_empty()) else { return NodePreserve::NoNode };
    let Some(node) = nodes.get(&ObjectKey::cluster_scoped(name)) else { return NodePreserve::NodeMissing };
    let value = node.annotation(annotation::PRESERVE);
    NodePreserve::Value(value.unwrap_or_default().to_owned())
}
