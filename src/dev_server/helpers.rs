//! Stand-ins for controllers that clients rely on: garbage collection, namespaces, definitions, budgets, nodes.
//!
//! One task follows all changes. What it does goes through the API like anybody's requests, so that admission sees it.
//! Source: spec/extension-apiserver §6.1, §6.3.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use http::{Method, Request, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    access::{MASTERS, User},
    aggregator::{self, GroupVersion},
    authorization, crd,
    delete::{FOREGROUND, ORPHAN},
    eviction::{covers, is_ready},
    kinds::Served,
    object::{self, text},
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
}

impl Helpers {
    pub(super) fn new(server: Arc<Server>, without: BTreeSet<StandIn>) -> Self {
        Self { server, without, at: 0, dependents: BTreeMap::new(), waiting: BTreeSet::new() }
    }

    /// Follows all changes until the server is gone.
    pub(super) async fn run(mut self) {
        let mut progress = self.server.store.progress();
        for (collection, key, stored) in self.server.store.find(|_, _| true) {
            self.note(&collection, &key, &stored.value);
        }
        self.at = self.server.store.revision();
        self.aggregate_roles();
        self.settle().await;
        loop {
            let at = self.at;
            let progressed = async { progress.wait_for(|progress| *progress > at).await.is_ok() };
            // In this order: one seed is one history.
            let woken = tokio::select! {
                biased;
                is_there = progressed => Some(is_there),
                () = self.server.aggregator.moved() => None,
            };
            match woken {
                Some(true) => self.step().await,
                Some(false) => return,
                // Namespaces may wait for a server that nobody knows any more.
                None => self.settle().await,
            }
        }
    }

