//! Bad weather raises the alerts that are listed beside it, and no other (spec/packaging PK-057).
//!
//! Each weather is real: processes of the manager, an API server, the virtual cloud. Only the clock of Prometheus is not: a scrape every
//! [`EVERY`] counts as one a minute, so that a delay of an hour passes in seconds. Whatever the manager itself measures keeps its
//! real length ([`super::scrapes`]), so that alerts about the age of a cache or the length of work can't fire here; `trials.rs` has these.

use std::{path::Path, sync::Arc, time::Duration};

use machine_controller_manager::observability::{AlertName, AlertOptions, Limit, Threshold, rule_file};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::json;

use super::{
    promtool::{self, Scene, promtool},
    scrapes::Scrapes,
    with_all,
};
use crate::{
    fleet, guard,
    metrics::value,
    support::{ManagerOptions, Rig, TestManager, backend::Backend, cluster_object::name, scratch, wait_until},
    weather::{TIMEOUT, Weather, node_of},
};

const EVERY: Duration = Duration::from_millis(250);
/// What [`EVERY`] counts as.
const MINUTE: Duration = Duration::from_secs(60);
/// Repetitions of the last scrape, in which the longest window of an alert passes.
const AFTERWARDS: u32 = 75;
/// Scrapes in which nothing happens yet.
const BEFORE: usize = 5;
const CLOUD: &str = "\
seed: 17
latency:
  create: {constant: 100ms}
  boot: {constant: 100ms}
  ready: {constant: 50ms}
  delete: {constant: 100ms}
  api: {constant: 5ms}
nodes: {reregister: 1h}
";

