//! The settings of a manager: plain, checked values without flag syntax.
//!
//! `cli/serve` reads the flags and makes one [`Settings`] from them. Every other module takes the part that it needs and reads no
//! flag. Nothing here reads a file, a clock or the environment. A duration is never negative, a list has no empty entry, and a
//! value that must not be zero has a type without zero.
//!
//! Sources: spec/machine-controller §12, spec/deployment-and-set §1.1, the names of our own flags.

mod build;
mod drivers;
mod extension;
mod loops;
mod serving;
mod traces;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

pub use build::Build;
use controller_runtime::storage_version::ReadVersion;
#[cfg(feature = "external")]
pub use drivers::ExternalDriverSettings;
pub use drivers::{
    CloudSettings, DriverSelection, Impersonation, SimulationAdmin, SimulationSettings, SimulationState,
};
pub use extension::{
    AuditLog, AuthenticationSettings, AuthorizationSettings, ExtensionSettings, FrontProxySettings, SharedAuthority,
    SourceRights, ViewSelection,
};
use kube_listener::Limits;
pub use loops::{Controller, ControllerSet, Half, LeaderElection, StandbyCaches, Workers};
use machine_controllers::{
    deployment::DeploymentSettings, machine::settings::MachineSettings, overshooting::Margins, safety::freeze,
};
pub use serving::{
    AdmissionSettings, CertMode, HttpSettings, MetricsSettings, Profiling, RequestLatency, ServiceReference,
    SniCertificate, TlsCipherSuite, TlsMinVersion, WebhookSettings,
};
pub use traces::TracingSettings;

/// All settings of `mcm serve`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The cluster with the machine objects.
    pub control: ControlCluster,
    /// The cluster with the Nodes.
    pub target: TargetCluster,
    /// What a changed kubeconfig file causes.
    pub kubeconfig_reload: KubeconfigReload,
    /// The namespace whose machine objects are managed. The Leases are there too.
    pub namespace: String,
    /// Rate limit of each client.
    pub client_rate: ClientRate,
    /// The version of the machine kinds that is watched.
    pub read_version: ReadVersion,
    /// Maximum age of a cache before it is listed again.
    pub min_resync_period: Duration,
    /// The plain HTTP listener for health and metrics.
    pub http: HttpSettings,
    /// The metrics that can be left out.
    pub metrics: MetricsSettings,
    /// Where traces are sent. `None` when there are no traces.
    pub tracing: Option<TracingSettings>,
    /// The TLS listener of webhooks and conversion. `None` when it is off.
    pub secure: Option<SocketAddr>,
    /// The source of the serving certificate.
    pub certificates: CertMode,
    /// Further certificates for callers that request certain names (SNI).
    pub sni_certificates: Vec<SniCertificate>,
    /// DNS names and IP addresses on the self-signed certificate, in addition to the names of the Service.
    pub extra_certificate_names: Vec<String>,
    /// The Service through which API servers reach the TLS listener.
    pub service: ServiceReference,
    /// The extension API server. `None` when it is off.
    pub extension: Option<ExtensionSettings>,
    /// Limits of connections and requests.
    pub limits: Limits,
    /// The webhooks' callers and TLS.
    pub webhooks: WebhookSettings,
    /// Admission.
    pub admission: AdmissionSettings,
    /// The control loops of this process.
    pub controllers: ControllerSet,
    /// Workers per queue.
    pub workers: Workers,
    /// Whether a replica that does not lead keeps its caches warm.
    pub standby_caches: StandbyCaches,
    /// Leader election. `None` when it is off.
    pub leader_election: Option<LeaderElection>,
    /// Timeouts of machines.
    pub machine: MachineSettings,
    /// Options of the deployment and set loops.
    pub rollout: DeploymentSettings,
    /// Periods of the safety loops.
    pub safety: SafetySettings,
    /// Name of the cluster. Together with the namespace it is the owner of VMs whose class names no owner.
    pub cluster_name: Option<String>,
    /// The drivers of this process.
    pub drivers: DriverSelection,
    /// Settings of all clouds.
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
    /// The files of all kubeconfigs, each once.
    pub fn kubeconfigs(&self) -> BTreeSet<&Path> {
        let control = match &self.control {
            ControlCluster::Kubeconfig(path) => Some(path),
            ControlCluster::InCluster => None,
        };
        let target = match &self.target {
            TargetCluster::Kubeconfig(path) => Some(path),
            TargetCluster::InCluster | TargetCluster::None => None,
        };
        let of_views = self.extension.iter().flat_map(|extension| {
            [extension.authentication.kubeconfig.as_ref(), extension.authorization.kubeconfig.as_ref()]
        });
        [control, target].into_iter().chain(of_views).flatten().map(PathBuf::as_path).collect()
    }

    /// Settings that are allowed but probably a mistake, one sentence each. They are logged at the start.
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

/// What happens when the file of a kubeconfig has other content than at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeconfigReload {
    /// Nothing: the process goes on with the content that it read at the start.
    #[default]
    Never,
    /// The process ends as after SIGTERM, so that its supervisor starts it with the new content.
    Exit,
}

/// Access to the control cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlCluster {
    /// With the service account of the pod.
    InCluster,
    /// With a kubeconfig file.
    Kubeconfig(PathBuf),
}

/// Access to the target cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetCluster {
    /// There is no target cluster: no Node, Pod or volume is changed.
    None,
    /// With the service account of the pod.
    InCluster,
    /// With a kubeconfig file.
    Kubeconfig(PathBuf),
}

/// A token bucket on the client's side. Each client has its own, so that Leases and events never wait for other requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientRate {
    /// Requests per second, greater than 0.
    pub qps: f32,
    /// Requests that may be sent at once; 0 counts as 1.
    pub burst: u32,
}

/// Periods and limits of the safety loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SafetySettings {
    /// How many machines above the desired number freeze a set, and how many below that threshold end the freeze.
    pub margins: Margins,
    /// Period of the overshoot check.
    pub overshooting_period: Duration,
    /// Period of the search for VMs without a Machine.
    pub orphan_vms_period: Duration,
    /// How long an API server may be unresponsive before the machine loops freeze, and the period of the check, which is at least that long.
    pub api_servers: freeze::Limits,
    /// How long a watch may receive nothing before it is opened again.
    pub watch_silence: Duration,
}

/// How the process ends after SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownSettings {
    /// How long the server still accepts requests after it became unready.
    pub delay: Duration,
    /// How long running requests and effects may take after that.
    pub timeout: Duration,
    /// How long running driver calls may still take.
    pub driver_drain: Duration,
    /// The answer to requests that come meanwhile.
    pub late_requests: LateRequests,
}

/// The answer to requests that come while the process finishes earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateRequests {
    /// None: the port is closed.
    #[default]
    FindNobody,
    /// 429 with `Retry-After`, and then the connection is closed (`--shutdown-send-retry-after`).
    AreToldToRetry,
}
