//! Tests of the calls of the driver against [`FakeCloud`](crate::fake_cloud::FakeCloud), in paused time.

#![allow(clippy::needless_pass_by_value, reason = "tests build the values they pass")]

use std::time::Duration;

use cloud_client::Limits;
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, CinderPersistentVolumeSource, NFSVolumeSource};
use machine_driver::{ErrorCodes, contract};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    fake_cloud::Fault,
    test_rig::{CLUSTER, Rig, class, secret, without_port},
};

#[rstest]
#[case::with_a_port(json!({}))]
#[case::without(without_port())]
#[case::with_a_volume(json!({"rootDiskSize": 10, "rootDiskType": "ssd"}))]
#[tokio::test(start_paused = true)]
async fn the_contract_of_drivers_holds(#[case] patch: Value) {
    contract::holds_for(&Rig::new(patch.clone()).driver, class(patch), secret("secret")).await;
}

#[tokio::test(start_paused = true)]
async fn o_05_every_call_fails_with_a_wrong_password() {
    let mut rig = Rig::new(json!({}));
    rig.password = "wrong";
    let codes = [
        rig.create().await.unwrap_err(),
        rig.status().await.unwrap_err(),
        rig.delete().await.unwrap_err(),
        rig.list().await.unwrap_err(),
    ];
    for status in codes {
        assert_eq!(status.code, Code::Unauthenticated);
        assert!(status.message.starts_with("logging in: keystone answers 401 Unauthorized"), "{}", status.message);
    }
    assert_eq!(rig.cloud.asked("POST /auth/tokens").len(), 1, "clouds lock accounts that are tried too often");
    tokio::time::sleep(Duration::from_secs(30)).await;
    rig.list().await.unwrap_err();
    assert_eq!(rig.cloud.asked("POST /auth/tokens").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_read_again_if_the_last_object_of_a_page_is_deleted() {
    let rig = Rig::new(json!({}));
    rig.cloud.state().page = 1;
    rig.server("s-a", json!({}));
    rig.server("s-b", json!({}));
    let gone = Fault::Error(400, r#"{"badRequest": {"code": 400, "message": "marker [s-a] not found"}}"#);
    rig.cloud.fails("GET /servers/detail?marker", [gone.clone(), gone.clone()]);
    assert_eq!(rig.list().await.unwrap().len(), 2);
    rig.cloud.fails("GET /servers/detail?marker", vec![gone; 10]);
    assert_eq!(rig.list().await.unwrap_err().code, Code::Aborted, "a list is complete or an error");
}

#[tokio::test(start_paused = true)]
async fn o_01_initialisation_adds_the_pod_networks_in_one_update_and_keeps_other_address_pairs() {
    let rig = Rig::new(json!({"subnetID": null, "podNetworkCIDRs": ["100.64.0.0/10", "10.96.0.0/12"]}));
    rig.server("s-a", json!({}));
    rig.port("p-a", json!({"name": "", "tags": [], "device_id": "s-a", "allowed_address_pairs": [{"ip_address": "192.168.0.1", "mac_address": "m"}]}));
    rig.port("p-b", json!({"name": "", "network_id": "n-2", "device_id": "s-a", "allowed_address_pairs": []}));
    let error = rig.status().await.unwrap_err();
    assert_eq!(error.code, Code::Uninitialized);
    assert_eq!(error.partial.unwrap().provider_id, "openstack:///eu-1/s-a");
    rig.cloud.fails("PUT /ports", [Fault::PairBefore("192.168.0.2")]);
    rig.create().await.unwrap();
    let pairs = json!([
        {"ip_address": "192.168.0.1", "mac_address": "m"}, {"ip_address": "192.168.0.2", "mac_address": "m"},
        {"ip_address": "10.96.0.0/12"}, {"ip_address": "100.64.0.0/10"},
    ]);
    assert_eq!(rig.cloud.state().ports[0]["allowed_address_pairs"], pairs);
    assert_eq!(rig.cloud.asked("PUT /ports/p-a").len(), 2, "the first update had an old revision");
    assert_eq!(rig.cloud.asked("PUT /ports/p-b").len(), 0, "the port is in no network of pods");
    rig.initialize().await.unwrap();
    rig.status().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn o_10_a_token_that_expires_between_polls_is_renewed_once() {
    let rig = Rig::new(json!({}));
    rig.cloud.state().looks = 8;
    let expire = async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        rig.cloud.state().expired = true;
    };
    let (made, ()) = tokio::join!(rig.create(), expire);
    made.unwrap();
    assert_eq!(rig.cloud.asked("POST /auth/tokens").len(), 2);
    assert_eq!(rig.servers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_used_for_all_calls_of_its_account_and_renewed_before_its_end() {
    let rig = Rig::new(json!({}));
    let (one, other) = tokio::join!(rig.list(), rig.status());
    one.unwrap();
    assert_eq!(other.unwrap_err().code, Code::NotFound);
    assert_eq!(rig.cloud.asked("POST /auth/tokens").len(), 1);
    tokio::time::sleep(Duration::from_secs(3550)).await;
    rig.list().await.unwrap();
    assert_eq!(rig.cloud.asked("POST /auth/tokens").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn all_pages_of_lists_are_read() {
    let rig = Rig::new(json!({}));
    rig.cloud.state().page = 2;
    rig.cloud.state().flavors = vec!["a", "b", "c", "small"];
    rig.cloud.state().images = vec!["x", "y", "linux"];
    for number in 0..5 {
        rig.server(
            &format!("s-old-{number}"),
            json!({"name": format!("other-{number}"), "created": "2026-01-01T00:00:00Z"}),
        );
    }
    rig.server("s-stopped", json!({"name": "stopped", "status": "SHUTOFF"}));
    rig.server("s-foreign", json!({"metadata": {CLUSTER: null}}));
    rig.create().await.unwrap();
    let listed = rig.list().await.unwrap();
    assert_eq!(listed.len(), 7);
    assert_eq!(
        (listed[0].provider_id.as_str(), listed[0].machine_name.as_str()),
        ("openstack:///eu-1/s-old-0", "other-0")
    );
    assert_eq!(listed[0].created, Some("2026-01-01T00:00:00Z".parse().unwrap()));
}

/// Nova could leave out servers on a page that begins after a server which is being built.
#[tokio::test(start_paused = true)]
async fn no_page_of_servers_begins_after_a_server_that_is_being_built() {
    let rig = Rig::new(json!({}));
    rig.cloud.state().page = 1;
    rig.server("s-a", json!({"status": "BUILD"}));
    rig.server("s-b", json!({}));
    assert_eq!(rig.list().await.unwrap_err().code, Code::Aborted);
    rig.cloud.state().servers.reverse();
    assert_eq!(rig.list().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_no_node_can_have_is_refused_before_anything_is_made() {
    let mut rig = Rig::new(json!({}));
    rig.machine.metadata.name = Some("m".repeat(64));
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument, "{}", refused.message);
    assert!(rig.is_empty());
    rig.delete().await.unwrap();
}

/// A page of Nova is short and has no link if Nova found a server both among the servers to be built and among the servers that are built.
#[rstest]
#[case::the_last_is_built(&["s-a"])]
#[case::the_last_is_being_built(&["s-a", "s-b"])]
#[tokio::test(start_paused = true)]
async fn a_short_page_with_a_server_that_is_being_built_is_not_the_last(#[case] building: &[&str]) {
    let rig = Rig::new(json!({}));
    for id in ["s-a", "s-b", "s-c", "s-d", "s-e"] {
        rig.server(id, json!({"status": if building.contains(&id) { "BUILD" } else { "ACTIVE" }}));
    }
    (rig.cloud.state().page, rig.cloud.state().found_twice) = (3, 1);
    assert_eq!(rig.list().await.unwrap().len(), 5);
    rig.cloud.state().servers.truncate(building.len());
    (rig.cloud.state().page, rig.cloud.state().found_twice) = (1000, 0);
    assert_eq!(
        rig.list().await.unwrap().len(),
        building.len(),
        "the list of a project in which all servers are being built"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_build_lasts_keeps_no_list_from_being_read() {
    let rig = Rig::new(json!({}));
    for (id, status) in [("s-a", "ACTIVE"), ("s-b", "BUILD"), ("s-c", "BUILD"), ("s-d", "ACTIVE"), ("s-e", "BUILD")] {
        rig.server(id, json!({ "status": status }));
    }
    for page in [3, 4, 5] {
        rig.cloud.state().page = page;
        assert_eq!(rig.list().await.map(|all| all.len()), Ok(5), "pages of {page}");
    }
}

/// The error codes of the network look-up (`NotFound`, `OutOfRange`) must not be returned: for a server they mean that it is gone, or that
/// there are several.
#[rstest]
#[case::none(json!([{"name": "renamed", "podNetwork": true}]))]
#[tokio::test(start_paused = true)]
async fn a_network_of_the_class_that_is_not_found_says_nothing_of_the_server(#[case] networks: Value) {
    let rig =
        Rig::new(json!({"networkID": null, "subnetID": null, "networks": [{"name": "front", "podNetwork": true}]}));
    rig.create().await.unwrap();
    let rig = rig.edited(json!({ "networks": networks }));
    let status = rig.status().await.unwrap_err();
    assert_eq!(status.code, Code::Uninitialized, "{}", status.message);
}

/// Otherwise the machine would get a second server.
#[tokio::test(start_paused = true)]
async fn a_short_page_of_namesakes_does_not_hide_the_server_of_the_machine() {
    let rig = Rig::new(json!({}));
    for (id, status) in [("s-a", "BUILD"), ("s-b", "ACTIVE")] {
        rig.server(id, json!({"status": status, "metadata": {CLUSTER: null}}));
    }
    rig.server("s-c", json!({}));
    rig.server("s-d", json!({"name": "another"}));
    (rig.cloud.state().page, rig.cloud.state().found_twice) = (3, 1);
    assert!(rig.create().await.unwrap().vm.provider_id.ends_with("s-c"));
    assert_eq!(rig.servers().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn c_10_a_page_that_fails_fails_the_list() {
    let rig = Rig::new(json!({}));
    rig.cloud.state().page = 1;
    rig.server("s-a", json!({}));
    rig.server("s-b", json!({}));
    rig.cloud.fails("GET /servers/detail?marker", [Fault::Error(403, "{}")]);
    assert_eq!(rig.list().await.unwrap_err().code, Code::PermissionDenied);
}

#[tokio::test(start_paused = true)]
async fn c_13_a_call_to_an_unresponsive_cloud_ends_at_its_deadline() {
    let rig = Rig::new(json!({}));
    rig.cloud.fails("GET /servers", [Fault::Silence]);
    let cx = OpContext::within(Duration::from_secs(2));
    assert_eq!(rig.driver.get_machine_status(&cx, rig.request()).await.unwrap_err().code, Code::DeadlineExceeded);
}

/// The login fell into a moment in which Keystone's catalogue lacked the region.
#[tokio::test(start_paused = true)]
async fn a_region_that_the_catalogue_has_again_is_used_before_the_token_ends() {
    let rig = Rig::new(json!({}));
    rig.cloud.state().regions = vec![("eu-2", "other")];
    assert_eq!(rig.create().await.unwrap_err().code, Code::FailedPrecondition);
    rig.cloud.state().regions = vec![("eu-1", "cloud"), ("eu-2", "other")];
    assert_eq!(rig.create().await.unwrap_err().code, Code::FailedPrecondition, "logins are not repeated at once");
    tokio::time::advance(Duration::from_secs(60)).await;
    rig.cloud.fails("POST /auth/tokens", vec![Fault::Error(503, "busy"); 4]);
    assert_eq!(rig.create().await.unwrap_err().code, Code::FailedPrecondition, "the old token stays in use");
    rig.create().await.unwrap();
    assert_eq!(rig.cloud.state().logins, 2);
}

#[tokio::test(start_paused = true)]
async fn the_status_call_can_be_unimplemented_as_in_the_go_driver() {
    let rig = Rig::new(json!({}));
    let client = Client::new(rig.cloud.clone(), Limits::default());
    let options = OpenStackOptions { status: MachineStatus::Unimplemented, ..OpenStackOptions::default() };
    let driver = OpenStackDriver::through(client, options);
    let refused = driver.get_machine_status(&Rig::cx(), rig.request()).await.unwrap_err();
    assert_eq!(refused.code, Code::Unimplemented);
    assert_eq!(rig.cloud.requests(), ["POST /auth/tokens"], "the catalogue is needed for the state");
    assert!(refused.last_known_state.is_some_and(|state| state.contains("eu-1")));
}

#[rstest]
#[case::the_cloud_is_busy(Fault::Error(503, "busy"), Code::Unavailable)]
#[case::no_right(Fault::Error(403, "{}"), Code::PermissionDenied)]
#[tokio::test(start_paused = true)]
async fn codes_can_be_those_of_the_go_driver(#[case] fault: Fault, #[case] fine: Code) {
    for codes in [ErrorCodes::Fine, ErrorCodes::AsGo] {
        let rig = Rig::new(json!({}));
        let options = OpenStackOptions { codes, ..OpenStackOptions::default() };
        let driver = OpenStackDriver::through(Client::new(rig.cloud.clone(), Limits::default()), options);
        rig.cloud.fails("GET /servers", vec![fault.clone(); 4]);
        let refused = driver.delete_machine(&Rig::cx(), rig.request()).await.unwrap_err().code;
        let expected = if codes == ErrorCodes::AsGo && fine == Code::Unavailable { Code::Internal } else { fine };
        assert_eq!(refused, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn classes_of_one_owner_and_region_share_a_list() {
    let driver = Rig::new(json!({})).driver;
    let key = |patch| driver.inventory_key(&class(patch));
    assert_eq!(key(json!({})), key(json!({"flavorName": "large"})));
    assert_ne!(key(json!({})), key(json!({"region": "eu-2"})));
    assert_eq!(driver.owner(&class(json!({}))), Some(Owner::new("shoot", "node")));
}

#[tokio::test]
async fn volumes_of_cinder_are_known() {
    let of = |change: &dyn Fn(&mut PersistentVolumeSpec)| {
        let mut volume = PersistentVolumeSpec::default();
        change(&mut volume);
        volume
    };
    let csi = |driver: &str| CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: format!("handle-of-{driver}"),
        ..CSIPersistentVolumeSource::default()
    };
    let volumes = vec![
        of(&|volume| {
            volume.cinder = Some(CinderPersistentVolumeSource { volume_id: "v-1".to_owned(), ..Default::default() });
        }),
        of(&|volume| volume.csi = Some(csi("cinder.csi.openstack.org"))),
        of(&|volume| volume.csi = Some(csi("manila.csi.openstack.org"))),
        of(&|volume| volume.nfs = Some(NFSVolumeSource::default())),
    ];
    let ids = Rig::new(json!({})).driver.get_volume_ids(&Rig::cx(), VolumeIdsRequest { volumes }).await.unwrap();
    assert_eq!(ids, ["v-1", "handle-of-cinder.csi.openstack.org"]);
}

/// The controllers forget the state of a machine when a failure with one of these codes has none.
#[tokio::test(start_paused = true)]
async fn a_failure_keeps_the_state_of_the_machine() {
    let rig = Rig::new(json!({})).keeping(Some("kept".to_owned()));
    rig.cloud.fails("GET /servers", vec![Fault::Error(403, "{}"); 2]);
    assert_eq!(rig.status().await.unwrap_err().last_known_state.as_deref(), Some("kept"));
    let state = rig.create().await.unwrap_err().last_known_state.unwrap();
    assert_eq!(
        state,
        r#"{"owners":[["kubernetes.io-cluster-shoot","kubernetes.io-role-node"]],"volumes":false,"regions":["eu-1"],"project":"project-1"}"#
    );
    let rig = rig.keeping(Some(state.clone())).edited(json!({"flavorName": null}));
    let refused = rig.create().await.unwrap_err();
    assert_eq!((refused.code, refused.last_known_state), (Code::InvalidArgument, Some(state)));
}
