//! The configuration of a simulation: every key, its default and its rules (spec/providers §7.2).
//!
//! A configuration is read over a base: the file over the defaults, a class's `providerSpec.sim` over the file. Reading
//! collects all mistakes with the paths of their keys. Distributions are in `super::distribution`, failure rules and
//! outcomes in `super::rules`.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use super::{
    distribution::Distribution,
    persistence::StatePlace,
    quantity,
    reader::{RULE, Section},
    rules::{FailureRule, OutcomeRule, Pattern},
};
use crate::api::field::{FieldPath, Findings};

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
    /// After so long a Node that somebody deleted under a running VM registers again.
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

/// Keys that exist once per simulation.
const GLOBAL_KEYS: [&str; 6] = ["seed", "clock", "quota", "rateLimit", "persistence", "impersonate"];

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

    /// Reads the text of a configuration file over the defaults.
    ///
    /// # Errors
    /// All mistakes, with the paths of their keys.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::default().overlaid_by_text(text)
    }

    /// Reads the text of a configuration file over this configuration.
    ///
    /// # Errors
    /// All mistakes, with the paths of their keys.
    pub fn overlaid_by_text(&self, text: &str) -> Result<Self, String> {
        let value: Value = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_saphyr::from_str(text).map_err(|error| format!("not readable as YAML: {error}"))?
        };
        let mut found = Findings::new();
        let config = self.overlaid(&value, &FieldPath::default(), Scope::Simulation, &mut found);
        if found.denies() { Err(found.aggregate()) } else { Ok(config) }
    }

    /// This configuration with the keys of `value` laid over it.
    #[must_use]
    pub fn overlaid(&self, value: &Value, path: &FieldPath, scope: Scope, found: &mut Findings) -> Self {
        let mut config = self.clone();
        if value.is_null() {
            return config;
        }
        let Some(mut section) = Section::of(value, path, found) else { return config };
        match scope {
            Scope::Simulation => config.read_global(&mut section, found),
            Scope::Class => {
                for key in GLOBAL_KEYS {
                    if let Some((_, path)) = section.take(key) {
                        found.forbidden(RULE, path, "may only be set for the whole simulation");
                    }
                }
            }
        }
        config.read_latency(&mut section, found);
        if let Some(mut part) = section.section("consistency", found) {
            part.duration("listLag", &mut config.consistency.list_lag, found);
            part.duration("getLag", &mut config.consistency.get_lag, found);
            part.finish(found);
        }
        if let Some((list, path)) = section.list("failures", found) {
            config.failures = FailureRule::read_all(list, &path, found);
        }
        if let Some((list, path)) = section.list("outcomes", found) {
            config.outcomes = OutcomeRule::read_all(list, &path, found);
        }
        if let Some(part) = section.section("spot", found) {
            config.spot = Spot::read(part, found);
        }
        if let Some(part) = section.section("nodes", found) {
            config.nodes.read(part, found);
        }
        if let Some(mut part) = section.section("pods", found) {
            part.switch("run", &mut config.pods.run, found);
            part.duration("startLatency", &mut config.pods.start_latency, found);
            part.duration("terminationLatency", &mut config.pods.termination_latency, found);
            part.switch("honourTerminationGrace", &mut config.pods.honour_termination_grace, found);
            part.finish(found);
        }
        if let Some(part) = section.section("volumes", found) {
            config.volumes.read(part, found);
        }
        section.finish(found);
        config
    }

    fn read_global(&mut self, section: &mut Section<'_>, found: &mut Findings) {
        if let Some(seed) = section.number("seed", found) {
            self.seed = seed;
        }
        if let Some((value, path)) = section.take("clock") {
            match ClockMode::read(value) {
                Some(mode) => self.clock = mode,
                None => found.invalid(RULE, path, value.clone(), "must be real, virtual or virtual(rate: NUMBER)"),
            }
        }
        if let Some((list, path)) = section.list("quota", found) {
            self.quota = list.iter().enumerate().filter_map(|(at, v)| Quota::read(v, &path.index(at), found)).collect();
        }
        if let Some(mut part) = section.section("rateLimit", found) {
            self.rate_limit = RateLimit::read(&mut part, found);
            part.finish(found);
        }
        if let Some(part) = section.section("persistence", found) {
            self.persistence = read_persistence(part, found);
        }
        if let Some((list, path)) = section.list("impersonate", found) {
            let names: Vec<String> = list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
            if names.len() != list.len() || names.iter().any(String::is_empty) {
                found.invalid(RULE, path, list.to_vec(), "must be a list of provider names such as AWS");
            }
            self.impersonate = Some(names);
        }
    }

    fn read_latency(&mut self, section: &mut Section<'_>, found: &mut Findings) {
        let Some(mut part) = section.section("latency", found) else { return };
        let targets = [
            ("create", &mut self.latency.create),
            ("boot", &mut self.latency.boot),
            ("ready", &mut self.latency.ready),
            ("delete", &mut self.latency.delete),
            ("api", &mut self.latency.api),
        ];
        for (key, target) in targets {
            if let Some((value, path)) = part.take(key)
                && let Some(read) = Distribution::read(value, &path, found)
            {
                *target = read;
            }
        }
        part.finish(found);
    }
}

