//! The time limits of a machine, each with the time that has passed.
//!
//! The rules compare these values, and every deadline that is shown is computed from them. Pure. Source:
//! spec/machine-controller §4.10, §5.4, §6.4.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{node::lost_link::was_linked, observation::Observation, settings::HealthTimeout};
use crate::{
    snapshots::MachineSnapshot,
    times::{after, since},
};
use controller_runtime::clock::as_watched;
use machine_api::{names::machine_condition, v1alpha1::MachinePhase};

/// The state or action that is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// The time from the machine's creation until it is Running.
    Creation,
    /// The time that a machine may be unhealthy.
    Health,
    /// The time that an in-place update may take.
    InPlaceUpdate,
    /// The time after which pods on the Node are deleted by force, and lists and attachments are no longer waited for.
    Drain,
}

/// A time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit {
    /// The state or action that is limited.
    pub of: Limited,
    /// Its length.
    pub length: Duration,
    /// How much time has passed; may be more than the length. After a step of the clock, only the time that this process has
    /// watched counts.
    pub elapsed: Duration,
}

impl TimeLimit {
    /// A limit of this length, of which `elapsed` has passed by the clock.
    fn of(seen: &Observation, of: Limited, length: Duration, elapsed: Duration) -> Self {
        Self { of, length, elapsed: as_watched(elapsed, length, seen.step) }
    }

    /// Whether the limit has passed. At its exact end it has not.
    pub fn has_passed(self) -> bool {
        self.elapsed > self.length
    }

    /// The time that is left.
    pub fn left(self) -> Duration {
        self.length.saturating_sub(self.elapsed)
    }

    /// The time until the limit has passed.
    pub fn until_passed(self) -> Duration {
        self.left() + Duration::from_millis(1)
    }

    /// When it ends or has ended.
    pub fn ends_at(self, now: Timestamp) -> Timestamp {
        let began = SignedDuration::try_from(self.elapsed).ok().and_then(|elapsed| now.checked_sub(elapsed).ok());
        after(began.unwrap_or(now), self.length)
    }

    /// Like [`Self::ends_at`], for a limit that began at this stamp. After the clock was set back, the result also stays the
    /// same from pass to pass, until the clock reaches the stamp again.
    pub fn ends_at_since(self, began: Timestamp, now: Timestamp) -> Timestamp {
        self.ends_at(now).max(after(began, self.length))
    }
}

/// The limit of a machine that is not Running yet; it begins with the machine's creation.
pub fn creation_limit(seen: &Observation) -> TimeLimit {
    TimeLimit::of(seen, Limited::Creation, seen.limits.creation, seen.age())
}

/// The limit of the phase of a machine that has a Node's name; `None` when the phase has no limit. A machine that lost the
/// name before its Node joined keeps its creation timeout; in the original it stays Pending for ever.
pub fn phase_limit(seen: &Observation) -> Option<TimeLimit> {
    if seen.node_label().is_empty() {
        let has_lost_it = *seen.phase() == MachinePhase::Pending && was_linked(seen);
        return has_lost_it.then(|| joining_limit(seen));
    }
    match seen.phase() {
        MachinePhase::Pending => Some(joining_limit(seen)),
        MachinePhase::Unknown | MachinePhase::InPlaceUpdateSuccessful | MachinePhase::InPlaceUpdateFailed => {
            let HealthTimeout::After(length) = seen.limits.health else { return None };
            Some(TimeLimit::of(seen, Limited::Health, length, in_phase_for(seen)))
        }
        MachinePhase::InPlaceUpdating => {
            Some(TimeLimit::of(seen, Limited::InPlaceUpdate, seen.limits.in_place_update, in_phase_for(seen)))
        }
        MachinePhase::Unset
        | MachinePhase::Available
        | MachinePhase::Running
        | MachinePhase::Terminating
        | MachinePhase::Failed
        | MachinePhase::CrashLoopBackOff
        | MachinePhase::Other(_) => None,
    }
}

/// Whether a machine can have a limit of its stage: a machine that runs or has failed, and is not being deleted, has none.
/// Cheaper than an observation.
pub fn may_be_limited(machine: &MachineSnapshot) -> bool {
    let phase = machine.phase();
    machine.is_deleting() || !matches!(phase, MachinePhase::Running | MachinePhase::Available | MachinePhase::Failed)
}

