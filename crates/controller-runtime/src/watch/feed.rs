//! One watch: lists, follows events from the version of the list on, and keeps a store equal to what both tell.
//!
//! A library's watcher was not enough: it hides the versions of lists and bookmarks, by which a history that went back is
//! noticed, and begins its pauses anew with each list that is refused.

use std::{collections::BTreeSet, convert::Infallible, fmt::Debug, pin::pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    Guarded, LIST_STALL, OnPoison, Poison, Watching,
    health::Health,
    pauses::{Cause, Pauses},
    silence::{Fallen, Silence},
};
use crate::{
    error::{chain, shortened},
    key::ObjectKey,
    snapshot::Snapshot,
    store::{History, Store},
};

/// A watch that ends sooner than this without a word has failed.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long a watch that was opened after an outage tells what happened meanwhile, or that it can't tell. API servers do so right behind
/// the head of their answer.
const CATCH_UP: Duration = Duration::from_secs(2);

/// So many watches that end after an outage before they have told what happened meanwhile; then a list tells. A proxy may close each
/// connection sooner than a watch has [`CATCH_UP`].
const UNTOLD_MAX: u32 = 3;

/// One watch: takes events and feeds the store.
pub(super) struct Feed<W, S: Snapshot> {
    pub(super) kind: &'static str,
    pub(super) watching: Watching<W, S::Object>,
    pub(super) store: Arc<Store<S>>,
    pub(super) health: Arc<Health>,
    pub(super) lists: Arc<Semaphore>,
    pub(super) on_poison: OnPoison,
    /// How long a connection may be silent.
    pub(super) silent_after: Duration,
    /// Seconds that a watch is asked to last.
    pub(super) lasts: u32,
    /// A source of random numbers.
    pub(super) random: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// Why a list or watch does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) text: String,
    cause: Cause,
    history: Lost,
}

/// Whether the API server can still tell what happened since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    No,
    Yes,
}

/// How following the events of a watch ended.
enum End {
    /// The API server closed it.
    Closed,
    /// Nothing was heard for too long.
    Silent,
    Broken(Trouble),
}

/// How far a watch has come.
struct Position {
    text: String,
    number: Option<u64>,
}

impl Position {
    fn at(text: String) -> Self {
        let number = text.parse().ok();
        Self { text, number }
    }

    /// Goes on to this version, unless that is one of the past.
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
    /// Keeps the store equal to the API server, for ever.
    pub(super) async fn keep(&self, api: &Api<Guarded<W>>) -> Infallible {
        let mut pauses = Pauses::default();
        let mut silence = Silence::about(self.silent_after, (self.random)());
        loop {
            match self.list(api).await {
                Ok(version) => self.follow(api, Position::at(version), &mut pauses, &mut silence).await,
                Err(trouble) => {
                    self.store.set_current(false);
                    self.rest(&trouble, &mut pauses).await;
                }
            }
        }
    }

