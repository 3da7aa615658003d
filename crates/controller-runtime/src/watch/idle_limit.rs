//! How long a watch may receive nothing before its connection counts as dead (decisions.md 47).
//!
//! API servers send bookmarks about once a minute. Some send none: after three new connections without an event or bookmark, a
//! longer limit applies.

use std::time::Duration;

/// The limit for an API server that sends no bookmarks.
const WITHOUT_BOOKMARKS: Duration = Duration::from_secs(5 * 60);
/// After this number of connections without an event or bookmark, the API server counts as one that sends no bookmarks.
const MAX_IDLE_CONNECTIONS: u32 = 3;

/// The limit of one watch.
#[derive(Debug)]
pub(super) struct IdleLimit {
    usual: Duration,
    idle_connections: u32,
    is_extended: bool,
    is_reported: bool,
}

impl IdleLimit {
    /// A limit of about this length. It varies at random by up to a tenth, so that watches are not all opened at once.
    pub(super) fn about(limit: Duration, random: u64) -> Self {
        let chance = u32::try_from(random % 201).unwrap_or_default();
        let usual = limit / 1000 * (900 + chance);
        Self { usual, idle_connections: 0, is_extended: false, is_reported: false }
    }

    /// How long the watch may receive nothing now.
    pub(super) fn limit(&self) -> Duration {
        if self.is_extended { self.usual.max(WITHOUT_BOOKMARKS) } else { self.usual }
    }

    /// An event was received.
    pub(super) fn event(&mut self) {
        self.idle_connections = 0;
    }

    /// A bookmark was received, so the API server does send them.
    pub(super) fn bookmark(&mut self) {
        self.idle_connections = 0;
        self.is_extended = false;
    }

    /// A connection received nothing within the limit. Returns whether to report that the longer limit applies from now on.
    pub(super) fn exceeded(&mut self) -> bool {
        self.idle_connections = self.idle_connections.saturating_add(1);
        // The first idle connection may have been opened for another reason, so it does not count.
        if self.idle_connections <= MAX_IDLE_CONNECTIONS {
            return false;
        }
        self.is_extended = true;
        !std::mem::replace(&mut self.is_reported, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(90);

    #[test]
    fn the_limit_is_spread_by_a_tenth() {
        let limit = |random| IdleLimit::about(LIMIT, random).limit().as_secs();
        assert_eq!((limit(0), limit(100), limit(200), limit(201)), (81, 90, 99, 81));
    }

    #[test]
    fn three_idle_connections_extend_the_limit_which_is_reported_once() {
        let mut idle = IdleLimit::about(LIMIT, 100);
        assert_eq!([idle.exceeded(), idle.exceeded(), idle.exceeded()], [false; 3]);
        assert_eq!((idle.exceeded(), idle.limit()), (true, WITHOUT_BOOKMARKS));
        assert_eq!((idle.exceeded(), idle.limit()), (false, WITHOUT_BOOKMARKS));
        idle.bookmark();
        assert_eq!(idle.limit(), LIMIT);
        for _ in 0..5 {
            assert!(!idle.exceeded());
        }
    }

    #[test]
    fn an_event_between_them_begins_the_count_again() {
        let mut idle = IdleLimit::about(LIMIT, 100);
        for _ in 0..9 {
            idle.exceeded();
            idle.exceeded();
            idle.event();
        }
        assert_eq!(idle.limit(), LIMIT);
    }
}
