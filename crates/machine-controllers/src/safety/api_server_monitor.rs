//! The loop `machinesafetyapiserver`: probes both API servers, and freezes and unfreezes the machine loops as
//! [`freeze`] decides.
//!
//! A machine that can't be unfrozen does not stop the others: it alone stays frozen, is reported, and is tried again
//! (M-35). Source: spec/machine-controller §9.3.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    freeze::{self, Health, LOOK_AFTER_THAW, Limits, Observation, State, Step, Views, silence},
    patches,
};
use crate::{
    machine::{FreezeSwitch, health::frozen::is_under_way, observation::Freeze},
    snapshots::{MachineSnapshot, NodeSnapshot},
    views::ControlViews,
};
use controller_runtime::{
    catch_up::caught_up,
    clock::SharedClock,
    error::ApiError,
    events::{EventNote, Recorder},
    key::ObjectKey,
    lock,
    objects::{ApiServer, ObjectApi, Objects, Part},
    queue::{Outcome, WorkQueue},
    snapshot::Snapshot,
    store::Store,
};
use machine_api::{names::machine_reason, v1alpha1::Machine};
use mcm_metrics::Metrics;

/// The object that probes ask for. An answer that it does not exist is a success.
const DUMMY: &str = "dummy_name";
/// Pause before the next probe while the stores have not caught up.
const CATCH_UP: Duration = Duration::from_secs(10);
/// Minimum and maximum time limit of a probe.
const PROBE_WITHIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// The dependencies of the monitor.
pub struct ApiServerMonitorDeps {
    /// Probes the API server with the machine objects.
    pub control: kube::Client,
    /// Probes the API server with the Nodes.
    pub target: kube::Client,
    /// The store of Nodes, which must have caught up before a thaw.
    pub nodes: Option<Arc<Store<NodeSnapshot>>>,
    /// Namespace of the machine objects.
    pub namespace: String,
    /// The stores of the control cluster.
    pub views: ControlViews,
    /// Machines, read and written.
    pub machines: Objects<MachineSnapshot>,
    /// The queue of machines; `None` if their loop does not run here.
    pub wake: Option<Arc<WorkQueue<ObjectKey>>>,
    /// The clock.
    pub clock: SharedClock,
    /// The switch that freezes and unfreezes the loops.
    pub freeze: FreezeSwitch,
    /// Writes events.
    pub recorder: Recorder,
    /// Shows whether the loops are frozen.
    pub metrics: Metrics,
    /// The limits.
    pub limits: Limits,
}

/// Watches whether the API servers can be reached.
pub struct ApiServerMonitor {
    deps: ApiServerMonitorDeps,
    state: Mutex<State>,
    /// Machines that could not be unfrozen yet, with the start of their outage.
    unthawed: Mutex<BTreeMap<ObjectKey, Timestamp>>,
}

impl ApiServerMonitor {
    /// A monitor. It does nothing until its queue runs [`Self::reconcile`]. Both API servers count as reachable at the
    /// start.
    pub fn new(deps: ApiServerMonitorDeps) -> Self {
        let state = State::Flowing { failing_since: None };
        Self { deps, state: Mutex::new(state), unthawed: Mutex::default() }
    }

    /// Sends one probe and acts on its result.
    pub async fn reconcile(&self) -> Outcome {
        let asked = self.deps.clock.reading().steady;
        let deps = &self.deps;
        let (control, target) =
            tokio::join!(self.probe::<Machine>(&deps.control, &deps.namespace), self.probe::<Node>(&deps.target, ""));
        let state = *lock(&self.state);
        let both_up = control == Health::Up && target == Health::Up;
        let views = if both_up && matches!(state, State::Frozen { .. }) { self.views().await } else { Views::Current };
        for (cluster, health) in [("control", &control), ("target", &target)] {
            if let Health::Down(why) = health {
                tracing::warn!(cluster, error = why, "the API server does not answer");
            }
        }
        let reading = self.deps.clock.reading();
        let is_news = self.deps.freeze.set_silence(silence(&control, &target));
        let plan = freeze::decide(&Observation {
            version: freeze::OBSERVATION_VERSION,
            now: reading.now,
            steady: reading.steady,
            asked,
            views,
            state,
            control,
            target,
            limits: self.deps.limits,
        });
        match plan.step {
            Step::Nothing => {
                if is_news && matches!(plan.state, State::Frozen { .. }) {
                    self.wake_machines_under_way();
                }
            }
            Step::Freeze => {
                tracing::error!("an API server has been silent for too long: the machine loops are frozen");
                self.show(Freeze::Frozen);
                self.wake_machines_under_way();
            }
            Step::Thaw { outage_began } => {
                self.thaw_all(outage_began).await;
                tracing::info!("the API servers answer again: the machine loops go on");
                self.show(Freeze::Flowing);
                self.wake_all();
            }
        }
        *lock(&self.state) = plan.state;
        let mut next = plan.next;
        if matches!(plan.state, State::Flowing { failing_since: None, .. }) && !self.thaw_the_rest().await {
            next = next.min(LOOK_AFTER_THAW);
        }
        Outcome::LookAgain(next, "the next probe")
    }

