//! API server, manager and virtual cloud in one thread on paused time, without a socket: one seed is one history.
//!
//! What must not differ between two runs of one seed is the log of all writes, as stored, byte by byte: names, UIDs, time
//! stamps, versions, managed fields, events and leases with it. Nothing is normalised.

use std::{sync::Arc, time::Duration};

use clap::Parser;
use http::Request;
use jiff::Timestamp;
use machine_controller_manager::{
    admission::manifests::{Client, WebhookManifests},
    api::crd::{Converter, CrdOptions, V1Beta1, definitions},
    cli::serve::{args::ServeArgs, validate},
    cluster::clock::{SharedClock, TokioClock},
    dev_server::{DevServer, DevServerOptions, InProcess},
    manager::{Face, Randomness, Reach, Surroundings, run_in},
    server::{Reviewer, answer_at},
    settings::Settings,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{fleet, support::scratch::count_ran};

pub const NAMESPACE: &str = "default";
const DEPLOYMENT: &str = "fleet";
const MACHINES: u32 = 50;
/// Where webhooks would be, if anything listened.
pub const WEBHOOKS: &str = "https://webhooks.example.com:443";
/// Virtual time that a chapter may take; the virtual cloud is as slow as real ones.
const PATIENCE: Duration = Duration::from_secs(3600);
pub const MACHINE_PATH: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default";

/// How patches are written.
const MERGE: &str = "application/merge-patch+json";

/// What a history left behind.
struct History {
    writes: Vec<String>,
    /// Virtual time it took.
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
    if let Some(at) = first.writes.iter().zip(&second.writes).position(|(one, two)| one != two) {
        panic!("write {at} differs:\n{}\n{}", first.writes[at], second.writes[at]);
    }
    assert_eq!(first.writes.len(), second.writes.len());
}

#[test]
fn another_seed_is_another_history() {
    count_ran("one_thread::another_seed_is_another_history");
    assert_ne!(history(1, 2).writes, history(2, 2).writes);
}

#[test]
fn s_cli_09_while_only_machines_are_served_no_loop_begins() {
    count_ran("one_thread::s_cli_09_while_only_machines_are_served");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let clock: SharedClock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time")));
        let server = start_server(1, &clock);
        let client = server.client("tester", NAMESPACE);
        for definition in definitions(&CrdOptions::default()) {
            if definition["spec"]["names"]["plural"] == "machines" {
                post(&client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
            }
        }
        let machine = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": { "name": "lonely" },
            "spec": { "class": { "kind": "MachineClass", "name": "class" } },
        });
        post(&client, &format!("{MACHINE_PATH}/machines"), &machine).await;
        let reach = Reach::Clients {
            control: server.client("manager", NAMESPACE),
            target: Some(server.client("manager", NAMESPACE)),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let surroundings =
            Surroundings { reach, face: Face::Given(Box::new(drop)), clock, randomness: Randomness::Seeded(1) };
        let story = async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            drop(stop);
        };
        let running = run_in(settings(&["--leader-elect=false"]), surroundings, async { drop(stopped.await) });
        let (ended, ()) = tokio::join!(running, story);
        ended.expect("the manager waits and ends well");
        let left = list(&client, &format!("{MACHINE_PATH}/machines")).await;
        assert_eq!(left[0]["metadata"].get("finalizers"), None, "{left:?}");
        let about_machines = |line: &&String| line.contains(" machine.sapcloud.io/");
        assert_eq!(server.writes().iter().filter(about_machines).count(), 1, "somebody wrote to the machine");
    });
}

fn history(seed: u64, machines: u32) -> History {
    // Time alone is enabled: whoever opened a socket here would panic.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(tell(seed, machines))
}

