//! The pair that the next TLS handshake gets.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// A serving certificate that can be replaced while connections live: new handshakes get the new one, open connections
/// keep theirs. Whatever name a caller asks for, there is one certificate.
#[derive(Debug, Default)]
pub(super) struct ServingCertificate(ArcSwapOption<CertifiedKey>);

impl ServingCertificate {
    pub(super) fn replace(&self, pair: CertifiedKey) {
        self.0.store(Some(Arc::new(pair)));
    }

    pub(super) fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}
