//! The two halves in two programs, on the same objects: mcm with one half and a stand-in for the Go original with the other, in both combinations,
//! and mcm with both halves in two processes.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    fleet,
    go::halves::{GoHalf, Which},
    support::{
        ManagerOptions, Namespace, Rig, Rights, TestManager,
        cluster_object::{items, name, text},
        manager::{SWIFT_CLOUD, mcm},
        ports::free_port,
        wait::expect,
        wait_until,
    },
    weather::Cloud,
};

const TIMEOUT: Duration = Duration::from_secs(120);
/// The names of the halves.
const DEPLOYMENTS: &str = "machine-controller-manager";
const MACHINES: &str = "machine-controller";
const FLEET: &str = "pool";
const PRIORITY: &str = "machinepriority.machine.sapcloud.io";

/// `mcm serve` with a half and its Lease.
async fn half(which: &str, rig: &Arc<Rig>, namespace: &Namespace, rights: Rights, further: &[String]) -> TestManager {
    let mut flags = vec!["--leader-elect=true".to_owned(), format!("--half={which}")];
    flags.extend_from_slice(further);
    let simulation = SWIFT_CLOUD.replace("impersonate: [AWS]\n", "");
    let options = ManagerOptions { simulation, flags, rights };
    TestManager::start_as(&format!("{which}-{}", namespace.name), rig, namespace, &options).await
}

/// mcm with the half for machines, and a controllable cloud.
async fn machines_half(rig: &Arc<Rig>, namespace: &Namespace, rights: Rights) -> (TestManager, Cloud) {
    let port = free_port();
    let flags = [format!("--simulation-admin=127.0.0.1:{port}"), "--machine-health-timeout=3s".to_owned()];
    (half(MACHINES, rig, namespace, rights, &flags).await, Cloud::at(port))
}

/// Applies a deployment of this provider.
async fn want(namespace: &Namespace, provider: &str, replicas: u32, round: &str) {
    let manifests = fleet::manifests(&namespace.name, FLEET, replicas, "c");
    let mut all: Value = serde_json::from_str(&manifests).expect("JSON");
    all["items"][1]["provider"] = provider.into();
    let spec = &mut all["items"][2]["spec"];
    spec["template"]["metadata"]["labels"]["round"] = round.into();
    spec["strategy"]["rollingUpdate"] = json!({"maxSurge": 1, "maxUnavailable": 0});
    namespace.apply(&all.to_string()).await.succeed();
}

async fn rolled_out(namespace: &Namespace, replicas: i64) {
    wait_until("the rollout to end", TIMEOUT, || async {
        fleet::rolled_out(&namespace.get("machinedeployment", FLEET).await, replicas)
    })
    .await;
}

fn names(machines: &[Value]) -> Vec<String> {
    machines.iter().map(|machine| name(machine).to_owned()).collect()
}

async fn gone(namespace: &Namespace, machine: &str) {
    wait_until("a machine to go", TIMEOUT, || async {
        let left = names(&namespace.list("machines").await);
        expect(!left.iter().any(|left| left == machine), || left.join(" "))
    })
    .await;
}

/// The life of a deployment of this provider: it grows, shrinks by priority, rolls, replaces a failed machine, and is deleted.
async fn life(namespace: &Namespace, provider: &str, make_unhealthy: impl AsyncFn(&str)) {
    want(namespace, provider, 3, "1").await;
    let first = names(&fleet::running_machines(namespace, 3, TIMEOUT).await);
    rolled_out(namespace, 3).await;

    let chosen = format!("machine/{}", first[1]);
    namespace.kubectl(&["annotate", "--overwrite", &chosen, &format!("{PRIORITY}=1")]).await.succeed();
    want(namespace, provider, 2, "1").await;
    let mut kept = first.clone();
    kept.remove(1);
    let mut left = names(&fleet::running_machines(namespace, 2, TIMEOUT).await);
    left.sort();
    kept.sort();
    assert_eq!(left, kept, "the machine of low priority is deleted");

    want(namespace, provider, 2, "2").await;
    wait_until("the rolling update to end", TIMEOUT, || async {
        let machines = namespace.list("machines").await;
        let running = machines.iter().filter(|machine| fleet::phase(machine) == "Running").count();
        assert!(running >= 2, "maxUnavailable is 0: {:?}", machines.iter().map(fleet::describe).collect::<Vec<_>>());
        let old = machines.iter().filter(|machine| text(machine, "/metadata/labels/round") == "1").count();
        expect(old == 0 && machines.len() == 2, || format!("{old} old, {running} running"))
    })
    .await;
    rolled_out(namespace, 2).await;

    let sick = names(&fleet::running_machines(namespace, 2, TIMEOUT).await).remove(0);
    make_unhealthy(&sick).await;
    gone(namespace, &sick).await;
    fleet::running_machines(namespace, 2, TIMEOUT).await;
    wait_until("a Node for each machine", TIMEOUT, || async {
        let nodes = namespace.list("nodes").await;
        expect(nodes.len() == 2, || names(&nodes).join(" "))
    })
    .await;

    namespace.kubectl(&["delete", "machinedeployment", FLEET, "--wait=false"]).await.succeed();
    for kind in ["machines", "machinesets", "machinedeployments", "nodes"] {
        fleet::none_left(namespace, kind, TIMEOUT).await;
    }
}

