//! Certificates of callers: asked for in the handshake, judged with every request.
//!
//! The handshake takes any certificate and only checks that the caller holds its key. Whether an authority vouches for it is
//! asked per request, against the authorities and the time of that moment: so neither a change of authorities nor an expiry
//! has to wait for the end of a connection.
//! Source: spec/extension-apiserver §3.3, §3.7.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use kube_listener::PeerCertificates;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, UnixTime};

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

/// Authorities that may change while they are in use. Clones share them.
#[derive(Clone, Debug)]
pub struct LiveAuthorities(Arc<ArcSwap<Authorities>>);

impl LiveAuthorities {
    /// These, until others are [`Self::set`].
    pub fn new(authorities: Authorities) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(authorities)))
    }

    /// Those of this moment.
    pub fn get(&self) -> Arc<Authorities> {
        self.0.load_full()
    }

    /// Others from now on.
    pub fn set(&self, authorities: Authorities) {
        self.0.store(Arc::new(authorities));
    }
}

impl PartialEq for LiveAuthorities {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LiveAuthorities {}

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
        let certificates = tls_client::certificates(pem).map_err(|error| error.to_string())?;
        let roots = tls_client::roots(&certificates).map_err(|error| error.to_string())?;
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { certificates, verifier })
    }

    /// Whether one of these authorities vouches at `now` for the caller that has shown `chain`, its own certificate first,
    /// and for its use by clients. What was found good once is not looked at again until something expires.
    ///
    /// # Errors
    /// With what is wrong with the chain.
    pub fn vouch_for(&self, chain: &PeerCertificates, now: Timestamp) -> Result<(), String> {
        let (own, intermediates) = chain.split_first().ok_or("no certificate was shown")?;
        if chain.is_verified_by(&self.verifier, now) {
            return Ok(());
        }
        let at = now;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0)));
        match self.verifier.verify_client_cert(own, intermediates, now) {
            Ok(_) => {
                chain.set_verified_by(&self.verifier, at);
                Ok(())
            }
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

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
        date_time_ymd,
    };
    use rstest::rstest;
    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
        client::ResolvesClientCert, crypto::ring::sign::any_supported_type, sign::CertifiedKey, version,
    };
    use rustls_pki_types::PrivateKeyDer;

    use super::*;

    fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn chain_of(authority: &CertifiedIssuer<'static, KeyPair>) -> PeerCertificates {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2030, 1, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&KeyPair::generate().unwrap(), authority).unwrap();
        vec![certificate.der().clone()].into()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn th_15_th_42_a_chain_is_judged_once_per_authorities_and_expires_all_the_same() {
        let (own, foreign) = (authority("own"), authority("own"));
        let chain = chain_of(&own);
        let (good, bad) = (
            Authorities::from_pem(own.pem().as_bytes()).unwrap(),
            Authorities::from_pem(foreign.pem().as_bytes()).unwrap(),
        );
        let now = at("2026-01-01T00:00:00Z");
        assert!(good.vouch_for(&chain, now).is_ok() && chain.is_verified_by(&good.verifier, now));
        assert!(good.vouch_for(&chain.clone(), now).is_ok());
        assert!(bad.vouch_for(&chain, now).is_err() && !chain.is_verified_by(&bad.verifier, now));
        assert_eq!(chain.verifications(), 1);

        let last = at("2029-12-31T23:59:59Z");
        assert!(good.vouch_for(&chain, last).is_ok());
        let (over, before) = (at("2030-01-01T00:00:01Z"), at("2019-01-01T00:00:00Z"));
        assert!(good.vouch_for(&chain, over).is_err(), "an expiry is seen on an open connection");
        assert!(good.vouch_for(&chain, before).is_err(), "nor is it good before its time when the clock jumps back");

        // Authorities that are read anew are others.
        let again = Authorities::from_pem(own.pem().as_bytes()).unwrap();
        assert!(!chain.is_verified_by(&again.verifier, now) && again.vouch_for(&chain, now).is_ok());
        drop(good);
        assert!(again.vouch_for(&chain, last).is_ok());
    }
    #[test]
    fn what_a_caller_shows_beside_its_own_certificate_leads_to_the_authority() {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "between");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let between = CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &root).unwrap();
        let leaf = chain_of(&between);
        let authorities = Authorities::from_pem(root.pem().as_bytes()).unwrap();
        let now = at("2026-01-01T00:00:00Z");
        assert!(authorities.vouch_for(&leaf, now).is_err(), "nobody knows who signed it");
        let whole: PeerCertificates = vec![leaf[0].clone(), between.der().clone()].into();
        assert!(authorities.vouch_for(&whole, now).is_ok());
    }

    /// Somebody who shows a certificate and signs with a key.
    #[derive(Debug)]
    struct Holder(Arc<CertifiedKey>);

    impl ResolvesClientCert for Holder {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            Some(Arc::clone(&self.0))
        }
        fn has_certs(&self) -> bool {
            true
        }
    }

    fn key(pair: &KeyPair) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(pair.serialize_der()).unwrap()
    }

    /// A handshake without a socket; the error is the server's.
    fn shake_hands(mut client: ClientConnection, mut server: ServerConnection) -> Result<(), Error> {
        while client.is_handshaking() || server.is_handshaking() {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            client.write_tls(&mut there).unwrap();
            let mut unread = there.as_slice();
            while !unread.is_empty() {
                server.read_tls(&mut unread).unwrap();
                server.process_new_packets()?;
            }
            server.write_tls(&mut back).unwrap();
            let mut unread = back.as_slice();
            while !unread.is_empty() {
                client.read_tls(&mut unread).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        Ok(())
    }

    #[rstest]
    fn whoever_lacks_the_key_of_its_certificate_gets_no_connection(
        #[values(&version::TLS12, &version::TLS13)] version: &'static SupportedProtocolVersion,
        #[values(true, false)] holds_the_key: bool,
    ) {
        let authority = authority("clients");
        let provider = Arc::new(ring::default_provider());
        let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let shown = CertificateParams::default().signed_by(&own, &authority).unwrap().der().clone();
        let serving_key = KeyPair::generate().unwrap();
        let serving = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let serving = serving.signed_by(&serving_key, &authority).unwrap().der().clone();
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_client_cert_verifier(AnyHolder::new())
            .with_single_cert(vec![serving], key(&serving_key))
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let signing = any_supported_type(&key(if holds_the_key { &own } else { &other })).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(Holder(Arc::new(CertifiedKey::new(vec![shown], signing)))));
        let client = ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap();
        let server = ServerConnection::new(Arc::new(server)).unwrap();
        assert_eq!(shake_hands(client, server).is_ok(), holds_the_key);
    }
}
