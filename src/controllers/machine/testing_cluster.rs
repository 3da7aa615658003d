//! A small cluster and a small cloud for the tests of the whole controller: an API of JSON objects behind a tower
//! service, views that hear of changes a little later, and a driver that can fail in every way.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use http::{Method, Request, Response};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret},
    policy::v1::PodDisruptionBudget,
    storage::v1::VolumeAttachment,
};
use kube::client::Body;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    FreezeSwitch, MachineController, MachineDeps, TargetParts,
    settings::MachineSettings,
    testing::at,
    testing_cloud::{SmallCloud, Vms},
};
use crate::{
    api::{
        names::finalizer,
        v1alpha1::{Machine, MachineClass},
    },
    cluster::{
        clock::{Clock, SharedClock, TokioClock},
        events::Recorder,
        gate::Gate,
        key::ObjectKey,
        objects::Objects,
        queue::WorkQueue,
        store::Store,
    },
    controllers::{
        drain::observe::DrainViews,
        views::{ControlViews, node_store},
    },
    driver::{Capabilities, Driver, DriverInfo, Measured, Registry},
    metrics::Metrics,
};

pub const MACHINES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/";
pub const MACHINE: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m-abcde";
pub const NODES: &str = "/api/v1/nodes/";
const PODS: &str = "/api/v1/namespaces/ns/pods/";

/// The objects of both clusters by path, and what was asked of them.
#[derive(Default)]
pub struct Api {
    objects: BTreeMap<String, Value>,
    version: u64,
    /// Writes in the order they were asked for: method and path.
    pub writes: Vec<String>,
    /// Requests that are refused once: method, beginning of the path, code of the answer.
    pub refusals: Vec<(Method, &'static str, u16)>,
    /// Changes that the views have not heard of.
    news: VecDeque<(String, Value, bool)>,
    changed: Arc<Notify>,
    faults: Option<ChaCha8Rng>,
    clock: Option<SharedClock>,
    /// Requests whose `METHOD path` holds one of these texts are answered 503.
    pub unreachable: Vec<&'static str>,
    /// Pods whose eviction a budget refuses.
    pub held: BTreeSet<String>,
    /// Whether the views of pods are still empty, because they are slow to fill.
    pub pods_are_late: bool,
}

impl Api {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let deleting = object["metadata"]["deletionTimestamp"].is_string();
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if deleting && !held {
            self.objects.remove(path);
            self.news.push_back((path.to_owned(), object.clone(), true));
        } else {
            self.objects.insert(path.to_owned(), object.clone());
            self.news.push_back((path.to_owned(), object.clone(), false));
        }
        self.changed.notify_waiters();
        object
    }

    /// Creates an object as somebody else would.
    pub fn put(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["uid"] = json!(format!("{:06x}-uid", self.version));
        object["metadata"]["creationTimestamp"] = json!(self.now());
        self.store(path, object);
    }

