//! The leader is killed in every stage of the life of a machine in which it can be held up, and another one goes on.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};

use crate::{
    fleet::{self, describe, none_left},
    guard,
    support::{ManagerOptions, Namespace, TestManager, cluster_object::text, wait::expect, wait_until},
    weather::{PATIENCE, explanation, names, node_of, sky},
};

/// What holds machines up, so that a kill surely finds them there; `reasons` is what their condition then says.
struct Stage {
    what: &'static str,
    /// The latency that becomes endless.
    held: &'static str,
    reasons: &'static [&'static str],
}

const CREATION: [Stage; 3] = [
    Stage { what: "the order of the VM", held: "create", reasons: &["WaitingForVM", "AwaitingDriver"] },
    Stage { what: "the VM's start", held: "boot", reasons: &["WaitingForNode"] },
    Stage { what: "the Node's readiness", held: "ready", reasons: &["WaitingForNode", "WaitingForNodeReady"] },
];
const DELETION: [Stage; 2] = [
    Stage { what: "the drain", held: "nothing", reasons: &["DrainBlocked", "DrainFailed"] },
    Stage {
        what: "the end of the VM",
        held: "delete",
        reasons: &["AwaitingDriver", "WaitingForProvider", "DeletingVM"],
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn mc_284_a_leader_that_dies_in_any_stage_is_succeeded() {
    let Some(rig) = sky("weather_stages::mc_284_a_leader_that_dies").await else { return };
    let namespace = rig.namespace("stages").await;
    let state = rig.folder.join(format!("{}.json", namespace.name));
    let options = ManagerOptions {
        simulation: cloud_that_holds(CREATION[0].held),
        flags: vec![format!("--simulation-state=json:{}", state.display())],
        ..ManagerOptions::default()
    };
    let mut manager = TestManager::start(&rig, &namespace, &options).await;
    namespace.apply(&fleet::manifests(&namespace.name, "stages", 1, "stages")).await.succeed();

    for (stage, next) in CREATION.iter().zip(["boot", "ready", "nothing"]) {
        if stage.held == "ready" {
            // A condition that only changes its reason while a machine starts may wait for a minute.
            wait_until("the Node to register", PATIENCE, || async {
                // Others have Nodes on this control plane, too; ours is called as its machine.
                let machines = names(&namespace.list("machines").await);
                let nodes = names(&namespace.list("nodes").await);
                expect(nodes.intersection(&machines).count() == 1, || format!("{machines:?}, {nodes:?}"))
            })
            .await;
        }
        machine_is_held(&namespace, stage).await;
        succeeded(&mut manager, next).await;
    }
    let running = fleet::running_machines(&namespace, 1, PATIENCE).await;
    let wanted: BTreeSet<String> = running.iter().map(|machine| text(machine, "/spec/providerID").to_owned()).collect();
    wait_until("the machine to have one VM", PATIENCE, || async {
        let vms = vms_in(&state);
        expect(vms.len() == 1 && vms.iter().cloned().collect::<BTreeSet<_>>() == wanted, || format!("{vms:?}"))
    })
    .await;

    guard::a_pod_on(&namespace, node_of(&running[0])).await;
    namespace.kubectl(&["delete", "machinedeployment", "stages", "--wait=false"]).await.succeed();
    for (stage, next) in DELETION.iter().zip(["delete", "nothing"]) {
        machine_is_held(&namespace, stage).await;
        succeeded(&mut manager, next).await;
        if stage.what == "the drain" {
            namespace.kubectl(&["delete", "poddisruptionbudget", guard::NAME]).await.succeed();
        }
    }
    none_left(&namespace, "machinedeployments", PATIENCE).await;
    assert!(vms_in(&state).is_empty(), "{:?}", vms_in(&state));
}

/// A cloud in which one thing never ends.
fn cloud_that_holds(what: &str) -> String {
    let latency = ["create", "boot", "ready", "delete"]
        .map(|key| format!("  {key}: {{constant: {}}}\n", if key == what { "1h" } else { "0s" }));
    format!("seed: 5\nlatency:\n{}", latency.concat())
}

/// Waits until the machine's condition says that it waits in the stage.
async fn machine_is_held(namespace: &Namespace, stage: &Stage) {
    wait_until(&format!("the machine to wait for {}", stage.what), PATIENCE, || async {
        let machines = namespace.list("machines").await;
        let held = machines.iter().all(|machine| stage.reasons.contains(&reason(machine)));
        let seen = |machine: &Value| format!("{}\n{}: {}\n", describe(machine), reason(machine), explanation(machine));
        expect(held && machines.len() == 1, || machines.iter().map(seen).collect())
    })
    .await;
}

/// Kills the manager; the next one's cloud holds up something else.
async fn succeeded(manager: &mut TestManager, held: &str) {
    manager.kill();
    manager.simulate(&cloud_that_holds(held));
    manager.restart();
    manager.wait_until_ready().await;
}

/// Reason of the condition that explains a machine's wait; empty when there is none.
fn reason(machine: &Value) -> &str {
    let conditions = machine.pointer("/status/machineConditions").and_then(Value::as_array);
    let progress = conditions.into_iter().flatten().find(|condition| text(condition, "/type") == "Progressing");
    progress.map_or("", |condition| text(condition, "/reason"))
}

fn vms_in(state: &Path) -> Vec<String> {
    let document: Value = serde_json::from_str(&fs::read_to_string(state).unwrap_or_default()).unwrap_or(json!({}));
    let vms = document.get("vms").and_then(Value::as_array).cloned().unwrap_or_default();
    vms.iter().map(|vm| text(vm, "/providerID").to_owned()).collect()
}
