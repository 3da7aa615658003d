//! The TLS listener for kubectl and other programs: loopback only, unless told otherwise.
//!
//! Source: spec/extension-apiserver §6.6.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response, StatusCode, header};
use rustls::{RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::{net::TcpListener, time::Instant};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    access,
    limits::Limits,
    server::{BODY_LIMIT, Server},
};
use kube_listener::{Acceptor, BodyReader, ConnectionLimits, Handler, Http2Limits, Peer, RequestLimits, Stop};
use kube_protocol::status::ApiStatus;

/// Concurrent requests on one HTTP/2 connection: clients that run many watches have one connection.
const STREAMS: u32 = 1000;
/// Connections have no maximal age, since nobody's certificate changes; this is as good as none.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Why the server can't be listened to.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Others could reach it.
    #[error(
        "{0} can be reached from other hosts, and whoever is let in may do everything; listen on 127.0.0.1, or say \
         --insecure-listen-anywhere"
    )]
    NotLoopback(SocketAddr),
    /// The port can't be taken.
    #[error("cannot listen on {address}: {error}; choose another port with --port, or 0 for any free one")]
    Taken {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// Certificates can't be made or used.
    #[error("TLS of the development server: {0}")]
    Tls(String),
}

/// Who may reach a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Programs of this host.
    #[default]
    ThisHost,
    /// Whoever the address lets in.
    Anybody,
}

/// A listener that answers; it ends at once when this is dropped.
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    /// How the listener ends.
    stop: Stop,
    /// Connections and the loop that accepts them.
    tasks: TaskTracker,
    /// How the server ends.
    server_ends: CancellationToken,
}

impl fmt::Debug for Listening {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Listening").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listening {
    /// Where a program of this host reaches it.
    pub fn from_this_host(&self) -> SocketAddr {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, self.address.port())
    }

    /// Ends all connections of the moment, also those of the server's other listeners, watches and requests under way with them; new ones are taken.
    pub fn drop_connections(&self) {
        self.stop.cut.send_replace(());
    }

    /// Ends as a server does that is asked to: it is not ready any more, watches end, also those of the server's other listeners, and
    /// requests under way are answered if they need no longer than this.
    pub async fn end(self, patience: Duration) {
        self.server_ends.cancel();
        self.stop.graceful.cancel();
        self.tasks.close();
        // What is not through by then is cut off, as by dropping the listener.
        let _ = tokio::time::timeout(patience, self.tasks.wait()).await;
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
    let mut roots = RootCertStore::empty();
    roots.add(clients.clone()).map_err(|error| failed(error.to_string()))?;
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
    bounds: &Bounds,
) -> Result<Listening, ListenError> {
    if reach == Reach::ThisHost && !address.ip().is_loopback() {
        return Err(ListenError::NotLoopback(address));
    }
    let taken = |error| ListenError::Taken { address, error };
    let listener = TcpListener::bind(address).await.map_err(taken)?;
    let address = listener.local_addr().map_err(taken)?;
    let stop = Stop { cut: server.hooks.cut(), ..Stop::default() };
    let (tasks, server_ends) = (TaskTracker::new(), server.ending.clone());
    let acceptor =
        Acceptor { listener, tls: Some(tls), limits: bounds.connections, observer: Arc::new(()), tasks: tasks.clone() };
    let door = Arc::new(Door { server, bodies: BodyReader::new(bounds.bodies) });
    tasks.spawn(acceptor.run(door, stop.clone()));
    Ok(Listening { address, stop, tasks, server_ends })
}

/// What the connections of a listener may ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    connections: ConnectionLimits,
    bodies: RequestLimits,
}

impl Bounds {
    pub(super) fn of(limits: &Limits) -> Self {
        let connections = ConnectionLimits {
            connections: limits.connections,
            // All callers are on one host.
            connections_per_peer: usize::MAX,
            max_age: NEVER,
            http2: Http2Limits { streams: STREAMS, ..Http2Limits::default() },
            ..ConnectionLimits::default()
        };
        Self { connections, bodies: RequestLimits::default() }
    }
}

/// Lets requests of the outside in.
struct Door {
    server: Arc<Server>,
    bodies: BodyReader,
}

impl Handler for Door {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let peer = head.extensions.get::<Peer>().cloned();
        let certificate = peer.as_ref().and_then(|peer| peer.certificates.first());
        let headers = &head.headers;
        let user = if is_foreign_host(headers.get(header::HOST).and_then(|host| host.to_str().ok())) {
            // A page in a browser that reached us under a name of its own.
            Err(ApiStatus::new(
                403,
                "Forbidden",
                "forbidden: the development server answers to localhost and IP addresses only",
            ))
        } else if headers.contains_key(header::UPGRADE) {
            Err(ApiStatus::bad_request("the development server does not support upgraded connections"))
        } else {
            access::authenticate(certificate.map(AsRef::as_ref), headers, |token| self.server.user_of_token(token))
        };
        // The request's own deadline ends it earlier.
        let read = self.bodies.read(body, BODY_LIMIT, Instant::now() + NEVER);
        let response = self.server.answer_reading(head, user, read).await;
        let holds_on = matches!(response.status(), StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE);
        if let Some(peer) = peer.filter(|_| holds_on) {
            // What was announced may still be coming.
            peer.close_connection();
        }
        response
    }
}

/// Whether a request is addressed to neither localhost nor an IP address.
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
