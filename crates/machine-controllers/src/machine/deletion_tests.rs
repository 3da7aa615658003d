//! Scenarios of spec/machine-controller §17.9 on the pure decision.

use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use rstest::rstest;

use super::{
    decide::decide,
    deletion::{DeletionStep, next_deletion_step},
    deletion_stage::DeletionStage,
    observation::{
        Answer, AttachmentView, Call, ClassState, DrainState, Flow, Force, LastGood, NodeStep, NodeView, Observation,
        Pause, Purpose, TargetCluster, Trouble, Troubles,
    },
    plan::{Effect, Memo, Next, Plan},
    shared_instance::VmOwner,
    testing::*,
};
use machine_api::{
    names::{finalizer, label, machine_reason, node_condition, stage_text},
    v1alpha1::{Machine, MachinePhase, OperationState, OperationType},
};
use machine_driver::{Code, CreatedVm, DeletedVm, Status, VmIdentity};

/// A machine that is being deleted and rests at a stage since second 100.
pub(super) fn resting(stage: DeletionStage) -> Machine {
    let mut machine = in_phase(MachinePhase::Terminating, 100, OperationType::Delete, OperationState::Processing);
    machine.status.last_operation.description = stage.marker().to_owned();
    deleted_at(machine, 100)
}

fn cordoned(conditions: Vec<NodeCondition>) -> Node {
    let mut node = node(conditions);
    node.spec.get_or_insert_default().unschedulable = Some(true);
    node.status
        .get_or_insert_default()
        .conditions
        .get_or_insert_default()
        .push(condition(node_condition::TERMINATING, "True"));
    node
}

pub(super) fn draining(second: i64) -> Observation {
    with_node(seen(resting(DeletionStage::Drain), second), cordoned(vec![condition("Ready", "True")]))
}

fn stage_after(seen: &Observation) -> Option<DeletionStage> {
    DeletionStage::of(&after(&decide(seen), &seen.machine))
}

pub(super) fn answered(mut seen: Observation, answer: Answer) -> Observation {
    seen.flow.learn(answer);
    seen
}

pub(super) fn deletes(code: Code) -> Answer {
    Answer::Deleted(Err(Status::new(code, "no")))
}

fn no_label(mut machine: Machine) -> Machine {
    machine.labels_mut().clear();
    machine
}

#[test]
fn mc_159_a_deleted_machine_becomes_terminating_at_the_drain_in_one_write() {
    let seen = with_node(seen(deleted_at(running(), 100), 100), node(vec![condition("Ready", "True")]));
    let plan = decide(&seen);
    assert_eq!(machine_writes(&plan), ["status"]);
    let status = after(&plan, &seen.machine).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::Terminating);
    assert_eq!(status.last_operation.description, stage_text::DRAIN);
    assert_eq!(status.last_operation.operation, OperationType::Delete);
    assert_eq!(status.last_operation.state, OperationState::Processing);
    assert!(!plan.effects.contains(&Effect::DeleteToken), "it has joined");
}

#[test]
fn mc_102_a_machine_that_never_joined_loses_its_token() {
    let plan = decide(&seen(deleted_at(pending(), 100), 100));
    assert!(plan.effects.contains(&Effect::DeleteToken));
}

#[test]
fn mc_035_without_our_finalizer_nothing_is_done() {
    let mut machine = resting(DeletionStage::DeleteVm);
    machine.metadata.finalizers = Some(vec!["other".to_owned()]);
    assert_eq!(decide(&seen(machine, 200)), Plan::wait("deletion-not-ours", Next::Settled));
}

#[test]
fn mc_017_mc_086_a_deletion_begins_only_after_the_create_call_returned() {
    let mut seen = seen(deleted_at(machine(), 1), 1);
    seen.flow = Flow { in_flight: Some(Call::Create), ..Flow::default() };
    assert_eq!(next_deletion_step(&seen), DeletionStep::AwaitCall);
}

#[test]
fn mc_037_a_freeze_does_not_stop_a_deletion() {
    let mut seen = seen(resting(DeletionStage::DeleteVm), 200);
    seen.freeze = super::observation::Freeze::Frozen;
    assert_eq!(starts(&decide(&seen)), Some(Call::Delete));
}

