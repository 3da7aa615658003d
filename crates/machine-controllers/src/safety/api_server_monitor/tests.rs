//! The monitor with a small fake API server, in paused time.

use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use controller_runtime::{clock::TokioClock, error::testing::not_found_at, gate::Gate, watch::prune};
use machine_api::v1alpha1::MachinePhase;

/// An API server that can be down, and that refuses writes to machines of one name.
#[derive(Default)]
struct World {
    up: AtomicBool,
    /// A gateway answers instead of the API server.
    pages: AtomicBool,
    machines: Mutex<BTreeMap<String, Value>>,
    refused: Mutex<Option<String>>,
}

impl World {
    fn client(self: &Arc<Self>) -> kube::Client {
        let world = Arc::clone(self);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let world = Arc::clone(&world);
            async move { world.answer(request).await }
        });
        kube::Client::new(service, "ns")
    }

    async fn answer(&self, request: http::Request<Body>) -> Result<http::Response<Body>, kube::Error> {
        let (parts, body) = request.into_parts();
        let name = parts.uri.path().split('/').nth(7).unwrap_or_default().to_owned();
        let status = |code: u16| {
            let text = if code == 404 {
                not_found_at(parts.uri.path())
            } else {
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Test", "message": "test"})
            };
            http::Response::builder().status(code).body(Body::from(text.to_string().into_bytes())).unwrap()
        };
        if !self.up.load(Ordering::SeqCst) {
            return Ok(status(503));
        }
        if self.pages.load(Ordering::SeqCst) {
            let page = Body::from(b"default backend - 404".to_vec());
            return Ok(http::Response::builder().status(404).body(page).unwrap());
        }
        let list = |items: Value| {
            let list = json!({"metadata": {"resourceVersion": "50"}, "items": items});
            Ok(http::Response::new(Body::from(list.to_string().into_bytes())))
        };
        if parts.uri.path() == "/api/v1/nodes" {
            return list(json!([{"metadata": {"name": "n", "uid": "n", "resourceVersion": "40"}}]));
        }
        if parts.uri.path().ends_with("/machines") {
            let metadata = |machine: &Value| json!({ "metadata": machine["metadata"] });
            return list(lock(&self.machines).values().map(metadata).collect());
        }
        let body = body.collect_bytes().await.unwrap_or_default();
        let mut machines = lock(&self.machines);
        if parts.method == http::Method::PATCH {
            if lock(&self.refused).as_deref() == Some(name.as_str()) {
                return Ok(status(422));
            }
            let patch: Value = serde_json::from_slice(&body).unwrap();
            let Some(machine) = machines.get_mut(&name) else { return Ok(status(404)) };
            json_patch::merge(machine, &patch);
        }
        let Some(machine) = machines.get(&name) else { return Ok(status(404)) };
        Ok(http::Response::new(Body::from(machine.to_string().into_bytes())))
    }

    fn phase(&self, name: &str) -> String {
        lock(&self.machines)[name]["status"]["currentStatus"]["phase"].as_str().unwrap_or_default().to_owned()
    }
}

struct Scene {
    world: Arc<World>,
    monitor: ApiServerMonitor,
    freeze: FreezeSwitch,
    views: ControlViews,
    start: Timestamp,
}

impl Scene {
    fn new() -> Self {
        Self::with_nodes(None)
    }

    /// A scene whose monitor compares this store of Nodes before a thaw.
    fn with_nodes(nodes: Option<Arc<Store<NodeSnapshot>>>) -> Self {
        let world = Arc::new(World { up: AtomicBool::new(true), ..World::default() });
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (views, freeze) = (ControlViews::default(), FreezeSwitch::default());
        let gate = Gate::open_until(CancellationToken::new());
        let monitor = ApiServerMonitor::new(ApiServerMonitorDeps {
            control: world.client(),
            target: world.client(),
            nodes,
            namespace: "ns".to_owned(),
            machines: Objects::new(world.client(), gate, Some(Arc::clone(&views.machines)), prune::common),
            views: views.clone(),
            wake: None,
            clock: Arc::new(TokioClock::starting_at(start)),
            freeze: freeze.clone(),
            recorder: Recorder::new("test", tokio::sync::mpsc::channel(10).0),
            metrics: Metrics::new(Arc::new(|| Duration::ZERO)).unwrap(),
            limits: Limits { timeout: Duration::from_secs(30), period: Duration::from_secs(60) },
        });
        Self { world, monitor, freeze, views, start }
    }

