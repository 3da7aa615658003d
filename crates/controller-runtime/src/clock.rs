//! The time of the controllers. A simulation replaces the clock.
//!
//! [`SystemClock`] is for production: the system time, corrected by the `Date` headers of the API server. Each [`Reading`] says how
//! far it can be trusted (decisions.md 46).

mod offset;
mod reading;
mod system;

use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

pub use self::{
    offset::{MAX_OFFSET, date_of},
    reading::{ClockTrouble, REST_AFTER_STEP, Reading, Step, WATCHED_AFTER_STEP, as_watched},
    system::SystemClock,
};

/// Gives the time of day.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;

    /// The time now, and how far it can be trusted. The default trusts [`Clock::now`].
    fn reading(&self) -> Reading {
        Reading::trusted(self.now())
    }

    /// Reports the `Date` header of an API server of the control cluster. The request was sent at `sent`.
    fn observe_date(&self, date: Timestamp, sent: Instant) {
        let _ = (date, sent);
    }
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

/// A clock that starts at a given time and advances with tokio's clock: it follows paused and advanced time in tests and never
/// steps.
pub struct TokioClock {
    started: Timestamp,
    at: Instant,
}

impl TokioClock {
    /// A clock that shows `started` now.
    pub fn starting_at(started: Timestamp) -> Self {
        Self { started, at: Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = jiff::SignedDuration::try_from(self.at.elapsed()).unwrap_or_default();
        self.started.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}
