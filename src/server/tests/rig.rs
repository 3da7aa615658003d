//! A server with an ephemeral certificate, and clients that trust it.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use futures::FutureExt;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use machine_api::webhooks::Webhook;
use mcm_metrics::Metrics;
use rustls::ClientConfig;
use serde_json::json;
use tls_client::Trust;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::server::{
    Answer, FallbackHandler, Health, Lookup, Reply, ReservedPorts, Reviewer, Server, ServerOptions,
    tls::{CertMode, CertificateHandle, CertificateManager, CertificateSettings, plan::PlanSettings},
};

/// Long enough for anything that is going to happen, short enough to fail.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// Waits for something that is going to happen.
pub(super) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it should have happened by now")
}

/// Waits for a condition that nothing announces.
pub(super) async fn until(mut holds: impl FnMut() -> bool) {
    soon(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Answers with the endpoint and the length of the body. Misbehaves if the body requests it.
pub(super) struct Echo;

impl Echo {
    fn answer(what: &str, body: &[u8]) -> Answer {
        assert!(!body.starts_with(b"\"panic"), "as asked");
        if body.starts_with(b"\"stuck") {
            std::thread::sleep(Duration::from_secs(2));
        }
        Answer { status: 200, body: format!("{what} {}", body.len()).into_bytes() }
    }
}

impl Reviewer for Echo {
    fn review(&self, webhook: Webhook, _: &dyn Fn() -> bool, body: &[u8]) -> Reply {
        let read = match body {
            [b'"', b'o', b'w', b'n', ..] => Some(async { Some(json!("owner")) }.boxed()),
            [b'"', b'n', b'o', b'b', ..] => Some(std::future::pending().boxed()),
            _ => None,
        };
        if let Some(read) = read {
            let answer = |body: &[u8], read: Option<serde_json::Value>| Self::answer(&format!("{read:?}"), body);
            return Reply::Later(Lookup { read, answer: Box::new(answer) });
        }
        Self::answer(webhook.name(), body).into()
    }
}

pub(super) fn test_metrics() -> Metrics {
    let started = tokio::time::Instant::now();
    Metrics::new(Arc::new(move || started.elapsed())).unwrap()
}

pub(super) fn names() -> BTreeSet<String> {
    ["127.0.0.1", "mcm.ns.svc"].map(str::to_owned).into()
}

pub(super) fn certificate_settings(mode: CertMode) -> CertificateSettings {
    CertificateSettings {
        mode,
        sni: Vec::new(),
        clock: Arc::new(jiff::Timestamp::now),
        entropy: Arc::new(rand::random),
    }
}

/// Options on free ports, without delays.
pub(super) fn options() -> ServerOptions {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    ServerOptions {
        secure: Some(loopback),
        plain: vec![loopback],
        shutdown_delay: Duration::ZERO,
        ..ServerOptions::default()
    }
}

/// A running server.
pub(super) struct Rig {
    pub(super) secure: SocketAddr,
    pub(super) plain: SocketAddr,
    pub(super) health: Health,
    pub(super) metrics: Metrics,
    pub(super) certificate: CertificateHandle,
    pub(super) shutdown: CancellationToken,
    pub(super) running: JoinHandle<()>,
    certificates: JoinHandle<()>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.running.abort();
        self.certificates.abort();
    }
}

impl Rig {
    pub(super) async fn start(options: ServerOptions) -> Self {
        let dev = CertMode::Dev { settings: PlanSettings::for_names(names()), targets: Vec::new() };
        Self::start_with(options, dev).await
    }

    pub(super) async fn start_with(options: ServerOptions, mode: CertMode) -> Self {
        Self::start_with_settings(options, certificate_settings(mode)).await
    }

    pub(super) async fn start_with_settings(options: ServerOptions, settings: CertificateSettings) -> Self {
        Self::start_serving(ReservedPorts::default(), options, settings, None).await
    }

    pub(super) async fn start_over(reserved: ReservedPorts, options: ServerOptions) -> Self {
        let dev = CertMode::Dev { settings: PlanSettings::for_names(names()), targets: Vec::new() };
        Self::start_serving(reserved, options, certificate_settings(dev), None).await
    }

    pub(super) async fn start_with_fallback(options: ServerOptions, fallback: Arc<dyn FallbackHandler>) -> Self {
        let dev = CertMode::Dev { settings: PlanSettings::for_names(names()), targets: Vec::new() };
        Self::start_serving(ReservedPorts::default(), options, certificate_settings(dev), Some(fallback)).await
    }

    async fn start_serving(
        reserved: ReservedPorts,
        options: ServerOptions,
        settings: CertificateSettings,
        fallback: Option<Arc<dyn FallbackHandler>>,
    ) -> Self {
        let (health, metrics) = (Health::default(), test_metrics());
        let manager = CertificateManager::new(None, settings, &metrics, &health).unwrap();
        let certificate = manager.handle();
        let mut server = Server::bind_over(reserved, options, &certificate, &health, &metrics).await.unwrap();
        if let Some(fallback) = fallback {
            server = server.with_fallback(fallback);
        }
        let (secure, plain) = (server.secure_address().unwrap(), server.plain_addresses()[0]);
        let shutdown = CancellationToken::new();
        let certificates = tokio::spawn(manager.run(CancellationToken::new()));
        let running = tokio::spawn(server.run(Arc::new(Echo), shutdown.clone()));
        until(|| certificate.is_loaded()).await;
        Self { secure, plain, health, metrics, certificate, shutdown, running, certificates }
    }

    /// A connection that trusts the server's authority.
    pub(super) async fn connect(&self, alpn: &str) -> TlsStream<TcpStream> {
        let bundle = self.certificate.ca_bundle().unwrap();
        soon(connect(self.secure, bundle.as_bytes(), alpn)).await.unwrap()
    }

    pub(super) async fn h1(&self) -> Raw {
        Raw(self.connect("http/1.1").await)
    }

    pub(super) async fn h2(&self) -> H2 {
        H2::over(self.connect("h2").await).await
    }

    /// A plain GET: status and body.
    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        get_on(TcpStream::connect(self.plain).await.unwrap(), path).await
    }
}

