//! The keys of a queue: which wait, which run, which are due when. No task and no lock lives here.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    hash::Hash,
    time::Duration,
};

use mcm_metrics::{QueueMetrics, Waiting};
use tokio::time::Instant;

/// So many remembered rests are looked through for those that are over.
const SWEEP_FROM: usize = 256;

/// Who has something to do now that a key is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// A worker.
    Worker,
    /// The timer.
    Timer,
    /// Nobody: the key has its place already.
    Nobody,
}

/// All that a queue knows of its keys.
pub(super) struct State<K> {
    /// Keys that wait for a worker, in their order.
    pub(super) ready: VecDeque<(K, Waiting)>,
    /// In `ready`, or to run again once the running pass ends.
    pub(super) wanted: BTreeSet<K>,
    /// To run again once the running pass ends, unless that fails.
    pub(super) wanted_unless_failed: BTreeSet<K>,
    /// Keys whose passes run.
    pub(super) running: BTreeSet<K>,
    /// When keys become wanted; the number keeps two of the same time apart.
    pub(super) deadlines: BTreeMap<(Instant, u64), K>,
    /// The place of a key in `deadlines`.
    pub(super) deadline_of: HashMap<K, (Instant, u64)>,
    /// Failures in a row.
    pub(super) failures: HashMap<K, u32>,
    /// When a key may run again, of keys that have run lately. Empty in a queue without rest.
    rested_at: HashMap<K, Instant>,
    /// Numbers the deadlines.
    sequence: u64,
    /// Whether the queue takes and gives no more keys.
    pub(super) closed: bool,
}

impl<K> Default for State<K> {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            wanted: BTreeSet::new(),
            wanted_unless_failed: BTreeSet::new(),
            running: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            deadline_of: HashMap::new(),
            failures: HashMap::new(),
            rested_at: HashMap::new(),
            sequence: 0,
            closed: false,
        }
    }
}

impl<K: Clone + Ord + Hash> State<K> {
    /// Marks the key as wanted: now, when its running pass ends, or when it has rested.
    pub(super) fn want(&mut self, key: K, metrics: &QueueMetrics) -> Woken {
        if self.closed || self.wanted.contains(&key) {
            return Woken::Nobody;
        }
        if self.running.contains(&key) {
            self.wanted.insert(key);
            return Woken::Nobody;
        }
        if let Some(at) = self.rested_at.get(&key).copied().filter(|at| *at > Instant::now()) {
            return if self.schedule(key, at) { Woken::Timer } else { Woken::Nobody };
        }
        self.wanted.insert(key.clone());
        self.ready.push_back((key, metrics.added()));
        Woken::Worker
    }

    /// The same, unless the key's last pass failed and its back-off lasts.
    pub(super) fn want_unless_backing_off(&mut self, key: K, metrics: &QueueMetrics) -> Woken {
        if self.running.contains(&key) {
            if !self.closed {
                self.wanted_unless_failed.insert(key);
            }
            return Woken::Nobody;
        }
        if self.failures.contains_key(&key) && self.deadline_of.contains_key(&key) {
            return Woken::Nobody;
        }
        self.want(key, metrics)
    }

    /// Lets the key, whose pass begins now, rest for so long.
    pub(super) fn rest(&mut self, key: &K, rest: Duration) {
        if rest.is_zero() {
            return;
        }
        let now = Instant::now();
        if self.rested_at.len() >= SWEEP_FROM {
            self.rested_at.retain(|_, at| *at > now);
        }
        self.rested_at.insert(key.clone(), now + rest);
    }

    /// Sets the key's deadline unless it has an earlier one; `true` when the timer has to look again.
    pub(super) fn schedule(&mut self, key: K, at: Instant) -> bool {
        if self.closed {
            return false;
        }
        if let Some(known) = self.deadline_of.get(&key) {
            if known.0 <= at {
                return false;
            }
            let known = *known;
            self.deadlines.remove(&known);
        }
        self.sequence += 1;
        let place = (at, self.sequence);
        let is_first = self.deadlines.first_key_value().is_none_or(|(first, _)| place < *first);
        self.deadline_of.insert(key.clone(), place);
        self.deadlines.insert(place, key);
        is_first
    }

    /// Forgets the key's deadline.
    pub(super) fn unschedule(&mut self, key: &K) {
        if let Some(place) = self.deadline_of.remove(key) {
            self.deadlines.remove(&place);
        }
    }
}
