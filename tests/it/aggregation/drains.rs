//! A plan predicts what happens afterwards. Two cases on a real API server with budgets: a drain and an in-place update.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::TryStreamExt;
use kube::core::WatchEvent;
use serde_json::{Value, json};

use super::views::with_a_fleet;
use crate::{
    fleet::rolled_out,
    rollout::{is_handed_over, is_selected, play_update_agent},
    support::{
        Namespace, Rig,
        cluster_object::{name, number, text},
        wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(120);

pub fn pod(name: &str, node: &str, app: &str, further: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": app } },
        "spec": {
            "nodeName": node,
            // No kubelet confirms the end of these pods.
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "example.com/x" }],
        },
    });
    json_patch::merge(&mut pod, further);
    pod
}

pub fn budget(app: &str, at_least: u32) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": app },
        "spec": { "minAvailable": at_least, "selector": { "matchLabels": { "app": app } } },
    })
}

/// A pod with its own volume, which is attached to the node.
fn database(namespace: &str, pod_name: &str, node: &str, priority: &str) -> Vec<Value> {
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": pod_name } }]);
    let further = json!({ "spec": { "priorityClassName": priority, "volumes": volumes } });
    vec![
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": format!("pv-{pod_name}") },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "csi": { "driver": "virtual.csi.sapcloud.io", "volumeHandle": format!("vol-{pod_name}") },
                "claimRef": { "namespace": namespace, "name": pod_name },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": pod_name },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": format!("pv-{pod_name}"),
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }),
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": { "name": pod_name },
            "spec": {
                "attacher": "virtual.csi.sapcloud.io", "nodeName": node,
                "source": { "persistentVolumeName": format!("pv-{pod_name}") },
            },
        }),
        pod(pod_name, node, pod_name, &further),
    ]
}

pub async fn is_ready(namespace: &Namespace, pod: &str) {
    let ready = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    let ready = ready.to_string();
    namespace.kubectl(&["patch", "pod", pod, "--subresource=status", "--type=merge", "-p", &ready]).await.succeed();
}

pub async fn wait_for_budget(namespace: &Namespace, name: &str, healthy: i64, allowed: i64) {
    wait_until(&format!("budget {name} to count its pods"), TIMEOUT, || async {
        let status = namespace.get("poddisruptionbudget", name).await["status"].clone();
        let is_so = number(&status, "/currentHealthy") == healthy && number(&status, "/disruptionsAllowed") == allowed;
        expect(is_so, || status.to_string())
    })
    .await;
}

