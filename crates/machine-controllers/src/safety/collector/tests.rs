//! The collector with a small fake provider and a small fake API server, in paused time.

use async_trait::async_trait;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time};
use kube::client::Body;
use rstest::rstest;
use tokio_util::sync::CancellationToken;

use machine_api::names::{annotation, finalizer};
use serde_json::{Value, json};

use super::*;
use crate::views::node_store;
use controller_runtime::{clock::TokioClock, error::testing::not_found_at, watch::prune};
use kube_values::field::Findings;
use machine_driver::{
    Capabilities, CreatedVm, DeletedVm, DriverInfo, ListedVm, Registry, VmIdentity, VolumeIdsRequest,
};

/// A provider with VMs, each of a class; lists of the class `broken` fail, and the VM of a machine `stuck…` can't be deleted.
#[derive(Default)]
struct Provider {
    info: Mutex<Option<&'static DriverInfo>>,
    vms: Mutex<Vec<(String, ListedVm)>>,
    deleted: Mutex<Vec<String>>,
    /// The number of all requests for a deletion.
    tries: Mutex<usize>,
}

#[async_trait]
impl Driver for Provider {
    fn info(&self) -> &DriverInfo {
        lock(&self.info).get_or_insert_with(|| {
            Box::leak(Box::new(DriverInfo {
                name: "test",
                providers: vec!["test".to_owned()],
                schema: None,
                capabilities: Capabilities::default(),
            }))
        })
    }

    fn validate(&self, _: &MachineClass, _: &mut Findings) {}

    async fn create_machine(&self, _: &OpContext, _: MachineRequest) -> Result<CreatedVm, Status> {
        unreachable!("the collector creates nothing")
    }

    async fn delete_machine(&self, _: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let id = request.machine.spec.provider_id.clone();
        *lock(&self.tries) += 1;
        if request.machine.name_any().starts_with("stuck") {
            return Err(Status::new(Code::FailedPrecondition, "it is protected from deletion"));
        }
        lock(&self.vms).retain(|(_, vm)| vm.provider_id != id);
        lock(&self.deleted).push(id);
        Ok(DeletedVm::default())
    }

    async fn get_machine_status(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
        unreachable!("the collector asks about no single VM")
    }

    async fn list_machines(&self, _: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let class = request.class.name_any();
        if class == "broken" {
            return Err(Status::new(Code::Unauthenticated, "who are you"));
        }
        Ok(lock(&self.vms).iter().filter(|(of, _)| *of == class).map(|(_, vm)| vm.clone()).collect())
    }

    async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(Vec::new())
    }
}

/// The objects of the API server, by path; `None` means that the server is down.
type Stored = Arc<Mutex<Option<BTreeMap<String, Value>>>>;

fn client(stored: &Stored) -> kube::Client {
    let stored = Arc::clone(stored);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let stored = Arc::clone(&stored);
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            let body = body.collect_bytes().await.unwrap_or_default();
            let mut stored = lock(&stored);
            let (code, answer) = match (stored.as_mut(), &parts.method) {
                (None, _) => {
                    (503, json!({"kind": "Status", "status": "Failure", "code": 503, "reason": "x", "message": "down"}))
                }
                (Some(objects), _) if parts.uri.query().is_some_and(|query| query.contains("labelSelector")) => {
                    let below =
                        objects.iter().filter(|(at, _)| at.starts_with(&path)).map(|(_, object)| object.clone());
                    (200, json!({"items": below.collect::<Vec<_>>()}))
                }
                (Some(objects), &http::Method::PATCH) => {
                    let object = objects.entry(path).or_default();
                    json_patch::merge(object, &serde_json::from_slice(&body).unwrap());
                    (200, object.clone())
                }
                (Some(objects), _) => match objects.get(&path) {
                    Some(object) => (200, object.clone()),
                    None => (404, not_found_at(&path)),
                },
            };
            let answer =
                http::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap();
            Ok::<_, kube::Error>(answer)
        }
    });
    kube::Client::new(service, "ns")
}

struct Scene {
    collector: Collector,
    provider: Arc<Provider>,
    stored: Stored,
    nodes: Arc<Store<NodeSnapshot>>,
}

