//! A driver of another crate serves a rollout: the driver of `examples/driver`, added with [`machine_controller_manager::DriverSet::with`]. The API
//! server and the manager run in one thread, and the test plays the kubelets.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use example_driver::{FolderDriver, PROVIDER};
use machine_controller_manager::{
    DriverSet,
    manager::{Endpoints, Environment, run_in},
    server::Reviewer,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{
    fleet,
    support::{
        cluster_object::text,
        one_thread::{MACHINE_PATH, Stage, answer_webhooks, install, list, play, post, send, settings},
        scratch::count_ran,
    },
};

const MACHINES: usize = 3;
const NODES: &str = "/api/v1/nodes";
/// The virtual time that a step may take.
const TIMEOUT: Duration = Duration::from_secs(3600);

#[test]
fn a_driver_of_another_crate_serves_a_rollout() {
    count_ran("example_driver::a_driver_of_another_crate_serves_a_rollout");
    let cloud = tempfile::tempdir().expect("a folder");
    play(rollout(cloud.path()));
}

async fn rollout(cloud: &Path) {
    let stage = Stage::new(1);
    let (server, client) = (&stage.server, &stage.client);
    install(client).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let (give, given) = oneshot::channel::<Arc<dyn Reviewer>>();
    let endpoints = Endpoints::InProcess(Box::new(|reviewer| drop(give.send(reviewer))));
    let environment = Environment {
        drivers: DriverSet::built_in().with(FolderDriver::new(cloud)),
        ..stage.environment(&stage.managers_client(), endpoints, 1)
    };
    let story = async {
        answer_webhooks(server, given.await.expect("the manager passes its reviewer"));
        let wrong = class("wrong", &json!({ "cluster": "../elsewhere", "size": "small" }));
        let refused = send(client, "POST", &format!("{MACHINE_PATH}/machineclasses"), &wrong).await;
        let refused = refused.expect_err("the driver validates classes at admission");
        assert!(refused.contains("providerSpec.cluster"), "{refused}");

        post(client, "/api/v1/namespaces/default/secrets", &secret()).await;
        for size in ["small", "large"] {
            post(
                client,
                &format!("{MACHINE_PATH}/machineclasses"),
                &class(size, &json!({ "cluster": "shoot-a", "size": size })),
            )
            .await;
        }
        post(client, &format!("{MACHINE_PATH}/machinedeployments"), &deployment("small")).await;
        until(client, || vms(cloud), "small").await;
        let path = format!("{MACHINE_PATH}/machinedeployments/fleet");
        let newer = json!({ "spec": { "template": { "spec": { "class": { "name": "large" } } } } });
        send(client, "PATCH", &path, &newer).await.expect("a new template");
        until(client, || vms(cloud), "large").await;
        drop(stop);
    };
    let running = run_in(settings(&[]), environment, async { drop(stopped.await) });
    let (ended, ()) = tokio::join!(running, story);
    ended.expect("the manager ends well");
}

fn secret() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "fleet", "namespace": "default" },
        "stringData": { "userData": "#!/bin/sh\n" },
    })
}

fn class(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass",
        "metadata": { "name": name, "namespace": "default" },
        "provider": PROVIDER,
        "providerSpec": spec,
        "secretRef": { "name": "fleet", "namespace": "default" },
    })
}

fn deployment(class: &str) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": { "name": "fleet", "namespace": "default" },
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

/// The sizes of the existing VMs, by the names of their machines.
fn vms(cloud: &Path) -> BTreeMap<String, String> {
    let files = std::fs::read_dir(cloud.join("shoot-a")).into_iter().flatten().map(|entry| entry.expect("readable"));
    let read = |entry: std::fs::DirEntry| {
        let size = std::fs::read_to_string(entry.path()).expect("UTF-8");
        (entry.file_name().to_string_lossy().into_owned(), size)
    };
    files.map(read).collect()
}

/// Advances virtual time until the requested number of machines runs, each on a VM of this size, and no other VM exists.
async fn until(client: &kube::Client, vms: impl Fn() -> BTreeMap<String, String>, size: &str) {
    let waiting = async {
        loop {
            let machines = list(client, &format!("{MACHINE_PATH}/machines")).await;
            play_kubelets(client, &vms()).await;
            let run = machines.iter().filter(|machine| fleet::phase(machine) == "Running").count();
            let vms = vms();
            if (run, machines.len(), vms.len()) == (MACHINES, MACHINES, MACHINES) && vms.values().all(|vm| vm == size) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    if tokio::time::timeout(TIMEOUT, waiting).await.is_err() {
        let machines = list(client, &format!("{MACHINE_PATH}/machines")).await;
        let descriptions: Vec<String> = machines.iter().map(fleet::describe).collect();
        panic!("{size} after {TIMEOUT:?}: VMs {:?}\n{}", vms(), descriptions.join("\n"));
    }
}

/// Registers a ready Node for each VM.
async fn play_kubelets(client: &kube::Client, vms: &BTreeMap<String, String>) {
    let nodes = list(client, NODES).await;
    for name in vms.keys().filter(|name| nodes.iter().all(|node| text(node, "/metadata/name") != name.as_str())) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
            "spec": { "providerID": format!("folder:///shoot-a/{name}") },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }] },
        });
        post(client, NODES, &node).await;
    }
}
