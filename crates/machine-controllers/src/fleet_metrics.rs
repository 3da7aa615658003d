//! Gauges about single machines, sets and deployments, and counts of machines, computed at each scrape.
//!
//! Nothing is kept between scrapes: no series outlives its object (spec/machine-controller M-39), and objects cost
//! nothing while nothing scrapes. Names and values: spec/machine-controller §13.1, spec/deployment-and-set §18,
//! spec/packaging §4.1. Series of single machines can be left out (PK-059); the counts then replace them.

mod reference;
mod rollouts;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use controller_runtime::{clock::SharedClock, snapshot::Snapshot};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use prometheus::{
    core::{Collector, Desc},
    proto::{Gauge, LabelPair, Metric, MetricFamily, MetricType},
};

use crate::{
    deployment::fenceposts::Fenceposts,
    loops::Half,
    machine::{
        outlook::{Outlooks, Stage},
        plan::status_change::waits_because,
    },
    snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot},
    views::{BY_CONTROLLER, ControlViews},
};
use kube_values::int_or_percent::{IntOrPercent, Rounding};
use machine_api::{
    names::machine_condition,
    v1alpha1::{ConditionStatus, MachinePhase, MachineSummary, StrategyType},
};

pub use reference::{FleetFamily, LABELS, families};

/// A gauge family: name, help, label names in the order of the values.
struct Declaration {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
}

const NONE: &[&str] = &[];
const OBJECT: &[&str] = &["name", "namespace"];
const CONDITION: &[&str] = &["name", "namespace", "condition"];
const FAILED_MACHINE: &[&str] = &[
    "name",
    "namespace",
    "failed_machine_name",
    "failed_machine_provider_id",
    "failed_machine_owner_ref",
    "failed_machine_last_operation_state",
    "failed_machine_last_operation_machine_operation_type",
];

macro_rules! declarations {
    ($($constant:ident: $name:literal, $labels:expr, $help:literal;)+) => {
        $(const $constant: Declaration = Declaration { name: $name, help: $help, labels: $labels };)+
        const DECLARATIONS: &[Declaration] = &[$($constant),+];
    };
}

