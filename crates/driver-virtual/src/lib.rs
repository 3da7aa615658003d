//! `virtual`: a simulated cloud in this process, with the failures of a real cloud.
//!
//! For a quick start without an account, for integration and chaos tests, and for benchmarks. [`cloud`] is the pure state machine of the VMs. It is
//! used by the driver ([`driver`]), the kubelets ([`kubelet`]), the storage of the state ([`persistence`]) and the admin API ([`admin`]). This file
//! starts a simulation.
//! Source: spec/providers §7.

#![forbid(unsafe_code)]

mod admin;
mod clock;
mod cloud;
mod config;
mod distribution;
mod draw;
mod driver;
mod kubelet;
mod latest;
mod persistence;
mod reader;
mod reload;
mod rules;
mod shared;
mod template;

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock},
};

use controller_runtime::lock;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

pub use admin::{AdminAddress, InvalidAdminAddress};
pub use config::{
    ClockMode, Consistency, Latencies, NodeIdSpelling, NodeNaming, NodeSettings, PodSettings, Quota, QuotaLimit,
    RateLimit, SimulationConfig, Spot, VolumeSettings,
};
pub use distribution::Distribution;
pub use persistence::{ConfigMapAccess, InvalidStatePlace, StateError, StatePlace};

use self::{clock::Clock, cloud::Cloud, kubelet::Kubelet, persistence::Keeper, shared::Shared};
use machine_driver::{DriverInfo, DriverTask};

/// The providers that are impersonated if simulation is enabled and the configuration does not set others.
const IMPERSONATED: [&str; 4] = ["AWS", "Azure", "GCP", "OpenStack"];

/// Whether the virtual cloud may serve the provider names of real clouds (`--enable-simulation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Impersonation {
    /// It serves only `virtual`.
    #[default]
    Refused,
    /// It may serve other providers too.
    Allowed,
}

/// The options of a simulation.
#[derive(Clone, Debug)]
pub struct SimulationOptions {
    /// The time of the clock at the start.
    pub origin: Timestamp,
    /// The seed if the seed of the configuration is 0.
    pub entropy: u64,
    /// The settings that the configuration file does not set.
    pub defaults: SimulationConfig,
    /// The configuration file. It is read again when it changes.
    pub config: Option<PathBuf>,
    /// Whether other providers may be impersonated.
    pub impersonation: Impersonation,
    /// The place where VMs are stored. `None` uses the configuration.
    pub state: Option<StatePlace>,
    /// The access to the `ConfigMaps` of [`StatePlace::ConfigMap`].
    pub config_maps: Option<ConfigMapAccess>,
    /// The address of the admin API.
    pub admin: Option<AdminAddress>,
}

impl SimulationOptions {
    /// The defaults, with a clock whose current time is `origin`.
    pub fn new(origin: Timestamp) -> Self {
        Self {
            origin,
            entropy: 0,
            defaults: SimulationConfig::default(),
            config: None,
            impersonation: Impersonation::default(),
            state: None,
            config_maps: None,
            admin: None,
        }
    }
}

/// Why a simulation can't start.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The configuration file can't be read.
    #[error("cannot read --simulation-config {path:?}: {source}")]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The configuration file is invalid.
    #[error("--simulation-config {path:?} is wrong: {problems}")]
    Config {
        /// The file.
        path: PathBuf,
        /// All problems.
        problems: String,
    },
    /// The configuration needs a permission that the command line does not give.
    #[error("--simulation-config: impersonate: other providers are impersonated only with --enable-simulation")]
    ImpersonationRefused,
    /// The state can't be read or stored.
    #[error(transparent)]
    State(#[from] StateError),
    /// The admin API can't listen.
    #[error("--simulation-admin cannot listen on {address}: {source}")]
    Admin {
        /// The address.
        address: AdminAddress,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// The driver of the provider `virtual` and of the impersonated providers. Its rules are always available, its VMs only after the start.
///
/// Admission runs on every replica and asks drivers to check classes. The simulation runs only on the leader.
pub struct VirtualCloud {
    info: DriverInfo,
    /// The configuration for checks of classes before the start.
    config: SimulationConfig,
    /// The options for the start, and the client of the target cluster for the Nodes.
    start_options: Mutex<Option<(SimulationOptions, Option<kube::Client>)>>,
    running: OnceLock<Arc<Shared>>,
}

impl fmt::Debug for VirtualCloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualCloud").field("providers", &self.info.providers).finish_non_exhaustive()
    }
}

impl VirtualCloud {
    /// Creates the driver with its rules only. Nothing is opened or bound.
    ///
    /// # Errors
    /// [`SimulationError`] if the configuration file can't be read or is invalid.
    pub fn new(options: &SimulationOptions) -> Result<Self, SimulationError> {
        let (config, _) = configuration(options)?;
        let info = driver::driver_info(impersonated(options, &config)?);
        Ok(Self { info, config, start_options: Mutex::default(), running: OnceLock::new() })
    }

