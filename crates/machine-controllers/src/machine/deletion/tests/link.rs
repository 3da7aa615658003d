//! The Node of a machine that is being deleted.

use super::*;

#[test]
fn mc_160_a_node_that_names_the_machine_is_linked_without_asking_the_driver() {
    let mut seen = seen(deleted_at(no_label(running()), 100), 100);
    seen.node = NodeView::NotLinked { candidate: Some("n7".to_owned()), namesake: None };
    let plan = decide(&seen);
    let machine = after(&plan, &seen.machine);
    assert_eq!(machine.labels()[label::NODE], "n7");
    assert_eq!(DeletionStage::of(&machine), Some(DeletionStage::Drain));
    assert_eq!(starts(&plan), None);
}

#[rstest]
fn a_node_in_sight_is_linked_again_and_drained_at_each_stage_before_the_vm_is_deleted(
    #[values(
        DeletionStage::GetVmStatus,
        DeletionStage::Drain,
        DeletionStage::DeleteVolumeAttachments,
        DeletionStage::DeleteVm
    )]
    stage: DeletionStage,
) {
    let mut seen = seen(no_label(resting(stage)), 200);
    seen.node = NodeView::NotLinked { candidate: Some("n7".to_owned()), namesake: None };
    let plan = decide(&seen);
    let machine = after(&plan, &seen.machine);
    assert_eq!(machine.labels().get(label::NODE).map(String::as_str), Some("n7"));
    assert_eq!((DeletionStage::of(&machine), starts(&plan)), (Some(DeletionStage::Drain), None));
}

#[rstest]
#[case::drain(DeletionStage::Drain, Some(DeletionStage::DeleteVm))]
#[case::attachments(DeletionStage::DeleteVolumeAttachments, Some(DeletionStage::DeleteVm))]
fn a_machine_that_has_no_node_is_not_drained(#[case] stage: DeletionStage, #[case] next: Option<DeletionStage>) {
    assert_eq!(stage_after(&seen(no_label(resting(stage)), 200)), next);
}

#[test]
fn a_failed_deletion_of_the_vm_is_reported_before_a_node_is_linked_again() {
    let mut seen = answered(seen(no_label(resting(DeletionStage::DeleteVm)), 200), deletes(Code::Unavailable));
    seen.node = NodeView::NotLinked { candidate: Some("n7".to_owned()), namesake: None };
    assert_eq!(decide(&seen).rule, "driver-failed-in-deletion");
}

/// A Node of this name can't register either: the kubelet writes the name to a label of its own.
#[rstest]
#[case::whole(Answer::Status(Ok(new_vm(
    "a-very-long-name-of-a-node-which-is-longer-than-any-value-of-a-label-may-be"
))))]
#[case::in_part(Answer::Status(Err(Status::new(Code::Uninitialized, "x").with_partial(new_vm("a-very-long-name-of-a-node-which-is-longer-than-any-value-of-a-label-may-be")))))]
fn a_node_whose_name_is_no_label_holds_up_no_deletion(#[case] answer: Answer) {
    let observed = answered(seen(no_label(resting(DeletionStage::GetVmStatus)), 100), answer);
    let machine = after(&decide(&observed), &observed.machine);
    assert_eq!((machine.labels().get(label::NODE), DeletionStage::of(&machine)), (None, Some(DeletionStage::DeleteVm)));
}

#[test]
fn mc_161_the_driver_names_the_node() {
    let seen = seen(no_label(resting(DeletionStage::GetVmStatus)), 100);
    assert_eq!(starts(&decide(&seen)), Some(Call::Status));
    let vm = VmIdentity { node_name: "n".to_owned(), ..VmIdentity::default() };
    let observed = answered(seen, Answer::Status(Ok(vm)));
    let machine = after(&decide(&observed), &observed.machine);
    assert_eq!(
        (machine.labels()[label::NODE].as_str(), DeletionStage::of(&machine)),
        ("n", Some(DeletionStage::Drain))
    );
}

#[rstest]
#[case::while_a_drain_would_have_time(Code::OutOfRange, 7300, DeletionStage::GetVmStatus)]
#[case::when_a_drain_has_had_its_time(Code::OutOfRange, 7301, DeletionStage::DeleteVm)]
#[case::a_provider_that_fails_names_the_vm_some_day(Code::Internal, 7301, DeletionStage::GetVmStatus)]
fn a_driver_that_sees_several_vms_is_asked_no_longer_than_a_drain_may_last(
    #[case] code: Code,
    #[case] second: i64,
    #[case] stage: DeletionStage,
) {
    let machine = no_label(resting(DeletionStage::GetVmStatus));
    let observed = answered(seen(machine, second), Answer::Status(Err(Status::new(code, "x"))));
    assert_eq!(stage_after(&observed), Some(stage));
}

#[rstest]
#[case::mc_162_not_found(Code::NotFound, Force::No, Some(DeletionStage::DeleteVm))]
#[case::unimplemented(Code::Unimplemented, Force::No, Some(DeletionStage::DeleteVm))]
#[case::mc_163_bad_permissions(Code::PermissionDenied, Force::No, Some(DeletionStage::GetVmStatus))]
#[case::mc_164_bad_permissions_by_force(Code::PermissionDenied, Force::Yes, Some(DeletionStage::DeleteVm))]
fn an_unanswered_status(#[case] code: Code, #[case] force: Force, #[case] stage: Option<DeletionStage>) {
    let mut machine = no_label(resting(DeletionStage::GetVmStatus));
    if force == Force::Yes {
        machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), "true".to_owned());
    }
    let observed = answered(seen(machine, 100), Answer::Status(Err(Status::new(code, "x"))));
    assert_eq!(stage_after(&observed), stage);
    if stage == Some(DeletionStage::GetVmStatus) {
        let status = after(&decide(&observed), &observed.machine).status().clone();
        assert_eq!(
            (status.last_operation.state, status.last_operation.error_code.as_str()),
            (OperationState::Failed, "PermissionDenied")
        );
        assert!(matches!(decide(&observed).next, Next::LookAgain(after, _) if after.as_secs() == 180));
    }
}
