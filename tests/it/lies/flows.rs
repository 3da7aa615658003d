//! The flows of a machine's life: the objects that exist before the lie, the change that is applied, and the objects that may be deleted.

use std::{collections::BTreeSet, time::Duration};

use machine_api::crd::{CrdOptions, definitions};

use serde_json::{Value, json};

use super::{
    weather::ActiveLie,
    world::{CloudState, OnExit, World},
};
use crate::{
    fleet::{self, describe, phase, rolled_out},
    go::left_behind,
    guard,
    rollout::{is_handed_over, is_selected},
    support::{
        cluster_object::{name, number, text},
        one_thread::{MACHINE_PATH, NAMESPACE, install, list, post},
        scratch,
        wait::expect,
    },
};

/// The deployment that changes.
const FLEET: &str = "fleet";
/// The deployment that does not change.
const BYSTANDER: &str = "bystander";
const CLASS: &str = "class-a";
/// Long periods, because renewals of Leases would otherwise be most of the requests in this world.
const ELECTION: [&str; 3] =
    ["--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=40s", "--leader-elect-retry-period=10s"];
const WITHOUT_ELECTION: &[&str] = &["--leader-elect=false"];
const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
/// The pools of the original's fleet: one was paused in the middle of a rolling update, and one is idle.
const POOLS: [&str; 2] = ["half", "recreate"];
/// The old set of the pool `half`.
const OLD_SET: &str = "half-58884-";

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flow {
    /// A deployment is applied.
    Create,
    /// Machines run, a Node is unresponsive for a moment, and a label of the template changes.
    Run,
    /// A machine is deleted while the budget of its pod allows no eviction for some time.
    Drain,
    /// A deployment is scaled in and then deleted.
    Delete,
    /// The template changes.
    Roll,
    /// The template changes in a deployment with in-place updates, so the machines are kept.
    RollInPlace,
    /// The leader dies while a rolling update creates a machine.
    TakeOverACreation,
    /// The leader dies while a rolling update deletes a machine.
    TakeOverADeletion,
    /// A fleet that the Go original left behind. A rolling update that the original had paused continues.
    TakeOverFromTheOriginal,
}

impl Flow {
    /// Creates the objects that exist before any lie.
    pub async fn begins(self, seed: u64, telling: ActiveLie) -> World {
        if self == Self::TakeOverFromTheOriginal {
            return fleet_of_the_original(seed, telling).await;
        }
        let mut world = World::new(seed, CloudState::ConfigMap, telling);
        install(&world.stage.client).await;
        if self.is_take_over() {
            world.start_manager(&ELECTION, OnExit::Restart).await;
            world.start_manager(&ELECTION, OnExit::Restart).await;
        } else {
            world.start_manager(WITHOUT_ELECTION, OnExit::Fail).await;
        }
        for object in &manifests(BYSTANDER, 1)[..2] {
            let plural = if object["kind"] == "Secret" { SECRETS } else { CLASSES };
            post(&world.stage.client, plural, object).await;
        }
        apply(&world, BYSTANDER, 1, None).await;
        if self != Self::Create {
            let strategy = (self == Self::RollInPlace).then(in_place);
            apply(&world, FLEET, self.replicas(), strategy).await;
        }
        world.until("the fleet to run", async |world| self.stands(world).await).await;
        world
    }

    fn is_take_over(self) -> bool {
        matches!(self, Self::TakeOverACreation | Self::TakeOverADeletion)
    }

    /// The number of machines of the fleet at the beginning.
    fn replicas(self) -> usize {
        match self {
            Self::Create | Self::TakeOverFromTheOriginal => 0,
            Self::Delete => 3,
            _ => 2,
        }
    }

    /// Whether the bystander and the fleet are as they were applied.
    async fn stands(self, world: &World) -> Result<(), String> {
        runs(world, BYSTANDER, 1).await?;
        runs(world, FLEET, self.replicas()).await?;
        is_even(world).await
    }

