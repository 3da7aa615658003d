//! Whether this process leads. All code that acts may ask at any time.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::latch::Latch;
use crate::lock;

/// The state of leadership. Cheap to clone; all clones share one state.
///
/// Leadership ends in two ways: the election ends it ([`Leadership::lost`] is cancelled), or the last renewal becomes too old. The
/// second way matters for a process that was suspended: it must not act before its election task runs again.
#[derive(Clone, Debug)]
pub struct Leadership {
    won: Arc<Latch>,
    lost: CancellationToken,
    /// The time until which each lease is certainly held by this process. Empty without an election.
    valid_until: Arc<Mutex<Vec<Option<Instant>>>>,
    /// The number of driver calls that have begun and have not answered. Dropped calls count too.
    unanswered: Arc<AtomicUsize>,
}

/// A driver call that has begun. When it is dropped before [`answered`](Self::answered), it counts as unanswered for ever: what the
/// provider did is unknown, so the next leader must not begin before the Leases expire.
#[derive(Debug)]
#[must_use]
pub struct CallInFlight(Option<Arc<AtomicUsize>>);

impl CallInFlight {
    /// The driver has answered.
    pub fn answered(mut self) {
        if let Some(unanswered) = self.0.take() {
            unanswered.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Leadership {
    /// Leadership that needs this number of leases. None is held yet.
    pub(super) fn of_leases(leases: usize) -> Self {
        Self {
            won: Arc::new(if leases == 0 { Latch::opened_before() } else { Latch::default() }),
            lost: CancellationToken::new(),
            valid_until: Arc::new(Mutex::new(vec![None; leases])),
            unanswered: Arc::default(),
        }
    }

    /// Leadership without an election (`--leader-elect=false`), until `ended` is cancelled.
    pub fn without_election(ended: CancellationToken) -> Self {
        Self {
            won: Arc::new(Latch::opened_before()),
            lost: ended,
            valid_until: Arc::default(),
            unanswered: Arc::default(),
        }
    }

    /// Cancelled when leadership is lost or released. It does not come back.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Waits until all leases are held.
    pub async fn won(&self) {
        self.won.opened().await;
    }

    /// Whether all leases are held now.
    pub fn is_leading(&self) -> bool {
        if self.lost.is_cancelled() || !self.won.is_open() {
            return false;
        }
        let now = Instant::now();
        self.lock().iter().all(|until| until.is_some_and(|until| now < until))
    }

    /// Whether this process certainly holds the lease at this place in the order of the leases now. Without an election it holds
    /// each from the start.
    pub fn holds_lease(&self, place: usize) -> bool {
        if self.lost.is_cancelled() {
            return false;
        }
        match self.lock().get(place) {
            Some(until) => until.is_some_and(|until| Instant::now() < until),
            None => self.won.is_open(),
        }
    }

    /// Counts a driver call that begins now.
    pub fn call_begins(&self) -> CallInFlight {
        self.unanswered.fetch_add(1, Ordering::AcqRel);
        CallInFlight(Some(Arc::clone(&self.unanswered)))
    }

    /// The number of driver calls that have begun and have not answered. Dropped calls count too.
    pub fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Acquire)
    }

    pub(super) fn holds(&self, lease: usize, until: Instant) {
        if let Some(slot) = self.lock().get_mut(lease) {
            *slot = Some(until);
        }
    }

    pub(super) fn let_go(&self, lease: usize) {
        if let Some(slot) = self.lock().get_mut(lease) {
            *slot = None;
        }
    }

    pub(super) fn has_won(&self) -> bool {
        self.won.is_open()
    }

    pub(super) fn win(&self) {
        self.won.open();
    }

    pub(super) fn lose(&self) {
        self.lost.cancel();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Option<Instant>>> {
        lock(&self.valid_until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn leadership_ends_by_itself_when_no_renewal_comes() {
        let leadership = Leadership::of_leases(2);
        assert!(!leadership.is_leading());
        leadership.holds(0, Instant::now() + Duration::from_secs(10));
        leadership.holds(1, Instant::now() + Duration::from_secs(8));
        assert!(!leadership.is_leading(), "not yet won");
        leadership.win();
        assert!(leadership.is_leading());
        tokio::time::advance(Duration::from_secs(8)).await;
        assert!(!leadership.is_leading());
    }

    #[tokio::test(start_paused = true)]
    async fn each_lease_is_held_for_itself() {
        let leadership = Leadership::of_leases(2);
        assert!(!leadership.holds_lease(0));
        leadership.holds(0, Instant::now() + Duration::from_secs(10));
        assert_eq!([0, 1].map(|place| leadership.holds_lease(place)), [true, false]);
        leadership.holds(1, Instant::now() + Duration::from_secs(20));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!([0, 1].map(|place| leadership.holds_lease(place)), [false, true], "the first was not renewed");
        leadership.let_go(1);
        assert!(!leadership.holds_lease(1));
    }

    #[tokio::test]
    async fn without_an_election_it_leads_until_the_end() {
        let ended = CancellationToken::new();
        let leadership = Leadership::without_election(ended.clone());
        leadership.won().await;
        assert!(leadership.is_leading() && leadership.holds_lease(0) && leadership.holds_lease(1));
        ended.cancel();
        assert!(!leadership.is_leading() && !leadership.holds_lease(0));
    }
}
