//! What a VM on a provider's list is, and what a machine is whose VM is not on it.
//!
//! Whether a machine claims a VM, and when an orphan may go, are the safety room's own rules. Pure. Source:
//! spec/extension-apiserver §1.2.

use jiff::Timestamp;
use machine_api::v1alpha1::MachinePhase;
use machine_controllers::{
    safety::orphans::{Claim, Guards, still_to_wait},
    snapshots::MachineSnapshot,
    times::after,
};

/// What a VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A machine has it, or is about to.
    Owned,
    /// No machine has it.
    Orphan,
    /// A machine has it, and the provider does not.
    Missing,
    /// Its machine has another one.
    Duplicate,
    /// No machine has it, and classes of different inventories list it.
    Foreign,
    /// It can't be told.
    Unknown,
}

impl State {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Owned => "Owned",
            Self::Orphan => "Orphan",
            Self::Missing => "Missing",
            Self::Duplicate => "Duplicate",
            Self::Foreign => "Foreign",
            Self::Unknown => "Unknown",
        }
    }
}

/// How many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// This one only.
    One,
    /// Others too.
    More,
}

impl Number {
    /// Of so many.
    pub fn of(count: usize) -> Self {
        if count > 1 { Self::More } else { Self::One }
    }
}

/// Whose a VM was when the provider was asked for its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// A machine's.
    Somebodys,
    /// No machine's.
    Nobodys,
}

/// What a listed VM is. `namesakes`: VMs that are listed for the same machine; `inventories`: those that list it. A VM whose
/// machine has gone since the list was made has most likely gone with it, and is no orphan until a newer list shows it.
pub fn state_of_vm(claim: &Claim, namesakes: Number, inventories: Number, then: Then) -> State {
    match (claim, namesakes, inventories) {
        (Claim::Own, _, _) | (Claim::InCreation, Number::One, _) => State::Owned,
        (Claim::InCreation | Claim::OtherVm(_), Number::More, _) | (Claim::Leaving, _, _) => State::Duplicate,
        (Claim::Nobody, _, Number::More) => State::Foreign,
        (Claim::Nobody, _, Number::One) => match then {
            Then::Somebodys => State::Unknown,
            Then::Nobodys => State::Orphan,
        },
        // The list may spell the id of the machine's VM in another way.
        (Claim::OtherVm(_) | Claim::Respelled(_) | Claim::Unnamed | Claim::Unidentified | Claim::Unknown, _, _) => {
            State::Unknown
        }
    }
}

/// What a machine is whose VM is not on the list that was made at `listed`, if one could be made; `None` when nothing is to be said of it.
pub fn state_of_machine(machine: &MachineSnapshot, listed: Option<Timestamp>) -> Option<State> {
    if machine.provider_id().is_empty() {
        return None;
    }
    let Some(listed) = listed else { return Some(State::Unknown) };
    let comes_or_goes = machine.is_deleting()
        || matches!(
            machine.phase(),
            MachinePhase::Unset | MachinePhase::Pending | MachinePhase::CrashLoopBackOff | MachinePhase::Terminating
        );
    let times = [machine.created(), machine.last_update_time()];
    if comes_or_goes {
        None
    } else if times.into_iter().flatten().any(|time| time >= listed) {
        // The list may be older than the VM.
        Some(State::Unknown)
    } else {
        Some(State::Missing)
    }
}

/// When the second verdict about an orphan may be given, at the earliest.
pub fn deleted_after(created: Option<Timestamp>, since: Timestamp, guards: &Guards, now: Timestamp) -> Timestamp {
    after(now, still_to_wait(created, since, guards, now))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;
    use machine_api::v1alpha1::Machine;

    fn other() -> Claim {
        Claim::OtherVm("cloud:///w".to_owned())
    }

    #[rstest]
    #[case::a_machine_has_it(Claim::Own, Number::One, Number::One, Then::Nobodys, State::Owned)]
    #[case::even_if_there_are_two(Claim::Own, Number::More, Number::One, Then::Nobodys, State::Owned)]
    #[case::a_machine_is_about_to_get_it(Claim::InCreation, Number::One, Number::One, Then::Nobodys, State::Owned)]
    #[case::two_for_a_machine_that_has_none(
        Claim::InCreation,
        Number::More,
        Number::One,
        Then::Nobodys,
        State::Duplicate
    )]
    #[case::the_machine_has_another_listed_one(other(), Number::More, Number::One, Then::Nobodys, State::Duplicate)]
    #[case::the_machine_has_one_that_no_list_has(other(), Number::One, Number::One, Then::Nobodys, State::Unknown)]
    #[case::nobody_s(Claim::Nobody, Number::One, Number::One, Then::Nobodys, State::Orphan)]
    #[case::nobody_s_and_two_lists_have_it(Claim::Nobody, Number::One, Number::More, Then::Nobodys, State::Foreign)]
    #[case::two_lists_have_it_and_a_machine(Claim::Own, Number::One, Number::More, Then::Nobodys, State::Owned)]
    #[case::its_machine_has_gone_since(Claim::Nobody, Number::One, Number::One, Then::Somebodys, State::Unknown)]
    #[case::its_machine_has_another_one_since(other(), Number::One, Number::One, Then::Somebodys, State::Unknown)]
    #[case::without_an_id(Claim::Unidentified, Number::One, Number::One, Then::Nobodys, State::Unknown)]
    #[case::without_a_name(Claim::Unnamed, Number::One, Number::One, Then::Nobodys, State::Unknown)]
    fn a_vm_is(
        #[case] claim: Claim,
        #[case] namesakes: Number,
        #[case] inventories: Number,
        #[case] then: Then,
        #[case] state: State,
    ) {
        assert_eq!(state_of_vm(&claim, namesakes, inventories, then), state);
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn machine(phase: MachinePhase, provider_id: &str, since: i64) -> Machine {
        let mut machine = Machine::default();
        provider_id.clone_into(&mut machine.spec.provider_id);
        machine.metadata.creation_timestamp = Some(Time(at(-1000)));
        machine.status.current_status.phase = phase;
        machine.status.current_status.last_update_time = Some(Time(at(since)));
        machine
    }

    #[rstest]
    #[case::running(machine(MachinePhase::Running, "id", -60), Some(at(0)), Some(State::Missing))]
    #[case::failed(machine(MachinePhase::Failed, "id", -60), Some(at(0)), Some(State::Missing))]
    #[case::it_never_had_one(machine(MachinePhase::Running, "", -60), Some(at(0)), None)]
    #[case::pending(machine(MachinePhase::Pending, "id", -60), Some(at(0)), None)]
    #[case::on_its_way_out(machine(MachinePhase::Terminating, "id", -60), Some(at(0)), None)]
    #[case::the_list_is_older(machine(MachinePhase::Running, "id", 5), Some(at(0)), Some(State::Unknown))]
    #[case::no_list(machine(MachinePhase::Running, "id", -60), None, Some(State::Unknown))]
    fn a_machine_without_a_listed_vm_is(
        #[case] machine: Machine,
        #[case] listed: Option<Timestamp>,
        #[case] state: Option<State>,
    ) {
        assert_eq!(state_of_machine(&machine.into(), listed), state);
    }

    #[test]
    fn an_orphan_waits_for_its_second_verdict_and_its_age() {
        let guards = Guards::default();
        assert_eq!(deleted_after(None, at(-10), &guards, at(0)), at(50));
        assert_eq!(deleted_after(Some(at(-60)), at(-10), &guards, at(0)), at(240));
        assert_eq!(deleted_after(None, at(-90), &guards, at(0)), at(0));
    }
}