    /// Starts the lie, applies the change of the flow, and waits until the result is complete.
    pub async fn happens(self, world: &mut World) {
        let initial = world.machines_of(FLEET).await;
        world.start_lie();
        match self {
            Self::Create => apply(world, FLEET, 2, None).await,
            Self::Run => change_a_running_fleet(world, &initial).await,
            Self::Drain => drains(world, &initial).await,
            Self::Delete => deletes(world, &initial).await,
            Self::Roll => rolls(world, &initial).await,
            Self::RollInPlace => rolls_in_place(world).await,
            Self::TakeOverACreation => {
                rolls(world, &initial).await;
                let is_made = |machine: &Value| phase(machine) == "Pending";
                kill_leader_when(world, "a machine is made", is_made).await;
            }
            Self::TakeOverADeletion => {
                rolls(world, &initial).await;
                kill_leader_when(world, "a machine is deleted", is_deleting).await;
            }
            Self::TakeOverFromTheOriginal => {
                for machine in world.ours("machines").await.iter().map(name).filter(|name| name.starts_with(OLD_SET)) {
                    world.ledger.may_go(machine);
                }
                world.start_manager(WITHOUT_ELECTION, OnExit::Restart).await;
                world.patches("machinedeployments", "half", &json!({ "spec": { "paused": false } })).await;
            }
        }
        world.until("all to be as applied", async |world| self.is_whole(world).await).await;
    }

    /// Whether everything is as it was applied last.
    pub async fn is_whole(self, world: &World) -> Result<(), String> {
        match self {
            Self::Delete => runs(world, BYSTANDER, 1).await?,
            Self::TakeOverFromTheOriginal => {
                runs_as("half", world, &pool_of(world, "half").await, 4).await?;
                runs_as("recreate", world, &pool_of(world, "recreate").await, 2).await?;
            }
            _ => {
                runs(world, BYSTANDER, 1).await?;
                runs(world, FLEET, 2).await?;
            }
        }
        if matches!(self, Self::Roll | Self::TakeOverACreation | Self::TakeOverADeletion) {
            let machines = world.machines_of(FLEET).await;
            let rolled = |machine: &Value| machine["metadata"]["annotations"]["rolled"] == "yes";
            expect(machines.iter().all(rolled), || machines.iter().map(describe).collect::<Vec<_>>().join("\n"))?;
        }
        if self == Self::Run {
            for node in world.nodes().await.iter().filter(|node| !name(node).starts_with(BYSTANDER)) {
                expect(text(node, "/metadata/labels/changed") == "yes", || node["metadata"].to_string())?;
            }
        }
        is_even(world).await
    }
}

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const CLASSES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machineclasses";

fn manifests(name: &str, replicas: usize) -> Vec<Value> {
    let replicas = u32::try_from(replicas).expect("few");
    let list: Value = serde_json::from_str(&fleet::manifests(NAMESPACE, name, replicas, CLASS)).expect("JSON");
    list["items"].as_array().cloned().unwrap_or_default()
}

async fn apply(world: &World, name: &str, replicas: usize, strategy: Option<Value>) {
    let mut deployment = manifests(name, replicas).remove(2);
    if let Some(strategy) = strategy {
        deployment["spec"]["strategy"] = strategy;
    }
    post(&world.stage.client, &format!("{MACHINE_PATH}/machinedeployments"), &deployment).await;
}

fn in_place() -> Value {
    let limits = json!({ "maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Auto" });
    json!({ "type": "InPlaceUpdate", "inPlaceUpdate": limits })
}

fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

/// Whether a deployment of the test has this number of machines, all machines run, and its status agrees.
async fn runs(world: &World, fleet: &str, replicas: usize) -> Result<(), String> {
    if replicas == 0 {
        return Ok(());
    }
    runs_as(fleet, world, &world.machines_of(fleet).await, replicas).await
}

async fn runs_as(fleet: &str, world: &World, machines: &[Value], replicas: usize) -> Result<(), String> {
    let all = machines.iter().all(|machine| phase(machine) == "Running" && !is_deleting(machine));
    expect(all && machines.len() == replicas, || machines.iter().map(describe).collect::<Vec<_>>().join("\n"))?;
    let deployments = world.ours("machinedeployments").await;
    let deployment = deployments.iter().find(|deployment| name(deployment) == fleet).ok_or("no deployment")?;
    let replicas = i64::try_from(replicas).expect("few");
    rolled_out(deployment, replicas)?;
    expect(number(deployment, "/status/availableReplicas") == replicas, || deployment["status"].to_string())
}

