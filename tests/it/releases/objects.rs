//! Objects that the last release has written, in several states (`scripts/record-release`): this program takes over and changes nothing.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use super::{RELEASES, releases};
use crate::{
    go::left_behind::{self, KINDS},
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        cluster_object::{name, text},
        wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The namespace in which the objects were recorded. The Nodes name it, too.
const NAMESPACE: &str = "release";
/// A controller that found a reason to write would have done so by now: the first pass begins at once, and failed ones repeat within seconds.
const SETTLED: Duration = Duration::from_secs(8);

/// All objects by kind and name, without what an API server counts. Kubelets write the statuses of Nodes.
pub(super) async fn everything(rig: &Rig, namespace: &Namespace) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (plural, group, _) in KINDS {
        let list = match group {
            "" => rig.list(plural).await,
            _ => namespace.list(plural).await,
        };
        for mut object in list {
            let fields = object.as_object_mut().expect("an object");
            if group.is_empty() {
                fields.remove("status");
            }
            let metadata = fields.get_mut("metadata").and_then(Value::as_object_mut).expect("metadata");
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
            without_times_of_attempts(&mut object["status"]);
            all.insert(format!("{plural}/{}", name(&object)), object);
        }
    }
    all
}

/// The next attempt of a failed machine has been due since the recording, and its report names the times of attempts.
fn without_times_of_attempts(status: &mut Value) {
    if status["lastOperation"]["state"] == "Failed" {
        status["lastOperation"]["lastUpdateTime"] = Value::Null;
        for condition in status["machineConditions"].as_array_mut().into_iter().flatten() {
            condition["message"] = Value::Null;
        }
    }
}

/// The calls that made or ended VMs.
fn vm_calls(metrics: &str) -> Vec<&str> {
    let is_call = |line: &&str| {
        line.starts_with("mcm_cloud_api_requests_total{")
            && ["service=\"create\"", "service=\"delete\""].iter().any(|service| line.contains(service))
            && !line.ends_with(" 0")
    };
    metrics.lines().filter(is_call).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_112_objects_of_the_last_release_are_taken_over_without_a_rollout_a_status_or_a_vm_call() {
    let Some(rig) = Rig::own("releases::objects::pk_112").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace_named(NAMESPACE).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"userData": "#!/bin/sh"},
        "metadata": {"name": "fleet", "finalizers": ["machine.sapcloud.io/machine-controller"]}});
    namespace.apply(&secret.to_string()).await.succeed();
    let last = releases().pop().expect("a release");
    left_behind::recreate_from(&format!("{RELEASES}/{last}/objects"), &rig.client().await, NAMESPACE, |_| true).await;
    // The recorded preservation ends a few days after the recording.
    for machine in namespace.list("machines").await {
        if !text(&machine, "/status/currentStatus/preserveExpiryTime").is_empty() {
            let later = r#"{"status": {"currentStatus": {"preserveExpiryTime": "2100-01-01T00:00:00Z"}}}"#;
            let arguments = ["patch", "machine", name(&machine), "--subresource=status", "--type=merge", "-p", later];
            namespace.kubectl(&arguments).await.succeed();
        }
    }
    let before = everything(&rig, &namespace).await;
    let count = |plural: &str| before.keys().filter(|key| key.starts_with(plural)).count();
    assert!(
        count("machinedeployments/") >= 5 && count("machines/") >= 10 && count("nodes/") >= 10,
        "{:?}",
        before.keys()
    );

    let manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    tokio::time::sleep(SETTLED).await;
    let after = everything(&rig, &namespace).await;
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{}", manager.log());
    for (key, object) in &before {
        assert_eq!(object, &after[key], "{key} has changed");
    }
    let metrics = manager.http_get("/metrics").await;
    assert_eq!(vm_calls(&metrics), Vec::<&str>::new());

    // It acts on these objects: the missing machine of a larger set is made, and only its VM.
    namespace.kubectl(&["scale", "machinedeployment", "scaled", "--replicas=4"]).await.succeed();
    wait_until("another machine to run", TIMEOUT, || async {
        let machines = namespace.list("machines").await;
        let of_scaled = machines.iter().filter(|machine| text(machine, "/metadata/labels/pool") == "scaled");
        let running = of_scaled.filter(|machine| crate::fleet::phase(machine) == "Running").count();
        expect(running == 4, || machines.iter().map(crate::fleet::describe).collect::<Vec<_>>().join("\n"))
    })
    .await;
    let metrics = manager.http_get("/metrics").await;
    let calls = vm_calls(&metrics);
    assert!(calls.len() == 1 && calls[0].contains("create") && calls[0].ends_with(" 1"), "{calls:?}");
    let mut after = everything(&rig, &namespace).await;
    after.retain(|key, _| before.contains_key(key));
    let is_scaled = |key: &str| key == "machinedeployments/scaled" || key.starts_with("machinesets/scaled-");
    for (key, object) in before.iter().filter(|(key, _)| !is_scaled(key)) {
        assert_eq!(Some(object), after.get(key), "{key} has changed");
    }
}
