//! Stored objects: one revision for the whole store, compare-and-swap for each object, and a history of changes for each resource.
//!
//! A watch has no buffer of its own. It remembers a revision and reads the later changes from the history, so that a slow reader costs no memory and
//! delays no other reader. A watch that is older than the history gets an error. The history also answers lists at a past revision.
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

/// The maximum number of changes in the history of a resource.
const HISTORY: usize = 20_000;
/// The maximum memory of the history of a resource, in estimated bytes.
const HISTORY_BYTES: usize = 64 * 1024 * 1024;
/// The field of the metadata that records the owner of each field.
pub(super) const MANAGED: &str = "managedFields";
/// The bytes of a JSON value without its contents.
const VALUE: usize = size_of::<Value>();
/// The capacity of a node of a `BTreeMap`, in entries.
const NODE_FIELDS: usize = 11;
/// The bytes of a node of a `BTreeMap`. They do not depend on the number of its entries.
const NODE: usize = NODE_FIELDS * (size_of::<String>() + VALUE) + 2 * size_of::<usize>();
/// The bytes of a change without its object.
const CHANGE: usize = size_of::<Change>() + size_of::<Stored>();

/// A stored resource, independent of its served versions.
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

/// The key of an object: `namespace/name`, or the name alone. Lists are sorted by the bytes of the key.
pub(super) fn key(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// A stored object at a revision. Its `metadata.resourceVersion` is set.
///
/// `metadata.managedFields` is stored separately as text. A tree of JSON values would take more memory than the rest of the object, and the server
/// rarely reads this field.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) revision: u64,
    /// The object without its managed fields. [`Stored::whole`] returns the whole object.
    pub(super) value: Value,
    managed: Option<Box<RawValue>>,
}

impl Stored {
    pub(super) fn of(revision: u64, mut value: Value) -> Self {
        let managed = match value.get_mut("metadata").and_then(Value::as_object_mut) {
            Some(metadata) => metadata.remove(MANAGED),
            None => None,
        };
        // The serialization of a JSON value never fails.
        let managed = managed.and_then(|managed| to_raw_value(&managed).ok());
        Self { revision, value, managed }
    }

    /// The object with its managed fields.
    pub(super) fn whole(&self) -> Value {
        let mut value = self.value.clone();
        let managed = self.managed().and_then(|text| serde_json::from_str(text.get()).ok());
        let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
        if let (Some(managed), Some(metadata)) = (managed, metadata) {
            metadata.insert(MANAGED.to_owned(), managed);
        }
        value
    }

    /// The managed fields, as JSON text.
    pub(super) fn managed(&self) -> Option<&RawValue> {
        self.managed.as_deref()
    }

    /// The estimated bytes of memory of the object.
    fn size(&self) -> usize {
        heap_of(&self.value) + self.managed().map_or(0, |text| text.get().len())
    }
}

/// A change of an object.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) key: String,
    pub(super) before: Option<Arc<Stored>>,
    pub(super) after: Option<Arc<Stored>>,
    /// The estimated bytes of memory of the change. The state before is shared with an earlier change and does not count.
    pub(super) size: usize,
}

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// The object does not exist.
    Absent,
    /// The object exists at this revision.
    Revision(u64),
}

/// The error of a write whose precondition does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conflict;

/// The error for a revision that is older than the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooOld {
    /// The newest revision.
    pub(super) current: u64,
}

/// A list at one revision.
pub(super) struct Snapshot {
    pub(super) revision: u64,
    pub(super) objects: Vec<(String, Arc<Stored>)>,
}

/// The objects of a collection and their history.
#[derive(Default)]
struct CollectionData {
    objects: BTreeMap<String, Arc<Stored>>,
    history: VecDeque<Arc<Change>>,
    /// The estimated bytes of memory of the history.
    size: usize,
    /// States before this revision are unknown.
    compacted: u64,
}

