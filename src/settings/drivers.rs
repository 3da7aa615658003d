//! Which drivers a process has, and the one that plays a cloud.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
};

/// Which drivers this process serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverSelection {
    /// All that are compiled in.
    All,
    /// Those of these `provider` strings.
    Only(BTreeSet<String>),
}

/// What the process says of all clouds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudSettings {
    /// URLs in place of the clouds' own endpoints, by `provider` string.
    pub endpoints: BTreeMap<String, String>,
    /// Token files that Secrets name are read below these directories only.
    pub identity_directories: Vec<PathBuf>,
    /// How fine the codes of failed calls are.
    pub codes: CodeDetail,
}

impl CloudSettings {
    /// Where token files may be unless the command line says otherwise.
    pub const IDENTITY_DIRECTORY: &str = "/var/run/secrets/";
}

impl Default for CloudSettings {
    fn default() -> Self {
        Self {
            endpoints: BTreeMap::new(),
            identity_directories: vec![Self::IDENTITY_DIRECTORY.into()],
            codes: CodeDetail::Fine,
        }
    }
}

/// How fine the codes of failed calls are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeDetail {
    /// A code for each kind of failure.
    Fine,
    /// Those of the Go drivers.
    AsGo,
}

/// A driver in another process.
#[cfg(feature = "external")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalDriverSettings {
    /// The `provider` string that it serves.
    pub provider: String,
    /// Where it listens, or which program it is.
    pub place: driver_external::Place,
    /// The files for mutual TLS; there wherever the place needs them.
    pub tls: Option<driver_external::TlsFiles>,
}

/// The virtual cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationSettings {
    /// Whether classes of real providers may be simulated.
    pub impersonation: Impersonation,
    /// File with latencies, failures and quota; re-read when it changes.
    pub config: Option<PathBuf>,
    /// Where the VMs are remembered.
    pub state: SimulationState,
    /// Where the simulation can be steered from.
    pub admin: Option<SimulationAdmin>,
}

/// Whether the virtual cloud may serve other providers' classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impersonation {
    /// It serves provider `virtual` only.
    Refused,
    /// The simulation config names the providers it plays.
    Allowed,
}

/// Where the virtual cloud remembers its VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimulationState {
    /// Nowhere: rebuilt from the simulated Nodes at the start.
    None,
    /// In a journal.
    File(PathBuf),
    /// In `ConfigMaps` of this name prefix.
    ConfigMap(String),
    /// In one JSON document that is written whole.
    Json(PathBuf),
}

/// Where the simulation can be steered from: never beyond this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimulationAdmin {
    /// A TCP port of the loopback interface.
    Loopback(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}
