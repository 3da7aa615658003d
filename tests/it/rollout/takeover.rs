//! A manager takes over a fleet of the Go original on a real API server: it starts no rollout, and it writes nothing but statuses. Scenario
//! S-HASH-12, decisions.md 3.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::{
    go::left_behind::{self, KINDS},
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        cluster_object::{name, text},
        wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(120);
#[tokio::test(flavor = "multi_thread")]
async fn s_hash_12_a_fleet_of_the_original_is_taken_over_as_it_is() {
    let Some(rig) = Rig::own("rollout::takeover::s_hash_12").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("takeover").await;
    left_behind::recreate(&rig.client().await, &namespace.name, |_| true).await;
    let before = everything(&rig, &namespace).await;

    // The VMs of these machines do not exist, so the controller that creates and deletes VMs is off.
    let flags = vec!["--controllers=machinedeployment,machineset".to_owned()];
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions { flags, ..ManagerOptions::default() }).await;
    wait_until("every deployment to be reconciled", TIMEOUT, || async {
        let deployments = namespace.list("machinedeployments").await;
        let all = deployments.iter().all(|deployment| !text(deployment, "/status/selector").is_empty());
        expect(all, || deployments.iter().map(|deployment| deployment["status"].to_string()).collect())
    })
    .await;
    unchanged(&before, &everything(&rig, &namespace).await);

    // The manager acts on a change, and changes no other object then.
    namespace.kubectl(&["scale", "machinedeployment", "surge", "--replicas=7"]).await.succeed();
    wait_until("the seventh machine", TIMEOUT, || async {
        let count = namespace.list("machines").await.len();
        expect(count == before.keys().filter(|key| key.starts_with("machines/")).count() + 1, || count.to_string())
    })
    .await;
    let mut after = everything(&rig, &namespace).await;
    after.retain(|key, _| before.contains_key(key));
    let is_scaled = |key: &str| key == "machinedeployments/surge" || key.starts_with("machinesets/surge-");
    let rest = |all: &BTreeMap<String, Value>| -> BTreeMap<String, Value> {
        all.iter().filter(|(key, _)| !is_scaled(key)).map(|(key, object)| (key.clone(), object.clone())).collect()
    };
    unchanged(&rest(&before), &rest(&after));
}

fn unchanged(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) {
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (key, object) in before {
        assert_eq!(object, &after[key], "{key} has changed");
    }
}

/// All objects without their statuses, by kind and name.
async fn everything(rig: &Rig, namespace: &Namespace) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (plural, group, _) in KINDS {
        let list = if group.is_empty() { rig.list(plural).await } else { namespace.list(plural).await };
        for mut object in list {
            let fields = object.as_object_mut().expect("an object");
            fields.remove("status");
            if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("resourceVersion");
                metadata.remove("managedFields");
            }
            all.insert(format!("{plural}/{}", name(&object)), object);
        }
    }
    all
}
