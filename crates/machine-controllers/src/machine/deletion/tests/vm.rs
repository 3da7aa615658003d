//! VMs that no machine records, and what the call that deletes a VM needs.

use super::*;

/// A machine that was deleted while its VM was being created; the creation has just been answered.
fn deleted_while_made(vm: VmIdentity) -> Observation {
    let mut machine = no_label(deleted_at(machine(), 100));
    machine.spec.provider_id.clear();
    answered(seen(machine, 100), Answer::Created(Ok(CreatedVm { vm, last_known_state: None })))
}

#[rstest]
#[case::with_its_node("n", Some("n"), DeletionStage::Drain)]
#[case::the_driver_names_no_node("", None, DeletionStage::GetVmStatus)]
#[case::the_name_of_the_node_is_no_label(
    "a-very-long-name-of-a-node-which-is-longer-than-any-value-of-a-label-may-be",
    None,
    DeletionStage::GetVmStatus
)]
fn the_answer_about_a_vm_is_kept_when_its_machine_was_deleted_meanwhile(
    #[case] answered: &str,
    #[case] label: Option<&str>,
    #[case] stage: DeletionStage,
) {
    let seen = deleted_while_made(new_vm(answered));
    let plan = decide(&seen);
    let marked = after(&plan, &seen.machine);
    assert_eq!(marked.provider_id(), "cloud:///1");
    assert_eq!(marked.labels().get(label::NODE).map(String::as_str), label);
    assert_eq!(DeletionStage::of(&marked), Some(stage));
    assert_eq!(machine_writes(&plan), ["machine", "status"], "the identity is written before it is forgotten");
    let forgets = plan.effects.iter().position(|effect| *effect == Effect::Remember(Memo::FlowDone));
    assert!(forgets.is_some_and(|at| at >= 2), "{plan:?}");
}

#[test]
fn a_vm_that_took_the_name_of_an_older_node_is_not_linked_to_it() {
    let mut seen = deleted_while_made(new_vm("n"));
    seen.flow.learn(Answer::DeletedStale(Err(Status::new(Code::Unavailable, "later"))));
    let marked = after(&decide(&seen), &seen.machine);
    assert_eq!((marked.provider_id(), marked.labels().get(label::NODE)), ("cloud:///1", None));
}

#[test]
fn without_target_the_identity_is_kept_too() {
    let mut seen = deleted_while_made(new_vm("n"));
    seen.target = TargetCluster::None;
    seen.node = NodeView::NoTarget;
    let marked = after(&decide(&seen), &seen.machine);
    assert_eq!((marked.provider_id(), marked.labels().get(label::NODE)), ("cloud:///1", None));
    assert_eq!(DeletionStage::of(&marked), Some(DeletionStage::DeleteVm));
}

#[test]
fn mc_188_a_machine_that_never_had_a_vm_still_asks_the_driver_to_delete_it() {
    let machine = in_phase(MachinePhase::CrashLoopBackOff, 1, OperationType::Create, OperationState::Failed);
    let mut machine = no_label(deleted_at(machine, 100));
    machine.spec.provider_id.clear();
    let first = seen(machine, 100);
    let marked = after(&decide(&first), &first.machine);
    let asked = seen(marked, 100);
    assert_eq!(starts(&decide(&asked)), Some(Call::Status));
    let reported = answered(asked, Answer::Status(Err(Status::new(Code::NotFound, ""))));
    let skipped = after(&decide(&reported), &reported.machine);
    assert_eq!(starts(&decide(&seen(skipped, 100))), Some(Call::Delete));
}

#[rstest]
#[case::nobody_knows_what_became_of_its_creation("", Some(150), None)]
#[case::long_enough_ago("", Some(140), Some(Effect::RemoveMachineFinalizer))]
#[case::each_creation_had_its_outcome("", None, Some(Effect::RemoveMachineFinalizer))]
#[case::its_vm_is_known("cloud:///n", Some(150), Some(Effect::RemoveMachineFinalizer))]
fn nothing_found_by_name_is_believed_once_the_last_creation_would_show_itself(
    #[case] id: &str,
    #[case] unknown_since: Option<i64>,
    #[case] ends_with: Option<Effect>,
) {
    for answer in [Answer::Deleted(Ok(DeletedVm::default())), deletes(Code::NotFound)] {
        let mut machine = resting(DeletionStage::DeleteVm);
        machine.spec.provider_id = id.to_owned();
        let mut seen = answered(seen(machine, 200), answer);
        seen.creation_unknown_since = unknown_since.map(at);
        let plan = decide(&seen);
        assert_eq!(plan.effects.iter().find(|effect| **effect == Effect::RemoveMachineFinalizer), ends_with.as_ref());
        if ends_with.is_none() {
            // The driver is asked again, and the status is written only once.
            assert!(plan.effects.contains(&Effect::Remember(Memo::AnswerDone)), "{plan:?}");
            assert!(matches!(plan.next, Next::LookAgain(after, _) if after.as_secs() == 5), "{plan:?}");
            seen.machine = after(&plan, &seen.machine);
            assert_eq!(machine_writes(&decide(&seen)), Vec::<&str>::new());
            seen.flow.answer = None;
            assert_eq!(starts(&decide(&seen)), Some(Call::Delete));
        }
    }
}

