//! Figures of the paths that thousands of machines go through: the store's index, the work queue, an admission review.
//!
//! A scenario program, not a test: `cargo bench` prints, nothing passes or fails by time.

use std::{sync::Arc, time::Instant};

use machine_controller_manager::{
    admission::{Admission, Endpoint},
    api::{v1alpha1::Machine, validation::Policy},
    cluster::store::Store,
    controllers::views::{BY_CLASS, ControlViews},
};

const MACHINES: usize = 10_000;

fn main() {
    store();
    reviews();
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
