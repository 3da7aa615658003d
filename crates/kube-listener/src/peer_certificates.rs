//! The certificates of a client, and the authorities that have verified them.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use jiff::Timestamp;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Maximum number of verifications that are kept for a connection. There are two kinds of authorities, and they change
/// rarely.
const MAX_VERIFICATIONS: usize = 4;

/// The certificates that a client has sent on a connection, its own certificate first, with the verifications of this
/// chain. Clones share both.
#[derive(Clone, Debug, Default)]
pub struct PeerCertificates(Arc<Chain>);

#[derive(Debug, Default)]
struct Chain {
    certificates: Vec<CertificateDer<'static>>,
    verifications: Mutex<Vec<Verification>>,
}

/// A successful verification of the chain by some authorities. It is valid until the first certificate of the chain
/// expires.
#[derive(Debug)]
struct Verification {
    /// A weak reference and not a plain pointer: while the reference exists, no other verifier can have the same
    /// address.
    by: Weak<dyn ClientCertVerifier>,
    from: Timestamp,
    until: Timestamp,
}

impl From<Vec<CertificateDer<'static>>> for PeerCertificates {
    fn from(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self(Arc::new(Chain { certificates, verifications: Mutex::default() }))
    }
}

impl Deref for PeerCertificates {
    type Target = [CertificateDer<'static>];

    fn deref(&self) -> &Self::Target {
        &self.0.certificates
    }
}

impl PeerCertificates {
    /// Whether these authorities have verified the chain before, and no certificate has expired since.
    pub fn is_verified_by(&self, by: &Arc<dyn ClientCertVerifier>, now: Timestamp) -> bool {
        let by = Arc::downgrade(by);
        let holds = |known: &Verification| known.by.ptr_eq(&by) && known.from <= now && now < known.until;
        self.0.verifications.lock().unwrap_or_else(PoisonError::into_inner).iter().any(holds)
    }

    /// Records that these authorities have verified the chain.
    pub fn set_verified_by(&self, by: &Arc<dyn ClientCertVerifier>, now: Timestamp) {
        // A certificate without a readable expiry is verified for each request.
        let Some(until) = self.first_expiry() else { return };
        let by = Arc::downgrade(by);
        let mut verifications = self.0.verifications.lock().unwrap_or_else(PoisonError::into_inner);
        verifications.retain(|known| known.by.strong_count() > 0 && !known.by.ptr_eq(&by));
        if verifications.len() >= MAX_VERIFICATIONS {
            verifications.remove(0);
        }
        verifications.push(Verification { by, from: now, until });
    }

    /// The number of verifications that are kept.
    pub fn verifications(&self) -> usize {
        self.0.verifications.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn first_expiry(&self) -> Option<Timestamp> {
        let expiry = |certificate: &CertificateDer<'_>| {
            let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
            Timestamp::from_second(parsed.validity().not_after.timestamp()).ok()
        };
        self.iter().map(expiry).collect::<Option<Vec<_>>>()?.into_iter().min()
    }
}