const MACHINES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines";

impl Scene {
    fn new(classes: &[&str]) -> Self {
        let stored: Stored = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let views = ControlViews::default();
        for name in classes {
            let mut class = MachineClass { provider: "test".to_owned(), ..MachineClass::default() };
            class.metadata.name = Some((*name).to_owned());
            class.metadata.namespace = Some("ns".to_owned());
            views.classes.apply(class);
        }
        let gate = Gate::open_until(CancellationToken::new());
        let nodes = node_store();
        let provider = Arc::new(Provider::default());
        let driver: Arc<dyn Driver> = Arc::<Provider>::clone(&provider);
        let mut drivers = Registry::new();
        drivers.register(&driver);
        let collector = Collector::new(CollectorDeps {
            namespace: "ns".to_owned(),
            machines: Objects::new(client(&stored), gate.clone(), Some(Arc::clone(&views.machines)), prune::common),
            nodes: Some((
                Objects::new(client(&stored), gate.clone(), Some(Arc::clone(&nodes)), prune::node),
                Arc::clone(&nodes),
            )),
            views,
            drivers,
            clock: Arc::new(TokioClock::starting_at("2026-01-01T01:00:00Z".parse().unwrap())),
            gate,
            recorder: Recorder::new("test", tokio::sync::mpsc::channel(10).0),
            metrics: Metrics::new(Arc::new(|| Duration::ZERO)).unwrap(),
            freeze: FreezeSwitch::default(),
            period: Duration::from_secs(900),
            unmanaged_node_age: Duration::from_secs(1200),
            guards: Guards::default(),
            lists: None,
        });
        Self { collector, provider, stored, nodes }
    }

    fn vm(&self, class: &str, id: &str, machine: &str) {
        let vm = ListedVm { provider_id: id.to_owned(), machine_name: machine.to_owned(), created: None };
        lock(&self.provider.vms).push((class.to_owned(), vm));
    }

    fn store(&self, path: String, object: Value) {
        lock(&self.stored).as_mut().unwrap().insert(path, object);
    }

    /// A machine that is in the API server but not yet in the store.
    fn late_machine(&self, name: &str, provider_id: &str) {
        self.store(
            format!("{MACHINES}/{name}"),
            json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
                "metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"providerID": provider_id}}),
        );
    }

    /// One pass over a class; then waits for the time that the pass asked for, and returns that time.
    async fn look(&self, class: &str) -> Duration {
        match self.collector.reconcile(ObjectKey::new("ns", class)).await {
            Outcome::LookAgain(wait, _) => {
                tokio::time::sleep(wait).await;
                wait
            }
            other => panic!("{other:?}"),
        }
    }

    fn deleted(&self) -> Vec<String> {
        lock(&self.provider.deleted).clone()
    }
}

#[tokio::test(start_paused = true)]
async fn mc_241_a_vm_without_a_machine_is_deleted_at_the_second_look() {
    let scene = Scene::new(&["c"]);
    scene.vm("c", "v", "m");
    let orphans = r#"mcm_machine_deletions_total{namespace="ns",reason="orphan"}"#;
    let metrics = scene.collector.deps.metrics.render().unwrap();
    assert!(metrics.contains(&format!("{orphans} 0")), "{metrics}");
    assert_eq!(scene.look("c").await, Duration::from_secs(60));
    assert!(scene.deleted().is_empty());
    assert_eq!(scene.look("c").await, Duration::from_secs(900));
    assert_eq!(scene.deleted(), ["v"]);
    let metrics = scene.collector.deps.metrics.render().unwrap();
    assert!(metrics.contains(&format!("{orphans} 1")), "{metrics}");
    assert!(metrics.contains(r#"mcm_orphan_vms_deleted_total{class="c"} 1"#), "{metrics}");
}

/// A machine has a VM, but the provider's list has a wrong entry for the VM.
#[rstest]
#[case::without_an_id(&["cloud:///v", ""], 0)]
#[case::without_an_id_alone(&[""], 0)]
#[case::spelled_in_a_new_way(&["cloud:///v/"], 0)]
#[case::spelled_in_a_new_way_by_part(&["cloud:///vm-v"], 0)]
#[case::with_a_second_vm(&["cloud:///v", "cloud:///w"], 1)]
#[tokio::test(start_paused = true)]
async fn the_vm_of_a_machine_outlives_a_wrong_list(#[case] ids: &[&str], #[case] deleted: usize) {
    let scene = Scene::new(&["c"]);
    scene.store(
        format!("{MACHINES}/m"),
        json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": "m", "namespace": "ns", "uid": "m"},
            "spec": {"providerID": "cloud:///v"}, "status": {"currentStatus": {"phase": "Running"}}}),
    );
    for id in ids {
        scene.vm("c", id, "m");
    }
    for _ in 0..3 {
        scene.look("c").await;
    }
    assert_eq!(scene.deleted().len(), deleted, "{:?}", scene.deleted());
    assert!(!scene.deleted().iter().any(|id| ["", "cloud:///v"].contains(&id.as_str())), "{:?}", scene.deleted());
}

