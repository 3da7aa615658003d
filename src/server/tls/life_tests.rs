//! The loops of the self-managed mode against an API server in memory: replicas, faults, drift, rotation.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::Method;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    authority::CertSecret,
    fake_api::{FakeApi, SECRET, VALIDATING},
    plan::{CertPlan, carry_out},
    *,
};
use crate::server::Readiness;

/// One process.
struct Replica {
    handle: CertificateHandle,
    health: Health,
    metrics: Metrics,
    running: JoinHandle<()>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn names() -> std::collections::BTreeSet<String> {
    ["mcm.ns.svc".to_owned()].into()
}

/// A replica without waits: no wait after a publication, none before an old authority goes, no jitter.
fn replica(api: &FakeApi) -> Replica {
    replica_with_secret(api, "certs")
}

fn replica_with_secret(api: &FakeApi, secret: &str) -> Replica {
    replica_with_clock(api, secret, Arc::new(Timestamp::now), Arc::new(|| SignedDuration::ZERO))
}

/// A replica whose clock is this one and differs so much from the API server's.
fn replica_with_clock(api: &FakeApi, secret: &str, clock: WallClock, offset: ClockOffset) -> Replica {
    let settings = PlanSettings {
        publication_wait: jiff::SignedDuration::ZERO,
        retirement_wait: jiff::SignedDuration::ZERO,
        ..PlanSettings::for_names(names())
    };
    let mode = CertMode::SelfManaged {
        namespace: "ns".to_owned(),
        name: secret.to_owned(),
        settings,
        targets: Target::all("mcm", None),
    };
    let serial = std::sync::atomic::AtomicU8::new(1);
    let entropy = move || {
        // The second byte decides on waits.
        let mut random = [serial.fetch_add(1, std::sync::atomic::Ordering::SeqCst); 16];
        random[1] = 0;
        random
    };
    let settings = CertificateSettings { mode, sni: Vec::new(), clock, entropy: Arc::new(entropy) };
    let (health, started) = (Health::default(), tokio::time::Instant::now());
    let metrics = Metrics::new(Arc::new(move || started.elapsed())).unwrap();
    let manager = CertificateManager::new(Some(api.client()), settings, &metrics, &health).unwrap();
    let manager = manager.comparing_clocks(offset);
    let handle = manager.handle();
    Replica { handle, health, metrics, running: tokio::spawn(manager.run(CancellationToken::new())) }
}

fn stored(api: &FakeApi) -> Option<CertSecret> {
    let secret: Secret = serde_json::from_value(api.get(SECRET)?).unwrap();
    CertSecret::from_data(&secret.data?).ok()
}

fn webhooks() -> Value {
    let hook = |name: &str| json!({ "name": name, "clientConfig": { "url": "https://mcm" }, "timeoutSeconds": 5 });
    json!({ "metadata": { "name": "mcm" }, "webhooks": [hook("one"), hook("two")] })
}

/// The bundles in the entries of the validating webhooks, decoded.
fn bundles(api: &FakeApi) -> Vec<String> {
    let object = api.get(VALIDATING).unwrap_or_default();
    let entries = object["webhooks"].as_array().cloned().unwrap_or_default();
    let bundle = |entry: &Value| BASE64_STANDARD.decode(entry["clientConfig"]["caBundle"].as_str().unwrap_or_default());
    entries.iter().map(|entry| String::from_utf8(bundle(entry).unwrap()).unwrap()).collect()
}

/// Waits until a condition on the API server holds.
async fn until(api: &FakeApi, holds: impl Fn() -> bool) {
    let mut changes = api.changes();
    let waiting = async {
        while !holds() {
            // What a replica does after its last write is seen by nobody but itself.
            let _ = tokio::time::timeout(Duration::from_millis(20), changes.changed()).await;
        }
    };
    let happened = tokio::time::timeout(Duration::from_secs(300), waiting).await;
    assert!(
        happened.is_ok(),
        "it should have happened by now; writes: {:?}; bundles: {:?}",
        api.writes(),
        bundles(api)
    );
}

fn all_hold_the_stored_bundle(api: &FakeApi) -> bool {
    stored(api).is_some_and(|content| bundles(api) == [content.bundle_pem(), content.bundle_pem()])
}

#[tokio::test(start_paused = true)]
async fn replicas_that_start_together_agree_on_one_certificate() {
    let api = FakeApi::new();
    api.put(VALIDATING, webhooks());
    let replicas = [replica(&api), replica(&api), replica(&api)];
    let ready = || replicas.iter().all(|replica| replica.health.readiness() == Readiness::Ready);
    until(&api, || ready() && all_hold_the_stored_bundle(&api)).await;
    let leaf = stored(&api).unwrap().serving.leaf().der().clone();
    for replica in &replicas {
        assert_eq!(replica.handle.serving.current().unwrap().cert[0], leaf);
        assert_eq!(&*replica.handle.ca_bundle().unwrap(), stored(&api).unwrap().bundle_pem());
    }
    assert_eq!(api.writes().iter().filter(|write| write.ends_with(SECRET)).count(), 1, "{:?}", api.writes());
    assert_eq!(api.get(VALIDATING).unwrap()["webhooks"][1]["timeoutSeconds"], 5, "nothing else was touched");
}

const EIGHT_HOURS: SignedDuration = SignedDuration::from_hours(8);

fn is_valid_now(api: &FakeApi) -> bool {
    stored(api).is_some_and(|content| {
        let (leaf, now) = (content.serving.leaf(), Timestamp::now());
        leaf.not_before <= now && now < leaf.not_after
    })
}

#[tokio::test(start_paused = true)]
async fn what_a_replica_with_a_clock_ahead_has_left_is_made_anew() {
    let api = FakeApi::new();
    api.put(VALIDATING, webhooks());
    let settings = PlanSettings::for_names(names());
    let ahead = Timestamp::now() + EIGHT_HOURS;
    let left = carry_out(&CertPlan::Create, None, ahead, &settings, || [7; 16]).unwrap().unwrap();
    let secret = Secret { data: Some(left.to_data()), ..Secret::default() };
    let mut secret = serde_json::to_value(secret).unwrap();
    secret["metadata"] = json!({ "name": "certs", "namespace": "ns" });
    api.put(SECRET, secret);
    assert!(stored(&api).is_some() && !is_valid_now(&api));
    let replica = replica(&api);
    until(&api, || is_valid_now(&api) && all_hold_the_stored_bundle(&api)).await;
    until(&api, || replica.health.readiness() == Readiness::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_clock_differs_from_the_api_servers_makes_no_certificate() {
    let api = FakeApi::new();
    api.put(VALIDATING, webhooks());
    let late = replica_with_clock(&api, "certs", Arc::new(Timestamp::now), Arc::new(|| -EIGHT_HOURS));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(stored(&api).is_none());
    let why = late.health.failure_of("certificate").unwrap();
    assert!(why.contains("8h apart"), "{why}");
    let replica = replica(&api);
    until(&api, || [&replica, &late].iter().all(|one| one.health.readiness() == Readiness::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_a_step_of_the_clock_has_ended_is_renewed_at_once() {
    let api = FakeApi::new();
    api.put(VALIDATING, webhooks());
    let years = Arc::new(std::sync::atomic::AtomicI64::new(7));
    let behind = Arc::clone(&years);
    let clock =
        move || Timestamp::now() - SignedDuration::from_hours(8766 * behind.load(std::sync::atomic::Ordering::SeqCst));
    let replica = replica_with_clock(&api, "certs", Arc::new(clock), Arc::new(|| SignedDuration::ZERO));
    until(&api, || replica.health.readiness() == Readiness::Ready && all_hold_the_stored_bundle(&api)).await;
    assert!(!is_valid_now(&api));
    years.store(0, std::sync::atomic::Ordering::SeqCst);
    let stepped = tokio::time::Instant::now();
    until(&api, || is_valid_now(&api) && all_hold_the_stored_bundle(&api)).await;
    until(&api, || replica.health.readiness() == Readiness::Ready).await;
    assert!(stepped.elapsed() < Duration::from_secs(60), "{:?}", stepped.elapsed());
}

#[tokio::test(start_paused = true)]
async fn bundles_that_are_emptied_or_appear_later_are_filled() {
    let api = FakeApi::new();
    let replica = replica(&api);
    until(&api, || replica.health.readiness() == Readiness::Ready).await;
    api.put(VALIDATING, webhooks());
    until(&api, || all_hold_the_stored_bundle(&api)).await;
    api.change(VALIDATING, |object| object["webhooks"][0]["clientConfig"]["caBundle"] = json!(""));
    until(&api, || all_hold_the_stored_bundle(&api)).await;
    assert_eq!(replica.health.readiness(), Readiness::Ready);
}

#[tokio::test(start_paused = true)]
async fn the_certificate_is_valid_for_the_urls_that_webhooks_name() {
    let api = FakeApi::new();
    let replicas = [replica(&api), replica(&api)];
    until(&api, || replicas.iter().all(|replica| replica.health.readiness() == Readiness::Ready)).await;
    let mut object = webhooks();
    object["webhooks"][0]["clientConfig"]["url"] = json!("https://127.0.0.1:9443/validate");
    api.put(VALIDATING, object);
    let wanted = ["127.0.0.1", "mcm", "mcm.ns.svc"].map(str::to_owned);
    until(&api, || stored(&api).is_some_and(|content| content.serving.leaf().names == wanted.clone().into())).await;
    let leaf = stored(&api).unwrap().serving.leaf().der().clone();
    until(&api, || replicas.iter().all(|r| r.handle.serving.current().is_some_and(|now| now.cert[0] == leaf))).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_owner_opted_out_is_left_alone() {
    let api = FakeApi::new();
    let mut object = webhooks();
    object["metadata"]["annotations"] = json!({ "admission.machine.sapcloud.io/inject-ca": "false" });
    api.put(VALIDATING, object);
    let replica = replica(&api);
    until(&api, || replica.health.readiness() == Readiness::Ready).await;
    assert_eq!(bundles(&api), ["", ""]);
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_lost_or_spoilt_is_put_back_as_it_was() {
    let api = FakeApi::new();
    let _replica = replica(&api);
    until(&api, || stored(&api).is_some()).await;
    let content = stored(&api);
    api.delete(SECRET);
    until(&api, || stored(&api).is_some()).await;
    assert_eq!(stored(&api), content);
    api.change(SECRET, |secret| secret["data"]["tls.key"] = json!("aGVsbG8="));
    until(&api, || stored(&api).is_some()).await;
    assert_eq!(stored(&api), content);
    api.change(SECRET, |secret| secret["data"]["mine"] = json!("aGVsbG8="));
    api.change(SECRET, |secret| secret["data"]["ca.crt"] = json!(""));
    until(&api, || stored(&api).is_some()).await;
    assert_eq!(api.get(SECRET).unwrap()["data"]["mine"], "aGVsbG8=", "foreign keys stay");
}

#[tokio::test(start_paused = true)]
async fn a_new_authority_signs_only_after_every_bundle_holds_it() {
    let api = FakeApi::new();
    api.put(VALIDATING, webhooks());
    let _replicas = [replica(&api), replica(&api)];
    until(&api, || all_hold_the_stored_bundle(&api)).await;
    let old = stored(&api).unwrap();
    let before = api.writes().len();
    // Without its key the authority needs a successor.
    api.change(SECRET, |secret| secret["data"]["ca.key"] = json!(""));
    let rotated = || {
        stored(&api).is_some_and(|content| {
            content.authorities.len() == 1 && content.authorities[0].certificate != old.authorities[0].certificate
        })
    };
    let mut trusted = vec![old.bundle_pem()];
    let mut changes = api.changes();
    let watching = async {
        while !(rotated() && all_hold_the_stored_bundle(&api)) {
            let _ = tokio::time::timeout(Duration::from_millis(20), changes.changed()).await;
            trusted.extend(bundles(&api).into_iter().take(1));
            let serving = stored(&api).unwrap().serving;
            let authorities = material::Certificate::read_all(trusted.last().unwrap().as_bytes(), "bundle").unwrap();
            assert!(
                authorities.iter().any(|authority| serving.leaf().is_signed_by(authority)),
                "callers would not trust it"
            );
        }
    };
    tokio::time::timeout(Duration::from_secs(300), watching).await.expect("the rotation should be over by now");
    let writes = api.writes().split_off(before);
    let of_secret = writes.iter().filter(|write| write.ends_with(SECRET)).count();
    assert_eq!(of_secret, 3, "add, sign, drop: {writes:?}");
    assert_eq!(writes.first().map(String::as_str), Some("PUT /api/v1/namespaces/ns/secrets/certs"));
    assert_eq!(
        writes.get(1).map(String::as_str),
        Some("PATCH /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/mcm")
    );
}

/// Two managers that share the webhook configuration but not the Secret.
#[tokio::test(start_paused = true)]
async fn rivals_become_calm_and_say_so() {
    let api = FakeApi::new();
    api.put(VALIDATING, webhooks());
    let replicas = [replica(&api), replica_with_secret(&api, "other")];
    until(&api, || replicas.iter().all(|replica| replica.handle.is_loaded())).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let patches = api.writes().iter().filter(|write| write.starts_with("PATCH")).count();
    assert!((6..=50).contains(&patches), "{patches} repairs in an hour");
    for replica in &replicas {
        let metrics = replica.metrics.render().unwrap();
        assert!(!metrics.contains("mcm_certificate_ca_bundle_contests_total 0"), "{metrics}");
    }
    let misses =
        |replica: &Replica| replica.metrics.render().unwrap().contains("\nmcm_certificate_ca_bundles_drifted 1\n");
    until(&api, || replicas.iter().any(misses)).await;
    // An emptied bundle helps nobody and is filled at once all the same.
    api.change(VALIDATING, |object| object["webhooks"][0]["clientConfig"]["caBundle"] = json!(""));
    let emptied = tokio::time::Instant::now();
    until(&api, || bundles(&api).iter().all(|bundle| !bundle.is_empty())).await;
    assert!(emptied.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn faults_are_outlived() {
    let api = FakeApi::new();
    api.put(VALIDATING, webhooks());
    api.fail_next(Method::POST, "/secrets", 500);
    api.fail_next(Method::POST, "/secrets", 409);
    api.fail_next(Method::GET, "/secrets", 503);
    for _ in 0..3 {
        api.fail_next(Method::GET, "/secrets/certs", 500);
    }
    api.fail_next(Method::PATCH, "/mcm", 500);
    api.fail_next(Method::PATCH, "/mcm", 409);
    let replica = replica(&api);
    until(&api, || all_hold_the_stored_bundle(&api) && replica.health.readiness() == Readiness::Ready).await;
}

/// The certificate lacks a name, and the API server refuses each write of the Secret.
#[tokio::test(start_paused = true)]
async fn refused_writes_of_the_secret_are_repeated_with_growing_pauses() {
    let api = FakeApi::new();
    api.put(VALIDATING, webhooks());
    let _replica = replica(&api);
    until(&api, || all_hold_the_stored_bundle(&api)).await;
    (0..1000).for_each(|_| api.fail_next(Method::PUT, "/secrets/certs", 500));
    api.change(VALIDATING, |object| {
        object["webhooks"][0]["clientConfig"]["url"] = json!("https://127.0.0.1:9443/validate");
    });
    tokio::time::sleep(Duration::from_secs(600)).await;
    let writes = 1000 - api.faults_left();
    assert!((20..=40).contains(&writes), "{writes}");
}

#[tokio::test(start_paused = true)]
async fn what_is_forbidden_is_passed_over() {
    let api = FakeApi::new();
    api.put(VALIDATING, webhooks());
    api.forbid("webhookconfigurations");
    let replica = replica(&api);
    until(&api, || replica.health.readiness() == Readiness::Ready).await;
    assert_eq!(bundles(&api), ["", ""]);
}

/// Gardener grants no rights on registrations that it does not make.
#[tokio::test(start_paused = true)]
async fn what_stays_forbidden_is_hardly_asked_for() {
    let api = FakeApi::new();
    api.forbid("webhookconfigurations");
    let replica = replica(&api);
    until(&api, || replica.health.readiness() == Readiness::Ready).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let in_the_first_hour = api.refused();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let later = api.refused() - in_the_first_hour;
    assert!((2..=14).contains(&later), "two objects, every ten minutes: {later}");
    assert!(in_the_first_hour < 40, "{in_the_first_hour}");
}

#[tokio::test(start_paused = true)]
async fn without_rights_on_the_secret_the_replica_says_so_and_is_not_ready() {
    let api = FakeApi::new();
    api.forbid("secrets");
    let replica = replica(&api);
    until(&api, || replica.health.report().contains("Secret ns/certs cannot be read: forbidden: not for you")).await;
    assert_eq!(replica.health.readiness(), Readiness::NotReady);
}
