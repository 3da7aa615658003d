//! Changes the sizes of sets when the deployment's size changes, during a rollout and otherwise.
//!
//! Source: spec/deployment-and-set §13.1, §13.2 with D-16 (only rolling updates divide a change among several sets; the
//! other strategies do this in their own steps), decisions.md 39 (the division considers which machines are available)
//! and 54 (machines named by the scaler are deleted first). Pure.

use super::{
    cuts::AvailableBySize,
    fleet::{Fleet, SetState},
    in_place,
    plan::Plan,
};
use machine_api::{names::annotation, v1alpha1::StrategyType};

/// Whether the deployment's size has changed since its sets were last sized.
pub fn is_due(fleet: &Fleet<'_>) -> bool {
    if fleet.new.is_none() {
        return false;
    }
    let active: Vec<&SetState<'_>> = fleet.all().filter(|set| set.is_active()).collect();
    let rolls = fleet.deployment.strategy().strategy_type == StrategyType::RollingUpdate;
    if fleet.deployment.strategy().strategy_type == StrategyType::InPlaceUpdate && fleet.is_rolling() {
        // Old sets can't grow now; the update in place considers the deployment's size in each of its steps (D-16).
        return false;
    }
    if active.is_empty() {
        // Machines that old sets have not deleted yet belong to a rollout, which keeps its own limits.
        let is_free = |set: &SetState<'_>| set.counts.staying == 0 && (rolls || set.counts.replicas == 0);
        return fleet.replicas() > 0 && fleet.old.iter().all(is_free);
    }
    if active.len() > 1 && !rolls {
        return false;
    }
    active
        .iter()
        .any(|set| remembered(set, annotation::DESIRED_REPLICAS).is_some_and(|known| known != fleet.replicas()))
}

/// Whether the set does not yet have the size that follows from the deployment's present size. A set that remembers no
/// size is judged by its own size only. A set that wants no machines has none to lose.
pub fn awaits_size(fleet: &Fleet<'_>, set: &SetState<'_>) -> bool {
    let was_for_another = shrunk_by(fleet, set).is_some_and(|machines| machines != 0);
    is_due(fleet) || set.spec() > fleet.replicas() || (set.is_active() && was_for_another)
}

/// How many machines the deployment has lost since the set was last sized; `None` if the set remembers no size.
pub fn shrunk_by(fleet: &Fleet<'_>, set: &SetState<'_>) -> Option<i32> {
    Some(remembered(set, annotation::DESIRED_REPLICAS)?.saturating_sub(fleet.replicas()))
}

fn remembered(set: &SetState<'_>, key: &str) -> Option<i32> {
    set.annotation(key)?.parse().ok()
}

/// Adds the effects that bring the sets to the deployment's size, without continuing a rollout.
pub fn step(fleet: &Fleet<'_>, plan: &mut Plan) {
    if in_place::must_arrive_first(fleet) {
        return;
    }
    let active: Vec<&SetState<'_>> = fleet.all().filter(|set| set.is_active()).collect();
    if active.len() <= 1 {
        let only = active.first().copied().or(fleet.new.as_ref()).or(fleet.old.last());
        if let Some(set) = only {
            // Machines that the other sets have not deleted yet, or may be creating, use replicas. The rollout fills these replicas later.
            let others = fleet.sum(|other| if other.name() == set.name() { 0 } else { other.taken() });
            let room = fleet.replicas().saturating_add(fleet.limits.surge).saturating_sub(others);
            // Otherwise a set that may not grow would be shrunk to its machines and grown again, forever.
            let most = if in_place::is_blocked(set) { set.spec() } else { room.max(set.spec()) };
            let to = fleet.replicas().min(most);
            fleet.size_set("scaling/only", set, to, plan);
        }
        return;
    }
    if fleet.new.as_ref().is_some_and(|new| is_saturated(fleet, new)) {
        for set in fleet.old.iter().filter(|set| set.is_active()) {
            fleet.size_set("scaling/saturated", set, 0, plan);
        }
        return;
    }
    // The steps of the other strategies divide the existing sizes among old sets. They can't start without a new set,
    // which is missing while the deployment is paused, or frozen and still too large.
    if fleet.deployment.strategy().strategy_type == StrategyType::RollingUpdate || fleet.new.is_none() {
        share_out(fleet, &active, plan);
    }
}

