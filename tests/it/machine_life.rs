//! A single machine on a real API server: an in-place update, a deletion while our own webhooks are down, and a copy of the machine with another
//! name.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    fleet,
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        cluster_object::{name, text},
        manager::mcm,
        wait::expect,
        wait_until,
    },
};

const A_MINUTE: Duration = Duration::from_secs(60);

fn machine(namespace: &str) -> String {
    let machine = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1",
        "kind": "Machine",
        "metadata": { "name": "alone", "namespace": namespace },
        "spec": { "class": { "kind": "MachineClass", "name": "class-a" } },
    });
    // The class and its Secret are the same as in an empty fleet.
    let fleet: Value =
        serde_json::from_str(&fleet::manifests(namespace, "none", 0, "class-a")).expect("a fleet is JSON");
    let mut items = fleet["items"].as_array().cloned().unwrap_or_default();
    items.push(machine);
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

/// Waits until the machine has this phase, and returns the machine.
async fn in_phase(namespace: &Namespace, phase: &str) -> Value {
    wait_until(&format!("phase {phase}"), A_MINUTE, || async {
        let machine = namespace.get("machine", "alone").await;
        expect(fleet::phase(&machine) == phase, || machine["status"].to_string()).map(|()| machine.clone())
    })
    .await
}

/// The condition of this type.
fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Waits until the Node's update has reached this stage.
async fn at_stage(namespace: &Namespace, node: &str, stage: &str) -> Value {
    wait_until(&format!("stage {stage}"), A_MINUTE, || async {
        let node = namespace.get("node", node).await;
        let found = condition(&node, "InPlaceUpdate").is_some_and(|condition| condition["reason"] == stage);
        expect(found, || node["status"]["conditions"].to_string()).map(|()| node.clone())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn mc_133_mc_137_a_selected_node_is_drained_updated_and_returned() {
    let Some(rig) = Rig::own("machine_life::mc_133_mc_137_a_selected_node_is_drained").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("inplace").await;
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    namespace.apply(&machine(&namespace.name)).await.succeed();
    let before = in_phase(&namespace, "Running").await;
    let node = text(&before, "/metadata/labels/node").to_owned();
    let label = |key: &str, value: &str| {
        let label = format!("node.machine.sapcloud.io/{key}={value}");
        let (namespace, node) = (&namespace, &node);
        async move { namespace.kubectl(&["label", "node", node, &label]).await.succeed() }
    };

    label("candidate-for-update", "true").await;
    at_stage(&namespace, &node, "CandidateForUpdate").await;
    label("selected-for-update", "true").await;
    let ready = at_stage(&namespace, &node, "ReadyForUpdate").await;
    assert_eq!(ready["spec"]["unschedulable"], true, "{ready}");
    assert!(condition(&ready, "Ready").is_some(), "the other conditions stay: {ready}");
    let updating = in_phase(&namespace, "InPlaceUpdating").await;
    let condition = &updating["status"]["machineConditions"][0];
    assert_eq!(condition["reason"], "WaitingForInPlaceUpdate", "{condition}");

    label("update-result", "successful").await;
    at_stage(&namespace, &node, "UpdateSuccessful").await;
    let after = in_phase(&namespace, "Running").await;
    assert_eq!(after["spec"]["providerID"], before["spec"]["providerID"]);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mc_283_a_machine_ends_while_our_webhooks_are_down() {
    let Some(rig) = Rig::own("machine_life::mc_283_a_machine_ends").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("nohooks").await;
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    namespace.apply(&machine(&namespace.name)).await.succeed();
    in_phase(&namespace, "Running").await;

    // No server listens at this address.
    let nowhere = mcm(&["manifests", "webhooks", "--namespace", &namespace.name, "--webhook-url=https://127.0.0.1:1"]);
    rig.apply(&nowhere).await.succeed();
    let probe = machine(&namespace.name).replace("\"alone\"", "\"probe\"");
    wait_until("creations to be refused", A_MINUTE, || async {
        let answer = namespace.apply(&probe).await;
        expect(answer.stderr.contains("failed calling webhook"), || answer.stderr.clone() + &answer.stdout)
    })
    .await;

    namespace.kubectl(&["delete", "machine", "alone", "--wait=false"]).await.succeed();
    wait_until("the machine to go", A_MINUTE, || async {
        let machines = namespace.list("machines").await;
        let left: Vec<&Value> = machines.iter().filter(|machine| text(machine, "/metadata/name") == "alone").collect();
        expect(left.is_empty(), || left.iter().map(|machine| fleet::describe(machine)).collect())
    })
    .await;
}

/// Waits until the namespace contains exactly the machines with these names.
async fn machines_left(namespace: &Namespace, names: &[&str]) {
    wait_until(&format!("machines {names:?} to be left"), A_MINUTE, || async {
        let machines = namespace.list("machines").await;
        let left: Vec<&str> = machines.iter().map(name).collect();
        expect(left == names, || machines.iter().map(fleet::describe).collect())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_stays_until_the_last_of_two_machines_with_its_id_is_deleted() {
    let Some(rig) = Rig::own("machine_life::two_machines_with_one_id").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("copies").await;
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    namespace.apply(&machine(&namespace.name)).await.succeed();
    let original = in_phase(&namespace, "Running").await;
    let node = text(&original, "/metadata/labels/node").to_owned();
    let copy = |copied: &str| {
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": { "name": copied, "namespace": namespace.name, "labels": { "node": node } },
            "spec": original["spec"],
        })
        .to_string()
    };
    let healthy = async |of: &str| {
        wait_until(&format!("Node {node} to be that of machine {of}"), A_MINUTE, || async {
            let node = namespace.get("node", &node).await;
            let named = text(&node, "/metadata/labels/node.gardener.cloud~1machine-name");
            let is_whole = node["metadata"]["deletionTimestamp"].is_null() && node["spec"]["unschedulable"].is_null();
            expect(named == of && is_whole, || node.to_string())
        })
        .await;
    };

    // The copy is deleted.
    namespace.apply(&copy("copy-1")).await.succeed();
    namespace.kubectl(&["delete", "machine", "copy-1"]).await.succeed();
    machines_left(&namespace, &["alone"]).await;
    healthy("alone").await;

    // The original is deleted, the copy stays, and the deletion of the copy deletes VM and Node.
    namespace.apply(&copy("copy-2")).await.succeed();
    namespace.kubectl(&["delete", "machine", "alone"]).await.succeed();
    machines_left(&namespace, &["copy-2"]).await;
    healthy("copy-2").await;
    wait_until("events about both machines", A_MINUTE, || async {
        let events = namespace.list("events").await;
        let reported = events.iter().filter(|event| event["reason"] == "VMLeftToAnotherMachine");
        let about: Vec<&str> = reported.map(|event| text(event, "/involvedObject/name")).collect();
        expect(["alone", "copy-1"].iter().all(|machine| about.contains(machine)), || format!("{about:?}"))
    })
    .await;
    namespace.kubectl(&["delete", "machine", "copy-2"]).await.succeed();
    fleet::none_left(&namespace, "machines", A_MINUTE).await;
    let nodes = rig.kubectl(&["get", "nodes", "-o", "name"]).await.succeed();
    assert!(!nodes.contains(&node), "{nodes}");
}
