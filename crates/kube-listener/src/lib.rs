//! The listener of an API server, with or without TLS: it accepts connections, keeps them within limits, gives their requests to a [`Handler`], and
//! closes them. [`body`] reads the bodies of requests within limits of size, time and memory.
//! [`pipeline`] is the way of a request through an API server.
//!
//! The crate has an accept loop of its own, because no server library offers all of this together: a deadline for handshakes, a limit of connections,
//! back-off when file descriptors run out, a maximal age, the certificates of the client with every request, and a shutdown by a deadline. The
//! listener does not interpret paths. It only recognises health checks. Source: spec/extension-apiserver §4.3–§4.6, spec/api-and-admission §11.6,
//! §11.8.

#![forbid(unsafe_code)]

mod acceptor;
mod activity;
pub mod body;
mod connection;
mod limiter;
mod limits;
mod peer_certificates;
pub mod pipeline;
pub mod refusal;
mod timeouts;

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use kube_protocol::health::ENDPOINTS;
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::limiter::ConnectionPermit;
pub use self::{
    acceptor::Acceptor,
    body::BodyReader,
    limits::{ConnectionLimits, Http2Limits, Limits, RequestLimits},
    peer_certificates::PeerCertificates,
    refusal::Refusal,
};

/// Answers the requests of a listener.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. The request carries its [`Peer`] as an extension.
    fn answer(&self, request: Request<Body>) -> impl Future<Output = Response<Body>> + Send;
}

/// The client of a request; an extension of every request.
#[derive(Clone)]
pub struct Peer {
    /// The address of the client.
    pub address: SocketAddr,
    /// The certificates that the client has sent, its own certificate first. The client has proven that it has the key of its own certificate. No
    /// authority has verified the certificates yet.
    pub certificates: PeerCertificates,
    /// Cancelled when the connection must be closed.
    close: CancellationToken,
    /// Cancelled when the listener shuts down.
    shutdown: CancellationToken,
    permit: Option<Arc<ConnectionPermit>>,
}

impl Peer {
    /// A client at this address with these certificates.
    pub fn new(address: SocketAddr, certificates: Vec<CertificateDer<'static>>) -> Self {
        Self {
            address,
            certificates: certificates.into(),
            close: CancellationToken::new(),
            shutdown: CancellationToken::new(),
            permit: None,
        }
    }

    /// Closes the connection once its requests are answered.
    pub fn close_connection(&self) {
        self.close.cancel();
    }

    /// Marks the client as a front proxy. From now on its connection does not count against the limit of its address.
    pub fn mark_as_front_proxy(&self) {
        if let Some(permit) = &self.permit {
            permit.mark_as_proxy();
        }
    }

    /// Whether the listener shuts down.
    pub fn is_shutting_down(&self) -> bool {
        self.shutdown.is_cancelled()
    }
}

/// Stops a listener. Clones share it.
#[derive(Clone, Default)]
pub struct Stop {
    /// No new connections are accepted. Open connections are closed once their requests are answered.
    pub graceful: CancellationToken,
    /// Open connections are closed at once.
    pub abort: CancellationToken,
    /// Each change closes all open connections at once. New connections are still accepted.
    pub cut: watch::Sender<()>,
}

/// Why a connection was refused before a handler saw a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The limit of all connections is reached.
    ConnectionLimit,
    /// The limit of connections of one address is reached.
    PeerConnectionLimit,
    /// The TLS handshake failed or took too long.
    Handshake,
}

/// Receives what happens on connections.
pub trait Observer: Send + Sync + 'static {
    /// A connection was opened.
    fn opened(&self);
    /// A connection was closed.
    fn closed(&self);
    /// A connection was refused.
    fn rejected(&self, reason: Rejection);
    /// A request was answered.
    fn answered(&self, peer: SocketAddr, method: &Method, path: &str, status: StatusCode, took: Duration);
}

/// Ignores everything.
impl Observer for () {
    fn opened(&self) {}
    fn closed(&self) {}
    fn rejected(&self, _: Rejection) {}
    fn answered(&self, _: SocketAddr, _: &Method, _: &str, _: StatusCode, _: Duration) {}
}

/// Whether a path asks for the health of the process.
pub fn is_health(path: &str) -> bool {
    let first = path.strip_prefix('/').map(|path| path.split('/').next().unwrap_or_default());
    first.is_some_and(|first| ENDPOINTS.contains(&first))
}
