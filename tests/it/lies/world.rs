//! The world of one cell: an embedded API server, a cloud that survives its managers, managers behind proxies that lie, and the test that observes
//! them. Everything is in one thread on paused time. One seed is one history.

use std::{path::PathBuf, sync::Arc, time::Duration};

use machine_controller_manager::manager::{Endpoints, run_in};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{ledger::Ledger, weather::Telling};
use crate::support::{
    cluster_object::name,
    lying::{WriteAttempt, in_process::InProcessLiar},
    one_thread::{MACHINE_PATH, Stage, answer_webhooks, list, send, settings},
    scratch,
};

/// The limit of virtual time for anything.
const PATIENCE: Duration = Duration::from_secs(2 * 3600);
/// The interval between two checks of the test.
const TICK: Duration = Duration::from_secs(5);
/// Everything has come to rest when no manager has tried to write for this time…
const SETTLED: Duration = Duration::from_secs(100);
/// … and tries nothing in this time either, in which everything that waits checks again several times.
const REST: Duration = Duration::from_secs(4 * 60);
/// The name of the `ConfigMap` with the VMs of the cloud.
pub const CLOUD: &str = "cloud";
/// A cloud with latencies, without the writes of kubelets that only renew heartbeats.
const SIMULATION: &str = "\
seed: 11
latency:
  create: {constant: 2s}
  boot: {constant: 20s}
  ready: {constant: 5s}
  delete: {constant: 5s}
  api: {constant: 20ms}
nodes: {leaseInterval: 0s, statusPeriod: 0s, reregister: 3h}
";

/// What follows when a manager ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The test fails.
    Never,
    /// The manager starts again, a few times, like a pod that can't reach its API server at the start, or has lost its Lease.
    ComesAgain,
}

/// Where the cloud stores its VMs.
#[derive(Clone, Debug)]
pub enum CloudState {
    /// On the API server, so that it survives any manager.
    ConfigMap,
    /// In a file of the exchange format, for VMs that existed before.
    File(PathBuf),
}

/// A manager and the lying proxy in front of it.
struct Manager {
    liar: InProcessLiar,
    task: JoinHandle<anyhow::Result<()>>,
}

/// The world of one cell.
pub struct World {
    pub stage: Stage,
    pub ledger: Ledger,
    seed: u64,
    managers: Vec<Manager>,
    started: u64,
    state: CloudState,
    telling: Telling,
}

impl World {
    /// A cluster without definitions or managers. Its managers will get these lies.
    pub fn new(seed: u64, state: CloudState, telling: Telling) -> Self {
        let ledger = Ledger::of(state.clone());
        Self { stage: Stage::new(seed), ledger, seed, managers: Vec::new(), started: 0, state, telling }
    }

    /// Starts a manager behind its own proxy. It answers webhooks from now on.
    pub async fn starts_manager(&mut self, flags: &[&str], ends: Ends) {
        let liar = InProcessLiar::default();
        self.telling.begins_for(&liar);
        let client = liar.in_front_of(&self.stage.managers_client());
        let state = match &self.state {
            CloudState::ConfigMap => format!("--simulation-state=configmap:{CLOUD}"),
            CloudState::File(path) => format!("--simulation-state=json:{}", path.display()),
        };
        let simulation = scratch::subfolder("lies").join("simulation.yaml");
        std::fs::write(&simulation, SIMULATION).expect("the scratch folder is writable");
        let simulation = format!("--simulation-config={}", simulation.display());
        let flags: Vec<&str> = flags.iter().copied().chain([state.as_str(), simulation.as_str()]).collect();
        let settings = settings(&flags);
        self.started += 1;
        let seed = self.seed * 100 + self.started * 10;
        let (stage, answering) = (self.stage.clone(), Arc::new(Notify::new()));
        let answers = Arc::clone(&answering);
        let task = tokio::spawn(async move {
            let mut attempt = 0;
            loop {
                let (server, answers) = (Arc::clone(&stage.server), Arc::clone(&answers));
                let given = move |reviewer| {
                    answer_webhooks(&server, reviewer);
                    answers.notify_one();
                };
                let environment = stage.environment(&client, Endpoints::InProcess(Box::new(given)), seed + attempt);
                let ended = run_in(settings.clone(), environment, std::future::pending()).await;
                attempt += 1;
                if ends == Ends::Never || attempt > 4 {
                    return ended;
                }
                sleep(Duration::from_secs(10)).await;
            }
        });
        self.managers.push(Manager { liar, task });
        answering.notified().await;
    }

