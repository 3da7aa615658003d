//! The listeners: who may call them, by which certificate they are known, and what admission answers there.

use std::{
    net::IpAddr,
    num::{NonZeroU16, NonZeroUsize},
    path::PathBuf,
};

use crate::api::{defaulting::FinalizerDefault, validation::Profile};

/// Who may call webhooks, and how many at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// PEM file of the authorities of which callers must show a certificate; most API servers have none to show.
    pub client_authorities: Option<PathBuf>,
    /// Admission reviews that are answered at a time.
    pub max_in_flight: NonZeroUsize,
    /// The oldest TLS version that is spoken.
    pub tls_min_version: TlsMinVersion,
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
}