async fn pool_of(world: &World, pool: &str) -> Vec<Value> {
    let mut machines = world.ours("machines").await;
    machines.retain(|machine| machine["metadata"]["labels"]["pool"] == pool);
    machines
}

/// Whether each machine has its VM and its Node, and no other VM and no other Node exists.
async fn is_even(world: &World) -> Result<(), String> {
    let machines = world.ours("machines").await;
    let wanted: BTreeSet<String> =
        machines.iter().map(|machine| text(machine, "/spec/providerID").to_owned()).collect();
    let vms = world.ledger.vms();
    expect(vms == wanted, || format!("VMs {vms:?} of {wanted:?}"))?;
    let wanted: BTreeSet<String> =
        machines.iter().map(|machine| text(machine, "/metadata/labels/node").to_owned()).collect();
    let nodes: BTreeSet<String> = world.nodes().await.iter().map(|node| name(node).to_owned()).collect();
    expect(nodes == wanted, || format!("Nodes {nodes:?} of {wanted:?}"))
}

/// Makes one Node unresponsive for a moment, and adds a label for the Nodes to the template, which replaces no machine.
async fn change_a_running_fleet(world: &mut World, initial: &[Value]) {
    let silent = json!({ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "set by the test",
        "lastHeartbeatTime": "2026-12-01T00:00:00Z", "lastTransitionTime": "2026-12-01T00:00:00Z" });
    let node = format!("/api/v1/nodes/{}/status", text(&initial[0], "/metadata/labels/node"));
    world.merges(&node, &json!({ "status": { "conditions": [silent] } })).await;
    let label = json!({ "nodeTemplate": { "metadata": { "labels": { "changed": "yes" } } } });
    world.patches("machinedeployments", FLEET, &json!({ "spec": { "template": { "spec": label } } })).await;
    // Longer than the period of the search for orphans.
    world.check_for(Duration::from_secs(16 * 60), async |_| Ok(())).await;
}

/// While the budget allows no eviction, pod, machine and VM stay. Afterwards they are deleted.
async fn drains(world: &mut World, initial: &[Value]) {
    let machine = &initial[0];
    for object in guard::manifest(text(machine, "/metadata/labels/node"))["items"].as_array().expect("a list") {
        post(&world.stage.client, if object["kind"] == "Pod" { PODS } else { BUDGETS }, object).await;
    }
    world
        .until("the budget to count its pod", async |world| {
            let budgets = list(&world.stage.client, BUDGETS).await;
            expect(number(&budgets[0], "/status/currentHealthy") == 1, || budgets[0]["status"].to_string())
        })
        .await;
    world.deletes_machine(machine).await;
    let refused = async |world: &World| {
        let pods = list(&world.stage.client, PODS).await;
        expect(pods.len() == 1 && !is_deleting(&pods[0]), || "the pod is deleted against its budget".to_owned())?;
        let machines = world.machines_of(FLEET).await;
        expect(machines.iter().any(|left| name(left) == name(machine)), || {
            "the machine is deleted before its pod".to_owned()
        })
    };
    world.check_for(Duration::from_secs(4 * 60), refused).await;
    world.ledger.may_go(guard::NAME);
    world.deletes(&format!("{BUDGETS}/{}", guard::NAME)).await;
    is_gone(world, &[name(machine).to_owned()]).await;
}

async fn is_gone(world: &mut World, machines: &[String]) {
    let gone = async |world: &World| {
        let left = world.ours("machines").await;
        let left: Vec<String> =
            left.iter().filter(|machine| machines.iter().any(|gone| gone == name(machine))).map(describe).collect();
        expect(left.is_empty(), || left.join("\n"))
    };
    world.until("machines to go", gone).await;
}