impl ClockMode {
    /// `real`, `virtual` (stands still), `virtual(rate: 60)` or `{virtual: {rate: 60}}`.
    fn read(value: &Value) -> Option<Self> {
        let rate = match value {
            Value::String(word) if word == "real" => return Some(Self::Real),
            Value::String(word) if word == "virtual" => 0.0,
            Value::String(word) => word.strip_prefix("virtual(rate:")?.strip_suffix(')')?.trim().parse::<f64>().ok()?,
            Value::Object(map) if map.len() == 1 => match map.get("virtual")? {
                Value::Null => 0.0,
                Value::Object(inner) if inner.is_empty() => 0.0,
                Value::Object(inner) if inner.len() == 1 => inner.get("rate")?.as_f64()?,
                _ => return None,
            },
            _ => return None,
        };
        (0.0..=1_000_000.0).contains(&rate).then_some(Self::Virtual { rate })
    }
}

impl Quota {
    fn read(value: &Value, path: &FieldPath, found: &mut Findings) -> Option<Self> {
        let mut section = Section::of(value, path, found)?;
        let pattern = Pattern::read(&mut section, found);
        let limits = (section.number("max", found), section.number("vcpus", found));
        section.finish(found);
        let limit = match limits {
            (Some(max), None) => QuotaLimit::Machines(max),
            (None, Some(vcpus)) => QuotaLimit::Vcpus(vcpus),
            _ => {
                found.invalid(RULE, path.clone(), value.clone(), "must have either max or vcpus");
                return None;
            }
        };
        Some(Self { pattern, limit })
    }
}

impl Spot {
    fn read(mut section: Section<'_>, found: &mut Findings) -> Option<Self> {
        let mut pattern = Pattern::default();
        if let Some(mut part) = section.section("match", found) {
            pattern = Pattern::read(&mut part, found);
            part.finish(found);
        }
        let mean = section.required_duration("meanTimeToInterrupt", found);
        let notice = section.optional_duration("notice", found).unwrap_or(Duration::from_secs(120));
        section.finish(found);
        Some(Self { pattern, mean_time_to_interrupt: mean?, notice })
    }
}

impl RateLimit {
    fn read(section: &mut Section<'_>, found: &mut Findings) -> Option<Self> {
        let mut positive = |key| {
            let (value, path) = section.take(key)?;
            let number = value.as_f64().filter(|number| *number > 0.0);
            if number.is_none() {
                found.invalid(RULE, path, value.clone(), "must be a number above 0");
            }
            number
        };
        let (qps, burst) = (positive("qps"), positive("burst"));
        let qps = qps?;
        Some(Self { qps, burst: burst.unwrap_or(qps).max(1.0) })
    }
}