    /// Deletes an object as somebody else would.
    pub fn delete(&mut self, path: &str) {
        let Some(mut object) = self.objects.get(path).cloned() else { return };
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!(self.now());
        }
        self.store(path, object);
    }

    /// Sets a field of an object as somebody else would; the field is a JSON pointer.
    pub fn set(&mut self, path: &str, field: &str, value: impl Into<Value>) {
        let Some(mut object) = self.objects.get(path).cloned() else { return };
        let patch: json_patch::Patch =
            serde_json::from_value(json!([{ "op": "add", "path": field, "value": value.into() }])).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
        self.store(path, object);
    }

    pub fn get(&self, path: &str) -> Option<&Value> {
        self.objects.get(path)
    }

    /// Changes an object as somebody else would.
    pub fn edit(&mut self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.objects[path].clone();
        change(&mut object);
        if let Some(generation) = object["metadata"]["generation"].as_i64() {
            object["metadata"]["generation"] = json!(generation + 1);
        }
        self.store(path, object);
    }

    pub fn names_under(&self, prefix: &str) -> BTreeSet<String> {
        self.objects.keys().filter_map(|path| path.strip_prefix(prefix)).map(str::to_owned).collect()
    }

    fn now(&self) -> String {
        super::status_change::rfc3339(self.clock.as_ref().map_or(at(0), |clock| clock.now()))
    }

    fn answer(&mut self, method: &Method, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
        if *method != Method::GET {
            self.writes.push(format!("{method} {path}"));
        }
        let refused =
            self.refusals.iter().position(|(refused, prefix, _)| refused == method && path.starts_with(prefix));
        if let Some(place) = refused {
            return match self.refusals.remove(place).2 {
                409 => failure(409, "Conflict", "somebody was faster"),
                code => failure(code, "InternalError", "refused once"),
            };
        }
        let request = format!("{method} {path}");
        if self.unreachable.iter().any(|text| request.contains(text)) {
            return failure(503, "ServiceUnavailable", "away");
        }
        match self.faults.as_mut().map(|random| random.random_range(0..100)) {
            Some(0..4) => return failure(500, "InternalError", "the request got lost"),
            Some(4..8) if *method == Method::PATCH => return failure(409, "Conflict", "somebody was faster"),
            Some(8..12) => {
                self.perform(method, path, content_type, body);
                return failure(500, "InternalError", "the answer got lost");
            }
            _ => {}
        }
        self.perform(method, path, content_type, body)
    }

    fn perform(&mut self, method: &Method, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
        if let Some(pod) = path.strip_suffix("/eviction") {
            if self.held.iter().any(|held| pod.ends_with(held.as_str())) {
                let mut refusal = failure(429, "TooManyRequests", "it would violate the budget");
                refusal.1["details"] = json!({ "causes": [{ "reason": "DisruptionBudget" }] });
                return refusal;
            }
            self.objects.get(pod).cloned().map_or_else(not_found, |mut object| {
                object["metadata"]["deletionTimestamp"] = json!(self.now());
                self.store(pod, object);
                (201, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
            })
        } else if *method == Method::POST {
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
            if self.objects.contains_key(&path) {
                return failure(409, "AlreadyExists", "exists");
            }
            self.put(&path, body.clone());
            (201, self.objects[&path].clone())
        } else {
            let (path, part) = path.strip_suffix("/status").map_or((path, None), |main| (main, Some("status")));
            let Some(object) = self.objects.get(path).cloned() else { return not_found() };
            match *method {
                Method::GET => (200, object),
                Method::DELETE if body["preconditions"]["uid"] != object["metadata"]["uid"] => {
                    failure(409, "Conflict", "uid")
                }
                Method::DELETE => {
                    self.delete(path);
                    match self.objects.get(path) {
                        Some(object) => (200, object.clone()),
                        None => (200, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" })),
                    }
                }
                _ => self.patch(path, part, content_type, body, &object),
            }
        }
    }

    fn patch(
        &mut self,
        path: &str,
        part: Option<&str>,
        content_type: &str,
        body: &Value,
        object: &Value,
    ) -> (u16, Value) {
        let mut patched = object.clone();
        if content_type.contains("json-patch") {
            let Ok(patch) = serde_json::from_value::<json_patch::Patch>(body.clone()) else {
                return failure(400, "BadRequest", "no patch");
            };
            if json_patch::patch(&mut patched, &patch).is_err() {
                return failure(422, "Invalid", "the server rejected our request due to an error in our request");
            }
        } else {
            for field in ["uid", "resourceVersion"] {
                if body["metadata"][field].is_string() && body["metadata"][field] != object["metadata"][field] {
                    return failure(409, "Conflict", field);
                }
            }
            json_patch::merge(&mut patched, body);
        }
        let mut stored = object.clone();
        for field in part.map_or(vec!["metadata", "spec"], |part| vec![part]) {
            stored[field] = patched[field].clone();
        }
        stored["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
        if stored == *object {
            return (200, stored);
        }
        (200, self.store(path, stored))
    }
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
    });
    (code, status)
}

