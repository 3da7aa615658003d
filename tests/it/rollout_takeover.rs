//! A fleet that the Go original left behind is taken over on a real API server: no rollout, and no write that changes
//! anything but a status. Scenario S-HASH-12, decisions.md 3. The objects are in `tests/fixtures/go`.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::{
    ManagerOptions, Namespace, Rig, TestManager,
    cluster_object::{name, text},
    wait::expect,
    wait_until,
};

const PATIENCE: Duration = Duration::from_secs(120);
/// Kinds in the order in which they can be created: owners first.
const KINDS: [(&str, &str, &str); 5] = [
    ("machineclasses", "machine.sapcloud.io", "MachineClass"),
    ("machinedeployments", "machine.sapcloud.io", "MachineDeployment"),
    ("machinesets", "machine.sapcloud.io", "MachineSet"),
    ("machines", "machine.sapcloud.io", "Machine"),
    ("nodes", "", "Node"),
];

#[tokio::test(flavor = "multi_thread")]
async fn s_hash_12_a_fleet_of_the_original_is_taken_over_as_it_is() {
    let Some(rig) = Rig::own("rollout_takeover::s_hash_12").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("takeover").await;
    recreate(&rig, &namespace).await;
    let before = everything(&rig, &namespace).await;

    // The VMs of these machines do not exist: what creates and deletes them stays off.
    let flags = vec!["--controllers=machinedeployment,machineset".to_owned()];
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions { flags, ..ManagerOptions::default() }).await;
    wait_until("every deployment to be looked at", PATIENCE, || async {
        let deployments = namespace.list("machinedeployments").await;
        let all = deployments.iter().all(|deployment| !text(deployment, "/status/selector").is_empty());
        expect(all, || deployments.iter().map(|deployment| deployment["status"].to_string()).collect())
    })
    .await;
    unchanged(&before, &everything(&rig, &namespace).await);

    // It acts when there is something to do, and then too it leaves all else alone.
    namespace.kubectl(&["scale", "machinedeployment", "surge", "--replicas=7"]).await.succeed();
    wait_until("the seventh machine", PATIENCE, || async {
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

/// Makes the objects anew, with their statuses, and lets owner references name the new owners.
async fn recreate(rig: &Rig, namespace: &Namespace) {
    let client = rig.client().await;
    let mut renamed: Vec<(String, String)> = Vec::new();
    for (plural, group, kind) in KINDS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/go/{plural}.json"));
        let mut written = fs::read_to_string(path).expect("the fixture is there");
        for (old, new) in &renamed {
            written = written.replace(old, new);
        }
        let list: Value = serde_json::from_str(&written).expect("the fixture is JSON");
        let version = if group.is_empty() { "v1" } else { "v1alpha1" };
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let api: Api<DynamicObject> = if group.is_empty() {
            Api::all_with(client.clone(), &resource)
        } else {
            Api::namespaced_with(client.clone(), &namespace.name, &resource)
        };
        for object in list["items"].as_array().expect("a list") {
            let mut bare = object.clone();
            let metadata = bare["metadata"].as_object_mut().expect("metadata");
            for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "selfLink"] {
                metadata.remove(field);
            }
            if metadata.contains_key("namespace") {
                metadata.insert("namespace".to_owned(), namespace.name.clone().into());
            }
            let bare: DynamicObject = serde_json::from_value(bare).expect("an object");
            let made = api.create(&PostParams::default(), &bare).await.expect("the object is valid");
            let uid = |object: &Value| text(object, "/metadata/uid").to_owned();
            renamed.push((uid(object), made.metadata.uid.clone().expect("a UID")));
            if let Some(status) = object.get("status") {
                let status = Patch::Merge(json!({ "status": status }));
                api.patch_status(name(object), &PatchParams::default(), &status).await.expect("a status");
            }
        }
    }
}

/// All objects without their statuses, by kind and name.
async fn everything(rig: &Rig, namespace: &Namespace) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (plural, group, _) in KINDS {
        let list = if group.is_empty() {
            crate::support::cluster_object::items(&rig.kubectl(&["get", plural, "-o", "json"]).await.json())
        } else {
            namespace.list(plural).await
        };
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
