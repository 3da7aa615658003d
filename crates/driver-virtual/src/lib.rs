//! `virtual`: a simulated cloud inside the process, with the failures of a real one.
//!
//! For the quick start without an account, integration and chaos tests, and benchmarks. The pure state machine of VMs
//! is [`cloud`]; around it are the driver ([`driver`]), the kubelets that join Nodes ([`kubelet`]), the memory over a
//! restart ([`persistence`]) and the remote control ([`admin`]). Here: how a simulation is started.
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
mod persistence;
mod reader;
mod reload;
mod rules;
mod shared;
mod template;

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use jiff::Timestamp;
use tokio::sync::mpsc;
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

/// Providers that are impersonated when simulation is enabled and the configuration does not say otherwise.
const IMPERSONATED: [&str; 4] = ["AWS", "Azure", "GCP", "OpenStack"];

/// Whether the virtual cloud may serve the provider strings of real clouds (`--enable-simulation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Impersonation {
    /// It serves `virtual` only.
    #[default]
    Refused,
    /// It may serve others too.
    Allowed,
}

/// How a simulation is started.
#[derive(Clone, Debug)]
pub struct SimulationOptions {
    /// What the clock shows at the start.
    pub origin: Timestamp,
    /// The seed when the configuration's is 0.
    pub entropy: u64,
    /// What holds where the configuration file says nothing.
    pub defaults: SimulationConfig,
    /// The configuration file, read again when it changes.
    pub config: Option<PathBuf>,
    /// Whether other providers may be impersonated.
    pub impersonation: Impersonation,
    /// Where VMs are kept; `None` asks the configuration.
    pub state: Option<StatePlace>,
    /// Where [`StatePlace::ConfigMap`] is to be found.
    pub config_maps: Option<ConfigMapAccess>,
    /// Where the admin API listens.
    pub admin: Option<AdminAddress>,
}

impl SimulationOptions {
    /// The defaults, with a clock that shows `origin` now.
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

/// Why a simulation cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The configuration file cannot be read.
    #[error("cannot read --simulation-config {path:?}: {source}")]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// What the file system said.
        source: std::io::Error,
    },
    /// The configuration file is wrong.
    #[error("--simulation-config {path:?} is wrong: {problems}")]
    Config {
        /// The file.
        path: PathBuf,
        /// All problems.
        problems: String,
    },
    /// The configuration asks for what the command line does not allow.
    #[error("--simulation-config: impersonate: other providers are impersonated only with --enable-simulation")]
    ImpersonationRefused,
    /// The state cannot be read or kept.
    #[error(transparent)]
    State(#[from] StateError),
    /// The admin API cannot listen.
    #[error("--simulation-admin cannot listen on {address}: {source}")]
    Admin {
        /// Where.
        address: AdminAddress,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// The driver of the provider `virtual` and of those it impersonates: its rules always, its VMs once it lives.
///
/// Admission runs on every replica and asks drivers about classes; a simulation lives with the leader alone.
pub struct VirtualCloud {
    info: DriverInfo,
    /// What classes are judged by until it lives.
    config: SimulationConfig,
    /// What it begins with, and the target cluster where its Nodes live.
    beginning: Mutex<Option<(SimulationOptions, Option<kube::Client>)>>,
    life: OnceLock<Arc<Shared>>,
}

impl fmt::Debug for VirtualCloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualCloud").field("providers", &self.info.providers).finish_non_exhaustive()
    }
}

impl VirtualCloud {
    /// The rules under these options. Nothing is opened or bound.
    ///
    /// # Errors
    /// [`SimulationError`] when the configuration file can't be read or is wrong.
    pub fn new(options: &SimulationOptions) -> Result<Self, SimulationError> {
        let (config, _) = configuration(options)?;
        let info = driver::driver_info(impersonated(options, &config)?);
        Ok(Self { info, config, beginning: Mutex::default(), life: OnceLock::new() })
    }

    /// What the cloud begins with, should this process lead. Without a target cluster VMs have no Nodes.
    pub fn may_begin(&self, options: SimulationOptions, target: Option<kube::Client>) {
        *self.beginning.lock().unwrap_or_else(PoisonError::into_inner) = Some((options, target));
    }

    /// How many VMs there are.
    pub fn vm_count(&self) -> usize {
        self.life.get().map_or(0, |shared| shared.with(|cloud, _| cloud.len()))
    }

