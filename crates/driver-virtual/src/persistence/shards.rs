//! Decides which `ConfigMap` has which record. Pure, without a client.
//!
//! Every record is one key in the `data` of a `ConfigMap`, so that a change is a small patch, and users can read it with kubectl. A record goes into
//! the first `ConfigMap` with enough space: a small cloud needs one `ConfigMap`, and no `ConfigMap` becomes too large for etcd. Records that other
//! records need (templates, counters) are written before the records of VMs.

use std::collections::BTreeMap;

use crate::{cloud::Entry, draw::Fingerprint};

/// The size above which a `ConfigMap` gets no new record, in bytes (spec/providers §7.7).
const FULL: usize = 900 << 10;
/// The size that no `ConfigMap` may exceed, in bytes. The API server refuses a `ConfigMap` of more than 1 MiB.
const TOO_BIG: usize = 1000 << 10;
/// The maximum number of `ConfigMaps`. It is enough for about 60,000 VMs.
pub const MOST: usize = 32;

/// The new value of each key. `None` removes the key.
pub type Changes = BTreeMap<String, Option<String>>;

const VM: &str = "vm.";

/// The `ConfigMap` of each record.
#[derive(Debug, Default)]
pub struct Shards {
    sizes: Vec<usize>,
    homes: BTreeMap<String, Home>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Home {
    shard: usize,
    size: usize,
    content: u64,
}

/// A request that changes one `ConfigMap`.
#[derive(Debug, PartialEq, Eq)]
pub struct Write {
    /// The number of the `ConfigMap`.
    pub shard: usize,
    /// The changes.
    pub changes: Changes,
}

/// The error for a state that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The entries as changes of keys. A later entry replaces an earlier one.
pub fn changes_of(entries: &[Entry]) -> Changes {
    let named = |kind: &str, name: &str| format!("{kind}{:016x}", Fingerprint::of(name));
    let change = |entry: &Entry| match entry {
        Entry::Gone { provider_id } => (named(VM, provider_id), None),
        Entry::Vm(vm) => (named(VM, &vm.provider_id), Some(entry.to_json())),
        Entry::Machine { key, .. } => (named("machine.", key), Some(entry.to_json())),
        Entry::Template { id, .. } => (format!("template.{id:016x}"), Some(entry.to_json())),
        Entry::Simulation { .. } => ("simulation".to_owned(), Some(entry.to_json())),
        Entry::Hits { .. } => ("hits".to_owned(), Some(entry.to_json())),
    };
    entries.iter().map(change).collect()
}

/// The entries of records, in the order for reading them. The error names the key.
pub fn entries_of<'a>(records: impl Iterator<Item = (&'a String, &'a String)>) -> Result<Vec<Entry>, String> {
    let mut records: Vec<_> = records.collect();
    records.sort_by_key(|(key, _)| (rank(key), *key));
    let read = |(key, value): (&String, &String)| {
        Entry::of_json(value.as_bytes()).map_err(|problem| format!("key {key:?}: {problem}"))
    };
    records.into_iter().map(read).collect()
}

/// VMs come last, because they refer to other records.
fn rank(key: &str) -> u8 {
    u8::from(key.starts_with(VM))
}

impl Shards {
    /// Adds a `ConfigMap` that was read. They must be added in their order.
    pub fn read<'a>(&mut self, records: impl Iterator<Item = (&'a String, &'a String)>) {
        let shard = self.sizes.len();
        self.sizes.push(0);
        for (key, value) in records {
            self.put(shard, key, Some(value));
        }
    }

    /// The number of `ConfigMaps`.
    #[cfg(test)]
    fn shards(&self) -> usize {
        self.sizes.len()
    }

    /// The changes after which the records are exactly these.
    pub fn difference(&self, wanted: Changes) -> Changes {
        let gone: Vec<String> = self.homes.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        let mut changes: Changes = gone.into_iter().map(|key| (key, None)).collect();
        changes.extend(wanted);
        changes
    }

    /// The requests for these changes, in their order. A new number is a new `ConfigMap`.
    pub fn plan(&self, changes: &Changes) -> Result<Vec<Write>, NoRoom> {
        let mut sizes = self.sizes.clone();
        let mut writes: BTreeMap<(u8, usize), Changes> = BTreeMap::new();
        for (key, value) in changes {
            let home = self.homes.get(key);
            let shard = match (home, value) {
                (None, None) => continue,
                (Some(home), Some(value)) if home.content == Fingerprint::of(value) => continue,
                (Some(home), value) => {
                    let size = sizes.get_mut(home.shard).ok_or(NoRoom)?;
                    *size = size.saturating_sub(home.size) + value.as_ref().map_or(0, |value| key.len() + value.len());
                    if *size > TOO_BIG {
                        return Err(NoRoom);
                    }
                    home.shard
                }
                (None, Some(value)) => place(&mut sizes, key.len() + value.len())?,
            };
            writes.entry((rank(key), shard)).or_default().insert(key.clone(), value.clone());
        }
        let shards: std::collections::BTreeSet<usize> = writes.keys().map(|(_, shard)| *shard).collect();
        if let ([shard], true) = (shards.iter().copied().collect::<Vec<_>>().as_slice(), writes.len() > 1) {
            // One request is atomic, so the order within it does not matter.
            return Ok(vec![Write { shard: *shard, changes: writes.into_values().flatten().collect() }]);
        }
        Ok(writes.into_iter().map(|((_, shard), changes)| Write { shard, changes }).collect())
    }

    /// Applies a request that succeeded.
    pub fn done(&mut self, write: &Write) {
        if write.shard >= self.sizes.len() {
            self.sizes.resize(write.shard + 1, 0);
        }
        for (key, value) in &write.changes {
            self.put(write.shard, key, value.as_ref());
        }
    }

    fn put(&mut self, shard: usize, key: &str, value: Option<&String>) {
        let before = self.homes.remove(key);
        if let Some((before, size)) = before.and_then(|home| Some((home, self.sizes.get_mut(home.shard)?))) {
            *size = size.saturating_sub(before.size);
        }
        if let (Some(value), Some(total)) = (value, self.sizes.get_mut(shard)) {
            let home = Home { shard, size: key.len() + value.len(), content: Fingerprint::of(value) };
            *total += home.size;
            self.homes.insert(key.to_owned(), home);
        }
    }
}

