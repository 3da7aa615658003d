//! Tables over the stages, for the rule that no stage waits without a report. A new stage does not compile here before it
//! has the reason that people read on a machine at this stage (decisions.md 30).
//!
//! Random histories are in `machine-simulation`, which checks the same for every pass.

use kube::ResourceExt;
use rstest::rstest;

use crate::{
    drain::{progress::Attempt, waiting::Waiting},
    machine::{
        decide::decide,
        in_place::UpdateStage,
        observation::{
            Answer, Call, ClassState, DrainState, Freeze, NodeStep, Observation, Permit, SecretView, Silence,
            StepFailure, TargetCluster, UserData,
        },
        plan::{Effect, Next, deletion_stage::DeletionStage, reporting::reported_reason},
        settings::HealthTimeout,
        testing::*,
    },
    snapshots::MachineSnapshot,
};
use machine_api::{
    names::{label, node_condition},
    v1alpha1::{MachinePhase, OperationState, OperationType},
};
use machine_driver::{Code, Status};

/// The reason that the machine shows once nothing more is done at once.
fn shown_reason(mut seen: Observation) -> Option<String> {
    for _ in 0..8 {
        let plan = decide(&seen);
        let machine = after(&plan, &seen.machine);
        let moves = plan.next == Next::Again && machine != seen.machine;
        seen.machine = machine;
        if plan.effects.iter().any(|effect| matches!(effect, Effect::Remember(_))) {
            seen.flow.answer = None;
        }
        if !moves {
            break;
        }
    }
    reported_reason(&seen.machine).map(str::to_owned)
}

#[rstest]
fn a_creation_that_waits_for_the_driver_names_the_call(
    #[values(Call::Status, Call::Create, Call::Initialize, Call::Delete, Call::DeleteStale)] call: Call,
) {
    let expected = match call {
        Call::Status => "WaitingForProvider",
        Call::Initialize => "WaitingForInitialization",
        Call::Create | Call::Delete | Call::DeleteStale => "WaitingForVM",
    };
    let mut seen = seen(machine(), 61);
    seen.flow.in_flight = Some(call);
    seen.flow.asked_at = Some(at(0));
    assert_eq!(shown_reason(seen).as_deref(), Some(expected));
}

#[rstest]
fn a_creation_without_a_class_reports_it(
    #[values(
        ClassState::NotNamed,
        ClassState::Absent,
        ClassState::WithoutFinalizer,
        ClassState::DeletingWithoutFinalizer,
        ClassState::NodeTemplateInvalid("no".to_owned()),
        ClassState::Usable
    )]
    state: ClassState,
) {
    let expected = match &state {
        ClassState::NotNamed
        | ClassState::Absent
        | ClassState::WithoutFinalizer
        | ClassState::DeletingWithoutFinalizer => Some("ClassNotUsable"),
        ClassState::NodeTemplateInvalid(_) => Some("NodeTemplateInvalid"),
        // The driver is asked at once.
        ClassState::Usable => None,
    };
    let mut seen = seen(machine(), 61);
    seen.class.state = state;
    assert_eq!(shown_reason(seen).as_deref(), expected);
}

#[rstest]
fn a_creation_without_a_secret_reports_it(
    #[values(
        SecretView::Missing(vec!["ns/s".to_owned()]),
        SecretView::Present(UserData::KeyMissing),
        SecretView::Present(UserData::NotNamed),
        SecretView::Present(UserData::WithoutToken),
        SecretView::Present(UserData::NeedsToken)
    )]
    secrets: SecretView,
) {
    let expected = match &secrets {
        SecretView::Missing(_) => Some("SecretNotUsable"),
        SecretView::Present(UserData::KeyMissing) => Some("UserDataMissing"),
        SecretView::Present(UserData::NotNamed | UserData::WithoutToken | UserData::NeedsToken) => None,
    };
    let mut seen = seen(machine(), 61);
    seen.secrets = secrets;
    assert_eq!(shown_reason(seen).as_deref(), expected);
}

#[rstest]
fn a_failed_creation_reports_the_reason(
    #[values(
        Answer::Status(Err(Status::new(Code::Unavailable, "no"))),
        Answer::Created(Err(Status::new(Code::ResourceExhausted, "no"))),
        Answer::Initialized(Err(Status::new(Code::Internal, "no"))),
        Answer::DeletedStale(Ok(machine_driver::DeletedVm::default())),
        Answer::Deleted(Err(Status::new(Code::Internal, "no")))
    )]
    answer: Answer,
) {
    let expected = match &answer {
        Answer::Status(_) | Answer::Created(_) => Some("CreateFailed"),
        Answer::Initialized(_) => Some("InitializeFailed"),
        Answer::DeletedStale(_) => Some("StaleNode"),
        // Of an earlier flow; the driver is asked at once.
        Answer::Deleted(_) => None,
    };
    assert_eq!(shown_reason(answered(seen(machine(), 61), answer)).as_deref(), expected);
}