    /// Reads configuration and state and binds the admin API, so that a mistake is reported at once; everything that goes on
    /// is in the tasks.
    async fn live(
        &self,
        options: SimulationOptions,
        target: Option<kube::Client>,
        shutdown: CancellationToken,
    ) -> Result<Vec<DriverTask>, SimulationError> {
        let (config, text) = configuration(&options)?;
        let impersonated = impersonated(&options, &config)?;
        let seed = if config.seed == 0 { options.entropy } else { config.seed };
        tracing::info!(seed, impersonated = impersonated.join(","), "virtual cloud starts");
        let clock = Clock::new(config.clock, options.origin);
        let place = options.state.clone().or_else(|| config.persistence.clone()).unwrap_or_default();
        let mut cloud = Cloud::new(Arc::new(config), seed, options.origin);
        let access = options.config_maps.as_ref();
        let keeper = Keeper::open(&place, &mut cloud, options.origin, access, options.entropy).await?;
        let knows_its_vms = target.is_none() || keeper.keeps();
        let (sender, receiver) = mpsc::unbounded_channel();
        let notices = target.is_some().then_some(sender);
        let shared = Arc::new(Shared::new(cloud, clock, keeper, notices, knows_its_vms));

        let mut tasks: Vec<DriverTask> = Vec::new();
        let timers = shared::run_timers(Arc::clone(&shared), shutdown.clone());
        tasks.push(DriverTask { name: "virtual-cloud-timers", run: Box::pin(timers) });
        if let Some(path) = options.config {
            let reload = reload::run(path, text, options.defaults, Arc::clone(&shared), shutdown.clone());
            tasks.push(DriverTask { name: "virtual-cloud-config", run: Box::pin(reload) });
        }
        if let Some(client) = target {
            let kubelet = Kubelet::new(Arc::clone(&shared), client, receiver);
            tasks.push(DriverTask { name: "virtual-cloud-kubelet", run: Box::pin(kubelet.run(shutdown.clone())) });
        }
        if let Some(address) = options.admin {
            let serving = admin::serve(&address, Arc::clone(&shared), shutdown)
                .await
                .map_err(|source| SimulationError::Admin { address: address.clone(), source })?;
            tasks.push(DriverTask { name: "virtual-cloud-admin", run: serving });
        }
        // A cloud lives once: `begin` sees to that.
        let _ = self.life.set(shared);
        Ok(tasks)
    }
}

/// Starts a simulation. VMs boot, Nodes live and the admin API answers as long as its tasks run. Without a target cluster VMs have
/// no Nodes.
///
/// Meant to be called by the process that leads: with state `none` the Nodes are read once, when the tasks begin.
///
/// # Errors
/// [`SimulationError`].
pub async fn start(
    options: SimulationOptions,
    target: Option<kube::Client>,
    shutdown: CancellationToken,
) -> Result<(Arc<VirtualCloud>, Vec<DriverTask>), SimulationError> {
    let cloud = VirtualCloud::new(&options)?;
    let tasks = cloud.live(options, target, shutdown).await?;
    Ok((Arc::new(cloud), tasks))
}

/// The configuration that holds at the start, and the text of the file it came from.
fn configuration(options: &SimulationOptions) -> Result<(SimulationConfig, String), SimulationError> {
    let Some(path) = &options.config else { return Ok((options.defaults.clone(), String::new())) };
    let source = |source| SimulationError::ConfigFile { path: path.clone(), source };
    let text = std::fs::read_to_string(path).map_err(source)?;
    let problems = |problems| SimulationError::Config { path: path.clone(), problems };
    Ok((options.defaults.overlaid_by_text(&text).map_err(problems)?, text))
}

/// Which providers are impersonated.
fn impersonated(options: &SimulationOptions, config: &SimulationConfig) -> Result<Vec<String>, SimulationError> {
    let wanted = config.impersonate.as_ref();
    match (options.impersonation, wanted) {
        (Impersonation::Refused, Some(wanted)) if !wanted.is_empty() => Err(SimulationError::ImpersonationRefused),
        (Impersonation::Refused, _) => Ok(Vec::new()),
        (Impersonation::Allowed, Some(wanted)) => Ok(wanted.clone()),
        (Impersonation::Allowed, None) => Ok(IMPERSONATED.map(str::to_owned).into()),
    }
}
