//! The stages of a machine's life as spans: which stage a stored machine is in, since when, and which write has ended it.
//!
//! All times are read from the stored object, so that every leader computes the same spans. A stored time has whole seconds. Source:
//! spec/packaging §7.2.

use jiff::Timestamp;

use super::plan::deletion_stage::DeletionStage;
use crate::snapshots::MachineSnapshot;
use controller_runtime::snapshot::Snapshot;
use machine_api::v1alpha1::MachinePhase;
use mcm_traces::{Key, Outcome, Span, SpanId, TraceId, Value};

/// The kind, as spans name it.
pub const KIND: &str = "Machine";
/// The name of the spans of passes.
pub const PASS: &str = "reconcile Machine";
/// The name of the span of a whole life.
const LIFE: &str = "machine";
/// The state of a machine whose finalizer is removed.
const GONE: &str = "Gone";

/// A stage of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From the creation of the object until its VM exists.
    Create,
    /// Until the Node is healthy.
    Join,
    /// The Node is healthy.
    Run,
    /// Pods are evicted.
    Drain,
    /// Volumes are detached by force.
    Detach,
    /// The VM is deleted.
    DeleteVm,
}

impl Stage {
    /// The name of its span.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Join => "join",
            Self::Run => "run",
            Self::Drain => "drain",
            Self::Detach => "detach",
            Self::DeleteVm => "delete-vm",
        }
    }

    /// Whether failures inside the stage set its stored time anew.
    const fn is_of_deletion(self) -> bool {
        matches!(self, Self::Drain | Self::Detach | Self::DeleteVm)
    }
}

/// A stage that a machine is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The stage.
    pub stage: Stage,
    /// When it began.
    pub since: Timestamp,
}

impl Stretch {
    /// The stage of a stored machine. `None` between stages, and for a machine without the stored time.
    fn stored(machine: &MachineSnapshot) -> Option<Self> {
        let of_phase = machine.last_update_time();
        let (stage, since) = match machine.phase() {
            MachinePhase::Unset | MachinePhase::CrashLoopBackOff => (Stage::Create, machine.created()),
            MachinePhase::Pending => (Stage::Join, of_phase),
            MachinePhase::Running | MachinePhase::Available => (Stage::Run, of_phase),
            MachinePhase::Terminating => {
                let stage = match DeletionStage::of(machine)? {
                    DeletionStage::Drain => Stage::Drain,
                    DeletionStage::DeleteVolumeAttachments => Stage::Detach,
                    DeletionStage::DeleteVm => Stage::DeleteVm,
                    DeletionStage::GetVmStatus | DeletionStage::DeleteNode | DeletionStage::RemoveFinalizer => {
                        return None;
                    }
                };
                (stage, operation_time(machine))
            }
            _ => return None,
        };
        since.map(|since| Self { stage, since })
    }

    /// The stage of a machine, with the earliest known start: a failure inside a stage of the deletion is stored with a new time.
    pub fn of(machine: &MachineSnapshot, known: Option<Self>) -> Option<Self> {
        let stored = Self::stored(machine)?;
        Some(known.filter(|known| known.stage == stored.stage && stored.stage.is_of_deletion()).unwrap_or(stored))
    }
}

/// When the last operation was stored.
fn operation_time(machine: &MachineSnapshot) -> Option<Timestamp> {
    machine.last_operation().last_update_time.as_ref().map(|time| time.0)
}

/// The span of the stage that a write has ended: `before` and `now` are the machine before and after it. `known` is the stage that was
/// seen before the write, and `at` the end where none is stored.
pub fn ended_by_write(
    known: Option<Stretch>,
    before: &MachineSnapshot,
    now: &MachineSnapshot,
    at: Timestamp,
) -> Option<Span> {
    let stretch = Stretch::of(before, known)?;
    if Stretch::of(now, Some(stretch)) == Some(stretch) {
        return None;
    }
    let (state, stored) = match DeletionStage::of(now) {
        Some(stage) => (format!("{stage:?}"), operation_time(now)),
        None => (now.phase().to_string(), now.last_update_time()),
    };
    let outcome = if *now.phase() == MachinePhase::Failed { Outcome::Failed } else { Outcome::Fine };
    Some(span(stretch, now, stored.unwrap_or(at), &state, outcome))
}

