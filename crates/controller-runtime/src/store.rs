//! The cached view of one kind: objects by key and by index, filled by a watch and by the answers of this process's writes.
//!
//! The store holds a snapshot of each object, finds objects by index and never by scanning, and notifies its listeners of changes.
//! The module `watch` reads the API server; the controllers decide what a change means.
//!
//! The sources by their rank (decisions.md 45): a consistent list overrides everything. A live read counts for an object that the
//! store does not have. An event, or the answer of a write, counts only if its version is newer than all known versions of the
//! object. A list that is older than the content of the store means that history went back: the store is not whole until that list
//! is complete.

mod removed;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, OnceLock, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use kube::Resource;
use tokio::sync::watch;

pub use self::removed::Moment;
use self::removed::Removed;
use super::{
    catch_up::{Listed, LiveList},
    key::ObjectKey,
    latch::Latch,
    snapshot::{Snapshot, version_number},
};

/// The name of an index of a store.
pub type IndexName = &'static str;

/// Computes the values of an object in an index.
pub type IndexFn<S> = fn(&S) -> Vec<String>;

/// A change of one object: an update has both forms, an addition only `new`, a removal only `old`.
#[derive(Debug)]
pub struct Change<S> {
    /// The object before.
    pub old: Option<S>,
    /// The object now.
    pub new: Option<S>,
}

impl<S> Change<S> {
    /// The object in its newest form.
    pub fn newest(&self) -> Option<&S> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

/// Called for every change, without a lock held; must be quick.
pub type Listener<S> = Box<dyn Fn(&Change<S>) + Send + Sync>;

/// The objects of one kind that this process may read.
pub struct Store<S> {
    indexes: Vec<(IndexName, IndexFn<S>)>,
    state: RwLock<State<S>>,
    listeners: OnceLock<Vec<Listener<S>>>,
    synced: Latch,
    /// False while a list replaces objects of a history that is no longer valid.
    whole: watch::Sender<bool>,
    /// False while the list or watch of this store can't be opened.
    current: AtomicBool,
}

struct State<S> {
    objects: BTreeMap<ObjectKey, S>,
    by_index: HashMap<(IndexName, String), BTreeSet<ObjectKey>>,
    /// Highest version that lists and the watch have reached.
    watched_version: u64,
    /// Highest known version, from lists, the watch and answers of this process's calls.
    newest: u64,
    /// Changes since the start of the running list; `None` without one.
    listing: Option<Listing>,
    removed: Removed,
    /// Objects that lists and the watch contain but that can't be decoded: their newest version by UID.
    unreadable: HashMap<String, u64>,
}

/// Whether a list continues the known history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// The list is not older than the store.
    GoesOn,
    /// The list is older than the store: the storage of the API server was restored from a backup.
    WentBack,
}

#[derive(Default)]
struct Listing {
    /// Keys in the list.
    listed: BTreeSet<ObjectKey>,
    /// Keys in answers to this process's calls since the list began; the list may be older than those.
    answered: BTreeSet<ObjectKey>,
    /// Highest known version when the list began.
    known: u64,
    /// The version of the list, or the highest version of its objects while the version of the list is unknown.
    version: u64,
}

/// A version for comparisons: 0 for a version that is no integer.
fn known(version: u64) -> u64 {
    if version == u64::MAX { 0 } else { version }
}

