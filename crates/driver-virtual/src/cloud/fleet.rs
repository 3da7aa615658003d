//! All VMs of the cloud, with indexes by machine, provider id and address.
//!
//! This file only stores and indexes. `super::requests` and `super::lifecycle` decide what happens to a VM.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::{
    super::{config::SimulationConfig, draw::Fingerprint, rules::Operation, template::VmTemplate},
    vm::{Vm, VmRef},
};

/// The maximum number of machines without a VM whose call counters are stored.
const REMEMBERED_MACHINES: usize = 20_000;
/// The number of templates above which unused templates are removed.
const UNUSED_TEMPLATES: usize = 64;
/// The number of addresses in 10.240.0.0/12.
const ADDRESSES: u32 = 1 << 20;

/// The VMs and the call counters of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineRecord {
    /// The slots of its VMs, the oldest first.
    vms: Vec<u32>,
    /// The number of VMs that were made for it.
    pub made: u32,
    /// The number of calls for each operation.
    pub calls: [u16; Operation::ALL.len()],
}

/// A template and the number of its VMs.
#[derive(Debug)]
struct TemplateEntry {
    template: Arc<VmTemplate>,
    config: Arc<SimulationConfig>,
    vms: u32,
    /// The number of VMs that count against quotas.
    charged: u32,
}

/// All VMs.
#[derive(Debug, Default)]
pub struct Fleet {
    slots: Vec<Option<Box<Vm>>>,
    free: Vec<u32>,
    records: BTreeMap<Arc<str>, MachineRecord>,
    without_vm: VecDeque<Arc<str>>,
    by_provider_id: HashMap<u64, u32>,
    addresses: HashSet<u32>,
    /// The templates by the hash of their content.
    templates: BTreeMap<u64, TemplateEntry>,
    serial: u32,
    alive: usize,
}

impl Fleet {
    /// The VM, if it still exists.
    pub fn get(&self, vm: VmRef) -> Option<&Vm> {
        self.slots.get(vm.slot as usize)?.as_deref().filter(|found| found.serial == vm.serial)
    }

    /// The mutable VM, if it still exists.
    pub fn get_mut(&mut self, vm: VmRef) -> Option<&mut Vm> {
        self.slots.get_mut(vm.slot as usize)?.as_deref_mut().filter(|found| found.serial == vm.serial)
    }

    /// The number of VMs.
    pub const fn len(&self) -> usize {
        self.alive
    }

