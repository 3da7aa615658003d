//! The transport over sockets: broken connections, trust, and the proxy.

use std::{io::Write, sync::Arc};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ServerConfig, crypto::ring};
use rustls_pki_types::PrivateKeyDer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::*;

/// Reads the head of one request.
async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { break };
        read.push(byte);
    }
    String::from_utf8(read).unwrap()
}

/// Answers one connection with these bytes. Returns the port and the head of the request.
async fn answering(answer: Vec<u8>) -> (u16, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let asked = head(&mut stream).await;
        // The client may close the connection before it has read the whole answer.
        let _ = stream.write_all(&answer).await;
        let _ = stream.shutdown().await;
        asked
    });
    (port, asked)
}

fn get(url: &str) -> Request<Bytes> {
    Request::get(url).body(Bytes::new()).unwrap()
}

async fn sent(url: &str) -> Result<Answer, NoAnswer> {
    HttpTransport::new(HttpOptions::default()).send(get(url)).await
}

#[tokio::test]
async fn an_answer_is_complete_and_the_request_has_a_user_agent() {
    let (port, asked) = answering(b"HTTP/1.1 403 No\r\ncontent-length: 2\r\n\r\nno".to_vec()).await;
    let answer = sent(&format!("http://127.0.0.1:{port}/x?y")).await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (403, &b"no"[..]));
    let asked = asked.await.unwrap().to_ascii_lowercase();
    assert!(asked.starts_with("get /x?y http/1.1"), "{asked}");
    assert!(asked.contains(&format!("user-agent: {USER_AGENT}")), "{asked}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_lost() {
    let (port, _) = answering(b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nhal".to_vec()).await;
    assert!(matches!(sent(&format!("http://127.0.0.1:{port}/")).await, Err(NoAnswer::Lost(_))));
    let (port, _) = answering(Vec::new()).await;
    assert!(matches!(sent(&format!("http://127.0.0.1:{port}/")).await, Err(NoAnswer::Lost(_))));
}

#[tokio::test]
async fn an_endless_answer_is_refused() {
    let mut answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_vec();
    answer.resize(ANSWER_LIMIT + 4096, b'x');
    let (port, _) = answering(answer).await;
    assert_eq!(sent(&format!("http://127.0.0.1:{port}/")).await.unwrap_err(), NoAnswer::TooLong);
}

#[tokio::test]
async fn without_a_listener_nothing_is_sent() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    assert!(matches!(sent(&format!("http://127.0.0.1:{port}/")).await, Err(NoAnswer::NotSent(_))));
    assert!(matches!(sent("http://no-such-host.invalid/").await, Err(NoAnswer::NotSent(_))));
}

#[tokio::test]
async fn a_configured_authority_is_trusted_and_no_other() {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            head(&mut stream).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(cert.pem().as_bytes()).unwrap();
    let own = HttpTransport::new(HttpOptions { ca_file: Some(file.path().to_owned()), ..HttpOptions::default() });
    assert_eq!(own.send(get(&url)).await.unwrap().status, 200);
    assert!(matches!(sent(&url).await, Err(NoAnswer::NotSent(_))));
    let by_text = HttpTransport::new(HttpOptions { ca: Some(cert.pem()), ..HttpOptions::default() });
    assert_eq!(by_text.send(get(&url)).await.unwrap().status, 200);
    let unchecked = HttpTransport::new(HttpOptions { server: ServerCheck::None, ..HttpOptions::default() });
    assert_eq!(unchecked.send(get(&url)).await.unwrap().status, 200);
    let nothing = HttpTransport::new(HttpOptions { ca_file: Some("/nowhere.pem".into()), ..HttpOptions::default() });
    assert!(matches!(nothing.send(get(&url)).await, Err(NoAnswer::Unusable(why)) if why.contains("/nowhere.pem")));
}

#[tokio::test]
async fn tls_passes_through_the_proxy_of_the_environment() {
    let (port, asked) = answering(b"HTTP/1.1 502 No\r\n\r\n".to_vec()).await;
    let proxies = Matcher::builder().https(format!("http://user:word@127.0.0.1:{port}")).no("localhost").build();
    let pool = open(&HttpOptions::default(), proxies).unwrap();
    let ask = |url: &str| pool.request(get(url).map(Full::new));
    assert!(ask("https://localhost:1/").await.unwrap_err().is_connect(), "NO_PROXY holds");
    assert!(ask("https://ec2.eu-west-1.amazonaws.com/").await.unwrap_err().is_connect());
    let asked = asked.await.unwrap();
    assert!(asked.starts_with("CONNECT ec2.eu-west-1.amazonaws.com:443 HTTP/1.1"), "{asked}");
    assert!(asked.to_ascii_lowercase().contains("proxy-authorization: basic dxnlcjp3b3jk"), "{asked}");
}
