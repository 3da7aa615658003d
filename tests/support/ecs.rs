//! An account in the fake of Elastic Compute Service, which runs in this process, and the kubelets of its instances.

use std::path::{Path, PathBuf};

use fake_ecs::{
    ACCESS_KEY_ID, ACCESS_KEY_SECRET, Call, FakeEcs, IMAGE, INSTANCE_TYPE, KEY_PAIR, REGION, SECOND_ACCESS_KEY_ID,
    SECOND_ACCESS_KEY_SECRET, SECURITY_GROUP, Timing, V_SWITCH, ZONE,
};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{clouds::succeeded, moto, process::Process, scratch};

/// The tags that identify the owner of an instance.
pub const TAGS: [&str; 2] = ["kubernetes.io/cluster/whole-program", "kubernetes.io/role/worker"];
/// The user data of the instances, with its placeholders.
const USER_DATA: &str = "#!/bin/sh\njoin --token <<BOOTSTRAP_TOKEN>> --name <<MACHINE_NAME>>\n";

/// An account of one test.
pub struct Ecs {
    pub fake: FakeEcs,
    folder: PathBuf,
    python: PathBuf,
}

impl Ecs {
    /// An empty account. `None` without the Python of `scripts/test-clouds`; then the test prints that it is skipped, and is counted.
    pub async fn start(test: &str, timing: Timing) -> Option<Self> {
        let python = moto::python(test).await?;
        let fake = FakeEcs::with(timing).await.expect("a port");
        Some(Self { fake, folder: scratch::subfolder("ecs"), python })
    }

    /// The Secret `cloud`, with the access key.
    pub fn secret_of_account() -> Value {
        let data = json!({"accessKeyID": ACCESS_KEY_ID, "accessKeySecret": ACCESS_KEY_SECRET, "userData": USER_DATA});
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud"}, "stringData": data})
    }

    /// The `providerSpec` of a class.
    pub fn provider_spec(instance_type: &str) -> Value {
        json!({
            "region": REGION, "zoneID": ZONE, "instanceType": instance_type, "imageID": IMAGE, "securityGroupID": SECURITY_GROUP,
            "vSwitchID": V_SWITCH, "keyPairName": KEY_PAIR, "instanceChargeType": "PostPaid", "internetChargeType": "PayByTraffic",
            "internetMaxBandwidthIn": 5, "internetMaxBandwidthOut": 5, "spotStrategy": "SpotAsPriceGo", "IoOptimized": "optimized",
            "systemDisk": {"category": "cloud_essd", "size": 75},
            "dataDisks": [{"name": "data", "category": "cloud_essd", "size": 30, "encrypted": true, "description": "images of containers"}],
            "tags": {TAGS[0]: "1", TAGS[1]: "1", "pool": "whole"},
        })
    }

    /// A class with the Secret `cloud`.
    pub fn class_of(name: &str, namespace: &str, instance_type: &str) -> Value {
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": name}, "provider": "Alicloud",
            "providerSpec": Self::provider_spec(instance_type), "secretRef": {"name": "cloud", "namespace": namespace},
        })
    }

    /// The actions that the program has called. The kubelets have another key.
    pub fn own_requests(&self) -> Vec<String> {
        let own = |call: &Call| call.caller != SECOND_ACCESS_KEY_ID;
        self.fake.requests().iter().filter(|call| own(call)).map(|call| call.action.name().to_owned()).collect()
    }

    /// Starts the kubelets, so that every running instance has a Node in the cluster.
    pub fn start_kubelets(&self, kubeconfig: &Path) -> Process {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/kubelets").to_owned();
        let arguments = [
            format!("ACCESS_KEY_ID={SECOND_ACCESS_KEY_ID}"),
            format!("ACCESS_KEY_SECRET={SECOND_ACCESS_KEY_SECRET}"),
            self.python.display().to_string(),
            "-B".to_owned(),
            program,
            "ecs".to_owned(),
            format!("{},{REGION}", self.fake.url()),
            kubeconfig.display().to_string(),
        ];
        Process::start(&self.folder, "kubelets", Path::new("env"), &arguments)
    }

    /// What happens when Alibaba Cloud's own client uses the account, with both ways of signing.
    pub async fn oracle(&self) -> Value {
        let parameters = json!({
            "ImageId": IMAGE, "InstanceType": INSTANCE_TYPE, "SecurityGroupId": SECURITY_GROUP, "VSwitchId": V_SWITCH, "SpotStrategy": "SpotAsPriceGo",
            "SystemDisk": {"Category": "cloud_essd", "Size": "50"}, "DataDisk": [{"Size": 30, "DeleteWithInstance": true}],
            "Tag": [{"Key": TAGS[0], "Value": "1"}, {"Key": "of", "Value": "a b*~/+ü"}], "UserData": "IyEvYmluL3No",
        });
        let run = Command::new(&self.python)
            .args(["-B", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clouds/ecs.py")])
            .args([self.fake.url(), REGION, "oracle", &parameters.to_string()])
            .env("ACCESS_KEY_ID", ACCESS_KEY_ID)
            .env("ACCESS_KEY_SECRET", ACCESS_KEY_SECRET)
            .env("OTHER_SECRET", SECOND_ACCESS_KEY_SECRET)
            .kill_on_drop(true)
            .output();
        serde_json::from_slice(&succeeded("ecs.py", run.await).stdout).expect("ecs.py prints JSON")
    }

    /// Compares the model of the fake with the classes of the installed packages.
    pub async fn check_model(&self) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/ecs-model");
        succeeded("ecs-model", Command::new(script).arg("--check").kill_on_drop(true).output().await);
    }
}
