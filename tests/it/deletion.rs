//! Deletion and preservation on a real API server: the machine's status says what delays its deletion.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    fleet::{self, describe, phase, running_machines},
    guard,
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        cluster_object::{condition, name, text},
        wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(120);
/// A refused eviction is repeated after this time; the machine shows the reason earlier.
const ONE_RETRY: Duration = Duration::from_secs(20);

/// A control plane with budgets, a manager, and one running machine with its Node.
async fn one_machine(rig: &Arc<Rig>, about: &str, flags: &[&str]) -> (Namespace, TestManager, String, String) {
    rig.with_controller_manager().await;
    rig.install_crds().await;
    let namespace = rig.namespace(about).await;
    let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let manager = TestManager::start(rig, &namespace, &ManagerOptions { flags, ..ManagerOptions::default() }).await;
    namespace.apply(&fleet::manifests(&namespace.name, "fleet", 1, "virtual")).await.succeed();
    let machines = running_machines(&namespace, 1, TIMEOUT).await;
    let (machine, node) = (name(&machines[0]).to_owned(), text(&machines[0], "/metadata/labels/node").to_owned());
    (namespace, manager, machine, node)
}

/// The reason and the message of the machine's own condition.
fn progressing(machine: &Value) -> (&str, &str) {
    (text(machine, "/status/machineConditions/0/reason"), text(machine, "/status/machineConditions/0/message"))
}

async fn wait_for_reason(namespace: &Namespace, machine: &str, within: Duration, reason: &str, parts: &[&str]) {
    wait_until(&format!("the reason {reason}"), within, || async {
        let seen = namespace.get("machine", machine).await;
        let (found, message) = progressing(&seen);
        let missing: Vec<_> = parts.iter().filter(|part| !message.contains(**part)).collect();
        expect(found == reason && missing.is_empty(), || format!("{found}: {message}; without {missing:?}"))
    })
    .await;
}

async fn wait_for_event(namespace: &Namespace, machine: &str, reason: &str, part: &str) {
    wait_until(&format!("an event {reason}"), TIMEOUT, || async {
        let events = namespace.list("events").await;
        let reported = events.iter().any(|event| {
            text(event, "/involvedObject/name") == machine
                && text(event, "/reason") == reason
                && text(event, "/message").contains(part)
        });
        expect(reported, || events.iter().map(|event| text(event, "/message")).collect::<Vec<_>>().join("\n"))
    })
    .await;
}

async fn wait_until_replaced(namespace: &Namespace, machine: &str) {
    wait_until("the machine to go", TIMEOUT, || async {
        let left = namespace.list("machines").await;
        expect(left.iter().all(|left| name(left) != machine), || left.iter().map(describe).collect::<String>())
    })
    .await;
}

async fn the_node(rig: &Rig, node: &str) -> Value {
    rig.get("node", node).await
}

/// Places a guarded pod on this Node, and a second pod of the same budget that never becomes ready. The budget is configured correctly, but it allows
/// no eviction at the moment.
async fn a_pod_whose_budget_refuses(namespace: &Namespace, node: &str) {
    let unready = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "unready", "labels": { "app": guard::NAME } },
        "spec": {
            "nodeName": "elsewhere", "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "example.com/x" }],
        },
    });
    namespace.apply(&unready.to_string()).await.succeed();
    guard::a_pod_on(namespace, node).await;
}

/// Sets the condition `KernelDeadlock`. The kubelet does not report this condition, so it does not reset it.
async fn deadlock(rig: &Rig, node: &str, status: &str) {
    let deadlock = json!({ "status": { "conditions": [{
        "type": "KernelDeadlock", "status": status, "reason": "Test",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    }]}})
    .to_string();
    rig.kubectl(&["patch", "node", node, "--subresource=status", "--type=strategic", "-p", &deadlock]).await.succeed();
}

