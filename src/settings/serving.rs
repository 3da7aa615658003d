//! Settings of the listeners, of their certificates and of admission.

use std::{net::IpAddr, num::NonZeroU16, path::PathBuf};

use machine_api::{
    defaulting::FinalizerDefault,
    validation::{Coverage, Profile},
};
use machine_controllers::fleet_metrics::PerMachine;

/// The callers of webhooks, and TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// PEM file with certificate authorities. When it is set, callers must present a certificate of one of them; most API servers
    /// have no client certificate.
    pub client_authorities: Option<PathBuf>,
    /// Name of both webhook configurations, whose `caBundle` this process maintains.
    pub configuration: String,
    /// The minimum TLS version.
    pub tls_min_version: TlsMinVersion,
    /// The allowed cipher suites.
    pub tls_cipher_suites: Vec<TlsCipherSuite>,
}

/// A cipher suite, with its name in Go and at IANA.
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
    /// All suites, the strongest first. They are the default.
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

    /// The suite with this name. Go's old names of two suites lack the hash at the end.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| {
            let own = suite.as_str();
            own == name || own.ends_with("CHACHA20_POLY1305_SHA256") && own.strip_suffix("_SHA256") == Some(name)
        })
    }

    /// Whether the suite belongs to TLS 1.3.
    pub const fn is_of_tls13(self) -> bool {
        matches!(self, Self::Tls13Aes256 | Self::Tls13Aes128 | Self::Tls13ChaCha20)
    }
}

/// The minimum TLS version, with Go's names.
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
    /// Port of a second listener: the port of the Go machine controller. `None` when it is off.
    pub compat_port: Option<NonZeroU16>,
    /// The profiles that `/debug/pprof` serves.
    pub profiling: Profiling,
}

/// The profiles that `/debug/pprof` serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiling {
    /// Nothing.
    Off,
    /// Profiles.
    On,
    /// Profiles, with contention.
    WithContention,
}

/// The metrics that can be left out, because they have many series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsSettings {
    /// Series of single machines.
    pub per_machine: PerMachine,
    /// How long the API servers take to answer.
    pub request_latency: RequestLatency,
}

/// Whether the latency of requests to API servers is measured. It has a histogram for each verb and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestLatency {
    /// It is.
    Measured,
    /// It is not.
    LeftOut,
}

/// The source of the serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertMode {
    /// The process makes and rotates it, and stores it in a Secret.
    SelfManaged,
    /// The process reads it from files that another program rotates.
    Files {
        /// PEM file with the certificate chain.
        certificate: PathBuf,
        /// PEM file with the private key.
        private_key: PathBuf,
    },
    /// The process makes it at the start and keeps it in memory only.
    Dev,
}

/// A certificate for callers that request certain names (SNI).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SniCertificate {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub private_key: PathBuf,
    /// Names, and patterns whose first label is `*`. Empty means the names in the certificate.
    pub names: Vec<String>,
}

/// Name and namespace of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReference {
    /// Name of the Service.
    pub name: String,
    /// Its namespace. The Secret with the certificate is there too.
    pub namespace: String,
}

/// Settings of admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionSettings {
    /// The strictness of the rules with two levels.
    pub profile: Profile,
    /// Users that the webhooks treat as controllers.
    pub controller_users: Vec<String>,
    /// Whether admission adds our finalizer to new objects.
    pub finalizers: FinalizerDefault,
    /// Whether a class of a provider without driver in this process is a mistake.
    pub providers: Coverage,
}