declarations! {
    MACHINES: "mcm_machine_items_total", NONE, "Count of machines.";
    MACHINE_INFO: "mcm_machine_info", &["name", "namespace", "createdAt", "spec_provider_id", "spec_class_api_group", "spec_class_kind", "spec_class_name", "node_name"], "Information of the machine.";
    MACHINE_PHASE: "mcm_machine_current_status_phase", OBJECT, "Current phase of the machine: Terminating -4, Failed -3, CrashLoopBackOff -2, Unknown -1, Pending 0, Running 1.";
    MACHINE_CONDITION: "mcm_machine_status_condition", CONDITION, "Conditions of the machine: True 1, False 0, Unknown 2.";
    MACHINES_IN_PHASE: "mcm_machines", &["namespace", "phase"], "Machines by phase.";
    MACHINES_WAITING: "mcm_machines_waiting", &["namespace", "reason"], "Machines that wait, by the reason of their condition Progressing.";
    MACHINES_OVERDUE: "mcm_machines_overdue", &["namespace", "stage"], "Machines that are past the time limit of their own stage, by stage.";
    MACHINES_UNIDENTIFIED: "mcm_machine_node_unidentified", &["namespace"], "Machines of which can't be told whether a Node is theirs, because their driver can't compare provider ids.";
    SETS: "mcm_machine_set_items_total", NONE, "Count of machine sets.";
    SET_INFO: "mcm_machine_set_info", &["name", "namespace", "createdAt", "spec_machine_class_api_group", "spec_machine_class_kind", "spec_machine_class_name"], "Information of the machine set.";
    SET_REPLICAS: "mcm_machine_set_info_spec_replicas", OBJECT, "Wanted replicas of the machine set.";
    SET_MIN_READY: "mcm_machine_set_info_spec_min_ready_seconds", OBJECT, "minReadySeconds of the machine set.";
    SET_CONDITION: "mcm_machine_set_status_condition", CONDITION, "Conditions of the machine set: True 1, False 0, Unknown 2.";
    SET_FAILED: "mcm_machine_set_failed_machines", FAILED_MACHINE, "Failed machines of the machine set.";
    SET_STATUS_AVAILABLE: "mcm_machine_set_status_available_replicas", OBJECT, "Available replicas of the machine set.";
    SET_STATUS_LABELLED: "mcm_machine_set_status_fully_labelled_replicas", OBJECT, "Fully labelled replicas of the machine set.";
    SET_STATUS_READY: "mcm_machine_set_status_ready_replicas", OBJECT, "Ready replicas of the machine set.";
    SET_STATUS_REPLICAS: "mcm_machine_set_status_replicas", OBJECT, "Replicas of the machine set.";
    DEPLOYMENTS: "mcm_machine_deployment_items_total", NONE, "Count of machine deployments.";
    DEPLOYMENT_INFO: "mcm_machine_deployment_info", &["name", "namespace", "createdAt", "spec_strategy_type"], "Information of the machine deployment.";
    DEPLOYMENT_PAUSED: "mcm_machine_deployment_info_spec_paused", OBJECT, "Whether the machine deployment is paused.";
    DEPLOYMENT_REPLICAS: "mcm_machine_deployment_info_spec_replicas", OBJECT, "Wanted replicas of the machine deployment.";
    DEPLOYMENT_MIN_READY: "mcm_machine_deployment_info_spec_min_ready_seconds", OBJECT, "minReadySeconds of the machine deployment.";
    DEPLOYMENT_HISTORY: "mcm_machine_deployment_info_spec_revision_history_limit", OBJECT, "revisionHistoryLimit of the machine deployment.";
    DEPLOYMENT_DEADLINE: "mcm_machine_deployment_info_spec_progress_deadline_seconds", OBJECT, "progressDeadlineSeconds of the machine deployment.";
    DEPLOYMENT_ROLLBACK: "mcm_machine_deployment_info_spec_rollback_to_revision", OBJECT, "Revision that the machine deployment is asked to return to.";
    DEPLOYMENT_SURGE: "mcm_machine_deployment_info_spec_rolling_update_max_surge", OBJECT, "maxSurge of the rolling update in machines; a percentage counts by the wanted replicas.";
    DEPLOYMENT_UNAVAILABLE: "mcm_machine_deployment_info_spec_rolling_update_max_unavailable", OBJECT, "maxUnavailable of the rolling update in machines; a percentage counts by the wanted replicas.";
    DEPLOYMENT_ROLLOUT: "mcm_machine_deployment_rollout_started_seconds", OBJECT, "Unix time in seconds at which the current rollout of the machine deployment began; absent while there is none.";
    DEPLOYMENT_MAY_EXCEED: "mcm_machine_deployment_surge", OBJECT, "Machines that a rollout of the machine deployment may add to the wanted ones.";
    DEPLOYMENT_MAY_LACK: "mcm_machine_deployment_unavailable", OBJECT, "Machines that may be unavailable during a rollout of the machine deployment.";
    DEPLOYMENT_CONDITION: "mcm_machine_deployment_status_condition", CONDITION, "Conditions of the machine deployment: True 1, False 0, Unknown 2.";
    DEPLOYMENT_STATUS_AVAILABLE: "mcm_machine_deployment_status_available_replicas", OBJECT, "Available replicas of the machine deployment.";
    DEPLOYMENT_STATUS_UNAVAILABLE: "mcm_machine_deployment_status_unavailable_replicas", OBJECT, "Unavailable replicas of the machine deployment.";
    DEPLOYMENT_STATUS_READY: "mcm_machine_deployment_status_ready_replicas", OBJECT, "Ready replicas of the machine deployment.";
    DEPLOYMENT_STATUS_UPDATED: "mcm_machine_deployment_status_updated_replicas", OBJECT, "Updated replicas of the machine deployment.";
    DEPLOYMENT_STATUS_REPLICAS: "mcm_machine_deployment_status_replicas", OBJECT, "Replicas of the machine deployment.";
    DEPLOYMENT_COLLISIONS: "mcm_machine_deployment_status_collision_count", OBJECT, "Hash collisions of the machine deployment.";
    DEPLOYMENT_FAILED: "mcm_machine_deployment_failed_machines", FAILED_MACHINE, "Failed machines of the machine deployment.";
}

