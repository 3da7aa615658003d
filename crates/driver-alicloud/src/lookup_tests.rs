//! Tests of the decisions about instances, as tables.

use jiff::SignedDuration;
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use rstest::rstest;

use super::*;
use crate::{
    actions::tests::instance,
    rules::{CLUSTER_TAG, ROLE_TAG},
};

const OURS: [&str; 2] = ["kubernetes.io/cluster/ours", "kubernetes.io/role/node"];

fn owner(keys: &[&str]) -> Option<OwnerTags> {
    let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    OwnerTags::of(keys.iter(), CLUSTER_TAG, ROLE_TAG)
}

#[rstest]
#[case::y08_all_tags("other", &OURS, Claimant::Machine("m"), true)]
#[case::y10_the_role_was_edited("m", &["kubernetes.io/cluster/ours", "kubernetes.io/role/old"], Claimant::Machine("m"), true)]
#[case::y08_another_name_and_role("other", &["kubernetes.io/cluster/ours"], Claimant::Machine("m"), false)]
#[case::y08_another_cluster("m", &["kubernetes.io/cluster/theirs", "kubernetes.io/role/node"], Claimant::Machine("m"), false)]
#[case::y08_no_tags("m", &[], Claimant::Machine("m"), false)]
#[case::an_orphan("", &OURS, Claimant::Collector, true)]
#[case::an_orphan_of_another_role("", &["kubernetes.io/cluster/ours"], Claimant::Collector, false)]
fn an_instance_with_the_id_of_a_machine_is_checked(
    #[case] name: &str,
    #[case] tags: &[&str],
    #[case] claimant: Claimant<'_>,
    #[case] is_ours: bool,
) {
    let owners = Owners::of(owner(&OURS), None);
    let checked = check_named_by_id(&instance("i-1", name, "Running", tags), &owners, claimant);
    assert_eq!(checked.map_err(|status| status.code), if is_ours { Ok(()) } else { Err(Code::FailedPrecondition) });
}

#[test]
fn y10_the_tags_at_the_creation_prove_an_instance_after_the_class_has_lost_them() {
    let found = instance("i-1", "m", "Running", &OURS);
    assert!(Owners::of(None, owner(&OURS)).own(&found));
    let edited = Owners::of(owner(&["kubernetes.io/cluster/new", "kubernetes.io/role/node"]), owner(&OURS));
    assert!(edited.own(&found) && !edited.are_unknown());
    let unknown = Owners::of(None, None);
    assert!(unknown.are_unknown() && !unknown.own(&found) && !unknown.share_a_cluster_with(&found));
    let refused = check_named_by_id(&found, &unknown, Claimant::Machine("m")).unwrap_err();
    assert!(refused.message.contains("which the class lacks, too"), "{}", refused.message);
    assert_eq!(Owners::of(owner(&OURS), owner(&OURS)), Owners::of(owner(&OURS), None));
}

#[rstest]
#[case::none(&[], &OURS, 0, None)]
#[case::y03_ours(&[OURS.as_slice()], &OURS, 1, None)]
#[case::y08_of_another_cluster(&[&["kubernetes.io/cluster/theirs", "kubernetes.io/role/node"][..]], &OURS, 0, None)]
#[case::y08_of_another_role(&[&["kubernetes.io/cluster/ours"][..]], &OURS, 0, Some("i-0"))]
#[case::y10_the_tags_are_unknown(&[&["kubernetes.io/cluster/theirs"][..]], &[], 0, Some("i-0"))]
#[case::y17_several(&[OURS.as_slice(), &[], OURS.as_slice()], &OURS, 2, None)]
fn instances_of_a_name_are_divided(
    #[case] found: &[&[&str]],
    #[case] class: &[&str],
    #[case] ours: usize,
    #[case] doubtful: Option<&str>,
) {
    let found = found.iter().enumerate().map(|(number, tags)| instance(&format!("i-{number}"), "m", "Running", tags));
    let named = Named::of(found.collect(), &Owners::of(owner(class), None));
    assert_eq!((named.ours.len(), named.doubtful.map(|one| one.id)), (ours, doubtful.map(str::to_owned)));
}

#[rstest]
#[case::running("Running", None)]
#[case::stopped("Stopped", None)]
#[case::y16_being_created("Pending", Some(Code::Unavailable))]
#[case::y16_starting("Starting", Some(Code::Unavailable))]
#[case::y16_stopping("Stopping", Some(Code::Unavailable))]
#[case::y16_unknown("", Some(Code::Unavailable))]
fn an_instance_can_be_deleted(#[case] status: &str, #[case] expected: Option<Code>) {
    let mut found = instance("i-1", "m", status, &[]);
    assert_eq!(check_deletable(&found).err().map(|status| status.code), expected);
    found.deletion_protection = true;
    assert_eq!(check_deletable(&found).err().map(|status| status.code), Some(Code::FailedPrecondition));
}

#[rstest]
#[case::y13_another(Some("2"), Some(Code::FailedPrecondition))]
#[case::y13_the_same(Some("1"), None)]
#[case::y13_not_told(None, Some(Code::Unavailable))]
fn credentials_of_another_account_see_nothing(#[case] login: Option<&str>, #[case] expected: Option<Code>) {
    assert_eq!(check_account("1", login).err().map(|status| status.code), expected);
}

#[rstest]
#[case::y20_created_now(Some(0), None, true)]
#[case::y20_by_a_clock_that_is_ahead(Some(-100), None, true)]
#[case::created_before(Some(300), None, false)]
#[case::y20_asked_for_now(None, Some(10), true)]
#[case::asked_for_before(None, Some(400), false)]
#[case::unknown(None, None, false)]
fn an_instance_may_be_shown_later(#[case] created: Option<i64>, #[case] asked: Option<i64>, #[case] expected: bool) {
    let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let ago = |seconds: i64| now.checked_sub(SignedDuration::from_secs(seconds)).unwrap();
    let mut machine = Machine::default();
    machine.status.last_operation.operation = OperationType::Create;
    machine.status.last_operation.last_update_time = created.map(|seconds| Time(ago(seconds)));
    let kept = asked.map(|seconds| Kept {
        asked: Some(ago(seconds)),
        region: "cn-x".to_owned(),
        account: None,
        attempt: 0,
        tags: Vec::new(),
    });
    assert_eq!(may_be_shown_later(&machine, kept.as_ref(), now), expected);
    machine.status.conditions.push(NodeCondition::default());
    assert!(!may_be_shown_later(&machine, kept.as_ref(), now), "an instance whose Node has joined was shown");
}

#[test]
fn y01_an_instance_has_a_provider_id_and_a_node() {
    let identity = identity("cn-x", &instance("i-uf69", "m", "Running", &[]));
    assert_eq!((identity.provider_id.as_str(), identity.node_name.as_str()), ("cn-x.i-uf69", "izuf69z"));
    let listed = listed("cn-x", &instance("i-uf69", "m", "Running", &[]));
    assert_eq!((listed.provider_id.as_str(), listed.machine_name.as_str()), ("cn-x.i-uf69", "m"));
}

#[test]
fn each_attempt_has_its_token() {
    assert_eq!((token("t", 0), token("t", 1)), ("t".to_owned(), "t-1".to_owned()));
}