fn is_saturated(fleet: &Fleet<'_>, new: &SetState<'_>) -> bool {
    let replicas = fleet.replicas();
    new.spec() == replicas
        && remembered(new, annotation::DESIRED_REPLICAS) == Some(replicas)
        && new.kept_available == replicas
}

/// By how many machines the deployment is smaller than the sets know.
pub fn fewer(fleet: &Fleet<'_>) -> i32 {
    let active = fleet.all().filter(|set| set.is_active());
    active.filter_map(|set| shrunk_by(fleet, set)).max().unwrap_or(0).max(0)
}

/// The sizes of the sets without the machines that the scaler has named: at most as many as the deployment has lost, first the machines of old sets
/// (decisions.md 54). The original shrinks the largest set, whether it has the named machines or not.
fn without_named(fleet: &Fleet<'_>, active: &[&SetState<'_>]) -> Vec<i32> {
    let mut fewer = fewer(fleet);
    let size_of = |set: &&SetState<'_>| {
        let named = i32::try_from(set.named.len()).unwrap_or(i32::MAX).min(fewer).min(set.spec());
        fewer -= named;
        set.spec() - named
    };
    active.iter().map(size_of).collect()
}

/// Machines named by the scaler are deleted first, whatever their set. For the rest, the new set grows, or all sets
/// shrink in proportion, larger sets first.
fn share_out(fleet: &Fleet<'_>, active: &[&SetState<'_>], plan: &mut Plan) {
    let replicas = fleet.replicas();
    let allowed = if replicas > 0 { replicas.saturating_add(fleet.limits.surge) } else { 0 };
    let sizes = without_named(fleet, active);
    let wanted: i32 = sizes.iter().copied().fold(0, i32::saturating_add);
    if wanted <= allowed {
        // Machines that sets have not deleted yet use replicas that the new set must not use. This includes sets with size zero, and named machines
        // until they are gone.
        let taken = fleet.sum(SetState::taken);
        let new = fleet.new.as_ref().map(SetState::name);
        for (set, size) in active.iter().zip(sizes) {
            let share = if Some(set.name()) == new { (allowed - taken).max(0) } else { 0 };
            fleet.size_set("scaling/grow", set, size.saturating_add(share), plan);
        }
        return;
    }
    let mut by_size: Vec<(&SetState<'_>, i32)> = active.iter().copied().zip(sizes).collect();
    // The sets are ordered oldest first, except for the new one; so equal sizes are ordered by the time of creation.
    by_size.sort_by_key(|(set, size)| {
        let created = set.set.created();
        (std::cmp::Reverse(*size), created, set.name())
    });
    let excess = allowed - wanted;
    let mut given = 0;
    let mut targets: Vec<i32> = Vec::with_capacity(by_size.len());
    for (set, size) in &by_size {
        let share = fraction(fleet, set, *size).max(excess - given).min(0);
        given += share;
        targets.push(size + share);
    }
    if let Some(largest) = targets.first_mut() {
        *largest = (*largest + (excess - given)).max(0);
    }
    let by_size: Vec<&SetState<'_>> = by_size.into_iter().map(|(set, _)| set).collect();
    spare_available(fleet, &by_size, &mut targets);
    for (set, target) in by_size.iter().zip(targets) {
        fleet.size_set("scaling/shrink", set, target, plan);
    }
}

/// Changes shares that would leave fewer available machines than `maxUnavailable` allows, one machine at a time: an
/// available machine stays (of the new set if possible), and an unavailable machine is deleted instead (of an old set
/// if possible). There are always enough unavailable machines, unless priorities or preservation change the order of
/// deletion. In that case more machines than allowed stay until the rollout goes on.
///
/// The original, like the Deployment of Kubernetes, divides by size alone. With 3 old running machines and 4 new
/// starting ones, a deployment that goes back to 3 loses one and two of them, and only 2 of 3 are available.
fn spare_available(fleet: &Fleet<'_>, sets: &[&SetState<'_>], targets: &mut [i32]) {
    let available: Vec<AvailableBySize> = sets.iter().map(|set| fleet.available_by_size(set)).collect();
    let is_new = |place: usize| {
        let new = fleet.new.as_ref().map(SetState::name);
        sets.get(place).is_some_and(|set| Some(set.name()) == new)
    };
    let mut new_first: Vec<usize> = (0..sets.len()).collect();
    new_first.sort_by_key(|place| !is_new(*place));
    let elsewhere = fleet.sum(|set| set.kept_available) - sets.iter().map(|set| set.kept_available).sum::<i32>();
    // A machine that a set may already be deleting does not remain, whatever the size.
    let left_at = |place: usize, size: i32| -> Option<i32> {
        Some(available.get(place)?.at(size).min(sets.get(place)?.kept_available))
    };
    loop {
        let left: i32 = targets
            .iter()
            .enumerate()
            .filter_map(|(place, target)| left_at(place, *target))
            .fold(0, i32::saturating_add);
        if left.saturating_add(elsewhere) >= fleet.min_available() {
            return;
        }
        let changes = |place: usize, by: i32| -> Option<i32> {
            let target = *targets.get(place)?;
            Some(left_at(place, target + by)? - left_at(place, target)?)
        };
        let saves = |place: &&usize| {
            let grows = targets.get(**place) < sets.get(**place).map(|set| set.spec()).as_ref();
            grows && changes(**place, 1) > Some(0)
        };
        let Some(saved) = new_first.iter().find(saves).copied() else { return };
        let is_useless =
            |place: &&usize| **place != saved && targets.get(**place) > Some(&0) && changes(**place, -1) == Some(0);
        let useless = new_first.iter().rev().find(is_useless).copied();
        for (place, by) in [(Some(saved), 1), (useless, -1)] {
            if let Some(target) = place.and_then(|place| targets.get_mut(place)) {
                *target += by;
            }
        }
    }
}

