//! When the current rollout of a deployment began.
//!
//! Source: spec/packaging §4.1. Pure.

use jiff::Timestamp;

use crate::{
    deployment::{conditions::find, template_equality::is_equal},
    snapshots::{DeploymentSnapshot, SetSnapshot},
};
use controller_runtime::snapshot::Snapshot;
use machine_api::{names::annotation, v1alpha1::MachineDeploymentConditionType};

/// When the current rollout of a deployment began; `None` while no set of another template has or wants machines. `sets` are
/// the sets that the deployment controls.
///
/// A rollout begins with the creation of its set. No object stores when a set of an earlier rollout is used again: the last
/// progress is then the latest time at which the rollout can have begun.
pub fn began(deployment: &DeploymentSnapshot, sets: &[SetSnapshot]) -> Option<Timestamp> {
    let (new, old): (Vec<&SetSnapshot>, Vec<&SetSnapshot>) =
        sets.iter().partition(|set| is_equal(set.template(), deployment.template()));
    let has_machines = |set: &&SetSnapshot| set.replicas() > 0 || set.status().replicas > 0;
    if !old.iter().any(has_machines) {
        return None;
    }
    let new = new.into_iter().min_by_key(|set| (set.created(), set.name().to_owned()));
    match new {
        Some(new) if new.annotation(annotation::REVISION_HISTORY).is_none() => new.created(),
        None if deployment.is_paused() => None,
        Some(_) | None => {
            let progressing = find(deployment.status(), &MachineDeploymentConditionType::Progressing)?;
            progressing.last_update_time.as_ref().map(|time| time.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;
    use crate::{
        deployment::testing::deployment,
        set::testing::{Building, at, set},
    };
    use machine_api::v1alpha1::{MachineDeployment, MachineDeploymentCondition, MachineSet};

    /// A set of this template, created at this second.
    fn of(template: &str, replicas: i32, created: i64) -> Building<MachineSet> {
        set(replicas).created_at(created).with(|set| {
            set.metadata.name = Some(format!("web-{template}"));
            set.spec.template.spec.class.name = template.to_owned();
        })
    }

    /// A deployment of the template `new` that made progress at second 50.
    fn web() -> Building<MachineDeployment> {
        deployment(3, 1, 1).with(|deployment| {
            deployment.spec.template = of("new", 0, 0).build().spec.template;
            deployment.status.conditions = vec![MachineDeploymentCondition {
                condition_type: MachineDeploymentConditionType::Progressing,
                last_update_time: Some(Time(at(50))),
                ..MachineDeploymentCondition::default()
            }];
        })
    }

    fn emptied(set: Building<MachineSet>, left: i32) -> Building<MachineSet> {
        set.with(|set| (set.spec.replicas, set.status.replicas) = (0, left))
    }

    fn used_again(set: Building<MachineSet>) -> Building<MachineSet> {
        set.annotation(annotation::REVISION_HISTORY, "1")
    }

    #[rstest]
    #[case::it_rolls(vec![of("old", 2, 1), of("new", 1, 9)], Some(9))]
    #[case::the_last_machine_of_the_old_set_goes(vec![emptied(of("old", 2, 1), 1), of("new", 3, 9)], Some(9))]
    #[case::it_is_complete(vec![emptied(of("old", 2, 1), 0), of("new", 3, 9)], None)]
    #[case::the_first_set(vec![of("new", 3, 9)], None)]
    #[case::no_set_yet(vec![], None)]
    #[case::the_new_set_is_not_made_yet(vec![of("old", 3, 1)], Some(50))]
    #[case::back_to_an_earlier_set(vec![of("old", 2, 20), used_again(of("new", 1, 1))], Some(50))]
    fn a_rollout_began(#[case] sets: Vec<Building<MachineSet>>, #[case] expected: Option<i64>) {
        let sets: Vec<SetSnapshot> = sets.into_iter().map(Building::<MachineSet>::snapshot).collect();
        assert_eq!(began(&web().snapshot(), &sets), expected.map(at));
    }

    #[test]
    fn a_paused_deployment_without_a_new_set_does_not_roll() {
        let paused = web().with(|deployment| deployment.spec.paused = true).snapshot();
        assert_eq!(began(&paused, &[of("old", 3, 1).snapshot()]), None);
    }
}
