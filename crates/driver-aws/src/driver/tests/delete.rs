//! Deletions.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use machine_api::v1alpha1::OperationType;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_22_the_deletion_of_an_instance_that_is_gone_succeeds() {
    let rig = Rig::new(json!({})).named("aws:///us-east-1/i-9");
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.state().uris[0], "https://ec2.us-east-1.amazonaws.com/", "the id says where it was");
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

/// Not every server of EC2 knows a new instance at once.
#[tokio::test(start_paused = true)]
async fn a_22_an_instance_that_ec2_shows_is_not_gone_if_its_termination_says_so() {
    let rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    rig.vm("i-9", |_| ());
    rig.ec2.fails("TerminateInstances", [Fault::Error(400, "InvalidInstanceID.NotFound")]);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::Unavailable);
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().len(), 0);
}

/// The process that launched the instance has ended, and the deletion has overwritten the last operation of the machine.
#[rstest]
#[case::seconds_ago(10, Err(Code::Unavailable))]
#[case::long_ago(301, Ok(()))]
#[tokio::test(start_paused = true)]
async fn a_22_the_state_of_a_machine_tells_another_process_when_its_instance_was_launched(
    #[case] seconds: i64,
    #[case] expected: Result<(), Code>,
) {
    let mut rig = Rig::new(json!({}));
    let created = rig.create().await.unwrap();
    let now = Timestamp::now();
    let kept = LaunchState::of(&created.last_known_state.unwrap()).unwrap();
    assert!(now.duration_since(kept.launched) < SignedDuration::from_secs(60), "{kept:?}");
    let launched = now - SignedDuration::from_secs(seconds);
    rig.another_process_leads();
    rig.machine.spec.provider_id = created.vm.provider_id;
    rig.made_ago(3600);
    rig.machine.status.last_known_state = LaunchState { launched, account: None }.state();
    rig.machine.status.last_operation.operation = OperationType::Delete;
    rig.machine.status.last_operation.last_update_time = Some(Time(now));
    rig.ec2.state().vms.clear();
    assert_eq!(rig.delete().await.map(drop).map_err(|status| status.code), expected);
}

#[tokio::test(start_paused = true)]
async fn a_22_a_failed_creation_keeps_the_time_of_its_launch() {
    let rig = Rig::new(json!({}));
    rig.ec2.state().launches = Some(("terminated", "Server.InternalError"));
    let state = rig.create().await.unwrap_err().last_known_state;
    assert!(state.as_deref().and_then(LaunchState::of).is_some(), "{state:?}");
}

/// The reply of the launch is lost, and EC2 does not show the instance yet.
#[tokio::test(start_paused = true)]
async fn a_22_a_machine_without_provider_id_stays_while_its_instance_may_be_shown_late() {
    let rig = Rig::new(json!({}));
    rig.ec2.fails("RunInstances", [Fault::LostReply]);
    rig.create().await.unwrap_err();
    let hidden = std::mem::take(&mut rig.ec2.state().vms);
    let refused = rig.delete().await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable, "{}", refused.message);
    assert!(refused.message.contains("no instance of machine m-1"), "{}", refused.message);
    rig.ec2.state().vms = hidden;
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().len(), 0);
    rig.delete().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_22_an_ended_instance_of_an_earlier_launch_does_not_stand_for_the_last_one() {
    let rig = Rig::new(json!({}));
    rig.create().await.unwrap();
    rig.ec2.state().vms[0].state = "terminated";
    rig.ec2.fails("RunInstances", [Fault::LostReply]);
    rig.create().await.unwrap_err();
    let hidden = rig.ec2.state().vms.pop();
    assert_eq!(rig.delete().await.unwrap_err().code, Code::Unavailable);
    rig.ec2.state().vms.extend(hidden);
    rig.delete().await.unwrap();
    assert_eq!(rig.ec2.live().len(), 0);
}

#[rstest]
#[case::refused(Fault::Error(500, "InsufficientInstanceCapacity"), 0, Ok(()))]
#[case::of_an_earlier_launch(Fault::Error(400, "IdempotentParameterMismatch"), 0, Err(Code::Unavailable))]
#[case::without_an_answer(Fault::LostReply, 299, Err(Code::Unavailable))]
#[case::without_an_answer_long_ago(Fault::LostReply, 300, Ok(()))]
#[tokio::test(start_paused = true)]
async fn a_22_a_machine_without_provider_id_goes_after_a_launch(
    #[case] fault: Fault,
    #[case] seconds: u64,
    #[case] expected: Result<(), Code>,
) {
    let rig = Rig::new(json!({}));
    rig.ec2.fails("RunInstances", [fault]);
    rig.create().await.unwrap_err();
    rig.ec2.state().vms.clear();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    assert_eq!(rig.delete().await.map(drop).map_err(|status| status.code), expected);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_can_not_be_terminated_does_not_keep_the_others() {
    let rig = Rig::new(json!({}));
    rig.vm("i-8", |_| ());
    rig.vm("i-9", |_| ());
    rig.ec2.fails("TerminateInstances", [Fault::Error(400, "OperationNotPermitted")]);
    assert!(rig.delete().await.unwrap_err().message.contains("OperationNotPermitted"));
    assert_eq!(rig.ec2.live().len(), 1);
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
    let other = rig.described("i-9");
    rig.ec2.fails("DescribeInstances", [Fault::Body("<R><reservationSet/></R>"), other]);
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

/// A user has written the credentials of another account to the Secret. EC2 shows nothing of the machine there.
#[tokio::test(start_paused = true)]
async fn credentials_of_another_account_end_no_machine() {
    let mut rig = Rig::new(json!({}));
    rig.ec2.state().account = "111111111111";
    let created = rig.create().await.unwrap();
    rig.machine.status.last_known_state = created.last_known_state.unwrap();
    rig.machine.status.last_known_state = LaunchState {
        launched: Timestamp::now() - SignedDuration::from_secs(600),
        ..LaunchState::of(&rig.machine.status.last_known_state).unwrap()
    }
    .state();
    rig.made_ago(600);
    let mut rig = rig.named(&created.vm.provider_id);
    rig.another_process_leads();
    rig.ec2.state().account = "222222222222";
    for refused in [rig.status().await.unwrap_err(), rig.delete().await.unwrap_err()] {
        assert_eq!(refused.code, Code::FailedPrecondition);
        assert!(
            refused.message.contains("launched in account 111111111111, the credentials are of account 222222222222"),
            "{refused:?}"
        );
    }
    assert_eq!(rig.ec2.state().uris.last().map(String::as_str), Some("https://sts.eu-west-1.amazonaws.com/"));
    assert_eq!(rig.ec2.live().len(), 1);
    rig.ec2.state().account = "111111111111";
    rig.delete().await.unwrap();
    assert!(rig.ec2.live().is_empty());
}

/// The network of the manager has no way to STS, and EC2 has forgotten the instance.
#[tokio::test(start_paused = true)]
async fn a_machine_ends_although_sts_does_not_tell_the_account() {
    let mut rig = Rig::new(json!({})).named("aws:///eu-west-1/i-9");
    let launched = Timestamp::now() - SignedDuration::from_secs(5400);
    rig.machine.status.last_known_state = LaunchState { launched, account: Some("1".to_owned()) }.state();
    rig.ec2.state().no_sts = true;
    rig.delete().await.unwrap();
}