/// Each phase, on a machine that has reached it in the usual way and whose Node does not come.
#[rstest]
fn each_phase_says_what_ends_it(
    #[values(
        MachinePhase::Unset,
        MachinePhase::Pending,
        MachinePhase::Available,
        MachinePhase::Running,
        MachinePhase::Unknown,
        MachinePhase::InPlaceUpdating,
        MachinePhase::InPlaceUpdateSuccessful,
        MachinePhase::InPlaceUpdateFailed,
        MachinePhase::CrashLoopBackOff,
        MachinePhase::Failed,
        MachinePhase::Terminating
    )]
    phase: MachinePhase,
) {
    let expected = match &phase {
        // The intended phases; the phases in which the driver is asked at once, whose calls and failures are reported as
        // shown above; and the phases that are only entered with a write that reports the reason.
        MachinePhase::Available
        | MachinePhase::Running
        | MachinePhase::Unset
        | MachinePhase::CrashLoopBackOff
        | MachinePhase::Failed
        | MachinePhase::Terminating
        | MachinePhase::Other(_) => None,
        MachinePhase::Pending => Some("CreationTimeout"),
        MachinePhase::Unknown | MachinePhase::InPlaceUpdateSuccessful | MachinePhase::InPlaceUpdateFailed => {
            Some("HealthTimeout")
        }
        MachinePhase::InPlaceUpdating => Some("InPlaceUpdateFailed"),
    };
    let mut late = seen(in_phase(phase, 0, OperationType::HealthCheck, OperationState::Processing), 7200);
    late.permit = Permit::Held;
    late.limits.health = HealthTimeout::After(MINUTE);
    assert_eq!(shown_reason(late).as_deref(), expected);
}

/// A deletion at each stage, while what the stage waits for does not come.
#[rstest]
fn a_deletion_reports_its_wait_at_each_stage(
    #[values(
        DeletionStage::GetVmStatus,
        DeletionStage::Drain,
        DeletionStage::DeleteVolumeAttachments,
        DeletionStage::DeleteVm,
        DeletionStage::DeleteNode,
        DeletionStage::RemoveFinalizer
    )]
    stage: DeletionStage,
) {
    let (seen, expected) = match stage {
        DeletionStage::GetVmStatus => {
            let mut unlinked = resting(stage);
            unlinked.labels_mut().remove(label::NODE);
            let failed = Answer::Status(Err(Status::new(Code::Unavailable, "no")));
            (answered(seen(unlinked, 200), failed), Some("VMDeletionFailed"))
        }
        DeletionStage::Drain => {
            let mut seen = draining(200);
            seen.drain = DrainState::Failed("no".into());
            (seen, Some("DrainFailed"))
        }
        DeletionStage::DeleteVolumeAttachments => {
            let mut seen = draining(200);
            seen.machine = resting(stage).into();
            seen.attachments = None;
            (seen, Some("WaitingForPodList"))
        }
        DeletionStage::DeleteVm => {
            (answered(seen(resting(stage), 200), deletes(Code::Internal)), Some("VMDeletionFailed"))
        }
        DeletionStage::DeleteNode => {
            let mut seen = draining(200);
            seen.machine = resting(stage).into();
            seen.step_failures = StepFailure { step: NodeStep::Delete, error: "no".to_owned() }.into();
            (seen, Some("DeletingNode"))
        }
        DeletionStage::RemoveFinalizer => {
            let mut seen = seen(resting(stage), 200);
            seen.step_failures = StepFailure { step: NodeStep::LetGo, error: "no".to_owned() }.into();
            (seen, Some("LettingGo"))
        }
    };
    assert_eq!(shown_reason(seen).as_deref(), expected);
}

#[rstest]
fn a_deletion_reports_a_call_in_progress(
    #[values(Call::Status, Call::Create, Call::Initialize, Call::Delete, Call::DeleteStale)] call: Call,
) {
    let before = seen(deleted_at(machine(), 100), 100);
    let entered = after(&decide(&before), &before.machine);
    let mut seen = seen(entered, 200);
    (seen.flow.in_flight, seen.flow.asked_at) = (Some(call), Some(at(150)));
    let expected = match call {
        // The deletion's own calls are reported when their stage is entered.
        Call::Status | Call::Delete => "DeletingVM",
        Call::Create | Call::Initialize | Call::DeleteStale => "AwaitingDriver",
    };
    assert_eq!(shown_reason(seen.clone()).as_deref(), Some(expected));
    seen.now = at(210);
    assert_eq!(shown_reason(seen).as_deref(), Some("AwaitingDriver"), "once it lasts");
}

