//! Tests of the driver against the fake ECS, which checks each request and answer against the classes of Alibaba Cloud's own client.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use std::time::Duration;

use fake_ecs::{Action, Refusal, Timing};
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, FlexPersistentVolumeSource};
use machine_driver::{ErrorCodes, contract};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    state::Kept,
    test_rig::{CLUSTER, Fault, ROLE, Rig, TAGS, USER_DATA, class, credentials, cx, id},
};

/// Long ago, so that ECS shows everything that was launched.
const LONG_AGO: Duration = Duration::from_secs(301);
/// Long enough for a wait of half a second.
const SHORT: Duration = Duration::from_millis(5500);
const THEIRS: [(&str, &str); 2] = [("kubernetes.io/cluster/theirs", "1"), (ROLE, "1")];
/// An empty list of instances.
const NOTHING: &str = r#"{"RequestId": "r", "Instances": {"Instance": []}, "NextToken": ""}"#;

fn code<T: std::fmt::Debug>(outcome: Result<T, Status>) -> Code {
    outcome.unwrap_err().code
}

#[tokio::test]
async fn the_contract_holds() {
    let rig = Rig::new().await;
    contract::holds_for(&rig.driver, class(json!({})), rig.secret.clone()).await;
    assert_eq!(rig.ecs.instances().len(), 0);
}

#[rstest]
#[case::y01_a_plain_class(json!({}))]
#[case::y01_all_options(json!({
    "privateIPAddress": "10.250.0.9", "instanceChargeType": "PostPaid", "internetChargeType": "PayByTraffic", "internetMaxBandwidthIn": 5,
    "internetMaxBandwidthOut": 1, "IoOptimized": "optimized", "spotStrategy": "NoSpot",
    "dataDisks": [{"name": "d", "category": "cloud_essd", "size": 20, "description": "data", "encrypted": true, "deleteWithInstance": false}],
}))]
#[case::y06_a_spot_instance(json!({"spotStrategy": "SpotAsPriceGo"}))]
#[tokio::test]
async fn an_instance_is_created(#[case] patch: Value) {
    let mut rig = Rig::new().await.with(patch);
    let created = rig.create().await.unwrap();
    let instances = rig.ecs.instances();
    assert_eq!(instances.len(), 1);
    let instance = instances[0]["InstanceId"].as_str().unwrap().to_owned();
    assert_eq!(created.vm.provider_id, id(&instance));
    assert_eq!(created.vm.node_name, instances[0]["HostName"].as_str().unwrap().to_ascii_lowercase());
    assert_eq!(instances[0]["InstanceName"], "m-1");
    assert!(created.vm.addresses.iter().any(|address| address.type_ == "InternalIP"));
    let kept = Kept::of(created.last_known_state.as_ref().unwrap()).unwrap();
    assert_eq!(kept.account.as_deref(), Some(fake_ecs::ACCOUNT_ID));
    rig.keep(created.last_known_state.as_ref());
    rig.set_id(&instance);
    assert_eq!(rig.status().await.unwrap(), created.vm);
    assert_eq!(rig.tokens(), ["uid-1"]);
}

#[tokio::test]
async fn y02_a_lost_answer_makes_no_second_instance() {
    let mut rig = Rig::new().await;
    rig.faults.add("RunInstances", Fault::Lost);
    // Lists show the first instance late, so that only the token prevents a second one.
    rig.ecs.set_timing(Timing { visible_after: Duration::from_millis(300), ..Timing::default() });
    let lost = rig.create().await.unwrap_err();
    assert_eq!(lost.code, Code::Unavailable);
    rig.keep(lost.last_known_state.as_ref());
    rig.created().await;
    assert_eq!(
        (rig.ecs.created().len(), rig.tokens().as_slice()),
        (1, ["uid-1".to_owned(), "uid-1".to_owned()].as_slice())
    );
}

