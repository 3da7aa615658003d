//! Deletes old sets beyond the limit of the history.
//!
//! Source: spec/deployment-and-set §13.4 as the original does it (decisions.md 52). The newest sets stay even while
//! older ones cannot be deleted yet, so that a rollback finds the latest revisions. Pure.

use super::{
    fleet::{Fleet, SetState},
    plan::{Effect, Plan},
    revision::revision_of,
};

/// Adds the deletion of old sets beyond the deployment's limit, oldest first. Without a limit all stay.
pub fn clean_up(fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(limit) = fleet.deployment.revision_history_limit() else { return };
    let kept = usize::try_from(limit).unwrap_or(0);
    let mut by_age: Vec<&SetState<'_>> = fleet.old.iter().filter(|set| !set.set.is_deleting()).collect();
    by_age.sort_by_key(|set| {
        let meta = set.set.metadata();
        (revision_of(meta), meta.created, set.name())
    });
    let surplus = by_age.len().saturating_sub(kept);
    for set in by_age.into_iter().take(surplus).filter(|set| may_go(set)) {
        plan.push("history/surplus", Effect::delete(set.set));
    }
}

fn may_go(set: &SetState<'_>) -> bool {
    let status = set.set.status();
    set.committed() == 0
        && status.replicas == 0
        && set.set.generation().unwrap_or_default() <= status.observed_generation
}

#[cfg(test)]
mod tests {

    use rstest::rstest;

    use super::*;
    use crate::deployment::{observe::SetSeen, testing::*};
    use machine_api::{names::annotation, v1alpha1::MachineSet};

    fn empty(count: usize, change: fn(&mut MachineSet)) -> Vec<SetSeen> {
        (0..count)
            .map(|number| {
                let mut seen = seen_set(
                    set_of_class(&format!("md-{number}"), "old", 0, -9000 + i64::try_from(number).unwrap()),
                    0,
                );
                change(seen.set.to_mut());
                seen
            })
            .collect()
    }

    fn deleted(limit: Option<i32>, sets: Vec<SetSeen>) -> Vec<String> {
        let built = deployment(1, 1, 0).with(|d| d.spec.revision_history_limit = limit).build();
        let seen = seeing_sets(built, sets);
        let mut plan = Plan::default();
        clean_up(&Fleet::of(&seen), &mut plan);
        let name = |step: crate::deployment::plan::Step| match step.effect {
            Effect::DeleteSet { set, .. } => set.key.name,
            other => panic!("{other:?}"),
        };
        plan.steps.into_iter().map(name).collect()
    }

    fn revised(mut sets: Vec<SetSeen>, revisions: &[&str]) -> Vec<SetSeen> {
        for (seen, revision) in sets.iter_mut().zip(revisions) {
            let annotations = seen.set.to_mut().metadata.annotations.get_or_insert_default();
            annotations.insert(annotation::REVISION.to_owned(), (*revision).to_owned());
        }
        sets
    }

    #[test]
    fn the_newest_stay_although_an_older_one_may_not_go_yet() {
        // A is not empty yet. B, C and D are empty, and a rollback would use D.
        let mut sets = empty(4, |_| {});
        sets[0].set.to_mut().status.replicas = 1;
        assert_eq!(deleted(Some(1), sets.clone()), ["md-1", "md-2"]);
        assert_eq!(deleted(Some(0), sets.clone()), ["md-1", "md-2", "md-3"]);
        assert_eq!(deleted(None, sets), Vec::<String>::new());
    }

    #[rstest]
    #[case::the_revision_counts_before_the_age(&["3", "1", "2"], &["md-1", "md-2"])]
    #[case::as_numbers(&["10", "9", "8"], &["md-2", "md-1"])]
    #[case::then_the_age(&["1", "1", "1"], &["md-0", "md-1"])]
    #[case::one_without_a_readable_revision_goes_first(&["2", "3", "x"], &["md-2", "md-0"])]
    fn old_sets_go_by_revision(#[case] revisions: &[&str], #[case] expected: &[&str]) {
        assert_eq!(deleted(Some(1), revised(empty(3, |_| {}), revisions)), expected);
    }

    #[rstest]
    #[case::s_hist_01_no_limit_keeps_all(None, 20, |_: &mut MachineSet| {}, &[])]
    #[case::s_hist_02_the_oldest_go(Some(2), 5, |_: &mut MachineSet| {}, &["md-0", "md-1", "md-2"])]
    #[case::s_hist_03_a_set_with_machines_stays(Some(0), 1, |set: &mut MachineSet| set.status.replicas = 1, &[])]
    #[case::s_hist_04_a_set_not_yet_observed_stays(Some(0), 1, |set: &mut MachineSet| set.metadata.generation = Some(2), &[])]
    fn old_sets_are_cleaned_up(
        #[case] limit: Option<i32>,
        #[case] count: usize,
        #[case] change: fn(&mut MachineSet),
        #[case] expected: &[&str],
    ) {
        assert_eq!(deleted(limit, empty(count, change)), expected);
    }
}
