//! Which machines have, or may be about to have, which VMs: what the machines of one moment say.
//!
//! The rule is the safety room's own; here the machines are only held so that many VMs can be looked up. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt;
use machine_api::v1alpha1::Machine;
use machine_controllers::safety::orphans::{Claim, claim_in_stores};
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
    by_name: BTreeMap<String, Arc<Machine>>,
}

impl Claims {
    /// What these machines claim.
    pub fn of(machines: &[Arc<Machine>]) -> Self {
        Self {
            held: machines.iter().filter_map(|machine| instance_key(&machine.spec.provider_id)).collect(),
            by_name: machines.iter().map(|machine| (machine.name_any(), Arc::clone(machine))).collect(),
        }
    }

    /// The machine of this name.
    pub fn machine(&self, name: &str) -> Option<&Arc<Machine>> {
        self.by_name.get(name)
    }

    /// What the machines say about a VM.
    pub fn on(&self, vm: &ListedVm) -> Claim {
        claim_in_stores(vm, &self.held, self.machine(&vm.machine_name).map(|machine| &**machine))
    }

    /// Identities of those VMs that no machine has.
    pub fn nobodys(&self, vms: &[ListedVm]) -> BTreeSet<String> {
        vms.iter().filter(|vm| self.on(vm).is_orphaned()).map(|vm| identity(&vm.provider_id)).collect()
    }
}
