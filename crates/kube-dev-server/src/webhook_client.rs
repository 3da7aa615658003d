//! The client of webhooks: over TLS with the certificate authorities of a configuration, or in process.
//!
//! The client calls only webhooks on this host. The server is for development, and a configuration must not make it call other hosts.
//! Source: spec/extension-apiserver §6.5, §8 (TH-40).

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The most bytes of an answer.
const ANSWER_LIMIT: usize = 8 * 1024 * 1024;
/// The most idle connections of a webhook.
const MAX_IDLE: usize = 8;

/// A webhook in this process. It gets path and body, and returns status and body.
pub type InProcess = Arc<dyn Fn(&str, &[u8]) -> (u16, Vec<u8>) + Send + Sync>;

type Idle = HashMap<(String, String), Vec<SendRequest<Full<Bytes>>>>;

/// Calls webhooks.
#[derive(Default)]
pub(super) struct WebhookClient {
    idle: Mutex<Idle>,
    /// The webhooks in this process by the `host:port` of their URL or the `namespace/name` of their Service.
    in_process: Mutex<HashMap<String, InProcess>>,
    /// The ports of this server.
    own_ports: Mutex<BTreeSet<u16>>,
}

/// The address of a webhook.
struct Address {
    /// The `host:port`, or the `namespace/name` of a Service.
    authority: String,
    host: String,
    port: u16,
    path: String,
}

impl WebhookClient {
    /// Registers a webhook in this process.
    pub(super) fn register(&self, authority: &str, handler: InProcess) {
        self.in_process.lock().unwrap_or_else(PoisonError::into_inner).insert(authority.to_owned(), handler);
    }

    /// Blocks a port of this server. A call of the server to itself could cause an endless loop of calls.
    pub(super) fn block_port(&self, port: u16) {
        self.own_ports.lock().unwrap_or_else(PoisonError::into_inner).insert(port);
    }

    /// Sends a review and decodes the answer.
    pub(super) async fn call(&self, config: &Value, review: &Value, timeout: Duration) -> Result<Value, String> {
        let address = address_of(config)?;
        let body = Bytes::from(review.to_string());
        let handler = self.in_process.lock().unwrap_or_else(PoisonError::into_inner).get(&address.authority).cloned();
        let (status, answer) = if let Some(handler) = handler {
            let (status, answer) = handler(&address.path, &body);
            (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Bytes::from(answer))
        } else {
            let sent = self.send(&address, config["caBundle"].as_str().unwrap_or_default(), body, timeout);
            tokio::time::timeout(timeout, sent).await.map_err(|_| "context deadline exceeded".to_owned())??
        };
        if status != StatusCode::OK {
            return Err(format!("the server answered {status}"));
        }
        serde_json::from_slice(&answer).map_err(|error| format!("cannot read the answer: {error}"))
    }

    async fn send(
        &self,
        address: &Address,
        bundle: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(StatusCode, Bytes), String> {
        check_address(address, &self.own_ports.lock().unwrap_or_else(PoisonError::into_inner))?;
        let key = (address.authority.clone(), bundle.to_owned());
        let path = if address.path.contains('?') { "" } else { &*format!("?timeout={}s", timeout.as_secs().max(1)) };
        let request = || {
            Request::post(format!("{}{path}", address.path))
                .header(header::HOST, &address.authority)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json")
                .body(Full::new(body.clone()))
                .map_err(|error| error.to_string())
        };
        // The server may have closed an idle connection, so an error on it is ignored. Only an error on a new connection counts.
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&key).and_then(Vec::pop);
            let (mut connection, is_new) = match idle {
                Some(connection) => (connection, false),
                None => (connect(address, bundle).await?, true),
            };
            if connection.ready().await.is_err() && !is_new {
                continue;
            }
            let answered = connection.send_request(request()?).await;
            let answer = match answered {
                Err(_) if !is_new => continue,
                Err(error) => return Err(error.to_string()),
                Ok(answer) => answer,
            };
            let status = answer.status();
            let bytes =
                Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await.map_err(|error| error.to_string())?;
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let waiting = idle.entry(key).or_default();
            if waiting.len() < MAX_IDLE {
                waiting.push(connection);
            }
            return Ok((status, bytes.to_bytes()));
        }
    }
}

fn address_of(config: &Value) -> Result<Address, String> {
    let service = &config["service"];
    if service.is_object() {
        let text = |key: &str| service[key].as_str().unwrap_or_default();
        let authority = format!("{}/{}", text("namespace"), text("name"));
        let host = format!("{}.{}.svc", text("name"), text("namespace"));
        let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
        return Ok(Address { authority, host, port, path: text("path").to_owned() });
    }
    let url = config["url"].as_str().unwrap_or_default();
    let uri: http::Uri = url.parse().map_err(|error| format!("url {url:?}: {error}"))?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(443);
    let authority = format!("{}:{port}", uri.host().unwrap_or_default());
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    Ok(Address { authority, host, port, path })
}

/// Checks that a webhook is on this host and is not this server.
fn check_address(address: &Address, own_ports: &BTreeSet<u16>) -> Result<(), String> {
    let loopback =
        address.host == "localhost" || address.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !loopback {
        return Err(format!(
            "{} is not on this host; the development server calls loopback addresses only",
            address.authority
        ));
    }
    if own_ports.contains(&address.port) {
        return Err(format!("{} is the development server itself; it does not call itself", address.authority));
    }
    Ok(())
}

async fn connect(address: &Address, bundle: &str) -> Result<SendRequest<Full<Bytes>>, String> {
    let mut roots = RootCertStore::empty();
    let pem = BASE64_STANDARD.decode(bundle).map_err(|error| format!("caBundle: {error}"))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| format!("caBundle: {error}"))?;
        roots.add(certificate).map_err(|error| format!("caBundle: {error}"))?;
    }
    if roots.is_empty() {
        return Err("tls: failed to verify certificate: x509: certificate signed by unknown authority".to_owned());
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(&address.authority)
        .await
        .map_err(|error| format!("dial tcp {}: {error}", address.authority))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let name = ServerName::try_from(address.host.clone()).map_err(|error| error.to_string())?;
    let stream =
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| format!("tls: {error}"))?;
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        // The request on the connection returns the error.
        let _ = connection.await;
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::loopback("https://127.0.0.1:9443/validate", true)]
    #[case::loopback_of_v6("https://[::1]:9443/validate", true)]
    #[case::localhost("https://localhost:9443/validate", true)]
    #[case::th_40_itself("https://127.0.0.1:6443/validate", false)]
    #[case::th_40_itself_by_name("https://localhost:6443/validate", false)]
    #[case::th_40_metadata_of_a_cloud("https://169.254.169.254/latest", false)]
    #[case::th_40_another_host("https://example.com/validate", false)]
    #[case::th_40_a_name_that_looks_local("https://localhost.example.com/validate", false)]
    fn webhooks_are_called_on_this_host_only(#[case] url: &str, #[case] allowed: bool) {
        let address = address_of(&json!({"url": url})).unwrap();
        assert_eq!(check_address(&address, &BTreeSet::from([6443])).is_ok(), allowed);
    }
}
