use rstest::rstest;
use tls_client::Trust;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use super::*;
use crate::{Credentials, DevServer, DevServerOptions};

/// The longest time that a test waits for the server.
const TIMEOUT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A server that listens and accepts the token `t`.
struct TestServer {
    server: DevServer,
    listening: Listening,
    credentials: Credentials,
}

async fn start(change: impl FnOnce(&mut ListenerLimits)) -> TestServer {
    let server = DevServer::start(DevServerOptions::default()).unwrap();
    server.add_token("t", "tester");
    let mut limits = ListenerLimits::of(&Limits::default());
    change(&mut limits);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (listening, credentials) = server.listen_within(Reach::ThisHost, address, &limits).await.unwrap();
    TestServer { server, listening, credentials }
}

impl TestServer {
    async fn connect_tcp(&self) -> TcpStream {
        TcpStream::connect(self.listening.address).await.unwrap()
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let trust = Trust::authorities(self.credentials.authority.as_bytes()).unwrap();
        let config = Arc::new(tls_client::config(trust, None).unwrap());
        tls_client::handshake(self.connect_tcp().await, "127.0.0.1", config).await.unwrap()
    }

    /// Sends a text and returns everything that the server sends until it closes the connection.
    async fn send(&self, text: &str) -> String {
        let mut stream = self.connect().await;
        // The server may close the connection before the whole text is sent.
        let _ = stream.write_all(text.as_bytes()).await;
        read_to_end(&mut stream).await
    }
}

async fn read_to_end(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut read = Vec::new();
    // A server that aborts a connection sends no TLS close message, so an error is ignored.
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut read)).await.expect("the server closes");
    String::from_utf8_lossy(&read).into_owned()
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n{fields}\r\n")
}

fn post(token: &str, length: usize) -> String {
    format!(
        "POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n"
    )
}

#[tokio::test]
async fn other_hosts_can_connect_only_with_an_explicit_option() {
    let server = DevServer::start(DevServerOptions::default()).unwrap();
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let refused = server.listen(everywhere).await.unwrap_err().to_string();
    assert!(refused.contains("can be reached from other hosts") && refused.contains("--insecure-"), "{refused}");
    let (listening, _) = server.listen_for(Reach::Anybody, everywhere).await.unwrap();
    assert_eq!(listening.address.ip(), everywhere.ip());
    let near = listening.from_this_host();
    assert!(near.ip().is_loopback() && near.port() == listening.address.port(), "{near}");
}

#[rstest]
#[case::address(Some("127.0.0.1:6443"), false)]
#[case::v6(Some("[::1]:6443"), false)]
#[case::localhost(Some("localhost:1"), false)]
#[case::none(None, false)]
#[case::th_38_rebinding(Some("evil.example.com:6443"), true)]
fn th_38_foreign_hosts(#[case] host: Option<&str>, #[case] foreign: bool) {
    assert_eq!(is_foreign_host(host), foreign);
}

#[tokio::test]
async fn heads_of_requests_are_limited() {
    let server = start(|_| {}).await;
    let long = format!("{MAPS}?labelSelector={}", "x".repeat(16 * 1024));
    let many = "x: y\r\n".repeat(201);
    let large = format!("x: {}\r\n", "y".repeat(256 * 1024));
    for (request, code) in [
        (get(MAPS, "Connection: close\r\n"), "200"),
        (get(&long, ""), "414"),
        (get(MAPS, &many), "431"),
        (get(MAPS, &large), "431"),
    ] {
        let answer = server.send(&request).await;
        let is_aborted = code == "431" && answer.is_empty();
        assert!(is_aborted || answer.starts_with(&format!("HTTP/1.1 {code}")), "{code}: {answer}");
    }
}

#[tokio::test]
async fn connections_of_slow_and_idle_clients_are_closed() {
    let server = start(|limits| {
        limits.connections.handshake = SHORT;
        limits.connections.header = SHORT;
        limits.connections.idle = SHORT;
    })
    .await;
    assert_eq!(read_to_end(&mut server.connect_tcp().await).await, "", "no handshake");
    assert_eq!(server.send("GET / HTTP/1.1\r\n").await, "", "half of a head");
    assert!(server.send(&get(MAPS, "")).await.starts_with("HTTP/1.1 200"), "no second request");
}

#[tokio::test]
async fn a_connection_with_a_watch_is_not_idle() {
    let server = start(|limits| limits.connections.idle = SHORT).await;
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion=0&allowWatchBookmarks=true");
    let answer = server.send(&get(&path, "")).await;
    // A complete stream ends with an empty chunk.
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("0\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn th_02_th_08_bodies_are_limited() {
    let server = start(|limits| (limits.bodies.body_grace, limits.bodies.body) = (SHORT, 2 * SHORT)).await;
    let too_large = format!("{}\r\n", post("t", 10 << 30));
    assert!(server.send(&too_large).await.starts_with("HTTP/1.1 413"), "before the body is sent");
    let slow = format!("{}\r\n{{", post("t", 100));
    assert!(server.send(&slow).await.starts_with("HTTP/1.1 408"));
    let unknown = format!("{}Connection: close\r\n\r\n", post("unknown", 100));
    assert!(server.send(&unknown).await.starts_with("HTTP/1.1 401"), "the body of an unknown user is not read");
}

#[tokio::test]
async fn further_connections_are_closed_at_once() {
    let server = start(|limits| (limits.connections.connections, limits.connections.kept_for_health) = (1, 0)).await;
    let _first = server.connect().await;
    assert_eq!(read_to_end(&mut server.connect_tcp().await).await, "");
}

#[tokio::test]
async fn a_shutdown_ends_watches_and_answers_running_requests() {
    let server = start(|_| {}).await;
    let mut watching = server.connect().await;
    watching.write_all(get(&format!("{MAPS}?watch=1"), "").as_bytes()).await.unwrap();
    // The watch has begun when the head of its answer is received.
    assert_eq!(watching.read_u8().await.unwrap(), b'H');
    let mut writing = server.connect().await;
    let map = r#"{"metadata":{"name":"m"}}"#;
    let head = format!("{}Expect: 100-continue\r\n\r\n", post("t", map.len()));
    writing.write_all(head.as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    writing.read_exact(&mut interim).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    let TestServer { server: _server, listening, .. } = server;
    let written = async {
        writing.write_all(map.as_bytes()).await.unwrap();
        read_to_end(&mut writing).await
    };
    let (watched, written, ()) = tokio::join!(read_to_end(&mut watching), written, listening.end(TIMEOUT));
    assert!(watched.ends_with("0\r\n\r\n"), "{watched}");
    assert!(written.starts_with("HTTP/1.1 201"), "{written}");
}
