//! This program and the program of the last release, one after the other and side by side (nightly). `MCM_TEST_RELEASE` names the program, which
//! `scripts/release-before` builds.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::objects::everything;
use crate::{
    fleet,
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        cluster_object::{items, text},
        manager::SWIFT_CLOUD,
        wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(120);
/// How long both run as replicas, and the pause between two hand-overs. `MCM_TEST_REPLICAS=SECONDS` sets another length.
const SIDE_BY_SIDE: Duration = Duration::from_secs(300);
const HAND_OVER: Duration = Duration::from_secs(10);
/// A program that found a reason to write would have done so by now.
const SETTLED: Duration = Duration::from_secs(8);
const THIS: &str = env!("CARGO_BIN_EXE_mcm");

fn release_before() -> PathBuf {
    let program = std::env::var_os("MCM_TEST_RELEASE").expect("MCM_TEST_RELEASE names the program of the last release");
    PathBuf::from(program)
}

/// Both programs keep their simulated VMs in the same `ConfigMaps`, and take turns.
fn options() -> ManagerOptions {
    let flags = ["--leader-elect=true", "--leader-elect-retry-period=1s", "--simulation-state=configmap:vms"];
    let simulation = SWIFT_CLOUD.replace("impersonate: [AWS]\n", "");
    ManagerOptions { flags: flags.map(str::to_owned).to_vec(), simulation, ..ManagerOptions::default() }
}

async fn started(program: &Path, name: &str, rig: &Arc<Rig>, namespace: &Namespace) -> TestManager {
    TestManager::start_program(program, name, rig, namespace, &options()).await
}

/// The provider ids of the simulated VMs.
async fn vms(namespace: &Namespace) -> BTreeSet<String> {
    let selector = "--selector=virtual.machine.sapcloud.io/state=vms";
    let maps = namespace.kubectl(&["get", "configmaps", selector, "-o", "json"]).await.json();
    let mut found = BTreeSet::new();
    for map in items(&maps) {
        for (key, value) in map["data"].as_object().into_iter().flatten() {
            if key.starts_with("vm.") {
                let vm: Value = serde_json::from_str(value.as_str().unwrap_or_default()).expect("a record is JSON");
                assert!(found.insert(text(&vm, "/providerID").to_owned()), "two VMs have one id");
            }
        }
    }
    found
}

/// Each machine has one VM, and each VM has a machine.
async fn vms_fit(namespace: &Namespace) -> Result<(), String> {
    let machines = namespace.list("machines").await;
    let ids: Vec<String> = machines.iter().map(|machine| text(machine, "/spec/providerID").to_owned()).collect();
    let unique: BTreeSet<String> = ids.iter().cloned().collect();
    let vms = vms(namespace).await;
    expect(unique.len() == ids.len() && unique == vms, || format!("machines {ids:?}\nVMs {vms:?}"))
}

fn unchanged(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>, by: &str) {
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{by}");
    for (key, object) in before {
        assert_eq!(object, &after[key], "{by} has changed {key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: needs the program of the last release"]
async fn pk_112_an_upgrade_and_the_way_back_change_nothing() {
    let Some(rig) = Rig::own("releases::replicas::pk_112").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("forth").await;
    let before = release_before();
    let mut manager = started(&before, "before", &rig, &namespace).await;
    for (pool, replicas) in [("a", 3), ("b", 2)] {
        namespace.apply(&fleet::manifests(&namespace.name, pool, replicas, "c")).await.succeed();
    }
    fleet::running_machines(&namespace, 5, TIMEOUT).await;
    tokio::time::sleep(SETTLED).await;
    let written = everything(&rig, &namespace).await;
    for (program, name) in [(Path::new(THIS), "now"), (before.as_path(), "again")] {
        assert_eq!(manager.terminate(), 0, "{}", manager.log());
        manager = started(program, name, &rig, &namespace).await;
        tokio::time::sleep(SETTLED).await;
        unchanged(&written, &everything(&rig, &namespace).await, name);
        vms_fit(&namespace).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    namespace.kubectl(&["scale", "machinedeployment", "a", "--replicas=4"]).await.succeed();
    fleet::running_machines(&namespace, 6, TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: runs for five minutes"]
async fn pk_113_two_releases_are_replicas_of_each_other_under_load() {
    let Some(rig) = Rig::own("releases::replicas::pk_113").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("replicas").await;
    let mut managers = [
        started(&release_before(), "before", &rig, &namespace).await,
        started(Path::new(THIS), "now", &rig, &namespace).await,
    ];
    managers[1].register_webhooks(&rig, &namespace).await;
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 10, "c")).await.succeed();
    fleet::running_machines(&namespace, 10, TIMEOUT).await;
    let length = std::env::var("MCM_TEST_REPLICAS").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + length.map_or(SIDE_BY_SIDE, Duration::from_secs);
    let mut hand_overs = 0;
    while Instant::now() < until {
        // Load: the deployment grows, shrinks and rolls.
        let (replicas, round) = ([10, 14, 7][hand_overs % 3], hand_overs / 4);
        let patch = serde_json::json!({"spec": {"replicas": replicas, "template": {"metadata": {"labels": {"round": round.to_string()}}}}});
        let arguments = ["patch", "machinedeployment", "pool", "--type=merge", "-p", &patch.to_string()];
        namespace.kubectl(&arguments).await.succeed();
        tokio::time::sleep(HAND_OVER).await;
        // The leader ends, and comes back as a standby.
        let leads = leader(&managers).await;
        let code = managers[leads].terminate();
        assert_eq!(code, 0, "{}", managers[leads].log());
        managers[leads].restart();
        managers[leads].wait_until_ready().await;
        hand_overs += 1;
    }
    assert!(hand_overs >= 2, "{hand_overs} hand-overs");
    namespace.kubectl(&["scale", "machinedeployment", "pool", "--replicas=10"]).await.succeed();
    fleet::running_machines(&namespace, 10, TIMEOUT).await;
    wait_until("each machine to have one VM", TIMEOUT, || vms_fit(&namespace)).await;
    for (manager, release) in managers.iter().zip(["the last release", "this program"]) {
        let metrics = manager.http_get("/metrics").await;
        let contests = metrics.lines().find(|line| line.starts_with("mcm_certificate_ca_bundle_contests_total"));
        assert!(contests.is_none_or(|line| line.ends_with(" 0")), "{release}: {contests:?}");
    }
    println!("{hand_overs} hand-overs");
}

/// The replica that leads. Only this program has a metric for it.
async fn leader(managers: &[TestManager; 2]) -> usize {
    let metrics = managers[1].http_get("/metrics").await;
    usize::from(metrics.lines().any(|line| line.starts_with("mcm_leader") && line.ends_with(" 1")))
}
