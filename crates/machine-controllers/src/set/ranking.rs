//! The order in which a set deletes surplus machines, and the machines that the scaler has marked.
//!
//! Source: spec/deployment-and-set §6.4, §6.5 with D-50 (the name is the last criterion). Pure.

use std::borrow::Borrow;

use jiff::Timestamp;

use super::counts::is_auto_preserved;
use crate::snapshots::{MachineSnapshot, Metadata, SetSnapshot};
use controller_runtime::snapshot::Snapshot;
use machine_api::{
    names::{DEFAULT_MACHINE_PRIORITY, annotation},
    v1alpha1::MachinePhase,
};

/// The position of a machine in the order of deletion; a smaller rank is deleted first. The fields are the criteria in
/// their order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank<'a> {
    preserved: bool,
    preserved_by_user: bool,
    preserved_until: Option<Timestamp>,
    priority: i64,
    unmarked: bool,
    marked_since: Option<Timestamp>,
    phase: u8,
    created: Option<Timestamp>,
    name: &'a str,
}

impl<'a> Rank<'a> {
    /// The rank of a machine at this time.
    pub fn of(machine: &'a MachineSnapshot, now: Timestamp) -> Self {
        let preserved_until = preserved_until(machine, now);
        let marked_since = marked_since(machine);
        Self {
            preserved: preserved_until.is_some(),
            preserved_by_user: preserved_until.is_some() && !is_auto_preserved(machine),
            preserved_until,
            priority: priority(machine),
            unmarked: marked_since.is_none(),
            marked_since,
            phase: phase_rank(machine.phase()),
            created: machine.created(),
            name: machine.name(),
        }
    }
}

fn preserved_until(machine: &MachineSnapshot, now: Timestamp) -> Option<Timestamp> {
    machine.preserve_expiry_time().filter(|until| *until > now)
}

/// Whether the machine is preserved at this time.
pub fn is_preserved(machine: &MachineSnapshot, now: Timestamp) -> bool {
    preserved_until(machine, now).is_some()
}

/// The machine's priority; the default if absent or unreadable.
pub fn priority(machine: &MachineSnapshot) -> i64 {
    machine
        .annotation(annotation::MACHINE_PRIORITY)
        .and_then(|value| value.parse().ok())
        .unwrap_or(DEFAULT_MACHINE_PRIORITY)
}

/// When the machine was marked for deletion.
pub fn marked_since(machine: &MachineSnapshot) -> Option<Timestamp> {
    machine.annotation(annotation::MARKED_FOR_DELETION_TIME)?.parse().ok()
}

fn phase_rank(phase: &MachinePhase) -> u8 {
    match phase {
        MachinePhase::Failed => 1,
        MachinePhase::CrashLoopBackOff => 2,
        MachinePhase::Unknown => 3,
        MachinePhase::Pending => 4,
        MachinePhase::Available => 5,
        MachinePhase::Running => 6,
        MachinePhase::Unset
        | MachinePhase::Terminating
        | MachinePhase::InPlaceUpdating
        | MachinePhase::InPlaceUpdateSuccessful
        | MachinePhase::InPlaceUpdateFailed
        | MachinePhase::Other(_) => 0,
    }
}

/// Sorts machines into the order of their deletion.
pub fn sort_for_deletion<M: Borrow<MachineSnapshot>>(machines: &mut [M], now: Timestamp) {
    machines.sort_by(|one, other| Rank::of(one.borrow(), now).cmp(&Rank::of(other.borrow(), now)));
}

/// Whether the scaler marked the machine with its last change of the set's replicas. Such a machine is deleted even if
/// the number of machines is correct (decisions.md 5).
pub fn is_marked(machine: &MachineSnapshot, set: &SetSnapshot) -> bool {
    is_named(machine, set.metadata())
}

/// Whether the scaler marked the machine not later than it last changed the size of this set or deployment.
pub fn is_named(machine: &MachineSnapshot, scaled: Metadata<'_>) -> bool {
    // The cheapest test first: hardly any machine has this priority, and every machine is tested.
    if machine.annotation(annotation::MACHINE_PRIORITY) != Some("1") {
        return false;
    }
    let scaled_at = scaled.annotations.get(annotation::LAST_REPLICA_CHANGE_BY_SCALER);
    let Some(scaled_at) = scaled_at.and_then(|time| time.parse::<Timestamp>().ok()) else { return false };
    marked_since(machine).is_some_and(|marked| marked <= scaled_at)
}

#[cfg(test)]
mod tests {

    use rstest::rstest;

    use super::*;
    use crate::set::testing::*;
    use machine_api::v1alpha1::Machine;

    fn order(machines: Vec<Building<Machine>>) -> Vec<String> {
        let mut machines: Vec<MachineSnapshot> = machines.into_iter().map(Building::<Machine>::snapshot).collect();
        sort_for_deletion(&mut machines, now());
        machines.iter().map(|machine| machine.name().to_owned()).collect()
    }

