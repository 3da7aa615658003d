//! Calls webhooks: over TLS with the authorities that a configuration names, or in process.
//!
//! Only this host is called: the server is for development, and a configuration must not make it fetch from elsewhere.
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

/// Longer answers are refused.
const ANSWER_LIMIT: usize = 8 * 1024 * 1024;
/// Idle connections per webhook.
const MOST_IDLE: usize = 8;

/// Answers calls in this process: path and body in, status and body out.
pub type InProcess = Arc<dyn Fn(&str, &[u8]) -> (u16, Vec<u8>) + Send + Sync>;

type Idle = HashMap<(String, String), Vec<SendRequest<Full<Bytes>>>>;

/// Calls webhooks.
#[derive(Default)]
pub(super) struct WebhookClient {
    idle: Mutex<Idle>,
    /// Handlers by `host:port` of an URL, or `namespace/name` of a Service.
    in_process: Mutex<HashMap<String, InProcess>>,
    /// Ports of this host that are the server's own.
    own_ports: Mutex<BTreeSet<u16>>,
}

/// Where a webhook is.
struct Place {
    /// `host:port`, or `namespace/name` of a Service.
    authority: String,
    host: String,
    port: u16,
    path: String,
}

impl WebhookClient {
    /// Answers calls to an authority here.
    pub(super) fn register(&self, authority: &str, handler: InProcess) {
        self.in_process.lock().unwrap_or_else(PoisonError::into_inner).insert(authority.to_owned(), handler);
    }

    /// Never calls a port of this host: it is the server's own, and the call would come back for ever.
    pub(super) fn never_call(&self, port: u16) {
        self.own_ports.lock().unwrap_or_else(PoisonError::into_inner).insert(port);
    }

    /// Posts a review and reads the answer.
    pub(super) async fn call(&self, config: &Value, review: &Value, timeout: Duration) -> Result<Value, String> {
        let place = place(config)?;
        let body = Bytes::from(review.to_string());
        let handler = self.in_process.lock().unwrap_or_else(PoisonError::into_inner).get(&place.authority).cloned();
        let (status, answer) = if let Some(handler) = handler {
            let (status, answer) = handler(&place.path, &body);
            (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Bytes::from(answer))
        } else {
            let sent = self.send(&place, config["caBundle"].as_str().unwrap_or_default(), body, timeout);
            tokio::time::timeout(timeout, sent).await.map_err(|_| "context deadline exceeded".to_owned())??
        };
        if status != StatusCode::OK {
            return Err(format!("the server answered {status}"));
        }
        serde_json::from_slice(&answer).map_err(|error| format!("cannot read the answer: {error}"))
    }

    async fn send(
        &self,
        place: &Place,
        bundle: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(StatusCode, Bytes), String> {
        may_call(place, &self.own_ports.lock().unwrap_or_else(PoisonError::into_inner))?;
        let key = (place.authority.clone(), bundle.to_owned());
        let path = if place.path.contains('?') { "" } else { &*format!("?timeout={}s", timeout.as_secs().max(1)) };
        let request = || {
            Request::post(format!("{}{path}", place.path))
                .header(header::HOST, &place.authority)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json")
                .body(Full::new(body.clone()))
                .map_err(|error| error.to_string())
        };
        // A connection that was idle may have been closed meanwhile; a new one tells the truth.
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&key).and_then(Vec::pop);
            let (mut connection, is_new) = match idle {
                Some(connection) => (connection, false),
                None => (connect(place, bundle).await?, true),
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
            if waiting.len() < MOST_IDLE {
                waiting.push(connection);
            }
            return Ok((status, bytes.to_bytes()));
        }
    }
}

fn place(config: &Value) -> Result<Place, String> {
    let service = &config["service"];
    if service.is_object() {
        let text = |key: &str| service[key].as_str().unwrap_or_default();
        let authority = format!("{}/{}", text("namespace"), text("name"));
        let host = format!("{}.{}.svc", text("name"), text("namespace"));
        let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
        return Ok(Place { authority, host, port, path: text("path").to_owned() });
    }
    let url = config["url"].as_str().unwrap_or_default();
    let uri: http::Uri = url.parse().map_err(|error| format!("url {url:?}: {error}"))?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(443);
    let authority = format!("{}:{port}", uri.host().unwrap_or_default());
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    Ok(Place { authority, host, port, path })
}

/// Whether a webhook may be called: it is on this host and not the server itself.
fn may_call(place: &Place, own_ports: &BTreeSet<u16>) -> Result<(), String> {
    let loopback = place.host == "localhost" || place.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !loopback {
        return Err(format!(
            "{} is not on this host; the development server calls loopback addresses only",
            place.authority
        ));
    }
    if own_ports.contains(&place.port) {
        return Err(format!("{} is the development server itself; it does not call itself", place.authority));
    }
    Ok(())
}

async fn connect(place: &Place, bundle: &str) -> Result<SendRequest<Full<Bytes>>, String> {
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
    let stream =
        TcpStream::connect(&place.authority).await.map_err(|error| format!("dial tcp {}: {error}", place.authority))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let name = ServerName::try_from(place.host.clone()).map_err(|error| error.to_string())?;
    let stream =
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| format!("tls: {error}"))?;
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        // Whoever uses the connection sees its error.
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
        let place = place(&json!({"url": url})).unwrap();
        assert_eq!(may_call(&place, &BTreeSet::from([6443])).is_ok(), allowed);
    }
}
