//! The cached view of one kind: objects by key and by index, fed by a watch and by the answers of our own writes.
//!
//! The store owns a snapshot of each object, looks up by index and never by scanning, and tells its listeners what changed.
//! Reading the watch is `watch`'s job; deciding what a change means is the controllers'.
//!
//! Whom it believes (decisions.md 45): a consistent list over everything; a live read of an object that it does not show; an
//! event or the answer of a write only in a version newer than the newest one seen of that object. A list that is older than
//! what the store holds means that history went back: until that list is complete the store is not whole.

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

/// Names an index of a store.
pub type IndexName = &'static str;

/// Computes the values under which an object is found in an index.
pub type IndexFn<S> = fn(&S) -> Vec<String>;

/// What happened to one object. Both are present for an update, only `new` for an addition, only `old` for a removal.
#[derive(Debug)]
pub struct Change<S> {
    /// The object before.
    pub old: Option<S>,
    /// The object now.
    pub new: Option<S>,
}

impl<S> Change<S> {
    /// The object in its newest known form.
    pub fn newest(&self) -> Option<&S> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

/// Is told of every change, under no lock; must be quick.
pub type Listener<S> = Box<dyn Fn(&Change<S>) + Send + Sync>;

/// All objects of a kind that this process may see.
pub struct Store<S> {
    indexes: Vec<(IndexName, IndexFn<S>)>,
    state: RwLock<State<S>>,
    listeners: OnceLock<Vec<Listener<S>>>,
    synced: Latch,
    /// False while a list replaces what is from a history that does not hold any more.
    whole: watch::Sender<bool>,
    /// False while no connection can be opened for the list or watch that feeds it.
    current: AtomicBool,
}

struct State<S> {
    objects: BTreeMap<ObjectKey, S>,
    by_index: HashMap<(IndexName, String), BTreeSet<ObjectKey>>,
    /// Highest version that lists and the watch have come past.
    watched_version: u64,
    /// Highest version of anything seen, answers to our own calls included.
    newest: u64,
    /// What happened since a list began; `None` when no list is under way.
    listing: Option<Listing>,
    removed: Removed,
    /// Objects that lists and the watch tell of but that can't be read, by UID, with the newest version seen.
    unreadable: HashMap<String, u64>,
}

/// What a list says about history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// It is not older than what is known.
    GoesOn,
    /// It is older than what is known: the API server's storage was restored.
    WentBack,
}

#[derive(Default)]
struct Listing {
    /// Keys that the list mentioned.
    seen: BTreeSet<ObjectKey>,
    /// Keys that answers to our own calls spoke of meanwhile; the list may be older than those.
    answered: BTreeSet<ObjectKey>,
    /// Highest version that was known when the list began.
    known: u64,
    /// Its own version, or the highest version among its objects as long as nobody has told.
    version: u64,
}

