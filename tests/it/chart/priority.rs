//! The priority class of the pods in a cluster that admits it only where a quota names it.

use serde_json::{Value, json};

use super::{
    find,
    released::{NAMESPACE, Release},
};
use crate::support::{Rig, helm::objects};

/// What the API server says about a pod of the Deployment.
async fn try_pod(release: &Release) -> crate::support::kubectl::Answer {
    let released = objects(&release.manifest());
    let mut pod = find(&released, "Deployment")["spec"]["template"].clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("probe");
    pod["metadata"]["namespace"] = json!(NAMESPACE);
    let file = release.rig.folder.join("pod.json");
    std::fs::write(&file, pod.to_string()).expect("the rig's folder is writable");
    release.kubectl(&["create", "--dry-run=server", "-f", file.to_str().expect("UTF-8")]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_033_the_quota_of_the_chart_admits_its_priority_class() {
    let why = "the development server limits no priority class";
    let Some(rig) = Rig::limiting_priorities("chart::pk_033", why).await else { return };
    let Some(release) = Release::in_cluster("pk_033", rig).await else { return };
    let values = |quota: bool| json!({"priority": {"quota": quota}});
    release.with_values("install", &values(false), &[]).expect("installed");
    let refused = try_pod(&release).await.fail();
    assert!(refused.contains("insufficient quota to match these scopes"), "{refused}");

    release.with_values("upgrade", &values(true), &[]).expect("upgraded");
    let quota = find(&objects(&release.manifest()), "ResourceQuota").clone();
    // The quota controller would do this.
    let status: Value = json!({"status": {"hard": quota["spec"]["hard"], "used": {"pods": "0"}}});
    let patch = ["patch", "resourcequota", "--subresource=status", "--type=merge", "--patch"];
    let name = quota["metadata"]["name"].as_str().expect("a name");
    release.kubectl(&[&patch[..], &[&status.to_string(), name]].concat()).await.succeed();
    try_pod(&release).await.succeed();
}
