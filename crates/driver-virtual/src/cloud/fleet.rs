//! All VMs of the cloud and the ways to find one: by machine, by identity, by address.
//!
//! Only storage and indexes; what may happen to a VM is decided in `super::requests` and `super::lifecycle`.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::{
    super::{config::SimulationConfig, draw::Fingerprint, rules::Operation, template::VmTemplate},
    vm::{Vm, VmRef},
};

/// Machines without a VM whose call counters are remembered.
const REMEMBERED_MACHINES: usize = 20_000;
/// Host addresses of 10.240.0.0/12.
const ADDRESSES: u32 = 1 << 20;

/// What is remembered of a machine: its VMs and how often it was called about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    first: Option<u32>,
    /// How many VMs were made for it.
    pub made: u32,
    /// How often each operation was called for it.
    pub calls: [u16; Operation::ALL.len()],
}

/// A template and the VMs that use it.
#[derive(Debug)]
struct TemplateEntry {
    template: Arc<VmTemplate>,
    config: Arc<SimulationConfig>,
    vms: u32,
    /// VMs that count against quotas.
    charged: u32,
}

/// All VMs.
#[derive(Debug, Default)]
pub struct Fleet {
    slots: Vec<Option<Box<Vm>>>,
    free: Vec<u32>,
    books: BTreeMap<Arc<str>, Book>,
    without_vm: VecDeque<Arc<str>>,
    by_provider_id: HashMap<u64, u32>,
    addresses: HashSet<u32>,
    templates: Vec<TemplateEntry>,
    serial: u32,
    alive: usize,
}

impl Fleet {
    /// The VM, if it still exists.
    pub fn get(&self, vm: VmRef) -> Option<&Vm> {
        self.slots.get(vm.slot as usize)?.as_deref().filter(|found| found.serial == vm.serial)
    }

    /// The VM, to be changed.
    pub fn get_mut(&mut self, vm: VmRef) -> Option<&mut Vm> {
        self.slots.get_mut(vm.slot as usize)?.as_deref_mut().filter(|found| found.serial == vm.serial)
    }

    /// How many VMs there are.
    pub const fn len(&self) -> usize {
        self.alive
    }

    /// All VMs in the order of their making.
    pub fn iter(&self) -> impl Iterator<Item = (VmRef, &Vm)> {
        self.slots.iter().enumerate().filter_map(|(slot, vm)| {
            let vm = vm.as_deref()?;
            Some((VmRef { slot: u32::try_from(slot).ok()?, serial: vm.serial }, vm))
        })
    }

    /// The VMs of a machine, the oldest first.
    pub fn of_machine(&self, key: &str) -> Vec<VmRef> {
        let mut found = Vec::new();
        let mut next = self.books.get(key).and_then(|book| book.first);
        while let Some(slot) = next {
            let Some(Some(vm)) = self.slots.get(slot as usize) else { break };
            found.push(VmRef { slot, serial: vm.serial });
            next = vm.twin;
        }
        found
    }

    /// The VM with this identity.
    pub fn by_provider_id(&self, provider_id: &str) -> Option<VmRef> {
        let slot = *self.by_provider_id.get(&Fingerprint::of(provider_id))?;
        let vm = self.slots.get(slot as usize)?.as_deref()?;
        (&*vm.provider_id == provider_id).then_some(VmRef { slot, serial: vm.serial })
    }

    /// The machines that there are books of.
    pub fn machines(&self) -> impl Iterator<Item = &Arc<str>> {
        self.books.keys()
    }

    /// Calls of all machines so far, by operation.
    pub fn calls(&self) -> impl Iterator<Item = (Operation, u64)> {
        Operation::ALL.into_iter().enumerate().map(|(at, operation)| {
            let calls = self.books.values().map(|book| book.calls.get(at).copied().map_or(0, u64::from)).sum();
            (operation, calls)
        })
    }

    /// The book of a machine, opened when there is none.
    pub fn book(&mut self, key: &Arc<str>) -> &mut Book {
        if !self.books.contains_key(key) {
            self.without_vm.push_back(Arc::clone(key));
            self.forget_old_machines();
        }
        self.books.entry(Arc::clone(key)).or_default()
    }

    /// The book of a machine.
    pub fn book_of(&self, key: &str) -> Option<&Book> {
        self.books.get(key)
    }

    fn forget_old_machines(&mut self) {
        while self.without_vm.len() > REMEMBERED_MACHINES {
            let Some(key) = self.without_vm.pop_front() else { break };
            if self.books.get(&key).is_some_and(|book| book.first.is_none()) {
                self.books.remove(&key);
            }
        }
    }

