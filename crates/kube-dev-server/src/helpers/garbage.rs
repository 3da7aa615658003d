//! Garbage collection: the deletion of dependents before or after their owner, or their orphaning.
//!
//! [`decide`] decides what happens to an object by the states of its owners. [`super::graph`] has the owners and dependents of all objects.
//! Source: spec/extension-apiserver §6.3 no. 6, and the garbage collector of kube-controller-manager for all other details.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use http::Method;
use jiff::Timestamp;
use rand::Rng;
use serde_json::{Value, json};

use super::{
    Helpers, Place,
    graph::{owners, references},
    requests::{Refusal, Requests},
    work::Task,
};
use crate::{
    delete::{FOREGROUND, ORPHAN},
    object::{self, text},
    stand_ins::StandIn,
    store::{Collection, Stored, key},
};
use kube_protocol::options::Propagation;

/// The component that posts events about unreachable owners.
const REPORTER: &str = "garbage-collector-controller";

/// The state of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerState {
    /// The owner exists.
    Exists,
    /// The owner does not exist, or it is in another namespace.
    Absent,
    /// The owner is being deleted and waits for the deletion of its dependents.
    AwaitsDependents,
    /// The kind of the owner is not served now.
    UnknownKind,
    /// The owner is in a namespace and the dependent is in none, so that the namespace of the owner is unknown.
    UnknownNamespace,
}

/// The decision about an object with owner references.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Keep,
    /// The state of an owner is not known yet.
    Retry,
    /// Keep the object and remove its references to these owners.
    RemoveOwners(Vec<String>),
    Delete(Propagation),
}

/// Decides about an object by its owners with their UIDs, by whether it has dependents, and by its finalizers.
fn decide(owners: &[(String, OwnerState)], has_dependents: bool, finalizers: &[&str]) -> Decision {
    let any = |wanted: OwnerState| owners.iter().any(|(_, state)| *state == wanted);
    if owners.is_empty() || any(OwnerState::UnknownNamespace) {
        return Decision::Keep;
    }
    if any(OwnerState::UnknownKind) {
        return Decision::Retry;
    }
    if any(OwnerState::Exists) {
        let lost = owners.iter().filter(|(_, state)| *state != OwnerState::Exists);
        let lost: Vec<String> = lost.map(|(uid, _)| uid.clone()).collect();
        return if lost.is_empty() { Decision::Keep } else { Decision::RemoveOwners(lost) };
    }
    let foreground = finalizers.contains(&FOREGROUND) || any(OwnerState::AwaitsDependents) && has_dependents;
    Decision::Delete(if finalizers.contains(&ORPHAN) {
        Propagation::Orphan
    } else if foreground {
        Propagation::Foreground
    } else {
        Propagation::Background
    })
}

fn blocks(dependent: &Value, owner: &str) -> bool {
    let mut named = references(dependent).iter().filter(|reference| reference["uid"] == owner);
    named.any(|reference| reference["blockOwnerDeletion"] == json!(true))
}

/// The event about an owner that exists but can't own the object, because it is in another namespace.
fn out_of_reach(dependent: &Value, reference: &Value, suffix: &str, now: Timestamp) -> Value {
    let namespace = object::namespace(dependent).unwrap_or_default();
    let field = |name: &str| text(reference, &format!("/{name}")).to_owned();
    let message = format!(
        "ownerRef [{}/{}, namespace: {namespace}, name: {}, uid: {}] does not exist in namespace {namespace:?}",
        field("apiVersion"),
        field("kind"),
        field("name"),
        field("uid")
    );
    let mut about = json!({
        "kind": dependent["kind"], "apiVersion": dependent["apiVersion"],
        "name": object::name(dependent), "uid": object::uid(dependent),
    });
    if !namespace.is_empty() {
        about["namespace"] = json!(namespace);
    }
    let event_namespace = if namespace.is_empty() { "default" } else { namespace };
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": format!("{}.{suffix}", object::name(dependent)), "namespace": event_namespace},
        "involvedObject": about, "type": "Warning", "reason": "OwnerRefInvalidNamespace", "message": message,
        "source": {"component": REPORTER}, "reportingComponent": REPORTER, "reportingInstance": "",
        "count": 1, "firstTimestamp": object::time(now), "lastTimestamp": object::time(now),
    })
}

