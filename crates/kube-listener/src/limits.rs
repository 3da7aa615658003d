//! The limits of connections and requests, with their defaults.
//!
//! Two limits are constants elsewhere, because no user has to change them: the depth of JSON (128 levels for reviews, because of the stack, and 100
//! for all other bodies, because of clients), and the period in which resets and pings are counted. Source: spec/extension-apiserver §4.4,
//! spec/api-and-admission §9.12, §9.13, §11.8.

use std::time::Duration;

/// The limits of connections and requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limits of connections. Each listener has its own.
    pub connections: ConnectionLimits,
    /// Limits of requests to webhooks and views.
    pub requests: RequestLimits,
}

/// Limits of one listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The longest TLS handshake.
    pub handshake: Duration,
    /// The longest time for the head of a request. For the first head it begins with the handshake, for a later head with its first byte. HTTP/1.1
    /// only: over HTTP/2 a client that does not complete a head does not answer pings either.
    pub header: Duration,
    /// A connection without a request for this time is closed gracefully.
    pub idle: Duration,
    /// A client that reads nothing of an answer for this time is disconnected.
    pub write: Duration,
    /// Maximum number of bytes of the head of a request, at least 8 KiB.
    pub header_bytes: u32,
    /// Maximum number of fields of the head of a request. Fields of the same name count once, because a front proxy sends many fields for the groups
    /// of a user. With HTTP/1.1 each field counts.
    pub header_fields: usize,
    /// Maximum number of bytes of the path and query of a request.
    pub path_bytes: usize,
    /// Maximum number of connections. Further connections are closed at once.
    pub connections: usize,
    /// Additional connections above [`Self::connections`], for health checks only, so that the process does not look dead when it has too many
    /// clients.
    pub kept_for_health: usize,
    /// Maximum number of connections of one address. Connections of front proxies do not count, because each carries the requests of many users.
    pub connections_per_peer: usize,
    /// The age at which a connection is closed gracefully, so that every client sees a new certificate. Up to a tenth is added, so that connections
    /// that were opened together are not closed together.
    pub max_age: Duration,
    /// The time after [`Self::max_age`] until the connection is closed at once. Otherwise a client that does not read its answers could keep the
    /// connection open for ever.
    pub linger: Duration,
    /// Limits of HTTP/2.
    pub http2: Http2Limits,
}

/// Limits of one HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Limits {
    /// Maximum number of concurrent requests.
    pub streams: u32,
    /// Bytes that a client may send on a stream before they are read.
    pub stream_window: u32,
    /// Bytes that a client may send on all streams before they are read.
    pub connection_window: u32,
    /// Maximum number of bytes of a frame, from 16 KiB to 16 MiB - 1.
    pub frame_bytes: u32,
    /// The interval of pings to the client.
    pub ping_interval: Duration,
    /// The longest time for the answer to a ping.
    pub ping_timeout: Duration,
    /// Requests that a client may reset within ten seconds.
    pub resets: u32,
    /// Messages per second without a request, such as pings, that a client may send while no request is being answered.
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
    /// Maximum number of bytes of an admission review.
    pub admission_bytes: usize,
    /// Maximum number of bytes of a conversion review, which carries many objects.
    pub conversion_bytes: usize,
    /// Maximum number of bytes of the body of any other request.
    pub other_bytes: usize,
    /// Maximum number of admission reviews at a time (`--max-inflight-admission`).
    pub admission_in_flight: usize,
    /// Maximum number of conversion reviews at a time. The limit is separate, because one write of an object may need both.
    pub conversion_in_flight: usize,
    /// The longest time for a body.
    pub body: Duration,
    /// After this time a body must come at [`Self::body_bytes_per_second`] or faster.
    pub body_grace: Duration,
    /// The lowest rate of a body.
    pub body_bytes_per_second: u32,
    /// The deadline of a review whose client gives none.
    pub default_timeout: Duration,
    /// A review of at most this number of bytes is answered on the thread of its connection. Larger reviews are answered elsewhere, so that they do
    /// not delay other connections.
    pub inline_bytes: usize,
    /// Memory for all larger bodies that are being received or answered, except admission reviews. If it is used up, a large body is refused, and the
    /// client is asked to retry.
    pub large_bytes: usize,
    /// The same for admission reviews. It is separate, so that conversions never block admission.
    pub large_admission_bytes: usize,
    /// Maximum number of larger reviews that are answered at the same time, counted separately for conversion and for admission. The others wait, at
    /// most until their deadlines. The limit exists because a decoded body takes several times its size in memory.
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
