//! What a drain has done so far: in memory, per machine, rebuilt by looking again after a restart.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::{observe::VolumeIds, step::How};
use crate::cluster::key::ObjectKey;

/// What a drain has done so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// Pods of this attempt by UID. Pods that come later are not part of it (MC-226).
    pub pods: BTreeMap<String, PodProgress>,
    /// Whether the attempt's pods have been listed.
    pub listed: Listed,
    /// Volumes that did not detach in time; they stay tracked until they do (M-43).
    pub lingering: BTreeSet<String>,
    /// Claims by PV, remembered because the pod is gone when its volume is looked for.
    #[serde(skip)]
    pub claims: BTreeMap<String, Vec<ObjectKey>>,
    /// The provider's ids by PV.
    pub volume_ids: VolumeIds,
    /// PVs whose ids the driver has been asked for and has not told yet.
    pub volumes_asked: BTreeSet<String>,
}

/// Whether the pods of an attempt have been listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Listed {
    /// No.
    #[default]
    No,
    /// Yes.
    Yes,
}

/// What has been done about a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PodProgress {
    /// Name for messages.
    pub name: String,
    /// Its PVs that are tracked.
    pub volumes: Vec<String>,
    /// What was asked for and is not answered yet.
    pub asked: Option<How>,
    /// Evictions that were refused.
    pub refusals: u32,
    /// When a budget refused for the first time.
    pub refused_since: Option<Timestamp>,
    /// When to try again.
    pub next_try: Option<Timestamp>,
    /// The budgets that refused last.
    pub refused_by: Option<String>,
    /// When eviction or deletion was accepted.
    pub accepted: Option<Timestamp>,
    /// When its volumes were found detached.
    pub detached: Option<Timestamp>,
    /// How it ended.
    pub end: Option<End>,
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum End {
    /// It is gone, its volumes too as far as they are waited for.
    Done,
    /// It can't be moved in this attempt.
    Failed(String),
}

/// What the API server said to an eviction or deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAnswer {
    /// Accepted.
    Accepted,
    /// The pod is gone, or another one has its name.
    Gone,
    /// A budget refuses.
    Refused,
    /// The server is busy; again after this time.
    Busy(std::time::Duration),
    /// Something else.
    Failed(String),
}

impl Progress {
    /// A new attempt that still remembers volumes which lingered.
    #[must_use]
    pub fn next_attempt(&self) -> Self {
        Self {
            lingering: self.lingering.clone(),
            claims: self.claims.clone(),
            volume_ids: self.volume_ids.clone(),
            volumes_asked: self.volumes_asked.clone(),
            ..Self::default()
        }
    }

    /// PVs whose place matters beyond the pods that are still there.
    pub fn tracked_volumes(&self) -> impl Iterator<Item = String> + '_ {
        let of_pods = self.pods.values().filter(|pod| pod.end.is_none()).flat_map(|pod| pod.volumes.iter().cloned());
        of_pods.chain(self.lingering.iter().cloned())
    }

    /// The claims that a PV was used through.
    pub fn claims_of(&self, pv: &str) -> Vec<ObjectKey> {
        self.claims.get(pv).cloned().unwrap_or_default()
    }
}
