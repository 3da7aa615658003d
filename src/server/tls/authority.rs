//! The content of the Secret of the self-managed mode: certificate authorities and one serving certificate.
//!
//! This file makes and reads them. [`super::plan`] decides when to make them. Source: spec/api-and-admission §11.2.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SerialNumber,
};

use super::material::{Certificate, KeyPair, MaterialError, PrivateKey};

/// Certificates are valid from this time before they are made, for clocks that are behind ours.
pub const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);
/// The maximum number of authorities that are kept.
pub const MAX_AUTHORITIES: usize = 4;

/// The prefix of the names of our authorities.
const AUTHORITY_NAME: &str = "machine-controller-manager-ca@";

/// Whether an authority was made by this or by another manager. The certificate contains its name as plain bytes, so a
/// search for the name is enough.
pub fn is_of_our_making(authority: &Certificate) -> bool {
    authority.der().windows(AUTHORITY_NAME.len()).any(|part| part == AUTHORITY_NAME.as_bytes())
}

const CA_BUNDLE: &str = "ca.crt";
const CA_KEYS: &str = "ca.key";
const TLS_CERTIFICATE: &str = "tls.crt";
const TLS_KEY: &str = "tls.key";

/// A certificate authority of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Its certificate.
    pub certificate: Certificate,
    /// Its key. Without the key the authority is trusted but can't sign.
    pub key: Option<PrivateKey>,
}

impl Authority {
    /// Makes an authority. `serial` is 128 random bits.
    pub fn generate(now: Timestamp, lifetime: SignedDuration, serial: [u8; 16]) -> Result<Self, MaterialError> {
        let mut params = params(now, lifetime, serial)?;
        // Each authority has its own name, so that verifiers that look up authorities by name find the right one.
        params.distinguished_name.push(DnType::CommonName, format!("{AUTHORITY_NAME}{}", now.as_second()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key = rcgen::KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(making)?;
        let certificate = Certificate::parse(params.self_signed(&key).map_err(making)?.into())?;
        Ok(Self { certificate, key: Some(PrivateKey::new(key.into())) })
    }

    /// Issues a serving certificate that does not outlive the authority.
    pub fn issue(
        &self,
        names: &BTreeSet<String>,
        now: Timestamp,
        lifetime: SignedDuration,
        serial: [u8; 16],
    ) -> Result<KeyPair, MaterialError> {
        let authority_key = self
            .key
            .as_ref()
            .ok_or_else(|| MaterialError::Missing("the key of the certificate authority (ca.key)".to_owned()))?;
        let signing = rcgen::KeyPair::try_from(authority_key.der()).map_err(making)?;
        let issuer = Issuer::from_ca_cert_der(self.certificate.der(), signing).map_err(making)?;
        let lifetime = lifetime.min(self.certificate.not_after.duration_since(now));
        let mut params = params(now, lifetime, serial)?;
        let names: Vec<String> = names.iter().cloned().collect();
        params.subject_alt_names = CertificateParams::new(names).map_err(making)?.subject_alt_names;
        params.distinguished_name.push(DnType::CommonName, "machine-controller-manager");
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = rcgen::KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(making)?;
        let certificate = Certificate::parse(params.signed_by(&key, &issuer).map_err(making)?.into())?;
        KeyPair::new(vec![certificate], PrivateKey::new(key.into()))
    }
}

fn params(now: Timestamp, lifetime: SignedDuration, serial: [u8; 16]) -> Result<CertificateParams, MaterialError> {
    let seconds = |time: Timestamp| {
        u64::try_from(time.as_second()).map_err(|_| MaterialError::Making(format!("{time} is before 1970")))
    };
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = epoch + std::time::Duration::from_secs(seconds(now - CLOCK_SKEW)?);
    params.not_after = epoch + std::time::Duration::from_secs(seconds(now + lifetime)?);
    let mut serial = serial;
    // A serial number must be a positive integer, and its first bit is the sign.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}

#[allow(clippy::needless_pass_by_value)] // `map_err` passes the error by value.
fn making(error: rcgen::Error) -> MaterialError {
    MaterialError::Making(error.to_string())
}

/// The content of the certificate Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertSecret {
    /// Authorities that callers must trust, newest first; never empty.
    pub authorities: Vec<Authority>,
    /// The serving certificate.
    pub serving: KeyPair,
}

impl CertSecret {
    /// Reads a Secret's data. The keys in `ca.key` may be in any order, because each key is found by its certificate.
    pub fn from_data(data: &BTreeMap<String, ByteString>) -> Result<Self, MaterialError> {
        let part = |key: &str| data.get(key).map_or(&[][..], |value| value.0.as_slice());
        let keys = PrivateKey::read_all(part(CA_KEYS), CA_KEYS)?;
        let authorities = Certificate::read_all(part(CA_BUNDLE), CA_BUNDLE)?.into_iter().map(|certificate| {
            let key = keys.iter().find(|key| key.belongs_to(&certificate)).cloned();
            Authority { certificate, key }
        });
        let authorities = authorities.collect();
        Ok(Self { authorities, serving: KeyPair::read(part(TLS_CERTIFICATE), part(TLS_KEY))? })
    }

    /// The Secret's data.
    pub fn to_data(&self) -> BTreeMap<String, ByteString> {
        let keys: String = self.authorities.iter().filter_map(|a| a.key.as_ref()).map(PrivateKey::to_pem).collect();
        [
            (CA_BUNDLE, self.bundle_pem()),
            (CA_KEYS, keys),
            (TLS_CERTIFICATE, self.serving.chain_pem()),
            (TLS_KEY, self.serving.key_pem()),
        ]
        .into_iter()
        .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
        .collect()
    }

    /// The authorities as PEM, newest first. This is the value of `caBundle` fields.
    pub fn bundle_pem(&self) -> String {
        self.authorities.iter().map(|authority| authority.certificate.to_pem()).collect()
    }

    /// The index of the authority that signed the serving certificate.
    pub fn signer(&self) -> Option<usize> {
        self.authorities.iter().position(|authority| self.serving.leaf().is_signed_by(&authority.certificate))
    }
}
