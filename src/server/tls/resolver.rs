//! The pair that the next TLS handshake gets.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// A serving certificate that can be replaced while connections live: new handshakes get the new one, open connections
/// keep theirs. Whatever name a caller asks for, there is one certificate.
#[derive(Debug, Default)]
pub(super) struct ServingCertificate {
    pair: ArcSwapOption<CertifiedKey>,
    expires: ArcSwapOption<Timestamp>,
}

impl ServingCertificate {
    pub(super) fn replace(&self, pair: CertifiedKey, expires: Timestamp) {
        self.expires.store(Some(Arc::new(expires)));
        self.pair.store(Some(Arc::new(pair)));
    }

    /// When the pair in use ends.
    pub(super) fn expires(&self) -> Option<Timestamp> {
        self.expires.load().as_deref().copied()
    }

    pub(super) fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.pair.load_full()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}
