//! Keeps stores equal to what the API server holds: one future per kind that lists, watches and never gives up.
//!
//! Rules (rust-ecosystem §7): back off on every error, with jitter; at most three lists at once, in small pages; watches
//! end after 170–200 s, before a load balancer drops them in silence; one that is silent for longer than bookmarks take is
//! opened anew from its last version; an undecodable object is counted, told of once per version and kept as it was last
//! understood, and never stops the others.

mod beta;
mod feed;
mod guard;
mod health;
mod lazy;
mod pauses;
pub mod prune;
mod silence;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

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

/// Lists under way at once, so that a restarted API server is not asked for everything at the same moment.
const PARALLEL_LISTS: usize = 3;
/// How long a list may stand still before it is begun anew.
const LIST_STALL: Duration = Duration::from_secs(60);
/// Shortest and longest time a watch is asked to last, seconds.
const WATCH_SECONDS: std::ops::RangeInclusive<u32> = 170..=200;
/// How long a watch may be silent where nobody has said otherwise; API servers send a bookmark about once a minute.
pub const SILENT_AFTER: Duration = Duration::from_secs(90);
/// Objects per page of a list.
pub const PAGE: u32 = 250;
/// Objects per page of kinds with big objects, such as Pods and Nodes.
pub const SMALL_PAGE: u32 = 100;

/// Which objects of a kind are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of one namespace.
    Namespace(String),
    /// All of the cluster.
    Cluster,
}

/// How a kind is watched. `W` is the type on the wire, `K` what is kept.
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
    /// Watches a kind and keeps its objects without what `prune` takes off.
    pub fn objects(scope: Scope, prune: fn(&mut T)) -> Self {
        Self { scope, page: PAGE, labels: None, fields: None, prune, project: std::convert::identity }
    }
}

impl<W, K> Watching<W, K> {
    /// Watches a kind and keeps only what `project` makes of an object.
    pub fn projected(scope: Scope, project: fn(W) -> K) -> Self {
        Self { scope, page: SMALL_PAGE, labels: None, fields: None, prune: |_| (), project }
    }

    /// With this many objects per page of a list.
    #[must_use]
    pub fn page(self, page: u32) -> Self {
        Self { page, ..self }
    }

    /// Only objects that match a label selector.
    #[must_use]
    pub fn labelled(self, selector: impl Into<String>) -> Self {
        Self { labels: Some(selector.into()), ..self }
    }

    /// Only objects that match a field selector.
    #[must_use]
    pub fn with_fields(self, selector: impl Into<String>) -> Self {
        Self { fields: Some(selector.into()), ..self }
    }
}

/// An object that can't be decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Poison {
    /// The object, so that an event can be written about it.
    pub object: ObjectReference,
    /// Its UID.
    pub uid: String,
    /// The version that can't be decoded.
    pub resource_version: String,
    /// What is wrong with it.
    pub error: String,
}

impl Poison {
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

/// Is told of undecodable objects, once per version of each.
pub type OnPoison = Arc<dyn Fn(&Poison) + Send + Sync>;

/// All watches of the process. Cheap to clone.
#[derive(Clone)]
pub struct Watches {
    lists: Arc<Semaphore>,
    on_poison: OnPoison,
    jitter: Arc<dyn Fn() -> u64 + Send + Sync>,
    silent_after: Duration,
    health: Arc<Mutex<BTreeMap<&'static str, Arc<Health>>>>,
}

impl Watches {
    /// No watches yet. `jitter` is a source of random numbers.
    pub fn new(on_poison: OnPoison, jitter: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self {
            lists: Arc::new(Semaphore::new(PARALLEL_LISTS)),
            on_poison,
            jitter: Arc::new(jitter),
            silent_after: SILENT_AFTER,
            health: Arc::default(),
        }
    }

    /// The same, whose watches may be silent for about this long before they are opened anew.
    #[must_use]
    pub fn silent_after(self, limit: Duration) -> Self {
        Self { silent_after: limit, ..self }
    }

    /// The state of every watch that has been set up, by kind.
    pub fn health(&self) -> Vec<WatchHealth> {
        self.lock().iter().map(|(kind, health)| health.read(kind)).collect()
    }

    /// Makes a watch that is to begin later show in [`Self::health`].
    pub fn announce(&self, kind: &'static str) {
        self.health_of(kind);
    }

    /// Keeps `store` equal to the API server until `shutdown`. `kind` is the plural name for logs and metrics. The future
    /// is to be owned by the supervisor.
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
            on_poison: self.on_poison,
            silent_after: self.silent_after,
            lasts: WATCH_SECONDS.start() + extra,
            random: self.jitter,
        };
        shutdown.run_until_cancelled(feed.keep(&api)).await;
    }

    fn health_of(&self, kind: &'static str) -> Arc<Health> {
        Arc::clone(self.lock().entry(kind).or_default())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Arc<Health>>> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
