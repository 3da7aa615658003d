//! Reads the body of a request within limits of size, time and memory.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use crate::{Refusal, RequestLimits};
use kube_protocol::status::ApiStatus;

/// The memory for all large bodies of one kind, counted in KiB.
#[derive(Clone)]
pub struct LargeBodies(Arc<Semaphore>);

impl LargeBodies {
    /// Creates a limit of this number of bytes.
    pub fn of(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / 1024)))
    }
}

/// A body, with its share of the memory for large bodies.
pub struct Collected {
    /// The whole body.
    pub bytes: Bytes,
    /// Held while the body is in memory. `None` for a small body.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// A body whose declared length exceeds the limit by at most this much is read and dropped before it is refused, as by Go's `net/http`. Most clients
/// write a whole body before they read, and lose the answer if the connection ends with bytes unread.
const DROPPED: usize = 256 << 10;

/// Collects a body of at most `limit` bytes before `deadline`, if there is one. A declared length far above the limit is refused unread. A client that
/// stops or sends too slowly is disconnected. The bytes that have arrived count against the memory for large bodies, and not the declared length: a
/// client that only declares a large body must not take memory from others.
pub async fn collect(
    mut body: Body,
    limit: usize,
    deadline: Option<Instant>,
    limits: &RequestLimits,
    large: &LargeBodies,
) -> Result<Collected, Refusal> {
    let declared = HttpBody::size_hint(&body);
    let started = Instant::now();
    match usize::try_from(declared.lower()) {
        Ok(length) if length <= limit => {}
        Ok(length) if length - limit <= DROPPED => {
            let give_up = started + limits.body;
            drop_all(body, deadline.map_or(give_up, |deadline| deadline.min(give_up))).await;
            return Err(Refusal::TooLarge { limit });
        }
        _ => return Err(Refusal::TooLarge { limit }),
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut permit: Option<OwnedSemaphorePermit> = None;
    loop {
        let received = first.len() + rest.len();
        let allowed =
            limits.body_grace.saturating_add(time_for(received, limits.body_bytes_per_second)).min(limits.body);
        let give_up = started + allowed;
        let end = deadline.map_or(give_up, |deadline| deadline.min(give_up));
        let frame = match timeout_at(end, body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => return Err(Refusal::BadBody),
            Err(_) if end < give_up => return Err(Refusal::Timeout),
            Err(_) => return Err(Refusal::RequestTimeout),
        };
        let Ok(data) = frame.into_data() else { continue };
        let received = received + data.len();
        if received > limit {
            return Err(Refusal::TooLarge { limit });
        }
        if received > limits.inline_bytes {
            reserve(&mut permit, received, large)?;
        }
        // Most bodies come in one piece, which needs no copy.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                // Memory for a declared length is limited too, because the client may never send that much.
                let declared = usize::try_from(declared.lower()).unwrap_or(0).min(limits.inline_bytes);
                rest.reserve(declared.max(received));
                rest.extend_from_slice(&first);
                first = Bytes::new();
            }
            rest.extend_from_slice(&data);
        }
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(Collected { bytes, permit })
}

/// Reads a body to its end, or until this time, and keeps nothing.
async fn drop_all(mut body: Body, end: Instant) {
    while let Ok(Some(Ok(_))) = timeout_at(end, body.frame()).await {}
}

/// Takes as much of the memory for large bodies as a body of this length needs.
fn reserve(permit: &mut Option<OwnedSemaphorePermit>, length: usize, large: &LargeBodies) -> Result<(), Refusal> {
    let held = permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let missing = u32::try_from(length.div_ceil(1024).saturating_sub(held)).map_err(|_| Refusal::TooManyRequests)?;
    let more = Arc::clone(&large.0).try_acquire_many_owned(missing).map_err(|_| Refusal::TooManyRequests)?;
    match permit {
        Some(permit) => permit.merge(more),
        None => *permit = Some(more),
    }
    Ok(())
}

/// Reads the bodies of requests that are not for webhooks, with limits of its own.
pub struct BodyReader {
    limits: RequestLimits,
    large: LargeBodies,
}

impl BodyReader {
    /// A reader with these limits of speed and memory.
    pub fn new(limits: RequestLimits) -> Self {
        Self { large: LargeBodies::of(limits.large_bytes), limits }
    }

    /// Reads a body of at most `limit` bytes before `deadline`, if there is one.
    ///
    /// # Errors
    /// 413 for a larger body, 408 for a body that comes too slowly, 400 for a body that breaks off, 429 when too many large bodies are being read,
    /// 504 when the deadline has passed.
    pub async fn read(&self, body: Body, limit: usize, deadline: Option<Instant>) -> Result<Bytes, ApiStatus> {
        let status = |refusal| match refusal {
            Refusal::TooLarge { limit } => ApiStatus::too_large(limit),
            Refusal::RequestTimeout => ApiStatus::new(408, "Timeout", "the request's body did not arrive in time"),
            Refusal::Timeout => ApiStatus::new(504, "Timeout", "the request's body did not arrive within its deadline"),
            Refusal::TooManyRequests => {
                ApiStatus::new(429, "TooManyRequests", "too many large bodies are being read; try again").retry_after(1)
            }
            _ => ApiStatus::bad_request("the request's body could not be read to its end"),
        };
        collect(body, limit, deadline, &self.limits, &self.large).await.map(|read| read.bytes).map_err(status)
    }
}

/// The time that this number of bytes may take.
fn time_for(received: usize, bytes_per_second: u32) -> std::time::Duration {
    let millis = (received as u64).saturating_mul(1000) / u64::from(bytes_per_second.max(1));
    std::time::Duration::from_millis(millis)
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        pin::Pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Poll},
    };

    use hyper::body::{Frame, SizeHint};
    use rstest::rstest;

    use super::*;

    const PIECE: usize = 64 << 10;

    /// A body of a declared length that comes in pieces and counts the bytes that are read.
    struct Declared {
        length: usize,
        read: Arc<AtomicUsize>,
    }

    impl HttpBody for Declared {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let piece = PIECE.min(self.length - self.read.load(Ordering::Relaxed));
            self.read.fetch_add(piece, Ordering::Relaxed);
            Poll::Ready((piece > 0).then(|| Ok(Frame::data(Bytes::from(vec![b' '; piece])))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.length as u64)
        }
    }

    #[rstest]
    #[case::within_the_limit(PIECE, PIECE, false)]
    #[case::a_little_too_large(PIECE + 1, PIECE + 1, true)]
    #[case::as_much_too_large_as_is_dropped(PIECE + DROPPED, PIECE + DROPPED, true)]
    #[case::far_too_large(PIECE + DROPPED + 1, 0, true)]
    #[tokio::test]
    async fn a_body_that_is_a_little_too_large_is_read_before_it_is_refused(
        #[case] length: usize,
        #[case] expected: usize,
        #[case] refused: bool,
    ) {
        let read = Arc::default();
        let body = Body::new(Declared { length, read: Arc::clone(&read) });
        let collected = collect(body, PIECE, None, &RequestLimits::default(), &LargeBodies::of(1 << 20)).await;
        assert_eq!(matches!(collected, Err(Refusal::TooLarge { limit: PIECE })), refused);
        assert_eq!(read.load(Ordering::Relaxed), expected);
    }
}
