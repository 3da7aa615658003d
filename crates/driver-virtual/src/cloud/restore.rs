//! The stored state of the cloud, and its restoration.
//!
//! There are two forms: the records of the journal with the whole state, and VMs with only their identity, from the exchange format or from Nodes of
//! the target cluster. Steps that depend only on time are not stored, because their deadlines are the same when they are set again.
//! `super::super::persistence` stores the records.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Changes, Cloud,
    lifecycle::Due,
    vm::{Life, NodeStage, Vm},
};
use crate::template::VmTemplate;

/// A record of the journal or of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum Entry {
    /// The first record: the data of the simulation.
    Simulation {
        /// The version of the format.
        version: u32,
        /// The seed.
        seed: u64,
        /// The start time.
        started: Timestamp,
    },
    /// A template, to which later records refer.
    Template {
        /// The number.
        id: u64,
        /// The content.
        template: Arc<VmTemplate>,
    },
    /// A VM in its current state.
    Vm(Vm),
    /// A VM that is gone.
    Gone {
        /// The provider id.
        #[serde(rename = "providerID")]
        provider_id: Box<str>,
    },
    /// The counters of a machine.
    Machine {
        /// `namespace/name`.
        key: Arc<str>,
        /// The number of VMs that were made for it.
        made: u32,
        /// The number of calls by operation.
        calls: Vec<u16>,
    },
    /// The counters of failure rules with a count.
    Hits {
        /// Rules with their numbers of hits.
        hits: Vec<(u64, u64)>,
    },
}

impl Entry {
    /// The stored form of the record.
    pub fn to_json(&self) -> String {
        // All keys and numbers of a record can be written as JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a stored record.
    pub fn of_json(text: &[u8]) -> Result<Self, String> {
        match serde_json::from_slice(text).map_err(|error| error.to_string())? {
            Self::Simulation { version, .. } if version != FORMAT => {
                Err(format!("version {version} is unknown, this program reads version {FORMAT}"))
            }
            entry => Ok(entry),
        }
    }
}

/// A VM with only its identity, from its Node or from another process.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownVm {
    /// The name of the Node.
    pub node_name: String,
    /// The provider id.
    pub provider_id: String,
    /// `namespace/name` of the machine. The namespace may be empty.
    pub key: Arc<str>,
    /// The template with the owner, if it is known.
    pub template: Option<VmTemplate>,
    /// The creation time.
    pub created: Timestamp,
    /// The stage of its Node.
    pub stage: NodeStage,
}

/// The version of the journal and of the exchange format.
pub const FORMAT: u32 = 1;

impl Cloud {
    /// The records of the whole state.
    pub fn snapshot(&self) -> Vec<Entry> {
        let mut entries = vec![Entry::Simulation { version: FORMAT, seed: self.seed, started: self.started }];
        entries.extend(self.fleet.templates_alive().map(|(id, template)| Entry::Template { id, template }));
        entries.extend(self.fleet.machines().filter_map(|key| self.machine_entry(key)));
        entries.push(self.hits_entry());
        entries.extend(self.fleet.iter().filter(|(_, vm)| vm.is_alive()).map(|(_, vm)| Entry::Vm(vm.clone())));
        entries
    }

    /// The records of the changes since the last call.
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

    /// Drops the changes since the last call, because they are not stored.
    pub fn forget_changes(&mut self) {
        self.changes = Changes::default();
    }

    fn machine_entry(&self, key: &Arc<str>) -> Option<Entry> {
        let record = self.fleet.find_record(key)?;
        Some(Entry::Machine { key: Arc::clone(key), made: record.made, calls: record.calls.to_vec() })
    }

    fn hits_entry(&self) -> Entry {
        Entry::Hits { hits: self.hits.iter().map(|(rule, hits)| (*rule, *hits)).collect() }
    }

    /// Restores the cloud from records, the oldest first. Later records replace earlier ones. Steps that are due meanwhile run at the next advance.
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
                    let record = self.fleet.record(&key);
                    record.made = made;
                    for (mine, read) in record.calls.iter_mut().zip(calls) {
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
        self.forget_changes();
    }

    /// Adopts the VMs of the Nodes of the target cluster into an empty cloud. Only once, because later a Node may exist longer than its VM.
    pub fn adopt_once(&mut self, vms: Vec<KnownVm>, now: Timestamp) {
        if std::mem::replace(&mut self.has_adopted, true) || !self.is_empty() {
            return;
        }
        for vm in vms {
            self.adopt(vm);
        }
        self.advance(now);
    }

    /// Adds a running VM of another process, unless it exists already.
    pub fn adopt(&mut self, known: KnownVm) {
        if known.provider_id.is_empty() || self.fleet.by_provider_id(&known.provider_id).is_some() {
            return;
        }
        let record = self.fleet.record(&known.key);
        record.made += 1;
        let mut vm = Vm::new(&known.key, record.made, known.provider_id);
        if known.node_name != vm.machine() {
            vm.node_name = Some(known.node_name.into());
        }
        (vm.created, vm.node) = (known.created, known.stage);
        self.put(vm, known.template);
    }

    /// Adds a stored VM and sets its timers.
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
