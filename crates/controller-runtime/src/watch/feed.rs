//! One watch: lists, then follows events from the version of the list, and keeps a store equal to both.
//!
//! The watcher of kube's runtime is not enough. It hides the versions of lists and bookmarks, which show that history went back,
//! and it resets its back-off before each list, even when the lists are refused.

use std::{collections::BTreeSet, convert::Infallible, fmt::Debug, pin::pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    Guarded, LIST_STALL, OnUndecodable, UndecodableObject, Watching,
    health::Health,
    idle_limit::IdleLimit,
    pauses::{Cause, Pauses},
};
use crate::{
    error::{chain, shortened},
    key::ObjectKey,
    snapshot::Snapshot,
    store::{History, Store},
};

/// A watch that ends sooner than this without an event has failed.
const MIN_LIFETIME: Duration = Duration::from_secs(1);
/// How long a new watch may need after an outage to send the missed events, or the error that the API server no longer has them.
/// API servers send these right after the response head.
const CATCH_UP: Duration = Duration::from_secs(2);

/// If this number of watches after an outage end before they have sent the missed events, the feed lists again. A proxy, for
/// example, may close each connection before [`CATCH_UP`] has passed.
const MAX_INCOMPLETE: u32 = 3;

/// One watch: receives events and applies them to the store.
pub(super) struct Feed<W, S: Snapshot> {
    pub(super) kind: &'static str,
    pub(super) watching: Watching<W, S::Object>,
    pub(super) store: Arc<Store<S>>,
    pub(super) health: Arc<Health>,
    pub(super) lists: Arc<Semaphore>,
    pub(super) on_undecodable: OnUndecodable,
    /// How long a connection may deliver nothing.
    pub(super) silent_after: Duration,
    /// The timeout that a watch asks for, in seconds.
    pub(super) lasts: u32,
    /// A source of random numbers.
    pub(super) random: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// Why a list or watch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatchError {
    pub(super) text: String,
    cause: Cause,
    /// Whether the API server no longer has the events since the last version.
    history_lost: bool,
}

/// How a watch ended.
enum End {
    /// The API server closed it.
    Closed,
    /// The connection delivered nothing for too long.
    Silent,
    Broken(WatchError),
}

/// The newest version that a watch has received.
struct Position {
    text: String,
    number: Option<u64>,
}

impl Position {
    fn at(text: String) -> Self {
        let number = text.parse().ok();
        Self { text, number }
    }

    /// Moves to this version, unless it is older.
    fn reach(&mut self, version: Option<&str>) {
        let Some(version) = version.filter(|version| !version.is_empty()) else { return };
        if !self.is_past(version) {
            *self = Self::at(version.to_owned());
        }
    }

    fn is_past(&self, version: &str) -> bool {
        matches!((self.number, version.parse::<u64>().ok()), (Some(here), Some(there)) if there < here)
    }
}

