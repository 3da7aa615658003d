//! Where controllers get the time from, so that a simulation can give them another one.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

/// Tells the time of day.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

/// The time of day, advanced by tokio's clock: it follows paused and advanced time in tests and never jumps back.
pub struct TokioClock {
    started: Timestamp,
    at: Instant,
}

impl TokioClock {
    /// A clock that shows `started` now.
    pub fn starting_at(started: Timestamp) -> Self {
        Self { started, at: Instant::now() }
    }

    /// A clock that shows the system's time.
    pub fn system() -> Self {
        Self::starting_at(Timestamp::now())
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = jiff::SignedDuration::try_from(self.at.elapsed()).unwrap_or_default();
        self.started.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}
