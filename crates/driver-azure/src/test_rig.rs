//! A driver with a fake Azure, a class and a machine.

#![allow(clippy::needless_pass_by_value, reason = "tests build the values they pass")]

use std::{sync::Arc, time::Duration};

use cloud_client::{Client, HttpOptions, HttpTransport, Limits, Transport};
use fake_azure::{FakeAzure, Method};
use kube_values::field::Findings;
use machine_driver::{
    CreatedVm, DeletedVm, Driver, ListRequest, ListedVm, Machine, MachineClass, MachineRequest, OpContext, SecretData,
    Status, VmIdentity,
};
use serde_json::{Value, json};

use crate::{AZURE, AzureDriver, AzureOptions};

pub const CLUSTER: &str = "kubernetes.io-cluster-shoot";
pub const ROLE: &str = "kubernetes.io-role-node";
/// The user data of the machine.
pub const USER_DATA: &str = "#!/bin/sh\necho a-secret-of-the-node";

/// The tags of the class.
pub fn tags() -> Value {
    json!({CLUSTER: "1", ROLE: "1", "Name": "shoot"})
}

/// A `providerSpec` that the fake can fulfil.
pub fn spec() -> Value {
    json!({
        "location": fake_azure::LOCATION, "resourceGroup": fake_azure::RESOURCE_GROUP, "tags": tags(),
        "subnetInfo": {"vnetName": fake_azure::VNET, "subnetName": fake_azure::SUBNET},
        "properties": {
            "hardwareProfile": {"vmSize": fake_azure::VM_SIZE},
            "storageProfile": {
                "imageReference": {"urn": fake_azure::URN},
                "osDisk": {"createOption": "FromImage", "diskSizeGB": 50, "caching": "None", "managedDisk": {"storageAccountType": "Premium_LRS"}},
            },
            "osProfile": {"adminUsername": "core", "linuxConfiguration": {"disablePasswordAuthentication": true}},
            "zone": 1,
        },
    })
}

/// A class that the fake can fulfil, with a change.
pub fn class(patch: Value) -> MachineClass {
    let mut spec = spec();
    json_patch::merge(&mut spec, &patch);
    MachineClass { provider: AZURE.to_owned(), provider_spec: spec, ..MachineClass::default() }
}

/// A class whose properties have a change.
pub fn with_properties(patch: Value) -> Value {
    json!({ "properties": patch })
}

/// The Secret of an application.
pub fn secret(more: &[(&str, &str)]) -> SecretData {
    let mut secret = SecretData::default();
    let common = [
        ("clientID", fake_azure::CLIENT),
        ("tenantID", fake_azure::TENANT),
        ("subscriptionID", fake_azure::SUBSCRIPTION),
        ("userData", USER_DATA),
    ];
    for (key, value) in common.iter().chain(more) {
        secret.set(*key, value.as_bytes().to_vec());
    }
    secret
}

/// A driver with its fake cloud, a machine and a change of the class.
pub struct Rig {
    pub azure: FakeAzure,
    pub driver: AzureDriver,
    pub patch: Value,
    pub machine: Machine,
    pub secret: SecretData,
}

impl Rig {
    pub async fn new() -> Self {
        let azure = FakeAzure::start().await.unwrap();
        let driver = driver(&azure);
        let secret = secret(&[("clientSecret", fake_azure::CLIENT_SECRET)]);
        let mut machine = Machine::default();
        machine.metadata.name = Some("m-1".to_owned());
        machine.metadata.uid = Some("uid-1".to_owned());
        Self { azure, driver, patch: json!({}), machine, secret }
    }

    pub fn with(mut self, patch: Value) -> Self {
        self.patch = patch;
        self
    }

    /// The requests of the driver pass through this.
    pub fn through(mut self, transport: impl Transport) -> Self {
        let client = Client::new(transport, Limits { rate: 1000.0, burst: 1000.0 });
        self.driver = AzureDriver::through(client, options(&self.azure));
        self
    }

    /// The machine has this provider id.
    pub fn with_id(mut self, provider_id: &str) -> Self {
        provider_id.clone_into(&mut self.machine.spec.provider_id);
        self
    }

    /// The machine has this last known state.
    pub fn with_state(mut self, state: Option<String>) -> Self {
        self.machine.status.last_known_state = state.unwrap_or_default();
        self
    }

    /// The machine is being deleted.
    pub fn deleting(mut self) -> Self {
        let at = "2026-01-01T00:00:00Z".parse().unwrap();
        self.machine.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
        self
    }

    /// The machine as the collector of orphans makes it for a deletion.
    pub fn orphan(mut self, name: &str) -> Self {
        self.machine = Machine::default();
        self.machine.metadata.name = Some(name.to_owned());
        self.with_id(&id(name))
    }

    /// The controllers keep the state of a failed call.
    pub fn keep(&mut self, failed: &Status) {
        self.machine.status.last_known_state = failed.last_known_state.clone().unwrap_or_default();
    }

    pub fn request(&self) -> MachineRequest {
        MachineRequest {
            machine: Arc::new(self.machine.clone()),
            class: Arc::new(class(self.patch.clone())),
            secret: self.secret.clone(),
        }
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

    /// The names of all VMs, network interfaces and disks.
    pub fn resources(&self) -> Vec<String> {
        let all = [self.azure.vms(), self.azure.nics(), self.azure.disks()].concat();
        let mut names: Vec<String> = all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        names.sort_unstable();
        names
    }

    /// The methods that were called, without tokens and polls.
    pub fn methods(&self) -> Vec<Method> {
        let polls = [
            Method::GetToken,
            Method::GetComputeOperation,
            Method::GetDiskOperation,
            Method::GetNetworkOperation,
            Method::GetNetworkResult,
        ];
        self.azure.requests().iter().map(|call| call.method).filter(|method| !polls.contains(method)).collect()
    }

    /// The body of the last call of a method.
    pub fn body(&self, method: Method) -> Value {
        let calls = self.azure.requests();
        calls.into_iter().rfind(|call| call.method == method).and_then(|call| call.body).unwrap_or_default()
    }
}

pub fn cx() -> OpContext {
    OpContext::within(Duration::from_secs(60))
}

pub fn options(azure: &FakeAzure) -> AzureOptions {
    AzureOptions { endpoint: Some(azure.url().to_owned()), ..AzureOptions::default() }
}

/// A driver that is not slowed down by its budget.
pub fn driver(azure: &FakeAzure) -> AzureDriver {
    let client = Client::new(HttpTransport::new(HttpOptions::default()), Limits { rate: 1000.0, burst: 1000.0 });
    AzureDriver::through(client, options(azure))
}

/// The provider id of a VM.
pub fn id(name: &str) -> String {
    format!("azure:///{}/{name}", fake_azure::LOCATION)
}

/// The body of a network interface that another program makes.
pub fn nic(name: &str, tags: Value) -> Value {
    let subnet = json!({"id": fake_azure::subnet_id(fake_azure::RESOURCE_GROUP)});
    let configuration = json!({"name": name, "properties": {"privateIPAllocationMethod": "Dynamic", "subnet": subnet}});
    json!({
        "name": name, "location": fake_azure::LOCATION, "tags": tags,
        "properties": {"ipConfigurations": [configuration], "enableIPForwarding": true},
    })
}

/// The body of an empty disk that another program makes.
pub fn disk(name: &str, tags: Value) -> Value {
    json!({
        "name": name, "location": fake_azure::LOCATION, "tags": tags, "sku": {"name": "Premium_LRS"},
        "properties": {"diskSizeGB": 10, "creationData": {"createOption": "Empty"}},
    })
}
