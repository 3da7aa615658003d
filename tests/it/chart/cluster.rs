//! The chart in a real API server, with `mcm` outside under the token of the chart's service account.
//!
//! No kubelet runs there. `mcm` starts with the arguments of the Deployment, and serves the webhooks at a URL.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use super::{arguments, cases, find};
use crate::support::{
    Rig,
    cluster_object::text,
    helm::{CHART, Helm, objects},
    manager::request,
    ports::free_port,
    process::Process,
    wait::expect,
    wait_until,
};

const NAMESPACE: &str = "machine-controller-manager";
const MCM: &str = env!("CARGO_BIN_EXE_mcm");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/examples");
const WHY: &str = "the chart holds flow schemas, and the development server has no flow control";

async fn rig_with_helm(test: &str) -> Option<(Arc<Rig>, Helm)> {
    let helm = Helm::find(test)?;
    let rig = Rig::own_real(&format!("chart::cluster::{test}"), WHY).await?;
    rig.namespace_named(NAMESPACE).await;
    let enforce = "pod-security.kubernetes.io/enforce=restricted";
    rig.kubectl(&["label", "namespace", NAMESPACE, enforce]).await.succeed();
    let helm = helm.with_cluster(rig.admin_kubeconfig());
    Some((rig, helm))
}

fn helm(helm: &Helm, verb: &[&str], values: &Value) -> Result<String, String> {
    let file = helm.values("cluster", values);
    helm.run(&[verb, &[CHART, "--namespace", NAMESPACE, "--values", &file]].concat())
}

/// A kubeconfig with the token of the chart's service account.
async fn kubeconfig_of_account(rig: &Rig) -> PathBuf {
    let token = rig.kubectl(&["create", "token", NAMESPACE, "--namespace", NAMESPACE]).await.succeed();
    let raw = ["config", "view", "--raw", "--minify", "--output", "json"];
    let mut config = rig.kubectl(&raw).await.json();
    config["users"][0]["user"] = json!({"token": token.trim()});
    let path = rig.folder.join("account.kubeconfig");
    std::fs::write(&path, config.to_string()).expect("the rig's folder is writable");
    path
}

/// The process of the Deployment, outside the cluster.
struct Outside {
    process: Process,
    port: u16,
}

impl Outside {
    async fn start(rig: &Rig, manifest: &str, secure_port: u16) -> Self {
        let kubeconfig = kubeconfig_of_account(rig).await.display().to_string();
        let port = free_port();
        let mut flags = arguments(&objects(manifest));
        for flag in &mut flags {
            *flag = flag.replace("inClusterConfig", &kubeconfig).replace("$(POD_NAMESPACE)", NAMESPACE);
        }
        flags.extend([
            format!("--target-kubeconfig={kubeconfig}"),
            "--address=127.0.0.1".to_owned(),
            format!("--port={port}"),
            "--compat-port=0".to_owned(),
            "--secure-address=127.0.0.1".to_owned(),
            format!("--secure-port={secure_port}"),
        ]);
        Self { process: Process::start(&rig.folder, "mcm-of-the-chart", Path::new(MCM), &flags), port }
    }

    async fn wait_until_ready(&self) {
        wait_until("mcm to be ready", Duration::from_secs(60), || async {
            match request(self.port, "GET", "/readyz?verbose", "").await {
                Ok((200, _)) => Ok(()),
                other => Err(format!("{other:?}\n{}", self.process.log_tail())),
            }
        })
        .await;
    }
}

