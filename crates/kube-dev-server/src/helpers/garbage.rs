//! Garbage collection: what is owned goes with its owners, first, after or not at all, as the deletion asks.
//!
//! What becomes of an object is decided by [`verdict`] from where its owners stand; who owns whom is in [`super::graph`].
//! Source: spec/extension-apiserver §6.3 no. 6, and the garbage collector of kube-controller-manager where it is silent.

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

/// Who tells of owners that are out of reach.
const REPORTER: &str = "garbage-collector-controller";

/// Where an owner stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is there.
    Solid,
    /// It is not, or not where it could own.
    Absent,
    /// It is going and waits until what it owns is gone.
    AwaitsDependents,
    /// Its kind is not served; that may change.
    UnknownKind,
    /// It lives in a namespace, what it should own in none: there is nowhere to look for it.
    Nowhere,
}

/// What becomes of an object that names owners.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Stays,
    /// Nobody can tell yet.
    Later,
    /// It stays, and names these owners no more.
    LetsGo(Vec<String>),
    Goes(Propagation),
}

/// What becomes of an object, by its owners with their UIDs, by whether it owns something itself, and by the finalizers that
/// it has for that.
fn verdict(owners: &[(String, Standing)], owns_something: bool, finalizers: &[&str]) -> Verdict {
    let any = |wanted: Standing| owners.iter().any(|(_, standing)| *standing == wanted);
    if owners.is_empty() || any(Standing::Nowhere) {
        return Verdict::Stays;
    }
    if any(Standing::UnknownKind) {
        return Verdict::Later;
    }
    if any(Standing::Solid) {
        let going = owners.iter().filter(|(_, standing)| *standing != Standing::Solid);
        let going: Vec<String> = going.map(|(uid, _)| uid.clone()).collect();
        return if going.is_empty() { Verdict::Stays } else { Verdict::LetsGo(going) };
    }
    let foreground = finalizers.contains(&FOREGROUND) || any(Standing::AwaitsDependents) && owns_something;
    Verdict::Goes(if finalizers.contains(&ORPHAN) {
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

/// The event about an owner that exists, but not where it could own the object.
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
    let home = if namespace.is_empty() { "default" } else { namespace };
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": format!("{}.{suffix}", object::name(dependent)), "namespace": home},
        "involvedObject": about, "type": "Warning", "reason": "OwnerRefInvalidNamespace", "message": message,
        "source": {"component": REPORTER}, "reportingComponent": REPORTER, "reportingInstance": "",
        "count": 1, "firstTimestamp": object::time(now), "lastTimestamp": object::time(now),
    })
}

/// A request that brings a collection forward.
enum Step {
    /// Lets an object name these owners; none at all if it is null.
    SetOwners(Place, Arc<Stored>, Value),
    Delete(Place, Arc<Stored>, Propagation),
    /// Takes a finalizer off.
    Release(Place, Arc<Stored>, &'static str),
}

impl Helpers {
    fn dependents_of(&self, uid: &str) -> Vec<(Place, Arc<Stored>)> {
        let places = self.graph.dependents_of(uid);
        places.filter_map(|place| Some((place.clone(), self.server.store.get(&place.0, &place.1)?))).collect()
    }

    /// Learns of an object, and looks at whom the news concerns.
    pub(super) fn learn(&mut self, place: &Place, before: Option<&Value>, after: &Value) {
        if let Some(before) = before {
            self.graph.let_go(place, before);
        }
        let is_new = self.graph.add(place, after);
        let added: Vec<&str> =
            owners(after).filter(|owner| before.is_none_or(|before| owners(before).all(|old| old != *owner))).collect();
        if !added.is_empty() {
            self.tell_of_owners_out_of_reach(place, after, &added);
            self.ask(Task::Collect(place.clone()));
        }
        if is_new {
            // Who named it before it was known, from where it can't own.
            let early = self.dependents_of(object::uid(after));
            for (place, dependent) in early {
                self.tell_of_owners_out_of_reach(&place, &dependent.value, &[object::uid(after)]);
                if self.graph.is_out_of_reach(object::uid(after), object::namespace(&dependent.value)) {
                    self.ask(Task::Collect(place));
                }
            }
        }
    }

    /// An object is gone: whom it owned may go too.
    pub(super) fn unlearn(&mut self, place: &Place, before: &Value) {
        self.graph.let_go(place, before);
        self.retries.done(&Task::Collect(place.clone()));
        for dependent in self.graph.remove(place, before) {
            self.ask(Task::Collect(dependent));
        }
    }

    /// Of several such owners the first one is told.
    fn tell_of_owners_out_of_reach(&mut self, place: &Place, dependent: &Value, uids: &[&str]) {
        if !self.stands_in_for(StandIn::GarbageCollection) {
            return;
        }
        let namespace = object::namespace(dependent);
        let lost = uids.iter().find(|uid| self.graph.is_out_of_reach(uid, namespace));
        let Some(uid) = lost.filter(|uid| self.graph.is_news(place, uid)) else { return };
        let Some(reference) = references(dependent).iter().find(|reference| reference["uid"] == **uid) else { return };
        let suffix = format!("{:016x}", self.server.random().next_u64());
        let event = out_of_reach(dependent, reference, &suffix, self.server.now());
        self.ask(Task::Tell(event.to_string()));
    }

