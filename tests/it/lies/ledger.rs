//! Records which VMs, machines, Nodes and pods existed and which were deleted, from the writes that the API server stored.

use std::collections::{BTreeMap, BTreeSet};

use kube_dev_server::DevServer;

use serde_json::Value;

use super::world::{CLOUD, CloudState};
use crate::support::one_thread::line;

/// Resources whose objects may be deleted only when the test names them.
const KEPT: [&str; 3] = ["machines", "nodes", "pods"];

/// The ledger of a world.
pub struct Ledger {
    cloud: CloudState,
    /// All writes up to this revision are recorded.
    last_revision: u64,
    /// Names of machines (and of their Nodes) and of pods that may be deleted.
    may_go: BTreeSet<String>,
    /// The deleted objects as `resource/name`.
    gone: BTreeSet<String>,
    /// All VMs that ever existed, by their machines.
    made: BTreeMap<String, BTreeSet<String>>,
    /// The existing VMs, with their machines.
    running: BTreeMap<String, String>,
}

impl Ledger {
    pub fn of(cloud: CloudState) -> Self {
        let (may_go, gone) = (BTreeSet::new(), BTreeSet::new());
        Self { cloud, last_revision: 0, may_go, gone, made: BTreeMap::new(), running: BTreeMap::new() }
    }

    /// Allows the deletion of the objects with this name.
    pub fn may_go(&mut self, name: &str) {
        self.may_go.insert(name.to_owned());
    }

    /// Records the writes since the last call.
    pub fn looks(&mut self, server: &DevServer) {
        for written in server.writes_after(self.last_revision) {
            let Some((revision, place, object)) = line(&written) else { continue };
            self.last_revision = revision;
            let mut parts = place.splitn(3, '/').skip(1);
            let (resource, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let name = key.rsplit('/').next().unwrap_or_default();
            if KEPT.contains(&resource) && object == "deleted" {
                self.gone.insert(format!("{resource}/{name}"));
            }
            if resource == "configmaps" && name == CLOUD {
                self.vms_are(vms_of(object));
            }
        }
        if let CloudState::File(path) = &self.cloud {
            let text = std::fs::read_to_string(path).expect("the cloud's file is there");
            let file: Value = serde_json::from_str(&text).expect("the cloud's file is JSON");
            self.vms_are(
                file["vms"].as_array().into_iter().flatten().map(|vm| pair(&vm["providerID"], &vm["name"])).collect(),
            );
        }
    }

    fn vms_are(&mut self, now: BTreeMap<String, String>) {
        for (vm, machine) in &now {
            self.made.entry(machine.clone()).or_default().insert(vm.clone());
        }
        self.running = now;
    }

    /// The identities of the existing VMs.
    pub fn vms(&self) -> BTreeSet<String> {
        self.running.keys().cloned().collect()
    }

    /// Deleted objects whose deletion was not allowed, and machines that had several VMs.
    pub fn faults(&self) -> Vec<String> {
        let named = |place: &&String| place.rsplit('/').next().is_some_and(|name| self.may_go.contains(name));
        let gone = self.gone.iter().filter(|place| !named(place)).map(|place| format!("{place} must not be deleted"));
        let ended = self.made.iter().filter(|(machine, vms)| {
            !self.may_go.contains(*machine) && vms.iter().any(|vm| !self.running.contains_key(vm))
        });
        let ended = ended.map(|(machine, _)| format!("the VM of {machine} must not be deleted"));
        let twice = self.made.iter().filter(|(_, vms)| vms.len() > 1);
        let twice = twice.map(|(machine, vms)| format!("{machine} had several VMs: {vms:?}"));
        gone.chain(ended).chain(twice).collect()
    }
}

/// The existing VMs in the cloud's `ConfigMap`, with their machines.
fn vms_of(config_map: &str) -> BTreeMap<String, String> {
    let map: Value = serde_json::from_str(config_map).unwrap_or_default();
    let records = map["data"].as_object().into_iter().flatten().filter(|(key, _)| key.starts_with("vm."));
    records
        .map(|(_, record)| {
            let vm: Value = serde_json::from_str(record.as_str().unwrap_or_default()).expect("a record is JSON");
            pair(&vm["providerID"], &vm["key"])
        })
        .collect()
}

/// A VM and the name of its machine.
fn pair(vm: &Value, machine: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(vm), text(machine).rsplit('/').next().unwrap_or_default().to_owned())
}
