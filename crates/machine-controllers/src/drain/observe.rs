//! The observation of a drain, and the stores that it is built from.
//!
//! The stores of pods, budgets and volumes are large and needed only during drains, so the caller provides them as
//! [`DrainViews`]. Source: spec/machine-controller §7, §15.4.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;

use super::{
    budgets::{BudgetState, budget_of},
    order::Force,
    pods::{PodClass, classify},
    progress::Progress,
    volumes::{VolumePlace, place_of},
};
use crate::snapshots::{AttachmentSnapshot, BudgetSnapshot, ClaimSnapshot, NodeSnapshot, PodSnapshot, VolumeSnapshot};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot};

/// The stores of the target cluster that only drains need.
pub trait DrainViews: Send + Sync + 'static {
    /// Whether the stores are complete. Starts them if necessary.
    fn ready(&self) -> bool;
    /// Whether the stores are complete. Does not start them.
    fn complete(&self) -> bool {
        self.ready()
    }
    /// The stores that are not complete. Does not start them.
    fn missing(&self) -> Vec<MissingView> {
        Vec::new()
    }
    /// The pods bound to a node.
    fn pods_on(&self, node: &str) -> Vec<PodSnapshot>;
    /// The pods that use a claim.
    fn pods_using(&self, claim: &ObjectKey) -> Vec<PodSnapshot>;
    /// The disruption budgets of a namespace.
    fn budgets_in(&self, namespace: &str) -> Vec<BudgetSnapshot>;
    /// A claim.
    fn claim(&self, key: &ObjectKey) -> Option<ClaimSnapshot>;
    /// A volume.
    fn volume(&self, name: &str) -> Option<VolumeSnapshot>;
    /// The volume attachments on a node.
    fn attachments_on(&self, node: &str) -> Vec<AttachmentSnapshot>;
    /// The volume attachments of a volume.
    fn attachments_of(&self, volume: &str) -> Vec<AttachmentSnapshot>;
}

/// A store that drains need and that is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingView {
    /// Plural name of its kind, such as `pods`.
    pub kind: &'static str,
    /// Why the API server does not return the list, if known.
    pub why: Option<String>,
}

/// Everything that one step of a drain may depend on.
#[derive(Clone, Debug, Serialize)]
pub struct DrainObservation {
    /// The time of the step.
    pub now: Timestamp,
    /// Limits and mode.
    pub limits: DrainLimits,
    /// Whether the node exists.
    pub node: NodePresence,
    /// Its pods.
    pub pods: Vec<PodFacts>,
    /// Volumes that the drain has tracked, by PV name.
    pub volumes: BTreeMap<String, VolumePlace>,
    /// PVs that have provider names and are attached to the node, although no pod on the node uses them. Their pods
    /// have just been deleted, or an earlier process moved the pods.
    pub left_attached: Vec<String>,
    /// The result of earlier steps.
    pub progress: Progress,
}

/// Limits and mode of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainLimits {
    /// Whether pods are deleted at once.
    pub force: Force,
    /// When the attempt fails.
    pub deadline: Timestamp,
    /// The drain timeout; limits the wait for a pod.
    pub timeout: Duration,
    /// Number of refused evictions after which the pod is deleted.
    pub retries: u32,
    /// Time that a volume may take to detach, in addition to the pod's grace period.
    pub detach: Duration,
    /// Time that a volume may take to attach to another node.
    pub reattach: Duration,
    /// Maximum number of pods evicted concurrently.
    pub parallel: usize,
}

/// Whether a node exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum NodePresence {
    /// Yes.
    Present,
    /// No.
    Gone,
}

/// The relevant facts about a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PodFacts {
    /// Its namespace and name.
    #[serde(serialize_with = "displayed")]
    pub key: ObjectKey,
    /// Its UID.
    pub uid: String,
    /// Its treatment by a drain.
    pub class: PodClass,
    /// Its priority; absent counts as zero (M-25).
    pub priority: i32,
    /// Its grace period.
    pub grace: Duration,
    /// When its deletion was requested; `None` if it is not being deleted.
    pub deleting_since: Option<Timestamp>,
    /// The budget that covers it.
    pub budget: BudgetState,
    /// Its tracked PVs.
    pub volumes: Vec<String>,
}

