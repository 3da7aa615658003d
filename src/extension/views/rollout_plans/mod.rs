//! `rolloutplans`: the effects of a change of a deployment.
//!
//! The rules of admission check the proposal. The decisions of the controllers of deployments and sets are simulated
//! ([`machine_simulation::forecast`]). Nothing is stored. Source: spec/extension-apiserver §1.5.

mod proposal;
mod shape;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;

use self::{
    proposal::{Asked, Proposal},
    shape::{NewSet, Replaced, RolloutPlan, Spec, Status, StepView, StuckView, Updated},
};
use super::{
    Sources,
    common::{count, metadata, not_ready, right, right_to_read, seconds, warning},
    describe::{Names, column, name_column, wide},
};
use crate::extension::{
    blocking::Limiter,
    rows::Renderer,
    view::{Answer, Description, Freshness, Question, SourceRight, View},
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use kube_protocol::{request::Verb, status::ApiStatus};
use machine_api::{kind::Kind, names::label, v1alpha1::StrategyType};
use machine_controllers::{
    deployment::{fenceposts::Fenceposts, in_place, template_equality::is_equal, template_hash::new_set_identity},
    set::{
        counts::{is_failed, is_terminating},
        ranking::is_marked,
    },
    snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot},
    times::rfc3339,
    views::{BY_CONTROLLER, ORPHANS},
};
use machine_simulation::forecast::{self, Cut, Forecast, Stuck};

const NAMES: Names =
    Names { kind: "RolloutPlan", plural: "rolloutplans", short: "rop", verbs: &[Verb::Get, Verb::Create] };
/// Maximum number of steps that a review may ask for.
const MAX_STEPS: i32 = 1000;
/// Maximum number of steps of a review without a number.
const DEFAULT_STEPS: i32 = 200;

/// The view `rolloutplans`.
pub struct RolloutPlanView {
    sources: Sources,
    renderer: Arc<Renderer<RolloutPlan>>,
    limiter: Limiter,
}

impl RolloutPlanView {
    /// The view from these sources.
    pub fn new(sources: &Sources) -> Self {
        let columns = vec![
            name_column(),
            column("Strategy", "string", "How machines are replaced.", |plan: &RolloutPlan| {
                plan.status.strategy.as_str().into()
            }),
            column("Replace", "integer", "Machines that go.", |plan| plan.status.to_replace.len().into()),
            wide(column("Update", "integer", "Machines that are updated in place.", |plan| {
                plan.status.to_update.len().into()
            })),
            column("Keep", "integer", "Machines that stay.", |plan| plan.status.to_keep.into()),
            column("Create", "integer", "Machines that are made.", |plan| plan.status.to_create.into()),
            column("Peak", "integer", "Most machines at once.", |plan| plan.status.peak_machines.into()),
            column("Min available", "integer", "Least available machines.", |plan| plan.status.min_available.into()),
            column("Estimate", "string", "How long it takes.", |plan| {
                plan.status.estimated_duration.to_string().into()
            }),
            column("Stuck", "string", "Why it does not come to an end, or why the plan of it does not.", stuck_cell),
        ];
        Self {
            sources: sources.clone(),
            renderer: NAMES.describe(columns, &[]),
            limiter: Limiter::new(sources.plans_at_a_time),
        }
    }

    fn deployment(&self, namespace: &str, name: &str) -> Result<Option<DeploymentSnapshot>, ApiStatus> {
        if let Some(missing) = self.sources.outlooks.missing() {
            return Err(not_ready(missing));
        }
        Ok(self.sources.views.deployments.get(&ObjectKey::new(namespace, name)))
    }

    async fn plan(&self, name: String, asked: Asked, stored: DeploymentSnapshot) -> Result<Answer, ApiStatus> {
        let now = self.sources.clock.now();
        let namespace = stored.namespace();
        let proposal = Proposal::of(&self.sources, &stored, &asked);
        let status = match proposal.deployment {
            Some(deployment) if proposal.admission.allowed => {
                let question = self.question(deployment.into(), &asked, now);
                let forecast = if let Some(stuck) = self.obstacle(&question.deployment) {
                    forecast_without_steps(&question, stuck)
                } else {
                    let simulated = question.clone();
                    self.limiter.run(move |go_on| forecast::forecast(&simulated, go_on)).await?
                };
                Status { admission: proposal.admission, ..status_of(&question, &stored, &forecast) }
            }
            _ => Status { admission: proposal.admission, ..Status::default() },
        };
        let metadata = metadata(NAMES.kind, &ObjectKey::new(namespace, name), "", now);
        let status = Status { observed_at: rfc3339(now), ..status };
        let warnings = warnings(&status);
        let body = RolloutPlan { spec: asked.echo(), status };
        Ok(Answer { object: self.renderer.row((metadata, body)), warnings })
    }