#[tokio::test]
async fn y02_a_deletion_waits_for_an_instance_whose_answer_was_lost() {
    let mut rig = Rig::new().await;
    rig.faults.add("RunInstances", Fault::Lost);
    rig.ecs.set_timing(Timing { visible_after: Duration::from_secs(1000), ..Timing::default() });
    let lost = rig.create().await.unwrap_err();
    rig.keep(lost.last_known_state.as_ref());
    rig.set_deleting();
    assert_eq!(code(rig.status().await), Code::Unavailable);
    assert_eq!(code(rig.delete().await), Code::Unavailable);
    rig.keep_as_if_asked(lost.last_known_state.as_ref(), LONG_AGO);
    assert_eq!(code(rig.status().await), Code::NotFound);
    rig.delete().await.unwrap();
}

#[tokio::test]
async fn y03_an_instance_of_the_machine_is_adopted() {
    let rig = Rig::new().await;
    let instance = rig.ecs.put_instance("m-1", &TAGS, &[]);
    assert_eq!(rig.status().await.unwrap().provider_id, id(&instance));
    let created = rig.create().await.unwrap();
    assert_eq!(created.vm.provider_id, id(&instance));
    assert!(Kept::of(&created.last_known_state.unwrap()).is_some());
    assert_eq!(rig.ecs.count(Action::RunInstances), 0);
}

#[tokio::test]
async fn y04_no_capacity_is_reported_and_the_next_request_has_another_token() {
    let mut rig = Rig::new().await;
    for refusal in [Refusal::no_stock(), Refusal::not_supported(), Refusal::quota_exceeded()] {
        rig.ecs.refuse(Action::RunInstances, refusal, 1);
        let refused = rig.create().await.unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        rig.keep(refused.last_known_state.as_ref());
    }
    // Nothing was launched, so a deletion needs not wait.
    rig.set_deleting();
    assert_eq!(code(rig.status().await), Code::NotFound);
    rig.delete().await.unwrap();
    rig.created().await;
    assert_eq!(rig.tokens(), ["uid-1", "uid-1-1", "uid-1-2", "uid-1-3"]);
}

#[rstest]
#[case::y04_go_knows_no_stock(Refusal::no_stock(), Code::ResourceExhausted)]
#[case::y04_go_knows_not_this_quota(Refusal::quota_exceeded(), Code::Internal)]
#[case::go_knows_no_rights(Refusal::forbidden(), Code::Internal)]
#[tokio::test]
async fn the_codes_can_be_those_of_go(#[case] refusal: Refusal, #[case] expected: Code) {
    let rig = Rig::with_codes(ErrorCodes::AsGo).await;
    rig.ecs.refuse(Action::RunInstances, refusal, 1);
    assert_eq!(code(rig.create().await), expected);
}

#[tokio::test]
async fn y05_a_list_has_all_pages_and_only_own_instances() {
    let rig = Rig::new().await;
    for number in 0..7 {
        rig.ecs.put_instance(&format!("m-{number}"), &TAGS, &[]);
    }
    rig.ecs.put_instance("m-8", &THEIRS, &[]);
    rig.ecs.put_instance("m-9", &TAGS[..1], &[]);
    rig.ecs.set_page_limit(3);
    let mut names: Vec<_> = rig.list().await.unwrap().into_iter().map(|vm| vm.machine_name).collect();
    names.sort();
    assert_eq!(names, ["m-0", "m-1", "m-2", "m-3", "m-4", "m-5", "m-6"]);
    assert!(rig.list().await.unwrap().iter().all(|vm| vm.created.is_some()));
}

#[tokio::test]
async fn y05_a_list_without_a_page_fails_as_a_whole() {
    let rig = Rig::new().await;
    let page = |id: &str| {
        let tags = json!([{"TagKey": CLUSTER, "TagValue": "1"}, {"TagKey": ROLE, "TagValue": "1"}]);
        let instance = json!({"InstanceId": id, "InstanceName": "m", "Tags": {"Tag": tags}});
        json!({"Instances": {"Instance": [instance]}, "NextToken": "again"}).to_string()
    };
    rig.faults.add("DescribeInstances", Fault::Answered(200, page("i-1")));
    rig.faults.add("DescribeInstances", Fault::Answered(403, json!({"Code": "Forbidden.RAM"}).to_string()));
    assert_eq!(code(rig.list().await), Code::PermissionDenied);
    // A service that repeats itself does not keep the driver busy for ever.
    for id in ["i-1", "i-2", "i-3"] {
        rig.faults.add("DescribeInstances", Fault::Answered(200, page(id)));
    }
    assert_eq!(code(rig.list().await), Code::Internal);
}

