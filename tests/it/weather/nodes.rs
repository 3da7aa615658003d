//! VMs and Nodes that are deleted by others, and unresponsive kubelets: one of fifty, and all fifty.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fleet::{describe, phase},
    support::{
        cluster_object::{name, text},
        wait::expect,
        wait_until,
    },
    weather::{TIMEOUT, Weather, explanation, names, node_of},
};

const MANY: u32 = 50;

#[tokio::test(flavor = "multi_thread")]
async fn what_vanishes_is_replaced_and_what_is_well_stays() {
    let flags = ["--machine-health-timeout=4s"];
    let Some(weather) = Weather::begin("weather::nodes::what_vanishes_is_replaced", &flags).await else { return };
    weather.want(3).await;
    weather.wait_until_healthy(3).await;
    a_vm_vanishes(&weather).await;
    a_node_is_deleted(&weather).await;
}

async fn a_vm_vanishes(weather: &Weather) {
    let before = weather.wait_until_healthy(3).await;
    let (lost, node) = (name(&before[0]).to_owned(), node_of(&before[0]).to_owned());
    weather.cloud.does(&lost, "vanish").await;
    weather.set_nodes_ready(&[&node], "Unknown").await;
    let unhealthy = weather.wait_for_machine("the machine to report its unresponsive Node", |machine| {
        name(machine) == lost && phase(machine) != "Running"
    });
    assert!(!explanation(&unhealthy.await).is_empty(), "the machine explains why");
    let after = replaced(weather, &lost, 3).await;
    assert_eq!(names(&before).intersection(&names(&after)).count(), 2, "the others stay");
}

async fn a_node_is_deleted(weather: &Weather) {
    let before = weather.wait_until_healthy(3).await;
    let (lost, node) = (name(&before[0]).to_owned(), node_of(&before[0]).to_owned());
    weather.rig.kubectl(&["delete", "node", &node, "--wait=false"]).await.succeed();
    let after = replaced(weather, &lost, 3).await;
    assert_eq!(names(&before).intersection(&names(&after)).count(), 2, "the others stay");
}

async fn replaced(weather: &Weather, lost: &str, replicas: usize) -> Vec<serde_json::Value> {
    wait_until(&format!("machine {lost} to go"), TIMEOUT, || async {
        let machines = weather.namespace.list("machines").await;
        expect(!names(&machines).contains(lost), || machines.iter().map(|machine| describe(machine) + "\n").collect())
    })
    .await;
    weather.wait_until_healthy(replicas).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_silent_kubelet_is_replaced_and_fifty_are_not_all_at_once() {
    let flags = ["--machine-health-timeout=4s"];
    let Some(weather) = Weather::begin("weather::nodes::one_silent_kubelet", &flags).await else { return };
    weather.want(MANY).await;
    let before = weather.wait_until_healthy(MANY as usize).await;

    let (lost, node) = (name(&before[0]).to_owned(), node_of(&before[0]).to_owned());
    weather.cloud.does(&lost, "freeze-heartbeat").await;
    weather.set_nodes_ready(&[&node], "Unknown").await;
    let after = replaced(&weather, &lost, MANY as usize).await;
    assert_eq!(names(&before).intersection(&names(&after)).count(), MANY as usize - 1, "the 49 healthy machines stay");

    // All at once: the cause is more likely the network than fifty kubelets. Therefore machines fail one after the other.
    let group = names(&after);
    let nodes: Vec<&str> = after.iter().map(node_of).collect();
    weather.set_nodes_ready(&nodes, "Unknown").await;
    let until = tokio::time::Instant::now() + Duration::from_secs(10);
    let mut most = 0;
    while tokio::time::Instant::now() < until {
        let machines = weather.namespace.list("machines").await;
        let failing = machines.iter().filter(|machine| matches!(phase(machine), "Failed" | "Terminating")).count();
        most = most.max(failing);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(most <= 2, "{most} machines fail at once");
    weather.wait_until_explained().await;
    // The network works again.
    let left: Vec<String> =
        weather.namespace.list("machines").await.iter().map(|machine| node_of(machine).to_owned()).collect();
    let left: BTreeSet<&str> = left.iter().map(String::as_str).filter(|node| !node.is_empty()).collect();
    weather.set_nodes_ready(&left.into_iter().collect::<Vec<_>>(), "True").await;
    let recovered = weather.wait_until_healthy(MANY as usize).await;
    let stayed = group.intersection(&names(&recovered)).count();
    assert!(stayed >= MANY as usize - 12, "only {stayed} of {MANY} machines survived a short outage");
    let running = recovered.iter().filter(|machine| text(machine, "/status/currentStatus/phase") == "Running").count();
    assert_eq!(running, MANY as usize);
}