async fn wait_for_phase(namespace: &Namespace, machine: &str, wanted: &str) {
    wait_until(&format!("phase {wanted}"), TIMEOUT, || async {
        let seen = namespace.get("machine", machine).await;
        expect(phase(&seen) == wanted, || describe(&seen))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_respects_current_budgets_after_an_abandoned_drain() {
    let Some(rig) = Rig::own("deletion::a_deletion_respects_current_budgets").await else { return };
    let (namespace, _manager, machine, node) = one_machine(&rig, "given-up", &["--machine-health-timeout=3s"]).await;
    a_pod_whose_budget_refuses(&namespace, &node).await;
    let preserve = "node.machine.sapcloud.io/preserve";
    rig.kubectl(&["annotate", "node", &node, &format!("{preserve}=now")]).await.succeed();
    deadlock(&rig, &node, "True").await;
    let pod = format!("{}/{}", namespace.name, guard::NAME);
    wait_for_reason(&namespace, &machine, TIMEOUT, "DrainBlocked", &[pod.as_str(), "preserved until "]).await;

    // The node recovers, so the drain is no longer needed. The pod and the budget are deleted.
    deadlock(&rig, &node, "False").await;
    wait_for_phase(&namespace, &machine, "Running").await;
    rig.kubectl(&["annotate", "node", &node, &format!("{preserve}-")]).await.succeed();
    namespace.kubectl(&["delete", "poddisruptionbudget", "--all"]).await.succeed();
    namespace.kubectl(&["delete", "pod", "--all", "--force", "--grace-period=0"]).await.succeed();

    a_pod_whose_budget_refuses(&namespace, &node).await;
    namespace.kubectl(&["delete", "machine", &machine, "--wait=false"]).await.succeed();
    wait_for_reason(&namespace, &machine, ONE_RETRY, "DrainBlocked", &[pod.as_str(), "pods are deleted by force"])
        .await;
    assert!(!the_node(&rig, &node).await["spec"].is_null(), "the node is deleted although its pod remains");
    namespace.kubectl(&["delete", "poddisruptionbudget", guard::NAME]).await.succeed();
    wait_until_replaced(&namespace, &machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mc_198_mc_199_a_drain_that_a_budget_blocks_names_pod_and_budget() {
    let Some(rig) = Rig::own("deletion::a_drain_that_a_budget_blocks").await else { return };
    let (namespace, _manager, machine, node) = one_machine(&rig, "blocked", &[]).await;
    a_pod_whose_budget_refuses(&namespace, &node).await;
    namespace.kubectl(&["delete", "machine", &machine, "--wait=false"]).await.succeed();
    let pod = format!("{}/{}", namespace.name, guard::NAME);
    let parts = [pod.as_str(), "PodDisruptionBudget", "since ", "pods are deleted by force"];
    wait_for_reason(&namespace, &machine, ONE_RETRY, "DrainBlocked", &parts).await;
    wait_for_event(&namespace, &machine, "DrainBlocked", &pod).await;
    // Without the second pod the budget can never allow an eviction: the attempt fails with a message about the configuration.
    namespace.kubectl(&["delete", "pod", "unready", "--force", "--grace-period=0"]).await.succeed();
    let parts = [pod.as_str(), "is misconfigured", "by force"];
    wait_for_reason(&namespace, &machine, 3 * ONE_RETRY, "DrainFailed", &parts).await;
    assert_eq!(namespace.list("pods").await.len(), 1, "a guarded pod is evicted");
    namespace.kubectl(&["delete", "poddisruptionbudget", guard::NAME]).await.succeed();
    wait_until_replaced(&namespace, &machine).await;
    assert!(namespace.list("pods").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn mc_204_a_pod_under_two_budgets_fails_the_attempt_at_once() {
    let Some(rig) = Rig::own("deletion::a_pod_under_two_budgets").await else { return };
    let (namespace, _manager, machine, node) = one_machine(&rig, "budgets", &[]).await;
    guard::a_pod_on(&namespace, &node).await;
    let second = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "second" },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": guard::NAME } } },
    });
    namespace.apply(&second.to_string()).await.succeed();
    namespace.kubectl(&["delete", "machine", &machine, "--wait=false"]).await.succeed();
    let parts = [format!("{}/second", namespace.name), format!("{}/{}", namespace.name, guard::NAME)];
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    wait_for_reason(&namespace, &machine, ONE_RETRY, "DrainFailed", &parts).await;
    namespace.kubectl(&["delete", "poddisruptionbudget", "--all"]).await.succeed();
    wait_until_replaced(&namespace, &machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mc_210_the_vm_waits_until_the_volume_is_detached() {
    let Some(rig) = Rig::own("deletion::the_vm_waits_until_the_volume_is_detached").await else { return };
    let (namespace, _manager, machine, node) = one_machine(&rig, "volume", &[]).await;
    namespace.apply(&a_pod_with_a_volume(&namespace.name, &node).to_string()).await.succeed();
    wait_until("the volume to be attached", TIMEOUT, || async {
        let attachment = rig.get("volumeattachment", "data").await;
        expect(attachment["status"]["attached"] == true, || attachment["status"].to_string())
    })
    .await;
    namespace.kubectl(&["delete", "machine", &machine, "--wait=false"]).await.succeed();
    wait_until("the pod to be evicted", TIMEOUT, || async {
        let pods = namespace.list("pods").await;
        expect(pods.is_empty(), || pods.iter().map(describe).collect::<String>())
    })
    .await;
    wait_for_reason(&namespace, &machine, TIMEOUT, "WaitingForVolumeDetachment", &["pv-data", "until "]).await;
    let nodes = rig.list("nodes").await;
    assert!(nodes.iter().any(|left| name(left) == node), "the VM is deleted while its volume is attached");
    // In a real cluster, the attach-detach controller does this when the pod is gone.
    rig.kubectl(&["delete", "volumeattachment", "data", "--wait=false"]).await.succeed();
    wait_until_replaced(&namespace, &machine).await;
}

fn a_pod_with_a_volume(namespace: &str, node: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv-data" },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "csi": { "driver": "virtual.csi.sapcloud.io", "volumeHandle": "vol-data" },
                "claimRef": { "namespace": namespace, "name": "data" },
            },
        },
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "pv-data",
                "resources": { "requests": { "storage": "1Gi" } },
            },
        },
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": { "name": "data" },
            "spec": {
                "attacher": "virtual.csi.sapcloud.io", "nodeName": node,
                "source": { "persistentVolumeName": "pv-data" },
            },
        },
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "db" },
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "main", "image": "example.com/db" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
            },
        },
    ]})
}

