//! Keeps stores equal to what the API server holds: one future per kind that lists, watches and never gives up.
//!
//! Rules (rust-ecosystem §7): back off on every error, with jitter; at most three lists at once, in small pages; watches
//! end after 170–200 s, before a load balancer drops them in silence; an undecodable object is counted, told of once per
//! version and kept as it was last understood, and never stops the others.

mod beta;
mod guard;
mod health;
mod lazy;
pub mod prune;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Resource,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::health::Health;
pub use self::{
    beta::Beta,
    guard::{Guarded, Undecodable},
    health::WatchHealth,
    lazy::Lazy,
};
use super::{error::chain, key::ObjectKey, store::Store};

/// Lists under way at once, so that a restarted API server is not asked for everything at the same moment.
const PARALLEL_LISTS: usize = 3;
/// How long a list may stand still before it is begun anew.
const LIST_STALL: Duration = Duration::from_secs(60);
/// Shortest and longest time a watch is asked to last, seconds.
const WATCH_SECONDS: std::ops::RangeInclusive<u32> = 170..=200;
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

    fn config(&self, seconds: u32) -> watcher::Config {
        let mut config = watcher::Config::default().timeout(seconds).page_size(self.page);
        config.label_selector.clone_from(&self.labels);
        config.field_selector.clone_from(&self.fields);
        config
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
    health: Arc<Mutex<BTreeMap<&'static str, Arc<Health>>>>,
}

impl Watches {
    /// No watches yet. `jitter` is a source of random numbers.
    pub fn new(on_poison: OnPoison, jitter: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self {
            lists: Arc::new(Semaphore::new(PARALLEL_LISTS)),
            on_poison,
            jitter: Arc::new(jitter),
            health: Arc::default(),
        }
    }

    /// The state of every watch that has been set up, by kind.
    pub fn health(&self) -> Vec<WatchHealth> {
        self.lock().iter().map(|(kind, health)| health.read(kind)).collect()
    }

    /// Keeps `store` equal to the API server until `shutdown`. `kind` is the plural name for logs and metrics. The future
    /// is to be owned by the supervisor.
    pub async fn keep<W, K>(
        self,
        kind: &'static str,
        client: kube::Client,
        watching: Watching<W, K>,
        store: Arc<Store<K>>,
        shutdown: CancellationToken,
    ) where
        W: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
        K: Resource + Send + Sync + 'static,
    {
        let health = self.health_of(kind);
        let client = health::listening(&client, &health);
        let api: Api<Guarded<W>> = match &watching.scope {
            Scope::Namespace(namespace) => Api::namespaced_with(client, namespace, &()),
            Scope::Cluster => Api::all_with(client, &()),
        };
        let spread = u64::from(WATCH_SECONDS.end() - WATCH_SECONDS.start()) + 1;
        let extra = u32::try_from((self.jitter)() % spread).unwrap_or_default();
        let config = watching.config(WATCH_SECONDS.start() + extra);
        let feed = Feed { kind, watching, store, health, lists: self.lists, on_poison: self.on_poison };
        let forever = async {
            loop {
                feed.follow(watcher(api.clone(), config.clone()).default_backoff()).await;
            }
        };
        shutdown.run_until_cancelled(forever).await;
    }