/// The change of a set of this size when all sets shrink in proportion; a negative number.
fn fraction(fleet: &Fleet<'_>, set: &SetState<'_>, size: i32) -> i32 {
    let replicas = fleet.replicas();
    if replicas == 0 {
        return -size;
    }
    let before = remembered(set, annotation::MAX_REPLICAS).unwrap_or(fleet.deployment.status().replicas);
    if before <= 0 {
        return 0;
    }
    let allowed = i64::from(replicas) + i64::from(fleet.limits.surge);
    // Rounded half away from zero; all numbers are positive.
    let scaled = (2 * i64::from(size) * allowed + i64::from(before)) / (2 * i64::from(before));
    i32::try_from(scaled - i64::from(size)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::*;
    use crate::deployment::{
        observe::{DeploymentObservation, SetSeen},
        plan::Effect,
        settling::Unsettled,
        testing::*,
    };
    use controller_runtime::snapshot::Snapshot;
    use machine_api::names::label;

    fn sized(name: &str, class: &str, spec: i32, remembered: (i32, i32), created: i64) -> SetSeen {
        let mut set = set_of_class(name, class, spec, created);
        let annotations = set.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::DESIRED_REPLICAS.to_owned(), remembered.0.to_string());
        annotations.insert(annotation::MAX_REPLICAS.to_owned(), remembered.1.to_string());
        seen_set(set, usize::try_from(spec).unwrap())
    }

    fn three(sizes: [i32; 3], remembered: (i32, i32)) -> Vec<SetSeen> {
        vec![
            sized("md-a", "a", sizes[0], remembered, -3000),
            sized("md-b", "b", sizes[1], remembered, -2000),
            sized("md-new", "new", sizes[2], remembered, -1000),
        ]
    }

    /// Sizes of the sets afterwards, in the order of their names.
    fn scaled(seen: &DeploymentObservation) -> Vec<i32> {
        let fleet = Fleet::of(seen);
        let mut plan = Plan::default();
        step(&fleet, &mut plan);
        let mut sizes: BTreeMap<String, i32> = fleet.all().map(|set| (set.name().to_owned(), set.spec())).collect();
        for step in plan.steps {
            if let Effect::ScaleSet { set, to, .. } = step.effect {
                sizes.insert(set.name().to_owned(), to);
            }
        }
        sizes.into_values().collect()
    }

    #[rstest]
    #[case::s_scale_01_growth_goes_to_the_new_set([1, 3, 5], (7, 9), 10, &[1, 3, 8])]
    #[case::s_scale_02_shrinking_is_shared([1, 3, 5], (7, 9), 3, &[1, 2, 2])]
    #[case::s_scale_03_shrinking_is_shared_in_proportion([1, 3, 6], (8, 10), 5, &[1, 2, 4])]
    #[case::s_scale_04_nothing_changed([1, 3, 5], (7, 9), 7, &[1, 3, 5])]
    #[case::to_nothing([1, 3, 5], (7, 9), 0, &[0, 0, 0])]
    fn several_sets_are_scaled(
        #[case] sizes: [i32; 3],
        #[case] remembered: (i32, i32),
        #[case] replicas: i32,
        #[case] expected: &[i32],
    ) {
        let seen = seeing_sets(deployment(replicas, 2, 0).build(), three(sizes, remembered));
        assert_eq!(scaled(&seen), expected);
        assert_eq!(is_due(&Fleet::of(&seen)), replicas != remembered.0);
    }

    /// Sizes `spec/available` of the old and the new set afterwards.
    #[rstest]
    // Seed 6804: scaled to 6 and back to 3 before the first new machine was running.
    #[case::the_starting_ones_go(3, (1, 0), [(3, 3), (4, 0)], (6, 7), &[3, 1])]
    #[case::one_may_be_missing(3, (0, 1), [(3, 3), (3, 0)], (6, 6), &[2, 1])]
    #[case::new_ones_run_too(3, (1, 0), [(3, 3), (4, 1)], (6, 7), &[2, 2])]
    #[case::old_ones_are_broken(3, (1, 0), [(4, 0), (3, 3)], (6, 7), &[1, 3])]
    #[case::fewer_run_than_are_wanted(4, (1, 0), [(4, 2), (4, 1)], (7, 8), &[2, 3])]
    #[case::all_run(3, (1, 0), [(3, 3), (4, 4)], (6, 7), &[2, 2])]
    fn shrinking_leaves_as_many_available_as_it_can(
        #[case] replicas: i32,
        #[case] (surge, unavailable): (i32, i32),
        #[case] sizes: [(i32, usize); 2],
        #[case] remembered: (i32, i32),
        #[case] expected: &[i32],
    ) {
        let [old, new] = sizes;
        let running = |name: &str, class: &str, (spec, available): (i32, usize), created| {
            let set = sized(name, class, spec, remembered, created).set;
            seen_set(set, available)
        };
        let sets = vec![running("md-old", "old", old, -2000), running("md-new", "new", new, -1000)];
        let seen = seeing_sets(deployment(replicas, surge, unavailable).build(), sets);
        let mut sizes = scaled(&seen);
        sizes.reverse();
        assert_eq!(sizes, expected);
    }

    #[rstest]
    #[case::free(None, 3)]
    // Seed 39443: a size without a machine was removed and added again, forever.
    #[case::kept_from_growing(Some("true"), 2)]
    fn the_only_set_grows_unless_it_is_kept_from_growing(#[case] kept: Option<&str>, #[case] expected: i32) {
        let mut set = set_of_class("md-a", "a", 2, -1000);
        let labels = set.metadata.labels.get_or_insert_default();
        labels.extend(kept.map(|value| (label::SCALE_UP_DISABLED.to_owned(), value.to_owned())));
        let seen = seeing_sets(deployment(3, 1, 0).build(), vec![seen_set(set, 2)]);
        assert_eq!(scaled(&seen), [expected]);
    }

    const SCALED_AT: &str = "2026-11-21T08:00:00Z";

    /// Marks this number of machines, beginning with the last ones: by their names they would be deleted last.
    fn marking(mut set: SetSeen, count: usize, at: &str) -> SetSeen {
        for machine in set.machines.iter_mut().rev().take(count) {
            let annotations = machine.to_mut().metadata.annotations.get_or_insert_default();
            annotations.insert(annotation::MACHINE_PRIORITY.to_owned(), "1".to_owned());
            annotations.insert(annotation::MARKED_FOR_DELETION_TIME.to_owned(), at.to_owned());
        }
        set
    }

    /// Sizes of the old and the new set after the scaler has changed the deployment's size. `sets` are
    /// `size/available/marked`.
    #[rstest]
    // Only old machines stay. The original also deletes one of those, and 2 of 3 are available (acceptance, A9).
    #[case::those_of_the_new_set_go_and_no_other(3, (1, 0), [(3, 3, 0), (4, 4, 3)], 6, SCALED_AT, &[3, 1])]
    #[case::whatever_else_is_starting(3, (1, 0), [(3, 3, 0), (4, 3, 3)], 6, SCALED_AT, &[3, 1])]
    // The new set is larger, and the scaler has not named any of its machines (A10).
    #[case::one_marked_in_the_old_set(6, (1, 0), [(2, 2, 1), (6, 6, 0)], 7, SCALED_AT, &[1, 6])]
    #[case::some_in_each(2, (1, 0), [(3, 3, 1), (4, 3, 3)], 6, SCALED_AT, &[2, 1])]
    #[case::more_are_marked_than_taken_away(5, (1, 0), [(3, 3, 1), (4, 4, 3)], 6, SCALED_AT, &[2, 4])]
    #[case::fewer_are_marked_than_taken_away(3, (2, 0), [(2, 2, 1), (6, 6, 1)], 6, SCALED_AT, &[1, 4])]
    #[case::the_marks_are_newer_than_the_scaling(6, (1, 0), [(2, 2, 1), (6, 6, 0)], 7, "2026-11-21T08:00:01Z", &[2, 5])]
    #[case::somebody_else_made_it_larger(7, (1, 0), [(3, 3, 1), (3, 3, 1)], 6, SCALED_AT, &[3, 5])]
    #[case::where_there_was_room_for_surge(5, (1, 0), [(3, 3, 1), (3, 3, 0)], 6, SCALED_AT, &[2, 3])]
    fn machines_that_the_scaler_named_are_deleted_first(
        #[case] replicas: i32,
        #[case] (surge, unavailable): (i32, i32),
        #[case] sets: [(i32, usize, usize); 2],
        #[case] before: i32,
        #[case] marked_at: &str,
        #[case] expected: &[i32],
        #[values(false, true)] paused: bool,
    ) {
        let [old, new] = sets;
        let of = |name: &str, class: &str, (spec, available, marked): (i32, usize, usize), created| {
            let set = sized(name, class, spec, (before, before + surge), created).set;
            marking(seen_set(set, available), marked, marked_at)
        };
        let sets = vec![of("md-old", "old", old, -2000), of("md-new", "new", new, -1000)];
        let built = deployment(replicas, surge, unavailable)
            .annotation(annotation::LAST_REPLICA_CHANGE_BY_SCALER, SCALED_AT)
            .with(|d| d.spec.paused = paused);
        let mut sizes = scaled(&seeing_sets(built.build(), sets));
        sizes.reverse();
        assert_eq!(sizes, expected);
    }

    #[test]
    fn a_set_that_may_still_be_deleting_leaves_fewer() {
        // The 4 old machines may be about to be deleted for a smaller size, so one more of the machines that stay is
        // new. One machine may be unavailable.
        let set = |name, class, created| seen_set(sized(name, class, 4, (6, 7), created).set, 4);
        let mut old = set("md-old", "old", -2000);
        old.set.to_mut().metadata.generation = Some(3);
        let mut seen = seeing_sets(deployment(4, 0, 0).build(), vec![old, set("md-new", "new", -1000)]);
        assert_eq!(scaled(&seen), [2, 2]);
        let unsettled = Unsettled { since: seen.now, deleting: 4, making_for: 0 };
        seen.unsettled.insert("uid-md-old".to_owned(), unsettled);
        assert_eq!(scaled(&seen), [3, 1]);
    }

    #[test]
    fn machines_that_an_emptied_set_has_not_deleted_yet_count() {
        // Seed 14775: paused in the middle of a rollout, right after the oldest set was emptied.
        let mut sets = three([2, 1, 1], (5, 7));
        sets[0].set.to_mut().spec.replicas = 0;
        let sizes = |sets| scaled(&seeing_sets(deployment(5, 1, 0).build(), sets));
        assert_eq!(sizes(sets.clone()), [0, 1, 3]);
        sets[0].machines.clear();
        assert_eq!(sizes(sets), [0, 1, 5]);
    }

    #[test]
    fn s_scale_05_a_single_set_remembers_the_new_size() {
        let seen = seeing_sets(deployment(1, 2, 0).build(), vec![sized("md-old", "old", 1, (2, 3), -2000)]);
        let mut plan = Plan::default();
        step(&Fleet::of(&seen), &mut plan);
        let [step] = plan.steps.as_slice() else { panic!("{plan:?}") };
        let Effect::ScaleSet { set, to: 1, remembered } = &step.effect else { panic!("{step:?}") };
        assert_eq!(set.replicas(), 1);
        // The larger number was already 3.
        assert_eq!(*remembered, [(annotation::DESIRED_REPLICAS.to_owned(), "1".to_owned())].into());
    }

    #[rstest]
    #[case::s_scale_06_the_only_active_set(vec![sized("md-new", "new", 3, (3, 4), 0)], 6, &[6])]
    #[case::s_scale_07_none_is_active(vec![sized("md-new", "new", 0, (0, 1), 0)], 4, &[4])]
    fn a_single_set_takes_the_whole_size(#[case] sets: Vec<SetSeen>, #[case] replicas: i32, #[case] expected: &[i32]) {
        let seen = seeing_sets(deployment(replicas, 1, 0).build(), sets);
        assert!(is_due(&Fleet::of(&seen)));
        assert_eq!(scaled(&seen), expected);
    }

    #[test]
    fn s_scale_08_a_saturated_new_set_empties_the_old_ones() {
        let sets = vec![sized("md-old", "old", 2, (5, 6), -2000), sized("md-new", "new", 5, (5, 6), -1000)];
        assert_eq!(scaled(&seeing_sets(deployment(5, 1, 0).build(), sets)), [5, 0]);
    }

    #[test]
    fn s_scale_12_an_unreadable_size_is_ignored() {
        let mut sets = three([0, 3, 5], (7, 9));
        let set = sets[1].set.to_mut();
        set.metadata
            .annotations
            .get_or_insert_default()
            .insert(annotation::DESIRED_REPLICAS.to_owned(), "x".to_owned());
        assert!(!is_due(&Fleet::of(&seeing_sets(deployment(7, 2, 0).build(), sets))));
    }
}
