//! Drains that can't succeed: a budget that never allows an eviction, and a volume that nobody detaches.

use serde_json::{Value, json};

use crate::{
    fleet::describe,
    guard,
    support::{
        cluster_object::{items, name},
        wait::expect,
        wait_until,
    },
    weather::{PATIENCE, Weather, explanation, names, node_of},
};

/// Below 40 s a drain has fewer than two evictions per pod before it uses force, and nobody would see it wait.
const FLAGS: [&str; 3] =
    ["--machine-drain-timeout=45s", "--machine-pv-detach-timeout=4s", "--machine-pv-reattach-timeout=2s"];

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_cannot_succeed_says_whom_it_waits_for_and_ends() {
    let Some(weather) = Weather::begin("weather_drain::a_drain_that_cannot_succeed", &FLAGS).await else { return };
    weather.rig.with_controller_manager().await;
    weather.want(3).await;
    let before = weather.clears_up(3).await;
    let (guarded, attached) = (name(&before[0]), name(&before[1]));
    guard::a_pod_on(&weather.namespace, node_of(&before[0])).await;
    a_pod_with_an_attached_volume_on(&weather, node_of(&before[1])).await;

    weather.namespace.kubectl(&["delete", "machine", guarded, attached, "--wait=false"]).await.succeed();
    let named = |machine: &str, word: &str| {
        let (machine, word) = (machine.to_owned(), word.to_owned());
        move |seen: &Value| name(seen) == machine && explanation(seen).contains(&word)
    };
    let blocked = weather.some_machine("pod and budget to be named", named(guarded, guard::NAME)).await;
    assert!(explanation(&blocked).len() < 2000, "a sentence for people: {}", explanation(&blocked));
    weather.some_machine("the volume to be named", named(attached, "pv-1")).await;

    ended(&weather, guarded).await;
    ended(&weather, attached).await;
    let pods = weather.namespace.list("pods").await;
    assert!(pods.is_empty(), "after the drain's time the pods go by force: {pods:#?}");
    let left = items(&weather.namespace.kubectl(&["get", "volumeattachments", "-o", "json"]).await.json());
    // What is left waits for the finalizer of its attacher.
    let kept: Vec<&Value> =
        left.iter().filter(|attachment| attachment["metadata"]["deletionTimestamp"].is_null()).collect();
    assert!(kept.is_empty(), "an attachment to a node that is gone: {kept:#?}");
    let after = weather.clears_up(3).await;
    assert!(names(&after).contains(name(&before[2])), "the third machine stays");
}

async fn a_pod_with_an_attached_volume_on(weather: &Weather, node: &str) {
    weather.namespace.apply(&a_pod_with_a_volume(&weather.namespace.name, node).to_string()).await.succeed();
    wait_until("the volume to be attached", PATIENCE, || async {
        let attachment = weather.namespace.get("volumeattachment", "va-1").await;
        expect(attachment["status"]["attached"] == true, || attachment["status"].to_string())
    })
    .await;
}

async fn ended(weather: &Weather, machine: &str) {
    wait_until(&format!("machine {machine} to go"), PATIENCE, || async {
        let machines = weather.namespace.list("machines").await;
        let seen = || machines.iter().map(|left| describe(left) + "\n" + &explanation(left) + "\n").collect();
        expect(!names(&machines).contains(machine), seen)
    })
    .await;
}

fn a_pod_with_a_volume(namespace: &str, node: &str) -> Value {
    let spec = json!({
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "virtual.csi.sapcloud.io", "volumeHandle": "vol-1"},
        "claimRef": {"namespace": namespace, "name": "claim-1"},
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-1"}, "spec": spec},
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim-1"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeName": "pv-1", "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "va-1"},
            "spec": {
                "attacher": "virtual.csi.sapcloud.io", "nodeName": node,
                "source": {"persistentVolumeName": "pv-1"},
            },
        },
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stateful"},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "example.com/stateful"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "claim-1"}}],
            },
        },
    ]})
}
