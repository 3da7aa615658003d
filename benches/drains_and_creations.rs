//! Measures how long a creation waits for its driver call while many drains run: p50, p99 and the maximum.
//!
//! The controller, the queue and the clients with the default rates (20 calls per second per client) are real. Both clusters are
//! simulated in this process, and each call takes 3 ms. A disruption budget refuses every eviction, so that no drain ever ends. The
//! measured time begins with the change in the store, as after a watch event, and ends with the driver's `create_machine`.
//!
//! This is a program, not a test: `cargo bench --bench drains_and_creations` prints figures, and no figure is a failure.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use controller_runtime::{
    clients::{ClientSettings, Cluster, Purpose, Rate},
    clock::{SharedClock, TokioClock},
    events::Recorder,
    gate::Gate,
    key::ObjectKey,
    objects::{ApiServer, Objects},
    queue::WorkQueue,
    snapshot::Snapshot,
    store::Store,
    tasks::TokioTasks,
};
use http::{Method, Request, Response};
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::client::Body;
use kube_values::field::Findings;
use machine_api::{
    names::{finalizer, label, machine_condition, stage_text},
    v1alpha1::MachineClass,
};
use machine_controllers::{
    drain::{act::Evictor, observe::DrainViews},
    machine::{FreezeSwitch, MachineController, MachineDeps, TargetParts, settings::MachineSettings},
    snapshots::{
        AttachmentSnapshot, BudgetSnapshot, ClaimSnapshot, MachineSnapshot, NodeSnapshot, PodSnapshot, VolumeSnapshot,
    },
    views::{ControlViews, node_store},
    wakes::listener,
};
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, MachineRequest, OpContext,
    Registry, Status, VmIdentity, VolumeIdsRequest,
};
use mcm_metrics::Metrics;
use rand::SeedableRng;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const WORKERS: usize = 50;
const CREATIONS: usize = 100;
const BETWEEN: Duration = Duration::from_millis(250);
const API_LATENCY: Duration = Duration::from_millis(3);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for drains in [0, 1_000] {
        runtime.block_on(measure(drains))?;
    }
    Ok(())
}

