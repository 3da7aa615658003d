//! Keeps stores equal to the API server: one future per kind, which lists and watches and never ends by itself.
//!
//! Rules (rust-ecosystem §7):
//! * Back off after every error, with jitter.
//! * Run at most three lists at once, in small pages.
//! * End each watch after 170–200 s, before a load balancer drops the connection without notice.
//! * Open a watch again, from its last version, when it has received nothing for longer than the interval of bookmarks.
//! * Count an undecodable object, report it once per version and keep its last decodable state. It never stops the watch of the
//!   other objects.

mod beta;
mod feed;
mod guard;
mod health;
mod idle_limit;
mod lazy;
mod pauses;
pub mod prune;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::lock;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::{
    beta::Beta,
    guard::{Guarded, Undecodable},
    health::WatchHealth,
    lazy::Lazy,
};
use self::{feed::Feed, health::Health};
use super::{snapshot::Snapshot, store::Store};

/// Maximum number of lists at the same time, to spare an API server that has just restarted.
const PARALLEL_LISTS: usize = 3;
/// How long a list may make no progress before it starts again.
const LIST_STALL: Duration = Duration::from_secs(60);
/// Range of the timeout that a watch asks for, in seconds.
const WATCH_SECONDS: std::ops::RangeInclusive<u32> = 170..=200;
/// Default for how long a watch may receive nothing. API servers send a bookmark about once a minute.
pub const SILENT_AFTER: Duration = Duration::from_secs(90);
/// Objects per page of a list.
pub const PAGE: u32 = 250;
/// Objects per page of kinds with big objects, such as Pods and Nodes.
pub const SMALL_PAGE: u32 = 100;

/// The watched objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The objects of one namespace.
    Namespace(String),
    /// The objects of the whole cluster.
    Cluster,
}

/// How a kind is watched. `W` is the type that the API server sends, `K` the type that is kept.
#[derive(Clone)]
pub struct Watching<W, K> {
    scope: Scope,
    page: u32,
    labels: Option<String>,
    fields: Option<String>,
    prune: fn(&mut W),
    project: fn(W) -> K,
}

impl<T> Watching<T, T> {
    /// Watches a kind and keeps its objects. `prune` removes what is not needed.
    pub fn objects(scope: Scope, prune: fn(&mut T)) -> Self {
        Self { scope, page: PAGE, labels: None, fields: None, prune, project: std::convert::identity }
    }
}

impl<W, K> Watching<W, K> {
    /// Watches a kind and keeps the result of `project` for each object.
    pub fn projected(scope: Scope, project: fn(W) -> K) -> Self {
        Self { scope, page: SMALL_PAGE, labels: None, fields: None, prune: |_| (), project }
    }

    /// Sets the number of objects per page of a list.
    #[must_use]
    pub fn page(self, page: u32) -> Self {
        Self { page, ..self }
    }

    /// Restricts the watch to objects that match a label selector.
    #[must_use]
    pub fn labelled(self, selector: impl Into<String>) -> Self {
        Self { labels: Some(selector.into()), ..self }
    }

    /// Restricts the watch to objects that match a field selector.
    #[must_use]
    pub fn with_fields(self, selector: impl Into<String>) -> Self {
        Self { fields: Some(selector.into()), ..self }
    }
}

/// The cluster of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchedCluster {
    /// The cluster with the machine objects.
    #[default]
    Control,
    /// The cluster with the Nodes.
    Target,
}

impl WatchedCluster {
    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Target => "target",
        }
    }
}

/// An object that can't be decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct UndecodableObject {
    /// Reference to the object, for an event about it.
    pub object: ObjectReference,
    /// Its UID.
    pub uid: String,
    /// The version that can't be decoded.
    pub resource_version: String,
    /// The decoding error.
    pub error: String,
}

impl UndecodableObject {
    fn of<W: Resource<DynamicType = ()>>(undecodable: Undecodable) -> Self {
        let metadata = undecodable.metadata;
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            object: ObjectReference {
                api_version: Some(W::api_version(&()).into_owned()),
                kind: Some(W::kind(&()).into_owned()),
                name: metadata.name,
                namespace: metadata.namespace,
                resource_version: metadata.resource_version,
                uid: metadata.uid,
                field_path: None,
            },
            error: undecodable.error,
        }
    }
}

/// Called for each undecodable object, once per version.
pub type OnUndecodable = Arc<dyn Fn(&UndecodableObject) + Send + Sync>;

/// All watches of the process. Cheap to clone.
#[derive(Clone)]
pub struct Watches {
    lists: Arc<Semaphore>,
    on_undecodable: OnUndecodable,
    jitter: Arc<dyn Fn() -> u64 + Send + Sync>,
    silent_after: Duration,
    cluster: WatchedCluster,
    health: Arc<Mutex<HealthOfWatches>>,
}

/// The state of each watch, by cluster and kind.
type HealthOfWatches = BTreeMap<(WatchedCluster, &'static str), Arc<Health>>;

impl Watches {
    /// No watches yet. `jitter` is a source of random numbers.
    pub fn new(on_undecodable: OnUndecodable, jitter: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self {
            lists: Arc::new(Semaphore::new(PARALLEL_LISTS)),
            on_undecodable,
            jitter: Arc::new(jitter),
            silent_after: SILENT_AFTER,
            cluster: WatchedCluster::Control,
            health: Arc::default(),
        }
    }

    /// Sets about how long a watch may receive nothing before it is opened again.
    #[must_use]
    pub fn silent_after(self, limit: Duration) -> Self {
        Self { silent_after: limit, ..self }
    }

    /// The same watches. Those that are set up from here on are of this cluster; it is the control cluster at first.
    #[must_use]
    pub fn of_cluster(self, cluster: WatchedCluster) -> Self {
        Self { cluster, ..self }
    }

    /// The state of every watch that has been set up, by cluster and kind.
    pub fn health(&self) -> Vec<WatchHealth> {
        self.lock().iter().map(|((cluster, kind), health)| health.read(*cluster, kind)).collect()
    }

    /// Adds a watch that starts later to [`Self::health`].
    pub fn announce(&self, kind: &'static str) {
        self.health_of(kind);
    }

    /// Keeps `store` equal to the API server until `shutdown`. `kind` is the plural name for logs and metrics. The supervisor
    /// should own the future.
    pub async fn keep<W, S>(
        self,
        kind: &'static str,
        client: kube::Client,
        watching: Watching<W, S::Object>,
        store: Arc<Store<S>>,
        shutdown: CancellationToken,
    ) where
        W: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
        S: Snapshot,
    {
        let health = self.health_of(kind);
        let api: Api<Guarded<W>> = match &watching.scope {
            Scope::Namespace(namespace) => Api::namespaced_with(client, namespace, &()),
            Scope::Cluster => Api::all_with(client, &()),
        };
        let spread = u64::from(WATCH_SECONDS.end() - WATCH_SECONDS.start()) + 1;
        let extra = u32::try_from((self.jitter)() % spread).unwrap_or_default();
        let feed = Feed {
            kind,
            watching,
            store,
            health,
            lists: self.lists,
            on_undecodable: self.on_undecodable,
            silent_after: self.silent_after,
            lasts: WATCH_SECONDS.start() + extra,
            random: self.jitter,
        };
        shutdown.run_until_cancelled(feed.keep(&api)).await;
    }

    fn health_of(&self, kind: &'static str) -> Arc<Health> {
        Arc::clone(self.lock().entry((self.cluster, kind)).or_default())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HealthOfWatches> {
        lock(&self.health)
    }
}
