//! What of the cloud outlives the process, and how it is made again from that.
//!
//! Two forms: records of the journal (everything), and VMs of which only the identity is known, be it of the exchange format or
//! of Nodes of the target cluster. Steps of a VM's life that follow from time alone are not written: their deadlines are the same
//! when they are set again. Where records are stored is `super::super::persistence`'s business.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Changes, Cloud,
    lifecycle::Due,
    vm::{Life, NodeStage, Vm},
};
use crate::template::VmTemplate;

/// One line of the journal, or of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum Entry {
    /// The first line: what the simulation hangs on.
    Simulation {
        /// Version of the format.
        version: u32,
        /// The seed.
        seed: u64,
        /// When it started.
        started: Timestamp,
    },
    /// A template that later lines refer to.
    Template {
        /// Its number.
        id: u64,
        /// What it says.
        template: Arc<VmTemplate>,
    },
    /// A VM as it is now.
    Vm(Vm),
    /// A VM that is gone.
    Gone {
        /// Its identity.
        #[serde(rename = "providerID")]
        provider_id: Box<str>,
    },
    /// Counters of a machine.
    Machine {
        /// `namespace/name`.
        key: Arc<str>,
        /// How many VMs were made for it.
        made: u32,
        /// Calls by operation.
        calls: Vec<u16>,
    },
    /// Hits of the failure rules that have a count.
    Hits {
        /// Rule and hits.
        hits: Vec<(u64, u64)>,
    },
}

impl Entry {
    /// The record as it is stored.
    pub fn to_json(&self) -> String {
        // No record has a key or a number that JSON could not hold.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A record as it was stored.
    pub fn of_json(text: &[u8]) -> Result<Self, String> {
        match serde_json::from_slice(text).map_err(|error| error.to_string())? {
            Self::Simulation { version, .. } if version != FORMAT => {
                Err(format!("version {version} is unknown, this program reads version {FORMAT}"))
            }
            entry => Ok(entry),
        }
    }
}

/// A VM of which little more than the identity is known, from its Node or from another process.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownVm {
    /// Name of the Node.
    pub node_name: String,
    /// Identity of the VM.
    pub provider_id: String,
    /// `namespace/name` of the machine; the namespace may be empty.
    pub key: Arc<str>,
    /// Whose it is, where that is known.
    pub template: Option<VmTemplate>,
    /// When it was made.
    pub created: Timestamp,
    /// What its Node shows.
    pub stage: NodeStage,
}

/// The version of the journal's and of the exchange format.
pub const FORMAT: u32 = 1;

impl Cloud {
    /// Everything that must be kept, from nothing.
    pub fn snapshot(&self) -> Vec<Entry> {
        let mut entries = vec![Entry::Simulation { version: FORMAT, seed: self.seed, started: self.started }];
        entries.extend(self.fleet.templates_alive().map(|(id, template)| Entry::Template { id, template }));
        entries.extend(self.fleet.machines().filter_map(|key| self.machine_entry(key)));
        entries.push(self.hits_entry());
        entries.extend(self.fleet.iter().filter(|(_, vm)| vm.is_alive()).map(|(_, vm)| Entry::Vm(vm.clone())));
        entries
    }

    /// What has changed since the last time this was asked.
    pub fn take_changes(&mut self) -> Vec<Entry> {
        let Changes { mut vms, gone, mut machines } = std::mem::take(&mut self.changes);
        vms.sort();
        vms.dedup();
        let mut entries: Vec<Entry> = gone.into_iter().map(|provider_id| Entry::Gone { provider_id }).collect();
        for vm in vms {
            let Some(vm) = self.fleet.get(vm).filter(|vm| vm.is_alive()) else { continue };
            machines.push(Arc::clone(&vm.key));
            entries.push(Entry::Template { id: vm.template, template: self.fleet.template(vm.template) });
            entries.push(Entry::Vm(vm.clone()));
        }
        machines.sort();
        machines.dedup();
        entries.extend(machines.iter().filter_map(|key| self.machine_entry(key)));
        if !self.hits.is_empty() {
            entries.push(self.hits_entry());
        }
        entries
    }

