//! The built-in controllers that clients rely on: garbage collection, namespaces, definitions, budgets, nodes, accounts, events.
//!
//! The task in this file follows all changes. Each controller has a file of its own. The task decides at once what a change requires. The resulting
//! requests go through the API like the requests of any client ([`requests`]), several at the same time ([`work`]). Failed requests are retried later
//! ([`retries`]). Source: spec/extension-apiserver §6.1, §6.3.

mod accounts;
mod budgets;
mod emptying;
mod events;
mod garbage;
mod graph;
mod nodes;
mod remains;
mod requests;
mod retries;
mod roles;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use http::Method;
use serde_json::Value;
use tokio::time::Instant;

use self::{
    events::Expirations,
    graph::Graph,
    requests::{Refusal, Requests},
    retries::Retries,
    work::{Task, WorkQueue},
};
use super::{
    aggregator, authorization, crd,
    delete::{FOREGROUND, ORPHAN},
    kinds::Served,
    object,
    server::Server,
    stand_ins::StandIn,
    store::{Change, Collection},
};

/// The collection and the key of a stored object.
type Place = (Collection, String);

/// The state of the controllers.
pub(super) struct Helpers {
    server: Arc<Server>,
    requests: Requests,
    without: BTreeSet<StandIn>,
    /// All changes up to this revision are processed.
    at: u64,
    /// The owners and dependents of all objects.
    graph: Graph,
    /// Objects that are being deleted and wait for a controller.
    waiting: BTreeSet<Place>,
    /// The keys of the pods of each node.
    bound: BTreeMap<String, BTreeSet<String>>,
    /// The tasks that are queued or running.
    work: WorkQueue,
    /// The futures of the running tasks.
    running: FuturesUnordered<BoxFuture<'static, (Task, Result<(), Refusal>)>>,
    /// The failed tasks.
    retries: Retries,
    /// The expiration times of events.
    expirations: Expirations,
}

/// The reason why the loop wakes up.
enum Wakeup {
    /// A task has ended.
    TaskEnded(Task, Result<(), Refusal>),
    Changes,
    /// The availability of an extension API server has changed.
    ExtensionServers,
    /// The writes up to a revision are durable, or the storage has failed.
    Durable(u64),
    Timer,
}

/// Sleeps until a moment. Without a moment it sleeps for ever.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

impl Helpers {
    pub(super) fn new(server: Arc<Server>, without: BTreeSet<StandIn>) -> Self {
        Self {
            requests: Requests { server: Arc::clone(&server) },
            server,
            without,
            at: 0,
            graph: Graph::default(),
            waiting: BTreeSet::new(),
            bound: BTreeMap::new(),
            work: WorkQueue::default(),
            running: FuturesUnordered::new(),
            retries: Retries::default(),
            expirations: Expirations::default(),
        }
    }

    /// Follows all changes until the server is dropped.
    pub(super) async fn run(mut self) {
        let mut progress = self.server.store.progress();
        let mut durable = 0;
        self.resync();
        loop {
            self.delete_expired_events();
            self.enqueue_retries();
            self.start_tasks();
            let (at, wakes, written) = (self.at, self.next_wakeup(), self.server.store.revision());
            let server = &self.server;
            let progressed = async { progress.wait_for(|progress| *progress > at).await.is_ok() };
            // The order of the branches is fixed, so that runs with the same seed have the same history.
            let wakeup = tokio::select! {
                biased;
                Some((task, result)) = self.running.next() => Wakeup::TaskEnded(task, result),
                is_running = progressed => if is_running { Wakeup::Changes } else { return },
                () = server.aggregator.changed() => Wakeup::ExtensionServers,
                // The controllers write some objects directly to the store. Waiting here publishes these writes to watches. An error of the storage
                // is ignored here, because the next request that writes returns it.
                _ = server.store.durable(written), if written > durable => Wakeup::Durable(written),
                () = until(wakes) => Wakeup::Timer,
            };
            match wakeup {
                Wakeup::TaskEnded(task, result) => self.end_task(task, &result),
                Wakeup::Changes => self.process_changes(),
                // A namespace may wait for an extension API server that is not registered any more.
                Wakeup::ExtensionServers => self.enqueue_waiting(),
                Wakeup::Durable(upto) => durable = upto,
                Wakeup::Timer => {}
            }
        }
    }

