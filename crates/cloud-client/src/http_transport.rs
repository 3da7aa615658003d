//! Sends requests over HTTP/1.1 and TLS. No other part of a driver uses sockets.

use std::{error::Error, path::PathBuf, sync::OnceLock, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::{
        legacy::{Client, Error as ClientError},
        proxy::matcher::Matcher,
    },
    rt::{TokioExecutor, TokioTimer},
};

use crate::{
    USER_AGENT,
    proxy::Connector,
    secret::Secret,
    tls,
    transport::{Answer, NoAnswer, Transport},
};

/// Maximum length of an answer, in bytes.
const ANSWER_LIMIT: usize = 16 * 1024 * 1024;
/// Maximum number of idle connections per host, and for how long they are kept.
const IDLE_CONNECTIONS: usize = 16;
const IDLE_TIME: Duration = Duration::from_secs(30);

/// Trusted authorities and the identity of the client.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// A PEM file with the certificates of authorities that are trusted instead of the authorities of the system.
    pub ca_file: Option<PathBuf>,
    /// The same certificates as text. It has precedence over the file.
    pub ca: Option<String>,
    /// The certificate for servers that ask for one.
    pub identity: Option<ClientIdentity>,
    /// How the certificates of servers are checked.
    pub server: ServerCheck,
}

/// A client certificate.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// The certificate and its intermediate certificates (PEM).
    pub certificate: String,
    /// Its key (PEM).
    pub key: Secret,
}

/// How server certificates are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerCheck {
    /// A trusted authority must have issued it, and it must name the server.
    #[default]
    Full,
    /// Every certificate is accepted.
    None,
}

type Pool = Client<HttpsConnector<Connector>, Full<Bytes>>;

/// Sends requests over the network. Connections are kept and shared. Certificates are read at the first request, so that an unused
/// driver reads none.
pub struct HttpTransport {
    options: HttpOptions,
    pool: OnceLock<Result<Pool, String>>,
}

impl HttpTransport {
    /// A transport with these options. The proxy settings come from the environment.
    pub fn new(options: HttpOptions) -> Self {
        Self { options, pool: OnceLock::new() }
    }

    fn pool(&self) -> Result<&Pool, NoAnswer> {
        let pool = self.pool.get_or_init(|| open(&self.options, Matcher::from_env()));
        pool.as_ref().map_err(|why| NoAnswer::Unusable(why.clone()))
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn send(&self, mut request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        let answer = self.pool()?.request(request.map(Full::new)).await.map_err(|error| no_answer(&error))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_LIMIT).collect().await.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                NoAnswer::TooLong
            } else {
                NoAnswer::Lost(chain(error.as_ref()))
            }
        })?;
        Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
    }
}

fn no_answer(error: &ClientError) -> NoAnswer {
    if error.is_connect() { NoAnswer::NotSent(chain(error)) } else { NoAnswer::Lost(chain(error)) }
}

/// An error with its causes. No cause contains a header or a body.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

fn open(options: &HttpOptions, proxies: Matcher) -> Result<Pool, String> {
    let tls = HttpsConnectorBuilder::new()
        .with_tls_config(tls::config(options)?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(Connector::new(proxies));
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIME)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        // Retries only requests that were not written, because the connection had been closed.
        .retry_canceled_requests(true)
        .build(tls))
}

#[cfg(test)]
#[path = "http_transport_tests.rs"]
mod tests;
