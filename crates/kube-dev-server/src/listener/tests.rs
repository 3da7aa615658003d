use rstest::rstest;
use rustls::ClientConfig;
use rustls_pki_types::{ServerName, pem::PemObject};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::{Credentials, DevServer, DevServerOptions};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A server that listens, and lets the token `t` in.
struct Heard {
    server: DevServer,
    listening: Listening,
    credentials: Credentials,
}

async fn heard(change: impl FnOnce(&mut Bounds)) -> Heard {
    let server = DevServer::start(DevServerOptions::default()).unwrap();
    server.add_token("t", "tester");
    let mut bounds = Bounds::of(&Limits::default());
    change(&mut bounds);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (listening, credentials) = server.listen_within(Reach::ThisHost, address, &bounds).await.unwrap();
    Heard { server, listening, credentials }
}

impl Heard {
    async fn dial(&self) -> TcpStream {
        TcpStream::connect(self.listening.address).await.unwrap()
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.credentials.authority.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, self.dial().await).await.unwrap()
    }

    /// All that comes after this was sent, until the server closes.
    async fn told(&self, text: &str) -> String {
        let mut stream = self.connect().await;
        // The server may close before all of it is written.
        let _ = stream.write_all(text.as_bytes()).await;
        rest(&mut stream).await
    }
}

async fn rest(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut read = Vec::new();
    // A server that gives up does not say goodbye properly.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await.expect("the server closes");
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
async fn other_hosts_are_let_in_only_when_that_is_said() {
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
async fn heads_of_requests_have_bounds() {
    let heard = heard(|_| {}).await;
    let long = format!("{MAPS}?labelSelector={}", "x".repeat(16 * 1024));
    let many = "x: y\r\n".repeat(201);
    let large = format!("x: {}\r\n", "y".repeat(256 * 1024));
    for (request, code) in [
        (get(MAPS, "Connection: close\r\n"), "200"),
        (get(&long, ""), "414"),
        (get(MAPS, &many), "431"),
        (get(MAPS, &large), "431"),
    ] {
        let told = heard.told(&request).await;
        let was_cut_off = code == "431" && told.is_empty();
        assert!(was_cut_off || told.starts_with(&format!("HTTP/1.1 {code}")), "{code}: {told}");
    }
}

#[tokio::test]
async fn who_does_not_go_on_is_cut_off() {
    let heard = heard(|bounds| {
        bounds.connections.handshake = SHORT;
        bounds.connections.header = SHORT;
        bounds.connections.idle = SHORT;
    })
    .await;
    assert_eq!(rest(&mut heard.dial().await).await, "", "no handshake");
    assert_eq!(heard.told("GET / HTTP/1.1\r\n").await, "", "half of a head");
    assert!(heard.told(&get(MAPS, "")).await.starts_with("HTTP/1.1 200"), "no second request");
}

#[tokio::test]
async fn a_watch_outlasts_idleness() {
    let heard = heard(|bounds| bounds.connections.idle = SHORT).await;
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion=0&allowWatchBookmarks=true");
    let told = heard.told(&get(&path, "")).await;
    // The last piece of a stream that was sent to its end.
    assert!(told.starts_with("HTTP/1.1 200") && told.ends_with("0\r\n\r\n"), "{told}");
}

#[tokio::test]
async fn th_02_th_08_bodies_have_bounds() {
    let heard = heard(|bounds| (bounds.bodies.body_grace, bounds.bodies.body) = (SHORT, 2 * SHORT)).await;
    let announced = format!("{}\r\n", post("t", 10 << 30));
    assert!(heard.told(&announced).await.starts_with("HTTP/1.1 413"), "before any of it came");
    let slow = format!("{}\r\n{{", post("t", 100));
    assert!(heard.told(&slow).await.starts_with("HTTP/1.1 408"));
    let unknown = format!("{}Connection: close\r\n\r\n", post("nobody", 100));
    assert!(heard.told(&unknown).await.starts_with("HTTP/1.1 401"), "nobody waits for the body of a stranger");
}

#[tokio::test]
async fn further_connections_are_closed_at_once() {
    let heard = heard(|bounds| (bounds.connections.connections, bounds.connections.kept_for_health) = (1, 0)).await;
    let _first = heard.connect().await;
    assert_eq!(rest(&mut heard.dial().await).await, "");
}

#[tokio::test]
async fn who_is_asked_to_end_ends_watches_and_answers_what_is_under_way() {
    let heard = heard(|_| {}).await;
    let mut watching = heard.connect().await;
    watching.write_all(get(&format!("{MAPS}?watch=1"), "").as_bytes()).await.unwrap();
    // Its head has come: it is there.
    assert_eq!(watching.read_u8().await.unwrap(), b'H');
    let mut asking = heard.connect().await;
    let map = r#"{"metadata":{"name":"m"}}"#;
    let head = format!("{}Expect: 100-continue\r\n\r\n", post("t", map.len()));
    asking.write_all(head.as_bytes()).await.unwrap();
    let mut goes_on = [0; 25];
    asking.read_exact(&mut goes_on).await.unwrap();
    assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    let Heard { server: _server, listening, .. } = heard;
    let asked = async {
        asking.write_all(map.as_bytes()).await.unwrap();
        rest(&mut asking).await
    };
    let (watched, asked, ()) = tokio::join!(rest(&mut watching), asked, listening.end(PATIENCE));
    assert!(watched.ends_with("0\r\n\r\n"), "{watched}");
    assert!(asked.starts_with("HTTP/1.1 201"), "{asked}");
}
