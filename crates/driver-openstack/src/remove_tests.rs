//! Tests of deletions and of the ownership of servers and ports against [`FakeCloud`](crate::fake_cloud::FakeCloud), in paused time.

#![allow(clippy::needless_pass_by_value, reason = "tests build the values they pass")]

use std::time::Duration;

use machine_driver::{Code, Instant};
use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    fake_cloud::{Fault, PROJECT},
    test_rig::{CLUSTER, ROLE, Rig, with_volume, without_port},
};

const FORBIDDEN: Fault = Fault::Error(403, "{}");

/// The description of the driver's ports.
const MARK: &str = "made by machine-controller-manager for kubernetes.io-cluster-shoot kubernetes.io-role-node";

#[tokio::test(start_paused = true)]
async fn o_06_a_machine_with_two_servers_gets_no_other_and_none_is_deleted() {
    let rig = Rig::new(json!({}));
    rig.server("s-a", json!({}));
    rig.server("s-b", json!({}));
    for refused in [rig.create().await.unwrap_err(), rig.status().await.unwrap_err()] {
        assert_eq!(refused.code, Code::OutOfRange);
        assert_eq!(refused.message, "multiple servers found for the machine: [s-a, s-b]");
    }
    assert_eq!(rig.servers(), ["s-a", "s-b"]);
    rig.delete().await.unwrap();
    assert!(rig.servers().is_empty(), "a deletion by name deletes all servers of the machine");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_can_not_be_deleted_does_not_keep_the_others() {
    let rig = Rig::new(json!({}));
    rig.server("s-a", json!({}));
    rig.server("s-b", json!({}));
    rig.cloud.fails(
        "DELETE /servers/s-a",
        [Fault::Error(409, "{\"conflictingRequest\": {\"message\": \"locked\", \"code\": 409}}")],
    );
    assert_eq!(rig.delete().await.unwrap_err().code, Code::Aborted);
    assert_eq!(rig.servers(), ["s-a"]);
    rig.delete().await.unwrap();
    assert!(rig.servers().is_empty());
}

const NOT_SHOWN: Fault =
    Fault::Error(404, r#"{"itemNotFound": {"code": 404, "message": "Instance could not be found."}}"#);

/// A server of Nova's API does not know the machine's server yet. Nothing else of the machine shows that the server exists.
#[rstest]
#[case::before_its_deletion(&["GET /servers/s-"])]
#[case::in_its_deletion(&["DELETE /servers/s-", "GET /servers/s-"])]
#[tokio::test(start_paused = true)]
async fn a_machine_is_not_ended_by_a_stale_404(#[case] requests: &[&'static str]) {
    for class in [without_port(), json!({}), with_volume()] {
        for answers in 1..=2 {
            let rig = Rig::new(class.clone());
            let id = rig.create().await.unwrap().vm.provider_id;
            let rig = rig.named(&id);
            let found = rig.servers();
            for request in requests {
                let before = usize::from(requests.len() > 1 && request.starts_with("GET"));
                rig.cloud.fails(request, vec![Fault::None; before]);
                rig.cloud.fails(request, vec![NOT_SHOWN; if request.starts_with("GET") { answers } else { 1 }]);
            }
            let deleted = rig.delete().await;
            assert!(rig.is_empty() || deleted.is_err() && rig.servers() == found, "{deleted:?} {:?}", rig.servers());
            rig.delete().await.unwrap();
            assert!(rig.is_empty());
        }
    }
}

/// Its port shows that the server exists.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_not_shown_three_times_is_not_given_up_while_it_uses_a_port_or_a_volume() {
    for class in [json!({}), with_volume()] {
        let rig = Rig::new(class);
        let id = rig.create().await.unwrap().vm.provider_id;
        let rig = rig.named(&id);
        rig.cloud.fails("GET /servers/s-", vec![NOT_SHOWN; 5]);
        assert_eq!(rig.delete().await.unwrap_err().code, Code::Aborted);
        assert_eq!((rig.servers().len(), rig.ports().len()), (1, 1));
        rig.delete().await.unwrap();
        assert!(rig.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_server_that_nova_does_not_show_at_once_is_kept() {
    let rig = Rig::new(json!({}));
    rig.cloud.fails("GET /servers/s-", [NOT_SHOWN, NOT_SHOWN]);
    rig.create().await.unwrap();
    assert_eq!(rig.servers().len(), 1);
    assert_eq!(rig.cloud.asked("DELETE /servers/").len(), 0);
}

/// A user has written another cluster's key into the class.
#[tokio::test(start_paused = true)]
async fn a_living_server_of_another_cluster_is_neither_deleted_nor_given_up() {
    let rig = Rig::new(json!({})).named("openstack:///eu-1/s-a");
    rig.server("s-a", json!({"metadata": {CLUSTER: null, "kubernetes.io-cluster-other": "1"}}));
    for refused in [rig.status().await.unwrap_err(), rig.delete().await.unwrap_err()] {
        assert_eq!(refused.code, Code::FailedPrecondition);
        assert!(refused.message.contains("its owner kubernetes.io-cluster-other"), "{}", refused.message);
    }
    assert_eq!(rig.servers(), ["s-a"]);
}

/// A user has taken the key of the role away and has changed the name.
#[tokio::test(start_paused = true)]
async fn a_server_with_a_key_of_the_cluster_holds_its_machine() {
    let rig = Rig::new(json!({})).named("openstack:///eu-1/s-a");
    rig.server("s-a", json!({"name": "other", "metadata": {ROLE: null}}));
    rig.port("p-a", json!({"device_id": "s-a"}));
    for refused in [rig.status().await.unwrap_err(), rig.delete().await.unwrap_err()] {
        assert_eq!(refused.code, Code::FailedPrecondition);
        assert!(refused.message.contains(&format!("its owner {CLUSTER}, not {CLUSTER} {ROLE}")), "{}", refused.message);
    }
    assert_eq!((rig.servers(), rig.ports()), (strings(&["s-a"]), strings(&["p-a"])));
}

#[rstest]
#[case::no_metadata(json!({"metadata": {CLUSTER: null, ROLE: null}}), &["", "openstack:///eu-1/s-a"])]
#[case::no_key_of_a_cluster(json!({"metadata": {CLUSTER: null}}), &["", "openstack:///eu-1/s-a"])]
#[case::of_another_cluster(json!({"metadata": {CLUSTER: null, "kubernetes.io-cluster-other": "1"}}), &[""])]
#[tokio::test(start_paused = true)]
async fn o_07_a_server_without_the_metadata_of_the_owner_is_not_touched(#[case] change: Value, #[case] ids: &[&str]) {
    for by in ids {
        let rig = Rig::new(json!({})).named(by);
        rig.server("s-a", change.clone());
        let ports: &[&str] = if by.is_empty() { &[] } else { &["p-a"] };
        for port in ports {
            rig.port(port, json!({"device_id": "s-a"}));
        }
        rig.delete().await.unwrap();
        assert_eq!((rig.servers(), rig.ports()), (strings(&["s-a"]), strings(ports)));
        assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
        if by.is_empty() {
            rig.create().await.unwrap();
            assert_eq!(rig.servers().len(), 2, "the other server does not belong to the machine");
        }
    }
}

#[rstest]
#[case::it_has_failed("openstack:///eu-1/s-a", json!({"status": "ERROR"}))]
#[case::the_controller_managers_spelling("openstack:///s-a", json!({}))]
#[case::a_renamed_one("openstack:///eu-1/s-a", json!({"name": "other"}))]
#[case::in_capital_letters("openstack:///eu-1/S-A", json!({}))]
#[tokio::test(start_paused = true)]
async fn a_machine_with_a_provider_id_has_its_server_in_any_state(#[case] id: &str, #[case] change: Value) {
    let rig = Rig::new(json!({})).named(id);
    rig.server("s-a", change);
    rig.port("p-a", json!({"device_id": "s-a"}));
    assert_eq!(rig.status().await.unwrap().provider_id, "openstack:///eu-1/s-a");
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_provider_id_has_the_region_of_the_server() {
    let rig = Rig::new(json!({})).named("openstack:///eu-2/s-a");
    rig.server("s-a", json!({}));
    rig.port("p-a", json!({"device_id": "s-a"}));
    rig.cloud.state().exchange_regions();
    rig.status().await.unwrap();
    let refused = rig.named("openstack:///eu-9/s-a");
    assert_eq!(
        refused.delete().await.unwrap_err().code,
        Code::FailedPrecondition,
        "not NotFound, which would count as deleted"
    );
    let refused = refused.named("openstack:///../../s-a");
    assert_eq!(refused.delete().await.unwrap_err().code, Code::InvalidArgument);
}

#[rstest]
#[case::a_page("<html>404 Not Found</html>")]
#[case::some_json("{\"message\": \"no Route matched with those values\"}")]
#[tokio::test(start_paused = true)]
async fn a_404_of_a_proxy_does_not_mean_that_the_server_is_deleted(#[case] body: &'static str) {
    let rig = Rig::new(json!({})).named("openstack:///eu-1/s-a");
    rig.server("s-a", json!({}));
    rig.cloud.fails("GET /servers/s-a", vec![Fault::Error(404, body); 8]);
    assert_eq!(rig.status().await.unwrap_err().code, Code::Unavailable);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::Unavailable);
    assert_eq!(rig.servers(), ["s-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_hangs_fails_and_can_be_repeated() {
    let rig = Rig::new(json!({}));
    rig.server("s-a", json!({}));
    rig.cloud.state().looks = 1_000_000;
    let began = Instant::now();
    let refused = rig.delete().await.unwrap_err();
    assert_eq!(refused.code, Code::Aborted);
    assert_eq!(
        refused.message,
        "error while waiting for server [ID=\"s-a\"] to be deleted: it is still ACTIVE (deleting)"
    );
    assert!(began.elapsed() < Duration::from_secs(150), "{:?}", began.elapsed());
    rig.cloud.state().looks = 1;
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ports_of_other_owners_and_of_another_server_stay() {
    let rig = Rig::new(json!({})).named("openstack:///eu-1/s-a");
    rig.server("s-a", json!({}));
    rig.server("s-b", json!({}));
    rig.port("p-a", json!({"device_id": "s-a"}));
    rig.port("p-b", json!({"device_id": "s-b"}));
    rig.port("p-gone", json!({"device_id": "s-gone"}));
    rig.port("p-foreign", json!({"tags": ["x"]}));
    rig.delete().await.unwrap();
    assert_eq!((rig.servers(), rig.ports()), (vec!["s-b".to_owned()], vec!["p-b".to_owned(), "p-foreign".to_owned()]));
}

/// The collector deletes a second server with the name of a machine, and Nova does not show the machine's own server.
#[tokio::test(start_paused = true)]
async fn the_collector_deletes_no_port_of_a_running_machine() {
    let rig = Rig::new(json!({})).orphan("openstack:///eu-1/s-b");
    for (server, port) in [("s-a", "p-a"), ("s-b", "p-b")] {
        rig.server(server, json!({}));
        rig.port(port, json!({ "device_id": server }));
    }
    rig.port("p-free", json!({}));
    rig.cloud.fails("GET /servers/s-a", vec![NOT_SHOWN; 10]);
    rig.delete().await.unwrap();
    assert_eq!((rig.servers(), rig.ports()), (strings(&["s-a"]), strings(&["p-a"])));
}

/// A user has written the login of another project to the Secret.
#[tokio::test(start_paused = true)]
async fn a_login_of_another_project_deletes_nothing() {
    let rig = Rig::new(with_volume());
    let made = rig.create().await.unwrap();
    let rig = rig.named(&made.vm.provider_id).keeping(made.last_known_state);
    (rig.cloud.state().expired, rig.cloud.state().project) = (true, "project-2");
    rig.list().await.unwrap();
    for refused in
        [rig.status().await.unwrap_err(), rig.initialize().await.unwrap_err(), rig.delete().await.unwrap_err()]
    {
        assert_eq!(refused.code, Code::FailedPrecondition);
        assert!(
            refused.message.contains("made in project project-1, the login is of project project-2"),
            "{refused:?}"
        );
    }
    assert_eq!((rig.servers().len(), rig.ports().len(), rig.volumes().len()), (1, 1, 1));
    (rig.cloud.state().expired, rig.cloud.state().project) = (true, PROJECT);
    rig.list().await.unwrap();
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

/// A machine waits for capacity, and a user moves its class to a project that has some.
#[tokio::test(start_paused = true)]
async fn a_machine_of_which_nothing_was_made_is_made_in_another_project() {
    let rig = Rig::new(with_volume());
    let state = rig.status().await.unwrap_err().last_known_state;
    assert!(state.as_ref().is_some_and(|state| state.contains(PROJECT)), "{state:?}");
    let rig = rig.keeping(state);
    rig.cloud.state().becomes = ("ERROR", Some("No valid host was found."));
    let state = rig.create().await.unwrap_err().last_known_state;
    let rig = rig.keeping(state);
    (rig.cloud.state().expired, rig.cloud.state().project) = (true, "project-2");
    rig.list().await.unwrap();
    let state = rig.status().await.unwrap_err().last_known_state;
    assert!(state.is_some_and(|state| state.contains("project-2")));
}

/// A user has written the login of a wrong project to the Secret, in which the class can't have a server, and corrects it.
#[rstest]
#[case::the_project_has_no_such_flavor(json!({"flavorName": "gone"}))]
#[case::it_has_no_such_network(json!({"networkID": null, "subnetID": null, "networks": [{"name": "gone"}]}))]
#[case::it_has_no_such_subnet(json!({"subnetID": "gone"}))]
#[case::the_class_is_incomplete(json!({"keyName": null}))]
#[tokio::test(start_paused = true)]
async fn a_machine_that_the_first_project_refuses_is_made_in_another_one(#[case] wrong: Value) {
    let rig = Rig::new(wrong);
    let state = rig.status().await.unwrap_err().last_known_state;
    let rig = rig.keeping(state);
    let state = rig.create().await.unwrap_err().last_known_state;
    let rig = Rig { patch: json!({"securityGroups": ["others"]}), ..rig.keeping(state) };
    (rig.cloud.state().expired, rig.cloud.state().project) = (true, "project-2");
    rig.list().await.unwrap();
    rig.delete().await.unwrap();
    rig.create().await.unwrap();
    assert_eq!(rig.servers().len(), 1);
}

/// An earlier attempt of the machine has left a port, and the process has ended.
#[tokio::test(start_paused = true)]
async fn a_creation_that_is_refused_leaves_nothing_of_an_earlier_one() {
    let rig = Rig::new(json!({"flavorName": "gone"}));
    rig.port("p-a", json!({}));
    assert_eq!(rig.create().await.unwrap_err().code, Code::ResourceExhausted);
    assert!(rig.is_empty());
}

/// Neutron shows the ports of all projects to a login with the role `admin`.
#[tokio::test(start_paused = true)]
async fn ports_of_other_projects_are_neither_used_nor_listed_nor_deleted() {
    let rig = Rig::new(json!({}));
    rig.port("p-foreign", json!({"project_id": "another", "description": MARK}));
    assert_eq!(rig.list().await.unwrap(), []);
    rig.create().await.unwrap();
    rig.port("p-spoofed", json!({"project_id": "another", "device_id": rig.servers()[0], "allowed_address_pairs": []}));
    rig.status().await.unwrap();
    rig.initialize().await.unwrap();
    rig.delete().await.unwrap();
    assert_eq!(rig.ports(), ["p-foreign", "p-spoofed"]);
    let state = rig.cloud.state();
    assert!(state.ports[1]["allowed_address_pairs"] == json!([]), "the port of another project is not changed");
    let mut lists = state.log.iter().filter(|(line, _)| line.starts_with("GET /ports?"));
    assert!(lists.all(|(line, _)| line.contains("project_id=project-1")), "{:?}", state.log);
}

/// A user edits the tags of a class that has machines.
#[rstest]
#[case::of_another_role(json!({"tags": {ROLE: null, "kubernetes.io-role-worker": "1"}}))]
#[case::with_one_cluster_more(json!({"tags": {"kubernetes.io-cluster-a": "1"}}))]
#[tokio::test(start_paused = true)]
async fn a_machine_keeps_its_server_when_tags_of_its_class_change(#[case] edit: Value) {
    let rig = Rig::new(with_volume());
    let made = rig.create().await.unwrap();
    let id = made.vm.provider_id;
    let rig = rig.named(&id).keeping(made.last_known_state).edited(edit);
    assert_eq!(rig.status().await.unwrap().provider_id, id);
    rig.delete().await.unwrap();
    assert!(rig.is_empty(), "{:?} {:?} {:?}", rig.servers(), rig.ports(), rig.volumes());
}

/// Two clusters have a key in common.
#[tokio::test(start_paused = true)]
async fn a_server_with_only_some_keys_of_the_owner_is_not_listed() {
    let rig = Rig::new(json!({"tags": {"kubernetes.io-cluster-a": "1"}}));
    rig.server("s-a", json!({"metadata": {"kubernetes.io-cluster-a": "1", CLUSTER: null}}));
    rig.server("s-b", json!({"metadata": {"kubernetes.io-cluster-a": "1"}}));
    let listed = rig.list().await.unwrap();
    assert_eq!(listed.iter().map(|vm| vm.provider_id.as_str()).collect::<Vec<_>>(), ["openstack:///eu-1/s-b"]);
}

#[rstest]
#[case::to_the_disk_of_the_flavor(json!({"rootDiskSize": null, "rootDiskType": null}))]
#[case::to_a_volume_of_nova(json!({"rootDiskType": null}))]
#[tokio::test(start_paused = true)]
async fn a_volume_is_deleted_with_its_server_after_an_edit_of_the_class(#[case] edit: Value) {
    let rig = Rig::new(with_volume());
    let made = rig.create().await.unwrap();
    let rig = rig.named(&made.vm.provider_id).keeping(made.last_known_state).edited(edit);
    rig.delete().await.unwrap();
    assert!(rig.is_empty(), "{:?}", rig.volumes());
}

#[tokio::test(start_paused = true)]
async fn an_answer_about_another_server_deletes_nothing() {
    let rig = Rig::new(json!({})).named("openstack:///eu-1/s-a");
    rig.server("s-a", json!({}));
    rig.server("s-b", json!({"name": "m-2"}));
    let other = r#"{"server": {"id": "s-b", "name": "m-2", "status": "ACTIVE", "metadata": {"kubernetes.io-cluster-c": "1", "kubernetes.io-role-node": "1"}}}"#;
    rig.cloud.fails("GET /servers/s-a", [Fault::Error(200, other)]);
    let refused = rig.delete().await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (Code::Internal, "s-a was asked for and the answer is about s-b")
    );
    assert_eq!(rig.servers(), ["s-a", "s-b"]);
}

/// A gateway answers a deletion with its own page.
#[rstest]
#[case::of_the_server("DELETE /servers")]
#[case::of_the_port("DELETE /ports")]
#[tokio::test(start_paused = true)]
async fn a_page_of_a_gateway_is_no_deletion(#[case] request: &'static str) {
    let rig = Rig::new(json!({}));
    rig.create().await.unwrap();
    rig.cloud.fails(request, [Fault::Error(200, "<html>maintenance</html>")]);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::Internal);
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

/// The collector of orphans works from the list, and the server is not in the list any more.
#[rstest]
#[case::a_refusal_for_the_port("DELETE /ports", FORBIDDEN)]
#[case::a_refusal_for_the_volume("DELETE /volumes", FORBIDDEN)]
#[case::an_end_of_the_process_before_the_port("DELETE /ports", Fault::Silence)]
#[case::an_end_of_the_process_before_the_volume("DELETE /volumes", Fault::Silence)]
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_server_is_listed_until_it_is_deleted(#[case] request: &'static str, #[case] fault: Fault) {
    let rig = Rig::new(with_volume());
    let id = rig.create().await.unwrap().vm.provider_id;
    rig.cloud.fails(request, [fault]);
    let rig = rig.orphan(&id);
    let ended = tokio::time::timeout(Duration::from_secs(30), rig.delete()).await;
    assert!(ended.is_err() || ended.is_ok_and(|deleted| deleted.is_err()));
    assert!(rig.servers().is_empty());
    let left = rig.list().await.unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(
        (left[0].machine_name.as_str(), left[0].created),
        ("m-1", Some("2026-01-01T00:00:00Z".parse().unwrap()))
    );
    let rig = rig.orphan(&left[0].provider_id);
    rig.delete().await.unwrap();
    assert!(rig.is_empty(), "{:?} {:?}", rig.ports(), rig.volumes());
    assert_eq!(rig.list().await.unwrap(), []);
}

const NO_PORT: Fault = Fault::Error(
    404,
    r#"{"NeutronError": {"type": "HTTPNotFound", "message": "The resource could not be found.", "detail": ""}}"#,
);
const NO_VOLUME: Fault =
    Fault::Error(404, r#"{"itemNotFound": {"code": 404, "message": "Volume could not be found."}}"#);

/// The URL of a service in the catalogue is wrong, so that the service itself answers 404. `NotFound` would end the machine.
#[rstest]
#[case::of_servers("GET /servers/detail", NOT_SHOWN)]
#[case::of_ports("GET /ports", NO_PORT)]
#[case::of_volumes("GET /volumes", NO_VOLUME)]
#[tokio::test(start_paused = true)]
async fn a_list_that_a_service_does_not_know_ends_no_machine(#[case] request: &'static str, #[case] fault: Fault) {
    let rig = Rig::new(with_volume());
    rig.create().await.unwrap();
    rig.cloud.fails(request, [fault]);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::Unavailable);
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

/// One of several servers of an API lags behind.
#[rstest]
#[case::a_port("DELETE /ports", NO_PORT)]
#[case::a_volume("DELETE /volumes", NO_VOLUME)]
#[tokio::test(start_paused = true)]
async fn what_was_listed_and_is_not_found_is_deleted_again(#[case] request: &'static str, #[case] fault: Fault) {
    let rig = Rig::new(with_volume());
    rig.create().await.unwrap();
    rig.cloud.fails(request, [fault]);
    let began = Instant::now();
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

/// Cinder is asked about a volume that it is still detaching.
#[tokio::test(start_paused = true)]
async fn a_volume_that_one_look_does_not_find_is_deleted() {
    let rig = Rig::new(with_volume());
    rig.create().await.unwrap();
    {
        let mut state = rig.cloud.state();
        state.servers.clear();
        state.ports.clear();
        state.volumes[0]["status"] = json!("detaching");
    }
    rig.cloud.fails("GET /volumes/v-2", [NO_VOLUME]);
    let cloud = rig.cloud.clone();
    let detached = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut state = cloud.state();
        (state.volumes[0]["status"], state.volumes[0]["attachments"]) = (json!("available"), json!([]));
    };
    let (deleted, ()) = tokio::join!(rig.delete(), detached);
    deleted.unwrap();
    assert!(rig.is_empty());
}

/// A user has given the name of a machine and the keys of the class to a port for a virtual address, and to a volume.
#[tokio::test(start_paused = true)]
async fn only_what_the_driver_has_made_counts_as_the_remains_of_a_server() {
    let rig = Rig::new(with_volume());
    let id = rig.create().await.unwrap().vm.provider_id;
    rig.cloud.fails("DELETE /ports", [FORBIDDEN]);
    let rig = rig.orphan(&id);
    rig.delete().await.unwrap_err();
    rig.port("p-vip", json!({"description": "vip"}));
    let data = json!({"id": "v-data", "name": "m-1", "status": "available", "attachments": [], "metadata": {CLUSTER: "1", ROLE: "1"}});
    rig.cloud.state().volumes.push(data);
    let left = rig.list().await.unwrap();
    let rig = rig.orphan(&left[0].provider_id);
    rig.delete().await.unwrap();
    assert_eq!((rig.ports(), rig.volumes()), (strings(&["p-vip"]), strings(&["v-data"])));
}

/// Other programs give the keys of the pool to what they make, for example to the port of a virtual address.
#[tokio::test(start_paused = true)]
async fn what_the_driver_has_not_made_is_not_listed() {
    let rig = Rig::new(with_volume());
    rig.port("p-vip", json!({"name": "vip"}));
    let data = json!({"id": "v-data", "name": "data", "status": "available", "attachments": [], "metadata": {CLUSTER: "1", ROLE: "1"}});
    rig.cloud.state().volumes.push(data);
    assert_eq!(rig.list().await.unwrap(), []);
    assert_eq!(rig.cloud.asked("GET /ports").len(), 1);
}

#[rstest]
#[case::without_a_right(&[], &[FORBIDDEN])]
#[case::without_an_access_rule(&[], &[Fault::Error(401, "{}"), Fault::Error(401, "{}")])]
#[case::that_does_not_answer(&[], &[Fault::Error(503, ""), Fault::Error(503, ""), Fault::Error(503, ""), Fault::Error(503, "")])]
#[case::that_the_catalogue_lacks(&["compute/v2.1", "network/v2.0", "image/v2"], &[])]
#[tokio::test(start_paused = true)]
async fn a_class_without_volumes_needs_no_cinder(#[case] catalogue: &[&'static str], #[case] faults: &[Fault]) {
    let rig = Rig::new(json!({}));
    if !catalogue.is_empty() {
        rig.cloud.state().catalogue = catalogue.to_vec();
    }
    rig.create().await.unwrap();
    rig.cloud.fails("GET /volumes", faults.to_vec());
    assert_eq!(rig.list().await.unwrap().len(), 1);
    rig.cloud.fails("GET /volumes", faults.to_vec());
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
    if !faults.is_empty() {
        let rig = rig.edited(with_volume());
        rig.cloud.fails("GET /volumes", faults.to_vec());
        rig.delete().await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn a_cinder_that_hangs_does_not_delay_classes_without_volumes() {
    let rig = Rig::new(json!({}));
    rig.create().await.unwrap();
    let began = Instant::now();
    rig.cloud.fails("GET /volumes", vec![Fault::Silence; 4]);
    assert_eq!(rig.list().await.unwrap().len(), 1);
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

/// The state of the machine says that the driver has made a volume.
#[tokio::test(start_paused = true)]
async fn a_volume_that_cinder_refuses_to_list_is_not_forgotten() {
    let rig = Rig::new(with_volume());
    let made = rig.create().await.unwrap();
    let edit = json!({"rootDiskSize": null, "rootDiskType": null});
    let rig = rig.named(&made.vm.provider_id).keeping(made.last_known_state).edited(edit);
    rig.cloud.fails("GET /volumes", [Fault::Error(403, "<html>")]);
    let refused = rig.delete().await.unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(refused.message.starts_with("a volume was made for the machine"), "{}", refused.message);
    rig.delete().await.unwrap();
    assert!(rig.is_empty(), "{:?}", rig.volumes());
}

/// The second deletion does not find the server, which would show its volumes.
#[rstest]
#[case::to_the_disk_of_the_flavor(json!({"rootDiskSize": null, "rootDiskType": null}))]
#[case::to_a_volume_of_nova(json!({"rootDiskType": null}))]
#[tokio::test(start_paused = true)]
async fn a_volume_whose_deletion_is_refused_is_deleted_after_an_edit_of_the_class(#[case] edit: Value) {
    let rig = Rig::new(with_volume());
    let made = rig.create().await.unwrap();
    let rig = rig.named(&made.vm.provider_id).keeping(made.last_known_state).edited(edit);
    rig.cloud.fails("DELETE /volumes", [FORBIDDEN]);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::PermissionDenied);
    rig.delete().await.unwrap();
    assert!(rig.is_empty(), "{:?}", rig.volumes());
}

/// The second deletion does not find the server, which would show its former keys.
#[rstest]
#[case::the_port_is_refused("DELETE /ports", FORBIDDEN)]
#[case::the_volume_is_refused("DELETE /volumes", FORBIDDEN)]
#[case::the_process_ends("DELETE /ports", Fault::Silence)]
#[tokio::test(start_paused = true)]
async fn ports_and_volumes_are_deleted_by_the_keys_they_were_made_with(
    #[case] request: &'static str,
    #[case] fault: Fault,
) {
    let rig = Rig::new(with_volume());
    let made = rig.create().await.unwrap();
    let edit = json!({"tags": {ROLE: null, "kubernetes.io-role-worker": "1"}});
    let rig = rig.named(&made.vm.provider_id).keeping(made.last_known_state).edited(edit);
    rig.cloud.fails(request, [fault]);
    let ended = tokio::time::timeout(Duration::from_secs(30), rig.delete()).await;
    let state = ended.ok().and_then(|deleted| deleted.unwrap_err().last_known_state);
    let rig = rig.keeping(state);
    assert!(rig.servers().is_empty());
    rig.delete().await.unwrap();
    assert!(rig.is_empty(), "{:?} {:?}", rig.ports(), rig.volumes());
}

/// A machine of an earlier version has no state. The keys are read from the server and kept before its deletion, because the process may end.
#[tokio::test(start_paused = true)]
async fn the_keys_of_the_server_are_kept_before_its_deletion() {
    let rig = Rig::new(with_volume());
    let id = rig.create().await.unwrap().vm.provider_id;
    let edit = json!({"tags": {ROLE: null, "kubernetes.io-role-worker": "1"}, "rootDiskType": null});
    let rig = rig.named(&id).edited(edit);
    let kept = rig.delete().await.unwrap_err();
    assert_eq!(kept.code, Code::Aborted);
    assert_eq!(rig.cloud.asked("DELETE").len(), 0);
    let rig = rig.keeping(kept.last_known_state);
    rig.cloud.fails("DELETE /ports", [Fault::Silence]);
    assert!(tokio::time::timeout(Duration::from_secs(30), rig.delete()).await.is_err(), "the process ends");
    assert!(rig.servers().is_empty());
    // The state says that there may be a volume: it is not enough that Cinder does not answer.
    rig.cloud.fails("GET /volumes", vec![Fault::Error(503, ""); 4]);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::Unavailable);
    rig.delete().await.unwrap();
    assert!(rig.is_empty(), "{:?} {:?}", rig.ports(), rig.volumes());
}

/// Keys of another cluster in a state are no reason to delete what has them.
#[tokio::test(start_paused = true)]
async fn a_state_with_keys_of_another_cluster_is_not_believed() {
    let rig = Rig::new(without_port())
        .keeping(Some(r#"{"owners": [["kubernetes.io-cluster-other", "kubernetes.io-role-node"]]}"#.to_owned()));
    rig.server("s-a", json!({"metadata": {CLUSTER: null, "kubernetes.io-cluster-other": "1"}}));
    rig.delete().await.unwrap();
    assert_eq!(rig.servers(), ["s-a"]);
}

/// The class had only the key that two clusters share, and the key of its own cluster was added.
#[tokio::test(start_paused = true)]
async fn an_earlier_owner_does_not_reach_another_cluster() {
    const SHARED: &str = "kubernetes.io-cluster-shared";
    let rig = Rig::new(with_volume())
        .edited(json!({"tags": {SHARED: "1"}}))
        .keeping(Some(json!({"owners": [[SHARED, ROLE]], "volumes": true}).to_string()));
    let theirs = json!({SHARED: "1", "kubernetes.io-cluster-theirs": "1", ROLE: "1"});
    rig.server("s-a", json!({"metadata": theirs, "status": "SHUTOFF"}));
    rig.cloud.state().servers[0]["metadata"] = theirs.clone();
    rig.port("p-a", json!({"tags": [SHARED, "kubernetes.io-cluster-theirs", ROLE]}));
    let volume = json!({"id": "v-a", "name": "m-1", "status": "available", "metadata": theirs, "attachments": []});
    rig.cloud.state().volumes.push(volume);
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    let made = rig.create().await.unwrap();
    assert_ne!(made.vm.provider_id, "openstack:///eu-1/s-a");
    rig.delete().await.unwrap();
    assert_eq!((rig.servers(), rig.ports(), rig.volumes()), (strings(&["s-a"]), strings(&["p-a"]), strings(&["v-a"])));
    // What the earlier class itself has made still belongs to the machine.
    rig.server("s-b", json!({}));
    rig.cloud.state().servers[1]["metadata"] = json!({SHARED: "1", ROLE: "1", "note": "x"});
    rig.delete().await.unwrap();
    assert_eq!(rig.servers(), ["s-a"]);
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Nova keeps deleted servers for a while (`reclaim_instance_interval`).
#[tokio::test(start_paused = true)]
async fn a_server_that_can_be_restored_keeps_its_port_and_its_volume() {
    let rig = Rig::new(with_volume());
    let made = rig.create().await.unwrap();
    let rig = rig.named(&made.vm.provider_id).keeping(made.last_known_state);
    rig.cloud.state().deletes_softly = true;
    rig.delete().await.unwrap();
    rig.delete().await.unwrap();
    assert_eq!((rig.servers().len(), rig.ports().len(), rig.volumes().len()), (1, 1, 1));
    assert_eq!(rig.list().await.unwrap(), []);
    // Nova reclaims the server.
    {
        let mut state = rig.cloud.state();
        state.servers.clear();
        state.ports[0]["device_id"] = json!("");
        (state.volumes[0]["status"], state.volumes[0]["attachments"]) = (json!("available"), json!([]));
    }
    let left = rig.list().await.unwrap();
    let rig = rig.orphan(&left[0].provider_id);
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

/// The host of the server does not answer Nova.
#[tokio::test(start_paused = true)]
async fn a_deletion_that_ends_in_error_is_told_of_with_the_fault() {
    let rig = Rig::new(json!({}));
    rig.create().await.unwrap();
    rig.cloud.state().deletion_fails = Some("Failed to delete: host is down");
    let began = Instant::now();
    let refused = rig.delete().await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(150), "{:?}", began.elapsed());
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (
            Code::FailedPrecondition,
            "error while waiting for server [ID=\"s-2\"] to be deleted: it is still ERROR, fault: Failed to delete: host is down \
             (code 500)"
        )
    );
    assert_eq!(rig.cloud.asked("DELETE /servers").len(), 2);
    rig.cloud.state().deletion_fails = None;
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

/// The attachment names a server that is gone.
#[tokio::test(start_paused = true)]
async fn a_volume_with_a_stale_attachment_is_told_of() {
    let rig = Rig::new(with_volume());
    rig.create().await.unwrap();
    {
        let mut state = rig.cloud.state();
        state.servers.clear();
        state.ports.clear();
    }
    let began = Instant::now();
    let refused = rig.delete().await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(150), "{:?}", began.elapsed());
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (
            Code::FailedPrecondition,
            "volume v-2 can't be deleted yet (it is tried again): it is still in-use by server s-3"
        )
    );
}

/// Cinder deletes no volume that has snapshots.
#[tokio::test(start_paused = true)]
async fn a_volume_that_cinder_does_not_delete_is_told_of_at_once() {
    const REFUSAL: &str =
        r#"{"badRequest": {"code": 400, "message": "Invalid volume: Volume must not have snapshots."}}"#;
    let rig = Rig::new(with_volume());
    rig.create().await.unwrap();
    rig.cloud.fails("DELETE /volumes", vec![Fault::Error(400, REFUSAL); 10]);
    let began = Instant::now();
    let refused = rig.delete().await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(refused.code, Code::FailedPrecondition, "tried again after 10 minutes");
    assert_eq!(
        refused.message,
        "volume v-2 can't be deleted yet (it is tried again): deleting the server's volume: cinder answers 400 badRequest: \
         Invalid volume: Volume must not have snapshots."
    );
    rig.cloud.state().faults.clear();
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}

/// An operator can attach a volume to a host.
#[tokio::test(start_paused = true)]
async fn a_volume_that_a_host_has_is_in_use() {
    let rig = Rig::new(with_volume());
    let metadata = json!({CLUSTER: "1", ROLE: "1", "machine-controller-manager-made-for": "uid-1 i-linux 20"});
    let attachments = json!([{"server_id": null, "host_name": "h", "device": "/dev/vdb"}]);
    let volume =
        json!({"id": "v-a", "name": "m-1", "status": "available", "metadata": metadata, "attachments": attachments});
    rig.cloud.state().volumes.push(volume);
    assert_eq!(rig.list().await.unwrap(), []);
    rig.delete().await.unwrap();
    assert_eq!(rig.volumes(), ["v-a"]);
}

/// Cinder may show a volume as available while it is still attached.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_detached_in_a_moment_is_waited_for() {
    let rig = Rig::new(with_volume());
    rig.create().await.unwrap();
    rig.cloud.fails("DELETE /volumes", [Fault::Error(400, r#"{"badRequest": {"code": 400, "message": "attached"}}"#)]);
    rig.delete().await.unwrap();
    assert!(rig.is_empty());
}