/// Runs `drains` drains that never end, then creates machines and prints the time until their driver calls.
async fn measure(drains: usize) -> Result<(), Box<dyn std::error::Error>> {
    let world = World::new(drains)?;
    let stop = CancellationToken::new();
    let running = world.start(stop.clone())?;
    let began = Instant::now();
    // All drains are running once each machine reports the budget that blocks it.
    while world.blocked() < drains {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("{drains} drains under way after {:.1?}", began.elapsed());
    for number in 0..CREATIONS {
        let name = format!("new-{number}");
        lock(&world.cloud.wanted).insert(name.clone(), Instant::now());
        world.views.machines.apply(object(machine(&name, &json!({}), &json!({})))?);
        tokio::time::sleep(BETWEEN).await;
    }
    while lock(&world.cloud.waited).len() < CREATIONS {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut waited = lock(&world.cloud.waited).clone();
    waited.sort();
    let at = |percent: usize| waited[(waited.len() * percent / 100).min(waited.len() - 1)];
    println!(
        "{drains} drains: spec change → driver call of {CREATIONS} machines: p50 {:.1?}, p99 {:.1?}, longest {:.1?}; {} evictions refused meanwhile",
        at(50),
        at(99),
        at(100),
        *lock(&world.refused)
    );
    stop.cancel();
    running.await?;
    Ok(())
}

/// The cloud. It makes VMs at once and records the time until each call.
#[derive(Default)]
struct Cloud {
    wanted: Mutex<HashMap<String, Instant>>,
    waited: Mutex<Vec<Duration>>,
}

struct CloudDriver {
    info: DriverInfo,
    cloud: Arc<Cloud>,
}

#[async_trait]
impl Driver for CloudDriver {
    fn info(&self) -> &DriverInfo {
        &self.info
    }
    fn validate(&self, _class: &MachineClass, _found: &mut Findings) {}
    async fn create_machine(&self, _: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        let name = request.machine.metadata.name.clone().unwrap_or_default();
        if let Some(wanted) = lock(&self.cloud.wanted).remove(&name) {
            lock(&self.cloud.waited).push(wanted.elapsed());
        }
        let vm = VmIdentity { provider_id: format!("cloud:///{name}"), node_name: name, addresses: Vec::new() };
        Ok(CreatedVm { vm, last_known_state: None })
    }
    async fn delete_machine(&self, _: &OpContext, _: MachineRequest) -> Result<DeletedVm, Status> {
        Ok(DeletedVm::default())
    }
    async fn get_machine_status(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
        Err(Status::new(Code::NotFound, "no VM"))
    }
    async fn list_machines(&self, _: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, Status> {
        Ok(Vec::new())
    }
    async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(Vec::new())
    }
}

/// One pod on every drained node, and a budget that covers all of them.
struct Pods {
    on: HashMap<String, PodSnapshot>,
    budget: BudgetSnapshot,
}

impl DrainViews for Pods {
    fn ready(&self) -> bool {
        true
    }
    fn pods_on(&self, node: &str) -> Vec<PodSnapshot> {
        self.on.get(node).cloned().into_iter().collect()
    }
    fn pods_using(&self, _claim: &ObjectKey) -> Vec<PodSnapshot> {
        Vec::new()
    }
    fn budgets_in(&self, _namespace: &str) -> Vec<BudgetSnapshot> {
        vec![self.budget.clone()]
    }
    fn claim(&self, _key: &ObjectKey) -> Option<ClaimSnapshot> {
        None
    }
    fn volume(&self, _name: &str) -> Option<VolumeSnapshot> {
        None
    }
    fn attachments_on(&self, _node: &str) -> Vec<AttachmentSnapshot> {
        Vec::new()
    }
    fn attachments_of(&self, _volume: &str) -> Vec<AttachmentSnapshot> {
        Vec::new()
    }
}

/// Both clusters and the cloud.
struct World {
    views: ControlViews,
    nodes: Arc<Store<NodeSnapshot>>,
    pods: Arc<Pods>,
    cloud: Arc<Cloud>,
    refused: Arc<Mutex<usize>>,
}

impl World {
    fn new(drains: usize) -> Result<Self, serde_json::Error> {
        let views = ControlViews::default();
        views.classes.apply(object(json!({
            "metadata": { "name": "c", "namespace": "ns", "uid": "c", "resourceVersion": "1", "finalizers": [finalizer::MACHINE] },
            "provider": "cloudy", "providerSpec": {}, "secretRef": { "name": "s", "namespace": "ns" },
        }))?);
        views.secrets.apply(object(json!({
            "metadata": { "name": "s", "namespace": "ns", "uid": "s", "resourceVersion": "1" },
            "data": { "userData": "PDxCT09UU1RSQVBfVE9LRU4+Pg==" },
        }))?);
        let nodes = node_store();
        let mut on = HashMap::new();
        for number in 0..drains {
            let name = format!("old-{number}");
            let now = jiff::Timestamp::now().to_string();
            let status = json!({
                "currentStatus": { "phase": "Terminating", "lastUpdateTime": now },
                "lastOperation": {
                    "type": "Delete", "state": "Processing", "description": stage_text::DRAIN, "lastUpdateTime": now,
                },
            });
            views.machines.apply(object(machine(
                &name,
                &json!({ "deletionTimestamp": now, "labels": { label::NODE: name } }),
                &status,
            ))?);
            nodes.apply(object(json!({
                "metadata": { "name": name, "uid": name, "resourceVersion": "1", "finalizers": [finalizer::NODE] },
                "spec": { "providerID": format!("cloud:///{name}"), "unschedulable": true },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }, { "type": "Terminating", "status": "True" }] },
            }))?);
            let pod: Pod = object(json!({
                "metadata": { "name": name, "namespace": "ns", "uid": format!("pod-{name}"), "labels": { "app": "held" } },
                "spec": { "nodeName": name, "containers": [] },
            }))?;
            on.insert(name, PodSnapshot::from(pod));
        }
        let budget: PodDisruptionBudget = object(json!({
            "metadata": { "name": "held", "namespace": "ns", "generation": 1 },
            "spec": { "selector": { "matchLabels": { "app": "held" } }, "minAvailable": 1 },
            "status": {
                "observedGeneration": 1, "expectedPods": 2, "currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 0,
            },
        }))?;
        let pods = Arc::new(Pods { on, budget: BudgetSnapshot::from(budget) });
        Ok(Self { views, nodes, pods, cloud: Arc::default(), refused: Arc::default() })
    }

    /// The number of machines that report that a budget blocks them.
    fn blocked(&self) -> usize {
        let is_blocked = |machine: &MachineSnapshot| {
            machine
                .status()
                .machine_conditions
                .iter()
                .any(|condition| condition.reason == machine_condition::REASON_DRAIN_BLOCKED)
        };
        self.views.machines.snapshot().iter().filter(|machine| is_blocked(machine)).count()
    }

    fn start(&self, stop: CancellationToken) -> Result<tokio::task::JoinHandle<()>, Box<dyn std::error::Error>> {
        let transport = self.api();
        let settings = ClientSettings { rate: Rate::default(), observer: None };
        let control = Cluster::over(&transport, &transport, "control", &settings);
        let target = Cluster::over(&transport, &transport, "target", &settings);
        let began = Instant::now();
        let metrics = Metrics::new(Arc::new(move || began.elapsed()))?;
        let queue = Arc::new(WorkQueue::new("machine", metrics.queue("machine")));
        let gate = Gate::open_until(stop.clone());
        let (sender, mut events) = tokio::sync::mpsc::channel(64);
        tokio::spawn(async move { while events.recv().await.is_some() {} });
        let mut drivers = Registry::new();
        let driver: Arc<dyn Driver> = Arc::new(CloudDriver {
            info: DriverInfo {
                name: "cloudy",
                providers: vec!["cloudy".to_owned()],
                schema: None,
                capabilities: Capabilities { create_is_idempotent: true, lists_creation_time: false },
            },
            cloud: Arc::clone(&self.cloud),
        });
        drivers.register(&driver);
        let clock: SharedClock = Arc::new(TokioClock::starting_at(jiff::Timestamp::now()));
        let machines = Arc::clone(&self.views.machines);
        let nodes = Arc::clone(&self.nodes);
        let core = target.client(Purpose::TargetCore);
        let api = ApiServer::new(control.client(Purpose::Machines), |_| {})
            .reading_through(control.client(Purpose::MachineReads));
        let woken = Arc::clone(&queue);
        let controller = Arc::new(MachineController::new(MachineDeps {
            views: self.views.clone(),
            machines: Objects::over(Arc::new(api), gate.clone(), Some(machines)),
            target: Some(TargetParts {
                nodes: Objects::new(core.clone(), gate.clone(), Some(Arc::clone(&nodes)), |_| {}),
                node_store: nodes,
                tokens: Objects::new(core, gate.clone(), None, |_| {}),
                drain_views: Arc::<Pods>::clone(&self.pods),
                evictor: Evictor::new(
                    target.client(Purpose::Evictions),
                    gate.clone(),
                    MachineSettings::default().concurrent_evictions,
                ),
                recorder: Recorder::new("machine-controller", sender.clone()),
            }),
            drivers,
            wake: Arc::new(move |key| woken.add(key)),
            tasks: Arc::new(TokioTasks),
            clock,
            gate,
            recorder: Recorder::new("machine-controller", sender),
            rng: Arc::new(Mutex::new(rand_chacha::ChaCha20Rng::seed_from_u64(7))),
            freeze: FreezeSwitch::default(),
            settings: MachineSettings::default(),
            metrics,
        }));
        let woken = Arc::clone(&queue);
        let route = controller.wakes().machines;
        let listening = route.map(|route| listener(route, &self.views, move |wake| woken.add(wake.key)));
        self.views.machines.set_listeners(listening.into_iter().collect());
        for machine in self.views.machines.snapshot() {
            queue.add(machine.key());
        }
        Ok(tokio::spawn(queue.run(WORKERS, stop, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        })))
    }

    /// The API servers of both clusters. The stores are their database.
    fn api(&self) -> kube::Client {
        let (machines, nodes) = (Arc::clone(&self.views.machines), Arc::clone(&self.nodes));
        let refused = Arc::clone(&self.refused);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (machines, nodes, refused) = (Arc::clone(&machines), Arc::clone(&nodes), Arc::clone(&refused));
            async move {
                tokio::time::sleep(API_LATENCY).await;
                let (parts, body) = request.into_parts();
                let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or(Value::Null);
                let path = parts.uri.path();
                let (main, part) = path.strip_suffix("/status").map_or((path, None), |main| (main, Some("status")));
                let name = main.rsplit('/').next().unwrap_or_default();
                let (code, answer) = if path.ends_with("/eviction") {
                    *lock(&refused) += 1;
                    (429, refusal())
                } else if parts.method == Method::POST {
                    let mut made = body;
                    made["metadata"]["uid"] = json!("made");
                    made["metadata"]["resourceVersion"] = json!("1");
                    (201, made)
                } else if main.contains("/machines/") {
                    answer(machines.get(&ObjectKey::new("ns", name)).as_ref(), &parts.method, part, &body)
                } else {
                    answer(nodes.get(&ObjectKey::cluster_scoped(name)).as_ref(), &parts.method, part, &body)
                };
                let response = Response::builder().status(code).body(Body::from(serde_json::to_vec(&answer)?))?;
                Ok::<_, tower::BoxError>(response)
            }
        });
        kube::Client::new(service, "ns")
    }
}

