//! A small cluster and a small cloud for the tests of the whole controller: an API server, stores that receive changes a
//! little later, a clock that can be set, and a driver that can fail in every way.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    at,
    cloud::{SmallCloud, Vms},
    views::{Follow, Pods},
};
use crate::{
    drain::act::Evictor,
    machine::{
        FreezeSwitch, MachineController, MachineDeps, TargetParts,
        observation::{Freeze, LastGood},
        settings::MachineSettings,
    },
    snapshots::{MachineSnapshot, NodeSnapshot},
    testing_api::{FOR_EVER, Fault, TestApi},
    views::{ControlViews, node_store},
    wakes::listener,
};
pub use controller_runtime::lock;
use controller_runtime::{
    clock::{Clock, Reading, SystemClock, TokioClock},
    events::Recorder,
    gate::Gate,
    key::ObjectKey,
    lease::Leadership,
    objects::Objects,
    queue::WorkQueue,
    refusals::Refusals,
    store::{Listener, Store},
    tasks::TokioTasks,
};
use machine_api::names::finalizer;
use machine_driver::{Capabilities, Driver, DriverInfo, Measured, Registry};
use mcm_metrics::Metrics;

pub const MACHINES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/";
pub const MACHINE: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m-abcde";
pub const NODES: &str = "/api/v1/nodes/";
const PODS: &str = "/api/v1/namespaces/ns/pods/";
/// While this fails, the views of pods are empty.
pub(crate) const LIST_OF_PODS: &str = "GET /api/v1/pods";

/// Whether calls fail, and by which seed.
#[derive(Clone, Copy, Debug)]
pub enum Luck {
    Good,
    /// No call fails, but every driver call takes this long.
    Slow(Duration),
    Bad(u64),
}

/// Clusters, cloud and one controller process.
pub struct World {
    pub(crate) api: TestApi,
    pub vms: Arc<Mutex<Vms>>,
    pub metrics: Metrics,
    pub cloud: Arc<SmallCloud>,
    /// The controller's clock, which may be set.
    pub clock: Arc<SetClock>,
    weather: Weather,
    /// Whether the store receives changes of Nodes.
    nodes_are_delivered: watch::Sender<bool>,
    process: Process,
}

/// A clock that can be set forward or back while it runs.
pub struct SetClock {
    runs: Arc<TokioClock>,
    shift: Arc<AtomicI64>,
    /// The production clock on top of this one, once steps are to be noticed.
    watched: std::sync::OnceLock<SystemClock>,
}

impl SetClock {
    fn starting_at(second: i64) -> Self {
        let runs = Arc::new(TokioClock::starting_at(at(second)));
        Self { runs, shift: Arc::default(), watched: std::sync::OnceLock::new() }
    }

    /// From now on steps are noticed, as in production.
    pub fn watch(&self) {
        let (runs, shift) = (Arc::clone(&self.runs), Arc::clone(&self.shift));
        self.watched.get_or_init(|| {
            SystemClock::over(move || runs.now() + jiff::SignedDuration::from_secs(shift.load(Ordering::SeqCst)))
        });
    }

    /// Sets the clock by this many seconds.
    pub fn jump(&self, seconds: i64) {
        self.shift.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> jiff::Timestamp {
        self.runs.now() + jiff::SignedDuration::from_secs(self.shift.load(Ordering::SeqCst))
    }

    fn reading(&self) -> Reading {
        self.watched.get().map_or_else(|| Reading::trusted(self.now()), SystemClock::reading)
    }
}

/// The part of the process that notices that the target cluster's API server does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticedBy {
    /// The watches, which find no connection.
    Watches,
    /// Only the probes, which get no answer: the watches receive nothing and take that for no change.
    Probes,
}

/// How late and how wrong the controller's knowledge is.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// A change arrives this long after it happened.
    pub watch_delay: Duration,
    /// The controller's clock is ahead of the API server's by this many seconds.
    pub clock_ahead: i64,
}

impl Default for Weather {
    fn default() -> Self {
        Self { watch_delay: Duration::from_millis(20), clock_ahead: 0 }
    }
}

