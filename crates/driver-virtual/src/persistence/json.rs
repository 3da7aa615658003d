//! `json:` the exchange format for handing fleets over between processes: only the existing VMs (decision 26).
//!
//! It is read at the start, and rewritten completely with each change.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Sink, StateError,
    files::{WriterLock, failed, read, replace, unreadable, write},
};
use crate::cloud::{Entry, FORMAT, KnownVm, Life, NodeStage, machine_key};

/// The existing VMs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Fleet {
    /// The version of the format, 1.
    version: u32,
    #[serde(default)]
    vms: Vec<FleetVm>,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FleetVm {
    /// The name of the machine.
    name: String,
    /// The provider id.
    #[serde(rename = "providerID")]
    provider_id: String,
    /// The name of the Node. If missing, the name of the machine.
    #[serde(default)]
    node_name: String,
    /// The creation time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<Timestamp>,
}

/// A fleet in a file.
#[derive(Debug)]
pub struct FleetFile {
    path: PathBuf,
    _lock: WriterLock,
}

impl FleetFile {
    /// Opens the file and reads its VMs.
    pub fn open(path: &Path, now: Timestamp) -> Result<(Self, Vec<KnownVm>), StateError> {
        let lock = WriterLock::take(path)?;
        let fleet = parse(&read(path)?, now).map_err(|problem| unreadable(path, &problem))?;
        Ok((Self { path: path.to_owned(), _lock: lock }, fleet))
    }
}

#[async_trait]
impl Sink for FleetFile {
    fn wants_snapshot(&self) -> bool {
        true
    }

    async fn append(&mut self, _: &[Entry]) -> Result<(), StateError> {
        Ok(())
    }

    async fn replace(&mut self, snapshot: &[Entry]) -> Result<(), StateError> {
        let text = serde_json::to_vec_pretty(&fleet_of(snapshot));
        let mut text = text.map_err(|error| failed("write", &self.path, &error))?;
        text.push(b'\n');
        write(&self.path, move |path| replace(path, &text)).await
    }
}

fn fleet_of(snapshot: &[Entry]) -> Fleet {
    let mut vms = Vec::new();
    for entry in snapshot {
        if let Entry::Vm(vm) = entry
            && matches!(vm.life, Life::Running | Life::Stopping { .. })
        {
            vms.push(FleetVm {
                name: vm.machine().to_owned(),
                provider_id: vm.provider_id.to_string(),
                node_name: vm.node_name().to_owned(),
                created: Some(vm.created),
            });
        }
    }
    vms.sort_by(|a, b| (&a.name, &a.provider_id).cmp(&(&b.name, &b.provider_id)));
    Fleet { version: FORMAT, vms }
}

/// The VMs of a fleet, which are running. An empty file is an empty fleet.
fn parse(text: &[u8], now: Timestamp) -> Result<Vec<KnownVm>, String> {
    if text.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let fleet: Fleet = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if fleet.version != FORMAT {
        return Err(format!("version {} is unknown, this program reads version {FORMAT}", fleet.version));
    }
    let known = |vm: FleetVm| {
        if vm.name.is_empty() || vm.provider_id.is_empty() {
            return Err(format!("a VM needs name and providerID, found {vm:?}"));
        }
        Ok(KnownVm {
            node_name: if vm.node_name.is_empty() { vm.name.clone() } else { vm.node_name },
            key: machine_key("", &vm.name),
            provider_id: vm.provider_id,
            template: None,
            // A virtual clock starts again with the process.
            created: vm.created.map_or(now, |created| created.min(now)),
            stage: NodeStage::Absent,
        })
    };
    fleet.vms.into_iter().map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_of_a_fleet_is_known_by_the_name_of_its_machine() {
        let text =
            br#"{"version":1,"vms":[{"name":"m","providerID":"virtual:///r/z/i-1","created":"1970-01-01T00:00:09Z"}]}"#;
        let now = Timestamp::UNIX_EPOCH;
        let known = KnownVm {
            node_name: "m".to_owned(),
            provider_id: "virtual:///r/z/i-1".to_owned(),
            key: "/m".into(),
            template: None,
            created: now,
            stage: NodeStage::Absent,
        };
        assert_eq!(parse(text, now), Ok(vec![known]));
        assert_eq!(parse(b" \n", now), Ok(Vec::new()));
        let newer = parse(br#"{"version":2}"#, now).unwrap_err();
        assert_eq!(newer, "version 2 is unknown, this program reads version 1");
        let nameless = parse(br#"{"version":1,"vms":[{"name":"","providerID":"x"}]}"#, now).unwrap_err();
        assert!(nameless.starts_with("a VM needs name and providerID"), "{nameless}");
    }
}
