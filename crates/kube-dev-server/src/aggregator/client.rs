//! The client of a registered server. It uses TLS with the client certificate of this server, checks the name of the Service in the certificate of
//! the other server, and keeps its connections.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    identity::Identity,
    registration::{ServiceReference, Unavailable},
};

/// The timeout of a connection attempt, with the TLS handshake.
const CONNECT: Duration = Duration::from_secs(5);
/// The time after which an idle connection is closed. It is shorter than the idle timeout of servers.
const IDLE: Duration = Duration::from_secs(30);

/// The client of a registered server.
#[derive(Clone)]
pub(super) struct ExtensionClient {
    client: Client<Connector, Full<Bytes>>,
    /// `<service>.<namespace>.svc:<port>`.
    authority: String,
    endpoint: Arc<Endpoint>,
}

/// The address of the server, and whether the client has a certificate.
struct Endpoint {
    address: String,
    has_identity: bool,
}

impl ExtensionClient {
    /// A client of the server at `address`, which is behind a Service.
    ///
    /// # Errors
    /// If the certificate authorities of the server can't be used.
    pub(super) fn new(
        address: String,
        service: &ServiceReference,
        bundle: &str,
        identity: Option<&Identity>,
    ) -> Result<Self, Unavailable> {
        let config = tls(bundle, identity).map_err(Unavailable::failed_check)?;
        let name = ServerName::try_from(service.host())
            .map_err(|error| Unavailable::failed_check(format!("{}: {error}", service.host())))?;
        let endpoint = Arc::new(Endpoint { address: address.clone(), has_identity: identity.is_some() });
        let connector = Connector { address, name, tls: TlsConnector::from(Arc::new(config)) };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Self { client, authority: format!("{}:{}", service.host(), service.port), endpoint })
    }

    /// Whether the client is for an address and uses the current identity of this server.
    pub(super) fn is_for(&self, address: &str, identity: Option<&Identity>) -> bool {
        self.endpoint.address == address && self.endpoint.has_identity == identity.is_some()
    }

    /// Whether both are the same client, with the same connections.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.endpoint, &other.endpoint)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The reason why there is no answer, as text for people.
    pub(super) async fn send(
        &self,
        method: Method,
        path_and_query: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, String> {
        let uri = format!("https://{}{path_and_query}", self.authority);
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .body(Full::new(body))
            .map_err(|error| format!("{path_and_query:?}: {error}"))?;
        *request.headers_mut() = headers;
        self.client.request(request).await.map_err(|error| innermost(&error))
    }
}

/// The text of the innermost cause of an error.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

fn tls(bundle: &str, identity: Option<&Identity>) -> Result<ClientConfig, String> {
    let pem = BASE64_STANDARD.decode(bundle).map_err(|error| format!("spec.caBundle: {error}"))?;
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&pem) {
        let authority = authority.map_err(|error| format!("spec.caBundle: {error}"))?;
        roots.add(authority).map_err(|error| format!("spec.caBundle: {error}"))?;
    }
    if roots.is_empty() {
        return Err(
            "spec.caBundle is empty; the development server calls nobody whose certificate it can't check".into()
        );
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    match identity {
        Some(identity) => builder
            .with_client_auth_cert(vec![identity.certificate.clone()], identity.key.clone_key())
            .map_err(|error| error.to_string()),
        // Without a listener this server has no identity. An extension API server could not reach it either.
        None => Ok(builder.with_no_client_auth()),
    }
}

/// Opens TLS connections.
#[derive(Clone)]
struct Connector {
    address: String,
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl tower::Service<Uri> for Connector {
    type Response = TlsConnection;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TlsConnection>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { address, name, tls } = self.clone();
        let dial = async move {
            let failed = |error: io::Error| io::Error::new(error.kind(), format!("dial tcp {address}: {error}"));
            let stream = TcpStream::connect(&address).await.map_err(failed)?;
            stream.set_nodelay(true)?;
            let stream = tls.connect(name, stream).await.map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("tls: failed to verify certificate or to agree with {address}: {error}"),
                )
            })?;
            Ok(TlsConnection(TokioIo::new(stream)))
        };
        let with_timeout = async move {
            tokio::time::timeout(CONNECT, dial).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        with_timeout.boxed()
    }
}

/// A TLS connection with the traits of the connection pool.
struct TlsConnection(TokioIo<TlsStream<TcpStream>>);

impl Connection for TlsConnection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for TlsConnection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
