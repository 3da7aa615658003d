//! Reasons of events and conditions with the names that users' tools know (spec/deployment-and-set §6.8, §14, §17,
//! §19).
//!
//! `SuccessfulCreate` and `SuccessfulDelete` are not written any more: there is no Normal event per machine on the
//! plain path (decisions.md 32).

use machine_api::names::{deployment_reason as deployment, freeze_reason as freeze, set_reason as set};
use rstest::rstest;

#[rstest]
#[case(set::FAILED_CREATE, "FailedCreate")]
#[case(set::FAILED_DELETE, "FailedDelete")]
#[case(set::FAILED_VALIDATION, "FailedValidation")]
#[case(freeze::FROZE_SET, "FrozeMachineSet")]
#[case(freeze::UNFROZE_SET, "UnfrozeMachineSet")]
#[case(freeze::OVERSHOOTING, "OverShootingReplicaCount")]
#[case(freeze::STATE_SYNC, "MachineDeploymentStateSync")]
#[case(deployment::SCALING_SET, "ScalingMachineSet")]
#[case(deployment::SET_CREATE_ERROR, "MachineSetCreateError")]
#[case(deployment::SELECTING_ALL, "SelectingAll")]
#[case(deployment::ROLLED_BACK, "DeploymentRollback")]
#[case(deployment::ROLLBACK_REVISION_NOT_FOUND, "DeploymentRollbackRevisionNotFound")]
#[case(deployment::ROLLBACK_TEMPLATE_UNCHANGED, "DeploymentRollbackTemplateUnchanged")]
#[case(deployment::MINIMUM_AVAILABLE, "MinimumReplicasAvailable")]
#[case(deployment::MINIMUM_UNAVAILABLE, "MinimumReplicasUnavailable")]
#[case(deployment::FOUND_NEW_SET, "FoundNewMachineSet")]
#[case(deployment::NEW_SET_CREATED, "NewMachineSetCreated")]
#[case(deployment::NEW_SET_AVAILABLE, "NewMachineSetAvailable")]
#[case(deployment::SET_UPDATED, "MachineSetUpdated")]
#[case(deployment::DEADLINE_EXCEEDED, "ProgressDeadlineExceeded")]
#[case(deployment::PAUSED, "DeploymentPaused")]
#[case(deployment::RESUMED, "DeploymentResumed")]
fn reasons_have_the_names_of_the_original(#[case] ours: &str, #[case] theirs: &str) {
    assert_eq!(ours, theirs);
}
