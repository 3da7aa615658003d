//! How much callers may ask for, with the values that hold unless flags say otherwise.
//!
//! Not here, because nobody should turn it: how deep JSON may be nested (128 for reviews, which the stack bears; 100 for all else,
//! which clients bear), and in how many seconds resets and pings are counted. Source: spec/extension-apiserver §4.4,
//! spec/api-and-admission §9.12, §9.13, §11.8.

use std::time::Duration;

/// How much callers may ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of connections; each listener has its own.
    pub connections: ConnectionLimits,
    /// Of requests to webhooks and views.
    pub requests: RequestLimits,
}

/// Limits of one listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// A TLS handshake takes no longer.
    pub handshake: Duration,
    /// The head of a request arrives within this: the first one after the handshake, a later one after its first byte. HTTP/1.1
    /// only; with HTTP/2 a head that does not end answers no ping either.
    pub header: Duration,
    /// A connection on which nothing is asked for so long is ended gracefully.
    pub idle: Duration,
    /// Who reads nothing of an answer for so long is cut off.
    pub write: Duration,
    /// Bytes of a request's head, at least 8 KiB.
    pub header_bytes: u32,
    /// Fields of a request's head. Those of one name count once, as the many groups of a user that a front proxy tells; but over
    /// HTTP/1.1 each counts.
    pub header_fields: usize,
    /// Bytes of a request's path and query.
    pub path_bytes: usize,
    /// Connections in all; further ones are closed at once.
    pub connections: usize,
    /// Connections above [`Self::connections`] that are asked for health and nothing else, so that a crowd of callers does not
    /// look like a dead process.
    pub kept_for_health: usize,
    /// Connections of one address, those of front proxies not counted: each of them brings the requests of many.
    pub connections_per_peer: usize,
    /// A connection is ended gracefully at this age, so that no caller holds on to an old certificate. Up to a tenth
    /// comes on top, so that connections made together don't end together.
    pub max_age: Duration,
    /// So long after that it is cut off, whatever is still under way on it: who opens no window for an answer would hold it for
    /// ever.
    pub linger: Duration,
    /// What only HTTP/2 has.
    pub http2: Http2Limits,
}

/// Limits of one HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Limits {
    /// Concurrent requests.
    pub streams: u32,
    /// Bytes that a caller may send ahead on a stream.
    pub stream_window: u32,
    /// Bytes that a caller may send ahead on all streams.
    pub connection_window: u32,
    /// Bytes of a frame, from 16 KiB to 16 MiB - 1.
    pub frame_bytes: u32,
    /// How often a caller is asked whether it is still there.
    pub ping_interval: Duration,
    /// How long it may take to say so.
    pub ping_timeout: Duration,
    /// Requests that a caller may take back unanswered within ten seconds.
    pub resets: u32,
    /// Messages a second that are no request, such as pings, while nothing is being answered.
    pub pings_per_second: u32,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            idle: Duration::from_secs(90),
            write: Duration::from_secs(60),
            header_bytes: 64 * 1024,
            header_fields: 200,
            path_bytes: 16 * 1024,
            connections: 1_000,
            kept_for_health: 16,
            connections_per_peer: 200,
            max_age: Duration::from_secs(600),
            linger: Duration::from_secs(120),
            http2: Http2Limits::default(),
        }
    }
}

impl Default for Http2Limits {
    fn default() -> Self {
        Self {
            streams: 100,
            stream_window: 256 * 1024,
            connection_window: 1024 * 1024,
            frame_bytes: 256 * 1024,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(10),
            resets: 100,
            pings_per_second: 2,
        }
    }
}

/// Limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes of an admission review.
    pub admission_bytes: usize,
    /// Bytes of a conversion review, which carries many objects.
    pub conversion_bytes: usize,
    /// Bytes of any other request's body.
    pub other_bytes: usize,
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
    /// How long a review takes whose caller does not say.
    pub default_timeout: Duration,
    /// Reviews up to this many bytes are answered where they arrive; larger ones don't hold up other connections.
    pub inline_bytes: usize,
    /// Bytes of all larger bodies but those of admission that are being received or answered; beyond that, large ones are
    /// asked to come back.
    pub large_bytes: usize,
    /// The same for admission reviews: a memory of their own, so that conversions never keep them out.
    pub large_admission_bytes: usize,
    /// Larger reviews that are answered at a time, conversions and admission reviews each; the others wait as long as their
    /// callers do. What is made of a body in memory is several times its size.
    pub large_at_a_time: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            admission_bytes: 8 << 20,
            conversion_bytes: 64 << 20,
            other_bytes: 3 << 20,
            admission_in_flight: 200,
            conversion_in_flight: 50,
            body: Duration::from_secs(30),
            body_grace: Duration::from_secs(5),
            body_bytes_per_second: 1024,
            default_timeout: Duration::from_secs(30),
            inline_bytes: 64 * 1024,
            large_bytes: 96 << 20,
            large_admission_bytes: 32 << 20,
            large_at_a_time: 2,
        }
    }
}
