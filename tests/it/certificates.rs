//! Certificates of several replicas on a real API server: rotation under load, and an emptied `caBundle`.
//!
//! Short lifetimes replace years with seconds; the API server checks every certificate against the real clock. Cases P15 and P16 of
//! spec/api-and-admission §12.4.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use kube_listener::ConnectionLimits;
use machine_api::webhooks::Webhook;
use machine_controller_manager::server::{
    Answer, Health, Reply, Reviewer, Server, ServerOptions,
    tls::{CertMode, CertificateManager, CertificateSettings, Target, material::Certificate, plan::PlanSettings},
};
use mcm_metrics::Metrics;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{Namespace, Rig, wait::expect, wait_until};

const CONFIGURATION: &str = "rotating";
const REPLICAS: usize = 3;
/// Stand for one year and for ten years.
const SERVING_LIFETIME: SignedDuration = SignedDuration::from_secs(6);
const AUTHORITY_LIFETIME: SignedDuration = SignedDuration::from_secs(24);
const LOAD: Duration = Duration::from_secs(30);

/// A reviewer that allows every request.
struct AllowAll;

impl Reviewer for AllowAll {
    fn review(&self, webhook: Webhook, _: &dyn Fn() -> bool, body: &[u8]) -> Reply {
        if webhook == Webhook::Convert {
            return Answer { status: 404, body: Vec::new() }.into();
        }
        let review: Value = serde_json::from_slice(body).expect("the API server sends JSON");
        let response = json!({"uid": review["request"]["uid"], "allowed": true});
        let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        Answer { status: 200, body: answer.to_string().into_bytes() }.into()
    }
}

/// Starts one process that serves and maintains the shared Secret and the bundles. Returns its address and its metrics.
async fn replica(client: &Client, namespace: &Namespace, stop: &CancellationToken) -> (SocketAddr, Metrics) {
    let started = Instant::now();
    let metrics = Metrics::new(Arc::new(move || started.elapsed())).expect("metrics");
    let health = Health::default();
    let settings = PlanSettings {
        authority_lifetime: AUTHORITY_LIFETIME,
        serving_lifetime: SERVING_LIFETIME,
        publication_wait: SignedDuration::from_secs(1),
        retirement_wait: SignedDuration::from_secs(2),
        ..PlanSettings::for_names(["127.0.0.1".to_owned()].into())
    };
    let mode = CertMode::SelfManaged {
        namespace: namespace.name.clone(),
        name: "certs".to_owned(),
        settings,
        targets: Target::all(CONFIGURATION, None),
    };
    // The second byte decides how long a replica waits before it rotates. With these lifetimes the wait must be short.
    let entropy = || {
        let mut random: [u8; 16] = rand::random();
        random[1] %= 8;
        random
    };
    let settings =
        CertificateSettings { mode, sni: Vec::new(), clock: Arc::new(Timestamp::now), entropy: Arc::new(entropy) };
    let certificates = CertificateManager::new(Some(client.clone()), settings, &metrics, &health).expect("settings");
    let options = ServerOptions {
        secure: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        plain: Vec::new(),
        connections: ConnectionLimits { max_age: Duration::from_millis(500), ..ConnectionLimits::default() },
        ..ServerOptions::default()
    };
    let server = Server::bind(options, &certificates.handle(), &health, &metrics).await.expect("a free port");
    let address = server.secure_address().expect("a TLS listener");
    tokio::spawn(certificates.run(stop.clone()));
    tokio::spawn(server.run(Arc::new(AllowAll), stop.clone()));
    (address, metrics)
}

/// The API server asks every replica about every new `ConfigMap` of the namespace. A request passes only when all replicas allow it.
fn configuration(namespace: &Namespace, replicas: &[SocketAddr]) -> String {
    let entry = |(number, address): (usize, &SocketAddr)| {
        json!({
            "name": format!("replica-{number}.example.com"),
            "clientConfig": {"url": format!("https://{address}/validate")},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        })
    };
    let entries: Vec<Value> = replicas.iter().enumerate().map(entry).collect();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION}, "webhooks": entries,
    })
    .to_string()
}

