use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::{
    hooks::Hook,
    testing::{Cluster, ask, cluster, delete, eventually, get, gone},
};
use kube_protocol::request::Verb;

const NAMESPACE: &str = "/api/v1/namespaces/a";
const MAPS: &str = "/api/v1/namespaces/a/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

async fn with_namespace() -> Cluster {
    let cluster = cluster([]);
    ask(&cluster, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.unwrap();
    cluster
}

fn refuse(cluster: &Cluster, verb: Verb, resource: &str, times: u32) {
    let resource = Some(resource.to_owned());
    cluster.server.apply_hook(Hook::FailNext { verb: Some(verb), resource, status: 403, times }).unwrap();
}

/// Status, reason and message of a condition.
fn condition(object: &Value, kind: &str) -> Option<[String; 3]> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    Some(["/status", "/reason", "/message"].map(|field| text(found, field).to_owned()))
}

#[tokio::test(start_paused = true)]
async fn a_namespace_shows_refused_deletions_and_is_deleted_without_them() {
    let cluster = with_namespace().await;
    ask(&cluster, "POST", MAPS, &json!({"metadata": {"name": "m"}})).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    delete(&cluster, NAMESPACE).await;
    refuse(&cluster, Verb::Delete, "configmaps", 6);
    let shown = eventually("the condition of the namespace", async || {
        condition(&get(&cluster, NAMESPACE).await.ok()?, "NamespaceDeletionContentFailure")
    })
    .await;
    let message = "Failed to delete all resource types, 1 remaining: a hook for tests refuses to delete configmaps";
    assert_eq!(shown, ["True", "ContentDeletionFailed", message]);
    gone(&cluster, NAMESPACE).await;
    assert_eq!(get(&cluster, &format!("{MAPS}/m")).await, Err(404));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_shows_remaining_contents_and_finalizers() {
    let cluster = with_namespace().await;
    let held = json!({"metadata": {"name": "m", "finalizers": ["example.com/hold"]}});
    ask(&cluster, "POST", MAPS, &held).await.unwrap();
    delete(&cluster, NAMESPACE).await;
    let namespace = eventually("the condition of the namespace", async || {
        let namespace = get(&cluster, NAMESPACE).await.ok()?;
        condition(&namespace, "NamespaceContentRemaining").map(|_| namespace)
    })
    .await;
    let remaining =
        ["True", "SomeResourcesRemain", "Some resources are remaining: configmaps. has 1 resource instances"];
    assert_eq!(condition(&namespace, "NamespaceContentRemaining").unwrap(), remaining);
    let finalizers = "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances";
    assert_eq!(
        condition(&namespace, "NamespaceFinalizersRemaining").unwrap(),
        ["True", "SomeFinalizersRemain", finalizers]
    );
    assert_eq!(condition(&namespace, "NamespaceDeletionContentFailure").unwrap()[0], "False");
    ask(&cluster, "PATCH", &format!("{MAPS}/m"), &json!({"metadata": {"finalizers": null}})).await.unwrap();
    gone(&cluster, NAMESPACE).await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_deleted_before_all_other_contents() {
    let cluster = with_namespace().await;
    let pod = json!({"metadata": {"name": "p", "finalizers": ["example.com/hold"]},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    ask(&cluster, "POST", &format!("{NAMESPACE}/pods"), &pod).await.unwrap();
    ask(&cluster, "POST", MAPS, &json!({"metadata": {"name": "m"}})).await.unwrap();
    delete(&cluster, NAMESPACE).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    get(&cluster, &format!("{MAPS}/m")).await.expect("the pod is there");
    let pod = format!("{NAMESPACE}/pods/p");
    ask(&cluster, "PATCH", &pod, &json!({"metadata": {"finalizers": null}})).await.unwrap();
    gone(&cluster, NAMESPACE).await;
}

#[tokio::test(start_paused = true)]
async fn a_definition_shows_refused_deletions_and_is_deleted_without_them() {
    let cluster = with_namespace().await;
    let definition = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]},
    });
    ask(&cluster, "POST", DEFINITIONS, &definition).await.unwrap();
    let things = "/apis/example.com/v1/namespaces/a/things";
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}});
    ask(&cluster, "POST", things, &thing).await.unwrap();
    let place = format!("{DEFINITIONS}/things.example.com");
    delete(&cluster, &place).await;
    refuse(&cluster, Verb::Delete, "things", 6);
    // The removal of the finalizer is refused a few times, too.
    refuse(&cluster, Verb::Patch, "customresourcedefinitions", 3);
    let shown = eventually("the condition of the definition", async || {
        condition(&get(&cluster, &place).await.ok()?, "Terminating")
    })
    .await;
    assert_eq!([shown[0].as_str(), shown[1].as_str()], ["True", "InstanceDeletionFailed"]);
    assert!(shown[2].contains("a hook for tests refuses to delete things"), "{shown:?}");
    gone(&cluster, &place).await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_node_are_deleted_although_requests_are_refused_at_first() {
    let cluster = with_namespace().await;
    ask(&cluster, "POST", "/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await.unwrap();
    let pod = |name: &str, node: &str| json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
    for (name, node) in [("p", "n"), ("q", "n"), ("r", "other")] {
        ask(&cluster, "POST", &format!("{NAMESPACE}/pods"), &pod(name, node)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    delete(&cluster, "/api/v1/nodes/n").await;
    refuse(&cluster, Verb::Delete, "pods", 3);
    gone(&cluster, &format!("{NAMESPACE}/pods/p")).await;
    gone(&cluster, &format!("{NAMESPACE}/pods/q")).await;
    get(&cluster, &format!("{NAMESPACE}/pods/r")).await.expect("its node never existed");
}

/// Delays deletions, like a webhook that does not answer.
fn delay_deletions(cluster: &Cluster, resource: &str) {
    let resource = Some(resource.to_owned());
    cluster.server.apply_hook(Hook::Delay { verb: Some(Verb::Delete), resource, milliseconds: 30_000 }).unwrap();
}

#[tokio::test(start_paused = true)]
async fn slow_deletions_do_not_delay_other_namespaces_and_pods() {
    let cluster = with_namespace().await;
    ask(&cluster, "POST", MAPS, &json!({"metadata": {"name": "m"}})).await.unwrap();
    ask(&cluster, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "b"}})).await.unwrap();
    ask(&cluster, "POST", "/api/v1/namespaces/b/secrets", &json!({"metadata": {"name": "s"}})).await.unwrap();
    ask(&cluster, "POST", "/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await.unwrap();
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    ask(&cluster, "POST", "/api/v1/namespaces/default/pods", &pod).await.unwrap();
    delay_deletions(&cluster, "configmaps");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    delete(&cluster, NAMESPACE).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    delete(&cluster, "/api/v1/namespaces/b").await;
    delete(&cluster, "/api/v1/nodes/n").await;
    gone(&cluster, "/api/v1/namespaces/b").await;
    gone(&cluster, "/api/v1/namespaces/default/pods/p").await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    get(&cluster, NAMESPACE).await.expect("its map is being deleted");
    tokio::time::sleep(Duration::from_secs(20)).await;
    gone(&cluster, NAMESPACE).await;
}
