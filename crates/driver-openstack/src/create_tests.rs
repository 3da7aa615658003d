//! Tests of creations against [`FakeCloud`](crate::fake_cloud::FakeCloud), in paused time.

#![allow(clippy::needless_pass_by_value, reason = "tests build the values they pass")]

use std::time::Duration;

use machine_driver::{Code, Instant};
use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    bodies,
    fake_cloud::Fault,
    test_rig::{CLUSTER, ROLE, Rig, with_volume, without_port},
};

#[tokio::test(start_paused = true)]
async fn a_creation_makes_a_port_and_a_server_and_a_deletion_leaves_nothing() {
    let rig = Rig::new(json!({}));
    let vm = rig.create().await.unwrap().vm;
    assert_eq!((vm.provider_id.as_str(), vm.node_name.as_str()), ("openstack:///eu-1/s-2", "m-1"));
    assert_eq!(vm.addresses[0].address, "10.0.0.7");
    assert_eq!(
        rig.cloud.requests(),
        [
            "POST /auth/tokens",
            "GET /servers/detail",
            "GET /security-groups",
            "GET /subnets",
            "GET /images",
            "GET /flavors",
            "GET /ports",
            "POST /ports",
            "PUT /ports/p-1/tags",
            "POST /servers",
            "GET /servers/s-2",
            "GET /servers/s-2",
            "GET /ports",
        ]
    );
    let port = rig.cloud.state().ports[0].clone();
    assert_eq!((&port["security_groups"], &port["tags"]), (&json!(["g-machines"]), &json!([CLUSTER, ROLE])));
    assert!(rig.cloud.state().headers.iter().skip(1).all(|headers| headers.contains_key("x-auth-token")));
    let created = rig.cloud.asked("POST /servers");
    assert_eq!(created[0]["server"]["imageRef"], "i-linux");
    assert_eq!(rig.status().await.unwrap(), vm);
    rig.cloud.state().log.clear();
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
    assert_eq!(
        rig.cloud.requests(),
        [
            "GET /servers/detail",
            "DELETE /servers/s-2",
            "GET /servers/s-2",
            "GET /servers/s-2",
            "GET /ports",
            "DELETE /ports/p-1",
            "GET /volumes/detail",
        ]
    );
}

/// docs/clouds-openstack.md and docs/performance.md contain the numbers of these requests, without logins and polls.
#[tokio::test(start_paused = true)]
async fn the_requests_for_the_life_of_a_machine_are_those_of_the_documents() {
    let rig = Rig::new(with_volume());
    let cloud = rig.cloud.clone();
    // The number of requests since the last count.
    let without_polls = |polls: &[&str]| {
        let is_poll = |line: &String| polls.iter().any(|poll| line.starts_with(poll)) || line.starts_with("POST /auth");
        let log = std::mem::take(&mut cloud.state().log);
        log.into_iter().filter(|(line, _)| !is_poll(line)).count()
    };
    rig.status().await.unwrap_err();
    assert_eq!(without_polls(&[]), 1);
    let id = rig.create().await.unwrap().vm.provider_id;
    assert_eq!(without_polls(&["GET /servers/s-", "GET /volumes/v-"]), 10 + 2);
    let rig = rig.named(&id);
    rig.initialize().await.unwrap();
    assert_eq!(without_polls(&[]), 2);
    rig.status().await.unwrap();
    assert_eq!(without_polls(&[]), 2);
    rig.delete().await.unwrap();
    // The first request for the server is the look-up.
    assert_eq!(1 + without_polls(&["GET /servers/s-", "GET /volumes/v-"]), 5 + 1);
    rig.list().await.unwrap();
    assert_eq!(without_polls(&[]), 3);
}

#[tokio::test(start_paused = true)]
async fn requests_name_the_microversion_that_they_are_written_for() {
    let rig = Rig::new(with_volume());
    rig.create().await.unwrap();
    let state = rig.cloud.state();
    let of = |begin: &str| {
        let at = state.log.iter().position(|(line, _)| line.starts_with(begin)).unwrap();
        state.headers[at].get("openstack-api-version").map(|version| version.to_str().unwrap().to_owned())
    };
    assert_eq!(of("POST /servers").as_deref(), Some("compute 2.1"));
    assert_eq!(of("POST /volumes").as_deref(), Some("volume 3.0"));
    assert_eq!(of("POST /ports"), None);
}

