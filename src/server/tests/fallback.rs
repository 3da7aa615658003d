//! The fallback handler, and the certificates of clients.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use http::{Request, Response};
use rustls::{
    ClientConfig, HandshakeKind, SignatureScheme, client::ResolvesClientCert, crypto::ring, sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::rig::{Raw, Rig, client_config, connect_with, options, soon, until};
use crate::server::{ClientCertificates, FallbackHandler, ServerOptions, tls::Authorities};
use kube_listener::Peer;

/// Answers with the number of certificates of the client, and closes the connection after a request for `/end`.
pub(super) struct Counting;

#[async_trait]
impl FallbackHandler for Counting {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let peer = request.extensions().get::<Peer>().unwrap();
        if request.uri().path() == "/end" {
            peer.close_connection();
        }
        Response::new(Body::from(format!("{} certificates", peer.certificates.len())))
    }
}

fn asking() -> ServerOptions {
    ServerOptions { client_certificates: ClientCertificates::Asked, ..options() }
}

const GET: &str = "GET /apis HTTP/1.1\r\nHost: mcm\r\n\r\n";

#[tokio::test]
async fn the_fallback_answers_requests_that_are_not_for_webhooks() {
    let rig = Rig::start_with_fallback(asking(), Arc::new(Counting)).await;
    let mut caller = rig.h1().await;
    caller.send(GET).await;
    assert!(caller.response().await.ends_with("0 certificates"));
    assert!(caller.post("/validate", "{}").await.ends_with("validate 2"));
    caller.send("GET /mutate HTTP/1.1\r\nHost: mcm\r\n\r\n").await;
    assert!(caller.response().await.starts_with("HTTP/1.1 405"));
    caller.send("GET /healthz HTTP/1.1\r\nHost: mcm\r\n\r\n").await;
    assert!(caller.response().await.ends_with("0 certificates"), "health is the fallback's too");
}

#[rstest::rstest]
#[case::unknown_coding("Transfer-Encoding: xchunked\r\n")]
#[case::folded_line("X-Folded: a\r\n b\r\n")]
#[case::two_lengths("Content-Length: 0\r\nContent-Length: 5\r\n")]
#[tokio::test]
async fn th_19_an_ambiguous_request_is_refused(#[case] line: &str) {
    let rig = Rig::start_with_fallback(asking(), Arc::new(Counting)).await;
    let mut caller = rig.h1().await;
    caller.send(&format!("POST /apis HTTP/1.1\r\nHost: mcm\r\n{line}\r\nhello")).await;
    let rest = caller.rest().await;
    assert!(rest.starts_with("HTTP/1.1 400") && !rest.contains("certificates"), "{rest}");
}

#[tokio::test]
async fn the_fallback_can_close_a_connection() {
    let rig = Rig::start_with_fallback(asking(), Arc::new(Counting)).await;
    let client = rig.h2().await;
    let mut caller = rig.h1().await;
    caller.send(&GET.replace("/apis", "/end")).await;
    assert!(caller.rest().await.contains("0 certificates"), "the answer comes first, then the end");
    let (_, _, text) = client.post("/end", "").await;
    assert_eq!(text, "0 certificates");
    until(|| client.is_closed()).await;
}

/// Sends a certificate and signs with a key. The two need not belong together.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn a_certificate() -> (CertificateDer<'static>, rcgen::KeyPair) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["caller".to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.der().clone(), key)
}

/// The TLS configuration of a client with a certificate. It can resume its sessions.
fn showing(rig: &Rig, certificate: CertificateDer<'static>, key: &rcgen::KeyPair) -> ClientConfig {
    let bundle = rig.certificate.ca_bundle().unwrap();
    let mut config = client_config(bundle.as_bytes(), "http/1.1");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = ring::sign::any_supported_type(&key).unwrap();
    config.client_auth_cert_resolver = Arc::new(Shows(Arc::new(CertifiedKey::new(vec![certificate], key))));
    config
}

async fn show(
    rig: &Rig,
    certificate: CertificateDer<'static>,
    key: &rcgen::KeyPair,
) -> std::io::Result<TlsStream<TcpStream>> {
    soon(connect_with(rig.secure, showing(rig, certificate, key))).await
}

#[tokio::test]
async fn any_certificate_is_accepted_from_a_client_with_its_key() {
    let rig = Rig::start_with_fallback(asking(), Arc::new(Counting)).await;
    let (certificate, key) = a_certificate();
    let mut caller = Raw(show(&rig, certificate, &key).await.unwrap());
    caller.send(GET).await;
    assert!(caller.response().await.ends_with("1 certificates"));
}

#[tokio::test]
async fn a_resumed_session_still_has_the_certificate() {
    let rig = Rig::start_with_fallback(asking(), Arc::new(Counting)).await;
    let (certificate, key) = a_certificate();
    let config = showing(&rig, certificate, &key);
    for handshake in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let stream = soon(connect_with(rig.secure, config.clone())).await.unwrap();
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(handshake));
        let mut caller = Raw(stream);
        caller.send(GET).await;
        assert!(caller.response().await.ends_with("1 certificates"), "{handshake:?}");
    }
}

#[tokio::test]
async fn a_certificate_without_its_key_is_refused() {
    let rig = Rig::start_with_fallback(asking(), Arc::new(Counting)).await;
    let ((certificate, _), (_, another_key)) = (a_certificate(), a_certificate());
    // With TLS 1.3 the client learns of the refusal only after its own handshake has ended.
    if let Ok(stream) = show(&rig, certificate, &another_key).await {
        assert_eq!(Raw(stream).rest().await, "");
    }
}

#[test]
fn an_authority_verifies_only_certificates_that_it_has_signed() {
    let (certificate, _) = a_certificate();
    let own = Authorities::from_pem(pem(&certificate).as_bytes()).unwrap();
    let (other, _) = a_certificate();
    let now = jiff::Timestamp::now();
    assert!(
        own.vouch_for(&vec![other.clone()].into(), now).is_err() && own.vouch_for(&Vec::new().into(), now).is_err()
    );
    assert!(!own.share_with(&Authorities::from_pem(pem(&other).as_bytes()).unwrap()));
    assert!(own.share_with(&Authorities::from_pem((pem(&other) + &pem(&certificate)).as_bytes()).unwrap()));
    assert!(Authorities::from_pem(b"").is_err() && Authorities::from_pem(b"-----BEGIN CERTIFICATE-----").is_err());
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    use base64::Engine;
    let text = base64::prelude::BASE64_STANDARD.encode(certificate);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}