    fn health_of(&self, kind: &'static str) -> Arc<Health> {
        Arc::clone(self.lock().entry(kind).or_default())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Arc<Health>>> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One watch: takes events and feeds the store.
struct Feed<W, K> {
    kind: &'static str,
    watching: Watching<W, K>,
    store: Arc<Store<K>>,
    health: Arc<Health>,
    lists: Arc<Semaphore>,
    on_poison: OnPoison,
}

impl<W, K> Feed<W, K>
where
    W: Resource<DynamicType = ()>,
    K: Resource + Send + Sync + 'static,
{
    /// Follows a stream to its end, or until a list stands still.
    async fn follow(&self, events: impl Stream<Item = watcher::Result<watcher::Event<Guarded<W>>>>) {
        let mut events = pin!(events);
        let mut list = None;
        // Undecodable objects that the running list mentioned.
        let mut poisoned = BTreeSet::new();
        loop {
            let event = if list.is_some() {
                let Ok(event) = tokio::time::timeout(LIST_STALL, events.next()).await else {
                    self.failed(format!("the list stood still for {LIST_STALL:?}; it is begun anew"));
                    return;
                };
                event
            } else {
                events.next().await
            };
            let event = match event {
                None => return,
                Some(Err(error)) => {
                    list = None;
                    self.failed(explain(self.kind, &error));
                    continue;
                }
                Some(Ok(event)) => event,
            };
            if !matches!(event, watcher::Event::Init) {
                self.health.works();
            }
            match event {
                watcher::Event::Init => {
                    // The stream asks the server only when it is polled again.
                    list = Arc::clone(&self.lists).acquire_owned().await.ok();
                    poisoned.clear();
                    self.store.list_begins();
                }
                watcher::Event::InitApply(object) => {
                    if let Some(uid) = self.apply(object) {
                        poisoned.insert(uid);
                    }
                }
                watcher::Event::InitDone => {
                    self.health.keep_undecodable(&poisoned);
                    self.health.listed();
                    self.store.list_ends();
                    list = None;
                }
                watcher::Event::Apply(object) => {
                    self.apply(object);
                }
                watcher::Event::Delete(object) => self.delete(object),
            }
        }
    }

    /// Takes an object over; answers the UID of one that can't be decoded.
    fn apply(&self, object: Guarded<W>) -> Option<String> {
        match object.0 {
            Ok(mut object) => {
                self.health.decodable(object.meta().uid.as_deref());
                (self.watching.prune)(&mut object);
                self.store.apply((self.watching.project)(*object));
                None
            }
            Err(undecodable) => {
                let poison = Poison::of::<W>(*undecodable);
                let key = ObjectKey::new(
                    poison.object.namespace.clone().unwrap_or_default(),
                    poison.object.name.clone().unwrap_or_default(),
                );
                // It exists: as it was last understood is nearer to the truth than not at all.
                self.store.still_there(&key, &poison.uid);
                if self.health.undecodable(&poison) {
                    tracing::warn!(kind = self.kind, object = %key, error = poison.error, "undecodable object skipped");
                    (self.on_poison)(&poison);
                }
                Some(poison.uid)
            }
        }
    }

    fn delete(&self, object: Guarded<W>) {
        self.health.decodable(object.meta().uid.as_deref());
        match object.0 {
            Ok(mut object) => {
                (self.watching.prune)(&mut object);
                self.store.delete(&(self.watching.project)(*object));
            }
            Err(undecodable) => {
                let metadata = undecodable.metadata;
                let key = ObjectKey::new(metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
                self.store.forget(&key, metadata.uid.as_deref().unwrap_or_default());
            }
        }
    }

    fn failed(&self, error: String) {
        tracing::warn!(kind = self.kind, error, "watch failed; it is tried again");
        self.health.failed(error);
    }
}

/// What to do about a failed watch, where that is known.
fn explain(kind: &str, error: &watcher::Error) -> String {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        _ => None,
    };
    match status.map(|status| status.code) {
        Some(401) => format!("the API server does not accept the credentials for watching {kind}"),
        Some(403) => format!(
            "forbidden to list and watch {kind}: {}; grant both verbs, see `mcm manifests rbac`",
            status.map(|status| status.message.as_str()).unwrap_or_default()
        ),
        Some(404) => {
            format!("{kind} are not served; are the CRDs installed? `mcm manifests crds | kubectl apply -f -`")
        }
        Some(410) => format!("the watch of {kind} fell behind the API server's history; it lists again"),
        _ => chain(error),
    }
}

#[cfg(test)]
mod tests;
