//! Who owns whom, and where owners are: the graph of the garbage collector, kept by UID as objects come and go.
//!
//! No object is looked for here by a scan; what to do about what is found is decided in [`super::garbage`].

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::Value;

use super::Place;
use crate::object::{self, text};

/// Where an object lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// In no namespace.
    Cluster,
    Namespace(Arc<str>),
}

impl Home {
    /// Whether an object there can be an owner of one in a namespace, or in none.
    fn owns_in(&self, namespace: Option<&str>) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespace(home) => namespace == Some(&**home),
        }
    }
}

/// The graph.
#[derive(Default)]
pub(super) struct Graph {
    /// Of every object there is. Only looked up, so that its order does not matter.
    homes: HashMap<u128, Home>,
    namespaces: BTreeSet<Arc<str>>,
    /// Who names an owner, by the owner's UID, whether it exists or not.
    dependents: BTreeMap<String, BTreeSet<Place>>,
    /// Of whom it was told that an owner is out of reach, with the owner's UID.
    told: BTreeSet<(Place, String)>,
}

/// A UID of the server's own making; others are nobody's.
fn number(uid: &str) -> Option<u128> {
    let digits: String = uid.split('-').collect();
    (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok()).flatten()
}

/// UIDs of the owners that an object names.
pub(super) fn owners(value: &Value) -> impl Iterator<Item = &str> {
    references(value).iter().map(|owner| text(owner, "/uid"))
}

/// The owners that an object names.
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

    /// An object is there. Whether it was not known before.
    pub(super) fn add(&mut self, place: &Place, value: &Value) -> bool {
        for owner in owners(value) {
            self.dependents.entry(owner.to_owned()).or_default().insert(place.clone());
        }
        let Some(uid) = number(object::uid(value)) else { return false };
        let home = match object::namespace(value) {
            Some(namespace) => Home::Namespace(self.interned(namespace)),
            None => Home::Cluster,
        };
        self.homes.insert(uid, home).is_none()
    }

    /// An object names these owners no more, because it has others now or is gone.
    pub(super) fn let_go(&mut self, place: &Place, value: &Value) {
        for owner in owners(value) {
            if let Some(places) = self.dependents.get_mut(owner) {
                places.remove(place);
                if places.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
    }

    /// An object is gone. The answer is who named it as an owner.
    pub(super) fn remove(&mut self, place: &Place, value: &Value) -> BTreeSet<Place> {
        for owner in owners(value) {
            self.told.remove(&(place.clone(), owner.to_owned()));
        }
        if let Some(uid) = number(object::uid(value)) {
            self.homes.remove(&uid);
        }
        self.dependents_of(object::uid(value)).cloned().collect()
    }

    /// Who names an owner.
    pub(super) fn dependents_of(&self, uid: &str) -> impl Iterator<Item = &Place> {
        self.dependents.get(uid).into_iter().flatten()
    }

    /// Whether an owner exists where an object of this namespace, or of none, can't be owned by it.
    pub(super) fn is_out_of_reach(&self, uid: &str, namespace: Option<&str>) -> bool {
        number(uid).and_then(|uid| self.homes.get(&uid)).is_some_and(|home| !home.owns_in(namespace))
    }

    /// Whether nobody was told yet that an owner is out of an object's reach; from now on somebody was.
    pub(super) fn is_news(&mut self, place: &Place, owner: &str) -> bool {
        self.told.insert((place.clone(), owner.to_owned()))
    }

    /// Forgets all objects, to learn of them anew; not what was told.
    pub(super) fn clear(&mut self) {
        *self = Self { told: std::mem::take(&mut self.told), ..Self::default() };
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
    #[case::a_namespaced_owner_of_something_of_the_cluster(Some("a"), None, true)]
    #[case::the_cluster_owns_everywhere(None, Some("b"), false)]
    #[case::within_the_cluster(None, None, false)]
    fn whom_an_owner_reaches(#[case] home: Option<&str>, #[case] dependent: Option<&str>, #[case] expected: bool) {
        let mut graph = Graph::default();
        assert!(graph.add(&place("owner"), &object(OWNER, home, &[])));
        assert_eq!(graph.is_out_of_reach(OWNER, dependent), expected);
        assert!(!graph.is_out_of_reach(OTHER, dependent), "nobody knows where it is");
        assert!(!graph.is_out_of_reach("no-uid", dependent));
    }

    #[test]
    fn dependents_are_known_before_their_owner_and_until_they_let_go() {
        let mut graph = Graph::default();
        let (dependent, key) = (object(OTHER, Some("a"), &[OWNER, "no-uid"]), place("a/dependent"));
        assert!(graph.add(&key, &dependent) && !graph.add(&key, &dependent));
        assert_eq!(graph.dependents_of(OWNER).collect::<Vec<_>>(), [&key]);
        assert_eq!(graph.remove(&place("a/owner"), &object(OWNER, Some("a"), &[])), BTreeSet::from([key.clone()]));
        assert!(graph.is_news(&key, OWNER));
        graph.clear();
        assert!(!graph.is_news(&key, OWNER), "told once");
        graph.add(&key, &dependent);
        graph.let_go(&key, &dependent);
        assert!(graph.dependents.is_empty());
        assert_eq!(graph.remove(&key, &dependent), BTreeSet::new());
        assert!(graph.homes.is_empty() && graph.told.is_empty());
    }
}
