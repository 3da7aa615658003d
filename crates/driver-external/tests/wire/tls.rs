//! Mutual TLS: driver and client verify each other's certificate.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use driver_external::{Address, TlsFiles};
use futures::{StreamExt as _, stream};
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::Connected;

use crate::peer::{Peer, Script, TestClient, cx, request, until};
use machine_driver::Driver as _;

/// A TLS connection that tonic can serve.
struct Secure(TlsStream<TcpStream>);

impl Connected for Secure {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Secure {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Secure {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

pub type Authority = CertifiedIssuer<'static, KeyPair>;

pub fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Issues a certificate for this name, with its key.
pub fn issued(authority: &Authority, name: &str) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    (CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, authority).unwrap(), key)
}

/// Writes the files of a client that trusts one authority and has a certificate of another.
pub fn files(folder: &Path, trusted: &Authority, own: &Authority) -> TlsFiles {
    let (certificate, key) = issued(own, "mcm");
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    TlsFiles {
        ca: write("ca.crt", trusted.pem()),
        certificate: write("tls.crt", certificate.pem()),
        key: write("tls.key", key.serialize_pem()),
    }
}

/// Serves a peer with a certificate for `name` to clients with a certificate of this authority.
async fn listening(peer: &Peer, authority: &Authority, name: &str) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let (certificate, key) = issued(authority, name);
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let recorded = Arc::clone(&peer.recorded);
    let connections = stream::unfold((listener, acceptor, recorded), |(listener, acceptor, recorded)| async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                recorded.connections.fetch_add(1, Ordering::SeqCst);
                return Some((Ok(Secure(stream)), (listener, acceptor, recorded)));
            }
        }
    });
    tokio::spawn(peer.clone().over(connections.boxed()));
    address
}

fn at(address: SocketAddr) -> Address {
    Address::Tls { host: address.ip().to_string(), port: address.port() }
}

/// The answer that a client with these files gets after a second.
async fn answer(address: SocketAddr, files: Option<TlsFiles>) -> String {
    let client = TestClient::new("scripted", at(address), |options| options.tls = files);
    tokio::time::sleep(Duration::from_secs(1)).await;
    client.status().await.map_or_else(|status| status.message, |_| "served".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_with_a_valid_certificate_serves() {
    let (authority, peer, folder) = (authority(), Peer::new(Script::default()), tempfile::tempdir().unwrap());
    let address = listening(&peer, &authority, "127.0.0.1").await;
    let files = files(folder.path(), &authority, &authority);
    let client = TestClient::new("scripted", at(address), |options| options.tls = Some(files));
    until(|| client.driver.accepted().is_some()).await;
    client.status().await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn e06_a_certificate_with_a_wrong_name_is_refused_and_no_secret_is_sent() {
    let (authority, peer, folder) = (authority(), Peer::new(Script::default()), tempfile::tempdir().unwrap());
    let address = listening(&peer, &authority, "other.example").await;
    let error = answer(address, Some(files(folder.path(), &authority, &authority))).await;
    assert!(error.contains("not valid for name"), "{error}");
    assert!(peer.recorded.calls.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_is_refused_on_both_sides() {
    let (ours, theirs, peer) = (authority(), authority(), Peer::new(Script::default()));
    let address = listening(&peer, &theirs, "127.0.0.1").await;
    let folder = tempfile::tempdir().unwrap();
    let refused = answer(address, Some(files(folder.path(), &ours, &ours))).await;
    assert!(refused.contains("invalid peer certificate"), "{refused}");
    let folder = tempfile::tempdir().unwrap();
    assert_ne!(
        answer(address, Some(files(folder.path(), &theirs, &ours))).await,
        "served",
        "the driver verifies the client"
    );
    let bare = answer(address, None).await;
    assert!(bare.contains("--external-driver-ca-file"), "{bare}");
    assert!(peer.recorded.calls.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_files_lead_to_a_new_connection_as_soon_as_they_are_usable() {
    let (authority, folder) = (authority(), tempfile::tempdir().unwrap());
    let peer = Peer::new(Script { creation: Duration::from_secs(2), ..Script::default() });
    let address = listening(&peer, &authority, "127.0.0.1").await;
    let files = files(folder.path(), &authority, &authority);
    let client = TestClient::new("scripted", at(address), |options| {
        options.tls = Some(files.clone());
        options.check_interval = Duration::from_millis(100);
    });
    until(|| client.driver.accepted().is_some()).await;
    let connections = || peer.recorded.connections.load(Ordering::SeqCst);
    let (cx, worker) = (cx(), request("worker-1"));
    let replacing = async {
        until(|| peer.recorded.running.load(Ordering::SeqCst) == 1).await;
        // The key is written first. It does not belong to the old certificate.
        let (certificate, key) = issued(&authority, "mcm");
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(connections(), 1, "unusable files are not used");
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        until(|| connections() == 2).await;
        assert_eq!(peer.recorded.running.load(Ordering::SeqCst), 1, "the creation still runs");
    };
    let (made, ()) = tokio::join!(client.driver.create_machine(&cx, worker), replacing);
    made.expect("a running call keeps its connection");
    client.status().await.expect("the new connection serves");
    assert_eq!(*client.states.lock().unwrap(), [true], "the driver was up all the time");
}