struct Process {
    /// Cancelled when the process is killed or has lost its lease.
    stop: CancellationToken,
    /// Cancelled when the process is asked to stop.
    stopping: CancellationToken,
    leadership: Leadership,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// Its store of Nodes.
    nodes: Arc<Store<NodeSnapshot>>,
    freeze: FreezeSwitch,
    controller: Arc<MachineController>,
    working: Option<tokio::task::JoinHandle<()>>,
}

/// Requests of the target cluster.
const TARGET: [&str; 2] = [" /api/v1/nodes", " /api/v1/namespaces/ns/pods"];

/// How long a process that is asked to stop lets driver calls run.
pub const DRIVER_DRAIN: Duration = Duration::from_secs(20);

impl World {
    /// A world with a class (whose user data asks for a token), and a controller.
    pub fn new(luck: Luck) -> Self {
        Self::under(luck, Weather::default())
    }

    /// The same with a driver that makes another VM each time it is asked for one.
    pub fn with_a_driver_that_repeats_itself() -> Self {
        let abilities = Capabilities { create_is_idempotent: false, lists_creation_time: false };
        Self::with(Luck::Good, Weather::default(), abilities)
    }

    /// The same under this weather.
    pub fn under(luck: Luck, weather: Weather) -> Self {
        Self::with(luck, weather, Capabilities { create_is_idempotent: true, lists_creation_time: false })
    }

    fn with(luck: Luck, weather: Weather, capabilities: Capabilities) -> Self {
        let clock = Arc::new(SetClock::starting_at(weather.clock_ahead));
        let random = |salt: u64| match luck {
            Luck::Good | Luck::Slow(_) => None,
            Luck::Bad(seed) => Some(ChaCha8Rng::seed_from_u64(seed ^ salt)),
        };
        let api = TestApi::new(Arc::new(TokioClock::starting_at(at(0))));
        api.put(
            "machineclasses/c",
            json!({
                "metadata": { "namespace": "ns", "finalizers": [finalizer::MACHINE] },
                "provider": "small", "providerSpec": {}, "secretRef": { "name": "s" },
            }),
        );
        let user_data = "PDxCT09UU1RSQVBfVE9LRU4+Pg==";
        api.put(
            "/api/v1/namespaces/ns/secrets/s",
            json!({ "metadata": { "namespace": "ns" }, "data": { "userData": user_data } }),
        );
        api.set_luck(random(1));
        let vms = Arc::<Mutex<Vms>>::default();
        let cloud = Arc::new(SmallCloud {
            info: DriverInfo { name: "small", providers: vec!["small".to_owned()], schema: None, capabilities },
            api: api.clone(),
            vms: Arc::clone(&vms),
            faults: Mutex::new(random(2)),
            pause: if let Luck::Slow(pause) = luck { pause } else { Duration::ZERO },
            mishap: Mutex::default(),
            joins_after: Mutex::default(),
            calls: Mutex::default(),
            lag: Mutex::default(),
        });
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        let nodes_are_delivered = watch::Sender::new(true);
        let process = start(&api, &nodes_are_delivered, &cloud, &clock, &metrics, weather);
        Self { api, vms, metrics, cloud, clock, weather, nodes_are_delivered, process }
    }

    /// Kills the process and starts another one.
    pub fn restart(&mut self) {
        self.process.stop.cancel();
        self.process =
            start(&self.api, &self.nodes_are_delivered, &self.cloud, &self.clock, &self.metrics, self.weather);
    }

    /// Asks the process to stop, as SIGTERM does, and waits for its end. Returns how long that took, and how many driver
    /// calls had no answer by then.
    pub async fn end(&mut self) -> (Duration, usize) {
        let began = tokio::time::Instant::now();
        self.process.stopping.cancel();
        if let Some(working) = self.process.working.take() {
            working.await.unwrap();
        }
        self.process.controller.finish().await;
        self.process.stop.cancel();
        (began.elapsed(), self.process.leadership.unanswered())
    }

    /// Takes the lease from the process; returns how many driver calls had no answer a moment later.
    pub async fn lose_lease(&self) -> usize {
        self.process.stop.cancel();
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.process.leadership.unanswered()
    }

    /// From now on nothing fails any more.
    pub fn heal(&self) {
        self.api.set_luck(None);
        *lock(&self.cloud.faults) = None;
    }