    /// Adds a VM; its serial, address and place in the indexes are given here.
    pub fn insert(&mut self, mut vm: Vm, address_hint: u64) -> VmRef {
        self.serial = self.serial.wrapping_add(1);
        vm.serial = self.serial;
        vm.address = self.take_address(address_hint);
        vm.twin = None;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let reference = VmRef { slot, serial: vm.serial };
        if let Some(entry) = self.templates.get_mut(vm.template as usize) {
            entry.vms += 1;
            entry.charged += 1;
        }
        self.by_provider_id.insert(Fingerprint::of(&vm.provider_id), slot);
        let key = Arc::clone(&vm.key);
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(Box::new(vm));
        }
        self.alive += 1;
        self.link(&key, slot);
        reference
    }

    /// Puts a VM behind the others of its machine.
    fn link(&mut self, key: &Arc<str>, slot: u32) {
        let last = self.of_machine(key).pop();
        match last.and_then(|last| self.get_mut(last)) {
            Some(last) => last.twin = Some(slot),
            None => self.books.entry(Arc::clone(key)).or_default().first = Some(slot),
        }
    }

    fn unlink(&mut self, key: &Arc<str>, slot: u32, next: Option<u32>) {
        let chain = self.of_machine(key);
        let before = chain.iter().position(|vm| vm.slot == slot).and_then(|at| at.checked_sub(1));
        match before.and_then(|at| chain.get(at)).and_then(|before| self.get_mut(*before)) {
            Some(before) => before.twin = next,
            None => {
                if let Some(book) = self.books.get_mut(key) {
                    book.first = next;
                }
            }
        }
        if next.is_none() && before.is_none() {
            self.without_vm.push_back(Arc::clone(key));
            self.forget_old_machines();
        }
    }

    /// Removes a VM from everywhere.
    pub fn remove(&mut self, vm: VmRef) -> Option<Box<Vm>> {
        let (key, next) = self.get(vm).map(|vm| (Arc::clone(&vm.key), vm.twin))?;
        self.unlink(&key, vm.slot, next);
        let gone = self.slots.get_mut(vm.slot as usize)?.take()?;
        self.free.push(vm.slot);
        self.alive -= 1;
        self.addresses.remove(&gone.address);
        let hash = Fingerprint::of(&gone.provider_id);
        if self.by_provider_id.get(&hash) == Some(&vm.slot) {
            self.by_provider_id.remove(&hash);
        }
        if let Some(entry) = self.templates.get_mut(gone.template as usize) {
            entry.vms -= 1;
        }
        Some(gone)
    }

    /// The VM counts against quotas no more.
    pub fn discharge(&mut self, template: u32) {
        if let Some(entry) = self.templates.get_mut(template as usize) {
            entry.charged = entry.charged.saturating_sub(1);
        }
    }

    /// Gives a VM another machine and template, once they are known.
    pub fn rebind(&mut self, vm: VmRef, key: &Arc<str>, template: u32) {
        let Some((old_key, old_template, next)) = self.get(vm).map(|vm| (Arc::clone(&vm.key), vm.template, vm.twin))
        else {
            return;
        };
        if old_key != *key {
            self.unlink(&old_key, vm.slot, next);
            if let Some(vm) = self.get_mut(vm) {
                vm.twin = None;
                vm.key = Arc::clone(key);
            }
            self.link(key, vm.slot);
        }
        if let Some(entry) = self.templates.get_mut(old_template as usize) {
            entry.vms -= 1;
            entry.charged = entry.charged.saturating_sub(1);
        }
        if let Some(entry) = self.templates.get_mut(template as usize) {
            entry.vms += 1;
            entry.charged += 1;
        }
        if let Some(vm) = self.get_mut(vm) {
            vm.template = template;
        }
    }

    fn take_address(&mut self, hint: u64) -> u32 {
        let mut address = u32::try_from(hint % u64::from(ADDRESSES)).unwrap_or(1);
        // The network's own address and its broadcast are nobody's.
        for _ in 0..ADDRESSES {
            if address != 0 && address != ADDRESSES - 1 && self.addresses.insert(address) {
                break;
            }
            address = (address + 1) % ADDRESSES;
        }
        address
    }

    /// The number of an equal template, added when there is none. `config` makes the configuration of a new one.
    pub fn intern(&mut self, template: VmTemplate, config: impl FnOnce(&VmTemplate) -> Arc<SimulationConfig>) -> u32 {
        let newest_first = self.templates.iter().enumerate().rev();
        let mut unused = None;
        for (at, entry) in newest_first {
            if *entry.template == template {
                return u32::try_from(at).unwrap_or(0);
            }
            if entry.vms == 0 {
                unused = Some(at);
            }
        }
        let config = config(&template);
        let entry = TemplateEntry { template: Arc::new(template), config, vms: 0, charged: 0 };
        // Unused templates are kept for the next VM of their class until there are many of them.
        let at = unused.filter(|_| self.templates.len() > 64).unwrap_or(self.templates.len());
        match self.templates.get_mut(at) {
            Some(place) => *place = entry,
            None => self.templates.push(entry),
        }
        u32::try_from(at).unwrap_or(0)
    }

    /// The template of this number.
    pub fn template(&self, number: u32) -> Arc<VmTemplate> {
        self.templates.get(number as usize).map(|entry| Arc::clone(&entry.template)).unwrap_or_default()
    }

    /// The configuration for VMs of this template.
    pub fn config(&self, number: u32) -> Arc<SimulationConfig> {
        self.templates.get(number as usize).map(|entry| Arc::clone(&entry.config)).unwrap_or_default()
    }

    /// Templates and how many VMs of them count against quotas.
    pub fn usage(&self) -> impl Iterator<Item = (&VmTemplate, u64)> {
        self.templates.iter().map(|entry| (&*entry.template, u64::from(entry.charged)))
    }

    /// Makes the configurations of all templates anew.
    pub fn reconfigure(&mut self, config: impl Fn(&VmTemplate) -> Arc<SimulationConfig>) {
        for entry in &mut self.templates {
            entry.config = config(&entry.template);
        }
    }
}
