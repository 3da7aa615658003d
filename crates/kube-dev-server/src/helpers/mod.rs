//! Stand-ins for controllers that clients rely on: garbage collection, namespaces, definitions, budgets, nodes, accounts, events.
//!
//! One task follows all changes; it lives here, and each controller has a file of its own. What a change means is decided at once;
//! what has to be done about it goes through the API like anybody's requests ([`requests`]), several at a time ([`work`]), and what is
//! refused is tried again later ([`retries`]).
//! Source: spec/extension-apiserver §6.1, §6.3.

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
    events::Lifetimes,
    graph::Graph,
    requests::{Refusal, Requests},
    retries::Retries,
    work::{Task, Work},
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

/// Where something is stored.
type Place = (Collection, String);

/// What the helpers remember between changes.
pub(super) struct Helpers {
    server: Arc<Server>,
    requests: Requests,
    without: BTreeSet<StandIn>,
    /// Up to here everything has been seen.
    at: u64,
    /// Who owns whom.
    graph: Graph,
    /// Objects that wait for others to go first.
    waiting: BTreeSet<Place>,
    /// The pods of each node, by their keys.
    bound: BTreeMap<String, BTreeSet<String>>,
    /// What is to be done.
    work: Work,
    /// What is being done.
    running: FuturesUnordered<BoxFuture<'static, (Task, Result<(), Refusal>)>>,
    /// What was refused.
    retries: Retries,
    /// When events are forgotten.
    lifetimes: Lifetimes,
}

/// What woke the helpers.
enum Woken {
    /// Something that they had to do is through.
    Ended(Task, Result<(), Refusal>),
    Changes,
    /// Those that others registered.
    Servers,
    /// What was written up to a revision is kept, or never will be.
    Kept(u64),
    Time,
}

