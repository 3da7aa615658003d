//! The cached view of one kind: objects by key and by index, fed by a watch and by the answers of our own writes.
//!
//! The store owns its objects (`Arc`), looks up by index and never by scanning, and tells its listeners what changed.
//! Reading the watch is `watch`'s job; deciding what a change means is the controllers'.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, OnceLock, RwLock},
};

use kube::Resource;

use super::{
    catch_up::{Listed, LiveList},
    key::ObjectKey,
    latch::Latch,
};

/// Names an index of a store.
pub type IndexName = &'static str;

/// Computes the values under which an object is found in an index.
pub type IndexFn<K> = fn(&K) -> Vec<String>;

/// What happened to one object. Both are present for an update, only `new` for an addition, only `old` for a removal.
#[derive(Debug)]
pub struct Change<K> {
    /// The object before.
    pub old: Option<Arc<K>>,
    /// The object now.
    pub new: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// The object in its newest known form.
    pub fn newest(&self) -> Option<&Arc<K>> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

/// Is told of every change, under no lock; must be quick.
pub type Listener<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// All objects of a kind that this process may see.
pub struct Store<K> {
    indexes: Vec<(IndexName, IndexFn<K>)>,
    state: RwLock<State<K>>,
    listeners: OnceLock<Vec<Listener<K>>>,
    synced: Latch,
}

struct State<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    by_index: HashMap<(IndexName, String), BTreeSet<ObjectKey>>,
    /// Highest version the watch has delivered: an answer of ours that is not newer has been overtaken.
    watched_version: u64,
    /// What happened since a list began; `None` when no list is under way.
    listing: Option<Listing>,
    /// UIDs of objects that are known to be gone while the watch may still speak of them: their earlier forms must not bring
    /// them back. Each goes with its removal's event, all with the next list.
    gone: BTreeSet<String>,
}

#[derive(Default)]
struct Listing {
    /// Keys that the list mentioned.
    seen: BTreeSet<ObjectKey>,
    /// Keys that we wrote meanwhile; the list may be older than the write.
    written: BTreeSet<ObjectKey>,
}

/// Resource versions of one kind are ordered integers since Kubernetes 1.35 says so and etcd has always made them so; a
/// version that is no integer counts as newest, so that nothing is ever held back.
fn version_of<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(u64::MAX)
}

/// Whether an answer shows an object for the last time: marked for deletion, and nothing it waits for any more.
fn has_gone<K: Resource>(object: &K) -> bool {
    let metadata = object.meta();
    metadata.deletion_timestamp.is_some()
        && metadata.finalizers.as_ref().is_none_or(Vec::is_empty)
        && metadata.deletion_grace_period_seconds.unwrap_or(0) == 0
}