fn not_found() -> (u16, Value) {
    failure(404, "NotFound", "not found")
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

struct Pods(Arc<Mutex<Api>>);

impl DrainViews for Pods {
    fn ready(&self) -> bool {
        !lock(&self.0).pods_are_late
    }
    fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        let api = lock(&self.0);
        api.objects
            .range(PODS.to_owned()..)
            .take_while(|(path, _)| path.starts_with(PODS))
            .filter(|(_, pod)| pod["spec"]["nodeName"] == node)
            .map(|(_, object)| Arc::new(serde_json::from_value(object.clone()).unwrap()))
            .collect()
    }
    fn pods_using(&self, _claim: &ObjectKey) -> Vec<Arc<Pod>> {
        Vec::new()
    }
    fn budgets_in(&self, _namespace: &str) -> Vec<Arc<PodDisruptionBudget>> {
        Vec::new()
    }
    fn claim(&self, _key: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>> {
        None
    }
    fn volume(&self, _name: &str) -> Option<Arc<PersistentVolume>> {
        None
    }
    fn attachments_on(&self, _node: &str) -> Vec<Arc<VolumeAttachment>> {
        Vec::new()
    }
    fn attachments_of(&self, _volume: &str) -> Vec<Arc<VolumeAttachment>> {
        Vec::new()
    }
}

/// Whether and by which seed things go wrong.
#[derive(Clone, Copy, Debug)]
pub enum Luck {
    Good,
    /// All goes well, but every driver call takes this long.
    Slow(Duration),
    Bad(u64),
}

/// Clusters, cloud and one controller process.
pub struct World {
    pub api: Arc<Mutex<Api>>,
    pub vms: Arc<Mutex<Vms>>,
    pub metrics: Metrics,
    pub cloud: Arc<SmallCloud>,
    /// The controller's clock, which may be set.
    pub hands: Arc<SetClock>,
    weather: Weather,
    process: Process,
}

/// A clock that somebody sets forward or back while it runs.
pub struct SetClock {
    runs: TokioClock,
    shift: AtomicI64,
}

impl SetClock {
    fn starting_at(second: i64) -> Self {
        Self { runs: TokioClock::starting_at(at(second)), shift: AtomicI64::new(0) }
    }

    /// It jumps by so many seconds.
    pub fn jump(&self, seconds: i64) {
        self.shift.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> jiff::Timestamp {
        self.runs.now() + jiff::SignedDuration::from_secs(self.shift.load(Ordering::SeqCst))
    }
}

/// How late and how wrong the controller's view is.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// A change is heard of this long after it happened.
    pub watch_delay: Duration,
    /// The controller's clock shows so many seconds more than the API server's.
    pub clock_ahead: i64,
}

impl Default for Weather {
    fn default() -> Self {
        Self { watch_delay: Duration::from_millis(20), clock_ahead: 0 }
    }
}

struct Process {
    stop: CancellationToken,
    queue: Arc<WorkQueue<ObjectKey>>,
}

impl World {
    /// A world with a class (whose user data asks for a token), and a controller.
    pub fn new(luck: Luck) -> Self {
        Self::under(luck, Weather::default())
    }

    /// The same under this weather.
    pub fn under(luck: Luck, weather: Weather) -> Self {
        let hands = Arc::new(SetClock::starting_at(weather.clock_ahead));
        let random = |salt: u64| match luck {
            Luck::Good | Luck::Slow(_) => None,
            Luck::Bad(seed) => Some(ChaCha8Rng::seed_from_u64(seed ^ salt)),
        };
        let mut api = Api { clock: Some(Arc::new(TokioClock::starting_at(at(0)))), ..Api::default() };
        let class = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machineclasses/c";
        api.put(
            class,
            json!({
                "metadata": { "name": "c", "namespace": "ns", "finalizers": [finalizer::MACHINE] },
                "provider": "small", "providerSpec": {}, "secretRef": { "name": "s" },
            }),
        );
        let user_data = "PDxCT09UU1RSQVBfVE9LRU4+Pg==";
        api.put(
            "/api/v1/namespaces/ns/secrets/s",
            json!({ "metadata": { "name": "s", "namespace": "ns" }, "data": { "userData": user_data } }),
        );
        api.faults = random(1);
        let api = Arc::new(Mutex::new(api));
        let vms = Arc::<Mutex<Vms>>::default();
        let cloud = Arc::new(SmallCloud {
            info: DriverInfo {
                name: "small",
                providers: vec!["small".to_owned()],
                schema: None,
                capabilities: Capabilities { create_is_idempotent: true, lists_creation_time: false },
            },
            api: Arc::clone(&api),
            vms: Arc::clone(&vms),
            faults: Mutex::new(random(2)),
            pause: if let Luck::Slow(pause) = luck { pause } else { Duration::ZERO },
            mishap: Mutex::default(),
            joins_after: Mutex::default(),
            calls: Mutex::default(),
        });
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        let process = start(&api, &cloud, &hands, &metrics, weather);
        Self { api, vms, metrics, cloud, hands, weather, process }
    }

    /// Kills the process and starts another one.
    pub fn restart(&mut self) {
        self.process.stop.cancel();
        self.process = start(&self.api, &self.cloud, &self.hands, &self.metrics, self.weather);
    }

    /// From here on nothing goes wrong any more.
    pub fn heal(&self) {
        lock(&self.api).faults = None;
        *lock(&self.cloud.faults) = None;
    }

    pub fn api(&self) -> MutexGuard<'_, Api> {
        lock(&self.api)
    }

    /// Lets the controller look at the machine at once.
    pub fn wake(&self) {
        self.process.queue.add(ObjectKey::new("ns", "m-abcde"));
    }

    /// The time as objects hold it.
    pub fn now(&self) -> String {
        super::status_change::rfc3339(self.hands.now())
    }

    pub fn vms(&self) -> MutexGuard<'_, Vms> {
        lock(&self.vms)
    }

    /// A machine as a set makes it, webhook finalizer included.
    pub fn make_machine(&self) {
        self.make_machine_named("m-abcde");
    }

    /// A machine of this name.
    pub fn make_machine_named(&self, name: &str) {
        let machine = json!({
            "metadata": {
                "name": name, "namespace": "ns", "generation": 1, "finalizers": [finalizer::MACHINE],
                "labels": { "name": "pool" },
            },
            "spec": {
                "class": { "kind": "MachineClass", "name": "c" },
                "nodeTemplate": { "metadata": { "labels": { "pool": "a" } } },
            },
            "status": {},
        });
        self.api().put(&format!("{MACHINES}{name}"), machine);
    }

    pub fn make_pod(&self, name: &str) {
        self.make_pod_on(name, "m-abcde");
    }

    /// A pod on this node.
    pub fn make_pod_on(&self, name: &str, node: &str) {
        let pod =
            json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": { "nodeName": node, "containers": [] } });
        self.api().put(&format!("{PODS}{name}"), pod);
    }

    /// The phase of a machine of this name, unless it is gone.
    pub fn phase_of(&self, name: &str) -> Option<String> {
        let api = self.api();
        let machine = api.get(&format!("{MACHINES}{name}"))?;
        Some(machine["status"]["currentStatus"]["phase"].as_str().unwrap_or_default().to_owned())
    }

    /// Driver calls that have begun.
    pub fn cloud_calls(&self) -> usize {
        *lock(&self.cloud.calls)
    }

    pub fn phase(&self) -> Option<String> {
        let api = self.api();
        api.get(MACHINE)
            .map(|machine| machine["status"]["currentStatus"]["phase"].as_str().unwrap_or_default().to_owned())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.process.stop.cancel();
    }
}

