//! The deployment controller: carries out rollouts and keeps the number of machines.
//!
//! This folder: the set of the present template, rolling and recreating updates, scaling, pausing, the history of sets,
//! rollbacks, changes of Nodes during rollouts, the deployment's status. Elsewhere: machines (`set`, `machine`),
//! freezing (`safety`). Source: spec/deployment-and-set §7–§16.

mod act;
pub mod availability;
pub mod conditions;
pub mod cuts;
pub mod decide;
pub mod fenceposts;
pub mod fleet;
pub mod hash_label;
pub mod history;
pub mod in_place;
mod node_change;
pub mod node_side_effects;
pub mod observe;
pub mod patches;
pub mod plan;
pub mod recreate;
pub mod revision;
pub mod rollback;
pub mod rolling;
pub mod routing;
pub mod scaling;
pub mod settings;
pub mod settling;
pub mod sizing;
pub mod status;
pub mod template_equality;
pub mod template_hash;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod trigger;
pub mod validity;
pub mod waits;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use jiff::Timestamp;

pub use self::{
    availability::AvailabilityRule,
    settings::{AutoscalerAnnotations, DeploymentSettings, OldSets},
};
use self::{
    observe::DeploymentObservation,
    plan::{Counted, Effect, Next, Plan},
    status::{Report, decide_status},
};
use super::{
    Decision,
    checked::Checked,
    refused_writes::RefusedWrites,
    rollout_traces::{self, Rollout},
    views::ControlViews,
};
use crate::snapshots::{DeploymentSnapshot, MachineSnapshot, NodeSnapshot, SetSnapshot};
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
use mcm_traces::{PassSpan, Tracer};

/// Component name of the deployment controller's events.
pub const COMPONENT: &str = "machine-controller-manager";

/// The dependencies of the deployment controller.
#[derive(Clone)]
pub struct DeploymentDeps {
    /// Stores of the control cluster; machines, sets and deployments must have synced before the first pass.
    pub views: ControlViews,
    /// Writes deployments; its store must be `views.deployments`.
    pub deployments: Objects<DeploymentSnapshot>,
    /// Writes sets; its store must be `views.sets`.
    pub sets: Objects<SetSnapshot>,
    /// Writes machines (only the marks of the scaler); its store must be `views.machines`.
    pub machines: Objects<MachineSnapshot>,
    /// Writes Nodes of the target cluster, if there is one; its store must be `node_store`.
    pub nodes: Option<Objects<NodeSnapshot>>,
    /// Nodes of the target cluster, synced before the first pass.
    pub node_store: Option<Arc<Store<NodeSnapshot>>>,
    /// The clock.
    pub clock: SharedClock,
    /// Asked before each deletion.
    pub gate: Gate,
    /// Writes events; made with [`COMPONENT`].
    pub recorder: Recorder,
    /// Settings from the command line.
    pub settings: DeploymentSettings,
}

/// Brings deployments to their wanted state.
pub struct DeploymentController {
    deps: DeploymentDeps,
    decide: Decision<DeploymentObservation, Plan>,
    memory: Mutex<BTreeMap<ObjectKey, Memory>>,
    tracer: Tracer,
}

/// The memory of the controller about a deployment between passes. Losing it costs one status write, and a wait of a
/// few seconds if sets are being sized. A new leader has read all sets anyway.
#[derive(Clone, Debug, Default)]
struct Memory {
    uid: String,
    status_written: Option<Timestamp>,
    checked: Option<Checked<DeploymentSnapshot>>,
    settling: settling::SettlingMemory,
    /// The objects of writes without an answer: sets that may exist and use replicas, even if the template has changed
    /// since; sets that may have another size; machines that may have moved; Nodes that may have been selected.
    unanswered: BTreeSet<Counted>,
    refused: RefusedWrites,
}

impl DeploymentController {
    /// A controller with these dependencies.
    pub fn new(deps: DeploymentDeps) -> Self {
        Self { deps, decide: Arc::new(decide::decide), memory: Mutex::default(), tracer: Tracer::off() }
    }

    /// The same controller with another decision function. The simulation passes decisions that lack a guard, or that
    /// it checks.
    #[must_use]
    pub fn deciding_by(self, decide: Decision<DeploymentObservation, Plan>) -> Self {
        Self { decide, ..self }
    }

