//! What is known of the requests of a connection, and what follows from it: who is slow to say what it wants, who wants nothing,
//! and who only wears the server out.
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

/// Bytes that may come while no request is being answered. A connection that rests sends some frames in a minute, the rest of a
/// body that was refused is smaller, and the head of a request much smaller.
const IDLE_TALK: u64 = 1 << 20;
/// Messages that may come at once while no request is being answered: what was under way of a body that was refused.
const IDLE_MESSAGES: u64 = 256;
/// Resets are counted within this.
const RESETS_WITHIN: Duration = Duration::from_secs(10);
/// No head is under way.
const NO_HEAD: u64 = u64::MAX;

/// What is known of the requests of a connection. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Talk(Arc<Heard>);

#[derive(Debug)]
struct Heard {
    limits: ConnectionLimits,
    /// Times are milliseconds since this.
    began: Instant,
    /// Requests that are being answered.
    requests: AtomicUsize,
    /// Since when there is none.
    quiet_since: AtomicU64,
    /// When the head under way began, with HTTP/1.1; [`NO_HEAD`] otherwise.
    head_since: AtomicU64,
    /// Whether what comes between requests is the head of the next.
    has_heads: AtomicBool,
    /// Bytes and messages that came while there was no request.
    idle_bytes: AtomicU64,
    idle_messages: AtomicU64,
    resets: Mutex<Resets>,
    worn_out: CancellationToken,
}

#[derive(Debug, Default)]
struct Resets {
    since: u64,
    count: u32,
}

