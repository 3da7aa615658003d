//! A drain plan without the views: the objects of a Node as a user may read them, and the plan that the manager's own rules make of them.
//!
//! [`Objects::read`] sends the requests; the rest is pure. The flags of the manager are not known here, so that their defaults count where a
//! machine has no settings of its own. Source: spec/packaging §5.2.

use std::{collections::BTreeSet, fmt::Debug, time::Instant};

use jiff::Timestamp;
use kube::Client;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    fleet::{Fleet, objects, unread},
    views::DrainPlan,
};
use crate::{
    cli::Failure,
    extension::views::{Drain, PLAN_WITHIN},
};
use controller_runtime::{error::ApiError, key::ObjectKey, objects::ListQuery, snapshot::Snapshot};
use machine_api::names::label;
use machine_controllers::{
    drain::observe::DrainViews,
    machine::{
        deletion::drain::drain_mode,
        node::ownership::{Claim, Owner, owner},
        observation::{NodeView, Observation},
        settings::MachineSettings,
    },
    snapshots::{
        AttachmentSnapshot, BudgetSnapshot, ClaimSnapshot, MachineSnapshot, NodeSnapshot, PodSnapshot, VolumeSnapshot,
    },
};
use machine_driver::same_instance::SameInstance;
use machine_simulation::drain::forecast;

/// Objects per page of a list.
const PAGE: u32 = 500;

/// What grants the requests.
const RIGHTS: &str = "without the views a drain plan needs a ClusterRole with get on nodes and list on pods, poddisruptionbudgets, \
                      persistentvolumeclaims, persistentvolumes and volumeattachments";

/// The objects that a drain of a Node depends on.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    node: Option<NodeSnapshot>,
    pods: Vec<PodSnapshot>,
    budgets: Vec<BudgetSnapshot>,
    claims: Vec<ClaimSnapshot>,
    volumes: Vec<VolumeSnapshot>,
    attachments: Vec<AttachmentSnapshot>,
}

impl Objects {
    /// Reads the objects of a Node. Claims, volumes and attachments are read only if a pod has claims.
    ///
    /// # Errors
    /// When a request fails; the text names it, and for a missing right what grants it.
    pub async fn read(client: &Client, node: &str) -> Result<Self, Failure> {
        let found = objects::<NodeSnapshot>(client).get(&ObjectKey::cluster_scoped(node)).await;
        let on_node = ListQuery { fields: Some(format!("spec.nodeName={node}")), ..ListQuery::default() };
        let pods: Vec<PodSnapshot> = listed(client, "pods", on_node).await?;
        let mut all = Self { node: found.map_err(|error| refused("get nodes", &error))?, ..Self::default() };
        let namespaces = |pods: &mut dyn Iterator<Item = &PodSnapshot>| -> BTreeSet<String> {
            pods.map(|pod| pod.namespace().to_owned()).collect()
        };
        for namespace in namespaces(&mut pods.iter()) {
            all.budgets.extend(listed(client, "poddisruptionbudgets", ListQuery::within(&namespace)).await?);
        }
        for namespace in namespaces(&mut pods.iter().filter(|pod| pod.claims().next().is_some())) {
            all.claims.extend(listed(client, "persistentvolumeclaims", ListQuery::within(&namespace)).await?);
        }
        if !all.claims.is_empty() {
            all.volumes = listed(client, "persistentvolumes", ListQuery::default()).await?;
            all.attachments = listed(client, "volumeattachments", ListQuery::default()).await?;
        }
        all.pods = pods;
        Ok(all)
    }
}

async fn listed<S: Snapshot>(client: &Client, plural: &str, query: ListQuery) -> Result<Vec<S>, Failure>
where
    S::Object: Serialize + DeserializeOwned + Clone + Debug,
{
    let all = objects::<S>(client).list(ListQuery { limit: Some(PAGE), ..query }).await;
    all.map_err(|error| refused(&format!("list {plural}"), &error))
}

/// The failure of a request, with what helps.
fn refused(what: &str, error: &ApiError) -> Failure {
    match error {
        ApiError::Forbidden(_) => Failure::run(anyhow::anyhow!("cannot {what}: {error}; {RIGHTS}")),
        _ => unread(what, error),
    }
}

impl DrainViews for Objects {
    fn ready(&self) -> bool {
        true
    }

    fn pods_on(&self, node: &str) -> Vec<PodSnapshot> {
        self.pods.iter().filter(|pod| pod.node_name() == Some(node)).cloned().collect()
    }

    /// Only pods of the Node are known. A drain that has not begun asks for no others.
    fn pods_using(&self, claim: &ObjectKey) -> Vec<PodSnapshot> {
        self.pods.iter().filter(|pod| pod.claims().any(|own| own == *claim)).cloned().collect()
    }

    fn budgets_in(&self, namespace: &str) -> Vec<BudgetSnapshot> {
        self.budgets.iter().filter(|budget| budget.namespace() == namespace).cloned().collect()
    }

    fn claim(&self, key: &ObjectKey) -> Option<ClaimSnapshot> {
        self.claims.iter().find(|claim| claim.key() == *key).cloned()
    }

    fn volume(&self, name: &str) -> Option<VolumeSnapshot> {
        self.volumes.iter().find(|volume| volume.name() == name).cloned()
    }

    fn attachments_on(&self, node: &str) -> Vec<AttachmentSnapshot> {
        self.attachments.iter().filter(|one| one.node_name() == node).cloned().collect()
    }

    fn attachments_of(&self, volume: &str) -> Vec<AttachmentSnapshot> {
        self.attachments.iter().filter(|one| one.volume_name() == Some(volume)).cloned().collect()
    }
}

