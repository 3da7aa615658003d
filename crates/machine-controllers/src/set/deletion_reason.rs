//! Why a set deletes a machine, for the metric that counts deletions.
//!
//! Source: spec/packaging §4.1. Pure.

use super::{counts::is_failed, ranking::marked_since};
use crate::snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot};
use machine_api::names::annotation;
use mcm_metrics::DeletionReason;

/// The reason of the deletion of a machine by its set, which belongs to `deployment` if to any. A set that is deleted takes
/// its machines with it: whoever deleted the set is the reason.
pub fn deletion_reason(
    machine: &MachineSnapshot,
    set: &SetSnapshot,
    deployment: Option<&DeploymentSnapshot>,
) -> DeletionReason {
    if set.is_deleting() {
        DeletionReason::User
    } else if is_failed(machine) {
        DeletionReason::Unhealthy
    } else if marked_since(machine).is_some() {
        DeletionReason::Autoscaler
    } else if deployment.is_some_and(|deployment| is_old(set, deployment)) {
        DeletionReason::Rollout
    } else {
        DeletionReason::ScaleDown
    }
}

/// Whether the set has an earlier revision than its deployment. The deployment has the revision of its newest set.
fn is_old(set: &SetSnapshot, deployment: &DeploymentSnapshot) -> bool {
    let newest = deployment.annotation(annotation::REVISION);
    newest.is_some() && set.annotation(annotation::REVISION) != newest
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::testing::*;
    use machine_api::{
        names::annotation,
        v1alpha1::{Machine, MachineDeployment, MachineSet},
    };

    fn marked(name: &str) -> Building<Machine> {
        running(name).annotation(annotation::MARKED_FOR_DELETION_TIME, "2026-11-21T08:00:00Z")
    }

    fn revision(of: &str) -> Building<MachineSet> {
        set(1).annotation(annotation::REVISION, of)
    }

    #[rstest]
    #[case::an_old_set_of_a_rollout(running("m"), revision("1"), Some("2"), DeletionReason::Rollout)]
    #[case::the_newest_set(running("m"), revision("2"), Some("2"), DeletionReason::ScaleDown)]
    #[case::a_set_of_no_deployment(running("m"), set(1), None, DeletionReason::ScaleDown)]
    #[case::a_failed_machine(failed("m"), revision("2"), Some("2"), DeletionReason::Unhealthy)]
    #[case::a_failed_machine_of_an_old_set(failed("m"), revision("1"), Some("2"), DeletionReason::Unhealthy)]
    #[case::chosen_by_the_autoscaler(marked("m"), revision("2"), Some("2"), DeletionReason::Autoscaler)]
    #[case::the_set_is_deleted(failed("m"), revision("1").deleting(), Some("2"), DeletionReason::User)]
    fn a_machine_goes_because_of(
        #[case] machine: Building<Machine>,
        #[case] set: Building<MachineSet>,
        #[case] newest: Option<&str>,
        #[case] expected: DeletionReason,
    ) {
        let deployment = newest.map(|newest| {
            let mut deployment = MachineDeployment::default();
            let annotations = [(annotation::REVISION.to_owned(), newest.to_owned())];
            deployment.metadata.annotations = Some(annotations.into());
            DeploymentSnapshot::from(deployment)
        });
        assert_eq!(deletion_reason(&machine.snapshot(), &set.snapshot(), deployment.as_ref()), expected);
    }
}
