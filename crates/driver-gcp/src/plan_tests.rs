//! Tests of the decisions about zones and found instances, as tables.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use machine_driver::Timestamp;
use rstest::rstest;

use super::*;
use crate::{resources::Tags, spec::Spec};

const CLUSTER: &str = "kubernetes-io-cluster-shoot";
const ROLE: &str = "kubernetes-io-role-node";
const OTHER_ROLE: &str = "kubernetes-io-role-other";
const OTHER_CLUSTER: &str = "kubernetes-io-cluster-b";

fn zone(name: &str) -> Zone {
    Zone::of("p", name).unwrap()
}

fn class_tags(tags: &[&str]) -> ClassTags {
    Spec { tags: tags.iter().map(|tag| (*tag).to_owned()).collect(), ..Spec::default() }.class_tags()
}

/// An instance in a zone with these tags.
fn found(in_zone: &str, tags: &[&str]) -> Found {
    let items = tags.iter().map(|tag| (*tag).to_owned()).collect();
    let instance =
        Instance { name: "m".to_owned(), status: "RUNNING".to_owned(), tags: Tags { items }, ..Instance::default() };
    (zone(in_zone), instance)
}

fn ours(in_zone: &str) -> Found {
    found(in_zone, &[CLUSTER, ROLE])
}

/// A creation in a zone whose second attempt has this operation.
fn creation(in_zone: &str, operation: Option<&str>) -> Pending {
    Pending { operation: operation.map(str::to_owned), ..Pending::before(&zone(in_zone), 1) }
}

fn ended(in_zone: &str) -> Pending {
    Pending { ended: true, ..creation(in_zone, None) }
}

fn known<'a>(tags: &'a ClassTags, pending: Option<&'a Pending>) -> Known<'a> {
    Known { class: zone("z"), history: ClassHistory::MayHaveChanged, tags, pending, is_deleting: true }
}

fn at(in_zone: &str, number: u32, operation: Option<&str>) -> Beginning {
    Beginning::At(Attempt { zone: zone(in_zone), number, operation: operation.map(str::to_owned) })
}

#[rstest]
#[case::nothing_is_known(None, Beginning::Search { number: 0 })]
#[case::the_earlier_attempts_have_ended(Some(ended("y")), Beginning::Search { number: 1 })]
#[case::in_the_zone_of_the_class(Some(creation("z", None)), at("z", 1, None))]
#[case::its_operation_runs(Some(creation("z", Some("op"))), at("z", 1, Some("op")))]
#[case::its_operation_runs_in_another_zone(Some(creation("y", Some("op"))), at("y", 1, Some("op")))]
#[case::an_answer_in_another_zone_was_lost(Some(creation("y", None)), Beginning::Look { zone: zone("y"), number: 1 })]
fn a_creation_begins(#[case] pending: Option<Pending>, #[case] expected: Beginning) {
    let tags = class_tags(&[CLUSTER, ROLE]);
    assert_eq!(known(&tags, pending.as_ref()).beginning(), expected);
}

#[rstest]
#[case::nothing(None, "z", 2)]
#[case::the_machine_s_instance(Some(ours("y")), "y", 1)]
#[case::another_instance(Some(found("y", &[CLUSTER])), "z", 2)]
fn a_creation_goes_on_after_a_look(#[case] there: Option<Found>, #[case] expected: &str, #[case] number: u32) {
    let tags = class_tags(&[CLUSTER, ROLE]);
    let attempt = known(&tags, None).after_look(zone("y"), 1, there.as_ref().map(|(_, instance)| instance));
    assert_eq!(attempt, Attempt { zone: zone(expected), number, operation: None });
}

#[rstest]
#[case::nothing(vec![], Ok("z"))]
#[case::in_the_zone_of_the_class(vec![ours("y"), ours("z")], Ok("z"))]
#[case::in_another_zone(vec![ours("y")], Ok("y"))]
#[case::a_foreign_one(vec![found("y", &["x"])], Ok("z"))]
#[case::one_in_the_zone_of_the_class_of_another_role(vec![found("z", &[CLUSTER, OTHER_ROLE])], Ok("z"))]
#[case::one_in_another_zone_of_another_role(vec![found("y", &[CLUSTER, OTHER_ROLE])], Err(Code::AlreadyExists))]
fn a_creation_goes_on_after_a_search(#[case] there: Vec<Found>, #[case] expected: Result<&str, Code>) {
    let tags = class_tags(&[CLUSTER, ROLE]);
    let chosen = known(&tags, None).after_search(tags.owner().unwrap(), &there).map_err(|status| status.code);
    assert_eq!(chosen, expected.map(zone));
}

#[rstest]
#[case::nothing_is_known(None, &["z"], vec![], true)]
#[case::the_instance_is_where_it_is_expected(None, &["z"], vec![ours("z")], false)]
#[case::another_instance_is_there(None, &["z"], vec![found("z", &["x"])], true)]
#[case::the_creation_says_where(Some(creation("y", None)), &["y", "z"], vec![], false)]
#[case::the_creation_has_ended(Some(ended("y")), &["z"], vec![], true)]
fn an_instance_is_searched(
    #[case] pending: Option<Pending>,
    #[case] zones: &[&str],
    #[case] there: Vec<Found>,
    #[case] everywhere: bool,
) {
    let tags = class_tags(&[CLUSTER, ROLE]);
    let known = known(&tags, pending.as_ref());
    assert_eq!(known.zones(), zones.iter().map(|name| zone(name)).collect::<Vec<_>>());
    assert_eq!(known.is_searched_everywhere(&there, Reach::First), everywhere);
    let is_located = pending.as_ref().is_some_and(|pending| !pending.ended);
    assert_eq!(known.is_searched_everywhere(&there, Reach::All), !is_located, "a deletion needs all of them");
}

