//! The sizes of the new and the old sets in the next step of a rolling update.
//!
//! Source: spec/deployment-and-set §9.2, §9.4 with D-12 and decisions.md 39. Machines that are neither Terminating nor
//! being deleted never exceed the wanted number plus surge. This controller never reduces available machines below the
//! minimum. Pure.

use super::{
    fleet::{Fleet, SetState},
    plan::Plan,
};

/// The size of the new set. `spec` is its present size, 0 if the set does not exist yet.
pub fn new_target(fleet: &Fleet<'_>, spec: i32) -> i32 {
    let replicas = fleet.replicas();
    if spec >= replicas {
        return replicas;
    }
    let committed = fleet.sum(|set| set.committed().max(set.taken()));
    let limit = replicas.saturating_add(fleet.limits.surge);
    spec + limit.saturating_sub(committed).clamp(0, replicas - spec)
}

/// The size of each old set, in the order of the fleet.
///
/// Old sets shrink while enough machines stay available. If only preserved Failed machines are in the way, they count
/// as unavailable (decisions.md 39). Otherwise a rollout would wait for days until their preservation ends.
pub fn old_targets(fleet: &Fleet<'_>) -> Vec<i32> {
    let targets = targets_above(fleet, fleet.min_available());
    let is_standing = fleet.old.iter().map(SetState::spec).eq(targets.iter().copied());
    let kept_failed = fleet.kept_failed();
    if is_standing && kept_failed > 0 && new_unavailable(fleet) == 0 {
        targets_above(fleet, fleet.min_available() - kept_failed)
    } else {
        targets
    }
}

/// Machines of the new set that do not count as available yet.
fn new_unavailable(fleet: &Fleet<'_>) -> i32 {
    fleet.new.as_ref().map_or(0, |new| (new.spec() - new.kept_available).max(0))
}

/// The same, but removing useless machines leaves at least `floor` available machines.
fn targets_above(fleet: &Fleet<'_>, floor: i32) -> Vec<i32> {
    let mut targets: Vec<i32> = fleet.old.iter().map(SetState::spec).collect();
    let min_available = fleet.min_available();
    let most = fleet.sum(SetState::spec) - min_available - new_unavailable(fleet);
    if most <= 0 {
        return targets;
    }
    // First the useless machines, if the set deletes them next.
    let mut left = most;
    let mut available = fleet.sum(|set| set.kept_available);
    for (set, target) in fleet.old.iter().zip(&mut targets) {
        let useless = (set.spec() - set.kept_available).clamp(0, left);
        let cut = fleet.available_by_size(set).cut(set.spec(), useless, (available - floor).max(0));
        *target -= cut.machines;
        left -= cut.machines;
        available -= cut.cost;
    }
    // Then as many available machines as can be spared.
    let mut budget = (available - min_available).max(0);
    for target in &mut targets {
        let spared = budget.min(*target).max(0);
        *target -= spared;
        budget -= spared;
    }
    targets
}