/// What a weather leaves.
struct Passed {
    what: &'static str,
    /// The alerts that it raises.
    raises: &'static [AlertName],
    replicas: f64,
    scrapes: Scrapes,
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_057_a_silent_api_server_raises_exactly_its_alerts() {
    judged("alerts::pk_057_a_silent_api_server", the_api_server_is_silent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_057_a_provider_that_refuses_raises_exactly_its_alerts() {
    judged("alerts::pk_057_a_provider_that_refuses", the_provider_refuses).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_057_a_budget_that_refuses_raises_exactly_its_alerts() {
    judged("alerts::pk_057_a_budget_that_refuses", a_budget_refuses).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_057_a_killed_leader_raises_exactly_its_alerts() {
    judged("alerts::pk_057_a_killed_leader", the_leader_is_killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_057_a_certificate_that_ends_raises_exactly_its_alerts() {
    judged("alerts::pk_057_a_certificate_that_ends", a_certificate_ends).await;
}

/// Lets a weather pass on the development server, and judges its scrapes.
async fn judged(test: &str, weather: impl AsyncFnOnce(Arc<Rig>) -> Passed) {
    let Some(promtool) = promtool(test) else { return };
    let Some(rig) = Rig::own_on(Backend::Dev, test).await else { return };
    rig.install_crds().await;
    judge(promtool, &weather(rig).await);
}

/// Exactly the listed alerts fire at some time, none of them before the weather, and none after it.
fn judge(promtool: &Path, passed: &Passed) {
    let Passed { what, raises, replicas, scrapes } = passed;
    let laid_out = scrapes.laid_out(scrapes.count(), MINUTE, AFTERWARDS);
    let limits = [(Threshold::Replicas, Limit::number(*replicas))].into();
    let rules = rule_file(&AlertOptions { limits, ..with_all() });
    let raised: Vec<String> = raises.iter().map(ToString::to_string).collect();
    let before = u64::try_from(BEFORE).expect("a few") - 1;
    let minutes = laid_out.end().as_secs() / MINUTE.as_secs();
    let ever = format!("group by (alertname) (max_over_time(ALERTS{{alertstate=\"firing\"}}[{minutes}m]))");
    let now = "group by (alertname) (ALERTS{alertstate=\"firing\"})";
    let scene = Scene::scraped(*what, &laid_out)
        .expect_names(now, before, &[])
        .expect_names(&ever, minutes, &raised)
        .expect_names(now, minutes, &[]);
    if let Err(said) = promtool::run(promtool, &rules, &[scene]) {
        panic!("{what}: {said}");
    }
}

/// Lets `acts` happen while the replicas are scraped.
async fn scraped(ports: &[u16], scrapes: &Scrapes, acts: impl Future<Output = ()>) {
    tokio::select! {
        () = acts => {}
        never = scrapes.take(ports, EVERY) => match never {},
    }
}

/// This many minutes of Prometheus pass.
async fn minutes(scrapes: &Scrapes, count: usize) {
    scrapes.further(count, TIMEOUT).await;
}

/// A weather of one replica with three healthy machines.
async fn three_machines(rig: Arc<Rig>, flags: &[&str]) -> Weather {
    let weather = Weather::with_cloud(rig, CLOUD, flags).await;
    weather.want(3).await;
    fleet::running_machines(&weather.namespace, 3, TIMEOUT).await;
    weather
}

/// The connections stay open, and nothing is answered.
async fn the_api_server_is_silent(rig: Arc<Rig>) -> Passed {
    let flags =
        ["--machine-safety-apiserver-statuscheck-timeout=2s", "--machine-safety-apiserver-statuscheck-period=2s"];
    let weather = three_machines(Arc::clone(&rig), &flags).await;
    let scrapes = Scrapes::default();
    let frozen = |scrape: &str| value(scrape, "mcm_machine_controller_frozen");
    scraped(&[weather.manager.http_port()], &scrapes, async {
        minutes(&scrapes, BEFORE).await;
        rig.suspend_api_server();
        scrapes.until("the loops to freeze", TIMEOUT, |scrape| frozen(scrape) == Some(1.0)).await;
        minutes(&scrapes, 15).await;
        rig.resume_api_server();
        scrapes.until("the loops to go on", TIMEOUT, |scrape| frozen(scrape) == Some(0.0)).await;
        minutes(&scrapes, 2).await;
    })
    .await;
    Passed { what: "the API server is silent", raises: &[AlertName::Frozen], replicas: 1.0, scrapes }
}

/// The provider refuses the credentials while a deployment grows, and people try other credentials.
async fn the_provider_refuses(rig: Arc<Rig>) -> Passed {
    let weather = three_machines(rig, &[]).await;
    let scrapes = Scrapes::default();
    scraped(&[weather.manager.http_port()], &scrapes, async {
        minutes(&scrapes, BEFORE).await;
        weather.cloud.fails(json!([{"op": "any", "effect": "auth-failure"}])).await;
        weather.want(5).await;
        let crashed = format!(r#"mcm_machines{{namespace="{}",phase="CrashLoopBackOff"}}"#, weather.namespace.name);
        scrapes.until("both machines to fail", TIMEOUT, |scrape| value(scrape, &crashed) == Some(2.0)).await;
        // A change of the Secret lets the machines be tried again at once.
        for attempt in 0..10 {
            let patch = json!({ "stringData": { "credentials": attempt.to_string() } }).to_string();
            weather.namespace.kubectl(&["patch", "secret", "fleet", "--type=merge", "-p", &patch]).await.succeed();
            minutes(&scrapes, 4).await;
        }
        weather.cloud.is_well().await;
        let patch = r#"{"stringData": {"credentials": "valid"}}"#;
        weather.namespace.kubectl(&["patch", "secret", "fleet", "--type=merge", "-p", patch]).await.succeed();
        fleet::running_machines(&weather.namespace, 5, TIMEOUT).await;
        minutes(&scrapes, 2).await;
    })
    .await;
    let raises = &[AlertName::ProviderCredentials, AlertName::MachineCrashLooping, AlertName::DeploymentShort];
    Passed { what: "the provider refuses the credentials", raises, replicas: 1.0, scrapes }
}

/// A disruption budget refuses the only eviction of a drain.
async fn a_budget_refuses(rig: Arc<Rig>) -> Passed {
    let weather = three_machines(rig, &[]).await;
    let here = &weather.namespace;
    let scrapes = Scrapes::default();
    let refused = |scrape: &str| value(scrape, r#"mcm_drain_pods{state="refused"}"#);
    scraped(&[weather.manager.http_port()], &scrapes, async {
        minutes(&scrapes, BEFORE).await;
        let machines = fleet::running_machines(here, 3, TIMEOUT).await;
        guard::a_pod_on(here, node_of(&machines[0])).await;
        here.kubectl(&["delete", "machine", name(&machines[0]), "--wait=false"]).await.succeed();
        scrapes.until("the refusal to show", TIMEOUT, |scrape| refused(scrape) == Some(1.0)).await;
        minutes(&scrapes, 65).await;
        here.kubectl(&["delete", "pod,poddisruptionbudget", guard::NAME, "--wait=false"]).await.succeed();
        scrapes.until("the drain to end", TIMEOUT, |scrape| refused(scrape) == Some(0.0)).await;
        fleet::running_machines(here, 3, TIMEOUT).await;
        minutes(&scrapes, 2).await;
    })
    .await;
    Passed { what: "a budget refuses", raises: &[AlertName::DrainRefused], replicas: 1.0, scrapes }
}

/// One of two replicas leads, is killed, and comes back after some time.
async fn the_leader_is_killed(rig: Arc<Rig>) -> Passed {
    const LEASES: [&str; 2] =
        [r#"mcm_leader{lease="machine-controller"}"#, r#"mcm_leader{lease="machine-controller-manager"}"#];
    let namespace = rig.namespace("killed").await;
    let flags = [
        "--leader-elect=true",
        "--leader-elect-lease-duration=5s",
        "--leader-elect-renew-deadline=3s",
        "--leader-elect-retry-period=1s",
    ];
    let start = async |replica: &str| {
        // Without a state of its own, a cloud would adopt the VMs of all simulated Nodes.
        let state = rig.folder.join(format!("{replica}.vms.json"));
        let mut flags = flags.map(str::to_owned).to_vec();
        flags.push(format!("--simulation-state=json:{}", state.display()));
        TestManager::start_as(replica, &rig, &namespace, &ManagerOptions { flags, ..ManagerOptions::default() }).await
    };
    let mut first = start("killed-first").await;
    let leads = |scrape: &str| LEASES.iter().all(|lease| value(scrape, lease) == Some(1.0));
    wait_until("the first replica to lead", TIMEOUT, || async {
        let scrape = first.http_get("/metrics").await;
        if leads(&scrape) { Ok(()) } else { Err(scrape) }
    })
    .await;
    let second = start("killed-second").await;
    let scrapes = Scrapes::default();
    scraped(&[first.http_port(), second.http_port()], &scrapes, async {
        minutes(&scrapes, BEFORE).await;
        first.kill();
        // The newest scrape is then one without the first replica.
        minutes(&scrapes, 2).await;
        scrapes.until("the second replica to lead", TIMEOUT, leads).await;
        minutes(&scrapes, 20).await;
        first.restart();
        first.wait_until_ready().await;
        minutes(&scrapes, 2).await;
    })
    .await;
    let raises = &[AlertName::NoLeader, AlertName::ReplicaMissing];
    Passed { what: "the leader is killed", raises, replicas: 2.0, scrapes }
}

/// A certificate in a file ends in five days, and is renewed late.
async fn a_certificate_ends(rig: Arc<Rig>) -> Passed {
    let folder = scratch::subfolder("ending");
    let file = |name: &str| folder.join(name).display().to_string();
    let write = |days: u64| {
        let key = KeyPair::generate().expect("a key pair");
        let mut ours = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let now = jiff::Timestamp::now().as_second().unsigned_abs();
        ours.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(now + days * 24 * 3600);
        let certificate = ours.self_signed(&key).expect("a certificate");
        std::fs::write(file("tls.key"), key.serialize_pem()).expect("writable");
        std::fs::write(file("tls.crt"), certificate.pem()).expect("writable");
    };
    write(5);
    let (certificate, key) =
        (format!("--tls-cert-file={}", file("tls.crt")), format!("--tls-private-key-file={}", file("tls.key")));
    let weather = Weather::with_cloud(rig, CLOUD, &["--cert-mode=files", &certificate, &key]).await;
    let scrapes = Scrapes::default();
    scraped(&[weather.manager.http_port()], &scrapes, async {
        minutes(&scrapes, 65).await;
        write(90);
        let ends = |scrape: &str| value(scrape, r#"mcm_certificate_expiry_seconds{name="serving"}"#);
        let later = jiff::Timestamp::now().as_duration().as_secs_f64() + 60.0 * 24.0 * 3600.0;
        let renewed = |scrape: &str| ends(scrape).is_some_and(|ends| ends > later);
        scrapes.until("the certificate to be reloaded", TIMEOUT, renewed).await;
        minutes(&scrapes, 2).await;
    })
    .await;
    Passed { what: "a certificate ends", raises: &[AlertName::CertificateExpiring], replicas: 1.0, scrapes }
}
