//! The client of webhooks: over TLS with the certificate authorities of a configuration, or in process.
//!
//! The client calls only webhooks on this host. The server is for development, and a configuration must not make it call other hosts.
//! Source: spec/extension-apiserver §6.5, §8 (TH-40).

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::Value;
use tls_client::TlsError;

use crate::tls_pool::{Pool, Remote, innermost, pool};

/// The most bytes of an answer.
const ANSWER_LIMIT: usize = 8 * 1024 * 1024;
/// The longest time that connecting may take. The timeout of a webhook is shorter, or as long.
const CONNECT: Duration = Duration::from_secs(30);

/// A webhook in this process. It gets path and body, and returns status and body.
pub type InProcess = Arc<dyn Fn(&str, &[u8]) -> (u16, Vec<u8>) + Send + Sync>;

/// Calls webhooks.
#[derive(Default)]
pub(super) struct WebhookClient {
    /// Connections, by the authority of the webhook and its `caBundle`.
    pools: Mutex<HashMap<(String, String), Pool>>,
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
        let path = if address.path.contains('?') { "" } else { &*format!("?timeout={}s", timeout.as_secs().max(1)) };
        let request = Request::post(format!("https://{}{}{path}", address.authority, address.path))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let pool = self.pool(address, bundle)?;
        let answer = match pool.request(request.clone()).await {
            // The webhook may have closed an idle connection while this review was sent on it.
            Err(error) if !error.is_connect() => pool.request(request).await,
            sent => sent,
        };
        let answer = answer.map_err(|error| innermost(&error))?;
        let status = answer.status();
        let bytes =
            Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await.map_err(|error| error.to_string())?;
        Ok((status, bytes.to_bytes()))
    }

    fn pool(&self, address: &Address, bundle: &str) -> Result<Pool, String> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (address.authority.clone(), bundle.to_owned());
        if let Some(pool) = pools.get(&key) {
            return Ok(pool.clone());
        }
        let remote = Remote { address: &address.authority, name: &address.host, bundle, within: CONNECT };
        let pool = pool(&remote, None).map_err(|error| match error {
            TlsError::Empty => {
                "tls: failed to verify certificate: x509: certificate signed by unknown authority".to_owned()
            }
            TlsError::Unusable(why) => format!("caBundle: {why}"),
        })?;
        pools.insert(key, pool.clone());
        Ok(pool)
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

#[cfg(test)]
mod tests {
    use std::{
        io,
        net::Ipv4Addr,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use base64::{Engine, prelude::BASE64_STANDARD};
    use rstest::rstest;
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::certificates::{Authority, Holder, SERVER};

    /// A webhook that answers every `answered`-th review, counted from the first one, and closes the connections of the others.
    struct Webhook {
        port: u16,
        reviews: Arc<AtomicUsize>,
    }

    impl Webhook {
        async fn new(authority: &Authority, answered: usize) -> Self {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            let (certificate, key) =
                authority.issue("webhook", Holder::Server(address.ip())).unwrap().decoded().unwrap();
            let tls = crate::listener::acceptor(vec![certificate.clone()], key, &certificate).unwrap();
            let reviews = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&reviews);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(Self::serve(stream, tls.clone(), answered, Arc::clone(&counter)));
                }
            });
            Self { port: address.port(), reviews }
        }

        async fn serve(
            stream: TcpStream,
            tls: TlsAcceptor,
            answered: usize,
            reviews: Arc<AtomicUsize>,
        ) -> io::Result<()> {
            let mut stream = tls.accept(stream).await?;
            loop {
                // A review in these tests is `{}`.
                while stream.read_u8().await? != b'}' {}
                if !reviews.fetch_add(1, Ordering::SeqCst).is_multiple_of(answered) {
                    return stream.shutdown().await;
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue").await?;
            }
        }

        async fn ask(&self, client: &WebhookClient, bundle: &str) -> Result<Value, String> {
            let config = json!({"url": format!("https://127.0.0.1:{}/validate", self.port), "caBundle": bundle});
            client.call(&config, &json!({}), Duration::from_secs(60)).await
        }
    }

    fn authority() -> (Authority, String) {
        let authority = Authority::of_folder(None, SERVER).unwrap();
        let bundle = BASE64_STANDARD.encode(&authority.pem);
        (authority, bundle)
    }

    #[tokio::test]
    async fn a_review_on_a_connection_that_the_webhook_closes_is_sent_once_more() {
        let (client, (authority, bundle)) = (WebhookClient::default(), authority());
        let second = Webhook::new(&authority, 2).await;
        for reviews in [1, 3, 5] {
            assert_eq!(second.ask(&client, &bundle).await, Ok(Value::Bool(true)));
            assert_eq!(second.reviews.load(Ordering::SeqCst), reviews);
        }
        let third = Webhook::new(&authority, 3).await;
        third.ask(&client, &bundle).await.unwrap();
        third.ask(&client, &bundle).await.unwrap_err();
        assert_eq!(third.reviews.load(Ordering::SeqCst), 3, "a review is sent twice at most");
    }

    #[tokio::test]
    async fn the_reason_why_a_webhook_is_not_reached_is_in_the_error() {
        let (client, (authority, bundle)) = (WebhookClient::default(), authority());
        let webhook = Webhook::new(&authority, 1).await;
        for (bundle, expected) in [
            (&*self::authority().1, "tls: failed to verify certificate or to agree with 127.0.0.1"),
            ("", "x509: certificate signed by unknown authority"),
            ("bm90aGluZw==", "x509: certificate signed by unknown authority"),
        ] {
            let why = webhook.ask(&client, bundle).await.unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap().port();
        let why = Webhook { port, ..webhook }.ask(&client, &bundle).await.unwrap_err();
        assert!(why.starts_with(&format!("dial tcp 127.0.0.1:{port}: Connection refused")), "{why}");
    }

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
