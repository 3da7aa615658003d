//! The virtual cloud remembers its VMs in `ConfigMaps` of the control namespace (`--simulation-state=configmap:NAME`).

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use crate::{
    fleet::{self, none_left},
    support::{ManagerOptions, Namespace, Rig, Rights, TestManager, cluster_object::text, wait::expect, wait_until},
};

const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn v05_vms_in_a_config_map_outlive_their_process() {
    let Some(rig) = Rig::own("simulation_state::v05_vms_in_a_config_map").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("state").await;
    let options = ManagerOptions {
        flags: vec!["--simulation-state=configmap:vms".to_owned()],
        rights: Rights::Generated,
        ..ManagerOptions::default()
    };
    let mut manager = TestManager::start(&rig, &namespace, &options).await;
    namespace.apply(&fleet::manifests(&namespace.name, "fleet", 5, "fleet")).await.succeed();
    let machines = fleet::running_machines(&namespace, 5, PATIENCE).await;
    let wanted: BTreeSet<String> = machines.iter().map(|machine| text(machine, "/spec/providerID").to_owned()).collect();
    assert_eq!(vms(&namespace).await, wanted, "what was answered is stored");

    manager.kill();
    // Without Nodes nothing but the ConfigMap can tell of the VMs.
    for machine in &machines {
        let node = text(machine, "/metadata/labels/node");
        let free = r#"{"metadata":{"finalizers":null}}"#;
        rig.kubectl(&["patch", "node", node, "--type=merge", "-p", free]).await.succeed();
        rig.kubectl(&["delete", "node", node]).await.succeed();
    }
    manager.restart();
    manager.wait_until_ready().await;
    wait_until("the Nodes of the remembered VMs to come back", PATIENCE, || async {
        let nodes = rig.kubectl(&["get", "nodes", "-o", "json"]).await.json();
        let found: BTreeSet<String> = crate::support::cluster_object::items(&nodes)
            .iter()
            .map(|node| text(node, "/spec/providerID").to_owned())
            .collect();
        expect(found.is_superset(&wanted), || format!("{found:?}"))
    })
    .await;
    fleet::running_machines(&namespace, 5, PATIENCE).await;
    assert_eq!(vms(&namespace).await, wanted, "the same VMs, and no others");

    namespace.kubectl(&["delete", "machinedeployment", "fleet", "--wait=false"]).await.succeed();
    none_left(&namespace, "machines", PATIENCE).await;
    assert_eq!(vms(&namespace).await, BTreeSet::new());
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
}

/// Identities of the VMs that the `ConfigMaps` hold.
async fn vms(namespace: &Namespace) -> BTreeSet<String> {
    let selector = "--selector=virtual.machine.sapcloud.io/state=vms";
    let maps = namespace.kubectl(&["get", "configmaps", selector, "-o", "json"]).await.json();
    let mut found = BTreeSet::new();
    for map in crate::support::cluster_object::items(&maps) {
        for (key, value) in map["data"].as_object().into_iter().flatten() {
            if key.starts_with("vm.") {
                let vm: Value = serde_json::from_str(value.as_str().unwrap_or_default()).expect("a record is JSON");
                found.insert(text(&vm, "/providerID").to_owned());
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_of_somebody_else_is_never_touched() {
    let Some(rig) = Rig::own("simulation_state::a_config_map_of_somebody_else").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("foreign").await;
    namespace.kubectl(&["create", "configmap", "vms", "--from-literal=mine=1"]).await.succeed();
    let options = ManagerOptions {
        flags: vec!["--simulation-state=configmap:vms".to_owned()],
        ..ManagerOptions::default()
    };
    let manager = TestManager::start(&rig, &namespace, &options).await;
    wait_until("the refusal to be told", PATIENCE, || async {
        let log = manager.log();
        expect(log.contains("exists and is no simulation's state"), || log.clone())
    })
    .await;
    let kept = namespace.get("configmap", "vms").await;
    assert_eq!(kept["data"], serde_json::json!({"mine": "1"}));
}
