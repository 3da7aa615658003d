//! The log of a manager: how much a machine says, in which form, and that no secret is in it, nor anywhere else.

use std::{collections::BTreeSet, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    fleet,
    support::{
        ManagerOptions, Namespace, Rig, TestManager, cluster_object::text, collector::Collector, manager::SWIFT_CLOUD,
        wait::expect, wait_until,
    },
};
use machine_controller_manager::cli::logging::fields::schema;

/// The longest time for a machine to run or to go.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The most lines about a machine at verbosity 0.
const MOST_LINES: usize = 12;

/// A machine that runs and goes again; returns its name.
async fn life(namespace: &Namespace) -> String {
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 1, "c")).await.succeed();
    let machines = fleet::running_machines(namespace, 1, TIMEOUT).await;
    let name = text(&machines[0], "/metadata/name").to_owned();
    namespace.kubectl(&["scale", "machinedeployment", "pool", "--replicas=0"]).await.succeed();
    fleet::none_left(namespace, "machines", TIMEOUT).await;
    name
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_101_a_machines_life_has_few_lines_that_name_it() {
    let Some(rig) = Rig::own("log_lines::pk_101").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("lines").await;
    let flags = vec!["-v=0".to_owned(), "--logging-format=json".to_owned()];
    let mut manager =
        TestManager::start(&rig, &namespace, &ManagerOptions { flags, ..ManagerOptions::default() }).await;
    let machine = life(&namespace).await;
    assert_eq!(manager.terminate(), 0);
    let log = manager.log();
    let schema = jsonschema::validator_for(&schema()).expect("a schema");
    let mut about = Vec::new();
    for line in log.lines() {
        let parsed: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let problems: Vec<String> = schema.iter_errors(&parsed).map(|error| error.to_string()).collect();
        assert!(problems.is_empty(), "{problems:?}: {line}");
        if line.contains(&machine) && parsed["kind"] != "Node" {
            about.push(parsed);
        }
    }
    assert!((4..=MOST_LINES).contains(&about.len()), "{} lines: {about:#?}", about.len());
    for line in &about {
        // Its set names it once, when it deletes it.
        let is_own = line["kind"] == "Machine";
        let name = if is_own { machine.as_str() } else { text(line, "/name") };
        assert_eq!((text(line, "/namespace"), text(line, "/name")), (namespace.name.as_str(), name), "{line}");
        assert!(line["pass"].is_u64() && (is_own || text(line, "/effect").starts_with("Machine ")), "{line}");
    }
    let stages: BTreeSet<&str> = about.iter().filter_map(|line| line["stage"].as_str()).collect();
    for stage in ["Pending", "Running", "Terminating/Drain", "Terminating/DeleteVm"] {
        assert!(stages.contains(stage), "{stage} in {stages:?}");
    }
    assert!(about.iter().any(|line| text(line, "/effect").starts_with("Vm ")), "{about:#?}");
}

/// Texts that must appear nowhere outside the objects that hold them.
const DATA: &str = "canary-data-90ab17";
const SPEC: &str = "canary-spec-90ab17";
/// The token in the manager's kubeconfig.
const TOKEN: &str = "rig-manager-token";

/// The secret half of the bootstrap token in this Secret.
fn token_of(secret: &Value) -> Option<String> {
    let encoded = secret.pointer("/data/token-secret")?.as_str()?;
    String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_102_no_secret_is_in_logs_events_conditions_traces_and_metrics() {
    let Some(rig) = Rig::own("log_lines::pk_102").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("canaries").await;
    let collector = Collector::start().await;
    let flags = vec!["-v=10".to_owned(), collector.flag.clone()];
    // A cloud that repeats in its refusals what it got.
    let simulation = format!(
        "{SWIFT_CLOUD}failures:\n- {{op: create, class: failing, rate: 1, code: InvalidArgument, message: \"bad data: {DATA}\"}}\n"
    );
    let options = ManagerOptions { simulation, flags, ..ManagerOptions::default() };
    let mut manager = TestManager::start(&rig, &namespace, &options).await;
    manager.register_webhooks(&rig, &namespace).await;
    // The API server itself has no answer for a provider that nobody serves, so that the driver's own refusal is seen, too.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fleet"},
        "stringData": {"userData": format!("#!/bin/sh\necho {DATA} <<BOOTSTRAP_TOKEN>>\n"), "token": DATA}});
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 1, "c")).await.succeed();
    namespace.apply(&secret.to_string()).await.succeed();
    let specs = [
        ("tagged", json!({"tags": {"note": SPEC}})),
        ("wrong", json!({"nodeName": {"wrong": SPEC}})),
        ("failing", json!({})),
    ];
    for (name, spec) in specs {
        let class = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": name},
            "provider": "virtual", "providerSpec": spec, "secretRef": {"name": "fleet", "namespace": namespace.name}});
        // The webhook may refuse it. Its log must not repeat the value.
        let _ = namespace.apply(&class.to_string()).await;
        let machine = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": name},
            "spec": {"class": {"kind": "MachineClass", "name": name}}});
        let _ = namespace.apply(&machine.to_string()).await;
    }
    wait_until("the machines to be looked at", TIMEOUT, || async {
        let machines = namespace.list("machines").await;
        let seen = machines.iter().filter(|machine| !text(machine, "/status/lastOperation/description").is_empty());
        let (seen, all) = (seen.count(), machines.len());
        expect(all >= 1 && seen == all, || format!("{seen} of {all}"))
    })
    .await;
    wait_until("the cloud's refusal to be shown, without the secret", TIMEOUT, || async {
        let failing = namespace.get("machine", "failing").await;
        let refusal = text(&failing, "/status/lastOperation/description").to_owned();
        expect(refusal.contains("bad data: "), || refusal)
    })
    .await;
    // A machine whose VM is refused keeps its bootstrap token.
    let tokens = rig.kubectl(&["get", "secrets", "-n", "kube-system", "-o", "json"]).await.succeed();
    let tokens: Value = serde_json::from_str(&tokens).expect("JSON");
    let tokens: Vec<String> = tokens["items"].as_array().into_iter().flatten().filter_map(token_of).collect();
    assert!(!tokens.is_empty(), "a bootstrap token");
    // A missing key makes the driver's input incomplete; its refusal must not show the rest.
    let patch = r#"{"data": {"userData": null}}"#;
    namespace.kubectl(&["patch", "secret", "fleet", "--type=merge", "-p", patch]).await.succeed();
    namespace.kubectl(&["scale", "machinedeployment", "pool", "--replicas=2"]).await.succeed();
    tokio::time::sleep(Duration::from_secs(2)).await;

    let mut places = vec![("metrics", manager.http_get("/metrics").await)];
    for (place, resource) in
        [("events", "events"), ("machines", "machines"), ("sets", "machinesets"), ("deployments", "machinedeployments")]
    {
        places.push((place, namespace.kubectl(&["get", resource, "-o", "yaml"]).await.succeed()));
    }
    assert_eq!(manager.terminate(), 0);
    places.extend([("log", manager.log()), ("traces", collector.text())]);
    assert!(!collector.spans().is_empty(), "spans arrive");
    for (place, content) in &places {
        assert!(!content.is_empty(), "{place}");
        for canary in [DATA, SPEC, TOKEN].into_iter().chain(tokens.iter().map(String::as_str)) {
            let line = content.lines().find(|line| line.contains(canary));
            assert_eq!(line, None, "{canary} is in {place}");
        }
    }
}
