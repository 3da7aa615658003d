//! What a running manager is told to do: plain, checked values, free of flag syntax.
//!
//! `cli/serve` reads flags and makes one [`Settings`] of them; every other room takes the part it needs and never looks at
//! a flag. Ground floor: nothing here reads a file, a clock or the environment. A duration is never negative, a list never
//! holds an empty entry, and what must not be zero has no spelling for zero.
//!
//! Sources: spec/machine-controller §12, spec/deployment-and-set §1.1, the names of our own flags.

mod extension;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    num::{NonZeroU16, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

pub use extension::{
    AuditLog, AuthenticationSettings, AuthorizationSettings, ExtensionSettings, FrontProxySettings, Lookup,
    SharedAuthority, SourceRights, ViewSelection,
};

use crate::api::{defaulting::FinalizerDefault, kind::ApiVersion, names, validation::Profile};

/// Everything `mcm serve` is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where the machine objects live.
    pub control: ControlCluster,
    /// Where the Nodes live.
    pub target: TargetCluster,
    /// The one namespace whose machine objects are managed; the Leases live there too.
    pub namespace: String,
    /// Client-side rate of each client.
    pub client_rate: ClientRate,
    /// Which version of the machine kinds is watched.
    pub read_version: ReadVersion,
    /// How old a cache may grow before it is listed again.
    pub min_resync_period: Duration,
    /// The plain HTTP listener for health and metrics.
    pub http: HttpSettings,
    /// The TLS listener of webhooks and conversion; absent when it is switched off.
    pub secure: Option<SocketAddr>,
    /// Where the serving certificate comes from.
    pub certificates: CertMode,
    /// DNS names and IP addresses on the self-made certificate, beside those of the Service.
    pub extra_certificate_names: Vec<String>,
    /// The Service that API servers reach the TLS listener through.
    pub service: ServiceReference,
    /// The extension API server; absent when it is switched off.
    pub extension: Option<ExtensionSettings>,
    /// Who may call webhooks, and how many at once.
    pub webhooks: WebhookSettings,
    /// What admission does.
    pub admission: AdmissionSettings,
    /// The control loops of this process.
    pub controllers: ControllerSet,
    /// Workers per queue.
    pub workers: Workers,
    /// Whether a replica that does not lead keeps its caches warm.
    pub standby_caches: StandbyCaches,
    /// Leader election; absent when it is switched off.
    pub leader_election: Option<LeaderElection>,
    /// Timeouts of machines.
    pub machine: MachineSettings,
    /// What the deployment and set loops do beyond the plain rules.
    pub rollout: RolloutSettings,
    /// Periods of the safety loops.
    pub safety: SafetySettings,
    /// Which drivers this process serves.
    pub drivers: DriverSelection,
    /// The virtual cloud.
    pub simulation: SimulationSettings,
    /// How the process ends.
    pub shutdown: ShutdownSettings,
}

impl Settings {
    /// What is allowed but hardly meant, one sentence each; for the log at the start.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.machine.pv_detach_timeout > self.machine.drain_timeout {
            found.push(
                "--machine-pv-detach-timeout is longer than --machine-drain-timeout: \
                 a drain ends before the wait for one volume does"
                    .to_owned(),
            );
        }
        if self.machine.health_timeout.is_zero() {
            found.push("--machine-health-timeout is 0: a machine fails at the first sign of ill health".to_owned());
        }
        if self.safety.orphan_vms_period < Duration::from_secs(10) {
            found.push("--machine-safety-orphan-vms-period is less than 10s: it is treated as 10s".to_owned());
        }
        if self.drivers == DriverSelection::Only(BTreeSet::new()) {
            found.push("--drivers is empty: no machine class can be served".to_owned());
        }
        found
    }
}

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

/// How the control cluster is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlCluster {
    /// By the service account of the pod.
    InCluster,
    /// By a kubeconfig file.
    Kubeconfig(PathBuf),
}

/// How the target cluster is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetCluster {
    /// There is none: no node, pod or volume is ever touched.
    None,
    /// By the service account of the pod.
    InCluster,
    /// By a kubeconfig file.
    Kubeconfig(PathBuf),
}

/// Which version of the machine kinds is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadVersion {
    /// The one that is stored, found out by asking: no cache then needs the conversion webhook.
    #[default]
    Stored,
    /// Always this one.
    Fixed(ApiVersion),
}