async fn ask(client: &Client, namespace: &Namespace) -> Result<(), String> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace.name);
    let map = ConfigMap {
        metadata: ObjectMeta { generate_name: Some("asked-".to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    let params = PostParams { dry_run: true, ..PostParams::default() };
    api.create(&params, &map).await.map(|_| ()).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn p15_ca_and_certificate_rotate_under_load_without_a_failed_call() {
    let Some(rig) = Rig::own("certificates::p15_rotation_under_load").await else { return };
    let client = rig.client().await;
    let namespace = rig.namespace("rotation").await;
    let stop = CancellationToken::new();
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(replica(&client, &namespace, &stop).await);
    }
    let addresses: Vec<SocketAddr> = replicas.iter().map(|(address, _)| *address).collect();
    rig.apply(&configuration(&namespace, &addresses)).await.succeed();
    wait_until("all replicas to be trusted", Duration::from_secs(30), || ask(&client, &namespace)).await;

    let (asked, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (client, namespace) = (client.clone(), namespace.clone());
            let (asked, over) = (Arc::clone(&asked), Arc::clone(&over));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    ask(&client, &namespace).await?;
                    asked.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok::<(), String>(())
            })
        })
        .collect();

    let (leaves, authorities, writes) = watch_rotation(&client, &namespace).await;
    over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("no panic").expect("no call fails during rotation");
    }
    assert!(asked.load(Ordering::Relaxed) > 200, "{} calls", asked.load(Ordering::Relaxed));
    assert!(leaves >= 5, "{leaves} serving certificates");
    assert!(authorities >= 2, "{authorities} authorities");
    // Each step is written once, even when several replicas find it due.
    assert!(writes <= 4 * leaves + 4, "{writes} writes of the Secret for {leaves} serving certificates");
    for (_, metrics) in &replicas {
        let text = metrics.render().expect("text");
        for name in ["serving", "ca"] {
            let line = format!("mcm_certificate_expiry_seconds{{name=\"{name}\"}} ");
            let value = text.lines().find_map(|found| found.strip_prefix(&line)?.parse::<f64>().ok()).expect("a value");
            #[allow(clippy::cast_precision_loss)]
            let left = value - Timestamp::now().as_second() as f64;
            assert!((0.0..30.0).contains(&left), "{name} ends in {left} s");
        }
    }

    p16_an_emptied_bundle_is_refilled_within_five_seconds(&rig, &client, &namespace).await;
    stop.cancel();
}

/// Reads the Secret repeatedly and returns the number of distinct serving certificates, authorities and writes.
async fn watch_rotation(client: &Client, namespace: &Namespace) -> (usize, usize, usize) {
    let api: Api<Secret> = Api::namespaced(client.clone(), &namespace.name);
    let (mut leaves, mut authorities, mut writes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let end = Instant::now() + LOAD;
    while Instant::now() < end {
        let secret = api.get("certs").await.expect("the Secret");
        let data = secret.data.expect("data");
        let read = |key: &str| Certificate::read_all(&data[key].0, key).expect("certificates");
        leaves.extend(read("tls.crt").first().map(|leaf| leaf.der().to_vec()));
        authorities.extend(read("ca.crt").iter().map(|authority| authority.der().to_vec()));
        assert!(read("ca.crt").len() <= 4);
        writes.extend(secret.metadata.resource_version);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (leaves.len(), authorities.len(), writes.len())
}

async fn p16_an_emptied_bundle_is_refilled_within_five_seconds(rig: &Rig, client: &Client, namespace: &Namespace) {
    let empty = r#"[{"op":"replace","path":"/webhooks/0/clientConfig/caBundle","value":""},
        {"op":"remove","path":"/webhooks/1/clientConfig/caBundle"}]"#;
    rig.kubectl(&["patch", "validatingwebhookconfiguration", CONFIGURATION, "--type=json", "-p", empty])
        .await
        .succeed();
    wait_until("the bundles to be filled", Duration::from_secs(5), || async {
        let object = rig.get("validatingwebhookconfiguration", CONFIGURATION).await;
        let bundles: Vec<usize> = (0..REPLICAS)
            .map(|entry| object["webhooks"][entry]["clientConfig"]["caBundle"].as_str().unwrap_or("").len())
            .collect();
        expect(bundles.iter().all(|length| *length > 0), || format!("{bundles:?}"))
    })
    .await;
    wait_until("calls to succeed again", Duration::from_secs(5), || ask(client, namespace)).await;
}