/// First the machine of the lowest priority is deleted, then all machines.
async fn deletes(world: &mut World, initial: &[Value]) {
    let chosen = name(&initial[1]);
    let priority = json!({ "metadata": { "annotations": { "machinepriority.machine.sapcloud.io": "1" } } });
    world.patches("machines", chosen, &priority).await;
    world.ledger.may_go(chosen);
    // The set controller must have read the priority before it chooses; at the latest when machines can be listed again.
    world.check_for(Duration::from_secs(5 * 60), async |_| Ok(())).await;
    world.patches("machinedeployments", FLEET, &json!({ "spec": { "replicas": 2 } })).await;
    world.until("one machine to go", async |world| runs(world, FLEET, 2).await).await;
    is_gone(world, &[chosen.to_owned()]).await;
    let faults = world.ledger.faults();
    assert!(faults.is_empty(), "{faults:#?}");
    for machine in initial {
        world.ledger.may_go(name(machine));
    }
    world.deletes(&format!("{MACHINE_PATH}/machinedeployments/{FLEET}")).await;
    is_gone(world, &initial.iter().map(|machine| name(machine).to_owned()).collect::<Vec<_>>()).await;
}

/// Changes the template; all old machines may be deleted.
async fn rolls(world: &mut World, initial: &[Value]) {
    for machine in initial {
        world.ledger.may_go(name(machine));
    }
    let rolled = json!({ "spec": { "template": { "metadata": { "annotations": { "rolled": "yes" } } } } });
    world.patches("machinedeployments", FLEET, &rolled).await;
}

/// Kills the leader as soon as the condition holds for a machine of the fleet.
async fn kill_leader_when(world: &mut World, what: &str, holds: impl Fn(&Value) -> bool) {
    world
        .until(what, async |world| {
            let machines = world.machines_of(FLEET).await;
            expect(machines.iter().any(&holds), || machines.iter().map(describe).collect::<Vec<_>>().join("\n"))
        })
        .await;
    world.kill_first_manager();
}

/// Changes the class; the test plays the agent on the Nodes.
async fn rolls_in_place(world: &mut World) {
    let mut class = manifests(FLEET, 2).remove(1);
    class["metadata"]["name"] = json!("class-b");
    post(&world.stage.client, CLASSES, &class).await;
    let rolled = json!({ "spec": { "template": { "spec": { "class": { "name": "class-b" } } } } });
    world.patches("machinedeployments", FLEET, &rolled).await;
    let updated = json!({ "metadata": { "labels": { "node.machine.sapcloud.io/update-result": "successful" } } });
    world
        .until("all machines to be updated", async |world| {
            let nodes = world.nodes().await;
            let selected: Vec<&Value> = nodes.iter().filter(|node| is_selected(node)).collect();
            assert!(selected.len() <= 1, "{} nodes are updated at once", selected.len());
            for node in selected.into_iter().filter(|node| is_handed_over(node)) {
                world.merges(&format!("/api/v1/nodes/{}", name(node)), &updated).await;
            }
            let sets = world.ours("machinesets").await;
            let new =
                sets.iter().find(|set| text(set, "/spec/template/spec/class/name") == "class-b").ok_or("no new set")?;
            let machines = world.machines_of(FLEET).await;
            let all = machines.iter().all(|machine| text(machine, "/metadata/ownerReferences/0/name") == name(new));
            expect(all, || machines.iter().map(describe).collect::<Vec<_>>().join("\n"))
        })
        .await;
}

/// Creates two pools of the original, one of them in the middle of a rolling update. The VMs of their machines run.
async fn fleet_of_the_original(seed: u64, telling: ActiveLie) -> World {
    let path = scratch::subfolder("cloud").join("vms.json");
    let mut world = World::new(seed, CloudState::File(path.clone()), telling);
    for definition in definitions(&CrdOptions::default()) {
        post(&world.stage.client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    }
    let mut secret = manifests(FLEET, 0).remove(0);
    secret["metadata"]["name"] = json!("s");
    post(&world.stage.client, SECRETS, &secret).await;
    left_behind::recreate(&world.stage.client, NAMESPACE, |object| {
        let pool = text(object, "/metadata/labels/pool");
        let deployment = name(object);
        object["kind"] == "MachineClass" || POOLS.contains(&pool) || POOLS.contains(&deployment)
    })
    .await;
    let vm = |machine: &Value| json!({ "name": name(machine), "providerID": machine["spec"]["providerID"], "nodeName": machine["metadata"]["labels"]["node"] });
    let vms: Vec<Value> = world.ours("machines").await.iter().map(vm).collect();
    std::fs::write(&path, json!({ "version": 1, "vms": vms }).to_string()).expect("the scratch folder is writable");
    let server = std::sync::Arc::clone(&world.stage.server);
    world.ledger.looks(&server);
    world
}