    /// What is to be done about an object by where its owners stand: it goes if they are all gone, and names those no more that
    /// are gone while others stay.
    ///
    /// # Errors
    /// When nobody can tell yet.
    pub(super) fn collect(&self, place: &Place) -> Result<Option<BoxFuture<'static, Result<(), Refusal>>>, Refusal> {
        let Some(stored) = self.server.store.get(&place.0, &place.1) else { return Ok(None) };
        let value = &stored.value;
        if object::is_deleting(value) {
            return Ok(None);
        }
        let owners: Vec<(String, Standing)> = references(value)
            .iter()
            .map(|reference| (text(reference, "/uid").to_owned(), self.standing(value, reference)))
            .collect();
        let own = self.dependents_of(object::uid(value));
        let steps = match verdict(&owners, !own.is_empty(), &object::finalizers(value)) {
            Verdict::Stays => return Ok(None),
            Verdict::Later => return Err(Refusal::default()),
            Verdict::LetsGo(uids) => vec![without_owners(place.clone(), stored, &uids)],
            Verdict::Goes(propagation) => {
                let waits =
                    propagation == Propagation::Foreground && own.iter().any(|(_, own)| awaits_dependents(&own.value));
                let unblocks = waits.then(|| unblocking(place.clone(), Arc::clone(&stored)));
                unblocks.into_iter().chain([Step::Delete(place.clone(), stored, propagation)]).collect()
            }
        };
        Ok(Some(self.carry_out(steps)))
    }

    fn carry_out(&self, steps: Vec<Step>) -> BoxFuture<'static, Result<(), Refusal>> {
        let requests = self.requests.clone();
        async move {
            for step in &steps {
                requests.take(step).await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn standing(&self, value: &Value, reference: &Value) -> Standing {
        let registry = self.server.registry();
        let Some(served) = registry.of_kind(text(reference, "/apiVersion"), text(reference, "/kind")) else {
            return Standing::UnknownKind;
        };
        let namespace = if served.is_namespaced() { object::namespace(value) } else { None };
        if served.is_namespaced() && namespace.is_none() {
            return Standing::Nowhere;
        }
        let owner = self.server.store.get(&served.collection, &key(namespace, text(reference, "/name")));
        match owner.filter(|owner| object::uid(&owner.value) == text(reference, "/uid")) {
            None => Standing::Absent,
            Some(owner) if awaits_dependents(&owner.value) => Standing::AwaitsDependents,
            Some(_) => Standing::Solid,
        }
    }

    /// What an object owns goes before it; nothing is to be done about itself before all that blocks its end is gone.
    pub(super) fn foreground(
        &mut self,
        place: Place,
        stored: &Arc<Stored>,
    ) -> Option<BoxFuture<'static, Result<(), Refusal>>> {
        let uid = object::uid(&stored.value);
        let dependents = self.dependents_of(uid);
        let is_blocked = dependents.iter().any(|(_, dependent)| blocks(&dependent.value, uid));
        for (dependent, _) in dependents {
            self.ask(Task::Collect(dependent));
        }
        (!is_blocked).then(|| self.carry_out(vec![Step::Release(place, Arc::clone(stored), FOREGROUND)]))
    }

    /// What an object owns names it no more, before it goes.
    pub(super) fn orphan(&self, place: Place, stored: &Arc<Stored>) -> BoxFuture<'static, Result<(), Refusal>> {
        let uid = object::uid(&stored.value).to_owned();
        let dependents = self.dependents_of(&uid).into_iter();
        let let_go = dependents.map(|(place, own)| without_owners(place, own, std::slice::from_ref(&uid)));
        self.carry_out(let_go.chain([Step::Release(place, Arc::clone(stored), ORPHAN)]).collect())
    }
}

impl Requests {
    async fn take(&self, step: &Step) -> Result<(), Refusal> {
        match step {
            Step::SetOwners((collection, _), stored, owners) => self.set_owners(collection, stored, owners).await,
            Step::Delete((collection, _), stored, propagation) => {
                self.delete(collection, &stored.value, *propagation).await
            }
            Step::Release(place, stored, finalizer) => self.release(place, stored, finalizer).await,
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

/// Two that wait for each other would wait for ever.
fn unblocking(place: Place, stored: Arc<Stored>) -> Step {
    let mut open = references(&stored.value).to_vec();
    for reference in &mut open {
        reference["blockOwnerDeletion"] = json!(false);
    }
    Step::SetOwners(place, stored, json!(open))
}

/// Whether an object is going and waits until what it owns is gone.
fn awaits_dependents(value: &Value) -> bool {
    object::is_deleting(value) && object::finalizers(value).contains(&FOREGROUND)
}

#[cfg(test)]
mod tests;
