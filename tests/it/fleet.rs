//! A small fleet of the provider `virtual`, and checks that several tests use on fleets.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Namespace,
    cluster_object::{number, text},
    wait::expect,
    wait_until,
};

/// A class of the virtual cloud with its Secret, and a deployment whose template names `class`.
pub fn manifests(namespace: &str, name: &str, replicas: u32, class: &str) -> String {
    json!({ "apiVersion": "v1", "kind": "List", "items": [secret(namespace), self::class(namespace, class), {
        "apiVersion": "machine.sapcloud.io/v1alpha1",
        "kind": "MachineDeployment",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": 0,
            "selector": { "matchLabels": { "fleet": name } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "20%", "maxUnavailable": "10%" } },
            "template": {
                "metadata": { "labels": { "fleet": name } },
                "spec": { "class": { "kind": "MachineClass", "name": class } },
            },
        },
    }]})
    .to_string()
}

fn secret(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "fleet", "namespace": namespace },
        "stringData": { "userData": "#!/bin/sh\n" },
    })
}

fn class(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1",
        "kind": "MachineClass",
        "metadata": { "name": name, "namespace": namespace },
        "provider": "virtual",
        "providerSpec": {},
        "secretRef": { "name": "fleet", "namespace": namespace },
    })
}

/// The phase of a machine.
pub fn phase(machine: &Value) -> &str {
    text(machine, "/status/currentStatus/phase")
}

/// Waits until the namespace has exactly `count` machines, all Running, and returns them.
pub async fn running_machines(namespace: &Namespace, count: usize, timeout: Duration) -> Vec<Value> {
    wait_until(&format!("{count} Running machines"), timeout, || async {
        let machines = namespace.list("machines").await;
        let running = machines.iter().filter(|machine| phase(machine) == "Running").count();
        let seen = || machines.iter().map(describe).collect::<Vec<_>>().join("\n");
        expect(running == count && machines.len() == count, seen).map(|()| machines.clone())
    })
    .await
}

/// Checks that the status of a deployment describes its newest spec and a finished rollout.
///
/// # Errors
///
/// The status, when the rollout is not finished.
pub fn rolled_out(deployment: &Value, replicas: i64) -> Result<(), String> {
    let current = number(deployment, "/status/observedGeneration") >= number(deployment, "/metadata/generation");
    let all = |field: &str| number(deployment, &format!("/status/{field}")) == replicas;
    let done = current && all("replicas") && all("updatedReplicas") && all("readyReplicas");
    expect(done, || format!("status {}", deployment["status"]))
}

/// Waits until the namespace has no object of a kind.
pub async fn none_left(namespace: &Namespace, resource: &str, timeout: Duration) {
    wait_until(&format!("the last of {resource} to go"), timeout, || async {
        let left = namespace.list(resource).await;
        expect(left.is_empty(), || left.iter().map(describe).collect::<Vec<_>>().join("\n"))
    })
    .await;
}

/// One line about a machine (or another object), for messages.
pub fn describe(object: &Value) -> String {
    format!(
        "{} {}: {} (deleting: {}): {}",
        text(object, "/kind"),
        text(object, "/metadata/name"),
        phase(object),
        object.pointer("/metadata/deletionTimestamp").is_some(),
        text(object, "/status/lastOperation/description"),
    )
}
