//! The configuration of a simulation: every key, its default and its rules (spec/providers §7.2).
//!
//! A configuration is read over a base: the file over the defaults, a class's `providerSpec.sim` over the file; that is in
//! [`read`]. Distributions are in `super::distribution`, failure rules and outcomes in `super::rules`.

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

/// Everything that can be set about a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationConfig {
    /// What all chance is derived from; 0 asks for one from the operating system.
    pub seed: u64,
    /// Which clock the VMs live by.
    pub clock: ClockMode,
    /// How long things take.
    pub latency: Latencies,
    /// How long the cloud's answers lag behind its state.
    pub consistency: Consistency,
    /// Calls that go wrong.
    pub failures: Vec<FailureRule>,
    /// VMs that go wrong.
    pub outcomes: Vec<OutcomeRule>,
    /// Limits.
    pub quota: Vec<Quota>,
    /// Interruptions by the cloud.
    pub spot: Option<Spot>,
    /// Calls per second that the cloud accepts; `None` is no limit.
    pub rate_limit: Option<RateLimit>,
    /// Where the state is kept, unless the command line says so.
    pub persistence: Option<StatePlace>,
    /// Other providers' strings that the virtual cloud serves.
    pub impersonate: Option<Vec<String>>,
    /// Nodes.
    pub nodes: NodeSettings,
    /// Pods.
    pub pods: PodSettings,
    /// Volumes.
    pub volumes: VolumeSettings,
}

/// Which clock the VMs live by. The kubelet's heartbeats follow real time with every clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClockMode {
    /// The process's own time.
    Real,
    /// A clock of its own that runs so many times as fast; 0 stands still and is advanced through the admin API.
    Virtual {
        /// Seconds of the simulation per second.
        rate: f64,
    },
}

/// How long things take.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    /// From the call until the VM exists.
    pub create: Distribution,
    /// From there until its Node registers.
    pub boot: Distribution,
    /// From there until the Node is ready.
    pub ready: Distribution,
    /// From the call until the VM is gone.
    pub delete: Distribution,
    /// Status and list calls.
    pub api: Distribution,
}

/// How long the cloud's answers lag behind its state: a new VM is invisible, a dead one still visible for so long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consistency {
    /// In lists.
    pub list_lag: Duration,
    /// In status calls.
    pub get_lag: Duration,
}

/// A limit: so many VMs, or so many cores, of those that fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The VMs it counts.
    pub pattern: Pattern,
    /// What it limits.
    pub limit: QuotaLimit,
}

/// What a quota limits.
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
    /// Which VMs are spot VMs.
    pub pattern: Pattern,
    /// Their mean life.
    pub mean_time_to_interrupt: Duration,
    /// How long before the end the notice comes.
    pub notice: Duration,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Calls per second.
    pub qps: f64,
    /// Calls at once.
    pub burst: f64,
}

/// How simulated Nodes behave.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSettings {
    /// How often a lease is renewed; zero: no leases.
    pub lease_interval: Duration,
    /// What a lease promises.
    pub lease_duration: Duration,
    /// How often the status is posted again; zero: never.
    pub status_period: Duration,
    /// What a node keeps for itself.
    pub allocatable_reserved: BTreeMap<String, Quantity>,
    /// How Nodes are called.
    pub node_name: NodeNaming,
    /// How their provider ids are spelled.
    pub provider_id: NodeIdSpelling,
    /// After so long a Node that was deleted under a running VM registers again.
    pub reregister: Duration,
    /// Whether Nodes of VMs that are gone are deleted, as a cloud controller manager does.
    pub ccm: bool,
}

/// How Nodes are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeNaming {
    /// As the machine.
    MachineName,
    /// `ip-a-b-c-d.<region>.compute.internal`.
    PrivateDns,
}

/// How the provider id of a Node is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeIdSpelling {
    /// As the cloud's controller manager writes it, which is not what the machine has.
    Cloud,
    /// As the machine has it.
    Machine,
}

/// How pods on simulated Nodes behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSettings {
    /// Whether pods are run at all.
    pub run: bool,
    /// From binding to Running.
    pub start_latency: Duration,
    /// How long a pod takes to stop by itself.
    pub termination_latency: Duration,
    /// Whether a pod may take that long; else it is gone at once.
    pub honour_termination_grace: bool,
}

/// How volumes behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSettings {
    /// Until an attachment is attached.
    pub attach: Duration,
    /// Until it is detached.
    pub detach: Duration,
    /// Attachments per node.
    pub max_per_node: u64,
    /// CSI drivers that are simulated.
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

/// Whose configuration is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// That of the whole simulation.
    Simulation,
    /// A class's overrides; what exists only once in a simulation may not be there.
    Class,
}

impl SimulationConfig {
    /// Everything takes no time and nothing goes wrong.
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
