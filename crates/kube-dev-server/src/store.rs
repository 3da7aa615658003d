//! Stored objects: one revision for all, compare-and-swap per object, a ring of changes per resource.
//!
//! A watch keeps no buffer of its own: it remembers a revision and reads on from the ring, so that a slow reader costs
//! nothing and holds up nobody; one that falls behind the ring is told so. The ring also answers lists at a past revision.
//! Source: spec/extension-apiserver §6.3, §6.8.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use tokio::sync::watch;

use super::persistence::{Durable, Record};

/// Changes kept per resource.
const HISTORY: usize = 20_000;
/// What they may take of memory, about.
const HISTORY_BYTES: usize = 64 * 1024 * 1024;
/// Who owns which field.
pub(super) const MANAGED: &str = "managedFields";
/// What a JSON value takes beside what it holds.
const VALUE: usize = size_of::<Value>();
/// Fields that a node of a map has room for.
const NODE_FIELDS: usize = 11;
/// What such a node takes, however few fields are in it.
const NODE: usize = NODE_FIELDS * (size_of::<String>() + VALUE) + 2 * size_of::<usize>();
/// What a change takes beside the object.
const CHANGE: usize = size_of::<Change>() + size_of::<Stored>();

/// A stored resource, whatever versions it is served in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Collection {
    pub(super) group: String,
    pub(super) resource: String,
}

impl Collection {
    pub(super) fn new(group: &str, resource: &str) -> Self {
        Self { group: group.to_owned(), resource: resource.to_owned() }
    }
}

/// Where an object is kept: `namespace/name`, or the name alone. Lists are ordered by its bytes.
pub(super) fn key(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// A stored object at a revision; `metadata.resourceVersion` is set.
///
/// `metadata.managedFields` is kept aside as text: a tree of it would take more memory than all the rest, and hardly anybody
/// reads it here.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) revision: u64,
    /// The object without its managed fields; for the whole see [`Stored::whole`].
    pub(super) value: Value,
    managed: Option<Box<RawValue>>,
}

impl Stored {
    pub(super) fn of(revision: u64, mut value: Value) -> Self {
        let managed = match value.get_mut("metadata").and_then(Value::as_object_mut) {
            Some(metadata) => metadata.remove(MANAGED),
            None => None,
        };
        // A JSON value can always be written to memory.
        let managed = managed.and_then(|managed| to_raw_value(&managed).ok());
        Self { revision, value, managed }
    }

    /// The object as it was written.
    pub(super) fn whole(&self) -> Value {
        let mut value = self.value.clone();
        let managed = self.managed().and_then(|text| serde_json::from_str(text.get()).ok());
        let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
        if let (Some(managed), Some(metadata)) = (managed, metadata) {
            metadata.insert(MANAGED.to_owned(), managed);
        }
        value
    }

    /// Its managed fields.
    pub(super) fn managed(&self) -> Option<&RawValue> {
        self.managed.as_deref()
    }

    /// Bytes of memory that it takes, about.
    fn size(&self) -> usize {
        heap_of(&self.value) + self.managed().map_or(0, |text| text.get().len())
    }
}

/// One change of one object.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) key: String,
    pub(super) before: Option<Arc<Stored>>,
    pub(super) after: Option<Arc<Stored>>,
    /// Bytes of memory that it keeps, about. The state before is the one after an earlier change.
    pub(super) size: usize,
}

/// What a writer expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// Nothing.
    Absent,
    /// The object at this revision.
    Revision(u64),
}

/// The expectation did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raced;

/// The state asked for is not known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooOld {
    /// The newest state.
    pub(super) current: u64,
}

/// A list at one revision.
pub(super) struct Snapshot {
    pub(super) revision: u64,
    pub(super) objects: Vec<(String, Arc<Stored>)>,
}

#[derive(Default)]
struct Shelf {
    objects: BTreeMap<String, Arc<Stored>>,
    history: VecDeque<Arc<Change>>,
    /// Bytes of memory that the history keeps, about.
    size: usize,
    /// States before this revision are unknown.
    compacted: u64,
}

impl Shelf {
    /// Remembers a change, and forgets the oldest ones that are too many.
    fn record(&mut self, change: Change, most_bytes: usize) {
        self.size += change.size;
        self.history.push_back(Arc::new(change));
        // The newest stays: watchers wait for it.
        while self.history.len() > 1
            && (self.history.len() > HISTORY || self.size > most_bytes)
            && let Some(oldest) = self.history.pop_front()
        {
            self.size -= oldest.size;
            self.compacted = oldest.revision;
        }
    }

