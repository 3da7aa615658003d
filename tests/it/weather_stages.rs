//! The leader is killed in every stage of the life of a machine that a person can see, and another one goes on.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use serde_json::{Value, json};

use crate::{
    fleet::{self, none_left, phase},
    support::{
        ManagerOptions, TestManager,
        cluster_object::{name, text},
        wait::expect,
        wait_until,
    },
    weather::{Silences, sky},
};

const PATIENCE: Duration = Duration::from_secs(120);
/// Slow enough that each stage can be seen before it is over.
const SLOW_CLOUD: &str = "\
seed: 5
latency:
  create: {constant: 700ms}
  boot: {constant: 700ms}
  ready: {constant: 300ms}
  delete: {constant: 700ms}
  api: {constant: 300ms}
";

#[tokio::test(flavor = "multi_thread")]
async fn mc_284_a_leader_that_dies_in_any_stage_is_succeeded() {
    let Some(rig) = sky("weather_stages::mc_284_a_leader_that_dies").await else { return };
    let namespace = rig.namespace("stages").await;
    let state = rig.folder.join("stages.json");
    let options = ManagerOptions {
        simulation: SLOW_CLOUD.to_owned(),
        flags: vec![format!("--simulation-state=json:{}", state.display())],
        ..ManagerOptions::default()
    };
    let mut manager = TestManager::start(&rig, &namespace, &options).await;
    namespace.apply(&fleet::manifests(&namespace.name, "stages", 2, "stages")).await.succeed();

    let mut met = BTreeSet::new();
    kill_at_each_new_stage(&mut manager, &mut met, || async {
        let machines = namespace.list("machines").await;
        let done = machines.len() == 2 && machines.iter().all(|machine| phase(machine) == "Running");
        (machines, done)
    })
    .await;
    let running = fleet::running_machines(&namespace, 2, PATIENCE).await;
    let wanted: BTreeSet<String> = running.iter().map(|machine| text(machine, "/spec/providerID").to_owned()).collect();
    wait_until("one VM per machine", PATIENCE, || async {
        let vms = vms_in(&state);
        expect(vms.len() == 2 && vms.iter().cloned().collect::<BTreeSet<_>>() == wanted, || format!("{vms:?}"))
    })
    .await;

    namespace.kubectl(&["delete", "machinedeployment", "stages", "--wait=false"]).await.succeed();
    kill_at_each_new_stage(&mut manager, &mut met, || async {
        let machines = namespace.list("machines").await;
        let done = machines.is_empty();
        (machines, done)
    })
    .await;
    none_left(&namespace, "machinedeployments", PATIENCE).await;
    assert!(vms_in(&state).is_empty(), "{:?}", vms_in(&state));
    assert!(met.len() >= 5, "too few stages were met to mean anything: {met:#?}");
}

/// Kills the leader whenever some machine shows a stage that has not been met before, and starts it again.
async fn kill_at_each_new_stage<F, Fut>(manager: &mut TestManager, met: &mut BTreeSet<String>, look: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = (Vec<Value>, bool)>,
{
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let silences = Silences::default();
    loop {
        let (machines, done) = look().await;
        silences.look(&machines);
        if done {
            return;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "machines are stuck after the stages {met:#?}: {}",
            machines.iter().map(|machine| fleet::describe(machine) + "\n").collect::<String>()
        );
        if machines.iter().any(|machine| met.insert(stage(machine))) {
            manager.kill();
            manager.restart();
            manager.wait_until_ready().await;
        }
    }
}

/// What a machine shows of where it stands, without what differs from machine to machine.
fn stage(machine: &Value) -> String {
    let description = text(machine, "/status/lastOperation/description").replace(name(machine), "M");
    let words: String = description.split_whitespace().take(12).collect::<Vec<_>>().join(" ");
    let identity = if text(machine, "/spec/providerID").is_empty() { "without VM" } else { "with VM" };
    format!("{} {identity}: {words}", phase(machine))
}

fn vms_in(state: &Path) -> Vec<String> {
    let document: Value = serde_json::from_str(&fs::read_to_string(state).unwrap_or_default()).unwrap_or(json!({}));
    let vms = document.get("vms").and_then(Value::as_array).cloned().unwrap_or_default();
    vms.iter().map(|vm| text(vm, "/providerID").to_owned()).collect()
}
