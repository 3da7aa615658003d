//! The API server as seen by a controller of the simulation: each call may get lost, be refused, or be held up while
//! the history continues.
//!
//! Controllers are the same as in production, and so is [`Objects`](controller_runtime::objects::Objects); the
//! simulation begins behind [`ObjectApi`]. A pass is a future that is polled by hand, and so are tasks ([`tasks`]).
//! While it is polled, the world is lent to its process ([`Stage`]). A call is answered at once, unless it is held up;
//! then the pass stays pending until it is polled again. The calls of a dead process are never answered, and its passes
//! are dropped. The provider is in [`cloud`], the calls of drains are in [`target`].

pub mod cloud;
pub mod target;
pub mod tasks;

use std::{
    future::{pending, poll_fn},
    sync::{Arc, Mutex, MutexGuard},
    task::{Poll, Waker},
};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    api::{Api, Kind},
    calls::{Around, End, patch_without, request, short, suffix},
    checks::{Checks, lives::Before},
    classes::is_kept,
    cloud::Cloud,
    guards::Guard,
    refusals::{Request, Verb},
    trace::Trace,
};
use controller_runtime::{
    clock::Clock,
    error::ApiError,
    gate::Gate,
    key::{ObjectKey, Target},
    lock,
    objects::{DeleteHow, Deleted, ListQuery, ObjectApi, Page, Part, Patch},
    snapshot::Whole,
    store::Store,
};
use machine_api::{
    names::label,
    v1alpha1::{Machine, MachineClass, controller_of},
};
use machine_controllers::{loops::Controller, set::preservation::NodePreserve, snapshots::NodeSnapshot};

/// The world while a pass is polled.
pub struct Lent {
    /// The API server.
    pub api: Api,
    /// The provider.
    pub cloud: Cloud,
    /// The checks.
    pub checks: Checks,
    /// The trace.
    pub trace: Trace,
    /// The circumstances of the pass.
    pub around: Around,
    /// The number of calls so far.
    pub made: u8,
    /// The state of the process after the pass, as far as it is known.
    pub end: End,
}

/// Gives a process access to the world while one of its passes is polled. Cheap to clone.
#[derive(Clone, Default)]
pub struct Stage {
    lent: Arc<Mutex<Option<Lent>>>,
    /// Wakers of calls that are held up. A future that polls several calls polls only the calls that were woken.
    held: Arc<Mutex<Vec<Waker>>>,
}

impl Stage {
    /// Lends the world while `poll` runs, and returns it afterwards.
    pub fn lend<T>(&self, lent: Lent, poll: impl FnOnce() -> T) -> (T, Option<Lent>) {
        *self.lock() = Some(lent);
        let held = std::mem::take(&mut *lock(&self.held));
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
        lock(&self.lent)
    }