#[test]
fn the_node_is_cordoned_before_it_is_marked_and_both_before_the_drain() {
    let fresh = with_node(seen(resting(DeletionStage::Drain), 100), node(vec![condition("Ready", "True")]));
    let plan = decide(&fresh);
    assert!(matches!(plan.effects.as_slice(), [Effect::Cordon, Effect::AddNodeCondition(_)]));
    let Next::StepDrain(order) = decide(&draining(100)).next else { panic!("no drain") };
    assert_eq!((order.force, order.deadline), (Force::No, at(7300)));
}

#[rstest]
#[case::scaled_down(running(), node_condition::REASON_SCALE_DOWN)]
#[case::failed(
    in_phase(MachinePhase::Failed, 1, OperationType::HealthCheck, OperationState::Failed),
    node_condition::REASON_UNHEALTHY
)]
fn the_node_tells_why_it_goes(#[case] machine: Machine, #[case] reason: &str) {
    let first = with_node(seen(deleted_at(machine, 100), 100), node(vec![]));
    let marked = after(&decide(&first), &first.machine);
    let plan = decide(&with_node(seen(marked, 100), node(vec![])));
    let condition = plan.effects.iter().find_map(|effect| match effect {
        Effect::AddNodeCondition(condition) => Some(condition),
        _ => None,
    });
    assert_eq!(condition.unwrap().reason.as_deref(), Some(reason));
}

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
fn a_failed_deletion_of_the_vm_is_told_before_a_node_is_linked_again() {
    let mut seen = answered(seen(no_label(resting(DeletionStage::DeleteVm)), 200), deletes(Code::Unavailable));
    seen.node = NodeView::NotLinked { candidate: Some("n7".to_owned()), namesake: None };
    assert_eq!(decide(&seen).rule, "driver-failed-in-deletion");
}

/// No Node registers with it either: the kubelet writes the name on a label of its own.
#[rstest]
#[case::told(Answer::Status(Ok(new_vm(
    "a-very-long-name-of-a-node-which-is-longer-than-any-value-of-a-label-may-be"
))))]
#[case::told_in_part(Answer::Status(Err(Status::new(Code::Uninitialized, "x").with_partial(new_vm("a-very-long-name-of-a-node-which-is-longer-than-any-value-of-a-label-may-be")))))]
fn a_node_whose_name_is_no_label_holds_up_no_deletion(#[case] answer: Answer) {
    let told = answered(seen(no_label(resting(DeletionStage::GetVmStatus)), 100), answer);
    let machine = after(&decide(&told), &told.machine);
    assert_eq!((machine.labels().get(label::NODE), DeletionStage::of(&machine)), (None, Some(DeletionStage::DeleteVm)));
}

#[test]
fn mc_161_the_driver_tells_the_node() {
    let seen = seen(no_label(resting(DeletionStage::GetVmStatus)), 100);
    assert_eq!(starts(&decide(&seen)), Some(Call::Status));
    let vm = VmIdentity { node_name: "n".to_owned(), ..VmIdentity::default() };
    let told = answered(seen, Answer::Status(Ok(vm)));
    let machine = after(&decide(&told), &told.machine);
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
    let told = answered(seen(machine, second), Answer::Status(Err(Status::new(code, "x"))));
    assert_eq!(stage_after(&told), Some(stage));
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
    let told = answered(seen(machine, 100), Answer::Status(Err(Status::new(code, "x"))));
    assert_eq!(stage_after(&told), stage);
    if stage == Some(DeletionStage::GetVmStatus) {
        let status = after(&decide(&told), &told.machine).status().clone();
        assert_eq!(
            (status.last_operation.state, status.last_operation.error_code.as_str()),
            (OperationState::Failed, "PermissionDenied")
        );
        assert!(matches!(decide(&told).next, Next::LookAgain(after, _) if after.as_secs() == 180));
    }
}

#[rstest]
#[case::mc_165_not_ready_for_long(vec![condition("Ready", "False")], 301, Force::Yes)]
#[case::mc_165_not_ready_for_five_minutes(vec![condition("Ready", "False")], 300, Force::No)]
#[case::mc_167_read_only_for_long(vec![condition("Ready", "True"), condition("ReadonlyFilesystem", "True")], 360, Force::Yes)]
#[case::healthy(vec![condition("Ready", "True")], 360, Force::No)]
#[case::mc_169_the_drain_took_too_long(vec![condition("Ready", "True")], 7301, Force::Yes)]
#[case::mc_170_not_yet(vec![condition("Ready", "True")], 7300, Force::No)]
fn a_drain_is_forced(#[case] conditions: Vec<NodeCondition>, #[case] second: i64, #[case] force: Force) {
    let seen = with_node(seen(resting(DeletionStage::Drain), second), cordoned(conditions));
    let Next::StepDrain(order) = decide(&seen).next else { panic!("no drain") };
    assert_eq!(order.force, force);
}

