//! Accepts connections and keeps them within their limits, with or without TLS.
//!
//! Our own loop, because no ready server gives all of this together: a deadline for handshakes, a cap on connections, patience
//! when file descriptors run out, a maximal age, the caller's certificate with every request, and an end by a deadline.
//! Source: spec/extension-apiserver §4.3–§4.6, spec/api-and-admission §11.6, §11.8.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, body::Body, response::IntoResponse};
use futures::FutureExt;
use http::Request;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::{
    ServerConfig, SupportedCipherSuite,
    crypto::{CryptoProvider, ring},
    server::ResolvesServerCert,
    version::{TLS12, TLS13},
};
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;
use tracing::{debug, error, warn};

use super::{
    BindError, ConnectionLimits, Guest, LogLimit,
    patience::{Patient, Talk},
    status::Refusal,
    tls::{AnyHolder, LiveAuthorities, ShownChain},
    webhooks::{self, Webhooks},
};
use crate::metrics::{Listener, Metrics, OfListener, Rejected, Rejection};

/// The oldest TLS version that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// `VersionTLS12`.
    V1_2,
    /// `VersionTLS13`.
    V1_3,
}

/// Whether callers must show a certificate. Most API servers have none to show, so the default is not to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They are not asked.
    NotAsked,
    /// Whoever has one may show it; what it is worth is decided with each request.
    Asked,
    /// Webhooks answer only callers with a certificate of these authorities. Health needs none.
    DemandedByWebhooks {
        /// The authorities of this moment.
        authorities: LiveAuthorities,
    },
}

/// Who sent a request; an extension of every request.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where the connection comes from.
    pub address: SocketAddr,
    /// The certificates that the caller has shown, its own first. It holds the key of that one; whether anybody vouches for
    /// it is not checked yet.
    pub certificates: ShownChain,
    ending: CancellationToken,
}

impl Peer {
    /// A caller at this address with these certificates.
    pub fn new(address: SocketAddr, certificates: Vec<CertificateDer<'static>>) -> Self {
        Self { address, certificates: certificates.into(), ending: CancellationToken::new() }
    }

    /// Lets the connection end once the requests on it are answered.
    pub fn end_connection(&self) {
        self.ending.cancel();
    }
}

/// What is served on a listener.
#[derive(Clone)]
pub(super) struct Routes {
    /// The webhooks, if this is their port.
    pub(super) webhooks: Option<Arc<Webhooks>>,
    /// Who answers what is not for the webhooks, if anybody does.
    pub(super) guest: Option<Arc<dyn Guest>>,
    /// Everything else.
    pub(super) other: Router,
    /// Bounds what is logged of failed requests.
    pub(super) complaints: Arc<LogLimit>,
}

impl Routes {
    /// One request. While the connection is ending, reviews are still answered: the API server would refuse a user's write for
    /// want of one. Whoever reads views is asked to come again, which leads to another replica.
    async fn answer(self, request: Request<Body>, stop: &Stop) -> http::Response<Body> {
        match (self.webhooks, webhooks::asked(&request), self.guest) {
            (Some(webhooks), Some(webhook), _) => webhooks::review(webhooks, webhook, request).await,
            (_, None, Some(_)) if stop.graceful.is_cancelled() && !is_health(request.uri().path()) => {
                Refusal::Leaving.response(request.version())
            }
            (_, None, Some(guest)) if !webhooks::is_path(request.uri().path()) => guest.answer(request).await,
            _ => match self.other.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        }
    }
}

fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/livez" | "/readyz")
}

/// How serving ends.
#[derive(Clone, Default)]
pub(super) struct Stop {
    /// No new connections; those that are open finish what they are doing.
    pub(super) graceful: CancellationToken,
    /// Open connections end now.
    pub(super) abort: CancellationToken,
}

/// TLS settings with a certificate that can change between handshakes.
pub(super) fn tls_acceptor(
    certificate: Arc<dyn ResolvesServerCert>,
    min_version: TlsVersion,
    suites: &[SupportedCipherSuite],
    client_certificates: &ClientCertificates,
) -> Result<TlsAcceptor, BindError> {
    let failed = |error: rustls::Error| BindError::Tls(error.to_string());
    let provider = Arc::new(CryptoProvider { cipher_suites: suites.to_vec(), ..ring::default_provider() });
    let versions: &[_] = match min_version {
        TlsVersion::V1_2 => &[&TLS13, &TLS12],
        TlsVersion::V1_3 => &[&TLS13],
    };
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions).map_err(failed)?;
    let builder = match client_certificates {
        ClientCertificates::NotAsked => builder.with_no_client_auth(),
        ClientCertificates::Asked | ClientCertificates::DemandedByWebhooks { .. } => {
            builder.with_client_cert_verifier(AnyHolder::new())
        }
    };
    let mut config = builder.with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// How the bytes of a connection are to be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// A listener and what its connections share.