async fn tell(seed: u64, machines: u32) -> History {
    let clock: SharedClock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time")));
    let server = start_server(seed, &clock);
    let client = server.client("tester", NAMESPACE);
    install(&client).await;
    let began = clock.now();
    let (stop, stopped) = oneshot::channel::<()>();
    let (give, given) = oneshot::channel::<Arc<dyn Reviewer>>();
    let surroundings = Surroundings {
        reach: Reach::Clients {
            control: server.client("manager", NAMESPACE),
            target: Some(server.client("manager", NAMESPACE)),
        },
        // Nobody waits for a reviewer but this test.
        face: Face::Given(Box::new(|reviewer| drop(give.send(reviewer)))),
        clock: Arc::clone(&clock),
        randomness: Randomness::Seeded(seed),
    };
    let story = async {
        answer_webhooks(&server, given.await.expect("the manager gives its reviewer"));
        create(&client, machines).await;
        eventually(&client, "machines", |found| {
            found.len() == machines as usize && found.iter().all(|machine| fleet::phase(machine) == "Running")
        })
        .await;
        delete(&client).await;
        for resource in ["machines", "machinesets", "machinedeployments"] {
            eventually(&client, resource, <[Value]>::is_empty).await;
        }
        let nodes = list(&client, "/api/v1/nodes").await;
        assert_eq!(nodes.len(), 0, "{nodes:?}");
        drop(stop);
    };
    let running = run_in(settings(&[]), surroundings, async { drop(stopped.await) });
    let (ended, ()) = tokio::join!(running, story);
    ended.expect("the manager ends well");
    let lasted = clock.now().duration_since(began);
    History { writes: server.writes(), lasted: lasted.unsigned_abs() }
}

pub fn start_server(seed: u64, clock: &SharedClock) -> DevServer {
    let clock = Arc::clone(clock);
    let now: Arc<dyn Fn() -> Timestamp + Send + Sync> = Arc::new(move || clock.now());
    DevServer::start(DevServerOptions { seed, clock: now, ..DevServerOptions::default() }).expect("memory is there")
}

/// As `mcm serve` would be told, with leader election unless a flag says otherwise; clusters and ports in it are not used.
pub fn settings(more: &[&str]) -> Settings {
    #[derive(Parser)]
    struct Serving {
        #[command(flatten)]
        args: ServeArgs,
    }
    let flags = ["serve", "--namespace=default", "--enable-simulation", "--kube-api-qps=1000", "--kube-api-burst=1000"];
    let flags = flags.iter().chain(more);
    let surroundings = validate::Surroundings { host_name: "one-thread".to_owned(), pod_namespace: None };
    Serving::parse_from(flags).args.validate(&surroundings).expect("the flags are right")
}

/// From now on webhooks are answered in this thread.
pub fn answer_webhooks(server: &DevServer, reviewer: Arc<dyn Reviewer>) {
    let handler: InProcess = Arc::new(move |path, body| match answer_at(&*reviewer, path, body) {
        Some(answer) => (answer.status, answer.body),
        None => (404, Vec::new()),
    });
    server.answer_webhooks(WEBHOOKS.trim_start_matches("https://"), handler);
}

/// Definitions and webhook configurations, as `mcm manifests` prints them.
pub async fn install(client: &kube::Client) {
    let options = CrdOptions { v1beta1: V1Beta1::Served(Converter::Url(WEBHOOKS.to_owned())), ..CrdOptions::default() };
    for definition in definitions(&options) {
        post(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    }
    let manifests = WebhookManifests {
        client: Client::Url(WEBHOOKS.to_owned()),
        controller_users: Vec::new(),
        ..WebhookManifests::in_namespace(NAMESPACE)
    };
    let base = "/apis/admissionregistration.k8s.io/v1";
    post(client, &format!("{base}/mutatingwebhookconfigurations"), &manifests.mutating()).await;
    post(client, &format!("{base}/validatingwebhookconfigurations"), &manifests.validating()).await;
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
    // The webhooks judge: this one is wrong.
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

/// Lets virtual time pass until a list is as it should be.
async fn eventually(client: &kube::Client, resource: &str, holds: impl Fn(&[Value]) -> bool) {
    let path = format!("{MACHINE_PATH}/{resource}");
    let waiting = async {
        while !holds(&list(client, &path).await) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        let left: Vec<String> = list(client, &path).await.iter().map(fleet::describe).collect();
        panic!("{resource} after {PATIENCE:?}:\n{}", left.join("\n"));
    }
}

pub async fn list(client: &kube::Client, path: &str) -> Vec<Value> {
    let answer = send(client, "GET", path, &Value::Null).await.expect("the list is answered");
    answer["items"].as_array().cloned().unwrap_or_default()
}

pub async fn post(client: &kube::Client, path: &str, object: &Value) {
    if let Err(error) = send(client, "POST", path, object).await {
        panic!("POST {path} {}: {error}", object["metadata"]["name"]);
    }
}

/// Asks, and answers what came back; a refusal as text.
pub async fn send(client: &kube::Client, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", if method == "PATCH" { MERGE } else { "application/json" });
    let answer = client.request_text(request.body(body).expect("a request")).await;
    answer.map(|text| serde_json::from_str(&text).expect("JSON")).map_err(|error| error.to_string())
}