    fn forget_history(&mut self, revision: u64) {
        self.history.clear();
        self.size = 0;
        self.compacted = revision;
    }
}

/// Bytes of memory that a value takes beside itself, about.
fn heap_of(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| VALUE + heap_of(item)).sum(),
        Value::Object(fields) => {
            let nodes = fields.len().div_ceil(NODE_FIELDS);
            nodes * NODE + fields.iter().map(|(key, value)| key.len() + heap_of(value)).sum::<usize>()
        }
    }
}

struct State {
    revision: u64,
    /// Where this process began: changes before it are unknown.
    base: u64,
    shelves: BTreeMap<Collection, Shelf>,
}

/// The store of a server.
pub(super) struct Store {
    state: Mutex<State>,
    /// The newest revision that readers may be told of.
    published: watch::Sender<u64>,
    durable: Durable,
}

impl Store {
    /// A store over what was kept; `revision` is above every revision ever told.
    pub(super) fn new(revision: u64, kept: Vec<Record>, durable: Durable) -> Self {
        let mut shelves: BTreeMap<Collection, Shelf> = BTreeMap::new();
        for Record { collection, key, value } in kept {
            let shelf = shelves.entry(collection).or_insert_with(|| Shelf { compacted: revision, ..Shelf::default() });
            let stored = Stored::of(revision_of(&value), value);
            shelf.objects.insert(key, Arc::new(stored));
        }
        let state = Mutex::new(State { revision, base: revision, shelves });
        Self { state, published: watch::Sender::new(revision), durable }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest revision.
    pub(super) fn revision(&self) -> u64 {
        self.state().revision
    }

    pub(super) fn get(&self, collection: &Collection, key: &str) -> Option<Arc<Stored>> {
        self.state().shelves.get(collection)?.objects.get(key).cloned()
    }

    /// All collections that have or had objects.
    pub(super) fn collections(&self) -> Vec<Collection> {
        self.state().shelves.keys().cloned().collect()
    }

    /// All objects whose key begins with a prefix, as they are now.
    pub(super) fn list(&self, collection: &Collection, prefix: &str) -> Snapshot {
        let state = self.state();
        let objects =
            state.shelves.get(collection).map(|shelf| with_prefix(&shelf.objects, prefix)).unwrap_or_default();
        Snapshot { revision: state.revision, objects }
    }

    /// The same as it was at a revision.
    pub(super) fn list_at(&self, collection: &Collection, prefix: &str, revision: u64) -> Result<Snapshot, TooOld> {
        let state = self.state();
        let too_old = TooOld { current: state.revision };
        let Some(shelf) = state.shelves.get(collection) else {
            return Ok(Snapshot { revision, objects: Vec::new() });
        };
        if revision < shelf.compacted {
            return Err(too_old);
        }
        let mut objects: BTreeMap<String, Arc<Stored>> = with_prefix(&shelf.objects, prefix).into_iter().collect();
        for change in shelf.history.iter().rev().take_while(|change| change.revision > revision) {
            if !change.key.starts_with(prefix) {
                continue;
            }
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), Arc::clone(before)),
                None => objects.remove(&change.key),
            };
        }
        Ok(Snapshot { revision, objects: objects.into_iter().collect() })
    }

    /// Every object of every collection whose predicate holds.
    pub(super) fn find(&self, wanted: impl Fn(&Collection, &Value) -> bool) -> Vec<(Collection, String, Arc<Stored>)> {
        let state = self.state();
        let mut found = Vec::new();
        for (collection, shelf) in &state.shelves {
            for (key, stored) in &shelf.objects {
                if wanted(collection, &stored.value) {
                    found.push((collection.clone(), key.clone(), Arc::clone(stored)));
                }
            }
        }
        found
    }

    /// Writes an object, or removes it when `value` is none. A removed object's last state is `last`, at the revision of
    /// the removal.
    pub(super) fn write(
        &self,
        collection: &Collection,
        key: &str,
        expect: Expect,
        value: Option<Value>,
    ) -> Result<Arc<Stored>, Raced> {
        let mut state = self.state();
        let revision = state.revision + 1;
        let base = state.base;
        let shelf =
            state.shelves.entry(collection.clone()).or_insert_with(|| Shelf { compacted: base, ..Shelf::default() });
        let before = shelf.objects.get(key).cloned();
        match (expect, &before) {
            (Expect::Absent, None) => {}
            (Expect::Revision(wanted), Some(found)) if found.revision == wanted => {}
            _ => return Err(Raced),
        }
        let removed = value.is_none();
        let mut value = value.or_else(|| before.as_ref().map(|before| before.whole())).unwrap_or(Value::Null);
        value["metadata"]["resourceVersion"] = json!(revision.to_string());
        let stored = Arc::new(Stored::of(revision, value));
        if removed {
            shelf.objects.remove(key);
        } else {
            shelf.objects.insert(key.to_owned(), Arc::clone(&stored));
        }
        let change = Change {
            revision,
            key: key.to_owned(),
            before: before.clone(),
            // A removal carries its last state too; who reads it knows by `removed`.
            after: if removed { None } else { Some(Arc::clone(&stored)) },
            size: if removed { CHANGE } else { CHANGE + stored.size() },
        };
        shelf.record(change, HISTORY_BYTES);
        state.revision = revision;
        self.durable.queue(revision, collection, key, if removed { None } else { Some(Arc::clone(&stored)) });
        if self.durable.is_memory() {
            self.published.send_replace(revision);
        }
        Ok(stored)
    }

    /// Waits until everything up to a revision is as safe as this store makes it.
    pub(super) async fn durable(&self, revision: u64) -> Result<(), String> {
        self.durable.wait(revision).await?;
        self.published.send_if_modified(|published| {
            let later = *published < revision;
            *published = (*published).max(revision);
            later
        });
        Ok(())
    }

    /// Tells of every newer revision.
    pub(super) fn progress(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }

    /// The changes of a collection after a revision, up to the newest that readers may be told of.
    pub(super) fn changes(&self, collection: &Collection, after: u64) -> Result<(u64, Vec<Arc<Change>>), TooOld> {
        let published = *self.published.borrow();
        let state = self.state();
        let Some(shelf) = state.shelves.get(collection) else {
            let too_old = after < state.base;
            return if too_old {
                Err(TooOld { current: state.revision })
            } else {
                Ok((published.max(after), Vec::new()))
            };
        };
        if after < shelf.compacted {
            return Err(TooOld { current: state.revision });
        }
        let from = shelf.history.partition_point(|change| change.revision <= after);
        let changes = shelf.history.range(from..).take_while(|change| change.revision <= published).cloned().collect();
        Ok((published.max(after), changes))
    }

    /// Forgets all history, as a compaction does.
    pub(super) fn compact(&self) {
        let mut state = self.state();
        let revision = state.revision;
        state.base = revision;
        for shelf in state.shelves.values_mut() {
            shelf.forget_history(revision);
        }
    }

    /// Whether all changes after a revision are still known.
    pub(super) fn knows_since(&self, revision: u64) -> bool {
        self.state().shelves.values().all(|shelf| shelf.compacted <= revision)
    }

    /// The changes of all collections after a revision that are still known, in order.
    pub(super) fn journal(&self, after: u64) -> Vec<(Collection, Arc<Change>)> {
        let state = self.state();
        let mut all = Vec::new();
        for (collection, shelf) in &state.shelves {
            let from = shelf.history.partition_point(|change| change.revision <= after);
            all.extend(shelf.history.range(from..).map(|change| (collection.clone(), Arc::clone(change))));
        }
        all.sort_by_key(|(_, change)| change.revision);
        all
    }
}