/// A machine of a set.
fn machine(name: &str, more: &Value, status: &Value) -> Value {
    let mut machine = json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer::MACHINE],
        },
        "spec": { "class": { "kind": "MachineClass", "name": "c" }, "creationTimeout": "99999h" },
        "status": status,
    });
    json_patch::merge(&mut machine["metadata"], more);
    if !status["currentStatus"].is_null() {
        machine["spec"]["providerID"] = json!(format!("cloud:///{name}"));
    }
    machine
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> Result<K, serde_json::Error> {
    serde_json::from_value(value)
}

/// The answer of an API server to a read or a patch.
fn answer<K: serde::Serialize>(stored: Option<&K>, method: &Method, part: Option<&str>, body: &Value) -> (u16, Value) {
    let Some(Ok(mut object)) = stored.map(serde_json::to_value) else {
        return (
            404,
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound" }),
        );
    };
    if *method == Method::PATCH && !body.is_array() {
        let mut patched = object.clone();
        json_patch::merge(&mut patched, body);
        for part in part.map_or(vec!["metadata", "spec"], |part| vec![part]) {
            object[part] = patched[part].clone();
        }
        let version: u64 =
            object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(1);
        object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
    }
    (200, object)
}

fn refusal() -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429, "reason": "TooManyRequests",
        "message": "it would violate the budget", "details": { "causes": [{ "reason": "DisruptionBudget" }] },
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
