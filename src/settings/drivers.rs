//! Settings of drivers, of all clouds and of the virtual cloud.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
};

use machine_driver::ErrorCodes;

/// The drivers of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverSelection {
    /// All drivers that are compiled in.
    All,
    /// The drivers of these `provider` strings.
    Only(BTreeSet<String>),
}

/// Settings of all clouds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudSettings {
    /// URLs that replace the clouds' own endpoints, by `provider` string.
    pub endpoints: BTreeMap<String, String>,
    /// The only directories below which token files named in Secrets are read.
    pub identity_directories: Vec<PathBuf>,
    /// The codes of failed calls.
    pub codes: ErrorCodes,
    /// The template of pods that are machines.
    #[cfg(feature = "local")]
    pub pod_template: driver_local::PodTemplate,
}

impl CloudSettings {
    /// The default directory of token files.
    pub const IDENTITY_DIRECTORY: &str = "/var/run/secrets/";
}

impl Default for CloudSettings {
    fn default() -> Self {
        Self {
            endpoints: BTreeMap::new(),
            identity_directories: vec![Self::IDENTITY_DIRECTORY.into()],
            codes: ErrorCodes::Fine,
            #[cfg(feature = "local")]
            pod_template: driver_local::PodTemplate::default(),
        }
    }
}

/// A driver in another process.
#[cfg(feature = "external")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalDriverSettings {
    /// The `provider` string that the driver serves.
    pub provider: String,
    /// Its address, or the program to start.
    pub place: driver_external::Place,
    /// The files for mutual TLS. Always present when the place needs them.
    pub tls: Option<driver_external::TlsFiles>,
}

/// The virtual cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationSettings {
    /// Whether the virtual cloud may serve classes of real providers.
    pub impersonation: Impersonation,
    /// File with latencies, failures and quota. It is read again when it changes.
    pub config: Option<PathBuf>,
    /// The place where the VMs are stored.
    pub state: SimulationState,
    /// The listener of the simulation's admin API.
    pub admin: Option<SimulationAdmin>,
}

/// Whether the virtual cloud may serve other providers' classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impersonation {
    /// The virtual cloud serves only provider `virtual`.
    Refused,
    /// The virtual cloud also serves the providers that the simulation config names.
    Allowed,
}

/// The place where the virtual cloud stores its VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimulationState {
    /// Nowhere. At the start the VMs are rebuilt from the simulated Nodes.
    None,
    /// In a journal.
    File(PathBuf),
    /// In `ConfigMaps` with this name prefix.
    ConfigMap(String),
    /// In one JSON document that is always written completely.
    Json(PathBuf),
}

/// The listener of the simulation's admin API. Only this host can reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimulationAdmin {
    /// A TCP port of the loopback interface.
    Loopback(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}
