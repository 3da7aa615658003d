//! The set controller: keeps the number of machines that a `MachineSet` wants.
//!
//! This folder: claiming machines, creating and deleting them, syncing hot parts of the template, the set's status.
//! Elsewhere: rollouts (`deployment`), VMs (`machine`), freezing (`overshooting`), the end of a preservation
//! (`machine`). Source: spec/deployment-and-set §5, §6, §14.1.

mod act;
pub mod auto_preservation;
pub mod back_off;
pub mod counts;
pub mod decide;
pub mod deletion_reason;
pub mod new_machine;
pub mod observe;
pub mod ownership;
pub mod pacing;
pub mod patches;
pub mod plan;
pub mod preservation;
pub mod ranking;
pub mod replicas;
pub mod routing;
pub mod status;
pub mod template_sync;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod unanswered;
pub mod validity;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use jiff::Timestamp;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use self::{
    back_off::{BackOff, Hold},
    observe::{ReplicaFailure, SetObservation},
    plan::{Effect, Plan},
    unanswered::Unanswered,
};
use super::{
    Decision, checked::Checked, deletions::Deletions, refused_writes::RefusedWrites, rollout_traces,
    views::ControlViews,
};
use crate::snapshots::{MachineSnapshot, NodeSnapshot, SetSnapshot};
use controller_runtime::{
    clock::SharedClock,
    error::ApiError,
    events::{EventNote, Recorder},
    gate::Gate,
    key::ObjectKey,
    lock,
    objects::Objects,
    queue::Outcome,
    snapshot::Snapshot,
    store::Store,
};
use machine_api::names::set_reason;
use mcm_metrics::{Counters, Gauges, OfSet};
use mcm_traces::{PassSpan, Tracer};

/// Component name of the set controller's events.
pub const COMPONENT: &str = "machineset-controller";

/// The dependencies of the set controller.
#[derive(Clone)]
pub struct SetDeps {
    /// Stores of the control cluster; machines and sets must have synced before the first pass.
    pub views: ControlViews,
    /// Writes machines; its store must be `views.machines`.
    pub machines: Objects<MachineSnapshot>,
    /// Writes sets; its store must be `views.sets`.
    pub sets: Objects<SetSnapshot>,
    /// Nodes of the target cluster, if there is one.
    pub nodes: Option<Arc<Store<NodeSnapshot>>>,
    /// The clock.
    pub clock: SharedClock,
    /// Asked before each deletion.
    pub gate: Gate,
    /// Writes events; made with [`COMPONENT`].
    pub recorder: Recorder,
    /// The seed of machine names.
    pub name_seed: u64,
}

/// The memory of the controller about a set between passes. Losing it costs a status write or a name, but never a
/// machine.
#[derive(Clone, Debug, Default)]
struct Memory {
    uid: String,
    status_written: Option<Timestamp>,
    unanswered: Unanswered,
    failure: Option<ReplicaFailure>,
    back_off: BackOff,
    checked: Option<Checked<SetSnapshot>>,
    refused: RefusedWrites,
}

/// The decision functions of the set controller. The simulation passes decisions that lack a guard, or that it checks.
#[derive(Clone)]
pub struct SetDecisions {
    /// Decides what to do for a set.
    pub set: Decision<SetObservation, Plan>,
    /// Decides the set's status.
    pub status: Decision<SetObservation, Plan>,
}

impl Default for SetDecisions {
    fn default() -> Self {
        Self { set: Arc::new(decide::decide), status: Arc::new(status::decide_status) }
    }
}

/// Brings sets to their wanted state.
pub struct SetController {
    deps: SetDeps,
    decisions: SetDecisions,
    stale_machines: Option<Counters<()>>,
    back_offs: Option<Gauges<OfSet<'static>>>,
    deletions: Option<Deletions>,
    random: Mutex<ChaCha8Rng>,
    memory: Mutex<BTreeMap<ObjectKey, Memory>>,
    tracer: Tracer,
}

impl SetController {
    /// A controller with these dependencies.
    pub fn new(deps: SetDeps) -> Self {
        let random = Mutex::new(ChaCha8Rng::seed_from_u64(deps.name_seed));
        let decisions = SetDecisions::default();
        Self {
            deps,
            decisions,
            stale_machines: None,
            back_offs: None,
            deletions: None,
            random,
            memory: Mutex::default(),
            tracer: Tracer::off(),
        }
    }

    /// The same controller with other decision functions.
    #[must_use]
    pub fn deciding_by(self, decisions: SetDecisions) -> Self {
        Self { decisions, ..self }
    }

    /// The same controller, which also counts each deleted Failed machine whose last operation was a health check.
    #[must_use]
    pub fn counting_stale_machines(self, counter: Counters<()>) -> Self {
        Self { stale_machines: Some(counter), ..self }
    }

    /// The same controller, which also shows in `gauges` how long sets delay the replacement of machines that never
    /// joined.
    #[must_use]
    pub fn showing_back_offs(self, gauges: Gauges<OfSet<'static>>) -> Self {
        Self { back_offs: Some(gauges), ..self }
    }

