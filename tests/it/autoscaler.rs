//! The contract of cluster-autoscaler: it names machines, reduces the desired number by as many in a second write, and reads the status
//! (spec/deployment-and-set §16).

use std::time::Duration;

use jiff::Timestamp;
use machine_api::names::annotation;
use serde_json::json;

use crate::{
    fleet::{self, running_machines},
    support::{
        ManagerOptions, Rig, TestManager,
        cluster_object::{name, number},
        wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(120);

/// The current time in whole seconds, as the autoscaler writes it.
fn seconds() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_machines_that_the_autoscaler_names_are_deleted() {
    let Some(rig) = Rig::own("autoscaler::only_the_named_machines_are_deleted").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("scaler").await;
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    namespace.apply(&fleet::manifests(&namespace.name, "fleet", 4, "class-a")).await.succeed();
    running_machines(&namespace, 4, TIMEOUT).await;
    let mut staying: Vec<String> =
        namespace.list("machines").await.iter().map(|machine| name(machine).to_owned()).collect();
    staying.sort();
    // In the order of their names, the set would delete the other two machines.
    let named = staying.split_off(2);

    let list: Vec<String> = named.iter().map(|machine| format!("{machine}~{}", seconds())).collect();
    let trigger = format!("{}={}", annotation::TRIGGER_DELETION, list.join(","));
    namespace.kubectl(&["annotate", "machinedeployment", "fleet", &trigger]).await.succeed();
    let scale_in = json!({
        "metadata": { "annotations": { annotation::LAST_REPLICA_CHANGE_BY_SCALER: seconds() } },
        "spec": { "replicas": 2 },
    });
    let patch = scale_in.to_string();
    namespace.kubectl(&["patch", "machinedeployment", "fleet", "--type=merge", "-p", &patch]).await.succeed();

    wait_until("the named machines to go", TIMEOUT, || async {
        let machines = namespace.list("machines").await;
        for machine in &staying {
            assert!(
                machines.iter().any(|left| name(left) == machine),
                "{machine} is deleted although it was not named"
            );
        }
        let deployment = namespace.get("machinedeployment", "fleet").await;
        let counts = ["/status/replicas", "/status/availableReplicas"].map(|field| number(&deployment, field));
        expect(machines.len() == 2 && counts == [2, 2], || {
            format!("{} machines; {}", machines.len(), deployment["status"])
        })
    })
    .await;
}