    /// Whether the stores show the present state of the API servers. A watch that reconnects after an outage replays
    /// it: at first it may show every Node as unreachable.
    async fn views(&self) -> Views {
        let ApiServerMonitorDeps { control, target, namespace, views, .. } = &self.deps;
        let Some(nodes) = &self.deps.nodes else { return Views::Current };
        let caught_up =
            async { tokio::join!(caught_up(control, namespace, &views.machines), caught_up(target, "", nodes)) };
        if tokio::time::timeout(CATCH_UP, caught_up).await.is_ok() {
            return Views::Current;
        }
        tracing::info!("the API servers answer again, and the views are behind them: still frozen");
        Views::Behind
    }

    /// Only an API server names the object that it did not find. Any other 404 comes from a gateway that does not reach
    /// the API server.
    async fn probe<K>(&self, client: &kube::Client, namespace: &str) -> Health
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
    {
        let within = (self.deps.limits.timeout / 3).clamp(PROBE_WITHIN.0, PROBE_WITHIN.1);
        let (api, key) = (ApiServer::<K>::of_kind(client.clone(), ()), ObjectKey::new(namespace, DUMMY));
        match tokio::time::timeout(within, api.read(&key)).await {
            Ok(Ok(_) | Err(ApiError::NotFound(_))) => Health::Up,
            Ok(Err(error)) => Health::Down(error.to_string()),
            Err(_) => Health::Down(format!("no answer within {within:?}")),
        }
    }

    fn show(&self, freeze: Freeze) {
        self.deps.freeze.set(freeze);
        self.deps.metrics.machine.controller_frozen.set(&(), if freeze == Freeze::Frozen { 1.0 } else { 0.0 });
    }

    /// Resets all machines that became unhealthy in the outage, before the loops run again.
    async fn thaw_all(&self, outage_began: Timestamp) {
        for machine in self.deps.views.machines.snapshot() {
            self.thaw(&machine.key(), outage_began).await;
        }
    }

    /// Tries again to unfreeze the remaining machines; returns whether none is left.
    async fn thaw_the_rest(&self) -> bool {
        let rest = lock(&self.unthawed).clone();
        for (key, outage_began) in rest {
            self.thaw(&key, outage_began).await;
        }
        lock(&self.unthawed).is_empty()
    }

    async fn thaw(&self, key: &ObjectKey, outage_began: Timestamp) {
        let was_held = lock(&self.unthawed).contains_key(key);
        let stored = self.deps.views.machines.get(key);
        if stored.as_ref().is_none_or(|stored| freeze::thawed(stored, outage_began).is_none()) {
            return self.let_go(key, was_held);
        }
        // The store may be as old as the outage, so the machine is read from the API server.
        let written = match self.deps.machines.get(key).await {
            Ok(None) => Ok(()),
            Ok(Some(machine)) => match freeze::thawed(&machine, outage_began) {
                None => Ok(()),
                Some(thaw) => {
                    let patch = patches::thaw(thaw, &machine, self.deps.clock.now());
                    self.deps.machines.patch(&machine.target(), Part::Status, patch).await.map(drop)
                }
            },
            Err(error) => Err(error),
        };
        match written {
            Ok(()) | Err(ApiError::NotFound(_)) => self.let_go(key, was_held),
            Err(error) => {
                let text = format!(
                    "the health timeout can't be reset after the API server was unreachable: {error}; no verdict is made \
                     about this machine until that succeeds"
                );
                tracing::warn!(
                    kind = "Machine", namespace = key.namespace, name = key.name, error = %error,
                    "cannot thaw"
                );
                if let Some(machine) = stored {
                    self.deps.recorder.note(&machine, EventNote::warning(machine_reason::THAW_FAILED, text));
                }
                self.deps.freeze.hold(key);
                lock(&self.unthawed).insert(key.clone(), outage_began);
            }
        }
    }

    fn let_go(&self, key: &ObjectKey, was_held: bool) {
        if !was_held {
            return;
        }
        lock(&self.unthawed).remove(key);
        self.deps.freeze.release(key);
        if let Some(queue) = &self.deps.wake {
            queue.add(key.clone());
        }
    }

    /// Wakes the machines that are not where they should be, so that their conditions name the outage.
    fn wake_machines_under_way(&self) {
        let Some(queue) = &self.deps.wake else { return };
        for machine in self.deps.views.machines.snapshot() {
            if is_under_way(machine.phase()) {
                queue.add(machine.key());
            }
        }
    }

    fn wake_all(&self) {
        let Some(queue) = &self.deps.wake else { return };
        for machine in self.deps.views.machines.snapshot() {
            queue.add_after(machine.key(), LOOK_AFTER_THAW);
        }
    }
}

#[cfg(test)]
mod tests;