/// The plan for the Node of a machine. `Err` has the reason why nothing would be drained.
pub fn plan(machine: &MachineSnapshot, fleet: &Fleet, objects: &Objects, now: Timestamp) -> Result<DrainPlan, String> {
    let settings = MachineSettings::default();
    let mut seen = Observation::of(machine.clone(), settings.limits_of(machine), now);
    let name = node_of(machine).ok_or("the machine has no Node yet")?;
    let node = objects.node.clone().ok_or_else(|| format!("this cluster has no Node {name}"))?;
    match owner(&claim(machine, &node), &node, &rivals(machine, &node, fleet)) {
        Owner::Ours => {}
        Owner::Foreign(why) => return Err(format!("Node {name} belongs to something else and is left alone: {why}")),
        Owner::Contested(why) => {
            return Err(format!("whose Node {name} is can't be told, so that it is left alone: {why}"));
        }
    }
    seen.node = NodeView::Ours(node.clone());
    let drain = Drain::of(objects, name, Some(&node), &seen, drain_mode(&seen), settings.evictions_per_node);
    let began = Instant::now();
    let forecast = forecast(drain.question(), &|| began.elapsed() < PLAN_WITHIN);
    let status = serde_json::to_value(drain.status(forecast.as_ref())).map_err(|error| error.to_string())?;
    let mut plan: DrainPlan = serde_json::from_value(status).map_err(|error| error.to_string())?;
    machine.name().clone_into(&mut plan.machine_name);
    name.clone_into(&mut plan.node_name);
    Ok(plan)
}

/// The name of a machine's Node.
pub fn node_of(machine: &MachineSnapshot) -> Option<&str> {
    machine.label(label::NODE).filter(|name| !name.is_empty())
}

/// The machines of the namespace that the Node could belong to as well.
fn rivals<'a>(machine: &MachineSnapshot, node: &NodeSnapshot, fleet: &'a Fleet) -> Vec<Claim<'a>> {
    let others = fleet.machines.iter().filter(|other| other.uid() != machine.uid());
    let claims = others.map(|other| claim(other, node));
    claims.filter(|one| node_of(one.machine) == Some(node.name()) || one.instance == SameInstance::Same).collect()
}

/// The claim of a machine, as far as equal ids prove it. Only its driver knows whether other ids mean the same instance.
fn claim<'a>(machine: &'a MachineSnapshot, node: &NodeSnapshot) -> Claim<'a> {
    let is_same = !machine.provider_id().is_empty() && machine.provider_id() == node.provider_id();
    Claim { machine, instance: if is_same { SameInstance::Same } else { SameInstance::Unknown } }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{
        core::v1::{Node, Pod},
        policy::v1::PodDisruptionBudget,
    };
    use serde_json::{Value, json};

    use super::super::testing::{fleet, now};
    use super::*;

    fn pod(name: &str, app: &str, further: &Value) -> PodSnapshot {
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "shop", "uid": format!("u-{name}"), "labels": { "app": app } },
            "spec": { "nodeName": "node-b", "containers": [], "terminationGracePeriodSeconds": 30 },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        json_patch::merge(&mut pod, further);
        serde_json::from_value::<Pod>(pod).unwrap().into()
    }

    fn objects_of(node: Value) -> Objects {
        let owner = json!({ "metadata": { "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u", "controller": true }] } });
        let budget = json!({
            "metadata": { "name": "db", "namespace": "shop" },
            "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": "db" } } },
            "status": { "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 },
        });
        Objects {
            node: Some(serde_json::from_value::<Node>(node).unwrap().into()),
            pods: vec![
                pod("web-0", "web", &json!({})),
                pod("db-0", "db", &json!({})),
                pod("agent", "agent", &owner),
                pod("elsewhere", "web", &json!({ "spec": { "nodeName": "node-c" } })),
            ],
            budgets: vec![serde_json::from_value::<PodDisruptionBudget>(budget).unwrap().into()],
            ..Objects::default()
        }
    }

    fn own_node() -> Value {
        json!({ "metadata": { "name": "node-b", "uid": "u" }, "spec": { "providerID": "virtual:///b" },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] } })
    }

    #[test]
    fn pk_070_without_views_the_managers_rules_plan_with_the_objects_of_the_node() {
        let fleet = fleet();
        let plan = plan(&fleet.machines[1], &fleet, &objects_of(own_node()), now()).unwrap();
        assert_eq!((plan.machine_name.as_str(), plan.node_name.as_str()), ("web-2-b", "node-b"));
        assert_eq!((plan.mode.as_str(), plan.totals.pods, plan.totals.ignored), ("Normal", 2, 1));
        let leave: Vec<&str> = plan.waves.iter().flat_map(|wave| &wave.pods).map(|pod| pod.name.as_str()).collect();
        assert!(leave.contains(&"web-0") && !leave.contains(&"agent") && !leave.contains(&"elsewhere"), "{plan:?}");
        let blocked = &plan.blocked[0];
        assert_eq!((blocked.name.as_str(), blocked.budget.name.as_str(), blocked.misconfigured), ("db-0", "db", true));
        assert!(plan.will_force && plan.deadline.is_some_and(|end| end > now()), "{plan:?}");
    }

    #[test]
    fn a_node_that_is_not_the_machines_is_left_alone() {
        let fleet = fleet();
        let mut foreign = own_node();
        foreign["spec"]["providerID"] = json!("virtual:///c");
        let why = plan(&fleet.machines[1], &fleet, &objects_of(foreign), now()).unwrap_err();
        assert!(why.contains("belongs to something else") && why.contains("web-2-c"), "{why}");
        let why = plan(&fleet.machines[1], &fleet, &Objects::default(), now()).unwrap_err();
        assert_eq!(why, "this cluster has no Node node-b");
    }
}