#[tokio::test]
async fn y06_a_reclaimed_spot_instance_is_gone() {
    let mut rig = Rig::new().await.with(json!({"spotStrategy": "SpotAsPriceGo"}));
    let instance = rig.created().await;
    assert_eq!(rig.ecs.instances()[0]["SpotStrategy"], "SpotAsPriceGo");
    rig.ecs.remove_instance(&instance);
    assert_eq!(code(rig.status().await), Code::Unavailable, "it may be shown later");
    let state = rig.machine.status.last_known_state.clone();
    rig.keep_as_if_asked(Some(&state), LONG_AGO);
    assert_eq!(code(rig.status().await), Code::NotFound);
    let gone = rig.delete().await.unwrap_err();
    let message = format!("ECS instance not found backing this machine object with Provider ID: {}", id(&instance));
    assert_eq!((gone.code, gone.message), (Code::NotFound, message));
}

#[tokio::test]
async fn y07_a_deletion_waits_for_the_end_and_takes_the_disks_with_it() {
    let disk = |name: &str, goes: Option<bool>| json!({"name": name, "category": "cloud_essd", "size": 20, "deleteWithInstance": goes});
    let mut rig = Rig::new().await.with(json!({"dataDisks": [disk("goes", None), disk("stays", Some(false))]}));
    rig.created().await;
    assert_eq!(rig.ecs.disks().len(), 3);
    rig.ecs.set_timing(Timing { stopping: Duration::from_millis(300), ..Timing::default() });
    rig.delete().await.unwrap();
    assert_eq!(rig.ecs.instances().len(), 0);
    let left: Vec<_> = rig.ecs.disks().into_iter().map(|disk| disk["DiskName"].clone()).collect();
    assert_eq!(left, [json!("m-1-stays-data-disk")]);
    // The instance was created a moment ago, but this process knows that it has deleted it.
    assert_eq!(code(rig.status().await), Code::NotFound);
    assert_eq!(code(rig.delete().await), Code::NotFound);
}

#[tokio::test]
async fn y07_a_deletion_that_takes_long_goes_on_in_the_next_call() {
    let mut rig = Rig::new().await;
    rig.created().await;
    rig.ecs.set_timing(Timing { stopping: Duration::from_secs(1000), ..Timing::default() });
    let cx = OpContext::within(SHORT);
    let unfinished = rig.driver.delete_machine(&cx, rig.request()).await.unwrap_err();
    assert_eq!(unfinished.code, Code::DeadlineExceeded);
    assert_eq!(unfinished.last_known_state.as_ref(), Some(&rig.machine.status.last_known_state));
    assert_eq!(code(rig.delete().await), Code::Unavailable);
    assert_eq!(rig.ecs.count(Action::DeleteInstance), 1);
}

#[rstest]
#[case::y08_of_another_cluster(&THEIRS)]
#[case::y08_without_tags(&[])]
#[tokio::test]
async fn an_instance_of_somebody_else_with_the_name_is_not_touched(#[case] tags: &[(&str, &str)]) {
    let mut rig = Rig::new().await;
    let other = rig.ecs.put_instance("m-1", tags, &[]);
    assert_eq!(code(rig.status().await), Code::NotFound);
    rig.delete().await.unwrap();
    assert_eq!(rig.ecs.instances().len(), 1);
    let instance = rig.created().await;
    assert_ne!(instance, other);
    rig.delete().await.unwrap();
    assert_eq!(rig.ecs.instances()[0]["InstanceId"], json!(other));
    // A machine that names it by id does not end while it runs.
    rig.set_id(&other);
    for outcome in [rig.status().await.map(drop), rig.delete().await.map(drop)] {
        assert_eq!(code(outcome), Code::FailedPrecondition);
    }
    assert_eq!(rig.ecs.instances().len(), 1);
}

