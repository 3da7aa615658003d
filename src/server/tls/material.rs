//! Certificates and private keys: reads them, compares them with each other, and writes them as PEM.
//!
//! This file handles only values. Other files of this module read files and Secrets. Source: spec/api-and-admission
//! §11.2, §11.6.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use rustls::{crypto::ring::sign::any_supported_type, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Why certificate material cannot be used. Never contains key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaterialError {
    /// There is no content.
    #[error("{0} is missing or empty")]
    Missing(String),
    /// The text is no PEM, or PEM with another content.
    #[error("{what} is no PEM of the expected kind: {why}")]
    NotPem {
        /// Which part.
        what: String,
        /// What the parser said.
        why: String,
    },
    /// The content of the PEM is no certificate or key.
    #[error("{what} cannot be read: {why}")]
    Unreadable {
        /// Which part.
        what: String,
        /// What the parser said.
        why: String,
    },
    /// Key and certificate belong to different pairs.
    #[error("the private key does not belong to the certificate")]
    Mismatch,
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Making(String),
}

/// A certificate, with the data that decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    der: CertificateDer<'static>,
    /// Valid from.
    pub not_before: Timestamp,
    /// Valid until.
    pub not_after: Timestamp,
    /// DNS names and IP addresses for which it is valid, as text.
    pub names: BTreeSet<String>,
    public_key: Vec<u8>,
}

impl Certificate {
    /// Reads one certificate.
    pub fn parse(der: CertificateDer<'static>) -> Result<Self, MaterialError> {
        let unreadable = |why: String| MaterialError::Unreadable { what: "the certificate".to_owned(), why };
        let (_, read) = X509Certificate::from_der(&der).map_err(|error| unreadable(error.to_string()))?;
        let time = |seconds: i64| Timestamp::from_second(seconds).map_err(|error| unreadable(error.to_string()));
        let not_before = time(read.validity().not_before.timestamp())?;
        let not_after = time(read.validity().not_after.timestamp())?;
        let names = read
            .subject_alternative_name()
            .map_err(|error| unreadable(error.to_string()))?
            .map(|extension| extension.value.general_names.iter().filter_map(name_text).collect())
            .unwrap_or_default();
        let public_key = read.public_key().subject_public_key.data.to_vec();
        Ok(Self { der, not_before, not_after, names, public_key })
    }

    /// Reads all certificates of a PEM text; text around them is ignored.
    pub fn read_all(pem: &[u8], what: &str) -> Result<Vec<Self>, MaterialError> {
        let mut read = Vec::new();
        for der in CertificateDer::pem_slice_iter(pem) {
            let der = der.map_err(|e| MaterialError::NotPem { what: what.to_owned(), why: e.to_string() })?;
            read.push(Self::parse(der)?);
        }
        if read.is_empty() { Err(MaterialError::Missing(what.to_owned())) } else { Ok(read) }
    }

    /// Whether this certificate carries a signature of `authority`.
    pub fn is_signed_by(&self, authority: &Self) -> bool {
        let (Ok((_, this)), Ok((_, authority))) =
            (X509Certificate::from_der(&self.der), X509Certificate::from_der(&authority.der))
        else {
            return false;
        };
        this.verify_signature(Some(authority.public_key())).is_ok()
    }

    /// As DER.
    pub const fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// As PEM.
    pub fn to_pem(&self) -> String {
        pem("CERTIFICATE", &self.der)
    }
}

fn name_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    }
}

/// A private key. `Debug` does not print it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateKey(Arc<PrivateKeyDer<'static>>);

impl PrivateKey {
    /// Takes a key in DER.
    pub fn new(der: PrivateKeyDer<'static>) -> Self {
        Self(Arc::new(der))
    }

    /// Reads all keys of a PEM text.
    pub fn read_all(pem: &[u8], what: &str) -> Result<Vec<Self>, MaterialError> {
        PrivateKeyDer::pem_slice_iter(pem)
            .map(|der| der.map(Self::new))
            .collect::<Result<_, _>>()
            .map_err(|e| MaterialError::NotPem { what: what.to_owned(), why: e.to_string() })
    }

    /// Whether the certificate was made for this key.
    pub fn belongs_to(&self, certificate: &Certificate) -> bool {
        rcgen::KeyPair::try_from(&*self.0)
            .is_ok_and(|pair| rcgen::PublicKeyData::der_bytes(&pair) == certificate.public_key.as_slice())
    }

    /// As DER.
    pub fn der(&self) -> &PrivateKeyDer<'static> {
        &self.0
    }

    /// As PEM.
    pub fn to_pem(&self) -> String {
        let label = match &*self.0 {
            PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
            PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        pem(label, self.0.secret_der())
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let body = BASE64_STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text + "-----END " + label + "-----\n"
}

/// A certificate chain with the key of its first certificate: what a TLS server presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// The serving certificate, then those that lead to an authority.
    chain: Vec<Certificate>,
    leaf: Certificate,
    key: PrivateKey,
}

impl KeyPair {
    /// Reads a chain and a key from PEM and checks that they belong together.
    pub fn read(certificate_pem: &[u8], key_pem: &[u8]) -> Result<Self, MaterialError> {
        let chain = Certificate::read_all(certificate_pem, "the certificate (tls.crt)")?;
        let missing_key = || MaterialError::Missing("the private key (tls.key)".to_owned());
        let mut keys = PrivateKey::read_all(key_pem, "the private key (tls.key)")?.into_iter();
        Self::new(chain, keys.next().ok_or_else(missing_key)?)
    }

    /// Puts a chain and a key together.
    pub fn new(chain: Vec<Certificate>, key: PrivateKey) -> Result<Self, MaterialError> {
        let leaf = chain.first().cloned().ok_or_else(|| MaterialError::Missing("the certificate".to_owned()))?;
        let pair = Self { chain, leaf, key };
        pair.certified_key()?;
        Ok(pair)
    }

    /// The serving certificate.
    pub const fn leaf(&self) -> &Certificate {
        &self.leaf
    }

    /// The chain as PEM.
    pub fn chain_pem(&self) -> String {
        self.chain.iter().map(Certificate::to_pem).collect()
    }

    /// The key as PEM.
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    /// As the TLS library wants it.
    pub fn certified_key(&self) -> Result<CertifiedKey, MaterialError> {
        let unreadable =
            |e: rustls::Error| MaterialError::Unreadable { what: "the private key".to_owned(), why: e.to_string() };
        let signing = any_supported_type(self.key.der()).map_err(unreadable)?;
        let certified = CertifiedKey::new(self.chain.iter().map(|c| c.der().clone()).collect(), signing);
        match certified.keys_match() {
            Ok(()) => Ok(certified),
            Err(rustls::Error::InconsistentKeys(_)) => Err(MaterialError::Mismatch),
            Err(error) => Err(unreadable(error)),
        }
    }
}