    fn prio(machine: Building<Machine>, priority: &str) -> Building<Machine> {
        machine.annotation(annotation::MACHINE_PRIORITY, priority)
    }

    #[rstest]
    #[case::s_rank_01_priority_beats_phase(vec![
        prio(machine("c").phase(MachinePhase::Terminating), "5"), machine("b").phase(MachinePhase::Pending), prio(running("a"), "1")
    ], &["a", "b", "c"])]
    #[case::s_rank_02_phases(vec![
        running("f"), machine("e").phase(MachinePhase::Available), machine("d").phase(MachinePhase::Pending),
        machine("c").phase(MachinePhase::Unknown), failed("b"), machine("a").phase(MachinePhase::Terminating)
    ], &["a", "b", "c", "d", "e", "f"])]
    #[case::s_rank_03_crash_loop_before_unknown(vec![
        machine("b").phase(MachinePhase::Unknown), machine("a").phase(MachinePhase::CrashLoopBackOff)
    ], &["a", "b"])]
    #[case::a_newborn_that_has_cost_nothing_yet_before_any_other(vec![
        running("a").created_at(1), machine("b").phase(MachinePhase::Pending).created_at(2),
        machine("newborn").phase(MachinePhase::Unset).created_at(3)
    ], &["newborn", "b", "a"])]
    #[case::s_rank_04_oldest_first(vec![
        running("c").created_at(3), running("a").created_at(1), running("b").created_at(2)
    ], &["a", "b", "c"])]
    #[case::s_rank_05_preserved_last(vec![
        running("c").preserved_until(600), failed("b").preserved_until(600), failed("a")
    ], &["a", "b", "c"])]
    #[case::s_rank_07_a_healthy_machine_goes_before_a_preserved_one(vec![
        failed("b").preserved_until(600), running("a")
    ], &["a", "b"])]
    #[case::s_rank_08_then_the_preserved_one(vec![
        failed("b").preserved_until(600).annotation(annotation::MACHINE_PRIORITY, "3"),
        running("a").annotation(annotation::MACHINE_PRIORITY, "3")
    ], &["a", "b"])]
    #[case::s_rank_09_an_unreadable_priority_is_the_default(vec![
        prio(running("b"), "4"), prio(running("a"), "abc")
    ], &["a", "b"])]
    #[case::s_rank_10_negative_priorities(vec![prio(running("b"), "0"), prio(running("a"), "-1")], &["a", "b"])]
    #[case::s_rank_11_an_expired_preservation_counts_for_nothing(vec![
        running("b"), running("a").preserved_until(-1)
    ], &["a", "b"])]
    #[case::d_50_the_name_decides_last(vec![running("b"), running("a")], &["a", "b"])]
    #[case::auto_preserved_before_preserved_by_user(vec![
        failed("b").preserved_until(60), failed("a").preserved_until(600).annotation(annotation::PRESERVE, "auto-preserved")
    ], &["a", "b"])]
    #[case::marked_before_unmarked(vec![
        running("b"), running("a").annotation(annotation::MARKED_FOR_DELETION_TIME, "2026-11-21T08:00:00Z")
    ], &["a", "b"])]
    fn machines_go_in_order(#[case] machines: Vec<Building<Machine>>, #[case] expected: &[&str]) {
        assert_eq!(order(machines), expected);
    }

    const MARK: &str = "2026-11-21T08:00:00Z";

    #[rstest]
    #[case::s_ms_11_marked_before_the_scaling("1", MARK, Some("2026-11-21T08:01:00Z"), true)]
    #[case::s_ms_13_no_scaling_time("1", MARK, None, false)]
    #[case::s_ms_14_marked_after_the_scaling("1", MARK, Some("2026-11-21T07:59:00Z"), false)]
    #[case::s_ms_15_another_priority("2", MARK, Some("2026-11-21T08:01:00Z"), false)]
    #[case::an_unreadable_mark("1", "yesterday", Some("2026-11-21T08:01:00Z"), false)]
    #[case::an_unreadable_scaling_time("1", MARK, Some("now"), false)]
    fn the_scaler_marks(
        #[case] priority: &str,
        #[case] mark: &str,
        #[case] scaled: Option<&str>,
        #[case] marked: bool,
    ) {
        let machine = prio(running("m"), priority).annotation(annotation::MARKED_FOR_DELETION_TIME, mark).build();
        let set = match scaled {
            Some(time) => set(1).annotation(annotation::LAST_REPLICA_CHANGE_BY_SCALER, time).snapshot(),
            None => set(1).snapshot(),
        };
        let machine = MachineSnapshot::from(machine);
        assert_eq!(is_marked(&machine, &set), marked);
    }
}
