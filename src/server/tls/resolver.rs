//! The certificate and key for the next TLS handshake.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::sni::SniTable;

/// A serving certificate that can be replaced while connections are open. New handshakes get the new certificate, and
/// open connections keep the old one. A name that has its own pair gets that pair.
#[derive(Debug, Default)]
pub(super) struct ServingCertificate {
    pair: ArcSwapOption<CertifiedKey>,
    names: ArcSwap<SniTable>,
    validity: ArcSwapOption<Validity>,
}

/// The time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first moment at which it is valid.
    pub from: Timestamp,
    /// The first moment at which it is no longer valid.
    pub until: Timestamp,
}

impl ServingCertificate {
    pub(super) fn replace(&self, pair: CertifiedKey, validity: Validity) {
        self.validity.store(Some(Arc::new(validity)));
        self.pair.store(Some(Arc::new(pair)));
    }

    pub(super) fn replace_names(&self, names: SniTable) {
        self.names.store(Arc::new(names));
    }

    /// The time in which the pair in use is valid. `None` without a pair.
    pub(super) fn validity(&self) -> Option<Validity> {
        self.validity.load().as_deref().copied()
    }

    pub(super) fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.pair.load_full()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        hello.server_name().and_then(|name| self.names.load().find(name)).or_else(|| self.current())
    }
}
