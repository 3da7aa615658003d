//! Tests of the driver against [`FakeEc2`], in paused time.

#![allow(clippy::needless_pass_by_value, reason = "tests build the values they pass")]

use std::{collections::BTreeMap, sync::Arc};

use cloud_client::Limits;
use jiff::SignedDuration;
use k8s_openapi::{
    api::core::v1::{AWSElasticBlockStoreVolumeSource, CSIPersistentVolumeSource, NFSVolumeSource},
    apimachinery::pkg::apis::meta::v1::Time,
};
use machine_api::v1alpha1::OperationType;
use machine_driver::contract;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    errors::ErrorCodes,
    fake_ec2::{self, FakeEc2, Fault, Nic, Vm},
    options::OwnIdentity,
};

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

#[tokio::test(start_paused = true)]
async fn a_01_a_02_a_creation_makes_one_instance_with_the_tags_of_the_class() {
    let rig = Rig::new(json!({"tags": {"Name": "foo", "team": "x"}}));
    let vm = rig.create().await.unwrap().vm;
    assert_eq!(vm.provider_id, "aws:///eu-west-1/i-1");
    assert_eq!(vm.node_name, "ip-i-1.eu-west-1.compute.internal");
    let tags = rig.ec2.live()[0].tags.clone();
    let expected = [("Name", "m-1"), (CLUSTER, "1"), (ROLE, "1"), ("team", "x")];
    assert_eq!(tags, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    assert_eq!(rig.ec2.state().uris[0], "https://ec2.eu-west-1.amazonaws.com/");
}

#[tokio::test(start_paused = true)]
async fn a_03_after_a_lost_reply_the_same_instance_is_answered() {
    let rig = Rig::new(json!({}));
    rig.ec2.fails("RunInstances", [Fault::LostReply]);
    assert_eq!(rig.create().await.unwrap_err().code, Code::Unavailable);
    assert_eq!(rig.create().await.unwrap().vm.provider_id, "aws:///eu-west-1/i-1");
    assert_eq!(rig.ec2.live().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_03_also_if_the_instance_can_not_be_found_by_its_tags_yet() {
    let rig = Rig::new(json!({}));
    rig.ec2.fails("RunInstances", [Fault::LostReply]);
    rig.create().await.unwrap_err();
    rig.ec2.fails("DescribeInstances", [Fault::Body("<R><reservationSet/></R>")]);
    assert_eq!(rig.create().await.unwrap().vm.provider_id, "aws:///eu-west-1/i-1");
    assert_eq!((rig.ec2.live().len(), rig.launches()[1]["ClientToken"].as_str()), (1, "uid-1"));
}

#[tokio::test(start_paused = true)]
async fn a_04_an_instance_of_another_cluster_is_not_touched() {
    let rig = Rig::new(json!({}));
    rig.vm("i-9", |vm| {
        vm.tags.remove(CLUSTER);
        vm.tags.insert("kubernetes.io/cluster/other".to_owned(), "1".to_owned());
    });
    assert_eq!(rig.create().await.unwrap().vm.provider_id, "aws:///eu-west-1/i-2");
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().iter().map(|vm| vm.id.as_str()).collect::<Vec<_>>(), ["i-9"]);
}

#[tokio::test(start_paused = true)]
async fn a_06_there_is_no_such_image() {
    let rig = Rig::new(json!({}));
    rig.ec2.state().no_image = true;
    let refused = rig.create().await.unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (Code::NotFound, "Image ami-1 not found"));
}

#[rstest]
#[case::a_05_no_image("DescribeImages", 400, "InvalidAMIID.NotFound", Code::InvalidArgument)]
#[case::a_12_no_capacity("RunInstances", 500, "InsufficientInstanceCapacity", Code::ResourceExhausted)]
#[case::a_13_no_permission("RunInstances", 403, "UnauthorizedOperation", Code::PermissionDenied)]
#[case::a_14_bad_credentials("DescribeInstances", 401, "AuthFailure", Code::Unauthenticated)]
#[case::a_quota_is_used_up("RunInstances", 400, "VcpuLimitExceeded", Code::ResourceExhausted)]
#[case::no_subnet("RunInstances", 400, "InvalidSubnetID.NotFound", Code::InvalidArgument)]
#[case::a_subnet_of_another_network("RunInstances", 400, "InvalidParameter", Code::InvalidArgument)]
#[tokio::test(start_paused = true)]
async fn an_error_of_ec2_has_its_code(
    #[case] action: &'static str,
    #[case] status: u16,
    #[case] reason: &'static str,
    #[case] code: Code,
) {
    for (codes, expected) in [
        (ErrorCodes::Fine, code),
        (ErrorCodes::AsGo, if code == Code::ResourceExhausted { code } else { Code::Internal }),
    ] {
        let rig = Rig::with(json!({}), AwsOptions { error_codes: codes, ..AwsOptions::default() });
        rig.ec2.fails(action, [Fault::Error(status, reason)]);
        let refused = rig.create().await.unwrap_err();
        assert_eq!(refused.code, expected);
        assert!(refused.message.contains(&format!("api error {reason}: it fails")), "{}", refused.message);
        assert_eq!(rig.ec2.live().len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_12_a_launch_that_ends_for_lack_of_capacity_is_repeated_with_another_token() {
    let rig = Rig::new(json!({}));
    rig.ec2.state().launches = Some(("terminated", "Server.InsufficientInstanceCapacity"));
    assert_eq!(rig.create().await.unwrap_err().code, Code::ResourceExhausted);
    rig.ec2.state().launches = None;
    assert_eq!(rig.create().await.unwrap().vm.provider_id, "aws:///eu-west-1/i-2");
    let tokens: Vec<_> = rig.launches().iter().map(|launch| launch["ClientToken"].clone()).collect();
    assert_eq!(tokens, ["uid-1", "uid-1-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_token_whose_instance_ec2_has_forgotten_is_not_used_again() {
    let rig = Rig::new(json!({}));
    rig.ec2.fails(
        "RunInstances",
        [Fault::Error(400, "IdempotentInstanceTerminated"), Fault::Error(400, "IdempotentParameterMismatch")],
    );
    assert_eq!(rig.create().await.unwrap_err().code, Code::Unavailable, "its instance may be shown late");
    tokio::time::sleep(Duration::from_secs(300)).await;
    rig.ec2.fails(
        "RunInstances",
        [Fault::Error(400, "IdempotentInstanceTerminated"), Fault::Error(400, "IdempotentParameterMismatch")],
    );
    rig.create().await.unwrap();
    assert_eq!(rig.launches()[4]["ClientToken"], "uid-1-2");
}

#[tokio::test(start_paused = true)]
async fn a_03_an_edited_class_makes_no_second_instance_while_the_first_is_not_shown() {
    let mut rig = Rig::new(json!({}));
    rig.ec2.fails("RunInstances", [Fault::LostReply]);
    rig.create().await.unwrap_err();
    rig.patch = json!({"machineType": "m5.xlarge"});
    rig.ec2.fails("DescribeInstances", vec![Fault::Body("<R><reservationSet/></R>"); 4]);
    for _ in 0..2 {
        rig.ec2.fails("RunInstances", [Fault::Error(400, "IdempotentParameterMismatch")]);
        let refused = rig.create().await.unwrap_err();
        assert_eq!(refused.code, Code::Unavailable);
        assert!(refused.message.contains("uid-1 has made an instance"), "{}", refused.message);
    }
    assert_eq!(rig.create().await.unwrap().vm.provider_id, "aws:///eu-west-1/i-1");
    assert_eq!(rig.ec2.live().len(), 1);
}

/// The instance has only the tags of the class at its launch. Its client token proves whose it is.
#[rstest]
#[case::shown(0)]
#[case::not_shown_at_first(1)]
#[tokio::test(start_paused = true)]
async fn a_03_a_class_with_a_new_tag_makes_no_second_instance_after_a_lost_reply(#[case] stale: usize) {
    let mut rig = Rig::new(json!({}));
    rig.ec2.fails("RunInstances", [Fault::LostReply]);
    rig.create().await.unwrap_err();
    rig.patch = json!({"tags": {"kubernetes.io/cluster/second": "1"}});
    rig.ec2.fails("DescribeInstances", vec![Fault::Body("<R><reservationSet/></R>"); stale]);
    assert_eq!(rig.create().await.unwrap().vm.provider_id, "aws:///eu-west-1/i-1");
    assert_eq!(rig.ec2.live().len(), 1);
    assert_eq!(rig.status().await.unwrap().provider_id, "aws:///eu-west-1/i-1");
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().len(), 0, "also the deletion of a machine without a provider id finds it");
}

/// A token that made an instance with the old tags of a class, and whose instance has ended, delays nothing.
#[tokio::test(start_paused = true)]
async fn a_token_of_an_instance_that_has_ended_is_passed_over_after_a_change_of_the_class() {
    let mut rig = Rig::new(json!({}));
    rig.create().await.unwrap();
    rig.ec2.state().vms[0].state = "terminated";
    rig.patch = json!({"machineType": "m5.xlarge"});
    rig.ec2.fails("DescribeInstances", [Fault::Body("<R><reservationSet/></R>")]);
    assert_eq!(rig.create().await.unwrap().vm.provider_id, "aws:///eu-west-1/i-2");
}

#[tokio::test(start_paused = true)]
async fn a_20_an_instance_that_is_described_late_is_waited_for() {
    let rig = Rig::new(json!({}));
    rig.ec2.state().stale_looks = 3;
    let began = Instant::now();
    rig.create().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(rig.launches().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_20_the_wait_ends_after_five_minutes() {
    let rig = Rig::new(json!({}));
    rig.ec2.state().stale_looks = usize::MAX;
    let began = Instant::now();
    let refused = rig.create().await.unwrap_err();
    assert!(refused.message.contains("timed out waiting for eventual consistency"), "{}", refused.message);
    assert!(began.elapsed() <= Duration::from_secs(300), "{:?}", began.elapsed());
}

fn nic(id: &str, kind: &'static str, index: usize, prefixes: usize) -> Nic {
    Nic { id: id.to_owned(), kind, index, checks: true, prefixes }
}

#[tokio::test(start_paused = true)]
async fn a_15_a_16_checks_are_switched_off_where_there_are_any() {
    let rig = Rig::new(json!({"srcAndDstChecksEnabled": false}));
    rig.vm("i-9", |vm| vm.interfaces = vec![nic("eni-1", "interface", 0, 0), nic("eni-2", "efa", 1, 0)]);
    let before = rig.status().await.unwrap_err();
    assert_eq!(before.code, Code::Uninitialized);
    assert_eq!(before.partial.unwrap().provider_id, "aws:///eu-west-1/i-9");
    rig.initialize().await.unwrap();
    let modified = rig.ec2.asked("ModifyNetworkInterfaceAttribute");
    assert_eq!(modified.len(), 1);
    assert_eq!(
        (modified[0]["NetworkInterfaceId"].as_str(), modified[0]["SourceDestCheck.Value"].as_str()),
        ("eni-1", "false")
    );
    rig.status().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_17_one_interface_that_fails_does_not_stop_the_others() {
    let rig = Rig::new(json!({"srcAndDstChecksEnabled": false}));
    rig.vm("i-9", |vm| vm.interfaces = vec![nic("eni-1", "interface", 0, 0), nic("eni-2", "interface", 1, 0)]);
    rig.ec2.fails("ModifyNetworkInterfaceAttribute", [Fault::Error(400, "InvalidParameterValue")]);
    assert_eq!(rig.initialize().await.unwrap_err().code, Code::Uninitialized);
    assert_eq!(rig.ec2.asked("ModifyNetworkInterfaceAttribute").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_18_the_prefixes_that_are_missing_are_assigned() {
    let rig =
        Rig::new(json!({"networkInterfaces": [{"subnetID": "s", "securityGroupIDs": ["g"], "ipv6PrefixCount": 2}]}));
    rig.vm("i-9", |vm| vm.interfaces = vec![nic("eni-1", "interface", 0, 1)]);
    assert_eq!(rig.status().await.unwrap_err().code, Code::Uninitialized);
    rig.initialize().await.unwrap();
    assert_eq!(rig.ec2.asked("AssignIpv6Addresses")[0]["Ipv6PrefixCount"], "1");
    rig.status().await.unwrap();
}

fn with_prefixes(count: usize) -> Value {
    json!({"networkInterfaces": [{"subnetID": "s", "securityGroupIDs": ["g"], "ipv6PrefixCount": count}]})
}

#[tokio::test(start_paused = true)]
async fn a_18_prefixes_that_are_not_shown_yet_are_not_assigned_twice() {
    let mut rig = Rig::new(with_prefixes(2));
    rig.vm("i-9", |vm| vm.interfaces = vec![nic("eni-1", "interface", 0, 1)]);
    let stale: &str = rig
        .ec2
        .state()
        .describe(&fake_ec2::Parameters::from([("InstanceId.1".to_owned(), "i-9".to_owned())]))
        .unwrap()
        .leak();
    let asked = |rig: &Rig| rig.ec2.asked("AssignIpv6Addresses").len();
    rig.initialize().await.unwrap();
    rig.ec2.fails("DescribeInstances", vec![Fault::Body(stale); 4]);
    rig.initialize().await.unwrap();
    rig.status().await.unwrap();
    assert_eq!(asked(&rig), 1);
    rig.patch = with_prefixes(4);
    assert_eq!(rig.status().await.unwrap_err().code, Code::Uninitialized);
    rig.initialize().await.unwrap();
    assert_eq!((asked(&rig), rig.ec2.asked("AssignIpv6Addresses")[1]["Ipv6PrefixCount"].as_str()), (2, "2"));
    assert_eq!(rig.ec2.state().vms[0].interfaces[0].prefixes, 4);
    // A user has removed the prefixes.
    tokio::time::sleep(Duration::from_secs(300)).await;
    rig.ec2.state().vms[0].interfaces[0].prefixes = 0;
    rig.initialize().await.unwrap();
    assert_eq!(rig.ec2.state().vms[0].interfaces[0].prefixes, 4);
}

#[tokio::test(start_paused = true)]
async fn a_18_prefixes_without_an_answer_are_waited_for_before_they_are_assigned_again() {
    let rig = Rig::new(with_prefixes(2));
    rig.vm("i-9", |vm| vm.interfaces = vec![nic("eni-1", "interface", 0, 0)]);
    let stale: &str = rig
        .ec2
        .state()
        .describe(&fake_ec2::Parameters::from([("InstanceId.1".to_owned(), "i-9".to_owned())]))
        .unwrap()
        .leak();
    rig.ec2.fails("AssignIpv6Addresses", [Fault::LostReply]);
    assert_eq!(rig.initialize().await.unwrap_err().code, Code::Uninitialized);
    rig.ec2.fails("DescribeInstances", vec![Fault::Body(stale); 2]);
    let refused = rig.initialize().await.unwrap_err();
    assert_eq!(refused.code, Code::Uninitialized);
    assert!(refused.message.contains("eni-1"), "{}", refused.message);
    assert_eq!(rig.status().await.unwrap_err().code, Code::Uninitialized);
    assert_eq!(rig.ec2.asked("AssignIpv6Addresses").len(), 1);
    rig.initialize().await.unwrap();
    rig.status().await.unwrap();
    assert_eq!(rig.ec2.state().vms[0].interfaces[0].prefixes, 2);
}

#[tokio::test(start_paused = true)]
async fn a_18_refused_prefixes_are_asked_for_again() {
    let rig = Rig::new(with_prefixes(2));
    rig.vm("i-9", |vm| vm.interfaces = vec![nic("eni-1", "interface", 0, 0)]);
    rig.ec2.fails("AssignIpv6Addresses", [Fault::Error(400, "InsufficientCidrBlocks")]);
    assert_eq!(rig.initialize().await.unwrap_err().code, Code::Uninitialized);
    rig.initialize().await.unwrap();
    assert_eq!(rig.ec2.state().vms[0].interfaces[0].prefixes, 2);
}

/// The credentials of the first request have expired, and the source of credentials fails for a moment.
#[rstest]
#[case::with_fine_codes(ErrorCodes::Fine)]
#[case::with_the_codes_of_go(ErrorCodes::AsGo)]
#[tokio::test(start_paused = true)]
async fn a_18_prefixes_that_were_not_asked_for_for_lack_of_credentials_are_not_waited_for(
    #[case] error_codes: ErrorCodes,
    #[values(Fault::Error(503, "ServiceUnavailable"), Fault::Body("<R/>"), Fault::Silence)] fault: Fault,
) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "t-1").unwrap();
    let own = OwnIdentity::WebIdentity { file: file.path().to_owned(), role: "arn:r".to_owned() };
    let mut rig = Rig::with(with_prefixes(2), AwsOptions { error_codes, own, ..AwsOptions::default() });
    rig.secret = SecretData::default();
    rig.vm("i-9", |vm| vm.interfaces = vec![nic("eni-1", "interface", 0, 0)]);
    let expired = Fault::Body(
        "<R><Credentials><SessionToken>c</SessionToken><SecretAccessKey>b</SecretAccessKey>\
         <Expiration>2026-01-01T01:00:00Z</Expiration><AccessKeyId>a</AccessKeyId></Credentials></R>",
    );
    rig.ec2.fails("AssumeRoleWithWebIdentity", [expired.clone()].into_iter().chain(vec![fault; 4]));
    // The operation may end while the source has not answered.
    let first = tokio::time::timeout(Duration::from_secs(30), rig.initialize()).await;
    assert!(first.is_err() || first.is_ok_and(|refused| refused.is_err()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    rig.ec2.state().faults.clear();
    rig.ec2.fails("AssumeRoleWithWebIdentity", vec![expired; 10]);
    rig.initialize().await.unwrap();
    assert_eq!(rig.ec2.asked("AssignIpv6Addresses").len(), 1);
    assert_eq!(rig.ec2.state().vms[0].interfaces[0].prefixes, 2);
}

#[tokio::test(start_paused = true)]
async fn an_initialisation_without_an_instance_is_uninitialized() {
    assert_eq!(Rig::new(json!({})).initialize().await.unwrap_err().code, Code::Uninitialized);
}

#[tokio::test(start_paused = true)]
async fn a_19_two_instances_of_one_machine_are_an_error() {
    let rig = Rig::new(json!({}));
    rig.vm("i-8", |_| ());
    rig.vm("i-9", |_| ());
    let refused = rig.status().await.unwrap_err();
    assert_eq!(refused.code, Code::OutOfRange);
    assert!(refused.message.ends_with("IDs for all backing VMs - [i-8 i-9] "), "{}", refused.message);
}

#[tokio::test(start_paused = true)]
async fn a_21_an_instance_that_has_ended_belongs_to_no_machine() {
    let rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    rig.vm("i-9", |vm| vm.state = "terminated");
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_its_name_is_found_by_its_id() {
    let rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    rig.vm("i-9", |vm| drop(vm.tags.remove("Name")));
    assert_eq!(rig.status().await.unwrap().provider_id, "aws:///eu-west-1/i-9");
}

#[tokio::test(start_paused = true)]
async fn a_22_the_deletion_of_an_instance_that_is_gone_succeeds() {
    let rig = Rig::new(json!({})).named("aws:///us-east-1/i-9");
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.state().uris[0], "https://ec2.us-east-1.amazonaws.com/", "the id says where it was");
}

/// EC2 shows a new instance with a delay, and shows an ended instance for an hour.
#[tokio::test(start_paused = true)]
async fn a_22_a_young_instance_that_is_not_shown_is_not_gone() {
    let mut rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    let made = |seconds| Some(Time(Timestamp::now() - SignedDuration::from_secs(seconds)));
    rig.machine.metadata.creation_timestamp = made(10);
    for refused in [rig.status().await.unwrap_err(), rig.delete().await.unwrap_err()] {
        assert_eq!(refused.code, Code::Unavailable, "{}", refused.message);
    }
    rig.machine.metadata.creation_timestamp = made(301);
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    rig.delete().await.unwrap();
    rig.machine.metadata.creation_timestamp = made(10);
    rig.vm("i-9", |vm| vm.state = "terminated");
    rig.delete().await.unwrap();
}

/// The creation of the machine was tried again for an hour, so the machine is much older than its instance.
#[tokio::test(start_paused = true)]
async fn a_22_a_young_instance_of_an_old_machine_is_not_gone_either() {
    let mut rig = Rig::new(json!({}));
    rig.machine.metadata.creation_timestamp = Some(Time(Timestamp::now() - SignedDuration::from_hours(1)));
    rig.machine.spec.provider_id = rig.create().await.unwrap().vm.provider_id;
    rig.ec2.state().vms.clear();
    for refused in [rig.status().await.unwrap_err(), rig.delete().await.unwrap_err()] {
        assert_eq!(refused.code, Code::Unavailable, "{}", refused.message);
    }
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    rig.delete().await.unwrap();
}

/// The process that launched the instance has ended, but the machine says when its creation was last written.
#[rstest]
#[case::a_creation_of_now(OperationType::Create, 10, Code::Unavailable)]
#[case::a_creation_of_long_ago(OperationType::Create, 301, Code::NotFound)]
#[case::another_operation(OperationType::HealthCheck, 10, Code::NotFound)]
#[tokio::test(start_paused = true)]
async fn a_22_the_last_creation_of_a_machine_bounds_the_age_of_its_instance(
    #[case] operation: OperationType,
    #[case] seconds: i64,
    #[case] expected: Code,
) {
    let mut rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    rig.machine.metadata.creation_timestamp = Some(Time(Timestamp::now() - SignedDuration::from_hours(1)));
    rig.machine.status.last_operation.operation = operation;
    rig.machine.status.last_operation.last_update_time =
        Some(Time(Timestamp::now() - SignedDuration::from_secs(seconds)));
    assert_eq!(rig.status().await.unwrap_err().code, expected);
}

#[tokio::test(start_paused = true)]
async fn a_23_all_instances_of_the_name_are_deleted() {
    let rig = Rig::new(json!({}));
    rig.vm("i-8", |_| ());
    rig.vm("i-9", |_| ());
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_by_id_also_terminates_instances_of_earlier_creations_unless_it_is_for_an_orphan() {
    for (uid, left) in [(Some("uid-1".to_owned()), 0), (None, 1)] {
        let mut rig = Rig::new(json!({})).named("aws:///eu-west-1/i-8");
        rig.machine.metadata.uid = uid;
        rig.vm("i-8", |_| ());
        rig.vm("i-9", |vm| "uid-1-1".clone_into(&mut vm.token));
        rig.vm("i-7", |vm| "uid-of-another".clone_into(&mut vm.token));
        rig.delete().await.unwrap();
        assert_eq!(rig.ec2.live().len(), left + 1, "an instance of another machine that has the name by mistake stays");
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_another_cluster_is_neither_found_nor_terminated_by_its_id() {
    for uid in [Some("uid-1".to_owned()), None] {
        let mut rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
        rig.machine.metadata.uid = uid;
        rig.vm("i-9", |vm| {
            vm.tags.remove(CLUSTER);
            vm.tags.insert("kubernetes.io/cluster/other".to_owned(), "1".to_owned());
        });
        for refused in [rig.status().await.unwrap_err(), rig.delete().await.unwrap_err()] {
            assert_eq!(refused.code, Code::FailedPrecondition, "the instance runs: {}", refused.message);
            assert!(refused.message.contains("it has no tag of the clusters of the class"), "{}", refused.message);
            assert!(refused.message.contains(CLUSTER), "{}", refused.message);
        }
        assert_eq!(rig.ec2.live().len(), 1);
    }
}

/// The instances were not made by requests with the client tokens of this machine: the Go driver made them, or the machine was restored.
#[rstest]
#[case::of_a_cluster("kubernetes.io/cluster/second")]
#[case::of_a_role("kubernetes.io/role/second")]
#[tokio::test(start_paused = true)]
async fn an_instance_without_a_new_tag_of_its_class_belongs_to_the_machine_that_names_it(#[case] added: &str) {
    let rig = Rig::new(json!({"tags": {added: "1"}})).named("aws:///eu-west-1/i-9");
    rig.vm("i-9", |_| ());
    assert_eq!(rig.status().await.unwrap().provider_id, "aws:///eu-west-1/i-9");
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_tags_is_recognised_by_its_token() {
    let rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    rig.vm("i-9", |vm| {
        vm.tags.clear();
        "uid-1-2".clone_into(&mut vm.token);
    });
    assert_eq!(rig.status().await.unwrap().provider_id, "aws:///eu-west-1/i-9");
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_a_user_has_terminated_is_not_terminated_again() {
    let rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    rig.vm("i-9", |vm| vm.state = "terminated");
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.asked("TerminateInstances").len(), 0);
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

#[tokio::test(start_paused = true)]
async fn c_05_an_orphan_is_terminated_although_its_user_data_has_placeholders() {
    let rig = Rig::new(json!({}));
    rig.vm("i-9", |_| ());
    let mut secret = secret();
    secret.set("userData", b"#!/bin/sh\njoin <<BOOTSTRAP_TOKEN>> <<MACHINE_NAME>>".to_vec());
    let class = Arc::new(class(json!({})));
    let request = ListRequest { class: Arc::clone(&class), secret: secret.clone() };
    let orphan = rig.driver.list_machines(&Rig::cx(), request).await.unwrap().remove(0);
    let mut machine = Machine::default();
    machine.metadata.name = Some(orphan.machine_name);
    machine.spec.provider_id = orphan.provider_id;
    let request = MachineRequest { machine: Arc::new(machine), class, secret };
    rig.driver.delete_machine(&Rig::cx(), request).await.unwrap();
    assert_eq!(rig.ec2.live().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_provider_id_that_names_a_host_is_refused() {
    let rig = Rig::new(json!({})).named("aws:///evil.example.com/i-8");
    assert_eq!(rig.delete().await.unwrap_err().code, Code::InvalidArgument);
    assert_eq!(rig.ec2.state().log.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_28_a_29_lists_are_whole_with_stopped_instances() {
    let rig = Rig::new(json!({}));
    rig.ec2.state().page = 500;
    for number in 0..1200 {
        rig.vm(&format!("i-{number}"), |vm| vm.state = if number % 7 == 0 { "stopped" } else { "running" });
    }
    rig.vm("i-gone", |vm| vm.state = "terminated");
    let all = rig.list().await.unwrap();
    assert_eq!((all.len(), rig.ec2.asked("DescribeInstances").len()), (1200, 3));
    assert_eq!((all[7].provider_id.as_str(), all[7].machine_name.as_str()), ("aws:///eu-west-1/i-7", "m-1"));
    assert!(all[7].created.is_some());
}

#[tokio::test(start_paused = true)]
async fn c_10_a_list_without_its_second_page_is_an_error() {
    let rig = Rig::new(json!({}));
    rig.ec2.state().page = 1;
    rig.vm("i-1", |_| ());
    rig.vm("i-2", |_| ());
    let first = "<R><reservationSet><item><instancesSet/></item></reservationSet><nextToken>1</nextToken></R>";
    rig.ec2.fails("DescribeInstances", [Fault::Body(first), Fault::Error(400, "InvalidParameterValue")]);
    assert_eq!(rig.list().await.unwrap_err().code, Code::InvalidArgument);
    // With the same token again, the driver would request the same page for ever.
    rig.ec2.fails("DescribeInstances", [Fault::Body(first), Fault::Body(first)]);
    assert_eq!(rig.list().await.unwrap_err().code, Code::Internal);
    // The same holds for a repeated page with another token.
    let page = |next: usize| {
        let item = "<item><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></item>";
        Fault::Body(format!("<R><reservationSet>{item}</reservationSet><nextToken>{next}</nextToken></R>").leak())
    };
    rig.ec2.fails("DescribeInstances", [page(1), page(2), page(1)]);
    assert_eq!(rig.list().await.unwrap_err().code, Code::Internal);
}

/// The page of the gateway is valid XML.
#[tokio::test(start_paused = true)]
async fn a_page_of_a_gateway_is_no_termination() {
    let rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    rig.vm("i-9", |_| ());
    rig.ec2.fails("TerminateInstances", [Fault::Body("<html><body><p>Service under maintenance</p></body></html>")]);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::Internal);
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().len(), 0);
}

/// The service ignores the filter by id.
#[tokio::test(start_paused = true)]
async fn an_answer_about_another_instance_terminates_nothing() {
    let rig = Rig::new(json!({})).named("aws:///eu-west-1/i-8");
    rig.vm("i-9", |vm| drop(vm.tags.insert("Name".to_owned(), "m-2".to_owned())));
    let other =
        rig.ec2.state().describe(&fake_ec2::Parameters::from([("InstanceId.1".to_owned(), "i-9".to_owned())])).unwrap();
    rig.ec2.fails("DescribeInstances", [Fault::Body("<R><reservationSet/></R>"), Fault::Body(other.leak())]);
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().len(), 1);
}

/// A user has changed the `Name` of the machine's instance.
#[tokio::test(start_paused = true)]
async fn an_instance_with_another_name_is_found_and_terminated_by_its_id() {
    let rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    rig.vm("i-9", |vm| drop(vm.tags.insert("Name".to_owned(), "web".to_owned())));
    assert_eq!(rig.status().await.unwrap().provider_id, "aws:///eu-west-1/i-9");
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_instance_with_another_name_and_without_all_tags_is_not_terminated_by_its_id() {
    let rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    rig.vm("i-9", |vm| {
        vm.tags.insert("Name".to_owned(), "m-2".to_owned());
        vm.tags.remove(ROLE);
    });
    for refused in [rig.status().await.unwrap_err(), rig.delete().await.unwrap_err()] {
        assert_eq!(refused.code, Code::FailedPrecondition);
        assert!(refused.message.contains("its name is \"m-2\""), "{}", refused.message);
    }
    assert_eq!(rig.ec2.live().len(), 1);
}

#[rstest]
#[case::no_xml("{}")]
#[case::cut_off("<R><reservationSet><item>")]
#[case::another_answer("<html></html>")]
#[case::a_page_with_a_list("<html><reservationSet/></html>")]
#[tokio::test(start_paused = true)]
async fn an_answer_that_can_not_be_read_is_no_empty_list(#[case] body: &'static str) {
    let rig = Rig::new(json!({}));
    rig.ec2.fails("DescribeInstances", [Fault::Body(body)]);
    assert_eq!(rig.list().await.unwrap_err().code, Code::Internal);
}

#[tokio::test(start_paused = true)]
async fn c_11_a_throttled_read_is_repeated() {
    let rig = Rig::new(json!({}));
    rig.vm("i-9", |_| ());
    rig.ec2.fails("DescribeInstances", (0..3).map(|_| Fault::Error(503, "RequestLimitExceeded")));
    rig.status().await.unwrap();
    assert_eq!(rig.ec2.asked("DescribeInstances").len(), 4);
    rig.ec2.fails("DescribeInstances", (0..9).map(|_| Fault::Error(503, "RequestLimitExceeded")));
    assert_eq!(rig.status().await.unwrap_err().code, Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn c_12_a_rotated_secret_signs_the_next_request() {
    let rig = Rig::new(json!({}));
    rig.vm("i-9", |_| ());
    rig.status().await.unwrap();
    let mut request = rig.request();
    request.secret.set("accessKeyID", b"AKIDROTATED".to_vec());
    rig.driver.get_machine_status(&Rig::cx(), request).await.unwrap();
    let state = rig.ec2.state();
    let signed = |at: usize| state.headers[at]["authorization"].to_str().unwrap().to_owned();
    assert!(signed(0).contains("Credential=AKIDEXAMPLE/"), "{}", signed(0));
    assert!(signed(1).contains("Credential=AKIDROTATED/"), "{}", signed(1));
}

#[tokio::test(start_paused = true)]
async fn c_13_a_call_to_an_unresponsive_ec2_ends_at_its_deadline() {
    let rig = Rig::new(json!({}));
    rig.ec2.fails("DescribeInstances", [Fault::Silence]);
    let began = Instant::now();
    let cx = OpContext::within(Duration::from_secs(2));
    let refused = rig.driver.get_machine_status(&cx, rig.request()).await.unwrap_err();
    assert_eq!(refused.code, Code::DeadlineExceeded);
    assert!(began.elapsed() <= Duration::from_millis(2200));
}

#[rstest]
#[case::c_01_another_provider("aws", json!({}), Code::InvalidArgument, "requested for Provider 'aws', we only support 'AWS'")]
#[case::c_03_a_list("AWS", json!([]), Code::Internal, "providerSpec: must be an object")]
#[case::a_10_no_devices("AWS", json!({"blockDevices": []}), Code::InvalidArgument, "no block devices passed")]
#[case::a_27_a_bad_annotation("AWS", json!({}), Code::Internal, "annotation machine.sapcloud.io/awsPlacement can't be read")]
#[tokio::test(start_paused = true)]
async fn an_invalid_class_or_annotation_is_refused_before_a_launch(
    #[case] provider: &str,
    #[case] patch: Value,
    #[case] code: Code,
    #[case] begins: &str,
) {
    let mut rig = Rig::new(json!({}));
    let annotations = [("machine.sapcloud.io/awsPlacement".to_owned(), "{".to_owned())];
    rig.machine.spec.node_template.metadata.annotations = Some(annotations.into());
    let mut class = class(patch.clone());
    if patch.is_array() {
        class.provider_spec = patch.clone();
    }
    provider.clone_into(&mut class.provider);
    let request = MachineRequest { class: Arc::new(class), ..rig.request() };
    let refused = rig.driver.create_machine(&Rig::cx(), request).await.unwrap_err();
    assert_eq!(refused.code, code);
    assert!(refused.message.starts_with(begins), "{}", refused.message);
    assert_eq!(rig.launches().len(), 0);
    let is_invalid_class = provider != AWS || patch.is_array();
    assert!(!is_invalid_class || rig.ec2.state().log.is_empty(), "EC2 is not asked about such a class");
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
