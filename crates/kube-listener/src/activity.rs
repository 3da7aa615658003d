//! The activity of a connection's client: whether a request is being answered, a head is being received, or the client only sends bytes that are no
//! request. Deadlines and limits of the connection follow from it.
//!
//! Source: spec/extension-apiserver §4.4, §8 (TH-07, TH-10, TH-11).

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ConnectionLimits;

/// Bytes that a client may send while no request is being answered. An idle connection sends a few frames a minute. The unread rest of a refused
/// body is smaller than this, and the head of a request is much smaller.
const IDLE_BYTES: u64 = 1 << 20;
/// Messages that a client may send at once while no request is being answered: the rest of a refused body.
const IDLE_MESSAGES: u64 = 256;
/// The time within which resets are counted.
const RESETS_WITHIN: Duration = Duration::from_secs(10);
/// No head is being received.
const NO_HEAD: u64 = u64::MAX;

/// The activity of a connection's client. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<State>);

#[derive(Debug)]
struct State {
    limits: ConnectionLimits,
    /// Times are milliseconds since this point.
    began: Instant,
    /// Requests that are being answered.
    requests: AtomicUsize,
    /// When the last request ended.
    idle_since: AtomicU64,
    /// When the first byte of the current head came, for HTTP/1.1. [`NO_HEAD`] if no head is being received.
    head_since: AtomicU64,
    /// Whether bytes between requests are the head of the next request.
    has_heads: AtomicBool,
    /// Bytes and messages that came while no request was being answered.
    idle_bytes: AtomicU64,
    idle_messages: AtomicU64,
    resets: Mutex<Resets>,
    exhausted: CancellationToken,
}

#[derive(Debug, Default)]
struct Resets {
    since: u64,
    count: u32,
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Activity {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self(Arc::new(State {
            limits,
            began: Instant::now(),
            requests: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            head_since: AtomicU64::new(NO_HEAD),
            has_heads: AtomicBool::new(false),
            idle_bytes: AtomicU64::new(0),
            idle_messages: AtomicU64::new(0),
            resets: Mutex::default(),
            exhausted: CancellationToken::new(),
        }))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(NO_HEAD - 1)
    }

    fn at(&self, millis: u64) -> Instant {
        self.0.began + Duration::from_millis(millis)
    }

    /// Starts to wait for requests. The time for the first head begins at once.
    pub(super) fn start(&self, protocol: Protocol) {
        let now = self.now();
        self.0.idle_since.store(now, Ordering::Relaxed);
        if protocol == Protocol::Http1 {
            self.0.has_heads.store(true, Ordering::Relaxed);
            self.0.head_since.store(now, Ordering::Relaxed);
        }
    }

    /// Records that a request is being answered, until the guard is dropped.
    pub(super) fn request(&self) -> RequestGuard {
        let state = &self.0;
        state.requests.fetch_add(1, Ordering::Relaxed);
        state.head_since.store(NO_HEAD, Ordering::Relaxed);
        state.idle_bytes.store(0, Ordering::Relaxed);
        state.idle_messages.store(0, Ordering::Relaxed);
        RequestGuard { activity: self.clone(), is_answered: false }
    }

    /// Records that the client has sent bytes.
    ///
    /// # Errors
    /// When a client that has no request sends too many bytes or messages.
    pub(super) fn receive(&self, bytes: usize) -> io::Result<()> {
        let state = &self.0;
        if state.requests.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        if state.has_heads.load(Ordering::Relaxed) && state.head_since.load(Ordering::Relaxed) == NO_HEAD {
            state.head_since.store(self.now(), Ordering::Relaxed);
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let bytes = state.idle_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let messages = state.idle_messages.fetch_add(1, Ordering::Relaxed) + 1;
        if bytes > IDLE_BYTES || messages > IDLE_MESSAGES && messages > self.allowed_messages() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client sends bytes that are no request"));
        }
        Ok(())
    }

    fn allowed_messages(&self) -> u64 {
        let idle_seconds = self.now().saturating_sub(self.0.idle_since.load(Ordering::Relaxed)) / 1_000;
        IDLE_MESSAGES + idle_seconds * u64::from(self.0.limits.http2.pings_per_second)
    }

    /// The deadline of the head that is being received, if there is one.
    pub(super) fn head_deadline(&self) -> Option<Instant> {
        let since = self.0.head_since.load(Ordering::Relaxed);
        (since != NO_HEAD).then(|| self.at(since) + self.0.limits.header)
    }

