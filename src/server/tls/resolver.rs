//! The pair that the next TLS handshake gets.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::sni::SniTable;

/// A serving certificate that can be replaced while connections live: new handshakes get the new one, open connections
/// keep theirs. Names that have a pair of their own get that one.
#[derive(Debug, Default)]
pub(super) struct ServingCertificate {
    pair: ArcSwapOption<CertifiedKey>,
    names: ArcSwap<SniTable>,
    validity: ArcSwapOption<Validity>,
}

/// From when to when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not before.
    pub from: Timestamp,
    /// Not at or after.
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

    /// When the pair in use is valid.
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
