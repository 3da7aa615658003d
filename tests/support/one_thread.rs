//! Helpers for tests that run API server, managers and virtual cloud in one thread on paused time, without sockets.

use std::{future::Future, sync::Arc};

use clap::Parser;
use controller_runtime::clock::{SharedClock, TokioClock};
use http::Request;
use jiff::Timestamp;
use kube_dev_server::{DevServer, DevServerOptions, InProcess};
use machine_api::{
    admission::manifests::WebhookManifests,
    crd::{CrdOptions, V1Beta1, definitions},
    webhooks::Client,
};
use machine_controller_manager::{
    DriverSet,
    cli::serve::{args::ServeArgs, validate},
    manager::{ClusterAccess, Endpoints, Environment, Randomness},
    server::{Reviewer, answer_at},
    settings::Settings,
};
use serde_json::Value;

/// The namespace of all objects.
pub const NAMESPACE: &str = "default";
/// The URL of the webhooks. No server listens there.
pub const WEBHOOKS: &str = "https://webhooks.example.com:443";
/// The path of the objects of our kinds.
pub const MACHINE_PATH: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default";
/// The content type of patches.
const MERGE: &str = "application/merge-patch+json";

/// Runs a story on paused time. The runtime has timers only, so that opening a socket would panic.
pub fn play<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(story)
}

/// A cluster in one thread: its API server, its clock, and the client of the test.
#[derive(Clone)]
pub struct Stage {
    pub server: Arc<DevServer>,
    /// The client of the test. It gets only true answers.
    pub client: kube::Client,
    pub clock: SharedClock,
}

impl Stage {
    /// A cluster without definitions or managers. Its clock begins at the start of a year. The same seed gives the same
    /// history.
    pub fn new(seed: u64) -> Self {
        let clock: SharedClock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time")));
        let read = Arc::clone(&clock);
        let now: Arc<dyn Fn() -> Timestamp + Send + Sync> = Arc::new(move || read.now());
        let options = DevServerOptions { seed, clock: now, ..DevServerOptions::default() };
        let server = Arc::new(DevServer::start(options).expect("memory is there"));
        let client = server.client("tester", NAMESPACE);
        Self { server, client, clock }
    }

    /// The client of a manager.
    pub fn managers_client(&self) -> kube::Client {
        self.server.client("manager", NAMESPACE)
    }

    /// The environment of a manager with one client for both clusters.
    pub fn environment(&self, client: &kube::Client, endpoints: Endpoints, seed: u64) -> Environment {
        Environment {
            cluster_access: ClusterAccess::Clients { control: client.clone(), target: Some(client.clone()) },
            endpoints,
            clock: Arc::clone(&self.clock),
            randomness: Randomness::Seeded(seed),
            drivers: DriverSet::built_in(),
        }
    }
}

/// The settings of `mcm serve` with these flags. Clusters and ports in them are not used.
pub fn settings(more: &[&str]) -> Settings {
    #[derive(Parser)]
    struct Serving {
        #[command(flatten)]
        args: ServeArgs,
    }
    let flags = ["serve", "--namespace=default", "--enable-simulation", "--kube-api-qps=1000", "--kube-api-burst=1000"];
    let flags = flags.iter().chain(more);
    let host = validate::HostInfo { host_name: "one-thread".to_owned(), pod_namespace: None };
    Serving::parse_from(flags).args.validate(&host).expect("the flags are right")
}

/// Lets the reviewer answer requests to webhooks in this thread.
pub fn answer_webhooks(server: &DevServer, reviewer: Arc<dyn Reviewer>) {
    let handler: InProcess = Arc::new(move |path, body| match answer_at(&*reviewer, path, body) {
        Some(answer) => (answer.status, answer.body),
        None => (404, Vec::new()),
    });
    server.answer_webhooks(WEBHOOKS.trim_start_matches("https://"), handler);
}

/// Installs the definitions and webhook configurations of `mcm manifests`.
pub async fn install(client: &kube::Client) {
    let options = CrdOptions { v1beta1: V1Beta1::Served(Client::Url(WEBHOOKS.to_owned())), ..CrdOptions::default() };
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

/// The objects of a list.
pub async fn list(client: &kube::Client, path: &str) -> Vec<Value> {
    let answer = send(client, "GET", path, &Value::Null).await.expect("the list is answered");
    answer["items"].as_array().cloned().unwrap_or_default()
}

/// Creates an object.
pub async fn post(client: &kube::Client, path: &str, object: &Value) {
    if let Err(error) = send(client, "POST", path, object).await {
        panic!("POST {path} {}: {error}", object["metadata"]["name"]);
    }
}

/// Sends a request. Returns the answer, or an error as text.
pub async fn send(client: &kube::Client, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", if method == "PATCH" { MERGE } else { "application/json" });
    let answer = client.request_text(request.body(body).expect("a request")).await;
    answer.map(|text| serde_json::from_str(&text).expect("JSON")).map_err(|error| error.to_string())
}

/// Revision, path and object of a line of the journal. The object is `deleted` after a deletion.
pub fn line(written: &str) -> Option<(u64, &str, &str)> {
    let mut parts = written.splitn(3, ' ');
    Some((parts.next()?.parse().ok()?, parts.next()?, parts.next()?))
}