/// Whether each machine has series of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerMachine {
    /// It has.
    Shown,
    /// It has not: machines are only counted.
    LeftOut,
}

/// Computes the gauges of machines, sets and deployments from the stores at each scrape. A process reports only the
/// objects of its halves, so two processes with one half each report no series twice.
pub struct FleetMetrics {
    views: ControlViews,
    halves: Vec<Half>,
    per_machine: PerMachine,
    /// Weak, because the memory of the machine controller holds the metrics.
    outlooks: Option<(Weak<Outlooks>, SharedClock)>,
    descriptions: Vec<Desc>,
}

impl FleetMetrics {
    /// Gauges of the objects in `views` that the controllers of `halves` work on.
    ///
    /// # Errors
    /// When Prometheus rejects a name or label of a declaration, which is a bug of this program.
    pub fn of(views: ControlViews, halves: Vec<Half>, per_machine: PerMachine) -> prometheus::Result<Self> {
        let descriptions = DECLARATIONS.iter().map(|declared| {
            let labels = declared.labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(declared.name.to_owned(), declared.help.to_owned(), labels, std::collections::HashMap::new())
        });
        let descriptions = descriptions.collect::<Result<_, _>>()?;
        Ok(Self { views, halves, per_machine, outlooks: None, descriptions })
    }

    /// The same gauges, and how many machines are overdue by these outlooks, for as long as something else keeps them.
    #[must_use]
    pub fn judging_by(self, outlooks: &Arc<Outlooks>, clock: SharedClock) -> Self {
        Self { outlooks: Some((Arc::downgrade(outlooks), clock)), ..self }
    }

    fn machines(&self, scrape: &mut Scrape) {
        let machines = self.views.machines.snapshot();
        scrape.machines(&machines, self.per_machine);
        let outlooks = self.outlooks.as_ref().and_then(|(outlooks, clock)| Some((outlooks.upgrade()?, clock.now())));
        // A store that is not complete would make machines look worse than they are.
        if let Some((outlooks, now)) = outlooks.filter(|(outlooks, _)| outlooks.missing().is_none()) {
            scrape.overdue(&machines, |machine| outlooks.overdue(machine, now));
        }
    }
}

impl Collector for FleetMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut scrape = Scrape::default();
        for half in &self.halves {
            match half {
                Half::MachineController => self.machines(&mut scrape),
                Half::ControllerManager => {
                    scrape.sets(&self.views.sets.snapshot(), self.per_machine);
                    scrape.deployments(&self.views, self.per_machine);
                }
            }
        }
        scrape.into_families()
    }
}

/// Samples by family and label values. The map removes duplicates: Prometheus rejects a scrape that has the same label
/// set twice.
#[derive(Default)]
struct Scrape(BTreeMap<&'static str, (&'static Declaration, BTreeMap<Vec<String>, f64>)>);

impl Scrape {
    fn gauge<const N: usize>(&mut self, declared: &'static Declaration, labels: [&str; N], value: f64) {
        let (_, samples) = self.0.entry(declared.name).or_insert_with(|| (declared, BTreeMap::new()));
        samples.insert(labels.map(str::to_owned).to_vec(), value);
    }