/// A version as far as it tells of an order; one that is no integer does not.
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

    /// Sets who is told of changes. Called once, before the watch starts; a second call is ignored and returns `false`.
    pub fn set_listeners(&self, listeners: Vec<Listener<S>>) -> bool {
        self.listeners.set(listeners).is_ok()
    }

    /// The object under a key.
    pub fn get(&self, key: &ObjectKey) -> Option<S> {
        self.read().objects.get(key).cloned()
    }

    /// The objects under a value of an index, in the order of their keys.
    pub fn by_index(&self, index: IndexName, value: &str) -> Vec<S> {
        let state = self.read();
        let Some(keys) = state.by_index.get(&(index, value.to_owned())) else { return Vec::new() };
        keys.iter().filter_map(|key| state.objects.get(key).cloned()).collect()
    }

    /// Whether any object stands under this value of an index.
    pub fn is_indexed(&self, index: IndexName, value: &str) -> bool {
        self.read().by_index.contains_key(&(index, value.to_owned()))
    }

    /// All objects in the order of their keys. For metrics and tests; controllers look up by index.
    pub fn snapshot(&self) -> Vec<S> {
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
        let cannot_show = |listed: &Listed| {
            let seen = state.unreadable.get(&listed.uid);
            seen.is_some_and(|version| *version >= listed.version)
        };
        let is_behind = |listed: &&Listed| match state.objects.get(&listed.key) {
            // No view ever shows it in this form; the watch has told of it.
            _ if cannot_show(listed) => false,
            Some(known) => known.uid() != listed.uid || known.version() < listed.version,
            // Nothing but its removal brings the watch past the list without it.
            None => state.watched_version <= list.version,
        };
        if let Some(listed) = list.objects.iter().find(is_behind) {
            return Some(listed.key.clone());
        }
        let listed: BTreeSet<&ObjectKey> = list.objects.iter().map(|listed| &listed.key).collect();
        let mut rest = state.objects.iter().filter(|(key, _)| !listed.contains(key));
        rest.find(|(_, known)| known.version() <= list.version).map(|(key, _)| key.clone())
    }

    /// Whether the first list has been taken over completely.
    pub fn is_synced(&self) -> bool {
        self.synced.is_open()
    }

    /// Waits for the first complete list.
    pub async fn wait_synced(&self) {
        self.synced.opened().await;
    }

    /// Whether what the store holds is of one history. False only while a list that is older than the store replaces it.
    pub fn is_whole(&self) -> bool {
        *self.whole.borrow()
    }

    /// Waits until what the store holds is of one history.
    pub async fn wait_whole(&self) {
        // The sender lives as long as the store.
        let _ = self.whole.subscribe().wait_for(|whole| *whole).await;
    }

    /// Whether the list or watch that feeds the store is heard, or was a moment ago. While it is not, nothing that begins may
    /// rely on what the store shows (decisions.md 47).
    pub fn is_current(&self) -> bool {
        self.current.load(Ordering::Acquire)
    }

    /// Whether the list or watch that feeds the store could be opened.
    pub fn set_current(&self, current: bool) {
        self.current.store(current, Ordering::Release);
    }

    /// A consistent list is about to be asked for: what it does not mention is gone when it ends.
    pub fn list_begins(&self) {
        let mut state = self.write();
        state.listing = Some(Listing { known: state.newest, ..Listing::default() });
        state.unreadable.clear();
    }

    /// The running list is of this version. One that is older than what was known when it was asked for takes the place of
    /// everything, and the store is not whole until it ends.
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

    /// The watch has come past this version without an object to tell of.
    pub fn watched(&self, version: u64) {
        let mut state = self.write();
        state.watched_version = state.watched_version.max(version);
        state.newest = state.newest.max(version);
    }

    /// An object as a list or watch event delivered it.
    pub fn apply(&self, object: S::Object) {
        self.apply_shared(Arc::new(object));
    }

    /// As [`Self::apply`], for an object that somebody else holds, too.
    pub fn apply_shared(&self, object: Arc<S::Object>) {
        let object = S::of(object);
        let (key, version) = (object.key(), object.version());
        let change = {
            let mut state = self.write();
            let mut is_believed = false;
            if let Some(listing) = &mut state.listing {
                listing.seen.insert(key.clone());
                listing.version = listing.version.max(known(version));
                is_believed = !listing.answered.contains(&key);
            } else {
                state.watched_version = state.watched_version.max(known(version));
            }
            state.newest = state.newest.max(known(version));
            let is_news = match state.objects.get(&key) {
                Some(stored) if is_believed => stored.uid() != object.uid() || stored.version() != version,
                // Our own write may have brought a newer form already, or a namesake of a deleted object.
                Some(stored) => version > stored.version(),
                None => true,
            };
            let is_gone = !is_believed && !state.removed.is_outlived_by(object.uid(), version);
            if is_gone || !is_news {
                return;
            }
            state.removed.returns(object.uid());
            state.unreadable.remove(object.uid());
            self.replace(&mut state, &key, Some(object))
        };
        self.tell(&change);
    }

    /// An object whose removal a watch event delivered.
    pub fn delete(&self, object: &S::Object) {
        let meta = object.meta();
        let version = version_number(meta.resource_version.as_deref());
        self.deleted(&ObjectKey::of(object), meta.uid.as_deref().unwrap_or_default(), version);
    }

    /// As [`Self::delete`], for an object of which no more is known.
    pub fn deleted(&self, key: &ObjectKey, uid: &str, version: u64) {
        let mut state = self.write();
        state.watched_version = state.watched_version.max(known(version));
        state.newest = state.newest.max(known(version));
        if let Some(change) = self.remove(&mut state, key, uid, version) {
            drop(state);
            self.tell(&change);
        }
    }

    /// The list is complete: objects that it did not mention are gone.
    pub fn list_ends(&self) {
        let changes: Vec<Change<S>> = {
            let mut state = self.write();
            let Some(listing) = state.listing.take() else { return };
            state.watched_version = state.watched_version.max(listing.version);
            state.newest = state.newest.max(listing.version);
            // What an answer told and the list has come past was in the list, unless the object was deleted since.
            let is_newer = |object: &S| object.version() > listing.version;
            let gone: Vec<(ObjectKey, String)> = state
                .objects
                .iter()
                .filter(|(key, object)| {
                    !(listing.seen.contains(*key) || listing.answered.contains(*key) && is_newer(object))
                })
                .map(|(key, object)| (key.clone(), object.uid().to_owned()))
                .collect();
            gone.iter().filter_map(|(key, uid)| self.remove(&mut state, key, uid, listing.version)).collect()
        };
        self.whole.send_if_modified(|whole| !std::mem::replace(whole, true));
        self.synced.open();
        for change in &changes {
            self.tell(change);
        }
    }

    /// A list or watch event mentioned this object but it could not be read: what is known of it stays as it is.
    pub fn still_there(&self, key: &ObjectKey, uid: &str, version: u64) {
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
            listing.seen.insert(key.clone());
        }
    }

    /// The answer of one of our own writes. Ignored when something newer is known already. An object that the write let go, by
    /// taking its last finalizer, is forgotten.
    pub fn observe_write(&self, object: S::Object) -> S {
        self.observe_shared(Arc::new(object))
    }

    /// As [`Self::observe_write`], for an object that somebody else holds, too.
    pub fn observe_shared(&self, object: Arc<S::Object>) -> S {
        self.answered(S::of(object), None)
    }

    /// This moment, to be taken before a live read is sent.
    pub fn moment(&self) -> Moment {
        self.read().removed.now()
    }

    /// The answer of a live read that was sent at a moment. It brings an object back that the store had lost before, in
    /// whatever version.
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
                was_removed && !state.removed.is_outlived_by(uid, version)
            };
            if is_overtaken {
                return object;
            }
            state.newest = state.newest.max(known(version));
            state.removed.returns(uid);
            if let Some(listing) = &mut state.listing {
                listing.answered.insert(key.clone());
            }
            self.replace(&mut state, &key, Some(object.clone()))
        };
        self.tell(&change);
        object
    }

    /// The API server says that this object, which was known when it was asked, does not exist any more.
    pub fn forget(&self, key: &ObjectKey, uid: &str) {
        self.forget_since(key, uid, 0);
    }

    /// As [`Self::forget`], with a version that the object is known to have had.
    fn forget_since(&self, key: &ObjectKey, uid: &str, version: u64) {
        let mut state = self.write();
        state.newest = state.newest.max(known(version));
        if let Some(listing) = &mut state.listing {
            listing.answered.insert(key.clone());
        }
        if let Some(change) = self.remove(&mut state, key, uid, version) {
            drop(state);
            self.tell(&change);
        }
    }

    /// Takes an object out and remembers that it is gone.
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

    fn tell(&self, change: &Change<S>) {
        for listener in self.listeners.get().into_iter().flatten() {
            listener(change);
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State<S>> {
        // No code under the lock panics; were it poisoned all the same, the data would still be whole.
        self.state.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State<S>> {
        self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
