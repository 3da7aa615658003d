//! Tables of ids and owners.

use std::collections::BTreeMap;

use rstest::rstest;

use super::*;
use crate::{neutron::FixedIp, nova::Address, storage::Attachment};

fn owner() -> OwnerTags {
    let keys = ["kubernetes.io-cluster-c", "kubernetes.io-role-node"].map(str::to_owned);
    crate::spec::owner_tags(keys.iter()).unwrap()
}

fn owners() -> Owners {
    Owners::of_class(owner())
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
#[case::free("", Deletion::Orphan, User::Nobody)]
#[case::of_a_server_that_the_call_has_deleted("s-ended", Deletion::Orphan, User::Nobody)]
#[case::of_the_server_in_the_provider_id("s-own", Deletion::Orphan, User::AskNova)]
#[case::of_the_server_in_the_provider_id_in_other_letters("S-OWN", Deletion::Orphan, User::AskNova)]
#[case::of_another_server_of_an_orphans_name("s-2", Deletion::Orphan, User::Another)]
#[case::of_another_server_of_the_name("s-2", Deletion::Machine, User::AskNova)]
#[case::of_no_server("dhcp?x", Deletion::Machine, User::Another)]
fn a_port_or_a_volume_has_a_user(#[case] server: &str, #[case] deletion: Deletion, #[case] expected: User) {
    assert_eq!(user(server, &["s-ended"], Some("s-own"), deletion), expected);
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
    assert_eq!(own_port(&owners(), &port), expected);
}

#[rstest]
#[case::the_own_one(Some("p"), Some("p"), true)]
#[case::another_one(Some("p"), Some("q"), false)]
#[case::of_the_network_service(Some("p"), Some(""), false)]
#[case::none_is_shown(Some("p"), None, true)]
#[case::a_login_without_a_project(None, Some("q"), true)]
fn a_port_is_of_a_project(#[case] project: Option<&str>, #[case] of: Option<&str>, #[case] expected: bool) {
    let port = Port { project_id: of.map(str::to_owned), ..port("p-1") };
    let found = of_project(vec![port], project, |port: &Port| port.project_id.as_deref());
    assert_eq!(found.len(), usize::from(expected));
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

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn fixed_ip(subnet: &str) -> FixedIp {
    FixedIp { subnet_id: subnet.to_owned() }
}

/// A free port of the owner as [`spec`] says.
fn port(id: &str) -> Port {
    Port {
        id: id.to_owned(),
        name: "m-1".to_owned(),
        network_id: "n".to_owned(),
        description: Some(mark(&owner())),
        security_groups: strings(&["g-1", "g-2"]),
        fixed_ips: ["s-1", "s-2"].map(fixed_ip).into(),
        allowed_address_pairs: vec![json!({"ip_address": "100.64.1.0/10", "mac_address": "m"})],
        ..Port::default()
    }
}

fn spec() -> Spec {
    let spec = json!({
        "networkID": "n", "subnetIDs": ["s-2", "s-1"], "securityGroups": ["two", "one"], "podNetworkCIDRs": ["100.64.0.0/10", "10.0.0.0/8"],
    });
    serde_json::from_value(spec).unwrap()
}

/// The answer of Neutron about the subnets that [`spec`] does not name.
fn other_subnets_shown() -> Vec<Subnet> {
    let modes = [
        ("s-slaac", Some("slaac"), Some("slaac")),
        ("s-stateless", None, Some("dhcpv6-stateless")),
        ("s-stateful", Some("dhcpv6-stateful"), Some("dhcpv6-stateful")),
        ("s-dropped", None, None),
    ];
    let text = |mode: Option<&str>| mode.map(str::to_owned);
    let subnet = |(id, address, ra): (&str, _, _)| Subnet {
        id: id.to_owned(),
        network_id: "n".to_owned(),
        ipv6_address_mode: text(address),
        ipv6_ra_mode: text(ra),
    };
    modes.map(subnet).into()
}

#[test]
fn neutron_is_asked_about_the_subnets_that_the_class_does_not_name() {
    let ports = [
        Port { fixed_ips: ["s-1", "s-dropped", ""].map(fixed_ip).into(), ..port("p") },
        Port { fixed_ips: ["s-2", "s-slaac", "s-dropped"].map(fixed_ip).into(), ..port("q") },
    ];
    assert_eq!(other_subnets(&ports, &spec()), BTreeSet::from(["s-dropped", "s-slaac"]));
    assert!(other_subnets(&[port("p")], &spec()).is_empty());
}

/// The result of [`earlier_port`] for one port.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Usable,
    InUse,
    Unusable,
    NotOurs,
}

#[rstest]
#[case::as_wanted(port("p"), Verdict::Usable)]
#[case::pod_networks_are_added_later(Port { allowed_address_pairs: Vec::new(), ..port("p") }, Verdict::Usable)]
#[case::in_use(Port { device_id: "s".to_owned(), ..port("p") }, Verdict::InUse)]
#[case::in_use_with_other_groups(Port { device_id: "s".to_owned(), security_groups: Vec::new(), ..port("p") }, Verdict::InUse)]
#[case::in_use_in_another_network(Port { device_id: "s".to_owned(), network_id: "o".to_owned(), ..port("p") }, Verdict::NotOurs)]
#[case::in_another_network(Port { network_id: "o".to_owned(), ..port("p") }, Verdict::Unusable)]
#[case::in_fewer_subnets(Port { fixed_ips: vec![fixed_ip("s-1")], ..port("p") }, Verdict::Unusable)]
#[case::in_subnets_that_neutron_added(Port { fixed_ips: ["s-1", "s-2", "s-slaac", "s-stateless"].map(fixed_ip).into(), ..port("p") }, Verdict::Usable)]
#[case::in_an_added_subnet_instead(Port { fixed_ips: ["s-1", "s-slaac"].map(fixed_ip).into(), ..port("p") }, Verdict::Unusable)]
#[case::in_a_subnet_that_the_class_has_dropped(Port { fixed_ips: ["s-1", "s-2", "s-dropped"].map(fixed_ip).into(), ..port("p") }, Verdict::Unusable)]
#[case::in_a_subnet_that_the_class_has_dropped_with_dhcp_v6(Port { fixed_ips: ["s-1", "s-2", "s-stateful"].map(fixed_ip).into(), ..port("p") }, Verdict::Unusable)]
#[case::in_a_subnet_that_is_deleted(Port { fixed_ips: ["s-1", "s-2", "s-gone"].map(fixed_ip).into(), ..port("p") }, Verdict::Unusable)]
#[case::without_addresses(Port { fixed_ips: Vec::new(), ..port("p") }, Verdict::Unusable)]
#[case::with_fewer_groups(Port { security_groups: strings(&["g-1"]), ..port("p") }, Verdict::Unusable)]
#[case::with_more_groups(Port { security_groups: strings(&["g-1", "g-2", "g-3"]), ..port("p") }, Verdict::Unusable)]
#[case::with_another_pod_network(Port { allowed_address_pairs: vec![json!({"ip_address": "100.96.0.0/11"})], ..port("p") }, Verdict::Unusable)]
#[case::with_a_pair_of_another_form(Port { allowed_address_pairs: vec![json!("100.64.0.0/10")], ..port("p") }, Verdict::Unusable)]
#[case::of_another_owner(Port { description: None, ..port("p") }, Verdict::NotOurs)]
fn an_earlier_port_is_used_if_it_is_as_the_class_says(#[case] made: Port, #[case] expected: Verdict) {
    let groups = strings(&["g-2", "g-1"]);
    let verdict = match earlier_port(vec![made.clone()], &owners(), &spec(), &groups, &other_subnets_shown()) {
        Earlier::Usable(port) => (port == made).then_some(Verdict::Usable),
        Earlier::InUse(port) => (port == made).then_some(Verdict::InUse),
        Earlier::Unusable(ports) if ports.is_empty() => Some(Verdict::NotOurs),
        Earlier::Unusable(ports) => (ports == [made]).then_some(Verdict::Unusable),
    };
    assert_eq!(verdict, Some(expected));
}

#[rstest]
#[case::the_default_group(&["g-default"], true)]
#[case::no_port_security(&[], true)]
#[case::the_groups_of_before(&["g-1"], false)]
fn a_port_for_a_class_without_groups_has_the_default_group(#[case] groups: &[&str], #[case] is_usable: bool) {
    let mut spec = spec();
    spec.security_groups.clear();
    let made = Port { security_groups: strings(groups), ..port("p") };
    let earlier = earlier_port(vec![made], &owners(), &spec, &strings(&["g-default"]), &[]);
    assert_eq!(earlier.usable().is_some(), is_usable);
}

#[test]
fn one_of_several_earlier_ports_is_enough() {
    let old = Port { security_groups: Vec::new(), ..port("old") };
    let used = Port { device_id: "s".to_owned(), ..port("used") };
    let of = |ports: &[&Port]| {
        let ports = ports.iter().map(|port| (*port).clone()).collect();
        earlier_port(ports, &owners(), &spec(), &strings(&["g-1", "g-2"]), &[])
    };
    assert_eq!(of(&[&old, &used, &port("p")]), Earlier::Usable(port("p")));
    assert_eq!(of(&[&old, &used]), Earlier::InUse(used));
    assert_eq!(of(&[&old]), Earlier::Unusable(vec![old]));
    assert_eq!(of(&[]), Earlier::Unusable(Vec::new()));
}

fn volume(id: &str, status: &str) -> Volume {
    let owner = owner();
    let mut metadata: BTreeMap<String, String> = owner.keys().map(|key| (key.to_owned(), "1".to_owned())).collect();
    metadata.insert(MADE_FOR.to_owned(), "uid image 20".to_owned());
    let (name, created_at) = (Some("m-1".to_owned()), Some("2026-01-01T00:00:00.000000".to_owned()));
    Volume { id: id.to_owned(), name, status: status.to_owned(), metadata, attachments: Vec::new(), created_at }
}

#[rstest]
#[case::it_is_there("available", "uid image 20", Verdict::Usable)]
#[case::it_is_being_made("creating", "uid image 20", Verdict::Usable)]
#[case::it_has_failed_as_the_creation_says("error", "uid image 20", Verdict::Usable)]
#[case::a_server_has_it("in-use", "uid image 20", Verdict::InUse)]
#[case::of_an_earlier_machine("available", "uid-0 image 20", Verdict::Unusable)]
#[case::of_an_earlier_machine_in_use("in-use", "uid-0 image 20", Verdict::Unusable)]
fn an_earlier_volume_is_used_if_it_was_made_for_the_machine(
    #[case] status: &str,
    #[case] wanted: &str,
    #[case] expected: Verdict,
) {
    let verdict = match earlier_volume(vec![volume("v", status)], &owners(), wanted) {
        Earlier::Usable(_) => Verdict::Usable,
        Earlier::InUse(_) => Verdict::InUse,
        Earlier::Unusable(_) => Verdict::Unusable,
    };
    assert_eq!(verdict, expected);
    assert_eq!(
        earlier_volume(vec![Volume { metadata: BTreeMap::new(), ..volume("v", status) }], &owners(), wanted),
        Earlier::Unusable(Vec::new()),
        "of another owner"
    );
}

#[rstest]
#[case::there_is_no_server(Code::NotFound, true)]
#[case::the_server_is_not_whole(Code::Unimplemented, true)]
#[case::it_is_being_deleted(Code::Aborted, false)]
#[case::no_answer(Code::Unavailable, false)]
fn a_look_up_has_a_state_if_a_creation_follows(#[case] code: Code, #[case] has_state: bool) {
    let memory = Memory::of(&spec(), &owner(), "");
    let status = before_creation(Status::new(code, "no"), &memory);
    assert_eq!(status.last_known_state, has_state.then(|| memory.state()));
}

#[rstest]
#[case::the_catalogue_lacks_it(Code::FailedPrecondition, true)]
#[case::no_answer(Code::Unavailable, false)]
fn a_missing_region_has_words(#[case] code: Code, #[case] has_words: bool) {
    let status = region_is_missing("eu-2", Status::new(code, "no endpoint"));
    assert_eq!(status.code, code);
    assert_eq!(
        status.message.contains("has begun in region \"eu-2\", and no endpoint"),
        has_words,
        "{}",
        status.message
    );
}

#[rstest]
#[case::they_pass(Ok(PodTraffic::Passes), None)]
#[case::they_do_not(Ok(PodTraffic::Blocked), Some(Code::Uninitialized))]
#[case::a_network_has_another_name(Err(Code::NotFound), Some(Code::Uninitialized))]
#[case::two_networks_have_the_name(Err(Code::OutOfRange), Some(Code::Uninitialized))]
#[case::neutron_does_not_answer(Err(Code::Unavailable), Some(Code::Unavailable))]
#[case::no_right(Err(Code::PermissionDenied), Some(Code::PermissionDenied))]
#[case::no_ports(Err(Code::Internal), Some(Code::Internal))]
fn a_server_is_initialised(#[case] traffic: Result<PodTraffic, Code>, #[case] expected: Option<Code>) {
    let identity = identity("eu-1", &server("ACTIVE", None), "m-1");
    let outcome = initialised(identity.clone(), "1", traffic.map_err(|code| Status::new(code, "no")));
    assert_eq!(outcome.as_ref().err().map(|status| status.code), expected);
    match outcome {
        Ok(found) => assert_eq!(found, identity),
        Err(status) => {
            let partial = (expected == Some(Code::Uninitialized)).then_some(identity);
            assert_eq!(status.partial.map(|partial| *partial), partial);
        }
    }
}

#[test]
fn what_is_left_of_deleted_servers_is_listed_once_for_each_machine() {
    let named = |name: &str, port: Port| Port { name: name.to_owned(), ..port };
    let ports = vec![
        port("p-1"),
        port("p-1"),
        named("m-2", port("p-2")),
        named("m-3", Port { device_id: "s-3".to_owned(), ..port("p-3") }),
        named("vip", Port { description: None, tags: owner().keys().map(str::to_owned).collect(), ..port("p-4") }),
        named("", port("p-5")),
    ];
    let of = |id: &str, name: &str, status: &str| Volume { name: Some(name.to_owned()), ..volume(id, status) };
    let mut without_mark = volume("v", "available").metadata;
    without_mark.remove(MADE_FOR);
    let attached = vec![Attachment { server_id: Some("s-7".to_owned()) }];
    let volumes = vec![
        of("v-1", "m-1", "available"),
        of("v-2", "m-2", "available"),
        of("v-5", "m-5", "error_deleting"),
        of("v-6", "m-6", "deleting"),
        Volume { attachments: attached, ..of("v-7", "m-7", "error") },
        of("v-8", "m-8", "in-use"),
        Volume { metadata: BTreeMap::new(), ..of("v-9", "m-9", "available") },
        Volume { metadata: without_mark, ..of("v-10", "data", "available") },
    ];
    let servers = [Server { name: "m-2".to_owned(), ..server("ACTIVE", None) }];
    let left = leftovers("eu-1", &owner(), &servers, ports, volumes);
    let ids: Vec<_> = left.iter().map(|one| (one.provider_id.as_str(), one.machine_name.as_str())).collect();
    assert_eq!(ids, [("openstack:///eu-1/p-1", "m-1"), ("openstack:///eu-1/v-5", "m-5")]);
    assert_eq!((left[0].created, left[1].created), (None, Some("2026-01-01T00:00:00Z".parse().unwrap())));
}