    /// The manager that was started first dies at its current step, as by SIGKILL.
    pub fn the_first_manager_dies(&mut self) {
        let dead = self.managers.remove(0);
        dead.liar.cuts_off();
        dead.task.abort();
    }

    /// The lies begin now.
    pub fn is_lied_to(&mut self) {
        self.telling.begins();
        for manager in &self.managers {
            self.telling.begins_for(&manager.liar);
        }
        self.telling.disturbs(&self.stage.server, &mut self.ledger);
    }

    /// Lets some seconds of virtual time pass.
    pub async fn a_moment(&mut self) {
        sleep(TICK).await;
        for manager in &self.managers {
            assert!(!manager.task.is_finished(), "a manager has ended by itself");
        }
        self.telling.disturbs(&self.stage.server, &mut self.ledger);
        self.ledger.looks(&self.stage.server);
    }

    /// Lets virtual time pass. The check must be true all the time.
    pub async fn for_a_while(&mut self, time: Duration, check: impl AsyncFn(&Self) -> Result<(), String>) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.a_moment().await;
            if let Err(seen) = check(self).await {
                panic!("{seen}");
            }
        }
    }

    /// Lets virtual time pass until a check is true.
    pub async fn until(&mut self, what: &str, check: impl AsyncFn(&Self) -> Result<(), String>) {
        let end = Instant::now() + PATIENCE;
        loop {
            match check(self).await {
                Ok(()) => return,
                Err(seen) => assert!(Instant::now() < end, "waited {PATIENCE:?} in vain for {what}: {seen}"),
            }
            self.a_moment().await;
        }
    }

    /// Everything comes to rest, and stays at rest.
    pub async fn comes_to_rest(&mut self) {
        let end = Instant::now() + PATIENCE;
        let mut since = Instant::now();
        self.take_attempts();
        while since.elapsed() < SETTLED + REST {
            self.a_moment().await;
            let tried = self.take_attempts();
            if tried.is_empty() {
                continue;
            }
            let rested = since.elapsed();
            assert!(rested < SETTLED, "after {rested:?} of rest was written: {}", written(&tried));
            assert!(Instant::now() < end, "no rest within {PATIENCE:?}; was written last: {}", written(&tried));
            since = Instant::now();
        }
    }

    /// The writes that all managers have tried since the last call.
    pub fn take_attempts(&self) -> Vec<WriteAttempt> {
        self.managers.iter().flat_map(|manager| manager.liar.take_attempts()).collect()
    }

    /// The objects of one of our kinds.
    pub async fn ours(&self, plural: &str) -> Vec<Value> {
        list(&self.stage.client, &format!("{MACHINE_PATH}/{plural}")).await
    }

    /// The machines of a deployment of [`super::flows`].
    pub async fn machines_of(&self, fleet: &str) -> Vec<Value> {
        let mut machines = self.ours("machines").await;
        machines.retain(|machine| machine["metadata"]["labels"]["fleet"] == fleet);
        machines
    }

    pub async fn nodes(&self) -> Vec<Value> {
        list(&self.stage.client, "/api/v1/nodes").await
    }

    /// Patches one of our objects.
    pub async fn patches(&self, plural: &str, object: &str, patch: &Value) {
        self.merges(&format!("{MACHINE_PATH}/{plural}/{object}"), patch).await;
    }

    /// Patches the object at a path.
    pub async fn merges(&self, path: &str, patch: &Value) {
        send(&self.stage.client, "PATCH", path, patch).await.unwrap_or_else(|error| panic!("PATCH {path}: {error}"));
    }

    /// Deletes the object at a path.
    pub async fn deletes(&self, path: &str) {
        send(&self.stage.client, "DELETE", path, &Value::Null)
            .await
            .unwrap_or_else(|error| panic!("DELETE {path}: {error}"));
    }

    /// Deletes a machine, which may be deleted from now on with its Node and its VM.
    pub async fn deletes_machine(&mut self, machine: &Value) {
        self.ledger.may_go(name(machine));
        self.deletes(&format!("{MACHINE_PATH}/machines/{}", name(machine))).await;
    }
}

fn written(tried: &[WriteAttempt]) -> Value {
    tried
        .iter()
        .map(|write| json!(format!("{} {} {}", write.method, write.path, String::from_utf8_lossy(&write.body))))
        .collect()
}
