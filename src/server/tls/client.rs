//! Certificates of callers: asked for in the handshake, judged with every request.
//!
//! The handshake takes any certificate and only checks that the caller holds its key. Whether an authority vouches for it is
//! asked per request, against the authorities and the time of that moment: so neither a change of authorities nor an expiry
//! has to wait for the end of a connection.
//! Source: spec/extension-apiserver §3.3, §3.7.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject};

/// Takes any certificate whose key the caller holds, or none.
#[derive(Debug)]
pub(in crate::server) struct AnyHolder {
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyHolder {
    pub(in crate::server) fn new() -> Arc<Self> {
        Arc::new(Self { algorithms: ring::default_provider().signature_verification_algorithms })
    }
}

impl ClientCertVerifier for AnyHolder {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// No hint: authorities change while this verifier stays, and callers take an empty list for "any".
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // `Authorities::vouch_for` judges it, per request.
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Authorities that vouch for callers.
#[derive(Clone, Debug)]
pub struct Authorities {
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Authorities {
    /// Reads authorities.
    ///
    /// # Errors
    /// With what is wrong: no certificate at all, or one that can't be read.
    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        let mut certificates = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            roots.add(certificate.clone()).map_err(|error| error.to_string())?;
            certificates.push(certificate);
        }
        if certificates.is_empty() {
            return Err("there is no certificate in it".to_owned());
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { certificates, verifier })
    }

    /// Whether one of these authorities vouches at `now` for the caller that has shown `chain`, its own certificate first,
    /// and for its use by clients.
    ///
    /// # Errors
    /// With what is wrong with the chain.
    pub fn vouch_for(&self, chain: &[CertificateDer<'static>], now: Timestamp) -> Result<(), String> {
        let (own, intermediates) = chain.split_first().ok_or("no certificate was shown")?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0)));
        match self.verifier.verify_client_cert(own, intermediates, now) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether both hold the same certificate.
    pub fn share_with(&self, other: &Self) -> bool {
        self.certificates.iter().any(|certificate| other.certificates.contains(certificate))
    }
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl Eq for Authorities {}
