//! `fleetsummaries`: one object per namespace that tells how its machines are.
//!
//! Only what the stores hold is counted; no provider is asked. Stages are those of the outlooks. Source:
//! spec/extension-apiserver §1.6.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::{api::resource, apis::meta::v1::ObjectMeta},
};
use kube::ResourceExt;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{
    Sources,
    amounts::{Amounts, NodeAmounts},
    common::{
        MOST_NAMES, Names, Observed, answer, column, count, listing, metadata, name_column, not_ready, right, schema,
        scrubbed, to_object,
    },
};
use crate::{
    api::{
        crd::nodes,
        kind::Kind,
        names::label,
        v1alpha1::{
            Machine, MachineClass, MachineDeployment, MachineDeploymentConditionType, MachinePhase, OperationState,
            StrategyType,
        },
    },
    cluster::{key::ObjectKey, store::Store},
    controllers::{
        deployment::decide::is_frozen,
        machine::{
            observation::{Freeze, condition, conditions_of},
            status_change::rfc3339,
        },
        safety::orphans::claim_in_stores,
        views::BY_NAMESPACE,
    },
    driver::ListedVm,
    extension::view::{Answer, Freshness, GROUP, Listing, Question, SourceRight, VERSION, View},
    protocol::{jsonpath::JsonPath, request::Verb, resource::Resource, status::ApiStatus},
};

const NAMES: Names =
    Names { kind: "FleetSummary", plural: "fleetsummaries", short: "fleet", verbs: &[Verb::Get, Verb::List] };
/// Longest message of a failure.
const LONGEST_MESSAGE: usize = 200;
/// So many machines are counted before other work of the process gets its turn.
const AT_ONCE: usize = 256;

/// How the machines of a namespace are.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct FleetSummary {
    api_version: String,
    kind: String,
    /// The name is that of the namespace.
    #[schemars(schema_with = "nodes::object_metadata")]
    metadata: ObjectMeta,
    /// The machines, counted.
    machines: Machines,
    /// The deployments, by name.
    deployments: Vec<Deployment>,
    /// What last failed, by the provider's code.
    failures: Vec<Failure>,
    /// What the machines offer.
    capacity: Capacity,
    /// Whether verdicts or creations are suspended.
    frozen: Frozen,
    /// Whether a list was cut at 500 entries.
    truncated: bool,
    /// How the answer came about.
    status: Observed,
}

/// Machines, counted.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Machines {
    /// All of them.
    total: i32,
    /// By their phase; a machine that has none yet counts as Creating.
    by_phase: BTreeMap<String, i32>,
    /// By where they stand, as `machineoutlooks` tells.
    by_stage: BTreeMap<&'static str, i32>,
    /// Those whose Node is there and not Ready.
    not_ready_nodes: i32,
    /// VMs without a machine, as far as the provider was asked lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    orphans: Option<i32>,
    /// Those that have no Node.
    without_node: i32,
}

/// A deployment, as its status tells.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct Deployment {
    /// Its name.
    name: String,
    /// Class of its machines.
    class: String,
    /// How it replaces machines.
    strategy: String,
    /// Machines that it wants.
    desired: i32,
    /// Machines that exist.
    current: i32,
    /// Machines of the newest template.
    updated: i32,
    /// Machines that are Running.
    ready: i32,
    /// Machines that are available.
    available: i32,
    /// Whether rollouts are stopped.
    paused: bool,
    /// Whether a rollout gets on: True, False or Unknown.
    progressing: String,
    /// Zones of its class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    zone: Vec<String>,
}

/// Machines that failed with one code.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Failure {
    /// The provider's code.
    error_code: String,
    /// How many machines.
    count: i32,
    /// What was last said, cut at 200 characters.
    last_message: String,
    /// Classes of these machines.
    classes: Vec<String>,
    /// The earliest of these failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
}

/// What the machines offer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct Capacity {
    /// What the classes promise for the machines that deployments want.
    declared: BTreeMap<String, resource::Quantity>,
    /// What the Nodes of the machines have.
    nodes: BTreeMap<String, resource::Quantity>,
    /// What pods may use of it.
    allocatable: BTreeMap<String, resource::Quantity>,
}

