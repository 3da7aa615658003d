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
mod tests;
