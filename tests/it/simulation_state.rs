//! The virtual cloud stores its VMs in `ConfigMaps` of the control namespace (`--simulation-state=configmap:NAME`).

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use crate::{
    fleet::{self, none_left},
    support::{
        ManagerOptions, Namespace, Rig, Rights, TestManager, cluster_object::text, ports::free_port, wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(120);

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
    let machines = fleet::running_machines(&namespace, 5, TIMEOUT).await;
    let wanted: BTreeSet<String> =
        machines.iter().map(|machine| text(machine, "/spec/providerID").to_owned()).collect();
    assert_eq!(vms(&namespace).await, wanted, "every reported VM is stored");

    manager.kill();
    // Without Nodes, only the `ConfigMap` knows the VMs.
    for machine in &machines {
        let node = text(machine, "/metadata/labels/node");
        let free = r#"{"metadata":{"finalizers":null}}"#;
        rig.kubectl(&["patch", "node", node, "--type=merge", "-p", free]).await.succeed();
        rig.kubectl(&["delete", "node", node]).await.succeed();
    }
    manager.restart();
    manager.wait_until_ready().await;
    wait_until("the Nodes of the stored VMs to register again", TIMEOUT, || async {
        let nodes = rig.kubectl(&["get", "nodes", "-o", "json"]).await.json();
        let found: BTreeSet<String> = crate::support::cluster_object::items(&nodes)
            .iter()
            .map(|node| text(node, "/metadata/annotations/virtual.machine.sapcloud.io~1provider-id").to_owned())
            .collect();
        expect(found.is_superset(&wanted), || format!("{found:?}"))
    })
    .await;
    fleet::running_machines(&namespace, 5, TIMEOUT).await;
    assert_eq!(vms(&namespace).await, wanted, "the same VMs, and no others");

    namespace.kubectl(&["delete", "machinedeployment", "fleet", "--wait=false"]).await.succeed();
    none_left(&namespace, "machines", TIMEOUT).await;
    assert_eq!(vms(&namespace).await, BTreeSet::new());
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
}

/// Identities of the VMs in the `ConfigMaps`.
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
async fn a_foreign_config_map_is_never_changed() {
    let Some(rig) = Rig::own("simulation_state::a_foreign_config_map").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("foreign").await;
    namespace.kubectl(&["create", "configmap", "vms", "--from-literal=mine=1"]).await.succeed();
    let kubeconfig = rig.manager_kubeconfig(&namespace, Rights::Everything).await.display().to_string();
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcm"))
        .args(["serve", "--simulation-state=configmap:vms", "--leader-elect=false", "--secure-port=0"])
        .args(["--address=127.0.0.1", "--compat-port=0", &format!("--port={}", free_port())])
        .args([format!("--control-kubeconfig={kubeconfig}"), format!("--target-kubeconfig={kubeconfig}")])
        .args([format!("--namespace={}", namespace.name), "--shutdown-delay-duration=0s".to_owned()])
        .kill_on_drop(true)
        .output();
    let ended = tokio::time::timeout(TIMEOUT, run).await.expect("it ends by itself").expect("mcm runs");
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("ConfigMap foreign-1/vms exists and is no simulation's state; choose another name"),
        "{errors}"
    );
    let kept = namespace.get("configmap", "vms").await;
    assert_eq!(kept["data"], serde_json::json!({"mine": "1"}));
}
