//! Probes that need a program or separate credentials: kubectl, an unknown caller, kube's watchers.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, TryStreamExt};
use http::Request;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};

use crate::support::{Rig, wait_until};

/// The number of objects that the watcher of XA-132 must not miss.
const CREATIONS: usize = 1000;
const SEVERAL_AT_ONCE: usize = 20;

const THING: &str = "{apiVersion: probe.example.com/v1, kind: Thing, metadata: {name: a}, spec: {color: red}}";

/// XA-017, XA-024, XA-039, XA-093: the output of kubectl for a server.
pub async fn kubectl(rig: &std::sync::Arc<Rig>) {
    rig.apply(super::DEFINITION).await.succeed();
    rig.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "crd", "things.probe.example.com"])
        .await
        .succeed();
    let namespace = rig.namespace("kubectl").await;
    wait_until("things to be served", Duration::from_secs(30), || async {
        let answer = namespace.kubectl(&["get", "things"]).await;
        if answer.succeeded() { Ok(()) } else { Err(answer.stderr) }
    })
    .await;
    xa_017_explain(rig).await;
    xa_024_api_resources(rig).await;
    xa_039_two_tables(&namespace).await;
    xa_093_apply_of_both_sides(&namespace).await;
}

async fn xa_017_explain(rig: &Rig) {
    wait_until("the schema to be published", Duration::from_secs(30), || async {
        let answer = rig.kubectl(&["explain", "thing.spec.replicas"]).await;
        if answer.stdout.contains("integer") { Ok(()) } else { Err(answer.stdout + &answer.stderr) }
    })
    .await;
}

async fn xa_024_api_resources(rig: &Rig) {
    let listed = rig.kubectl(&["api-resources", "--api-group=probe.example.com", "--no-headers"]).await.succeed();
    let words: Vec<&str> = listed.split_whitespace().collect();
    assert_eq!(words, ["things", "th", "probe.example.com/v1", "true", "Thing"], "{listed}");
}

async fn xa_039_two_tables(namespace: &crate::support::Namespace) {
    namespace.apply(THING).await.succeed();
    namespace.kubectl(&["create", "configmap", "m"]).await.succeed();
    let shown = namespace.kubectl(&["get", "th,cm"]).await.succeed();
    assert!(shown.contains("thing.probe.example.com/a") && shown.contains("configmap/m"), "{shown}");
    assert!(shown.contains("COLOR") && shown.contains("DATA"), "{shown}");
}

async fn xa_093_apply_of_both_sides(namespace: &crate::support::Namespace) {
    let changed = THING.replace("color: red", "color: red, replicas: 3");
    namespace.apply(THING).await.succeed();
    namespace.apply(&changed).await.succeed();
    let stored = namespace.get("thing", "a").await;
    assert_eq!(stored["spec"]["replicas"], 3, "{stored}");
    let annotation = &stored["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    assert!(annotation.as_str().is_some_and(|text| text.contains("\"replicas\":3")), "{stored}");
    let same = namespace.kubectl_with_input(&["diff", "-f", "-"], &changed).await;
    assert!(same.succeeded(), "kubectl diff finds a difference:\n{}{}", same.stdout, same.stderr);
    namespace.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &changed).await.succeed();
}

/// XA-135: a token that no user has is refused.
pub async fn xa_135_a_wrong_token(rig: &Rig) {
    let client = rig.client_with_token("nobody's").await;
    let request = Request::get("/apis").body(Vec::new()).expect("a request");
    let error = client.request_text(request).await.expect_err("the token is refused");
    let kube::Error::Api(status) = error else { panic!("no Status: {error}") };
    assert_eq!((status.code, status.reason.as_str()), (401, "Unauthorized"), "{status:?}");
}

/// XA-132: a watcher sees exactly the objects of a list.
pub async fn xa_132_a_watcher_sees_all(client: &kube::Client, namespace: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let (sender, observed) = tokio::sync::watch::channel(BTreeMap::<String, String>::new());
    let watching = watcher(maps.clone(), watcher::Config::default()).default_backoff().applied_objects();
    let follower = tokio::spawn(async move {
        let mut watching = watching.boxed();
        while let Some(event) = watching.next().await {
            let Ok(map) = event else { continue };
            let version = map.metadata.resource_version.unwrap_or_default();
            sender.send_modify(|names| drop(names.insert(map.metadata.name.unwrap_or_default(), version)));
        }
    });
    let creations = futures::stream::iter(0..CREATIONS).map(|at| {
        let maps = maps.clone();
        async move {
            let name = Some(format!("m{at:04}"));
            let map =
                ConfigMap { metadata: kube::core::ObjectMeta { name, ..Default::default() }, ..ConfigMap::default() };
            maps.create(&PostParams::default(), &map).await.map(|_| ())
        }
    });
    let made: Result<Vec<()>, kube::Error> = creations.buffer_unordered(SEVERAL_AT_ONCE).try_collect().await;
    made.expect("all are created");
    let listed = maps.list(&ListParams::default()).await.expect("the list is answered");
    let listed: BTreeMap<String, String> = listed
        .items
        .into_iter()
        .map(|map| (map.metadata.name.unwrap_or_default(), map.metadata.resource_version.unwrap_or_default()))
        .collect();
    assert!(listed.len() >= CREATIONS, "{} of {CREATIONS}", listed.len());
    wait_until("the watcher to have seen all", Duration::from_secs(30), || async {
        let seen = observed.borrow().clone();
        if seen == listed { Ok(()) } else { Err(format!("{} of {} seen", seen.len(), listed.len())) }
    })
    .await;
    follower.abort();
}
