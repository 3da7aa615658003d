//! A pod that a disruption budget never allows to be evicted.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Namespace, cluster_object::number, wait::expect, wait_until};

/// Name of the pod and of its budget.
pub const NAME: &str = "guarded";

/// Creates the pod on a node, bound as by the scheduler, and waits until the budget counts it. Needs the disruption controller.
pub async fn a_pod_on(namespace: &Namespace, node: &str) {
    namespace.apply(&manifest(node).to_string()).await.succeed();
    let ready = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    let ready = ready.to_string();
    let patch = ["patch", "pod", NAME, "--subresource=status", "--type=merge", "-p", ready.as_str()];
    namespace.kubectl(&patch).await.succeed();
    wait_until("the budget to count its pod", Duration::from_secs(60), || async {
        let budget = namespace.get("poddisruptionbudget", NAME).await;
        expect(number(&budget, "/status/currentHealthy") == 1, || budget["status"].to_string())
    })
    .await;
}

/// The pod on a node, and its budget.
pub fn manifest(node: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": { "name": NAME },
            "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": NAME } } },
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": NAME, "labels": { "app": NAME } },
            "spec": {
                "nodeName": node,
                // No kubelet confirms the termination of this pod.
                "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "main", "image": "example.com/guarded" }],
            },
        },
    ]})
}