    /// The reason why the rollout can't begin, if there is one.
    fn obstacle(&self, deployment: &DeploymentSnapshot) -> Option<Stuck> {
        if deployment.is_deleting() {
            let message = "the deployment is being deleted, and its machines with it".to_owned();
            return Some(Stuck { reason: "BeingDeleted", message });
        }
        let in_place = deployment.strategy().strategy_type == StrategyType::InPlaceUpdate;
        // Without a target cluster there are no Nodes to update.
        (in_place && self.sources.outlooks.nodes().is_none())
            .then(|| Stuck { reason: "NoTarget", message: in_place::NO_TARGET.to_owned() })
    }

    /// The input of the simulation: the proposed deployment, and all objects that its rollout may change.
    fn question(&self, deployment: DeploymentSnapshot, asked: &Asked, now: Timestamp) -> forecast::Question {
        let views = &self.sources.views;
        let namespace = deployment.namespace();
        let mut sets = views.sets.by_index(BY_CONTROLLER, deployment.uid());
        sets.extend(views.sets.by_index(ORPHANS, namespace));
        let mut machines: Vec<MachineSnapshot> =
            sets.iter().flat_map(|set| views.machines.by_index(BY_CONTROLLER, set.uid())).collect();
        machines.extend(views.machines.by_index(ORPHANS, namespace));
        let node_of = |machine: &MachineSnapshot| {
            let name = machine.labels().get(label::NODE)?;
            self.sources.outlooks.nodes()?.get(&ObjectKey::cluster_scoped(name.clone()))
        };
        forecast::Question {
            nodes: machines.iter().filter_map(node_of).collect(),
            deployment,
            sets,
            machines,
            now,
            settings: self.sources.rollouts,
            machine_settings: self.sources.outlooks.settings().clone(),
            assume: asked.assume,
            most_steps: asked.most_steps,
        }
    }
}

/// The forecast for a rollout that can't begin.
fn forecast_without_steps(question: &forecast::Question, stuck: Stuck) -> Forecast {
    let staying = question.machines.iter().filter(|machine| !is_terminating(machine)).count();
    Forecast {
        steps: Vec::new(),
        peak: staying,
        least_available: 0,
        took: Duration::ZERO,
        stuck: Some(stuck),
        cut: None,
    }
}

/// Why the rollout does not end, or why the plan ends before the rollout, so that its figures are incomplete.
fn stuck_cell(plan: &RolloutPlan) -> Value {
    let status = &plan.status;
    match &status.stuck {
        Some(stuck) => stuck.reason.as_str().into(),
        None if !status.admission.allowed => "Denied".into(),
        None if status.truncated => "Truncated".into(),
        None => Value::Null,
    }
}

/// The reason why a plan ends before the rollout.
fn why_cut(cut: Cut, question: &forecast::Question, forecast: &Forecast) -> String {
    let until = forecast.steps.len();
    match cut {
        Cut::Steps => {
            format!("the rollout has more steps than {} (spec.maxSteps, at most {MAX_STEPS})", question.most_steps)
        }
        Cut::Time => format!(
            "the rollout is too large to be played through within {}; it is told until {} from now, in steps: {until}",
            seconds(Limiter::BUDGET),
            seconds(forecast.took)
        ),
    }
}

/// Warnings for a caller that does not read the whole plan.
fn warnings(status: &Status) -> Vec<String> {
    let denied =
        status.admission.errors.iter().map(|error| format!("would be denied: {}: {}", error.field, error.message));
    let cut = status.truncated_because.iter().map(|why| format!("the plan ends early: {why}"));
    denied.chain(status.admission.warnings.iter().cloned()).chain(cut).map(|text| warning(&text)).collect()
}

/// The status of the plan, without the result of admission.
fn status_of(question: &forecast::Question, stored: &DeploymentSnapshot, forecast: &Forecast) -> Status {
    let deployment = &question.deployment;
    let template = deployment.template();
    let (name, hash) = new_set_identity(deployment);
    let own = |set: &&SetSnapshot| set.controller().is_some_and(|owner| owner.uid == deployment.uid());
    let mut equal: Vec<&SetSnapshot> =
        question.sets.iter().filter(own).filter(|set| is_equal(set.template(), template)).collect();
    equal.sort_by_key(|set| set.created());
    let existing = equal.first();
    let limits = Fenceposts::of(deployment);
    let to_replace = to_replace(question, forecast, existing.map(|set| set.name().to_owned()).as_deref());
    let staying = question.machines.iter().filter(|machine| is_owned(machine, question) && !is_terminating(machine));
    Status {
        changes_template: !is_equal(stored.template(), template),
        new_hash: existing.and_then(|set| set.labels().get(label::MACHINE_TEMPLATE_HASH).cloned()).unwrap_or(hash),
        new_machine_set: NewSet {
            name: existing.map_or(name, |set| set.name().to_owned()),
            exists: existing.is_some(),
        },
        strategy: deployment.strategy().strategy_type.as_str().to_owned(),
        max_surge: limits.surge,
        max_unavailable: limits.max_unavailable(deployment.replicas()),
        to_keep: count(staying.count().saturating_sub(to_replace.len())),
        to_create: count(forecast.steps.iter().map(|step| step.creates).sum()),
        to_update: to_update(question, forecast),
        to_replace,
        steps: forecast.steps.iter().enumerate().map(|(place, step)| step_view(place, step)).collect(),
        peak_machines: count(forecast.peak),
        min_available: count(forecast.least_available),
        estimated_duration: seconds(forecast.took),
        stuck: forecast
            .stuck
            .as_ref()
            .map(|stuck| StuckView { reason: stuck.reason.to_owned(), message: stuck.message.clone() }),
        truncated: forecast.cut.is_some(),
        truncated_because: forecast.cut.map(|cut| why_cut(cut, question, forecast)),
        ..Status::default()
    }
}

