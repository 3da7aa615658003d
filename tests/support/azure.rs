//! A subscription in the fake of Azure Resource Manager, which runs in this process, and the kubelets of its VMs.

use std::path::{Path, PathBuf};

use fake_azure::{
    CLIENT, CLIENT_SECRET, COMMUNITY_IMAGE, Call, FEDERATED_TOKEN, FakeAzure, IMAGE_ID, LOCATION, RESOURCE_GROUP,
    SECOND_CLIENT_SECRET, SECOND_SECRET, SUBNET, SUBSCRIPTION, TENANT, Timing, URN_WITH_PLAN, VM_SIZE, VNET, subnet_id,
};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{clouds::succeeded, moto, process::Process, scratch};

/// The tags of all resources.
pub const TAGS: [&str; 2] = ["kubernetes.io-cluster-whole-program", "kubernetes.io-role-node"];
/// The user data of the VMs, with its placeholders.
const USER_DATA: &str = "#!/bin/sh\njoin --token <<BOOTSTRAP_TOKEN>> --name <<MACHINE_NAME>>\n";
const SSH_KEY: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 core";

/// A subscription of one test.
pub struct Azure {
    pub fake: FakeAzure,
    folder: PathBuf,
    python: PathBuf,
}

impl Azure {
    /// A subscription without VMs. `None` without the Python of `scripts/test-clouds`; then the test prints that it is skipped, and is counted.
    pub async fn start(test: &str, timing: Timing) -> Option<Self> {
        let python = moto::python(test).await?;
        let fake = FakeAzure::with(timing).await.expect("a port");
        Some(Self { fake, folder: scratch::subfolder("azure"), python })
    }

    /// The Secret `cloud`, with the secret of the application.
    pub fn secret_of_application() -> Value {
        let data = json!({
            "subscriptionID": SUBSCRIPTION, "tenantID": TENANT, "clientID": CLIENT, "clientSecret": CLIENT_SECRET, "userData": USER_DATA,
        });
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud"}, "stringData": data})
    }

    /// The `providerSpec` of a class: a disk that is made with the VM, and one that comes from an image of its own.
    pub fn provider_spec(vm_size: &str) -> Value {
        json!({
            "location": LOCATION, "resourceGroup": RESOURCE_GROUP, "tags": {TAGS[0]: "1", TAGS[1]: "1", "pool": "whole"},
            "subnetInfo": {"vnetName": VNET, "subnetName": SUBNET},
            "properties": {
                "zone": 1, "hardwareProfile": {"vmSize": vm_size},
                "storageProfile": {
                    "imageReference": {"id": IMAGE_ID},
                    "osDisk": {"createOption": "FromImage", "caching": "None", "diskSizeGB": 50, "managedDisk": {"storageAccountType": "Premium_LRS"}},
                    "dataDisks": [
                        {"name": "data", "lun": 1, "diskSizeGB": 20, "storageAccountType": "StandardSSD_LRS"},
                        {"name": "image", "lun": 2, "diskSizeGB": 30, "storageAccountType": "Premium_LRS", "imageRef": {"communityGalleryImageID": COMMUNITY_IMAGE}},
                    ],
                },
                "osProfile": {"adminUsername": "core", "linuxConfiguration": {
                    "disablePasswordAuthentication": true, "ssh": {"publicKeys": {"path": "/home/core/.ssh/authorized_keys", "keyData": SSH_KEY}},
                }},
            },
        })
    }

    /// A class with the Secret `cloud`.
    pub fn class_of(name: &str, namespace: &str, vm_size: &str) -> Value {
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": name}, "provider": "Azure",
            "providerSpec": Self::provider_spec(vm_size), "secretRef": {"name": "cloud", "namespace": namespace},
        })
    }

    /// The methods that the program has called. The kubelets have another secret.
    pub fn own_requests(&self) -> Vec<String> {
        let own = |call: &Call| !call.by.is_empty() && call.by != SECOND_SECRET;
        self.fake.requests().iter().filter(|call| own(call)).map(|call| call.method.id().to_owned()).collect()
    }

    /// Starts the kubelets, so that every running VM has a Node in the cluster.
    pub fn start_kubelets(&self, kubeconfig: &Path) -> Process {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/kubelets").to_owned();
        let arguments = [
            format!("CLIENT_SECRET={SECOND_CLIENT_SECRET}"),
            self.python.display().to_string(),
            "-B".to_owned(),
            program,
            "azure".to_owned(),
            format!("{},{SUBSCRIPTION},{TENANT},{CLIENT},{RESOURCE_GROUP}", self.fake.url()),
            kubeconfig.display().to_string(),
        ];
        Process::start(&self.folder, "kubelets", Path::new("env"), &arguments)
    }

    /// What happens when Microsoft's own clients use the subscription with two kinds of credentials.
    pub async fn oracle(&self) -> Value {
        let token = self.folder.join("token");
        std::fs::write(&token, FEDERATED_TOKEN).expect("the scratch folder is writable");
        let run = Command::new(&self.python)
            .args(["-B", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clouds/azure_clients.py")])
            .args([self.fake.url(), SUBSCRIPTION, TENANT, CLIENT, RESOURCE_GROUP, "oracle", &bodies().to_string()])
            .env("CLIENT_SECRET", CLIENT_SECRET)
            .env("AZURE_FEDERATED_TOKEN_FILE", &token)
            .kill_on_drop(true)
            .output();
        serde_json::from_slice(&succeeded("azure_clients.py", run.await).stdout).expect("it prints JSON")
    }

    /// Compares the model of the fake with the installed clients.
    pub async fn check_model(&self) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/azure-model");
        succeeded("azure-model", Command::new(script).arg("--check").kill_on_drop(true).output().await);
    }
}

/// The bodies that Microsoft's clients send. The name of the VM stands for `NAME`.
fn bodies() -> Value {
    let subnet = json!({"id": subnet_id(RESOURCE_GROUP)});
    let address = json!({"name": "a", "properties": {"subnet": subnet, "privateIPAllocationMethod": "Dynamic"}});
    let key = json!({"path": "/home/core/.ssh/authorized_keys", "keyData": SSH_KEY});
    let plan: Vec<_> = URN_WITH_PLAN.split(':').take(3).collect();
    json!({
        "plan": plan,
        "nic": {"location": LOCATION, "properties": {"ipConfigurations": [address], "enableIPForwarding": true}},
        "disk": {
            "location": LOCATION, "zones": ["1"], "sku": {"name": "Premium_LRS"},
            "properties": {"diskSizeGB": 40, "creationData": {"createOption": "FromImage", "imageReference": {"id": IMAGE_ID}}},
        },
        "vm": {
            "location": LOCATION, "zones": ["1"], "tags": {TAGS[0]: "1"},
            "properties": {
                "hardwareProfile": {"vmSize": VM_SIZE},
                "storageProfile": {
                    "imageReference": {"id": IMAGE_ID},
                    "osDisk": {"name": "NAME-os-disk", "createOption": "FromImage", "deleteOption": "Delete"},
                    "dataDisks": [{"lun": 1, "name": "NAME-1-data-disk", "createOption": "Empty", "diskSizeGB": 20, "deleteOption": "Delete"}],
                },
                "osProfile": {
                    "computerName": "node", "adminUsername": "core",
                    "linuxConfiguration": {"disablePasswordAuthentication": true, "ssh": {"publicKeys": [key]}},
                },
                "networkProfile": {"networkInterfaces": []},
            },
        },
    })
}