    /// Does what the changes since the last step ask for.
    async fn step(&mut self) {
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
            ("", "serviceaccounts") if self.stands_in_for(StandIn::AccountTokens) => {
                if let Some(account) = &change.after {
                    self.server.fill_secrets_of(&account.value);
                }
            }
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

    /// A request of the server's own.
    async fn send(&self, method: Method, path: &str, content_type: &'static str, body: &Value) {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .header(header::USER_AGENT, "mcm-dev-helpers")
            .body(bytes);
        if let Ok(request) = request {
            let user = User::known("system:kube-controller-manager", [MASTERS.to_owned()]);
            let answer = self.server.answer(request, Ok(user)).await;
            if !answer.status().is_success() && answer.status() != http::StatusCode::NOT_FOUND {
                tracing::debug!(path, status = %answer.status(), "a helper of the development server was refused");
            }
        }
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

    fn dependents_of(&self, uid: &str) -> Vec<(Place, Arc<Stored>)> {
        let places = self.dependents.get(uid).into_iter().flatten();
        places.filter_map(|place| Some((place.clone(), self.server.store.get(&place.0, &place.1)?))).collect()
    }

    async fn collect_dependents(&mut self, uid: &str) {
        for ((collection, key), stored) in self.dependents_of(uid) {
            self.collect_if_ownerless(&collection, &key, &stored.value).await;
        }
        self.dependents.remove(uid);
    }

    /// Deletes an object whose owners are all gone.
    async fn collect_if_ownerless(&self, collection: &Collection, key: &str, value: &Value) {
        let references = value["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
        if references.is_empty() || object::is_deleting(value) || !self.stands_in_for(StandIn::GarbageCollection) {
            return;
        }
        if references.iter().any(|reference| self.owner_exists(value, reference)) {
            return;
        }
        if let Some(stored) =
            self.server.store.get(collection, key).filter(|stored| object::uid(&stored.value) == object::uid(value))
        {
            self.delete(collection, &stored.value).await;
        }
    }

    fn owner_exists(&self, value: &Value, reference: &Value) -> bool {
        let registry = self.server.registry();
        let Some(served) = registry.of_kind(text(reference, "/apiVersion"), text(reference, "/kind")) else {
            // An unknown kind may come back.
            return true;
        };
        let namespace = if served.is_namespaced() { object::namespace(value) } else { None };
        let place = super::store::key(namespace, text(reference, "/name"));
        let owner = self.server.store.get(&served.collection, &place);
        owner.is_some_and(|owner| object::uid(&owner.value) == text(reference, "/uid"))
    }

    async fn foreground(&self, place: &Place, stored: &Stored) {
        let dependents = self.dependents_of(object::uid(&stored.value));
        let mut blocked = false;
        for ((collection, _), dependent) in dependents {
            let reference = dependent.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let blocks = reference
                .filter(|reference| reference["uid"] == object::uid(&stored.value))
                .any(|reference| reference["blockOwnerDeletion"] == json!(true));
            blocked |= blocks;
            if !object::is_deleting(&dependent.value) {
                self.delete(&collection, &dependent.value).await;
            }
        }
        if !blocked {
            self.release(place, stored, FOREGROUND).await;
        }
    }

    async fn orphan(&self, place: &Place, stored: &Stored) {
        let uid = object::uid(&stored.value);
        for ((collection, _), dependent) in self.dependents_of(uid) {
            let references = dependent.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let kept: Vec<&Value> = references.filter(|reference| reference["uid"] != uid).collect();
            if let Some(path) = self.path(&collection, &dependent.value) {
                let kept = if kept.is_empty() { Value::Null } else { json!(kept) };
                let patch = json!({"metadata": {"ownerReferences": kept, "uid": object::uid(&dependent.value)}});
                self.send(Method::PATCH, &path, "application/merge-patch+json", &patch).await;
            }
        }
        self.release(place, stored, ORPHAN).await;
    }

    async fn empty_namespace(&self, place: &Place, stored: &Stored) {
        let name = object::name(&stored.value);
        let prefix = format!("{name}/");
        let content = self.server.store.find(|_, value| object::namespace(value) == Some(name));
        let content: Vec<_> = content.into_iter().filter(|(_, key, _)| key.starts_with(&prefix)).collect();
        if content.is_empty() {
            let Some(served) = self.served(&place.0) else { return };
            let unanswered = self.server.aggregator.unanswered();
            if !unanswered.is_empty() {
                // Of these nobody knows whether something is left.
                if let Some(told) = with_discovery_failure(&stored.value, &unanswered, self.server.now()) {
                    let _ = self.server.overwrite(&served, stored, Some(told));
                }
                return;
            }
            let mut value = stored.value.clone();
            value["spec"]["finalizers"] = json!([]);
            let gone = object::finalizers(&value).is_empty();
            // Somebody else was quicker: the change wakes us again.
            let _ = self.server.overwrite(&served, stored, if gone { None } else { Some(value) });
            return;
        }
        for (collection, _, stored) in content {
            if !object::is_deleting(&stored.value) {
                self.delete(&collection, &stored.value).await;
            }
        }
    }

    async fn empty_definition(&self, place: &Place, stored: &Stored) {
        let collection = Collection::new(text(&stored.value, "/spec/group"), text(&stored.value, "/spec/names/plural"));
        let content = self.server.store.list(&collection, "");
        if content.objects.is_empty() {
            self.release(place, stored, crd::CLEANUP).await;
        }
        for (_, stored) in content.objects {
            if !object::is_deleting(&stored.value) {
                self.delete(&collection, &stored.value).await;
            }
        }
    }

    /// Gives aggregated roles the rules of those they select.
    fn aggregate_roles(&self) {
        if !self.stands_in_for(StandIn::AggregatedRoles) {
            return;
        }
        let Some(served) = self.served(&Collection::new(authorization::GROUP, "clusterroles")) else { return };
        let all = self.server.store.list(&served.collection, "").objects;
        for (_, role) in &all {
            let Some(rules) = authorization::aggregated(&role.value, &all) else { continue };
            if role.value["rules"].as_array() != Some(&rules) {
                let mut value = role.value.clone();
                value["rules"] = json!(rules);
                // The change wakes us again, for roles that select this one.
                let _ = self.server.overwrite(&served, role, Some(value));
            }
        }
    }

    /// A node that is ready is not kept from pods any more; one that is not, is.
    fn taint_node(&self, node: &Stored) {
        const KEYS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
        let conditions = node.value["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ready =
            conditions.iter().find(|condition| condition["type"] == "Ready").map(|ready| text(ready, "/status"));
        let wanted = match ready {
            Some("True") => None,
            Some("Unknown") => Some(KEYS[1]),
            Some(_) => Some(KEYS[0]),
            // It keeps what it got when it was made.
            None => return,
        };
        let taints = node.value["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let ours = |taint: &Value| KEYS.iter().any(|key| taint["key"] == *key);
        let has = |key: &str| taints.iter().any(|taint| taint["key"] == key);
        let settled = match wanted {
            None => !taints.iter().any(ours),
            Some(key) => has(key) && taints.iter().filter(|taint| ours(taint)).all(|taint| taint["key"] == key),
        };
        if settled {
            return;
        }
        let mut kept: Vec<Value> = taints.iter().filter(|taint| !ours(taint)).cloned().collect();
        if let Some(key) = wanted {
            kept.push(json!({"key": key, "effect": "NoSchedule"}));
            kept.push(json!({"key": key, "effect": "NoExecute", "timeAdded": object::time(self.server.now())}));
        }
        let mut value = node.value.clone();
        if kept.is_empty() {
            super::write_rules::remove(&mut value["spec"], "taints");
        } else {
            value["spec"]["taints"] = json!(kept);
        }
        if let Some(served) = self.served(&Collection::new("", "nodes")) {
            let _ = self.server.overwrite(&served, node, Some(value));
        }
    }

    /// Pods of a node that is gone are gone too.
    async fn drop_pods_of(&self, node: &str) {
        let pods = Collection::new("", "pods");
        let lost =
            self.server.store.find(|collection, value| *collection == pods && text(value, "/spec/nodeName") == node);
        for (_, _, pod) in lost {
            if let Some(path) = self.path(&pods, &pod.value) {
                let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": object::uid(&pod.value)}});
                self.send(Method::DELETE, &path, "application/json", &options).await;
            }
        }
    }

    /// How many pods each budget of a namespace can lose.
    fn count_budgets(&self, namespace: &str) {
        if !self.stands_in_for(StandIn::Budgets) {
            return;
        }
        let prefix = format!("{namespace}/");
        let Some(served) = self.served(&Collection::new("policy", "poddisruptionbudgets")) else { return };
        let budgets = self.server.store.list(&served.collection, &prefix);
        if budgets.objects.is_empty() {
            return;
        }
        let pods = self.server.store.list(&Collection::new("", "pods"), &prefix);
        for (_, budget) in budgets.objects {
            let covered: Vec<_> = pods.objects.iter().filter(|(_, pod)| covers(&budget.value, &pod.value)).collect();
            let expected = i64::try_from(covered.len()).unwrap_or(i64::MAX);
            let healthy =
                covered.iter().filter(|(_, pod)| is_ready(&pod.value) && !object::is_deleting(&pod.value)).count();
            let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
            let desired = desired_healthy(&budget.value["spec"], expected);
            let mut value = budget.value.clone();
            let status = json!({
                "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": expected,
                "disruptionsAllowed": (healthy - desired).max(0),
                "observedGeneration": budget.value["metadata"]["generation"],
            });
            let mut old = budget.value["status"].clone();
            super::write_rules::remove(&mut old, "disruptedPods");
            super::write_rules::remove(&mut old, "conditions");
            if old != status {
                value["status"] = status;
                let _ = self.server.overwrite(&served, &budget, Some(value));
            }
        }
    }
}

/// A namespace that stays because servers of some groups do not answer; none if it says so already.
fn with_discovery_failure(namespace: &Value, unanswered: &[GroupVersion], now: Timestamp) -> Option<Value> {
    const TYPE: &str = "NamespaceDeletionDiscoveryFailure";
    let names: Vec<String> = unanswered.iter().map(ToString::to_string).collect();
    let message = format!(
        "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
        names.len(),
        names.join(", ")
    );
    let mut conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    if conditions.iter().any(|condition| condition["type"] == TYPE && condition["message"] == *message) {
        return None;
    }
    conditions.retain(|condition| condition["type"] != TYPE);
    conditions.push(json!({
        "type": TYPE, "status": "True", "reason": "DiscoveryFailed", "message": message,
        "lastTransitionTime": object::time(now),
    }));
    let mut told = namespace.clone();
    told["status"]["conditions"] = json!(conditions);
    Some(told)
}

fn owners(value: &Value) -> impl Iterator<Item = &str> {
    value["metadata"]["ownerReferences"].as_array().into_iter().flatten().map(|owner| text(owner, "/uid"))
}

/// The pods that must stay healthy.
fn desired_healthy(spec: &Value, expected: i64) -> i64 {
    let share = |value: &Value| -> Option<i64> {
        match value {
            Value::Number(count) => count.as_i64(),
            Value::String(text) => {
                let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
                Some((expected * percent + 99) / 100)
            }
            _ => None,
        }
    };
    if let Some(least) = share(&spec["minAvailable"]) {
        return least;
    }
    share(&spec["maxUnavailable"]).map_or(0, |most| (expected - most).max(0))
}
