//! Scrapes of a manager while README's example is applied, scaled and rolled, and then while a drain, the provider and a manifest fail.

use std::time::Duration;

use serde_json::json;
use tokio::sync::OnceCell;

use crate::{
    alerts::scrapes::Scrapes,
    fleet, guard,
    metrics::value,
    support::{Rig, backend::Backend, cluster_object::name, manager::request, wait_until},
    weather::{TIMEOUT, Weather, node_of},
};

/// The deployment of README's example.
pub const DEPLOYMENT: &str = "example-deployment";
/// README's example.
const EXAMPLE: [&str; 2] = [
    include_str!("../../../deploy/examples/machineclass-virtual.yaml"),
    include_str!("../../../deploy/examples/machinedeployment.yaml"),
];
const EVERY: Duration = Duration::from_millis(500);
/// Durations below a second are not reported for single deployments.
const CLOUD: &str = "\
seed: 13
latency:
  create: {constant: 1100ms}
  boot: {constant: 1s}
  ready: {constant: 100ms}
  delete: {constant: 1100ms}
  api: {constant: 5ms}
nodes: {reregister: 1h}
";

/// What the scenario leaves.
pub struct Taken {
    pub scrapes: Scrapes,
    /// The number of scrapes at the end of the example, before anything fails.
    pub example: usize,
    /// The namespace of the machines.
    pub namespace: String,
}

/// The scrapes. The scenario runs once for all tests. `None` without the programs; then the test prints that it is skipped.
pub async fn taken(test: &str) -> Option<&'static Taken> {
    static TAKEN: OnceCell<Option<Taken>> = OnceCell::const_new();
    TAKEN.get_or_init(|| play(test)).await.as_ref()
}

async fn play(test: &str) -> Option<Taken> {
    let rig = Rig::own_on(Backend::Dev, test).await?;
    rig.install_crds().await;
    let weather = Weather::with_cloud(rig, CLOUD, &[]).await;
    let scrapes = Scrapes::default();
    let ports = [weather.manager.http_port()];
    let example = tokio::select! {
        example = acts(&weather, &scrapes) => example,
        never = scrapes.take(&ports, EVERY) => match never {},
    };
    Some(Taken { scrapes, example, namespace: weather.namespace.name.clone() })
}

/// Everything that happens; returns the number of scrapes after the example.
async fn acts(weather: &Weather, scrapes: &Scrapes) -> usize {
    // The scrapes begin before the first review.
    weather.manager.register_webhooks(&weather.rig, &weather.namespace).await;
    example(weather, scrapes).await;
    let taken = scrapes.count();
    a_budget_refuses(weather, scrapes).await;
    the_provider_fails(weather, scrapes).await;
    a_manifest_is_refused(weather, scrapes).await;
    // A window needs two samples of a series that has just begun.
    scrapes.further(2, TIMEOUT).await;
    taken
}

/// README's example is applied, scaled and rolled.
async fn example(weather: &Weather, scrapes: &Scrapes) {
    let here = &weather.namespace;
    let moved = format!("namespace: {}", here.name);
    here.apply(&EXAMPLE.map(|text| text.replace("namespace: default", &moved)).join("---\n")).await.succeed();
    fleet::running_machines(here, 3, TIMEOUT).await;
    here.kubectl(&["scale", "machinedeployment", DEPLOYMENT, "--replicas=5"]).await.succeed();
    fleet::running_machines(here, 5, TIMEOUT).await;
    let roll = r#"{"spec": {"template": {"metadata": {"labels": {"round": "2"}}}}}"#;
    here.kubectl(&["patch", "machinedeployment", DEPLOYMENT, "--type=merge", "-p", roll]).await.succeed();
    wait_until("the rollout to end", TIMEOUT, || async {
        fleet::rolled_out(&here.get("machinedeployment", DEPLOYMENT).await, 5)
    })
    .await;
    fleet::running_machines(here, 5, TIMEOUT).await;
    scrapes.further(2, TIMEOUT).await;
}

async fn a_budget_refuses(weather: &Weather, scrapes: &Scrapes) {
    let here = &weather.namespace;
    let machines = fleet::running_machines(here, 5, TIMEOUT).await;
    guard::a_pod_on(here, node_of(&machines[0])).await;
    here.kubectl(&["delete", "machine", name(&machines[0]), "--wait=false"]).await.succeed();
    let refused = |scrape: &str| value(scrape, r#"mcm_drain_pods{state="refused"}"#) == Some(1.0);
    scrapes.until("a refused eviction to show", TIMEOUT, refused).await;
}

async fn the_provider_fails(weather: &Weather, scrapes: &Scrapes) {
    weather.cloud.fails(json!([{"op": "create", "code": "ResourceExhausted", "message": "no capacity"}])).await;
    let more = ["scale", "machinedeployment", DEPLOYMENT, "--replicas=6"];
    weather.namespace.kubectl(&more).await.succeed();
    let failed =
        r#"mcm_cloud_api_driver_requests_failed_total{error_code="8",operation="create_machine",provider="virtual"}"#;
    scrapes.until("a failed creation to show", TIMEOUT, |scrape| value(scrape, failed).is_some()).await;
}

async fn a_manifest_is_refused(weather: &Weather, scrapes: &Scrapes) {
    let patch = r#"{"spec": {"replicas": 5, "selector": null}}"#;
    let refused = ["patch", "machinedeployment", DEPLOYMENT, "--type=merge", "-p", patch];
    let refused = weather.namespace.kubectl(&refused).await;
    assert!(!refused.succeeded() && refused.stderr.contains("spec.selector: Required value"), "{}", refused.stderr);
    // The port of the webhooks expects TLS.
    let _ = request(weather.manager.secure_port, "GET", "/", "").await;
    let shows = |scrape: &str| {
        let has = |beginning: &str| scrape.lines().any(|line| line.starts_with(beginning));
        has("mcm_admission_requests_total{allowed=\"false\"")
            && has("mcm_admission_rule_total{")
            && has("mcm_server_rejected_total{listener=\"secure\",reason=\"handshake\"")
    };
    scrapes.until("refusals to show", TIMEOUT, shows).await;
}
