//! The steps after the driver was asked to delete the VM: its answer, the Node, the finalizers.

use super::*;

#[rstest]
#[case::done(Answer::Deleted(Ok(DeletedVm::default())))]
#[case::mc_176_mc_287_not_found(deletes(Code::NotFound))]
fn after_the_vm_node_and_finalizer_go_without_a_status_write(#[case] answer: Answer) {
    let seen = with_node(seen(resting(DeletionStage::DeleteVm), 200), cordoned(vec![]));
    let plan = decide(&answered(seen.clone(), answer));
    assert_eq!(
        plan.effects,
        [
            Effect::DeleteNode { uid: "node-uid".to_owned() },
            Effect::RemoveNodeFinalizer,
            Effect::RemoveMachineFinalizer
        ]
    );
}

#[rstest]
#[case::mc_177_unavailable(Code::Unavailable, 5, "However, will re-try in the next resync. Initiate VM deletion")]
#[case::mc_178_a_precondition(Code::FailedPrecondition, 600, "Aborting operation. Initiate VM deletion")]
fn a_failed_vm_deletion_is_told_and_repeated(#[case] code: Code, #[case] pause: u64, #[case] end: &str) {
    let mut machine = resting(DeletionStage::DeleteVm);
    machine.status.last_known_state = "k".to_owned();
    let seen = answered(seen(machine, 200), deletes(code));
    let plan = decide(&seen);
    let status = after(&plan, &seen.machine).status().clone();
    assert!(status.last_operation.description.ends_with(end), "{}", status.last_operation.description);
    assert_eq!(status.last_operation.error_code, code.as_str());
    assert_eq!(status.last_known_state, "k", "mc_180");
    assert!(matches!(plan.next, Next::LookAgain(after, _) if after.as_secs() == pause));
}

#[test]
fn mc_179_a_marker_in_the_providers_text_does_not_move_the_stage() {
    let answer = Answer::Deleted(Err(Status::new(Code::Internal, stage_text::DRAIN)));
    let seen = answered(seen(resting(DeletionStage::DeleteVm), 200), answer);
    assert_eq!(stage_after(&seen), Some(DeletionStage::DeleteVm));
}

#[test]
fn mc_181_without_a_node_only_the_finalizer_goes() {
    let plan = decide(&seen(resting(DeletionStage::DeleteNode), 200));
    assert_eq!(plan.effects, [Effect::RemoveMachineFinalizer]);
}

#[rstest]
#[case::at_the_drain(DeletionStage::Drain, Some(DeletionStage::DeleteVm))]
#[case::mc_182_at_the_node(DeletionStage::DeleteNode, Some(DeletionStage::DeleteNode))]
fn a_foreign_node_is_left_alone(#[case] stage: DeletionStage, #[case] then: Option<DeletionStage>) {
    let mut seen = seen(resting(stage), 200);
    seen.node = NodeView::Foreign { name: "n".to_owned(), why: "another VM".to_owned() };
    let plan = decide(&seen);
    assert_eq!(node_writes(&plan), 0);
    assert!(
        plan.effects.iter().any(
            |effect| matches!(effect, Effect::Warn { reason, .. } if *reason == machine_reason::FOREIGN_NODE_KEPT)
        )
    );
    assert_eq!(stage_after(&seen), then);
}

#[rstest]
#[case::nothing_is_done_for_the_loser(200, "false", DeletionStage::Drain)]
#[case::as_long_as_a_drain_may_take(7299, "false", DeletionStage::Drain)]
#[case::then_its_vm_goes(7301, "false", DeletionStage::DeleteVm)]
#[case::by_force_at_once(200, "true", DeletionStage::DeleteVm)]
fn mc_032_a_machine_whose_node_may_be_anothers_waits_without_drain_detachment_or_deletion(
    #[case] second: i64,
    #[case] force: &str,
    #[case] stage: DeletionStage,
) {
    let mut machine = resting(DeletionStage::Drain);
    machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), force.to_owned());
    let mut seen = seen(machine, second);
    seen.node = NodeView::Contested { name: "n".to_owned(), why: "machine a has it".to_owned() };
    let plan = decide(&seen);
    assert_eq!((node_writes(&plan), starts(&plan)), (0, None));
    assert!(!plan.effects.iter().any(|effect| matches!(effect, Effect::DeleteAttachment { .. })), "{plan:?}");
    assert_eq!(stage_after(&seen), Some(stage));
    let is_reported = |effect: &Effect| matches!(effect, Effect::Warn { reason: machine_reason::NODE_CONTESTED, .. });
    assert!(plan.effects.iter().any(is_reported), "{plan:?}");
    // At the end the Node stays, whatever happened to the VM.
    let last_operation = &mut seen.machine.to_mut().status.last_operation;
    last_operation.description = DeletionStage::DeleteNode.marker().to_owned();
    assert_eq!(node_writes(&decide(&seen)), 0);
    assert!(!decide(&seen).effects.iter().any(|effect| matches!(effect, Effect::DeleteNode { .. })));
}

#[test]
fn mc_183_a_node_with_somebody_elses_finalizer_is_not_waited_for() {
    let mut going = cordoned(vec![]);
    going.metadata.deletion_timestamp = Some(Time(at(150)));
    going.metadata.finalizers = Some(vec!["other".to_owned()]);
    let plan = decide(&with_node(seen(resting(DeletionStage::DeleteNode), 200), going));
    assert_eq!(plan.effects, [Effect::RemoveMachineFinalizer]);
}

#[test]
fn mc_184_only_our_finalizer_is_taken_off() {
    let mut machine = resting(DeletionStage::RemoveFinalizer);
    machine.finalizers_mut().push("other".to_owned());
    assert_eq!(after(&decide(&seen(machine.clone(), 200)), &machine).metadata().finalizers, ["other"]);
    assert!(machine.finalizers().contains(&finalizer::MACHINE.to_owned()));
}

#[test]
fn a_node_that_can_not_be_deleted_is_reported() {
    let mut seen = answered(
        with_node(seen(resting(DeletionStage::DeleteVm), 200), cordoned(vec![])),
        Answer::Deleted(Ok(DeletedVm::default())),
    );
    seen.step_failures = StepFailure { step: NodeStep::Delete, error: "forbidden".to_owned() }.into();
    let status = after(&decide(&seen), &seen.machine).status().clone();
    assert_eq!(
        status.last_operation.description,
        "Deletion of Node Object \"n\" failed due to error: forbidden. Initiate node object deletion"
    );
}
