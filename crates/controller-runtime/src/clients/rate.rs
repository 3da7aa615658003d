//! The token bucket that limits the calls of one client.
//!
//! It is small, so no crate is used: it waits on tokio's clock, also when that is paused or simulated, and it serves callers in
//! their order, as client-go's limiter does.

use std::{sync::Mutex, time::Duration};

use crate::lock;
use tokio::time::Instant;

/// Calls per second, and how many may be made at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Calls per second (`--kube-api-qps`).
    pub qps: f32,
    /// Calls at once after a pause (`--kube-api-burst`); 0 means client-go's default of 10.
    pub burst: u32,
}

impl Default for Rate {
    fn default() -> Self {
        Self { qps: 20.0, burst: 30 }
    }
}

/// client-go's default burst.
const DEFAULT_BURST: u32 = 10;

/// A token bucket: `burst` tokens at first, then one more each `1/qps` seconds.
#[derive(Debug)]
pub struct TokenBucket {
    interval: Duration,
    /// How far ahead of the steady rate a caller may be.
    ahead: Duration,
    /// When the bucket would be full again.
    full_at: Mutex<Option<Instant>>,
}

impl TokenBucket {
    /// A full bucket. A rate of zero or less does not limit calls.
    pub fn new(rate: Rate) -> Self {
        let seconds = if rate.qps > 0.0 { f64::from(rate.qps).recip() } else { 0.0 };
        let interval = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let burst = if rate.burst == 0 { DEFAULT_BURST } else { rate.burst };
        Self { interval, ahead: interval.saturating_mul(burst - 1), full_at: Mutex::new(None) }
    }

    /// Takes a token. Returns how long to wait before using it.
    pub fn take(&self, now: Instant) -> Duration {
        self.take_within(now, Duration::MAX).unwrap_or(Duration::MAX)
    }

    /// The same, unless the wait would be longer than `max_wait`. Then no token is taken, so that later callers do not wait for
    /// calls that are not made.
    pub fn take_within(&self, now: Instant, max_wait: Duration) -> Option<Duration> {
        let mut full_at = lock(&self.full_at);
        let from = full_at.map_or(now, |at| at.max(now));
        let wait = from.saturating_duration_since(now).saturating_sub(self.ahead);
        if wait > max_wait {
            return None;
        }
        *full_at = Some(from.checked_add(self.interval).unwrap_or(from));
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let bucket = TokenBucket::new(Rate { qps: 10.0, burst: 3 });
        let now = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| bucket.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rest_fills_the_bucket_but_never_beyond_the_burst() {
        let bucket = TokenBucket::new(Rate { qps: 10.0, burst: 2 });
        let now = Instant::now();
        for _ in 0..4 {
            bucket.take(now);
        }
        let later = now + Duration::from_secs(60);
        let waits: Vec<u128> = (0..3).map(|_| bucket.take(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_would_wait_too_long_takes_no_token() {
        let bucket = TokenBucket::new(Rate { qps: 10.0, burst: 1 });
        let now = Instant::now();
        let max_wait = Duration::from_millis(200);
        let waits: Vec<Option<u128>> =
            (0..1000).map(|_| bucket.take_within(now, max_wait).map(|wait| wait.as_millis())).collect();
        assert_eq!((&waits[..4], waits[999]), (&[Some(0), Some(100), Some(200), None][..], None));
        assert_eq!(bucket.take(now + Duration::from_millis(300)), Duration::ZERO, "refused callers use no tokens");
    }

    #[tokio::test(start_paused = true)]
    async fn no_burst_means_the_default_of_client_go() {
        let bucket = TokenBucket::new(Rate { qps: 1.0, burst: 0 });
        let now = Instant::now();
        assert_eq!((0..11).filter(|_| bucket.take(now).is_zero()).count(), 10);
    }
}
