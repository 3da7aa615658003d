//! Children of objects that were stored before the webhooks existed. The Go original accepted these objects, and their machines continue to work.

use std::time::Duration;

use serde_json::json;

use crate::{
    fleet,
    support::{ManagerOptions, Namespace, Rig, TestManager, manager::mcm, wait::expect, wait_until},
};

const TIMEOUT: Duration = Duration::from_secs(60);
/// A space after the comma. People write it, the Go original accepts it, and rule MCH-10 refuses it.
const CONDITIONS: &str = "KernelDeadlock, ReadonlyFilesystem";

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_breaks_a_rule_scales_and_rolls_beside_webhooks_that_do_not_know_its_manager() {
    let Some(rig) = Rig::own("forgiven::a_deployment_that_breaks_a_rule").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("forgiven").await;
    namespace.apply(&fleet::manifests(&namespace.name, "old", 1, "old")).await.succeed();
    let patch = json!({"spec": {"template": {"spec": {"nodeConditions": CONDITIONS}}}}).to_string();
    let change = ["patch", "machinedeployment", "old", "--type=merge", "-p", &patch];
    namespace.kubectl(&change).await.succeed();
    // A set in the namespace of another manager. Our caches do not contain it.
    let elsewhere = rig.namespace("forgiven-elsewhere").await;
    let labels = json!({"a": "b"});
    let foreign = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet", "metadata": {"name": "foreign", "namespace": elsewhere.name},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"class": {"kind": "MachineClass", "name": "old"}, "nodeConditions": CONDITIONS}}},
    });
    rig.apply(&foreign.to_string()).await.succeed();
    let manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    fleet::running_machines(&namespace, 1, TIMEOUT).await;

    // Registers the webhooks a second time without an exemption for the manager's own user.
    manager.register_webhooks(&rig, &namespace).await;
    let url = format!("--webhook-url=https://127.0.0.1:{}", manager.secure_port);
    let manifests = ["manifests", "webhooks", "--namespace", &namespace.name, "--controller-users=nobody", &url];
    rig.apply(&mcm(&manifests)).await.succeed();

    let made = |count: usize| {
        let (namespace, manager) = (&namespace, &manager);
        async move {
            namespace.kubectl(&["scale", "machinedeployment", "old", &format!("--replicas={count}")]).await.succeed();
            fleet::running_machines(namespace, count, TIMEOUT).await;
            manager.http_get("/metrics").await
        }
    };
    // The API server needs a moment until the new registration is in force.
    let mut wanted = 1;
    let forgiven = loop {
        wanted += 1;
        let metrics = made(wanted).await;
        let line = metrics.lines().find(|line| {
            [
                "mcm_admission_rule_total{",
                "kind=\"Machine\"",
                "level=\"ratcheted\"",
                "operation=\"CREATE\"",
                "rule=\"MCH-10\"",
            ]
            .iter()
            .all(|part| line.contains(part))
        });
        match line {
            Some(line) => break line.to_owned(),
            None => assert!(wanted < 9, "no creation came to the webhooks:\n{metrics}"),
        }
    };
    assert!(!forgiven.ends_with(" 0"), "{forgiven}");

    // The same text is refused in a machine without an owner, or with an owner that does not exist.
    let machine = |namespace: &Namespace, owners: serde_json::Value| {
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "stray", "namespace": namespace.name, "ownerReferences": owners},
            "spec": {"class": {"kind": "MachineClass", "name": "old"}, "nodeConditions": CONDITIONS},
        })
    };
    let set = namespace.list("machinesets").await.remove(0);
    let owner = |set: &serde_json::Value, uid: &serde_json::Value| json!([{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet", "name": set["metadata"]["name"], "uid": uid, "controller": true}]);
    for owners in [json!([]), owner(&set, &json!("7d3a5b1e-0000-4000-8000-000000000001"))] {
        let refusal = rig.apply(&machine(&namespace, owners).to_string()).await.fail();
        assert!(refusal.contains("must not contain whitespace"), "{refusal}");
    }

    // The webhook reads an owner that is not in the cache from the API server.
    let foreign = elsewhere.get("machineset", "foreign").await;
    let owners = owner(&foreign, &foreign["metadata"]["uid"]);
    rig.apply(&machine(&elsewhere, owners).to_string()).await.succeed();

    // A rollout creates a new set of the deployment. The rule tolerates the set in the same way.
    let patch = json!({"spec": {"template": {"metadata": {"labels": {"roll": "on"}}}}}).to_string();
    namespace.kubectl(&["patch", "machinedeployment", "old", "--type=merge", "-p", &patch]).await.succeed();
    wait_until("the rollout to end", TIMEOUT, || async {
        let deployment = namespace.get("machinedeployment", "old").await;
        let sets = namespace.list("machinesets").await;
        let done = deployment["status"]["updatedReplicas"] == wanted && deployment["status"]["replicas"] == wanted;
        expect(done && sets.len() == 2, || format!("{deployment}"))
    })
    .await;
}
