//! Connections to drivers. The identity of the peer is verified before any request is sent.
//!
//! The folder of a Unix socket must be closed to other users, and the peer of the socket must run as the user of this process or as root.
//! A host must present a certificate of the configured authority for its name, and this process presents its own. Source: spec/providers §9.2.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tls_client::{Identity, TlsError, Trust};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tonic::transport::Endpoint;

use crate::{
    address::Address,
    grpc_only::{self, GrpcOnly},
};

/// The longest time that connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between HTTP/2 pings, and how long the answer to a ping may take.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));
/// The largest size of all headers of an answer, in bytes. Messages and details of failures are sent in headers.
const LONGEST_HEADERS: u32 = 64 * 1024;
/// The URI of requests. It is a placeholder, because the connection exists already.
const AUTHORITY: &str = "http://driver";

/// The files for mutual TLS, in PEM. They are read again for every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the authorities that issue certificates for drivers.
    pub ca: PathBuf,
    /// The certificate chain of this process.
    pub certificate: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket or the host can't be trusted.
    #[error("{0}")]
    Untrusted(String),
    /// A file can't be used.
    #[error("{file}: {why}")]
    File {
        /// The path of the file.
        file: PathBuf,
        /// The error.
        why: String,
    },
    /// The peer can't be reached, or its identity can't be verified.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer does not speak HTTP/2.
    #[error(transparent)]
    Http(#[from] tonic::transport::Error),
    /// Connecting took too long.
    #[error("no connection within {} s", CONNECT_TIMEOUT.as_secs())]
    Late,
    /// The configuration names no files for TLS.
    #[error("https needs --external-driver-ca-file, --external-driver-cert-file and --external-driver-key-file")]
    NoTlsFiles,
}

/// The text of an error and of all its causes.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

/// Whether a call failed because the connection broke. An error with a cause was made in this process and is no answer of the peer.
pub fn is_lost(error: &tonic::Status) -> bool {
    std::error::Error::source(error).is_some()
}

/// Why a call got no answer: the causes of the error, without code and metadata.
pub(crate) fn describe(error: &tonic::Status) -> String {
    std::error::Error::source(error).map_or_else(|| error.message().to_owned(), with_causes)
}

/// Connects to a driver.
///
/// # Errors
/// Why there is no connection. Nothing has been sent to a peer whose identity is not verified.
pub async fn connect(address: &Address, files: Option<&TlsFiles>) -> Result<GrpcOnly, ConnectError> {
    let connecting = async {
        match address {
            Address::Unix(path) => over(unix(path).await?).await,
            Address::Plain(address) => over(tcp(address).await?).await,
            Address::Tls { host, port } => {
                let config = tls(files.ok_or(ConnectError::NoTlsFiles)?)?;
                let stream = tcp((host.as_str(), *port)).await?;
                over(tls_client::handshake(stream, host, Arc::new(config)).await?).await
            }
        }
    };
    tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| ConnectError::Late)?
}

/// A hash of the contents of the files. A changed hash means that a new connection is needed.
pub fn fingerprint(files: &TlsFiles) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in [&files.ca, &files.certificate, &files.key] {
        std::fs::read(file).ok().hash(&mut hasher);
    }
    hasher.finish()
}

async fn tcp(address: impl tokio::net::ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn unix(path: &Path) -> Result<UnixStream, ConnectError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let found = tokio::fs::metadata(folder)
        .await
        .map_err(|error| ConnectError::File { file: folder.to_owned(), why: error.to_string() })?;
    let ours = rustix::process::geteuid().as_raw();
    folder_is_closed(folder, found.mode(), found.uid(), ours).map_err(ConnectError::Untrusted)?;
    let stream = UnixStream::connect(path).await?;
    peer_is_ours(stream.peer_cred()?.uid(), ours).map_err(ConnectError::Untrusted)?;
    Ok(stream)
}

/// Checks that other users can't create a socket in a folder.
///
/// # Errors
/// The users that can create a socket.
pub(crate) fn folder_is_closed(folder: &Path, mode: u32, owner: u32, ours: u32) -> Result<(), String> {
    if owner != ours && owner != 0 {
        return Err(format!(
            "the folder {} belongs to user {owner}, and this process runs as user {ours}",
            folder.display()
        ));
    }
    if mode & 0o077 != 0 {
        return Err(format!(
            "the folder {} is open to other users (mode {:04o}); it must be 0700",
            folder.display(),
            mode & 0o7777
        ));
    }
    Ok(())
}

/// Checks that the peer of a socket runs as the user of this process or as root.
///
/// # Errors
/// The user of the peer.
pub(crate) fn peer_is_ours(peer: u32, ours: u32) -> Result<(), String> {
    if peer == ours || peer == 0 {
        Ok(())
    } else {
        Err(format!("the other end of the socket is user {peer}, and this process runs as user {ours}"))
    }
}

/// The TLS configuration of the files.
///
/// # Errors
/// The file that can't be used.
pub fn tls(files: &TlsFiles) -> Result<rustls::ClientConfig, ConnectError> {
    let trust = parsed(&files.ca, Trust::authorities)?;
    let chain = parsed(&files.certificate, tls_client::certificates)?;
    let key = parsed(&files.key, tls_client::private_key)?;
    let config = tls_client::config(trust, Some(Identity { chain, key }));
    let mut config =
        config.map_err(|error| ConnectError::File { file: files.certificate.clone(), why: error.to_string() })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn parsed<T>(file: &Path, parse: fn(&[u8]) -> Result<T, TlsError>) -> Result<T, ConnectError> {
    let read = std::fs::read(file).map_err(|error| error.to_string());
    let parsed = read.and_then(|pem| parse(&pem).map_err(|error| error.to_string()));
    parsed.map_err(|why| ConnectError::File { file: file.to_owned(), why })
}

/// A gRPC channel over one stream. It never reconnects by itself, because the identity of the peer must be verified for each connection.
async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<GrpcOnly, ConnectError> {
    let stream = Mutex::new(Some(TokioIo::new(stream)));
    let once = tower::service_fn(move |_: tonic::transport::Uri| {
        let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        async { stream.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the connection is lost")) }
    });
    let endpoint = Endpoint::from_static(AUTHORITY)
        .http2_keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1)
        .keep_alive_while_idle(true)
        .http2_max_header_list_size(LONGEST_HEADERS);
    Ok(grpc_only::over(endpoint.connect_with_connector(once).await?))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ours(0o040_700, 7, true)]
    #[case::of_root(0o040_700, 0, true)]
    #[case::open_to_a_group(0o040_750, 7, false)]
    #[case::open_to_all(0o041_777, 0, false)]
    #[case::of_somebody_else(0o040_700, 8, false)]
    fn a_folder(#[case] mode: u32, #[case] owner: u32, #[case] expected: bool) {
        assert_eq!(folder_is_closed(Path::new("/run/mcm"), mode, owner, 7).is_ok(), expected);
    }

    #[rstest]
    #[case::ours(7, true)]
    #[case::root(0, true)]
    #[case::another(8, false)]
    fn a_peer(#[case] peer: u32, #[case] expected: bool) {
        assert_eq!(peer_is_ours(peer, 7).is_ok(), expected);
    }
}