fn displayed<S: serde::Serializer>(key: &ObjectKey, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(key)
}

/// The provider's ids by PV name, for PVs that the driver knows. The driver is asked once per drain.
pub type VolumeIds = BTreeMap<String, Vec<String>>;

/// Builds the observation of one step.
pub fn observe(
    views: &dyn DrainViews,
    node_name: &str,
    node: Option<&NodeSnapshot>,
    limits: DrainLimits,
    progress: &Progress,
    ids: &VolumeIds,
    now: Timestamp,
) -> DrainObservation {
    let pods = views.pods_on(node_name);
    let shared = shared_volumes(views, &pods);
    let facts = pods.iter().map(|pod| facts_of(views, pod, ids, &shared)).collect::<Vec<_>>();
    let mut tracked: Vec<String> = facts.iter().flat_map(|pod| pod.volumes.clone()).collect();
    tracked.extend(progress.tracked_volumes());
    let left_attached: Vec<String> =
        left_attached(views, node_name, &pods).into_iter().filter(|name| is_named(ids, name)).collect();
    tracked.extend(left_attached.iter().cloned());
    let volumes = tracked
        .into_iter()
        .map(|name| {
            let place = place_of(
                &name,
                ids.get(&name).map(Vec::as_slice).unwrap_or_default(),
                node_name,
                node,
                &views.attachments_of(&name),
                &progress.claims_of(&name),
                views,
            );
            (name, place)
        })
        .collect();
    DrainObservation {
        now,
        limits,
        node: if node.is_some() { NodePresence::Present } else { NodePresence::Gone },
        pods: facts,
        volumes,
        left_attached,
        progress: progress.clone(),
    }
}

fn facts_of(views: &dyn DrainViews, pod: &PodSnapshot, ids: &VolumeIds, shared: &[String]) -> PodFacts {
    let budgets = views.budgets_in(pod.namespace());
    PodFacts {
        key: pod.key(),
        uid: pod.uid().to_owned(),
        class: classify(pod),
        priority: pod.priority(),
        grace: pod.grace(),
        deleting_since: pod.deleting_since(),
        budget: budget_of(pod, &budgets),
        volumes: volumes_of(views, pod)
            .into_iter()
            .filter(|name| is_named(ids, name) && !shared.contains(name))
            .collect(),
    }
}

/// Whether the driver has named this PV.
fn is_named(ids: &VolumeIds, pv: &str) -> bool {
    ids.get(pv).is_some_and(|ids| !ids.is_empty())
}

/// PVs that are attached to a node although none of these pods on it uses them. Inline volumes have no PV and are
/// ignored (M-25).
pub fn left_attached(views: &dyn DrainViews, node_name: &str, pods: &[PodSnapshot]) -> Vec<String> {
    let used: BTreeSet<String> = pods.iter().flat_map(|pod| volumes_of(views, pod)).collect();
    let attached = views.attachments_on(node_name).into_iter().filter(AttachmentSnapshot::is_attached);
    let left: BTreeSet<String> = attached
        .filter_map(|attachment| attachment.volume_name().map(str::to_owned))
        .filter(|name| !used.contains(name))
        .collect();
    left.into_iter().collect()
}

/// Names of the PVs that are bound to a pod's claims, as far as the claims are known.
pub fn volumes_of(views: &dyn DrainViews, pod: &PodSnapshot) -> Vec<String> {
    pod.claims().filter_map(|claim| views.claim(&claim)?.volume_name().map(str::to_owned)).collect()
}

/// PVs used by more than one pod, or twice by one pod: it is unknown when they are free (MC-217).
pub fn shared_volumes(views: &dyn DrainViews, pods: &[PodSnapshot]) -> Vec<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    for pod in pods.iter().filter(|pod| classify(pod) == PodClass::WithVolumes) {
        for name in volumes_of(views, pod) {
            *seen.entry(name).or_default() += 1;
        }
    }
    seen.into_iter().filter(|(_, times)| *times > 1).map(|(name, _)| name).collect()
}