#[rstest]
#[case::mc_013_mc_168_a_go_boolean("T", Force::Yes)]
#[case::mc_168_no_go_boolean("yes", Force::No)]
fn a_label_forces_the_drain(#[case] value: &str, #[case] force: Force) {
    let mut machine = resting(DeletionStage::Drain);
    machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), value.to_owned());
    let seen = with_node(seen(machine, 100), cordoned(vec![]));
    let Next::StepDrain(order) = decide(&seen).next else { panic!("no drain") };
    assert_eq!(order.force, force);
}

#[test]
fn mc_166_a_node_that_falls_ill_while_it_is_drained_is_drained_by_force() {
    // What the machine remembers of its node is frozen since it became Terminating.
    let mut machine = resting(DeletionStage::Drain);
    machine.status.conditions = vec![condition("Ready", "True")];
    let mut ill = condition("Ready", "Unknown");
    ill.last_transition_time = Some(Time(at(150)));
    for (second, force) in [(450, Force::No), (451, Force::Yes)] {
        let seen = with_node(seen(machine.clone(), second), cordoned(vec![ill.clone()]));
        let Next::StepDrain(order) = decide(&seen).next else { panic!("no drain") };
        assert_eq!(order.force, force);
    }
}

#[test]
fn mc_170_an_attempt_ends_when_the_drain_timeout_does() {
    let Next::StepDrain(order) = decide(&draining(7240)).next else { panic!("no drain") };
    assert_eq!(order.deadline, at(7300));
}

#[rstest]
#[case::mc_171_gently(200, "True", Some(DeletionStage::Drain))]
#[case::mc_172_by_force(7400, "True", Some(DeletionStage::DeleteVolumeAttachments))]
#[case::by_force_because_the_node_is_ill(400, "False", Some(DeletionStage::Drain))]
#[case::by_force_although_the_node_is_ill(7400, "False", Some(DeletionStage::DeleteVolumeAttachments))]
fn a_refused_cordon(#[case] second: i64, #[case] ready: &str, #[case] stage: Option<DeletionStage>) {
    let mut seen = with_node(seen(resting(DeletionStage::Drain), second), node(vec![condition("Ready", ready)]));
    seen.troubles = Trouble { step: NodeStep::Cordon, error: "forbidden".to_owned() }.into();
    seen.attachments = Some(vec![attachment(false)]);
    assert_eq!(stage_after(&seen), stage);
    if stage == Some(DeletionStage::Drain) {
        let status = after(&decide(&seen), &seen.machine).status().clone();
        assert_eq!(
            status.last_operation.description,
            "Drain failed due to - forbidden. Will retry in next sync. Initiate node drain"
        );
    }
}

fn attachment(deleting: bool) -> AttachmentView {
    AttachmentView { name: "va".to_owned(), uid: "va-uid".to_owned(), deleting }
}

#[rstest]
#[case::gently(200, DrainState::Drained, vec![attachment(false)], "Drain successful. Initiate VM deletion")]
#[case::by_force(7400, DrainState::Drained, vec![attachment(false)], "Force Drain successful. Delete Volume Attachments")]
#[case::mc_174_by_force_with_nothing_left_to_detach(
    7400, DrainState::Drained, vec![attachment(true)], "Force Drain successful. Initiate VM deletion"
)]
#[case::gently_in_vain(
    200, DrainState::Failed("x".into()), vec![], "Drain failed due to - x. Will retry in next sync. Initiate node drain"
)]
#[case::mc_215_by_force_in_vain(
    7400,
    DrainState::Failed("x".into()),
    vec![attachment(false)],
    "Drain failed due to - x. However, since it's a force deletion shall continue deletion of VM. Delete Volume Attachments"
)]
fn after_the_drain(
    #[case] second: i64,
    #[case] drain: DrainState,
    #[case] attachments: Vec<AttachmentView>,
    #[case] text: &str,
) {
    let mut seen = draining(second);
    seen.drain = drain;
    seen.attachments = Some(attachments);
    assert_eq!(after(&decide(&seen), &seen.machine).last_operation().description, text);
}