    /// The same controller, which also records its passes as parts of rollouts.
    #[must_use]
    pub fn traced_by(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// The same controller, which also announces the machines that it deletes.
    #[must_use]
    pub fn announcing_deletions(self, deletions: Deletions) -> Self {
        Self { deletions: Some(deletions), ..self }
    }

    /// Runs one pass over a set.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        if let Err(error) = self.read_unanswered(&key).await {
            return Outcome::Retry(format!(
                "machineset {key}: a machine can't be read again after a lost answer: {error}"
            ));
        }
        let Some(seen) = self.observe(&key) else {
            self.memory().remove(&key);
            self.show_back_off(&key, None);
            return Outcome::Settled;
        };
        let plan = (self.decisions.set)(&seen);
        let mut span = PassSpan::of_rollout(&self.tracer, "reconcile MachineSet", || {
            rollout_traces::of_set(&seen.set, &self.deps.views)
        });
        let done = self.act(&seen, &plan.steps, &mut span).await;
        self.remember(&key, |memory| {
            if done.error.is_none() {
                memory.unanswered.carried_out(&plan.steps);
            }
            memory.unanswered.extend(done.unanswered);
            memory.failure.clone_from(&done.failure);
        });
        // The stores already contain the effects of the plan, so the status describes the machines as they are now.
        let after = if plan.steps.is_empty() {
            SetObservation { failure: None, ..seen }
        } else {
            let Some(after) = self.observe(&key) else {
                span.end(("MachineSet", &key.namespace, &key.name));
                return Outcome::Settled;
            };
            after
        };
        let written = self.write_status(&key, &after, &mut span).await;
        span.end(("MachineSet", &key.namespace, &key.name));
        // If machines can't be created or deleted, a condition says so already.
        if after.failure.is_none() {
            self.report_refusal(&key, &after.set, done.error.as_ref().or(written.as_ref().err()));
        }
        match (done.error, written) {
            (Some(error), _) => Outcome::after(&error, format!("machineset {key}: {error}")),
            (None, Err(error)) => Outcome::after(&error, format!("status of machineset {key}: {error}")),
            (None, Ok(status)) => plan.next.or_earlier(status.next).into(),
        }
    }

    fn report_refusal(&self, key: &ObjectKey, set: &SetSnapshot, error: Option<&ApiError>) {
        let (mut due, steady) = (None, self.deps.clock.reading().steady);
        self.remember(key, |memory| due = memory.refused.after_pass(error, steady));
        if let Some(text) = due {
            self.deps.recorder.note(set, EventNote::warning(set_reason::WRITE_REFUSED, text));
        }
    }

    async fn write_status(
        &self,
        key: &ObjectKey,
        seen: &SetObservation,
        span: &mut PassSpan,
    ) -> Result<Plan, ApiError> {
        let plan = (self.decisions.status)(seen);
        let writes = plan.steps.iter().any(|step| matches!(step.effect, Effect::WriteStatus(_)));
        let done = self.act(seen, &plan.steps, span).await;
        if let Some(error) = done.error {
            return Err(error);
        }
        if writes {
            self.remember(key, |memory| memory.status_written = Some(seen.now));
        }
        Ok(plan)
    }

    fn observe(&self, key: &ObjectKey) -> Option<SetObservation> {
        let now = self.deps.clock.now();
        let mut seen = SetObservation::look_up(&self.deps.views, self.deps.nodes.as_deref(), key, now)?;
        seen.name_seed = lock(&self.random).next_u64();
        self.remember(key, |memory| {
            if memory.uid != seen.set.uid() {
                *memory = Memory { uid: seen.set.uid().to_owned(), ..Memory::default() };
            }
            for machine in &seen.machines {
                memory.unanswered.is_shown(machine.name());
            }
            memory.checked = Some(Checked::of(&seen.set, memory.checked.as_ref()));
            seen.checked.clone_from(&memory.checked);
            seen.unanswered = memory.unanswered.names();
            seen.status_written = memory.status_written;
            seen.failure.clone_from(&memory.failure);
            seen.hold = memory.back_off.look(&seen, || back_off::given(&self.deps.views, &seen.set));
        });
        self.show_back_off(key, seen.hold.as_ref());
        Some(seen)
    }

    /// The series exists only during the wait.
    fn show_back_off(&self, key: &ObjectKey, hold: Option<&Hold>) {
        let Some(gauges) = &self.back_offs else { return };
        let labels = OfSet { name: &key.name, namespace: &key.namespace };
        match hold {
            Some(hold) => gauges.set(&labels, hold.length().as_secs_f64()),
            None => gauges.remove(&labels),
        }
    }

    /// Reads the machines of calls without an answer. Without that no decision is made.
    async fn read_unanswered(&self, key: &ObjectKey) -> Result<(), ApiError> {
        let unread = self.memory().get(key).map(|memory| memory.unanswered.to_read()).unwrap_or_default();
        for machine in unread {
            self.deps.machines.get(&ObjectKey::new(key.namespace.clone(), machine.clone())).await?;
            self.remember(key, |memory| memory.unanswered.was_read(&machine));
        }
        Ok(())
    }

    fn remember(&self, key: &ObjectKey, change: impl FnOnce(&mut Memory)) {
        change(self.memory().entry(key.clone()).or_default());
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Memory>> {
        lock(&self.memory)
    }
}
