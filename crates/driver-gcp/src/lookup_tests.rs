//! Tests of the decisions about instances.

use rstest::rstest;

use super::*;
use crate::resources::{Interface, Tags};

const CLUSTER: &str = "kubernetes-io-cluster-shoot";
const ROLE: &str = "kubernetes-io-role-node";

fn tagged(tags: &[&str]) -> Instance {
    let items = tags.iter().map(|tag| (*tag).to_owned()).collect();
    Instance { name: "m".to_owned(), tags: Tags { items }, ..Instance::default() }
}

fn class_tags(tags: &[&str]) -> ClassTags {
    Spec { tags: tags.iter().map(|tag| (*tag).to_owned()).collect(), ..Spec::default() }.class_tags()
}

fn owner() -> OwnerTags {
    class_tags(&[CLUSTER, ROLE]).owner().unwrap().clone()
}

#[rstest]
#[case::both(&[CLUSTER, ROLE, "x"], true)]
#[case::another_role(&[CLUSTER, "kubernetes-io-role-other"], false)]
#[case::another_cluster(&["kubernetes-io-cluster-shoot2", ROLE], false)]
#[case::nothing(&[], false)]
fn all_tags_of_the_owner_prove_an_instance(#[case] tags: &[&str], #[case] expected: bool) {
    assert_eq!(is_owned(&tagged(tags), &owner()), expected);
    let listed = listed(&Zone::of("p", "z").unwrap(), &owner(), tagged(tags));
    assert_eq!(listed.map(|vm| vm.provider_id), expected.then(|| "gce:///p/z/m".to_owned()));
}

#[rstest]
#[case::ours(&[CLUSTER, ROLE], &[CLUSTER, ROLE], "m", Ok(()))]
#[case::the_role_was_edited(&[CLUSTER, ROLE], &[CLUSTER], "m", Ok(()))]
#[case::of_another_cluster(&[CLUSTER, ROLE], &[ROLE], "m", Err("has none of the network tags"))]
#[case::of_another_machine(&[CLUSTER, ROLE], &[CLUSTER, ROLE], "m-2", Err("names another instance than m-2"))]
#[case::of_a_listed_vm_without_a_name(&[CLUSTER, ROLE], &[CLUSTER, ROLE], "", Ok(()))]
#[case::the_tags_of_the_class_were_removed(&[], &[CLUSTER, ROLE], "m", Ok(()))]
#[case::they_were_removed_and_the_instance_has_none(&[], &["x"], "m", Err("has no network tags of a cluster and a role"))]
#[case::its_role_was_removed(&[CLUSTER], &[CLUSTER, ROLE], "m", Ok(()))]
#[case::its_role_was_removed_and_the_cluster_is_another(&[CLUSTER], &["kubernetes-io-cluster-b", ROLE], "m", Err("none of the network tags"))]
fn an_instance_of_an_id_is_checked(
    #[case] class: &[&str],
    #[case] tags: &[&str],
    #[case] machine: &str,
    #[case] expected: Result<(), &str>,
) {
    let id = ProviderId::of("gce:///p/z/m").unwrap();
    let checked = check_named_by_id(&tagged(tags), &id, &class_tags(class), machine);
    match expected {
        Ok(()) => assert_eq!(checked, Ok(())),
        Err(part) => {
            let refused = checked.unwrap_err();
            assert!(refused.code == Code::FailedPrecondition && refused.message.contains(part), "{refused}");
        }
    }
}

#[rstest]
#[case("PROVISIONING", State::BeingCreated)]
#[case("PENDING", State::BeingCreated)]
#[case("STAGING", State::Exists)]
#[case("RUNNING", State::Exists)]
#[case::preempted("TERMINATED", State::Exists)]
#[case("SUSPENDED", State::Exists)]
#[case("STOPPING", State::Ending)]
#[case("DEPROVISIONING", State::Ending)]
#[case::a_later_version("DREAMING", State::Exists)]
fn a_state_means(#[case] status: &str, #[case] expected: State) {
    assert_eq!(State::of(&Instance { status: status.to_owned(), ..Instance::default() }), expected);
}

#[test]
fn an_identity_has_all_addresses() {
    let external = |address: &str, ipv6: &str| External { address: address.to_owned(), ipv6_address: ipv6.to_owned() };
    let interface = Interface {
        address: "10.0.0.2".to_owned(),
        ipv6_address: String::new(),
        external: vec![external("203.0.113.2", "")],
        external_ipv6: vec![external("", "2001:db8::1")],
    };
    let instance = Instance { network_interfaces: vec![interface], ..tagged(&[]) };
    let identity = identity(&Zone::of("p", "z").unwrap(), &instance);
    assert_eq!((identity.provider_id.as_str(), identity.node_name.as_str()), ("gce:///p/z/m", "m"));
    let addresses: Vec<_> = identity.addresses.iter().map(|one| (one.type_.as_str(), one.address.as_str())).collect();
    let expected =
        [("InternalIP", "10.0.0.2"), ("ExternalIP", "203.0.113.2"), ("ExternalIP", "2001:db8::1"), ("Hostname", "m")];
    assert_eq!(addresses, expected);
}

#[rstest]
#[case::unprotected(false, true, Some("true"), Protection::Absent)]
#[case::protected(true, true, None, Protection::Kept)]
#[case::the_user_allows_it(true, true, Some("true"), Protection::Lifted)]
#[case::another_value(true, true, Some("yes"), Protection::Kept)]
#[case::the_class_asks_for_no_protection(true, false, Some("true"), Protection::Kept)]
fn a_protection_is_lifted_only_if_the_user_allows_it(
    #[case] deletion_protection: bool,
    #[case] of_class: bool,
    #[case] annotation: Option<&str>,
    #[case] expected: Protection,
) {
    let instance = Instance { deletion_protection, ..tagged(&[]) };
    let spec = Spec { deletion_protection: of_class, ..Spec::default() };
    let mut machine = Machine::default();
    machine.metadata.annotations = annotation.map(|value| [(LIFT_ANNOTATION.to_owned(), value.to_owned())].into());
    assert_eq!(Protection::of(&instance, &spec, &machine), expected);
}

#[test]
fn the_message_about_a_protection_says_what_to_do() {
    let refused = protected(&Zone::of("p", "z").unwrap(), "m");
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(
        refused.message.contains("gcloud compute instances update m --no-deletion-protection --zone z"),
        "{refused}"
    );
}