    /// Adds 1 to a count.
    fn count<const N: usize>(&mut self, declared: &'static Declaration, labels: [&str; N]) {
        let (_, samples) = self.0.entry(declared.name).or_insert_with(|| (declared, BTreeMap::new()));
        *samples.entry(labels.map(str::to_owned).to_vec()).or_default() += 1.0;
    }

    fn machines(&mut self, machines: &[MachineSnapshot], per_machine: PerMachine) {
        self.gauge(&MACHINES, [], count(machines.len()));
        for namespace in namespaces(machines) {
            self.gauge(&MACHINES_UNIDENTIFIED, [namespace], 0.0);
            for phase in MachinePhase::WORDS {
                self.gauge(&MACHINES_IN_PHASE, [namespace, phase], 0.0);
            }
        }
        for machine in machines {
            let namespace = machine.namespace();
            self.count(&MACHINES_IN_PHASE, [namespace, machine.phase().as_str()]);
            if let Some(reason) = waits_because(machine) {
                self.count(&MACHINES_WAITING, [namespace, reason]);
            }
            if is_unidentified(machine) {
                self.count(&MACHINES_UNIDENTIFIED, [namespace]);
            }
            if per_machine == PerMachine::Shown {
                self.machine(machine);
            }
        }
    }

    fn overdue(&mut self, machines: &[MachineSnapshot], overdue: impl Fn(&MachineSnapshot) -> Option<Stage>) {
        for namespace in namespaces(machines) {
            for stage in Stage::ALL {
                self.gauge(&MACHINES_OVERDUE, [namespace, stage.as_str()], 0.0);
            }
        }
        for machine in machines {
            if let Some(stage) = overdue(machine) {
                self.count(&MACHINES_OVERDUE, [machine.namespace(), stage.as_str()]);
            }
        }
    }

    fn sets(&mut self, sets: &[SetSnapshot], per_machine: PerMachine) {
        self.gauge(&SETS, [], count(sets.len()));
        for set in sets {
            self.set(set, per_machine);
        }
    }

    fn deployments(&mut self, views: &ControlViews, per_machine: PerMachine) {
        let deployments = views.deployments.snapshot();
        self.gauge(&DEPLOYMENTS, [], count(deployments.len()));
        for deployment in &deployments {
            self.deployment(deployment, per_machine);
            let sets = views.sets.by_index(BY_CONTROLLER, deployment.uid());
            self.rollout(deployment, &sets);
        }
    }

    fn rollout(&mut self, deployment: &DeploymentSnapshot, sets: &[SetSnapshot]) {
        let object = [deployment.name(), deployment.namespace()];
        let limits = Fenceposts::of(deployment);
        self.gauge(&DEPLOYMENT_MAY_EXCEED, object, limits.surge.into());
        self.gauge(&DEPLOYMENT_MAY_LACK, object, limits.max_unavailable(deployment.replicas()).into());
        let began = rollouts::began(deployment, sets);
        self.optional(&DEPLOYMENT_ROLLOUT, object, began.map(|time| whole(time.as_second())));
    }

    fn machine(&mut self, machine: &MachineSnapshot) {
        let object @ [name, namespace] = [machine.name(), machine.namespace()];
        let class = machine.class_ref();
        let info = [
            name,
            namespace,
            &created_at(machine.created()),
            machine.provider_id(),
            &class.api_group,
            &class.kind,
            &class.name,
            machine.node_name(),
        ];
        self.gauge(&MACHINE_INFO, info, 1.0);
        self.gauge(&MACHINE_PHASE, object, phase_value(machine.phase()));
        for condition in machine.conditions() {
            let status = ConditionStatus::from(condition.status.as_str());
            self.condition(&MACHINE_CONDITION, object, &condition.type_, &status);
        }
    }