#[derive(Clone)]
pub(super) struct Acceptor {
    listener: Arc<TcpListener>,
    which: Listener,
    tls: Option<TlsAcceptor>,
    limits: ConnectionLimits,
    metrics: Metrics,
    tasks: TaskTracker,
    open: Arc<OpenConnections>,
}

impl Acceptor {
    pub(super) fn new(
        listener: TcpListener,
        which: Listener,
        tls: Option<TlsAcceptor>,
        limits: ConnectionLimits,
        metrics: Metrics,
        tasks: TaskTracker,
    ) -> Self {
        Self { listener: Arc::new(listener), which, tls, limits, metrics, tasks, open: Arc::default() }
    }

    /// Accepts until `stop.graceful`; the port is free afterwards.
    pub(super) async fn run(self, routes: Routes, stop: Stop) {
        let mut failures = 0;
        loop {
            let accepted = tokio::select! {
                () = stop.graceful.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    failures = 0;
                    self.admit(stream, address, &routes, &stop);
                }
                Err(failed) => {
                    failures += 1;
                    let pause = accept_pause(&failed, failures);
                    if !pause.is_zero() {
                        error!("cannot accept connections: {failed}; trying again in {pause:?}");
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        }
    }

    fn admit(&self, stream: TcpStream, address: SocketAddr, routes: &Routes, stop: &Stop) {
        let place = match self.open.enter(address.ip(), &self.limits) {
            Ok(place) => place,
            Err(reason) => {
                self.metrics.server.rejected.inc(&Rejected { listener: self.which, reason });
                debug!(peer = %address, ?reason, "closed a connection at once");
                return;
            }
        };
        let gauge = ConnectionGauge::new(self.metrics.clone(), self.which);
        let (tls, limits, which, metrics) = (self.tls.clone(), self.limits, self.which, self.metrics.clone());
        let (routes, stop) = (routes.clone(), stop.clone());
        self.tasks.spawn(async move {
            let _held = (place, gauge);
            // Answers are small and awaited; a delayed acknowledgement would cost 40 ms.
            if let Err(error) = stream.set_nodelay(true) {
                debug!(peer = %address, "cannot set TCP_NODELAY: {error}");
            }
            let talk = Talk::default();
            let stream = Patient::new(stream, limits.write, talk.clone());
            let Some(tls) = tls else {
                return serve(stream, Protocol::Http1, Peer::new(address, Vec::new()), talk, routes, limits, stop)
                    .await;
            };
            let shaken = tokio::select! {
                shaken = timeout(limits.handshake, tls.accept(stream)) => shaken,
                () = stop.graceful.cancelled() => return,
            };
            match shaken {
                Ok(Ok(stream)) => {
                    let session = stream.get_ref().1;
                    let certificates = session.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
                    let protocol = match session.alpn_protocol() {
                        Some(b"h2") => Protocol::Http2,
                        _ => Protocol::Http1,
                    };
                    serve(stream, protocol, Peer::new(address, certificates), talk, routes, limits, stop).await;
                }
                Ok(Err(error)) => {
                    metrics.server.rejected.inc(&Rejected { listener: which, reason: Rejection::Handshake });
                    debug!(peer = %address, "TLS handshake failed: {error}");
                }
                Err(_) => {
                    metrics.server.rejected.inc(&Rejected { listener: which, reason: Rejection::Handshake });
                    debug!(peer = %address, "TLS handshake took too long");
                }
            }
        });
    }
}

/// Answers the requests of one connection until it ends, grows old or is stopped.
async fn serve<I>(
    io: I,
    protocol: Protocol,
    peer: Peer,
    talk: Talk,
    routes: Routes,
    limits: ConnectionLimits,
    stop: Stop,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (address, asked_to_end) = (peer.address, peer.ending.clone());
    let leaving = stop.clone();
    let service = hyper::service::service_fn(move |request| {
        let asked = talk.request();
        let answered = answer(routes.clone(), peer.clone(), leaving.clone(), request);
        async move {
            let answered = answered.await;
            drop(asked);
            answered
        }
    });
    let builder = http_builder(protocol, &limits);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    // The port spreads connections that were made together.
    let spread = limits.max_age.mul_f64(f64::from(address.port() % 64) / 640.0);
    let mut old_age = std::pin::pin!(tokio::time::sleep(limits.max_age + spread));
    // Whoever does not take the answers to what is under way is not waited for without end.
    let mut cut_off = std::pin::pin!(tokio::time::sleep(limits.max_age + spread + limits.linger));
    let mut ending = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    debug!(peer = %address, "connection ended: {error}");
                }
                return;
            }
            () = stop.graceful.cancelled(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = asked_to_end.cancelled(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = old_age.as_mut(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = cut_off.as_mut() => {
                debug!(peer = %address, "cut off an old connection whose requests do not end");
                return;
            }
            () = stop.abort.cancelled() => return,
        }
    }
}

fn http_builder(protocol: Protocol, limits: &ConnectionLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let header_bytes = usize::try_from(limits.header_bytes).unwrap_or(64 * 1024);
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.header).max_buf_size(header_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(limits.header_bytes)
        .max_concurrent_streams(limits.streams)
        .initial_stream_window_size(256 * 1024)
        .initial_connection_window_size(1024 * 1024)
        .max_frame_size(256 * 1024)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(10));
    match protocol {
        Protocol::Http1 => builder.http1_only(),
        Protocol::Http2 => builder.http2_only(),
    }
}