impl NodeSettings {
    fn read(&mut self, mut section: Section<'_>, found: &mut Findings) {
        section.duration("leaseInterval", &mut self.lease_interval, found);
        section.duration("leaseDuration", &mut self.lease_duration, found);
        section.duration("statusPeriod", &mut self.status_period, found);
        section.duration("reregister", &mut self.reregister, found);
        section.switch("ccm", &mut self.ccm, found);
        if let Some(word) = section.text("nodeName", found) {
            match word.as_str() {
                "machine-name" => self.node_name = NodeNaming::MachineName,
                "private-dns" => self.node_name = NodeNaming::PrivateDns,
                other => {
                    found.not_supported(RULE, section.path_of("nodeName"), other, &["machine-name", "private-dns"]);
                }
            }
        }
        if let Some((Value::Object(map), path)) = section.take("allocatableReserved") {
            for (name, value) in map {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                if quantity::parse(&text).is_none() {
                    found.invalid(
                        RULE,
                        path.child(name),
                        value.clone(),
                        "must be a quantity such as \"80m\" or \"1Gi\"",
                    );
                }
                self.allocatable_reserved.insert(name.clone(), Quantity(text));
            }
        }
        if !self.lease_interval.is_zero() && self.lease_interval >= self.lease_duration {
            let detail = "must be longer than leaseInterval, else the lease runs out between two renewals";
            found.invalid(RULE, section.path_of("leaseDuration"), format!("{:?}", self.lease_duration), detail);
        }
        section.finish(found);
    }
}

impl VolumeSettings {
    fn read(&mut self, mut section: Section<'_>, found: &mut Findings) {
        section.duration("attach", &mut self.attach, found);
        section.duration("detach", &mut self.detach, found);
        if let Some(max) = section.number("maxPerNode", found) {
            self.max_per_node = max;
        }
        if let Some((list, path)) = section.list("drivers", found) {
            for (at, name) in list.iter().enumerate() {
                match name.as_str() {
                    Some(name) => self.drivers.push(name.to_owned()),
                    None => found.invalid(RULE, path.index(at), name.clone(), "must be the name of a CSI driver"),
                }
            }
        }
        section.finish(found);
    }
}