    /// The target cluster's API server stops answering. The cluster itself keeps running.
    pub fn target_falls_silent(&self, noticed: NoticedBy) {
        for requests in TARGET {
            self.api.fail(requests, Fault::LoseRequest, FOR_EVER);
        }
        self.nodes_are_delivered.send_replace(false);
        match noticed {
            NoticedBy::Watches => {
                self.pods_are_late();
                self.process.nodes.set_current(false);
            }
            NoticedBy::Probes => self.process.freeze.set(Freeze::Frozen),
        }
    }

    /// The target cluster's API server answers again.
    pub fn target_answers_again(&self) {
        for requests in TARGET {
            self.api.heal(requests);
        }
        self.pods_are_listed();
        self.nodes_are_delivered.send_replace(true);
        self.process.nodes.set_current(true);
        self.process.freeze.set(Freeze::Flowing);
    }

    /// The views of pods are empty from now on.
    pub fn pods_are_late(&self) {
        self.api.fail(LIST_OF_PODS, Fault::LoseRequest, FOR_EVER);
    }

    /// The views of pods are complete.
    pub fn pods_are_listed(&self) {
        self.api.heal(LIST_OF_PODS);
    }

    /// A budget refuses the eviction of this pod.
    pub fn hold(&self, pod: &str) {
        self.api.fail(&format!("{PODS}{pod}/eviction"), Fault::Answer(429), FOR_EVER);
    }

    /// Evictions of this pod are granted; without a name, evictions of all pods.
    pub fn let_go(&self, pod: &str) {
        self.api.heal(&format!("{pod}/eviction"));
    }

    /// Starts a pass over the machine at once.
    pub fn wake(&self) {
        self.wake_named("m-abcde");
    }

    /// Starts a pass over this machine at once.
    pub fn wake_named(&self, name: &str) {
        self.process.queue.add(ObjectKey::new("ns", name));
    }

    /// The time in the form in which objects hold it.
    pub fn now(&self) -> String {
        crate::times::rfc3339(self.clock.now())
    }

    pub fn vms(&self) -> MutexGuard<'_, Vms> {
        lock(&self.vms)
    }

    /// Creates a machine as a set does, with the finalizer of the webhook.
    pub fn make_machine(&self) {
        self.make_machine_named("m-abcde");
    }

    /// Creates a machine of this name.
    pub fn make_machine_named(&self, name: &str) {
        let machine = json!({
            "metadata": {
                "namespace": "ns", "finalizers": [finalizer::MACHINE],
                "labels": { "name": "pool" },
            },
            "spec": {
                "class": { "kind": "MachineClass", "name": "c" },
                "nodeTemplate": { "metadata": { "labels": { "pool": "a" } } },
            },
        });
        self.api.put(&format!("{MACHINES}{name}"), machine);
    }

    /// Whether the process remembers the class and its Secrets as they were when last used.
    pub fn remembers_class(&self) -> bool {
        self.process.controller.remembers_class(&ObjectKey::new("ns", "c")) == LastGood::Remembered
    }

    pub fn make_pod(&self, name: &str) {
        self.make_pod_on(name, "m-abcde");
    }

    /// Creates a pod on this node.
    pub fn make_pod_on(&self, name: &str, node: &str) {
        self.make_pod_with(name, node, &json!({ "namespace": "ns" }));
    }

    /// Creates a pod with this metadata. No kubelet ends it: it is gone as soon as it has no finalizer.
    pub fn make_pod_with(&self, name: &str, node: &str, metadata: &Value) {
        let containers = json!([{ "name": "c", "image": "i" }]);
        let spec = json!({ "nodeName": node, "containers": containers, "terminationGracePeriodSeconds": 0 });
        self.api.put(&format!("{PODS}{name}"), json!({ "metadata": metadata, "spec": spec }));
    }

    /// The phase of a machine of this name, unless it is gone.
    pub fn phase_of(&self, name: &str) -> Option<String> {
        let machine = self.api.get(&format!("{MACHINES}{name}"))?;
        Some(machine["status"]["currentStatus"]["phase"].as_str().unwrap_or_default().to_owned())
    }

    /// Driver calls that have begun.
    pub fn cloud_calls(&self) -> usize {
        *lock(&self.cloud.calls)
    }

    pub fn phase(&self) -> Option<String> {
        self.phase_of("m-abcde")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.process.stop.cancel();
    }
}

