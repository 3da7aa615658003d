//! Reads a request's body within its limits of size and time.

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::{RequestLimits, status::Refusal};

/// Collects a body of at most `limit` bytes before `deadline`. A declared length above the limit is refused unread; a
/// sender that stops or trickles is given up.
pub(super) async fn collect(
    mut body: Body,
    limit: usize,
    deadline: Instant,
    limits: &RequestLimits,
) -> Result<Bytes, Refusal> {
    let declared = HttpBody::size_hint(&body);
    if usize::try_from(declared.lower()).map_or(true, |length| length > limit) {
        return Err(Refusal::TooLarge { limit });
    }
    let started = Instant::now();
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
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
        if received + data.len() > limit {
            return Err(Refusal::TooLarge { limit });
        }
        // Most bodies come in one piece, which is then not copied.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.reserve(usize::try_from(declared.lower()).unwrap_or(0).max(received + data.len()));
                rest.extend_from_slice(&first);
                first = Bytes::new();
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// The time that a sender has earned by what it has sent.
fn earned(received: usize, bytes_per_second: u32) -> std::time::Duration {
    let millis = (received as u64).saturating_mul(1000) / u64::from(bytes_per_second.max(1));
    std::time::Duration::from_millis(millis)
}
