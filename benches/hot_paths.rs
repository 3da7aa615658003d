//! Measures the code that runs for thousands of machines: the store's index, an admission review, a view.
//!
//! This is a program, not a test: `cargo bench` prints times, and no time is a failure.

use std::{sync::Arc, time::Instant};

use controller_runtime::{
    clock::{SharedClock, TokioClock},
    key::ObjectKey,
    store::Store,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_protocol::{
    selectors::{FieldSelector, LabelSelector},
    status::ApiStatus,
    table::Form,
};
use machine_api::{
    admission::{Admission, Endpoint},
    names::finalizer,
    v1alpha1::{Machine, MachineDeployment, MachinePhase, MachineSet},
    validation::{NoProviders, NoReferences, Policy},
    webhooks::Webhook,
};
use machine_controller_manager::extension::{
    rows::{rendered, selected},
    view::{Freshness, View},
    views::{AdmissionRules, FleetView, Inventories, InventorySettings, OutlookView, RolloutPlanView, Sources},
};
use machine_controllers::{
    deployment::settings::DeploymentSettings,
    drain::observe::DrainViews,
    machine::{
        FreezeSwitch,
        outlook::{OutlookDeps, OutlookTarget, Outlooks},
        settings::MachineSettings,
    },
    snapshots::{
        AttachmentSnapshot, BudgetSnapshot, ClaimSnapshot, MachineSnapshot, NodeSnapshot, PodSnapshot, VolumeSnapshot,
    },
    views::{BY_CLASS, ControlViews, node_store},
};
use machine_driver::Registry;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MACHINES: usize = 10_000;
/// Machines of a page. kubectl requests pages of this size.
const PAGE: usize = 500;

fn main() {
    store();
    reviews();
    views();
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
    let store: Arc<Store<MachineSnapshot>> = ControlViews::default().machines;
    let began = Instant::now();
    for number in 0..MACHINES {
        store.apply(machine(number));
    }
    println!("store: {MACHINES} machines applied in {:?}", began.elapsed());
    let began = Instant::now();
    let found: usize = (0..100).map(|class| store.by_index(BY_CLASS, &format!("default/class-{class}")).len()).sum();
    println!("store: {found} machines found by class in {:?}", began.elapsed());
}

/// Measures views in a namespace with many machines, without the network.
fn views() {
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
    let Ok((deployment, set, owner)) = rollout() else { return };
    views.deployments.apply(deployment);
    views.sets.apply(set);
    let ready = NodeCondition { type_: "Ready".to_owned(), status: "True".to_owned(), ..NodeCondition::default() };
    for number in 0..MACHINES {
        let mut machine = machine(number);
        let node = format!("node-{number}");
        machine.metadata.labels = Some(
            [("node", node.as_str()), ("app", "d"), ("machine-template-hash", "1")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        );
        machine.metadata.owner_references = Some(vec![owner.clone()]);
        machine.metadata.finalizers = Some(vec![finalizer::MACHINE.to_owned()]);
        machine.spec.provider_id = format!("cloud:///{number}");
        machine.status.current_status.phase = MachinePhase::Running;
        machine.status.conditions = vec![ready.clone()];
        views.machines.apply(machine);
        let mut node = Node::default();
        node.metadata.name = Some(format!("node-{number}"));
        node.status.get_or_insert_default().conditions = Some(vec![ready.clone()]);
        node.spec.get_or_insert_default().provider_id = Some(format!("cloud:///{number}"));
        nodes.apply(node);
    }
    end();
    let sources = sources(&views, nodes);
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().enable_all().build() else { return };
    let (outlooks, fleet, plans) =
        (OutlookView::new(&sources), FleetView::new(&sources), RolloutPlanView::new(&sources));
    for (what, most) in [("whole", MACHINES), ("first page", PAGE)] {
        for _ in 0..5 {
            let began = Instant::now();
            let rendered = runtime.block_on(render_page(&outlooks, most)).map_or(0, |(rows, _)| rows);
            println!("outlooks, {what}: {rendered} machines rendered in {:?}", began.elapsed());
        }
    }
    if let Ok((_, bytes)) = runtime.block_on(render_page(&outlooks, PAGE)) {
        println!("outlooks: {bytes} bytes are kept for the other pages");
    }
    for _ in 0..3 {
        let began = Instant::now();
        let is_ok = runtime.block_on(fleet.get("default", "default", Freshness::Recent)).is_ok();
        println!("fleet summary: {MACHINES} machines counted ({is_ok}) in {:?}", began.elapsed());
    }
    for (what, spec) in [
        ("as it is", serde_json::json!({ "machineDeploymentName": "d" })),
        (
            "with another class",
            serde_json::json!({ "machineDeploymentName": "d", "proposed": { "template": template("other") } }),
        ),
    ] {
        let began = Instant::now();
        let plan = runtime.block_on(plans.create("default", serde_json::json!({ "spec": spec })));
        let plan = plan.and_then(|answer| answer.object.render(Form::Objects, Timestamp::UNIX_EPOCH));
        let status = plan.map(|plan| plan["status"].clone()).unwrap_or_default();
        let steps = status["steps"].as_array().map_or(0, Vec::len);
        println!(
            "rollout plan of {MACHINES} machines {what}: {steps} steps, truncated {}, in {:?}",
            status["truncated"],
            began.elapsed()
        );
    }
}

/// Renders the first machines of a list, like a request for a page. Returns their number, and the size of the data that is kept for
/// the other pages.
async fn render_page(outlooks: &OutlookView, most: usize) -> Result<(usize, usize), ApiStatus> {
    let rows = outlooks.list(None, Freshness::Recent).await?.rows;
    let rows = selected(rows, &LabelSelector::default(), &FieldSelector::default()).await?;
    let page = rendered(&rows[..most.min(rows.len())], Form::Objects, Timestamp::UNIX_EPOCH).await?;
    Ok((page.len(), rows.iter().map(|row| row.bytes()).sum()))
}

fn template(class: &str) -> serde_json::Value {
    serde_json::json!({
        "metadata": { "labels": { "app": "d" } }, "spec": { "class": { "kind": "MachineClass", "name": class } },
    })
}

/// A deployment of all machines, its set, and the owner reference of the machines.
fn rollout() -> serde_json::Result<(MachineDeployment, MachineSet, OwnerReference)> {
    let owner = |kind: &str, name: &str| {
        serde_json::json!({ "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "name": name,
                            "uid": format!("{name}-uid"), "controller": true })
    };
    let strategy = serde_json::json!({
        "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "10%", "maxUnavailable": 0 },
    });
    let metadata = |name: &str| {
        serde_json::json!({ "name": name, "namespace": "default", "uid": format!("{name}-uid"), "resourceVersion": "1",
                            "generation": 1, "annotations": { "deployment.kubernetes.io/revision": "1" },
                            "finalizers": [finalizer::MACHINE] })
    };
    let deployment = serde_json::json!({
        "metadata": metadata("d"),
        "spec": { "replicas": MACHINES, "selector": { "matchLabels": { "app": "d" } }, "strategy": strategy,
                  "template": template("class-0") },
    });
    let labels = serde_json::json!({ "app": "d", "machine-template-hash": "1" });
    let mut of_set = template("class-0");
    of_set["metadata"]["labels"] = labels.clone();
    let mut set_metadata = metadata("d-1");
    set_metadata["labels"] = labels.clone();
    set_metadata["ownerReferences"] = serde_json::json!([owner("MachineDeployment", "d")]);
    let set = serde_json::json!({
        "metadata": set_metadata,
        "spec": { "replicas": MACHINES, "selector": { "matchLabels": labels }, "template": of_set },
        "status": { "replicas": MACHINES, "readyReplicas": MACHINES, "availableReplicas": MACHINES, "observedGeneration": 1 },
    });
    Ok((
        serde_json::from_value(deployment)?,
        serde_json::from_value(set)?,
        serde_json::from_value(owner("MachineSet", "d-1"))?,
    ))
}

fn sources(views: &ControlViews, nodes: Arc<Store<NodeSnapshot>>) -> Sources {
    let clock: SharedClock = Arc::new(TokioClock::starting_at(jiff::Timestamp::now()));
    Sources {
        views: views.clone(),
        namespace: "default".to_owned(),
        is_leading: Arc::new(|| false),
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
        plans_at_a_time: 2,
        rollouts: DeploymentSettings::default(),
        admission: AdmissionRules {
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
    fn pods_on(&self, _: &str) -> Vec<PodSnapshot> {
        Vec::new()
    }
    fn pods_using(&self, _: &ObjectKey) -> Vec<PodSnapshot> {
        Vec::new()
    }
    fn budgets_in(&self, _: &str) -> Vec<BudgetSnapshot> {
        Vec::new()
    }
    fn claim(&self, _: &ObjectKey) -> Option<ClaimSnapshot> {
        None
    }
    fn volume(&self, _: &str) -> Option<VolumeSnapshot> {
        None
    }
    fn attachments_on(&self, _: &str) -> Vec<AttachmentSnapshot> {
        Vec::new()
    }
    fn attachments_of(&self, _: &str) -> Vec<AttachmentSnapshot> {
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
        println!("admission: {:?} per review of {}", began.elapsed() / 10_000, Webhook::Admission(endpoint).path());
    }
}
