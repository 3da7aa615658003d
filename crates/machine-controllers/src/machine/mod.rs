//! The machine controller: creates a VM for each Machine, links it to its Node, watches its health, and deletes it.
//!
//! A pass is `observe` → [`decide`](decide::decide) → `act`, repeated until nothing more can be done at once. Decisions
//! are pure and live in files named after what they decide; driver calls run beside the passes ([`driver_calls`]) and
//! wake the machine when they answer. Source: spec/machine-controller §3–6, §8, §11.
//!
//! Orphaned VMs, and API servers that cannot be reached, are the subject of other controllers.

pub mod act;
pub mod creation;
pub mod decide;
pub mod deletion;
mod driver_calls;
pub mod health;
pub mod in_place;
pub mod measures;
mod memory;
pub mod node;
pub mod observation;
pub mod observe;
pub use observe::secrets_of;
pub mod outlook;
pub mod patches;
pub mod plan;
pub mod preservation;
mod reconcile;
pub mod retry;
pub mod routing;
pub mod settings;
pub mod stages;
pub mod standing;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod time_limit;
mod tokens;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use rand::CryptoRng;

use self::{
    driver_calls::DriverCalls,
    measures::Measures,
    memory::Memory,
    observation::{Freeze, Observation, Silence},
    plan::Plan,
    settings::MachineSettings,
};
use crate::{
    Decision,
    drain::{self, DrainMemory, Drainer, act::Evictor, observe::DrainViews},
    snapshots::{MachineSnapshot, NodeSnapshot},
    views::ControlViews,
};
use controller_runtime::{
    clock::{Reading, SharedClock},
    events::Recorder,
    gate::Gate,
    key::ObjectKey,
    lock,
    objects::Objects,
    store::Store,
    tasks::SharedTasks,
};
use machine_api::v1alpha1::MachineClass;
use machine_driver::{Registry, SecretData};
use mcm_metrics::Metrics;
use mcm_traces::Tracer;

/// Component name of the machine half's events.
pub const COMPONENT: &str = "machine-controller";

/// A source of randomness that is shared and passed in; cryptographic, since tokens are made from it.
pub type SharedRng = Arc<Mutex<dyn CryptoRng + Send>>;

/// Wakes a machine: its next pass begins soon.
pub type Wake = Arc<dyn Fn(ObjectKey) + Send + Sync>;

/// Whether machines are frozen: an API server cannot be reached, or the clock cannot be trusted. Cheap to clone; all clones
/// share one state.
#[derive(Clone, Default)]
pub struct FreezeSwitch {
    /// The clock that must be trusted; `None` where the clock is not checked.
    clock: Option<SharedClock>,
    all: Arc<AtomicBool>,
    /// The API server that does not answer.
    silence: Arc<Mutex<Silence>>,
    /// Machines that stay frozen when the others are not.
    held: Arc<Mutex<BTreeSet<ObjectKey>>>,
}

impl FreezeSwitch {
    /// A switch that also freezes while this clock cannot be trusted.
    pub fn doubting(clock: SharedClock) -> Self {
        Self { clock: Some(clock), ..Self::default() }
    }

    /// The reading of the clock, with how far it can be trusted.
    pub fn reading(&self) -> Option<Reading> {
        self.clock.as_ref().map(|clock| clock.reading())
    }

    /// Freezes or thaws all machines.
    pub fn set(&self, freeze: Freeze) {
        self.all.store(freeze == Freeze::Frozen, Ordering::Release);
    }

    /// Whether all machines are frozen.
    pub fn get(&self) -> Freeze {
        let doubted = self.reading().is_some_and(|reading| reading.trouble().is_some());
        if doubted || self.all.load(Ordering::Acquire) { Freeze::Frozen } else { Freeze::Flowing }
    }

    /// Stores which API server does not answer; returns whether this is a change.
    pub fn set_silence(&self, silence: Silence) -> bool {
        let mut stored = lock(&self.silence);
        std::mem::replace(&mut *stored, silence) != silence
    }

    /// The API server that does not answer.
    pub fn silence(&self) -> Silence {
        *lock(&self.silence)
    }

    /// Whether this machine is frozen.
    pub fn of(&self, machine: &ObjectKey) -> Freeze {
        if self.holds().contains(machine) { Freeze::Frozen } else { self.get() }
    }

    /// Keeps this machine frozen, whether the others are or not.
    pub fn hold(&self, machine: &ObjectKey) {
        self.holds().insert(machine.clone());
    }

    /// Ends [`Self::hold`]: the machine is frozen only when all are.
    pub fn release(&self, machine: &ObjectKey) {
        self.holds().remove(machine);
    }

    fn holds(&self) -> std::sync::MutexGuard<'_, BTreeSet<ObjectKey>> {
        lock(&self.held)
    }
}

