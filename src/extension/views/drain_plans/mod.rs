//! `drainplans`: what a drain of a node would do now.
//!
//! The machine controller decides mode, limits and deadline. The planner of the drain module decides the order of the pods, in a
//! simulation on virtual time ([`machine_simulation::drain`]); [`plan`] makes the answer of it. No pod is changed, and no driver is
//! asked. Source: spec/extension-apiserver §1.4.

mod plan;
mod shape;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::{Value, json};

use self::shape::{DrainPlan, Spec};
pub use self::{
    plan::{Drain, PLAN_WITHIN},
    shape::Status,
};
use super::{
    Sources,
    common::{self, checked_duration, metadata, not_ready, right, right_to_read, scrubbed},
    describe::{Names, column, name_column, text_or_null},
};
use crate::extension::{
    blocking::Limiter,
    rows::Renderer,
    view::{Answer, Description, Freshness, GROUP, Question, SourceRight, View},
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use kube_protocol::{
    request::Verb,
    status::{ApiStatus, Cause},
};
use kube_values::duration::GoDuration;
use machine_api::{
    kind::Kind,
    names::label,
    v1alpha1::{Machine, MachinePhase},
};
use machine_controllers::{
    machine::{
        deletion::drain::{DrainMode, drain_mode},
        observation::{NodeView, Observation},
        outlook::OutlookTarget,
    },
    snapshots::MachineSnapshot,
    times::rfc3339,
    views::BY_NODE,
};
use machine_simulation::drain;

const NAMES: Names = Names { kind: "DrainPlan", plural: "drainplans", short: "drp", verbs: &[Verb::Get, Verb::Create] };
/// How long the first request waits for the caches of pods and volumes.
const MAX_WARMUP: Duration = Duration::from_secs(10);
/// Time between two looks at these caches.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The reason for a skipped drain before the machine has joined.
const NO_NODE_YET: &str = "the machine has no Node yet";

/// The view `drainplans`.
pub struct DrainPlanView {
    sources: Sources,
    target: OutlookTarget,
    renderer: Arc<Renderer<DrainPlan>>,
    limiter: Limiter,
}

/// The node of the drain, and how it is drained.
struct Subject {
    machine: Option<MachineSnapshot>,
    seen: Observation,
    node: Result<String, String>,
    mode: DrainMode,
}

impl DrainPlanView {
    /// The view from these sources; `None` without a target cluster.
    pub fn new(sources: &Sources) -> Option<Self> {
        let columns = vec![
            name_column(),
            column("Node", "string", "The node.", |plan: &DrainPlan| text_or_null(&plan.status.node_name)),
            column("Mode", "string", "Whether pods are evicted or deleted.", |plan| plan.status.mode.into()),
            column("Pods", "integer", "Pods that go.", |plan| plan.status.totals.pods.into()),
            column("With volumes", "integer", "Pods whose volumes have to move.", |plan| {
                plan.status.totals.with_volumes.into()
            }),
            column("Blocked", "integer", "Pods that no budget lets go.", |plan| plan.status.totals.blocked.into()),
            column("Estimate", "string", "How long it takes.", |plan| {
                plan.status.estimated_duration.to_string().into()
            }),
        ];
        Some(Self {
            sources: sources.clone(),
            target: sources.outlooks.target()?.clone(),
            renderer: NAMES.describe(columns, &[]),
            limiter: Limiter::new(sources.plans_at_a_time),
        })
    }

    /// Waits for the caches of pods and volumes, which are filled from the first request on.
    async fn ready(&self) -> Result<(), ApiStatus> {
        if let Some(missing) = self.sources.outlooks.missing() {
            return Err(not_ready(missing));
        }
        let filled = async {
            while !self.target.drains.ready() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(MAX_WARMUP, filled).await.map_err(|_| not_ready("pods and volumes"))
    }

    fn machine(&self, namespace: &str, name: &str) -> Option<MachineSnapshot> {
        self.sources.views.machines.get(&ObjectKey::new(namespace, name))
    }

    /// The machine of a node; `None` if several machines claim the node.
    fn machine_of(&self, namespace: &str, node: &str) -> Option<MachineSnapshot> {
        let all = self.sources.views.machines.by_index(BY_NODE, node);
        let mut own = all.into_iter().filter(|machine| machine.namespace() == namespace);
        own.next().filter(|_| own.next().is_none())
    }

    /// The subject of a request, with the limits of the machine and of the request.
    fn subject(&self, machine: Option<MachineSnapshot>, spec: &Spec, now: Timestamp) -> Subject {
        let outlooks = &self.sources.outlooks;
        let own = machine.clone().unwrap_or_else(|| Machine::default().into());
        let mut seen = match &machine {
            Some(machine) => outlooks.seen(machine, now),
            None => Observation::of(own.clone(), outlooks.settings().limits_of(&own), now),
        };
        let mut configuration = own.configuration().clone();
        configuration.drain_timeout = spec.drain_timeout.or(configuration.drain_timeout);
        configuration.max_evict_retries = spec.max_evict_retries.or(configuration.max_evict_retries);
        seen.limits = outlooks.settings().limits_of(&own.with_configuration(configuration));
        seen.limits.detach = spec.pv_detach_timeout.map_or(seen.limits.detach, GoDuration::to_std);
        seen.limits.reattach = spec.pv_reattach_timeout.map_or(seen.limits.reattach, GoDuration::to_std);
        let own_mode = drain_mode(&seen);
        // The plan begins now, without a memory of earlier steps, so its times are times of the clock.
        seen.steady = seen.now;
        let mode = match spec.force {
            Some(true) => DrainMode::Forced,
            Some(false) => DrainMode::Normal,
            None => own_mode,
        };
        let node = match (&machine, &seen.node) {
            (None, _) => self
                .target
                .nodes
                .get(&ObjectKey::cluster_scoped(spec.node_name.clone()))
                .map(|node| node.name().to_owned())
                .ok_or_else(|| format!("there is no Node {}", spec.node_name)),
            (Some(_), NodeView::Ours(node)) => Ok(node.name().to_owned()),
            (Some(_), NodeView::NoTarget) => Err("there is no target cluster".to_owned()),
            (Some(_), NodeView::NotLinked { .. }) => Err(NO_NODE_YET.to_owned()),
            // A machine has the name of its Node before the Node exists.
            (Some(machine), NodeView::Absent) if has_not_joined(machine) => Err(NO_NODE_YET.to_owned()),
            (Some(_), NodeView::Absent | NodeView::Vanished) => Err("the machine's Node is gone".to_owned()),
            (Some(_), NodeView::Foreign { name, why }) => {
                Err(format!("Node {name} belongs to something else and is left alone: {why}"))
            }
            (Some(_), NodeView::Contested { name, why }) => {
                Err(format!("whose Node {name} is can't be told, so that it is left alone: {why}"))
            }
        };
        Subject { machine, seen, node, mode }
    }

    async fn plan(&self, namespace: &str, name: &str, spec: Spec, subject: Subject) -> Result<Answer, ApiStatus> {
        let now = subject.seen.now;
        let machine_name = subject.machine.as_ref().map(|machine| machine.name().to_owned()).unwrap_or_default();
        let status = match &subject.node {
            Err(why) => Status { mode: "Skipped", skipped_because: Some(scrubbed(why)), ..Status::default() },
            Ok(node) => self.drained(node, &subject).await?,
        };
        let node_name = subject.node.clone().unwrap_or_else(|_| node_label(subject.machine.as_ref()));
        let metadata = metadata(NAMES.kind, &ObjectKey::new(namespace, name), "", now);
        let status = Status { observed_at: rfc3339(now), machine_name, node_name, ..status };
        let skipped = status.skipped_because.iter().map(|why| format!("nothing would be drained: {why}"));
        let cut = status.truncated_because.iter().map(|why| format!("the plan is not whole: {why}"));
        let warnings = skipped.chain(cut).map(|text| common::warning(&text)).collect();
        let body = DrainPlan { spec, status };
        Ok(Answer { object: self.renderer.row((metadata, body)), warnings })
    }

    async fn drained(&self, node: &str, subject: &Subject) -> Result<Status, ApiStatus> {
        let object = self.target.nodes.get(&ObjectKey::cluster_scoped(node));
        let parallel = self.sources.outlooks.settings().evictions_per_node;
        let drain = Drain::of(&*self.target.drains, node, object.as_ref(), &subject.seen, subject.mode, parallel);
        let question = drain.question().clone();
        let forecast = self.limiter.run(move |go_on| drain::forecast(&question, go_on)).await?;
        Ok(drain.status(forecast.as_ref()))
    }
}

/// Whether the machine's Node has not joined the cluster yet.
fn has_not_joined(machine: &MachineSnapshot) -> bool {
    matches!(machine.phase(), MachinePhase::Unset | MachinePhase::Pending | MachinePhase::CrashLoopBackOff)
}

fn node_label(machine: Option<&MachineSnapshot>) -> String {
    machine.and_then(|machine| machine.labels().get(label::NODE).cloned()).unwrap_or_default()
}

/// Reads name and specification of a review. The name may be empty.
fn read(review: &Value) -> Result<(String, Spec), ApiStatus> {
    let (name, spec): (String, Spec) = common::review(&NAMES, review)?;
    let mut causes = Vec::new();
    if spec.machine_name.is_empty() == spec.node_name.is_empty() {
        causes.push(Cause::required("spec.machineName", "name either a machine or a node"));
    }
    for (field, given) in [
        ("spec.drainTimeout", spec.drain_timeout),
        ("spec.pvDetachTimeout", spec.pv_detach_timeout),
        ("spec.pvReattachTimeout", spec.pv_reattach_timeout),
    ] {
        causes.extend(checked_duration(field, given).err());
    }
    if let Some(retries) = spec.max_evict_retries.filter(|retries| *retries < 0) {
        causes.push(Cause::invalid("spec.maxEvictRetries", &json!(retries), "must be at least 0"));
    }
    if causes.is_empty() { Ok((name, spec)) } else { Err(ApiStatus::invalid(GROUP, NAMES.kind, &name, causes)) }
}

#[async_trait]
impl View for DrainPlanView {
    fn description(&self) -> &Description {
        &self.renderer.description
    }

    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight> {
        let machines = Kind::Machine.plural();
        match question {
            Question::Get { .. } | Question::List { .. } => right_to_read(machines, question),
            Question::Create { namespace, review } => {
                let text = |field: &str| review.pointer(field).and_then(Value::as_str).filter(|name| !name.is_empty());
                let of_node = || {
                    let node = text("/spec/nodeName")?;
                    self.machine_of(namespace, node).map(|machine| machine.name().to_owned())
                };
                // A node without a machine needs the right to list all machines.
                match text("/spec/machineName").map(str::to_owned).or_else(of_node) {
                    Some(name) => vec![right(Verb::Get, machines, Some(namespace), Some(&name))],
                    None => vec![right(Verb::List, machines, Some(namespace), None)],
                }
            }
        }
    }

    async fn get(&self, namespace: &str, name: &str, _freshness: Freshness) -> Result<Answer, ApiStatus> {
        self.ready().await?;
        let machine = self.machine(namespace, name).ok_or_else(|| NAMES.not_found(name))?;
        let spec = Spec { machine_name: name.to_owned(), ..Spec::default() };
        let subject = self.subject(Some(machine), &spec, self.sources.clock.now());
        self.plan(namespace, name, spec, subject).await
    }

    async fn create(&self, namespace: &str, review: Value) -> Result<Answer, ApiStatus> {
        let (name, spec) = read(&review)?;
        self.ready().await?;
        let machine = if spec.machine_name.is_empty() {
            self.machine_of(namespace, &spec.node_name)
        } else {
            let machine = self.machine(namespace, &spec.machine_name);
            if machine.is_none() {
                let why = "there is no Machine of this name in the namespace";
                let cause = Cause::invalid("spec.machineName", &json!(spec.machine_name), why);
                return Err(ApiStatus::invalid(GROUP, NAMES.kind, &name, vec![cause]));
            }
            machine
        };
        let subject = self.subject(machine, &spec, self.sources.clock.now());
        let asked = if spec.machine_name.is_empty() { &spec.node_name } else { &spec.machine_name };
        let name = if name.is_empty() { asked.clone() } else { name };
        self.plan(namespace, &name, spec, subject).await
    }
}