    /// Holds a call up once, if the process must be held up before it.
    async fn held_up(&self) {
        let mut was_held = false;
        poll_fn(|context| {
            let is_held = self.with(|lent| lent.around.held_after.is_some_and(|calls| lent.made >= calls));
            if !was_held && is_held == Some(true) {
                was_held = true;
                lock(&self.held).push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// The clock of a process.
#[derive(Debug)]
pub struct PlayedClock(Mutex<Timestamp>);

impl PlayedClock {
    /// A clock with this time.
    pub fn at(now: Timestamp) -> Self {
        Self(Mutex::new(now))
    }

    /// Sets the clock.
    pub fn set(&self, now: Timestamp) {
        *lock(&self.0) = now;
    }
}

impl Clock for PlayedClock {
    fn now(&self) -> Timestamp {
        *lock(&self.0)
    }
}

/// The context of each call of a process.
#[derive(Clone)]
pub struct Caller {
    /// Access to the world.
    pub stage: Stage,
    /// The loop that calls.
    pub of: Controller,
    /// The gate of the process.
    pub gate: Gate,
    /// Closes the gate.
    pub lost: CancellationToken,
    /// The store of Nodes of the process.
    pub nodes: Arc<Store<NodeSnapshot>>,
}

impl Caller {
    /// Makes a call. A call of a process that dies is never answered.
    async fn call<T>(
        &self,
        what: impl Fn() -> String,
        request: Request<'_>,
        perform: impl FnOnce(&mut Lent) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let answer = self.stage.with(|lent| {
            let answer = lent.call(self, what, request, perform);
            (lent.end != End::Dies).then_some(answer)
        });
        match answer.flatten() {
            Some(answer) => answer,
            None => pending().await,
        }
    }

    fn costs(&self, kind: &str, name: &str) {
        self.stage.with(|lent| lent.checks.costs(kind, name));
    }

    fn lacks(&self, guard: Guard) -> bool {
        self.stage.with(|lent| lent.lacks(guard)) == Some(true)
    }
}

/// Objects of a kind at the played API server.
pub struct Played<S> {
    caller: Caller,
    store: Arc<Store<S>>,
}

impl<S: Whole<Object: Kind>> Played<S> {
    /// The objects as this caller reaches them; `store` is its store.
    pub fn new(caller: &Caller, store: &Arc<Store<S>>) -> Self {
        Self { caller: caller.clone(), store: Arc::clone(store) }
    }

    /// Whether the object is a class or a Secret with our finalizer.
    fn keeps(&self, name: &str) -> bool {
        let is_kept = |lent: &mut Lent| S::Object::table(&lent.api).get(name).is_some_and(|object| is_kept(&**object));
        [MachineClass::PLACE, Secret::PLACE].contains(&S::Object::PLACE)
            && self.caller.stage.with(is_kept) == Some(true)
    }

    /// The machine or Node before the machine controller writes it.
    fn before(&self, name: &str) -> Option<Before> {
        if self.caller.of != Controller::Machine {
            return None;
        }
        self.caller.stage.with(|lent| Before::of::<S::Object>(&lent.api, name))
    }

    fn was_written(&self, before: Option<&Before>) {
        let Some(before) = before else { return };
        self.caller.stage.with(|lent| {
            let Lent { api, cloud, checks, around, .. } = lent;
            checks.life_was_written(api, cloud, before, around.now, around.weather());
        });
    }

    /// A read that a process skips because a guard is missing: it trusts its store instead of asking what happened to
    /// its writes.
    fn stored_without_guard(&self, key: &ObjectKey) -> Option<Result<Arc<S::Object>, ApiError>> {
        let known = self.store.get(key);
        let skips_read = match self.caller.of {
            Controller::MachineDeployment => self.caller.lacks(Guard::Unanswered),
            Controller::MachineSet => {
                self.caller.lacks(if known.is_some() { Guard::Unread } else { Guard::Unanswered })
            }
            Controller::MachineSafetyOrphanVms => self.caller.lacks(Guard::Confirmation),
            _ => false,
        };
        skips_read.then(|| {
            known.map(|known| Arc::clone(known.whole_object())).ok_or_else(|| ApiError::NotFound(key.name.clone()))
        })
    }
}

#[async_trait]
impl<K: Kind, S: Whole<Object = K>> ObjectApi<K> for Played<S> {
    async fn before_write(&self) {
        self.caller.stage.held_up().await;
    }

    async fn read(&self, key: &ObjectKey) -> Result<Arc<K>, ApiError> {
        self.caller.stage.held_up().await;
        if let Some(known) = self.stored_without_guard(key) {
            return known;
        }
        let asked = self.store.moment();
        let what = || format!("get {key}");
        let read = self
            .caller
            .call(what, request::<K>(Verb::Get, &key.name), |lent| {
                lent.api.get::<K>(&key.name).ok_or_else(|| ApiError::NotFound(key.name.clone()))
            })
            .await?;
        if self.caller.lacks(Guard::OwnWrites) {
            // Only answers to writes are hidden from the store.
            self.store.observe_read(Arc::clone(&read), asked);
        }
        Ok(read)
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, ApiError> {
        self.caller.stage.held_up().await;
        let asks_for_users = matches!(self.caller.of, Controller::MachineClass | Controller::Secret);
        if asks_for_users && self.caller.lacks(Guard::Users) {
            return Ok(Page::default());
        }
        let selector = query.selector.as_deref().unwrap_or_default();
        let what = || format!("list {} with {selector}", K::NAME);
        self.caller
            .call(what, request::<K>(Verb::Get, ""), |lent| {
                let fits = |object: &&Arc<K>| has_label(&***object, selector);
                let items: Result<_, _> = K::table(&lent.api).values().filter(fits).map(serde_json::to_value).collect();
                items.map(|items| Page { items, ..Page::default() }).map_err(|error| ApiError::Other(error.to_string()))
            })
            .await
    }

    async fn create(&self, object: &K) -> Result<Arc<K>, ApiError> {
        let name = object.meta().name.as_deref().unwrap_or_default();
        let (kind, owner) = match controller_of(object.meta()) {
            Some(owner) => (owner.kind.as_str(), owner.name.as_str()),
            None => (K::NAME, name),
        };
        self.caller.costs(kind, owner);
        let what = || format!("create {} {name}", K::NAME);
        let request = request::<K>(Verb::Create, name);
        let takes_what_is_there = K::PLACE == Secret::PLACE && self.caller.lacks(Guard::Tokens);
        let create = |lent: &mut Lent| match lent.api.create(object, lent.around.now) {
            Err(ApiError::AlreadyExists(name)) if takes_what_is_there => {
                lent.api.get::<K>(&name).ok_or(ApiError::AlreadyExists(name))
            }
            answer => {
                if answer.is_ok() && K::PLACE == Machine::PLACE {
                    lent.checks.is_made();
                }
                answer
            }
        };
        self.caller.call(what, request, create).await
    }

    async fn patch(&self, key: &ObjectKey, part: Part, patch: &Patch) -> Result<Arc<K>, ApiError> {
        self.caller.costs(K::NAME, &key.name);
        let what = || format!("patch {}{} {key}: {}", K::NAME, suffix(part), short(patch));
        let changed = self.caller.stage.with(|lent| patch_without(lent.around.without, patch)).flatten();
        let patch = changed.as_ref().unwrap_or(patch);
        let request = request::<K>(Verb::Patch, &key.name);
        let was_kept = self.keeps(&key.name);
        let before = self.before(&key.name);
        let patched = self.caller.call(what, request, |lent| lent.api.patch::<K>(key, part, patch)).await;
        self.was_written(before.as_ref());
        if self.caller.of == Controller::MachineDeployment && picks_node(patch) {
            self.caller.stage.with(|lent| lent.checks.picked(&lent.api, &key.name));
        }
        if was_kept && !self.keeps(&key.name) {
            self.caller.stage.with(|lent| lent.checks.is_let_go::<K>(&lent.api, &key.name));
        }
        patched
    }

    async fn delete(&self, target: &Target, how: DeleteHow<'_>) -> Result<Deleted<Arc<K>>, ApiError> {
        self.caller.costs(K::NAME, &target.key.name);
        let version = how.version.filter(|_| !self.caller.lacks(Guard::Versions));
        let name = &target.key.name;
        let before = self.caller.stage.with(|lent| lent.api.get::<Machine>(name)).flatten();
        if self.caller.of == Controller::Machine {
            self.caller.stage.with(|lent| {
                let Lent { api, checks, .. } = lent;
                match K::PLACE {
                    Machine::PLACE => checks.machine_is_deleted(api, name),
                    Node::PLACE => checks.node_is_deleted(api, name),
                    Pod::PLACE => checks.pod_is_sent_away(api, name, &self.caller.nodes),
                    _ => {}
                }
            });
        }
        let written = self.before(name);
        let deleted = self
            .caller
            .call(
                || format!("delete {} {target}", K::NAME),
                request::<K>(Verb::Delete, name),
                |lent| {
                    if how.grace_seconds == Some(0) {
                        // Nothing waits for it: only pods are deleted like this, and a kubelet has no finalizer.
                        lent.api.edit::<K>(name, |object| object.meta_mut().finalizers = None);
                    }
                    lent.api.delete::<K>(name, Some(&target.uid), version, lent.around.now)
                },
            )
            .await;
        self.was_written(written.as_ref());
        if self.caller.of == Controller::MachineSet {
            let node = before.as_ref().map_or(NodePreserve::NoNode, |machine| {
                machine_controllers::set::observe::preserve_of_node(
                    &Arc::clone(machine).into(),
                    Some(&self.caller.nodes),
                )
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

/// Whether an object has the label `key=value`; every object does if the selector is empty.
fn has_label<K: Kind>(object: &K, selector: &str) -> bool {
    let Some((key, value)) = selector.split_once('=') else { return true };
    object.meta().labels.as_ref().and_then(|labels| labels.get(key)).is_some_and(|is| is == value)
}

fn picks_node(patch: &Patch) -> bool {
    matches!(patch, Patch::Merge(merge) if merge["metadata"]["labels"][label::SELECTED_FOR_UPDATE].is_string())
}
