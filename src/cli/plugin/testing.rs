//! Objects for the tests of commands.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fleet::Fleet;
use machine_controllers::snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot};

/// The time of the tests.
pub fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("a time of our days")
}

/// The time this many seconds before [`now`].
pub fn ago(seconds: i64) -> Value {
    json!(Timestamp::from_second(1_800_000_000 - seconds).expect("a time of our days"))
}

/// Adds the fields of `patch`.
pub fn merged(mut base: Value, patch: &Value) -> Value {
    json_patch::merge(&mut base, patch);
    base
}

/// A Running machine.
pub fn machine(name: &str, patch: &Value) -> MachineSnapshot {
    let base = json!({
        "metadata": { "name": name, "namespace": "ns", "uid": format!("u-{name}"), "creationTimestamp": ago(600) },
        "spec": { "class": { "kind": "MachineClass", "name": "small" } },
        "status": { "currentStatus": { "phase": "Running" } },
    });
    serde_json::from_value::<machine_api::v1alpha1::Machine>(merged(base, patch)).expect("a machine").into()
}

/// A machine of a set, with Node and VM.
pub fn owned(name: &str, set: &str, letter: &str, patch: &Value) -> MachineSnapshot {
    let base = json!({
        "metadata": {
            "labels": { "node": format!("node-{letter}") },
            "ownerReferences": [reference("MachineSet", set)],
        },
        "spec": { "providerID": format!("virtual:///{letter}") },
    });
    machine(name, &merged(base, patch))
}

fn reference(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "name": name, "uid": format!("u-{name}"),
        "controller": true,
    })
}

/// A set of a deployment with this revision. The class of revision N is `class-N`.
pub fn set(name: &str, deployment: &str, revision: i64, replicas: i32) -> SetSnapshot {
    serde_json::from_value::<machine_api::v1alpha1::MachineSet>(json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("u-{name}"), "creationTimestamp": ago(1000 - revision),
            "annotations": { "deployment.kubernetes.io/revision": revision.to_string() },
            "ownerReferences": [reference("MachineDeployment", deployment)],
        },
        "spec": { "replicas": replicas, "template": template(revision) },
    }))
    .expect("a set")
    .into()
}

fn template(revision: i64) -> Value {
    json!({ "metadata": { "labels": { "app": "web" } },
            "spec": { "class": { "kind": "MachineClass", "name": format!("class-{revision}") } } })
}

/// A deployment of three machines at this revision.
pub fn deployment(name: &str, revision: i64, patch: &Value) -> DeploymentSnapshot {
    let base = json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("u-{name}"), "resourceVersion": "7", "generation": 4,
            "annotations": { "deployment.kubernetes.io/revision": revision.to_string() },
        },
        "spec": { "replicas": 3, "template": template(revision) },
        "status": { "observedGeneration": 4, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3 },
    });
    serde_json::from_value::<machine_api::v1alpha1::MachineDeployment>(merged(base, patch))
        .expect("a deployment")
        .into()
}

/// A machine whose drain a budget blocks.
pub fn blocked() -> Value {
    json!({
        "metadata": { "deletionTimestamp": ago(2280), "deletionGracePeriodSeconds": 0 },
        "status": {
            "currentStatus": { "phase": "Terminating" },
            "lastOperation": { "description": "Initiate node drain", "type": "Delete", "state": "Processing" },
            "machineConditions": [{
                "type": "Progressing", "status": "True", "reason": "DrainBlocked", "lastTransitionTime": ago(2280),
                "message": "waiting for Pod shop/db-0: PodDisruptionBudget shop/db allows 0 disruptions",
            }],
        },
    })
}

/// Deployment `web` rolls from revision 1 (set `web-1`, one machine is left and blocked) to revision 2 (set `web-2`, two machines).
pub fn fleet() -> Fleet {
    let status = json!({ "status": { "replicas": 3, "updatedReplicas": 2, "readyReplicas": 3, "availableReplicas": 2,
        "conditions": [{ "type": "Progressing", "status": "True", "reason": "MachineSetUpdated",
            "message": "MachineSet \"web-2\" is progressing.", "lastTransitionTime": ago(300) }] } });
    Fleet {
        machines: vec![
            owned("web-1-a", "web-1", "a", &blocked()),
            owned("web-2-b", "web-2", "b", &json!({})),
            owned("web-2-c", "web-2", "c", &json!({})),
        ],
        sets: vec![set("web-1", "web", 1, 0), set("web-2", "web", 2, 2)],
        deployments: vec![deployment("web", 2, &status)],
        outlooks: None,
    }
}
