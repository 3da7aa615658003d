//! Tables of ids, states and owners.

use std::collections::BTreeMap;

use rstest::rstest;

use super::*;
use crate::nova::{Address, Fault};

fn owner() -> OwnerTags {
    let keys = ["kubernetes.io-cluster-c", "kubernetes.io-role-node"].map(str::to_owned);
    crate::spec::owner_tags(keys.iter()).unwrap()
}

#[rstest]
#[case::ours("openstack:///eu-1/5b1a04d9-5a2c", Some((Some("eu-1"), "5b1a04d9-5a2c")))]
#[case::as_the_controller_manager_writes_it("openstack:///5b1a04d9", Some((None, "5b1a04d9")))]
#[case::as_the_controller_manager_writes_it_with_a_region("openstack://eu-1/5b1a04d9", Some((Some("eu-1"), "5b1a04d9")))]
#[case::a_path("openstack:///eu-1/../servers", None)]
#[case::an_odd_id("openstack:///eu-1/a?b", None)]
#[case::no_id("openstack:///eu-1/", None)]
#[case::of_another_cloud("aws:///eu-west-1/i-1", None)]
#[case::nothing("", None)]
fn an_id_names_a_place(#[case] id: &str, #[case] expected: Option<(Option<&str>, &str)>) {
    assert_eq!(Place::of(id).map(|place| (place.region, place.id)), expected);
}

fn server(status: &str, task: Option<&str>) -> Server {
    Server { id: "1".to_owned(), status: status.to_owned(), task_state: task.map(str::to_owned), ..Server::default() }
}

#[rstest]
#[case("BUILD", None, State::Building)]
#[case("BUILD", Some("spawning"), State::Building)]
#[case("ACTIVE", None, State::Built)]
#[case("ACTIVE", Some("deleting"), State::Ending)]
#[case("ERROR", Some("deleting"), State::Ending)]
#[case("ERROR", None, State::Failed)]
#[case("SHUTOFF", None, State::Built)]
#[case("UNKNOWN", None, State::Built)]
#[case("SOFT_DELETED", None, State::Gone)]
#[case("DELETED", None, State::Gone)]
fn a_state_means(#[case] status: &str, #[case] task: Option<&str>, #[case] expected: State) {
    assert_eq!(State::of(&server(status, task)), expected);
}

#[rstest]
#[case::no_capacity(Some("No valid host was found. There are not enough hosts available."), Code::ResourceExhausted)]
#[case::something_else(Some("disk on fire"), Code::Internal)]
#[case::no_fault(None, Code::Internal)]
fn a_fault_has_its_code(#[case] fault: Option<&str>, #[case] code: Code) {
    let fault = fault.map(|message| Fault { code: 500, message: message.to_owned() });
    let status = super::fault(&Server { fault: fault.clone(), ..server("ERROR", None) });
    assert_eq!(status.code, code);
    let rest = fault.map(|fault| format!(", fault: {} (code 500)", fault.message)).unwrap_or_default();
    assert_eq!(status.message, format!("server [ID=\"1\"] reached unexpected status \"ERROR\"{rest}"));
}

#[rstest]
#[case::tagged(&["kubernetes.io-cluster-c", "kubernetes.io-role-node"], None, true)]
#[case::half_tagged(&["kubernetes.io-cluster-c"], None, false)]
#[case::not_tagged_yet(&[], Some("made by machine-controller-manager for kubernetes.io-cluster-c kubernetes.io-role-node"), true)]
#[case::of_another_cluster(&["kubernetes.io-role-node"], Some("made by machine-controller-manager for kubernetes.io-cluster-d kubernetes.io-role-node"), false)]
#[case::of_another_user(&[], None, false)]
fn a_port_belongs_to_the_owner(#[case] tags: &[&str], #[case] description: Option<&str>, #[case] expected: bool) {
    let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    let port = Port { tags, description: description.map(str::to_owned), ..Port::default() };
    assert_eq!(owns_port(&owner(), &port), expected);
}

#[test]
fn tags_of_others_stay() {
    let port = Port { tags: vec!["x".to_owned(), "kubernetes.io-cluster-c".to_owned()], ..Port::default() };
    let owner = owner();
    assert_eq!(tags_of_port(&owner, &port), Some(vec!["x", "kubernetes.io-cluster-c", "kubernetes.io-role-node"]));
    let whole = Port { tags: vec!["kubernetes.io-role-node".to_owned(), "kubernetes.io-cluster-c".to_owned()], ..port };
    assert_eq!(tags_of_port(&owner, &whole), None);
}

#[test]
fn o_01_missing_pod_networks_are_added_to_the_address_pairs() {
    let foreign = json!({"ip_address": "192.168.0.1", "mac_address": "fa:16:3e:00:00:01"});
    let port = Port {
        allowed_address_pairs: vec![foreign.clone(), json!({"ip_address": "100.64.1.0/10"})],
        ..Port::default()
    };
    assert_eq!(pairs(&port, ["100.64.0.0/10"]), None, "another spelling of the same network");
    let expected = [
        foreign,
        json!({"ip_address": "100.64.1.0/10"}),
        json!({"ip_address": "10.0.0.0/8"}),
        json!({"ip_address": "fd00::/8"}),
    ];
    assert_eq!(pairs(&port, ["100.64.0.0/10", "10.0.0.0/8", "fd00::/8"]), Some(expected.to_vec()));
}

#[test]
fn addresses_of_one_network_are_known() {
    let address = |addr: &str, kind: &str| Address { addr: addr.to_owned(), kind: Some(kind.to_owned()) };
    let mut addresses = BTreeMap::new();
    addresses.insert(
        "a".to_owned(),
        vec![address("10.0.0.1", "fixed"), address("1.2.3.4", "floating"), address("fd00::1", "fixed")],
    );
    let one = Server { addresses: addresses.clone(), ..server("ACTIVE", None) };
    let known = identity("eu-1", &one, "m-1");
    assert_eq!((known.provider_id.as_str(), known.node_name.as_str()), ("openstack:///eu-1/1", "m-1"));
    assert_eq!(known.addresses.iter().map(|known| known.address.as_str()).collect::<Vec<_>>(), ["10.0.0.1", "fd00::1"]);
    addresses.insert("b".to_owned(), vec![address("10.1.0.1", "fixed")]);
    assert_eq!(identity("eu-1", &Server { addresses, ..one }, "m-1").addresses, []);
}