    /// Takes a complete list over; answers its version.
    async fn list(&self, api: &Api<Guarded<W>>) -> Result<String, Trouble> {
        // Never closed.
        let _turn = self.lists.acquire().await.ok();
        self.store.list_begins();
        let mut poisoned = BTreeSet::new();
        let mut params = ListParams::default().limit(self.watching.page);
        params.label_selector.clone_from(&self.watching.labels);
        params.field_selector.clone_from(&self.watching.fields);
        loop {
            let page = tokio::time::timeout(LIST_STALL, api.list(&params)).await.map_err(|_| Trouble {
                text: format!("the list stood still for {LIST_STALL:?}; it is begun anew"),
                cause: Cause::Other(None),
                history: Lost::No,
            })?;
            let page = page.map_err(|error| trouble(self.kind, &error))?;
            self.health.heard();
            let version =
                page.metadata.resource_version.filter(|version| !version.is_empty()).ok_or_else(|| Trouble {
                    text: format!("the API server gave a list of {} without a resource version", self.kind),
                    cause: Cause::Other(None),
                    history: Lost::No,
                })?;
            if params.continue_token.is_none()
                && let Ok(number) = version.parse()
                && self.store.list_is_of(number) == History::WentBack
            {
                tracing::warn!(
                    kind = self.kind,
                    version,
                    "the API server's history went back, as by a restored backup: nothing is decided until the list is complete"
                );
            }
            poisoned.extend(page.items.into_iter().filter_map(|object| self.apply(object)));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                self.health.keep_undecodable(&poisoned);
                self.health.listed();
                self.health.works();
                self.store.list_ends();
                self.store.set_current(true);
                return Ok(version);
            }
        }
    }

    /// Follows events from a version on until the API server can't tell any more what happened since, or nothing lets it finish
    /// telling.
    async fn follow(&self, api: &Api<Guarded<W>>, mut here: Position, pauses: &mut Pauses, silence: &mut Silence) {
        let params = WatchParams {
            label_selector: self.watching.labels.clone(),
            field_selector: self.watching.fields.clone(),
            timeout: Some(self.lasts),
            bookmarks: true,
            ..WatchParams::default()
        };
        let mut untold = 0;
        loop {
            if untold >= UNTOLD_MAX {
                tracing::info!(kind = self.kind, "each watch ends before it has told what happened; it lists again");
                return;
            }
            let (began, before) = (Instant::now(), here.text.clone());
            let trouble = match self.opened(api.watch(&params, &before)).await {
                Err(error) => {
                    self.store.set_current(false);
                    trouble(self.kind, &error)
                }
                Ok(events) => {
                    self.health.heard();
                    self.health.opened();
                    let end = self.take_events(events, &mut here, pauses, silence).await;
                    untold = if self.store.is_current() { 0 } else { untold + 1 };
                    match end {
                        End::Closed if began.elapsed() >= AT_ONCE || here.text != before => continue,
                        End::Closed => Trouble {
                            text: format!("the API server ends the watch of {} at once", self.kind),
                            cause: Cause::Ended,
                            history: Lost::No,
                        },
                        End::Silent => {
                            self.hung_up(silence);
                            continue;
                        }
                        End::Broken(trouble) => trouble,
                    }
                }
            };
            if trouble.history == Lost::Yes {
                // What the store shows is of before an unknown time.
                self.store.set_current(false);
            }
            self.rest(&trouble, pauses).await;
            if trouble.history == Lost::Yes {
                return;
            }
        }
    }

    /// The answer to a request for a watch. What the store shows grows old while it does not come.
    async fn opened<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        if let Ok(answer) = tokio::time::timeout(CATCH_UP, answer.as_mut()).await {
            return answer;
        }
        self.store.set_current(false);
        answer.await
    }

    /// Feeds events to the store until there are no more. After an outage the store counts as current once the watch has told what
    /// happened meanwhile: with a bookmark, else a moment after it was opened.
    async fn take_events(
        &self,
        events: impl Stream<Item = kube::Result<WatchEvent<Guarded<W>>>>,
        here: &mut Position,
        pauses: &mut Pauses,
        silence: &mut Silence,
    ) -> End {
        let mut events = pin!(events);
        let mut caught_up_at = (!self.store.is_current()).then(|| Instant::now() + CATCH_UP);
        loop {
            let heard_by = caught_up_at.unwrap_or_else(|| Instant::now() + silence.limit());
            let event = match tokio::time::timeout_at(heard_by, events.next()).await {
                Err(_) if caught_up_at.take().is_some() => {
                    self.store.set_current(true);
                    continue;
                }
                Err(_) => return End::Silent,
                Ok(None) => return End::Closed,
                Ok(Some(Err(error))) => return End::Broken(trouble(self.kind, &error)),
                Ok(Some(Ok(event))) => event,
            };
            self.health.heard();
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    here.reach(object.meta().resource_version.as_deref());
                    silence.event();
                    self.apply(object);
                }
                WatchEvent::Deleted(object) => {
                    here.reach(object.meta().resource_version.as_deref());
                    silence.event();
                    self.delete(object);
                }
                WatchEvent::Bookmark(mark) => {
                    let version = mark.metadata.resource_version;
                    if here.is_past(&version) {
                        return End::Broken(went_back(self.kind, &version, here));
                    }
                    silence.bookmark();
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
                let version = poison.resource_version.parse().unwrap_or(u64::MAX);
                self.store.still_there(&key, &poison.uid, version);
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
                let version = metadata.resource_version.and_then(|version| version.parse().ok()).unwrap_or_default();
                let key = ObjectKey::new(metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
                self.store.deleted(&key, metadata.uid.as_deref().unwrap_or_default(), version);
            }
        }
    }

    /// The connection was silent for too long and is given up; what follows from that is asked for from the last version on.
    fn hung_up(&self, silence: &mut Silence) {
        tracing::info!(kind = self.kind, limit = ?silence.limit(), "the watch was silent for too long; it is opened anew");
        if silence.falls() == Fallen::Patiently {
            tracing::warn!(
                kind = self.kind,
                limit = ?silence.limit(),
                "the API server sends no bookmarks for this watch: a dead connection is noticed later from now on"
            );
        }
    }

    async fn rest(&self, trouble: &Trouble, pauses: &mut Pauses) {
        let pause = pauses.after(trouble.cause, (self.random)());
        if trouble.cause == Cause::Ended && pause.is_zero() {
            // Nothing is wrong yet.
            return;
        }
        if self.health.failed(&trouble.text) {
            let error = trouble.text.as_str();
            tracing::warn!(
                kind = self.kind,
                error,
                ?pause,
                "watch failed; it is tried again, and told when the reason changes"
            );
        }
        tokio::time::sleep(pause).await;
    }
}

fn went_back(kind: &str, version: &str, here: &Position) -> Trouble {
    Trouble {
        text: format!("the history of {kind} went back from version {} to {version}; it lists again", here.text),
        cause: Cause::Behind,
        history: Lost::Yes,
    }
}

fn trouble(kind: &str, error: &kube::Error) -> Trouble {
    match error {
        kube::Error::Api(status) => refusal(kind, status),
        _ => Trouble { text: chain(error), cause: Cause::Other(None), history: Lost::No },
    }
}

/// What to do about a refused watch, where that is known.
fn refusal(kind: &str, status: &kube::core::Status) -> Trouble {
    let message = shortened(&status.message);
    let wished = status.details.as_ref().map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
    let other = Cause::Other(wished.map(|seconds| Duration::from_secs(u64::from(seconds))));
    let (text, cause, history) = match status.code {
        401 => {
            let text = format!("the API server does not accept the credentials for watching {kind}");
            (text, Cause::Refused, Lost::No)
        }
        403 => {
            let text =
                format!("forbidden to list and watch {kind}: {message}; grant both verbs, see `mcm manifests rbac`");
            (text, Cause::Refused, Lost::No)
        }
        404 => {
            let text =
                format!("{kind} are not served; are the CRDs installed? `mcm manifests crds | kubectl apply -f -`");
            (text, other, Lost::No)
        }
        410 => {
            let text = format!("the watch of {kind} fell behind the API server's history; it lists again");
            (text, Cause::Behind, Lost::Yes)
        }
        code => (format!("{code} to a list or watch of {kind}: {message}"), other, Lost::No),
    };
    Trouble { text, cause, history }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
