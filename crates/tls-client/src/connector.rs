//! Opens TLS connections: on a stream that is there, or to an address.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt};
use http::Uri;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower_service::Service;

/// Makes the handshake on a stream, with a server that must have this name.
///
/// # Errors
/// Why there is no connection that can be trusted.
pub async fn handshake<S>(stream: S, name: &str, config: Arc<ClientConfig>) -> io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let server = ServerName::try_from(name.to_owned())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a host")))?;
    TlsConnector::from(config).connect(server, stream).await
}

/// Connects to one fixed address for hyper's pools. The address in a request does not matter.
#[derive(Clone, Debug)]
pub struct Connector {
    /// `host:port`.
    pub address: String,
    /// The name that the server must have.
    pub name: String,
    /// The trusted servers and the client's certificate.
    pub config: Arc<ClientConfig>,
    /// Maximum time for connecting, including the handshake.
    pub within: Duration,
}

impl Connector {
    async fn connect(self) -> io::Result<MaybeHttpsStream<TokioIo<TcpStream>>> {
        let Self { address, name, config, .. } = self;
        let with = |text: &str, error: &io::Error| io::Error::new(error.kind(), format!("{text} {address}: {error}"));
        let stream = TcpStream::connect(&address).await.map_err(|error| with("dial tcp", &error))?;
        stream.set_nodelay(true)?;
        let stream = handshake(TokioIo::new(TokioIo::new(stream)), &name, config)
            .await
            .map_err(|error| with("tls: failed to verify certificate or to agree with", &error))?;
        Ok(stream.into())
    }
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(self.within, self.clone().connect());
        async move { connecting.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) }.boxed()
    }
}
