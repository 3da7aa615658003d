//! When an installation is ready, and what happens if another program applies the chart's webhook configurations again.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::released::{NAME, Release, bundle};
use crate::support::{cluster_object::name, helm::objects, wait::expect, wait_until};

/// The longest wait for a condition.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Machine classes that the webhooks accept.
fn classes(release: &Release, names: impl Iterator<Item = String>) -> String {
    let class = |name: String| {
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass",
            "metadata": {"name": name, "namespace": release.namespace},
            "provider": "virtual", "providerSpec": {"region": "sim-1", "zone": "sim-1a", "machineType": "sim.large"},
            "secretRef": {"name": "credentials", "namespace": release.namespace},
        })
    };
    json!({"apiVersion": "v1", "kind": "List", "items": names.map(class).collect::<Vec<_>>()}).to_string()
}

async fn create(release: &Release, name: &str, objects: &str) -> crate::support::kubectl::Answer {
    let file = release.rig.folder.join(format!("{name}.json"));
    std::fs::write(&file, objects).expect("the rig's folder is writable");
    release.kubectl(&["create", "-f", file.to_str().expect("UTF-8")]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_026_pk_047_after_an_installation_creations_succeed_and_replaced_webhooks_are_mended() {
    let Some(release) =
        Release::in_real_cluster("pk_026", "helm --wait does not see that its Deployment is ready").await
    else {
        return;
    };
    let values = release.values();

    // PK-026
    let installing = {
        let (release, values) = (release.clone(), values.clone());
        tokio::task::spawn_blocking(move || release.with_values("install", &values, &["--wait", "--timeout=120s"]))
    };
    wait_until("the Deployment", Duration::from_secs(60), || async {
        let found = release.rig.existing_namespace(&release.namespace).list("deployments").await;
        expect(found.iter().any(|deployment| name(deployment) == NAME), || format!("{found:?}"))
    })
    .await;
    let outside = release.start_ready().await;
    assert!(!installing.is_finished(), "helm returned before the pods were ready");
    let deployment = release.kubectl(&["get", "deployment", NAME, "--output", "json"]).await.json();
    let probe = &deployment["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"];
    assert_eq!((&probe["path"], &probe["port"]), (&json!("/readyz"), &json!("health")));
    release.report_ready().await;
    installing.await.expect("helm ends").expect("installed");
    let created = create(&release, "many", &classes(&release, (0..50).map(|index| format!("class-{index}")))).await;
    assert_eq!(created.succeed().lines().count(), 50);
    let refused = release.try_machine("high").await.fail();
    assert!(refused.contains("must be an integer"), "the webhooks judge: {refused}");

    // The rendered configurations have no CA bundle. Another program replaces ours by them.
    let rendered = release.manifest();
    let configurations: Vec<Value> = objects(&rendered)
        .into_iter()
        .filter(|object| object["kind"].as_str().is_some_and(|kind| kind.ends_with("WebhookConfiguration")))
        .collect();
    assert_eq!((configurations.len(), bundle(&configurations)), (2, Value::Null));
    let file = release.rig.folder.join("configurations.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": configurations});
    std::fs::write(&file, list.to_string()).expect("the rig's folder is writable");
    release.rig.kubectl(&["replace", "-f", file.to_str().expect("UTF-8")]).await.succeed();
    // Until the process has written its CA bundle again, creations are refused. Afterwards none is.
    let (replaced, replaced_at) = (Instant::now(), Timestamp::now());
    let mut accepted = 0;
    for index in 0.. {
        let name = format!("later-{index}");
        let created = create(&release, "later", &classes(&release, std::iter::once(name))).await;
        accepted = if created.succeeded() { accepted + 1 } else { 0 };
        if accepted == 20 {
            break;
        }
        assert!(replaced.elapsed() < TIMEOUT, "{}\n{}", created.stderr, outside.process.log_tail());
    }
    assert!(bundle(&release.state().await).is_string());
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let seconds = mended_at(&release, kind).await.as_second() - replaced_at.as_second();
        assert!(seconds <= 5, "PK-047: the bundle of the {kind} came {seconds} s after the replacement");
    }

    // Another program applies the whole rendering, and the webhooks again and again. It forces nothing, and nothing differs.
    let whole = release.rig.folder.join("rendered.yaml");
    std::fs::write(&whole, &rendered).expect("the rig's folder is writable");
    for (path, times) in [(&whole, 1), (&file, 10)] {
        let path = path.to_str().expect("UTF-8");
        for _ in 0..times {
            release.rig.kubectl(&["apply", "--server-side", "-f", path]).await.succeed();
        }
        let differences = release.rig.kubectl(&["diff", "--server-side", "-f", path]).await;
        assert!(differences.succeeded(), "PK-047: {}{}", differences.stdout, differences.stderr);
    }
    assert!(bundle(&release.state().await).is_string(), "PK-047: the bundle stays");
}

/// When the process has written the bundle of a webhook configuration, by the clock of the API server.
async fn mended_at(release: &Release, kind: &str) -> Timestamp {
    let object = release.kubectl(&["get", kind, NAME, "--show-managed-fields", "--output", "json"]).await.json();
    let written = object["metadata"]["managedFields"].as_array().expect("managed fields");
    let own = written.iter().find(|entry| entry["manager"] == "mcm-certs");
    let time = own.and_then(|entry| entry["time"].as_str()?.parse().ok());
    time.unwrap_or_else(|| panic!("the process is no writer in {written:#?}"))
}
