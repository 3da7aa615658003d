//! What of the cloud outlives the process, and how it is made again from that.
//!
//! Three forms: entries of the journal (everything), the exchange format (identities only), Nodes of the target cluster
//! (identities and what their annotations tell). Steps of a VM's life that follow from time alone are not written: their
//! deadlines are the same when they are set again. Files are in `super::super::persistence`.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Cloud,
    lifecycle::{Due, address_hint},
    vm::{Heartbeat, Initialisation, Joining, Life, NodeStage, Vm, VmRef, machine_key},
};
use crate::{draw::Fingerprint, template::VmTemplate};

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
        template: Box<VmTemplate>,
    },
    /// A VM as it is now.
    Vm(VmEntry),
    /// A VM that is gone.
    Gone {
        /// Its identity.
        #[serde(rename = "providerID")]
        provider_id: String,
    },
    /// Counters of a machine.
    Machine {
        /// `namespace/name`.
        key: String,
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

/// A VM in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmEntry {
    #[serde(rename = "providerID")]
    provider_id: String,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
    template: u64,
    generation: u32,
    address: u32,
    created: Timestamp,
    life: Life,
    #[serde(default)]
    node: NodeStage,
    #[serde(default)]
    heartbeat: Heartbeat,
    #[serde(default)]
    initialisation: Initialisation,
    #[serde(default)]
    joining: Joining,
}

impl VmEntry {
    /// Its identity.
    pub fn provider_id(&self) -> &str {
        &self.provider_id
    }
}

/// The exchange format: who exists, nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Version of the format; 1.
    pub version: u32,
    /// The VMs.
    #[serde(default)]
    pub vms: Vec<ExchangeVm>,
}

/// A VM in the exchange format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExchangeVm {
    /// Name of the machine.
    pub name: String,
    /// Identity at the provider.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Name of the Node; the machine's when it is missing.
    #[serde(default)]
    pub node_name: String,
    /// When it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
}

/// What a simulated Node tells of its VM.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownNode {
    /// Name of the Node.
    pub node_name: String,
    /// Identity of the VM.
    pub provider_id: String,
    /// `namespace/name` of the machine; the namespace may be empty.
    pub key: String,
    /// Whose it is, where the Node tells.
    pub template: Option<VmTemplate>,
    /// When the Node was made.
    pub created: Timestamp,
    /// What it shows.
    pub stage: NodeStage,
}

/// Whether the Nodes of the target cluster were taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Adoption {
    #[default]
    Pending,
    Done,
}

/// The version of the journal's and of the exchange format.
pub const FORMAT: u32 = 1;

impl Cloud {
    /// Everything that must be kept, from nothing.
    pub fn snapshot(&self) -> Vec<Entry> {
        let mut entries = vec![Entry::Simulation { version: FORMAT, seed: self.seed, started: self.started }];
        let mut templates = BTreeMap::new();
        let mut vms = Vec::new();
        let machines: Vec<Entry> = self.fleet.machines().filter_map(|key| self.machine_entry(key)).collect();
        for (reference, _) in self.fleet.iter() {
            if let Some((template, entry)) = self.vm_entry(reference) {
                templates.insert(entry.template, template);
                vms.push(Entry::Vm(entry));
            }
        }
        entries
            .extend(templates.into_iter().map(|(id, template)| Entry::Template { id, template: Box::new(template) }));
        entries.extend(machines);
        entries.push(Entry::Hits { hits: self.hits.iter().map(|(rule, hits)| (*rule, *hits)).collect() });
        entries.extend(vms);
        entries
    }

    /// What has changed since the last time this was asked.
    pub fn take_changes(&mut self) -> Vec<Entry> {
        let (mut vms, gone) = (std::mem::take(&mut self.changes.vms), std::mem::take(&mut self.changes.gone));
        let mut machines = std::mem::take(&mut self.changes.machines);
        vms.sort();
        vms.dedup();
        let mut entries: Vec<Entry> =
            gone.into_iter().map(|id| Entry::Gone { provider_id: id.into_string() }).collect();
        for vm in vms {
            let Some((template, entry)) = self.vm_entry(vm) else { continue };
            machines.extend(self.fleet.get(vm).map(|vm| Arc::clone(&vm.key)));
            entries.push(Entry::Template { id: entry.template, template: Box::new(template) });
            entries.push(Entry::Vm(entry));
        }
        machines.sort();
        machines.dedup();
        entries.extend(machines.iter().filter_map(|key| self.machine_entry(key)));
        if !self.hits.is_empty() {
            entries.push(Entry::Hits { hits: self.hits.iter().map(|(rule, hits)| (*rule, *hits)).collect() });
        }
        entries
    }

    /// Forgets what has changed; for places that are always written whole or never.
    pub fn drop_changes(&mut self) {
        self.changes.vms.clear();
        self.changes.gone.clear();
        self.changes.machines.clear();
    }

    fn machine_entry(&self, key: &str) -> Option<Entry> {
        let book = self.fleet.book_of(key)?;
        Some(Entry::Machine { key: key.to_owned(), made: book.made, calls: book.calls.to_vec() })
    }

    fn vm_entry(&self, reference: VmRef) -> Option<(VmTemplate, VmEntry)> {
        let vm = self.fleet.get(reference).filter(|vm| vm.is_alive())?;
        let template = self.fleet.template(vm.template);
        let entry = VmEntry {
            provider_id: vm.provider_id.to_string(),
            key: vm.key.to_string(),
            node_name: vm.node_name.as_ref().map(ToString::to_string),
            template: template_id(&template),
            generation: vm.generation,
            address: vm.address,
            created: vm.created,
            life: vm.life,
            node: vm.node,
            heartbeat: vm.heartbeat,
            initialisation: vm.initialisation,
            joining: vm.joining,
        };
        Some(((*template).clone(), entry))
    }