/// The span of the stage that the end of the life has ended.
pub fn ended_by_end(known: Option<Stretch>, machine: &MachineSnapshot, at: Timestamp) -> Option<Span> {
    Stretch::of(machine, known).map(|stretch| span(stretch, machine, at, GONE, Outcome::Fine))
}

/// The span of the whole life, the parent of all others. It is recorded when the finalizer is removed.
pub fn life(machine: &MachineSnapshot, at: Timestamp) -> Option<Span> {
    let (trace, since) = (TraceId::of_object(machine.uid()), machine.created()?);
    let span = Span::new(trace, SpanId::of_life(trace), None, LIFE, (since, at));
    Some(span.about(KIND, machine.namespace(), machine.name()))
}

fn span(stretch: Stretch, machine: &MachineSnapshot, until: Timestamp, state: &str, outcome: Outcome) -> Span {
    let trace = TraceId::of_object(machine.uid());
    let (parent, name) = (Some(SpanId::of_life(trace)), stretch.stage.as_str());
    let id = SpanId::derived(trace, parent, name, stretch.since);
    let span = Span { outcome, ..Span::new(trace, id, parent, name, (stretch.since, until)) };
    span.about(KIND, machine.namespace(), machine.name()).with(Key::EndedBy, Value::text(state))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;
    use machine_api::v1alpha1::Machine;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A machine that was created at 0, whose phase and whose operation are stored with these times.
    fn machine(phase: MachinePhase, since: i64, (text, operation): (&str, i64)) -> MachineSnapshot {
        let mut machine = Machine::default();
        machine.metadata.uid = Some("0af76519-16cd-43dd-8448-eb211c80319c".to_owned());
        machine.metadata.creation_timestamp = Some(Time(at(0)));
        machine.status.current_status.phase = phase;
        machine.status.current_status.last_update_time = Some(Time(at(since)));
        text.clone_into(&mut machine.status.last_operation.description);
        machine.status.last_operation.last_update_time = Some(Time(at(operation)));
        machine.into()
    }

    const NONE: (&str, i64) = ("", 0);

    fn deleting(stage: DeletionStage, since: i64) -> MachineSnapshot {
        machine(MachinePhase::Terminating, 100, (stage.marker(), since))
    }

    fn of(phase: MachinePhase, since: i64) -> MachineSnapshot {
        machine(phase, since, NONE)
    }

    #[rstest]
    #[case::the_vm_exists(of(MachinePhase::Unset, 0), of(MachinePhase::Pending, 9), Some(("create", 0, 9, "Pending")))]
    #[case::after_refusals(of(MachinePhase::CrashLoopBackOff, 5), of(MachinePhase::Pending, 9), Some(("create", 0, 9, "Pending")))]
    #[case::a_refusal_ends_nothing(of(MachinePhase::Unset, 0), of(MachinePhase::CrashLoopBackOff, 5), None)]
    #[case::never_made(of(MachinePhase::CrashLoopBackOff, 5), of(MachinePhase::Failed, 9), Some(("create", 0, 9, "Failed")))]
    #[case::the_node_joins(of(MachinePhase::Pending, 9), of(MachinePhase::Running, 80), Some(("join", 9, 80, "Running")))]
    #[case::it_never_joins(of(MachinePhase::Pending, 9), of(MachinePhase::Failed, 1200), Some(("join", 9, 1200, "Failed")))]
    #[case::ill(of(MachinePhase::Running, 80), of(MachinePhase::Unknown, 90), Some(("run", 80, 90, "Unknown")))]
    #[case::healthy_again(of(MachinePhase::Unknown, 90), of(MachinePhase::Running, 95), None)]
    #[case::a_preservation_begins(of(MachinePhase::Running, 80), of(MachinePhase::Running, 95), Some(("run", 80, 95, "Running")))]
    #[case::nothing_changes(of(MachinePhase::Running, 80), of(MachinePhase::Running, 80), None)]
    #[case::deleted(of(MachinePhase::Running, 80), deleting(DeletionStage::GetVmStatus, 100), Some(("run", 80, 100, "GetVmStatus")))]
    #[case::the_drain_begins(deleting(DeletionStage::GetVmStatus, 100), deleting(DeletionStage::Drain, 101), None)]
    #[case::the_drain_fails_once(deleting(DeletionStage::Drain, 101), deleting(DeletionStage::Drain, 130), None)]
    #[case::drained(deleting(DeletionStage::Drain, 101), deleting(DeletionStage::DeleteVm, 160), Some(("drain", 101, 160, "DeleteVm")))]
    #[case::by_force(deleting(DeletionStage::Drain, 101), deleting(DeletionStage::DeleteVolumeAttachments, 160),
        Some(("drain", 101, 160, "DeleteVolumeAttachments")))]
    #[case::detached(deleting(DeletionStage::DeleteVolumeAttachments, 160), deleting(DeletionStage::DeleteVm, 170),
        Some(("detach", 160, 170, "DeleteVm")))]
    #[case::the_vm_is_gone(deleting(DeletionStage::DeleteVm, 170), deleting(DeletionStage::DeleteNode, 200),
        Some(("delete-vm", 170, 200, "DeleteNode")))]
    #[case::the_node_is_gone(
        deleting(DeletionStage::DeleteNode, 200),
        deleting(DeletionStage::RemoveFinalizer, 201),
        None
    )]
    fn pk_103_a_write_ends_a_stage_with_its_stored_times(
        #[case] before: MachineSnapshot,
        #[case] now: MachineSnapshot,
        #[case] expected: Option<(&str, i64, i64, &str)>,
    ) {
        let span = ended_by_write(None, &before, &now, at(5000));
        let found = span.as_ref().map(|span| {
            let (_, state) = span.attributes.iter().find(|(key, _)| *key == Key::EndedBy).unwrap();
            (span.name.as_ref(), span.start.as_second(), span.end.as_second(), state.clone())
        });
        assert_eq!(found, expected.map(|(name, since, until, state)| (name, since, until, Value::text(state))));
        if let Some(span) = span {
            assert_eq!(span.trace.to_string(), "0af7651916cd43dd8448eb211c80319c");
            assert_eq!(span.parent, Some(SpanId::of_life(span.trace)));
            assert_eq!(span.outcome == Outcome::Failed, *now.phase() == MachinePhase::Failed);
            // The next leader would compute the same span.
            assert_eq!(Some(span), ended_by_write(None, &before, &now, at(6000)));
        }
    }

    #[test]
    fn a_drain_that_failed_once_is_one_span() {
        let first = Stretch::of(&deleting(DeletionStage::Drain, 101), None);
        let failed = deleting(DeletionStage::Drain, 130);
        let known = Stretch::of(&failed, first);
        assert_eq!(known, first);
        let span = ended_by_write(known, &failed, &deleting(DeletionStage::DeleteVm, 160), at(5000)).unwrap();
        assert_eq!((span.start, span.end), (at(101), at(160)));
    }

    #[test]
    fn pk_103_the_end_of_a_life_records_the_parent_of_all_spans() {
        let machine = deleting(DeletionStage::DeleteVm, 170);
        let (last, life) = (ended_by_end(None, &machine, at(200)).unwrap(), life(&machine, at(200)).unwrap());
        assert_eq!((last.name.as_ref(), last.start, last.end), ("delete-vm", at(170), at(200)));
        assert_eq!((life.id, life.parent, life.start, life.end), (last.parent.unwrap(), None, at(0), at(200)));
        assert_eq!(ended_by_end(None, &deleting(DeletionStage::RemoveFinalizer, 201), at(202)), None);
    }
}
