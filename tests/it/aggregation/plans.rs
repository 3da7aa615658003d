//! Plans through an aggregating API server: the predicted result of a change, and of a drain. The ids come from the specification.

use std::{collections::BTreeMap, time::Duration};

use futures::TryStreamExt;
use kube::core::WatchEvent;
use serde_json::{Value, json};

use super::views::with_a_fleet;
use crate::{
    fleet::phase,
    guard,
    support::{
        cluster_object::{name, text},
        wait_until,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn xa_147_xa_148_a_proposal_is_answered_and_nothing_is_stored() {
    let Some((world, _)) = with_a_fleet("aggregation::plans::a_proposal", &[]).await else { return };
    let namespace = &world.namespace;
    let review = json!({
        "apiVersion": "views.machine.sapcloud.io/v1alpha1", "kind": "RolloutPlan", "metadata": {"name": "what-if"},
        "spec": {"machineDeploymentName": "pool", "proposed": {"replicas": 5}},
    });
    let file = world.rig.folder.join("rolloutplan.json");
    std::fs::write(&file, review.to_string()).expect("the rig's folder is writable");
    let file = file.display().to_string();
    let plan = async |further: &[&str]| {
        let mut arguments = vec!["create", "-f", &file, "-o", "json"];
        arguments.extend_from_slice(further);
        let mut plan = namespace.kubectl(&arguments).await.json();
        plan["status"]["observedAt"] = Value::Null;
        plan
    };
    let first = plan(&[]).await;
    assert!(first["status"]["steps"].as_array().is_some_and(|steps| !steps.is_empty()), "XA-147: {first:#}");
    assert_eq!(first["status"]["toCreate"], 3, "XA-147: {first:#}");
    assert_eq!(plan(&["--dry-run=server"]).await["status"], first["status"], "XA-148");
    let stored = namespace.kubectl(&["get", "rolloutplan", "what-if"]).await.fail();
    assert!(stored.contains("not found"), "XA-147: {stored}");
    let table = namespace.kubectl(&["get", "rop", "pool"]).await;
    assert!(
        table.stdout.contains("STRATEGY") && table.stdout.contains("RollingUpdate"),
        "{}{}",
        table.stdout,
        table.stderr
    );
    let deployment = namespace.get("machinedeployment", "pool").await;
    assert_eq!(deployment["spec"]["replicas"], 2, "nothing was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_152_a_plan_names_the_budget_that_blocks() {
    let Some((world, machines)) = with_a_fleet("aggregation::plans::the_budget", &[]).await else { return };
    world.rig.with_controller_manager().await;
    let (namespace, machine) = (&world.namespace, machines[0].as_str());
    let node = text(&namespace.get("machine", machine).await, "/metadata/labels/node").to_owned();
    guard::a_pod_on(namespace, &node).await;
    let blocked = wait_until("the plan to name pod and budget", std::time::Duration::from_secs(60), || async {
        let answer = namespace.kubectl(&["get", "drainplan", machine, "-o", "json"]).await;
        if !answer.succeeded() {
            return Err(answer.stderr);
        }
        let plan = answer.json();
        let blocked = plan["status"]["blocked"].as_array().cloned().unwrap_or_default();
        blocked.into_iter().next().ok_or_else(|| plan["status"].to_string())
    })
    .await;
    assert_eq!(blocked["name"], guard::NAME, "{blocked}");
    assert_eq!(blocked["budget"]["name"], guard::NAME, "{blocked}");
    // A budget that needs one pod and selects one pod can never allow an eviction.
    assert_eq!(blocked["misconfigured"], true, "{blocked}");
    let table = namespace.kubectl(&["get", "drp", machine]).await;
    assert!(table.stdout.contains("BLOCKED") && table.stdout.contains(&node), "{}{}", table.stdout, table.stderr);
    assert_eq!(namespace.list("pods").await.len(), 1, "nothing was drained");
}

/// The result of a rollout: the machines in the order of their deletion, the highest number of machines, and the lowest number of available machines.
#[derive(Debug, PartialEq, Eq)]
struct Rollout {
    deleted: Vec<String>,
    most: usize,
    least: usize,
}

/// Follows the machines until all old ones are deleted and the same number of new ones runs.
async fn follow(client: kube::Client, path: String, version: String, old: Vec<String>) -> Rollout {
    let request = http::Request::get(format!("{path}?watch=1&resourceVersion={version}")).body(Vec::new());
    let events = client.request_events::<Value>(request.expect("a request")).await.expect("a watch");
    let mut events = std::pin::pin!(events);
    let mut machines: BTreeMap<String, Value> = BTreeMap::new();
    let mut observed = Rollout { deleted: Vec::new(), most: 0, least: usize::MAX };
    let is_there = |machine: &&Value| {
        machine["metadata"].get("deletionTimestamp").is_none() && ["Available", "Running"].contains(&phase(machine))
    };
    while let Some(event) = events.try_next().await.expect("an event") {
        match event {
            WatchEvent::Added(machine) | WatchEvent::Modified(machine) => {
                let name = name(&machine).to_owned();
                if machine["metadata"].get("deletionTimestamp").is_some() && !observed.deleted.contains(&name) {
                    observed.deleted.push(name.clone());
                }
                machines.insert(name, machine);
            }
            WatchEvent::Deleted(machine) => drop(machines.remove(name(&machine))),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(error) => panic!("{error:?}"),
        }
        // The watch begins with one event per existing machine.
        if old.iter().all(|name| machines.contains_key(name) || observed.deleted.contains(name)) {
            let there = machines.values().filter(is_there).count();
            (observed.most, observed.least) = (observed.most.max(machines.len()), observed.least.min(there));
        }
        let is_new = |machine: &&Value| !old.contains(&name(machine).to_owned());
        if machines.values().all(|machine| is_new(&machine)) && machines.values().filter(is_there).count() == old.len()
        {
            return observed;
        }
    }
    panic!("the watch ended: {observed:?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_equals_the_rollout() {
    let Some((world, machines)) = with_a_fleet("aggregation::plans::a_plan_equals_the_rollout", &[]).await else {
        return;
    };
    let namespace = &world.namespace;
    let mut template = namespace.get("machinedeployment", "pool").await["spec"]["template"].clone();
    template["metadata"]["labels"]["round"] = json!("2");
    let review = json!({
        "apiVersion": "views.machine.sapcloud.io/v1alpha1", "kind": "RolloutPlan", "metadata": {"name": "what-if"},
        "spec": {
            "machineDeploymentName": "pool", "proposed": {"template": template},
            "assume": {"createDuration": "1s", "drainDuration": "1s"},
        },
    });
    let file = world.rig.folder.join("what-if.json");
    std::fs::write(&file, review.to_string()).expect("the rig's folder is writable");
    let plan = namespace.kubectl(&["create", "-f", &file.display().to_string(), "-o", "json"]).await.json();
    let count = |field: &str| plan["status"][field].as_u64().and_then(|count| usize::try_from(count).ok());
    let gone = plan["status"]["toReplace"]
        .as_array()
        .expect("machines")
        .iter()
        .map(|one| name(&json!({"metadata": one})).to_owned());
    let planned = Rollout {
        deleted: gone.collect(),
        most: count("peakMachines").expect("a count"),
        least: count("minAvailable").expect("a count"),
    };
    assert_eq!(planned.deleted.len(), 2, "{plan:#}");

    let path = format!("/apis/machine.sapcloud.io/v1alpha1/namespaces/{}/machines", namespace.name);
    // The watch starts at resource version 0, so that its first events show the existing machines.
    let following = tokio::spawn(follow(world.rig.client().await, path, "0".to_owned(), machines));
    let change = json!({"spec": {"template": template}}).to_string();
    namespace.kubectl(&["patch", "machinedeployment", "pool", "--type=merge", "-p", &change]).await.succeed();
    let done = tokio::time::timeout(Duration::from_secs(120), following).await.expect("the rollout ends");
    assert_eq!(done.expect("the watch goes on"), planned, "{plan:#}");
}
