//! The kustomize base and its components are the chart with certain values.

use std::process::Command;

use rstest::rstest;
use serde_json::{Value, json};

use super::CHART_LABELS;
use crate::support::{
    assets,
    helm::{Helm, OPERATORS, objects},
    scratch::{count_ran, count_skipped, subfolder},
};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy");
const NAMESPACE: &str = "machine-controller-manager";

/// The base with components, as kubectl prints it.
fn overlay(components: &[&str]) -> Option<Vec<Value>> {
    const NAME: &str = "chart::base::pk_022";
    let assets = match assets::find() {
        Ok(assets) => assets,
        Err(why) => {
            count_skipped(NAME, &why);
            return None;
        }
    };
    count_ran(NAME);
    let folder = subfolder("overlay");
    // Kustomize accepts relative paths only.
    let deploy = format!("{}{}", "../".repeat(folder.components().count() - 1), DEPLOY.trim_start_matches('/'));
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [format!("{deploy}/base")],
        "components": components.iter().map(|name| format!("{deploy}/components/{name}")).collect::<Vec<_>>(),
    });
    std::fs::write(folder.join("kustomization.yaml"), kustomization.to_string()).expect("the folder is writable");
    let run = Command::new(assets.join("kubectl")).arg("kustomize").arg(&folder).env("HOME", &folder).output();
    let run = run.expect("kubectl runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Some(objects(&String::from_utf8_lossy(&run.stdout)))
}

/// An object without what the chart adds for users of Helm. Everything else must be equal.
fn without_helm(mut object: Value) -> Value {
    if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
        labels.retain(|label, _| !CHART_LABELS.contains(&label.as_str()));
    }
    // The chart labels objects of cert-manager as all others; the component does not.
    let is_unlabelled = ["Certificate", "Issuer"].iter().any(|kind| object["kind"] == *kind);
    let metadata = object["metadata"].as_object_mut().expect("metadata");
    if is_unlabelled || metadata.get("labels").is_some_and(|labels| labels == &json!({})) {
        metadata.remove("labels");
    }
    if let Some(container) = object.pointer_mut("/spec/template/spec/containers/0").and_then(Value::as_object_mut) {
        // The default of Kubernetes, which the base leaves out.
        assert_eq!(container.remove("imagePullPolicy"), Some(json!("IfNotPresent")));
    }
    object
}

#[rstest]
#[case::the_base(&[], json!({}))]
#[case::policies(&["policies"], json!({"policies": {"enabled": true}}))]
#[case::simulation_and_tokens(
    &["simulation", "bootstrap-tokens", "local-machines"],
    json!({"simulation": {"enabled": true}, "bootstrapTokens": {"enabled": true}, "localMachines": {"enabled": true}})
)]
#[case::v1beta1(&["v1beta1"], json!({"v1beta1": {"serve": true}}))]
#[case::alerts(&["alerts"], json!({"alerts": {"enabled": true}}))]
#[case::dashboards(&["dashboards"], json!({"dashboards": {"enabled": true}}))]
#[case::views(&["views"], json!({"views": {"enabled": true}}))]
#[case::cert_manager(
    &["v1beta1", "views", "cert-manager"],
    json!({"v1beta1": {"serve": true}, "views": {"enabled": true}, "certificates": {"mode": "cert-manager"}})
)]
fn pk_022_the_base_with_components_has_the_objects_of_the_chart(#[case] components: &[&str], #[case] values: Value) {
    let Some(helm) = Helm::find("pk_022") else { return };
    let Some(mut kustomized) = overlay(components) else { return };
    // The base has a namespace, which a chart leaves to `helm install --create-namespace`.
    kustomized.retain(|object| object["kind"] != "Namespace");
    let mut values = values;
    values["crds"] = json!({"keep": false});
    values["priority"] = json!({"quota": false});
    values["topologySpreadConstraints"] = json!([]);
    values["uninstallGuard"] = json!({"enabled": false});
    let text = helm.template("base", NAMESPACE, &values, &OPERATORS).expect("rendered");
    let mut charted: Vec<Value> = objects(&text).into_iter().map(without_helm).collect();
    let by_name = |object: &Value| {
        format!("{} {}/{}", object["kind"], object["metadata"]["namespace"], object["metadata"]["name"])
    };
    charted.sort_by_key(by_name);
    kustomized.sort_by_key(by_name);
    let names = |objects: &[Value]| objects.iter().map(by_name).collect::<Vec<_>>();
    assert_eq!(names(&charted), names(&kustomized));
    for (one, other) in charted.iter().zip(&kustomized) {
        assert_eq!(one, other, "{}", by_name(one));
    }
}
