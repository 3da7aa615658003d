//! Which old sets are not kept any longer.
//!
//! Source: spec/deployment-and-set §13.4 with D-33 (chosen among those that may go). Pure.

use super::{
    fleet::{Fleet, SetState},
    plan::{Effect, Plan},
};
use crate::cluster::key::Target;

/// Adds the deletion of old sets beyond the deployment's limit, oldest first.
pub fn clean_up(fleet: &Fleet<'_>, plan: &mut Plan) {
    let Some(limit) = fleet.deployment.spec.revision_history_limit else { return };
    let kept = usize::try_from(limit).unwrap_or(0);
    let staying: Vec<&SetState<'_>> =
        fleet.old.iter().filter(|set| set.set.metadata.deletion_timestamp.is_none()).collect();
    let surplus = staying.len().saturating_sub(kept);
    for set in staying.into_iter().filter(|set| may_go(set)).take(surplus) {
        plan.push("history/surplus", Effect::DeleteSet(Target::of(&**set.set)));
    }
}

fn may_go(set: &SetState<'_>) -> bool {
    let status = &set.set.status;
    set.committed() == 0
        && status.replicas == 0
        && set.set.metadata.generation.unwrap_or_default() <= status.observed_generation
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::{
        api::v1alpha1::MachineSet,
        controllers::deployment::{observe::SetSeen, testing::*},
    };

    fn empty(count: usize, change: fn(&mut MachineSet)) -> Vec<SetSeen> {
        (0..count)
            .map(|number| {
                let mut seen = seen_set(
                    set_of_class(&format!("md-{number}"), "old", 0, -9000 + i64::try_from(number).unwrap()),
                    0,
                );
                change(Arc::make_mut(&mut seen.set));
                seen
            })
            .collect()
    }

    #[test]
    fn d_33_a_set_that_must_stay_does_not_save_a_younger_one() {
        let mut sets = empty(3, |_| {});
        Arc::make_mut(&mut sets[0].set).metadata.generation = Some(2);
        let built = deployment(1, 1, 0).with(|d| d.spec.revision_history_limit = Some(1)).build();
        let seen = seeing_sets(built, sets);
        let mut plan = Plan::default();
        clean_up(&Fleet::of(&seen), &mut plan);
        assert_eq!(plan.steps.len(), 2);
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
        let built = deployment(1, 1, 0).with(|d| d.spec.revision_history_limit = limit).build();
        let seen = seeing_sets(built, empty(count, change));
        let mut plan = Plan::default();
        clean_up(&Fleet::of(&seen), &mut plan);
        let names: Vec<String> = plan
            .steps
            .into_iter()
            .map(|step| match step.effect {
                Effect::DeleteSet(target) => target.key.name,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(names, expected);
    }
}