    /// All VMs, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (VmRef, &Vm)> {
        (0..).take(self.slots.len()).filter_map(move |slot| self.in_slot(slot))
    }

    /// The VMs of a machine, the oldest first.
    pub fn of_machine(&self, key: &str) -> Vec<VmRef> {
        let slots = self.records.get(key).map(|record| record.vms.as_slice()).unwrap_or_default();
        slots.iter().filter_map(|slot| self.in_slot(*slot)).map(|(reference, _)| reference).collect()
    }

    fn in_slot(&self, slot: u32) -> Option<(VmRef, &Vm)> {
        let vm = self.slots.get(slot as usize)?.as_deref()?;
        Some((VmRef { slot, serial: vm.serial }, vm))
    }

    /// The VM with this provider id.
    pub fn by_provider_id(&self, provider_id: &str) -> Option<VmRef> {
        let (reference, vm) = self.in_slot(*self.by_provider_id.get(&Fingerprint::of(provider_id))?)?;
        (&*vm.provider_id == provider_id).then_some(reference)
    }

    /// The machines with records.
    pub fn machines(&self) -> impl Iterator<Item = &Arc<str>> {
        self.records.keys()
    }

    /// The number of calls of all machines, by operation.
    pub fn calls(&self) -> impl Iterator<Item = (Operation, u64)> {
        Operation::ALL.into_iter().enumerate().map(|(at, operation)| {
            let calls = self.records.values().map(|record| record.calls.get(at).copied().map_or(0, u64::from)).sum();
            (operation, calls)
        })
    }

    /// The record of a machine. Adds one if there is none.
    pub fn record(&mut self, key: &Arc<str>) -> &mut MachineRecord {
        if !self.records.contains_key(key) {
            self.without_vm.push_back(Arc::clone(key));
            self.forget_old_machines();
        }
        self.records.entry(Arc::clone(key)).or_default()
    }

    /// The record of a machine, if there is one.
    pub fn find_record(&self, key: &str) -> Option<&MachineRecord> {
        self.records.get(key)
    }

    fn forget_old_machines(&mut self) {
        while self.without_vm.len() > REMEMBERED_MACHINES {
            let Some(key) = self.without_vm.pop_front() else { break };
            if self.records.get(&key).is_some_and(|record| record.vms.is_empty()) {
                self.records.remove(&key);
            }
        }
    }

    /// Adds a VM to all indexes. Sets its serial number. Gives it another address if its own is in use.
    pub fn insert(&mut self, mut vm: Vm) -> VmRef {
        self.serial = self.serial.wrapping_add(1);
        vm.serial = self.serial;
        vm.address = self.take_address(vm.address);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let reference = VmRef { slot, serial: vm.serial };
        if let Some(entry) = self.templates.get_mut(&vm.template) {
            entry.vms += 1;
            entry.charged += 1;
        }
        self.by_provider_id.insert(Fingerprint::of(&vm.provider_id), slot);
        let key = Arc::clone(&vm.key);
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(Box::new(vm));
        }
        self.alive += 1;
        self.records.entry(key).or_default().vms.push(slot);
        reference
    }

    /// Removes a VM from its machine.
    fn unlink(&mut self, key: &Arc<str>, slot: u32) {
        let Some(record) = self.records.get_mut(key) else { return };
        record.vms.retain(|other| *other != slot);
        if record.vms.is_empty() {
            self.without_vm.push_back(Arc::clone(key));
            self.forget_old_machines();
        }
    }

    /// Removes a VM from all indexes.
    pub fn remove(&mut self, vm: VmRef) -> Option<Box<Vm>> {
        let key = self.get(vm).map(|vm| Arc::clone(&vm.key))?;
        self.unlink(&key, vm.slot);
        let gone = self.slots.get_mut(vm.slot as usize)?.take()?;
        self.free.push(vm.slot);
        self.alive -= 1;
        self.addresses.remove(&gone.address);
        let hash = Fingerprint::of(&gone.provider_id);
        if self.by_provider_id.get(&hash) == Some(&vm.slot) {
            self.by_provider_id.remove(&hash);
        }
        if let Some(entry) = self.templates.get_mut(&gone.template) {
            entry.vms -= 1;
        }
        Some(gone)
    }

    /// Stops counting a VM of this template against quotas.
    pub fn discharge(&mut self, template: u64) {
        if let Some(entry) = self.templates.get_mut(&template) {
            entry.charged = entry.charged.saturating_sub(1);
        }
    }

    /// Sets the machine and the template of a VM once they are known.
    pub fn rebind(&mut self, vm: VmRef, key: &Arc<str>, template: u64) {
        let Some((old_key, old_template)) = self.get(vm).map(|vm| (Arc::clone(&vm.key), vm.template)) else { return };
        if old_key != *key {
            self.unlink(&old_key, vm.slot);
            self.records.entry(Arc::clone(key)).or_default().vms.push(vm.slot);
        }
        if let Some(entry) = self.templates.get_mut(&old_template) {
            entry.vms -= 1;
            entry.charged = entry.charged.saturating_sub(1);
        }
        if let Some(entry) = self.templates.get_mut(&template) {
            entry.vms += 1;
            entry.charged += 1;
        }
        if let Some(vm) = self.get_mut(vm) {
            (vm.key, vm.template) = (Arc::clone(key), template);
        }
    }

    fn take_address(&mut self, hint: u32) -> u32 {
        let mut address = hint % ADDRESSES;
        // The address of the network and the broadcast address are no host addresses.
        for _ in 0..ADDRESSES {
            if address != 0 && address != ADDRESSES - 1 && self.addresses.insert(address) {
                break;
            }
            address = (address + 1) % ADDRESSES;
        }
        address
    }

    /// The number of a template. Adds the template if it is new; `config` then makes its configuration.
    pub fn intern(&mut self, template: VmTemplate, config: impl FnOnce(&VmTemplate) -> Arc<SimulationConfig>) -> u64 {
        let number = Fingerprint::of(&serde_json::to_string(&template).unwrap_or_default());
        if !self.templates.contains_key(&number) {
            // Unused templates are kept for the next VM of their class, up to a limit.
            if self.templates.len() > UNUSED_TEMPLATES {
                self.templates.retain(|_, entry| entry.vms > 0);
            }
            let config = config(&template);
            self.templates.insert(number, TemplateEntry { template: Arc::new(template), config, vms: 0, charged: 0 });
        }
        number
    }

    /// The templates with VMs that exist or will exist.
    pub fn templates_alive(&self) -> impl Iterator<Item = (u64, Arc<VmTemplate>)> {
        let alive = self.templates.iter().filter(|(_, entry)| entry.charged > 0);
        alive.map(|(number, entry)| (*number, Arc::clone(&entry.template)))
    }

    /// The template with this number.
    pub fn template(&self, number: u64) -> Arc<VmTemplate> {
        self.templates.get(&number).map(|entry| Arc::clone(&entry.template)).unwrap_or_default()
    }

    /// The configuration for VMs of this template.
    pub fn config(&self, number: u64) -> Arc<SimulationConfig> {
        self.templates.get(&number).map(|entry| Arc::clone(&entry.config)).unwrap_or_default()
    }

    /// The templates, and the numbers of their VMs that count against quotas.
    pub fn usage(&self) -> impl Iterator<Item = (&VmTemplate, u64)> {
        self.templates.values().map(|entry| (&*entry.template, u64::from(entry.charged)))
    }

    /// Makes the configurations of all templates again.
    pub fn reconfigure(&mut self, config: impl Fn(&VmTemplate) -> Arc<SimulationConfig>) {
        for entry in self.templates.values_mut() {
            entry.config = config(&entry.template);
        }
    }
}
