//! The number of writes that a fleet costs the API server, by the API server's own metrics.
//!
//! Counts every write of our kinds, Nodes, Secrets and Events, including the writes of the simulated kubelets, but no Leases. Source of the budget:
//! spec/machine-controller §16.2.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet,
    support::{ManagerOptions, Rig, TestManager, cluster_object::number, wait::expect, wait_until},
};

const MACHINES: u32 = 50;
const BUDGET: f64 = 8.0;
const RESOURCES: [&str; 7] =
    ["machines", "machinesets", "machinedeployments", "machineclasses", "nodes", "secrets", "events"];
const WRITES: [&str; 5] = ["POST", "PUT", "PATCH", "DELETE", "APPLY"];

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_costs_few_writes_and_an_idle_fleet_none() {
    let Some(rig) = Rig::own("write_budget::a_machine_costs_few_writes").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("budget").await;
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;

    let before = writes(&rig).await;
    namespace.apply(&fleet::manifests(&namespace.name, "budget", MACHINES, "class-a")).await.succeed();
    fleet::running_machines(&namespace, MACHINES as usize, Duration::from_secs(120)).await;
    wait_until("the deployment's status", Duration::from_secs(30), || async {
        let deployment = namespace.get("machinedeployment", "budget").await;
        expect(number(&deployment, "/status/availableReplicas") == i64::from(MACHINES), || {
            deployment["status"].to_string()
        })
    })
    .await;
    let creation = difference(&writes(&rig).await, &before);
    let table = creation.iter().map(|(key, count)| format!("{key}: {count}")).collect::<Vec<_>>().join("\n");
    println!("{table}");

    let per_machine = f64::from(creation.values().sum::<u32>()) / f64::from(MACHINES);
    assert!(per_machine <= BUDGET, "{per_machine:.2} writes per machine, {BUDGET} are allowed:\n{table}");
    let of = |key: &str| creation.get(key).copied().unwrap_or_default();
    assert_eq!(of("machines POST"), MACHINES, "{table}");
    // One patch for the finalizer, because no webhook sets it in this test, and one for node label, priority and provider id.
    assert!(of("machines PATCH") <= 2 * MACHINES, "{table}");
    // Pending and Running.
    assert!(of("machines/status PATCH") <= 2 * MACHINES, "{table}");
    assert_eq!(of("machines PUT") + of("machines/status PUT"), 0, "whole objects are never written back:\n{table}");

    let before = writes(&rig).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let mut idle = difference(&writes(&rig).await, &before);
    // Simulated kubelets write their status from time to time.
    idle.retain(|key, _| !key.starts_with("nodes/status"));
    assert_eq!(idle, BTreeMap::new(), "an idle fleet causes no writes");
}

/// The number of successful and failed writes by `resource/subresource VERB`.
async fn writes(rig: &Rig) -> BTreeMap<String, u32> {
    let metrics = rig.kubectl(&["get", "--raw", "/metrics"]).await.succeed();
    let mut counts = BTreeMap::new();
    for line in metrics.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{")) {
        let Some((labels, count)) = line.rsplit_once("} ") else { continue };
        let (resource, verb) = (label(labels, "resource"), label(labels, "verb"));
        if RESOURCES.contains(&resource) && WRITES.contains(&verb) {
            let key = match label(labels, "subresource") {
                "" => format!("{resource} {verb}"),
                subresource => format!("{resource}/{subresource} {verb}"),
            };
            let count: f64 = count.trim().parse().expect("a metric is a number");
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let count = count as u32;
            *counts.entry(key).or_default() += count;
        }
    }
    counts
}

/// The value of a label in `a="x",b="y"`. Empty if it is absent.
fn label<'a>(labels: &'a str, name: &str) -> &'a str {
    labels
        .split("\",")
        .filter_map(|label| label.split_once("=\""))
        .find(|(key, _)| *key == name)
        .map_or("", |(_, value)| value.trim_end_matches('"'))
}

fn difference(after: &BTreeMap<String, u32>, before: &BTreeMap<String, u32>) -> BTreeMap<String, u32> {
    let grown = |(key, count): (&String, &u32)| {
        let more = count - before.get(key).copied().unwrap_or_default();
        (more > 0).then(|| (key.clone(), more))
    };
    after.iter().filter_map(grown).collect()
}

#[test]
fn labels_are_read() {
    let labels = r#"code="201",group="machine.sapcloud.io",resource="machines",subresource="",verb="POST""#;
    assert_eq!(
        (label(labels, "resource"), label(labels, "subresource"), label(labels, "verb")),
        ("machines", "", "POST")
    );
    assert_eq!(label(labels, "dry_run"), "");
}
