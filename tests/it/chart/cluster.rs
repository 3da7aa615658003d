//! The chart in an API server with its process: the example runs, upgrades change nothing, and stored versions are kept.

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::{Value, json};

use super::{
    arguments, cases, find,
    released::{MCM, NAMESPACE, Release, bundle},
};
use crate::support::{
    Rig,
    cluster_object::{items, text},
    helm::objects,
};

/// How many requests the API server has refused for want of rights.
async fn forbidden(rig: &Rig) -> f64 {
    let metrics = rig.kubectl(&["get", "--raw", "/metrics"]).await.succeed();
    let refused =
        metrics.lines().filter(|line| line.starts_with("apiserver_request_total{") && line.contains("code=\"403\""));
    refused.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Values whose risk NOTES.txt must name, and a word of the warning.
fn risks() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"replicas": 1}), "replicas below 2"),
        (json!({"crds": {"keep": false}}), "crds.keep=false"),
        (json!({"webhooks": {"enabled": false}}), "webhooks.enabled=false"),
        (json!({"webhooks": {"createFailurePolicy": "Ignore"}}), "webhooks.createFailurePolicy=Ignore"),
        (json!({"webhooks": {"updateFailurePolicy": "Fail"}}), "webhooks.updateFailurePolicy=Fail"),
        (json!({"webhooks": {"hostNetwork": true}}), "webhooks.hostNetwork=true"),
        (json!({"views": {"enabled": true}}), "views.enabled=true"),
        (json!({"v1beta1": {"serve": true}}), "v1beta1.serve=true"),
        (json!({"simulation": {"enabled": true}}), "simulation.enabled=true"),
        (json!({"localMachines": {"enabled": true}}), "localMachines.enabled=true"),
        (json!({"target": {"mode": "none"}}), "target.mode=none"),
        (json!({"priority": {"quota": false}}), "priority.quota=false"),
        (json!({"uninstallGuard": {"enabled": false}}), "uninstallGuard.enabled=false"),
        (json!({"image": {"tag": "latest"}}), "image.tag=latest"),
        (
            json!({"networkPolicy": {"enabled": true}, "flags": {"tracing-endpoint": "http://collector:4318"}}),
            "networkPolicy.enabled=true",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_025_pk_027_pk_046_the_chart_runs_the_example_and_upgrades_change_nothing() {
    let why = "the development server has no policies and does not count requests";
    let Some(release) = Release::in_real_cluster("pk_025", why).await else { return };
    let rig = &release.rig;

    // PK-046: a warning for each risky value, and none by default.
    let notes = |values: &Value| release.with_values("install", values, &["--dry-run=server"]).expect("rendered");
    assert!(!notes(&json!({})).contains("WARNING"));
    for (values, warning) in risks() {
        let notes = notes(&values);
        assert!(notes.contains(&format!("WARNING: {warning}")), "{values}: {notes}");
        assert_eq!(notes.matches("WARNING").count(), 1, "{values}");
    }
    let open = json!({"networkPolicy": {"enabled": true}, "flags": {"tracing-endpoint": "https://10.0.0.1/otlp"}});
    assert!(!notes(&open).contains("WARNING"), "port 443 is open");
    // The manager looks for its certificate and its Leases in the namespace of its own pods.
    let elsewhere = notes(&json!({"control": {"kubeconfig": {"secretName": "other"}}, "machineNamespace": "machines"}));
    let companion = format!("in namespace {NAMESPACE} there and with machineNamespace=machines");
    assert!(elsewhere.contains(&companion), "{elsewhere}");

    // PK-025
    let values = release.values();
    let notes = release.with_values("install", &values, &[]).expect("installed");
    let refused_before = forbidden(rig).await;
    let outside = release.start_ready().await;
    release.run_example().await;
    assert!(!outside.process.log().to_lowercase().contains("forbidden"), "{}", outside.process.log());
    assert!((forbidden(rig).await - refused_before).abs() < 0.5, "a request of the process was refused");

    release.report_ready().await;
    the_commands_work(&release, &notes).await;
    the_pod_is_admitted(&release).await;

    // PK-027: an equal upgrade patches nothing, and a different one only what differs.
    let before = release.state().await;
    let certificate = find(&before, "Secret")["data"].clone();
    assert!(bundle(&before).is_string() && certificate["tls.crt"].is_string());
    let events = machine_events(&release).await;
    release.with_values("upgrade", &values, &[]).expect("upgraded");
    assert_eq!(release.state().await, before);
    let mut changed = values.clone();
    changed["flags"] = json!({"machine-drain-timeout": "1h"});
    release.with_values("upgrade", &changed, &[]).expect("upgraded");
    let after = release.state().await;
    for (old, new) in before.iter().zip(&after).filter(|(old, _)| old["kind"] != "Deployment") {
        assert_eq!(old, new);
    }
    assert!(arguments(&after).contains(&"--machine-drain-timeout=1h".to_owned()));
    release.machines_running(3).await;
    assert_eq!(machine_events(&release).await, events);
    outside.end();
}

/// The pods are in one namespace, and the machine objects in another one.
#[tokio::test(flavor = "multi_thread")]
async fn the_machine_objects_may_be_in_another_namespace_than_the_pods() {
    let Some(machines) = Release::in_own_cluster("the_machine_objects_may_be_in_another_namespace").await else {
        return;
    };
    let release = machines.in_namespace("operators").await;
    let mut values = release.values();
    values["machineNamespace"] = json!(NAMESPACE);
    release.with_values("install", &values, &[]).expect("installed");
    let outside = release.start_ready().await;
    machines.run_example().await;
    assert!(!outside.process.log().to_lowercase().contains("forbidden"), "{}", outside.process.log());
    let leases = machines.kubectl(&["get", "leases", "--output", "json"]).await.json();
    let holders = items(&leases).iter().filter(|lease| !text(lease, "/spec/holderIdentity").is_empty()).count();
    assert_eq!(holders, 2, "{leases}");

    let (refused, job) = release.uninstall().await;
    assert!(refused.is_err() && job.output.contains(&format!("left: Machine {NAMESPACE}/")), "{job:?}");
    machines.delete_example().await;
    let (done, job) = release.uninstall().await;
    done.unwrap_or_else(|error| panic!("{error}: {job:?}"));
    outside.end();
}

/// PK-046: the commands of the notes.
async fn the_commands_work(release: &Release, notes: &str) {
    let commands: Vec<&str> =
        notes.lines().map(str::trim).filter(|line| line.starts_with("kubectl ") || line.starts_with("mcm ")).collect();
    assert_eq!(commands.len(), 3, "{notes}");
    for command in commands {
        let programs = Path::new(MCM).parent().expect("a folder").display();
        let path = format!("{}:{programs}:{}", release.rig.assets.display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = tokio::process::Command::new("sh");
        shell
            .args(["-c", command])
            .env("PATH", path)
            .env("KUBECONFIG", release.rig.admin_kubeconfig())
            .env("HOME", &release.rig.folder);
        let done = shell.stdin(Stdio::null()).kill_on_drop(true).output();
        let done = tokio::time::timeout(Duration::from_secs(60), done).await.expect("it ends").expect("its output");
        let output = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && !done.stdout.is_empty(), "{command}: {output}");
    }
}

/// PK-035: the namespace enforces the standard `restricted`.
async fn the_pod_is_admitted(release: &Release) {
    let released = objects(&release.manifest());
    let mut pod = find(&released, "Deployment")["spec"]["template"].clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("probe");
    pod["metadata"]["namespace"] = json!(NAMESPACE);
    let file = release.rig.folder.join("pod.json");
    std::fs::write(&file, pod.to_string()).expect("writable");
    release.rig.kubectl(&["create", "--dry-run=server", "-f", file.to_str().expect("UTF-8")]).await.succeed();
}

/// The events of machines.
async fn machine_events(release: &Release) -> Vec<String> {
    let of_machines = ["get", "events", "--field-selector=involvedObject.kind=Machine", "--output", "name"];
    let mut names: Vec<String> = release.kubectl(&of_machines).await.succeed().lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_036_pk_041_a_stored_version_is_not_taken_away_and_the_release_is_small() {
    let Some(release) = Release::in_real_cluster("pk_036", "the development server has no policies").await else {
        return;
    };
    let rig = &release.rig;
    let mut values = cases::everything().values;
    // The cluster has neither operator.
    values["certificates"] = json!({});
    values["metrics"] = json!({});
    values["alerts"] = json!({});
    release.with_values("install", &values, &[]).expect("installed");

    // PK-041
    let secret = ["get", "secret", "sh.helm.release.v1.mcm.v1", "--output", "json"];
    let secret = release.kubectl(&secret).await.json();
    let size = text(&secret, "/data/release").len();
    assert!((1..=300 * 1024).contains(&size), "the release has {size} bytes");

    // PK-036
    for name in ["machines", "machinesets", "machinedeployments", "machineclasses"] {
        let patch = json!([
            {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
            {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
        ]);
        let definition = format!("{name}.machine.sapcloud.io");
        rig.kubectl(&["patch", "crd", &definition, "--type=json", "--patch", &patch.to_string()]).await.succeed();
    }
    let upgrade = |served: bool, stored: &str| {
        let mut values = values.clone();
        values["v1beta1"] = json!({"serve": served, "stored": stored});
        release.with_values("upgrade", &values, &[])
    };
    let error = upgrade(false, "v1alpha1").expect_err("v1beta1 is stored");
    assert!(error.contains("v1beta1.serve: machines.machine.sapcloud.io has objects stored as v1beta1"), "{error}");
    assert!(error.contains("run `mcm migrate-storage --to v1alpha1` first"), "{error}");
    let error = upgrade(true, "v1alpha1").expect_err("the upgrade would store v1alpha1 again");
    assert!(error.contains("set v1beta1.stored to v1beta1"), "{error}");
    upgrade(true, "v1beta1").expect("upgraded");
    let stored = "jsonpath={.spec.versions[?(@.storage==true)].name}";
    let answer = rig.kubectl(&["get", "crd", "machines.machine.sapcloud.io", "--output", stored]).await;
    assert_eq!(answer.succeed(), "v1beta1");
}
