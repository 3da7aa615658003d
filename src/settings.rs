//! What a running manager is told to do: plain, checked values, free of flag syntax.
//!
//! `cli/serve` reads flags and makes one [`Settings`] of them; every other room takes the part it needs and never looks at
//! a flag. Ground floor: nothing here reads a file, a clock or the environment. A duration is never negative, a list never
//! holds an empty entry, and what must not be zero has no spelling for zero.
//!
//! Sources: spec/machine-controller §12, spec/deployment-and-set §1.1, the names of our own flags.

mod drivers;
mod extension;
mod loops;
mod serving;

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use controller_runtime::storage_version::ReadVersion;
#[cfg(feature = "external")]
pub use drivers::ExternalDriverSettings;
pub use drivers::{
    CloudSettings, CodeDetail, DriverSelection, Impersonation, SimulationAdmin, SimulationSettings, SimulationState,
};
pub use extension::{
    AuditLog, AuthenticationSettings, AuthorizationSettings, ExtensionSettings, FrontProxySettings, Lookup,
    SharedAuthority, SourceRights, ViewSelection,
};
use kube_listener::Limits;
pub use loops::{Controller, ControllerSet, Half, LeaderElection, StandbyCaches, Workers};
use machine_controllers::{
    deployment::DeploymentSettings, machine::settings::MachineSettings, overshooting::Margins, safety::freeze,
};
pub use serving::{
    AdmissionSettings, CertMode, HttpSettings, Profiling, ServiceReference, SniCertificate, TlsCipherSuite,
    TlsMinVersion, WebhookSettings,
};

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
    /// Further certificates for callers that ask for certain names.
    pub sni_certificates: Vec<SniCertificate>,
    /// DNS names and IP addresses on the self-made certificate, beside those of the Service.
    pub extra_certificate_names: Vec<String>,
    /// The Service that API servers reach the TLS listener through.
    pub service: ServiceReference,
    /// The extension API server; absent when it is switched off.
    pub extension: Option<ExtensionSettings>,
    /// How much callers may ask for.
    pub limits: Limits,
    /// Who may call webhooks.
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
    pub rollout: DeploymentSettings,
    /// Periods of the safety loops.
    pub safety: SafetySettings,
    /// Whose VMs are where a class says nothing of that; with the namespace of the class.
    pub cluster_name: Option<String>,
    /// Which drivers this process serves.
    pub drivers: DriverSelection,
    /// What the process says of all clouds.
    pub clouds: CloudSettings,
    /// Drivers in other processes.
    #[cfg(feature = "external")]
    pub external: Vec<ExternalDriverSettings>,
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
        let left_out = self.controllers.left_out();
        if !left_out.is_empty() && self.leader_election.is_some() {
            let names: Vec<&str> = left_out.into_iter().map(Controller::name).collect();
            found.push(format!(
                "--controllers leaves out {}: while this process leads, no other one runs them, because it has the Lease of \
                 their half",
                names.join(", ")
            ));
        }
        found
    }
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

/// A token bucket on the client's side. Each client has its own; Leases and events never wait behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientRate {
    /// Requests per second, greater than 0.
    pub qps: f32,
    /// Requests that may go at once; 0 counts as 1.
    pub burst: u32,
}

/// Periods and limits of the safety loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SafetySettings {
    /// Machines above the wanted number before a set is frozen, and below it before the freeze ends.
    pub margins: Margins,
    /// Period of the overshoot check.
    pub overshooting_period: Duration,
    /// Period of the search for VMs without a Machine.
    pub orphan_vms_period: Duration,
    /// How long an API server may be silent before the machine loops freeze, and the period of that check, which is never less.
    pub api_servers: freeze::Limits,
    /// How long a watch may be silent before it is opened anew.
    pub watch_silence: Duration,
}

/// How the process ends after SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownSettings {
    /// How long requests are still taken after readiness went.
    pub delay: Duration,
    /// How long requests and effects in flight may take after that.
    pub timeout: Duration,
    /// How long driver calls that run may still take.
    pub driver_drain: Duration,
    /// What becomes of requests that come meanwhile.
    pub late_requests: LateRequests,
}

/// What becomes of requests that come to a process that is ending, while earlier ones finish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateRequests {
    /// The port is closed to them.
    #[default]
    FindNobody,
    /// They are answered 429 with `Retry-After` on a connection that ends (`--shutdown-send-retry-after`).
    AreToldToRetry,
}
