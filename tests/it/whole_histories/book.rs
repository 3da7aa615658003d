//! The log of a world: every write of the API server goes into the mirror of `machine-simulation`, in order, before the mirror is read.

use std::sync::{Arc, Mutex, MutexGuard};

use controller_runtime::clock::SharedClock;
use jiff::Timestamp;
use kube_dev_server::DevServer;
use machine_simulation::mirror::Mirror;
use serde_json::Value;
use tokio::time::Instant;

use super::cloud::Provider;
use crate::support::one_thread::{MACHINE_PATH, NAMESPACE, line};

/// Where bootstrap tokens are.
const TOKENS: &str = "kube-system/";

/// Whether a world prints what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    Silent,
    Aloud,
}

/// The log. Clones share it.
#[derive(Clone)]
pub struct Book(Arc<Mutex<Pages>>);

pub struct Pages {
    server: Arc<DevServer>,
    clock: SharedClock,
    began: Timestamp,
    pub mirror: Mirror,
    provider: Provider,
    /// The mirror is complete up to this revision.
    seen: u64,
    /// The process that was the last to write a Lease as its holder.
    pub leader: Option<usize>,
    /// Every write, as stored.
    pub writes: Vec<String>,
    /// The number of calls of processes that were effects, and the last one.
    pub effects: u64,
    pub last_effect: String,
    /// Since when the target cluster does not answer.
    pub silent: Option<Instant>,
    lines: Vec<String>,
    telling: Telling,
}

impl Book {
    pub fn new(server: &Arc<DevServer>, clock: &SharedClock, provider: &Provider, telling: Telling) -> Self {
        Self(Arc::new(Mutex::new(Pages {
            server: Arc::clone(server),
            clock: Arc::clone(clock),
            began: clock.now(),
            mirror: Mirror::default(),
            provider: provider.clone(),
            seen: 0,
            leader: None,
            writes: Vec::new(),
            effects: 0,
            last_effect: String::new(),
            silent: None,
            lines: Vec::new(),
            telling,
        })))
    }

    /// The pages with everything that has happened.
    pub fn read(&self) -> MutexGuard<'_, Pages> {
        let mut pages = self.0.lock().expect("no check panics");
        pages.catch_up();
        pages
    }
}

impl Pages {
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn catch_up(&mut self) {
        let now = self.now();
        for written in self.server.writes_after(self.seen) {
            let (revision, place, object) = line(&written).expect("a line of the journal");
            self.seen = revision;
            let mut parts = place.splitn(3, '/').skip(1);
            let (resource, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let is_token = key.starts_with(TOKENS);
            if resource != "secrets" || is_token {
                let object = (object != "deleted").then(|| serde_json::from_str::<Value>(object).expect("JSON"));
                let name = key.rsplit('/').next().unwrap_or_default();
                self.tell_of(resource, name, object.as_ref());
                self.mirror.stored(resource, name, object, now).unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            self.writes.push(written);
        }
    }

    /// Updates the running VMs of the mirror.
    pub fn sees_vms(&mut self) {
        let now = self.now();
        self.mirror.vms_are(self.provider.vms(), now);
    }

    fn tell_of(&mut self, resource: &str, name: &str, object: Option<&Value>) {
        if self.telling == Telling::Silent {
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

    /// Prints a line, if printing is on.
    pub fn say(&mut self, text: impl FnOnce() -> String) {
        if self.telling == Telling::Aloud {
            let seconds = self.now().duration_since(self.began).as_secs_f64();
            self.lines.push(format!("{seconds:>9.3}s {}", text()));
        }
    }

    pub fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// A process writes.
    pub fn writes_now(&mut self, process: usize, what: String) {
        let leads = self.leader == Some(process);
        self.mirror.writes(leads);
        self.effects += 1;
        self.say(|| format!("  process {process}{}: {what}", if leads { "" } else { " without the lease" }));
        self.last_effect = what;
    }
}

/// The path of an object of the mirror.
pub fn path_of(resource: &str, name: &str) -> String {
    let base = match resource {
        "nodes" => "/api/v1/nodes".to_owned(),
        "pods" => format!("/api/v1/namespaces/{NAMESPACE}/pods"),
        ours => format!("{MACHINE_PATH}/{ours}"),
    };
    if name.is_empty() { base } else { format!("{base}/{name}") }
}
