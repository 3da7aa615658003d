//! The manager is killed again and again in the middle of rollouts.
//!
//! The cloud outlives the manager, as a real cloud does: its VMs are in a JSON file that each start reads. At any moment there is at most one VM per
//! machine. In the end there are exactly the requested machines, each with one VM, and no other VM. `MCM_TEST_SEED` repeats the moments of a run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::RngExt;
use serde_json::{Value, json};

use crate::{
    fleet,
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        clouds::chance,
        cluster_object::{name, number, text},
        wait::expect,
        wait_until,
    },
};

const MACHINES: u32 = 20;
const KILLS: usize = 10;
/// Slow enough that a kill interrupts creations and deletions.
const SLOW_CLOUD: &str = "\
seed: 7
latency:
  create: {constant: 400ms}
  boot: {constant: 300ms}
  ready: {constant: 100ms}
  delete: {constant: 400ms}
  api: {constant: 5ms}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_survives_kills_at_any_moment() {
    let Some(rig) = Rig::own("crash::a_rollout_survives_kills_at_any_moment").await else { return };
    let mut chance = chance();

    rig.with_controller_manager().await;
    rig.install_crds().await;
    let namespace = rig.namespace("crash").await;
    let state = rig.folder.join("vms.json");
    let options = ManagerOptions {
        simulation: SLOW_CLOUD.to_owned(),
        flags: vec![format!("--simulation-state=json:{}", state.display())],
        ..ManagerOptions::default()
    };
    let mut manager = TestManager::start(&rig, &namespace, &options).await;
    let vm_recorder = VmRecorder::of(&state);

    namespace.apply(&fleet::manifests(&namespace.name, "crash", MACHINES, "class-a")).await.succeed();
    fleet::running_machines(&namespace, MACHINES as usize, Duration::from_secs(180)).await;

    let mut class = "class-a";
    for _ in 0..KILLS {
        if is_rolled_out(&namespace, class).await.is_ok() {
            class = if class == "class-a" { "class-b" } else { "class-a" };
            namespace.apply(&fleet::manifests(&namespace.name, "crash", MACHINES, class)).await.succeed();
        }
        tokio::time::sleep(Duration::from_millis(chance.random_range(50..1500))).await;
        manager.kill();
        manager.restart();
    }
    manager.wait_until_ready().await;

    wait_until("the rollout to end", Duration::from_secs(300), || is_rolled_out(&namespace, class)).await;
    wait_until("every VM to have its machine, and only one", Duration::from_secs(60), || async {
        let machines = namespace.list("machines").await;
        let wanted: BTreeMap<String, String> = machines
            .iter()
            .map(|machine| (name(machine).to_owned(), text(machine, "/spec/providerID").to_owned()))
            .collect();
        let vms = vms_in(&state);
        let found: BTreeMap<String, String> = vms.iter().cloned().collect();
        expect(wanted == found && vms.len() == MACHINES as usize, || format!("machines {wanted:#?}\nVMs {vms:#?}"))
    })
    .await;
    for (machine, provider_ids) in vm_recorder.recorded() {
        assert_eq!(provider_ids.len(), 1, "machine {machine} had several VMs: {provider_ids:?}");
    }
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
}

/// Whether exactly the requested machines run with a class.
async fn is_rolled_out(namespace: &Namespace, class: &str) -> Result<(), String> {
    let deployment = namespace.get("machinedeployment", "crash").await;
    fleet::rolled_out(&deployment, i64::from(MACHINES))?;
    expect(number(&deployment, "/status/availableReplicas") == i64::from(MACHINES), || {
        deployment["status"].to_string()
    })?;
    let machines = namespace.list("machines").await;
    let fine = |machine: &Value| fleet::phase(machine) == "Running" && text(machine, "/spec/class/name") == class;
    expect(machines.len() == MACHINES as usize && machines.iter().all(fine), || {
        machines.iter().map(|machine| fleet::describe(machine) + "\n").collect()
    })
}

/// Name and provider id of every VM in the cloud.
fn vms_in(state: &Path) -> Vec<(String, String)> {
    let text_of = fs::read_to_string(state).unwrap_or_default();
    let document: Value = serde_json::from_str(&text_of).unwrap_or(json!({}));
    let vms = document.get("vms").and_then(Value::as_array).cloned().unwrap_or_default();
    vms.iter().map(|vm| (text(vm, "/name").to_owned(), text(vm, "/providerID").to_owned())).collect()
}

/// Reads the cloud's state all the time and records every VM that each machine ever had.
struct VmRecorder {
    recorded: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
    watching: tokio::task::JoinHandle<()>,
}

impl VmRecorder {
    fn of(state: &Path) -> Self {
        let recorded = Arc::new(Mutex::new(BTreeMap::<String, BTreeSet<String>>::new()));
        let (entries, state): (_, PathBuf) = (Arc::clone(&recorded), state.to_path_buf());
        let watching = tokio::spawn(async move {
            loop {
                for (machine, provider_id) in vms_in(&state) {
                    let mut entries = entries.lock().expect("the recorder does not panic");
                    entries.entry(machine).or_default().insert(provider_id);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        Self { recorded, watching }
    }

    fn recorded(&self) -> BTreeMap<String, BTreeSet<String>> {
        self.recorded.lock().expect("the recorder does not panic").clone()
    }
}

impl Drop for VmRecorder {
    fn drop(&mut self) {
        self.watching.abort();
    }
}
