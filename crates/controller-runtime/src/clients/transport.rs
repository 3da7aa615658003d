//! The connections to one API server: HTTP/1.1 over TLS, with timeouts that end dead connections.

use std::time::Duration;

use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ClientBuilder, ConfigExt};
use tower::ServiceBuilder;

use super::config::ConfigError;
use crate::error::chain;

/// How long TCP and TLS may take to connect.
const CONNECT: Duration = Duration::from_secs(10);
/// Idle time of a connection after which the kernel sends keep-alive probes.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Interval of the probes, and how many may remain unanswered.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent data may remain unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);
/// Maximum number of idle connections in the pool, and for how long they are kept.
const IDLE_CONNECTIONS: usize = 32;
const IDLE_TIME: Duration = Duration::from_secs(30);

/// Opens a connection pool. `Config::default_retry` has no effect here: nothing is retried.
pub(super) fn open(config: &kube::Config) -> Result<kube::Client, ConfigError> {
    let unusable =
        |error: kube::Error| ConfigError::Credentials { server: config.cluster_url.to_string(), cause: chain(&error) };
    if let Some(proxy) = &config.proxy_url {
        return Err(ConfigError::Proxy { proxy: proxy.authority().map(ToString::to_string).unwrap_or_default() });
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let tls = config.rustls_https_connector_with_connector(tcp).map_err(unusable)?;
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIME)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .build(ServiceBuilder::new().map_future(Box::pin).timeout(CONNECT).service(tls));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(unusable)?)
        .layer(config.extra_headers_layer().map_err(unusable)?)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}