/// The creation timeout of a Pending machine. It begins with the machine's creation; if an existing VM was taken over, with
/// the phase (M-13).
fn joining_limit(seen: &Observation) -> TimeLimit {
    let status = seen.machine.status();
    let adopted = status.machine_conditions.iter().any(|condition| {
        condition.type_ == machine_condition::PROGRESSING
            && condition.reason == machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM
    });
    let limit = creation_limit(seen);
    let in_phase = status.current_status.last_update_time.as_ref().map(|began| since(seen.now, began.0));
    match in_phase {
        Some(in_phase) if adopted => TimeLimit { elapsed: in_phase.min(limit.elapsed), ..limit },
        _ => limit,
    }
}

/// The limit before pods are deleted by force; `None` unless the machine is being deleted.
pub fn drain_limit(seen: &Observation) -> Option<TimeLimit> {
    deletion_limit(seen, seen.limits.drain)
}

/// The limit of something that delays a deletion; it begins with the deletion. `None` unless the machine is being deleted.
pub fn deletion_limit(seen: &Observation, length: Duration) -> Option<TimeLimit> {
    let elapsed = seen.deleting_for()?;
    Some(TimeLimit::of(seen, Limited::Drain, length, elapsed))
}

/// The limit of something on the Node that began at this time.
pub fn node_limit(seen: &Observation, length: Duration, began: Timestamp) -> TimeLimit {
    TimeLimit::of(seen, Limited::Drain, length, since(seen.now, began))
}

/// How long the machine has been in its phase.
fn in_phase_for(seen: &Observation) -> Duration {
    let began = seen.machine.last_update_time();
    began.map(|began| since(seen.now, began)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{super::testing::*, *};
    use controller_runtime::clock::Step;
    use machine_api::v1alpha1::{Machine, OperationState, OperationType};

    fn unknown(since: i64) -> Machine {
        in_phase(MachinePhase::Unknown, since, OperationType::HealthCheck, OperationState::Processing)
    }

    #[rstest]
    #[case::pending(pending(), 60, Some((Limited::Creation, at(20 * 60))))]
    #[case::unhealthy(unknown(30), 60, Some((Limited::Health, at(30 + 10 * 60))))]
    #[case::a_limit_that_has_passed_keeps_its_time(unknown(30), 7200, Some((Limited::Health, at(30 + 10 * 60))))]
    #[case::running(running(), 60, None)]
    #[case::no_node_yet(machine(), 60, None)]
    fn a_phase_ends_at(#[case] machine: Machine, #[case] now: i64, #[case] expected: Option<(Limited, Timestamp)>) {
        let seen = seen(machine, now);
        assert_eq!(phase_limit(&seen).map(|limit| (limit.of, limit.ends_at(seen.now))), expected);
    }

    #[rstest]
    #[case::creation(pending(), Limited::Creation)]
    #[case::health(unknown(0), Limited::Health)]
    #[case::in_place_update(
        in_phase(MachinePhase::InPlaceUpdating, 0, OperationType::InPlaceUpdate, OperationState::Processing),
        Limited::InPlaceUpdate
    )]
    fn a_limit_that_began_before_a_step_counts_once_it_was_watched(#[case] machine: Machine, #[case] of: Limited) {
        let at_minute = |minute: i64| {
            let mut seen = seen(machine.clone(), 7200 + 60 * minute);
            seen.step = Some(Step { watched: Duration::from_secs(60 * minute.unsigned_abs()) });
            phase_limit(&seen).unwrap()
        };
        assert_eq!((at_minute(0).of, at_minute(0).has_passed(), at_minute(9).has_passed()), (of, false, false));
        assert_eq!(at_minute(4).left(), 6 * MINUTE, "and is looked at when it has been");
        assert!(at_minute(10).has_passed());
    }

    #[test]
    fn the_limit_itself_is_too_early() {
        let limit = |elapsed| TimeLimit { of: Limited::Drain, length: MINUTE, elapsed };
        assert!(!limit(MINUTE).has_passed());
        assert!(limit(MINUTE + limit(MINUTE).until_passed()).has_passed());
    }

    #[test]
    fn only_a_machine_that_is_being_deleted_has_a_drain_limit() {
        assert_eq!(drain_limit(&seen(running(), 60)), None);
        let limit = drain_limit(&seen(deleted_at(running(), 100), 160)).map(|limit| limit.ends_at(at(160)));
        assert_eq!(limit, Some(at(100 + 2 * 3600)));
    }
}