#[tokio::test(start_paused = true)]
async fn a_vm_without_an_id_is_no_orphan() {
    let scene = Scene::new(&["c"]);
    scene.vm("c", "", "gone");
    scene.look("c").await;
    assert_eq!(scene.look("c").await, Duration::from_secs(900));
    assert!(scene.deleted().is_empty(), "a deletion without an id goes by the name");
}

/// The machine for which the VM was made is gone. Another machine has the VM, with the id as its Node spells it.
#[tokio::test(start_paused = true)]
async fn the_vm_of_a_machine_that_spells_it_as_its_node_does_is_no_orphan() {
    let scene = Scene::new(&["c"]);
    scene.vm("c", "aws:///eu-west-1/i-0abc", "gone");
    let twin =
        json!({"metadata": {"name": "twin", "namespace": "ns"}, "spec": {"providerID": "aws:///eu-west-1a/I-0abc"}});
    scene.collector.deps.views.machines.apply(serde_json::from_value(twin).unwrap());
    scene.look("c").await;
    scene.look("c").await;
    assert!(scene.deleted().is_empty());
}

#[tokio::test(start_paused = true)]
async fn mc_032_two_machines_with_one_node_on_their_label_are_both_told() {
    let mut scene = Scene::new(&[]);
    let (sender, mut events) = tokio::sync::mpsc::channel(10);
    scene.collector.deps.recorder = Recorder::new("test", sender);
    for name in ["a", "b"] {
        let machine = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"node": "n"}},
            "spec": {"providerID": format!("x:///{name}")}
        }));
        scene.collector.deps.views.machines.apply(machine.unwrap());
    }
    let mut node = Node::default();
    node.metadata.name = Some("n".to_owned());
    scene.nodes.apply(node);
    let looked = scene.collector.reconcile(ObjectKey::cluster_scoped("n")).await;
    assert_eq!(looked, Outcome::Settled);
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        assert_eq!(event.note.reason, machine_reason::NODE_CONTESTED);
        assert!(event.note.message.contains("a, b"), "{}", event.note.message);
        told.push(event.about.name.unwrap_or_default());
    }
    assert_eq!(told, ["a", "b"]);
}

/// A machine whose creations got no answer is deleted before its VM is known. The driver finds two VMs with its name
/// and deletes neither.
#[tokio::test(start_paused = true)]
async fn the_vms_of_a_machine_that_leaves_and_names_none_of_them_go() {
    let scene = Scene::new(&["c"]);
    for id in ["v", "w"] {
        scene.vm("c", id, "m");
    }
    let leaving = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m", "namespace": "ns", "uid": "m", "deletionTimestamp": "2026-01-01T00:50:00Z"},
        "spec": {"class": {"kind": "MachineClass", "name": "c"}},
        "status": {"currentStatus": {"phase": "Terminating"}, "lastOperation": {"type": "Delete", "state": "Failed", "description":
            "Cloud provider message - machine codes error: code = [OutOfRange] message = [2 VMs of this name]. Initiate VM deletion"}},
    });
    scene.store(format!("{MACHINES}/m"), leaving.clone());
    let machine: Machine = serde_json::from_value(leaving).unwrap();
    scene.collector.deps.views.machines.apply(machine);
    assert_eq!(scene.look("c").await, Duration::from_secs(60));
    assert!(scene.deleted().is_empty(), "one verdict is not enough");
    scene.look("c").await;
    assert_eq!(scene.deleted(), ["v", "w"], "the driver finds no VM now, and the machine may go");
}

