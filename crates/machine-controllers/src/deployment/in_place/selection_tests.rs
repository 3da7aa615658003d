//! Scenarios of spec/deployment-and-set §11.4: which Nodes are updated next, and how many at the same time.

use rstest::rstest;

use super::{
    super::{fleet::Fleet, plan::Effect},
    Plan, selection,
    testing::{Is::*, *},
};
use controller_runtime::snapshot::Snapshot;
use machine_api::{names::label, v1alpha1::OrchestrationType::Auto};

#[rstest]
#[case::s_inpl_09_no_candidate(of(2, &[Plain, Plain]), of(1, &[Plain]), &[])]
#[case::s_inpl_10_one_is_missing_already(of(2, &[Plain, Candidate]), of(1, &[Starting]), &[])]
#[case::s_inpl_11_one_is_being_updated(of(2, &[Candidate, Selected]), of(1, &[Plain]), &[])]
#[case::s_inpl_12_one_at_a_time(of(2, &[Candidate, Candidate]), of(1, &[Plain]), &["in-place/select node-md-old-0"])]
#[case::s_inpl_14_nothing_is_old(of(0, &[]), of(1, &[Plain]), &[])]
#[case::d_24_a_vanished_node_is_not_being_updated(
    of(2, &[WithoutNode, Candidate]), of(1, &[Plain]), &["in-place/select node-md-old-1"])]
#[case::d_24_the_unhealthy_first(of(2, &[Candidate, Unhealthy]), of(1, &[Plain]), &["in-place/select node-md-old-1"])]
fn nodes_are_selected(#[case] old: (i32, &'static [Is]), #[case] new: (i32, &'static [Is]), #[case] expected: &[&str]) {
    let seen = fleet(Auto, old, new);
    let fleet = Fleet::of(&seen);
    let mut plan = Plan::default();
    let picked = selection::select(&seen, &fleet, fleet.new.as_ref().unwrap(), &mut plan);
    assert_eq!(picked, !expected.is_empty());
    let nodes: Vec<String> = plan
        .steps
        .iter()
        .map(|step| match &step.effect {
            Effect::ChangeNode { node, .. } => format!("{} {}", step.rule, node.name()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(nodes, expected);
}

#[test]
fn s_inpl_13_machines_that_surge_has_made_surplus_are_deleted() {
    let seen = fleet(Auto, of(2, &[Candidate, Candidate]), of(3, &[Plain, Plain, Plain]));
    assert_eq!(rules(&seen), ["in-place/superfluous md-old 0"]);
}

#[test]
fn a_superfluous_machine_stays_while_the_new_ones_are_starting() {
    let seen = fleet_of(1, (1, 0), Auto, of(1, &[Candidate]), of(1, &[Starting]));
    assert_eq!(rules(&seen), Vec::<String>::new());
}

#[test]
fn s_inpl_15_machines_being_updated_are_counted() {
    let seen = fleet(Auto, of(2, &[Selected, Candidate]), of(1, &[Plain]));
    assert_eq!(selection::under_way(&seen, &Fleet::of(&seen)), 1);
}

#[rstest]
#[case::s_inpl_16_the_one_that_is_left(&[Candidate, Selected], 2, &["node-md-old-0"])]
#[case::s_inpl_17_two_of_two(&[Candidate, Candidate], 2, &["node-md-old-0", "node-md-old-1"])]
#[case::s_inpl_17_one_of_two(&[Candidate, Candidate], 1, &["node-md-old-0"])]
#[case::s_inpl_18_only_one_is_a_candidate(&[Plain, Candidate], 2, &["node-md-old-1"])]
#[case::s_inpl_19_none_is(&[Plain, Plain], 2, &[])]
#[case::d_54_one_that_is_down_for_its_update_counts_once(&[Updating, Candidate], 2, &["node-md-old-1"])]
fn as_many_are_picked_as_may_be_missing(#[case] old: &[Is], #[case] unavailable: i32, #[case] expected: &[&str]) {
    let seen = fleet_of(3, (0, unavailable), Auto, (2, old), of(1, &[Plain]));
    let fleet = Fleet::of(&seen);
    let mut plan = Plan::default();
    selection::select(&seen, &fleet, fleet.new.as_ref().unwrap(), &mut plan);
    let picked: Vec<&str> = plan
        .steps
        .iter()
        .map(|step| match &step.effect {
            Effect::ChangeNode { node, .. } => node.name(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(picked, expected);
}

#[rstest]
#[case::it_deletes_nothing(of(3, &[Candidate, Candidate, Candidate]), 2)]
#[case::one_goes(of(2, &[Candidate, Candidate, Candidate]), 1)]
#[case::of_those_that_run_although_one_that_is_down_is_the_next(of(2, &[Candidate, Updating, Candidate]), 0)]
#[case::none_that_has_moved(of(0, &[HandedOver, HandedOver, Unhealthy]), 1)]
fn of_a_set_that_is_about_to_delete_any_machines_may_go(#[case] old: (i32, &'static [Is]), #[case] expected: i32) {
    let seen = fleet_of(3, (1, 1), Auto, old, of(1, &[Plain]));
    assert_eq!(selection::to_spare(&seen, &Fleet::of(&seen)), expected);
}

/// Whether this machine was selected is unknown until its controller has restored the label.
#[test]
fn a_machine_without_the_label_with_its_node_is_not_counted_on() {
    let mut seen = fleet_of(3, (1, 1), Auto, of(2, &[Candidate, Selected]), of(1, &[Plain]));
    assert_eq!(selection::to_spare(&seen, &Fleet::of(&seen)), 0);
    seen.sets[0].machines[1].to_mut().metadata.labels.get_or_insert_default().remove(label::NODE);
    assert_eq!(selection::to_spare(&seen, &Fleet::of(&seen)), 0);
}