/// A request of the garbage collector.
enum Step {
    /// Sets the owner references of an object. Null removes them.
    SetOwners(Place, Arc<Stored>, Value),
    Delete(Place, Arc<Stored>, Propagation),
    RemoveFinalizer(Place, Arc<Stored>, &'static str),
}

impl Helpers {
    fn dependents_of(&self, uid: &str) -> Vec<(Place, Arc<Stored>)> {
        let places = self.graph.dependents_of(uid);
        places.filter_map(|place| Some((place.clone(), self.server.store.get(&place.0, &place.1)?))).collect()
    }

    /// Updates the graph with a new or changed object, and adds tasks for the objects that the change concerns.
    pub(super) fn track_owners(&mut self, place: &Place, before: Option<&Value>, after: &Value) {
        if let Some(before) = before {
            self.graph.remove_references(place, before);
        }
        let is_new = self.graph.add(place, after);
        let added: Vec<&str> =
            owners(after).filter(|owner| before.is_none_or(|before| owners(before).all(|old| old != *owner))).collect();
        if !added.is_empty() {
            self.report_unreachable_owner(place, after, &added);
            self.enqueue(Task::Collect(place.clone()));
        }
        if is_new {
            // Dependents that were created before this owner, and that it can't own.
            let early = self.dependents_of(object::uid(after));
            for (place, dependent) in early {
                self.report_unreachable_owner(&place, &dependent.value, &[object::uid(after)]);
                if self.graph.is_out_of_reach(object::uid(after), object::namespace(&dependent.value)) {
                    self.enqueue(Task::Collect(place));
                }
            }
        }
    }

    /// Removes a deleted object from the graph, and adds a task for each of its dependents.
    pub(super) fn untrack_owners(&mut self, place: &Place, before: &Value) {
        self.graph.remove_references(place, before);
        self.retries.done(&Task::Collect(place.clone()));
        for dependent in self.graph.remove(place, before) {
            self.enqueue(Task::Collect(dependent));
        }
    }

    /// Posts an event about the first of these owners that can't own the object.
    fn report_unreachable_owner(&mut self, place: &Place, dependent: &Value, uids: &[&str]) {
        if !self.runs(StandIn::GarbageCollection) {
            return;
        }
        let namespace = object::namespace(dependent);
        let unreachable = uids.iter().find(|uid| self.graph.is_out_of_reach(uid, namespace));
        let Some(uid) = unreachable.filter(|uid| self.graph.mark_reported(place, uid)) else { return };
        let Some(reference) = references(dependent).iter().find(|reference| reference["uid"] == **uid) else { return };
        let suffix = format!("{:016x}", self.server.random().next_u64());
        let event = out_of_reach(dependent, reference, &suffix, self.server.now());
        self.enqueue(Task::PostEvent(event.to_string()));
    }

    /// Collects an object. The object is deleted if all its owners are deleted. If only some are deleted, the references to them are removed.
    ///
    /// # Errors
    /// If the state of an owner is not known yet.
    pub(super) fn collect(&self, place: &Place) -> Result<Option<BoxFuture<'static, Result<(), Refusal>>>, Refusal> {
        let Some(stored) = self.server.store.get(&place.0, &place.1) else { return Ok(None) };
        let value = &stored.value;
        if object::is_deleting(value) {
            return Ok(None);
        }
        let owners: Vec<(String, OwnerState)> = references(value)
            .iter()
            .map(|reference| (text(reference, "/uid").to_owned(), self.owner_state(value, reference)))
            .collect();
        let own = self.dependents_of(object::uid(value));
        let steps = match decide(&owners, !own.is_empty(), &object::finalizers(value)) {
            Decision::Keep => return Ok(None),
            Decision::Retry => return Err(Refusal::default()),
            Decision::RemoveOwners(uids) => vec![without_owners(place.clone(), stored, &uids)],
            Decision::Delete(propagation) => {
                let waits =
                    propagation == Propagation::Foreground && own.iter().any(|(_, own)| awaits_dependents(&own.value));
                let unblocks = waits.then(|| unblocking(place.clone(), Arc::clone(&stored)));
                unblocks.into_iter().chain([Step::Delete(place.clone(), stored, propagation)]).collect()
            }
        };
        Ok(Some(self.execute(steps)))
    }

