//! The API server as a controller of the simulation reaches it: every call may get lost, be refused, or be held up while the
//! history goes on.
//!
//! Controllers are those of production, and so are [`Objects`](controller_runtime::objects::Objects); what is played begins behind
//! [`ObjectApi`]. A pass is a future that is polled by hand. While it is polled, the world is lent to its process ([`Stage`]): a
//! call is answered at once, unless it is held up; then the pass stays pending until it is polled again. A process that dies is
//! never answered again, and its passes are dropped.

use std::{
    future::{pending, poll_fn},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    api::{Api, Kind},
    calls::{Around, Calls, End, request, short, suffix, without_version},
    checks::Checks,
    guards::Guard,
    process::Loop,
    refusals::Verb,
    trace::Trace,
};
use controller_runtime::{
    clock::Clock,
    error::ApiError,
    gate::Gate,
    key::{ObjectKey, Target},
    objects::{DeleteHow, Deleted, ListQuery, ObjectApi, Page, Part, Patch},
    refusals::Refusals,
    store::Store,
};
use machine_api::{
    names::label,
    v1alpha1::{Machine, controller_of},
};
use machine_controllers::set::preservation::NodePreserve;

/// The world, as long as a pass is polled.
pub struct Lent {
    /// The API server.
    pub api: Api,
    /// What is watched over.
    pub checks: Checks,
    /// What is told.
    pub trace: Trace,
    /// What the pass happens in.
    pub around: Around,
    /// Calls so far.
    pub made: u8,
    /// How the pass ends, as far as it is known.
    pub end: End,
}

/// Where a process finds the world while a pass of it is polled. Cheap to clone.
#[derive(Clone, Default)]
pub struct Stage {
    lent: Arc<Mutex<Option<Lent>>>,
    /// Of calls that are held up: what polls several calls polls only those that were woken.
    held: Arc<Mutex<Vec<Waker>>>,
}

