//! Stand-ins for controllers that clients rely on: garbage collection, namespaces, definitions, budgets, nodes, accounts, events.
//!
//! One task follows all changes; it lives here, with the requests that it makes, and each controller has a file of its own.
//! What it does goes through the API like anybody's requests, so that admission sees it.
//! Source: spec/extension-apiserver §6.1, §6.3.

mod accounts;
mod budgets;
mod emptying;
mod events;
mod garbage;
mod nodes;
mod roles;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::{accounts::Accountless, events::Lifetimes, garbage::owners};
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

/// Where something is stored.
type Place = (Collection, String);

/// What the helpers remember between changes.
pub(super) struct Helpers {
    server: Arc<Server>,
    without: BTreeSet<StandIn>,
    /// Up to here everything has been seen.
    at: u64,
    /// Who names an owner, by the owner's UID.
    dependents: BTreeMap<String, BTreeSet<Place>>,
    /// Objects that wait for others to go first.
    waiting: BTreeSet<Place>,
    /// Namespaces that lack their account.
    accountless: Accountless,
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
            dependents: BTreeMap::new(),
            waiting: BTreeSet::new(),
            accountless: Accountless::default(),
            lifetimes: Lifetimes::default(),
        }
    }

    /// Follows all changes until the server is gone.
    pub(super) async fn run(mut self) {
        let mut progress = self.server.store.progress();
        self.take_stock().await;
        loop {
            self.forget_events();
            self.retry_accounts().await;
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
        [events, self.accountless.wakes()].into_iter().flatten().min()
    }

    /// Looks at all there is as if it were new: what an earlier process has left undone is done now.
    async fn take_stock(&mut self) {
        // Taken first: what is written meanwhile is seen twice rather than never.
        self.at = self.server.store.revision();
        self.dependents.clear();
        self.waiting.clear();
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
        if let Some(before) = &change.before {
            for owner in owners(&before.value) {
                if let Some(places) = self.dependents.get_mut(owner) {
                    places.remove(&(collection.clone(), change.key.clone()));
                }
            }
        }
        if let Some(after) = &change.after {
            self.note(collection, &change.key, &after.value);
            if change.before.is_none() {
                self.collect_if_ownerless(collection, &change.key, &after.value).await;
            }
        } else {
            self.waiting.remove(&(collection.clone(), change.key.clone()));
            if let Some(before) = &change.before {
                self.collect_dependents(object::uid(&before.value)).await;
            }
        }
        let value = change.after.as_ref().or(change.before.as_ref()).map(|stored| &stored.value);
        let namespace = value.and_then(object::namespace).unwrap_or_default().to_owned();
        match (collection.group.as_str(), collection.resource.as_str()) {
            ("", "pods") | ("policy", "poddisruptionbudgets") => {
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

    fn note(&mut self, collection: &Collection, key: &str, value: &Value) {
        let place = (collection.clone(), key.to_owned());
        for owner in owners(value) {
            self.dependents.entry(owner.to_owned()).or_default().insert(place.clone());
        }
        let waits_for_us =
            object::finalizers(value).iter().any(|name| matches!(*name, FOREGROUND | ORPHAN | crd::CLEANUP));
        let is_namespace = collection.group.is_empty() && collection.resource == "namespaces";
        if object::is_deleting(value) && (waits_for_us || is_namespace) {
            self.waiting.insert(place);
        }
    }

    /// Brings forward what waits for others.
    async fn settle(&mut self) {
        for place in self.waiting.clone() {
            let Some(stored) = self.server.store.get(&place.0, &place.1) else {
                self.waiting.remove(&place);
                continue;
            };
            if place.0.group.is_empty() && place.0.resource == "namespaces" {
                if self.stands_in_for(StandIn::Namespaces) {
                    self.empty_namespace(&place, &stored).await;
                }
                continue;
            }
            let collects = self.stands_in_for(StandIn::GarbageCollection);
            for finalizer in object::finalizers(&stored.value) {
                match finalizer {
                    FOREGROUND if collects => self.foreground(&place, &stored).await,
                    ORPHAN if collects => self.orphan(&place, &stored).await,
                    crd::CLEANUP => self.empty_definition(&place, &stored).await,
                    _ => {}
                }
            }
        }
    }

    fn served(&self, collection: &Collection) -> Option<Arc<Served>> {
        self.server.registry().storage_of(collection).cloned()
    }

    /// A request of the server's own; the answer is its status.
    async fn send(&self, method: Method, path: &str, content_type: &'static str, body: &Value) -> Option<StatusCode> {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .header(header::USER_AGENT, "mcm-dev-helpers")
            .body(bytes);
        // Names that are stored make no path that can't be asked for.
        let request = request.ok()?;
        let user = User::known("system:kube-controller-manager", [MASTERS.to_owned()]);
        let status = self.server.answer(request, Ok(user)).await.status();
        if !status.is_success() && status != StatusCode::NOT_FOUND {
            tracing::debug!(path, %status, "a helper of the development server was refused");
        }
        Some(status)
    }

    fn path(&self, collection: &Collection, value: &Value) -> Option<String> {
        let served = self.served(collection)?;
        let base = crate::protocol::openapi::document_path(served.group(), &served.resource.kind.version);
        let namespace =
            object::namespace(value).map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
        Some(format!("/{base}{namespace}/{}/{}", served.plural(), object::name(value)))
    }

    async fn delete(&self, collection: &Collection, value: &Value) {
        if let Some(path) = self.path(collection, value) {
            let options = json!({
                "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                "preconditions": {"uid": object::uid(value)},
            });
            self.send(Method::DELETE, &path, "application/json", &options).await;
        }
    }

    /// Takes a finalizer off again.
    async fn release(&self, place: &Place, stored: &Stored, finalizer: &str) {
        let kept: Vec<&str> = object::finalizers(&stored.value).into_iter().filter(|name| *name != finalizer).collect();
        if let Some(path) = self.path(&place.0, &stored.value) {
            let patch = json!({"metadata": {"finalizers": kept, "uid": object::uid(&stored.value),
                "resourceVersion": stored.revision.to_string()}});
            self.send(Method::PATCH, &path, "application/merge-patch+json", &patch).await;
        }
    }
}