    /// Sets the options for the start, if this process becomes the leader. Without a target cluster the VMs have no Nodes.
    pub fn may_begin(&self, options: SimulationOptions, target: Option<kube::Client>) {
        *lock(&self.start_options) = Some((options, target));
    }

    #[cfg(test)]
    fn vm_count(&self) -> usize {
        self.running.get().map_or(0, |shared| shared.with(|cloud, _| cloud.len()))
    }

    /// Reads the configuration and the state and binds the admin API, so that mistakes are reported at once. Everything else happens in the returned
    /// tasks.
    async fn launch(
        &self,
        options: SimulationOptions,
        target: Option<kube::Client>,
        shutdown: CancellationToken,
    ) -> Result<Vec<DriverTask>, SimulationError> {
        let (config, text) = configuration(&options)?;
        let impersonated = impersonated(&options, &config)?;
        let seed = if config.seed == 0 { options.entropy } else { config.seed };
        tracing::info!(seed, provider = impersonated.join(","), "virtual cloud starts");
        let clock = Clock::new(config.clock, options.origin);
        let place = options.state.clone().or_else(|| config.persistence.clone()).unwrap_or_default();
        let mut cloud = Cloud::new(Arc::new(config), seed, options.origin);
        let access = options.config_maps.as_ref();
        let keeper = Keeper::open(&place, &mut cloud, options.origin, access, options.entropy).await?;
        let shared = Shared::new(cloud, clock, keeper);
        let shared = Arc::new(if target.is_some() { shared.with_kubelet() } else { shared });

        let mut tasks: Vec<DriverTask> = Vec::new();
        let timers = shared::run_timers(Arc::clone(&shared), shutdown.clone());
        tasks.push(DriverTask { name: "virtual-cloud-timers", run: Box::pin(timers) });
        if let Some(path) = options.config {
            let reload = reload::run(path, text, options.defaults, Arc::clone(&shared), shutdown.clone());
            tasks.push(DriverTask { name: "virtual-cloud-config", run: Box::pin(reload) });
        }
        if let Some(client) = target {
            let kubelet = Kubelet::new(Arc::clone(&shared), client);
            tasks.push(DriverTask { name: "virtual-cloud-kubelet", run: Box::pin(kubelet.run(shutdown.clone())) });
        }
        if let Some(address) = options.admin {
            let serving = admin::serve(&address, Arc::clone(&shared), shutdown)
                .await
                .map_err(|source| SimulationError::Admin { address: address.clone(), source })?;
            tasks.push(DriverTask { name: "virtual-cloud-admin", run: serving });
        }
        // `begin` starts a cloud only once.
        let _ = self.running.set(shared);
        Ok(tasks)
    }
}

/// Starts a simulation. VMs, Nodes and the admin API work as long as the returned tasks run. Without a target cluster the VMs have no Nodes.
///
/// For the leader: with state `none` the Nodes are read only once, when the tasks begin.
///
/// # Errors
/// [`SimulationError`].
pub async fn start(
    options: SimulationOptions,
    target: Option<kube::Client>,
    shutdown: CancellationToken,
) -> Result<(Arc<VirtualCloud>, Vec<DriverTask>), SimulationError> {
    let cloud = VirtualCloud::new(&options)?;
    let tasks = cloud.launch(options, target, shutdown).await?;
    Ok((Arc::new(cloud), tasks))
}

/// The configuration at the start, and the text of its file.
fn configuration(options: &SimulationOptions) -> Result<(SimulationConfig, String), SimulationError> {
    let Some(path) = &options.config else { return Ok((options.defaults.clone(), String::new())) };
    let source = |source| SimulationError::ConfigFile { path: path.clone(), source };
    let text = std::fs::read_to_string(path).map_err(source)?;
    let problems = |problems| SimulationError::Config { path: path.clone(), problems };
    Ok((options.defaults.overlaid_by_text(&text).map_err(problems)?, text))
}

/// The providers that are impersonated.
fn impersonated(options: &SimulationOptions, config: &SimulationConfig) -> Result<Vec<String>, SimulationError> {
    let wanted = config.impersonate.as_ref();
    match (options.impersonation, wanted) {
        (Impersonation::Refused, Some(wanted)) if !wanted.is_empty() => Err(SimulationError::ImpersonationRefused),
        (Impersonation::Refused, _) => Ok(Vec::new()),
        (Impersonation::Allowed, Some(wanted)) => Ok(wanted.clone()),
        (Impersonation::Allowed, None) => Ok(IMPERSONATED.map(str::to_owned).into()),
    }
}
