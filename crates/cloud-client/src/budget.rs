//! Limits the requests of each set of credentials: a token bucket, whose rate is halved when the cloud throttles.
//!
//! All machines of an account share the limit of the cloud. A controller that sends as fast as possible leaves nothing of the limit
//! to other clients, and the cloud then throttles it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::secret::CredentialsKey;

/// The rate of one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Requests per second.
    pub rate: f64,
    /// Maximum number of requests at once.
    pub burst: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rate: 20.0, burst: 40.0 }
    }
}

/// The lowest rate of a throttled client, in requests per second.
const MIN_RATE: f64 = 0.5;
/// How many seconds a throttled client needs to return from zero to its full rate.
const RECOVERY_SECONDS: f64 = 60.0;
/// Maximum number of budgets. Beyond it, the least recently used budget is dropped.
const MAX_BUDGETS: usize = 256;

/// The budgets of all credentials.
#[derive(Debug, Default)]
pub struct Budgets {
    limits: Limits,
    buckets: Mutex<HashMap<CredentialsKey, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Negative while requests wait.
    tokens: f64,
    rate: f64,
    updated: Instant,
    halved: Option<Instant>,
}

impl Bucket {
    fn catch_up(&mut self, limits: Limits, now: Instant) {
        let seconds = now.saturating_duration_since(self.updated).as_secs_f64();
        self.tokens = (self.tokens + seconds * self.rate).min(limits.burst);
        self.rate = (self.rate + seconds * limits.rate / RECOVERY_SECONDS).min(limits.rate);
        self.updated = now;
    }
}

impl Budgets {
    /// Creates budgets that all have these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, buckets: Mutex::default() }
    }

    /// Takes a token for one request and returns how long the request must wait. Returns `None` and takes no token if the wait is
    /// not shorter than `left`.
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

    /// The cloud has throttled a request that was sent at `sent`: halves the rate and drops the saved tokens. Requests that were in
    /// flight at the same time are throttled together, so they halve the rate only once.
    pub fn throttled(&self, key: CredentialsKey, sent: Instant, now: Instant) {
        self.with(key, now, |bucket| {
            bucket.tokens = bucket.tokens.min(0.0);
            if bucket.halved.is_none_or(|halved| halved < sent) {
                bucket.rate = (bucket.rate / 2.0).max(MIN_RATE);
                bucket.halved = Some(now);
            }
        });
    }

    fn with<T>(&self, key: CredentialsKey, now: Instant, then: impl FnOnce(&mut Bucket) -> T) -> T {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUDGETS && !buckets.contains_key(&key) {
            let oldest = buckets.iter().min_by_key(|(_, bucket)| bucket.updated).map(|(key, _)| *key);
            oldest.and_then(|oldest| buckets.remove(&oldest));
        }
        let Limits { rate, burst } = self.limits;
        let bucket = buckets.entry(key).or_insert(Bucket { tokens: burst, rate, updated: now, halved: None });
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
    fn a_burst_does_not_wait_and_then_requests_wait_for_tokens() {
        let budgets = Budgets::new(Limits { rate: 2.0, burst: 3.0 });
        let now = Instant::now();
        let waits: Vec<_> = (0..5).map(|_| budgets.take(key("a"), now, MINUTE).unwrap().as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 500, 1000]);
        assert_eq!(budgets.take(key("b"), now, MINUTE), Some(Duration::ZERO), "others have a budget of their own");
        assert_eq!(budgets.take(key("a"), now, Duration::from_secs(1)), None, "its wait is too long");
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
            "all requests were in flight at the same time"
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
        assert_eq!(budgets.buckets.lock().unwrap().len(), MAX_BUDGETS);
    }
}