    fn machine(&self, name: &str, unknown_since: i64) {
        let mut machine = Machine::default();
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.namespace = Some("ns".to_owned());
        machine.metadata.uid = Some(format!("uid-{name}"));
        machine.metadata.resource_version = Some("1".to_owned());
        machine.status.current_status.phase = MachinePhase::Unknown;
        let since = jiff::SignedDuration::from_secs(unknown_since);
        machine.status.current_status.last_update_time = Some(Time(self.start + since));
        lock(&self.world.machines).insert(name.to_owned(), serde_json::to_value(&machine).unwrap());
        self.views.machines.apply(machine);
    }

    fn set_up(&self, up: bool) {
        self.world.up.store(up, Ordering::SeqCst);
    }

    /// One probe; then waits for the time that it asked for.
    async fn probe(&self) {
        if let Outcome::LookAgain(wait, _) = self.monitor.reconcile().await {
            tokio::time::sleep(wait).await;
        }
    }

    async fn outage(&self) {
        self.set_up(false);
        for _ in 0..8 {
            self.probe().await;
        }
        assert_eq!(self.freeze.get(), Freeze::Frozen);
        assert_eq!(self.monitor.deps.metrics.render().unwrap().matches("mcm_machine_controller_frozen 1").count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn mc_254_a_long_silence_freezes_and_mc_256_a_thaw_forgives() {
    let scene = Scene::new();
    scene.probe().await;
    assert_eq!(scene.freeze.get(), Freeze::Flowing);
    scene.outage().await;
    scene.machine("fell-ill", 70);
    scene.machine("was-ill", -540);
    scene.set_up(true);
    scene.probe().await;
    assert_eq!(scene.freeze.get(), Freeze::Flowing);
    assert_eq!((scene.world.phase("fell-ill").as_str(), scene.world.phase("was-ill").as_str()), ("Running", "Unknown"));
    assert_eq!(scene.monitor.deps.metrics.render().unwrap().matches("mcm_machine_controller_frozen 0").count(), 1);
}

fn node(version: u64) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some("n".to_owned());
    node.metadata.uid = Some("n".to_owned());
    node.metadata.resource_version = Some(version.to_string());
    node
}

#[tokio::test(start_paused = true)]
async fn no_machine_is_thawed_before_the_watch_has_replayed_the_outage() {
    let nodes = crate::views::node_store();
    nodes.apply(node(30));
    let scene = Scene::with_nodes(Some(Arc::clone(&nodes)));
    scene.outage().await;
    scene.machine("fell-ill", 70);
    scene.set_up(true);
    for _ in 0..3 {
        scene.probe().await;
        assert_eq!(scene.freeze.get(), Freeze::Frozen, "the view shows the Node as it was before");
    }
    nodes.apply(node(40));
    scene.probe().await;
    assert_eq!((scene.freeze.get(), scene.world.phase("fell-ill").as_str()), (Freeze::Flowing, "Running"));
}

#[tokio::test(start_paused = true)]
async fn mc_257_a_machine_that_cannot_be_thawed_stops_nobody_and_is_tried_again() {
    let scene = Scene::new();
    scene.outage().await;
    scene.machine("stubborn", 70);
    scene.machine("fine", 70);
    *lock(&scene.world.refused) = Some("stubborn".to_owned());
    scene.set_up(true);
    scene.probe().await;
    let stubborn = ObjectKey::new("ns", "stubborn");
    assert_eq!((scene.freeze.get(), scene.world.phase("fine").as_str()), (Freeze::Flowing, "Running"));
    assert_eq!((scene.freeze.of(&stubborn), scene.world.phase("stubborn").as_str()), (Freeze::Frozen, "Unknown"));
    *lock(&scene.world.refused) = None;
    scene.probe().await;
    assert_eq!((scene.freeze.of(&stubborn), scene.world.phase("stubborn").as_str()), (Freeze::Flowing, "Running"));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_answers_404_for_everything_is_an_api_server_that_is_away() {
    let scene = Scene::new();
    scene.probe().await;
    scene.world.pages.store(true, Ordering::SeqCst);
    for _ in 0..8 {
        scene.probe().await;
    }
    assert_eq!(scene.freeze.get(), Freeze::Frozen);
    scene.world.pages.store(false, Ordering::SeqCst);
    scene.probe().await;
    assert_eq!(scene.freeze.get(), Freeze::Flowing);
}