/// The first `ConfigMap` with enough space for a record of this size. A new one if there is none.
fn place(sizes: &mut Vec<usize>, size: usize) -> Result<usize, NoRoom> {
    let room = sizes.iter().position(|taken| taken + size <= FULL);
    let shard = match room {
        Some(shard) => shard,
        None if size > FULL || sizes.len() >= MOST => return Err(NoRoom),
        None => {
            sizes.push(0);
            sizes.len() - 1
        }
    };
    if let Some(taken) = sizes.get_mut(shard) {
        *taken += size;
    }
    Ok(shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, size: usize) -> (String, Option<String>) {
        (key.to_owned(), Some("x".repeat(size)))
    }

    fn apply(shards: &mut Shards, changes: &Changes) -> Vec<usize> {
        let writes = shards.plan(changes).unwrap();
        for write in &writes {
            shards.done(write);
        }
        writes.iter().map(|write| write.shard).collect()
    }

    #[test]
    fn a_small_cloud_is_one_config_map_and_one_request() {
        let mut shards = Shards::default();
        assert_eq!(apply(&mut shards, &[set("vm.1", 10), set("template.1", 10)].into()), [0]);
        assert_eq!(shards.shards(), 1);
    }

    #[test]
    fn an_unchanged_record_needs_no_request() {
        let mut shards = Shards::default();
        let changes: Changes = [set("vm.1", 10)].into();
        apply(&mut shards, &changes);
        assert_eq!(shards.plan(&changes), Ok(Vec::new()));
        assert_eq!(shards.plan(&[("vm.2".to_owned(), None)].into()), Ok(Vec::new()));
    }

    #[test]
    fn no_config_map_exceeds_its_limit_and_free_space_is_used() {
        let mut shards = Shards::default();
        let half = FULL / 2;
        let many: Changes = (0..5).map(|n| set(&format!("machine.{n}"), half - 20)).collect();
        assert_eq!(apply(&mut shards, &many), [0, 1, 2]);
        assert!(shards.sizes.iter().all(|size| *size <= FULL), "{:?}", shards.sizes);
        apply(&mut shards, &[("machine.0".to_owned(), None)].into());
        assert_eq!(apply(&mut shards, &[set("machine.9", half - 20)].into()), [0]);
    }

    #[test]
    fn templates_and_counters_are_written_before_vms() {
        let mut shards = Shards::default();
        apply(&mut shards, &[set("machine.1", FULL - 100)].into());
        // The VM fits next to the machine, its template does not.
        let changes: Changes = [set("vm.1", 20), set("template.1", 500)].into();
        let writes = shards.plan(&changes).unwrap();
        let keys: Vec<_> = writes.iter().flat_map(|write| write.changes.keys()).collect();
        assert_eq!(keys, ["template.1", "vm.1"]);
    }

    #[test]
    fn a_cloud_that_is_too_large_is_refused_and_changes_nothing() {
        let mut shards = Shards::default();
        let all: Changes = (0..MOST).map(|n| set(&format!("vm.{n:03}"), FULL - 10)).collect();
        apply(&mut shards, &all);
        assert_eq!(shards.plan(&[set("vm.999", 100)].into()), Err(NoRoom));
        assert_eq!(shards.shards(), MOST);
    }

    #[test]
    fn the_difference_removes_records_that_are_not_wanted() {
        let mut shards = Shards::default();
        apply(&mut shards, &[set("vm.1", 10), set("vm.2", 10)].into());
        let difference = shards.difference([set("vm.2", 10)].into());
        let writes = shards.plan(&difference).unwrap();
        assert_eq!(writes, [Write { shard: 0, changes: [("vm.1".to_owned(), None)].into() }]);
    }

    #[test]
    fn a_broken_record_is_named_by_its_key() {
        let records = [("vm.1".to_owned(), "rubbish".to_owned())];
        let error = entries_of(records.iter().map(|(key, value)| (key, value))).unwrap_err();
        assert!(error.starts_with("key \"vm.1\": "), "{error}");
    }
}