/// How many requests the API server has refused for want of rights.
async fn forbidden(rig: &Rig) -> f64 {
    let metrics = rig.kubectl(&["get", "--raw", "/metrics"]).await.succeed();
    let refused =
        metrics.lines().filter(|line| line.starts_with("apiserver_request_total{") && line.contains("code=\"403\""));
    refused.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Every object of the release, and the fields that the process writes into them.
async fn state(rig: &Rig, manifest: &str) -> Vec<Value> {
    let file = rig.folder.join("manifest.yaml");
    std::fs::write(&file, manifest).expect("the rig's folder is writable");
    let get = ["get", "-f", file.to_str().expect("UTF-8"), "--output", "json", "--namespace", NAMESPACE];
    let list = rig.kubectl(&get).await.json();
    list["items"].as_array().expect("a list").clone()
}

async fn machines_running(rig: &Rig, wanted: usize) {
    wait_until("the machines to run", Duration::from_secs(90), || async {
        let list = rig.kubectl(&["get", "machines", "--namespace", NAMESPACE, "--output", "json"]).await.json();
        let phases: Vec<String> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|machine| text(machine, "/status/currentStatus/phase").to_owned())
            .collect();
        expect(phases.len() == wanted && phases.iter().all(|phase| phase == "Running"), || format!("{phases:?}"))
    })
    .await;
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
        (json!({"target": {"mode": "none"}}), "target.mode=none"),
        (json!({"priority": {"quota": false}}), "priority.quota=false"),
        (json!({"image": {"tag": "latest"}}), "image.tag=latest"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_025_pk_027_pk_046_the_chart_runs_the_example_and_upgrades_change_nothing() {
    let Some((rig, tool)) = rig_with_helm("pk_025").await else { return };

    // PK-046: a warning for each risky value, and none by default.
    let notes = |values: &Value| helm(&tool, &["install", "mcm", "--dry-run=server"], values).expect("rendered");
    assert!(!notes(&json!({})).contains("WARNING"));
    for (values, warning) in risks() {
        let notes = notes(&values);
        assert!(notes.contains(&format!("WARNING: {warning}")), "{values}: {notes}");
        assert_eq!(notes.matches("WARNING").count(), 1, "{values}");
    }

    // PK-025
    let secure_port = free_port();
    let values = json!({
        "webhooks": {"url": format!("https://127.0.0.1:{secure_port}")},
        "simulation": {"enabled": true}, "bootstrapTokens": {"enabled": true}, "policies": {"enabled": true},
    });
    let notes = helm(&tool, &["install", "mcm"], &values).expect("installed");
    let manifest = tool.run(&["get", "manifest", "mcm", "--namespace", NAMESPACE]).expect("a release");
    let refused_before = forbidden(&rig).await;
    let outside = Outside::start(&rig, &manifest, secure_port).await;
    outside.wait_until_ready().await;
    rig.kubectl(&["apply", "--validate=strict", "-k", EXAMPLES]).await.succeed();
    machines_running(&rig, 3).await;
    assert!(!outside.process.log().to_lowercase().contains("forbidden"), "{}", outside.process.log());
    assert!((forbidden(&rig).await - refused_before).abs() < 0.5, "a request of the process was refused");

    // PK-046: its commands work.
    let status = json!({"status": {
        "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
    }});
    let status = status.to_string();
    let patch =
        ["patch", "deployment", NAMESPACE, "--namespace", NAMESPACE, "--subresource=status", "--type=merge", "--patch"];
    rig.kubectl(&[&patch[..], &[status.as_str()]].concat()).await.succeed();
    let commands: Vec<&str> =
        notes.lines().map(str::trim).filter(|line| line.starts_with("kubectl ") || line.starts_with("mcm ")).collect();
    assert_eq!(commands.len(), 3, "{notes}");
    for command in commands {
        let programs = Path::new(MCM).parent().expect("a folder").display();
        let path = format!("{}:{programs}:{}", rig.assets.display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = tokio::process::Command::new("sh");
        shell
            .args(["-c", command])
            .env("PATH", path)
            .env("KUBECONFIG", rig.admin_kubeconfig())
            .env("HOME", &rig.folder);
        let done = shell.stdin(Stdio::null()).kill_on_drop(true).output();
        let done = tokio::time::timeout(Duration::from_secs(60), done).await.expect("it ends").expect("its output");
        let output = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && !done.stdout.is_empty(), "{command}: {output}");
    }

    // PK-035: the namespace enforces the standard.
    let released = objects(&manifest);
    let mut pod = find(&released, "Deployment")["spec"]["template"].clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("probe");
    pod["metadata"]["namespace"] = json!(NAMESPACE);
    let file = rig.folder.join("pod.json");
    std::fs::write(&file, pod.to_string()).expect("writable");
    rig.kubectl(&["create", "--dry-run=server", "-f", file.to_str().expect("UTF-8")]).await.succeed();

    // PK-027: an equal upgrade patches nothing, and a different one only what differs.
    let before = state(&rig, &manifest).await;
    let bundle = |objects: &[Value]| {
        find(objects, "ValidatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["caBundle"].clone()
    };
    let certificate = |objects: &[Value]| find(objects, "Secret")["data"].clone();
    assert!(bundle(&before).is_string() && certificate(&before)["tls.crt"].is_string());
    helm(&tool, &["upgrade", "mcm"], &values).expect("upgraded");
    assert_eq!(state(&rig, &manifest).await, before);
    let mut changed = values.clone();
    changed["flags"] = json!({"machine-drain-timeout": "1h"});
    helm(&tool, &["upgrade", "mcm"], &changed).expect("upgraded");
    let after = state(&rig, &manifest).await;
    for (old, new) in before.iter().zip(&after).filter(|(old, _)| old["kind"] != "Deployment") {
        assert_eq!(old, new);
    }
    assert!(arguments(&after).contains(&"--machine-drain-timeout=1h".to_owned()));
    machines_running(&rig, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_036_pk_041_a_stored_version_is_not_taken_away_and_the_release_is_small() {
    let Some((rig, tool)) = rig_with_helm("pk_036").await else { return };
    let mut values = cases::everything().values;
    // The cluster has neither operator.
    values["certificates"] = json!({});
    values["metrics"] = json!({});
    helm(&tool, &["install", "mcm"], &values).expect("installed");

    // PK-041
    let release = rig
        .kubectl(&["get", "secret", "sh.helm.release.v1.mcm.v1", "--namespace", NAMESPACE, "--output", "json"])
        .await;
    let size = release.json()["data"]["release"].as_str().expect("a release").len();
    assert!(size <= 300 * 1024, "the release has {size} bytes");

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
        helm(&tool, &["upgrade", "mcm"], &values)
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
