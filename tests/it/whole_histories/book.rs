//! Records a world: every write of the API server goes into the mirror of `machine-simulation`, in order, before a check reads the mirror.

use std::sync::{Arc, Mutex, MutexGuard};

use controller_runtime::clock::SharedClock;
use jiff::Timestamp;
use kube_dev_server::DevServer;
use machine_simulation::mirror::Mirror;
use serde_json::Value;
use tokio::time::Instant;

use super::cloud::Provider;
use crate::support::one_thread::{MACHINE_PATH, NAMESPACE, line};

/// The prefix of bootstrap tokens.
const TOKENS: &str = "kube-system/";

/// Whether a world keeps lines about what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    Off,
    Kept,
}

/// The record of a world. Clones share the record.
#[derive(Clone)]
pub struct Record(Arc<Mutex<RecordState>>);

pub struct RecordState {
    server: Arc<DevServer>,
    clock: SharedClock,
    began: Timestamp,
    pub mirror: Mirror,
    provider: Provider,
    /// All writes up to this revision are in the mirror.
    revision_recorded: u64,
    /// The process that last wrote a Lease as its holder.
    pub leader: Option<usize>,
    /// Every write, as stored.
    pub writes: Vec<String>,
    /// The number of writes of processes, and the last one.
    pub effects: u64,
    pub last_effect: String,
    /// The time since which the target cluster is unresponsive.
    pub silent: Option<Instant>,
    lines: Vec<String>,
    lines_kept: Lines,
}

impl Record {
    pub fn new(server: &Arc<DevServer>, clock: &SharedClock, provider: &Provider, lines_kept: Lines) -> Self {
        Self(Arc::new(Mutex::new(RecordState {
            server: Arc::clone(server),
            clock: Arc::clone(clock),
            began: clock.now(),
            mirror: Mirror::default(),
            provider: provider.clone(),
            revision_recorded: 0,
            leader: None,
            writes: Vec::new(),
            effects: 0,
            last_effect: String::new(),
            silent: None,
            lines: Vec::new(),
            lines_kept,
        })))
    }

    /// The current record, after all pending writes have been added.
    pub fn read(&self) -> MutexGuard<'_, RecordState> {
        let mut pages = self.0.lock().expect("no check panics");
        pages.catch_up();
        pages
    }
}

impl RecordState {
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn catch_up(&mut self) {
        let now = self.now();
        for written in self.server.writes_after(self.revision_recorded) {
            let (revision, place, object) = line(&written).expect("a line of the journal");
            self.revision_recorded = revision;
            let mut parts = place.splitn(3, '/').skip(1);
            let (resource, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let is_token = key.starts_with(TOKENS);
            if resource != "secrets" || is_token {
                let object = (object != "deleted").then(|| serde_json::from_str::<Value>(object).expect("JSON"));
                let name = key.rsplit('/').next().unwrap_or_default();
                self.log_write(resource, name, object.as_ref());
                self.mirror.stored(resource, name, object, now).unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            self.writes.push(written);
        }
    }

    /// Updates the mirror with the running VMs.
    pub fn update_vms(&mut self) {
        let now = self.now();
        self.mirror.vms_are(self.provider.vms(), now);
    }

    fn log_write(&mut self, resource: &str, name: &str, object: Option<&Value>) {
        if self.lines_kept == Lines::Off {
            return;
        }
        let Some(object) = object else {
            self.say(|| format!("    stored: {resource} {name} is gone"));
            return;
        };
        let part = |pointer: &str| object.pointer(pointer).map(|value| format!(" {value}")).unwrap_or_default();
        let about: &[&str] = match resource {
            "machines" => &[
                "/metadata/deletionTimestamp",
                "/metadata/labels/node",
                "/spec/providerID",
                "/status/currentStatus/phase",
                "/status/lastOperation/description",
            ],
            "machinesets" | "machinedeployments" => {
                &["/metadata/deletionTimestamp", "/metadata/annotations", "/spec/replicas", "/status"]
            }
            "nodes" => &["/metadata/labels", "/spec/taints", "/spec/unschedulable", "/status/conditions"],
            "leases" => &["/spec/holderIdentity"],
            "events" => &["/involvedObject/name", "/reason", "/message"],
            "pods" => &["/metadata/deletionTimestamp"],
            _ => return,
        };
        let text: String = about.iter().map(|pointer| part(pointer)).collect();
        self.say(|| format!("    stored: {resource} {name}{text}"));
    }

    /// Adds a line, if lines are kept.
    pub fn say(&mut self, text: impl FnOnce() -> String) {
        if self.lines_kept == Lines::Kept {
            let seconds = self.now().duration_since(self.began).as_secs_f64();
            self.lines.push(format!("{seconds:>9.3}s {}", text()));
        }
    }

    pub fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// Records a write of a process.
    pub fn writes_now(&mut self, process: usize, what: String) {
        let leads = self.leader == Some(process);
        self.mirror.writes(leads);
        self.effects += 1;
        self.say(|| format!("  process {process}{}: {what}", if leads { "" } else { " without the lease" }));
        self.last_effect = what;
    }
}

/// The path of an object in the mirror.
pub fn path_of(resource: &str, name: &str) -> String {
    let base = match resource {
        "nodes" => "/api/v1/nodes".to_owned(),
        "pods" => format!("/api/v1/namespaces/{NAMESPACE}/pods"),
        ours => format!("{MACHINE_PATH}/{ours}"),
    };
    if name.is_empty() { base } else { format!("{base}/{name}") }
}
