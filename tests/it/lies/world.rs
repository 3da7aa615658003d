//! The world of one cell: an embedded API server, a cloud that outlives its managers, managers behind lying clients, and the test. Everything runs in
//! one thread on paused time. Each seed gives exactly one sequence of events.

use std::{path::PathBuf, sync::Arc, time::Duration};

use machine_controller_manager::manager::{Endpoints, run_in};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{ledger::Ledger, weather::ActiveLie};
use crate::support::{
    cluster_object::name,
    lying::{WriteAttempt, in_process::InProcessLiar},
    one_thread::{MACHINE_PATH, Stage, answer_webhooks, list, send, settings},
    scratch,
};

/// The virtual time that anything may take.
const TIMEOUT: Duration = Duration::from_secs(2 * 3600);
/// The period of the test's checks.
const TICK: Duration = Duration::from_secs(5);
/// The world is settled when no manager has tried to write for this time.
const SETTLED: Duration = Duration::from_secs(100);
/// No manager may try to write in the time after that. It is long enough for every periodic check to run several times.
const REST: Duration = Duration::from_secs(4 * 60);
/// The name of the `ConfigMap` with the VMs of the cloud.
pub const CLOUD: &str = "cloud";
/// A cloud with realistic latencies and without the periodic writes of kubelets.
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

/// The consequence when a manager ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExit {
    /// The test fails.
    Fail,
    /// The manager is restarted a few times, as a pod is whose API server is not reachable at the start, or which has lost its Lease.
    Restart,
}

/// The place where the cloud stores its VMs.
#[derive(Clone, Debug)]
pub enum CloudState {
    /// On the API server; it outlives every manager.
    ConfigMap,
    /// In a file of the exchange format, for VMs that exist already.
    File(PathBuf),
}

/// A manager, and the lying client that it uses.
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
    active_lie: ActiveLie,
}

impl World {
    /// A cluster without definitions and managers. The lie will apply to its managers.
    pub fn new(seed: u64, state: CloudState, active_lie: ActiveLie) -> Self {
        let ledger = Ledger::of(state.clone());
        Self { stage: Stage::new(seed), ledger, seed, managers: Vec::new(), started: 0, state, active_lie }
    }

    /// Starts a manager with its own lying client, and waits until it answers webhooks.
    pub async fn start_manager(&mut self, flags: &[&str], on_exit: OnExit) {
        let liar = InProcessLiar::default();
        self.active_lie.begins_for(&liar);
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
                if on_exit == OnExit::Fail || attempt > 4 {
                    return ended;
                }
                sleep(Duration::from_secs(10)).await;
            }
        });
        self.managers.push(Manager { liar, task });
        answering.notified().await;
    }

    /// Kills the manager that was started first, as SIGKILL does.
    pub fn kill_first_manager(&mut self) {
        let dead = self.managers.remove(0);
        dead.liar.cuts_off();
        dead.task.abort();
    }

    /// Starts the lie.
    pub fn start_lie(&mut self) {
        self.active_lie.begins();
        for manager in &self.managers {
            self.active_lie.begins_for(&manager.liar);
        }
        self.active_lie.disturbs(&self.stage.server, &mut self.ledger);
    }

    /// Advances virtual time by some seconds.
    pub async fn a_moment(&mut self) {
        sleep(TICK).await;
        for manager in &self.managers {
            assert!(!manager.task.is_finished(), "a manager has ended by itself");
        }
        self.active_lie.disturbs(&self.stage.server, &mut self.ledger);
        self.ledger.looks(&self.stage.server);
    }

    /// Advances virtual time by this duration; the check must hold all the time.
    pub async fn check_for(&mut self, time: Duration, check: impl AsyncFn(&Self) -> Result<(), String>) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.a_moment().await;
            if let Err(seen) = check(self).await {
                panic!("{seen}");
            }
        }
    }

    /// Advances virtual time until a check holds.
    pub async fn until(&mut self, what: &str, check: impl AsyncFn(&Self) -> Result<(), String>) {
        let end = Instant::now() + TIMEOUT;
        loop {
            match check(self).await {
                Ok(()) => return,
                Err(seen) => assert!(Instant::now() < end, "after {TIMEOUT:?} still waiting for {what}: {seen}"),
            }
            self.a_moment().await;
        }
    }

    /// Waits until all writes stop, and checks that no further write follows.
    pub async fn wait_until_at_rest(&mut self) {
        let end = Instant::now() + TIMEOUT;
        let mut since = Instant::now();
        self.take_attempts();
        while since.elapsed() < SETTLED + REST {
            self.a_moment().await;
            let tried = self.take_attempts();
            if tried.is_empty() {
                continue;
            }
            let rested = since.elapsed();
            assert!(rested < SETTLED, "a write after {rested:?} without writes: {}", written(&tried));
            assert!(Instant::now() < end, "writes do not stop within {TIMEOUT:?}; the last ones: {}", written(&tried));
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

    /// Deletes a machine. From now on the machine, its Node and its VM may be deleted.
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
