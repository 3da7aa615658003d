//! Stand-ins for controllers that clients rely on: garbage collection, namespaces, definitions, budgets, nodes, accounts, events.
//!
//! One task follows all changes; it lives here, with the requests that it makes, and each controller has a file of its own.
//! What it does goes through the API like anybody's requests, so that admission sees it; what is refused is tried again later.
//! Source: spec/extension-apiserver §6.1, §6.3.

mod accounts;
mod budgets;
mod emptying;
mod events;
mod garbage;
mod graph;
mod nodes;
mod remains;
mod retries;
mod roles;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::{
    events::Lifetimes,
    graph::Graph,
    retries::{Retries, Task},
};
use super::{
    access::{MASTERS, User},
    aggregator, authorization, crd,
    delete::{FOREGROUND, ORPHAN},
    kinds::Served,
    object,
    server::Server,
    stand_ins::StandIn,
    store::{Change, Collection, Stored},
};
use crate::protocol::options::Propagation;

/// How much is read of an answer that refuses something.
const REFUSAL_LIMIT: usize = 64 * 1024;

/// Where something is stored.
type Place = (Collection, String);

/// What the helpers remember between changes.
pub(super) struct Helpers {
    server: Arc<Server>,
    without: BTreeSet<StandIn>,
    /// Up to here everything has been seen.
    at: u64,
    /// Who owns whom.
    graph: Graph,
    /// Objects that wait for others to go first.
    waiting: BTreeSet<Place>,
    /// The pods of each node, by their keys.
    bound: BTreeMap<String, BTreeSet<String>>,
    /// What was refused.
    retries: Retries,
    /// When events are forgotten.
    lifetimes: Lifetimes,
}

/// What woke the helpers.
enum Woken {
    Changes,
    /// Those that others registered.
    Servers,
    Time,
}

