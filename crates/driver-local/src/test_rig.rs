//! A development server with a driver of its pods for tests, in paused time. Tests play the kubelet.

use std::{sync::Arc, time::Duration};

use http::Request;
use kube_dev_server::{DevServer, DevServerOptions};
use machine_driver::{
    CreatedVm, DeletedVm, Driver, ListRequest, ListedVm, Machine, MachineClass, MachineRequest, OpContext, SecretData,
    Status, VmIdentity,
};
use serde_json::{Value, json};

use crate::{ControlCluster, LOCAL, LocalDriver, LocalOptions};

/// The namespace of class and pods.
pub const NAMESPACE: &str = "default";

/// A server, a driver, a class and a machine.
pub struct Rig {
    pub driver: LocalDriver,
    pub class: MachineClass,
    pub machine: Machine,
    client: kube::Client,
    _server: DevServer,
}

/// A class with a patch of its `providerSpec`.
pub fn class(patch: &Value) -> MachineClass {
    let mut provider_spec = json!({"apiVersion": "mcm.gardener.cloud/v1alpha1", "image": "node:1"});
    json_patch::merge(&mut provider_spec, patch);
    let mut class = MachineClass { provider: LOCAL.to_owned(), provider_spec, ..MachineClass::default() };
    class.metadata.name = Some("small".to_owned());
    class.metadata.namespace = Some(NAMESPACE.to_owned());
    class.secret_ref = Some(machine_api::v1alpha1::SecretReference::default());
    class
}

/// The Secret of a class.
pub fn secret() -> SecretData {
    let mut secret = SecretData::default();
    secret.set(SecretData::USER_DATA, b"#!/bin/sh\n".to_vec());
    secret
}

impl Rig {
    /// A rig with machine `m`.
    pub fn new() -> Self {
        let server = DevServer::start(DevServerOptions { seed: 1, ..DevServerOptions::default() }).unwrap();
        let control = ControlCluster::default();
        control.set(server.client("driver", NAMESPACE));
        let mut machine = Machine::default();
        machine.metadata.name = Some("m".to_owned());
        machine.metadata.namespace = Some(NAMESPACE.to_owned());
        Self {
            driver: LocalDriver::new(LocalOptions { control, ..LocalOptions::default() }),
            class: class(&json!({})),
            machine,
            client: server.client("tester", NAMESPACE),
            _server: server,
        }
    }

    fn request(&self) -> MachineRequest {
        MachineRequest {
            machine: Arc::new(self.machine.clone()),
            class: Arc::new(self.class.clone()),
            secret: secret(),
        }
    }

    /// The context of a call with twenty minutes.
    pub fn cx() -> OpContext {
        OpContext::within(Duration::from_secs(1200))
    }

    pub async fn create(&self) -> Result<CreatedVm, Status> {
        self.driver.create_machine(&Self::cx(), self.request()).await
    }

    pub async fn delete(&self) -> Result<DeletedVm, Status> {
        self.driver.delete_machine(&Self::cx(), self.request()).await
    }

    pub async fn status(&self) -> Result<VmIdentity, Status> {
        self.driver.get_machine_status(&Self::cx(), self.request()).await
    }

    pub async fn list(&self) -> Result<Vec<ListedVm>, Status> {
        let request = ListRequest { class: Arc::new(self.class.clone()), secret: secret() };
        self.driver.list_machines(&Self::cx(), request).await
    }

    /// Sends a request. Returns the answer, or the error as text.
    pub async fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", content).body(body).unwrap();
        let answer = self.client.request_text(request).await;
        answer.map(|text| serde_json::from_str(&text).unwrap()).map_err(|error| error.to_string())
    }

    /// The path of a kind's objects.
    pub fn path(resource: &str) -> String {
        format!("/api/v1/namespaces/{NAMESPACE}/{resource}")
    }

    /// The objects of a kind.
    pub async fn all(&self, resource: &str) -> Vec<Value> {
        let list = self.send("GET", &Self::path(resource), &Value::Null).await.unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Writes the status of a pod.
    pub async fn pod_shows(&self, pod: &str, status: &Value) {
        let path = format!("{}/{pod}/status", Self::path("pods"));
        self.send("PATCH", &path, &json!({ "status": status })).await.unwrap();
    }

    /// Lets every pod run, until the future is dropped.
    pub async fn run_pods(&self) {
        loop {
            for pod in self.all("pods").await {
                if pod["status"]["phase"] != "Running" && pod["metadata"]["deletionTimestamp"].is_null() {
                    let running = json!({"phase": "Running", "podIPs": [{"ip": "10.1.0.7"}]});
                    let path = format!("{}/{}/status", Self::path("pods"), pod["metadata"]["name"].as_str().unwrap());
                    // The pod may be gone.
                    let _ = self.send("PATCH", &path, &json!({ "status": running })).await;
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
