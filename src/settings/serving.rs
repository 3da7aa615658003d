//! The listeners: who may call them, by which certificate they are known, and what admission answers there.

use std::{net::IpAddr, num::NonZeroU16, path::PathBuf};

use machine_api::{
    defaulting::FinalizerDefault,
    validation::{Coverage, Profile},
};

/// Who may call webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// PEM file of the authorities of which callers must show a certificate; most API servers have none to show.
    pub client_authorities: Option<PathBuf>,
    /// Name of both webhook configurations, whose `caBundle` is kept right.
    pub configuration: String,
    /// The oldest TLS version that is spoken.
    pub tls_min_version: TlsMinVersion,
    /// Cipher suites that are spoken.
    pub tls_cipher_suites: Vec<TlsCipherSuite>,
}

/// A cipher suite, by the names that Go and IANA give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsCipherSuite {
    /// `TLS_AES_256_GCM_SHA384`.
    Tls13Aes256,
    /// `TLS_AES_128_GCM_SHA256`.
    Tls13Aes128,
    /// `TLS_CHACHA20_POLY1305_SHA256`.
    Tls13ChaCha20,
    /// `TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384`.
    EcdsaAes256,
    /// `TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256`.
    EcdsaAes128,
    /// `TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256`.
    EcdsaChaCha20,
    /// `TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`.
    RsaAes256,
    /// `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`.
    RsaAes128,
    /// `TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256`.
    RsaChaCha20,
}

impl TlsCipherSuite {
    /// All that are spoken unless some are named, the strongest first.
    pub const ALL: [Self; 9] = [
        Self::Tls13Aes256,
        Self::Tls13Aes128,
        Self::Tls13ChaCha20,
        Self::EcdsaAes256,
        Self::EcdsaAes128,
        Self::EcdsaChaCha20,
        Self::RsaAes256,
        Self::RsaAes128,
        Self::RsaChaCha20,
    ];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tls13Aes256 => "TLS_AES_256_GCM_SHA384",
            Self::Tls13Aes128 => "TLS_AES_128_GCM_SHA256",
            Self::Tls13ChaCha20 => "TLS_CHACHA20_POLY1305_SHA256",
            Self::EcdsaAes256 => "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            Self::EcdsaAes128 => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            Self::EcdsaChaCha20 => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            Self::RsaAes256 => "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            Self::RsaAes128 => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            Self::RsaChaCha20 => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        }
    }

    /// The suite of a name; Go's old names of two of them end before the hash.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| {
            let own = suite.as_str();
            own == name || own.ends_with("CHACHA20_POLY1305_SHA256") && own.strip_suffix("_SHA256") == Some(name)
        })
    }

    /// Whether it is one of TLS 1.3.
    pub const fn is_of_tls13(self) -> bool {
        matches!(self, Self::Tls13Aes256 | Self::Tls13Aes128 | Self::Tls13ChaCha20)
    }
}

/// The oldest TLS version that is spoken, by Go's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMinVersion {
    /// `VersionTLS12`.
    V1_2,
    /// `VersionTLS13`.
    V1_3,
}

/// The plain HTTP listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// Address of both listeners.
    pub address: IpAddr,
    /// Port for health, readiness and metrics.
    pub port: NonZeroU16,
    /// A second listener where the Go machine controller had its own; absent when it is switched off.
    pub compat_port: Option<NonZeroU16>,
    /// Whether profiles can be asked for.
    pub profiling: Profiling,
}

/// What `/debug/pprof` serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiling {
    /// Nothing.
    Off,
    /// Profiles.
    On,
    /// Profiles, and contention is measured.
    WithContention,
}

/// Where the serving certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertMode {
    /// Made and rotated by the process, kept in a Secret.
    SelfManaged,
    /// Read from files that somebody else rotates.
    Files {
        /// PEM file with the certificate chain.
        certificate: PathBuf,
        /// PEM file with the private key.
        private_key: PathBuf,
    },
    /// Made at the start, kept in memory only.
    Dev,
}

/// A certificate for callers that ask for certain names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SniCertificate {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub private_key: PathBuf,
    /// Names, and patterns whose first label is `*`; none means those that the certificate is valid for.
    pub names: Vec<String>,
}

/// Name and namespace of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReference {
    /// Name of the Service.
    pub name: String,
    /// Its namespace; the certificate Secret lives there too.
    pub namespace: String,
}

/// What admission does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionSettings {
    /// How strict the rules with two levels are.
    pub profile: Profile,
    /// User names that the webhooks treat as controllers.
    pub controller_users: Vec<String>,
    /// Whether new objects get our finalizer in admission already.
    pub finalizers: FinalizerDefault,
    /// Whether a class of a provider that is not served here is a mistake.
    pub providers: Coverage,
}