#[tokio::test]
async fn y08_an_instance_of_another_role_is_in_doubt() {
    let mut rig = Rig::new().await;
    rig.ecs.put_instance("m-1", &[(CLUSTER, "1"), ("kubernetes.io/role/other", "1")], &[]);
    assert_eq!(code(rig.create().await), Code::AlreadyExists);
    assert_eq!(code(rig.status().await), Code::NotFound, "a creation decides about it");
    rig.set_deleting();
    assert_eq!(code(rig.status().await), Code::FailedPrecondition);
    assert_eq!(code(rig.delete().await), Code::FailedPrecondition);
    assert_eq!(rig.ecs.instances().len(), 1);
}

#[tokio::test]
async fn y08_the_collector_deletes_what_it_has_listed_and_nothing_else() {
    let mut rig = Rig::new().await;
    let ours = rig.ecs.put_instance("m-1", &TAGS, &[]);
    let theirs = rig.ecs.put_instance("m-1", &THEIRS, &[]);
    rig.machine.metadata.uid = None;
    rig.machine.metadata.name = Some("mcm-orphan".to_owned());
    rig.set_id(&theirs);
    assert_eq!(code(rig.delete().await), Code::FailedPrecondition);
    rig.set_id(&ours);
    rig.delete().await.unwrap();
    assert_eq!(rig.ecs.instances()[0]["InstanceId"], json!(theirs));
}

#[rstest]
#[case::y09_a_wrong_secret(fake_ecs::ACCESS_KEY_ID, "hunter2-is-no-secret")]
#[case::y09_an_unknown_key("LTAI-nobody", "hunter2-is-no-secret")]
#[tokio::test]
async fn wrong_credentials_are_reported_without_secrets(#[case] key: &str, #[case] secret: &str) {
    let mut rig = Rig::new().await;
    rig.secret = credentials(key, secret);
    let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, USER_DATA);
    for outcome in [rig.create().await.map(drop), rig.status().await.map(drop), rig.list().await.map(drop)] {
        let refused = outcome.unwrap_err();
        assert_eq!(refused.code, Code::Unauthenticated);
        let hidden = [secret, "a-secret-of-the-node", &encoded[..20]];
        assert!(hidden.iter().all(|text| !refused.message.contains(text)), "{}", refused.message);
    }
}

#[tokio::test]
async fn y09_a_rotated_key_is_used_at_once() {
    let mut rig = Rig::new().await;
    rig.secret = credentials("LTAI-old", "old");
    assert_eq!(code(rig.create().await), Code::Unauthenticated);
    rig.secret = credentials(fake_ecs::SECOND_ACCESS_KEY_ID, fake_ecs::SECOND_ACCESS_KEY_SECRET);
    rig.created().await;
}

#[rstest]
#[case::y10_no_tags(json!({"tags": null}))]
#[case::y10_other_tags(json!({"tags": {CLUSTER: null, ROLE: null, "kubernetes.io/cluster/new": "1", "kubernetes.io/role/new": "1"}}))]
#[case::y10_another_region(json!({"region": fake_ecs::OTHER_REGION}))]
#[case::y10_no_region(json!({"region": "no region"}))]
#[case::y10_unknown_resources(json!({"imageID": "m-nothing", "zoneID": "nowhere", "vSwitchID": "vsw-nothing", "instanceType": ""}))]
#[case::y10_other_types(json!({"region": 5, "tags": [], "dataDisks": "none"}))]
#[tokio::test]
async fn an_edited_class_neither_loses_nor_blocks_a_machine(#[case] patch: Value) {
    let mut rig = Rig::new().await;
    rig.created().await;
    rig.patch = patch.clone();
    rig.status().await.unwrap();
    rig.delete().await.unwrap();
    assert_eq!(rig.ecs.instances().len(), 0);
    // The same if the controllers never got the id.
    let mut rig = Rig::new().await;
    rig.faults.add("RunInstances", Fault::Lost);
    let lost = rig.create().await.unwrap_err();
    rig.keep(lost.last_known_state.as_ref());
    rig.patch = patch;
    rig.set_deleting();
    rig.status().await.unwrap();
    rig.delete().await.unwrap();
    assert_eq!(rig.ecs.instances().len(), 0);
}

