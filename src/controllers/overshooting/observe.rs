//! What is seen of a namespace: its sets with their numbers of machines, and its deployments.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::limits::Margins;
use crate::{
    api::v1alpha1::{MachineDeployment, MachineSet},
    controllers::{
        set::counts::Counts,
        views::{BY_CONTROLLER, BY_NAMESPACE, ControlViews},
    },
};

/// Version of [`OvershootObservation`] as it is written down.
pub const OBSERVATION_VERSION: u32 = 1;

/// A set and how many machines it controls.
#[derive(Clone, Debug, Serialize)]
pub struct GuardedSet {
    /// The set.
    pub set: Arc<MachineSet>,
    /// Machines that it controls by UID (D-52) and that carry all labels of its template, terminating ones included.
    pub machines: i64,
    /// Machines that it controls and that are not on their way out.
    pub staying: i64,
}

/// What a run may depend on.
#[derive(Clone, Debug, Serialize)]
pub struct OvershootObservation {
    /// Version of this structure.
    pub version: u32,
    /// The time of the observation.
    pub now: Timestamp,
    /// What the command line allows.
    pub margins: Margins,
    /// The sets of the namespace.
    pub sets: Vec<GuardedSet>,
    /// The deployments of the namespace.
    pub deployments: Vec<Arc<MachineDeployment>>,
}

impl OvershootObservation {
    /// A namespace without anything.
    pub fn of(margins: Margins, now: Timestamp) -> Self {
        Self { version: OBSERVATION_VERSION, now, margins, sets: Vec::new(), deployments: Vec::new() }
    }

    /// Looks up what is in a namespace.
    pub fn look_up(views: &ControlViews, namespace: &str, margins: Margins, now: Timestamp) -> Self {
        let sets = views.sets.by_index(BY_NAMESPACE, namespace).into_iter().map(|set| {
            let machines = views.machines.by_index(BY_CONTROLLER, set.metadata.uid.as_deref().unwrap_or_default());
            let counts = Counts::of(machines.iter().map(AsRef::as_ref), set.spec.template.metadata.labels.as_ref());
            GuardedSet { set, machines: counts.fully_labeled.into(), staying: counts.staying.into() }
        });
        Self {
            sets: sets.collect(),
            deployments: views.deployments.by_index(BY_NAMESPACE, namespace),
            ..Self::of(margins, now)
        }
    }
}
