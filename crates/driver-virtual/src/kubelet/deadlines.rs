//! The deadlines of all kubelets, in one ordered map.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// Entries sorted by time. Entries with the same time keep the order in which they were added.
#[derive(Debug)]
pub struct Deadlines<T> {
    entries: BTreeMap<(Instant, u64), T>,
    set: u64,
}

impl<T> Deadlines<T> {
    /// Creates an empty map.
    pub const fn new() -> Self {
        Self { entries: BTreeMap::new(), set: 0 }
    }

    /// Adds an entry.
    pub fn set(&mut self, at: Instant, what: T) {
        self.set += 1;
        self.entries.insert((at, self.set), what);
    }

    /// The time of the first entry.
    pub fn next(&self) -> Option<Instant> {
        self.entries.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first entry that is due.
    pub fn take_due(&mut self, now: Instant) -> Option<T> {
        let first = self.entries.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn due_entries_come_in_their_order_and_later_ones_wait() {
        let now = Instant::now();
        let mut deadlines = Deadlines::new();
        deadlines.set(now + Duration::from_secs(1), "later");
        deadlines.set(now, "first");
        deadlines.set(now, "second");
        assert_eq!(deadlines.take_due(now), Some("first"));
        assert_eq!(deadlines.take_due(now), Some("second"));
        assert_eq!(deadlines.take_due(now), None);
        assert_eq!(deadlines.next(), Some(now + Duration::from_secs(1)));
    }
}