#[tokio::test]
async fn y10_a_creation_goes_on_in_the_region_where_it_began() {
    let mut rig = Rig::new().await;
    rig.faults.add("RunInstances", Fault::Lost);
    let lost = rig.create().await.unwrap_err();
    rig.keep(lost.last_known_state.as_ref());
    rig.patch = json!({"region": fake_ecs::OTHER_REGION});
    let created = rig.create().await.unwrap();
    assert!(created.vm.provider_id.starts_with(fake_ecs::REGION), "{}", created.vm.provider_id);
    assert_eq!(rig.ecs.created().len(), 1);
}

#[tokio::test]
async fn y10_a_machine_in_a_region_that_does_not_exist_can_be_deleted() {
    let mut rig = Rig::new().await.with(json!({"region": "cn-nowhere"}));
    assert_eq!(code(rig.create().await), Code::InvalidArgument);
    rig.set_deleting();
    assert_eq!(code(rig.status().await), Code::NotFound);
    rig.delete().await.unwrap();
}

#[tokio::test]
async fn y11_an_instance_of_an_earlier_request_is_taken_or_waited_for() {
    let mut rig = Rig::new().await;
    rig.faults.add("RunInstances", Fault::Lost);
    rig.ecs.set_timing(Timing { visible_after: Duration::from_secs(1000), ..Timing::default() });
    let lost = rig.create().await.unwrap_err();
    // The class changes, so that the next request differs.
    rig.patch = json!({"systemDisk": {"size": 60}});
    for state in [None, lost.last_known_state.as_ref()] {
        rig.keep(state);
        let waiting = rig.create().await.unwrap_err();
        assert_eq!(waiting.code, Code::Unavailable);
        assert!(Kept::of(&waiting.last_known_state.unwrap()).unwrap().asked.is_some());
    }
    assert_eq!(rig.ecs.created().len(), 1);
    // What is not shown for long is gone.
    rig.keep_as_if_asked(lost.last_known_state.as_ref(), LONG_AGO);
    rig.ecs.set_timing(Timing::default());
    rig.created().await;
    assert_eq!(rig.tokens().last().unwrap(), "uid-1-1");
}

#[tokio::test]
async fn y12_an_empty_list_for_lack_of_a_right_is_no_end_of_an_instance() {
    let mut rig = Rig::new().await;
    let instance = rig.created().await;
    let state = rig.machine.status.last_known_state.clone();
    rig.keep_as_if_asked(Some(&state), LONG_AGO);
    let blind = |rig: &Rig| {
        rig.faults.add("DescribeInstances", Fault::Answered(200, NOTHING.to_owned()));
        rig.faults.add("DescribeInstances", Fault::Answered(403, json!({"Code": "Forbidden.RAM"}).to_string()));
    };
    blind(&rig);
    assert_eq!(code(rig.status().await), Code::PermissionDenied);
    blind(&rig);
    assert_eq!(code(rig.delete().await), Code::PermissionDenied);
    blind(&rig);
    assert_eq!(code(rig.list().await), Code::PermissionDenied);
    rig.machine.spec.provider_id = String::new();
    rig.set_deleting();
    blind(&rig);
    assert_eq!(code(rig.status().await), Code::PermissionDenied);
    blind(&rig);
    assert_eq!(code(rig.delete().await), Code::PermissionDenied);
    assert_eq!(rig.ecs.instances()[0]["InstanceId"], json!(instance));
}

