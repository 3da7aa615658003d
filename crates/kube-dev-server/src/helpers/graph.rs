//! The graph of the garbage collector: the owners and dependents of all objects by UID, and the namespaces of the owners.
//!
//! The graph is updated with every change, so that no lookup needs a scan. [`super::garbage`] decides what happens to the objects.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::Value;

use super::Place;
use crate::object::{self, text};

/// The scope of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The object is in no namespace.
    Cluster,
    Namespace(Arc<str>),
}

impl Scope {
    /// Whether an object in this scope can own an object in a namespace, or in none.
    fn can_own_in(&self, namespace: Option<&str>) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespace(own) => namespace == Some(&**own),
        }
    }
}

/// The owners and dependents of all objects.
#[derive(Default)]
pub(super) struct Graph {
    /// The scopes of all objects by UID. The map is never iterated, so that its order does not matter.
    scopes: HashMap<u128, Scope>,
    namespaces: BTreeSet<Arc<str>>,
    /// The dependents by the UID of their owner. The owner may not exist.
    dependents: BTreeMap<String, BTreeSet<Place>>,
    /// The objects and the UIDs of their owners for which an event about an unreachable owner was posted.
    reported: BTreeSet<(Place, String)>,
}

/// The number of a UID. `None` for a text that is no UID of this server.
fn number(uid: &str) -> Option<u128> {
    let digits: String = uid.split('-').collect();
    (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok()).flatten()
}

/// The UIDs in the owner references of an object.
pub(super) fn owners(value: &Value) -> impl Iterator<Item = &str> {
    references(value).iter().map(|owner| text(owner, "/uid"))
}

/// The owner references of an object.
pub(super) fn references(value: &Value) -> &[Value] {
    value["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default()
}

impl Graph {
    fn interned(&mut self, namespace: &str) -> Arc<str> {
        if let Some(known) = self.namespaces.get(namespace) {
            return Arc::clone(known);
        }
        let namespace: Arc<str> = Arc::from(namespace);
        self.namespaces.insert(Arc::clone(&namespace));
        namespace
    }

    /// Adds an object. Returns whether the object is new.
    pub(super) fn add(&mut self, place: &Place, value: &Value) -> bool {
        for owner in owners(value) {
            self.dependents.entry(owner.to_owned()).or_default().insert(place.clone());
        }
        let Some(uid) = number(object::uid(value)) else { return false };
        let scope = match object::namespace(value) {
            Some(namespace) => Scope::Namespace(self.interned(namespace)),
            None => Scope::Cluster,
        };
        self.scopes.insert(uid, scope).is_none()
    }

    /// Removes the owner references of an object.
    pub(super) fn remove_references(&mut self, place: &Place, value: &Value) {
        for owner in owners(value) {
            if let Some(places) = self.dependents.get_mut(owner) {
                places.remove(place);
                if places.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
    }

    /// Removes a deleted object. Returns its dependents.
    pub(super) fn remove(&mut self, place: &Place, value: &Value) -> BTreeSet<Place> {
        for owner in owners(value) {
            self.reported.remove(&(place.clone(), owner.to_owned()));
        }
        if let Some(uid) = number(object::uid(value)) {
            self.scopes.remove(&uid);
        }
        self.dependents_of(object::uid(value)).cloned().collect()
    }

    /// The dependents of an owner.
    pub(super) fn dependents_of(&self, uid: &str) -> impl Iterator<Item = &Place> {
        self.dependents.get(uid).into_iter().flatten()
    }

    /// Whether an owner exists in a scope in which it can't own an object of this namespace, or of none.
    pub(super) fn is_out_of_reach(&self, uid: &str, namespace: Option<&str>) -> bool {
        number(uid).and_then(|uid| self.scopes.get(&uid)).is_some_and(|scope| !scope.can_own_in(namespace))
    }

    /// Records that an event about an unreachable owner is posted. Returns whether it is the first one.
    pub(super) fn mark_reported(&mut self, place: &Place, owner: &str) -> bool {
        self.reported.insert((place.clone(), owner.to_owned()))
    }

    /// Removes all objects before a resync. The record of posted events stays.
    pub(super) fn clear(&mut self) {
        *self = Self { reported: std::mem::take(&mut self.reported), ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::store::Collection;

    const OWNER: &str = "00000000-0000-4000-8000-000000000001";
    const OTHER: &str = "00000000-0000-4000-8000-000000000002";

    fn place(key: &str) -> Place {
        (Collection::new("", "configmaps"), key.to_owned())
    }

    fn object(uid: &str, namespace: Option<&str>, owners: &[&str]) -> Value {
        let owners: Vec<Value> = owners.iter().map(|uid| json!({"uid": uid})).collect();
        json!({"metadata": {"uid": uid, "namespace": namespace, "ownerReferences": owners}})
    }

    #[rstest]
    #[case::same_namespace(Some("a"), Some("a"), false)]
    #[case::another_namespace(Some("a"), Some("b"), true)]
    #[case::a_namespaced_owner_of_a_cluster_object(Some("a"), None, true)]
    #[case::a_cluster_object_can_own_in_every_namespace(None, Some("b"), false)]
    #[case::two_cluster_objects(None, None, false)]
    fn owners_out_of_reach(#[case] owner: Option<&str>, #[case] dependent: Option<&str>, #[case] expected: bool) {
        let mut graph = Graph::default();
        assert!(graph.add(&place("owner"), &object(OWNER, owner, &[])));
        assert_eq!(graph.is_out_of_reach(OWNER, dependent), expected);
        assert!(!graph.is_out_of_reach(OTHER, dependent), "an unknown owner");
        assert!(!graph.is_out_of_reach("no-uid", dependent));
    }

    #[test]
    fn dependents_are_known_before_their_owner_and_until_they_drop_the_reference() {
        let mut graph = Graph::default();
        let (dependent, key) = (object(OTHER, Some("a"), &[OWNER, "no-uid"]), place("a/dependent"));
        assert!(graph.add(&key, &dependent) && !graph.add(&key, &dependent));
        assert_eq!(graph.dependents_of(OWNER).collect::<Vec<_>>(), [&key]);
        assert_eq!(graph.remove(&place("a/owner"), &object(OWNER, Some("a"), &[])), BTreeSet::from([key.clone()]));
        assert!(graph.mark_reported(&key, OWNER));
        graph.clear();
        assert!(!graph.mark_reported(&key, OWNER), "reported once");
        graph.add(&key, &dependent);
        graph.remove_references(&key, &dependent);
        assert!(graph.dependents.is_empty());
        assert_eq!(graph.remove(&key, &dependent), BTreeSet::new());
        assert!(graph.scopes.is_empty() && graph.reported.is_empty());
    }
}