    fn machine_entry(&self, key: &Arc<str>) -> Option<Entry> {
        let book = self.fleet.book_of(key)?;
        Some(Entry::Machine { key: Arc::clone(key), made: book.made, calls: book.calls.to_vec() })
    }

    fn hits_entry(&self) -> Entry {
        Entry::Hits { hits: self.hits.iter().map(|(rule, hits)| (*rule, *hits)).collect() }
    }

    /// Makes the cloud again from entries, the oldest first; later ones replace earlier ones. What fell due meanwhile
    /// happens when time next advances.
    pub fn restore(&mut self, entries: Vec<Entry>) {
        let mut templates = BTreeMap::new();
        let mut vms: BTreeMap<Box<str>, Vm> = BTreeMap::new();
        for entry in entries {
            match entry {
                Entry::Simulation { seed, started, .. } => {
                    self.started = started;
                    if self.config.seed == 0 {
                        self.seed = seed;
                        self.draws = crate::draw::Draws::new(seed);
                    }
                }
                Entry::Template { id, template } => {
                    templates.insert(id, template);
                }
                Entry::Vm(vm) => {
                    vms.insert(vm.provider_id.clone(), vm);
                }
                Entry::Gone { provider_id } => {
                    vms.remove(&provider_id);
                }
                Entry::Machine { key, made, calls } => {
                    let book = self.fleet.book(&key);
                    book.made = made;
                    for (mine, read) in book.calls.iter_mut().zip(calls) {
                        *mine = read;
                    }
                }
                Entry::Hits { hits } => self.hits = hits.into_iter().collect(),
            }
        }
        let mut ordered: Vec<Vm> = vms.into_values().collect();
        ordered.sort_by(|a, b| (&a.key, a.generation).cmp(&(&b.key, b.generation)));
        for vm in ordered {
            let template = templates.get(&vm.template).map(|template| VmTemplate::clone(template));
            self.put(vm, template);
        }
        self.changes = Changes::default();
    }

    /// Fills an empty cloud with the VMs behind the Nodes of the target cluster. Only once: later a Node may well outlive
    /// its VM.
    pub fn adopt_once(&mut self, vms: Vec<KnownVm>, now: Timestamp) {
        if std::mem::replace(&mut self.has_adopted, true) || !self.is_empty() {
            return;
        }
        for vm in vms {
            self.adopt(vm);
        }
        self.advance(now);
    }

    /// Adds a VM that another process has made, unless it is there; it counts as running.
    pub fn adopt(&mut self, known: KnownVm) {
        if known.provider_id.is_empty() || self.fleet.by_provider_id(&known.provider_id).is_some() {
            return;
        }
        let book = self.fleet.book(&known.key);
        book.made += 1;
        let mut vm = Vm::new(&known.key, book.made, known.provider_id);
        if known.node_name != vm.machine() {
            vm.node_name = Some(known.node_name.into());
        }
        (vm.created, vm.node) = (known.created, known.stage);
        self.put(vm, known.template);
    }

    /// Adds a VM as it was kept and sets its timers.
    fn put(&mut self, mut vm: Vm, template: Option<VmTemplate>) {
        vm.template = self.intern(template.unwrap_or_else(|| VmTemplate::of_provider_id(&vm.provider_id)));
        let life = vm.life;
        let reference = self.fleet.insert(vm);
        match life {
            Life::Creating { until } => self.at(until, reference, Due::Exists),
            Life::Running => self.begin_running(reference),
            Life::Stopping { until } => self.at(until, reference, Due::Gone),
            Life::Gone { since } => self.at(since, reference, Due::Forgotten),
        }
    }
}