    fn execute(&self, steps: Vec<Step>) -> BoxFuture<'static, Result<(), Refusal>> {
        let requests = self.requests.clone();
        async move {
            for step in &steps {
                requests.execute(step).await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn owner_state(&self, value: &Value, reference: &Value) -> OwnerState {
        let registry = self.server.registry();
        let Some(served) = registry.of_kind(text(reference, "/apiVersion"), text(reference, "/kind")) else {
            return OwnerState::UnknownKind;
        };
        let namespace = if served.is_namespaced() { object::namespace(value) } else { None };
        if served.is_namespaced() && namespace.is_none() {
            return OwnerState::UnknownNamespace;
        }
        let owner = self.server.store.get(&served.collection, &key(namespace, text(reference, "/name")));
        match owner.filter(|owner| object::uid(&owner.value) == text(reference, "/uid")) {
            None => OwnerState::Absent,
            Some(owner) if awaits_dependents(&owner.value) => OwnerState::AwaitsDependents,
            Some(_) => OwnerState::Exists,
        }
    }

    /// Deletes the dependents of an object. The finalizer of the object is removed when all dependents that block its deletion are gone.
    pub(super) fn foreground(
        &mut self,
        place: Place,
        stored: &Arc<Stored>,
    ) -> Option<BoxFuture<'static, Result<(), Refusal>>> {
        let uid = object::uid(&stored.value);
        let dependents = self.dependents_of(uid);
        let is_blocked = dependents.iter().any(|(_, dependent)| blocks(&dependent.value, uid));
        for (dependent, _) in dependents {
            self.enqueue(Task::Collect(dependent));
        }
        (!is_blocked).then(|| self.execute(vec![Step::RemoveFinalizer(place, Arc::clone(stored), FOREGROUND)]))
    }

    /// Removes the references of the dependents to an object, then its finalizer.
    pub(super) fn orphan(&self, place: Place, stored: &Arc<Stored>) -> BoxFuture<'static, Result<(), Refusal>> {
        let uid = object::uid(&stored.value).to_owned();
        let dependents = self.dependents_of(&uid).into_iter();
        let released = dependents.map(|(place, own)| without_owners(place, own, std::slice::from_ref(&uid)));
        self.execute(released.chain([Step::RemoveFinalizer(place, Arc::clone(stored), ORPHAN)]).collect())
    }
}

impl Requests {
    async fn execute(&self, step: &Step) -> Result<(), Refusal> {
        match step {
            Step::SetOwners((collection, _), stored, owners) => self.set_owners(collection, stored, owners).await,
            Step::Delete((collection, _), stored, propagation) => {
                self.delete(collection, &stored.value, *propagation).await
            }
            Step::RemoveFinalizer(place, stored, finalizer) => self.remove_finalizer(place, stored, finalizer).await,
        }
    }

    async fn set_owners(&self, collection: &Collection, stored: &Stored, owners: &Value) -> Result<(), Refusal> {
        let Some(path) = self.path(collection, &stored.value) else { return Ok(()) };
        let patch = json!({"metadata": {"ownerReferences": owners, "uid": object::uid(&stored.value),
            "resourceVersion": stored.revision.to_string()}});
        self.send(Method::PATCH, &path, "application/merge-patch+json", &patch).await
    }
}

fn without_owners(place: Place, stored: Arc<Stored>, uids: &[String]) -> Step {
    let named = |reference: &&Value| uids.iter().all(|uid| *uid != text(reference, "/uid"));
    let kept: Vec<&Value> = references(&stored.value).iter().filter(named).collect();
    let kept = if kept.is_empty() { Value::Null } else { json!(kept) };
    Step::SetOwners(place, stored, kept)
}

/// Sets `blockOwnerDeletion` to false. Otherwise two objects that own each other would wait for each other for ever.
fn unblocking(place: Place, stored: Arc<Stored>) -> Step {
    let mut open = references(&stored.value).to_vec();
    for reference in &mut open {
        reference["blockOwnerDeletion"] = json!(false);
    }
    Step::SetOwners(place, stored, json!(open))
}

/// Whether an object is being deleted and waits for the deletion of its dependents.
fn awaits_dependents(value: &Value) -> bool {
    object::is_deleting(value) && object::finalizers(value).contains(&FOREGROUND)
}

#[cfg(test)]
mod tests;
