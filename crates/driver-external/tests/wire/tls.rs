//! Mutual TLS: who the driver is, and who asks.

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

use crate::peer::{Kept, Peer, Script, cx, request, until};
use machine_driver::Driver as _;

/// A connection that tonic takes, whoever made it.
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

/// A certificate for this name, and its key.
pub fn issued(authority: &Authority, name: &str) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    (CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, authority).unwrap(), key)
}

/// The files of a client whose certificate is of this authority.
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

/// Serves a peer whose certificate names `name`, to clients of this authority.
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
    let seen = Arc::clone(&peer.seen);
    let connections = stream::unfold((listener, acceptor, seen), |(listener, acceptor, seen)| async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                seen.connections.fetch_add(1, Ordering::SeqCst);
                return Some((Ok(Secure(stream)), (listener, acceptor, seen)));
            }
        }
    });
    tokio::spawn(peer.clone().over(connections.boxed()));
    address
}

fn at(address: SocketAddr) -> Address {
    Address::Tls { host: address.ip().to_string(), port: address.port() }
}

/// What a client with these files is told within a second.
async fn told(address: SocketAddr, files: Option<TlsFiles>) -> String {
    let kept = Kept::new("scripted", at(address), |options| options.tls = files);
    tokio::time::sleep(Duration::from_secs(1)).await;
    kept.status().await.map_or_else(|status| status.message, |_| "served".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_proves_who_it_is_serves() {
    let (authority, peer, folder) = (authority(), Peer::new(Script::default()), tempfile::tempdir().unwrap());
    let address = listening(&peer, &authority, "127.0.0.1").await;
    let files = files(folder.path(), &authority, &authority);
    let kept = Kept::new("scripted", at(address), |options| options.tls = Some(files));
    until(|| kept.driver.accepted().is_some()).await;
    kept.status().await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn e06_a_certificate_with_a_wrong_name_is_refused_and_no_secret_is_sent() {
    let (authority, peer, folder) = (authority(), Peer::new(Script::default()), tempfile::tempdir().unwrap());
    let address = listening(&peer, &authority, "other.example").await;
    let told = told(address, Some(files(folder.path(), &authority, &authority))).await;
    assert!(told.contains("not valid for name"), "{told}");
    assert!(peer.seen.calls.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_is_refused_on_both_sides() {
    let (ours, theirs, peer) = (authority(), authority(), Peer::new(Script::default()));
    let address = listening(&peer, &theirs, "127.0.0.1").await;
    let folder = tempfile::tempdir().unwrap();
    let refused = told(address, Some(files(folder.path(), &ours, &ours))).await;
    assert!(refused.contains("invalid peer certificate"), "{refused}");
    let folder = tempfile::tempdir().unwrap();
    assert_ne!(told(address, Some(files(folder.path(), &theirs, &ours))).await, "served", "our own proof counts, too");
    let bare = told(address, None).await;
    assert!(bare.contains("--external-driver-ca-file"), "{bare}");
    assert!(peer.seen.calls.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_replaced_make_a_new_connection_once_they_can_be_used() {
    let (authority, folder) = (authority(), tempfile::tempdir().unwrap());
    let peer = Peer::new(Script { creation: Duration::from_secs(2), ..Script::default() });
    let address = listening(&peer, &authority, "127.0.0.1").await;
    let files = files(folder.path(), &authority, &authority);
    let kept = Kept::new("scripted", at(address), |options| {
        options.tls = Some(files.clone());
        options.looks_every = Duration::from_millis(100);
    });
    until(|| kept.driver.accepted().is_some()).await;
    let connections = || peer.seen.connections.load(Ordering::SeqCst);
    let (cx, worker) = (cx(), request("worker-1"));
    let replacing = async {
        until(|| peer.seen.running.load(Ordering::SeqCst) == 1).await;
        // The key comes first, and does not belong to the certificate that is there yet.
        let (certificate, key) = issued(&authority, "mcm");
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(connections(), 1, "what can't be used is not used");
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        until(|| connections() == 2).await;
        assert_eq!(peer.seen.running.load(Ordering::SeqCst), 1, "the creation still runs");
    };
    let (made, ()) = tokio::join!(kept.driver.create_machine(&cx, worker), replacing);
    made.expect("a call that runs keeps its connection");
    kept.status().await.expect("the new connection serves");
    assert_eq!(*kept.ups.lock().unwrap(), [true], "the driver was up all the time");
}
