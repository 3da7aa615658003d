//! The limits of connections and requests, with their defaults.
//!
//! Two limits are constants elsewhere, because no user has to change them: the nesting of JSON (128 for reviews, which the stack allows; 100 for all
//! else, which clients allow), and the seconds in which resets and pings are counted. Source: spec/extension-apiserver §4.4,
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
    /// A connection without a request for so long is closed gracefully.
    pub idle: Duration,
    /// A client that reads nothing of an answer for so long is disconnected.
    pub write: Duration,
    /// Most bytes of the head of a request, at least 8 KiB.
    pub header_bytes: u32,
    /// Most fields of the head of a request. Fields of the same name count once, for a front proxy sends many fields for the groups of a user. Over
    /// HTTP/1.1 each field counts.
    pub header_fields: usize,
    /// Most bytes of the path and query of a request.
    pub path_bytes: usize,
    /// Most connections. Further ones are closed at once.
    pub connections: usize,
    /// Connections above [`Self::connections`] that are for requests for health only, so that many clients do not make the process look dead.
    pub kept_for_health: usize,
    /// Most connections of one address. Those of front proxies do not count, because each of them carries the requests of many users.
    pub connections_per_peer: usize,
    /// The age at which a connection is closed gracefully, so that no client keeps an old certificate. Up to a tenth is added, so that connections
    /// that were opened together are not closed together.
    pub max_age: Duration,
    /// The time after that until the connection is closed at once: a client that does not read its answers would keep it for ever.
    pub linger: Duration,
    /// Limits of HTTP/2.
    pub http2: Http2Limits,
}

/// Limits of one HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Limits {
    /// Most concurrent requests.
    pub streams: u32,
    /// Bytes that a client may send on a stream before they are read.
    pub stream_window: u32,
    /// Bytes that a client may send on all streams before they are read.
    pub connection_window: u32,
    /// Most bytes of a frame, from 16 KiB to 16 MiB - 1.
    pub frame_bytes: u32,
    /// The interval of pings to the client.
    pub ping_interval: Duration,
    /// The longest time for the answer to a ping.
    pub ping_timeout: Duration,
    /// Requests that a client may reset within ten seconds.
    pub resets: u32,
    /// Messages a second that are no request, such as pings, while no request is being answered.
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
    /// Most bytes of an admission review.
    pub admission_bytes: usize,
    /// Most bytes of a conversion review, which carries many objects.
    pub conversion_bytes: usize,
    /// Most bytes of the body of any other request.
    pub other_bytes: usize,
    /// Most admission reviews at a time (`--max-inflight-admission`).
    pub admission_in_flight: usize,
    /// Most conversion reviews at a time. The limit is separate, because one write of an object may need both.
    pub conversion_in_flight: usize,
    /// The longest time for a body.
    pub body: Duration,
    /// After this time a body must come at [`Self::body_bytes_per_second`] or faster.
    pub body_grace: Duration,
    /// The lowest rate of a body.
    pub body_bytes_per_second: u32,
    /// The deadline of a review whose client gives none.
    pub default_timeout: Duration,
    /// Reviews of at most so many bytes are answered on the thread of their connection. Larger reviews must not delay other connections.
    pub inline_bytes: usize,
    /// Memory for all larger bodies that are being received or answered, except those of admission. Beyond it a large body is refused, and the client
    /// is asked to retry.
    pub large_bytes: usize,
    /// The same for admission reviews. The memory is separate, so that conversions never keep admission out.
    pub large_admission_bytes: usize,
    /// Larger reviews that are answered at a time, for conversion and for admission each. The others wait until their deadlines. In memory a decoded body
    /// takes several times its size.
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
