//! The claims of machines on VMs, for the machines of one moment.
//!
//! The safety module has the rule. The index here makes it fast for many VMs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use controller_runtime::snapshot::Snapshot;
use machine_controllers::{
    safety::orphans::{Claim, Instances, claim_in_stores},
    snapshots::MachineSnapshot,
};
use machine_driver::ListedVm;

/// The identity of a VM. It does not depend on upper and lower case, in which endpoints of a provider may differ.
pub fn identity(provider_id: &str) -> String {
    provider_id.to_ascii_lowercase()
}

/// The machines of one moment.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// The VMs that machines have.
    held: Instances,
    by_name: BTreeMap<String, MachineSnapshot>,
}

impl Claims {
    /// The claims of these machines.
    pub fn of(machines: &[MachineSnapshot]) -> Self {
        Self {
            held: machines.iter().map(MachineSnapshot::provider_id).collect(),
            by_name: machines.iter().map(|machine| (machine.name().to_owned(), machine.clone())).collect(),
        }
    }

    /// The machine of this name.
    pub fn machine(&self, name: &str) -> Option<&MachineSnapshot> {
        self.by_name.get(name)
    }

    /// The claim on a VM.
    pub fn on(&self, vm: &ListedVm) -> Claim {
        claim_in_stores(vm, &self.held, self.machine(&vm.machine_name))
    }

    /// Identities of the VMs that no machine has.
    pub fn orphans(&self, vms: &[ListedVm]) -> BTreeSet<String> {
        vms.iter().filter(|vm| self.on(vm).is_orphaned()).map(|vm| identity(&vm.provider_id)).collect()
    }
}