fn read_persistence(mut section: Section<'_>, found: &mut Findings) -> Option<StatePlace> {
    let kind = section.text("kind", found).unwrap_or_else(|| "none".to_owned());
    let path = section.text("path", found);
    let place = match (kind.as_str(), path) {
        ("none", _) => Some(StatePlace::None),
        ("file" | "json" | "configMap", None) => {
            found.required(RULE, section.path_of("path"), format!("kind {kind} needs to know where"));
            None
        }
        ("file", Some(path)) => Some(StatePlace::File(path.into())),
        ("json", Some(path)) => Some(StatePlace::Json(path.into())),
        ("configMap", Some(name)) => Some(StatePlace::ConfigMap(name)),
        (other, _) => {
            found.not_supported(RULE, section.path_of("kind"), other, &["none", "file", "json", "configMap"]);
            None
        }
    };
    section.finish(found);
    place
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// The whole example of spec/providers §7.2.
    const EXAMPLE: &str = r#"
seed: 42
clock: real
latency:
  create: {lognormal: {p50: 2s, p99: 8s}}
  boot:   {normal: {mean: 25s, sd: 5s}}
  ready:  {constant: 5s}
  delete: {uniform: [3s, 10s]}
  api:    {constant: 20ms}
consistency: {listLag: 0s, getLag: 0s}
failures:
  - {op: create, class: "*", rate: 0.02, code: ResourceExhausted, message: "out of capacity in {zone}"}
  - {op: create, zone: sim-1b, from: 10m, to: 25m, code: ResourceExhausted}
  - {op: delete, machine: "m-7", count: 3, code: Unavailable}
  - {op: create, rate: 0.01, effect: created-but-error}
  - {op: create, rate: 0.01, effect: hang, for: 3m}
  - {op: any, effect: auth-failure, from: 1h, to: 1h5m}
outcomes:
  - {rate: 0.01, effect: never-joins}
  - {rate: 0.005, effect: joins-then-notready, after: 20m}
  - {rate: 0.01, effect: duplicate-vm}
  - {rate: 0.01, effect: vanishes, after: 1h}
  - {rate: 0.01, effect: uninitialized}
quota: [{region: sim-1, machineType: "*", max: 10000}, {zone: sim-1c, max: 5}, {vcpus: 4000}]
spot: {match: {machineType: "sim.spot*"}, meanTimeToInterrupt: 2h, notice: 2m}
rateLimit: {qps: 100, burst: 200}
persistence: {kind: file, path: /var/lib/sim}
nodes: {leaseInterval: 10s, leaseDuration: 40s, statusPeriod: 5m, allocatableReserved: {cpu: 80m, memory: 1Gi}}
pods: {run: true, startLatency: 1s, honourTerminationGrace: true}
volumes: {attach: 2s, detach: 3s, maxPerNode: 26}
"#;

    #[test]
    fn the_example_of_the_reference_is_read_and_its_plain_values_are_the_defaults() {
        let config = SimulationConfig::parse(EXAMPLE).unwrap();
        assert_eq!((config.failures.len(), config.outcomes.len(), config.quota.len()), (6, 5, 3));
        assert_eq!(config.persistence, Some(StatePlace::File("/var/lib/sim".into())));
        let plain = SimulationConfig {
            failures: Vec::new(),
            outcomes: Vec::new(),
            quota: Vec::new(),
            spot: None,
            rate_limit: None,
            persistence: None,
            ..config
        };
        assert_eq!(plain, SimulationConfig::default());
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(SimulationConfig::parse(" \n"), Ok(SimulationConfig::default()));
    }

    #[test]
    fn all_latencies_can_be_zero() {
        let text = "latency: {create: 0, boot: 0s, ready: 0, delete: 0, api: {constant: 0}}
pods: {startLatency: 0, terminationLatency: 0}
volumes: {attach: 0, detach: 0}";
        assert_eq!(SimulationConfig::parse(text), Ok(SimulationConfig::without_latency()));
    }

    #[rstest]
    #[case::an_unknown_key("latencies: {}", "latencies: Forbidden: no such key")]
    #[case::a_nested_unknown_key("nodes: {leaseIntervall: 10s}", "nodes.leaseIntervall: Forbidden")]
    #[case::a_duration_without_a_unit("nodes: {leaseInterval: 10}", "nodes.leaseInterval: Invalid value: 10")]
    #[case::a_lease_that_runs_out("nodes: {leaseInterval: 50s}", "nodes.leaseDuration: Invalid value")]
    #[case::a_quota_of_nothing("quota: [{zone: a}]", "quota[0]: Invalid value")]
    #[case::a_seed_below_zero("seed: -1", "seed: Invalid value: -1")]
    #[case::a_clock("clock: fast", "clock: Invalid value")]
    #[case::state_without_a_place("persistence: {kind: file}", "persistence.path: Required value")]
    #[case::a_list("- 1", "must be an object")]
    #[case::a_limit_of_zero("rateLimit: {qps: 0}", "rateLimit.qps: Invalid value: 0")]
    #[case::no_yaml("a: [", "not readable as YAML")]
    fn a_mistake_is_reported_with_its_key(#[case] text: &str, #[case] words: &str) {
        let error = SimulationConfig::parse(text).unwrap_err();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let error = SimulationConfig::parse("seed: x\nlatency: {boot: soon}").unwrap_err();
        assert!(error.contains("seed:") && error.contains("latency.boot:"), "{error}");
    }

    #[rstest]
    #[case::standing("clock: virtual", 0.0)]
    #[case::as_in_the_reference("clock: \"virtual(rate: 60)\"", 60.0)]
    #[case::as_an_object("clock: {virtual: {rate: 2.5}}", 2.5)]
    fn a_virtual_clock_has_a_rate(#[case] text: &str, #[case] rate: f64) {
        assert_eq!(SimulationConfig::parse(text).unwrap().clock, ClockMode::Virtual { rate });
    }

    #[test]
    fn a_class_overrides_what_is_not_global() {
        let mut found = Findings::new();
        let value = serde_json::json!({"latency": {"boot": "1m"}, "seed": 3});
        let base = SimulationConfig::default();
        let config = base.overlaid(&value, &FieldPath::new("providerSpec.sim"), Scope::Class, &mut found);
        assert_eq!(config.latency.boot, Distribution::Constant(Duration::from_secs(60)));
        assert_eq!(config.latency.create, base.latency.create);
        assert!(found.aggregate().contains("providerSpec.sim.seed: Forbidden"), "{}", found.aggregate());
    }
}
