//! The TLS listener for kubectl and other programs. It listens on loopback addresses only, unless the options allow others.
//!
//! Source: spec/extension-apiserver §6.6.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response, header, request::Parts};
use rustls::{ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    access::{self, User},
    limits::Limits,
    server::{Server, Source},
};
use kube_listener::{Acceptor, BodyReader, ConnectionLimits, Handler, Http2Limits, Peer, RequestLimits, Stop};
use kube_protocol::status::ApiStatus;

/// The most concurrent requests of an HTTP/2 connection. A client with many watches has only one connection.
const STREAMS: u32 = 1000;
/// Connections have no maximum age because certificates do not change. This time is practically unlimited.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Why a listener can't start.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Other hosts can reach the address.
    #[error(
        "{0} can be reached from other hosts, and whoever is let in may do everything; listen on 127.0.0.1, or say \
         --insecure-listen-anywhere"
    )]
    NotLoopback(SocketAddr),
    /// The address can't be bound.
    #[error("cannot listen on {address}: {error}; choose another port with --port, or 0 for any free one")]
    InUse {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// Certificates can't be created or used.
    #[error("TLS of the development server: {0}")]
    Tls(String),
}

/// The clients that may reach a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Clients on this host.
    #[default]
    ThisHost,
    /// All clients that can reach the address.
    Anybody,
}

/// A running listener. It stops at once when this value is dropped.
pub struct Listening {
    /// The address of the listener.
    pub address: SocketAddr,
    /// Stops the listener.
    stop: Stop,
    /// The connections, and the loop that accepts them.
    tasks: TaskTracker,
    /// Shuts the server down.
    shutdown: CancellationToken,
}

impl fmt::Debug for Listening {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Listening").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listening {
    /// The address at which a program on this host reaches the listener.
    pub fn from_this_host(&self) -> SocketAddr {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, self.address.port())
    }

    /// Closes all connections of all listeners of the server, with their watches and requests. The listeners accept new connections.
    pub fn drop_connections(&self) {
        self.stop.cut.send_replace(());
    }

    /// Shuts the server down. The server is not ready any more, and all watches end, including the watches of other listeners. Requests are answered
    /// if they end within `grace`.
    pub async fn end(self, grace: Duration) {
        self.shutdown.cancel();
        self.stop.graceful.cancel();
        self.tasks.close();
        // Requests that are not answered by then are aborted when `self` is dropped.
        let _ = tokio::time::timeout(grace, self.tasks.wait()).await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.graceful.cancel();
        self.stop.abort.cancel();
    }
}

pub(super) fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: &CertificateDer<'static>,
) -> Result<TlsAcceptor, ListenError> {
    let failed = |error: String| ListenError::Tls(error);
    let provider = Arc::new(ring::default_provider());
    let roots = tls_client::roots(std::slice::from_ref(clients)).map_err(|error| failed(error.to_string()))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(|error| failed(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| failed(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

pub(super) async fn listen(
    server: Arc<Server>,
    address: SocketAddr,
    reach: Reach,
    tls: TlsAcceptor,
    limits: &ListenerLimits,
) -> Result<Listening, ListenError> {
    if reach == Reach::ThisHost && !address.ip().is_loopback() {
        return Err(ListenError::NotLoopback(address));
    }
    let in_use = |error| ListenError::InUse { address, error };
    let listener = TcpListener::bind(address).await.map_err(in_use)?;
    let address = listener.local_addr().map_err(in_use)?;
    let stop = Stop { cut: server.hooks.cut(), ..Stop::default() };
    let (tasks, shutdown) = (TaskTracker::new(), server.shutdown.clone());
    let acceptor =
        Acceptor { listener, tls: Some(tls), limits: limits.connections, observer: Arc::new(()), tasks: tasks.clone() };
    let handler = Arc::new(RequestHandler { server, bodies: BodyReader::new(limits.bodies) });
    tasks.spawn(acceptor.run(handler, stop.clone()));
    Ok(Listening { address, stop, tasks, shutdown })
}

/// The limits of the connections and request bodies of a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerLimits {
    connections: ConnectionLimits,
    bodies: RequestLimits,
}

impl ListenerLimits {
    pub(super) fn of(limits: &Limits) -> Self {
        let connections = ConnectionLimits {
            connections: limits.connections,
            // All clients are on one host.
            connections_per_peer: usize::MAX,
            max_age: NEVER,
            http2: Http2Limits { streams: STREAMS, ..Http2Limits::default() },
            ..ConnectionLimits::default()
        };
        Self { connections, bodies: RequestLimits::default() }
    }
}

/// Passes the requests of a listener to the server.
struct RequestHandler {
    server: Arc<Server>,
    bodies: BodyReader,
}

impl Handler for RequestHandler {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        self.server.answer(request, Source::Listener(&self.bodies)).await
    }
}

/// Authenticates the user of a request from a listener.
pub(super) fn authenticated(server: &Server, head: &Parts) -> Result<User, ApiStatus> {
    let headers = &head.headers;
    if is_foreign_host(headers.get(header::HOST).and_then(|host| host.to_str().ok())) {
        // The request is from a page in a browser whose host name resolves to this server (DNS rebinding).
        let message = "forbidden: the development server answers to localhost and IP addresses only";
        return Err(ApiStatus::new(403, "Forbidden", message));
    }
    if headers.contains_key(header::UPGRADE) {
        return Err(ApiStatus::bad_request("the development server does not support upgraded connections"));
    }
    let certificate = head.extensions.get::<Peer>().and_then(|peer| peer.certificates.first());
    access::authenticate(certificate.map(AsRef::as_ref), headers, |token| server.user_of_token(token))
}

/// Whether the host of a request is neither localhost nor an IP address.
fn is_foreign_host(host: Option<&str>) -> bool {
    let Some(host) = host else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name != "localhost" && name.parse::<std::net::IpAddr>().is_err()
}

#[cfg(test)]
mod tests;