/// Pods of all kinds on a node: two plain pods, two under a budget that allows one eviction at a time, one under a budget that allows no eviction
/// now, one failed pod under the same budget, two with volumes, and two that no drain evicts.
async fn pods_of_all_kinds(rig: &Rig, namespace: &Namespace, node: &str) {
    let agents = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "agent" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": {
                "metadata": { "labels": { "app": "agent" } },
                "spec": { "containers": [{ "name": "main", "image": "example.com/x" }] },
            },
        },
    });
    namespace.apply(&agents.to_string()).await.succeed();
    let uid = text(&namespace.get("daemonset", "agent").await, "/metadata/uid").to_owned();
    let owner =
        json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": uid, "controller": true }]);
    for (class, value) in [("views-low", 1), ("views-high", 9)] {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": class }, "value": value,
        });
        rig.apply(&class.to_string()).await.succeed();
    }
    let plain = json!({});
    let mut all = vec![
        pod("plain-1", node, "plain", &plain),
        pod("plain-2", node, "plain", &plain),
        pod("web-1", node, "web", &plain),
        pod("web-2", node, "web", &plain),
        pod("web-3", "elsewhere", "web", &plain),
        // Becomes ready later. Without this pod, the budget counts two pods after the first eviction while it needs two, and counts as misconfigured.
        pod("web-4", "elsewhere", "web", &plain),
        pod("held-1", node, "held", &plain),
        pod("held-2", "elsewhere", "held", &plain),
        // Fails later. The API server does not check the budget of a pod that does not run.
        pod("held-3", node, "held", &plain),
        pod("agent-1", node, "agent", &json!({ "metadata": { "ownerReferences": owner } })),
        pod(
            "mirror",
            node,
            "mirror",
            &json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "x" } } }),
        ),
        budget("web", 2),
        budget("held", 1),
    ];
    all.extend(database(&namespace.name, "db-low", node, "views-low"));
    all.extend(database(&namespace.name, "db-high", node, "views-high"));
    namespace.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": all }).to_string()).await.succeed();
    for ready in ["web-1", "web-2", "web-3", "held-1"] {
        is_ready(namespace, ready).await;
    }
    wait_until("the kubelet to start the pod that is to fail", TIMEOUT, || async {
        let phase = namespace.get("pod", "held-3").await["status"]["phase"].clone();
        expect(phase == "Running", || phase.to_string())
    })
    .await;
    let failed = json!({ "status": { "phase": "Failed", "conditions": [{ "type": "Ready", "status": "False" }] } });
    let failed = failed.to_string();
    namespace
        .kubectl(&["patch", "pod", "held-3", "--subresource=status", "--type=merge", "-p", &failed])
        .await
        .succeed();
    wait_for_budget(namespace, "web", 3, 1).await;
    wait_for_budget(namespace, "held", 1, 0).await;
    for volume in ["db-low", "db-high"] {
        wait_until("the volumes to be attached", TIMEOUT, || async {
            let attachment = rig.get("volumeattachment", volume).await;
            expect(attachment["status"]["attached"] == true, || attachment["status"].to_string())
        })
        .await;
    }
}

/// Names of the deleted pods, in the order of their deletion.
type Gone = Arc<Mutex<Vec<String>>>;

async fn follow_pods(rig: &Rig, namespace: &Namespace) -> Gone {
    let gone = Gone::default();
    let now =
        rig.kubectl(&["get", "--raw", &format!("/api/v1/namespaces/{}/pods?limit=1", namespace.name)]).await.json();
    let version = text(&now, "/metadata/resourceVersion");
    let path = format!("/api/v1/namespaces/{}/pods?watch=1&resourceVersion={version}", namespace.name);
    let request = http::Request::get(path).body(Vec::new()).expect("a request");
    let (client, deleted) = (rig.client().await, Arc::clone(&gone));
    tokio::spawn(async move {
        let events = client.request_events::<Value>(request).await.expect("a watch");
        let mut events = std::pin::pin!(events);
        while let Ok(Some(event)) = events.try_next().await {
            if let WatchEvent::Deleted(pod) = event {
                deleted.lock().expect("no holder of the lock panics").push(name(&pod).to_owned());
            }
        }
    });
    gone
}

async fn wait_for(gone: &Gone, what: &str, pods: &[&str]) {
    wait_until(what, TIMEOUT, || async {
        let gone = gone.lock().expect("no holder of the lock panics").clone();
        expect(pods.iter().all(|pod| gone.iter().any(|name| name == pod)), || format!("gone: {gone:?}"))
    })
    .await;
}