/// A user removes our finalizer: the machine is gone at once, but its VM is not.
#[tokio::test(start_paused = true)]
async fn mc_189_the_vm_of_a_machine_that_lost_its_finalizer_is_collected_after_two_verdicts() {
    let scene = Scene::new(&["c"]);
    scene.vm("c", "v", "m");
    scene.late_machine("m", "v");
    let mut machine: Machine =
        serde_json::from_value(lock(&scene.stored).as_ref().unwrap()[&format!("{MACHINES}/m")].clone()).unwrap();
    machine.spec.class.name = "c".to_owned();
    scene.collector.deps.views.machines.apply(machine.clone());
    assert_eq!(scene.look("c").await, Duration::from_secs(900), "its VM is its own");

    lock(&scene.stored).as_mut().unwrap().remove(&format!("{MACHINES}/m"));
    scene.collector.deps.views.machines.delete(&machine);
    let woken = super::super::routing::after_machine(&controller_runtime::store::Change {
        old: Some(machine.into()),
        new: None,
    });
    assert_eq!(woken.first().map(|wake| wake.key.clone()), Some(ObjectKey::new("ns", "c")), "its end wakes the class");
    assert_eq!(scene.look("c").await, Duration::from_secs(60));
    assert!(scene.deleted().is_empty(), "one verdict is not enough");
    scene.look("c").await;
    assert_eq!(scene.deleted(), ["v"]);
}

#[tokio::test(start_paused = true)]
async fn a_period_of_zero_is_no_hot_loop() {
    let mut scene = Scene::new(&["c"]);
    scene.collector.deps.period = Duration::ZERO;
    assert_eq!(scene.look("c").await, LEAST_PERIOD);
}

#[tokio::test(start_paused = true)]
async fn mc_246_a_class_that_fails_does_not_stop_another() {
    let scene = Scene::new(&["broken", "c"]);
    scene.vm("c", "v", "m");
    for class in ["broken", "c", "broken", "c"] {
        scene.look(class).await;
    }
    assert_eq!(scene.deleted(), ["v"]);
}

#[tokio::test(start_paused = true)]
async fn mc_248_a_machine_that_the_watch_has_not_delivered_keeps_its_vm() {
    let scene = Scene::new(&["c"]);
    scene.vm("c", "v", "m");
    scene.late_machine("m", "v");
    scene.look("c").await;
    scene.look("c").await;
    assert!(scene.deleted().is_empty());
}

#[tokio::test(start_paused = true)]
async fn mc_249_without_the_api_server_nothing_is_deleted() {
    let scene = Scene::new(&["c"]);
    scene.vm("c", "v", "m");
    scene.look("c").await;
    let held = lock(&scene.stored).take();
    scene.look("c").await;
    assert!(scene.deleted().is_empty());
    *lock(&scene.stored) = held;
    scene.look("c").await;
    assert_eq!(scene.deleted(), ["v"]);
}

#[tokio::test(start_paused = true)]
async fn mc_250_fifty_orphans_go_ten_at_a_time() {
    let scene = Scene::new(&["c"]);
    (0..50).for_each(|n| scene.vm("c", &format!("v{n:02}"), &format!("m{n:02}")));
    let mut counts = Vec::new();
    for _ in 0..6 {
        scene.look("c").await;
        counts.push(scene.deleted().len());
    }
    assert_eq!(counts, [0, 10, 20, 30, 40, 50]);
}