fn step_view(place: usize, step: &forecast::Step) -> StepView {
    StepView {
        index: count(place + 1),
        machine_set: step.set.clone(),
        from: step.from,
        to: step.to,
        creates: count(step.creates),
        deletes: step.deletes.clone(),
        updates: step.updates.clone(),
        total: count(step.total),
        available: count(step.available),
        at: seconds(step.at),
    }
}

fn is_owned(machine: &MachineSnapshot, question: &forecast::Question) -> bool {
    let owner = machine.controller().map(|owner| owner.uid.as_str());
    question.sets.iter().any(|set| Some(set.uid()) == owner)
}

/// The present machines that the rollout deletes, in order.
fn to_replace(question: &forecast::Question, forecast: &Forecast, new_set: Option<&str>) -> Vec<Replaced> {
    let machines: BTreeMap<String, &MachineSnapshot> =
        question.machines.iter().map(|machine| (machine.name().to_owned(), machine)).collect();
    let sets: BTreeMap<String, &SetSnapshot> = question.sets.iter().map(|set| (set.name().to_owned(), set)).collect();
    let mut all = Vec::new();
    for step in &forecast.steps {
        for machine in step.deletes.iter().filter_map(|name| machines.get(name)) {
            let is_marked = sets.get(&step.set).is_some_and(|set| is_marked(machine, set));
            let reason = if is_marked {
                "MarkedByScaler"
            } else if is_failed(machine) {
                "Failed"
            } else if new_set == Some(step.set.as_str()) {
                "Scale"
            } else {
                "OldTemplate"
            };
            all.push(Replaced {
                name: machine.name().to_owned(),
                machine_set: step.set.clone(),
                node: node_label(machine),
                phase: machine.phase().as_str().to_owned(),
                order: count(all.len() + 1),
                reason: reason.to_owned(),
                preserved: machine.preserve_expiry_time().is_some(),
            });
        }
    }
    all
}

/// The machines that are updated in place, in the order in which their Nodes are selected.
fn to_update(question: &forecast::Question, forecast: &Forecast) -> Vec<Updated> {
    let steps = forecast.steps.iter();
    let picked = steps.flat_map(|step| step.updates.iter().map(move |name| (step, name)));
    let machine_of = |name: &String| question.machines.iter().find(|machine| machine.name() == name);
    let found = picked.filter_map(|(step, name)| Some((step, machine_of(name)?)));
    found
        .enumerate()
        .map(|(place, (step, machine))| Updated {
            name: machine.name().to_owned(),
            machine_set: step.set.clone(),
            node: node_label(machine),
            phase: machine.phase().as_str().to_owned(),
            order: count(place + 1),
        })
        .collect()
}

fn node_label(machine: &MachineSnapshot) -> Option<String> {
    machine.labels().get(label::NODE).filter(|name| !name.is_empty()).cloned()
}

#[async_trait]
impl View for RolloutPlanView {
    fn description(&self) -> &Description {
        &self.renderer.description
    }

    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight> {
        let deployments = Kind::MachineDeployment.plural();
        match question {
            Question::Get { .. } | Question::List { .. } => right_to_read(deployments, question),
            Question::Create { namespace, review } => {
                let name = review.pointer("/spec/machineDeploymentName").and_then(Value::as_str);
                // A review without a name is refused later. Until then it needs the right to list.
                let verb = if name.is_some() { Verb::Get } else { Verb::List };
                vec![right(verb, deployments, Some(namespace), name)]
            }
        }
    }

    async fn get(&self, namespace: &str, name: &str, _freshness: Freshness) -> Result<Answer, ApiStatus> {
        let stored = self.deployment(namespace, name)?.ok_or_else(|| NAMES.not_found(name))?;
        let spec = Spec { machine_deployment_name: name.to_owned(), ..Spec::default() };
        self.plan(name.to_owned(), Asked::of(spec, name)?, stored).await
    }

    async fn create(&self, namespace: &str, review: Value) -> Result<Answer, ApiStatus> {
        let (name, asked) = Asked::read(&review)?;
        let deployment = asked.deployment_name().to_owned();
        let stored = self.deployment(namespace, &deployment)?;
        let stored = stored.ok_or_else(|| asked.no_such_deployment(&name))?;
        let name = if name.is_empty() { deployment } else { name };
        self.plan(name, asked, stored).await
    }
}