impl<W, S> Feed<W, S>
where
    W: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
    S: Snapshot,
{
    /// Keeps the store equal to the API server. Never returns.
    pub(super) async fn keep(&self, api: &Api<Guarded<W>>) -> Infallible {
        let mut pauses = Pauses::default();
        let mut idle = IdleLimit::about(self.silent_after, (self.random)());
        loop {
            match self.list(api).await {
                Ok(version) => self.follow(api, Position::at(version), &mut pauses, &mut idle).await,
                Err(error) => {
                    self.store.set_current(false);
                    self.pause_after(&error, &mut pauses).await;
                }
            }
        }
    }

    /// Applies a complete list and returns its version.
    async fn list(&self, api: &Api<Guarded<W>>) -> Result<String, WatchError> {
        // The semaphore is never closed.
        let _permit = self.lists.acquire().await.ok();
        self.store.list_begins();
        let mut undecodable = BTreeSet::new();
        let mut params = ListParams::default().limit(self.watching.page);
        params.label_selector.clone_from(&self.watching.labels);
        params.field_selector.clone_from(&self.watching.fields);
        loop {
            let page = tokio::time::timeout(LIST_STALL, api.list(&params)).await.map_err(|_| WatchError {
                text: format!("the list stood still for {LIST_STALL:?}; it is begun anew"),
                cause: Cause::Other(None),
                history_lost: false,
            })?;
            let page = page.map_err(|error| watch_error(self.kind, &error))?;
            self.health.received();
            let version =
                page.metadata.resource_version.filter(|version| !version.is_empty()).ok_or_else(|| WatchError {
                    text: format!("the API server gave a list of {} without a resource version", self.kind),
                    cause: Cause::Other(None),
                    history_lost: false,
                })?;
            if params.continue_token.is_none()
                && let Ok(number) = version.parse()
                && self.store.list_is_of(number) == History::WentBack
            {
                tracing::warn!(
                    kind = self.kind,
                    version,
                    "the API server's history went back, as by a restored backup: nothing is decided until the list \
                     is complete"
                );
            }
            undecodable.extend(page.items.into_iter().filter_map(|object| self.apply(object)));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                self.health.keep_undecodable(&undecodable);
                self.health.listed();
                self.health.works();
                self.store.list_ends();
                self.store.set_current(true);
                return Ok(version);
            }
        }
    }

    /// Follows events from a version on. Returns when a new list is needed: the API server no longer has the events since the last
    /// version, or several watches ended before they had sent them.
    async fn follow(&self, api: &Api<Guarded<W>>, mut here: Position, pauses: &mut Pauses, idle: &mut IdleLimit) {
        let params = WatchParams {
            label_selector: self.watching.labels.clone(),
            field_selector: self.watching.fields.clone(),
            timeout: Some(self.lasts),
            bookmarks: true,
            ..WatchParams::default()
        };
        let mut incomplete = 0;
        loop {
            if incomplete >= MAX_INCOMPLETE {
                tracing::info!(
                    kind = self.kind,
                    "each watch ends before it has sent the missed events; it lists again"
                );
                return;
            }
            let (began, before) = (Instant::now(), here.text.clone());
            let error = match self.opened(api.watch(&params, &before)).await {
                Err(error) => {
                    self.store.set_current(false);
                    watch_error(self.kind, &error)
                }
                Ok(events) => {
                    self.health.received();
                    self.health.opened();
                    let end = self.take_events(events, &mut here, pauses, idle).await;
                    incomplete = if self.store.is_current() { 0 } else { incomplete + 1 };
                    match end {
                        End::Closed if began.elapsed() >= MIN_LIFETIME || here.text != before => continue,
                        End::Closed => WatchError {
                            text: format!("the API server ends the watch of {} at once", self.kind),
                            cause: Cause::Ended,
                            history_lost: false,
                        },
                        End::Silent => {
                            self.drop_dead_connection(idle);
                            continue;
                        }
                        End::Broken(error) => error,
                    }
                }
            };
            if error.history_lost {
                // The store shows a state of unknown age.
                self.store.set_current(false);
            }
            self.pause_after(&error, pauses).await;
            if error.history_lost {
                return;
            }
        }
    }

    /// Waits for the response to a watch request. The store is not current while the response takes too long.
    async fn opened<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        if let Ok(answer) = tokio::time::timeout(CATCH_UP, answer.as_mut()).await {
            return answer;
        }
        self.store.set_current(false);
        answer.await
    }

    /// Applies events to the store until the watch ends. After an outage the store becomes current once the missed events have
    /// arrived: at a bookmark, or [`CATCH_UP`] after the watch was opened.
    async fn take_events(
        &self,
        events: impl Stream<Item = kube::Result<WatchEvent<Guarded<W>>>>,
        here: &mut Position,
        pauses: &mut Pauses,
        idle: &mut IdleLimit,
    ) -> End {
        let mut events = pin!(events);
        let mut caught_up_at = (!self.store.is_current()).then(|| Instant::now() + CATCH_UP);
        loop {
            let deadline = caught_up_at.unwrap_or_else(|| Instant::now() + idle.limit());
            let event = match tokio::time::timeout_at(deadline, events.next()).await {
                Err(_) if caught_up_at.take().is_some() => {
                    self.store.set_current(true);
                    continue;
                }
                Err(_) => return End::Silent,
                Ok(None) => return End::Closed,
                Ok(Some(Err(error))) => return End::Broken(watch_error(self.kind, &error)),
                Ok(Some(Ok(event))) => event,
            };
            self.health.received();
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    here.reach(object.meta().resource_version.as_deref());
                    idle.event();
                    self.apply(object);
                }
                WatchEvent::Deleted(object) => {
                    here.reach(object.meta().resource_version.as_deref());
                    idle.event();
                    self.delete(object);
                }
                WatchEvent::Bookmark(mark) => {
                    let version = mark.metadata.resource_version;
                    if here.is_past(&version) {
                        return End::Broken(went_back(self.kind, &version, here));
                    }
                    idle.bookmark();
                    here.reach(Some(&version));
                    if let Ok(number) = version.parse() {
                        self.store.watched(number);
                    }
                    caught_up_at = caught_up_at.map(|_| Instant::now());
                }
                WatchEvent::Error(status) => return End::Broken(refusal(self.kind, &status)),
            }
            pauses.reset();
            if caught_up_at.is_some_and(|at| at <= Instant::now()) {
                caught_up_at = None;
                self.store.set_current(true);
            }
        }
    }

    /// Applies an object. Returns its UID if it can't be decoded.
    fn apply(&self, object: Guarded<W>) -> Option<String> {
        match object.0 {
            Ok(mut object) => {
                self.health.decodable(object.meta().uid.as_deref());
                (self.watching.prune)(&mut object);
                self.store.apply((self.watching.project)(*object));
                None
            }
            Err(undecodable) => {
                let undecodable = UndecodableObject::of::<W>(*undecodable);
                let key = ObjectKey::new(
                    undecodable.object.namespace.clone().unwrap_or_default(),
                    undecodable.object.name.clone().unwrap_or_default(),
                );
                // The object exists. Its last decodable state is closer to the truth than no object.
                let version = undecodable.resource_version.parse().unwrap_or(u64::MAX);
                self.store.observe_undecodable(&key, &undecodable.uid, version);
                if self.health.record_undecodable(&undecodable) {
                    tracing::warn!(
                        kind = self.kind,
                        namespace = key.namespace,
                        name = key.name,
                        error = undecodable.error,
                        "undecodable object skipped"
                    );
                    (self.on_undecodable)(&undecodable);
                }
                Some(undecodable.uid)
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
                let version = metadata.resource_version.and_then(|version| version.parse().ok()).unwrap_or_default();
                let key = ObjectKey::new(metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
                self.store.deleted(&key, metadata.uid.as_deref().unwrap_or_default(), version);
            }
        }
    }

    /// The connection delivered nothing for too long and is dropped. The next watch continues from the last version.
    fn drop_dead_connection(&self, idle: &mut IdleLimit) {
        tracing::info!(
            kind = self.kind,
            took_ms = idle.limit().as_millis(),
            "the watch received nothing for too long; it is opened again"
        );
        if idle.exceeded() {
            tracing::warn!(
                kind = self.kind,
                took_ms = idle.limit().as_millis(),
                "the API server sends no bookmarks for this watch: a dead connection is noticed later from now on"
            );
        }
    }

    async fn pause_after(&self, error: &WatchError, pauses: &mut Pauses) {
        let pause = pauses.after(error.cause, (self.random)());
        if error.cause == Cause::Ended && pause.is_zero() {
            // The first time is normal.
            return;
        }
        if self.health.failed(&error.text) {
            let error = error.text.as_str();
            tracing::warn!(
                kind = self.kind,
                error,
                retry_in_ms = pause.as_millis(),
                "watch failed; it is tried again, and logged when the error changes"
            );
        }
        tokio::time::sleep(pause).await;
    }
}

