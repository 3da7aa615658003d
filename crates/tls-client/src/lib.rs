//! TLS of clients: the servers that they trust, the certificate that they present, and their connections.
//!
//! Clients of clouds, of drivers in other processes, of webhooks and of extension API servers are made here. Only the client of the
//! Kubernetes API (`kube`) has its own TLS, from kubeconfigs.

#![forbid(unsafe_code)]

mod any_server;
mod connector;

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

pub use self::connector::{Connector, handshake};
use any_server::AnyServer;

/// Why certificates or keys can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The text holds no certificate.
    #[error("there is no certificate in it")]
    Empty,
    /// The text can't be used, for this reason.
    #[error("{0}")]
    Unusable(String),
}

impl TlsError {
    #[expect(clippy::needless_pass_by_value, reason = "`map_err` passes errors by value")]
    fn of(error: impl ToString) -> Self {
        Self::Unusable(error.to_string())
    }
}

/// The servers that a client trusts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Servers with a certificate from one of these authorities, for the name that the client asks for.
    IssuedBy(Arc<RootCertStore>),
    /// Every server. It must still prove that it has the key of its certificate.
    AnyServer,
}

impl Trust {
    /// Trusts authorities in PEM.
    ///
    /// # Errors
    /// The fault of the text.
    pub fn authorities(pem: &[u8]) -> Result<Self, TlsError> {
        Ok(Self::IssuedBy(Arc::new(roots(&certificates(pem)?)?)))
    }

    /// Trusts the authorities of the system.
    pub fn authorities_of_system() -> Self {
        let mut roots = RootCertStore::empty();
        // Errors are ignored: an image without certificates can still use plain HTTP with a configured endpoint.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Self::IssuedBy(Arc::new(roots))
    }
}

/// The certificate that a client presents.
#[derive(Debug)]
pub struct Identity {
    /// The certificate, followed by the certificates that lead to its authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
}

/// The certificates in a PEM text, at least one.
///
/// # Errors
/// The fault of the text.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(TlsError::of)?;
    if read.is_empty() { Err(TlsError::Empty) } else { Ok(read) }
}

/// A store of these authorities, for verifying certificates that they have issued.
///
/// # Errors
/// The fault of the first authority that can't be used.
pub fn roots(authorities: &[CertificateDer<'static>]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(TlsError::of)?;
    }
    Ok(roots)
}

/// The private key in a PEM text.
///
/// # Errors
/// The key can't be read. The parser's error is left out, because it could contain parts of the key.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| TlsError::of("there is no private key in it that can be read"))
}

/// The TLS settings of a client.
///
/// # Errors
/// The reason why certificate and key of the identity can't be used.
pub fn config(trust: Trust, identity: Option<Identity>) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::of)?;
    let builder = match trust {
        Trust::IssuedBy(roots) => builder.with_root_certificates(roots),
        Trust::AnyServer => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider))),
    };
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(Identity { chain, key }) => builder.with_client_auth_cert(chain, key).map_err(TlsError::of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_and_a_broken_certificate_have_different_errors() {
        assert_eq!(Trust::authorities(b"").unwrap_err(), TlsError::Empty);
        let broken = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(matches!(certificates(broken), Err(TlsError::Unusable(_))));
        let no_certificate = b"-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        assert!(matches!(Trust::authorities(no_certificate), Err(TlsError::Unusable(_))));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused_and_no_error_shows_a_key() {
        let [one, other] = [(), ()].map(|()| rcgen::generate_simple_self_signed(["one".to_owned()]).unwrap());
        let identity = |key: &str| {
            Some(Identity {
                chain: certificates(one.cert.pem().as_bytes()).unwrap(),
                key: private_key(key.as_bytes()).unwrap(),
            })
        };
        let trust = Trust::authorities(one.cert.pem().as_bytes()).unwrap();
        assert!(config(trust.clone(), identity(&one.signing_key.serialize_pem())).is_ok());
        assert!(config(trust, identity(&other.signing_key.serialize_pem())).is_err());
        let error = private_key(b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0!\n-----END PRIVATE KEY-----\n").unwrap_err();
        assert!(!error.to_string().contains("c2Vj"), "{error}");
    }
}