#[rstest]
#[case::all_tags(&[CLUSTER, ROLE], None, ours("y"), Whose::Machine)]
#[case::another_role(&[CLUSTER, ROLE], None, found("y", &[CLUSTER, OTHER_ROLE]), Whose::Unclear)]
#[case::another_role_where_gce_creates_it(&[CLUSTER, ROLE], Some(creation("y", Some("op"))), found("y", &[CLUSTER, OTHER_ROLE]), Whose::Machine)]
#[case::another_role_where_the_answer_was_lost(&[CLUSTER, ROLE], Some(creation("y", None)), found("y", &[CLUSTER, OTHER_ROLE]), Whose::Unclear)]
#[case::another_cluster(&[CLUSTER, ROLE], Some(creation("y", Some("op"))), found("y", &[OTHER_CLUSTER, ROLE]), Whose::Foreign)]
#[case::no_tags(&[CLUSTER, ROLE], None, found("y", &[]), Whose::Foreign)]
#[case::the_class_lost_its_tags(&[], None, ours("y"), Whose::Unclear)]
#[case::the_class_lost_its_tags_where_gce_creates_it(&["x"], Some(creation("y", Some("op"))), ours("y"), Whose::Machine)]
#[case::the_class_lost_its_tags_and_another_zone(&[], Some(creation("z", Some("op"))), ours("y"), Whose::Unclear)]
#[case::the_class_lost_its_tags_and_the_instance_has_none(&[], None, found("y", &["x"]), Whose::Foreign)]
#[case::the_class_lost_its_role(&[CLUSTER], None, ours("y"), Whose::Unclear)]
#[case::the_class_lost_its_role_and_the_cluster_is_another(&[CLUSTER], None, found("y", &[OTHER_CLUSTER, ROLE]), Whose::Foreign)]
fn a_found_instance_is(
    #[case] tags: &[&str],
    #[case] pending: Option<Pending>,
    #[case] one: Found,
    #[case] expected: Whose,
) {
    let tags = class_tags(tags);
    let known = known(&tags, pending.as_ref());
    assert_eq!(known.whose(&one), expected);
    let all = [one];
    let (identity, removal) = (known.identity(&all), known.removal(&all));
    match expected {
        Whose::Machine => {
            assert_eq!(identity.unwrap().unwrap().provider_id, "gce:///p/y/m");
            assert_eq!(removal, Removal::Delete(vec![&all[0]]));
        }
        Whose::Unclear => {
            let refused = identity.unwrap_err();
            assert_eq!(refused.code, Code::FailedPrecondition);
            assert!(refused.message.contains("remove the machine's finalizer"), "{refused}");
            assert_eq!(removal, Removal::Refuse(refused));
            let alive = Known { is_deleting: false, ..known.clone() };
            assert_eq!(alive.identity(&all), Ok(None), "a creation is refused by the name");
        }
        Whose::Foreign => assert_eq!((identity, removal), (Ok(None), Removal::Nothing)),
    }
}

#[test]
fn an_instance_that_is_being_created_has_no_identity_before_a_deletion() {
    let tags = class_tags(&[CLUSTER, ROLE]);
    let (in_zone, instance) = ours("z");
    let all = [(in_zone, Instance { status: "PROVISIONING".to_owned(), ..instance })];
    let deleting = known(&tags, None);
    assert!(deleting.identity(&all).unwrap().is_some());
    let alive = Known { is_deleting: false, ..deleting };
    assert_eq!(alive.identity(&all).unwrap_err().code, Code::Unimplemented);
}

#[test]
fn a_deletion_deletes_all_instances_of_the_machine_and_no_other() {
    let tags = class_tags(&[CLUSTER, ROLE]);
    let all = [found("x", &["x"]), ours("y"), found("w", &[CLUSTER]), ours("z")];
    assert_eq!(known(&tags, None).removal(&all), Removal::Delete(vec![&all[1], &all[3]]));
}

#[test]
fn the_instance_of_a_class_that_was_never_edited_is_searched_in_its_zone() {
    let tags = class_tags(&[CLUSTER, ROLE]);
    let of_first_class = |pending| Known { history: ClassHistory::Unchanged, ..known(&tags, pending) };
    assert_eq!(of_first_class(None).beginning(), at("z", 0, None));
    assert!(!of_first_class(None).is_searched_everywhere(&[], Reach::All));
    let failed = ended("y");
    assert_eq!(of_first_class(Some(&failed)).beginning(), at("z", 1, None));
}

#[rstest]
#[case::as_it_was_made(Some(1), Some(1), Some(2), ClassHistory::Unchanged)]
#[case::made_with_the_machine(Some(1), Some(2), Some(2), ClassHistory::Unchanged)]
#[case::edited(Some(2), Some(1), Some(2), ClassHistory::MayHaveChanged)]
#[case::made_again_after_the_machine(Some(1), Some(3), Some(2), ClassHistory::MayHaveChanged)]
#[case::without_a_generation(None, Some(1), Some(2), ClassHistory::MayHaveChanged)]
#[case::without_times(Some(1), None, None, ClassHistory::MayHaveChanged)]
fn a_class_has_a_history(
    #[case] generation: Option<i64>,
    #[case] class_made: Option<i64>,
    #[case] machine_made: Option<i64>,
    #[case] expected: ClassHistory,
) {
    let made = |second: Option<i64>| second.and_then(|second| Timestamp::from_second(second).ok()).map(Time);
    let (mut class, mut machine) = (MachineClass::default(), Machine::default());
    class.metadata.generation = generation;
    class.metadata.creation_timestamp = made(class_made);
    machine.metadata.creation_timestamp = made(machine_made);
    assert_eq!(ClassHistory::of(&class, &machine), expected);
}