#[rstest]
#[case::its_node_is_ill(400, DeletionStage::Drain)]
#[case::and_its_time_is_over(7400, DeletionStage::DeleteVm)]
fn a_drain_by_force_that_fails_is_tried_again_until_its_time_is_over(
    #[case] second: i64,
    #[case] stage: DeletionStage,
) {
    let ill = cordoned(vec![condition("Ready", "False")]);
    let mut seen = with_node(seen(resting(DeletionStage::Drain), second), ill);
    assert!(seen.is_node_lastingly_ill());
    seen.drain = DrainState::Failed("API server not available".into());
    assert_eq!(stage_after(&seen), Some(stage));
}

#[rstest]
#[case::mc_173_live_ones_are_deleted(false, 1)]
#[case::mc_174_others_are_not_deleted_twice(true, 0)]
fn attachments_are_deleted_by_force(#[case] deleting: bool, #[case] deletions: usize) {
    let mut seen = with_node(seen(resting(DeletionStage::DeleteVolumeAttachments), 7500), cordoned(vec![]));
    seen.attachments = Some(vec![attachment(deleting)]);
    let plan = decide(&seen);
    let deleted = plan.effects.iter().filter(|effect| matches!(effect, Effect::DeleteAttachment { .. })).count();
    assert_eq!(deleted, deletions);
    assert_eq!(
        stage_after(&seen),
        Some(if deleting { DeletionStage::DeleteVm } else { DeletionStage::DeleteVolumeAttachments })
    );
}

#[rstest]
#[case::its_node_is_well_again(400, "True", "False", DeletionStage::Drain)]
#[case::its_node_has_not_been_ill_for_long(250, "False", "False", DeletionStage::Drain)]
#[case::its_node_is_ill(400, "False", "False", DeletionStage::DeleteVm)]
#[case::the_label_forces_it(400, "True", "True", DeletionStage::DeleteVm)]
#[case::its_time_is_over(7400, "True", "False", DeletionStage::DeleteVm)]
fn a_deletion_that_nothing_forces_any_more_drains_after_all(
    #[case] second: i64,
    #[case] ready: &str,
    #[case] label: &str,
    #[case] stage: DeletionStage,
) {
    let mut machine = resting(DeletionStage::DeleteVolumeAttachments);
    machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), label.to_owned());
    let mut seen = with_node(seen(machine, second), cordoned(vec![condition("Ready", ready)]));
    assert_eq!(stage_after(&seen), Some(stage));
    seen.attachments = Some(vec![attachment(false)]);
    let goes_back = stage == DeletionStage::Drain;
    assert_eq!(decide(&seen).rule == "detach-by-force", !goes_back);
    if goes_back {
        seen.machine = after(&decide(&seen), &seen.machine);
        assert!(matches!(decide(&seen).next, Next::StepDrain(order) if order.force == Force::No));
    }
}

#[rstest]
#[case::still_waiting(7899, Some(DeletionStage::DeleteVolumeAttachments))]
#[case::mc_175_given_up(7901, Some(DeletionStage::DeleteVm))]
fn attachments_that_can_not_be_deleted(#[case] second: i64, #[case] stage: Option<DeletionStage>) {
    let mut seen = with_node(seen(resting(DeletionStage::DeleteVolumeAttachments), second), cordoned(vec![]));
    seen.attachments = Some(vec![attachment(false)]);
    seen.troubles = Trouble { step: NodeStep::Attachments, error: "forbidden".to_owned() }.into();
    assert_eq!(stage_after(&seen), stage);
}

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
    let is_told = |effect: &Effect| matches!(effect, Effect::Warn { reason: machine_reason::NODE_CONTESTED, .. });
    assert!(plan.effects.iter().any(is_told), "{plan:?}");
    // At the end the Node stays, whatever became of the VM.
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

#[rstest]
#[case::mc_185_overwritten_by_hand("gone fishing")]
#[case::mc_186_written_by_the_set_controller("Machine deletion is triggered")]
fn a_terminating_machine_without_stage_starts_anew(#[case] text: &str) {
    let mut machine = resting(DeletionStage::DeleteVm);
    machine.status.last_operation.description = text.to_owned();
    let mut seen = with_node(seen(no_label(machine.clone()), 200), node(vec![]));
    seen.node = NodeView::NotLinked { candidate: None, namesake: None };
    assert_eq!(stage_after(&seen), Some(DeletionStage::GetVmStatus));
    // Whose Node is known already, needs not be asked for.
    let seen = with_node(super::testing::seen(machine, 200), node(vec![]));
    assert_eq!(stage_after(&seen), Some(DeletionStage::Drain));
}