#[rstest]
#[case::not_found(Code::NotFound, Force::No, DeletionStage::GetVmStatus)]
#[case::the_driver_can_not_tell(Code::Unimplemented, Force::No, DeletionStage::DeleteVm)]
#[case::by_force_it_is_waited_for_without_its_node(Code::NotFound, Force::Yes, DeletionStage::DeleteVm)]
fn a_vm_that_may_show_itself_is_looked_for_before_its_drain_is_skipped(
    #[case] code: Code,
    #[case] force: Force,
    #[case] stage: DeletionStage,
) {
    let mut machine = no_label(resting(DeletionStage::GetVmStatus));
    machine.spec.provider_id.clear();
    if force == Force::Yes {
        machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), "true".to_owned());
    }
    let mut seen = answered(seen(machine, 200), Answer::Status(Err(Status::new(code, "x"))));
    seen.creation_unknown_since = Some(at(150));
    assert_eq!(stage_after(&seen), Some(stage));
    if stage == DeletionStage::GetVmStatus {
        assert!(decide(&seen).effects.contains(&Effect::Remember(Memo::AnswerDone)), "it is asked again");
        seen.now = at(210);
        assert_eq!(stage_after(&seen), Some(DeletionStage::DeleteVm), "and believed at last");
    }
}

#[rstest]
#[case::before_anything_else(deleted_at(running(), 100))]
#[case::while_it_is_drained(resting(DeletionStage::Drain))]
#[case::before_its_vm(resting(DeletionStage::DeleteVm))]
#[case::before_its_node(resting(DeletionStage::DeleteNode))]
fn a_machine_whose_vm_belongs_to_another_machine_ends_alone_and_reports_it(#[case] machine: Machine) {
    let mut seen = with_node(seen(machine, 200), node(vec![condition("Ready", "True")]));
    seen.vm_owner = VmOwner::Living("m-other".to_owned());
    let plan = decide(&seen);
    assert_eq!((plan.rule, node_writes(&plan), starts(&plan)), ("vm-is-anothers", 0, None));
    assert_eq!(plan.effects.last(), Some(&Effect::RemoveMachineFinalizer));
    let is_reported = |effect: &Effect| {
        matches!(effect, Effect::Warn { reason, message }
            if *reason == machine_reason::VM_LEFT_TO_ANOTHER && message.contains("m-other"))
    };
    assert!(plan.effects.iter().any(is_reported), "{plan:?}");
    let before = DeletionStage::of(&seen.machine);
    let reported = after(&plan, &seen.machine);
    assert!(
        reported.last_operation().description.starts_with("VM cloud:///n is left to machine m-other"),
        "{reported:?}"
    );
    assert_eq!(DeletionStage::of(&reported), Some(before.unwrap_or(DeletionStage::GetVmStatus)));
    // A refused removal of the finalizer is reported once, and the stage stays.
    seen.step_failures = StepFailure { step: NodeStep::LetGo, error: "a policy".to_owned() }.into();
    let refused = after(&decide(&seen), &reported);
    assert_eq!(DeletionStage::of(&refused), DeletionStage::of(&reported));
    assert!(refused.machine_conditions()[0].message.contains("a policy"), "{refused:?}");
    // The other machine is gone: this machine's deletion is done in full after all.
    seen.step_failures = StepFailures::default();
    seen.machine = refused;
    seen.vm_owner = VmOwner::This;
    assert_ne!(next_deletion_step(&seen), DeletionStep::RemoveFinalizer);
}

#[rstest]
#[case::it_waits_for_the_other_one(Force::No, "vm-is-being-deleted")]
#[case::by_force_it_does_not(Force::Yes, "step-drain")]
fn a_machine_whose_vm_is_deleted_with_another_one_does_nothing_meanwhile(#[case] force: Force, #[case] rule: &str) {
    let mut seen = draining(200);
    if force == Force::Yes {
        let machine = seen.machine.to_mut();
        machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), "true".to_owned());
    }
    seen.vm_owner = VmOwner::Leaving("m-other".to_owned());
    let plan = decide(&seen);
    assert_eq!((plan.rule, node_writes(&plan), starts(&plan)), (rule, 0, None));
    if force == Force::No {
        seen.machine = after(&plan, &seen.machine);
        assert_eq!(decide(&seen).effects, [], "it is reported once");
        // The other machine is gone: this machine looks for the VM itself.
        seen.vm_owner = VmOwner::This;
        assert_eq!(next_deletion_step(&seen), DeletionStep::DrainNode);
    }
}

