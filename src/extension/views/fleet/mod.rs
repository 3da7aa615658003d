//! `fleetsummaries`: one object per namespace with counts of its machines.
//!
//! Only objects of the stores are counted; no provider is asked. The stages are the same as in the outlooks. Source: spec/extension-apiserver §1.6.

mod failures;
mod shape;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;

use self::{
    failures::Failures,
    shape::{Capacity, Deployment, FleetSummary, Frozen, Machines},
};
use super::{
    Sources,
    amounts::{Amounts, NodeAmounts},
    common::{MOST_NAMES, Observed, count, metadata, not_ready, right_to_list, scrubbed},
    describe::{Names, column, name_column},
    provider_machines::{
        claims::{Claims, identity},
        inventory::ListedVms,
    },
};
use crate::extension::{
    rows::{Renderer, Row},
    view::{Answer, Description, Freshness, Listing, Question, SourceRight, View},
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot as _, store::Store};
use kube_protocol::{request::Verb, status::ApiStatus};
use machine_api::{
    kind::Kind,
    names::label,
    v1alpha1::{MachineClass, MachineDeploymentConditionType, MachinePhase, StrategyType},
};
use machine_controllers::{
    deployment::decide::is_frozen,
    machine::observation::{Freeze, condition},
    snapshots::{DeploymentSnapshot, MachineSnapshot, NodeSnapshot},
    views::BY_NAMESPACE,
};

const NAMES: Names =
    Names { kind: "FleetSummary", plural: "fleetsummaries", short: "fleet", verbs: &[Verb::Get, Verb::List] };
/// Number of machines that are counted before the task yields to other tasks.
const AT_ONCE: usize = 256;

/// The view `fleetsummaries`.
pub struct FleetView {
    sources: Sources,
    renderer: Arc<Renderer<FleetSummary>>,
}

impl FleetView {
    /// The view from these sources.
    pub fn new(sources: &Sources) -> Self {
        let columns = vec![
            name_column(),
            column("Machines", "integer", "Machines of the namespace.", |fleet: &FleetSummary| {
                fleet.machines.total.into()
            }),
            column("Running", "integer", "Machines that are Running.", |fleet| in_phase(fleet, "Running")),
            column("Pending", "integer", "Machines whose VM has not joined yet.", |fleet| in_phase(fleet, "Pending")),
            column("Failed", "integer", "Machines that have failed.", |fleet| in_phase(fleet, "Failed")),
            column("Terminating", "integer", "Machines that are being deleted.", |fleet| {
                in_phase(fleet, "Terminating")
            }),
            column("Orphans", "integer", "VMs without a machine.", |fleet| fleet.machines.orphans.into()),
            column("Frozen", "boolean", "Whether verdicts or creations are suspended.", |fleet| {
                fleet.frozen.value.into()
            }),
        ];
        Self { sources: sources.clone(), renderer: NAMES.describe(columns, &[]) }
    }

    async fn summary(&self) -> Result<Arc<dyn Row>, ApiStatus> {
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
        let class_of = |deployment: &DeploymentSnapshot| {
            let name = deployment.template().spec.class.name.clone();
            views.classes.get(&ObjectKey::new(namespace.clone(), name))
        };
        let mut declared = Amounts::default();
        for deployment in &deployments {
            if let Some(template) = class_of(deployment).as_ref().and_then(|class| class.node_template.as_ref()) {
                declared.add(&template.capacity, u64::try_from(deployment.replicas()).unwrap_or(0));
            }
        }
        let frozen = frozen(self.sources.outlooks.freeze(), &deployments);
        let rows = deployments.iter().take(MOST_NAMES);
        let body = FleetSummary {
            machines,
            deployments: rows.map(|deployment| row(deployment, class_of(deployment).as_deref())).collect(),
            failures: failures.by_frequency(),
            capacity: Capacity {
                declared: declared.sum(),
                nodes: amounts.capacity.sum(),
                allocatable: amounts.allocatable.sum(),
            },
            frozen,
            truncated: deployments.len() > MOST_NAMES,
            status: Observed::at(now),
        };
        let key = ObjectKey::new(namespace.clone(), namespace.clone());
        Ok(self.renderer.row((metadata(NAMES.kind, &key, "", now), body)))
    }