    /// When the connection must be closed if no request comes before. `None` while a request is being answered.
    pub(super) fn idle_deadline(&self) -> Option<Instant> {
        let is_idle = self.0.requests.load(Ordering::Relaxed) == 0;
        is_idle.then(|| self.at(self.0.idle_since.load(Ordering::Relaxed)) + self.0.limits.idle)
    }

    /// Cancelled once the client has reset too many requests.
    pub(super) fn exhausted(&self) -> &CancellationToken {
        &self.0.exhausted
    }

    /// Records that the client has reset a request before it was answered.
    fn count_reset(&self) {
        let now = self.now();
        let mut resets = self.0.resets.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_sub(resets.since) >= u64::try_from(RESETS_WITHIN.as_millis()).unwrap_or(u64::MAX) {
            *resets = Resets { since: now, count: 0 };
        }
        resets.count += 1;
        if resets.count > self.0.limits.http2.resets {
            self.0.exhausted.cancel();
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct RequestGuard {
    activity: Activity,
    is_answered: bool,
}

impl RequestGuard {
    /// Records that the request is answered. The body of the answer may still be in transit.
    pub(super) fn set_answered(&mut self) {
        self.is_answered = true;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if !self.is_answered {
            self.activity.count_reset();
        }
        let state = &self.activity.0;
        state.idle_since.store(self.activity.now(), Ordering::Relaxed);
        state.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn activity() -> Activity {
        Activity::new(ConnectionLimits::default())
    }

    #[test]
    fn th_11_bytes_without_a_request_are_limited() {
        let activity = activity();
        let most = usize::try_from(IDLE_BYTES).unwrap();
        assert!(activity.receive(most).is_ok());
        let request = activity.request();
        assert!(activity.receive(100 * most).is_ok(), "a body");
        drop(request);
        assert!(activity.receive(most).is_ok() && activity.receive(1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn th_11_messages_without_a_request_are_limited() {
        let activity = activity();
        activity.start(Protocol::Http2);
        let many = |count: u64| (0..count).map(|_| activity.receive(1)).collect::<io::Result<Vec<_>>>().is_ok();
        assert!(many(IDLE_MESSAGES), "the rest of a refused body");
        for _ in 0..1_000 {
            advance(SECOND).await;
            assert!(many(2), "two pings a second");
        }
        assert!(!many(2), "three");
    }

    #[tokio::test(start_paused = true)]
    async fn th_07_a_head_is_expected_at_once_and_then_from_its_first_byte_on() {
        let activity = activity();
        let began = Instant::now();
        assert_eq!(activity.head_deadline(), None, "the handshake has a limit of its own");
        activity.receive(1).unwrap();
        assert_eq!(activity.head_deadline(), None);
        advance(SECOND).await;
        activity.start(Protocol::Http1);
        advance(5 * SECOND).await;
        activity.receive(1).unwrap();
        assert_eq!(activity.head_deadline(), Some(began + 11 * SECOND));
        let request = activity.request();
        activity.receive(1).unwrap();
        assert_eq!(activity.head_deadline(), None, "a body");
        drop(request);
        assert_eq!(activity.head_deadline(), None);
        advance(5 * SECOND).await;
        activity.receive(1).unwrap();
        advance(5 * SECOND).await;
        activity.receive(1).unwrap();
        assert_eq!(activity.head_deadline(), Some(began + 21 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_from_the_end_of_its_last_request_on() {
        let activity = activity();
        let began = Instant::now();
        activity.start(Protocol::Http2);
        activity.receive(1).unwrap();
        assert_eq!((activity.head_deadline(), activity.idle_deadline()), (None, Some(began + 90 * SECOND)));
        let (one, two) = (activity.request(), activity.request());
        advance(SECOND).await;
        drop(one);
        assert_eq!(activity.idle_deadline(), None);
        advance(SECOND).await;
        drop(two);
        assert_eq!(activity.idle_deadline(), Some(began + 92 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn th_10_resets_within_ten_seconds_are_limited() {
        let activity = activity();
        for _ in 0..10 {
            (0..100).for_each(|_| drop(activity.request()));
            advance(RESETS_WITHIN).await;
        }
        let mut answered = activity.request();
        answered.set_answered();
        drop(answered);
        (0..100).for_each(|_| drop(activity.request()));
        assert!(!activity.exhausted().is_cancelled());
        drop(activity.request());
        assert!(activity.exhausted().is_cancelled());
    }
}
