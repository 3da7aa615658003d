//! Measures reviews without network.

use std::{hint::black_box, time::Instant};

use machine_api::{
    admission::{Admission, Endpoint, convert},
    validation::Policy,
    webhooks::Webhook,
};
use serde_json::{Value, json};

const ROUNDS: u32 = 20_000;

pub fn run() {
    let admission = Admission::new(Policy::default());
    for (name, body) in [
        ("Machine", include_bytes!("../../tests/fixtures/reviews/machine.json").as_slice()),
        ("Machine, denied", include_bytes!("../../tests/fixtures/reviews/machine-bad.json")),
        ("MachineDeployment", include_bytes!("../../tests/fixtures/reviews/machinedeployment.json")),
    ] {
        for endpoint in [Endpoint::Mutate, Endpoint::Validate] {
            time(&format!("{} of a {name}", Webhook::Admission(endpoint).path()), ROUNDS, || {
                admission.review(endpoint, body).body
            });
        }
    }
    let objects = stored_machines();
    for (to, from) in [("v1beta1", "v1alpha1"), ("v1alpha1", "v1beta1")] {
        let (one, thousand) = (conversion(&objects[..1], from, to), conversion(&objects, from, to));
        time(&format!("conversion of a Machine to {to}"), ROUNDS, || convert(&one).body);
        time(&format!("conversion of 1,000 Machines to {to} in one review"), 20, || convert(&thousand).body);
    }
}

fn time(what: &str, rounds: u32, mut work: impl FnMut() -> Vec<u8>) {
    for _ in 0..rounds / 10 {
        black_box(work());
    }
    let began = Instant::now();
    for _ in 0..rounds {
        black_box(work());
    }
    println!("{what}: {:.1?}", began.elapsed() / rounds);
}

/// A thousand machines, as the Go original stores them.
fn stored_machines() -> Vec<Value> {
    let list: Value = serde_json::from_str(include_str!("../../tests/fixtures/go/machines.json")).expect("JSON");
    let machines = list["items"].as_array().expect("a list");
    machines.iter().cycle().take(1_000).cloned().collect()
}

fn conversion(objects: &[Value], from: &str, to: &str) -> Vec<u8> {
    let review = |objects: &[Value], to: &str| {
        let request = json!({"uid": "u", "desiredAPIVersion": format!("machine.sapcloud.io/{to}"), "objects": objects});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}).to_string()
    };
    if from == "v1alpha1" {
        return review(objects, to).into_bytes();
    }
    // The fixtures are v1alpha1, so that they are converted in the other direction first.
    let converted = convert(review(objects, from).as_bytes()).body;
    let converted: Value = serde_json::from_slice(&converted).expect("JSON");
    review(converted["response"]["convertedObjects"].as_array().expect("a list"), to).into_bytes()
}
