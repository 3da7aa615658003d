//! What a change of the deployment's size means for its sets, outside and inside a rollout.
//!
//! Source: spec/deployment-and-set §13.1, §13.2 with D-16 (only rolling updates share a change out among several sets;
//! the other strategies deal with it in their own steps). Pure.

use super::{
    fleet::{Fleet, SetState},
    plan::Plan,
};
use crate::api::{names::annotation, v1alpha1::StrategyType};

/// Whether the deployment's size has changed since its sets were last sized.
pub fn is_due(fleet: &Fleet<'_>) -> bool {
    if fleet.new.is_none() {
        return false;
    }
    let active: Vec<&SetState<'_>> = fleet.all().filter(|set| set.is_active()).collect();
    let rolls = fleet.deployment.spec.strategy.strategy_type == StrategyType::RollingUpdate;
    if fleet.deployment.spec.strategy.strategy_type == StrategyType::InPlaceUpdate && fleet.is_rolling() {
        // Old sets can't grow meanwhile; the update in place minds the size in each of its steps (D-16).
        return false;
    }
    if active.is_empty() {
        // Machines that old sets have yet to delete belong to a rollout, which minds its limits itself.
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

fn remembered(set: &SetState<'_>, key: &str) -> Option<i32> {
    set.annotation(key)?.parse().ok()
}

/// Adds the effects that bring the sets to the deployment's size, without going on with a rollout.
pub fn step(fleet: &Fleet<'_>, plan: &mut Plan) {
    let active: Vec<&SetState<'_>> = fleet.all().filter(|set| set.is_active()).collect();
    if active.len() <= 1 {
        let only = active.first().copied().or(fleet.new.as_ref()).or(fleet.old.last());
        if let Some(set) = only {
            // What the other sets have yet to delete takes room; the rollout fills it later.
            let others: i32 = fleet.all().filter(|other| other.name() != set.name()).map(|o| o.counts.staying).sum();
            let room = fleet.replicas().saturating_add(fleet.limits.surge).saturating_sub(others);
            let to = fleet.replicas().min(room.max(set.spec()));
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
    if fleet.deployment.spec.strategy.strategy_type == StrategyType::RollingUpdate {
        share_out(fleet, &active, plan);
    }
}

fn is_saturated(fleet: &Fleet<'_>, new: &SetState<'_>) -> bool {
    let replicas = fleet.replicas();
    new.spec() == replicas
        && remembered(new, annotation::DESIRED_REPLICAS) == Some(replicas)
        && new.kept_available == replicas
}

/// Growth goes to the new set, shrinking to all in proportion, larger sets first.
fn share_out(fleet: &Fleet<'_>, active: &[&SetState<'_>], plan: &mut Plan) {
    let replicas = fleet.replicas();
    let allowed = if replicas > 0 { replicas.saturating_add(fleet.limits.surge) } else { 0 };
    let wanted: i32 = active.iter().map(|set| set.spec()).fold(0, i32::saturating_add);
    // What sets have yet to delete takes room that the new set must not use already.
    let taken: i32 = active.iter().map(|set| set.spec().max(set.counts.staying)).fold(0, i32::saturating_add);
    if wanted <= allowed {
        let new = fleet.new.as_ref().map(SetState::name);
        for set in active {
            let share = if Some(set.name()) == new { (allowed - taken).max(0) } else { 0 };
            fleet.size_set("scaling/grow", set, set.spec().saturating_add(share), plan);
        }
        return;
    }
    let mut by_size: Vec<&SetState<'_>> = active.to_vec();
    // Sets come oldest first except for the new one, so ties need the time of creation.
    by_size.sort_by_key(|set| {
        let created = set.set.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (std::cmp::Reverse(set.spec()), created, set.name())
    });
    let excess = allowed - wanted;
    let mut given = 0;
    let mut targets: Vec<i32> = Vec::with_capacity(by_size.len());
    for set in &by_size {
        let share = fraction(fleet, set).max(excess - given).min(0);
        given += share;
        targets.push(set.spec() + share);
    }
    if let Some(largest) = targets.first_mut() {
        *largest = (*largest + (excess - given)).max(0);
    }
    for (set, target) in by_size.iter().zip(targets) {
        fleet.size_set("scaling/shrink", set, target, plan);
    }
}

/// What a set would lose were it shrunk in proportion; a negative number.
fn fraction(fleet: &Fleet<'_>, set: &SetState<'_>) -> i32 {
    let replicas = fleet.replicas();
    if replicas == 0 {
        return -set.spec();
    }
    let before = remembered(set, annotation::MAX_REPLICAS).unwrap_or(fleet.deployment.status.replicas);
    if before <= 0 {
        return 0;
    }
    let allowed = i64::from(replicas) + i64::from(fleet.limits.surge);
    // Rounded half away from zero; all numbers are positive.
    let scaled = (2 * i64::from(set.spec()) * allowed + i64::from(before)) / (2 * i64::from(before));
    i32::try_from(scaled - i64::from(set.spec())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use rstest::rstest;

    use super::*;
    use crate::controllers::deployment::{
        observe::{DeploymentObservation, SetSeen},
        plan::Effect,
        testing::*,
    };

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

    /// Sizes of the sets afterwards, in the order of their names, and what the first changed one remembers.
    fn scaled(seen: &DeploymentObservation) -> Vec<i32> {
        let fleet = Fleet::of(seen);
        let mut plan = Plan::default();
        step(&fleet, &mut plan);
        let mut sizes: BTreeMap<String, i32> = fleet.all().map(|set| (set.name().to_owned(), set.spec())).collect();
        for step in plan.steps {
            if let Effect::ScaleSet { set, to, .. } = step.effect {
                sizes.insert(set.key.name, to);
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

    #[test]
    fn s_scale_05_a_single_set_remembers_the_new_size() {
        let seen = seeing_sets(deployment(1, 2, 0).build(), vec![sized("md-old", "old", 1, (2, 3), -2000)]);
        let mut plan = Plan::default();
        step(&Fleet::of(&seen), &mut plan);
        let [step] = plan.steps.as_slice() else { panic!("{plan:?}") };
        let Effect::ScaleSet { from: 1, to: 1, patch: crate::cluster::objects::Patch::Merge(patch), .. } = &step.effect
        else {
            panic!("{step:?}")
        };
        assert_eq!(patch["metadata"]["annotations"][annotation::DESIRED_REPLICAS], "1");
        // It was 3 already.
        assert_eq!(patch["metadata"]["annotations"].get(annotation::MAX_REPLICAS), None);
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
        let set = Arc::make_mut(&mut sets[1].set);
        set.metadata
            .annotations
            .get_or_insert_default()
            .insert(annotation::DESIRED_REPLICAS.to_owned(), "x".to_owned());
        assert!(!is_due(&Fleet::of(&seeing_sets(deployment(7, 2, 0).build(), sets))));
    }
}