    /// The same controller, which also records its passes as parts of rollouts.
    #[must_use]
    pub fn traced_by(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// Runs one pass over a deployment.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        if let Err(text) = self.read_unanswered(&key).await {
            return Outcome::Retry(format!("machinedeployment {key}: {text}"));
        }
        let Some(seen) = self.observe(&key) else {
            self.memory().remove(&key);
            return Outcome::Settled;
        };
        let plan = (self.decide)(&seen);
        let mut span = PassSpan::of_rollout(&self.tracer, "reconcile MachineDeployment", || rollout_of(&seen, &plan));
        let done = self.act(&seen, &plan.steps, &mut span).await;
        if !done.unanswered.is_empty() {
            self.memory().entry(key.clone()).or_default().unanswered.extend(done.unanswered);
        }
        // The stores already contain the effects of the plan, so the status describes the sets as they are now.
        let deployment = seen.deployment.clone();
        let after = if plan.steps.is_empty() { Some(seen) } else { self.observe(&key) };
        let written = match after {
            Some(after) => self.write_status(&key, &after, &done.report, &mut span).await,
            None => Ok(Next::OnChange),
        };
        span.end(("MachineDeployment", &key.namespace, &key.name));
        // If a set can't be created, a condition reports this already.
        if done.report.create_error.is_none() {
            self.report_refusal(&key, &deployment, done.error.as_ref().or(written.as_ref().err()));
        }
        match (done.error, written) {
            (Some(error), _) => Outcome::after(&error, format!("machinedeployment {key}: {error}")),
            (None, Err(error)) => Outcome::after(&error, format!("status of machinedeployment {key}: {error}")),
            (None, Ok(next)) => plan.next.or_earlier(next).into(),
        }
    }

    fn report_refusal(&self, key: &ObjectKey, deployment: &DeploymentSnapshot, error: Option<&ApiError>) {
        let steady = self.deps.clock.reading().steady;
        let due = self.memory().get_mut(key).and_then(|memory| memory.refused.after_pass(error, steady));
        if let Some(text) = due {
            self.deps.recorder.note(deployment, EventNote::warning(set_reason::WRITE_REFUSED, text));
        }
    }

    /// Reads the objects of writes without an answer. Without that no decision is made.
    async fn read_unanswered(&self, key: &ObjectKey) -> Result<(), String> {
        let unanswered = self.memory().get(key).map(|memory| memory.unanswered.clone()).unwrap_or_default();
        for counted in unanswered {
            let read = match (&counted, &self.deps.nodes) {
                (Counted::Set(set), _) => self.deps.sets.get(set).await.map(drop),
                (Counted::Machine(machine), _) => self.deps.machines.get(machine).await.map(drop),
                (Counted::Node(node), Some(nodes)) => nodes.get(node).await.map(drop),
                (Counted::Node(_), None) => Ok(()),
            };
            read.map_err(|error| format!("what has become of {counted} after a lost answer is not known: {error}"))?;
            if let Some(memory) = self.memory().get_mut(key) {
                memory.unanswered.remove(&counted);
            }
        }
        Ok(())
    }

    async fn write_status(
        &self,
        key: &ObjectKey,
        seen: &DeploymentObservation,
        report: &Report,
        span: &mut PassSpan,
    ) -> Result<Next, ApiError> {
        let plan = decide_status(seen, report);
        let is_write = |effect: &Effect| matches!(effect, Effect::WriteStatus(_));
        let writes = plan.steps.iter().any(|step| is_write(&step.effect));
        let done = self.act(seen, &plan.steps, span).await;
        if let Some(error) = done.error {
            return Err(error);
        }
        if writes {
            self.memory().entry(key.clone()).or_default().status_written = Some(seen.now);
        }
        Ok(plan.next)
    }

    fn observe(&self, key: &ObjectKey) -> Option<DeploymentObservation> {
        let now = self.deps.clock.now();
        let mut seen = DeploymentObservation::look_up(&self.deps.views, self.deps.node_store.as_deref(), key, now)?;
        seen.settings = self.deps.settings;
        let mut memory = self.memory();
        let memory = memory.entry(key.clone()).or_default();
        if memory.uid != seen.deployment.uid() {
            *memory = Memory { uid: seen.deployment.uid().to_owned(), ..Memory::default() };
        }
        memory.checked = Some(Checked::of(&seen.deployment, memory.checked.as_ref()));
        seen.checked.clone_from(&memory.checked);
        seen.status_written = memory.status_written;
        seen.unsettled = memory.settling.take(&seen.sets, now);
        Some(seen)
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Memory>> {
        lock(&self.memory)
    }
}

/// The rollout that a pass with this plan belongs to.
fn rollout_of(seen: &DeploymentObservation, plan: &Plan) -> Rollout {
    let new = plan.steps.iter().find_map(|step| match &step.effect {
        Effect::CreateSet(set) => set.metadata.annotations.as_ref(),
        _ => None,
    });
    rollout_traces::of_deployment(&seen.deployment, seen.sets.iter().map(|seen| &seen.set), new)
}