    fn set(&mut self, set: &SetSnapshot, per_machine: PerMachine) {
        let object @ [name, namespace] = [set.name(), set.namespace()];
        // Only the oldest sets name a class outside their template.
        let class = Some(set.machine_class()).filter(|class| !class.name.is_empty());
        let class = class.unwrap_or(&set.template().spec.class);
        let info = [name, namespace, &created_at(set.created()), &class.api_group, &class.kind, &class.name];
        let status = set.status();
        self.gauge(&SET_INFO, info, 1.0);
        self.gauge(&SET_REPLICAS, object, set.replicas().into());
        self.gauge(&SET_MIN_READY, object, set.min_ready_seconds().into());
        self.gauge(&SET_STATUS_AVAILABLE, object, status.available_replicas.into());
        self.gauge(&SET_STATUS_LABELLED, object, status.fully_labeled_replicas.into());
        self.gauge(&SET_STATUS_READY, object, status.ready_replicas.into());
        self.gauge(&SET_STATUS_REPLICAS, object, status.replicas.into());
        for condition in &status.conditions {
            self.condition(&SET_CONDITION, object, condition.condition_type.as_str(), &condition.status);
        }
        self.failed_machines(&SET_FAILED, object, &status.failed_machines, per_machine);
    }

    fn deployment(&mut self, deployment: &DeploymentSnapshot, per_machine: PerMachine) {
        let object @ [name, namespace] = [deployment.name(), deployment.namespace()];
        let (strategy, status) = (deployment.strategy(), deployment.status());
        let info = [name, namespace, &created_at(deployment.created()), strategy.strategy_type.as_str()];
        self.gauge(&DEPLOYMENT_INFO, info, 1.0);
        self.gauge(&DEPLOYMENT_PAUSED, object, f64::from(u8::from(deployment.is_paused())));
        self.gauge(&DEPLOYMENT_REPLICAS, object, deployment.replicas().into());
        self.gauge(&DEPLOYMENT_MIN_READY, object, deployment.min_ready_seconds().into());
        self.optional(&DEPLOYMENT_HISTORY, object, deployment.revision_history_limit().map(f64::from));
        self.optional(&DEPLOYMENT_DEADLINE, object, deployment.progress_deadline_seconds().map(f64::from));
        self.optional(&DEPLOYMENT_ROLLBACK, object, deployment.rollback_to().map(|to| whole(to.revision)));
        if let (StrategyType::RollingUpdate, Some(rolling)) = (&strategy.strategy_type, &strategy.rolling_update) {
            let machines = |margin: &Option<IntOrString>, rounding| {
                margin.as_ref().map(|margin| machines_of(margin, deployment.replicas(), rounding))
            };
            self.optional(&DEPLOYMENT_SURGE, object, machines(&rolling.max_surge, Rounding::Up));
            self.optional(&DEPLOYMENT_UNAVAILABLE, object, machines(&rolling.max_unavailable, Rounding::Down));
        }
        for condition in &status.conditions {
            self.condition(&DEPLOYMENT_CONDITION, object, condition.condition_type.as_str(), &condition.status);
        }
        self.gauge(&DEPLOYMENT_STATUS_AVAILABLE, object, status.available_replicas.into());
        self.gauge(&DEPLOYMENT_STATUS_UNAVAILABLE, object, status.unavailable_replicas.into());
        self.gauge(&DEPLOYMENT_STATUS_READY, object, status.ready_replicas.into());
        self.gauge(&DEPLOYMENT_STATUS_UPDATED, object, status.updated_replicas.into());
        self.gauge(&DEPLOYMENT_STATUS_REPLICAS, object, status.replicas.into());
        self.optional(&DEPLOYMENT_COLLISIONS, object, status.collision_count.map(f64::from));
        self.failed_machines(&DEPLOYMENT_FAILED, object, &status.failed_machines, per_machine);
    }

    fn optional(&mut self, declared: &'static Declaration, object: [&str; 2], value: Option<f64>) {
        if let Some(value) = value {
            self.gauge(declared, object, value);
        }
    }

