//! Where controllers get the time from, so that a simulation can give them another one.
//!
//! [`SystemClock`] is the one of production: the system's time, put right by the API server's `Date` headers. How far it
//! can be trusted is part of each [`Reading`] (decisions.md 46).

mod offset;
mod reading;
mod system;

use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

pub use self::{
    offset::{MOST_APART, date_of},
    reading::{ClockTrouble, REST_AFTER_STEP, Reading, Step, WATCHED_AFTER_STEP, as_watched},
    system::SystemClock,
};

/// Tells the time of day.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;

    /// Now, and how far that can be trusted. A clock that is not compared with anything is trusted.
    fn reading(&self) -> Reading {
        Reading::trusted(self.now())
    }

    /// An API server of the control cluster said that it was `date` in its answer to a question that was `sent` then.
    fn heard(&self, date: Timestamp, sent: Instant) {
        let _ = (date, sent);
    }
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

/// A given time, advanced by tokio's clock: it follows paused and advanced time in tests and never jumps.
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
