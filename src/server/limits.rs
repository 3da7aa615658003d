//! How much a caller may ask for. Source: spec/extension-apiserver §4.4, spec/api-and-admission §9.12, §9.13, §11.8.

use std::time::Duration;

/// Limits of one listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// A TLS handshake takes no longer.
    pub handshake: Duration,
    /// The head of a request arrives within this. On HTTP/1.1 it also ends a connection that is idle for so long.
    pub header: Duration,
    /// Who reads nothing of an answer for so long is cut off.
    pub write: Duration,
    /// Bytes of a request's head.
    pub header_bytes: u32,
    /// Connections in all; further ones are closed at once.
    pub connections: usize,
    /// Connections of one address.
    pub connections_per_peer: usize,
    /// A connection is ended gracefully at this age, so that no caller holds on to an old certificate. Up to a tenth
    /// comes on top, so that connections made together don't end together.
    pub max_age: Duration,
    /// So long after that it is cut off, whatever is still under way on it: who opens no window for an answer would hold it for
    /// ever.
    pub linger: Duration,
    /// Concurrent requests on one HTTP/2 connection.
    pub streams: u32,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            write: Duration::from_secs(60),
            header_bytes: 64 * 1024,
            connections: 1_000,
            connections_per_peer: 200,
            max_age: Duration::from_secs(600),
            linger: Duration::from_secs(120),
            streams: 100,
        }
    }
}

/// Limits of requests to webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes of an admission review.
    pub admission_bytes: usize,
    /// Bytes of a conversion review, which carries many objects.
    pub conversion_bytes: usize,
    /// Admission reviews at a time (`--max-inflight-admission`).
    pub admission_in_flight: usize,
    /// Conversion reviews at a time: a limit of its own, since one write of an object may need both.
    pub conversion_in_flight: usize,
    /// A body arrives within this ...
    pub body: Duration,
    /// ... and after this grace never slower than [`Self::body_bytes_per_second`].
    pub body_grace: Duration,
    /// The slowest sender that is waited for.
    pub body_bytes_per_second: u32,
    /// How long a request takes whose caller does not say.
    pub default_timeout: Duration,
    /// Reviews up to this many bytes are answered where they arrive; larger ones don't hold up other connections.
    pub inline_bytes: usize,
    /// Bytes of all larger reviews that are being received or answered; beyond that, large ones are asked to come back.
    pub large_bytes: usize,
    /// Larger reviews that are answered at a time; the others wait as long as their callers do. What is made of a body in
    /// memory is several times its size.
    pub large_at_a_time: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            admission_bytes: 8 << 20,
            conversion_bytes: 64 << 20,
            admission_in_flight: 200,
            conversion_in_flight: 50,
            body: Duration::from_secs(30),
            body_grace: Duration::from_secs(5),
            body_bytes_per_second: 1024,
            default_timeout: Duration::from_secs(30),
            inline_bytes: 64 * 1024,
            large_bytes: 128 << 20,
            large_at_a_time: 2,
        }
    }
}