/// One request: routed, guarded against panics, logged without its body.
async fn answer(
    routes: Routes,
    peer: Peer,
    stop: Stop,
    request: Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    let began = Instant::now();
    let (method, uri, address) = (request.method().clone(), request.uri().clone(), peer.address);
    let complaints = Arc::clone(&routes.complaints);
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    let answered = AssertUnwindSafe(routes.answer(request, &stop)).catch_unwind().await;
    let response = answered.unwrap_or_else(|_| {
        error!(%method, path = uri.path(), "a request handler panicked");
        Refusal::Panic.into_response()
    });
    let status = response.status().as_u16();
    // A health check that answers "no" has done its work.
    if status >= 500 && !is_health(uri.path()) {
        if let Some(held_back) = complaints.permit(Instant::now()) {
            let took = began.elapsed();
            warn!(peer = %address, %method, path = uri.path(), status, ?took, held_back, "request failed");
        }
    } else {
        debug!(peer = %address, %method, path = uri.path(), status, took = ?began.elapsed(), "request");
    }
    Ok(response)
}

/// How long to wait after `accept` failed for the nth time in a row. A connection that broke before it was accepted says
/// nothing about the next; when descriptors or memory run out, trying again at once would only burn the CPU.
fn accept_pause(error: &io::Error, failures: u32) -> Duration {
    match error.kind() {
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted => {
            Duration::ZERO
        }
        _ => Duration::from_millis(5).saturating_mul(1 << failures.min(8)).min(Duration::from_secs(1)),
    }
}

/// Counts open connections, in all and by address.
#[derive(Default)]
struct OpenConnections(Mutex<(usize, BTreeMap<IpAddr, usize>)>);

impl OpenConnections {
    fn enter(self: &Arc<Self>, peer: IpAddr, limits: &ConnectionLimits) -> Result<Place, Rejection> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = open.1.get(&peer).copied().unwrap_or(0);
        if open.0 >= limits.connections {
            return Err(Rejection::ConnectionLimit);
        }
        if of_peer >= limits.connections_per_peer {
            return Err(Rejection::PeerConnectionLimit);
        }
        open.0 += 1;
        open.1.insert(peer, of_peer + 1);
        drop(open);
        Ok(Place { open: Arc::clone(self), peer })
    }
}

/// A connection's place among the open ones; given back when dropped.
struct Place {
    open: Arc<OpenConnections>,
    peer: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.0 = open.0.saturating_sub(1);
        match open.1.get_mut(&self.peer) {
            Some(of_peer) if *of_peer > 1 => *of_peer -= 1,
            _ => {
                open.1.remove(&self.peer);
            }
        }
    }
}

struct ConnectionGauge(Metrics, OfListener);

impl ConnectionGauge {
    fn new(metrics: Metrics, listener: Listener) -> Self {
        let labels = OfListener { listener };
        metrics.server.connections.add(&labels, 1.0);
        Self(metrics, labels)
    }
}

impl Drop for ConnectionGauge {
    fn drop(&mut self) {
        self.0.server.connections.add(&self.1, -1.0);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_broken_connection_is_none_of_our_business(io::ErrorKind::ConnectionAborted, 5, 0)]
    #[case::without_descriptors_we_wait(io::ErrorKind::Other, 1, 10)]
    #[case::and_wait_longer(io::ErrorKind::Other, 4, 80)]
    #[case::but_never_longer_than_a_second(io::ErrorKind::Other, 100, 1_000)]
    fn accepting_is_tried_again(#[case] kind: io::ErrorKind, #[case] failures: u32, #[case] millis: u64) {
        assert_eq!(accept_pause(&io::Error::from(kind), failures), Duration::from_millis(millis));
    }

    #[test]
    fn connections_are_counted_in_all_and_by_address() {
        let limits = ConnectionLimits { connections: 3, connections_per_peer: 2, ..ConnectionLimits::default() };
        let open = Arc::new(OpenConnections::default());
        let (one, two) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let first = open.enter(one, &limits).ok().unwrap();
        let _second = open.enter(one, &limits).ok().unwrap();
        assert_eq!(open.enter(one, &limits).err(), Some(Rejection::PeerConnectionLimit));
        let _third = open.enter(two, &limits).ok().unwrap();
        assert_eq!(open.enter(two, &limits).err(), Some(Rejection::ConnectionLimit));
        drop(first);
        assert!(open.enter(two, &limits).is_ok());
    }
}