    fn condition(
        &mut self,
        declared: &'static Declaration,
        [name, namespace]: [&str; 2],
        condition: &str,
        status: &ConditionStatus,
    ) {
        let value = match status {
            ConditionStatus::True => 1.0,
            ConditionStatus::False => 0.0,
            ConditionStatus::Unknown => 2.0,
            ConditionStatus::Other(_) => return,
        };
        self.gauge(declared, [name, namespace, condition], value);
    }

    fn failed_machines(
        &mut self,
        declared: &'static Declaration,
        [name, namespace]: [&str; 2],
        all: &[MachineSummary],
        per_machine: PerMachine,
    ) {
        for failed in all.iter().filter(|_| per_machine == PerMachine::Shown) {
            let operation = &failed.last_operation;
            let labels = [
                name,
                namespace,
                &failed.name,
                &failed.provider_id,
                &failed.owner_ref,
                operation.state.as_str(),
                operation.operation.as_str(),
            ];
            self.gauge(declared, labels, 1.0);
        }
    }

    fn into_families(self) -> Vec<MetricFamily> {
        self.0.into_values().map(|(declared, samples)| family(declared, samples)).collect()
    }
}

fn family(declared: &Declaration, samples: BTreeMap<Vec<String>, f64>) -> MetricFamily {
    let metrics = samples.into_iter().map(|(values, value)| {
        let mut pairs: Vec<(&str, String)> = declared.labels.iter().copied().zip(values).collect();
        pairs.sort_unstable_by_key(|(name, _)| *name);
        let pairs = pairs.into_iter().map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value);
            pair
        });
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        let mut metric = Metric::from_label(pairs.collect());
        metric.set_gauge(gauge);
        metric
    });
    let mut family = MetricFamily::default();
    family.set_name(declared.name.to_owned());
    family.set_help(declared.help.to_owned());
    family.set_field_type(MetricType::GAUGE);
    family.set_metric(metrics.collect());
    family
}

/// The namespaces of machines.
fn namespaces(machines: &[MachineSnapshot]) -> BTreeSet<&str> {
    machines.iter().map(Snapshot::namespace).collect()
}

fn is_unidentified(machine: &MachineSnapshot) -> bool {
    machine.machine_conditions().iter().any(|condition| condition.type_ == machine_condition::NODE_IDENTIFIED)
}

/// Unix seconds, as text.
fn created_at(created: Option<Timestamp>) -> String {
    created.map_or_else(|| "0".to_owned(), |time| time.as_second().to_string())
}

/// The numbers of the original; a phase without a number there is 0.
fn phase_value(phase: &MachinePhase) -> f64 {
    match phase {
        MachinePhase::Terminating => -4.0,
        MachinePhase::Failed => -3.0,
        MachinePhase::CrashLoopBackOff => -2.0,
        MachinePhase::Unknown => -1.0,
        MachinePhase::Running => 1.0,
        MachinePhase::Unset
        | MachinePhase::Pending
        | MachinePhase::Available
        | MachinePhase::InPlaceUpdating
        | MachinePhase::InPlaceUpdateSuccessful
        | MachinePhase::InPlaceUpdateFailed
        | MachinePhase::Other(_) => 0.0,
    }
}

/// The machines that the margin means for these replicas; 0 if it can't be read. The original reports every percentage
/// as 0.
fn machines_of(margin: &IntOrString, replicas: i32, rounding: Rounding) -> f64 {
    IntOrPercent::try_from(margin).map_or(0.0, |margin| margin.resolve(replicas, rounding).into())
}

#[allow(clippy::cast_precision_loss)] // Revisions, times and counts stay far below 2^52.
fn whole(number: i64) -> f64 {
    number as f64
}

#[allow(clippy::cast_precision_loss)]
fn count(items: usize) -> f64 {
    items as f64
}

#[cfg(test)]
mod tests;
