//! Values that wait for one reader. Only the newest value of a key is kept, so that the number of waiting values is bounded by the number of keys.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    hash::Hash,
    sync::Mutex,
};

use controller_runtime::lock;
use tokio::sync::Notify;

/// The waiting values, in the order in which their keys came.
pub struct Latest<K, V> {
    waiting: Mutex<Waiting<K, V>>,
    arrived: Notify,
}

struct Waiting<K, V> {
    keys: VecDeque<K>,
    values: HashMap<K, V>,
}

impl<K: Clone + Eq + Hash, V> Latest<K, V> {
    /// Creates an empty list.
    pub fn new() -> Self {
        let waiting = Waiting { keys: VecDeque::new(), values: HashMap::new() };
        Self { waiting: Mutex::new(waiting), arrived: Notify::new() }
    }

    /// Adds a value. It replaces a value of the same key that still waits.
    pub fn put(&self, key: K, value: V) {
        let mut waiting = lock(&self.waiting);
        if waiting.values.insert(key.clone(), value).is_none() {
            waiting.keys.push_back(key);
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Takes the first value, if there is one.
    pub fn try_next(&self) -> Option<V> {
        let mut waiting = lock(&self.waiting);
        let key = waiting.keys.pop_front()?;
        waiting.values.remove(&key)
    }

    /// Waits for the first value and takes it. Safe to drop.
    pub async fn next(&self) -> V {
        loop {
            match self.try_next() {
                Some(value) => return value,
                None => self.arrived.notified().await,
            }
        }
    }
}

impl<K, V> fmt::Debug for Latest<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latest").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_newer_value_replaces_the_waiting_one_and_keeps_its_place() {
        let latest = Latest::new();
        for (key, value) in [("a", 1), ("b", 2), ("a", 3)] {
            latest.put(key, value);
        }
        assert_eq!((latest.next().await, latest.next().await, latest.try_next()), (3, 2, None));
    }
}
