//! Tests of the check of a class by EC2.

use std::sync::Arc;

use cloud_client::{Client, Limits};
use machine_driver::{Driver, ListRequest, OpContext};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    AwsDriver, AwsOptions,
    driver::tests::{class, secret},
    fake_ec2::{FakeEc2, Fault, Vm},
};

async fn asked(ec2: &FakeEc2, patch: Value) -> Result<Findings, Status> {
    let driver = AwsDriver::through(Client::new(ec2.clone(), Limits::default()), AwsOptions::default());
    let request = ListRequest { class: Arc::new(class(patch)), secret: secret() };
    driver.ask_about_class(&OpContext::within(std::time::Duration::from_secs(60)), request).await
}

fn texts(found: &Findings) -> Vec<String> {
    found.iter().map(kube_values::field::Finding::warning).collect()
}

#[tokio::test(start_paused = true)]
async fn a_class_that_ec2_would_launch_has_no_findings_and_nothing_is_made() {
    let ec2 = FakeEc2::new();
    assert_eq!(texts(&asked(&ec2, json!({"keyName": "k"})).await.unwrap()), [""; 0]);
    assert_eq!(ec2.live().len(), 0);
    let launch = ec2.asked("RunInstances").remove(0);
    assert_eq!((launch["DryRun"].as_str(), launch["ImageId"].as_str()), ("true", "ami-1"));
}

#[rstest]
#[case::it_is_shown(true, "which has been ended again")]
#[case::it_is_not_shown_yet(false, "which could not be ended; end it yourself: ")]
#[tokio::test(start_paused = true)]
async fn an_instance_that_a_service_without_dry_runs_has_made_is_terminated(#[case] shown: bool, #[case] says: &str) {
    let ec2 = FakeEc2::new();
    if shown {
        let made = Vm { id: "i-7".to_owned(), state: "running", ..Vm::default() };
        ec2.state().vms.push(made);
    }
    let made = "<R><instancesSet><item><instanceId>i-7</instanceId></item></instancesSet></R>";
    ec2.fails("RunInstances", [Fault::Body(made)]);
    let refused = asked(&ec2, json!({})).await.unwrap_err();
    assert!(refused.message.contains(&format!("it made instance i-7, {says}")), "{}", refused.message);
    assert_eq!(ec2.asked("TerminateInstances")[0]["InstanceId.1"], "i-7");
}

fn interface(subnet: &str, group: &str) -> Value {
    json!({"subnetID": subnet, "securityGroupIDs": [group]})
}

#[rstest]
#[case::no_subnet(json!({"networkInterfaces": [interface("subnet-gone", "sg-1")]}), &["providerSpec.networkInterfaces: Invalid value"])]
#[case::another_network(
    json!({"networkInterfaces": [interface("subnet-1-a", "sg-1-b")]}),
    &["providerSpec.networkInterfaces[0].securityGroupIDs[0]: Invalid value: \"sg-1-b\": is of network vpc-b, the subnet subnet-1-a of vpc-a"]
)]
#[case::two_zones(
    json!({"networkInterfaces": [interface("subnet-1-a-a", "sg-1-a"), interface("subnet-2-a-b", "sg-1-a")]}),
    &["providerSpec.networkInterfaces[1].subnetID: Invalid value: \"subnet-2-a-b\": is in zone eu-west-1b, the first interface in eu-west-1a"]
)]
#[case::no_key(json!({"keyName": "gone"}), &["providerSpec.keyName: Invalid value"])]
#[tokio::test(start_paused = true)]
async fn fields_that_a_dry_run_does_not_check_are_looked_up(#[case] patch: Value, #[case] expected: &[&str]) {
    let found = texts(&asked(&FakeEc2::new(), patch).await.unwrap());
    assert_eq!(found.len(), expected.len(), "{found:?}");
    assert!(found.iter().zip(expected).all(|(found, expected)| found.starts_with(expected)), "{found:?}");
}

#[rstest]
#[case::no_image("DescribeImages", 400, "InvalidAMIID.NotFound", "providerSpec.ami: Invalid value: \"ami-1\"")]
#[case::no_type("RunInstances", 400, "InvalidInstanceType", "providerSpec.machineType: ")]
#[case::no_profile("RunInstances", 404, "NoSuchEntity", "providerSpec.iam: ")]
#[case::no_right("RunInstances", 403, "UnauthorizedOperation", "secretRef: ")]
#[case::a_quota_is_used_up("RunInstances", 400, "VcpuLimitExceeded", "providerSpec.machineType: ")]
#[case::something_new("RunInstances", 400, "InvalidWhatever", "providerSpec: ")]
#[case::a_look_up_that_is_forbidden(
    "DescribeSubnets",
    403,
    "UnauthorizedOperation",
    "providerSpec.networkInterfaces: could not be looked up"
)]
#[tokio::test(start_paused = true)]
async fn a_refusal_has_its_path(
    #[case] action: &'static str,
    #[case] status: u16,
    #[case] reason: &'static str,
    #[case] begins: &str,
) {
    let ec2 = FakeEc2::new();
    ec2.fails(action, [Fault::Error(status, reason)]);
    let found = asked(&ec2, json!({})).await.unwrap();
    let said = texts(&found);
    assert!(said.len() == 1 && said[0].starts_with(begins) && said[0].contains("it fails"), "{said:?}");
    assert_eq!(found.denies(), !["VcpuLimitExceeded"].contains(&reason) && action != "DescribeSubnets");
}

#[tokio::test(start_paused = true)]
async fn the_field_whose_value_is_in_the_message_is_wrong() {
    let failure = |message: &str| Failure::permanent(Code::InvalidArgument, message);
    let spec = Spec::read(&class(
        json!({"networkInterfaces": [interface("subnet-1", "sg-1"), interface("subnet-2", "sg-22")]}),
    ))
    .unwrap();
    let at = |message| field_of(&failure(message), &spec).map(|(at, _)| at.as_str().to_owned());
    assert_eq!(
        at("The subnet ID 'subnet-2' does not exist").as_deref(),
        Some("providerSpec.networkInterfaces[1].subnetID")
    );
    assert_eq!(
        at("Security group sg-22 and subnet subnet-2 belong to different networks.").as_deref(),
        Some("providerSpec.networkInterfaces[1].securityGroupIDs[0]")
    );
    assert_eq!(at("no word of it"), None);
}

#[tokio::test(start_paused = true)]
async fn an_ec2_that_does_not_answer_is_no_finding_of_the_class() {
    let ec2 = FakeEc2::new();
    ec2.fails("DescribeImages", (0..9).map(|_| Fault::Error(503, "ServiceUnavailable")));
    assert_eq!(asked(&ec2, json!({})).await.unwrap_err().code, Code::Unavailable);
}