impl CollectionData {
    /// Adds a change to the history, and drops the oldest changes beyond the limits.
    fn record(&mut self, change: Change, most_bytes: usize) {
        self.size += change.size;
        self.history.push_back(Arc::new(change));
        // The newest change stays, because watches have not read it yet.
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

/// The estimated bytes of heap memory of a value.
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
    /// The first revision of this process, or the revision of the last compaction. Changes before it are unknown.
    base: u64,
    collections: BTreeMap<Collection, CollectionData>,
}

/// The store of a server.
pub(super) struct Store {
    state: Mutex<State>,
    /// The newest durable revision. Watches send no later change.
    published: watch::Sender<u64>,
    durable: Durable,
}

impl Store {
    /// A store with the objects of a file. No client knows a revision above `revision`.
    pub(super) fn new(revision: u64, records: Vec<Record>, durable: Durable) -> Self {
        let mut collections: BTreeMap<Collection, CollectionData> = BTreeMap::new();
        for Record { collection, key, value } in records {
            let data = collections
                .entry(collection)
                .or_insert_with(|| CollectionData { compacted: revision, ..CollectionData::default() });
            let stored = Stored::of(revision_of(&value), value);
            data.objects.insert(key, Arc::new(stored));
        }
        let state = Mutex::new(State { revision, base: revision, collections });
        Self { state, published: watch::Sender::new(revision), durable }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves no half-done change of the state, so a poisoned lock can be used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest revision.
    pub(super) fn revision(&self) -> u64 {
        self.state().revision
    }

    pub(super) fn get(&self, collection: &Collection, key: &str) -> Option<Arc<Stored>> {
        self.state().collections.get(collection)?.objects.get(key).cloned()
    }

    /// All collections that have objects or had objects.
    pub(super) fn collections(&self) -> Vec<Collection> {
        self.state().collections.keys().cloned().collect()
    }

    /// All objects whose key begins with a prefix, at the newest revision.
    pub(super) fn list(&self, collection: &Collection, prefix: &str) -> Snapshot {
        let state = self.state();
        let objects =
            state.collections.get(collection).map(|data| with_prefix(&data.objects, prefix)).unwrap_or_default();
        Snapshot { revision: state.revision, objects }
    }

    /// All objects whose key begins with a prefix, at a past revision.
    pub(super) fn list_at(&self, collection: &Collection, prefix: &str, revision: u64) -> Result<Snapshot, TooOld> {
        let state = self.state();
        let too_old = TooOld { current: state.revision };
        let Some(data) = state.collections.get(collection) else {
            return Ok(Snapshot { revision, objects: Vec::new() });
        };
        if revision < data.compacted {
            return Err(too_old);
        }
        let mut objects: BTreeMap<String, Arc<Stored>> = with_prefix(&data.objects, prefix).into_iter().collect();
        for change in data.history.iter().rev().take_while(|change| change.revision > revision) {
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

    /// All objects of all collections for which the predicate holds.
    pub(super) fn find(&self, wanted: impl Fn(&Collection, &Value) -> bool) -> Vec<(Collection, String, Arc<Stored>)> {
        let state = self.state();
        let mut found = Vec::new();
        for (collection, data) in &state.collections {
            for (key, stored) in &data.objects {
                if wanted(collection, &stored.value) {
                    found.push((collection.clone(), key.clone(), Arc::clone(stored)));
                }
            }
        }
        found
    }

    /// Writes an object, or removes it if `value` is none. Returns the object at the revision of the write or removal.
    pub(super) fn write(
        &self,
        collection: &Collection,
        key: &str,
        expect: Expect,
        value: Option<Value>,
    ) -> Result<Arc<Stored>, Conflict> {
        let mut state = self.state();
        let revision = state.revision + 1;
        let base = state.base;
        let data = state
            .collections
            .entry(collection.clone())
            .or_insert_with(|| CollectionData { compacted: base, ..CollectionData::default() });
        let before = data.objects.get(key).cloned();
        match (expect, &before) {
            (Expect::Absent, None) => {}
            (Expect::Revision(wanted), Some(found)) if found.revision == wanted => {}
            _ => return Err(Conflict),
        }
        let removed = value.is_none();
        let mut value = value.or_else(|| before.as_ref().map(|before| before.whole())).unwrap_or(Value::Null);
        value["metadata"]["resourceVersion"] = json!(revision.to_string());
        let stored = Arc::new(Stored::of(revision, value));
        if removed {
            data.objects.remove(key);
        } else {
            data.objects.insert(key.to_owned(), Arc::clone(&stored));
        }
        let change = Change {
            revision,
            key: key.to_owned(),
            before: before.clone(),
            after: if removed { None } else { Some(Arc::clone(&stored)) },
            size: if removed { CHANGE } else { CHANGE + stored.size() },
        };
        data.record(change, HISTORY_BYTES);
        state.revision = revision;
        self.durable.queue(revision, collection, key, if removed { None } else { Some(Arc::clone(&stored)) });
        if self.durable.is_memory() {
            self.published.send_replace(revision);
        }
        Ok(stored)
    }

    /// Waits until all writes up to a revision are durable.
    pub(super) async fn durable(&self, revision: u64) -> Result<(), String> {
        self.durable.wait(revision).await?;
        self.published.send_if_modified(|published| {
            let later = *published < revision;
            *published = (*published).max(revision);
            later
        });
        Ok(())
    }

    /// Receives the newest durable revision.
    pub(super) fn progress(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }

    /// The changes of a collection after a revision, up to the newest durable revision.
    pub(super) fn changes(&self, collection: &Collection, after: u64) -> Result<(u64, Vec<Arc<Change>>), TooOld> {
        let published = *self.published.borrow();
        let state = self.state();
        let Some(data) = state.collections.get(collection) else {
            let too_old = after < state.base;
            return if too_old {
                Err(TooOld { current: state.revision })
            } else {
                Ok((published.max(after), Vec::new()))
            };
        };
        if after < data.compacted {
            return Err(TooOld { current: state.revision });
        }
        let from = data.history.partition_point(|change| change.revision <= after);
        let changes = data.history.range(from..).take_while(|change| change.revision <= published).cloned().collect();
        Ok((published.max(after), changes))
    }

    /// Drops the history of all collections, like a compaction.
    pub(super) fn compact(&self) {
        let mut state = self.state();
        let revision = state.revision;
        state.base = revision;
        for data in state.collections.values_mut() {
            data.forget_history(revision);
        }
    }

    /// Whether the history has all changes after a revision.
    pub(super) fn has_changes_since(&self, revision: u64) -> bool {
        self.state().collections.values().all(|data| data.compacted <= revision)
    }

    /// The changes of all collections after a revision, as far as the history has them, sorted by revision.
    pub(super) fn journal(&self, after: u64) -> Vec<(Collection, Arc<Change>)> {
        let state = self.state();
        let mut all = Vec::new();
        for (collection, data) in &state.collections {
            let from = data.history.partition_point(|change| change.revision <= after);
            all.extend(data.history.range(from..).map(|change| (collection.clone(), Arc::clone(change))));
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

/// The resource version of an object; 0 for none.
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
    fn every_write_has_its_own_revision_and_checks_its_precondition() {
        let store = store();
        let first = store.write(&things(), "h/a", Expect::Absent, Some(object("red"))).unwrap();
        assert_eq!(first.value["metadata"]["resourceVersion"], first.revision.to_string());
        assert_eq!(store.write(&things(), "h/a", Expect::Absent, Some(object("red"))).unwrap_err(), Conflict);
        let second = store.write(&things(), "h/a", Expect::Revision(first.revision), Some(object("blue"))).unwrap();
        assert!(second.revision > first.revision);
        assert_eq!(store.write(&things(), "h/a", Expect::Revision(first.revision), None).unwrap_err(), Conflict);
        let removed = store.write(&things(), "h/a", Expect::Revision(second.revision), None).unwrap();
        assert!(removed.revision > second.revision && store.get(&things(), "h/a").is_none());
    }

    #[test]
    fn lists_are_sorted_by_the_bytes_of_the_key_and_can_show_a_past_revision() {
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
    fn the_memory_of_the_history_is_limited() {
        let large = object(&"x".repeat(1000));
        let each = CHANGE + heap_of(&large);
        let change = |revision| Change {
            revision,
            key: "h/a".to_owned(),
            before: None,
            after: Some(Arc::new(Stored::of(revision, large.clone()))),
            size: each,
        };
        let mut data = CollectionData::default();
        for revision in 1..=10 {
            data.record(change(revision), 3 * each);
            assert!(data.size <= 3 * each, "{}", data.size);
        }
        assert_eq!((data.history.len(), data.compacted), (3, 7));
        data.record(Change { size: 100 * each, ..change(11) }, 3 * each);
        assert_eq!((data.history.len(), data.compacted), (1, 10), "the newest change stays, even if it is too large");
        data.forget_history(11);
        assert_eq!((data.size, data.compacted), (0, 11));
    }

    #[test]
    fn managed_fields_are_stored_separately_and_nothing_is_lost() {
        let whole = json!({"metadata": {"name": "a", "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]}});
        let stored = Stored::of(1, whole.clone());
        assert_eq!((stored.value.clone(), stored.whole()), (json!({"metadata": {"name": "a"}}), whole));
        for without in [json!({"metadata": {"name": "a"}}), json!({"data": 1}), Value::Null] {
            let stored = Stored::of(1, without.clone());
            assert_eq!((&stored.value, stored.whole()["data"].clone()), (&without, without["data"].clone()));
        }
    }

    #[test]
    fn the_store_knows_whether_its_history_is_complete() {
        let store = store();
        let first = store.write(&things(), "h/a", Expect::Absent, Some(object("red"))).unwrap();
        assert!(store.has_changes_since(first.revision - 1));
        store.compact();
        assert!(!store.has_changes_since(first.revision - 1) && store.has_changes_since(first.revision));
    }

    #[test]
    fn changes_are_sorted_and_end_with_a_compaction() {
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