fn names(list: &Value) -> Vec<String> {
    let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().map(|one| text(one, "/name").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_equals_the_drain() {
    let Some((world, machines)) = with_a_fleet("aggregation::drains::a_plan_equals_the_drain", &[]).await else {
        return;
    };
    let (rig, namespace, machine) = (&world.rig, &world.namespace, machines[0].as_str());
    rig.with_controller_manager().await;
    let node = text(&namespace.get("machine", machine).await, "/metadata/labels/node").to_owned();
    pods_of_all_kinds(rig, namespace, &node).await;

    let plan = wait_until("the plan to know all pods", TIMEOUT, || async {
        let answer = namespace.kubectl(&["get", "drainplan", machine, "-o", "json"]).await;
        let plan = if answer.succeeded() { answer.json() } else { return Err(answer.stderr) };
        let knows_all = plan["status"]["totals"] == json!({ "pods": 8, "withVolumes": 2, "ignored": 2, "blocked": 1 });
        expect(knows_all, || plan["status"].to_string()).map(|()| plan.clone())
    })
    .await;
    let status = &plan["status"];
    let mut ignored = names(&status["ignored"]);
    ignored.sort();
    assert_eq!(ignored, ["agent-1", "mirror"], "{status:#}");
    assert_eq!(names(&status["blocked"]), ["held-1"], "{status:#}");
    let blocked = &status["blocked"][0];
    assert_eq!((&blocked["budget"]["name"], &blocked["misconfigured"]), (&json!("held"), &json!(false)));
    let waves = status["waves"].as_array().expect("waves");
    let planned: Vec<Vec<String>> = waves.iter().map(|wave| names(&wave["pods"])).collect();
    let wave_of = |pod: &str| {
        let found = planned.iter().position(|wave| wave.iter().any(|name| name == pod));
        found.unwrap_or_else(|| panic!("{pod} in {planned:?}"))
    };
    assert!(wave_of("plain-1") == wave_of("plain-2") && wave_of("web-1") != wave_of("web-2"), "{planned:?}");
    assert_eq!(wave_of("held-3"), wave_of("plain-1"), "no budget protects a pod that does not run: {planned:?}");
    assert!(wave_of("db-high") < wave_of("db-low"), "{planned:?}");
    assert!(planned.concat().iter().all(|name| name != "held-1"), "{planned:?}");
    for (pod, kind) in [("plain-1", "EvictParallel"), ("db-high", "EvictSerial")] {
        assert_eq!(waves[wave_of(pod)]["kind"], kind, "{pod}");
    }

    let gone = follow_pods(rig, namespace).await;
    namespace.kubectl(&["delete", "machine", machine, "--wait=false"]).await.succeed();
    wait_for(&gone, "the pods that no budget protects", &["plain-1", "plain-2", "held-3", "db-high"]).await;
    wait_until("one pod of the budget to go", TIMEOUT, || async {
        let gone = gone.lock().expect("no holder of the lock panics").clone();
        expect(gone.iter().any(|name| name.starts_with("web-")), || format!("gone: {gone:?}"))
    })
    .await;
    let gone_now = gone.lock().expect("no holder of the lock panics").clone();
    assert_eq!(
        gone_now.iter().filter(|name| name.starts_with("web-")).count(),
        1,
        "one at a time, as planned: {gone_now:?}"
    );
    assert!(!gone_now.iter().any(|name| name == "db-low"), "one volume after the other, as planned: {gone_now:?}");
    // In a real cluster, the attach-detach controller does this when the pod is gone.
    rig.kubectl(&["delete", "volumeattachment", "db-high", "--wait=false"]).await.succeed();
    wait_for(&gone, "the other volume", &["db-low"]).await;
    rig.kubectl(&["delete", "volumeattachment", "db-low", "--wait=false"]).await.succeed();
    // A kubelet on another node reports the replacement of the evicted pod as ready.
    is_ready(namespace, "web-4").await;
    wait_until("the other pod of the budget to go", TIMEOUT, || async {
        let gone = gone.lock().expect("no holder of the lock panics").clone();
        let done = ["web-1", "web-2"].iter().all(|pod| gone.iter().any(|name| name == pod));
        let budget = namespace.get("poddisruptionbudget", "web").await["status"].clone();
        let conditions = namespace.get("machine", machine).await["status"]["machineConditions"].clone();
        expect(done, || format!("gone: {gone:?}; {budget}; {conditions}"))
    })
    .await;
    let gone_now = gone.lock().expect("no holder of the lock panics").clone();
    assert!(!gone_now.iter().any(|name| name == "held-1"), "the blocked pod stays: {gone_now:?}");
    wait_until("the machine to wait for the same pod and budget", TIMEOUT, || async {
        let left = namespace.get("machine", machine).await;
        let message = text(&left, "/status/machineConditions/0/message");
        expect(message.contains("held-1") && message.contains("/held"), || message.to_owned())
    })
    .await;
    // The budget allows an eviction when its other pod is ready.
    is_ready(namespace, "held-2").await;
    wait_for(&gone, "the blocked pod", &["held-1"]).await;

    wait_until("the machine to go", TIMEOUT, || async {
        let left = namespace.list("machines").await;
        expect(left.iter().all(|left| name(left) != machine), || format!("{} left", left.len()))
    })
    .await;
    let done = gone.lock().expect("no holder of the lock panics").clone();
    let order = |prefix: &str, names: &[String]| -> Vec<String> {
        names.iter().filter(|name| name.starts_with(prefix)).cloned().collect()
    };
    assert_eq!(order("db-", &done), order("db-", &planned.concat()), "{done:?}");
    let mut all: Vec<String> = [planned.concat(), names(&status["blocked"])].concat();
    let (drained, later) = done.split_at(all.len().min(done.len()));
    let mut drained = drained.to_vec();
    all.sort();
    drained.sort();
    assert_eq!(drained, all, "exactly the planned pods are evicted");
    // The development server deletes the pods of a deleted Node, as the garbage collector of a whole cluster does.
    assert!(later.iter().all(|pod| ignored.contains(pod)), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_equals_the_update_in_place() {
    let Some((world, _)) = with_a_fleet("aggregation::drains::an_update_in_place", &[]).await else { return };
    let (rig, namespace) = (&world.rig, &world.namespace);
    rig.with_controller_manager().await;
    let limits = json!({ "maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Auto" });
    let strategy = json!({ "type": "InPlaceUpdate", "rollingUpdate": null, "inPlaceUpdate": limits });
    let change = json!({ "spec": { "strategy": strategy } }).to_string();
    namespace.kubectl(&["patch", "machinedeployment", "pool", "--type=merge", "-p", &change]).await.succeed();
    let mut template = namespace.get("machinedeployment", "pool").await["spec"]["template"].clone();
    template["metadata"]["labels"]["round"] = json!("2");
    let review = json!({
        "apiVersion": "views.machine.sapcloud.io/v1alpha1", "kind": "RolloutPlan", "metadata": { "name": "what-if" },
        "spec": { "machineDeploymentName": "pool", "proposed": { "template": template } },
    });
    let file = rig.folder.join("in-place.json");
    std::fs::write(&file, review.to_string()).expect("the rig's folder is writable");
    let file = file.display().to_string();
    // The view's cache may not contain the new strategy yet.
    let plan = wait_until("a plan of two updates", TIMEOUT, || async {
        let plan = namespace.kubectl(&["create", "-f", &file, "-o", "json"]).await.json();
        expect(names(&plan["status"]["toUpdate"]).len() == 2, || plan.to_string()).map(|()| plan.clone())
    })
    .await;
    let status = &plan["status"];
    assert_eq!((status.get("stuck"), &status["toReplace"], &status["minAvailable"]), (None, &json!([]), &json!(1)));

    let change = json!({ "spec": { "template": template } }).to_string();
    namespace.kubectl(&["patch", "machinedeployment", "pool", "--type=merge", "-p", &change]).await.succeed();
    let order = Mutex::new(Vec::new());
    wait_until("all machines to be updated", TIMEOUT, || async {
        let nodes = rig.list("nodes").await;
        for node in nodes.iter().filter(|node| is_selected(node) && is_handed_over(node)) {
            order.lock().expect("no holder of the lock panics").push(name(node).to_owned());
            play_update_agent(rig, name(node)).await;
        }
        rolled_out(&namespace.get("machinedeployment", "pool").await, 2)
    })
    .await;
    let planned = status["toUpdate"].as_array().expect("machines").iter().map(|one| text(one, "/node").to_owned());
    assert_eq!(order.into_inner().expect("no holder of the lock panics"), planned.collect::<Vec<_>>(), "{status:#}");
}