#[tokio::test(flavor = "multi_thread")]
async fn mc_145_mc_146_a_failed_machine_is_preserved_until_the_annotation_is_removed() {
    let Some(rig) = Rig::own("deletion::a_failed_machine_is_preserved").await else { return };
    let flags = ["--machine-health-timeout=3s"];
    let (namespace, _manager, machine, node) = one_machine(&rig, "preserve", &flags).await;
    let preserve = "node.machine.sapcloud.io/preserve";
    let ask = format!("{preserve}=now");
    rig.kubectl(&["annotate", "node", &node, &ask]).await.succeed();
    wait_until("the node to have the condition Preserved", TIMEOUT, || async {
        let seen = the_node(&rig, &node).await;
        expect(condition(&seen, "Preserved") == "True", || seen["status"]["conditions"].to_string())
    })
    .await;
    let seen = namespace.get("machine", &machine).await;
    assert!(!text(&seen, "/status/currentStatus/preserveExpiryTime").is_empty(), "{}", seen["status"]);
    let disabled = "/metadata/annotations/cluster-autoscaler.kubernetes.io~1scale-down-disabled";
    assert_eq!(text(&the_node(&rig, &node).await, disabled), "true");

    deadlock(&rig, &node, "True").await;
    wait_until("the failed machine to be kept and drained", TIMEOUT, || async {
        let (seen, node) = (namespace.get("machine", &machine).await, the_node(&rig, &node).await);
        let conditions = node["status"]["conditions"].to_string();
        let tainted = node["spec"]["taints"].to_string().contains("node.machine.sapcloud.io/preserved");
        let kept = phase(&seen) == "Failed" && conditions.contains("Preserved node drained successfully.") && tainted;
        expect(kept, || format!("{}: {conditions}", describe(&seen)))
    })
    .await;
    wait_for_reason(&namespace, &machine, TIMEOUT, "Preserved", &["preserved until "]).await;
    assert_eq!(namespace.list("machines").await.len(), 1, "a preserved machine was replaced");

    rig.kubectl(&["annotate", "node", &node, &format!("{preserve}-")]).await.succeed();
    wait_until_replaced(&namespace, &machine).await;
    running_machines(&namespace, 1, TIMEOUT).await;
}