#[rstest]
#[case::in_the_answer("POST /servers", Fault::LostReply)]
#[case::of_the_port("POST /ports", Fault::LostReply)]
#[case::of_the_tags("PUT /ports", Fault::LostReply)]
#[tokio::test(start_paused = true)]
async fn a_lost_reply_makes_nothing_twice(#[case] request: &'static str, #[case] fault: Fault) {
    let rig = Rig::new(json!({}));
    rig.cloud.fails(request, [fault]);
    if rig.create().await.is_err() {
        rig.create().await.unwrap();
    }
    assert_eq!((rig.servers().len(), rig.ports().len()), (1, 1));
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

/// It may hold the data of an earlier machine of the same name, or another image.
#[rstest]
#[case::of_an_earlier_machine("uid-0 i-linux 20")]
#[case::of_another_image("uid-1 i-old 20")]
#[case::of_another_size("uid-1 i-linux 10")]
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_made_for_something_else_is_not_booted_from(#[case] made_for: &str) {
    let rig = Rig::new(with_volume());
    rig.cloud.fails("POST /servers", [Fault::LostRequest]);
    rig.create().await.unwrap_err();
    rig.cloud.state().volumes[0]["metadata"][bodies::MADE_FOR] = json!(made_for);
    rig.create().await.unwrap();
    let body = rig.cloud.asked("POST /servers").pop().unwrap();
    assert_eq!(body["server"]["block_device_mapping_v2"][0]["uuid"], json!(rig.volumes()[1]));
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_was_made_for_the_machine_is_booted_from() {
    let rig = Rig::new(with_volume());
    rig.cloud.fails("POST /servers", [Fault::LostRequest]);
    rig.create().await.unwrap_err();
    rig.create().await.unwrap();
    assert_eq!(rig.volumes().len(), 1);
}

/// The core would wait a minute for a server that no request has asked for.
#[rstest]
#[case::of_the_port("POST /ports")]
#[case::of_the_volume("POST /volumes")]
#[tokio::test(start_paused = true)]
async fn what_a_lost_reply_has_made_is_used_at_once(#[case] request: &'static str) {
    let rig = Rig::new(with_volume());
    rig.cloud.fails(request, [Fault::LostReply]);
    rig.create().await.unwrap();
    assert_eq!(rig.cloud.asked(request).len(), 1);
    rig.cloud.fails(request, [Fault::LostRequest]);
    rig.delete().await.unwrap();
    assert_eq!(rig.create().await.unwrap_err().code, Code::Unavailable);
    assert!(rig.is_empty());
}

/// decisions.md 58: the core asks for the server before it asks for another one.
#[tokio::test(start_paused = true)]
async fn what_an_unknown_creation_needs_stays() {
    let rig = Rig::new(json!({}));
    rig.cloud.fails("POST /servers", [Fault::LostRequest]);
    let unknown = rig.create().await.unwrap_err();
    assert_eq!(unknown.code, Code::Unavailable);
    assert!(
        unknown.message.starts_with("failed to deploy server [Name=\"m-1\"]: making the server: "),
        "{}",
        unknown.message
    );
    assert_eq!(rig.ports().len(), 1, "the server may still come, and has this port");
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    rig.create().await.unwrap();
    assert_eq!((rig.servers().len(), rig.ports().len()), (1, 1));
}

#[rstest]
#[case::o_03_no_host("No valid host was found. There are not enough hosts available.", Code::ResourceExhausted)]
#[case::something_else("disk on fire", Code::Internal)]
#[tokio::test(start_paused = true)]
async fn o_02_a_failed_server_is_deleted_with_its_port_and_its_volume(#[case] fault: &'static str, #[case] code: Code) {
    let rig = Rig::new(with_volume());
    rig.cloud.state().becomes = ("ERROR", Some(fault));
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, code);
    assert_eq!(
        refused.message,
        format!("server [ID=\"s-3\"] reached unexpected status \"ERROR\", fault: {fault} (code 500)")
    );
    assert!(rig.is_empty());
}

/// The autoscaler uses another group only if it gets the failure.
#[tokio::test(start_paused = true)]
async fn a_failure_does_not_wait_for_a_deletion_that_lasts() {
    let rig = Rig::new(json!({}));
    rig.cloud.state().becomes = ("ERROR", Some("No valid host was found."));
    rig.cloud.state().deletion_fails = Some("No valid host was found.");
    let began = Instant::now();
    let refused = rig.create().await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    assert_eq!(refused.code, Code::ResourceExhausted);
    assert!(
        refused.message.ends_with("(and what was made could not be deleted: its deletion lasts)"),
        "{}",
        refused.message
    );
    rig.cloud.state().deletion_fails = None;
    let rig = rig.keeping(refused.last_known_state);
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_cleaned_up_is_told_beside_the_failure() {
    let rig = Rig::new(json!({}));
    rig.cloud.state().becomes = ("ERROR", Some("No valid host was found."));
    rig.cloud.fails(
        "DELETE /ports",
        [Fault::Error(403, r#"{"NeutronError": {"type": "PolicyNotAuthorized", "message": "no", "detail": ""}}"#)],
    );
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted, "of the failure itself");
    assert!(refused.message.contains("No valid host was found. (code 500) (and what was made could not be deleted: deleting the server's port: neutron answers 403 PolicyNotAuthorized"), "{}", refused.message);
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

#[tokio::test(start_paused = true)]
async fn o_04_an_unknown_flavor_is_lack_of_capacity() {
    let rig = Rig::new(json!({"flavorName": "gone"}));
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    assert_eq!(
        refused.message,
        "error resolving flavor ID from flavor name \"gone\": Unable to find flavor with name gone"
    );
    assert!(rig.cloud.asked("POST /ports").is_empty(), "nothing is made for a class that can't be served");
}

#[rstest]
#[case::no_image(json!({"imageName": "gone"}), Code::NotFound, "error resolving image ID from image name \"gone\": Unable to find image with name gone")]
#[case::no_subnet(json!({"subnetIDs": ["s-7"]}), Code::NotFound, "failed to resolve server [Name=\"m-1\"] networks: Unable to find subnet with id s-7")]
#[case::a_subnet_of_another_network(json!({"subnetID": "s-9"}), Code::InvalidArgument, "failed to resolve server [Name=\"m-1\"] networks: subnet s-9 is in network n-9, not in n-1")]
#[case::no_security_group(json!({"securityGroups": ["gone"]}), Code::NotFound, "failed to resolve server [Name=\"m-1\"] networks: Unable to find security group with name gone")]
#[case::no_network(json!({"networkID": null, "subnetID": null, "networks": [{"name": "gone"}]}), Code::NotFound, "failed to resolve server [Name=\"m-1\"] networks: Unable to find network with name gone")]
#[case::no_region(json!({"region": "eu-9"}), Code::FailedPrecondition, "the catalogue has no public endpoint of the service compute in region \"eu-9\"")]
#[tokio::test(start_paused = true)]
async fn a_class_names_what_is_not_there(#[case] patch: Value, #[case] code: Code, #[case] message: &str) {
    let rig = Rig::new(patch);
    let refused = rig.create().await.unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (code, message));
    assert!(rig.is_empty());
}

/// Neutron shows the security groups of all projects to a login with the role `admin`.
#[rstest]
#[case::of_the_own_project(json!(["machines"]), &["g-machines"])]
#[case::that_another_project_shares(json!(["machines", "shared"]), &["g-machines", "g-shared-2"])]
#[case::the_default_one_of_the_own_project(json!(["default"]), &["g-default"])]
#[tokio::test(start_paused = true)]
async fn a_security_group_of_the_own_project_comes_first(#[case] names: Value, #[case] ids: &[&str]) {
    let rig = Rig::new(json!({ "securityGroups": names }));
    rig.create().await.unwrap();
    let state = rig.cloud.state();
    assert_eq!(state.ports[0]["security_groups"], json!(ids));
    let first = state.log.iter().find(|(line, _)| line.starts_with("GET /security-groups")).unwrap();
    assert!(first.0.contains("project_id=project-1"), "{}", first.0);
}

#[tokio::test(start_paused = true)]
async fn two_security_groups_of_one_name_in_the_own_project_are_none() {
    let refused = Rig::new(json!({"securityGroups": ["twice"]})).create().await.unwrap_err();
    assert_eq!(refused.code, Code::OutOfRange);
    assert!(
        refused.message.ends_with("Found 2 resources of kind security group with name twice"),
        "{}",
        refused.message
    );
}

#[tokio::test(start_paused = true)]
async fn two_images_of_one_name_are_none() {
    let rig = Rig::new(json!({}));
    rig.cloud.state().images.push("linux");
    assert_eq!(rig.create().await.unwrap_err().code, Code::OutOfRange);
}

#[tokio::test(start_paused = true)]
async fn pods_that_can_not_pass_yet_keep_no_server_from_being_made() {
    let rig = Rig::new(without_port());
    rig.cloud.fails("PUT /ports", [Fault::Error(403, "{}")]);
    rig.create().await.unwrap();
    assert_eq!(rig.status().await.unwrap_err().code, Code::Uninitialized);
    rig.initialize().await.unwrap();
    rig.status().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn networks_are_named_by_id_or_by_name_and_pods_are_in_some_of_them() {
    let rig = Rig::new(json!({
        "networkID": null, "subnetID": null, "networks": [{"name": "front"}, {"id": "n-7", "podNetwork": true}, {"name": "back"}],
    }));
    rig.create().await.unwrap();
    let body = &rig.cloud.asked("POST /servers")[0];
    assert_eq!(body["server"]["networks"], json!([{"uuid": "n-front"}, {"uuid": "n-7"}, {"uuid": "n-back"}]));
    let pairs: Vec<usize> =
        rig.cloud.state().ports.iter().map(|port| port["allowed_address_pairs"].as_array().unwrap().len()).collect();
    assert_eq!(pairs, [0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_being_deleted_is_not_taken_over() {
    let rig = Rig::new(json!({}));
    rig.server("s-a", json!({"OS-EXT-STS:task_state": "deleting"}));
    assert_eq!(rig.status().await.unwrap_err().code, Code::Aborted);
    let refused = rig.create().await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (Code::Aborted, "server [Name=\"m-1\", ID=\"s-a\"] is still being deleted")
    );
    assert!(rig.cloud.asked("POST").len() == 1, "only a login");
}

#[rstest]
#[case::it_is_still_being_made("BUILD")]
#[case::it_has_failed("ERROR")]
#[tokio::test(start_paused = true)]
async fn what_an_interrupted_creation_has_left_is_for_the_next_one(#[case] status: &str) {
    let rig = Rig::new(without_port());
    rig.server("s-a", json!({ "status": status }));
    assert_eq!(rig.status().await.unwrap_err().code, Code::Unimplemented, "a creation is to see to it");
    let outcome = rig.create().await;
    if status == "ERROR" {
        assert_eq!(outcome.unwrap_err().code, Code::Internal);
        assert!(rig.servers().is_empty());
    } else {
        assert_eq!(outcome.unwrap().vm.provider_id, "openstack:///eu-1/s-a");
    }
}

#[rstest]
#[case("SHUTOFF")]
#[case("REBOOT")]
#[case("UNKNOWN")]
#[tokio::test(start_paused = true)]
async fn a_server_that_somebody_has_stopped_is_taken_over_and_not_deleted(#[case] status: &str) {
    let rig = Rig::new(without_port());
    rig.server("s-a", json!({ "status": status }));
    rig.create().await.unwrap();
    assert_eq!(rig.servers(), ["s-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_strangers_port_of_the_machines_name_is_not_taken() {
    let rig = Rig::new(json!({}));
    rig.port("p-foreign", json!({"tags": []}));
    rig.create().await.unwrap();
    assert_eq!(rig.cloud.asked("POST /servers")[0]["server"]["networks"], json!([{"port": "p-1"}]));
    rig.delete().await.unwrap();
    assert_eq!(rig.ports(), ["p-foreign"]);
}

#[tokio::test(start_paused = true)]
async fn a_port_in_use_is_waited_for() {
    let rig = Rig::new(json!({}));
    rig.port("p-a", json!({"device_id": "s-gone"}));
    let refused = rig.create().await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (Code::Aborted, "port p-a of the machine is still in use by s-gone")
    );
    rig.create().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_no_use_is_deleted_and_made_anew() {
    let rig = Rig::new(with_volume());
    rig.cloud.state().volumes_become = "error";
    let refused = rig.create().await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (Code::Internal, "volume v-2 of the machine can't be booted from: it is error")
    );
    assert!(rig.is_empty());
    rig.cloud.state().volumes_become = "available";
    rig.create().await.unwrap();
    assert_eq!(rig.cloud.asked("POST /servers")[0]["server"]["block_device_mapping_v2"][0]["uuid"], "v-4");
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_name_is_made_or_deleted_once_at_a_time() {
    let rig = Rig::new(json!({}));
    let (made, refused) = tokio::join!(rig.create(), rig.delete());
    made.unwrap();
    assert_eq!(refused.unwrap_err().code, Code::Aborted);
    rig.delete().await.unwrap();
}

/// A gateway answers a look at the server with a page of its own, and forbids the next one.
#[tokio::test(start_paused = true)]
async fn a_server_that_can_not_be_looked_at_is_left_to_the_next_creation() {
    let rig = Rig::new(json!({}));
    rig.cloud.fails("GET /servers/s-", [Fault::Error(200, "<html>maintenance</html>")]);
    rig.create().await.unwrap();
    rig.delete().await.unwrap();
    rig.cloud.fails("GET /servers/s-", [Fault::Error(403, "{}")]);
    assert_eq!(rig.create().await.unwrap_err().code, Code::PermissionDenied);
    assert_eq!((rig.servers().len(), rig.ports().len()), (1, 1));
    rig.create().await.unwrap();
    assert_eq!((rig.servers().len(), rig.ports().len()), (1, 1));
}

/// The server would have the security groups or the networks that the class had before.
#[rstest]
#[case::with_other_groups(json!({"securityGroups": ["others"]}), "g-others", "s-1")]
#[case::without_groups(json!({"securityGroups": null}), "g-default", "s-1")]
#[case::in_another_subnet(json!({"subnetID": "s-2"}), "g-machines", "s-2")]
#[case::with_other_pods(json!({"podNetworkCIDRs": ["100.96.0.0/11"]}), "g-machines", "s-1")]
#[tokio::test(start_paused = true)]
async fn a_port_is_not_used_that_was_made_before_an_edit_of_the_class(
    #[case] edit: Value,
    #[case] group: &str,
    #[case] subnet: &str,
) {
    let rig = Rig::new(json!({}));
    rig.cloud.fails("POST /servers", [Fault::LostRequest]);
    rig.create().await.unwrap_err();
    let old = rig.ports();
    let rig = rig.edited(edit);
    rig.create().await.unwrap();
    assert_eq!(rig.ports().len(), 1, "the old port is deleted");
    assert_ne!(rig.ports(), old);
    let port = rig.cloud.state().ports[0].clone();
    assert_eq!((&port["security_groups"], &port["fixed_ips"][0]["subnet_id"]), (&json!([group]), &json!(subnet)));
    assert_eq!(port["allowed_address_pairs"].as_array().unwrap().len(), 1);
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

/// The port that an interrupted creation has made. Neutron gives every port of the network an address in a subnet with SLAAC.
#[rstest]
#[case::of_the_class(&["s-1"], 0, true)]
#[case::of_the_class_and_with_slaac(&["s-1", "s-slaac"], 1, true)]
#[case::that_the_class_has_dropped(&["s-1", "s-2"], 1, false)]
#[tokio::test(start_paused = true)]
async fn a_port_in_other_subnets_is_not_used(#[case] subnets: &[&str], #[case] asked: usize, #[case] is_used: bool) {
    let rig = Rig::new(json!({}));
    let addresses: Vec<Value> = subnets.iter().map(|subnet| json!({ "subnet_id": subnet })).collect();
    rig.port("p-a", json!({ "fixed_ips": addresses }));
    rig.create().await.unwrap();
    assert_eq!(rig.ports() == ["p-a"], is_used, "{:?}", rig.ports());
    assert_eq!(rig.ports().len(), 1);
    assert_eq!(rig.cloud.asked("GET /subnets").len(), 1 + asked, "one request for those of the class");
}

/// Neutron gives the port the default group of the project.
#[tokio::test(start_paused = true)]
async fn a_port_without_groups_that_a_lost_reply_has_made_is_used() {
    let rig = Rig::new(json!({"securityGroups": null}));
    rig.cloud.fails("POST /ports", [Fault::LostReply]);
    rig.create().await.unwrap();
    assert_eq!(rig.ports().len(), 1);
    assert_eq!(rig.cloud.asked("POST /ports")[0]["port"].get("security_groups"), None);
}

/// The old port goes with the machine at the latest.
#[tokio::test(start_paused = true)]
async fn an_old_port_that_neutron_does_not_delete_keeps_no_server_from_being_made() {
    let rig = Rig::new(json!({}));
    rig.cloud.fails("POST /servers", [Fault::LostRequest]);
    rig.create().await.unwrap_err();
    let rig = rig.edited(json!({"securityGroups": ["others"]}));
    rig.cloud.fails("DELETE /ports", [Fault::Error(403, "{}")]);
    rig.create().await.unwrap();
    assert_eq!(rig.ports().len(), 2);
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

/// The process ends in a creation, and a user edits the tags of the class. The controllers have stored the state of the look-up before the creation.
#[rstest]
#[case::before_the_port_has_tags("PUT /ports", true)]
#[case::before_the_server_is_made("POST /servers", true)]
#[case::while_the_server_is_built("GET /servers/s-", true)]
#[case::and_the_machine_is_deleted_with_a_port("POST /servers", false)]
#[case::and_the_machine_is_deleted_with_a_server("GET /servers/s-", false)]
#[tokio::test(start_paused = true)]
async fn what_a_creation_that_is_cut_off_has_made_is_found(#[case] request: &'static str, #[case] lives: bool) {
    let rig = Rig::new(with_volume());
    let state = rig.status().await.unwrap_err().last_known_state;
    rig.cloud.fails(request, [Fault::Silence]);
    assert!(tokio::time::timeout(Duration::from_secs(30), rig.create()).await.is_err(), "cut off");
    let mut rig = rig.keeping(state).edited(json!({"tags": {ROLE: null, "kubernetes.io-role-worker": "1"}}));
    if lives {
        let state = rig.status().await.unwrap_err().last_known_state;
        rig = rig.keeping(state);
        let made = rig.create().await.unwrap();
        assert_eq!((rig.servers().len(), rig.ports().len(), rig.volumes().len()), (1, 1, 1));
        rig = rig.keeping(made.last_known_state).named(&made.vm.provider_id);
    }
    rig.delete().await.unwrap();
    assert!(rig.is_empty(), "{:?} {:?} {:?}", rig.servers(), rig.ports(), rig.volumes());
}

/// The process ends in a creation, and a user edits the region of the class.
#[rstest]
#[case::before_the_server_is_made("POST /servers", Code::NotFound)]
#[case::while_the_server_is_built("GET /servers/s-", Code::Unimplemented)]
#[tokio::test(start_paused = true)]
async fn nothing_stays_in_an_earlier_region(#[case] request: &'static str, #[case] seen: Code) {
    for lives in [true, false] {
        let rig = Rig::new(with_volume());
        let state = rig.status().await.unwrap_err().last_known_state;
        rig.cloud.fails(request, [Fault::Silence]);
        assert!(tokio::time::timeout(Duration::from_secs(30), rig.create()).await.is_err(), "cut off");
        let mut rig = rig.keeping(state).edited(json!({"region": "eu-2"}));
        if lives {
            let status = rig.status().await.unwrap_err();
            assert_eq!(status.code, seen);
            rig = rig.keeping(status.last_known_state);
            let made = rig.create().await.unwrap();
            assert!(made.vm.provider_id.starts_with("openstack:///eu-2/"), "{made:?}");
            assert!(rig.is_empty(), "nothing is left in eu-1");
            let state = made.last_known_state.unwrap();
            assert!(!state.contains("eu-1"), "{state}");
            rig = rig.keeping(Some(state)).named(&made.vm.provider_id);
        }
        rig.delete().await.unwrap();
        assert!(rig.is_empty());
        rig.cloud.state().exchange_regions();
        assert!(rig.is_empty(), "nothing is left in eu-2");
    }
}

/// A creation whose end is unknown has made a server, and a user edits the region of the class.
#[tokio::test(start_paused = true)]
async fn a_server_in_an_earlier_region_is_taken_over() {
    let rig = Rig::new(json!({}));
    rig.cloud.fails("GET /servers/s-", [Fault::Error(403, "{}")]);
    let unknown = rig.create().await.unwrap_err();
    rig.cloud.state().servers[0]["status"] = json!("ACTIVE");
    let rig = rig.keeping(unknown.last_known_state).edited(json!({"region": "eu-2"}));
    let vm = rig.status().await.unwrap();
    assert!(vm.provider_id.starts_with("openstack:///eu-1/"), "{vm:?}");
    let rig = rig.named(&vm.provider_id);
    rig.initialize().await.unwrap();
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

/// The machine keeps the state, and the next attempt deletes what is left in the earlier region.
#[tokio::test(start_paused = true)]
async fn no_server_is_made_before_an_earlier_region_is_clean() {
    let rig = Rig::new(json!({}));
    rig.cloud.fails("POST /servers", [Fault::LostRequest]);
    let unknown = rig.create().await.unwrap_err();
    let rig = rig.keeping(unknown.last_known_state).edited(json!({"region": "eu-2"}));
    rig.cloud.fails("DELETE /ports", [Fault::Error(403, "{}")]);
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    assert!(refused.last_known_state.as_ref().is_some_and(|state| state.contains("eu-1")), "{refused:?}");
    let rig = rig.keeping(refused.last_known_state);
    rig.create().await.unwrap();
    assert!(rig.is_empty(), "nothing is left in eu-1");
}

/// A creation whose end is unknown has made a server, and a user edits the tags of the class.
#[rstest]
#[case::the_machine_lives_on(true)]
#[case::the_machine_is_deleted(false)]
#[tokio::test(start_paused = true)]
async fn a_server_is_found_by_the_keys_it_was_made_with(#[case] lives: bool) {
    let rig = Rig::new(with_volume());
    rig.cloud.fails("GET /servers/s-", [Fault::Error(403, "{}")]);
    let unknown = rig.create().await.unwrap_err();
    let edit =
        json!({"tags": {ROLE: null, "kubernetes.io-role-worker": "1"}, "rootDiskSize": null, "rootDiskType": null});
    let rig = rig.keeping(unknown.last_known_state).edited(edit);
    if lives {
        let made = rig.create().await.unwrap();
        assert_eq!((rig.servers().len(), rig.ports().len(), rig.volumes().len()), (1, 1, 1));
        let id = made.vm.provider_id.clone();
        let rig = rig.keeping(made.last_known_state).named(&id);
        rig.status().await.unwrap();
        rig.delete().await.unwrap();
        assert!(rig.is_empty());
    } else {
        rig.delete().await.unwrap();
        assert!(rig.is_empty(), "{:?} {:?} {:?}", rig.servers(), rig.ports(), rig.volumes());
    }
}

/// The catalogue of a new token lacks the region in which a creation was cut off, and a user has edited the region of the class.
#[tokio::test(start_paused = true)]
async fn a_region_that_the_catalogue_lacks_for_a_while_is_not_forgotten() {
    let rig = Rig::new(with_volume());
    let state = rig.status().await.unwrap_err().last_known_state;
    rig.cloud.fails("GET /servers/s-", [Fault::Silence]);
    assert!(tokio::time::timeout(Duration::from_secs(30), rig.create()).await.is_err(), "cut off");
    let rig = rig.keeping(state).edited(json!({"region": "eu-2"}));
    (rig.cloud.state().expired, rig.cloud.state().regions) = (true, vec![("eu-2", "other")]);
    // A service refuses the old token, as a new process has none.
    rig.list().await.unwrap();
    for refused in [rig.status().await.unwrap_err(), rig.create().await.unwrap_err(), rig.delete().await.unwrap_err()] {
        assert_eq!(refused.code, Code::FailedPrecondition);
        assert!(refused.message.contains("has begun in region \"eu-1\""), "{}", refused.message);
        assert!(refused.last_known_state.is_none_or(|state| state.contains("eu-1")));
    }
    assert_eq!(rig.servers().len(), 1);
    (rig.cloud.state().expired, rig.cloud.state().regions) = (true, vec![("eu-1", "cloud"), ("eu-2", "other")]);
    rig.list().await.unwrap();
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_mistyped_region_is_not_kept() {
    let rig = Rig::new(json!({"region": "eu-9"}));
    for refused in [rig.status().await.unwrap_err(), rig.create().await.unwrap_err()] {
        assert_eq!((refused.code, refused.last_known_state), (Code::FailedPrecondition, None));
    }
    let rig = rig.edited(json!({"region": "eu-1"}));
    rig.status().await.unwrap_err();
    rig.create().await.unwrap();
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}
