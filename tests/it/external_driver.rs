//! The driver in Python of `examples/python-driver` serves a rollout, as a program of its own that the manager runs: from `kubectl apply`
//! to Nodes, killed in the middle of a new class, and back to nothing. The test plays the kubelets.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    fleet::{none_left, rolled_out, running_machines},
    support::{ManagerOptions, Rig, TestManager, scratch::count_skipped, wait::expect, wait_until},
};

const TEST: &str = "external_driver::a_driver_in_python_serves_a_rollout_and_may_be_killed";
const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/python-driver/driver.py");
const MACHINES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(120);

/// A Python that has what the driver needs: the one of `MCM_TEST_PYTHON`, or `python3`.
fn python() -> Option<String> {
    let python = std::env::var("MCM_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let asked = Command::new(&python).args(["-c", "import grpc, grpc_tools"]).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success()).then_some(python)
}

/// The driver over a cloud in this folder, as a program without arguments.
fn program(python: &str, folder: &Path) -> PathBuf {
    let program = folder.join("files-driver");
    let (pid, cloud) = (folder.join("files-driver.pid"), cloud(folder));
    let script =
        format!("#!/bin/sh\necho $$ > '{}'\nexec '{python}' '{DRIVER}' --cloud '{}'\n", pid.display(), cloud.display());
    fs::write(&program, script).expect("the rig's folder is writable");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our own file");
    program
}

fn cloud(folder: &Path) -> PathBuf {
    folder.join("files-cloud")
}

/// The sizes of the VMs that there are, by the names of their machines.
fn vms(folder: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(cloud(folder).join("shoot-a")).into_iter().flatten().flatten();
    // One that goes in this moment is gone.
    files
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, fs::read_to_string(entry.path()).ok()?)))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_in_python_serves_a_rollout_and_may_be_killed() {
    let Some(python) = python() else {
        return count_skipped(TEST, "needs a Python with grpcio and grpcio-tools (MCM_TEST_PYTHON)");
    };
    let Some(rig) = Rig::own(TEST).await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("files").await;
    let exec = format!("--driver-exec=files={}", program(&python, &rig.folder).display());
    let options = ManagerOptions { flags: vec![exec], ..ManagerOptions::default() };
    let manager = TestManager::start(&rig, &namespace, &options).await;
    let up = "mcm_driver_up{driver=\"files\"} 1";
    wait_until("the driver to be up", PATIENCE, || async {
        let metrics = manager.http_get("/metrics").await;
        expect(metrics.contains(up), || manager.log())
    })
    .await;

    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "files" }, "stringData": { "userData": "#!/bin/sh", "token": "never-to-be-logged" } });
    namespace.apply(&secret.to_string()).await.succeed();
    for size in ["small", "large"] {
        namespace.apply(&class(&namespace.name, size).to_string()).await.succeed();
    }
    let kubelets = tokio::spawn(play_kubelets(Arc::clone(&rig)));
    namespace.apply(&deployment("small").to_string()).await.succeed();
    running_machines(&namespace, MACHINES, PATIENCE).await;

    namespace.apply(&deployment("large").to_string()).await.succeed();
    wait_until("the first large VM", PATIENCE, || async {
        let vms = vms(&rig.folder);
        expect(vms.values().any(|size| size == "large"), || format!("{vms:?}"))
    })
    .await;
    let pid = fs::read_to_string(rig.folder.join("files-driver.pid")).expect("the driver has begun");
    assert!(Command::new("kill").args(["-9", pid.trim()]).status().expect("kill runs").success());
    wait_until("the rollout", PATIENCE, || async {
        rolled_out(&namespace.get("machinedeployment", "fleet").await, 3)?;
        let vms = vms(&rig.folder);
        expect(vms.len() == MACHINES && vms.values().all(|size| size == "large"), || format!("{vms:?}"))
    })
    .await;

    namespace.kubectl(&["delete", "machinedeployment", "fleet", "--wait=false"]).await.succeed();
    none_left(&namespace, "machines", PATIENCE).await;
    assert_eq!(vms(&rig.folder), BTreeMap::new(), "nothing is left at the provider");
    kubelets.abort();
    assert!(!manager.log().contains("never-to-be-logged"), "a secret is in the log");
}

/// Each VM registers a Node that is Ready.
async fn play_kubelets(rig: Arc<Rig>) {
    loop {
        for name in vms(&rig.folder).keys() {
            if rig.kubectl(&["get", "node", name]).await.succeeded() {
                continue;
            }
            let node = json!({
                "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
                "spec": { "providerID": format!("files:///shoot-a/{name}") },
            });
            let _ = rig.apply(&node.to_string()).await;
            let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }] } });
            let _ = rig
                .kubectl(&["patch", "node", name, "--subresource=status", "--type=merge", "-p", &ready.to_string()])
                .await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

fn class(namespace: &str, size: &str) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass",
        "metadata": { "name": size },
        "provider": "files",
        "providerSpec": { "cluster": "shoot-a", "size": size },
        "secretRef": { "name": "files", "namespace": namespace },
    })
}

fn deployment(class: &str) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": { "name": "fleet" },
        "spec": {
            "replicas": MACHINES,
            "selector": { "matchLabels": { "fleet": "fleet" } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
            "template": {
                "metadata": { "labels": { "fleet": "fleet" } },
                "spec": { "class": { "kind": "MachineClass", "name": class } },
            },
        },
    })
}