/// Sleeps until a moment; without one, for ever.
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
            work: Work::default(),
            running: FuturesUnordered::new(),
            retries: Retries::default(),
            lifetimes: Lifetimes::default(),
        }
    }

    /// Follows all changes until the server is gone.
    pub(super) async fn run(mut self) {
        let mut progress = self.server.store.progress();
        let mut kept = 0;
        self.take_stock();
        loop {
            self.forget_events();
            self.try_again();
            self.begin_all();
            let (at, wakes, written) = (self.at, self.wakes(), self.server.store.revision());
            let server = &self.server;
            let progressed = async { progress.wait_for(|progress| *progress > at).await.is_ok() };
            // In this order: one seed is one history.
            let woken = tokio::select! {
                biased;
                Some((task, result)) = self.running.next() => Woken::Ended(task, result),
                is_there = progressed => if is_there { Woken::Changes } else { return },
                () = server.aggregator.moved() => Woken::Servers,
                // What was written here past the API is told to watchers too. A store that can't be written any more tells
                // whoever writes next.
                _ = server.store.durable(written), if written > kept => Woken::Kept(written),
                () = until(wakes) => Woken::Time,
            };
            match woken {
                Woken::Ended(task, result) => self.note_end(task, &result),
                Woken::Changes => self.step(),
                // Namespaces may wait for a server that nobody knows any more.
                Woken::Servers => self.settle(),
                Woken::Kept(upto) => kept = upto,
                Woken::Time => {}
            }
        }
    }

    /// When something has to be done though nothing changes.
    fn wakes(&self) -> Option<Instant> {
        let events = self.lifetimes.pause(self.server.now()).map(|pause| Instant::now() + pause);
        [events, self.retries.wakes()].into_iter().flatten().min()
    }

    /// Looks at all there is as if it were new: what an earlier process has left undone is done now.
    fn take_stock(&mut self) {
        // Taken first: what is written meanwhile is seen twice rather than never.
        self.at = self.server.store.revision();
        self.graph.clear();
        self.waiting.clear();
        self.bound.clear();
        let mut budgets = BTreeSet::new();
        let all = self.server.store.find(|collection, _| !events::holds(collection));
        for (collection, key, stored) in all {
            let change = Change { revision: stored.revision, key, before: None, after: Some(stored), size: 0 };
            self.see(&collection, &change, &mut budgets);
        }
        self.know_events();
        self.finish(budgets);
    }

    /// Does what the changes since the last step ask for.
    fn step(&mut self) {
        if !self.server.store.knows_since(self.at) {
            return self.take_stock();
        }
        let changes = self.server.store.journal(self.at);
        let Some((_, last)) = changes.last() else {
            self.at = self.server.store.revision().max(self.at);
            return;
        };
        self.at = last.revision;
        let mut budgets = BTreeSet::new();
        for (collection, change) in &changes {
            self.see(collection, change, &mut budgets);
        }
        self.finish(budgets);
    }

    /// Does what is done once for many changes.
    fn finish(&mut self, budgets: BTreeSet<String>) {
        for namespace in budgets {
            self.count_budgets(&namespace);
        }
        self.settle();
    }

    fn see(&mut self, collection: &Collection, change: &Change, budgets: &mut BTreeSet<String>) {
        let place = (collection.clone(), change.key.clone());
        let (before, after) = (change.before.as_ref(), change.after.as_ref());
        // As in a cluster, events neither own nor are owned.
        if !events::holds(collection) {
            match (before, after) {
                (before, Some(after)) => {
                    self.note(&place, &after.value);
                    self.learn(&place, before.map(|before| &before.value), &after.value);
                }
                (Some(before), None) => {
                    self.waiting.remove(&place);
                    self.retries.done(&Task::Settle(place.clone()));
                    self.unlearn(&place, &before.value);
                }
                (None, None) => {}
            }
        }
        let value = change.after.as_ref().or(change.before.as_ref()).map(|stored| &stored.value);
        let namespace = value.and_then(object::namespace).unwrap_or_default().to_owned();
        match (collection.group.as_str(), collection.resource.as_str()) {
            ("", "pods") => {
                self.note_node_of(change);
                budgets.insert(namespace);
            }
            ("policy", "poddisruptionbudgets") => {
                budgets.insert(namespace);
            }
            ("", "secrets") if self.stands_in_for(StandIn::AccountTokens) => {
                if let Some(secret) = &change.after {
                    self.server.fill_account_secret(secret);
                }
            }
            ("", "serviceaccounts") => match &change.after {
                Some(account) if self.stands_in_for(StandIn::AccountTokens) => {
                    self.server.fill_secrets_of(&account.value);
                }
                Some(_) => {}
                None => self.ask(Task::Account(namespace)),
            },
            ("apiextensions.k8s.io", "customresourcedefinitions") if change.after.is_none() => {
                if let Some(gone) = &change.before {
                    self.requests.give_names_away(&gone.value);
                }
            }
            ("", "namespaces") if change.after.is_some() => self.ask(Task::Account(change.key.clone())),
            ("", "events") => self.see_event(change),
            (aggregator::GROUP, aggregator::RESOURCE) | ("", "services") => self.server.aggregator.look_again(),
            (authorization::GROUP, "clusterroles") => self.aggregate_roles(),
            ("", "nodes") if self.stands_in_for(StandIn::Nodes) => match &change.after {
                Some(node) => self.taint_node(node),
                None => self.ask(Task::Pods(change.key.clone())),
            },
            _ => {}
        }
    }

    fn stands_in_for(&self, controller: StandIn) -> bool {
        !self.without.contains(&controller)
    }

    fn note(&mut self, place: &Place, value: &Value) {
        let waits_for_us =
            object::finalizers(value).iter().any(|name| matches!(*name, FOREGROUND | ORPHAN | crd::CLEANUP));
        if object::is_deleting(value) && (waits_for_us || is_namespace(place)) {
            self.waiting.insert(place.clone());
        }
    }

    /// Whether somebody else does what a task is for.
    fn is_left_out(&self, task: &Task) -> bool {
        let controller = match task {
            Task::Collect(_) | Task::Tell(_) => StandIn::GarbageCollection,
            Task::Account(_) => StandIn::DefaultAccounts,
            Task::Pods(_) => StandIn::Nodes,
            // Of several controllers.
            Task::Settle(_) => return false,
        };
        !self.stands_in_for(controller)
    }

    /// Something is to be done; not before its time, if it was refused.
    fn ask(&mut self, task: Task) {
        if !self.is_left_out(&task) && !self.retries.holds(&task, Instant::now()) {
            self.work.ask(task);
        }
    }

    /// Tries again what was refused long enough ago.
    fn try_again(&mut self) {
        for task in self.retries.take(Instant::now()) {
            self.work.ask(task);
        }
    }

    /// Brings forward what waits for others.
    fn settle(&mut self) {
        for place in self.waiting.clone() {
            self.ask(Task::Settle(place));
        }
    }

    /// Begins what there is room for.
    fn begin_all(&mut self) {
        while let Some(task) = self.work.begin() {
            match self.begin(&task) {
                Ok(Some(doing)) => self.running.push(doing.map(|result| (task, result)).boxed()),
                Ok(None) => self.note_end(task, &Ok(())),
                Err(refusal) => self.note_end(task, &Err(refusal)),
            }
        }
    }

    fn note_end(&mut self, task: Task, result: &Result<(), Refusal>) {
        self.work.ended(&task);
        match result {
            Err(_) if !matches!(task, Task::Tell(_)) => self.retries.failed(task, Instant::now()),
            _ => self.retries.done(&task),
        }
    }

    /// Decides what a task comes to as things stand: requests, or nothing.
    fn begin(&mut self, task: &Task) -> Result<Option<BoxFuture<'static, Result<(), Refusal>>>, Refusal> {
        let requests = self.requests.clone();
        match task {
            Task::Collect(place) => self.collect(place),
            Task::Settle(place) => Ok(self.settle_one(place)),
            Task::Account(namespace) => Ok(requests.lacks_account(namespace).then(|| {
                let namespace = namespace.clone();
                async move { requests.give_account(&namespace).await }.boxed()
            })),
            Task::Pods(node) => {
                let keys = self.pods_left_on(node);
                Ok(Some(async move { requests.drop_pods(keys).await }.boxed()))
            }
            Task::Tell(event) => {
                let event: Value = serde_json::from_str(event).unwrap_or_default();
                let path = format!("/api/v1/namespaces/{}/events", object::text(&event, "/metadata/namespace"));
                Ok(Some(async move { requests.send(Method::POST, &path, "application/json", &event).await }.boxed()))
            }
        }
    }

    fn settle_one(&mut self, place: &Place) -> Option<BoxFuture<'static, Result<(), Refusal>>> {
        let Some(stored) = self.server.store.get(&place.0, &place.1) else {
            self.waiting.remove(place);
            return None;
        };
        let (requests, place) = (self.requests.clone(), place.clone());
        if is_namespace(&place) {
            let empties = self.stands_in_for(StandIn::Namespaces);
            return empties.then(|| async move { requests.empty_namespace(&place, &stored).await }.boxed());
        }
        let collects = self.stands_in_for(StandIn::GarbageCollection);
        // One at a time: taking one off changes the object, and the change leads here again.
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
