//! What only drains see and call in the target cluster: pods, and their evictions. There are no budgets, claims and volumes to be
//! seen; that budgets refuse is part of the weather.

use std::{marker::PhantomData, sync::Arc};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::Caller;
use crate::{
    api::Kind,
    refusals::{Request, Verb},
};
use controller_runtime::{
    error::ApiError,
    key::{ObjectKey, Target},
    objects::{DeleteHow, Deleted, ListQuery, ObjectApi, Page, Part, Patch},
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

/// The Node that a pod is on.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The pods on a Node.
pub fn pods_on(pods: &Store<PodSnapshot>, node: &str) -> Vec<PodSnapshot> {
    pods.by_index(BY_NODE, node)
}

/// The views of drains.
pub struct PlayedPods(pub Arc<Store<PodSnapshot>>);

impl DrainViews for PlayedPods {
    fn ready(&self) -> bool {
        true
    }

    fn pods_on(&self, node: &str) -> Vec<PodSnapshot> {
        pods_on(&self.0, node)
    }

    fn pods_using(&self, _: &ObjectKey) -> Vec<PodSnapshot> {
        Vec::new()
    }

    fn budgets_in(&self, _: &str) -> Vec<BudgetSnapshot> {
        Vec::new()
    }

    fn claim(&self, _: &ObjectKey) -> Option<ClaimSnapshot> {
        None
    }

    fn volume(&self, _: &str) -> Option<VolumeSnapshot> {
        None
    }

    fn attachments_on(&self, _: &str) -> Vec<AttachmentSnapshot> {
        Vec::new()
    }

    fn attachments_of(&self, _: &str) -> Vec<AttachmentSnapshot> {
        Vec::new()
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

/// Objects of a kind of which there are none.
pub struct Nothing<K>(PhantomData<fn() -> K>);

impl<K> Default for Nothing<K> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<K> Nothing<K> {
    fn absent<T>(name: &str) -> Result<T, ApiError> {
        Err(ApiError::NotFound(name.to_owned()))
    }
}

#[async_trait]
impl<K: Send + Sync + 'static> ObjectApi<K> for Nothing<K> {
    async fn read(&self, key: &ObjectKey) -> Result<Arc<K>, ApiError> {
        Self::absent(&key.name)
    }

    async fn list(&self, _: &ListQuery) -> Result<Page, ApiError> {
        Ok(Page::default())
    }

    async fn create(&self, _: &K) -> Result<Arc<K>, ApiError> {
        Self::absent("no namespace")
    }

    async fn patch(&self, key: &ObjectKey, _: Part, _: &Patch) -> Result<Arc<K>, ApiError> {
        Self::absent(&key.name)
    }

    async fn delete(&self, target: &Target, _: DeleteHow<'_>) -> Result<Deleted<Arc<K>>, ApiError> {
        Self::absent(&target.key.name)
    }

    fn decode(&self, _: Value) -> Result<Arc<K>, ApiError> {
        Self::absent("an object")
    }
}