/// Starts a controller with fresh stores over the clusters.
fn start(
    api: &TestApi,
    nodes_are_delivered: &watch::Sender<bool>,
    cloud: &Arc<SmallCloud>,
    clock: &Arc<SetClock>,
    metrics: &Metrics,
    weather: Weather,
) -> Process {
    let stop = CancellationToken::new();
    let stopping = CancellationToken::new();
    let leadership = Leadership::without_election(stop.clone());
    let gate = Gate::open_while(leadership.clone()).draining_calls(stopping.clone(), DRIVER_DRAIN);
    let views = ControlViews::default();
    let nodes = node_store();
    let follow =
        Follow { api, delivered: watch::Sender::new(true).subscribe(), delay: weather.watch_delay, stop: &stop };
    let queue = Arc::new(WorkQueue::for_tests("machine"));
    let (sender, mut events) = tokio::sync::mpsc::channel(64);
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let client = api.client();
    let freeze = FreezeSwitch::default();
    let mut drivers = Registry::new();
    let cloud = Arc::clone(cloud) as Arc<dyn Driver>;
    let driver: Arc<dyn Driver> = Arc::new(Measured::new(cloud, metrics.clone()).of_cluster(Some("shoot".to_owned())));
    drivers.register(&driver);
    let (refusals, of_target) = (Refusals::default(), Refusals::default());
    let woken = Arc::clone(&queue);
    let controller = Arc::new(MachineController::new(MachineDeps {
        machines: Objects::new(client.clone(), gate.clone(), Some(Arc::clone(&views.machines)), |_| {})
            .with_refusals(&refusals),
        target: Some(TargetParts {
            nodes: Objects::new(client.clone(), gate.clone(), Some(Arc::clone(&nodes)), |_| {})
                .with_refusals(&of_target),
            node_store: Arc::clone(&nodes),
            tokens: Objects::new(client.clone(), gate.clone(), None, |_| {}),
            drain_views: Arc::new(Pods::following(api, &stop)),
            evictor: Evictor::new(client, gate.clone(), MachineSettings::default().concurrent_evictions),
            recorder: Recorder::new("machine-controller", sender.clone()),
        }),
        views: views.clone(),
        drivers,
        wake: Arc::new(move |key| woken.add(key)),
        tasks: Arc::new(TokioTasks),
        clock: Arc::<SetClock>::clone(clock),
        gate,
        recorder: Recorder::new("machine-controller", sender),
        rng: Arc::new(Mutex::new(rand_chacha::ChaCha20Rng::seed_from_u64(7))),
        freeze: freeze.clone(),
        settings: MachineSettings::default(),
        metrics: metrics.clone(),
    }));
    let routes = controller.wakes();
    let mut of_machines: Vec<Listener<MachineSnapshot>> = vec![Box::new(move |change| refusals.see(change))];
    let woken = Arc::clone(&queue);
    of_machines.extend(routes.machines.map(|route| listener(route, &views, move |wake| woken.add(wake.key))));
    views.machines.set_listeners(of_machines);
    let mut of_nodes: Vec<Listener<NodeSnapshot>> = vec![Box::new(move |change| of_target.see(change))];
    let woken = Arc::clone(&queue);
    of_nodes.extend(routes.nodes.map(|route| listener(route, &views, move |wake| woken.add(wake.key))));
    nodes.set_listeners(of_nodes);
    follow.all("machines", &views.machines);
    follow.all("machineclasses", &views.classes);
    follow.all("/api/v1/namespaces/ns/secrets", &views.secrets);
    Follow { delivered: nodes_are_delivered.subscribe(), ..follow }.all("/api/v1/nodes", &nodes);
    let (woken, passing) = (Arc::clone(&queue), Arc::clone(&controller));
    // A killed or stopping process begins nothing new; the gate stops what a killed process has begun.
    let ends = CancellationToken::new();
    let (killed, asked, end) = (stop.clone(), stopping.clone(), ends.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = killed.cancelled() => {}
            () = asked.cancelled() => {}
        }
        end.cancel();
    });
    let working = tokio::spawn(queue.run(4, ends, move |key| {
        let controller = Arc::clone(&passing);
        async move { controller.reconcile(key).await }
    }));
    Process { stop, stopping, leadership, queue: woken, nodes, freeze, controller, working: Some(working) }
}