/// The line of `mcm doctor` about both halves; the doctor must find nothing bad. With a half, it checks the rights of this half.
async fn diagnosis(rig: &Rig, namespace: &Namespace, half: Option<&str>) -> String {
    let kubeconfig = format!("--kubeconfig={}", rig.admin_kubeconfig().display());
    let namespace = format!("--namespace={}", namespace.name);
    let mut flags = vec!["doctor".to_owned(), kubeconfig, namespace];
    flags.extend(half.map(|half| format!("--half={half}")));
    flags.extend(half.map(|_| "--manager-user=mcm-restricted".to_owned()));
    let doctor = move || mcm(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let said = tokio::task::spawn_blocking(doctor).await.expect("it ends");
    let line = said.lines().find(|line| line.contains(" Halves of ")).unwrap_or_else(|| panic!("{said}"));
    line.to_owned()
}

/// A half exports metrics of its own objects, and not of the objects of the other half.
async fn has_metrics_of_one_half(manager: &TestManager, own: &str, others: &str) {
    let metrics = manager.http_get("/metrics").await;
    let has = |family: &str| metrics.lines().any(|line| line.starts_with(family));
    assert!(has(own) && !has(others), "{own} and not {others}:\n{metrics}");
}

/// The field managers that have written the status of an object.
fn status_writers(object: &Value) -> Vec<&str> {
    let entries = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_status = entries.iter().filter(|entry| entry["subresource"] == "status");
    of_status.filter_map(|entry| entry["manager"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn mcm_runs_deployments_and_sets_beside_a_go_machine_controller() {
    let Some(rig) = Rig::own("half_by_half::mcm_runs_deployments_and_sets").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("deployments").await;
    let manager = half(DEPLOYMENTS, &rig, &namespace, Rights::OfHalf(DEPLOYMENTS), &[]).await;
    manager.register_webhooks(&rig, &namespace).await;
    let go = GoHalf::start(Which::Machines, rig.client().await, &namespace.name);
    life(&namespace, "metal", async |machine| {
        has_metrics_of_one_half(&manager, "mcm_machine_set_items_total", "mcm_machine_items_total").await;
        let said = diagnosis(&rig, &namespace, Some(DEPLOYMENTS)).await;
        assert!(said.starts_with("fine") && said.contains("go-host runs machines: two programs"), "{said}");
        let shown = namespace.kubectl(&["get", "machines", "--output=json", "--show-managed-fields"]).await.json();
        for machine in items(&shown) {
            assert_eq!(status_writers(&machine), [MACHINES], "only the other half writes the status: {machine}");
        }
        go.make_unhealthy(machine);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mcm_runs_machines_beside_a_go_set_controller() {
    let Some(rig) = Rig::own("half_by_half::mcm_runs_machines").await else { return };
    rig.install_crds().await;
    rig.with_controller_manager().await;
    let namespace = rig.namespace("machines").await;
    let (manager, cloud) = machines_half(&rig, &namespace, Rights::OfHalf(MACHINES)).await;
    let _go = GoHalf::start(Which::Sets, rig.client().await, &namespace.name);
    let class = fleet::manifests(&namespace.name, FLEET, 1, "c");
    let mut class: Value = serde_json::from_str(&class).expect("JSON");
    // A set as the Go original writes it, including empty structs.
    class["items"][2] = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet",
        "metadata": {"name": "pool-58884", "namespace": namespace.name, "finalizers": ["machine.sapcloud.io/machine-controller-manager"]},
        "spec": {
            "machineClass": {}, "minReadySeconds": 20, "replicas": 3, "selector": {"matchLabels": {"pool": "a"}},
            "template": {
                "metadata": {"labels": {"pool": "a"}},
                "spec": {"class": {"kind": "MachineClass", "name": "c"}, "drainTimeout": "5m0s", "nodeTemplate": {
                    "metadata": {"labels": {"pool": "a"}},
                    "spec": {"taints": [{"effect": "NoSchedule", "key": "example.com/dedicated", "value": "db"}]},
                }},
            },
        },
    });
    namespace.apply(&class.to_string()).await.succeed();
    let first = fleet::running_machines(&namespace, 3, TIMEOUT).await;
    for machine in &first {
        let node = rig.kubectl(&["get", "node", text(machine, "/metadata/labels/node"), "-o", "json"]).await.json();
        assert_eq!(text(&node, "/metadata/labels/pool"), "a");
        assert_eq!(machine["metadata"]["annotations"][PRIORITY], "3", "the half for sets sorts by it");
    }

    // Scale-in by priority while a drain is blocked: the other half writes the status in the middle of the drain.
    let chosen = &first[1];
    let node = text(chosen, "/metadata/labels/node");
    held_up(&namespace, node).await;
    let target = format!("machine/{}", name(chosen));
    namespace.kubectl(&["annotate", "--overwrite", &target, &format!("{PRIORITY}=1")]).await.succeed();
    namespace.kubectl(&["scale", "machineset", "pool-58884", "--replicas=2"]).await.succeed();
    let says = async |what: &str| {
        wait_until(&format!("the drain to report {what}"), TIMEOUT, || async {
            let machine = namespace.get("machine", name(chosen)).await;
            let condition = progressing(&machine);
            let stage = text(&machine, "/status/lastOperation/description");
            expect(condition == what && stage.contains("Initiate node drain"), || machine["status"].to_string())
        })
        .await;
    };
    says("DrainBlocked").await;
    let mut late = namespace.get("machine", name(chosen)).await;
    let status = late["status"].as_object_mut().expect("a status");
    status.remove("machineConditions");
    late["status"]["lastOperation"]["description"] = "Deleting machine from cloud provider".into();
    namespace.kubectl_with_input(&["replace", "--subresource=status", "-f", "-"], &late.to_string()).await.succeed();
    says("DrainBlocked").await;
    namespace.kubectl(&["delete", "poddisruptionbudget", "held"]).await.succeed();
    gone(&namespace, name(chosen)).await;
    let left = fleet::running_machines(&namespace, 2, TIMEOUT).await;

    has_metrics_of_one_half(&manager, "mcm_machine_items_total", "mcm_machine_set_items_total").await;
    let said = diagnosis(&rig, &namespace, Some(MACHINES)).await;
    assert!(said.starts_with("fine") && said.contains("go-host runs deployments and sets"), "{said}");
    let sick = name(&left[0]);
    cloud.does(sick, "notready").await;
    gone(&namespace, sick).await;
    fleet::running_machines(&namespace, 2, TIMEOUT).await;
    namespace.kubectl(&["delete", "machineset", "pool-58884", "--wait=false"]).await.succeed();
    for kind in ["machines", "machinesets", "nodes"] {
        fleet::none_left(&namespace, kind, TIMEOUT).await;
    }
    assert!(cloud.vms().await.is_empty(), "{}", manager.log());
}

/// Creates a pod on the Node. Its budget allows no eviction while a pod elsewhere is not ready.
async fn held_up(namespace: &Namespace, node: &str) {
    let ready =
        json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}).to_string();
    for (pod, node) in [("held", node), ("second", "elsewhere"), ("third", "elsewhere")] {
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "labels": {"app": "held"}},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "none"}]},
        });
        namespace.apply(&manifest.to_string()).await.succeed();
        if pod != "third" {
            namespace
                .kubectl(&["patch", "pod", pod, "--subresource=status", "--type=merge", "-p", &ready])
                .await
                .succeed();
        }
    }
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "held"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "held"}}},
    });
    namespace.apply(&budget.to_string()).await.succeed();
    wait_until("the budget to count", TIMEOUT, || async {
        let status = namespace.get("poddisruptionbudget", "held").await["status"].clone();
        expect(status["currentHealthy"] == 2 && status["disruptionsAllowed"] == 0, || status.to_string())
    })
    .await;
}

fn progressing(machine: &Value) -> &str {
    let all = machine["status"]["machineConditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = all.iter().find(|condition| condition["type"] == "Progressing");
    found.and_then(|condition| condition["reason"].as_str()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn mcm_runs_each_half_in_a_process_of_its_own() {
    let Some(rig) = Rig::own("half_by_half::mcm_runs_each_half").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("each").await;
    let manager = half(DEPLOYMENTS, &rig, &namespace, Rights::Everything, &[]).await;
    manager.register_webhooks(&rig, &namespace).await;
    let (_machines, cloud) = machines_half(&rig, &namespace, Rights::Everything).await;
    life(&namespace, "virtual", async |machine| {
        let said = diagnosis(&rig, &namespace, None).await;
        assert!(said.starts_with("fine") && said.contains("two programs"), "{said}");
        cloud.does(machine, "notready").await;
    })
    .await;
    assert!(cloud.vms().await.is_empty());
}
