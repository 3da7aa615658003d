//! The configuration of a simulation: its keys, defaults and checks (spec/providers §7.2).
//!
//! A configuration overrides a base: the file overrides the defaults, and `providerSpec.sim` of a class overrides the file. This is in [`read`].
//! Distributions are in `super::distribution`, failure rules and outcomes in `super::rules`.

mod read;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{
    distribution::Distribution,
    persistence::StatePlace,
    rules::{FailureRule, OutcomeRule, Pattern},
};

/// The settings of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationConfig {
    /// The seed of all random decisions. 0 means a random seed.
    pub seed: u64,
    /// The clock of the VMs.
    pub clock: ClockMode,
    /// The latencies.
    pub latency: Latencies,
    /// The delays of the cloud's answers.
    pub consistency: Consistency,
    /// Failure rules of calls.
    pub failures: Vec<FailureRule>,
    /// Outcome rules of VMs.
    pub outcomes: Vec<OutcomeRule>,
    /// Quotas.
    pub quota: Vec<Quota>,
    /// Interruptions of spot VMs.
    pub spot: Option<Spot>,
    /// The limit of calls per second. `None` means no limit.
    pub rate_limit: Option<RateLimit>,
    /// The place where the state is stored, if the command line does not set it.
    pub persistence: Option<StatePlace>,
    /// The names of other providers that the virtual cloud serves.
    pub impersonate: Option<Vec<String>>,
    /// Settings of Nodes.
    pub nodes: NodeSettings,
    /// Settings of Pods.
    pub pods: PodSettings,
    /// Settings of volumes.
    pub volumes: VolumeSettings,
}

/// The clock of the VMs. The heartbeats of the kubelets always use real time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClockMode {
    /// The time of the process.
    Real,
    /// A clock that runs faster by this factor. At rate 0 it stands still, and the admin API advances it.
    Virtual {
        /// Seconds of the simulation per second.
        rate: f64,
    },
}

/// The latencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    /// From the call until the VM exists.
    pub create: Distribution,
    /// From the existence of the VM until its Node registers.
    pub boot: Distribution,
    /// From the registration of the Node until it is ready.
    pub ready: Distribution,
    /// From the call until the VM is gone.
    pub delete: Distribution,
    /// Status and list calls.
    pub api: Distribution,
}

/// The delays of the cloud's answers: how long a new VM is invisible, and how long a deleted VM is still visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consistency {
    /// In lists.
    pub list_lag: Duration,
    /// In status calls.
    pub get_lag: Duration,
}

/// A quota for the VMs that match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The VMs that count.
    pub pattern: Pattern,
    /// The limit.
    pub limit: QuotaLimit,
}

/// The limit of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaLimit {
    /// The number of VMs.
    Machines(u64),
    /// The number of cores.
    Vcpus(u64),
}

/// Interruptions of spot VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The VMs that are spot VMs.
    pub pattern: Pattern,
    /// The mean time until a VM is interrupted.
    pub mean_time_to_interrupt: Duration,
    /// The time between the notice and the end.
    pub notice: Duration,
}

/// The token bucket of the rate limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Calls per second.
    pub qps: f64,
    /// The maximum number of calls at once.
    pub burst: f64,
}

/// Settings of simulated Nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSettings {
    /// The interval between renewals of a lease. Zero means no leases.
    pub lease_interval: Duration,
    /// The duration of a lease.
    pub lease_duration: Duration,
    /// The interval between updates of the status. Zero means no updates.
    pub status_period: Duration,
    /// The resources that are reserved on a Node.
    pub allocatable_reserved: BTreeMap<String, Quantity>,
    /// The names of Nodes.
    pub node_name: NodeNaming,
    /// The format of the provider ids of Nodes.
    pub provider_id: NodeIdSpelling,
    /// The time after which a Node that was deleted while its VM runs registers again.
    pub reregister: Duration,
    /// Whether the Nodes of VMs that are gone are deleted, as by a cloud controller manager.
    pub ccm: bool,
}

/// The names of Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeNaming {
    /// The name of the machine.
    MachineName,
    /// `ip-a-b-c-d.<region>.compute.internal`.
    PrivateDns,
}

/// The format of the provider id of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeIdSpelling {
    /// The format of the cloud controller manager, which differs from the id of the machine.
    Cloud,
    /// The provider id of the machine.
    Machine,
}

/// Settings of pods on simulated Nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSettings {
    /// Whether pods run.
    pub run: bool,
    /// The time from binding to Running.
    pub start_latency: Duration,
    /// The time that a pod needs to stop.
    pub termination_latency: Duration,
    /// Whether a pod gets this time. If not, it is removed at once.
    pub honour_termination_grace: bool,
}

/// Settings of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSettings {
    /// The time until a volume is attached.
    pub attach: Duration,
    /// The time until a volume is detached.
    pub detach: Duration,
    /// The maximum number of attachments per node.
    pub max_per_node: u64,
    /// The CSI drivers that are simulated.
    pub drivers: Vec<String>,
}

/// The CSI driver that is always simulated.
pub const CSI_DRIVER: &str = "virtual.csi.sapcloud.io";

impl Default for SimulationConfig {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self {
            seed: 42,
            clock: ClockMode::Real,
            latency: Latencies {
                create: Distribution::LogNormal { p50: secs(2), p99: secs(8) },
                boot: Distribution::Normal { mean: secs(25), sd: secs(5) },
                ready: Distribution::Constant(secs(5)),
                delete: Distribution::Uniform { min: secs(3), max: secs(10) },
                api: Distribution::Constant(Duration::from_millis(20)),
            },
            consistency: Consistency::default(),
            failures: Vec::new(),
            outcomes: Vec::new(),
            quota: Vec::new(),
            spot: None,
            rate_limit: None,
            persistence: None,
            impersonate: None,
            nodes: NodeSettings {
                lease_interval: secs(10),
                lease_duration: secs(40),
                status_period: secs(300),
                allocatable_reserved: [("cpu", "80m"), ("memory", "1Gi")]
                    .map(|(name, value)| (name.to_owned(), Quantity(value.to_owned())))
                    .into(),
                node_name: NodeNaming::MachineName,
                provider_id: NodeIdSpelling::Cloud,
                reregister: secs(30),
                ccm: false,
            },
            pods: PodSettings {
                run: true,
                start_latency: secs(1),
                termination_latency: secs(1),
                honour_termination_grace: true,
            },
            volumes: VolumeSettings {
                attach: secs(2),
                detach: secs(3),
                max_per_node: 26,
                drivers: vec![CSI_DRIVER.to_owned()],
            },
        }
    }
}

/// The kind of configuration that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The configuration of the whole simulation.
    Simulation,
    /// The overrides of a class. They must not have settings that exist once per simulation.
    Class,
}

impl SimulationConfig {
    /// A configuration without latencies and without failures.
    pub fn without_latency() -> Self {
        let zero = Distribution::ZERO;
        let latency = Latencies { create: zero, boot: zero, ready: zero, delete: zero, api: zero };
        let mut config = Self { latency, ..Self::default() };
        config.pods.start_latency = Duration::ZERO;
        config.pods.termination_latency = Duration::ZERO;
        config.volumes.attach = Duration::ZERO;
        config.volumes.detach = Duration::ZERO;
        config
    }
}
