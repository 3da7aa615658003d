//! The TLS settings of the listener. Source: spec/extension-apiserver §4.3.

use std::sync::Arc;

use rustls::{
    ServerConfig, SupportedCipherSuite,
    crypto::{CryptoProvider, ring},
    server::ResolvesServerCert,
    version::{TLS12, TLS13},
};
use tokio_rustls::TlsAcceptor;

use super::{
    BindError,
    tls::{AnyHolder, LiveAuthorities},
};

/// The oldest TLS version that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// `VersionTLS12`.
    V1_2,
    /// `VersionTLS13`.
    V1_3,
}

/// Whether clients must send a certificate. Most API servers have none, so that the default is not to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// No client is asked for a certificate.
    NotAsked,
    /// A client may send one. Each request decides which authorities must have issued it.
    Asked,
    /// Webhooks answer only clients with a certificate of these authorities. Requests for health need none.
    DemandedByWebhooks {
        /// The present authorities.
        authorities: LiveAuthorities,
    },
}

/// TLS settings with a certificate that can change between handshakes.
pub(super) fn tls_acceptor(
    certificate: Arc<dyn ResolvesServerCert>,
    min_version: TlsVersion,
    suites: &[SupportedCipherSuite],
    client_certificates: &ClientCertificates,
) -> Result<TlsAcceptor, BindError> {
    let failed = |error: rustls::Error| BindError::Tls(error.to_string());
    let provider = Arc::new(CryptoProvider { cipher_suites: suites.to_vec(), ..ring::default_provider() });
    let versions: &[_] = match min_version {
        TlsVersion::V1_2 => &[&TLS13, &TLS12],
        TlsVersion::V1_3 => &[&TLS13],
    };
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions).map_err(failed)?;
    let builder = match client_certificates {
        ClientCertificates::NotAsked => builder.with_no_client_auth(),
        ClientCertificates::Asked | ClientCertificates::DemandedByWebhooks { .. } => {
            builder.with_client_cert_verifier(AnyHolder::new())
        }
    };
    let mut config = builder.with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
