//! The TLS listener for kubectl and other programs: loopback only, unless told otherwise.
//!
//! Source: spec/extension-apiserver §6.6.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::{RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{
    access,
    aggregator::Peer,
    server::{BODY_LIMIT, Server},
};
use crate::protocol::status::ApiStatus;

const MOST_CONNECTIONS: usize = 2000;
const HANDSHAKE: Duration = Duration::from_secs(10);
const BODY: Duration = Duration::from_secs(30);

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

/// A listener that answers; it ends when this is dropped.
#[derive(Debug)]
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    stop: CancellationToken,
    /// Told when the connections of the moment are to end.
    cut: watch::Sender<()>,
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
        self.cut.send_replace(());
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.cancel();
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
) -> Result<Listening, ListenError> {
    if reach == Reach::ThisHost && !address.ip().is_loopback() {
        return Err(ListenError::NotLoopback(address));
    }
    let taken = |error| ListenError::Taken { address, error };
    let listener = TcpListener::bind(address).await.map_err(taken)?;
    let address = listener.local_addr().map_err(taken)?;
    let stop = CancellationToken::new();
    let cut = server.hooks.cut();
    tokio::spawn(accept(server, listener, tls, stop.clone(), cut.clone()));
    Ok(Listening { address, stop, cut })
}

async fn accept(
    server: Arc<Server>,
    listener: TcpListener,
    tls: TlsAcceptor,
    stop: CancellationToken,
    cut: watch::Sender<()>,
) {
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            // Out of file descriptors: others must close first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else { continue };
        let (server, tls, stop, mut cut) = (Arc::clone(&server), tls.clone(), stop.clone(), cut.subscribe());
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                _ = cut.changed() => {}
                () = connection(server, stream, Peer(peer.ip()), tls) => {}
            }
            drop(slot);
        });
    }
}

async fn connection(server: Arc<Server>, stream: TcpStream, peer: Peer, tls: TlsAcceptor) {
    // Answers are small and awaited.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|der| der.to_vec());
    let certificate = Arc::new(certificate);
    let service = hyper::service::service_fn(move |request| {
        let (server, certificate) = (Arc::clone(&server), Arc::clone(&certificate));
        async move { Ok::<_, Infallible>(answer(&server, certificate.as_deref(), peer, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1000);
    // The caller sees what went wrong.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    server: &Arc<Server>,
    certificate: Option<&[u8]>,
    peer: Peer,
    request: Request<Incoming>,
) -> Response<Body> {
    let (mut head, body) = request.into_parts();
    head.extensions.insert(peer);
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
        access::authenticate(certificate, headers, |token| server.user_of_token(token))
    };
    let read = tokio::time::timeout(BODY, Limited::new(body, BODY_LIMIT + 1).collect()).await;
    let (bytes, user) = match read {
        Ok(Ok(body)) => (body.to_bytes(), user),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            (bytes::Bytes::new(), Err(ApiStatus::too_large(BODY_LIMIT)))
        }
        Ok(Err(_)) => (bytes::Bytes::new(), Err(ApiStatus::bad_request("the body of the request cannot be read"))),
        Err(_) => (bytes::Bytes::new(), Err(ApiStatus::new(408, "Timeout", "the body of the request came too slowly"))),
    };
    server.answer(Request::from_parts(head, bytes), user).await
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
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::dev_server::{DevServer, DevServerOptions};

    #[tokio::test]
    async fn other_hosts_are_let_in_only_when_that_is_said() {
        let server = DevServer::start(DevServerOptions::default()).unwrap();
        let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let refused = server.listen(everywhere).await.unwrap_err().to_string();
        assert!(refused.contains("can be reached from other hosts") && refused.contains("--insecure-"), "{refused}");
        let (listening, _) = server.listen_for(Reach::Anybody, everywhere).await.unwrap();
        assert_eq!(listening.address.ip(), everywhere.ip());
        let near = listening.from_this_host();
        assert!(near.ip().is_loopback() && near.port() == listening.address.port(), "{near}");
    }

    #[rstest]
    #[case::address(Some("127.0.0.1:6443"), false)]
    #[case::v6(Some("[::1]:6443"), false)]
    #[case::localhost(Some("localhost:1"), false)]
    #[case::none(None, false)]
    #[case::th_38_rebinding(Some("evil.example.com:6443"), true)]
    fn th_38_foreign_hosts(#[case] host: Option<&str>, #[case] foreign: bool) {
        assert_eq!(is_foreign_host(host), foreign);
    }
}