#[tokio::test]
async fn y13_credentials_of_another_account_do_not_end_a_machine() {
    let mut rig = Rig::new().await;
    let instance = rig.created().await;
    rig.ecs.remove_instance(&instance);
    let kept = Kept::of(&rig.machine.status.last_known_state).unwrap();
    let of_another = Kept { account: Some("999".to_owned()), asked: None, ..kept };
    rig.machine.status.last_known_state = of_another.state();
    for outcome in [rig.status().await.map(drop), rig.delete().await.map(drop)] {
        let refused = outcome.unwrap_err();
        assert_eq!(refused.code, Code::FailedPrecondition);
        assert!(refused.message.contains("account 999"), "{}", refused.message);
        assert_eq!(refused.last_known_state, Some(of_another.state()));
    }
    // Nor is another instance created while the first one may exist there.
    rig.machine.spec.provider_id = String::new();
    rig.machine.status.last_known_state = Kept { asked: Some(jiff::Timestamp::now()), ..of_another }.state();
    assert_eq!(code(rig.create().await), Code::FailedPrecondition);
    assert_eq!(rig.ecs.created().len(), 1);
}

#[rstest]
#[case::y14_no_way(404, "<html>nginx</html>", Code::Unavailable)]
#[case::y14_a_gate(403, "<html>no</html>", Code::PermissionDenied)]
#[case::y14_a_login_page(200, "<html>login</html>", Code::Internal)]
#[case::y14_another_object(200, "{}", Code::Internal)]
#[case::y14_half_an_answer(200, "{\"Instances\": {\"Instance\": [", Code::Internal)]
#[case::y14_no_list(200, "{\"Instances\": null, \"NextToken\": \"\"}", Code::Internal)]
#[case::y14_a_strange_id(200, "{\"Instances\": {\"Instance\": [{\"InstanceId\": \"../x\"}]}}", Code::Internal)]
#[case::y14_deep(200, "[[[[[[[[[[[[[[[[[[[[", Code::Internal)]
#[tokio::test]
async fn an_answer_of_another_program_proves_nothing(#[case] status: u16, #[case] body: &str, #[case] expected: Code) {
    let mut rig = Rig::new().await;
    rig.created().await;
    // A failure that may pass is repeated while there is time.
    let cx = || {
        rig.faults.clear();
        for _ in 0..4 {
            rig.faults.add("DescribeInstances", Fault::Answered(status, body.to_owned()));
        }
        OpContext::within(Duration::from_millis(400))
    };
    assert_eq!(code(rig.driver.get_machine_status(&cx(), rig.request()).await), expected);
    assert_eq!(code(rig.driver.delete_machine(&cx(), rig.request()).await), expected);
    assert_eq!(code(rig.driver.list_machines(&cx(), rig.of_class()).await), expected);
    assert_eq!(rig.ecs.instances().len(), 1);
}

#[tokio::test]
async fn y14_an_unreadable_answer_to_a_launch_is_not_forgotten() {
    let mut rig = Rig::new().await;
    rig.faults.add("RunInstances", Fault::Answered(200, "{\"InstanceIdSets\": {\"InstanceIdSet\": null}}".to_owned()));
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::Internal);
    rig.keep(refused.last_known_state.as_ref());
    rig.set_deleting();
    assert_eq!(code(rig.delete().await), Code::Unavailable);
}

#[tokio::test]
async fn y15_throttled_requests_are_repeated() {
    let mut rig = Rig::new().await;
    rig.ecs.refuse(Action::DescribeInstances, Refusal::throttled(), 1);
    rig.ecs.refuse(Action::RunInstances, Refusal::throttled(), 1);
    rig.created().await;
    assert_eq!((rig.ecs.created().len(), rig.ecs.count(Action::RunInstances)), (1, 2));
}

#[tokio::test]
async fn y16_an_instance_that_is_starting_is_deleted_later() {
    let mut rig = Rig::new().await;
    rig.ecs.set_timing(Timing { pending: Duration::from_secs(1000), ..Timing::default() });
    let instance = rig.created().await;
    let refused = rig.delete().await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.message.starts_with("ECS instance not in running/stopped state"), "{}", refused.message);
    rig.ecs.stop_instance(&instance);
    rig.ecs.change_instance(&instance, |instance| instance["DeletionProtection"] = json!(true));
    let protected = rig.delete().await.unwrap_err();
    assert_eq!(protected.code, Code::FailedPrecondition);
    assert!(protected.message.contains("--DeletionProtection false"), "{}", protected.message);
    rig.ecs.change_instance(&instance, |instance| instance["DeletionProtection"] = json!(false));
    rig.delete().await.unwrap();
}