/// Why a request of a helper came to nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Refusal {
    status: StatusCode,
    message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
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
            server,
            without,
            at: 0,
            graph: Graph::default(),
            waiting: BTreeSet::new(),
            bound: BTreeMap::new(),
            retries: Retries::default(),
            lifetimes: Lifetimes::default(),
        }
    }

    /// Follows all changes until the server is gone.
    pub(super) async fn run(mut self) {
        let mut progress = self.server.store.progress();
        self.take_stock().await;
        loop {
            self.forget_events();
            self.try_again().await;
            // What was written here past the API is told to watchers too. A store that can't be written any more tells
            // whoever writes next.
            let _ = self.server.store.durable(self.server.store.revision()).await;
            let (at, wakes) = (self.at, self.wakes());
            let progressed = async { progress.wait_for(|progress| *progress > at).await.is_ok() };
            // In this order: one seed is one history.
            let woken = tokio::select! {
                biased;
                is_there = progressed => if is_there { Woken::Changes } else { return },
                () = self.server.aggregator.moved() => Woken::Servers,
                () = until(wakes) => Woken::Time,
            };
            match woken {
                Woken::Changes => self.step().await,
                // Namespaces may wait for a server that nobody knows any more.
                Woken::Servers => self.settle().await,
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
    async fn take_stock(&mut self) {
        // Taken first: what is written meanwhile is seen twice rather than never.
        self.at = self.server.store.revision();
        self.graph.clear();
        self.waiting.clear();
        self.bound.clear();
        let mut budgets = BTreeSet::new();
        let all = self.server.store.find(|collection, _| !events::holds(collection));
        for (collection, key, stored) in all {
            let change = Change { revision: stored.revision, key, before: None, after: Some(stored), size: 0 };
            self.see(&collection, &change, &mut budgets).await;
        }
        self.know_events();
        self.finish(budgets).await;
    }

    /// Does what the changes since the last step ask for.
    async fn step(&mut self) {
        if !self.server.store.knows_since(self.at) {
            return self.take_stock().await;
        }
        let changes = self.server.store.journal(self.at);
        let Some((_, last)) = changes.last() else {
            self.at = self.server.store.revision().max(self.at);
            return;
        };
        self.at = last.revision;
        let mut budgets = BTreeSet::new();
        for (collection, change) in &changes {
            self.see(collection, change, &mut budgets).await;
        }
        self.finish(budgets).await;
    }

    /// Does what is done once for many changes.
    async fn finish(&mut self, budgets: BTreeSet<String>) {
        for namespace in budgets {
            self.count_budgets(&namespace);
        }
        self.settle().await;
    }

    async fn see(&mut self, collection: &Collection, change: &Change, budgets: &mut BTreeSet<String>) {
        let place = (collection.clone(), change.key.clone());
        let (before, after) = (change.before.as_ref(), change.after.as_ref());
        // As in a cluster, events neither own nor are owned.
        if !events::holds(collection) {
            match (before, after) {
                (before, Some(after)) => {
                    self.note(&place, &after.value);
                    self.learn(&place, before.map(|before| &before.value), &after.value).await;
                }
                (Some(before), None) => {
                    self.waiting.remove(&place);
                    self.retries.done(&Task::Settle(place.clone()));
                    self.unlearn(&place, &before.value).await;
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
                None => self.give_account(&namespace).await,
            },
            ("apiextensions.k8s.io", "customresourcedefinitions") if change.after.is_none() => {
                if let Some(gone) = &change.before {
                    self.give_names_away(&gone.value);
                }
            }
            ("", "namespaces") if change.after.is_some() => self.give_account(&change.key).await,
            ("", "events") => self.see_event(change),
            (aggregator::GROUP, aggregator::RESOURCE) | ("", "services") => self.server.aggregator.look_again(),
            (authorization::GROUP, "clusterroles") => self.aggregate_roles(),
            ("", "nodes") if self.stands_in_for(StandIn::Nodes) => match &change.after {
                Some(node) => self.taint_node(node),
                None => self.drop_pods_of(&change.key).await,
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

    /// Tries again what was refused long enough ago.
    async fn try_again(&mut self) {
        for task in self.retries.take(Instant::now()) {
            match &task {
                Task::Collect(place) => self.collect(place).await,
                Task::Settle(place) => self.settle_one(place).await,
                Task::Account(namespace) => self.give_account(namespace).await,
                Task::Pods(node) => self.drop_pods_of(node).await,
            }
        }
    }

    /// Brings forward what waits for others.
    async fn settle(&mut self) {
        for place in self.waiting.clone() {
            self.settle_one(&place).await;
        }
    }

    async fn settle_one(&mut self, place: &Place) {
        let task = Task::Settle(place.clone());
        if self.retries.holds(&task, Instant::now()) {
            return;
        }
        let Some(stored) = self.server.store.get(&place.0, &place.1) else {
            self.waiting.remove(place);
            return self.retries.done(&task);
        };
        match self.bring_forward(place, &stored).await {
            Ok(()) => self.retries.done(&task),
            Err(_) => self.retries.failed(task, Instant::now()),
        }
    }

    async fn bring_forward(&mut self, place: &Place, stored: &Stored) -> Result<(), Refusal> {
        if is_namespace(place) {
            let empties = self.stands_in_for(StandIn::Namespaces);
            return if empties { self.empty_namespace(place, stored).await } else { Ok(()) };
        }
        let collects = self.stands_in_for(StandIn::GarbageCollection);
        // One at a time: taking one off changes the object, and the change leads here again.
        for finalizer in object::finalizers(&stored.value) {
            match finalizer {
                FOREGROUND if collects => return self.foreground(place, stored).await,
                ORPHAN if collects => return self.orphan(place, stored).await,
                crd::CLEANUP => return self.empty_definition(place, stored).await,
                _ => {}
            }
        }
        Ok(())
    }

    fn served(&self, collection: &Collection) -> Option<Arc<Served>> {
        self.server.registry().storage_of(collection).cloned()
    }

    /// A request of the server's own.
    async fn send(&self, method: Method, path: &str, content_type: &'static str, body: &Value) -> Result<(), Refusal> {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .header(header::USER_AGENT, "mcm-dev-helpers")
            .body(bytes);
        // Names that are stored make no path that can't be asked for.
        let Ok(request) = request else { return Ok(()) };
        let user = User::known("system:kube-controller-manager", [MASTERS.to_owned()]);
        let (head, body) = self.server.answer(request, Ok(user)).await.into_parts();
        if head.status.is_success() {
            return Ok(());
        }
        let body = axum::body::to_bytes(body, REFUSAL_LIMIT).await.unwrap_or_default();
        let told: Value = serde_json::from_slice(&body).unwrap_or_default();
        let refusal = Refusal { status: head.status, message: object::text(&told, "/message").to_owned() };
        if refusal.status != StatusCode::NOT_FOUND {
            tracing::debug!(path, status = %refusal.status, "a helper of the development server was refused: {refusal}");
        }
        Err(refusal)
    }

    fn path(&self, collection: &Collection, value: &Value) -> Option<String> {
        let served = self.served(collection)?;
        let base = crate::protocol::openapi::document_path(served.group(), &served.resource.kind.version);
        let namespace =
            object::namespace(value).map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
        Some(format!("/{base}{namespace}/{}/{}", served.plural(), object::name(value)))
    }

    /// Deletes an object; one that is gone is fine.
    async fn delete(&self, collection: &Collection, value: &Value, propagation: Propagation) -> Result<(), Refusal> {
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": format!("{propagation:?}"),
            "preconditions": {"uid": object::uid(value)},
        });
        self.delete_with(collection, value, &options).await
    }

    async fn delete_with(&self, collection: &Collection, value: &Value, options: &Value) -> Result<(), Refusal> {
        let Some(path) = self.path(collection, value) else { return Ok(()) };
        let answered = self.send(Method::DELETE, &path, "application/json", options).await;
        answered.or_else(|refusal| if refusal.status == StatusCode::NOT_FOUND { Ok(()) } else { Err(refusal) })
    }

    /// Takes a finalizer off again.
    async fn release(&self, place: &Place, stored: &Stored, finalizer: &str) -> Result<(), Refusal> {
        let kept: Vec<&str> = object::finalizers(&stored.value).into_iter().filter(|name| *name != finalizer).collect();
        let Some(path) = self.path(&place.0, &stored.value) else { return Ok(()) };
        let patch = json!({"metadata": {"finalizers": kept, "uid": object::uid(&stored.value),
            "resourceVersion": stored.revision.to_string()}});
        let answered = self.send(Method::PATCH, &path, "application/merge-patch+json", &patch).await;
        answered.or_else(|refusal| if refusal.status == StatusCode::NOT_FOUND { Ok(()) } else { Err(refusal) })
    }
}

fn is_namespace(place: &Place) -> bool {
    place.0.group.is_empty() && place.0.resource == "namespaces"
}
