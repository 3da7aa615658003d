//! The watchman on an API server of a few lines, in paused time.

use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::v1alpha1::MachinePhase,
    cluster::{clock::TokioClock, gate::Gate, watch::prune},
};

/// An API server that can be down, and that refuses writes to machines of one name.
struct World {
    up: AtomicBool,
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
            let text = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                "reason": if code == 404 { "NotFound" } else { "Test" }, "message": "test"});
            http::Response::builder().status(code).body(Body::from(text.to_string().into_bytes())).unwrap()
        };
        if !self.up.load(Ordering::SeqCst) {
            return Ok(status(503));
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
    watchman: Watchman,
    freeze: FreezeSwitch,
    views: ControlViews,
    start: Timestamp,
}

impl Scene {
    fn new() -> Self {
        let world =
            Arc::new(World { up: AtomicBool::new(true), machines: Mutex::default(), refused: Mutex::default() });
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (views, freeze) = (ControlViews::default(), FreezeSwitch::default());
        let gate = Gate::open_until(CancellationToken::new());
        let watchman = Watchman::new(WatchmanDeps {
            control: world.client(),
            target: world.client(),
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
        Self { world, watchman, freeze, views, start }
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

    /// One probe; then the time passes that it asked for.
    async fn probe(&self) {
        if let Outcome::LookAgain(wait, _) = self.watchman.reconcile().await {
            tokio::time::sleep(wait).await;
        }
    }

    async fn outage(&self) {
        self.set_up(false);
        for _ in 0..8 {
            self.probe().await;
        }
        assert_eq!(self.freeze.get(), Freeze::Frozen);
        assert_eq!(self.watchman.deps.metrics.render().unwrap().matches("mcm_machine_controller_frozen 1").count(), 1);
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
    assert_eq!(scene.watchman.deps.metrics.render().unwrap().matches("mcm_machine_controller_frozen 0").count(), 1);
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
