//! Which machines have, or may be about to have, which VMs: what the machines of one moment say.
//!
//! The rule is the safety room's own; here the machines are only held so that many VMs can be looked up. Pure.

use std::collections::{BTreeMap, BTreeSet};

use controller_runtime::snapshot::Snapshot;
use machine_controllers::{
    safety::orphans::{Claim, claim_in_stores},
    snapshots::MachineSnapshot,
};
use machine_driver::{ListedVm, same_instance::instance_key};

/// The identity of a VM, so that spellings of different doors of a provider are one.
pub fn identity(provider_id: &str) -> String {
    provider_id.to_ascii_lowercase()
}

/// The machines of one moment.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// Instances of the VMs that machines have.
    held: BTreeSet<String>,
    by_name: BTreeMap<String, MachineSnapshot>,
}

impl Claims {
    /// What these machines claim.
    pub fn of(machines: &[MachineSnapshot]) -> Self {
        Self {
            held: machines.iter().filter_map(|machine| instance_key(machine.provider_id())).collect(),
            by_name: machines.iter().map(|machine| (machine.name().to_owned(), machine.clone())).collect(),
        }
    }

    /// The machine of this name.
    pub fn machine(&self, name: &str) -> Option<&MachineSnapshot> {
        self.by_name.get(name)
    }

    /// What the machines say about a VM.
    pub fn on(&self, vm: &ListedVm) -> Claim {
        claim_in_stores(vm, &self.held, self.machine(&vm.machine_name))
    }

    /// Identities of those VMs that no machine has.
    pub fn nobodys(&self, vms: &[ListedVm]) -> BTreeSet<String> {
        vms.iter().filter(|vm| self.on(vm).is_orphaned()).map(|vm| identity(&vm.provider_id)).collect()
    }
}
