//! The simulated cloud itself: a state machine of VMs without a clock, a network or a task.
//!
//! Commands and the time come in; answers, notices for the kubelets, changes to keep and the next deadline come out
//! (spec/providers §7.3). Here: the cloud's parts and what every call passes first (rate limit, failure rules). The calls
//! are in [`requests`], the life of a VM in [`lifecycle`], what is kept over a restart in [`restore`].

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

pub use event::{Event, Happening};
pub use lifecycle::{NodeNotice, NodeWish};
pub use requests::{MachineCall, Target};
pub use restore::{Entry, FORMAT, KnownVm};
pub use vm::{Heartbeat, Life, NodeStage, Vm, VmRef, machine_key};

use self::{event::EventLog, fleet::Fleet, lifecycle::Timer};
use super::{
    config::{Scope, SimulationConfig},
    draw::{Draws, Question},
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
    /// Grows with everything that must be kept.
    revision: u64,
    changes: Changes,
    /// Whether the Nodes of the target cluster were taken over.
    has_adopted: bool,
}

/// The rate limit's bucket.
#[derive(Clone, Copy, Debug)]
struct Tokens {
    left: f64,
    at: Timestamp,
}

/// What has changed and must be kept.
#[derive(Debug, Default)]
struct Changes {
    vms: Vec<VmRef>,
    gone: Vec<Box<str>>,
    machines: Vec<Arc<str>>,
}

/// What a call meets before it does anything.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// How much longer it takes first.
    pub hang: Option<Duration>,
    /// How long the API takes to answer.
    pub latency: Duration,
    /// How long after the deed its failure is answered.
    pub late: Duration,
    /// Whether it goes on.
    pub verdict: Verdict,
}

/// Whether a call goes on.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It does.
    Go,
    /// It fails and nothing is done.
    FailBefore(Status),
    /// It is done, yet fails.
    FailAfter(Status),
    /// It goes on, and its list lacks VMs.
    Shorten(ShortList),
    /// It is done twice; the second answer counts.
    Repeat,
}

/// What a Node needs to know of its VM.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// Name of the Node.
    pub name: String,
    /// Name of the machine.
    pub machine: String,
    /// Namespace of the machine; empty when it is not known.
    pub namespace: String,
    /// Identity at the provider.
    pub provider_id: String,
    /// Internal address.
    pub address: Ipv4Addr,
    /// First address of the pods' /24.
    pub pod_network: Ipv4Addr,
    /// Where its kubelet stands.
    pub stage: NodeStage,
    /// Whether its kubelet reports.
    pub heartbeat: Heartbeat,
    /// The template.
    pub template: Arc<VmTemplate>,
    /// The configuration for VMs of the template.
    pub config: Arc<SimulationConfig>,
}

impl Cloud {
    /// An empty cloud whose simulation starts now. `seed` is the configuration's, or one made for its 0.
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

    /// The configuration in force.
    pub fn config(&self) -> &Arc<SimulationConfig> {
        &self.config
    }

    /// Puts another configuration in force. Seed, clock and start of the simulation stay.
    pub fn reconfigure(&mut self, config: Arc<SimulationConfig>) {
        self.config = config;
        let base = Arc::clone(&self.config);
        self.fleet.reconfigure(|template| config_for(&base, template));
        self.tokens = None;
    }

    /// Failure rules with a count begin anew.
    pub fn forget_hits(&mut self) {
        self.hits.clear();
        self.revision += 1;
    }

    /// How many VMs there are, those about to appear and to vanish included.
    pub const fn len(&self) -> usize {
        self.fleet.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All VMs with their templates, in the order of their making.
    pub fn vms(&self) -> impl Iterator<Item = (VmRef, &Vm, Arc<VmTemplate>)> {
        self.fleet.iter().map(|(reference, vm)| (reference, vm, self.fleet.template(vm.template)))
    }

    /// Calls so far, by operation.
    pub fn calls(&self) -> Vec<(Operation, u64)> {
        self.fleet.calls().collect()
    }

    /// What happened, in an order that depends on nothing but the seed.
    pub fn events(&self) -> Vec<Event> {
        self.events.sorted()
    }

    /// Notes something that a VM's kubelet met.
    pub fn note(&mut self, vm: VmRef, happening: Happening, now: Timestamp) {
        if let Some(key) = self.fleet.get(vm).map(|vm| Arc::clone(&vm.key)) {
            self.events.push(now, key, happening);
        }
    }

    /// When something happens next by itself.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.timers.first().map(|timer| timer.at)
    }

