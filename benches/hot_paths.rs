//! Figures of the paths that thousands of machines go through: the store's index, the work queue, an admission review, a view.
//!
//! A scenario program, not a test: `cargo bench` prints, nothing passes or fails by time.

use std::{sync::Arc, time::Instant};

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
    storage::v1::VolumeAttachment,
};
use machine_controller_manager::{
    admission::{Admission, Endpoint},
    api::{
        names::finalizer,
        v1alpha1::{Machine, MachinePhase},
        validation::{NoProviders, NoReferences, Policy},
    },
    cluster::{
        clock::{SharedClock, TokioClock},
        key::ObjectKey,
        store::Store,
    },
    controllers::{
        deployment::settings::DeploymentSettings,
        drain::observe::DrainViews,
        machine::{
            FreezeSwitch,
            outlook::{OutlookDeps, OutlookTarget, Outlooks},
            settings::MachineSettings,
        },
        views::{BY_CLASS, ControlViews, node_store},
    },
    driver::Registry,
    extension::{
        view::{Freshness, View},
        views::{Inventories, InventorySettings, Judges, OutlookView, Sources, Standing},
    },
};

const MACHINES: usize = 10_000;

fn main() {
    store();
    reviews();
    outlooks();
}

fn machine(number: usize) -> Machine {
    let mut machine = Machine::default();
    machine.metadata.name = Some(format!("machine-{number}"));
    machine.metadata.namespace = Some("default".to_owned());
    machine.metadata.uid = Some(number.to_string());
    machine.metadata.resource_version = Some((number + 1).to_string());
    machine.spec.class.name = format!("class-{}", number % 100);
    machine
}

fn store() {
    let store: Arc<Store<Machine>> = ControlViews::default().machines;
    let began = Instant::now();
    for number in 0..MACHINES {
        store.apply(machine(number));
    }
    println!("store: {MACHINES} machines applied in {:?}", began.elapsed());
    let began = Instant::now();
    let found: usize = (0..100).map(|class| store.by_index(BY_CLASS, &format!("default/class-{class}")).len()).sum();
    println!("store: {found} machines found by class in {:?}", began.elapsed());
}

/// What a list of all machines costs a reader of views, without the bytes on the wire.
fn outlooks() {
    let (views, nodes) = (ControlViews::default(), node_store());
    let begin = || {
        views.machines.list_begins();
        views.sets.list_begins();
        views.deployments.list_begins();
        views.classes.list_begins();
        views.secrets.list_begins();
        nodes.list_begins();
    };
    let end = || {
        views.machines.list_ends();
        views.sets.list_ends();
        views.deployments.list_ends();
        views.classes.list_ends();
        views.secrets.list_ends();
        nodes.list_ends();
    };
    begin();
    for number in 0..MACHINES {
        let mut machine = machine(number);
        machine.metadata.labels = Some([("node".to_owned(), format!("node-{number}"))].into());
        machine.metadata.finalizers = Some(vec![finalizer::MACHINE.to_owned()]);
        machine.spec.provider_id = format!("cloud:///{number}");
        machine.status.current_status.phase = MachinePhase::Running;
        views.machines.apply(machine);
        let mut node = Node::default();
        node.metadata.name = Some(format!("node-{number}"));
        node.spec.get_or_insert_default().provider_id = Some(format!("cloud:///{number}"));
        nodes.apply(node);
    }
    end();
    let view = OutlookView::new(&sources(&views, nodes));
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    for _ in 0..3 {
        let began = Instant::now();
        let told = runtime.block_on(view.list(None, Freshness::Recent)).map_or(0, |listing| listing.items.len());
        println!("outlooks: {told} machines told in {:?}", began.elapsed());
    }
}

fn sources(views: &ControlViews, nodes: Arc<Store<Node>>) -> Sources {
    let clock: SharedClock = Arc::new(TokioClock::starting_at(jiff::Timestamp::now()));
    Sources {
        views: views.clone(),
        namespace: "default".to_owned(),
        standing: Arc::new(|| Standing::Standby),
        outlooks: Outlooks::new(OutlookDeps {
            views: views.clone(),
            target: Some(OutlookTarget { nodes, drains: Arc::new(NoPods) }),
            drivers: Registry::new(),
            settings: MachineSettings::default(),
            freeze: FreezeSwitch::default(),
            controller: None,
        }),
        inventories: Arc::new(Inventories::new(
            views.clone(),
            Registry::new(),
            Arc::clone(&clock),
            InventorySettings::default(),
        )),
        collector: None,
        rollouts: DeploymentSettings::default(),
        admission: Judges {
            policy: Policy::default(),
            providers: Arc::new(NoProviders),
            references: Arc::new(NoReferences),
        },
        clock,
    }
}

/// A target cluster without pods.
struct NoPods;

impl DrainViews for NoPods {
    fn ready(&self) -> bool {
        true
    }
    fn pods_on(&self, _: &str) -> Vec<Arc<Pod>> {
        Vec::new()
    }
    fn pods_using(&self, _: &ObjectKey) -> Vec<Arc<Pod>> {
        Vec::new()
    }
    fn budgets_in(&self, _: &str) -> Vec<Arc<PodDisruptionBudget>> {
        Vec::new()
    }
    fn claim(&self, _: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>> {
        None
    }
    fn volume(&self, _: &str) -> Option<Arc<PersistentVolume>> {
        None
    }
    fn attachments_on(&self, _: &str) -> Vec<Arc<VolumeAttachment>> {
        Vec::new()
    }
    fn attachments_of(&self, _: &str) -> Vec<Arc<VolumeAttachment>> {
        Vec::new()
    }
}

fn reviews() {
    let admission = Admission::new(Policy::default());
    let review = serde_json::json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": "CREATE", "namespace": "default", "name": "m1", "dryRun": false,
            "kind": {"group": "machine.sapcloud.io", "version": "v1alpha1", "kind": "Machine"},
            "resource": {"group": "machine.sapcloud.io", "version": "v1alpha1", "resource": "machines"},
            "userInfo": {"username": "alice"},
            "object": {
                "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
                "metadata": {"name": "m1", "namespace": "default"},
                "spec": {"class": {"kind": "MachineClass", "name": "c1"}}
            }
        }
    })
    .to_string();
    for endpoint in [Endpoint::Mutate, Endpoint::Validate] {
        let began = Instant::now();
        for _ in 0..MACHINES {
            std::hint::black_box(admission.review(endpoint, review.as_bytes()));
        }
        println!("admission: {:?} per review of {}", began.elapsed() / 10_000, endpoint.path());
    }
}