/// Starts a controller with fresh views over the clusters.
fn start(
    api: &Arc<Mutex<Api>>,
    cloud: &Arc<SmallCloud>,
    clock: &Arc<SetClock>,
    metrics: &Metrics,
    weather: Weather,
) -> Process {
    let stop = CancellationToken::new();
    let gate = Gate::open_until(stop.clone());
    let views = ControlViews::default();
    let nodes = node_store();
    let queue = Arc::new(WorkQueue::for_tests("machine"));
    let (sender, mut events) = tokio::sync::mpsc::channel(64);
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let client = client(api);
    let mut drivers = Registry::new();
    let cloud = Arc::clone(cloud) as Arc<dyn Driver>;
    let driver: Arc<dyn Driver> = Arc::new(Measured::new(cloud, metrics.clone()));
    drivers.register(&driver);
    let controller = Arc::new(MachineController::new(MachineDeps {
        machines: Objects::new(client.clone(), gate.clone(), Some(Arc::clone(&views.machines)), |_| {}),
        target: Some(TargetParts {
            nodes: Objects::new(client.clone(), gate.clone(), Some(Arc::clone(&nodes)), |_| {}),
            node_store: Arc::clone(&nodes),
            tokens: Objects::new(client.clone(), gate.clone(), None, |_| {}),
            drain_views: Arc::new(Pods(Arc::clone(api))),
            client,
        }),
        views: views.clone(),
        drivers,
        queue: Arc::clone(&queue),
        clock: Arc::<SetClock>::clone(clock),
        gate,
        recorder: Recorder::new("machine-controller", sender),
        rng: Arc::new(Mutex::new(rand_chacha::ChaCha20Rng::seed_from_u64(7))),
        freeze: FreezeSwitch::default(),
        settings: MachineSettings::default(),
        metrics: metrics.clone(),
    }));
    let told = Arc::clone(&controller);
    views.machines.set_listeners(vec![Box::new(move |change| told.machine_changed(change))]);
    let told = Arc::clone(&controller);
    nodes.set_listeners(vec![Box::new(move |change| told.node_changed(change))]);
    let (all, mut heard) = {
        let api = lock(api);
        (api.objects.clone(), 0)
    };
    for (path, object) in &all {
        tell(&views, &nodes, path, object, false);
        heard = heard.max(version(object));
    }
    // The watch: changes are heard of a little later.
    let (api, watch) = (Arc::clone(api), stop.clone());
    tokio::spawn(async move {
        let mut at = 0;
        let changed = Arc::clone(&lock(&api).changed);
        while !watch.is_cancelled() {
            // Registered before the look, or a change in between would be missed.
            let next = changed.notified();
            tokio::pin!(next);
            next.as_mut().enable();
            let news: Vec<(String, Value, bool)> = lock(&api).news.iter().skip(at).cloned().collect();
            at += news.len();
            for (path, object, gone) in news.iter().filter(|(_, object, _)| version(object) > heard) {
                tell(&views, &nodes, path, object, *gone);
            }
            tokio::select! {
                () = next => tokio::time::sleep(weather.watch_delay).await,
                () = watch.cancelled() => {}
            }
        }
    });
    let (shutdown, woken) = (stop.clone(), Arc::clone(&queue));
    tokio::spawn(queue.run(4, shutdown, move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    }));
    Process { stop, queue: woken }
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn tell(views: &ControlViews, nodes: &Store<Node>, path: &str, object: &Value, gone: bool) {
    fn into<K>(store: &Store<K>, object: &Value, gone: bool)
    where
        K: kube::Resource + serde::de::DeserializeOwned + Send + Sync + 'static,
    {
        let object: K = serde_json::from_value(object.clone()).unwrap();
        if gone { store.delete(&object) } else { store.apply(object) }
    }
    if path.contains("/machines/") {
        into::<Machine>(&views.machines, object, gone);
    } else if path.contains("/machineclasses/") {
        into::<MachineClass>(&views.classes, object, gone);
    } else if path.starts_with("/api/v1/namespaces/ns/secrets/") {
        into::<Secret>(&views.secrets, object, gone);
    } else if path.starts_with(NODES) {
        into::<Node>(nodes, object, gone);
    }
}

fn client(api: &Arc<Mutex<Api>>) -> kube::Client {
    let api = Arc::clone(api);
    let service = tower::service_fn(move |request: Request<Body>| {
        let api = Arc::clone(&api);
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await?;
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            let kind =
                parts.headers.get(http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            let (code, answer) = lock(&api).answer(&parts.method, parts.uri.path(), kind, &body);
            let response = Response::builder().status(code).body(Body::from(serde_json::to_vec(&answer)?))?;
            Ok::<_, tower::BoxError>(response)
        }
    });
    kube::Client::new(service, "ns")
}