/// The dependencies of the machine controller.
pub struct MachineDeps {
    /// The stores of the control cluster.
    pub views: ControlViews,
    /// Machines, read and written.
    pub machines: Objects<MachineSnapshot>,
    /// The target cluster, unless there is none.
    pub target: Option<TargetParts>,
    /// The drivers of this process.
    pub drivers: Registry,
    /// Wakes a machine for [`MachineController::reconcile`].
    pub wake: Wake,
    /// Runs driver calls and evictions beside the passes.
    pub tasks: SharedTasks,
    /// The clock.
    pub clock: SharedClock,
    /// Permits or refuses destructive effects.
    pub gate: Gate,
    /// Records events.
    pub recorder: Recorder,
    /// Randomness for tokens.
    pub rng: SharedRng,
    /// Whether machines are frozen.
    pub freeze: FreezeSwitch,
    /// Limits.
    pub settings: MachineSettings,
    /// The metrics.
    pub metrics: Metrics,
}

/// The dependencies of the machine controller in the target cluster.
pub struct TargetParts {
    /// Nodes, read and written; its store must be `node_store`.
    pub nodes: Objects<NodeSnapshot>,
    /// The store of Nodes.
    pub node_store: Arc<Store<NodeSnapshot>>,
    /// Secrets of `kube-system`, not cached.
    pub tokens: Objects<Arc<Secret>>,
    /// The views that drains need.
    pub drain_views: Arc<dyn DrainViews>,
    /// Evicts pods, at most as many at once as the settings allow.
    pub evictor: Evictor,
    /// Records events about Nodes.
    pub recorder: Recorder,
}

/// The target cluster as the controller uses it.
struct TargetDeps {
    nodes: Objects<NodeSnapshot>,
    node_store: Arc<Store<NodeSnapshot>>,
    tokens: Objects<Arc<Secret>>,
    drainer: Drainer,
    recorder: Recorder,
}

/// Creates VMs for machines, watches their health, and deletes them.
pub struct MachineController {
    views: ControlViews,
    machines: Objects<MachineSnapshot>,
    target: Option<TargetDeps>,
    drivers: Registry,
    wake: Wake,
    decision: Decision<Observation, Plan>,
    drain_memory: DrainMemory,
    clock: SharedClock,
    gate: Gate,
    recorder: Recorder,
    rng: SharedRng,
    freeze: FreezeSwitch,
    settings: MachineSettings,
    measures: Measures,
    calls: DriverCalls,
    memories: Mutex<BTreeMap<ObjectKey, Memory>>,
    /// Machines whose Node's removal was seen.
    vanished: Mutex<BTreeSet<ObjectKey>>,
    /// Classes and their Secrets as the last driver call used them, for as long as a machine names them (decisions.md 15).
    last_good: Mutex<BTreeMap<ObjectKey, GoodClass>>,
    /// The failure permit of each group of machines.
    permits: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// When the first pass began. An earlier process made every request that is older than this.
    began: OnceLock<Timestamp>,
    tracer: Tracer,
}

/// A class and its Secrets that a driver call used.
#[derive(Clone)]
struct GoodClass {
    class: Arc<MachineClass>,
    secrets: SecretData,
}

impl MachineController {
    /// A controller; it does nothing until a queue runs [`Self::reconcile`].
    pub fn new(deps: MachineDeps) -> Self {
        let settings = deps.settings;
        let target = deps.target.map(|parts| TargetDeps {
            drainer: Drainer::new(
                parts.drain_views,
                parts.evictor.measured_by(deps.metrics.clone()),
                Arc::clone(&deps.tasks),
                settings.deadlines.volumes,
            ),
            nodes: parts.nodes,
            node_store: parts.node_store,
            tokens: parts.tokens,
            recorder: parts.recorder,
        });
        Self {
            calls: DriverCalls::new(
                settings.concurrent_driver_calls,
                deps.tasks,
                Arc::clone(&deps.wake),
                deps.gate.clone(),
            ),
            views: deps.views,
            machines: deps.machines,
            target,
            drivers: deps.drivers,
            wake: deps.wake,
            decision: Arc::new(decide::decide),
            drain_memory: drain::remembered,
            clock: deps.clock,
            gate: deps.gate,
            recorder: deps.recorder,
            rng: deps.rng,
            freeze: deps.freeze,
            settings,
            measures: Measures::new(deps.metrics),
            memories: Mutex::default(),
            vanished: Mutex::default(),
            last_good: Mutex::default(),
            permits: Mutex::default(),
            began: OnceLock::new(),
            tracer: Tracer::off(),
        }
    }

    /// The same controller with another decision, for simulations that leave out one of its guards.
    #[must_use]
    pub fn deciding_by(mut self, decision: Decision<Observation, Plan>) -> Self {
        self.decision = decision;
        self
    }

    /// The same controller, which also records the lives of machines.
    #[must_use]
    pub fn traced_by(mut self, tracer: Tracer) -> Self {
        self.tracer = tracer;
        self
    }

    /// The same controller with another rule for keeping drains, for simulations that leave out this guard.
    #[must_use]
    pub fn remembering_drains_by(mut self, memory: DrainMemory) -> Self {
        self.drain_memory = memory;
        self
    }
}
