//! The listener of an API server: connections accepted, kept within their limits, and ended; with or without TLS, for whoever
//! answers requests; and bodies read within limits of size, time and memory.
//!
//! Our own loop, because no ready server gives all of this together: a deadline for handshakes, a cap on connections, patience
//! when file descriptors run out, a maximal age, the caller's certificate with every request, and an end by a deadline.
//! What lives here knows nothing of what is asked but whether it is about health. Source: spec/extension-apiserver §4.3–§4.6,
//! spec/api-and-admission §11.6, §11.8.

#![forbid(unsafe_code)]

mod acceptor;
mod answering;
pub mod body;
mod limits;
mod patience;
mod places;
pub mod refusal;
mod shown;
mod talk;

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::places::Place;
pub use self::{
    acceptor::Acceptor,
    body::BodyReader,
    limits::{ConnectionLimits, Http2Limits, Limits, RequestLimits},
    refusal::Refusal,
    shown::ShownChain,
};

/// Answers the requests of a listener's connections.
pub trait Handler: Send + Sync + 'static {
    /// One request from head to answer. It carries its [`Peer`] as an extension.
    fn answer(&self, request: Request<Body>) -> impl Future<Output = Response<Body>> + Send;
}

/// Who sent a request; an extension of every request.
#[derive(Clone)]
pub struct Peer {
    /// Where the connection comes from.
    pub address: SocketAddr,
    /// The certificates that the caller has shown, its own first. It holds the key of that one; whether anybody vouches for
    /// it is not checked yet.
    pub certificates: ShownChain,
    ending: CancellationToken,
    /// Cancelled when the listener's connections are to end.
    leaving: CancellationToken,
    place: Option<Arc<Place>>,
}

impl Peer {
    /// A caller at this address with these certificates.
    pub fn new(address: SocketAddr, certificates: Vec<CertificateDer<'static>>) -> Self {
        Self {
            address,
            certificates: certificates.into(),
            ending: CancellationToken::new(),
            leaving: CancellationToken::new(),
            place: None,
        }
    }

    /// Lets the connection end once the requests on it are answered.
    pub fn end_connection(&self) {
        self.ending.cancel();
    }

    /// Says that the caller is a front proxy. Its connection does not count against the limit of its address any more.
    pub fn is_front_proxy(&self) {
        if let Some(place) = &self.place {
            place.is_of_proxy();
        }
    }

    /// Whether the connection is ending because the listener is.
    pub fn is_left(&self) -> bool {
        self.leaving.is_cancelled()
    }
}

/// How serving ends. Clones share it.
#[derive(Clone, Default)]
pub struct Stop {
    /// No new connections; those that are open finish what they are doing.
    pub graceful: CancellationToken,
    /// Open connections end now.
    pub abort: CancellationToken,
    /// Told when the connections of the moment are to end, and new ones are taken.
    pub cut: watch::Sender<()>,
}

/// Why a connection was turned away before any handler saw a request of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// As many connections as allowed are open.
    ConnectionLimit,
    /// One peer has as many connections as allowed.
    PeerConnectionLimit,
    /// The TLS handshake failed or took too long.
    Handshake,
}

/// Is told what happens on connections.
pub trait Observer: Send + Sync + 'static {
    /// One is open.
    fn opened(&self);
    /// One is open no more.
    fn closed(&self);
    /// Something was turned away.
    fn rejected(&self, reason: Rejection);
    /// A request got its answer.
    fn answered(&self, peer: SocketAddr, method: &Method, path: &str, status: StatusCode, took: Duration);
}

/// Nobody wants to know.
impl Observer for () {
    fn opened(&self) {}
    fn closed(&self) {}
    fn rejected(&self, _: Rejection) {}
    fn answered(&self, _: SocketAddr, _: &Method, _: &str, _: StatusCode, _: Duration) {}
}

/// Whether a path is asked for to learn how the process is.
pub fn is_health(path: &str) -> bool {
    let first = path.strip_prefix('/').map(|path| path.split('/').next().unwrap_or_default());
    matches!(first, Some("healthz" | "livez" | "readyz"))
}