    /// The time of the next retry or expiration.
    fn next_wakeup(&self) -> Option<Instant> {
        let events = self.expirations.pause(self.server.now()).map(|pause| Instant::now() + pause);
        [events, self.retries.next()].into_iter().flatten().min()
    }

    /// Processes all stored objects as if they were new. So the controllers finish the work of an earlier process.
    fn resync(&mut self) {
        // The revision is read before the objects, so that a concurrent write is processed twice rather than never.
        self.at = self.server.store.revision();
        self.graph.clear();
        self.waiting.clear();
        self.bound.clear();
        let mut budgets = BTreeSet::new();
        let all = self.server.store.find(|collection, _| !events::holds(collection));
        for (collection, key, stored) in all {
            let change = Change { revision: stored.revision, key, before: None, after: Some(stored), size: 0 };
            self.process_change(&collection, &change, &mut budgets);
        }
        self.load_events();
        self.end_batch(budgets);
    }

    /// Processes the changes since the last call.
    fn process_changes(&mut self) {
        if !self.server.store.has_changes_since(self.at) {
            return self.resync();
        }
        let changes = self.server.store.journal(self.at);
        let Some((_, last)) = changes.last() else {
            self.at = self.server.store.revision().max(self.at);
            return;
        };
        self.at = last.revision;
        let mut budgets = BTreeSet::new();
        for (collection, change) in &changes {
            self.process_change(collection, change, &mut budgets);
        }
        self.end_batch(budgets);
    }

    /// Does the work that is done once for a batch of changes.
    fn end_batch(&mut self, budgets: BTreeSet<String>) {
        for namespace in budgets {
            self.count_budgets(&namespace);
        }
        self.enqueue_waiting();
    }

    fn process_change(&mut self, collection: &Collection, change: &Change, budgets: &mut BTreeSet<String>) {
        let place = (collection.clone(), change.key.clone());
        let (before, after) = (change.before.as_ref(), change.after.as_ref());
        // As in a cluster, events have no owners and no dependents.
        if !events::holds(collection) {
            match (before, after) {
                (before, Some(after)) => {
                    self.track_deletion(&place, &after.value);
                    self.track_owners(&place, before.map(|before| &before.value), &after.value);
                }
                (Some(before), None) => {
                    self.waiting.remove(&place);
                    self.retries.done(&Task::Finalize(place.clone()));
                    self.untrack_owners(&place, &before.value);
                }
                (None, None) => {}
            }
        }
        let value = change.after.as_ref().or(change.before.as_ref()).map(|stored| &stored.value);
        let namespace = value.and_then(object::namespace).unwrap_or_default().to_owned();
        match (collection.group.as_str(), collection.resource.as_str()) {
            ("", "pods") => {
                self.track_node(change);
                budgets.insert(namespace);
            }
            ("policy", "poddisruptionbudgets") => {
                budgets.insert(namespace);
            }
            ("", "secrets") if self.runs(StandIn::AccountTokens) => {
                if let Some(secret) = &change.after {
                    self.server.fill_account_secret(secret);
                }
            }
            ("", "serviceaccounts") => match &change.after {
                Some(account) if self.runs(StandIn::AccountTokens) => {
                    self.server.fill_secrets_of(&account.value);
                }
                Some(_) => {}
                None => self.enqueue(Task::CreateAccount(namespace)),
            },
            ("apiextensions.k8s.io", "customresourcedefinitions") if change.after.is_none() => {
                if let Some(gone) = &change.before {
                    self.requests.accept_waiting_names(&gone.value);
                }
            }
            ("", "namespaces") if change.after.is_some() => self.enqueue(Task::CreateAccount(change.key.clone())),
            ("", "events") => self.track_event(change),
            (aggregator::GROUP, aggregator::RESOURCE) | ("", "services") => self.server.aggregator.check_again(),
            (authorization::GROUP, "clusterroles") => self.aggregate_roles(),
            ("", "nodes") if self.runs(StandIn::Nodes) => match &change.after {
                Some(node) => self.taint_node(node),
                None => self.enqueue(Task::DeletePods(change.key.clone())),
            },
            _ => {}
        }
    }

    /// Whether a controller is switched on.
    fn runs(&self, controller: StandIn) -> bool {
        !self.without.contains(&controller)
    }

    fn track_deletion(&mut self, place: &Place, value: &Value) {
        let has_our_finalizer =
            object::finalizers(value).iter().any(|name| matches!(*name, FOREGROUND | ORPHAN | crd::CLEANUP));
        if object::is_deleting(value) && (has_our_finalizer || is_namespace(place)) {
            self.waiting.insert(place.clone());
        }
    }

