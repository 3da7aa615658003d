//! Creations.

use super::*;

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