#[rstest]
fn a_drain_reports_its_wait(
    #[values(
        Waiting::Budget { pod: "ns/a".to_owned(), budget: "ns/b".to_owned(), held: 1, since: at(100) },
        Waiting::Detach { volume: "pv".to_owned(), pod: "ns/a".to_owned(), since: at(100), until: at(300) },
        Waiting::Reattach { volume: "pv".to_owned(), pod: "ns/a".to_owned(), since: at(100), until: at(300) },
        Waiting::Pod { pod: "ns/a".to_owned(), since: at(100), until: at(300) },
        Waiting::VolumeNames
    )]
    waiting: Waiting,
) {
    let expected = match &waiting {
        Waiting::Budget { .. } => "DrainBlocked",
        Waiting::Detach { .. } => "WaitingForVolumeDetachment",
        Waiting::Reattach { .. } => "WaitingForVolumeReattachment",
        Waiting::Pod { .. } | Waiting::VolumeNames => "Draining",
    };
    let mut seen = draining(200);
    seen.drain = DrainState::Running {
        progress: "1 of 3 pods left.".to_owned(),
        blocked_by: None,
        waiting: Some(waiting),
        attempt: Attempt::New,
        wake: MINUTE,
    };
    assert_eq!(shown_reason(seen).as_deref(), Some(expected));
}

/// A machine whose Node is at a stage of an update, while what the stage waits for does not come.
#[rstest]
fn an_update_in_place_reports_its_wait_at_each_stage(
    #[values(
        UpdateStage::Candidate,
        UpdateStage::Selected,
        UpdateStage::DrainSuccessful,
        UpdateStage::ReadyForUpdate,
        UpdateStage::Successful,
        UpdateStage::Failed
    )]
    stage: UpdateStage,
) {
    let expected = match stage {
        // The machine runs, and its Node is not selected yet, or its update has ended.
        UpdateStage::Candidate | UpdateStage::Successful => None,
        UpdateStage::Selected => Some("WaitingForPodList"),
        // Both stages are entered with the write that reports the wait for the agent.
        UpdateStage::DrainSuccessful | UpdateStage::ReadyForUpdate => Some("WaitingForInPlaceUpdate"),
        UpdateStage::Failed => Some("InPlaceUpdateFailed"),
    };
    let labels = [(label::CANDIDATE_FOR_UPDATE, "true"), (label::SELECTED_FOR_UPDATE, "true")];
    let mut updating = condition(node_condition::IN_PLACE_UPDATE, "True");
    updating.reason = Some(stage.reason().to_owned());
    let mut node = node(vec![condition("Ready", "True"), updating]);
    node.spec.get_or_insert_default().unschedulable = Some(true);
    let (machine, drain): (MachineSnapshot, DrainState) = match stage {
        UpdateStage::Selected => (running().into(), DrainState::Warming),
        UpdateStage::Candidate | UpdateStage::Successful => (running().into(), DrainState::Due),
        UpdateStage::DrainSuccessful | UpdateStage::ReadyForUpdate | UpdateStage::Failed => {
            // The state after the drain.
            let mut drained = node.clone();
            let reason = UpdateStage::Selected.reason().to_owned();
            if let Some(conditions) = drained.status.get_or_insert_default().conditions.as_mut() {
                for found in conditions.iter_mut().filter(|found| found.type_ == node_condition::IN_PLACE_UPDATE) {
                    found.reason = Some(reason.clone());
                }
            }
            for (key, value) in labels {
                drained.labels_mut().insert(key.to_owned(), value.to_owned());
            }
            let mut before = with_node(seen(running(), 100), drained);
            before.drain = DrainState::Drained;
            let mut machine = MachineSnapshot::from(running());
            for _ in 0..3 {
                before.machine = machine.clone();
                let plan = decide(&before);
                machine = after(&plan, &machine);
                if plan.rule == "in-place-drained" {
                    break;
                }
            }
            (machine, DrainState::Due)
        }
    };
    let chosen = if stage == UpdateStage::Candidate { 1 } else { 2 };
    for (key, value) in labels.into_iter().take(chosen) {
        node.labels_mut().insert(key.to_owned(), value.to_owned());
    }
    if stage == UpdateStage::Failed {
        node.labels_mut().insert(label::UPDATE_RESULT.to_owned(), "failed".to_owned());
    }
    let mut seen = with_node(seen(machine, 200), node);
    seen.drain = drain;
    assert_eq!(shown_reason(seen).as_deref().filter(|reason| *reason != "Settled"), expected);
}

#[rstest]
fn a_freeze_is_reported_where_it_can_be(#[values(Silence::None, Silence::Target, Silence::Control)] silence: Silence) {
    let mut seen = seen(pending(), 100);
    seen.freeze = Freeze::Frozen;
    seen.silence = silence;
    let expected = match silence {
        Silence::Target => Some("Frozen"),
        // The machines can't be written, or the API servers have just come back.
        Silence::Control | Silence::None => None,
    };
    assert_eq!(shown_reason(seen).as_deref(), expected);
}

#[test]
fn without_a_target_cluster_a_machine_ends_as_available() {
    let mut seen = seen(machine(), 61);
    seen.target = TargetCluster::None;
    assert_eq!(shown_reason(seen), None, "the driver is asked at once");
}
