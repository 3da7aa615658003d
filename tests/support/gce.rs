//! A project in the fake of Compute Engine, which runs in this process, and the kubelets of its instances.

use std::path::{Path, PathBuf};

use fake_gce::{
    ACCOUNT, Call, FakeGce, IMAGE, MACHINE_TYPE, NETWORK, PROJECT, REGION, SECOND_KEY_ID, SUBJECT_TOKEN, SUBNETWORK,
    Timing, ZONE,
};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{clouds::succeeded, moto, process::Process, scratch};

/// The tags that identify the owner of an instance.
pub const TAGS: [&str; 2] = ["kubernetes-io-cluster-whole-program", "kubernetes-io-role-node"];
/// The user data of the instances, with its placeholders.
const USER_DATA: &str = "#!/bin/sh\njoin --token <<BOOTSTRAP_TOKEN>> --name <<MACHINE_NAME>>\n";

/// A project of one test.
pub struct Gce {
    pub fake: FakeGce,
    folder: PathBuf,
    python: PathBuf,
}

impl Gce {
    /// An empty project. `None` without the Python of `scripts/test-clouds`; then the test prints that it is skipped, and is counted.
    pub async fn start(test: &str, timing: Timing) -> Option<Self> {
        let python = moto::python(test).await?;
        let fake = FakeGce::with(timing).await.expect("a port");
        Some(Self { fake, folder: scratch::subfolder("gce"), python })
    }

    /// The Secret `cloud`, with the key of the service account.
    pub fn secret_of_account(&self) -> Value {
        let data = json!({"serviceAccountJSON": self.fake.service_account(), "userData": USER_DATA});
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud"}, "stringData": data})
    }

    /// The `providerSpec` of a class.
    pub fn provider_spec(machine_type: &str) -> Value {
        json!({
            "region": REGION, "zone": ZONE, "machineType": machine_type, "canIpForward": true, "description": "a node of the tests",
            "labels": {"pool": "whole"}, "tags": [TAGS[0], TAGS[1], "nodes"], "metadata": [{"key": "serial-port-enable", "value": "1"}],
            "disks": [
                {"boot": true, "sizeGb": 50, "type": "pd-ssd", "image": IMAGE, "labels": {"pool": "whole"}},
                {"sizeGb": 20, "type": "pd-balanced"},
            ],
            "networkInterfaces": [{"network": NETWORK, "subnetwork": SUBNETWORK, "disableExternalIP": true}],
            "scheduling": {"automaticRestart": true, "onHostMaintenance": "MIGRATE", "preemptible": false},
            "serviceAccounts": [{"email": ACCOUNT, "scopes": ["https://www.googleapis.com/auth/compute"]}],
        })
    }

    /// A class with the Secret `cloud`.
    pub fn class_of(name: &str, namespace: &str, machine_type: &str) -> Value {
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": name}, "provider": "GCP",
            "providerSpec": Self::provider_spec(machine_type), "secretRef": {"name": "cloud", "namespace": namespace},
        })
    }

    /// The methods that the program has called. The kubelets sign with another key.
    pub fn own_requests(&self) -> Vec<String> {
        let own = |call: &Call| call.by != SECOND_KEY_ID;
        self.fake.requests().iter().filter(|call| own(call)).map(|call| call.method.id().to_owned()).collect()
    }

    /// Starts the kubelets, so that every running instance has a Node in the cluster.
    pub fn start_kubelets(&self, kubeconfig: &Path) -> Process {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/kubelets").to_owned();
        let arguments = [
            format!("KEY_FILE={}", self.fake.second_service_account()),
            self.python.display().to_string(),
            "-B".to_owned(),
            program,
            "gce".to_owned(),
            format!("{},{PROJECT},{ZONE}", self.fake.url()),
            kubeconfig.display().to_string(),
        ];
        Process::start(&self.folder, "kubelets", Path::new("env"), &arguments)
    }

    /// What happens when Google's own client uses the project with three kinds of credentials. `body` is an instance without a name.
    pub async fn oracle(&self, body: &Value) -> Value {
        let token = self.folder.join("token");
        std::fs::write(&token, SUBJECT_TOKEN).expect("the scratch folder is writable");
        let run = Command::new(&self.python)
            .args(["-B", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clouds/gce.py")])
            .args([self.fake.url(), PROJECT, ZONE, "oracle", &body.to_string()])
            .env("KEY_FILE", self.fake.service_account())
            .env("EXTERNAL", self.fake.impersonating_external_account(&token))
            .kill_on_drop(true)
            .output();
        serde_json::from_slice(&succeeded("gce.py", run.await).stdout).expect("gce.py prints JSON")
    }

    /// Compares the model of the fake with the discovery documents of the installed package.
    pub async fn check_model(&self) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/gce-model");
        succeeded("gce-model", Command::new(script).arg("--check").kill_on_drop(true).output().await);
    }
}

/// A body of `instances.insert` without a name.
pub fn insert_body() -> Value {
    json!({
        "machineType": format!("zones/{ZONE}/machineTypes/{MACHINE_TYPE}"),
        "disks": [{"boot": true, "autoDelete": true, "initializeParams": {"sourceImage": IMAGE}}],
        "networkInterfaces": [{"subnetwork": format!("regions/{REGION}/subnetworks/{SUBNETWORK}")}],
    })
}
