//! Installations over objects that exist already, and the way back from an upgrade. `.ci/nightly helm_4` runs all tests of the chart with Helm 4
//! too (PK-029).

use serde_json::{Value, json};

use super::released::{EXAMPLES, NAME, Release};
use crate::support::{cluster_object::items, helm::objects};

const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base");
/// Kinds, their plurals and their short names.
const KINDS: [(&str, &str); 4] = [
    ("Machine", "machines"),
    ("MachineSet", "machinesets"),
    ("MachineDeployment", "machinedeployments"),
    ("MachineClass", "machineclasses"),
];

/// Definitions as manifests of another program leave them: with another schema and without labels of Helm.
pub fn definitions_of_another_program() -> String {
    let definition = |(kind, plural): (&str, &str)| {
        let version = json!({
            "name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        });
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{plural}.machine.sapcloud.io"),
                "annotations": {"controller-gen.kubebuilder.io/version": "v0.16.1"},
            },
            "spec": {
                "group": "machine.sapcloud.io", "scope": "Namespaced", "versions": [version],
                "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase()},
            },
        })
    };
    json!({"apiVersion": "v1", "kind": "List", "items": KINDS.map(definition)}).to_string()
}

/// What users wrote, and who the objects are.
async fn written(release: &Release) -> Vec<Value> {
    let kinds = "machinedeployments,machineclasses";
    let list = release.kubectl(&["get", kinds, "--output", "json"]).await.json();
    let fields = ["spec", "provider", "providerSpec", "secretRef", "nodeTemplate"];
    let kept =
        |object: &Value| json!({"uid": object["metadata"]["uid"], "fields": fields.map(|field| object[field].clone())});
    items(&list).iter().map(kept).collect()
}

/// An upgrade that changes a flag, and the rollback to the first revision.
async fn forth_and_back(release: &Release, values: &Value) {
    let before = release.manifest();
    let mut changed = values.clone();
    changed["flags"] = json!({"machine-drain-timeout": "1h"});
    // With Helm 4, fields that another program has applied too are conflicts, until helm alone has them.
    let forced: Vec<&str> = release.adopting().iter().copied().filter(|flag| *flag == "--force-conflicts").collect();
    release.with_values("upgrade", &changed, &forced).expect("upgraded");
    assert!(release.manifest().contains("--machine-drain-timeout=1h"));
    release.helm(&["rollback", &release.name, "1"]).expect("rolled back");
    assert_eq!(release.manifest(), before);
    let deployment = release.kubectl(&["get", "deployment", NAME, "--output", "json"]).await.json();
    assert!(!deployment.to_string().contains("machine-drain-timeout"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_028_definitions_of_another_program_are_adopted_with_their_objects() {
    let Some(release) = Release::in_own_cluster("pk_028").await else { return };
    let rig = &release.rig;
    rig.apply(&definitions_of_another_program()).await.succeed();
    rig.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await.succeed();
    rig.kubectl(&["apply", "-k", EXAMPLES]).await.succeed();
    let before = written(&release).await;
    assert_eq!(before.len(), 2);

    let values = release.values();
    let error = release.with_values("install", &values, &[]).expect_err("the definitions are not Helm's");
    assert!(error.contains("invalid ownership metadata"), "{error}");
    release.with_values("install", &values, release.adopting()).expect("installed");
    let outside = release.start_ready().await;
    release.machines_running(3).await;
    assert_eq!(written(&release).await, before);
    forth_and_back(&release, &values).await;
    release.machines_running(3).await;
    assert_eq!(written(&release).await, before);
    outside.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_028_the_kustomize_base_is_adopted_whole() {
    let why = "the base holds flow schemas, and the development server has no flow control";
    let Some(release) = Release::in_real_cluster("pk_028_base", why).await else { return };
    let rig = &release.rig;
    let rendered = rig.kubectl(&["kustomize", BASE]).await.succeed();
    let of_base = objects(&rendered);
    let definitions: Vec<&Value> =
        of_base.iter().filter(|object| object["kind"] == "CustomResourceDefinition").collect();
    rig.apply(&json!({"apiVersion": "v1", "kind": "List", "items": definitions}).to_string()).await.succeed();
    rig.apply(&rendered).await.succeed();

    let values = json!({});
    release.with_values("install", &values, &[]).expect_err("the objects are not Helm's");
    release.with_values("install", &values, release.adopting()).expect("installed");
    forth_and_back(&release, &values).await;
    let file = rig.folder.join("base.yaml");
    std::fs::write(&file, &rendered).expect("the rig's folder is writable");
    let live = rig.kubectl(&["get", "-f", file.to_str().expect("UTF-8"), "--output", "json"]).await.json();
    for object in items(&live).iter().filter(|object| object["kind"] != "Namespace") {
        let owner = &object["metadata"]["annotations"]["meta.helm.sh/release-name"];
        assert_eq!(owner, "mcm", "{} {}", object["kind"], object["metadata"]["name"]);
    }
}