    fn count_machine(&self, machine: &MachineSnapshot, now: Timestamp, all: &mut Machines, amounts: &mut NodeAmounts) {
        let phase = machine.phase();
        let phase = if *phase == MachinePhase::Unset { "Creating" } else { phase.as_str() };
        *all.by_phase.entry(phase.to_owned()).or_default() += 1;
        *all.by_stage.entry(self.sources.outlooks.stage_of(machine, now).as_str()).or_default() += 1;
        match node_of(machine, self.sources.outlooks.nodes()) {
            None => all.without_node += 1,
            Some(node) => {
                let ready = condition(node.conditions(), "Ready").is_some_and(|ready| ready.status == "True");
                all.not_ready_nodes += i32::from(!ready);
                amounts.add(&node);
            }
        }
    }
}

/// The number of machines in a phase. The object does not contain phases without machines.
fn in_phase(fleet: &FleetSummary, phase: &str) -> Value {
    fleet.machines.by_phase.get(phase).copied().unwrap_or(0).into()
}

/// The number of VMs without a machine on the lists in memory; `None` if there is no list. A VM whose machine has gone after the list
/// was made does not count, because most likely the VM has gone too.
fn known_orphans(sources: &Sources, machines: &[MachineSnapshot]) -> Option<i32> {
    let lists = sources.inventories.known();
    if lists.is_empty() {
        return None;
    }
    let claims = Claims::of(machines);
    let of_list = |list: &ListedVms| {
        let still = list.vms.iter().filter(|vm| claims.on(vm).is_orphaned()).map(|vm| identity(&vm.provider_id));
        still.filter(|id| list.orphans.contains(id)).collect::<Vec<_>>()
    };
    Some(count(lists.iter().flat_map(of_list).collect::<BTreeSet<_>>().len()))
}

fn node_of(machine: &MachineSnapshot, nodes: Option<&Store<NodeSnapshot>>) -> Option<NodeSnapshot> {
    let name = machine.labels().get(label::NODE).filter(|name| !name.is_empty())?;
    nodes?.get(&ObjectKey::cluster_scoped(name.clone()))
}

fn row(deployment: &DeploymentSnapshot, class: Option<&MachineClass>) -> Deployment {
    let status = deployment.status();
    let progressing = status
        .conditions
        .iter()
        .find(|condition| condition.condition_type == MachineDeploymentConditionType::Progressing)
        .map_or("Unknown", |condition| condition.status.as_str());
    let strategy = &deployment.strategy().strategy_type;
    let zone = class.and_then(|class| class.node_template.as_ref()).map(|template| template.zone.clone());
    Deployment {
        name: deployment.name().to_owned(),
        class: deployment.template().spec.class.name.clone(),
        strategy: if *strategy == StrategyType::Unset { StrategyType::RollingUpdate } else { strategy.clone() }
            .as_str()
            .to_owned(),
        desired: deployment.replicas(),
        current: status.replicas,
        updated: status.updated_replicas,
        ready: status.ready_replicas,
        available: status.available_replicas,
        paused: deployment.is_paused(),
        progressing: progressing.to_owned(),
        zone: zone.filter(|zone| !zone.is_empty()).into_iter().collect(),
    }
}

/// An unreachable API server is reported first, because it suspends more than a deployment with too many machines does.
fn frozen(freeze: Freeze, deployments: &[DeploymentSnapshot]) -> Frozen {
    if freeze == Freeze::Frozen {
        let reason = "an API server does not answer: creations and verdicts about health wait until both answer again";
        return Frozen { value: true, reason: Some(reason.to_owned()) };
    }
    let names: Vec<String> = deployments
        .iter()
        .filter(|deployment| is_frozen(deployment.metadata()))
        .take(MOST_NAMES)
        .map(|deployment| deployment.name().to_owned())
        .collect();
    if names.is_empty() {
        return Frozen::default();
    }
    let reason = format!("too many machines: nothing is created for deployment {}", names.join(", "));
    Frozen { value: true, reason: Some(scrubbed(&reason)) }
}

#[async_trait]
impl View for FleetView {
    fn description(&self) -> &Description {
        &self.renderer.description
    }

    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight> {
        right_to_list(Kind::Machine.plural(), question)
    }

    async fn get(&self, namespace: &str, name: &str, _freshness: Freshness) -> Result<Answer, ApiStatus> {
        if namespace != self.sources.namespace || name != namespace {
            return Err(NAMES.not_found(name));
        }
        Ok(Answer { object: self.summary().await?, warnings: Vec::new() })
    }

    async fn list(&self, namespace: Option<&str>, _freshness: Freshness) -> Result<Listing, ApiStatus> {
        if namespace.is_some_and(|namespace| namespace != self.sources.namespace) {
            return Ok(Listing::default());
        }
        Ok(Listing { rows: vec![self.summary().await?], warnings: Vec::new() })
    }
}