fn names(objects: &[Value]) -> Vec<String> {
    let mut names: Vec<String> = objects.iter().map(|object| name(object).to_owned()).collect();
    names.sort();
    names
}

/// Waits until the garbage collector has processed all earlier writes of sets: it collects a probe set whose owner does not exist. The collector
/// learns about new kinds twice a minute. Until then it treats an unknown kind as if nothing depended on it.
async fn wait_for_the_garbage_collector(namespace: &Namespace) {
    let mut probe = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet",
        "metadata": { "name": "probe" },
        "spec": {
            "replicas": 0, "selector": { "matchLabels": { "probe": "probe" } },
            "template": {
                "metadata": { "labels": { "probe": "probe" } },
                "spec": { "class": { "kind": "MachineClass", "name": "class-a" } },
            },
        },
    });
    probe["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment", "name": "nobody",
        "uid": "00000000-0000-4000-8000-000000000000", "controller": true,
    }]);
    namespace.apply(&probe.to_string()).await.succeed();
    wait_until("the probe to be collected", TIMEOUT, || async {
        let sets = names(&namespace.list("machinesets").await);
        expect(!sets.contains(&"probe".to_owned()), || sets.join(", "))
    })
    .await;
}

/// Objects that `kubectl delete --cascade=orphan` leaves behind stay, and a newly created owner adopts them.
#[tokio::test(flavor = "multi_thread")]
async fn orphaned_objects_stay_and_are_adopted() {
    let Some(rig) = Rig::own("deletion::orphaned_objects_stay").await else { return };
    rig.with_controller_manager().await;
    rig.install_crds().await;
    let namespace = rig.namespace("orphans").await;
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    let manifests = fleet::manifests(&namespace.name, "fleet", 2, "class-a");
    namespace.apply(&manifests).await.succeed();
    let machines = names(&running_machines(&namespace, 2, TIMEOUT).await);
    let sets = names(&namespace.list("machinesets").await);
    let all_stay = || async {
        assert_eq!(names(&namespace.list("machinesets").await), sets);
        let seen = namespace.list("machines").await;
        assert_eq!(names(&seen), machines);
        assert!(
            seen.iter().all(|machine| phase(machine) == "Running"),
            "{}",
            seen.iter().map(describe).collect::<String>()
        );
        seen
    };

    wait_for_the_garbage_collector(&namespace).await;
    namespace.kubectl(&["delete", "machinedeployment", "fleet", "--cascade=orphan"]).await.succeed();
    all_stay().await;
    namespace.apply(&manifests).await.succeed();
    wait_until("the set to be taken over", TIMEOUT, || async {
        let seen = namespace.get("machineset", &sets[0]).await;
        expect(text(&seen, "/metadata/ownerReferences/0/name") == "fleet", || seen["metadata"].to_string())
    })
    .await;
    all_stay().await;

    wait_for_the_garbage_collector(&namespace).await;
    namespace.kubectl(&["delete", "machinedeployment", "fleet", "--cascade=orphan"]).await.succeed();
    namespace.kubectl(&["delete", "machineset", &sets[0], "--cascade=orphan"]).await.succeed();
    let seen = namespace.list("machines").await;
    assert_eq!(names(&seen), machines);
    assert!(seen.iter().all(|machine| machine["metadata"]["deletionTimestamp"].is_null()), "{seen:?}");
}