    /// Whether the controller of a task is switched off.
    fn is_off(&self, task: &Task) -> bool {
        let controller = match task {
            Task::Collect(_) | Task::PostEvent(_) => StandIn::GarbageCollection,
            Task::CreateAccount(_) => StandIn::DefaultAccounts,
            Task::DeletePods(_) => StandIn::Nodes,
            // `finalize` checks the switches of its controllers.
            Task::Finalize(_) => return false,
        };
        !self.runs(controller)
    }

    /// Adds a task to the queue, unless the task has failed and waits for its retry.
    fn enqueue(&mut self, task: Task) {
        if !self.is_off(&task) && !self.retries.is_waiting(&task, Instant::now()) {
            self.work.add(task);
        }
    }

    /// Adds the failed tasks whose retry is due to the queue.
    fn enqueue_retries(&mut self) {
        for task in self.retries.due(Instant::now()) {
            self.work.add(task);
        }
    }

    /// Adds a task for every object that waits for a controller.
    fn enqueue_waiting(&mut self) {
        for place in self.waiting.clone() {
            self.enqueue(Task::Finalize(place));
        }
    }

    /// Starts as many tasks as the limits allow.
    fn start_tasks(&mut self) {
        while let Some(task) = self.work.start() {
            match self.start(&task) {
                Ok(Some(future)) => self.running.push(future.map(|result| (task, result)).boxed()),
                Ok(None) => self.end_task(task, &Ok(())),
                Err(refusal) => self.end_task(task, &Err(refusal)),
            }
        }
    }

    fn end_task(&mut self, task: Task, result: &Result<(), Refusal>) {
        self.work.end(&task);
        match result {
            Err(_) if !matches!(task, Task::PostEvent(_)) => self.retries.failed(task, Instant::now()),
            _ => self.retries.done(&task),
        }
    }

    /// Decides by the current state which requests a task needs. `None` if it needs no request.
    fn start(&mut self, task: &Task) -> Result<Option<BoxFuture<'static, Result<(), Refusal>>>, Refusal> {
        let requests = self.requests.clone();
        match task {
            Task::Collect(place) => self.collect(place),
            Task::Finalize(place) => Ok(self.finalize(place)),
            Task::CreateAccount(namespace) => Ok(requests.lacks_account(namespace).then(|| {
                let namespace = namespace.clone();
                async move { requests.create_account(&namespace).await }.boxed()
            })),
            Task::DeletePods(node) => {
                let keys = self.pods_left_on(node);
                Ok(Some(async move { requests.delete_pods(keys).await }.boxed()))
            }
            Task::PostEvent(event) => {
                let event: Value = serde_json::from_str(event).unwrap_or_default();
                let path = format!("/api/v1/namespaces/{}/events", object::text(&event, "/metadata/namespace"));
                Ok(Some(async move { requests.send(Method::POST, &path, "application/json", &event).await }.boxed()))
            }
        }
    }

    /// Does the next step for an object that is being deleted.
    fn finalize(&mut self, place: &Place) -> Option<BoxFuture<'static, Result<(), Refusal>>> {
        let Some(stored) = self.server.store.get(&place.0, &place.1) else {
            self.waiting.remove(place);
            return None;
        };
        let (requests, place) = (self.requests.clone(), place.clone());
        if is_namespace(&place) {
            let empties = self.runs(StandIn::Namespaces);
            return empties.then(|| async move { requests.empty_namespace(&place, &stored).await }.boxed());
        }
        let collects = self.runs(StandIn::GarbageCollection);
        // One finalizer at a time: its removal changes the object, and the change leads here again.
        for finalizer in object::finalizers(&stored.value) {
            match finalizer {
                FOREGROUND if collects => return self.foreground(place, &stored),
                ORPHAN if collects => return Some(self.orphan(place, &stored)),
                crd::CLEANUP => {
                    return Some(async move { requests.empty_definition(&place, &stored).await }.boxed());
                }
                _ => {}
            }
        }
        None
    }

    fn served(&self, collection: &Collection) -> Option<Arc<Served>> {
        self.requests.served(collection)
    }
}

fn is_namespace(place: &Place) -> bool {
    place.0.group.is_empty() && place.0.resource == "namespaces"
}
