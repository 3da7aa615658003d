//! Connections to the servers that this server calls: webhooks and extension API servers.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use tls_client::{Connector, Identity, TlsError, Trust};

/// The time after which an idle connection is closed. It is shorter than the idle timeout of servers.
const IDLE: Duration = Duration::from_secs(30);

/// Sends requests to one server and keeps its connections.
pub(crate) type Pool = Client<Connector, Full<Bytes>>;

/// The server at the other end of a pool.
pub(crate) struct Remote<'a> {
    /// `host:port`.
    pub(crate) address: &'a str,
    /// The name in its certificate.
    pub(crate) name: &'a str,
    /// The authorities that may have issued its certificate: PEM in Base64, as in a `caBundle`.
    pub(crate) bundle: &'a str,
    /// The longest time that connecting may take.
    pub(crate) within: Duration,
}

/// A pool of connections to a server.
///
/// # Errors
/// Why the authorities or the identity can't be used.
pub(crate) fn pool(remote: &Remote<'_>, identity: Option<Identity>) -> Result<Pool, TlsError> {
    let pem = BASE64_STANDARD.decode(remote.bundle).map_err(|error| TlsError::Unusable(error.to_string()))?;
    let config = tls_client::config(Trust::authorities(&pem)?, identity)?;
    let connector = Connector {
        address: remote.address.to_owned(),
        name: remote.name.to_owned(),
        config: Arc::new(config),
        within: remote.within,
    };
    Ok(Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).build(connector))
}

/// The text of the innermost cause of an error.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
