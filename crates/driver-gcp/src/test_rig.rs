//! A driver with a fake Compute Engine, a class and a machine.

#![allow(clippy::needless_pass_by_value, reason = "tests build the values they pass")]

use std::{sync::Arc, time::Duration};

use cloud_client::{Client, HttpOptions, HttpTransport, Limits};
use fake_gce::FakeGce;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_values::field::Findings;
use machine_driver::{
    CreatedVm, DeletedVm, Driver, ListRequest, ListedVm, Machine, MachineClass, MachineRequest, OpContext, SecretData,
    Status, Timestamp, VmIdentity,
};
use serde_json::{Value, json};

use crate::{GCP, GcpDriver, GcpOptions};

pub const CLUSTER: &str = "kubernetes-io-cluster-shoot";
pub const ROLE: &str = "kubernetes-io-role-node";

/// A class that the fake can fulfil, with a change.
pub fn class(patch: Value) -> MachineClass {
    let mut spec = json!({
        "region": fake_gce::REGION, "zone": fake_gce::ZONE, "machineType": fake_gce::MACHINE_TYPE,
        "disks": [{"boot": true, "image": fake_gce::IMAGE, "sizeGb": 20, "type": "pd-balanced"}],
        "networkInterfaces": [{"network": fake_gce::NETWORK, "subnetwork": fake_gce::SUBNETWORK}],
        "scheduling": {"automaticRestart": true, "onHostMaintenance": "MIGRATE"},
        "tags": [CLUSTER, ROLE, "shoot"],
    });
    json_patch::merge(&mut spec, &patch);
    MachineClass { provider: GCP.to_owned(), provider_spec: spec, ..MachineClass::default() }
}

/// The body of an instance that another program creates.
pub fn instance(name: &str, tags: &[&str]) -> Value {
    json!({
        "name": name, "machineType": format!("zones/{}/machineTypes/{}", fake_gce::ZONE, fake_gce::MACHINE_TYPE),
        "disks": [{"boot": true, "autoDelete": true, "initializeParams": {"sourceImage": fake_gce::IMAGE}}],
        "networkInterfaces": [{"subnetwork": format!("regions/{}/subnetworks/{}", fake_gce::REGION, fake_gce::SUBNETWORK)}],
        "tags": {"items": tags},
    })
}

/// A Secret with these credentials.
pub fn secret(key: &str, credentials: &str) -> SecretData {
    let mut secret = SecretData::default();
    secret.set(key, credentials.as_bytes().to_vec());
    secret.set("projectID", fake_gce::PROJECT.as_bytes().to_vec());
    secret.set("userData", b"#!/bin/sh\necho a-secret-of-the-node".to_vec());
    secret
}

/// A driver with its fake cloud, a machine and a change of the class.
pub struct Rig {
    pub gce: FakeGce,
    pub driver: GcpDriver,
    pub patch: Value,
    pub metadata_of_class: ObjectMeta,
    pub machine: Machine,
    pub secret: SecretData,
}

impl Rig {
    pub async fn new() -> Self {
        let gce = FakeGce::start().await.unwrap();
        let driver = driver(GcpOptions { endpoint: Some(gce.url().to_owned()), ..GcpOptions::default() });
        let secret = secret("serviceAccountJSON", &gce.service_account());
        let mut machine = Machine::default();
        machine.metadata.name = Some("m-1".to_owned());
        machine.metadata.uid = Some("uid-1".to_owned());
        Self { gce, driver, patch: json!({}), metadata_of_class: ObjectMeta::default(), machine, secret }
    }

    pub fn with(mut self, patch: Value) -> Self {
        self.patch = patch;
        self
    }

    /// The machine has this provider id.
    pub fn with_id(mut self, provider_id: &str) -> Self {
        provider_id.clone_into(&mut self.machine.spec.provider_id);
        self
    }

    /// The machine as the collector of orphans makes it for a deletion.
    pub fn orphan(mut self, provider_id: &str) -> Self {
        self.machine.metadata.uid = None;
        self.with_id(provider_id)
    }

    /// The controllers keep the state of a failed call.
    pub fn keep(&mut self, failed: &Status) {
        self.machine.status.last_known_state = failed.last_known_state.clone().unwrap_or_default();
    }

    /// The class was never edited since this machine exists.
    pub fn with_first_class(mut self) -> Self {
        let made = |second| Timestamp::from_second(second).ok().map(Time);
        self.metadata_of_class.generation = Some(1);
        self.metadata_of_class.creation_timestamp = made(1);
        self.machine.metadata.creation_timestamp = made(2);
        self
    }

    pub fn request(&self) -> MachineRequest {
        let class = MachineClass { metadata: self.metadata_of_class.clone(), ..class(self.patch.clone()) };
        MachineRequest { machine: Arc::new(self.machine.clone()), class: Arc::new(class), secret: self.secret.clone() }
    }

    fn of_class(&self) -> ListRequest {
        ListRequest { class: Arc::new(class(self.patch.clone())), secret: self.secret.clone() }
    }

    pub async fn create_within(&self, limit: Duration) -> Result<CreatedVm, Status> {
        self.driver.create_machine(&OpContext::within(limit), self.request()).await
    }

    pub async fn create(&self) -> Result<CreatedVm, Status> {
        self.create_within(Duration::from_secs(1200)).await
    }

    pub async fn status(&self) -> Result<VmIdentity, Status> {
        self.driver.get_machine_status(&cx(), self.request()).await
    }

    pub async fn delete(&self) -> Result<DeletedVm, Status> {
        self.driver.delete_machine(&cx(), self.request()).await
    }

    pub async fn list(&self) -> Result<Vec<ListedVm>, Status> {
        self.driver.list_machines(&cx(), self.of_class()).await
    }

    pub async fn ask(&self) -> Result<Findings, Status> {
        self.driver.ask_about_class(&cx(), self.of_class()).await
    }
}

pub fn cx() -> OpContext {
    OpContext::within(Duration::from_secs(60))
}

/// A driver that is not slowed down by its budget.
pub fn driver(options: GcpOptions) -> GcpDriver {
    let client = Client::new(HttpTransport::new(HttpOptions::default()), Limits { rate: 1000.0, burst: 1000.0 });
    GcpDriver::through(client, options)
}

/// The provider id of an instance in the zone of the class.
pub fn id(name: &str) -> String {
    format!("gce:///{}/{}/{name}", fake_gce::PROJECT, fake_gce::ZONE)
}