/// A machine whose creation has just answered, and which was deleted meanwhile.
fn deleted_while_made(vm: VmIdentity) -> Observation {
    let mut machine = no_label(deleted_at(machine(), 100));
    machine.spec.provider_id.clear();
    answered(seen(machine, 100), Answer::Created(Ok(CreatedVm { vm, last_known_state: None })))
}

fn new_vm(node: &str) -> VmIdentity {
    VmIdentity { provider_id: "cloud:///1".to_owned(), node_name: node.to_owned(), ..VmIdentity::default() }
}

#[rstest]
#[case::with_its_node("n", Some("n"), DeletionStage::Drain)]
#[case::the_driver_names_no_node("", None, DeletionStage::GetVmStatus)]
#[case::the_name_of_the_node_is_no_label(
    "a-very-long-name-of-a-node-which-is-longer-than-any-value-of-a-label-may-be",
    None,
    DeletionStage::GetVmStatus
)]
fn what_the_driver_answered_about_a_vm_is_kept_when_its_machine_was_deleted_meanwhile(
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
    let told = answered(asked, Answer::Status(Err(Status::new(Code::NotFound, ""))));
    let skipped = after(&decide(&told), &told.machine);
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
            // The driver is asked again, and all that is written is written once.
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
fn a_machine_whose_vm_is_anothers_goes_alone_and_says_so(#[case] machine: Machine) {
    let mut seen = with_node(seen(machine, 200), node(vec![condition("Ready", "True")]));
    seen.vm_owner = VmOwner::Living("m-other".to_owned());
    let plan = decide(&seen);
    assert_eq!((plan.rule, node_writes(&plan), starts(&plan)), ("vm-is-anothers", 0, None));
    assert_eq!(plan.effects.last(), Some(&Effect::RemoveMachineFinalizer));
    let is_told = |effect: &Effect| {
        matches!(effect, Effect::Warn { reason, message }
            if *reason == machine_reason::VM_LEFT_TO_ANOTHER && message.contains("m-other"))
    };
    assert!(plan.effects.iter().any(is_told), "{plan:?}");
    let before = DeletionStage::of(&seen.machine);
    let told = after(&plan, &seen.machine);
    assert!(told.last_operation().description.starts_with("VM cloud:///n is left to machine m-other"), "{told:?}");
    assert_eq!(DeletionStage::of(&told), Some(before.unwrap_or(DeletionStage::GetVmStatus)));
    // Who refuses to let it go is told once, and the stage stays.
    seen.troubles = Trouble { step: NodeStep::LetGo, error: "a policy".to_owned() }.into();
    let refused = after(&decide(&seen), &told);
    assert_eq!(DeletionStage::of(&refused), DeletionStage::of(&told));
    assert!(refused.machine_conditions()[0].message.contains("a policy"), "{refused:?}");
    // The other one is gone: all that belongs to a deletion is done after all.
    seen.troubles = Troubles::default();
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
        assert_eq!(decide(&seen).effects, [], "it is told once");
        // The other one is gone: this one looks for the VM itself.
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

#[test]
fn a_pause_of_the_creation_does_not_hold_the_deletion() {
    let mut seen = seen(resting(DeletionStage::DeleteVm), 200);
    seen.pause = Some(Pause { purpose: Purpose::Creation, until: at(500), inputs: seen.inputs.clone() });
    assert_eq!(starts(&decide(&seen)), Some(Call::Delete));
}

#[test]
fn a_node_that_can_not_be_deleted_is_told() {
    let mut seen = answered(
        with_node(seen(resting(DeletionStage::DeleteVm), 200), cordoned(vec![])),
        Answer::Deleted(Ok(DeletedVm::default())),
    );
    seen.troubles = Trouble { step: NodeStep::Delete, error: "forbidden".to_owned() }.into();
    let status = after(&decide(&seen), &seen.machine).status().clone();
    assert_eq!(
        status.last_operation.description,
        "Deletion of Node Object \"n\" failed due to error: forbidden. Initiate node object deletion"
    );
}
