//! The parts of the target cluster that only drains use: pods, volumes and evictions. There are no budget objects;
//! whether budgets refuse an eviction is one of the random faults.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;

use super::Caller;
use crate::{
    api::Kind,
    guards::Guard,
    refusals::{Request, Verb},
    volumes,
};
use controller_runtime::{
    error::ApiError,
    key::{ObjectKey, Target},
    store::{IndexName, Store},
};
use machine_controllers::drain::{act::EvictionApi, observe::DrainViews};
use machine_controllers::snapshots::{AttachmentSnapshot, BudgetSnapshot, ClaimSnapshot, PodSnapshot, VolumeSnapshot};

/// Index: pods by the name of their Node.
const BY_NODE: IndexName = "pod-node";

/// A store of pods.
pub fn pod_store() -> Arc<Store<PodSnapshot>> {
    Arc::new(Store::new(vec![(BY_NODE, |pod| pod.node_name().map(str::to_owned).into_iter().collect())]))
}

/// The Node of a pod.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The pods on a Node.
pub fn pods_on(pods: &Store<PodSnapshot>, node: &str) -> Vec<PodSnapshot> {
    pods.by_index(BY_NODE, node)
}

/// The stores for drains.
pub struct PlayedPods {
    /// The store of pods.
    pub pods: Arc<Store<PodSnapshot>>,
    /// The store of volume attachments.
    pub attachments: Arc<Store<AttachmentSnapshot>>,
    /// A guard that the process lacks.
    pub without: Option<Guard>,
}

impl PlayedPods {
    fn attachments(&self, fits: impl Fn(&AttachmentSnapshot) -> bool) -> Vec<AttachmentSnapshot> {
        if self.without == Some(Guard::Volumes) {
            return Vec::new();
        }
        let mut fitting = self.attachments.snapshot();
        fitting.retain(|one| fits(one));
        fitting
    }
}

impl DrainViews for PlayedPods {
    fn ready(&self) -> bool {
        true
    }

    fn pods_on(&self, node: &str) -> Vec<PodSnapshot> {
        pods_on(&self.pods, node)
    }

    fn pods_using(&self, claim: &ObjectKey) -> Vec<PodSnapshot> {
        let mut using = self.pods.snapshot();
        using.retain(|pod| pod.claims().any(|own| own == *claim));
        using
    }

    fn budgets_in(&self, _: &str) -> Vec<BudgetSnapshot> {
        Vec::new()
    }

    fn claim(&self, key: &ObjectKey) -> Option<ClaimSnapshot> {
        Some(volumes::claim(key).into())
    }

    fn volume(&self, name: &str) -> Option<VolumeSnapshot> {
        Some(volumes::volume(name).into())
    }

    fn attachments_on(&self, node: &str) -> Vec<AttachmentSnapshot> {
        self.attachments(|one| one.node_name() == node)
    }

    fn attachments_of(&self, volume: &str) -> Vec<AttachmentSnapshot> {
        self.attachments(|one| one.volume_name() == Some(volume))
    }
}

/// Evictions at the played API server.
pub struct PlayedEvictions(pub Caller);

#[async_trait]
impl EvictionApi for PlayedEvictions {
    async fn evict(&self, pod: &Target) -> Result<(), ApiError> {
        self.0.stage.held_up().await;
        let name = &pod.key.name;
        let request = Request { verb: Verb::Delete, kind: Pod::NAME, name };
        self.0
            .call(
                || format!("evict pod {pod}"),
                request,
                |lent| {
                    lent.checks.pod_is_sent_away(&lent.api, name, &self.0.nodes);
                    if lent.around.now < lent.around.evictions_from {
                        return Err(ApiError::DisruptionBudget(format!("no disruption of {name} is allowed now")));
                    }
                    lent.api.delete::<Pod>(name, Some(&pod.uid), None, lent.around.now).map(drop)
                },
            )
            .await
    }
}
