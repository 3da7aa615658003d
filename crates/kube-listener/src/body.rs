//! Reads a request's body within its limits of size, time and memory.

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

/// Bytes that all large bodies of one kind together may take; counted in KiB.
#[derive(Clone)]
pub struct LargeBodies(Arc<Semaphore>);

impl LargeBodies {
    /// Room for so many bytes.
    pub fn of(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / 1024)))
    }
}

/// A body, and its place among the large ones, if it is one.
pub struct Collected {
    /// All of it.
    pub bytes: Bytes,
    /// Held for as long as the body is in memory.
    pub place: Option<OwnedSemaphorePermit>,
}

/// Collects a body of at most `limit` bytes before `deadline`. A declared length above the limit is refused unread; a
/// sender that stops or trickles is given up. What counts against the memory of large bodies is what has arrived, not what
/// was announced, so that announcing costs others nothing.
pub async fn collect(
    mut body: Body,
    limit: usize,
    deadline: Instant,
    limits: &RequestLimits,
    large: &LargeBodies,
) -> Result<Collected, Refusal> {
    let declared = HttpBody::size_hint(&body);
    if usize::try_from(declared.lower()).map_or(true, |length| length > limit) {
        return Err(Refusal::TooLarge { limit });
    }
    let started = Instant::now();
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut place: Option<OwnedSemaphorePermit> = None;
    loop {
        let received = first.len() + rest.len();
        let patience =
            limits.body_grace.saturating_add(earned(received, limits.body_bytes_per_second)).min(limits.body);
        let give_up = started + patience;
        let frame = match timeout_at(give_up.min(deadline), body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => return Err(Refusal::BadBody),
            Err(_) if deadline < give_up => return Err(Refusal::Timeout),
            Err(_) => return Err(Refusal::RequestTimeout),
        };
        let Ok(data) = frame.into_data() else { continue };
        let received = received + data.len();
        if received > limit {
            return Err(Refusal::TooLarge { limit });
        }
        if received > limits.inline_bytes {
            widen(&mut place, received, large)?;
        }
        // Most bodies come in one piece, which is then not copied.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                // What is only announced gets no memory either.
                let announced = usize::try_from(declared.lower()).unwrap_or(0).min(limits.inline_bytes);
                rest.reserve(announced.max(received));
                rest.extend_from_slice(&first);
                first = Bytes::new();
            }
            rest.extend_from_slice(&data);
        }
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(Collected { bytes, place })
}

/// Takes as much of the large bodies' memory as a body of this length needs.
fn widen(place: &mut Option<OwnedSemaphorePermit>, length: usize, large: &LargeBodies) -> Result<(), Refusal> {
    let held = place.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let missing = u32::try_from(length.div_ceil(1024).saturating_sub(held)).map_err(|_| Refusal::Busy)?;
    let more = Arc::clone(&large.0).try_acquire_many_owned(missing).map_err(|_| Refusal::Busy)?;
    match place {
        Some(place) => place.merge(more),
        None => *place = Some(more),
    }
    Ok(())
}

/// Reads bodies for others than the webhooks, with limits of its own.
pub struct BodyReader {
    limits: RequestLimits,
    large: LargeBodies,
}

impl BodyReader {
    /// A reader with these limits of speed and memory.
    pub fn new(limits: RequestLimits) -> Self {
        Self { large: LargeBodies::of(limits.large_bytes), limits }
    }

    /// Reads a body of at most `limit` bytes before `deadline`.
    ///
    /// # Errors
    /// 413 for one that is larger, 408 for one that comes too slowly, 400 for one that breaks off, 429 when too many large
    /// ones are being read, 504 when the deadline has passed.
    pub async fn read(&self, body: Body, limit: usize, deadline: Instant) -> Result<Bytes, ApiStatus> {
        let refused = |refusal| match refusal {
            Refusal::TooLarge { limit } => ApiStatus::too_large(limit),
            Refusal::RequestTimeout => ApiStatus::new(408, "Timeout", "the request's body did not arrive in time"),
            Refusal::Timeout => ApiStatus::new(504, "Timeout", "the request's body did not arrive within its deadline"),
            Refusal::Busy => {
                ApiStatus::new(429, "TooManyRequests", "too many large bodies are being read; try again").retry_after(1)
            }
            _ => ApiStatus::bad_request("the request's body could not be read to its end"),
        };
        collect(body, limit, deadline, &self.limits, &self.large).await.map(|read| read.bytes).map_err(refused)
    }
}

/// The time that a sender has earned by what it has sent.
fn earned(received: usize, bytes_per_second: u32) -> std::time::Duration {
    let millis = (received as u64).saturating_mul(1000) / u64::from(bytes_per_second.max(1));
    std::time::Duration::from_millis(millis)
}
