//! Sources for the tests of the views: complete stores, and a clock that follows paused time.

use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
    storage::v1::VolumeAttachment,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{AdmissionRules, Inventories, InventorySettings, Sources};
use crate::extension::{rows::Row, testing::whole, view::View};
use controller_runtime::{
    clock::{Clock, TokioClock},
    key::ObjectKey,
    snapshot::Snapshot,
    store::Store,
};
use machine_api::{
    names::finalizer,
    v1alpha1::{Machine, MachineClass, MachineDeployment, MachineSet},
    validation::{NoProviders, NoReferences, Policy},
};
use machine_controllers::{
    deployment::settings::DeploymentSettings,
    drain::observe::DrainViews,
    machine::{
        FreezeSwitch,
        outlook::{OutlookDeps, OutlookTarget, Outlooks},
        settings::MachineSettings,
    },
    snapshots::{AttachmentSnapshot, BudgetSnapshot, ClaimSnapshot, NodeSnapshot, PodSnapshot, VolumeSnapshot},
    times::rfc3339,
    views::{ControlViews, node_store},
};
use machine_driver::Registry;

/// The time at which every test begins.
pub fn dawn() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// The time so many seconds before the beginning of the test, as JSON.
pub fn ago(seconds: i64) -> Value {
    json!(rfc3339(dawn() - SignedDuration::from_secs(seconds)))
}

pub fn object<K: DeserializeOwned>(mut base: Value, patch: &Value) -> K {
    json_patch::merge(&mut base, patch);
    serde_json::from_value(base).unwrap()
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name, "namespace": "ns", "uid": format!("{name}-uid"), "resourceVersion": "1", "generation": 1,
        "creationTimestamp": ago(120), "finalizers": [finalizer::MACHINE],
    })
}

/// The whole object, which must conform to the schema of the view.
pub fn conforming(view: &dyn View, object: &Arc<dyn Row>) -> Value {
    let object = whole(object);
    let validator = jsonschema::validator_for(view.schema()).unwrap();
    let wrong: Vec<String> =
        validator.iter_errors(&object).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(wrong.is_empty(), "{wrong:?} in {object:#}");
    object
}

/// A machine that is two minutes old, of class `c`.
#[allow(clippy::needless_pass_by_value)] // a test writes it as a literal
pub fn machine(name: &str, patch: Value) -> Machine {
    let base = json!({ "metadata": metadata(name), "spec": { "class": { "kind": "MachineClass", "name": "c" } } });
    object(base, &patch)
}

pub fn owner(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "name": name, "uid": format!("{name}-uid"),
        "controller": true,
    })
}

pub struct World {
    pub sources: Sources,
    pub nodes: Arc<Store<NodeSnapshot>>,
    pub pods: Arc<Pods>,
}

/// The objects that drains read, as the test adds them.
#[derive(Default)]
pub struct Pods {
    bound: Mutex<Vec<PodSnapshot>>,
    budgets: Mutex<Vec<BudgetSnapshot>>,
    attachments: Mutex<Vec<AttachmentSnapshot>>,
}

impl Pods {
    pub fn add_pod(&self, name: &str, node: &str, patch: &Value) {
        let base = json!({
            "metadata": { "name": name, "namespace": "apps", "uid": format!("{name}-pod"), "labels": { "app": name } },
            "spec": { "nodeName": node, "containers": [], "terminationGracePeriodSeconds": 30 },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        self.bound.lock().unwrap().push(object::<Pod>(base, patch).into());
    }

    /// Removes the pod with its volumes.
    pub fn remove(&self, name: &str) {
        self.bound.lock().unwrap().retain(|pod| pod.name() != name);
    }

    pub fn add_budget(&self, name: &str, app: &str, status: &Value) {
        let base = json!({
            "metadata": { "name": name, "namespace": "apps", "generation": 1 },
            "spec": { "selector": { "matchLabels": { "app": app } } },
            "status": { "observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
                        "disruptionsAllowed": 1 },
        });
        self.budgets.lock().unwrap().push(object::<PodDisruptionBudget>(base, &json!({ "status": status })).into());
    }

    pub fn attach(&self, volume: &str, node: &str) {
        let base = json!({
            "metadata": { "name": format!("{volume}-{node}") },
            "spec": { "attacher": "csi", "nodeName": node, "source": { "persistentVolumeName": volume } },
            "status": { "attached": true },
        });
        self.attachments.lock().unwrap().push(object::<VolumeAttachment>(base, &json!({})).into());
    }

    /// The part of a pod that uses claims. Claim `x` is bound to volume `pv-x`.
    pub fn using(claims: &[&str]) -> Value {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }))
            .collect();
        json!({ "spec": { "volumes": volumes } })
    }
}

