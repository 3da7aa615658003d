//! Which instance is the one of a machine, and reads of EC2 in general.

use cloud_client::Secret;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use machine_api::v1alpha1::OperationType;

use super::*;
use crate::OwnIdentity;

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
#[case::a_creation_by_a_host_whose_clock_is_ahead(OperationType::Create, -10, Code::Unavailable)]
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

/// The message of EC2 repeats the headers of the request, and a gateway repeats its body.
#[tokio::test(start_paused = true)]
async fn c_14_no_failure_contains_credentials_of_the_process() {
    let (key, token) = ("wJalrXUtnFEMI/K7MDENG+x=", "FQoGZXIvYXdzEJr//wEaD+w==");
    let own = OwnIdentity::Keys { id: "AKIDOWN".to_owned(), secret: Secret::new(key), token: Some(Secret::new(token)) };
    let mut rig = Rig::with(json!({}), AwsOptions { own, ..AwsOptions::default() });
    rig.secret = SecretData::default();
    let repeated = "x-amz-security-token:FQoGZXIvYXdzEJr//wEaD+w== Key=wJalrXUtnFEMI%2FK7MDENG%2Bx%3D";
    rig.ec2.fails("DescribeInstances", [Fault::Message(403, repeated)]);
    let refused = rig.status().await.unwrap_err();
    assert_eq!(refused.code, Code::Unauthenticated);
    assert!(refused.message.ends_with("x-amz-security-token:<redacted> Key=<redacted>"), "{}", refused.message);
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
