//! Drains that cannot succeed: a budget that never allows an eviction, a volume that no controller detaches, and a volume that the provider does not
//! detach.

use serde_json::{Value, json};

use crate::{
    fleet::describe,
    guard,
    support::{
        cluster_object::{name, text},
        wait::expect,
        wait_until,
    },
    weather::{TIMEOUT, Weather, explanation, names, node_of},
};

/// Below 40 s a drain tries fewer than two evictions per pod before it uses force, and its wait would not be visible.
const FLAGS: [&str; 3] =
    ["--machine-drain-timeout=45s", "--machine-pv-detach-timeout=4s", "--machine-pv-reattach-timeout=2s"];

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_cannot_succeed_names_its_blocker_and_ends() {
    let Some(weather) = Weather::begin("weather::drain::a_drain_that_cannot_succeed", &FLAGS).await else { return };
    weather.want(4).await;
    let before = weather.wait_until_healthy(4).await;
    let (guarded, attached, hanging) = (name(&before[0]), name(&before[1]), name(&before[2]));
    guard::a_pod_on(&weather.namespace, node_of(&before[0])).await;
    // No controller detaches the first volume. The provider never detaches the second one.
    a_pod_with_an_attached_volume_on(&weather, node_of(&before[1]), "1").await;
    a_pod_with_an_attached_volume_on(&weather, node_of(&before[2]), "2").await;
    weather.cloud.fails(json!([{"op": "detach", "machine": "va-2", "effect": "hang", "for": "1h"}])).await;

    let deleted = ["delete", "machine", guarded, attached, hanging, "--wait=false"];
    weather.namespace.kubectl(&deleted).await.succeed();
    let named = |machine: &str, word: &str| {
        let (machine, word) = (machine.to_owned(), word.to_owned());
        move |seen: &Value| name(seen) == machine && explanation(seen).contains(&word)
    };
    let blocked = weather.wait_for_machine("pod and budget to be named", named(guarded, guard::NAME)).await;
    assert!(explanation(&blocked).len() < 2000, "a sentence for people: {}", explanation(&blocked));
    weather.wait_for_machine("the volume to be named", named(attached, "pv-1")).await;
    weather.wait_for_machine("the other volume to be named", named(hanging, "pv-2")).await;
    // In a real cluster, the attach-detach controller does this when the pod is gone. The provider does not answer.
    weather.namespace.kubectl(&["delete", "volumeattachment", "va-2", "--wait=false"]).await.succeed();
    weather.wait_for_machine("the message to name the end of the wait", named(hanging, "by force")).await;
    let vms = weather.cloud.vms().await;
    assert!(
        vms.iter().any(|vm| text(vm, "/machine") == hanging),
        "its VM stays until the volume is detached: {vms:#?}"
    );

    ended(&weather, guarded).await;
    ended(&weather, attached).await;
    ended(&weather, hanging).await;
    let pods = weather.namespace.list("pods").await;
    assert!(pods.is_empty(), "after the drain timeout the pods are deleted by force: {pods:#?}");
    let left = weather.namespace.list("volumeattachments").await;
    // The remaining attachments wait for the finalizer of their attacher. Other tests have attachments of their own in this cluster.
    let kept: Vec<&Value> = left
        .iter()
        .filter(|attachment| ["va-1", "va-2"].contains(&name(attachment)))
        .filter(|attachment| attachment["metadata"]["deletionTimestamp"].is_null())
        .collect();
    assert!(kept.is_empty(), "an attachment to a deleted node: {kept:#?}");
    let after = weather.wait_until_healthy(4).await;
    assert!(names(&after).contains(name(&before[3])), "the fourth machine stays");
}

/// Creates a pod on this Node with an attached volume. The names of all its objects end with `number`.
pub async fn a_pod_with_an_attached_volume_on(weather: &Weather, node: &str, number: &str) {
    let manifest = a_pod_with_a_volume(&weather.namespace.name, node, number).to_string();
    weather.namespace.apply(&manifest).await.succeed();
    let attachment = format!("va-{number}");
    wait_until("the volume to be attached", TIMEOUT, || async {
        let attachment = weather.namespace.get("volumeattachment", &attachment).await;
        expect(attachment["status"]["attached"] == true, || attachment["status"].to_string())
    })
    .await;
    wait_until("the Node to show it", TIMEOUT, || async {
        let node = weather.namespace.get("node", node).await;
        let shown = |list: &str| node["status"][list].to_string().contains(&format!("^vol-{number}"));
        expect(shown("volumesAttached") && shown("volumesInUse"), || node["status"].to_string())
    })
    .await;
}

async fn ended(weather: &Weather, machine: &str) {
    wait_until(&format!("machine {machine} to go"), TIMEOUT, || async {
        let machines = weather.namespace.list("machines").await;
        let seen = || machines.iter().map(|left| describe(left) + "\n" + &explanation(left) + "\n").collect();
        expect(!names(&machines).contains(machine), seen)
    })
    .await;
}

fn a_pod_with_a_volume(namespace: &str, node: &str, number: &str) -> Value {
    let named = |what: &str| format!("{what}-{number}");
    let spec = json!({
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "virtual.csi.sapcloud.io", "volumeHandle": named("vol")},
        "claimRef": {"namespace": namespace, "name": named("claim")},
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": named("pv")}, "spec": spec},
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": named("claim")},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeName": named("pv"), "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": named("va")},
            "spec": {
                "attacher": "virtual.csi.sapcloud.io", "nodeName": node,
                "source": {"persistentVolumeName": named("pv")},
            },
        },
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": named("stateful")},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "example.com/stateful"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": named("claim")}}],
            },
        },
    ]})
}
