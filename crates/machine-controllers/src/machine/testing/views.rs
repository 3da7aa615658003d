//! Stores of the small cluster: they receive changes of its objects a little later, or not at all.

use std::{sync::Arc, time::Duration};

use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Store};
use futures::{FutureExt, StreamExt};
use kube::core::WatchEvent;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cluster::LIST_OF_PODS;
use crate::{
    drain::observe::{DrainViews, MissingView},
    snapshots::{AttachmentSnapshot, BudgetSnapshot, ClaimSnapshot, PodSnapshot, VolumeSnapshot},
    testing_api::TestApi,
};

/// How stores receive objects.
pub(super) struct Follow<'a> {
    pub(super) api: &'a TestApi,
    /// Changes are held back until this is true.
    pub(super) delivered: watch::Receiver<bool>,
    /// Changes arrive this long after they happened.
    pub(super) delay: Duration,
    pub(super) stop: &'a CancellationToken,
}

impl Follow<'_> {
    /// Fills a store with the objects of a list, and keeps it up to date.
    pub(super) fn all<S: Snapshot>(&self, path: &'static str, store: &Arc<Store<S>>)
    where
        S::Object: DeserializeOwned,
    {
        let object = |object: Value| serde_json::from_value::<S::Object>(object).unwrap();
        let mut list = self.api.get(path).unwrap();
        for item in list["items"].as_array_mut().unwrap() {
            store.apply(object(item.take()));
        }
        let (api, store, mut delivered, delay) =
            (self.api.clone(), Arc::clone(store), self.delivered.clone(), self.delay);
        let listening = async move {
            let mut version = version(&list);
            loop {
                let later = move |event| tokio::time::sleep(delay).map(|()| event);
                let mut events = api.watch(path, &version).await.map(later).buffered(usize::MAX);
                while let Some(event) = events.next().await {
                    delivered.wait_for(|delivered| *delivered).await.unwrap();
                    let (change, is_gone) = match event {
                        WatchEvent::Added(change) | WatchEvent::Modified(change) => (change, false),
                        WatchEvent::Deleted(change) => (change, true),
                        other => panic!("a watch of {path} says {other:?}"),
                    };
                    version = self::version(&change);
                    if is_gone { store.delete(&object(change)) } else { store.apply(object(change)) }
                }
            }
        };
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(listening));
    }
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// The pods that a drain sees.
pub(super) struct Pods {
    api: TestApi,
    running: Arc<Store<PodSnapshot>>,
    budgets: Arc<Store<BudgetSnapshot>>,
}

impl Pods {
    /// Stores that receive pods and budgets at once.
    pub(super) fn following(api: &TestApi, stop: &CancellationToken) -> Self {
        let follow = Follow { api, delivered: watch::Sender::new(true).subscribe(), delay: Duration::ZERO, stop };
        let (running, budgets) = (Arc::new(Store::new(Vec::new())), Arc::new(Store::new(Vec::new())));
        follow.all("/api/v1/pods", &running);
        follow.all("/apis/policy/v1/poddisruptionbudgets", &budgets);
        Self { api: api.clone(), running, budgets }
    }
}

impl DrainViews for Pods {
    fn ready(&self) -> bool {
        !self.api.is_to_fail(LIST_OF_PODS)
    }
    fn pods_on(&self, node: &str) -> Vec<PodSnapshot> {
        let mut pods = self.running.snapshot();
        pods.retain(|pod| pod.node_name() == Some(node));
        pods
    }
    fn pods_using(&self, _claim: &ObjectKey) -> Vec<PodSnapshot> {
        Vec::new()
    }
    fn missing(&self) -> Vec<MissingView> {
        let why = Some("forbidden to list and watch pods".to_owned());
        if self.ready() { Vec::new() } else { vec![MissingView { kind: "pods", why }] }
    }
    fn budgets_in(&self, _namespace: &str) -> Vec<BudgetSnapshot> {
        self.budgets.snapshot()
    }
    fn claim(&self, _key: &ObjectKey) -> Option<ClaimSnapshot> {
        None
    }
    fn volume(&self, _name: &str) -> Option<VolumeSnapshot> {
        None
    }
    fn attachments_on(&self, _node: &str) -> Vec<AttachmentSnapshot> {
        Vec::new()
    }
    fn attachments_of(&self, _volume: &str) -> Vec<AttachmentSnapshot> {
        Vec::new()
    }
}