#[test]
fn mc_190_without_target_the_vm_goes_at_once() {
    let mut seen = seen(deleted_at(no_label(running()), 100), 100);
    seen.target = TargetCluster::None;
    seen.node = NodeView::NoTarget;
    assert_eq!(stage_after(&seen), Some(DeletionStage::DeleteVm));
    seen.machine = after(&decide(&seen), &seen.machine);
    assert_eq!(starts(&decide(&seen)), Some(Call::Delete));
    let plan = decide(&answered(seen, Answer::Deleted(Ok(DeletedVm::default()))));
    assert_eq!(plan.effects, [Effect::RemoveMachineFinalizer]);
}

#[rstest]
#[case::mc_043_mc_191_nothing_is_remembered(ClassState::Absent, LastGood::Unknown, None)]
#[case::what_was_good_still_serves(ClassState::Absent, LastGood::Remembered, Some(Call::Delete))]
#[case::mc_042_a_bad_node_template_does_not_matter(
    ClassState::NodeTemplateInvalid(String::new()),
    LastGood::Unknown,
    Some(Call::Delete)
)]
#[case::a_missing_finalizer_does_not_matter(ClassState::WithoutFinalizer, LastGood::Unknown, Some(Call::Delete))]
fn a_class_is_needed_for_the_vm(#[case] state: ClassState, #[case] last_good: LastGood, #[case] call: Option<Call>) {
    let mut seen = seen(resting(DeletionStage::DeleteVm), 200);
    seen.class.state = state;
    seen.class.last_good = last_good;
    let plan = decide(&seen);
    assert_eq!(starts(&plan), call);
    if call.is_none() {
        let status = after(&plan, &seen.machine).status().clone();
        assert_eq!(status.last_operation.error_code, "FailedPrecondition");
        assert_eq!(stage_after(&seen), Some(DeletionStage::DeleteVm));
        assert!(status.machine_conditions[0].message.contains("create it"));
    }
}

#[test]
fn mc_043_a_missing_class_does_not_stop_the_drain() {
    let mut seen = draining(200);
    seen.class.state = ClassState::Absent;
    assert!(matches!(decide(&seen).next, Next::StepDrain(_)));
}

#[test]
fn a_vm_deletion_that_failed_is_not_repeated_before_its_time() {
    let mut seen = seen(resting(DeletionStage::DeleteVm), 200);
    seen.pause = Some(Pause { purpose: Purpose::Deletion, until: at(500), inputs: seen.inputs.clone() });
    assert_eq!(starts(&decide(&seen)), None);
    seen.inputs.force = Force::Yes;
    assert_eq!(starts(&decide(&seen)), Some(Call::Delete));
}

#[rstest]
#[case::set_back(-7200)]
#[case::set_forward(7200)]
fn a_step_of_the_clock_changes_no_pause(#[case] by: i64) {
    let starts_at = |second: i64| {
        let mut seen = seen(resting(DeletionStage::DeleteVm), second + by);
        seen.steady = at(second);
        seen.pause = Some(Pause { purpose: Purpose::Deletion, until: at(500), inputs: seen.inputs.clone() });
        starts(&decide(&seen))
    };
    assert_eq!((starts_at(499), starts_at(500)), (None, Some(Call::Delete)));
}

#[rstest]
#[case::nothing_changed(Force::No, false)]
#[case::the_user_asked_for_force_meanwhile(Force::Yes, true)]
fn a_vm_deletion_whose_inputs_changed_meanwhile_is_repeated_at_once(#[case] force: Force, #[case] at_once: bool) {
    let mut seen = answered(seen(resting(DeletionStage::DeleteVm), 200), deletes(Code::ResourceExhausted));
    seen.flow.asked_with = Some(seen.inputs.clone());
    seen.inputs.force = force;
    assert_eq!(decide(&seen).next == Next::Again, at_once);
}

#[test]
fn a_pause_of_the_creation_does_not_hold_the_deletion() {
    let mut seen = seen(resting(DeletionStage::DeleteVm), 200);
    seen.pause = Some(Pause { purpose: Purpose::Creation, until: at(500), inputs: seen.inputs.clone() });
    assert_eq!(starts(&decide(&seen)), Some(Call::Delete));
}

#[rstest]
#[case::linked(Answer::Created(Ok(CreatedVm { vm: new_vm("n"), last_known_state: Some("s".to_owned()) })))]
#[case::without_a_node(Answer::Created(Ok(CreatedVm { vm: new_vm(""), last_known_state: Some("s".to_owned()) })))]
#[case::failed(Answer::Created(Err(Status { last_known_state: Some("s".to_owned()), ..Status::new(Code::Unavailable, "no") })))]
fn the_state_of_a_creation_that_answers_during_the_deletion_is_stored(#[case] answer: Answer) {
    let machine = deleted_at(no_label(running()), 100);
    let observed = answered(seen(machine, 100), answer);
    assert_eq!(after(&decide(&observed), &observed.machine).last_known_state(), "s");
}
