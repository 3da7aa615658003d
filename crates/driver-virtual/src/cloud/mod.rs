//! The simulated cloud: a state machine of VMs without a clock, a network or a task.
//!
//! The inputs are commands and the time. The outputs are answers, notices for the kubelets, changes to store, and the next deadline (spec/providers
//! §7.3). This file has the parts of the cloud and the checks before every call (rate limit, failure rules). The calls are in [`requests`], the life
//! cycle of a VM in [`lifecycle`], and the stored state in [`restore`].

mod event;
mod fleet;
mod lifecycle;
mod requests;
mod restore;
#[cfg(test)]
mod tests;
mod vm;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

pub use event::{Event, EventKind};
pub use lifecycle::{NodeAction, NodeNotice};
pub use requests::{MachineCall, Target};
pub use restore::{Entry, FORMAT, KnownVm};
pub use vm::{Heartbeat, Life, NodeStage, Vm, VmRef, machine_key};

use self::{event::EventLog, fleet::Fleet, lifecycle::Timer};
use super::{
    config::{Scope, SimulationConfig},
    draw::{Decision, Draws},
    rules::{FailureEffect, Operation, ShortList, Subject},
    template::VmTemplate,
};
use kube_values::field::{FieldPath, Findings};
use machine_driver::{Code, Status};

/// The cloud.
#[derive(Debug)]
pub struct Cloud {
    config: Arc<SimulationConfig>,
    draws: Draws,
    seed: u64,
    started: Timestamp,
    fleet: Fleet,
    timers: BTreeSet<Timer>,
    hits: BTreeMap<u64, u64>,
    tokens: Option<Tokens>,
    events: EventLog,
    notices: Vec<NodeNotice>,
    /// Increases with every change that must be stored.
    revision: u64,
    changes: Changes,
    /// Whether the Nodes of the target cluster were adopted.
    has_adopted: bool,
}

/// The token bucket of the rate limit.
#[derive(Clone, Copy, Debug)]
struct Tokens {
    left: f64,
    at: Timestamp,
}

/// The changes that must be stored.
#[derive(Debug, Default)]
struct Changes {
    vms: Vec<VmRef>,
    gone: Vec<Box<str>>,
    machines: Vec<Arc<str>>,
}

/// The result of the checks before a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// The additional time before the call.
    pub hang: Option<Duration>,
    /// The latency of the API.
    pub latency: Duration,
    /// Whether the call is carried out.
    pub verdict: Verdict,
}

/// Whether a call is carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The call is carried out.
    Go,
    /// The call fails without any change.
    FailBefore(Status),
    /// The call is carried out, but fails after this time.
    FailAfter(Status, Duration),
    /// The call is carried out, but its list is incomplete.
    Shorten(ShortList),
    /// The call is carried out twice. The second answer is returned.
    Repeat,
}

/// The data of a VM for its Node.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// The VM.
    pub vm: Vm,
    /// The internal address.
    pub address: Ipv4Addr,
    /// The first address of the network of the pods, a /24.
    pub pod_network: Ipv4Addr,
    /// The template.
    pub template: Arc<VmTemplate>,
    /// The configuration for VMs of the template.
    pub config: Arc<SimulationConfig>,
}

impl Cloud {
    /// Creates an empty cloud whose simulation starts now. `seed` is the seed of the configuration, or a random one if that is 0.
    pub fn new(config: Arc<SimulationConfig>, seed: u64, now: Timestamp) -> Self {
        Self {
            config,
            draws: Draws::new(seed),
            seed,
            started: now,
            fleet: Fleet::default(),
            timers: BTreeSet::new(),
            hits: BTreeMap::new(),
            tokens: None,
            events: EventLog::default(),
            notices: Vec::new(),
            revision: 0,
            changes: Changes::default(),
            has_adopted: false,
        }
    }

    /// The current configuration.
    pub fn config(&self) -> &Arc<SimulationConfig> {
        &self.config
    }