impl Stage {
    /// Lends the world for as long as `poll` takes, and gives it back.
    pub fn lend<T>(&self, lent: Lent, poll: impl FnOnce() -> T) -> (T, Option<Lent>) {
        *self.lock() = Some(lent);
        let held = std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner));
        held.into_iter().for_each(Waker::wake);
        let result = poll();
        let back = self.lock().take();
        (result, back)
    }

    /// Uses the world; `None` outside of a pass.
    pub fn with<T>(&self, run: impl FnOnce(&mut Lent) -> T) -> Option<T> {
        self.lock().as_mut().map(run)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lent>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a call up, once, if the process is to be held up before it.
    async fn held_up(&self) {
        let mut was_held = false;
        poll_fn(|context| {
            let is_held = self.with(|lent| lent.around.held_after.is_some_and(|calls| lent.made >= calls));
            if !was_held && is_held == Some(true) {
                was_held = true;
                self.held.lock().unwrap_or_else(PoisonError::into_inner).push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// The time of a process.
#[derive(Debug)]
pub struct PlayedClock(Mutex<Timestamp>);

impl PlayedClock {
    /// A clock that shows this.
    pub fn at(now: Timestamp) -> Self {
        Self(Mutex::new(now))
    }

    /// Puts the clock on.
    pub fn set(&self, now: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

impl Clock for PlayedClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What belongs to a process and is behind each of its calls.
#[derive(Clone)]
pub struct Caller {
    /// Where the world is.
    pub stage: Stage,
    /// The loop that calls.
    pub of: Loop,
    /// The gate of the process.
    pub gate: Gate,
    /// Closes it.
    pub lost: CancellationToken,
    /// What the process was refused.
    pub refusals: Refusals,
    /// What it sees of Nodes.
    pub nodes: Arc<Store<Node>>,
}

/// Objects of a kind at the played API server.
pub struct Played<K> {
    caller: Caller,
    store: Arc<Store<K>>,
}

impl<K: Kind> Played<K> {
    /// Those that this caller reaches; `store` is its view of them.
    pub fn new(caller: &Caller, store: &Arc<Store<K>>) -> Self {
        Self { caller: caller.clone(), store: Arc::clone(store) }
    }

    /// Makes a call; one of a process that dies is never answered.
    async fn call<T>(
        &self,
        what: impl Fn() -> String,
        verb: Verb,
        name: &str,
        perform: impl FnOnce(&mut Calls<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let answer = self.caller.stage.with(|lent| {
            let mut calls = Calls {
                api: &mut lent.api,
                checks: &mut lent.checks,
                trace: &mut lent.trace,
                gate: &self.caller.gate,
                lost: &self.caller.lost,
                refusals: &self.caller.refusals,
                now: lent.around.now,
                around: lent.around,
                made: lent.made,
                end: lent.end,
            };
            let answer = calls.call(what, request::<K>(verb, name), perform);
            let (made, end) = (calls.made, calls.end);
            (lent.made, lent.end) = (made, end);
            (end != End::Dies).then_some(answer)
        });
        match answer.flatten() {
            Some(answer) => answer,
            None => pending().await,
        }
    }

    /// What a process reads that takes its view for the truth: without the guard, it does not ask what became of its writes.
    fn taken_for_granted(&self, key: &ObjectKey) -> Option<Result<Arc<K>, ApiError>> {
        let known = self.store.get(key);
        let is_deaf = match self.caller.of {
            Loop::Deployment => self.lacks(Guard::Unanswered),
            Loop::Set => self.lacks(if known.is_some() { Guard::Unread } else { Guard::Unanswered }),
            Loop::Machine | Loop::Guard => false,
        };
        is_deaf.then(|| known.ok_or_else(|| ApiError::NotFound(key.name.clone())))
    }

    fn costs(&self, kind: &str, name: &str) {
        self.caller.stage.with(|lent| lent.checks.costs(kind, name));
    }

    fn lacks(&self, guard: Guard) -> bool {
        self.caller.stage.with(|lent| lent.around.without == Some(guard)) == Some(true)
    }
}

#[async_trait]
impl<K: Kind> ObjectApi<K> for Played<K> {
    async fn turn(&self) {
        self.caller.stage.held_up().await;
    }

    async fn read(&self, key: &ObjectKey) -> Result<Arc<K>, ApiError> {
        self.caller.stage.held_up().await;
        if let Some(known) = self.taken_for_granted(key) {
            return known;
        }
        let asked = self.store.moment();
        let what = || format!("get {key}");
        let read = self
            .call(what, Verb::Get, &key.name, |calls| {
                calls.api.get::<K>(&key.name).ok_or_else(|| ApiError::NotFound(key.name.clone()))
            })
            .await?;
        if self.lacks(Guard::OwnWrites) {
            // Only writes are not told of.
            self.store.observe_read(Arc::clone(&read), asked);
        }
        Ok(read)
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, ApiError> {
        // Nobody lists here: the collector is played, and Nodes are called as their machines.
        Err(ApiError::NotServed(format!("{query:?}")))
    }

    async fn create(&self, object: &K) -> Result<Arc<K>, ApiError> {
        let name = object.meta().name.as_deref().unwrap_or_default();
        let (kind, owner) = match controller_of(object.meta()) {
            Some(owner) => (owner.kind.as_str(), owner.name.as_str()),
            None => (K::NAME, name),
        };
        self.costs(kind, owner);
        let what = || format!("create {} {name}", K::NAME);
        self.call(what, Verb::Create, name, |calls| calls.api.create(object, calls.now)).await
    }

    async fn patch(&self, key: &ObjectKey, part: Part, patch: &Patch) -> Result<Arc<K>, ApiError> {
        self.costs(K::NAME, &key.name);
        let what = || format!("patch {}{} {key}: {}", K::NAME, suffix(part), short(patch));
        let unguarded = self.lacks(Guard::Versions).then(|| without_version(patch));
        let patch = unguarded.as_ref().unwrap_or(patch);
        let patched = self.call(what, Verb::Patch, &key.name, |calls| calls.api.patch::<K>(key, part, patch)).await;
        if self.caller.of == Loop::Deployment && picks_node(patch) {
            self.caller.stage.with(|lent| lent.checks.picked(&lent.api, &key.name));
        }
        patched
    }

    async fn delete(&self, target: &Target, how: DeleteHow<'_>) -> Result<Deleted<K>, ApiError> {
        self.costs(K::NAME, &target.key.name);
        let version = how.version.filter(|_| !self.lacks(Guard::Versions));
        let name = &target.key.name;
        let before = self.caller.stage.with(|lent| lent.api.get::<Machine>(name)).flatten();
        let deleted = self
            .call(
                || format!("delete {} {target}", K::NAME),
                Verb::Delete,
                name,
                |calls| calls.api.delete::<K>(name, Some(&target.uid), version, calls.now),
            )
            .await;
        if self.caller.of == Loop::Set {
            let node = before.as_ref().map_or(NodePreserve::NoNode, |machine| {
                machine_controllers::set::observe::preserve_of_node(machine, Some(&self.caller.nodes))
            });
            self.caller.stage.with(|lent| {
                let Lent { api, checks, trace, around, .. } = lent;
                checks.set_deleted((api, around.now), (before.as_deref(), &node), trace);
            });
        }
        Ok(deleted?.map_or(Deleted::Gone, Deleted::Marked))
    }

    fn decode(&self, item: Value) -> Result<Arc<K>, ApiError> {
        serde_json::from_value(item).map(Arc::new).map_err(|error| ApiError::Other(error.to_string()))
    }
}

fn picks_node(patch: &Patch) -> bool {
    matches!(patch, Patch::Merge(merge) if merge["metadata"]["labels"][label::SELECTED_FOR_UPDATE].is_string())
}
