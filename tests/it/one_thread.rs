//! API server, manager and virtual cloud in one thread on paused time, without a socket. Each seed gives exactly one history.
//!
//! Two runs of one seed must give the same log of all stored writes, byte for byte: including names, UIDs, time stamps, versions, managed fields,
//! events and leases. The test normalises nothing.

use std::{sync::Arc, time::Duration};

use machine_api::crd::{CrdOptions, definitions};
use machine_controller_manager::{
    manager::{Endpoints, run_in},
    server::Reviewer,
};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{
    fleet,
    support::{
        one_thread::{MACHINE_PATH, NAMESPACE, Stage, answer_webhooks, install, list, play, post, send, settings},
        scratch::count_ran,
    },
};

const DEPLOYMENT: &str = "fleet";
const MACHINES: u32 = 50;
/// The virtual time that a step may take; the virtual cloud is as slow as real clouds.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// The result of a history.
struct History {
    writes: Vec<String>,
    /// The virtual time of the history.
    lasted: Duration,
}

#[test]
fn one_seed_replays_one_history_byte_by_byte() {
    count_ran("one_thread::one_seed_replays_one_history");
    let began = std::time::Instant::now();
    let first = history(42, MACHINES);
    let once = began.elapsed();
    let second = history(42, MACHINES);
    println!(
        "{MACHINES} machines to Running and gone: {} writes, {:.0} s of virtual time, {:.1} s of real time",
        first.writes.len(),
        first.lasted.as_secs_f64(),
        once.as_secs_f64()
    );
    if let Some(file) = std::env::var_os("MCM_TEST_WRITE_LOG") {
        std::fs::write(file, first.writes.join("\n")).expect("the log of writes can be kept");
    }
    if let Some(at) = first.writes.iter().zip(&second.writes).position(|(one, two)| one != two) {
        panic!("write {at} differs:\n{}\n{}", first.writes[at], second.writes[at]);
    }
    assert_eq!(first.writes.len(), second.writes.len());
}

#[test]
fn another_seed_gives_another_history() {
    count_ran("one_thread::another_seed_gives_another_history");
    assert_ne!(history(1, 2).writes, history(2, 2).writes);
}

#[test]
fn s_cli_09_while_only_machines_are_served_no_loop_begins() {
    count_ran("one_thread::s_cli_09_while_only_machines_are_served");
    play(async {
        let stage = Stage::new(1);
        let (server, client) = (&stage.server, &stage.client);
        for definition in definitions(&CrdOptions::default()) {
            if definition["spec"]["names"]["plural"] == "machines" {
                post(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
            }
        }
        let machine = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": { "name": "lonely" },
            "spec": { "class": { "kind": "MachineClass", "name": "class" } },
        });
        post(client, &format!("{MACHINE_PATH}/machines"), &machine).await;
        let (stop, stopped) = oneshot::channel::<()>();
        let environment = stage.environment(&stage.managers_client(), Endpoints::InProcess(Box::new(drop)), 1);
        let story = async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            drop(stop);
        };
        let running = run_in(settings(&["--leader-elect=false"]), environment, async { drop(stopped.await) });
        let (ended, ()) = tokio::join!(running, story);
        ended.expect("the manager waits and ends well");
        let left = list(client, &format!("{MACHINE_PATH}/machines")).await;
        assert_eq!(left[0]["metadata"].get("finalizers"), None, "{left:?}");
        let about_machines = |line: &&String| line.contains(" machine.sapcloud.io/");
        assert_eq!(server.writes().iter().filter(about_machines).count(), 1, "the machine is written again");
    });
}

fn history(seed: u64, machines: u32) -> History {
    play(run_history(seed, machines))
}

async fn run_history(seed: u64, machines: u32) -> History {
    let stage = Stage::new(seed);
    let (server, client) = (&stage.server, &stage.client);
    install(client).await;
    let began = stage.clock.now();
    let (stop, stopped) = oneshot::channel::<()>();
    let (give, given) = oneshot::channel::<Arc<dyn Reviewer>>();
    // Only this test waits for the reviewer.
    let endpoints = Endpoints::InProcess(Box::new(|reviewer| drop(give.send(reviewer))));
    let environment = stage.environment(&stage.managers_client(), endpoints, seed);
    let story = async {
        answer_webhooks(server, given.await.expect("the manager passes its reviewer"));
        create(client, machines).await;
        eventually(client, "machines", |found| {
            found.len() == machines as usize && found.iter().all(|machine| fleet::phase(machine) == "Running")
        })
        .await;
        delete(client).await;
        for resource in ["machines", "machinesets", "machinedeployments"] {
            eventually(client, resource, <[Value]>::is_empty).await;
        }
        let nodes = list(client, "/api/v1/nodes").await;
        assert_eq!(nodes.len(), 0, "{nodes:?}");
        drop(stop);
    };
    let running = run_in(settings(&[]), environment, async { drop(stopped.await) });
    let (ended, ()) = tokio::join!(running, story);
    ended.expect("the manager ends well");
    let lasted = stage.clock.now().duration_since(began);
    History { writes: server.writes(), lasted: lasted.unsigned_abs() }
}

async fn create(client: &kube::Client, machines: u32) {
    let all: Value = serde_json::from_str(&fleet::manifests(NAMESPACE, DEPLOYMENT, machines, "class-a")).expect("JSON");
    for object in all["items"].as_array().expect("a list") {
        let path = match object["kind"].as_str() {
            Some("Secret") => "/api/v1/namespaces/default/secrets".to_owned(),
            Some("MachineClass") => format!("{MACHINE_PATH}/machineclasses"),
            _ => format!("{MACHINE_PATH}/machinedeployments"),
        };
        post(client, &path, object).await;
    }
    // The webhooks check objects: this object is wrong.
    let mut wrong = all["items"][2].clone();
    wrong["metadata"]["name"] = json!("wrong");
    wrong["spec"]["selector"]["matchLabels"] = json!({ "other": "label" });
    let refused = send(client, "POST", &format!("{MACHINE_PATH}/machinedeployments"), &wrong).await;
    let refused = refused.expect_err("a selector that misses its template is refused");
    assert!(refused.contains("selector"), "{refused}");
}

async fn delete(client: &kube::Client) {
    let path = format!("{MACHINE_PATH}/machinedeployments/{DEPLOYMENT}");
    send(client, "DELETE", &path, &Value::Null).await.expect("the deletion is accepted");
}

/// Advances virtual time until the condition holds for a list.
async fn eventually(client: &kube::Client, resource: &str, holds: impl Fn(&[Value]) -> bool) {
    let path = format!("{MACHINE_PATH}/{resource}");
    let waiting = async {
        while !holds(&list(client, &path).await) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    if tokio::time::timeout(TIMEOUT, waiting).await.is_err() {
        let left: Vec<String> = list(client, &path).await.iter().map(fleet::describe).collect();
        panic!("{resource} after {TIMEOUT:?}:\n{}", left.join("\n"));
    }
}