    /// Changes the configuration. Seed, clock and start of the simulation stay.
    pub fn reconfigure(&mut self, config: Arc<SimulationConfig>) {
        self.config = config;
        let base = Arc::clone(&self.config);
        self.fleet.reconfigure(|template| config_for(&base, template));
        self.tokens = None;
    }

    /// Resets the counters of failure rules with a count.
    pub fn forget_hits(&mut self) {
        self.hits.clear();
        self.revision += 1;
    }

    /// The number of VMs, including VMs that are being created or deleted.
    pub const fn len(&self) -> usize {
        self.fleet.len()
    }

    /// Whether there are no VMs.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All VMs with their templates, in the order of their slots.
    pub fn vms(&self) -> impl Iterator<Item = (VmRef, &Vm, Arc<VmTemplate>)> {
        self.fleet.iter().map(|(reference, vm)| (reference, vm, self.fleet.template(vm.template)))
    }

    /// The number of calls, by operation.
    pub fn calls(&self) -> Vec<(Operation, u64)> {
        self.fleet.calls().collect()
    }

    /// The events, in an order that depends only on the seed.
    pub fn events(&self) -> Vec<Event> {
        self.events.sorted()
    }

    /// Adds an event of a VM.
    pub fn note(&mut self, vm: VmRef, kind: EventKind, now: Timestamp) {
        if let Some(key) = self.fleet.get(vm).map(|vm| Arc::clone(&vm.key)) {
            self.events.push(now, key, kind);
        }
    }

