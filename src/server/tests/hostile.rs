//! Clients that are slow or broken, and too many clients.

use std::time::Duration;

use http::StatusCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::rig::{Rig, client_config, connect, connect_with, head, names, options, soon, until};
use crate::server::{
    ClientCertificates, ServerOptions,
    tls::{Authorities, LiveAuthorities, authority::Authority},
};
use kube_listener::{ConnectionLimits, RequestLimits};

fn with(connections: ConnectionLimits) -> ServerOptions {
    ServerOptions { connections, ..options() }
}

async fn still_answers(rig: &Rig) {
    assert_eq!(rig.h2().await.post("/validate", "{}").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_broken_or_missing_handshake_affects_no_other_client() {
    let rig = Rig::start(options()).await;
    for garbage in [&b""[..], b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\nHost: mcm\r\n\r\n"] {
        let mut stream = TcpStream::connect(rig.secure).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = soon(stream.read_to_end(&mut answer)).await;
    }
    still_answers(&rig).await;
    until(|| {
        rig.metrics.render().unwrap().contains(r#"mcm_server_rejected_total{listener="secure",reason="handshake"} 3"#)
    })
    .await;
}

#[rstest::rstest]
#[case::tls_1_0([3, 1], [0xc0, 0x2b])]
#[case::tls_1_1([3, 2], [0xc0, 0x2b])]
#[case::no_suite_of_ours([3, 3], [0x00, 0x2f])]
#[tokio::test]
async fn th_12_old_tls_versions_and_cipher_suites_are_refused(#[case] version: [u8; 2], #[case] suite: [u8; 2]) {
    let rig = Rig::start(options()).await;
    let mut hello = version.to_vec();
    hello.extend([7; 32]);
    // No session, one suite, no compression, no extensions.
    hello.extend([&[0, 0, 2][..], &suite, &[1, 0]].concat());
    let length = u8::try_from(hello.len()).unwrap();
    let record = [&[22, 3, 1, 0, length + 4, 1, 0, 0, length][..], &hello].concat();
    let mut stream = TcpStream::connect(rig.secure).await.unwrap();
    stream.write_all(&record).await.unwrap();
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    assert!(matches!(answer.as_slice(), [] | [21, _, _, _, _, 2, ..]), "a fatal alert or nothing: {answer:?}");
    still_answers(&rig).await;
}

#[tokio::test]
async fn only_the_configured_cipher_suites_are_used() {
    use rustls::crypto::ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256 as WANTED;
    let rig = Rig::start(ServerOptions { tls_cipher_suites: vec![WANTED], ..options() }).await;
    let stream = rig.connect("h2").await;
    let spoken = stream.get_ref().1.negotiated_cipher_suite();
    assert_eq!(spoken.map(|suite| suite.suite()), Some(WANTED.suite()), "the client would prefer another suite");
    still_answers(&rig).await;
}

#[tokio::test]
async fn th_12_a_connection_without_a_handshake_is_closed() {
    let rig =
        Rig::start(with(ConnectionLimits { handshake: Duration::from_millis(50), ..ConnectionLimits::default() }))
            .await;
    let mut stream = TcpStream::connect(rig.secure).await.unwrap();
    assert_eq!(soon(stream.read(&mut [0; 1])).await.unwrap(), 0, "closed by the server");
    still_answers(&rig).await;
}

#[tokio::test]
async fn th_07_a_connection_with_a_slow_head_is_closed() {
    let limits = ConnectionLimits { header: Duration::from_millis(50), ..ConnectionLimits::default() };
    let rig = Rig::start(with(limits)).await;
    let mut raw = rig.h1().await;
    raw.send("POST /validate HTT").await;
    let rest = raw.rest().await;
    assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408 "), "{rest}");
    still_answers(&rig).await;
}

#[tokio::test]
async fn th_07_a_later_head_must_not_be_slow_but_may_begin_late() {
    let limits = ConnectionLimits { header: Duration::from_millis(100), ..ConnectionLimits::default() };
    let rig = Rig::start(with(limits)).await;
    let mut raw = rig.h1().await;
    assert!(raw.post("/validate", "{}").await.starts_with("HTTP/1.1 200 "));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(raw.post("/validate", "{}").await.starts_with("HTTP/1.1 200 "), "it is idle, not slow");
    raw.send("POST /validate HTT").await;
    assert_eq!(raw.rest().await, "");
}

#[rstest::rstest]
#[case::http_1("http/1.1")]
#[case::http_2("h2")]
#[tokio::test]
async fn an_idle_connection_is_closed(#[case] protocol: &str) {
    let limits = ConnectionLimits { idle: Duration::from_millis(300), ..ConnectionLimits::default() };
    let rig = Rig::start(with(limits)).await;
    let began = tokio::time::Instant::now();
    let asked = if protocol == "h2" {
        let client = rig.h2().await;
        assert_eq!(client.post("/validate", "{}").await.0, StatusCode::OK);
        let asked = began.elapsed();
        until(|| client.is_closed()).await;
        asked
    } else {
        let mut raw = rig.h1().await;
        assert!(raw.post("/validate", "{}").await.starts_with("HTTP/1.1 200 "));
        let asked = began.elapsed();
        assert_eq!(raw.rest().await, "");
        asked
    };
    assert!(began.elapsed() >= asked + Duration::from_millis(200), "not before the idle time is over");
    still_answers(&rig).await;
}

#[tokio::test]
async fn a_path_or_a_head_beyond_its_limit_is_refused() {
    let limits = ConnectionLimits { path_bytes: 100, header_fields: 10, ..ConnectionLimits::default() };
    let rig = Rig::start(with(limits)).await;
    let fields = "X-Field: y\r\n".repeat(11);
    for (path, fields, answer) in [
        (format!("/healthz?{}", "x".repeat(91)), "", "HTTP/1.1 200 "),
        (format!("/healthz?{}", "x".repeat(92)), "", "HTTP/1.1 414 "),
        ("/healthz".to_owned(), fields.as_str(), "HTTP/1.1 431 "),
    ] {
        let mut raw = rig.h1().await;
        raw.send(&format!("GET {path} HTTP/1.1\r\nHost: mcm\r\nConnection: close\r\n{fields}\r\n")).await;
        let response = raw.rest().await;
        assert!(response.starts_with(answer), "{response}");
    }
    // With HTTP/2 the library does not count fields, so only our check does.
    let client = rig.h2().await;
    assert_eq!(client.post_with("/validate", "{}", &vec!["x-remote-group".to_owned(); 500]).await.0, StatusCode::OK);
    let eleven: Vec<String> = (0..11).map(|nth| format!("x-{nth}")).collect();
    let (code, _, text) = client.post_with("/validate", "{}", &eleven).await;
    assert_eq!(code, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert!(text.contains("more than 10 fields"), "{text}");
    until(|| client.is_closed()).await;
}

#[tokio::test]
async fn th_08_a_connection_with_a_slow_body_is_closed() {
    let requests = RequestLimits { body_grace: Duration::from_millis(50), ..RequestLimits::default() };
    let rig = Rig::start(ServerOptions { requests, ..options() }).await;
    let mut raw = rig.h1().await;
    raw.send(&head("/validate", 100)).await;
    raw.send("{").await;
    let response = raw.rest().await;
    assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
    assert!(rig.metrics.render().unwrap().contains(r#"reason="body_too_slow"} 1"#));
}

#[tokio::test]
async fn a_body_that_breaks_off_ends_its_connection_only() {
    let rig = Rig::start(options()).await;
    let mut raw = rig.h1().await;
    raw.send(&head("/validate", 100)).await;
    raw.0.shutdown().await.unwrap();
    raw.rest().await;
    still_answers(&rig).await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let rig = Rig::start(options()).await;
    let mut raw = rig.h1().await;
    let padding = "x".repeat(256 * 1024);
    // The server may close the connection before the whole head is written.
    let _ = raw
        .0
        .write_all(format!("POST /validate HTTP/1.1\r\nHost: mcm\r\nX-Padding: {padding}\r\n\r\n").as_bytes())
        .await;
    let response = raw.rest().await;
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 431 "), "{response}");
    still_answers(&rig).await;
}

#[tokio::test]
async fn connections_above_the_limit_are_closed_and_permits_are_released() {
    let limits = ConnectionLimits { connections: 2, kept_for_health: 0, ..ConnectionLimits::default() };
    let rig = Rig::start(with(limits)).await;
    let (first, _second) = (rig.h1().await, rig.h1().await);
    let bundle = rig.certificate.ca_bundle().unwrap();
    assert!(soon(connect(rig.secure, bundle.as_bytes(), "h2")).await.is_err(), "a third one is closed");
    assert_eq!(rig.get("/healthz").await.0, 200, "health has a listener of its own");
    drop(first);
    soon(async { while connect(rig.secure, bundle.as_bytes(), "h2").await.is_err() {} }).await;
}

#[tokio::test]
async fn the_last_connections_answer_for_health_and_nothing_else() {
    let limits = ConnectionLimits { connections: 1, kept_for_health: 1, ..ConnectionLimits::default() };
    let rig = Rig::start(with(limits)).await;
    let first = rig.h2().await;
    let mut second = rig.h1().await;
    second.send("GET /readyz HTTP/1.1\r\nHost: mcm\r\n\r\n").await;
    let answer = second.rest().await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"), "once: {answer}");
    let mut third = soon(async {
        loop {
            // The permit of the second connection may not be released yet.
            let bundle = rig.certificate.ca_bundle().unwrap();
            if let Ok(stream) = connect(rig.secure, bundle.as_bytes(), "http/1.1").await {
                return super::rig::Raw(stream);
            }
        }
    })
    .await;
    third.send(&format!("{}{{}}", head("/validate", 2))).await;
    let answer = third.rest().await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("too many connections are open"), "{answer}");
    assert!(rig.metrics.render().unwrap().contains(r#"reason="connection_limit"} 1"#));
    assert_eq!(first.post("/validate", "{}").await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_old_connection_is_ended_gracefully() {
    let limits = ConnectionLimits { max_age: Duration::from_millis(50), ..ConnectionLimits::default() };
    let rig = Rig::start(with(limits)).await;
    let client = rig.h2().await;
    until(|| client.is_closed()).await;
    still_answers(&rig).await;
}

#[tokio::test]
async fn webhooks_can_require_a_client_certificate() {
    let now = jiff::Timestamp::now();
    let day = jiff::SignedDuration::from_hours(24);
    let authority = Authority::generate(now, day, [7; 16]).unwrap();
    let authorities = Authorities::from_pem(authority.certificate.to_pem().as_bytes()).unwrap();
    let authorities = LiveAuthorities::new(authorities);
    let client_certificates = ClientCertificates::DemandedByWebhooks { authorities };
    let rig = Rig::start(ServerOptions { client_certificates, ..options() }).await;
    assert_eq!(rig.h2().await.post("/validate", "{}").await.0, StatusCode::UNAUTHORIZED);

    let key = rcgen::KeyPair::generate().unwrap();
    let signing = rcgen::KeyPair::try_from(authority.key.as_ref().unwrap().der()).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(authority.certificate.der(), signing).unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::from_iter(names())).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let bundle = rig.certificate.ca_bundle().unwrap();
    let mut config = client_config(bundle.as_bytes(), "h2");
    let mine = rustls::sign::CertifiedKey::new(
        vec![certificate.into()],
        rustls::crypto::ring::sign::any_supported_type(&key.into()).unwrap(),
    );
    config.client_auth_cert_resolver = std::sync::Arc::new(rustls::sign::SingleCertAndKey::from(mine));
    let client = super::rig::H2::over(soon(connect_with(rig.secure, config)).await.unwrap()).await;
    assert_eq!(client.post("/validate", "{}").await.0, StatusCode::OK);
}
