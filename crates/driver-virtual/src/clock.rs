//! The clock of the simulation: the time of the process, a faster clock, or a clock that stands still until it is advanced.
//!
//! The clock uses `tokio::time` and an origin that the caller passes, so that a paused runtime or a test controls it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::config::ClockMode;

/// The longest sleep, which timers support. A longer wait is split into several sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Copy, Debug)]
struct Pace {
    at: Timestamp,
    since: Instant,
    rate: f64,
}

impl Pace {
    fn now(&self) -> Timestamp {
        let passed = self.since.elapsed();
        let passed = if (self.rate - 1.0).abs() < f64::EPSILON { passed } else { passed.mul_f64(self.rate) };
        later(self.at, passed)
    }
}

/// `at + by`, or the latest time if that overflows.
pub fn later(at: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by).ok().and_then(|by| at.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}

/// The clock of one simulation.
#[derive(Debug)]
pub struct Clock {
    mode: ClockMode,
    pace: watch::Sender<Pace>,
}

/// The error for advancing a real clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the clock is real and cannot be advanced; set clock: virtual in the simulation's configuration")]
pub struct NotAdvanceable;

impl Clock {
    /// Creates a clock whose current time is `origin`.
    pub fn new(mode: ClockMode, origin: Timestamp) -> Self {
        let rate = match mode {
            ClockMode::Real => 1.0,
            ClockMode::Virtual { rate } => rate,
        };
        Self { mode, pace: watch::Sender::new(Pace { at: origin, since: Instant::now(), rate }) }
    }

    /// The current time of the clock.
    pub fn now(&self) -> Timestamp {
        self.pace.borrow().now()
    }

    /// Advances a virtual clock.
    ///
    /// # Errors
    /// [`NotAdvanceable`] if the clock is real.
    pub fn advance(&self, by: Duration) -> Result<Timestamp, NotAdvanceable> {
        if self.mode == ClockMode::Real {
            return Err(NotAdvanceable);
        }
        self.pace.send_modify(|pace| {
            pace.at = later(pace.now(), by);
            pace.since = Instant::now();
        });
        Ok(self.now())
    }

    /// Waits until the clock reaches `at`. Safe to drop.
    pub async fn sleep_until(&self, at: Timestamp) {
        let mut changes = self.pace.subscribe();
        loop {
            let pace = *changes.borrow_and_update();
            let now = pace.now();
            if now >= at {
                return;
            }
            let left = Duration::try_from(at.duration_since(now)).unwrap_or(LONGEST_SLEEP);
            if pace.rate > 0.0 {
                let wait = Duration::try_from_secs_f64(left.as_secs_f64() / pace.rate).unwrap_or(LONGEST_SLEEP);
                tokio::select! {
                    biased;
                    // A virtual clock must not spin when the rest is shorter than the resolution of a timer.
                    () = sleep(wait.clamp(Duration::from_millis(1), LONGEST_SLEEP)) => {}
                    Ok(()) = changes.changed() => {}
                }
            } else if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_fast_clock_runs_ahead() {
        let clock = Clock::new(ClockMode::Virtual { rate: 60.0 }, Timestamp::UNIX_EPOCH);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(clock.now(), later(Timestamp::UNIX_EPOCH, Duration::from_secs(120)));
        let started = Instant::now();
        clock.sleep_until(later(Timestamp::UNIX_EPOCH, Duration::from_secs(180))).await;
        assert_eq!(started.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_stands_still_is_advanced() {
        let clock = Clock::new(ClockMode::Virtual { rate: 0.0 }, Timestamp::UNIX_EPOCH);
        let sleeper = clock.sleep_until(later(Timestamp::UNIX_EPOCH, Duration::from_secs(5)));
        let hand = async {
            sleep(Duration::from_secs(3600)).await;
            clock.advance(Duration::from_secs(5)).unwrap()
        };
        let ((), now) = tokio::join!(sleeper, hand);
        assert_eq!(now, later(Timestamp::UNIX_EPOCH, Duration::from_secs(5)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_real_clock_follows_time_and_refuses_to_be_advanced() {
        let clock = Clock::new(ClockMode::Real, Timestamp::UNIX_EPOCH);
        assert_eq!(clock.advance(Duration::from_secs(1)), Err(NotAdvanceable));
        clock.sleep_until(later(Timestamp::UNIX_EPOCH, Duration::from_secs(1))).await;
        assert_eq!(clock.now(), later(Timestamp::UNIX_EPOCH, Duration::from_secs(1)));
    }
}