    /// What kubelets must know, since the last time this was asked.
    pub fn take_notices(&mut self) -> Vec<NodeNotice> {
        std::mem::take(&mut self.notices)
    }

    /// Grows with everything that must be kept.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// What the Node of a VM needs to know; `None` when the VM runs no more.
    pub fn node_view(&self, reference: VmRef) -> Option<NodeView> {
        let vm = self.fleet.get(reference).filter(|vm| vm.life == Life::Running)?;
        Some(NodeView {
            name: vm.node_name().to_owned(),
            machine: vm.machine().to_owned(),
            namespace: vm.namespace().to_owned(),
            provider_id: vm.provider_id.to_string(),
            address: address_of(vm.address),
            pod_network: Ipv4Addr::from_bits(
                u32::from(Ipv4Addr::new(100, 64, 0, 0)) + ((reference.slot % (1 << 14)) << 8),
            ),
            stage: vm.node,
            heartbeat: vm.heartbeat,
            template: self.fleet.template(vm.template),
            config: self.fleet.config(vm.template),
        })
    }

    /// What every call passes first: the rate limit, then the failure rules; the first that hits decides.
    pub fn admit(&mut self, operation: Operation, call: &MachineCall, now: Timestamp) -> Admission {
        self.advance(now);
        let key = machine_key(&call.namespace, &call.machine);
        let attempt = self.count_call(operation, &key);
        let config = self.config_of(&call.template);
        let question = |purpose| Question { operation: operation.as_str(), subject: &key, attempt, purpose };
        let latency = config.latency.api.sample(&mut self.draws.generator(question("api latency")));
        let mut admission = Admission { hang: None, latency, late: Duration::ZERO, verdict: Verdict::Go };
        if !self.take_token(now) {
            admission.verdict = Verdict::FailBefore(Status::new(Code::Unavailable, "throttled"));
        } else if let Some((effect, status)) =
            self.failure(operation, &key, call.template.subject(&call.machine), attempt, &config, now)
        {
            match effect {
                FailureEffect::Error => admission.verdict = Verdict::FailBefore(status),
                FailureEffect::DoneButError(late) => {
                    admission.late = late;
                    admission.verdict = Verdict::FailAfter(status);
                }
                FailureEffect::ShortList(short) => admission.verdict = Verdict::Shorten(short),
                FailureEffect::Repeated => {
                    admission.verdict = Verdict::Repeat;
                    let happening = Happening::CallRepeated { operation: operation.as_str(), attempt };
                    self.events.push(now, Arc::clone(&key), happening);
                }
                FailureEffect::Hang(length) => {
                    admission.hang = Some(length);
                    let happening = Happening::CallHangs { operation: operation.as_str(), attempt };
                    self.events.push(now, Arc::clone(&key), happening);
                }
            }
        }
        if let Verdict::FailBefore(status) | Verdict::FailAfter(status) = &admission.verdict {
            let (operation, code) = (operation.as_str(), status.code.as_str());
            self.events.push(now, key, Happening::CallFailed { operation, attempt, code });
        }
        admission
    }

    /// Counts a call and answers the how manieth it is, from 1.
    fn count_call(&mut self, operation: Operation, key: &Arc<str>) -> u32 {
        let book = self.fleet.book(key);
        let Some(calls) = book.calls.get_mut(operation as usize) else { return 1 };
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
                    Question { operation: operation.as_str(), subject: key, attempt, purpose: &purpose },
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

    /// The latency of one step of a VM's life.
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
        let question = Question { operation, subject: &vm.key, attempt: vm.generation, purpose };
        distribution.sample(&mut self.draws.generator(question))
    }
}

/// A step of a VM's life that takes time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create,
    Boot,
    Ready,
    Delete,
}

/// The base configuration, with the overrides of the template's class. Wrong overrides count as none: the class is
/// refused before a call comes this far.
fn config_for(base: &Arc<SimulationConfig>, template: &VmTemplate) -> Arc<SimulationConfig> {
    let Some(sim) = &template.sim else { return Arc::clone(base) };
    Arc::new(base.overlaid(sim, &FieldPath::default(), Scope::Class, &mut Findings::new()))
}

/// The address with this host part.
fn address_of(host: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 240, 0, 0)) + host)
}