#[tokio::test]
async fn y17_several_instances_of_a_machine_are_reported_and_deleted_together() {
    let rig = Rig::new().await;
    let ids = [rig.ecs.put_instance("m-1", &TAGS, &[]), rig.ecs.put_instance("m-1", &TAGS, &[])];
    rig.ecs.put_instance("m-1", &THEIRS, &[]);
    for outcome in [rig.status().await.map(drop), rig.create().await.map(drop)] {
        let refused = outcome.unwrap_err();
        assert_eq!(refused.code, Code::OutOfRange);
        assert!(ids.iter().all(|id| refused.message.contains(id)), "{}", refused.message);
    }
    rig.delete().await.unwrap();
    assert_eq!(rig.ecs.instances().len(), 1);
}

#[tokio::test]
async fn y20_an_instance_that_is_shown_late_is_waited_for() {
    let mut rig = Rig::new().await;
    rig.ecs.set_timing(Timing { visible_after: Duration::from_millis(700), ..Timing::default() });
    rig.created().await;
    rig.status().await.unwrap();
    assert_eq!(rig.ecs.created().len(), 1);
}

#[tokio::test]
async fn y20_an_instance_that_is_never_shown_is_asked_for_again() {
    let mut rig = Rig::new().await;
    rig.ecs.set_timing(Timing { visible_after: Duration::from_secs(1000), ..Timing::default() });
    let unseen = rig.create_within(SHORT).await.unwrap_err();
    assert_eq!(unseen.code, Code::Unavailable);
    rig.keep(unseen.last_known_state.as_ref());
    assert_eq!(code(rig.create_within(SHORT).await), Code::Unavailable);
    assert_eq!(rig.ecs.created().len(), 1, "both requests have the same token");
}

#[tokio::test]
async fn c_01_c_03_requests_that_can_not_be_meant_send_nothing() {
    let mut rig = Rig::new().await;
    for name in ["", "m-*"] {
        rig.machine.metadata.name = Some(name.to_owned());
        for outcome in [rig.create().await.map(drop), rig.status().await.map(drop), rig.delete().await.map(drop)] {
            assert_eq!(code(outcome), Code::InvalidArgument);
        }
    }
    rig.machine.metadata.name = Some("m-1".to_owned());
    for foreign in ["i-1", "eu-central-1.i-1 ", "aws:///eu-west-1/i-1", "evil.example/x.i-1"] {
        foreign.clone_into(&mut rig.machine.spec.provider_id);
        for outcome in [rig.status().await.map(drop), rig.delete().await.map(drop)] {
            assert_eq!(code(outcome), Code::InvalidArgument);
        }
    }
    rig.machine.spec.provider_id = String::new();
    rig.secret.set("userData", Vec::new());
    assert_eq!(code(rig.create().await), Code::InvalidArgument);
    rig.secret.set("userData", vec![b'x'; 32 * 1024 + 1]);
    assert_eq!(code(rig.create().await), Code::InvalidArgument);
    let other = MachineClass { provider: "alicloud".to_owned(), ..class(json!({})) };
    let request = MachineRequest { class: std::sync::Arc::new(other), ..rig.request() };
    for outcome in [
        rig.driver.create_machine(&cx(), request.clone()).await.map(drop),
        rig.driver.get_machine_status(&cx(), request.clone()).await.map(drop),
        rig.driver.delete_machine(&cx(), request).await.map(drop),
    ] {
        assert_eq!(code(outcome), Code::InvalidArgument);
    }
    assert_eq!(rig.ecs.requests().len(), 0);
}

#[rstest]
#[case::a_refused_connection("http://127.0.0.1:9", Code::Unavailable)]
#[case::no_url("nowhere", Code::FailedPrecondition)]
#[tokio::test]
async fn y09_a_request_that_is_not_sent_is_reported_without_its_parameters(
    #[case] endpoint: &str,
    #[case] expected: Code,
) {
    let rig = Rig::new().await;
    let options = AlicloudOptions { endpoint: Some(endpoint.to_owned()), ..AlicloudOptions::default() };
    let driver = AlicloudDriver::new(options);
    let cx = || OpContext::within(Duration::from_millis(400));
    let outcome = driver.create_machine(&cx(), rig.request()).await.map(drop);
    for refused in [outcome.unwrap_err(), driver.ask_about_class(&cx(), rig.of_class()).await.unwrap_err()] {
        assert_eq!(refused.code, expected);
        for parameter in ["UserData", "InstanceName", "m-1", "Signature"] {
            assert!(!refused.message.contains(parameter), "{}", refused.message);
        }
    }
}

