//! The keys of a queue: which wait, which run, and when others become due. No task and no lock is in this file.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    hash::Hash,
    time::Duration,
};

use mcm_metrics::{QueueMetrics, Waiting};
use tokio::time::Instant;

/// From this number of recorded rests on, rests that are over are removed.
const SWEEP_FROM: usize = 256;

/// The task that must be woken after a key was requested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    /// A worker.
    Worker,
    /// The timer.
    Timer,
    /// Nothing: the key is queued already.
    Nothing,
}

/// The keys of a queue.
pub(super) struct State<K> {
    /// Keys that wait for a worker, in order.
    pub(super) ready: VecDeque<(K, Waiting)>,
    /// Keys in `ready`, or to run again after their running pass.
    pub(super) wanted: BTreeSet<K>,
    /// Keys to run again after their running pass, unless it fails.
    pub(super) wanted_unless_failed: BTreeSet<K>,
    /// Keys with a running pass.
    pub(super) running: BTreeSet<K>,
    /// When keys become due; the number makes equal times distinct.
    pub(super) deadlines: BTreeMap<(Instant, u64), K>,
    /// The entry of each key in `deadlines`.
    pub(super) deadline_of: HashMap<K, (Instant, u64)>,
    /// Consecutive failures.
    pub(super) failures: HashMap<K, u32>,
    /// When a key that ran lately may run again. Empty in a queue without a rest time.
    rested_at: HashMap<K, Instant>,
    /// The number of the last deadline.
    sequence: u64,
    /// Whether the queue is closed: it accepts and returns no more keys.
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
    /// Requests a pass over the key: now, after its running pass, or after its rest.
    pub(super) fn want(&mut self, key: K, metrics: &QueueMetrics) -> Wake {
        if self.closed || self.wanted.contains(&key) {
            return Wake::Nothing;
        }
        if self.running.contains(&key) {
            self.wanted.insert(key);
            return Wake::Nothing;
        }
        if let Some(at) = self.rested_at.get(&key).copied().filter(|at| *at > Instant::now()) {
            return if self.schedule(key, at) { Wake::Timer } else { Wake::Nothing };
        }
        self.wanted.insert(key.clone());
        self.ready.push_back((key, metrics.added()));
        Wake::Worker
    }

    /// The same, unless the last pass of the key failed and its back-off is not over.
    pub(super) fn want_unless_backing_off(&mut self, key: K, metrics: &QueueMetrics) -> Wake {
        if self.running.contains(&key) {
            if !self.closed {
                self.wanted_unless_failed.insert(key);
            }
            return Wake::Nothing;
        }
        if self.failures.contains_key(&key) && self.deadline_of.contains_key(&key) {
            return Wake::Nothing;
        }
        self.want(key, metrics)
    }

    /// Starts the rest of a key whose pass begins now.
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

    /// Sets the deadline of the key unless it has an earlier one. Returns whether the timer must be wake.
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

    /// Removes the deadline of the key.
    pub(super) fn unschedule(&mut self, key: &K) {
        if let Some(place) = self.deadline_of.remove(key) {
            self.deadlines.remove(&place);
        }
    }
}