/// A plain GET on a connection that is there: status and body.
pub(super) async fn get_on(mut stream: TcpStream, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: mcm\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    soon(stream.read_to_string(&mut text)).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub(super) fn client_config(bundle: &[u8], alpn: &str) -> ClientConfig {
    let mut config = tls_client::config(Trust::authorities(bundle).unwrap(), None).unwrap();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    config
}

pub(super) async fn connect(address: SocketAddr, bundle: &[u8], alpn: &str) -> std::io::Result<TlsStream<TcpStream>> {
    connect_with(address, client_config(bundle, alpn)).await
}

pub(super) async fn connect_with(address: SocketAddr, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    connect_as(address, config, "mcm.ns.svc").await
}

/// Asks for a name; an address is no name that is asked for.
pub(super) async fn connect_as(
    address: SocketAddr,
    config: ClientConfig,
    name: &'static str,
) -> std::io::Result<TlsStream<TcpStream>> {
    tls_client::handshake(TcpStream::connect(address).await?, name, Arc::new(config)).await
}

/// An HTTP/1.1 connection on which a test writes what it likes.
pub(super) struct Raw(pub(super) TlsStream<TcpStream>);

impl Raw {
    pub(super) async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
    }

    pub(super) async fn post(&mut self, path: &str, body: &str) -> String {
        self.send(&format!("{}{body}", head(path, body.len()))).await;
        self.response().await
    }

    /// Sends the head of a review with a body of two bytes, and returns once its handler waits for them.
    pub(super) async fn begin_review(&mut self, path: &str) {
        self.send(&head(path, 2).replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n")).await;
        assert_eq!(self.response().await, "HTTP/1.1 100 Continue\r\n\r\n");
    }

    /// One whole response: head and body of the declared length.
    pub(super) async fn response(&mut self) -> String {
        let mut read = Vec::new();
        soon(async {
            loop {
                let text = String::from_utf8_lossy(&read).into_owned();
                if let Some((head, body)) = text.split_once("\r\n\r\n") {
                    let length = head
                        .lines()
                        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
                    if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                        return text;
                    }
                }
                let byte = self.0.read_u8().await.unwrap_or_else(|error| panic!("{error} after {text:?}"));
                read.push(byte);
            }
        })
        .await
    }

    /// Waits until the server closes; answers what came before.
    pub(super) async fn rest(&mut self) -> String {
        let mut read = Vec::new();
        // A server that aborts a connection sends no TLS close message.
        let _ = soon(self.0.read_to_end(&mut read)).await;
        String::from_utf8_lossy(&read).into_owned()
    }
}

/// Head of a review request over HTTP/1.1.
pub(super) fn head(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: mcm\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n")
}

/// An HTTP/2 connection.
#[derive(Clone)]
pub(super) struct H2(hyper::client::conn::http2::SendRequest<Full<bytes::Bytes>>);

impl H2 {
    pub(super) async fn over(stream: TlsStream<TcpStream>) -> Self {
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    pub(super) async fn post(&self, path: &str, body: impl Into<bytes::Bytes>) -> (StatusCode, HeaderMap, String) {
        self.post_with(path, body, &[]).await
    }

    /// The same with header fields that mean nothing.
    pub(super) async fn post_with(
        &self,
        path: &str,
        body: impl Into<bytes::Bytes>,
        fields: &[String],
    ) -> (StatusCode, HeaderMap, String) {
        let request = Request::post(format!("https://mcm.ns.svc{path}")).header("content-type", "application/json");
        let request = fields.iter().fold(request, |request, name| request.header(name, "y"));
        let request = request.body(Full::new(body.into())).unwrap();
        let response = soon(self.0.clone().send_request(request)).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = soon(body.collect()).await.unwrap().to_bytes();
        (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