#[tokio::test]
async fn the_largest_user_data_can_be_sent() {
    let mut rig = Rig::new().await;
    rig.secret.set("userData", vec![b'x'; 32 * 1024]);
    rig.created().await;
}

#[rstest]
#[case::fine(json!({}), &[])]
#[case::no_image(json!({"imageID": "m-nothing"}), &["providerSpec.imageID"])]
#[case::no_switch(json!({"vSwitchID": "vsw-nothing"}), &["providerSpec.vSwitchID"])]
#[case::no_type(json!({"instanceType": "ecs.nothing"}), &["providerSpec.instanceType"])]
#[tokio::test]
async fn ecs_is_asked_about_a_class(#[case] patch: Value, #[case] expected: &[&str]) {
    let rig = Rig::new().await.with(patch);
    let found = rig.ask().await.unwrap();
    assert_eq!(found.errors().map(|error| error.path.to_string()).collect::<Vec<_>>(), expected);
    assert_eq!(rig.ecs.created().len(), 0);
}

#[rstest]
#[case("eu-central-1.i-1", "eu-central-1.i-1", SameInstance::Same)]
#[case("eu-central-1.i-1", "alicloud://eu-central-1.I-1", SameInstance::Same)]
#[case("eu-central-1.i-1", "eu-central-1.i-2", SameInstance::Another)]
#[case("eu-central-1.i-1", "cn-hangzhou.i-1", SameInstance::Another)]
#[case("eu-central-1.i-1", "", SameInstance::Unknown)]
#[tokio::test]
async fn provider_ids_are_compared(#[case] machine: &str, #[case] node: &str, #[case] expected: SameInstance) {
    assert_eq!(AlicloudDriver::new(AlicloudOptions::default()).same_instance(machine, node), expected);
}

#[test]
fn disks_of_volumes_are_found() {
    let csi = |driver: &str, handle: &str| PersistentVolumeSpec {
        csi: Some(CSIPersistentVolumeSource {
            driver: driver.to_owned(),
            volume_handle: handle.to_owned(),
            ..CSIPersistentVolumeSource::default()
        }),
        ..PersistentVolumeSpec::default()
    };
    let flex = |options: &[(&str, &str)]| PersistentVolumeSpec {
        flex_volume: Some(FlexPersistentVolumeSource {
            options: Some(options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()),
            ..FlexPersistentVolumeSource::default()
        }),
        ..PersistentVolumeSpec::default()
    };
    assert_eq!(volume_id(&csi(DISK, "d-1")).as_deref(), Some("d-1"));
    assert_eq!(volume_id(&flex(&[("volumeId", "d-2")])).as_deref(), Some("d-2"));
    for other in [csi("ebs.csi.aws.com", "v"), csi(DISK, ""), flex(&[]), PersistentVolumeSpec::default()] {
        assert_eq!(volume_id(&other), None);
    }
}

#[test]
fn classes_with_one_owner_in_one_region_share_an_inventory() {
    let driver = AlicloudDriver::new(AlicloudOptions::default());
    let key = |patch: Value| driver.inventory_key(&class(patch));
    assert_eq!(key(json!({})), key(json!({"imageID": "m-2", "tags": {"x": "y"}})));
    assert_ne!(key(json!({})), key(json!({"region": "cn-hangzhou"})));
    assert_ne!(key(json!({})), key(json!({"tags": {CLUSTER: "2"}})));
    assert_ne!(key(json!({"tags": null})), key(json!({"tags": null, "imageID": "m-2"})));
    assert_eq!(driver.owner(&class(json!({}))), Some(Owner::new("shoot", "node")));
}