/// Whether something is suspended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
struct Frozen {
    /// Whether it is.
    value: bool,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The view `fleetsummaries`.
pub struct FleetView {
    sources: Sources,
    resource: Resource,
    schema: Value,
}

impl FleetView {
    /// The view from these sources.
    pub fn new(sources: &Sources) -> Self {
        let columns = vec![
            name_column(),
            column("Machines", "integer", ".machines.total", "Machines of the namespace."),
            column("Running", "integer", ".machines.byPhase.Running", "Machines that are Running."),
            column("Pending", "integer", ".machines.byPhase.Pending", "Machines whose VM has not joined yet."),
            column("Failed", "integer", ".machines.byPhase.Failed", "Machines that have failed."),
            column("Terminating", "integer", ".machines.byPhase.Terminating", "Machines that are being deleted."),
            column("Orphans", "integer", ".machines.orphans", "VMs without a machine."),
            column("Frozen", "boolean", ".frozen.value", "Whether verdicts or creations are suspended."),
        ];
        Self { sources: sources.clone(), resource: NAMES.resource(columns), schema: schema::<FleetSummary>() }
    }

    async fn summary(&self) -> Result<FleetSummary, ApiStatus> {
        if let Some(missing) = self.sources.outlooks.missing() {
            return Err(not_ready(missing));
        }
        let (namespace, views) = (&self.sources.namespace, &self.sources.views);
        let now = self.sources.clock.now();
        let all = views.machines.by_index(BY_NAMESPACE, namespace);
        let mut machines = Machines { total: count(all.len()), ..Machines::default() };
        let (mut failures, mut amounts) = (Failures::default(), NodeAmounts::default());
        for some in all.chunks(AT_ONCE) {
            for machine in some {
                self.count_machine(machine, now, &mut machines, &mut amounts);
                failures.count(machine);
            }
            tokio::task::yield_now().await;
        }
        machines.orphans = known_orphans(&self.sources, &all);
        let deployments = views.deployments.by_index(BY_NAMESPACE, namespace);
        let class_of = |deployment: &MachineDeployment| {
            let name = deployment.spec.template.spec.class.name.clone();
            views.classes.get(&ObjectKey::new(namespace.clone(), name))
        };
        let mut declared = Amounts::default();
        for deployment in &deployments {
            if let Some(template) = class_of(deployment).as_ref().and_then(|class| class.node_template.as_ref()) {
                declared.add(&template.capacity, u64::try_from(deployment.spec.replicas).unwrap_or(0));
            }
        }
        let frozen = frozen(self.sources.outlooks.freeze(), &deployments);
        let rows = deployments.iter().take(MOST_NAMES);
        Ok(FleetSummary {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: NAMES.kind.to_owned(),
            metadata: metadata(NAMES.kind, &ObjectKey::new(namespace.clone(), namespace.clone()), "", now),
            machines,
            deployments: rows.map(|deployment| row(deployment, class_of(deployment).as_deref())).collect(),
            failures: failures.told(),
            capacity: Capacity {
                declared: declared.sum(),
                nodes: amounts.capacity.sum(),
                allocatable: amounts.allocatable.sum(),
            },
            frozen,
            truncated: deployments.len() > MOST_NAMES,
            status: Observed::at(now),
        })
    }

