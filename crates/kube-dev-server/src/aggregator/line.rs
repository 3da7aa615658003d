//! A line to a registered server: TLS with our certificate, its own checked by the name of its Service. Connections are kept.

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

const CONNECT: Duration = Duration::from_secs(5);
/// Below what servers keep idle connections.
const IDLE: Duration = Duration::from_secs(30);

/// A line to a registered server.
#[derive(Clone)]
pub(super) struct Line {
    client: Client<Dialer, Full<Bytes>>,
    /// `<service>.<namespace>.svc:<port>`.
    authority: String,
    end: Arc<End>,
}

/// Where a line leads, and as whom.
struct End {
    address: String,
    introduced: bool,
}

impl Line {
    /// A line to `address`, behind a Service.
    ///
    /// # Errors
    /// When the authorities of the server can't be used.
    pub(super) fn to(
        address: String,
        service: &ServiceReference,
        bundle: &str,
        identity: Option<&Identity>,
    ) -> Result<Self, Unavailable> {
        let config = tls(bundle, identity).map_err(Unavailable::failed_check)?;
        let name = ServerName::try_from(service.host())
            .map_err(|error| Unavailable::failed_check(format!("{}: {error}", service.host())))?;
        let end = Arc::new(End { address: address.clone(), introduced: identity.is_some() });
        let dialer = Dialer { address, name, tls: TlsConnector::from(Arc::new(config)) };
        let client =
            Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).build(dialer);
        Ok(Self { client, authority: format!("{}:{}", service.host(), service.port), end })
    }

    /// Whether it leads to an address in the name that the server has now.
    pub(super) fn leads_to(&self, address: &str, identity: Option<&Identity>) -> bool {
        self.end.address == address && self.end.introduced == identity.is_some()
    }

    /// Whether both are one line, with the same connections.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.end, &other.end)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Why there is no answer, as a person reads it.
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

/// What lies behind an error.
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
        // Nobody listens to this server: whom it calls has nobody to ask either.
        None => Ok(builder.with_no_client_auth()),
    }
}

/// Opens connections.
#[derive(Clone)]
struct Dialer {
    address: String,
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl tower::Service<Uri> for Dialer {
    type Response = Wire;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Wire>>;

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
            Ok(Wire(TokioIo::new(stream)))
        };
        let timely = async move {
            tokio::time::timeout(CONNECT, dial).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        timely.boxed()
    }
}

/// A connection, as the pool wants it.
struct Wire(TokioIo<TlsStream<TcpStream>>);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Wire {
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
