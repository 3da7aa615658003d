//! Every wait is explained: one row for each [`Wait`], matched exhaustively (decisions.md 30).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::{
    drain::{progress::Attempt, waiting::Waiting},
    machine::{
        decide::decide,
        in_place::UpdateStage,
        observation::{
            Answer, AttachmentView, Call, ClassState, DrainState, NodeStep, NodeView, Observation, Pause, Purpose,
            Sibling, StepFailure, shared_instance::VmOwner,
        },
        plan::{Effect, Next, deletion_stage::DeletionStage, waits::Wait},
        testing::*,
    },
};
use machine_api::{
    names::{annotation, label, node_condition, taint},
    v1alpha1::{MachinePhase, OperationState, OperationType},
};
use machine_driver::{Code, Status};

/// The texts that users read about a wait.
struct Row {
    /// A machine that is in the wait.
    seen: Observation,
    /// The reason of its condition; empty where the machine is as it should be, or where the wait lasts moments.
    reason: &'static str,
    /// Parts of its message, in addition to the start of the wait.
    says: &'static [&'static str],
    /// Whether an event reports it.
    event: bool,
}

fn row(seen: Observation, reason: &'static str, says: &'static [&'static str]) -> Row {
    Row { seen, reason, says, event: true }
}

fn quiet(row: Row) -> Row {
    Row { event: false, ..row }
}

fn moving() -> DrainState {
    let waiting = Waiting::Budget { pod: "ns/a".to_owned(), budget: "ns/b".to_owned(), held: 1, since: at(100) };
    DrainState::Running {
        progress: "1 of 3 pods left.".to_owned(),
        blocked_by: Some("ns/b".to_owned()),
        waiting: Some(waiting),
        attempt: Attempt::New,
        wake: MINUTE,
    }
}

fn by_force(mut seen: Observation) -> Observation {
    seen.machine.to_mut().labels_mut().insert(label::FORCE_DELETION.to_owned(), "True".to_owned());
    seen
}

fn with_failed_step(mut seen: Observation, step: NodeStep) -> Observation {
    seen.step_failures = StepFailure { step, error: "no".to_owned() }.into();
    seen
}

/// A machine that has failed and is preserved; its Node has the marks of a preservation and is to be drained.
fn preserved(drain: DrainState) -> Observation {
    let mut kept = in_phase(MachinePhase::Failed, 100, OperationType::HealthCheck, OperationState::Failed);
    kept.status.conditions = vec![condition("Ready", "False")];
    kept.annotations_mut().insert(annotation::PRESERVE.to_owned(), "now".to_owned());
    kept.status.current_status.preserve_expiry_time = Some(Time(at(9000)));
    let mut node = tainted(node(vec![condition("Ready", "False")]), taint::PRESERVED);
    node.annotations_mut().insert(annotation::SCALE_DOWN_DISABLED.to_owned(), "true".to_owned());
    let mut seen = with_node(seen(kept, 200), node);
    seen.drain = drain;
    seen
}

/// A machine whose Node was selected for an update in place.
fn selected(drain: DrainState) -> Observation {
    let mut updating = condition(node_condition::IN_PLACE_UPDATE, "True");
    updating.reason = Some(UpdateStage::Selected.reason().to_owned());
    let mut node = node(vec![condition("Ready", "True"), updating]);
    node.spec.get_or_insert_default().unschedulable = Some(true);
    for key in [label::CANDIDATE_FOR_UPDATE, label::SELECTED_FOR_UPDATE] {
        node.labels_mut().insert(key.to_owned(), "true".to_owned());
    }
    let mut seen = with_node(seen(running(), 200), node);
    seen.drain = drain;
    seen
}

/// A deletion at a stage; the Node still exists.
fn at_stage(stage: DeletionStage) -> Observation {
    let mut seen = draining(200);
    seen.machine = resting(stage).into();
    seen
}

/// Every wait, with a machine in it: a new wait does not compile before it has its row.
#[expect(clippy::too_many_lines, reason = "a list, one row for each wait")]
fn row_of(wait: Wait) -> Row {
    const SINCE_DELETED: &str = "being deleted since 2027-01-15T08:01:40Z";
    match wait {
        // The limit of phase Unknown, which is reported when the phase begins.
        Wait::Deadline => {
            let ill = with_node(seen(running(), 200), node(vec![condition("Ready", "Unknown")]));
            let unknown = after(&decide(&ill), &ill.machine);
            let ill = with_node(seen(unknown, 201), node(vec![condition("Ready", "Unknown")]));
            quiet(row(ill, "NodeUnhealthy", &["ends when", "at 2027-01-15T08:13:20Z the machine is declared Failed"]))
        }
        Wait::SlowCall => {
            let mut seen = seen(machine(), 20);
            (seen.flow.in_flight, seen.flow.asked_at) = (Some(Call::Create), Some(at(0)));
            quiet(row(seen, "", &[]))
        }
        Wait::ClassFinalizer => {
            let mut seen = seen(machine(), 61);
            seen.class.state = ClassState::WithoutFinalizer;
            row(seen, "ClassNotUsable", &["finalizer", "ends when the controller machineclass"])
        }
        Wait::Creation => {
            let full = Answer::Created(Err(Status::new(Code::ResourceExhausted, "full")));
            let says =
                &["full", "next attempt at", "then every", "at 2027-01-15T08:20:00Z the machine is declared Failed"];
            row(answered(seen(machine(), 61), full), "CreateFailed", says)
        }
        Wait::UnknownOutcome => {
            let mut lost = in_phase(MachinePhase::CrashLoopBackOff, 40, OperationType::Create, OperationState::Failed);
            lost.spec.provider_id.clear();
            lost.status.last_operation.error_code = "DeadlineExceeded".to_owned();
            let none = Answer::Status(Err(Status::new(Code::NotFound, "")));
            let mut seen = answered(seen(lost, 61), none);
            seen.class.creation = crate::machine::observation::CreationGuarantee::RecordIntent;
            let says = &["whether the last attempt made a VM", "at 2027-01-15T08:01:40Z another VM is asked for"];
            row(seen, "WaitingForProvider", says)
        }
        Wait::Siblings => {
            let mut ill = in_phase(MachinePhase::Unknown, 0, OperationType::HealthCheck, OperationState::Processing);
            ill.labels_mut().insert(label::NAME.to_owned(), "pool".to_owned());
            let mut seen = seen(ill, 7200);
            let other = |name: &str| Sibling { name: name.to_owned(), phase: "Pending".to_owned(), preserved: false };
            seen.siblings = Some(vec![other("m-other")]);
            let says = &["m-other", "of pool", "ends when each of them is Running or gone"];
            row(seen, "HealthTimeoutReplacementDeferred", says)
        }
        // The machine is as it should be; only the annotation is wrong.
        Wait::PreserveValue => {
            let mut odd = running();
            odd.annotations_mut().insert(annotation::PRESERVE.to_owned(), "perhaps".to_owned());
            row(with_node(seen(odd, 200), node(vec![condition("Ready", "True")])), "", &[])
        }
        Wait::PreservationMarks => quiet(row(
            with_failed_step(preserved(DrainState::Due), NodeStep::Preservation),
            "Preserved",
            &["until 2027-01-15T10:30:00Z", "marked as preserved", "tried again every 5s"],
        )),
        Wait::PreservationViews => row(preserved(DrainState::Warming), "WaitingForPodList", &["ends when the lists"]),
        Wait::PreservationDrain => row(
            preserved(moving()),
            "DrainBlocked",
            &["until 2027-01-15T10:30:00Z", "ns/b", "at 2027-01-15T10:01:40Z pods are deleted by force"],
        ),
        Wait::PreservationDrainFailed => row(
            preserved(DrainState::Failed("no".into())),
            "DrainFailed",
            &[
                "until 2027-01-15T10:30:00Z",
                "drained: no",
                "every 5s",
                "at 2027-01-15T10:01:40Z pods are deleted by force",
            ],
        ),
        Wait::UpdateViews => row(selected(DrainState::Warming), "WaitingForPodList", &["ends when the lists"]),
        Wait::UpdateDrain => {
            row(selected(moving()), "DrainBlocked", &["ns/b", "ends when", "at 2027-01-15T10:00:00Z pods are deleted"])
        }
        Wait::UpdateDrainFailed => row(
            selected(DrainState::Failed("no".into())),
            "DrainingForUpdate",
            &["failed: no", "ends when", "at 2027-01-15T10:00:00Z pods are deleted by force"],
        ),
        Wait::DrainViews => {
            let mut seen = draining(200);
            seen.drain = DrainState::Warming;
            row(seen, "WaitingForPodList", &["ends when the lists"])
        }
        Wait::Drain => {
            let mut seen = draining(200);
            seen.drain = moving();
            row(seen, "DrainBlocked", &[SINCE_DELETED, "ns/b", "at 2027-01-15T10:01:40Z pods are deleted by force"])
        }
        Wait::DrainFailed => {
            let mut seen = draining(200);
            seen.drain = DrainState::Failed("no".into());
            row(seen, "DrainFailed", &[SINCE_DELETED, "every 5s", "at 2027-01-15T10:01:40Z pods are deleted by force"])
        }
        Wait::Contest => {
            let mut seen = draining(200);
            seen.node = NodeView::Contested { name: "n".to_owned(), why: "machine a has it".to_owned() };
            let says = &[SINCE_DELETED, "machine a has it", "force-deletion", "at 2027-01-15T10:01:40Z its VM goes"];
            row(seen, "NodeContested", says)
        }
        Wait::AttachmentViews => {
            let mut seen = at_stage(DeletionStage::DeleteVolumeAttachments);
            seen.attachments = None;
            row(seen, "WaitingForPodList", &["ends when the lists"])
        }
        // The store shows it within moments; the stage was reported when it was entered.
        Wait::Detachment => {
            let mut seen = by_force(at_stage(DeletionStage::DeleteVolumeAttachments));
            seen.attachments = Some(vec![attachment()]);
            quiet(row(seen, "", &[]))
        }
        Wait::DetachmentFailed => {
            let mut seen = by_force(at_stage(DeletionStage::DeleteVolumeAttachments));
            seen = with_failed_step(seen, NodeStep::Attachments);
            seen.attachments = Some(vec![attachment()]);
            let says = &[SINCE_DELETED, "failed due to - no", "every 5s", "at 2027-01-15T10:11:40Z the VM goes"];
            row(seen, "WaitingForVolumeDetachment", says)
        }
        Wait::ClassOrSecret => {
            let mut seen = seen(resting(DeletionStage::DeleteVm), 200);
            seen.class.state = ClassState::Absent;
            row(seen, "ClassNotUsable", &[SINCE_DELETED, "create it", "every 10m0s"])
        }
        Wait::CallOfDeletion => row(
            answered(seen(resting(DeletionStage::DeleteVm), 200), deletes(Code::Internal)),
            "VMDeletionFailed",
            &[SINCE_DELETED, "Internal", "next attempt follows"],
        ),
        // Reported when the call failed.
        Wait::PauseOfDeletion => {
            let failed = answered(seen(resting(DeletionStage::DeleteVm), 200), deletes(Code::Internal));
            let mut seen = seen(after(&decide(&failed), &failed.machine), 201);
            seen.pause = Some(Pause { purpose: Purpose::Deletion, until: at(500), inputs: seen.inputs.clone() });
            quiet(row(seen, "VMDeletionFailed", &[SINCE_DELETED, "next attempt follows"]))
        }
        Wait::OtherMachine => {
            let mut seen = draining(200);
            seen.vm_owner = VmOwner::Leaving("m-other".to_owned());
            quiet(row(seen, "DeletingVM", &[SINCE_DELETED, "the end of machine m-other", "force-deletion"]))
        }
        Wait::UnknownVm => {
            let mut lost = resting(DeletionStage::DeleteVm);
            lost.spec.provider_id.clear();
            let mut seen = answered(seen(lost, 200), deletes(Code::NotFound));
            seen.creation_unknown_since = Some(at(160));
            let says = &[
                SINCE_DELETED,
                "whether the last creation made a VM",
                "every 5s",
                "at 2027-01-15T08:03:40Z the machine goes",
            ];
            quiet(row(seen, "WaitingForProvider", says))
        }
        Wait::NodeDeletion => row(
            with_failed_step(at_stage(DeletionStage::DeleteNode), NodeStep::Delete),
            "DeletingNode",
            &[SINCE_DELETED, "failed due to error: no", "tried again every 5s"],
        ),
    }
}

fn attachment() -> AttachmentView {
    AttachmentView { name: "va".to_owned(), uid: "u".to_owned(), deleting: false }
}

/// The faults in the explanation of a wait.
fn faults(wait: Wait) -> Vec<String> {
    let mut row = row_of(wait);
    let mut plan = decide(&row.seen);
    let mut reported = after(&plan, &row.seen.machine);
    // Effects that are carried out at once, such as taking over the Node's conditions, come first.
    for _ in 0..4 {
        if plan.next != Next::Again {
            break;
        }
        row.seen.machine = reported;
        plan = decide(&row.seen);
        reported = after(&plan, &row.seen.machine);
    }
    let (reason, message) = reported
        .status()
        .machine_conditions
        .first()
        .map_or(("", ""), |condition| (condition.reason.as_str(), condition.message.as_str()));
    let is_reported = !row.reason.is_empty();
    let has_event = plan.effects.iter().any(|effect| matches!(effect, Effect::Warn { .. } | Effect::Tell { .. }));
    let mut all = Vec::new();
    if !matches!(plan.next, Next::LookAgain(_, why) if why == wait) {
        all.push(format!("{:?} comes next", plan.next));
    }
    // Of a wait that another process reported, only the sentence is known.
    let stands = plan.standing.as_deref().map_or_else(|| reason.to_owned(), |standing| standing.reason().to_owned());
    if is_reported && stands != row.reason {
        all.push(format!("{stands:?} is what the plan says, not {:?}", row.reason));
    }
    if reason != row.reason {
        all.push(format!("{reason:?} is its reason, not {:?}", row.reason));
    }
    if is_reported && ![" since 2027-01-15T", "(since 2027-01-15T"].iter().any(|since| message.contains(since)) {
        all.push(format!("since when? {message}"));
    }
    all.extend(
        row.says.iter().filter(|part| !message.contains(**part)).map(|part| format!("{part}: not in {message}")),
    );
    if has_event != row.event {
        all.push(format!("an event: {has_event}"));
    }
    all
}

#[test]
fn every_wait_reports_object_start_limit_and_end() {
    let wrong: Vec<_> = Wait::ALL.iter().map(|wait| (wait, faults(*wait))).filter(|(_, all)| !all.is_empty()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