/// How the bytes of a connection are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Talk {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self(Arc::new(Heard {
            limits,
            began: Instant::now(),
            requests: AtomicUsize::new(0),
            quiet_since: AtomicU64::new(0),
            head_since: AtomicU64::new(NO_HEAD),
            has_heads: AtomicBool::new(false),
            idle_bytes: AtomicU64::new(0),
            idle_messages: AtomicU64::new(0),
            resets: Mutex::default(),
            worn_out: CancellationToken::new(),
        }))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(NO_HEAD - 1)
    }

    fn at(&self, millis: u64) -> Instant {
        self.0.began + Duration::from_millis(millis)
    }

    /// From here on requests are expected; the first one at once.
    pub(super) fn begins(&self, protocol: Protocol) {
        let now = self.now();
        self.0.quiet_since.store(now, Ordering::Relaxed);
        if protocol == Protocol::Http1 {
            self.0.has_heads.store(true, Ordering::Relaxed);
            self.0.head_since.store(now, Ordering::Relaxed);
        }
    }

    /// A request is being answered until this is dropped.
    pub(super) fn request(&self) -> Asked {
        let heard = &self.0;
        heard.requests.fetch_add(1, Ordering::Relaxed);
        heard.head_since.store(NO_HEAD, Ordering::Relaxed);
        heard.idle_bytes.store(0, Ordering::Relaxed);
        heard.idle_messages.store(0, Ordering::Relaxed);
        Asked { talk: self.clone(), is_answered: false }
    }

    /// So many bytes have come.
    ///
    /// # Errors
    /// When they are too many, or come too often, for somebody who asks for nothing.
    pub(super) fn hears(&self, bytes: usize) -> io::Result<()> {
        let heard = &self.0;
        if heard.requests.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        if heard.has_heads.load(Ordering::Relaxed) && heard.head_since.load(Ordering::Relaxed) == NO_HEAD {
            heard.head_since.store(self.now(), Ordering::Relaxed);
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let bytes = heard.idle_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let messages = heard.idle_messages.fetch_add(1, Ordering::Relaxed) + 1;
        if bytes > IDLE_TALK || messages > IDLE_MESSAGES && messages > self.allowed_messages() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the other side sends and asks for nothing"));
        }
        Ok(())
    }

    fn allowed_messages(&self) -> u64 {
        let quiet = self.now().saturating_sub(self.0.quiet_since.load(Ordering::Relaxed)) / 1_000;
        IDLE_MESSAGES + quiet * u64::from(self.0.limits.http2.pings_per_second)
    }

    /// When the head under way must have come, if there is one.
    pub(super) fn head_ends(&self) -> Option<Instant> {
        let since = self.0.head_since.load(Ordering::Relaxed);
        (since != NO_HEAD).then(|| self.at(since) + self.0.limits.header)
    }

    /// When the connection has been idle for long enough, if nothing is asked until then; none while something is being answered.
    pub(super) fn idleness_ends(&self) -> Option<Instant> {
        let is_idle = self.0.requests.load(Ordering::Relaxed) == 0;
        is_idle.then(|| self.at(self.0.quiet_since.load(Ordering::Relaxed)) + self.0.limits.idle)
    }

    /// Cancelled once the other side has taken back too many requests.
    pub(super) fn worn_out(&self) -> &CancellationToken {
        &self.0.worn_out
    }

    /// A request was taken back before there was an answer.
    fn is_reset(&self) {
        let now = self.now();
        let mut resets = self.0.resets.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_sub(resets.since) >= u64::try_from(RESETS_WITHIN.as_millis()).unwrap_or(u64::MAX) {
            *resets = Resets { since: now, count: 0 };
        }
        resets.count += 1;
        if resets.count > self.0.limits.http2.resets {
            self.0.worn_out.cancel();
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct Asked {
    talk: Talk,
    is_answered: bool,
}

impl Asked {
    /// There is an answer; it may still be on its way.
    pub(super) fn answered(&mut self) {
        self.is_answered = true;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.is_answered {
            self.talk.is_reset();
        }
        let heard = &self.talk.0;
        heard.quiet_since.store(self.talk.now(), Ordering::Relaxed);
        heard.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn talk() -> Talk {
        Talk::new(ConnectionLimits::default())
    }

    #[test]
    fn th_11_who_asks_for_nothing_may_say_so_much() {
        let talk = talk();
        let most = usize::try_from(IDLE_TALK).unwrap();
        assert!(talk.hears(most).is_ok());
        let asked = talk.request();
        assert!(talk.hears(100 * most).is_ok(), "a body");
        drop(asked);
        assert!(talk.hears(most).is_ok() && talk.hears(1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn th_11_who_asks_for_nothing_may_say_so_not_too_often() {
        let talk = talk();
        talk.begins(Protocol::Http2);
        let many = |count: u64| (0..count).map(|_| talk.hears(1)).collect::<io::Result<Vec<_>>>().is_ok();
        assert!(many(IDLE_MESSAGES), "what was under way");
        for _ in 0..1_000 {
            advance(SECOND).await;
            assert!(many(2), "two pings a second");
        }
        assert!(!many(2), "three");
    }

    #[tokio::test(start_paused = true)]
    async fn th_07_a_head_is_expected_at_once_and_then_from_its_first_byte_on() {
        let talk = talk();
        let began = Instant::now();
        assert_eq!(talk.head_ends(), None, "the handshake has a limit of its own");
        talk.hears(1).unwrap();
        assert_eq!(talk.head_ends(), None);
        advance(SECOND).await;
        talk.begins(Protocol::Http1);
        advance(5 * SECOND).await;
        talk.hears(1).unwrap();
        assert_eq!(talk.head_ends(), Some(began + 11 * SECOND));
        let asked = talk.request();
        talk.hears(1).unwrap();
        assert_eq!(talk.head_ends(), None, "a body");
        drop(asked);
        assert_eq!(talk.head_ends(), None);
        advance(5 * SECOND).await;
        talk.hears(1).unwrap();
        advance(5 * SECOND).await;
        talk.hears(1).unwrap();
        assert_eq!(talk.head_ends(), Some(began + 21 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_from_the_end_of_its_last_request_on() {
        let talk = talk();
        let began = Instant::now();
        talk.begins(Protocol::Http2);
        talk.hears(1).unwrap();
        assert_eq!((talk.head_ends(), talk.idleness_ends()), (None, Some(began + 90 * SECOND)));
        let (one, two) = (talk.request(), talk.request());
        advance(SECOND).await;
        drop(one);
        assert_eq!(talk.idleness_ends(), None);
        advance(SECOND).await;
        drop(two);
        assert_eq!(talk.idleness_ends(), Some(began + 92 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn th_10_who_takes_back_too_much_in_ten_seconds_wears_us_out() {
        let talk = talk();
        for _ in 0..10 {
            (0..100).for_each(|_| drop(talk.request()));
            advance(RESETS_WITHIN).await;
        }
        let mut answered = talk.request();
        answered.answered();
        drop(answered);
        (0..100).for_each(|_| drop(talk.request()));
        assert!(!talk.worn_out().is_cancelled());
        drop(talk.request());
        assert!(talk.worn_out().is_cancelled());
    }
}