    fn count_machine(&self, machine: &Arc<Machine>, now: Timestamp, all: &mut Machines, amounts: &mut NodeAmounts) {
        let phase = &machine.status.current_status.phase;
        let phase = if *phase == MachinePhase::Unset { "Creating" } else { phase.as_str() };
        *all.by_phase.entry(phase.to_owned()).or_default() += 1;
        *all.by_stage.entry(self.sources.outlooks.stage_of(machine, now).as_str()).or_default() += 1;
        match node_of(machine, self.sources.outlooks.nodes()) {
            None => all.without_node += 1,
            Some(node) => {
                let ready = condition(conditions_of(&node), "Ready").is_some_and(|ready| ready.status == "True");
                all.not_ready_nodes += i32::from(!ready);
                amounts.add(&node);
            }
        }
    }
}

/// VMs without a machine on the lists that are in memory; `None` when there is no list.
fn known_orphans(sources: &Sources, machines: &[Arc<Machine>]) -> Option<i32> {
    let lists = sources.inventories.known();
    if lists.is_empty() {
        return None;
    }
    let held: BTreeSet<String> = machines.iter().map(|machine| machine.spec.provider_id.to_ascii_lowercase()).collect();
    let is_orphan = |vm: &&ListedVm| {
        let key = ObjectKey::new(sources.namespace.clone(), vm.machine_name.clone());
        claim_in_stores(vm, &held, sources.views.machines.get(&key).as_deref()).is_orphaned()
    };
    let orphans: BTreeSet<&str> =
        lists.iter().flat_map(|list| list.vms.iter()).filter(is_orphan).map(|vm| vm.provider_id.as_str()).collect();
    Some(count(orphans.len()))
}

fn node_of(machine: &Machine, nodes: Option<&Store<Node>>) -> Option<Arc<Node>> {
    let name = machine.labels().get(label::NODE).filter(|name| !name.is_empty())?;
    nodes?.get(&ObjectKey::cluster_scoped(name.clone()))
}

fn row(deployment: &MachineDeployment, class: Option<&MachineClass>) -> Deployment {
    let (spec, status) = (&deployment.spec, &deployment.status);
    let progressing = status
        .conditions
        .iter()
        .find(|condition| condition.condition_type == MachineDeploymentConditionType::Progressing)
        .map_or("Unknown", |condition| condition.status.as_str());
    let strategy = &spec.strategy.strategy_type;
    let zone = class.and_then(|class| class.node_template.as_ref()).map(|template| template.zone.clone());
    Deployment {
        name: deployment.name_any(),
        class: spec.template.spec.class.name.clone(),
        strategy: if *strategy == StrategyType::Unset { StrategyType::RollingUpdate } else { strategy.clone() }
            .as_str()
            .to_owned(),
        desired: spec.replicas,
        current: status.replicas,
        updated: status.updated_replicas,
        ready: status.ready_replicas,
        available: status.available_replicas,
        paused: spec.paused,
        progressing: progressing.to_owned(),
        zone: zone.filter(|zone| !zone.is_empty()).into_iter().collect(),
    }
}

/// An API server that is silent suspends more than a deployment that has too many machines, so that it is told first.
fn frozen(freeze: Freeze, deployments: &[Arc<MachineDeployment>]) -> Frozen {
    if freeze == Freeze::Frozen {
        let reason = "an API server does not answer: creations and verdicts about health wait until both answer again";
        return Frozen { value: true, reason: Some(reason.to_owned()) };
    }
    let names: Vec<String> = deployments
        .iter()
        .filter(|deployment| is_frozen(&deployment.metadata))
        .take(MOST_NAMES)
        .map(|deployment| deployment.name_any())
        .collect();
    if names.is_empty() {
        return Frozen::default();
    }
    let reason = format!("too many machines: nothing is created for deployment {}", names.join(", "));
    Frozen { value: true, reason: Some(scrubbed(&reason)) }
}

/// Machines that failed, by code.
#[derive(Default)]
struct Failures(BTreeMap<String, Failed>);

#[derive(Default)]
struct Failed {
    count: i32,
    last: Option<(Timestamp, String)>,
    classes: BTreeSet<String>,
    since: Option<Timestamp>,
}

impl Failures {
    fn count(&mut self, machine: &Machine) {
        let last = &machine.status.last_operation;
        if last.state != OperationState::Failed {
            return;
        }
        let failed = self.0.entry(last.error_code.clone()).or_default();
        failed.count += 1;
        failed.classes.insert(machine.spec.class.name.clone());
        let Some(at) = last.last_update_time.as_ref().map(|time| time.0) else { return };
        failed.since = Some(failed.since.map_or(at, |since| since.min(at)));
        if failed.last.as_ref().is_none_or(|(known, _)| *known <= at) {
            failed.last = Some((at, last.description.clone()));
        }
    }

    /// The most frequent first.
    fn told(self) -> Vec<Failure> {
        let mut all: Vec<Failure> = self
            .0
            .into_iter()
            .map(|(error_code, failed)| Failure {
                error_code,
                count: failed.count,
                last_message: failed
                    .last
                    .map(|(_, text)| scrubbed(&text).chars().take(LONGEST_MESSAGE).collect())
                    .unwrap_or_default(),
                classes: failed.classes.into_iter().take(MOST_NAMES).collect(),
                since: failed.since.map(rfc3339),
            })
            .collect();
        all.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.error_code.cmp(&other.error_code)));
        all
    }
}

#[async_trait]
impl View for FleetView {
    fn resource(&self) -> &Resource {
        &self.resource
    }

    fn schema(&self) -> &Value {
        &self.schema
    }

    fn selectable_fields(&self) -> &[(&'static str, JsonPath)] {
        &[]
    }

    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight> {
        let machines = Kind::Machine.plural();
        match question {
            Question::Get { namespace, .. } => vec![right(Verb::List, machines, Some(namespace), None)],
            Question::List { namespace } => vec![right(Verb::List, machines, namespace, None)],
            Question::Create { .. } => Vec::new(),
        }
    }

    async fn get(&self, namespace: &str, name: &str, _freshness: Freshness) -> Result<Answer, ApiStatus> {
        if namespace != self.sources.namespace || name != namespace {
            return Err(NAMES.not_found(name));
        }
        answer(&self.summary().await?)
    }

    async fn list(&self, namespace: Option<&str>, _freshness: Freshness) -> Result<Listing, ApiStatus> {
        if namespace.is_some_and(|namespace| namespace != self.sources.namespace) {
            return Ok(Listing::default());
        }
        Ok(listing(vec![to_object(&self.summary().await?)?]))
    }
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
