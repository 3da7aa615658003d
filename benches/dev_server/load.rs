//! Objects of a fleet, and writers that create many of them at a time.

use std::{net::SocketAddr, time::Duration};

use futures::StreamExt;
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube_dev_server::{DevServer, DevServerOptions, Listening, Storage};
use machine_api::crd::{CrdOptions, definitions};
use serde_json::{Value, json};

pub const MACHINES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines";
pub const NODES: &str = "/api/v1/nodes";
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// A server with the definitions, and its clients.
pub struct Cluster {
    pub server: DevServer,
    _listening: Listening,
    kubeconfig: String,
}

impl Cluster {
    /// Starts a server. The built-in controllers that read every object are on, as in `mcm dev`.
    pub async fn start(storage: Storage) -> anyhow::Result<Self> {
        let server = DevServer::start(DevServerOptions { storage, ..DevServerOptions::default() })?;
        let (listening, credentials) = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let kubeconfig = credentials.kubeconfig(listening.address);
        let cluster = Self { server, _listening: listening, kubeconfig };
        install(&cluster.inside()).await?;
        Ok(cluster)
    }

    /// A client without a socket.
    pub fn inside(&self) -> kube::Client {
        self.server.client("bench", "default")
    }

    /// A client over TLS.
    pub async fn outside(&self) -> anyhow::Result<kube::Client> {
        client_of(&self.kubeconfig).await
    }
}

/// A client without a rate limit.
pub async fn client_of(kubeconfig: &str) -> anyhow::Result<kube::Client> {
    let file = Kubeconfig::from_yaml(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

/// Installs the definitions with v1alpha1 only, so that no conversion is needed.
pub async fn install(client: &kube::Client) -> anyhow::Result<()> {
    for definition in definitions(&CrdOptions::default()) {
        create(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &serde_json::to_value(definition)?)
            .await?;
    }
    Ok(())
}

pub async fn create(client: &kube::Client, path: &str, object: &Value) -> anyhow::Result<()> {
    let request =
        Request::post(path).header("content-type", "application/json").body(object.to_string().into_bytes())?;
    client.request_text(request).await?;
    Ok(())
}

/// Creates `count` objects with `at_a_time` concurrent writers.
pub async fn fill(
    client: &kube::Client,
    path: &'static str,
    count: usize,
    at_a_time: usize,
    object: fn(usize) -> Value,
) -> anyhow::Result<Duration> {
    let began = std::time::Instant::now();
    let tasks = (0..at_a_time).map(|worker| {
        let client = client.clone();
        tokio::spawn(async move {
            for number in (worker..count).step_by(at_a_time) {
                create(&client, path, &object(number)).await?;
            }
            anyhow::Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    Ok(began.elapsed())
}

/// A small object.
pub fn config_map(number: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("map-{number}")}, "data": {"key": "value"}})
}

/// A typical running machine of about 2 kB.
pub fn machine(number: usize) -> Value {
    let set = format!("set-{}", number / 100);
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
        "metadata": {
            "name": format!("{set}-{number:05}"), "finalizers": ["machine.sapcloud.io/machine-controller-manager"],
            "annotations": {"machinepriority.machine.sapcloud.io": "3", "example.com/note": "x".repeat(300)},
            "labels": {"set": set, "pool": "workers", "machine-template-hash": "5f7c9d8b6", "node": format!("node-{number}")},
        },
        "spec": {
            "class": {"apiGroup": "machine.sapcloud.io", "kind": "MachineClass", "name": format!("class-{set}")},
            "providerID": format!("virtual:///region/vm-{number}"),
            "nodeTemplate": {
                "metadata": {"labels": {"topology.kubernetes.io/zone": "a", "worker.example.com/pool": set},
                    "annotations": {"example.com/checksum": "y".repeat(64)}},
                "spec": {"taints": [{"key": "example.com/starting", "value": "yes", "effect": "NoSchedule"}]},
            },
            "creationTimeout": "20m0s", "drainTimeout": "2h0m0s", "healthTimeout": "10m0s", "maxEvictRetries": 10,
        },
    })
}

pub fn node(number: usize) -> Value {
    let conditions = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(|kind| {
        json!({"type": kind, "status": if kind == "Ready" { "True" } else { "False" }, "reason": "KubeletReady",
            "message": "kubelet is posting ready status", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("node-{number}"), "labels": {"kubernetes.io/hostname": format!("node-{number}"),
            "topology.kubernetes.io/zone": "a", "node.kubernetes.io/instance-type": "virtual"}},
        "spec": {"providerID": format!("virtual:///region/vm-{number}")},
        "status": {
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
            "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"},
            "conditions": conditions, "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    })
}

pub fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{number}"), "labels": {"app": "web", "pod-template-hash": "5f7c9d8b6"}},
        "spec": {
            "nodeName": format!("node-{}", number / 3),
            "containers": [{"name": "c", "image": "registry.example.com/web:1",
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}],
        },
    })
}

/// Reads a body to its end. Returns the number of bytes.
pub async fn drain(
    mut body: impl futures::Stream<Item = Result<bytes::Bytes, impl std::fmt::Display>> + Unpin,
) -> usize {
    let mut length = 0;
    while let Some(Ok(part)) = body.next().await {
        length += part.len();
    }
    length
}

/// A percentile of sorted values.
pub fn share(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// A temporary folder that is removed after the measurement.
pub fn folder() -> anyhow::Result<tempfile::TempDir> {
    Ok(tempfile::tempdir()?)
}
