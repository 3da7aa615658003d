//! How many requests credentials may send: a token bucket for each, halved when the cloud throttles.
//!
//! All machines of one account share the cloud's own limit. A controller that sends as fast as it can takes it from everybody
//! else, and then waits for the cloud's penalty instead of for its turn.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::secret::CredentialsKey;

/// How fast one client may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Requests per second.
    pub rate: f64,
    /// Requests at once after a pause.
    pub burst: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rate: 20.0, burst: 40.0 }
    }
}

/// A throttled client still sends so many requests per second.
const LOWEST_RATE: f64 = 0.5;
/// A throttled client takes so many seconds until it is as fast as before.
const RECOVERY_SECONDS: f64 = 60.0;
/// So many budgets are kept; beyond them the one that was used longest ago is forgotten.
const MOST_BUDGETS: usize = 256;

/// The budgets of all credentials.
#[derive(Debug, Default)]
pub struct Budgets {
    limits: Limits,
    buckets: Mutex<HashMap<CredentialsKey, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Negative when requests wait for their turn.
    tokens: f64,
    rate: f64,
    seen: Instant,
    halved: Option<Instant>,
}

impl Bucket {
    fn catch_up(&mut self, limits: Limits, now: Instant) {
        let seconds = now.saturating_duration_since(self.seen).as_secs_f64();
        self.tokens = (self.tokens + seconds * self.rate).min(limits.burst);
        self.rate = (self.rate + seconds * limits.rate / RECOVERY_SECONDS).min(limits.rate);
        self.seen = now;
    }
}

impl Budgets {
    /// Budgets of this size each.
    pub fn new(limits: Limits) -> Self {
        Self { limits, buckets: Mutex::default() }
    }

    /// Takes a place for one request: how long it must wait for its turn. `None` when its turn comes too late, and then no place
    /// is taken.
    pub fn take(&self, key: CredentialsKey, now: Instant, left: Duration) -> Option<Duration> {
        self.with(key, now, |bucket| {
            let wait = Duration::from_secs_f64(((1.0 - bucket.tokens) / bucket.rate).max(0.0));
            if !wait.is_zero() && wait >= left {
                return None;
            }
            bucket.tokens -= 1.0;
            Some(wait)
        })
    }

    /// The cloud has throttled a request that was sent then: half the rate from now on, and what was saved up is gone. Requests
    /// that were under way together are throttled together, and tell of one thing once.
    pub fn throttled(&self, key: CredentialsKey, sent: Instant, now: Instant) {
        self.with(key, now, |bucket| {
            bucket.tokens = bucket.tokens.min(0.0);
            if bucket.halved.is_none_or(|halved| halved < sent) {
                bucket.rate = (bucket.rate / 2.0).max(LOWEST_RATE);
                bucket.halved = Some(now);
            }
        });
    }

    fn with<T>(&self, key: CredentialsKey, now: Instant, then: impl FnOnce(&mut Bucket) -> T) -> T {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST_BUDGETS && !buckets.contains_key(&key) {
            let oldest = buckets.iter().min_by_key(|(_, bucket)| bucket.seen).map(|(key, _)| *key);
            oldest.and_then(|oldest| buckets.remove(&oldest));
        }
        let Limits { rate, burst } = self.limits;
        let bucket = buckets.entry(key).or_insert(Bucket { tokens: burst, rate, seen: now, halved: None });
        bucket.catch_up(self.limits, now);
        then(bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn key(name: &str) -> CredentialsKey {
        CredentialsKey::of(&[name])
    }

    #[test]
    fn a_burst_is_free_and_then_requests_take_turns() {
        let budgets = Budgets::new(Limits { rate: 2.0, burst: 3.0 });
        let now = Instant::now();
        let waits: Vec<_> = (0..5).map(|_| budgets.take(key("a"), now, MINUTE).unwrap().as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 500, 1000]);
        assert_eq!(budgets.take(key("b"), now, MINUTE), Some(Duration::ZERO), "others have a budget of their own");
        assert_eq!(budgets.take(key("a"), now, Duration::from_secs(1)), None, "its turn comes too late");
        assert_eq!(budgets.take(key("a"), now + MINUTE, MINUTE), Some(Duration::ZERO));
    }

    #[test]
    fn throttling_halves_the_rate_and_it_recovers() {
        let budgets = Budgets::new(Limits { rate: 8.0, burst: 1.0 });
        let now = Instant::now();
        for _ in 0..20 {
            budgets.throttled(key("a"), now, now);
        }
        assert_eq!(
            budgets.take(key("a"), now, MINUTE),
            Some(Duration::from_millis(250)),
            "all of them were under way at once"
        );
        let mut now = now;
        for _ in 0..20 {
            now += Duration::from_millis(1);
            budgets.throttled(key("a"), now, now);
        }
        let wait = budgets.take(key("a"), now, MINUTE).unwrap();
        assert!((3900..=4100).contains(&wait.as_millis()), "half a request per second stays: {wait:?}");
        let later = now + MINUTE;
        budgets.take(key("a"), later, MINUTE);
        assert_eq!(budgets.take(key("a"), later, MINUTE), Some(Duration::from_millis(125)));
    }

    #[test]
    fn budgets_are_bounded() {
        let budgets = Budgets::new(Limits { rate: 1.0, burst: 1.0 });
        let now = Instant::now();
        for number in 0..2_000_u32 {
            budgets.take(key(&number.to_string()), now + Duration::from_millis(number.into()), MINUTE);
        }
        assert_eq!(budgets.buckets.lock().unwrap().len(), MOST_BUDGETS);
    }
}
