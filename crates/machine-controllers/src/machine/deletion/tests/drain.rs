//! The drain of a deletion, and volumes that are detached by force.

use super::*;
use crate::machine::observation::replacement::Replacement;

#[test]
fn the_node_is_cordoned_before_it_is_marked_and_both_before_the_drain() {
    let fresh = with_node(seen(resting(DeletionStage::Drain), 100), node(vec![condition("Ready", "True")]));
    let plan = decide(&fresh);
    assert!(matches!(plan.effects.as_slice(), [Effect::Cordon, Effect::AddNodeCondition(_)]));
    let Next::StepDrain(order) = decide(&draining(100)).next else { panic!("no drain") };
    assert_eq!((order.force, order.deadline), (Force::No, at(7300)));
}

#[test]
fn pk_108_users_of_a_node_are_told_once_that_its_machine_is_replaced() {
    let replacement = Some(Replacement::Deleted { set: "set".to_owned() });
    let fresh = with_node(seen(resting(DeletionStage::Drain), 100), node(vec![condition("Ready", "True")]));
    let plan = decide(&Observation { replacement: replacement.clone(), ..fresh });
    let [Effect::Cordon, Effect::TellNode { reason, message }, Effect::AddNodeCondition(mark)] =
        plan.effects.as_slice()
    else {
        panic!("{plan:?}")
    };
    assert_eq!(*reason, node_condition::REASON_NODE_REPLACEMENT);
    assert!(message.ends_with(" is replaced: it was deleted, and MachineSet set makes another"), "{message}");
    let marked = with_node(seen(resting(DeletionStage::Drain), 100), node(vec![NodeCondition::clone(mark)]));
    let plan = decide(&Observation { replacement, ..marked });
    assert!(!plan.effects.iter().any(|effect| matches!(effect, Effect::TellNode { .. })), "{plan:?}");
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
    // The conditions that the machine stores do not change any more once it is Terminating.
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
    seen.step_failures = StepFailure { step: NodeStep::Cordon, error: "forbidden".to_owned() }.into();
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
    assert!(seen.is_node_lastingly_unhealthy());
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
    seen.step_failures = StepFailure { step: NodeStep::Attachments, error: "forbidden".to_owned() }.into();
    assert_eq!(stage_after(&seen), stage);
}