impl std::str::FromStr for ReadVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, ApiVersion::from_name(text)) {
            ("stored", _) => Ok(Self::Stored),
            (_, Some(version)) => Ok(Self::Fixed(version)),
            (other, None) => Err(format!("unknown version {other:?}: want \"stored\", \"v1alpha1\" or \"v1beta1\"")),
        }
    }
}

/// A token bucket on the client's side. Each client has its own; Leases and events never wait behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientRate {
    /// Requests per second, greater than 0.
    pub qps: f32,
    /// Requests that may go at once; 0 counts as 1.
    pub burst: u32,
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

/// One control loop, by the name of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// Rollouts of `MachineDeployments`.
    MachineDeployment,
    /// Replicas of `MachineSets`.
    MachineSet,
    /// Freezes sets that hold too many machines.
    MachineSafetyOvershooting,
    /// Life of a Machine.
    Machine,
    /// What a Node's events mean for its Machine.
    Node,
    /// Finalizer of a `MachineClass`.
    MachineClass,
    /// Finalizer of a Secret that a class names.
    Secret,
    /// Collects VMs without a Machine.
    MachineSafetyOrphanVms,
    /// Freezes the machine loops while an API server is unreachable.
    MachineSafetyApiServer,
}

/// The half of the Go original that a loop comes from; each half has its own Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// Deployments and sets.
    ControllerManager,
    /// Machines, classes and secrets.
    MachineController,
}

impl Half {
    /// Both, in the order in which their Leases are taken.
    pub const ALL: [Self; 2] = [Self::ControllerManager, Self::MachineController];

    /// Name of the Lease.
    pub const fn lease_name(self) -> &'static str {
        match self {
            Self::ControllerManager => names::LEASE_CONTROLLER_MANAGER,
            Self::MachineController => names::LEASE_MACHINE_CONTROLLER,
        }
    }
}

impl Controller {
    /// All loops there are.
    pub const ALL: [Self; 9] = [
        Self::MachineDeployment,
        Self::MachineSet,
        Self::MachineSafetyOvershooting,
        Self::Machine,
        Self::Node,
        Self::MachineClass,
        Self::Secret,
        Self::MachineSafetyOrphanVms,
        Self::MachineSafetyApiServer,
    ];

    /// The name that `--controllers` knows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MachineDeployment => "machinedeployment",
            Self::MachineSet => "machineset",
            Self::MachineSafetyOvershooting => "machinesafetyovershooting",
            Self::Machine => "machine",
            Self::Node => "node",
            Self::MachineClass => "machineclass",
            Self::Secret => "secret",
            Self::MachineSafetyOrphanVms => "machinesafetyorphanvms",
            Self::MachineSafetyApiServer => "machinesafetyapiserver",
        }
    }

    /// The loop of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|controller| controller.name() == name)
    }

    /// The half it belongs to.
    pub const fn half(self) -> Half {
        match self {
            Self::MachineDeployment | Self::MachineSet | Self::MachineSafetyOvershooting => Half::ControllerManager,
            Self::Machine
            | Self::Node
            | Self::MachineClass
            | Self::Secret
            | Self::MachineSafetyOrphanVms
            | Self::MachineSafetyApiServer => Half::MachineController,
        }
    }

    /// Whether the loop has nothing to do without a target cluster.
    pub const fn needs_target(self) -> bool {
        matches!(self, Self::Node | Self::MachineSafetyApiServer)
    }
}

/// The loops of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerSet(BTreeSet<Controller>);

impl ControllerSet {
    /// Every loop.
    pub fn all() -> Self {
        Self(Controller::ALL.into())
    }

    /// No loop: the process only serves.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether the loop runs here.
    pub fn contains(&self, controller: Controller) -> bool {
        self.0.contains(&controller)
    }

    /// Whether no loop runs here.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The loops, in their fixed order.
    pub fn iter(&self) -> impl Iterator<Item = Controller> + '_ {
        self.0.iter().copied()
    }

    /// The halves with at least one loop, in the order in which their Leases are taken.
    pub fn halves(&self) -> Vec<Half> {
        Half::ALL.into_iter().filter(|half| self.iter().any(|controller| controller.half() == *half)).collect()
    }
}

impl FromIterator<Controller> for ControllerSet {
    fn from_iter<I: IntoIterator<Item = Controller>>(controllers: I) -> Self {
        Self(controllers.into_iter().collect())
    }
}

/// Workers per queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Of each queue of [`Half::ControllerManager`].
    pub controller_manager: NonZeroUsize,
    /// Of each queue of [`Half::MachineController`].
    pub machine_controller: NonZeroUsize,
}

