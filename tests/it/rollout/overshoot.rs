//! The overshoot guard on a real API server. A set with far too many machines is frozen together with its deployment, deletes the surplus machines,
//! creates no machine meanwhile, and is unfrozen when the surplus is gone.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    fleet::{self, describe, running_machines},
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        cluster_object::{name, number, text},
        wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(120);
/// The desired machines. With a surge of one and the default `--safety-up` of 2, five machines are too many.
const WANTED: u32 = 2;

#[tokio::test(flavor = "multi_thread")]
async fn a_set_with_too_many_machines_is_frozen_until_the_surplus_is_gone() {
    let Some(rig) = Rig::own("rollout::overshoot::a_set_with_too_many_machines").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("crowd").await;
    let manager = start_with(&rig, &namespace, "*").await;
    namespace.apply(&fleet::manifests(&namespace.name, "crowd", WANTED, "class-a")).await.succeed();
    let machines = running_machines(&namespace, WANTED as usize, TIMEOUT).await;
    stop(manager);

    // No controller deletes the surplus, so that only the effect of the guard is visible at first.
    for number in 0..4 {
        namespace.apply(&twin(&machines[0], number).to_string()).await.succeed();
    }
    let manager = start_with(&rig, &namespace, "*,-machineset").await;
    wait_until("set and deployment to be frozen", TIMEOUT, || async {
        let set = the_set(&namespace).await;
        let said = "is 6 >= 5 which is the Max-ScaleUp-Limit";
        expect(is_frozen(&set) && frozen_condition(&set, "machineSetCondition").contains(said), || set.to_string())?;
        let deployment = namespace.get("machinedeployment", "crowd").await;
        expect(is_frozen(&deployment) && !frozen_condition(&deployment, "conditions").is_empty(), || {
            deployment.to_string()
        })
    })
    .await;
    running_machines(&namespace, 6, TIMEOUT).await;

    // A frozen set deletes its surplus and does not replace a lost machine, also while the guard does not run.
    stop(manager);
    let manager = start_with(&rig, &namespace, "*,-machinesafetyovershooting").await;
    let left = running_machines(&namespace, WANTED as usize, TIMEOUT).await;
    namespace.kubectl(&["delete", "machine", name(&left[0])]).await.succeed();
    wait_until("the set to count one machine", TIMEOUT, || async {
        let (set, machines) = (the_set(&namespace).await, namespace.list("machines").await);
        let seen = || machines.iter().map(describe).collect::<Vec<_>>().join("\n") + &set["status"].to_string();
        expect(machines.len() == 1 && number(&set, "/status/replicas") == 1, seen)
    })
    .await;
    assert!(is_frozen(&the_set(&namespace).await));

    stop(manager);
    let _manager = start_with(&rig, &namespace, "*").await;
    running_machines(&namespace, WANTED as usize, TIMEOUT).await;
    wait_until("label and condition of the freeze to be removed", TIMEOUT, || async {
        let (set, deployment) = (the_set(&namespace).await, namespace.get("machinedeployment", "crowd").await);
        let frozen = [(&set, "machineSetCondition"), (&deployment, "conditions")]
            .map(|(object, conditions)| is_frozen(object) || !frozen_condition(object, conditions).is_empty());
        expect(frozen == [false, false], || format!("{set}\n{deployment}"))
    })
    .await;
    let events = namespace.list("events").await;
    for reason in ["FrozeMachineSet", "UnfrozeMachineSet"] {
        assert!(events.iter().any(|event| text(event, "/reason") == reason), "no event {reason}");
    }
}

async fn start_with(rig: &Arc<Rig>, namespace: &Namespace, controllers: &str) -> TestManager {
    let flags = vec![format!("--controllers={controllers}"), "--machine-safety-overshooting-period=1s".to_owned()];
    TestManager::start(rig, namespace, &ManagerOptions { flags, ..ManagerOptions::default() }).await
}

fn stop(mut manager: TestManager) {
    assert_eq!(manager.terminate(), 0);
}

/// Another machine of the same set.
fn twin(machine: &Value, number: u32) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1",
        "kind": "Machine",
        "metadata": {
            "name": format!("twin-{number}"),
            "namespace": machine["metadata"]["namespace"],
            "labels": {
                "fleet": "crowd",
                "machine-template-hash": machine["metadata"]["labels"]["machine-template-hash"],
            },
            "ownerReferences": machine["metadata"]["ownerReferences"],
        },
        "spec": { "class": machine["spec"]["class"] },
    })
}

async fn the_set(namespace: &Namespace) -> Value {
    namespace.list("machinesets").await.into_iter().next().expect("a set")
}

fn is_frozen(object: &Value) -> bool {
    text(object, "/metadata/labels/freeze") == "True"
}

/// The message of the condition `Frozen`; empty without the condition.
fn frozen_condition(object: &Value, conditions: &str) -> String {
    let all = object["status"][conditions].as_array().cloned().unwrap_or_default();
    all.iter().find(|one| one["type"] == "Frozen").map(|one| text(one, "/message").to_owned()).unwrap_or_default()
}