impl DrainViews for Pods {
    fn ready(&self) -> bool {
        true
    }
    fn pods_on(&self, node: &str) -> Vec<PodSnapshot> {
        let pods = self.bound.lock().unwrap();
        pods.iter().filter(|pod| pod.node_name() == Some(node)).cloned().collect()
    }
    fn pods_using(&self, claim: &ObjectKey) -> Vec<PodSnapshot> {
        self.bound.lock().unwrap().iter().filter(|pod| pod.claims().any(|own| own == *claim)).cloned().collect()
    }
    fn budgets_in(&self, namespace: &str) -> Vec<BudgetSnapshot> {
        let budgets = self.budgets.lock().unwrap();
        budgets.iter().filter(|budget| budget.namespace() == namespace).cloned().collect()
    }
    fn claim(&self, key: &ObjectKey) -> Option<ClaimSnapshot> {
        let claim = json!({ "spec": { "volumeName": format!("pv-{}", key.name) } });
        Some(object::<PersistentVolumeClaim>(claim, &json!({})).into())
    }
    fn volume(&self, name: &str) -> Option<VolumeSnapshot> {
        let volume = json!({ "spec": { "csi": { "driver": "csi", "volumeHandle": format!("handle-{name}") } } });
        Some(object::<PersistentVolume>(volume, &json!({})).into())
    }
    fn attachments_on(&self, node: &str) -> Vec<AttachmentSnapshot> {
        let all = self.attachments.lock().unwrap();
        all.iter().filter(|attachment| attachment.node_name() == node).cloned().collect()
    }
    fn attachments_of(&self, volume: &str) -> Vec<AttachmentSnapshot> {
        let all = self.attachments.lock().unwrap();
        let of = |attachment: &&AttachmentSnapshot| attachment.volume_name() == Some(volume);
        all.iter().filter(of).cloned().collect()
    }
}

fn completed(store: &Store<impl Snapshot>) {
    store.list_begins();
    store.list_ends();
}

impl World {
    /// No store is complete yet.
    pub fn cold() -> Self {
        Self::with_drivers(Registry::new())
    }

    /// The same world with these drivers.
    pub fn with_drivers(drivers: Registry) -> Self {
        let views = ControlViews::default();
        let (nodes, pods) = (node_store(), Arc::<Pods>::default());
        let outlooks = Outlooks::new(OutlookDeps {
            views: views.clone(),
            target: Some(OutlookTarget { nodes: Arc::clone(&nodes), drains: Arc::<Pods>::clone(&pods) }),
            drivers: drivers.clone(),
            settings: MachineSettings::default(),
            freeze: FreezeSwitch::default(),
            controller: None,
        });
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(dawn()));
        let sources = Sources {
            inventories: Arc::new(Inventories::new(
                views.clone(),
                drivers,
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
            views,
            namespace: "ns".to_owned(),
            clock,
            is_leading: Arc::new(|| false),
            outlooks,
        };
        Self { sources, nodes, pods }
    }

    /// All stores are complete and contain only the class `c`.
    pub fn synced() -> Self {
        Self::cold().completed()
    }

    /// The same world with complete stores and the class `c`.
    pub fn completed(self) -> Self {
        let world = self;
        let views = &world.sources.views;
        completed(&views.machines);
        completed(&views.sets);
        completed(&views.deployments);
        completed(&views.classes);
        completed(&views.secrets);
        completed(&world.nodes);
        world.add_class("c", json!({}));
        world
    }

    pub fn add_machine(&self, machine: Machine) {
        self.sources.views.machines.apply(machine);
    }

    #[allow(clippy::needless_pass_by_value)] // a test writes it as a literal
    pub fn add_class(&self, name: &str, patch: Value) {
        let base = json!({
            "metadata": metadata(name), "provider": "cloud", "providerSpec": {},
        });
        self.sources.views.classes.apply(object::<MachineClass>(base, &patch));
    }

    pub fn add_set(&self, name: &str, replicas: i32, deployment: Option<&str>) {
        let owners: Vec<Value> = deployment.map(|name| owner("MachineDeployment", name)).into_iter().collect();
        let base = json!({ "metadata": metadata(name), "spec": { "replicas": replicas } });
        let patch = json!({ "metadata": { "ownerReferences": owners } });
        self.sources.views.sets.apply(object::<MachineSet>(base, &patch));
    }

    pub fn add_deployment(&self, name: &str, replicas: i32) {
        let base = json!({ "metadata": metadata(name), "spec": {
            "replicas": replicas, "template": { "spec": { "class": { "kind": "MachineClass", "name": "c" } } },
        } });
        self.sources.views.deployments.apply(object::<MachineDeployment>(base, &json!({})));
    }

    pub fn put_set(&self, name: &str, patch: &Value) {
        self.sources.views.sets.apply(object::<MachineSet>(json!({ "metadata": metadata(name) }), patch));
    }

    pub fn put_deployment(&self, name: &str, patch: &Value) {
        self.sources.views.deployments.apply(object::<MachineDeployment>(json!({ "metadata": metadata(name) }), patch));
    }

    /// Adds a Node that is Ready.
    pub fn set_ready(&self, name: &str, machine: &str) {
        let ready = json!({ "status": { "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": ago(60), "lastHeartbeatTime": ago(1) },
        ] }, "metadata": { "resourceVersion": "2" } });
        self.nodes.apply(object(Self::node(name, machine), &ready));
    }

    pub fn add_node(&self, name: &str, machine: &str) {
        self.nodes.apply(object(Self::node(name, machine), &json!({})));
    }

    fn node(name: &str, machine: &str) -> Value {
        json!({
            "metadata": { "name": name, "resourceVersion": "1", "uid": format!("{name}-node"), "labels": { "node.gardener.cloud/machine-name": machine } },
            "spec": { "providerID": format!("cloud:///{machine}") },
            "status": { "capacity": { "cpu": "2", "memory": "4Gi" }, "allocatable": { "cpu": "1900m" } },
        })
    }
}