fn went_back(kind: &str, version: &str, here: &Position) -> WatchError {
    WatchError {
        text: format!("the history of {kind} went back from version {} to {version}; it lists again", here.text),
        cause: Cause::Behind,
        history_lost: true,
    }
}

fn watch_error(kind: &str, error: &kube::Error) -> WatchError {
    match error {
        kube::Error::Api(status) => refusal(kind, status),
        _ => WatchError { text: chain(error), cause: Cause::Other(None), history_lost: false },
    }
}

/// Describes a refused list or watch, with the remedy where one is known.
fn refusal(kind: &str, status: &kube::core::Status) -> WatchError {
    let message = shortened(&status.message);
    let requested = status.details.as_ref().map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
    let other = Cause::Other(requested.map(|seconds| Duration::from_secs(u64::from(seconds))));
    let (text, cause, history_lost) = match status.code {
        401 => {
            let text = format!("the API server does not accept the credentials for watching {kind}");
            (text, Cause::Refused, false)
        }
        403 => {
            let text =
                format!("forbidden to list and watch {kind}: {message}; grant both verbs, see `mcm manifests rbac`");
            (text, Cause::Refused, false)
        }
        404 => {
            let text =
                format!("{kind} are not served; are the CRDs installed? `mcm manifests crds | kubectl apply -f -`");
            (text, other, false)
        }
        410 => {
            let text = format!("the watch of {kind} fell behind the API server's history; it lists again");
            (text, Cause::Behind, true)
        }
        code => (format!("{code} to a list or watch of {kind}: {message}"), other, false),
    };
    WatchError { text, cause, history_lost }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