impl<K: Resource + Send + Sync + 'static> Store<K> {
    /// An empty store with these indexes.
    pub fn new(indexes: Vec<(IndexName, IndexFn<K>)>) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            by_index: HashMap::new(),
            watched_version: 0,
            listing: None,
            gone: BTreeSet::new(),
        };
        Self { indexes, state: RwLock::new(state), listeners: OnceLock::new(), synced: Latch::default() }
    }

    /// Sets who is told of changes. Called once, before the watch starts; a second call is ignored and returns `false`.
    pub fn set_listeners(&self, listeners: Vec<Listener<K>>) -> bool {
        self.listeners.set(listeners).is_ok()
    }

    /// The object under a key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// The objects under a value of an index, in the order of their keys.
    pub fn by_index(&self, index: IndexName, value: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let Some(keys) = state.by_index.get(&(index, value.to_owned())) else { return Vec::new() };
        keys.iter().filter_map(|key| state.objects.get(key).cloned()).collect()
    }

    /// All objects in the order of their keys. For metrics and tests; controllers look up by index.
    pub fn snapshot(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first object in which this view is behind a list; `None` when it shows the list or something newer.
    pub fn behind(&self, list: &LiveList) -> Option<ObjectKey> {
        let state = self.read();
        let is_behind = |listed: &&Listed| match state.objects.get(&listed.key) {
            Some(known) => known.meta().uid.as_deref() != Some(&listed.uid) || version_of(&**known) < listed.version,
            // Nothing but its removal brings the watch past the list without it.
            None => state.watched_version <= list.version,
        };
        if let Some(listed) = list.objects.iter().find(is_behind) {
            return Some(listed.key.clone());
        }
        let listed: BTreeSet<&ObjectKey> = list.objects.iter().map(|listed| &listed.key).collect();
        let mut rest = state.objects.iter().filter(|(key, _)| !listed.contains(key));
        rest.find(|(_, known)| version_of(&***known) <= list.version).map(|(key, _)| key.clone())
    }

    /// Whether the first list has been taken over completely.
    pub fn is_synced(&self) -> bool {
        self.synced.is_open()
    }

    /// Waits for the first complete list.
    pub async fn wait_synced(&self) {
        self.synced.opened().await;
    }

    /// A list begins: what it does not mention is gone when it ends.
    pub fn list_begins(&self) {
        let mut state = self.write();
        state.listing = Some(Listing::default());
        state.gone.clear();
    }

    /// An object as a list or watch event delivered it.
    pub fn apply(&self, object: K) {
        self.apply_shared(Arc::new(object));
    }

    /// As [`Self::apply`], for an object that somebody else holds, too.
    pub fn apply_shared(&self, object: Arc<K>) {
        let key = ObjectKey::of(&*object);
        let version = version_of(&*object);
        let change = {
            let mut state = self.write();
            let mut listed = false;
            if let Some(listing) = &mut state.listing {
                listing.seen.insert(key.clone());
                listed = !listing.written.contains(&key);
            }
            if version != u64::MAX {
                state.watched_version = state.watched_version.max(version);
            }
            if object.meta().uid.as_ref().is_some_and(|uid| state.gone.contains(uid)) {
                return;
            }
            // Our own write may have brought a newer form already, or a namesake of a deleted object. What a list says of
            // a namesake holds in any case, or a store would stay wrong for ever behind a restored etcd.
            let is_news = state.objects.get(&key).is_none_or(|known| {
                version > version_of(&**known) || (listed && known.meta().uid != object.meta().uid)
            });
            if !is_news {
                return;
            }
            self.replace(&mut state, &key, Some(object))
        };
        self.tell(&change);
    }

    /// An object whose removal a watch event delivered.
    pub fn delete(&self, object: &K) {
        let key = ObjectKey::of(object);
        let change = {
            let mut state = self.write();
            let version = version_of(object);
            if version != u64::MAX {
                state.watched_version = state.watched_version.max(version);
            }
            if let Some(uid) = &object.meta().uid {
                state.gone.remove(uid);
            }
            let is_it = state.objects.get(&key).is_some_and(|known| known.meta().uid == object.meta().uid);
            if !is_it {
                return;
            }
            self.replace(&mut state, &key, None)
        };
        self.tell(&change);
    }

    /// The list is complete: objects that it did not mention are gone.
    pub fn list_ends(&self) {
        let changes: Vec<Change<K>> = {
            let mut state = self.write();
            let Some(listing) = state.listing.take() else { return };
            // A write that the watch has come past was in the list, unless the object was deleted since.
            let is_newer = |object: &Arc<K>| version_of(&**object) > state.watched_version;
            let gone: Vec<ObjectKey> = state
                .objects
                .iter()
                .filter(|(key, object)| {
                    !(listing.seen.contains(*key) || listing.written.contains(*key) && is_newer(object))
                })
                .map(|(key, _)| key.clone())
                .collect();
            gone.iter().map(|key| self.replace(&mut state, key, None)).collect()
        };
        self.synced.open();
        for change in &changes {
            self.tell(change);
        }
    }

    /// A list or watch event mentioned this object but it could not be read: what is known of it stays as it is.
    pub fn still_there(&self, key: &ObjectKey, uid: &str) {
        let mut state = self.write();
        if state.objects.get(key).is_some_and(|known| known.meta().uid.as_deref() == Some(uid))
            && let Some(listing) = &mut state.listing
        {
            listing.seen.insert(key.clone());
        }
    }

    /// The answer of one of our own writes. Ignored when the watch has come past it already. An object that the write let
    /// go, by taking its last finalizer, is forgotten.
    pub fn observe_write(&self, object: K) -> Arc<K> {
        self.observe_shared(Arc::new(object))
    }

    /// As [`Self::observe_write`], for an object that somebody else holds, too.
    pub fn observe_shared(&self, object: Arc<K>) -> Arc<K> {
        let key = ObjectKey::of(&*object);
        let version = version_of(&*object);
        if has_gone(&*object) {
            self.forget(&key, object.meta().uid.as_deref().unwrap_or_default());
            return object;
        }
        let change = {
            let mut state = self.write();
            let overtaken = match state.objects.get(&key) {
                Some(known) if known.meta().uid == object.meta().uid => version <= version_of(&**known),
                // Absent or a namesake: what the watch has passed was deleted since.
                _ => version <= state.watched_version,
            };
            if overtaken {
                return object;
            }
            if let Some(listing) = &mut state.listing {
                listing.written.insert(key.clone());
            }
            self.replace(&mut state, &key, Some(Arc::clone(&object)))
        };
        self.tell(&change);
        object
    }

    /// The API server says that this object does not exist any more.
    pub fn forget(&self, key: &ObjectKey, uid: &str) {
        let change = {
            let mut state = self.write();
            if state.objects.get(key).is_none_or(|known| known.meta().uid.as_deref() != Some(uid)) {
                return;
            }
            state.gone.insert(uid.to_owned());
            self.replace(&mut state, key, None)
        };
        self.tell(&change);
    }

    fn replace(&self, state: &mut State<K>, key: &ObjectKey, new: Option<Arc<K>>) -> Change<K> {
        let old = match &new {
            Some(object) => state.objects.insert(key.clone(), Arc::clone(object)),
            None => state.objects.remove(key),
        };
        for (index, values) in &self.indexes {
            let before = old.as_deref().map(values).unwrap_or_default();
            let after = new.as_deref().map(values).unwrap_or_default();
            for value in before.iter().filter(|value| !after.contains(value)) {
                let place = (*index, value.clone());
                if let Some(keys) = state.by_index.get_mut(&place) {
                    keys.remove(key);
                    if keys.is_empty() {
                        state.by_index.remove(&place);
                    }
                }
            }
            for value in after.into_iter().filter(|value| !before.contains(value)) {
                state.by_index.entry((*index, value)).or_default().insert(key.clone());
            }
        }
        Change { old, new }
    }

    fn tell(&self, change: &Change<K>) {
        for listener in self.listeners.get().into_iter().flatten() {
            listener(change);
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State<K>> {
        // No code under the lock panics; were it poisoned all the same, the data would still be whole.
        self.state.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::api::v1alpha1::Machine;

    fn machine(name: &str, uid: &str, version: u64, class: &str) -> Machine {
        let mut machine = Machine::default();
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.namespace = Some("ns".to_owned());
        machine.metadata.uid = Some(uid.to_owned());
        machine.metadata.resource_version = Some(version.to_string());
        machine.spec.class.name = class.to_owned();
        machine
    }

    fn store() -> Store<Machine> {
        Store::new(vec![("class", |machine| vec![machine.spec.class.name.clone()])])
    }

    fn names(objects: &[Arc<Machine>]) -> Vec<&str> {
        objects.iter().filter_map(|object| object.metadata.name.as_deref()).collect()
    }

    #[test]
    fn an_object_that_is_known_to_be_gone_is_not_brought_back_by_older_events() {
        let store = store();
        store.observe_write(machine("a", "1", 5, "x"));
        let mut last = machine("a", "1", 9, "x");
        last.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        // Our own write took its last finalizer; the watch is still at its beginning.
        store.observe_write(last);
        store.apply(machine("a", "1", 4, "x"));
        store.apply(machine("a", "1", 7, "x"));
        assert!(store.is_empty(), "it is back");
        store.delete(&machine("a", "1", 9, "x"));
        store.apply(machine("a", "2", 11, "x"));
        assert_eq!(names(&store.snapshot()), ["a"]);
        // A list knows better: it was read later.
        store.forget(&ObjectKey::new("ns", "a"), "2");
        store.list_begins();
        store.apply(machine("a", "2", 12, "x"));
        store.list_ends();
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn an_index_follows_its_objects() {
        let store = store();
        store.apply(machine("b", "1", 1, "x"));
        store.apply(machine("a", "2", 2, "x"));
        assert_eq!(names(&store.by_index("class", "x")), ["a", "b"]);
        store.apply(machine("b", "1", 3, "y"));
        assert_eq!(names(&store.by_index("class", "x")), ["a"]);
        store.delete(&machine("a", "2", 4, "x"));
        assert!(store.by_index("class", "x").is_empty());
        assert_eq!(names(&store.by_index("class", "y")), ["b"]);
    }

    #[test]
    fn a_late_watch_event_does_not_undo_our_own_write() {
        let store = store();
        store.apply(machine("a", "1", 1, "x"));
        store.observe_write(machine("a", "1", 5, "z"));
        store.apply(machine("a", "1", 3, "y"));
        assert_eq!(names(&store.by_index("class", "z")), ["a"]);
    }

    #[test]
    fn a_late_answer_does_not_bring_a_deleted_object_back() {
        let store = store();
        store.apply(machine("a", "1", 1, "x"));
        store.delete(&machine("a", "1", 7, "x"));
        store.observe_write(machine("a", "1", 5, "x"));
        assert!(store.is_empty());
    }

    #[test]
    fn what_a_list_does_not_mention_is_gone_and_what_we_wrote_meanwhile_stays() {
        let store = store();
        store.apply(machine("old", "1", 1, "x"));
        store.list_begins();
        store.apply(machine("kept", "2", 2, "x"));
        store.observe_write(machine("new", "3", 9, "x"));
        store.list_ends();
        assert_eq!(names(&store.snapshot()), ["kept", "new"]);
        assert!(store.is_synced());
    }

    #[test]
    fn a_namesake_with_another_uid_replaces_the_object() {
        let store = store();
        store.apply(machine("a", "1", 5, "x"));
        store.apply(machine("a", "2", 6, "x"));
        assert_eq!(store.get(&ObjectKey::new("ns", "a")).unwrap().metadata.uid.as_deref(), Some("2"));
        store.delete(&machine("a", "1", 7, "x"));
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn a_late_event_of_a_deleted_namesake_does_not_replace_what_we_created() {
        let store = store();
        store.apply(machine("a", "1", 5, "x"));
        store.observe_write(machine("a", "2", 9, "x"));
        store.apply(machine("a", "1", 6, "x"));
        store.delete(&machine("a", "1", 7, "x"));
        assert_eq!(store.get(&ObjectKey::new("ns", "a")).unwrap().metadata.uid.as_deref(), Some("2"));
    }

    #[test]
    fn a_list_puts_a_namesake_right_even_when_versions_went_backwards() {
        let store = store();
        store.apply(machine("a", "1", 900, "x"));
        store.list_begins();
        store.apply(machine("a", "2", 5, "x"));
        store.list_ends();
        assert_eq!(store.get(&ObjectKey::new("ns", "a")).unwrap().metadata.uid.as_deref(), Some("2"));
    }

    #[test]
    fn a_write_that_the_list_has_come_past_does_not_keep_a_deleted_object() {
        let store = store();
        store.list_begins();
        store.observe_write(machine("a", "1", 5, "x"));
        store.apply(machine("b", "2", 8, "x"));
        store.list_ends();
        assert_eq!(names(&store.snapshot()), ["b"]);
    }

    #[test]
    fn the_answer_that_takes_the_last_finalizer_ends_the_object() {
        let store = store();
        store.apply(machine("a", "1", 5, "x"));
        let mut answer = machine("a", "1", 6, "x");
        answer.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        answer.metadata.finalizers = Some(vec!["f".to_owned()]);
        store.observe_write(answer.clone());
        assert_eq!(store.len(), 1, "it waits for its finalizer");
        answer.metadata.finalizers = Some(Vec::new());
        answer.metadata.resource_version = Some("7".to_owned());
        store.observe_write(answer);
        assert!(store.is_empty());
    }

    #[test]
    fn an_object_that_a_list_mentions_but_that_cannot_be_read_stays_as_it_was_known() {
        let store = store();
        store.apply(machine("a", "1", 5, "x"));
        store.list_begins();
        store.still_there(&ObjectKey::new("ns", "a"), "1");
        store.list_ends();
        assert_eq!(names(&store.snapshot()), ["a"]);
    }

    #[test]
    fn listeners_hear_of_each_change_once() {
        let store = store();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        store.set_listeners(vec![Box::new(move |change: &Change<Machine>| {
            log.lock().unwrap().push((change.old.is_some(), change.new.is_some()));
        })]);
        store.observe_write(machine("a", "1", 5, "x"));
        store.apply(machine("a", "1", 5, "x"));
        store.apply(machine("a", "1", 6, "x"));
        store.forget(&ObjectKey::new("ns", "a"), "1");
        assert_eq!(*heard.lock().unwrap(), [(false, true), (true, true), (true, false)]);
    }
}
