//! A fleet that another program left behind, such as the Go original (`tests/fixtures/go`): the tests create it again on any API server.

use std::{fs, path::Path};

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::cluster_object::{name, text};

/// Plural, group and kind, in the order of creation: owners first.
pub const KINDS: [(&str, &str, &str); 5] = [
    ("machineclasses", "machine.sapcloud.io", "MachineClass"),
    ("machinedeployments", "machine.sapcloud.io", "MachineDeployment"),
    ("machinesets", "machine.sapcloud.io", "MachineSet"),
    ("machines", "machine.sapcloud.io", "Machine"),
    ("nodes", "", "Node"),
];

/// The objects of the Go original.
pub const OF_GO: &str = "tests/fixtures/go";

/// Creates the given objects of the Go original again in a namespace.
pub async fn recreate(client: &kube::Client, namespace: &str, is_wanted: impl Fn(&Value) -> bool) {
    recreate_from(OF_GO, client, namespace, is_wanted).await;
}

/// Creates the given objects of a folder again in a namespace, with their statuses, and updates owner references to the new owners.
pub async fn recreate_from(folder: &str, client: &kube::Client, namespace: &str, is_wanted: impl Fn(&Value) -> bool) {
    let mut renamed: Vec<(String, String)> = Vec::new();
    for (plural, group, kind) in KINDS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(format!("{plural}.json"));
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
            Api::namespaced_with(client.clone(), namespace, &resource)
        };
        for object in list["items"].as_array().expect("a list").iter().filter(|object| is_wanted(object)) {
            let mut bare = object.clone();
            let metadata = bare["metadata"].as_object_mut().expect("metadata");
            for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "selfLink"] {
                metadata.remove(field);
            }
            if metadata.contains_key("namespace") {
                metadata.insert("namespace".to_owned(), namespace.into());
            }
            let bare: DynamicObject = serde_json::from_value(bare).expect("an object");
            let made = api.create(&PostParams::default(), &bare).await.expect("the object is valid");
            let uid = |object: &Value| text(object, "/metadata/uid").to_owned();
            renamed.push((uid(object), made.metadata.uid.clone().expect("a UID")));
            if let Some(status) = object.get("status") {
                let mut status = status.clone();
                // The generation of a new object begins at 1 again.
                if status["observedGeneration"].is_i64() {
                    status["observedGeneration"] = json!(made.metadata.generation);
                }
                let status = Patch::Merge(json!({ "status": status }));
                api.patch_status(name(object), &PatchParams::default(), &status).await.expect("a status");
            }
        }
    }
}
