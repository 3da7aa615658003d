//! Tests of the driver against [`FakeEc2`], in paused time.

#![allow(clippy::needless_pass_by_value, reason = "tests build the values they pass")]

mod create;
mod delete;
mod initialize;
mod list;
mod status;

use std::{collections::BTreeMap, sync::Arc};

use cloud_client::Limits;
use jiff::SignedDuration;
use k8s_openapi::{
    api::core::v1::{AWSElasticBlockStoreVolumeSource, CSIPersistentVolumeSource, NFSVolumeSource},
    apimachinery::pkg::apis::meta::v1::Time,
};
use machine_driver::{ErrorCodes, contract};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fake_ec2::{self, FakeEc2, Fault, Vm};

const CLUSTER: &str = "kubernetes.io/cluster/shoot";
const ROLE: &str = "kubernetes.io/role/node";

fn spec() -> Value {
    json!({
        "ami": "ami-1", "region": "eu-west-1", "machineType": "m5.large", "iam": {"name": "nodes"},
        "blockDevices": [{"ebs": {"volumeSize": 50, "volumeType": "gp3"}}],
        "networkInterfaces": [{"subnetID": "subnet-1", "securityGroupIDs": ["sg-1"]}],
        "tags": {CLUSTER: "1", ROLE: "1"},
    })
}

pub(crate) fn class(patch: Value) -> MachineClass {
    let mut spec = spec();
    json_patch::merge(&mut spec, &patch);
    MachineClass { provider: AWS.to_owned(), provider_spec: spec, ..MachineClass::default() }
}

pub(crate) fn secret() -> SecretData {
    let mut secret = SecretData::default();
    for (key, value) in
        [("accessKeyID", "AKIDEXAMPLE"), ("secretAccessKey", "wJalrXUtnFEMI"), ("userData", "#!/bin/sh")]
    {
        secret.set(key, value.as_bytes().to_vec());
    }
    secret
}

/// A driver with its fake EC2, a machine with its Secret, and a change of the class.
struct Rig {
    ec2: FakeEc2,
    driver: AwsDriver,
    patch: Value,
    machine: Machine,
    secret: SecretData,
}

impl Rig {
    fn new(patch: Value) -> Self {
        Self::with(patch, AwsOptions::default())
    }

    fn with(patch: Value, options: AwsOptions) -> Self {
        let ec2 = FakeEc2::new();
        let driver = AwsDriver::through(Client::new(ec2.clone(), Limits { rate: 1000.0, burst: 1000.0 }), options);
        let mut machine = Machine::default();
        machine.metadata.name = Some("m-1".to_owned());
        machine.metadata.uid = Some("uid-1".to_owned());
        Self { ec2, driver, patch, machine, secret: secret() }
    }

    /// Another process leads from now on. It remembers nothing.
    fn another_process_leads(&mut self) {
        let client = Client::new(self.ec2.clone(), Limits { rate: 1000.0, burst: 1000.0 });
        self.driver = AwsDriver::through(client, AwsOptions::default());
    }

    /// The machine was made so many seconds ago.
    fn made_ago(&mut self, seconds: i64) {
        self.machine.metadata.creation_timestamp = Some(Time(Timestamp::now() - SignedDuration::from_secs(seconds)));
    }

    fn named(mut self, provider_id: &str) -> Self {
        provider_id.clone_into(&mut self.machine.spec.provider_id);
        self
    }

    /// Adds an instance of the machine.
    fn vm(&self, id: &str, change: impl FnOnce(&mut Vm)) {
        let tags =
            [("Name", "m-1"), (CLUSTER, "1"), (ROLE, "1")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut vm = Vm { id: id.to_owned(), state: "running", tags: tags.into(), ..Vm::default() };
        change(&mut vm);
        self.ec2.state().vms.push(vm);
    }

    fn request(&self) -> MachineRequest {
        MachineRequest {
            machine: Arc::new(self.machine.clone()),
            class: Arc::new(class(self.patch.clone())),
            secret: self.secret.clone(),
        }
    }

    fn cx() -> OpContext {
        OpContext::within(Duration::from_secs(1200))
    }

    async fn create(&self) -> Result<CreatedVm, Status> {
        self.driver.create_machine(&Self::cx(), self.request()).await
    }

    async fn status(&self) -> Result<VmIdentity, Status> {
        self.driver.get_machine_status(&Self::cx(), self.request()).await
    }

    async fn initialize(&self) -> Result<VmIdentity, Status> {
        self.driver.initialize_machine(&Self::cx(), self.request()).await
    }

    async fn delete(&self) -> Result<DeletedVm, Status> {
        self.driver.delete_machine(&Self::cx(), self.request()).await
    }

    /// The answer of EC2 about an instance at this moment.
    fn described(&self, id: &str) -> Fault {
        let asked = fake_ec2::Parameters::from([("InstanceId.1".to_owned(), id.to_owned())]);
        Fault::Body(self.ec2.state().describe(&asked).unwrap().leak())
    }

    async fn list(&self) -> Result<Vec<ListedVm>, Status> {
        let request = ListRequest { class: Arc::new(class(self.patch.clone())), secret: secret() };
        self.driver.list_machines(&Self::cx(), request).await
    }

    fn launches(&self) -> Vec<BTreeMap<String, String>> {
        self.ec2.asked("RunInstances")
    }
}

#[tokio::test(start_paused = true)]
async fn the_contract_of_drivers_holds() {
    contract::holds_for(&Rig::new(json!({})).driver, class(json!({})), secret()).await;
}

/// The table of docs/clouds.md.
#[tokio::test(start_paused = true)]
async fn each_call_costs_as_many_requests_as_the_documents_say() {
    let mut rig = Rig::new(json!({"srcAndDstChecksEnabled": false}));
    let mut before = 0;
    let mut cost = |rig: &Rig| {
        let all = rig.ec2.state().log.len();
        std::mem::replace(&mut before, all).abs_diff(all)
    };
    let vm = rig.create().await.unwrap().vm;
    assert_eq!(cost(&rig), 4, "creation");
    rig.machine.spec.provider_id = vm.provider_id;
    rig.initialize().await.unwrap();
    assert_eq!(cost(&rig), 2, "initialisation of one interface");
    rig.status().await.unwrap();
    assert_eq!(cost(&rig), 1, "status");
    rig.list().await.unwrap();
    assert_eq!(cost(&rig), 1, "list");
    rig.delete().await.unwrap();
    assert_eq!(cost(&rig), 2, "deletion");
}

#[tokio::test]
async fn a_30_volumes_of_ebs_are_named() {
    let ebs = |id: &str| PersistentVolumeSpec {
        aws_elastic_block_store: Some(AWSElasticBlockStoreVolumeSource {
            volume_id: id.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let csi = |driver: &str| PersistentVolumeSpec {
        csi: Some(CSIPersistentVolumeSource {
            driver: driver.to_owned(),
            volume_handle: "vol-2".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let nfs = PersistentVolumeSpec { nfs: Some(NFSVolumeSource::default()), ..Default::default() };
    let volumes = vec![ebs("aws://eu-west-1a/vol-1"), csi("ebs.csi.aws.com"), nfs, csi("other"), ebs("vol-3")];
    let answer = Rig::new(json!({})).driver.get_volume_ids(&Rig::cx(), VolumeIdsRequest { volumes }).await.unwrap();
    assert_eq!(answer, ["vol-1", "vol-2", "vol-3"]);
}
