//! A fleet taken over from the Go original on a real API server. The driver writes the machine's provider id, and the cloud controller manager writes
//! the Node's. The two ids have different formats.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    fleet::{self, describe, phase},
    guard,
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        cluster_object::{has_finalizer, name, text},
        wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(90);
const NODE: &str = "n-aws";
const MACHINE: &str = "m-aws";

async fn put_status(rig: &Rig, namespace: &Namespace, kind: &str, object: &str, status: &Value) {
    let patch = json!({ "status": status }).to_string();
    let arguments = ["patch", kind, object, "--subresource=status", "--type=merge", "-p", patch.as_str()];
    if kind == "node" {
        rig.kubectl(&arguments).await.succeed();
    } else {
        namespace.kubectl(&arguments).await.succeed();
    }
}

/// A ready Node as AWS's cloud controller manager registers it, with the zone in its id.
async fn a_node(rig: &Rig, namespace: &Namespace) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE },
        "spec": { "providerID": "aws:///eu-west-1a/i-0abc" },
    });
    rig.apply(&node.to_string()).await.succeed();
    let ready = json!({ "conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] });
    put_status(rig, namespace, "node", NODE, &ready).await;
}

/// A running machine as the original leaves it, with the region in its id.
async fn a_machine(rig: &Rig, namespace: &Namespace) {
    let fleet: Value =
        serde_json::from_str(&fleet::manifests(&namespace.name, "none", 0, "class-a")).expect("a fleet is JSON");
    let mut items = fleet["items"].as_array().cloned().unwrap_or_default();
    items.push(json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
        "metadata": {
            "name": MACHINE, "namespace": namespace.name, "labels": { "node": NODE },
            "finalizers": ["machine.sapcloud.io/machine-controller-manager"],
        },
        "spec": { "class": { "kind": "MachineClass", "name": "class-a" }, "providerID": "aws:///eu-west-1/i-0abc" },
    }));
    namespace.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()).await.succeed();
    let status = json!({
        "currentStatus": { "phase": "Running", "lastUpdateTime": "2026-01-01T00:00:00Z" },
        "lastOperation": {
            "type": "Create", "state": "Successful", "description": "joined", "lastUpdateTime": "2026-01-01T00:00:00Z",
        },
        "conditions": [{
            "type": "Ready", "status": "True",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    put_status(rig, namespace, "machine", MACHINE, &status).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_of_the_original_keeps_its_node_and_is_drained_although_the_id_formats_differ() {
    let Some(rig) = Rig::own("taken_over::a_machine_of_the_original").await else { return };
    rig.with_controller_manager().await;
    rig.install_crds().await;
    let namespace = rig.namespace("takenover").await;
    a_node(&rig, &namespace).await;
    a_machine(&rig, &namespace).await;
    let flags = vec!["--machine-health-timeout=3s".to_owned()];
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions { flags, ..ManagerOptions::default() }).await;

    // Only the Node of the machine gets the finalizer and the label.
    wait_until("the Node to be recognized as the machine's", TIMEOUT, || async {
        let node = namespace.get("node", NODE).await;
        let is_recognized = has_finalizer(&node, "node.machine.sapcloud.io/machine-controller")
            && text(&node, "/metadata/labels/node.gardener.cloud~1machine-name") == MACHINE;
        expect(is_recognized, || node["metadata"].to_string())
    })
    .await;
    let machine = namespace.get("machine", MACHINE).await;
    assert_eq!(phase(&machine), "Running", "{}", machine["status"]);
    assert!(machine["status"]["machineConditions"].is_null(), "no condition: {}", machine["status"]);

    guard::a_pod_on(&namespace, NODE).await;
    namespace.kubectl(&["delete", "machine", MACHINE, "--wait=false"]).await.succeed();
    wait_until("the budget to block the drain", TIMEOUT, || async {
        let machine = namespace.get("machine", MACHINE).await;
        let message = text(&machine, "/status/machineConditions/0/message");
        expect(message.contains("PodDisruptionBudget") || message.contains("misconfigured"), || message.to_owned())
    })
    .await;
    let node = namespace.get("node", NODE).await;
    assert_eq!(node["spec"]["unschedulable"], true, "{node}");
    assert_eq!(namespace.list("pods").await.len(), 1, "the guarded pod stays");

    namespace.kubectl(&["delete", "poddisruptionbudget", guard::NAME]).await.succeed();
    wait_until("machine, pod and Node to go", TIMEOUT, || async {
        let machines = namespace.list("machines").await;
        let left = machines.iter().filter(|machine| name(machine) == MACHINE);
        expect(left.clone().count() == 0, || left.map(describe).collect::<String>())
    })
    .await;
    assert!(namespace.list("pods").await.is_empty());
    let nodes = rig.kubectl(&["get", "nodes", "-o", "name"]).await.succeed();
    assert!(!nodes.contains(NODE), "{nodes}");
}