impl<S: Snapshot> Store<S> {
    /// An empty store with these indexes.
    pub fn new(indexes: Vec<(IndexName, IndexFn<S>)>) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            by_index: HashMap::new(),
            watched_version: 0,
            newest: 0,
            listing: None,
            removed: Removed::default(),
            unreadable: HashMap::new(),
        };
        Self {
            indexes,
            state: RwLock::new(state),
            listeners: OnceLock::new(),
            synced: Latch::default(),
            whole: watch::Sender::new(true),
            current: AtomicBool::new(true),
        }
    }

    /// Sets the listeners. Called once, before the watch starts. A second call is ignored and restored `false`.
    pub fn set_listeners(&self, listeners: Vec<Listener<S>>) -> bool {
        self.listeners.set(listeners).is_ok()
    }

    /// The object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<S> {
        self.read().objects.get(key).cloned()
    }

    /// The objects with this value in an index, in the order of their keys.
    pub fn by_index(&self, index: IndexName, value: &str) -> Vec<S> {
        let state = self.read();
        let Some(keys) = state.by_index.get(&(index, value.to_owned())) else { return Vec::new() };
        keys.iter().filter_map(|key| state.objects.get(key).cloned()).collect()
    }

    /// Whether any object has this value in the index.
    pub fn is_indexed(&self, index: IndexName, value: &str) -> bool {
        self.read().by_index.contains_key(&(index, value.to_owned()))
    }

    /// All objects in the order of their keys. For metrics and tests; controllers look up by index.
    pub fn snapshot(&self) -> Vec<S> {
        self.read().objects.values().cloned().collect()
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether the store has no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first object in which this store is behind a list; `None` when it shows the list or something newer.
    pub fn behind(&self, list: &LiveList) -> Option<ObjectKey> {
        let state = self.read();
        let cannot_show = |listed: &Listed| {
            let seen = state.unreadable.get(&listed.uid);
            seen.is_some_and(|version| *version >= listed.version)
        };
        let is_behind = |listed: &&Listed| match state.objects.get(&listed.key) {
            // The store never shows an undecodable version. The watch has reported it.
            _ if cannot_show(listed) => false,
            Some(known) => known.uid() != listed.uid || known.version() < listed.version,
            // The watch has passed the list, so the object was removed since.
            None => state.watched_version <= list.version,
        };
        if let Some(listed) = list.objects.iter().find(is_behind) {
            return Some(listed.key.clone());
        }
        let listed: BTreeSet<&ObjectKey> = list.objects.iter().map(|listed| &listed.key).collect();
        let mut rest = state.objects.iter().filter(|(key, _)| !listed.contains(key));
        rest.find(|(_, known)| known.version() <= list.version).map(|(key, _)| key.clone())
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        self.synced.is_open()
    }

    /// Waits for the first complete list.
    pub async fn wait_synced(&self) {
        self.synced.opened().await;
    }

    /// Whether all objects are of one history. False only while a list that is older than the store replaces its content.
    pub fn is_whole(&self) -> bool {
        *self.whole.borrow()
    }

    /// Waits until all objects are of one history.
    pub async fn wait_whole(&self) {
        // The sender lives as long as the store.
        let _ = self.whole.subscribe().wait_for(|whole| *whole).await;
    }

    /// Whether the list or watch of this store works, or did so a moment ago. While it does not, nothing new may rely on the store
    /// (decisions.md 47).
    pub fn is_current(&self) -> bool {
        self.current.load(Ordering::Acquire)
    }

    /// Sets whether the list or watch of this store works.
    pub fn set_current(&self, current: bool) {
        self.current.store(current, Ordering::Release);
    }

    /// A consistent list begins. Objects that it does not contain are removed at its end.
    pub fn list_begins(&self) {
        let mut state = self.write();
        state.listing = Some(Listing { known: state.newest, ..Listing::default() });
        state.unreadable.clear();
    }

    /// The running list has this version. If it is older than the version that was known at its start, it replaces everything, and
    /// the store is not whole until the list ends.
    pub fn list_is_of(&self, version: u64) -> History {
        let mut state = self.write();
        let Some(listing) = &mut state.listing else { return History::GoesOn };
        listing.version = version;
        if version >= listing.known {
            return History::GoesOn;
        }
        state.newest = version;
        state.watched_version = version;
        state.removed.clear();
        drop(state);
        self.whole.send_replace(false);
        History::WentBack
    }

    /// The watch has reached this version without an event.
    pub fn watched(&self, version: u64) {
        let mut state = self.write();
        state.watched_version = state.watched_version.max(version);
        state.newest = state.newest.max(version);
    }

    /// Applies an object from a list or a watch event.
    pub fn apply(&self, object: S::Object) {
        self.apply_shared(Arc::new(object));
    }

    /// Does what [`Self::apply`] does, for a shared object.
    pub fn apply_shared(&self, object: Arc<S::Object>) {
        let object = S::of(object);
        let (key, version) = (object.key(), object.version());
        let change = {
            let mut state = self.write();
            let mut is_believed = false;
            if let Some(listing) = &mut state.listing {
                listing.listed.insert(key.clone());
                listing.version = listing.version.max(known(version));
                is_believed = !listing.answered.contains(&key);
            } else {
                state.watched_version = state.watched_version.max(known(version));
            }
            state.newest = state.newest.max(known(version));
            let is_news = match state.objects.get(&key) {
                Some(stored) if is_believed => stored.uid() != object.uid() || stored.version() != version,
                // A write of this process may already have stored a newer form, or a new object of this name.
                Some(stored) => version > stored.version(),
                None => true,
            };
            let is_gone = !is_believed && !state.removed.is_newer_than_removal(object.uid(), version);
            if is_gone || !is_news {
                return;
            }
            state.removed.restored(object.uid());
            state.unreadable.remove(object.uid());
            self.replace(&mut state, &key, Some(object))
        };
        self.notify(&change);
    }

    /// Applies a watch event that removes the object.
    pub fn delete(&self, object: &S::Object) {
        let meta = object.meta();
        let version = version_number(meta.resource_version.as_deref());
        self.deleted(&ObjectKey::of(object), meta.uid.as_deref().unwrap_or_default(), version);
    }

    /// Does what [`Self::delete`] does, for an object that can't be decoded.
    pub fn deleted(&self, key: &ObjectKey, uid: &str, version: u64) {
        let mut state = self.write();
        state.watched_version = state.watched_version.max(known(version));
        state.newest = state.newest.max(known(version));
        if let Some(change) = self.remove(&mut state, key, uid, version) {
            drop(state);
            self.notify(&change);
        }
    }

    /// The list is complete: removes the objects that it did not contain.
    pub fn list_ends(&self) {
        let changes: Vec<Change<S>> = {
            let mut state = self.write();
            let Some(listing) = state.listing.take() else { return };
            state.watched_version = state.watched_version.max(listing.version);
            state.newest = state.newest.max(listing.version);
            // An answer that is not newer than the list is in the list, unless the object was deleted since.
            let is_newer = |object: &S| object.version() > listing.version;
            let gone: Vec<(ObjectKey, String)> = state
                .objects
                .iter()
                .filter(|(key, object)| {
                    !(listing.listed.contains(*key) || listing.answered.contains(*key) && is_newer(object))
                })
                .map(|(key, object)| (key.clone(), object.uid().to_owned()))
                .collect();
            gone.iter().filter_map(|(key, uid)| self.remove(&mut state, key, uid, listing.version)).collect()
        };
        self.whole.send_if_modified(|whole| !std::mem::replace(whole, true));
        self.synced.open();
        for change in &changes {
            self.notify(change);
        }
    }

    /// A list or watch event contains this object, but it can't be decoded. Its last form stays.
    pub fn observe_undecodable(&self, key: &ObjectKey, uid: &str, version: u64) {
        let mut state = self.write();
        state.unreadable.insert(uid.to_owned(), version);
        state.newest = state.newest.max(known(version));
        match &mut state.listing {
            Some(listing) => listing.version = listing.version.max(known(version)),
            None => state.watched_version = state.watched_version.max(known(version)),
        }
        if state.objects.get(key).is_some_and(|stored| stored.uid() == uid)
            && let Some(listing) = &mut state.listing
        {
            listing.listed.insert(key.clone());
        }
    }

    /// Applies the answer of a write of this process, unless a newer form is known. An object that ceases to exist by the write,
    /// because its last finalizer is removed, is removed here too.
    pub fn observe_write(&self, object: S::Object) -> S {
        self.observe_shared(Arc::new(object))
    }

    /// Does what [`Self::observe_write`] does, for a shared object.
    pub fn observe_shared(&self, object: Arc<S::Object>) -> S {
        self.answered(S::of(object), None)
    }

    /// The current moment. Take it before a live read is sent.
    pub fn moment(&self) -> Moment {
        self.read().removed.now()
    }

    /// Applies the answer of a live read that was sent at `asked`. It restores an object that was removed from the store before
    /// that moment, in any version.
    pub fn observe_read(&self, object: Arc<S::Object>, asked: Moment) -> S {
        self.answered(S::of(object), Some(asked))
    }

    fn answered(&self, object: S, asked: Option<Moment>) -> S {
        let (key, uid, version) = (object.key(), object.uid(), object.version());
        if object.has_gone() {
            self.forget_since(&key, uid, version);
            return object;
        }
        let change = {
            let mut state = self.write();
            let is_overtaken = if let Some(stored) = state.objects.get(&key) {
                version <= stored.version()
            } else {
                let was_removed = asked.is_none_or(|asked| state.removed.since(uid, asked));
                was_removed && !state.removed.is_newer_than_removal(uid, version)
            };
            if is_overtaken {
                return object;
            }
            state.newest = state.newest.max(known(version));
            state.removed.restored(uid);
            if let Some(listing) = &mut state.listing {
                listing.answered.insert(key.clone());
            }
            self.replace(&mut state, &key, Some(object.clone()))
        };
        self.notify(&change);
        object
    }

    /// The API server has answered that this object does not exist. The store had it when the request was sent.
    pub fn forget(&self, key: &ObjectKey, uid: &str) {
        self.forget_since(key, uid, 0);
    }

    /// Does what [`Self::forget`] does, with a version that the object has had.
    fn forget_since(&self, key: &ObjectKey, uid: &str, version: u64) {
        let mut state = self.write();
        state.newest = state.newest.max(known(version));
        if let Some(listing) = &mut state.listing {
            listing.answered.insert(key.clone());
        }
        if let Some(change) = self.remove(&mut state, key, uid, version) {
            drop(state);
            self.notify(&change);
        }
    }

    /// Removes an object and remembers the removal.
    fn remove(&self, state: &mut State<S>, key: &ObjectKey, uid: &str, version: u64) -> Option<Change<S>> {
        let stored = state.objects.get(key).filter(|stored| stored.uid() == uid);
        let newest = stored.map_or(0, |stored| known(stored.version())).max(known(version));
        let is_there = stored.is_some();
        state.unreadable.remove(uid);
        state.removed.insert(uid, newest);
        is_there.then(|| self.replace(state, key, None))
    }

    fn replace(&self, state: &mut State<S>, key: &ObjectKey, new: Option<S>) -> Change<S> {
        let old = match &new {
            Some(object) => state.objects.insert(key.clone(), object.clone()),
            None => state.objects.remove(key),
        };
        for (index, values) in &self.indexes {
            let before = old.as_ref().map(values).unwrap_or_default();
            let after = new.as_ref().map(values).unwrap_or_default();
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

    fn notify(&self, change: &Change<S>) {
        for listener in self.listeners.get().into_iter().flatten() {
            listener(change);
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State<S>> {
        // No code panics while it holds the lock. If it did, the data would still be consistent.
        self.state.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State<S>> {
        self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
