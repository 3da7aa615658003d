//! Remembers removed objects, so that old events and answers do not restore them.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

/// How long a removed object is remembered (decisions.md 45). No older event or answer can arrive after that.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);
/// Maximum number of remembered objects; the oldest are dropped first.
const MAX_REMEMBERED: usize = 20_000;

/// A moment of a store: it separates earlier removals from later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

struct Removal {
    /// Newest known version of the object.
    version: u64,
    number: u64,
}

/// Removed objects by UID.
#[derive(Default)]
pub(super) struct Removed {
    by_uid: HashMap<String, Removal>,
    /// Removals in their order. An object that was restored or removed again has additional entries.
    order: VecDeque<(Instant, u64, String)>,
    removals: u64,
}

impl Removed {
    pub(super) fn now(&self) -> Moment {
        Moment(self.removals)
    }

    /// Remembers a removed object and its newest known version.
    pub(super) fn insert(&mut self, uid: &str, version: u64) {
        if uid.is_empty() {
            return;
        }
        let now = Instant::now();
        let is_old = |at: &Instant| now.duration_since(*at) > REMEMBERED;
        while self.order.len() >= MAX_REMEMBERED || self.order.front().is_some_and(|(at, ..)| is_old(at)) {
            let Some((_, number, uid)) = self.order.pop_front() else { break };
            if self.by_uid.get(&uid).is_some_and(|removal| removal.number == number) {
                self.by_uid.remove(&uid);
            }
        }
        self.removals += 1;
        let number = self.removals;
        let version = self.by_uid.get(uid).map_or(version, |removal| removal.version.max(version));
        self.by_uid.insert(uid.to_owned(), Removal { version, number });
        self.order.push_back((now, number, uid.to_owned()));
    }

    /// Whether this version is newer than the removal of the object, if it was removed.
    pub(super) fn is_newer_than_removal(&self, uid: &str, version: u64) -> bool {
        self.by_uid.get(uid).is_none_or(|removal| version > removal.version)
    }

    /// Whether the object was removed after a moment.
    pub(super) fn since(&self, uid: &str, moment: Moment) -> bool {
        self.by_uid.get(uid).is_some_and(|removal| removal.number > moment.0)
    }

    /// The object exists again.
    pub(super) fn restored(&mut self, uid: &str) {
        self.by_uid.remove(uid);
    }

    /// Forgets all removals.
    pub(super) fn clear(&mut self) {
        self.by_uid.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_removal_is_remembered_for_ten_minutes() {
        let mut removed = Removed::default();
        removed.insert("a", 7);
        tokio::time::advance(REMEMBERED).await;
        removed.insert("b", 1);
        assert!(!removed.is_newer_than_removal("a", 7) && removed.is_newer_than_removal("a", 8));
        tokio::time::advance(Duration::from_secs(1)).await;
        removed.insert("c", 1);
        assert!(removed.is_newer_than_removal("a", 7));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_remembered_removals_is_limited() {
        let mut removed = Removed::default();
        for number in 0..2 * MAX_REMEMBERED {
            removed.insert(&number.to_string(), 1);
        }
        assert_eq!((removed.by_uid.len(), removed.order.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        assert!(removed.is_newer_than_removal("0", 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_was_removed_again_is_remembered_from_then_on() {
        let mut removed = Removed::default();
        let before = removed.now();
        removed.insert("a", 7);
        tokio::time::advance(REMEMBERED).await;
        removed.restored("a");
        removed.insert("a", 9);
        tokio::time::advance(REMEMBERED).await;
        removed.insert("b", 1);
        assert!(!removed.is_newer_than_removal("a", 9));
        assert!(removed.since("a", before) && !removed.since("a", removed.now()));
    }
}