#[tokio::test(start_paused = true)]
async fn orphans_that_can_not_be_deleted_do_not_keep_others() {
    let scene = Scene::new(&["c"]);
    (0..10).for_each(|n| scene.vm("c", &format!("v{n:02}"), &format!("stuck{n}")));
    (10..13).for_each(|n| scene.vm("c", &format!("v{n:02}"), &format!("m{n}")));
    let mut counts = Vec::new();
    for _ in 0..3 {
        scene.look("c").await;
        counts.push(scene.deleted().len());
    }
    assert_eq!(counts, [0, 0, 3]);
    lock(&scene.provider.vms).iter_mut().for_each(|(_, vm)| "m".clone_into(&mut vm.machine_name));
    scene.look("c").await;
    assert_eq!(scene.deleted().len(), 13, "they are tried again");
}

/// As many orphans can't be deleted as machines are read in one pass.
#[tokio::test(start_paused = true)]
async fn orphans_that_can_not_be_deleted_do_not_keep_new_ones_from_being_suspected() {
    let scene = Scene::new(&["c"]);
    (0..Guards::default().reads).for_each(|n| scene.vm("c", &format!("v{n:02}"), &format!("stuck{n}")));
    for _ in 0..2 {
        scene.look("c").await;
    }
    scene.vm("c", "new", "m");
    // Ten at a time, all others are tried before.
    for _ in 0..7 {
        scene.look("c").await;
    }
    assert_eq!(scene.deleted(), ["new"]);
}

/// More orphans than a pass deletes, with a short period.
#[tokio::test(start_paused = true)]
async fn orphans_that_can_not_be_deleted_are_tried_every_five_minutes() {
    let mut scene = Scene::new(&["c"]);
    scene.collector.deps.period = LEAST_PERIOD;
    (0..25).for_each(|n| scene.vm("c", &format!("v{n:02}"), &format!("stuck{n}")));
    let mut passed = Duration::ZERO;
    for (until, tries) in [(60, 0), (90, 25), (360, 25), (390, 50)] {
        while passed < Duration::from_secs(until) {
            passed += scene.look("c").await;
        }
        assert_eq!(*lock(&scene.provider.tries), tries, "before {passed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_without_a_machine_s_name_is_never_looked_up_nor_deleted() {
    let scene = Scene::new(&["c"]);
    scene.vm("c", "v", "");
    scene.look("c").await;
    scene.look("c").await;
    assert!(scene.deleted().is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_collected_while_the_loops_are_frozen() {
    let scene = Scene::new(&["c"]);
    scene.vm("c", "v", "m");
    scene.collector.deps.freeze.set(Freeze::Frozen);
    scene.look("c").await;
    scene.look("c").await;
    assert!(scene.deleted().is_empty());
}

fn old_node() -> Node {
    let mut node = Node::default();
    node.metadata.name = Some("n".to_owned());
    node.metadata.uid = Some("uid-n".to_owned());
    node.metadata.resource_version = Some("1".to_owned());
    node.metadata.creation_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
    node.metadata.finalizers = Some(vec![finalizer::NODE.to_owned(), "other".to_owned()]);
    node
}

#[tokio::test(start_paused = true)]
async fn mc_252_a_node_is_released_after_the_api_server_has_said_that_it_has_no_machine() {
    let scene = Scene::new(&[]);
    scene.store("/api/v1/nodes/n".to_owned(), serde_json::to_value(old_node()).unwrap());
    scene.nodes.apply(old_node());
    scene.late_machine("m", "v");
    scene.collector.reconcile(ObjectKey::cluster_scoped("n")).await;
    let finalizers = || lock(&scene.stored).as_ref().unwrap()["/api/v1/nodes/n"]["metadata"]["finalizers"].clone();
    assert_eq!(finalizers(), json!([finalizer::NODE, "other"]), "a late machine keeps it");
    lock(&scene.stored).as_mut().unwrap().remove(&format!("{MACHINES}/m"));
    assert_eq!(scene.collector.reconcile(ObjectKey::cluster_scoped("n")).await, Outcome::Settled);
    assert_eq!(finalizers(), json!(["other"]));
    let node = lock(&scene.stored).as_ref().unwrap()["/api/v1/nodes/n"].clone();
    assert_eq!(node["metadata"]["annotations"][annotation::NOT_MANAGED], "1");
}