fn with_prefix(objects: &BTreeMap<String, Arc<Stored>>, prefix: &str) -> Vec<(String, Arc<Stored>)> {
    objects
        .range(prefix.to_owned()..)
        .take_while(|(key, _)| key.starts_with(prefix))
        .map(|(key, stored)| (key.clone(), Arc::clone(stored)))
        .collect()
}

/// The resource version that an object carries; 0 for none.
pub(super) fn revision_of(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store {
        Store::new(1, Vec::new(), Durable::memory())
    }

    fn things() -> Collection {
        Collection::new("example.com", "things")
    }

    fn object(color: &str) -> Value {
        json!({"metadata": {}, "spec": color})
    }

    #[test]
    fn every_write_has_a_revision_of_its_own_and_expects_a_state() {
        let store = store();
        let first = store.write(&things(), "h/a", Expect::Absent, Some(object("red"))).unwrap();
        assert_eq!(first.value["metadata"]["resourceVersion"], first.revision.to_string());
        assert_eq!(store.write(&things(), "h/a", Expect::Absent, Some(object("red"))).unwrap_err(), Raced);
        let second = store.write(&things(), "h/a", Expect::Revision(first.revision), Some(object("blue"))).unwrap();
        assert!(second.revision > first.revision);
        assert_eq!(store.write(&things(), "h/a", Expect::Revision(first.revision), None).unwrap_err(), Raced);
        let removed = store.write(&things(), "h/a", Expect::Revision(second.revision), None).unwrap();
        assert!(removed.revision > second.revision && store.get(&things(), "h/a").is_none());
    }

    #[test]
    fn lists_are_ordered_by_the_bytes_of_the_key_and_can_look_back() {
        let store = store();
        for key in ["h/b", "h-1/a", "h/a"] {
            store.write(&things(), key, Expect::Absent, Some(object("red"))).unwrap();
        }
        let all = store.list(&things(), "");
        let keys = |snapshot: &Snapshot| snapshot.objects.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&all), ["h-1/a", "h/a", "h/b"]);
        let revision = store.get(&things(), "h/a").unwrap().revision;
        store.write(&things(), "h/a", Expect::Revision(revision), None).unwrap();
        store.write(&things(), "h/c", Expect::Absent, Some(object("blue"))).unwrap();
        assert_eq!(keys(&store.list_at(&things(), "h/", all.revision).unwrap()), ["h/a", "h/b"]);
        store.compact();
        assert!(store.list_at(&things(), "h/", all.revision).is_err());
    }

    #[test]
    fn history_is_limited_by_what_it_takes_of_memory() {
        let large = object(&"x".repeat(1000));
        let each = CHANGE + heap_of(&large);
        let change = |revision| Change {
            revision,
            key: "h/a".to_owned(),
            before: None,
            after: Some(Arc::new(Stored::of(revision, large.clone()))),
            size: each,
        };
        let mut shelf = Shelf::default();
        for revision in 1..=10 {
            shelf.record(change(revision), 3 * each);
            assert!(shelf.size <= 3 * each, "{}", shelf.size);
        }
        assert_eq!((shelf.history.len(), shelf.compacted), (3, 7));
        shelf.record(Change { size: 100 * each, ..change(11) }, 3 * each);
        assert_eq!((shelf.history.len(), shelf.compacted), (1, 10), "one that is too large is kept alone");
        shelf.forget_history(11);
        assert_eq!((shelf.size, shelf.compacted), (0, 11));
    }

    #[test]
    fn managed_fields_are_kept_aside_and_nothing_is_lost() {
        let whole = json!({"metadata": {"name": "a", "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]}});
        let stored = Stored::of(1, whole.clone());
        assert_eq!((stored.value.clone(), stored.whole()), (json!({"metadata": {"name": "a"}}), whole));
        for without in [json!({"metadata": {"name": "a"}}), json!({"data": 1}), Value::Null] {
            let stored = Stored::of(1, without.clone());
            assert_eq!((&stored.value, stored.whole()["data"].clone()), (&without, without["data"].clone()));
        }
    }

    #[test]
    fn who_falls_behind_can_find_out() {
        let store = store();
        let first = store.write(&things(), "h/a", Expect::Absent, Some(object("red"))).unwrap();
        assert!(store.knows_since(first.revision - 1));
        store.compact();
        assert!(!store.knows_since(first.revision - 1) && store.knows_since(first.revision));
    }

    #[test]
    fn changes_come_in_order_until_they_are_forgotten() {
        let store = store();
        let start = store.revision();
        let first = store.write(&things(), "h/a", Expect::Absent, Some(object("red"))).unwrap();
        store.write(&things(), "h/a", Expect::Revision(first.revision), None).unwrap();
        let (upto, changes) = store.changes(&things(), start).unwrap();
        assert_eq!((changes.len(), upto), (2, store.revision()));
        assert!(changes[0].before.is_none() && changes[1].after.is_none());
        assert_eq!(store.changes(&things(), upto).unwrap().1.len(), 0);
        store.compact();
        assert!(store.changes(&things(), start).is_err());
        assert!(store.changes(&things(), upto).is_ok());
    }
}
