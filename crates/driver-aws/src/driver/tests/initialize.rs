//! Initialisations: checks of source and destination, and IPv6 prefixes.

use super::*;
use crate::{fake_ec2::Nic, options::OwnIdentity};

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
    let stale = rig.described("i-9");
    let asked = |rig: &Rig| rig.ec2.asked("AssignIpv6Addresses").len();
    rig.initialize().await.unwrap();
    rig.ec2.fails("DescribeInstances", vec![stale; 4]);
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
    let stale = rig.described("i-9");
    rig.ec2.fails("AssignIpv6Addresses", [Fault::LostReply]);
    assert_eq!(rig.initialize().await.unwrap_err().code, Code::Uninitialized);
    rig.ec2.fails("DescribeInstances", vec![stale; 2]);
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