    /// Makes the cloud again from entries, the oldest first; later ones replace earlier ones. What fell due meanwhile
    /// happens when time next advances.
    pub fn restore(&mut self, entries: Vec<Entry>) {
        let mut templates: BTreeMap<u64, VmTemplate> = BTreeMap::new();
        let mut vms: BTreeMap<String, VmEntry> = BTreeMap::new();
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
                    templates.insert(id, *template);
                }
                Entry::Vm(vm) => {
                    vms.insert(vm.provider_id.clone(), vm);
                }
                Entry::Gone { provider_id } => {
                    vms.remove(&provider_id);
                }
                Entry::Machine { key, made, calls } => {
                    let book = self.fleet.book(&Arc::from(key));
                    book.made = made;
                    for (mine, read) in book.calls.iter_mut().zip(calls) {
                        *mine = read;
                    }
                }
                Entry::Hits { hits } => self.hits = hits.into_iter().collect(),
            }
        }
        let mut ordered: Vec<VmEntry> = vms.into_values().collect();
        ordered.sort_by(|a, b| (&a.key, a.generation).cmp(&(&b.key, b.generation)));
        for entry in ordered {
            let template = templates.get(&entry.template).cloned();
            let template = template.unwrap_or_else(|| VmTemplate::of_provider_id(&entry.provider_id));
            self.put(entry, template);
        }
        self.drop_changes();
    }

    /// Adds VMs of which only the identity is known; they count as running.
    pub fn restore_exchange(&mut self, exchange: Exchange, now: Timestamp) {
        for vm in exchange.vms {
            let node_name = Some(vm.node_name).filter(|node| !node.is_empty() && *node != vm.name);
            let template = VmTemplate::of_provider_id(&vm.provider_id);
            // A virtual clock begins anew with the process.
            let created = vm.created.map_or(now, |created| created.min(now));
            self.put_known(vm.provider_id, &machine_key("", &vm.name), node_name, created, NodeStage::Absent, template);
        }
    }

    /// The exchange format's view: VMs that exist.
    pub fn exchange(&self) -> Exchange {
        let exists = |vm: &&Vm| matches!(vm.life, Life::Running | Life::Stopping { .. });
        let mut vms: Vec<ExchangeVm> = self
            .fleet
            .iter()
            .map(|(_, vm)| vm)
            .filter(exists)
            .map(|vm| ExchangeVm {
                name: vm.machine().to_owned(),
                provider_id: vm.provider_id.to_string(),
                node_name: vm.node_name().to_owned(),
                created: Some(vm.created),
            })
            .collect();
        vms.sort_by(|a, b| (&a.name, &a.provider_id).cmp(&(&b.name, &b.provider_id)));
        Exchange { version: FORMAT, vms }
    }

    /// Fills an empty cloud with the VMs behind the Nodes of the target cluster. Only once: later a Node may well outlive
    /// its VM.
    pub fn adopt_once(&mut self, nodes: Vec<KnownNode>, now: Timestamp) {
        if std::mem::replace(&mut self.adoption, Adoption::Done) == Adoption::Done || !self.is_empty() {
            return;
        }
        for node in nodes {
            self.adopt(node);
        }
        self.advance(now);
    }

    fn adopt(&mut self, node: KnownNode) {
        let template = node.template.unwrap_or_else(|| VmTemplate::of_provider_id(&node.provider_id));
        let machine = node.key.split_once('/').map_or(node.key.as_str(), |(_, name)| name).to_owned();
        let node_name = (node.node_name != machine).then_some(node.node_name);
        self.put_known(node.provider_id, &Arc::from(node.key), node_name, node.created, node.stage, template);
    }

    fn put_known(
        &mut self,
        provider_id: String,
        key: &Arc<str>,
        node_name: Option<String>,
        created: Timestamp,
        node: NodeStage,
        template: VmTemplate,
    ) {
        if provider_id.is_empty() || self.fleet.by_provider_id(&provider_id).is_some() {
            return;
        }
        let book = self.fleet.book(key);
        book.made += 1;
        let generation = book.made;
        let address = u32::try_from(address_hint(&provider_id)).unwrap_or(1);
        let entry = VmEntry {
            provider_id,
            key: key.to_string(),
            node_name,
            template: 0,
            generation,
            address,
            created,
            life: Life::Running,
            node,
            heartbeat: Heartbeat::Beating,
            initialisation: Initialisation::Done,
            joining: Joining::Joins,
        };
        self.put(entry, template);
    }

    /// Adds a VM as it was kept and sets its timers.
    fn put(&mut self, entry: VmEntry, template: VmTemplate) {
        let config = Arc::clone(&self.config);
        let number = self.fleet.intern(template, |template| super::config_for(&config, template));
        let vm = Vm {
            serial: 0,
            generation: entry.generation,
            key: Arc::from(entry.key),
            provider_id: entry.provider_id.into_boxed_str(),
            node_name: entry.node_name.map(String::into_boxed_str),
            template: number,
            address: 0,
            twin: None,
            created: entry.created,
            life: entry.life,
            node: entry.node,
            heartbeat: entry.heartbeat,
            initialisation: entry.initialisation,
            joining: entry.joining,
        };
        let reference = self.fleet.insert(vm, u64::from(entry.address));
        match entry.life {
            Life::Creating { until } => self.at(until, reference, Due::Exists),
            Life::Running => self.begin_running(reference),
            Life::Stopping { until } => self.at(until, reference, Due::Gone),
            Life::Gone { since } => self.at(since, reference, Due::Forgotten),
        }
    }
}

fn template_id(template: &VmTemplate) -> u64 {
    Fingerprint::of(&serde_json::to_string(template).unwrap_or_default())
}
