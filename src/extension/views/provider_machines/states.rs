//! The state of a VM on the list of a provider, and of a machine whose VM is not on the list.
//!
//! The safety module has the rules for claims of machines on VMs, and for the deletion of orphans. Pure. Source:
//! spec/extension-apiserver §1.2.

use jiff::Timestamp;
use machine_api::v1alpha1::MachinePhase;
use machine_controllers::{
    safety::orphans::{Claim, Guards, Suspicion, still_to_wait},
    snapshots::MachineSnapshot,
    times::after,
};

/// The state of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A machine has the VM, or is about to get it.
    Owned,
    /// No machine has the VM.
    Orphan,
    /// A machine has the VM, but the provider does not list it.
    Missing,
    /// The machine of the VM has another VM.
    Duplicate,
    /// No machine has the VM, and several inventories list it.
    Foreign,
    /// The state is not known.
    Unknown,
}

impl State {
    /// The name of the state.
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

/// Facts about a VM from the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Whether several VMs are listed for the same machine.
    pub has_namesakes: bool,
    /// Whether several inventories list the VM.
    pub is_shared: bool,
    /// Whether no machine had the VM when the provider was asked for its list.
    pub was_orphaned: bool,
}

/// The state of a listed VM. If the machine of the VM has gone after the list was made, then most likely the VM has gone too. Such a
/// VM is no orphan before a newer list shows it.
pub fn state_of_vm(claim: &Claim, listed: Listed) -> State {
    match claim {
        Claim::Own => State::Owned,
        Claim::InCreation if !listed.has_namesakes => State::Owned,
        Claim::InCreation | Claim::Leaving => State::Duplicate,
        Claim::OtherVm(_) if listed.has_namesakes => State::Duplicate,
        Claim::Nobody if listed.is_shared => State::Foreign,
        Claim::Nobody if listed.was_orphaned => State::Orphan,
        // For `OtherVm`, the list may spell the id of the machine's VM in another way.
        Claim::Nobody
        | Claim::OtherVm(_)
        | Claim::Respelled(_)
        | Claim::Unnamed
        | Claim::Unidentified
        | Claim::Unknown => State::Unknown,
    }
}

/// The state of a machine whose VM is not on the list. `listed` is the time of the list, if there is one. `None` for a machine that is
/// not shown: it has no VM yet, or the VM comes or goes.
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

/// The earliest time at which an orphan may be deleted.
pub fn deleted_after(created: Option<Timestamp>, suspicion: Suspicion, guards: &Guards, now: Timestamp) -> Timestamp {
    after(now, still_to_wait(created, suspicion, guards, now))
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

    const ORPHANED: Listed = Listed { has_namesakes: false, is_shared: false, was_orphaned: true };
    const NAMESAKES: Listed = Listed { has_namesakes: true, ..ORPHANED };
    const SHARED: Listed = Listed { is_shared: true, ..ORPHANED };
    const HAD_A_MACHINE: Listed = Listed { was_orphaned: false, ..ORPHANED };

    #[rstest]
    #[case::a_machine_has_it(Claim::Own, ORPHANED, State::Owned)]
    #[case::even_if_there_are_two(Claim::Own, NAMESAKES, State::Owned)]
    #[case::a_machine_is_about_to_get_it(Claim::InCreation, ORPHANED, State::Owned)]
    #[case::two_for_a_machine_that_has_none(Claim::InCreation, NAMESAKES, State::Duplicate)]
    #[case::the_machine_has_another_listed_one(other(), NAMESAKES, State::Duplicate)]
    #[case::the_machine_has_one_that_no_list_has(other(), ORPHANED, State::Unknown)]
    #[case::no_machine_has_it(Claim::Nobody, ORPHANED, State::Orphan)]
    #[case::no_machine_has_it_and_two_lists_do(Claim::Nobody, SHARED, State::Foreign)]
    #[case::two_lists_have_it_and_a_machine(Claim::Own, SHARED, State::Owned)]
    #[case::its_machine_has_gone_since(Claim::Nobody, HAD_A_MACHINE, State::Unknown)]
    #[case::its_machine_has_another_one_since(other(), HAD_A_MACHINE, State::Unknown)]
    #[case::its_machine_is_being_deleted(Claim::Leaving, ORPHANED, State::Duplicate)]
    #[case::without_an_id(Claim::Unidentified, ORPHANED, State::Unknown)]
    #[case::without_a_name(Claim::Unnamed, ORPHANED, State::Unknown)]
    fn a_vm_is(#[case] claim: Claim, #[case] listed: Listed, #[case] state: State) {
        assert_eq!(state_of_vm(&claim, listed), state);
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
        let since = |seconds: i64| Suspicion::Since(at(-seconds));
        assert_eq!(deleted_after(None, since(10), &guards, at(0)), at(50));
        assert_eq!(deleted_after(Some(at(-60)), since(10), &guards, at(0)), at(240));
        assert_eq!(deleted_after(None, since(90), &guards, at(0)), at(0));
        assert_eq!(deleted_after(None, Suspicion::DeletionFailed(at(-90)), &guards, at(0)), at(210));
    }
}