/// Adds the next step of a rolling update: grows the new set, or else shrinks old sets. Returns whether there is a
/// step.
pub fn step(fleet: &Fleet<'_>, plan: &mut Plan) -> bool {
    let Some(new) = &fleet.new else { return false };
    if fleet.resize_set("rolling/new", new, new_target(fleet, new.spec()), plan) {
        return true;
    }
    let mut shrinks = false;
    for (set, target) in fleet.old.iter().zip(old_targets(fleet)) {
        shrinks |= fleet.resize_set("rolling/old", set, target, plan);
    }
    shrinks
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;
    use crate::{
        deployment::{observe::SetSeen, settling::Unsettled, testing::*},
        set::testing::at,
    };
    use machine_api::v1alpha1::MachinePhase;

    #[rstest]
    #[case::s_roll_13(5, 2, vec![old(4, 4), new(2, 2)], 2, 3)]
    #[case::s_roll_14(5, 2, vec![old(4, 4), new(3, 3)], 3, 3)]
    #[case::s_roll_22_no_surge_no_growth(3, 0, vec![old(3, 3), new(0, 0)], 0, 0)]
    #[case::s_roll_26_too_many(5, 1, vec![new(7, 7)], 7, 5)]
    #[case::d_12_the_surge_is_given_once(5, 1, vec![old(5, 5), new(1, 0)], 1, 1)]
    #[case::a_set_yet_to_be_made(5, 1, vec![old(5, 5)], 0, 1)]
    #[case::the_first_set(5, 1, vec![], 0, 5)]
    fn the_new_set_grows_within_the_limit(
        #[case] replicas: i32,
        #[case] surge: i32,
        #[case] sets: Vec<SetSeen>,
        #[case] spec: i32,
        #[case] expected: i32,
    ) {
        let seen = seeing_sets(deployment(replicas, surge, 1).build(), sets);
        assert_eq!(new_target(&Fleet::of(&seen), spec), expected);
    }

    #[test]
    fn d_12_a_new_set_whose_machines_do_not_exist_yet_has_used_its_surge() {
        let mut fresh = new(1, 0);
        fresh.machines.clear();
        let seen = seeing_sets(deployment(5, 1, 0).build(), vec![old(5, 5), fresh]);
        assert_eq!(new_target(&Fleet::of(&seen), 1), 1);
    }

    #[rstest]
    #[case::it_may_be_making_the_one_it_lacked(3, 0, 0)]
    #[case::it_had_all(0, 0, 1)]
    #[case::nobody_looked(i32::MAX, 0, 0)]
    #[case::nobody_answers_for_it(3, -10, 1)]
    fn a_set_that_was_shrunk_is_waited_for(#[case] making_for: i32, #[case] since: i64, #[case] expected: i32) {
        let mut shrunk = old(2, 2);
        shrunk.set.to_mut().metadata.generation = Some(2);
        let mut seen = seeing_sets(deployment(3, 0, 1).build(), vec![shrunk, new(0, 0)]);
        seen.unsettled.insert("uid-md-old".to_owned(), Unsettled { since: at(since), deleting: 0, making_for });
        assert_eq!(new_target(&Fleet::of(&seen), 0), expected);
    }

    /// The set had to delete one of 5 machines; then the template was changed back to it, and it should have 5 again.
    #[rstest]
    #[case::it_may_be_deleting_one(1, 0, &[1])]
    #[case::it_had_none_to_delete(0, 0, &[0])]
    #[case::nobody_looked(i32::MAX, 0, &[1])]
    #[case::nobody_answers_for_it(1, -10, &[0])]
    fn machines_that_the_new_set_may_be_deleting_do_not_replace_old_machines(
        #[case] deleting: i32,
        #[case] since: i64,
        #[case] expected: &[i32],
    ) {
        let mut grown = new(5, 5);
        grown.set.to_mut().metadata.generation = Some(3);
        let mut seen = seeing_sets(deployment(5, 1, 0).build(), vec![old(1, 1), grown]);
        seen.unsettled.insert("uid-md-new".to_owned(), Unsettled { since: at(since), deleting, making_for: 0 });
        assert_eq!(old_targets(&Fleet::of(&seen)), expected);
    }

    #[test]
    fn s_roll_23_capacity_must_really_be_free() {
        let mut terminating = old(3, 3);
        terminating.set.to_mut().spec.replicas = 2;
        let seen = seeing_sets(deployment(3, 0, 1).build(), vec![terminating, new(0, 0)]);
        assert_eq!(new_target(&Fleet::of(&seen), 0), 0);
        let seen = seeing_sets(deployment(3, 0, 1).build(), vec![old(2, 2), new(0, 0)]);
        assert_eq!(new_target(&Fleet::of(&seen), 0), 1);
    }

    #[rstest]
    #[case::s_roll_20_nothing_to_spare(3, 1, 0, vec![old(3, 3), new(1, 0)], &[3])]
    #[case::s_roll_21_one_to_spare(3, 1, 0, vec![old(3, 3), new(1, 1)], &[2])]
    #[case::s_roll_22_one_may_be_missing(3, 0, 1, vec![old(3, 3), new(0, 0)], &[2])]
    #[case::s_roll_24_worked_example(10, 3, 2, vec![old(10, 10), new(3, 0)], &[8])]
    #[case::unhealthy_ones_go_first(10, 3, 2, vec![old(10, 7), new(3, 0)], &[8])]
    #[case::more_are_missing_than_may_be(10, 0, 2, vec![old(10, 5), new(0, 0)], &[8])]
    fn old_sets_shrink_as_far_as_they_may(
        #[case] replicas: i32,
        #[case] surge: i32,
        #[case] unavailable: i32,
        #[case] sets: Vec<SetSeen>,
        #[case] expected: &[i32],
    ) {
        let seen = seeing_sets(deployment(replicas, surge, unavailable).build(), sets);
        assert_eq!(old_targets(&Fleet::of(&seen)), expected);
    }

    /// An old set whose last machines are marked and named by the scaler.
    fn naming(mut set: SetSeen, count: usize, priority_of_first: Option<&str>) -> SetSeen {
        use machine_api::names::annotation;
        for machine in set.machines.iter_mut().rev().take(count) {
            let annotations = machine.to_mut().metadata.annotations.get_or_insert_default();
            annotations.insert(annotation::MACHINE_PRIORITY.to_owned(), "1".to_owned());
            annotations.insert(annotation::MARKED_FOR_DELETION_TIME.to_owned(), "2026-11-21T08:00:00Z".to_owned());
        }
        if let Some(priority) = priority_of_first {
            let annotations = set.machines[0].to_mut().metadata.annotations.get_or_insert_default();
            annotations.insert(annotation::MACHINE_PRIORITY.to_owned(), priority.to_owned());
        }
        set
    }

    #[rstest]
    #[case::it_is_what_is_spared((3, 1, 0), naming(old(3, 3), 1, None), new(1, 1), 2)]
    #[case::nothing_else_goes_with_it((3, 1, 1), naming(old(3, 3), 1, None), new(1, 1), 1)]
    #[case::two_of_them((3, 1, 0), naming(old(3, 3), 2, None), new(1, 1), 2)]
    #[case::while_the_new_one_starts((3, 1, 0), naming(old(3, 3), 1, None), new(1, 0), 3)]
    // The named machine does not come first in the set's order, so another one is deleted; the rollout goes on all the
    // same.
    #[case::one_of_a_lower_priority_goes_before_it((3, 1, 0), naming(old(3, 3), 1, Some("0")), new(1, 1), 2)]
    fn a_rollout_does_not_count_machines_that_the_scaler_named(
        #[case] (replicas, surge, unavailable): (i32, i32, i32),
        #[case] old: SetSeen,
        #[case] new: SetSeen,
        #[case] expected: i32,
    ) {
        use machine_api::names::annotation;
        let built = deployment(replicas, surge, unavailable)
            .annotation(annotation::LAST_REPLICA_CHANGE_BY_SCALER, "2026-11-21T08:00:00Z");
        let seen = seeing_sets(built.build(), vec![old, new]);
        assert_eq!(old_targets(&Fleet::of(&seen)), [expected]);
    }

    /// The first machines are running, the next are preserved and Unknown, the last ones preserved and Failed.
    fn keeping(running: usize, unknown: usize, failed: usize) -> SetSeen {
        let count = running + unknown + failed;
        let mut set = old(i32::try_from(count).unwrap(), running);
        for (number, machine) in set.machines.iter_mut().enumerate().skip(running) {
            let status = &mut machine.to_mut().status.current_status;
            status.phase = if number < running + unknown { MachinePhase::Unknown } else { MachinePhase::Failed };
            status.preserve_expiry_time = Some(Time(at(600)));
        }
        set
    }

    #[rstest]
    // Seed 61494: shrinking the set because of the Unknown machine would delete a running one.
    #[case::a_kept_one_may_recover((5, 1, 1), vec![keeping(3, 1, 0), new(1, 1)], 4)]
    #[case::nothing_is_to_spare((4, 0, 1), vec![keeping(3, 1, 0), new(0, 0)], 4)]
    #[case::one_is_to_spare((4, 0, 2), vec![keeping(3, 1, 0), new(0, 0)], 3)]
    #[case::a_kept_failed_one_counts_as_missing((3, 1, 0), vec![keeping(2, 0, 1), new(1, 1)], 2)]
    #[case::but_not_while_the_new_one_starts((3, 1, 0), vec![keeping(2, 0, 1), new(1, 0)], 3)]
    #[case::nor_twice((3, 1, 0), vec![keeping(1, 0, 1), new(1, 1)], 2)]
    #[case::one_is_kept_and_one_may_recover((4, 0, 1), vec![keeping(2, 1, 1), new(0, 0)], 4)]
    #[case::in_the_end_it_goes_too((3, 1, 0), vec![keeping(0, 0, 1), new(3, 3)], 0)]
    fn preserved_machines_go_last(
        #[case] (replicas, surge, unavailable): (i32, i32, i32),
        #[case] sets: Vec<SetSeen>,
        #[case] expected: i32,
    ) {
        let seen = seeing_sets(deployment(replicas, surge, unavailable).build(), sets);
        assert_eq!(old_targets(&Fleet::of(&seen)), [expected]);
    }

    #[test]
    fn machines_that_are_going_anyway_are_not_spent_twice() {
        let mut shrunk = old(10, 10);
        shrunk.set.to_mut().spec.replicas = 8;
        let seen = seeing_sets(deployment(10, 3, 2).build(), vec![shrunk, new(3, 3)]);
        assert_eq!(old_targets(&Fleet::of(&seen)), [5]);
    }
}