/// Whether a replica that does not lead keeps its caches warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyCaches {
    /// It does: it takes over at once and can answer whatever reads.
    Warm,
    /// It does not: it needs less memory, and lists everything when it begins to lead.
    Cold,
}

/// How leadership is won and kept; lease > renew deadline > 1.2 × retry period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// Holder name in the Leases: the host name, as in Go.
    pub identity: String,
    /// How long others wait before they take over.
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// Wait between two tries.
    pub retry_period: Duration,
}

/// Timeouts of machines; a machine's own spec may override most of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSettings {
    /// From creation to Running.
    pub creation_timeout: Duration,
    /// From Unknown to Failed.
    pub health_timeout: Duration,
    /// From the start of a drain to its use of force.
    pub drain_timeout: Duration,
    /// From the start of an in-place update to its failure.
    pub in_place_update_timeout: Duration,
    /// Whether the driver is asked if the VM of an unhealthy machine still exists.
    pub vm_gone_check: VmGoneCheck,
    /// How long a failed machine is preserved.
    pub preserve_timeout: Duration,
    /// Refusals of an eviction before the pod is deleted.
    pub max_evict_retries: u32,
    /// Wait for one volume to be detached.
    pub pv_detach_timeout: Duration,
    /// Wait for one volume to be attached elsewhere.
    pub pv_reattach_timeout: Duration,
    /// Node condition types that make a machine unhealthy, beside Ready.
    pub node_conditions: Vec<String>,
    /// Value of `auth-extra-groups` in bootstrap tokens; may be empty.
    pub bootstrap_token_auth_extra_groups: String,
    /// Wait after the provider ran out of capacity.
    pub resource_exhausted_retry: Duration,
}

/// Whether the driver is asked if the VM of an unhealthy machine still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmGoneCheck {
    /// No; the health timeout decides alone.
    Off,
    /// Yes; a VM that is gone does not cost the health timeout.
    On,
}

/// What rollouts do beyond the plain rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutSettings {
    /// What nodes carry while they are rolled.
    pub autoscaler_annotation: AutoscalerAnnotation,
    /// Which machines a rollout counts on.
    pub availability: RolloutAvailability,
    /// What old sets get of a change that needs no rollout.
    pub old_sets: OldMachineSets,
}

/// Which machines a rollout counts on (`--strict-availability`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutAvailability {
    /// Those whose VM exists.
    VmExists,
    /// Those whose Node has been Ready for `minReadySeconds`.
    NodeReady,
}

/// What old sets get of a change that needs no rollout (`--sync-old-machine-sets`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldMachineSets {
    /// Nothing.
    Left,
    /// The machine configuration: timeouts and health settings.
    Synced,
}

/// Whether nodes of a rollout are kept from cluster-autoscaler's scale-down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoscalerAnnotation {
    /// They carry the annotation while the rollout runs.
    DuringRollout,
    /// They never do.
    Never,
}

/// Periods and limits of the safety loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SafetySettings {
    /// Machines above the wanted number before a set is frozen.
    pub safety_up: u32,
    /// Machines that must be gone again before the freeze ends.
    pub safety_down: u32,
    /// Period of the overshoot check.
    pub overshooting_period: Duration,
    /// Period of the search for VMs without a Machine.
    pub orphan_vms_period: Duration,
    /// How long an API server may be silent before the machine loops freeze.
    pub api_server_check_timeout: Duration,
    /// Period of that check; never less than its timeout.
    pub api_server_check_period: Duration,
}

/// Which drivers this process serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverSelection {
    /// All that are compiled in.
    All,
    /// Those of these `provider` strings.
    Only(BTreeSet<String>),
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

/// How the process ends after SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownSettings {
    /// How long requests are still taken after readiness went.
    pub delay: Duration,
    /// How long requests and effects in flight may take after that.
    pub timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_controller_is_found_by_its_name() {
        for controller in Controller::ALL {
            assert_eq!(Controller::named(controller.name()), Some(controller));
        }
        assert_eq!(Controller::named("deployment"), None);
    }

    #[test]
    fn a_half_without_a_loop_takes_no_lease() {
        assert_eq!(ControllerSet::all().halves(), Half::ALL);
        assert_eq!(ControllerSet::from_iter([Controller::Secret]).halves(), [Half::MachineController]);
        assert_eq!(ControllerSet::none().halves(), []);
    }
}
