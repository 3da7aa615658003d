//! A driver with its fake cloud and a class, for tests in paused time.

#![allow(clippy::needless_pass_by_value, reason = "tests build the values they pass")]

use std::{sync::Arc, time::Duration};

use cloud_client::{Client, Limits};
use machine_driver::{
    CreatedVm, DeletedVm, Driver, ListRequest, ListedVm, Machine, MachineClass, MachineRequest, OpContext, SecretData,
    Status, VmIdentity,
};
use serde_json::{Value, json};

use crate::{
    API_VERSION, KIND, OPENSTACK, OpenStackDriver, OpenStackOptions,
    fake_cloud::{FakeCloud, PROJECT},
};

pub const CLUSTER: &str = "kubernetes.io-cluster-shoot";
pub const ROLE: &str = "kubernetes.io-role-node";

pub fn class(patch: Value) -> MachineClass {
    let mut spec = json!({
        "imageName": "linux", "region": "eu-1", "availabilityZone": "z", "flavorName": "small", "keyName": "k",
        "networkID": "n-1", "subnetID": "s-1", "securityGroups": ["machines"], "podNetworkCIDRs": ["100.64.0.0/10"],
        "tags": {CLUSTER: "1", ROLE: "1"},
    });
    json_patch::merge(&mut spec, &patch);
    let provider_spec = json!({"apiVersion": API_VERSION, "kind": KIND, "spec": spec});
    MachineClass { provider: OPENSTACK.to_owned(), provider_spec, ..MachineClass::default() }
}

/// The change to a class for which the driver makes the volume.
pub fn with_volume() -> Value {
    json!({"rootDiskSize": 20, "rootDiskType": "ssd"})
}

/// The change to a class for which Nova makes the ports.
pub fn without_port() -> Value {
    json!({"subnetID": null})
}

pub fn secret(password: &str) -> SecretData {
    let mut secret = SecretData::default();
    for (key, value) in [
        ("authURL", "http://cloud/v3"),
        ("domainName", "Default"),
        ("tenantName", "machines"),
        ("username", "mcm"),
        ("password", password),
        ("userData", "#!/bin/sh"),
    ] {
        secret.set(key, value.as_bytes().to_vec());
    }
    secret
}

/// Adds a change to a change. Nulls of both stay, and take fields away from the class.
fn overlay(patch: &mut Value, edit: Value) {
    match edit {
        Value::Object(edit) => edit.into_iter().for_each(|(key, value)| overlay(&mut patch[key], value)),
        edit => *patch = edit,
    }
}

/// A driver with its fake cloud, a machine and a change of the class.
pub struct Rig {
    pub cloud: FakeCloud,
    pub driver: OpenStackDriver,
    pub patch: Value,
    pub machine: Machine,
    pub password: &'static str,
}

impl Rig {
    pub fn new(patch: Value) -> Self {
        let cloud = FakeCloud::new();
        let client = Client::new(cloud.clone(), Limits { rate: 1000.0, burst: 1000.0 });
        let driver = OpenStackDriver::through(client, OpenStackOptions::default());
        let mut machine = Machine::default();
        machine.metadata.name = Some("m-1".to_owned());
        machine.metadata.uid = Some("uid-1".to_owned());
        Self { cloud, driver, patch, machine, password: "secret" }
    }

    pub fn named(mut self, provider_id: &str) -> Self {
        provider_id.clone_into(&mut self.machine.spec.provider_id);
        self
    }

    /// The machine as the collector of orphans makes it for a deletion.
    pub fn orphan(mut self, provider_id: &str) -> Self {
        self.machine = Machine::default();
        self.machine.metadata.name = Some("m-1".to_owned());
        self.named(provider_id)
    }

    /// A user edits the class. Null takes a field away.
    pub fn edited(mut self, edit: Value) -> Self {
        overlay(&mut self.patch, edit);
        self
    }

    /// The controllers keep the state that a call has returned.
    pub fn keeping(mut self, state: Option<String>) -> Self {
        if let Some(state) = state {
            self.machine.status.last_known_state = state;
        }
        self
    }

    /// Adds a server.
    pub fn server(&self, id: &str, change: Value) {
        let mut server = json!({"id": id, "name": "m-1", "status": "ACTIVE", "metadata": {CLUSTER: "1", ROLE: "1"}});
        json_patch::merge(&mut server, &change);
        self.cloud.state().servers.push(server);
    }

    /// Adds a port.
    pub fn port(&self, id: &str, change: Value) {
        let mut port = json!({
            "id": id, "name": "m-1", "network_id": "n-1", "device_id": "", "tags": [CLUSTER, ROLE],
            "allowed_address_pairs": [{"ip_address": "100.64.0.0/10"}], "revision_number": 3, "security_groups": ["g-machines"],
            "fixed_ips": [{"subnet_id": "s-1", "ip_address": "10.0.0.7"}], "project_id": PROJECT,
        });
        json_patch::merge(&mut port, &change);
        self.cloud.state().ports.push(port);
    }

    pub fn request(&self) -> MachineRequest {
        MachineRequest {
            machine: Arc::new(self.machine.clone()),
            class: Arc::new(class(self.patch.clone())),
            secret: secret(self.password),
        }
    }

    pub fn cx() -> OpContext {
        OpContext::within(Duration::from_secs(1200))
    }

    pub async fn create(&self) -> Result<CreatedVm, Status> {
        self.driver.create_machine(&Self::cx(), self.request()).await
    }

    pub async fn status(&self) -> Result<VmIdentity, Status> {
        self.driver.get_machine_status(&Self::cx(), self.request()).await
    }

    pub async fn initialize(&self) -> Result<VmIdentity, Status> {
        self.driver.initialize_machine(&Self::cx(), self.request()).await
    }

    pub async fn delete(&self) -> Result<DeletedVm, Status> {
        self.driver.delete_machine(&Self::cx(), self.request()).await
    }

    pub async fn list(&self) -> Result<Vec<ListedVm>, Status> {
        let request = ListRequest { class: Arc::new(class(self.patch.clone())), secret: secret(self.password) };
        self.driver.list_machines(&Self::cx(), request).await
    }

    pub fn servers(&self) -> Vec<String> {
        self.cloud.ids(|state| &state.servers)
    }

    pub fn ports(&self) -> Vec<String> {
        self.cloud.ids(|state| &state.ports)
    }

    pub fn volumes(&self) -> Vec<String> {
        self.cloud.ids(|state| &state.volumes)
    }

    pub fn is_empty(&self) -> bool {
        self.servers().is_empty() && self.ports().is_empty() && self.volumes().is_empty()
    }
}