    /// The time of the next step that happens by itself.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.timers.first().map(|timer| timer.at)
    }

    /// Takes the notices for the kubelets since the last call.
    pub fn take_notices(&mut self) -> Vec<NodeNotice> {
        std::mem::take(&mut self.notices)
    }

    /// Increases with every change that must be stored.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// The data of a VM for its Node. `None` if the VM does not run.
    pub fn node_view(&self, reference: VmRef) -> Option<NodeView> {
        let vm = self.fleet.get(reference).filter(|vm| vm.life == Life::Running)?;
        let pods = u32::from(Ipv4Addr::new(100, 64, 0, 0)) + ((reference.slot % (1 << 14)) << 8);
        Some(NodeView {
            vm: vm.clone(),
            address: address_of(vm.address),
            pod_network: Ipv4Addr::from_bits(pods),
            template: self.fleet.template(vm.template),
            config: self.fleet.config(vm.template),
        })
    }

    /// The checks before every call: the rate limit, then the failure rules. The first match decides.
    pub fn admit(&mut self, operation: Operation, call: &MachineCall, now: Timestamp) -> Admission {
        self.advance(now);
        let key = machine_key(&call.namespace, &call.machine);
        let attempt = self.count_call(operation, &key);
        let config = self.config_of(&call.template);
        let decision = |purpose| Decision { operation: operation.as_str(), subject: &key, attempt, purpose };
        let latency = config.latency.api.sample(&mut self.draws.generator(decision("api latency")));
        let mut hang = None;
        let verdict = if self.take_token(now) {
            let subject = call.template.subject(&call.machine);
            match self.failure(operation, &key, subject, attempt, &config, now) {
                None => Verdict::Go,
                Some((FailureEffect::Error, status)) => Verdict::FailBefore(status),
                Some((FailureEffect::DoneButError(late), status)) => Verdict::FailAfter(status, late),
                Some((FailureEffect::ShortList(short), _)) => Verdict::Shorten(short),
                Some((FailureEffect::Repeated, _)) => Verdict::Repeat,
                Some((FailureEffect::Hang(length), _)) => {
                    hang = Some(length);
                    Verdict::Go
                }
            }
        } else {
            Verdict::FailBefore(Status::new(Code::Unavailable, "throttled"))
        };
        let operation = operation.as_str();
        let event = match &verdict {
            Verdict::FailBefore(status) | Verdict::FailAfter(status, _) => {
                Some(EventKind::CallFailed { operation, attempt, code: status.code.as_str() })
            }
            Verdict::Repeat => Some(EventKind::CallRepeated { operation, attempt }),
            Verdict::Go => hang.map(|_| EventKind::CallHangs { operation, attempt }),
            Verdict::Shorten(_) => None,
        };
        if let Some(event) = event {
            self.events.push(now, key, event);
        }
        Admission { hang, latency, verdict }
    }

    /// Counts a call. Returns its number, from 1.
    fn count_call(&mut self, operation: Operation, key: &Arc<str>) -> u32 {
        let record = self.fleet.record(key);
        let Some(calls) = record.calls.get_mut(operation as usize) else { return 1 };
        *calls = calls.saturating_add(1);
        u32::from(*calls)
    }

    fn failure(
        &mut self,
        operation: Operation,
        key: &str,
        subject: Subject<'_>,
        attempt: u32,
        config: &SimulationConfig,
        now: Timestamp,
    ) -> Option<(FailureEffect, Status)> {
        let age = Duration::try_from(now.duration_since(self.started)).unwrap_or_default();
        let rule = config.failures.iter().enumerate().find(|(at, rule)| {
            let purpose = format!("failure {at}");
            rule.applies(operation, subject, age)
                && rule.count.is_none_or(|count| self.hits.get(&rule.id).copied().unwrap_or(0) < count)
                && self.draws.happens(
                    Decision { operation: operation.as_str(), subject: key, attempt, purpose: &purpose },
                    rule.rate,
                )
        });
        let (_, rule) = rule?;
        if rule.count.is_some() {
            *self.hits.entry(rule.id).or_default() += 1;
            self.revision += 1;
        }
        Some((rule.effect.clone(), rule.status(operation, subject)))
    }

    fn take_token(&mut self, now: Timestamp) -> bool {
        let Some(limit) = self.config.rate_limit else { return true };
        let tokens = self.tokens.get_or_insert(Tokens { left: limit.burst, at: now });
        let passed = now.duration_since(tokens.at).as_secs_f64().max(0.0);
        tokens.left = (tokens.left + passed * limit.qps).min(limit.burst);
        tokens.at = now;
        let granted = tokens.left >= 1.0;
        if granted {
            tokens.left -= 1.0;
        }
        granted
    }

    /// The number of a template.
    fn intern(&mut self, template: VmTemplate) -> u64 {
        let base = Arc::clone(&self.config);
        self.fleet.intern(template, |template| config_for(&base, template))
    }

    /// The configuration for VMs of a template.
    pub fn config_of(&self, template: &VmTemplate) -> Arc<SimulationConfig> {
        config_for(&self.config, template)
    }

    /// The latency of a step in the life of a VM.
    fn lasts(&self, vm: &Vm, step: Step) -> Duration {
        let config = self.fleet.config(vm.template);
        let (distribution, operation, purpose) = match step {
            Step::Create => (&config.latency.create, "create", "create latency"),
            Step::Boot => (&config.latency.boot, "create", "boot latency"),
            Step::Ready => (&config.latency.ready, "create", "ready latency"),
            Step::Delete => (&config.latency.delete, "delete", "delete latency"),
        };
        if distribution.is_zero() {
            return Duration::ZERO;
        }
        let decision = Decision { operation, subject: &vm.key, attempt: vm.generation, purpose };
        distribution.sample(&mut self.draws.generator(decision))
    }
}

/// A step in the life of a VM that takes time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create,
    Boot,
    Ready,
    Delete,
}

/// The base configuration with the overrides of the class. Invalid overrides are ignored, because a class with invalid overrides is refused before
/// the call.
fn config_for(base: &Arc<SimulationConfig>, template: &VmTemplate) -> Arc<SimulationConfig> {
    let Some(sim) = &template.sim else { return Arc::clone(base) };
    Arc::new(base.overlaid(sim, &FieldPath::default(), Scope::Class, &mut Findings::new()))
}

/// The address with this host part.
fn address_of(host: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 240, 0, 0)) + host)
}
