//! Connects to a host, directly or through the proxy of the environment.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::{
    client::{
        legacy::connect::{HttpConnector, proxy::Tunnel},
        proxy::matcher::Matcher,
    },
    rt::TokioIo,
};
use tokio::net::TcpStream;
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long TCP may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time of a connection after which the kernel sends keep-alive probes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);

/// Opens TCP connections. Connections for `https` use the proxy in `HTTPS_PROXY`, unless `NO_PROXY` names the host. Plain `http`
/// is used only for metadata services and test endpoints, which must not be reached through a proxy.
#[derive(Clone)]
pub struct Connector {
    tcp: HttpConnector,
    proxies: Arc<Matcher>,
}

impl Connector {
    /// A connector with these proxies.
    pub fn new(proxies: Matcher) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(KEEPALIVE_AFTER));
        Self { tcp, proxies: Arc::new(proxies) }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let mut tcp = self.tcp.clone();
        let proxy = if to.scheme_str() == Some("https") { self.proxies.intercept(&to) } else { None };
        let Some(proxy) = proxy else {
            return Box::pin(async move { tcp.call(to).await.map_err(Into::into) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), tcp);
        if let Some(login) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(login.clone());
        }
        Box::pin(async move { tunnel.call(to).await.map_err(Into::into) })
    }
}
