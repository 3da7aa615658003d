//! The stored data of earlier versions: it is still read, and the same bytes are still written.
//!
//! The fixtures come from the last version before the journal got its sinks. A scenario that writes other data, or a fixture that can't be
//! read, breaks existing clusters and fleets.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use machine_api::v1alpha1::{Machine, MachineClass};
use machine_driver::{Driver, MachineRequest, OpContext, SecretData};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    StatePlace,
    testing::{Shared, access},
};
use crate::{SimulationConfig, SimulationOptions, VirtualCloud, start};

const JOURNAL: &str = include_str!("../../tests/fixtures/journal");
const JOURNAL_AFTER_START: &str = include_str!("../../tests/fixtures/journal-after-start");
const CONFIG_MAPS: &str = include_str!("../../tests/fixtures/config-maps.json");
const FLEET: &str = include_str!("../../tests/fixtures/fleet.json");

/// A clock that stands still, failure rules with counters, and VMs that wait for their initialisation.
const CONFIG: &str = "seed: 7\nclock: virtual\nfailures: [{op: create, class: pool, count: 1, code: Internal}]
outcomes: [{class: waits, effect: uninitialized}, {class: lonely, effect: never-joins}, {class: twins, effect: duplicate-vm}]";

fn options(place: StatePlace) -> SimulationOptions {
    let defaults = SimulationConfig::without_latency().overlaid_by_text(CONFIG).unwrap();
    let origin = "2026-01-02T03:04:05.006Z".parse::<Timestamp>().unwrap();
    SimulationOptions { defaults, state: Some(place), ..SimulationOptions::new(origin) }
}

async fn a_cloud(options: SimulationOptions) -> Arc<VirtualCloud> {
    start(options, None, CancellationToken::new()).await.unwrap().0
}

fn request(class: &str, machine: &str, sim: &Value) -> MachineRequest {
    let spec = json!({ "region": "eu-1", "zone": "eu-1b", "machineType": "m.large", "sim": sim });
    let mut class_of = MachineClass { provider: "virtual".to_owned(), provider_spec: spec, ..MachineClass::default() };
    class_of.metadata.name = Some(class.to_owned());
    class_of.metadata.namespace = Some("shoot".to_owned());
    let mut machine_of: Machine = serde_json::from_value(json!({
        "metadata": { "name": machine, "namespace": "shoot", "uid": format!("uid-{machine}") },
        "spec": { "class": { "kind": "MachineClass", "name": class } },
    }))
    .unwrap();
    if class == "pool" {
        machine_of.spec.node_template = serde_json::from_value(json!({
            "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" } },
            "spec": { "taints": [{ "key": "k", "value": "v", "effect": "NoSchedule" }] },
        }))
        .unwrap();
    }
    MachineRequest { machine: Arc::new(machine_of), class: Arc::new(class_of), secret: SecretData::default() }
}

/// Makes every kind of record, and VMs in every stored state.
async fn play(cloud: &VirtualCloud) {
    let cx = OpContext::within(Duration::from_secs(60));
    cloud.create_machine(&cx, request("pool", "first", &Value::Null)).await.unwrap_err();
    cloud.create_machine(&cx, request("pool", "first", &Value::Null)).await.unwrap();
    cloud.create_machine(&cx, request("waits", "second", &Value::Null)).await.unwrap();
    cloud.create_machine(&cx, request("lonely", "third", &Value::Null)).await.unwrap();
    cloud.create_machine(&cx, request("twins", "fourth", &Value::Null)).await.unwrap();
    let dns = json!({ "nodes": { "nodeName": "private-dns" } });
    cloud.create_machine(&cx, request("dns", "fifth", &dns)).await.unwrap();
    let slow = json!({ "latency": { "create": "1h", "delete": "2h" } });
    let given_up = cloud.create_machine(&cx, request("slow", "sixth", &slow));
    assert!(tokio::time::timeout(Duration::from_secs(1), given_up).await.is_err());
    let ends_late = json!({ "latency": { "delete": "2h" } });
    cloud.create_machine(&cx, request("ends", "seventh", &ends_late)).await.unwrap();
    let given_up = cloud.delete_machine(&cx, request("ends", "seventh", &ends_late));
    assert!(tokio::time::timeout(Duration::from_secs(1), given_up).await.is_err());
    cloud.create_machine(&cx, request("pool", "eighth", &Value::Null)).await.unwrap();
    cloud.delete_machine(&cx, request("pool", "eighth", &Value::Null)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_journal_of_an_earlier_version_is_written_and_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    play(&*a_cloud(options(StatePlace::File(path.clone()))).await).await;
    assert_eq!(&std::fs::read_to_string(&path).unwrap(), JOURNAL);
    std::fs::write(&path, JOURNAL).unwrap();
    let cloud = a_cloud(options(StatePlace::File(path.clone()))).await;
    // A snapshot of all data replaces the journal.
    assert_eq!(&std::fs::read_to_string(&path).unwrap(), JOURNAL_AFTER_START);
    assert_eq!(cloud.vm_count(), 8);
}

#[tokio::test(start_paused = true)]
async fn config_maps_of_an_earlier_version_are_written_and_read() {
    let on = |server: &Shared| {
        let options = options(StatePlace::ConfigMap("vms".to_owned()));
        SimulationOptions { config_maps: Some(access(server)), entropy: 9, ..options }
    };
    let server = Shared::default();
    play(&*a_cloud(on(&server)).await).await;
    let written = serde_json::to_string_pretty(&server.lock().unwrap().objects).unwrap() + "\n";
    assert_eq!(&written, CONFIG_MAPS);
    let server = Shared::default();
    server.lock().unwrap().objects = serde_json::from_str(CONFIG_MAPS).unwrap();
    let cloud = a_cloud(on(&server)).await;
    assert_eq!(cloud.vm_count(), 8);
    let data = |objects: Value| objects["vms"]["data"].clone();
    let kept = data(serde_json::to_value(&server.lock().unwrap().objects).unwrap());
    assert_eq!(kept, data(serde_json::from_str(CONFIG_MAPS).unwrap()), "reading changes nothing");
}

#[tokio::test(start_paused = true)]
async fn a_fleet_of_an_earlier_version_is_written_and_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fleet.json");
    play(&*a_cloud(options(StatePlace::Json(path.clone()))).await).await;
    assert_eq!(&std::fs::read_to_string(&path).unwrap(), FLEET);
    std::fs::write(&path, FLEET).unwrap();
    let cloud = a_cloud(options(StatePlace::Json(path.clone()))).await;
    // VMs that are being deleted are handed over as running VMs.
    assert_eq!(&std::fs::read_to_string(&path).unwrap(), FLEET);
    assert_eq!(cloud.vm_count(), 7);
}
