//! Events on the Nodes of replaced machines, in the target cluster.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    fleet,
    support::{ManagerOptions, Namespace, Rig, Rights, TestManager, cluster_object::text, wait::expect, wait_until},
};

/// The longest time for a machine to be replaced.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The events of the reason, as pairs of Node and message.
async fn replacements(rig: &Rig) -> Vec<(String, String)> {
    let query = ["get", "events", "-n", "default", "--field-selector=reason=NodeReplacement", "-o", "json"];
    let events = rig.kubectl(&query).await.json();
    let of = |event: &Value| {
        assert_eq!((&event["type"], &event["involvedObject"]["kind"]), (&"Normal".into(), &"Node".into()), "{event}");
        assert_eq!(event["count"], 1, "{event}");
        (text(event, "/involvedObject/name").to_owned(), text(event, "/message").to_owned())
    };
    events["items"].as_array().expect("a list").iter().map(of).collect()
}

/// The Nodes of all machines.
async fn nodes(namespace: &Namespace) -> Vec<String> {
    let machines = namespace.list("machines").await;
    let mut nodes: Vec<String> =
        machines.iter().map(|machine| text(machine, "/metadata/labels/node").to_owned()).collect();
    nodes.sort();
    nodes
}

/// Waits until the fleet has exactly `count` machines, none of them named here, and the replacements are of these Nodes.
async fn replaced(
    rig: &Rig,
    namespace: &Namespace,
    count: usize,
    old: &[String],
    expected: usize,
) -> Vec<(String, String)> {
    wait_until("the machines to be replaced", TIMEOUT, || async {
        let machines = namespace.list("machines").await;
        let running = machines.iter().filter(|machine| fleet::phase(machine) == "Running").count();
        let left = nodes(namespace).await.iter().filter(|node| old.contains(node)).count();
        let events = replacements(rig).await;
        let done = (machines.len(), running, left, events.len()) == (count, count, 0, expected);
        expect(done, || format!("{running} of {} run, {left} old, {events:?}", machines.len())).map(|()| events)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_108_each_replaced_node_gets_one_event_with_its_reason() {
    let Some(rig) = Rig::own("node_events::pk_108").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("events").await;
    // The rights of the manifests must be enough.
    let options = ManagerOptions { rights: Rights::Generated, ..ManagerOptions::default() };
    let _manager = TestManager::start(&rig, &namespace, &options).await;
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 2, "c")).await.succeed();
    fleet::running_machines(&namespace, 2, TIMEOUT).await;
    assert_eq!(replacements(&rig).await, [], "nothing was replaced");
    let first = nodes(&namespace).await;

    let newer = r#"{"spec": {"template": {"metadata": {"labels": {"round": "2"}}}}}"#;
    namespace.kubectl(&["patch", "machinedeployment", "pool", "--type=merge", "-p", newer]).await.succeed();
    let events = replaced(&rig, &namespace, 2, &first, 2).await;
    let mut named: Vec<String> = events.iter().map(|(node, _)| node.clone()).collect();
    named.sort();
    assert_eq!(named, first, "each old Node has one event");
    assert!(
        events.iter().all(|(_, message)| message.ends_with("MachineDeployment pool has a newer template")),
        "{events:?}"
    );

    // A machine that somebody deletes is replaced, too.
    let second = nodes(&namespace).await;
    let machines = namespace.list("machines").await;
    let gone =
        machines.iter().find(|machine| text(machine, "/metadata/labels/node") == second[0]).expect("it is there");
    namespace.kubectl(&["delete", "machine", text(gone, "/metadata/name"), "--wait=false"]).await.succeed();
    let events = replaced(&rig, &namespace, 2, &second[..1], 3).await;
    let (_, message) = events.iter().find(|(node, _)| *node == second[0]).expect("it has an event");
    assert!(message.contains("it was deleted, and MachineSet pool-"), "{message}");

    // A machine that is not needed any more is not replaced. Times of objects have whole seconds: a machine that is deleted in the second in which another
    // is made counts as replaced by it.
    let made = namespace.list("machines").await;
    let made = made.iter().map(|machine| text(machine, "/metadata/creationTimestamp").parse::<Timestamp>());
    let last = made.map(|made| made.expect("a time").as_second()).max().expect("a machine");
    wait_until("the second of the last creation to end", TIMEOUT, || async {
        expect(Timestamp::now().as_second() > last, || "it lasts".to_owned())
    })
    .await;
    namespace.kubectl(&["scale", "machinedeployment", "pool", "--replicas=1"]).await.succeed();
    fleet::running_machines(&namespace, 1, TIMEOUT).await;
    assert_eq!(replacements(&rig).await.len(), 3);
}
