//! The certificates that a caller has shown.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use jiff::Timestamp;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Verdicts that are kept of a connection: authorities change rarely, and two kinds of them judge callers.
const MOST_VERDICTS: usize = 4;

/// The certificates that a caller has shown on a connection, its own first, with what was found good about them. Clones share
/// both.
#[derive(Clone, Debug, Default)]
pub struct ShownChain(Arc<Shown>);

#[derive(Debug, Default)]
struct Shown {
    certificates: Vec<CertificateDer<'static>>,
    verdicts: Mutex<Vec<Verdict>>,
}

/// Authorities have vouched for the chain, at one time and until the first of its certificates expires.
#[derive(Debug)]
struct Verdict {
    /// Keeps the place of these authorities, so that no others take it.
    by: Weak<dyn ClientCertVerifier>,
    from: Timestamp,
    until: Timestamp,
}

impl From<Vec<CertificateDer<'static>>> for ShownChain {
    fn from(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self(Arc::new(Shown { certificates, verdicts: Mutex::default() }))
    }
}

impl Deref for ShownChain {
    type Target = [CertificateDer<'static>];

    fn deref(&self) -> &Self::Target {
        &self.0.certificates
    }
}

impl ShownChain {
    /// Whether these authorities have vouched before, and nothing has expired since.
    pub fn is_known_to(&self, by: &Arc<dyn ClientCertVerifier>, now: Timestamp) -> bool {
        let by = Arc::downgrade(by);
        let holds = |verdict: &Verdict| verdict.by.ptr_eq(&by) && verdict.from <= now && now < verdict.until;
        self.0.verdicts.lock().unwrap_or_else(PoisonError::into_inner).iter().any(holds)
    }

    /// These authorities vouch for the chain, as far as is known now.
    pub fn remember(&self, by: &Arc<dyn ClientCertVerifier>, now: Timestamp) {
        // What can't be read is judged anew each time.
        let Some(until) = self.first_expiry() else { return };
        let by = Arc::downgrade(by);
        let mut verdicts = self.0.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.retain(|verdict| verdict.by.strong_count() > 0 && !verdict.by.ptr_eq(&by));
        if verdicts.len() >= MOST_VERDICTS {
            verdicts.remove(0);
        }
        verdicts.push(Verdict { by, from: now, until });
    }

    /// How many verdicts are kept.
    pub fn verdicts(&self) -> usize {
        self.0.verdicts.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn first_expiry(&self) -> Option<Timestamp> {
        let expiry = |certificate: &CertificateDer<'_>| {
            let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
            Timestamp::from_second(parsed.validity().not_after.timestamp()).ok()
        };
        self.iter().map(expiry).collect::<Option<Vec<_>>>()?.into_iter().min()
    }
}
