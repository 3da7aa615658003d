//! Rollouts as a user sees them: a budget that blocks one node, a rollback, and in-place updates.

mod overshoot;
mod takeover;

use std::{
    collections::BTreeSet,
    sync::Mutex,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    fleet::{self, describe, rolled_out, running_machines},
    guard,
    support::{
        ManagerOptions, Namespace, Rig, Rights, TestManager,
        cluster_object::{condition, name, number, text},
        manager::mcm,
        wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(240);
/// A deployment names an old machine that takes longer than this to be deleted, for whatever reason.
const USUAL: SignedDuration = SignedDuration::from_secs(30);
/// The number of machines in the rollout against a budget; `MCM_TEST_ROLLOUT` changes it.
const MACHINES: u32 = 20;

fn size() -> u32 {
    std::env::var("MCM_TEST_ROLLOUT").ok().and_then(|text| text.parse().ok()).unwrap_or(MACHINES)
}

/// A fleet with this class and this rollout strategy.
fn manifests(namespace: &Namespace, deployment: &str, replicas: u32, class: &str, strategy: &Value) -> String {
    let mut list: Value = serde_json::from_str(&fleet::manifests(&namespace.name, deployment, replicas, class))
        .expect("the manifests are JSON");
    list["items"][2]["spec"]["strategy"] = strategy.clone();
    list.to_string()
}

fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

fn class_of(machine: &Value) -> &str {
    text(machine, "/spec/class/name")
}

/// The condition `Progressing` as `reason: message`.
fn progress(deployment: &Value) -> String {
    let conditions = deployment.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let progressing = conditions.iter().find(|condition| text(condition, "/type") == "Progressing");
    progressing.map(|found| format!("{}: {}", text(found, "/reason"), text(found, "/message"))).unwrap_or_default()
}

/// The reasons and messages of the events of an object.
async fn events_of(namespace: &Namespace, object: &str) -> Vec<String> {
    let events = namespace.list("events").await;
    let about = events.iter().filter(|event| text(event, "/involvedObject/name") == object);
    about.map(|event| format!("{}: {}", text(event, "/reason"), text(event, "/message"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_node_holds_up_itself_alone_and_every_revision_can_come_back() {
    let Some(rig) = Rig::own("rollout::a_blocked_node_holds_up_itself_alone").await else { return };
    rig.with_controller_manager().await;
    rig.install_crds().await;
    let namespace = rig.namespace("rollout").await;
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "10%", "maxUnavailable": 0 } });
    namespace.apply(&manifests(&namespace, "fleet", size(), "class-a", &strategy)).await.succeed();
    running_machines(&namespace, size() as usize, TIMEOUT).await;

    roll_around_a_blocked_node(&namespace, &strategy).await;

    let kubeconfig = rig.manager_kubeconfig(&namespace, Rights::Everything).await.display().to_string();
    for (class, revision) in [("class-a", "1"), ("class-b", "2")] {
        namespace.apply(&manifests(&namespace, SMALL, 1, class, &strategy)).await.succeed();
        wait_until_rolled_to(&namespace, class, revision).await;
    }
    roll_back_and_forth(&namespace, &kubeconfig).await;
}

async fn roll_around_a_blocked_node(namespace: &Namespace, strategy: &Value) {
    let machines = namespace.list("machines").await;
    let (blocked, node) = (name(&machines[0]).to_owned(), text(&machines[0], "/metadata/labels/node").to_owned());
    guard::a_pod_on(namespace, &node).await;
    let replicas = i64::from(size());
    let most = usize::try_from(size() + size().div_ceil(10)).expect("a few hundred");
    let kubectl = namespace.watching("machinedeployment", "fleet");
    let begun = Instant::now();
    let messages = Mutex::new(Vec::<(String, Timestamp)>::new());
    let watch = |deployment: &Value| {
        let line = progress(deployment);
        let mut messages = messages.lock().expect("no holder of the lock panics");
        if messages.last().is_none_or(|(last, _)| *last != line) {
            println!("{:5.1} s {} {line}", begun.elapsed().as_secs_f64(), deployment["status"]["updatedReplicas"]);
            messages.push((line, Timestamp::now()));
        }
    };
    namespace.apply(&manifests(namespace, "fleet", size(), "class-b", strategy)).await.succeed();
    wait_until("all but the blocked machine to be replaced", TIMEOUT, || async {
        let deployment = namespace.get("machinedeployment", "fleet").await;
        watch(&deployment);
        let machines = namespace.list("machines").await;
        let staying = machines.iter().filter(|machine| !is_deleting(machine)).count();
        assert!(staying <= most, "{staying} machines, at most {most} are allowed");
        let available = machines.iter().filter(|machine| !is_deleting(machine) && fleet::phase(machine) == "Running");
        assert!(available.count() >= size() as usize, "machines are missing: {:?}", deployment["status"]);
        let old: Vec<&str> = machines.iter().filter(|machine| class_of(machine) == "class-a").map(name).collect();
        expect(old == [blocked.as_str()] && number(&deployment, "/status/updatedReplicas") == replicas, || {
            format!("old ones left: {old:?}; {}", deployment["status"])
        })
    })
    .await;
    println!("{:5.1} s all others are replaced", begun.elapsed().as_secs_f64());
    wait_until("the deployment to name the machine that it waits for", TIMEOUT, || async {
        let deployment = namespace.get("machinedeployment", "fleet").await;
        watch(&deployment);
        let said = progress(&deployment);
        expect(said.contains("Waiting for 1 old machine to end") && said.contains(&blocked), || said.clone())
    })
    .await;
    assert_eq!(condition(&namespace.get("machinedeployment", "fleet").await, "Available"), "True");
    let machine = namespace.get("machine", &blocked).await;
    let ending: Timestamp = text(&machine, "/metadata/deletionTimestamp").parse().expect("it is being deleted");
    let named = messages
        .lock()
        .expect("no holder of the lock panics")
        .iter()
        .find(|(line, _)| line.contains(&blocked))
        .map(|(_, at)| *at);
    let took = named.expect("it was just read").duration_since(ending);
    println!("{blocked} was named {took:#} after its deletion");
    assert!(took < USUAL, "{took:#} is as late as for a machine without a known reason");

    namespace.kubectl(&["delete", "poddisruptionbudget", guard::NAME]).await.succeed();
    wait_until("the rollout to be complete", TIMEOUT, || async {
        let deployment = namespace.get("machinedeployment", "fleet").await;
        watch(&deployment);
        rolled_out(&deployment, replicas)?;
        let said = progress(&deployment);
        expect(said.starts_with("NewMachineSetAvailable") && !said.contains("Waiting"), || said.clone())
    })
    .await;
    // A client that only watches sees the new machines, the one remaining old machine, and the end.
    let all = replicas.to_string();
    wait_until("kubectl's watch to show the end", TIMEOUT, || async {
        let seen = kubectl.log();
        let last: Vec<String> = seen.lines().last().unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        let is_end = last.len() > 4 && last[1..5].iter().all(|number| *number == all);
        expect(is_end && seen.lines().count() > 4, || seen.clone())
    })
    .await;
    println!("kubectl get machinedeployment fleet --watch\n{}", kubectl.log());
}

/// A deployment with few events, so that none is dropped (client-go's limit is 25 per object).
const SMALL: &str = "small";

/// Waits until the template of the small deployment and its machine have this class.
async fn wait_until_rolled_to(namespace: &Namespace, class: &str, revision: &str) {
    wait_until(&format!("{class} to be back"), TIMEOUT, || async {
        let deployment = namespace.get("machinedeployment", SMALL).await;
        rolled_out(&deployment, 1)?;
        expect(text(&deployment, "/spec/template/spec/class/name") == class, || deployment["spec"].to_string())?;
        let found = text(&deployment, "/metadata/annotations/deployment.kubernetes.io~1revision");
        expect(found == revision, || format!("revision {found}"))?;
        let mut machines = namespace.list("machines").await;
        machines.retain(|machine| text(machine, "/metadata/labels/fleet") == SMALL);
        expect(machines.len() == 1 && class_of(&machines[0]) == class, || {
            machines.iter().map(|machine| describe(machine) + "\n").collect()
        })
    })
    .await;
}

async fn roll_back_and_forth(namespace: &Namespace, kubeconfig: &str) {
    let rollback = |more: &[&str]| {
        let place = ["--kubeconfig", kubeconfig, "--namespace", namespace.name.as_str()];
        mcm(&[&["rollback", SMALL], place.as_slice(), more].concat())
    };
    let key = format!("{}/{SMALL}", namespace.name);
    let said = rollback(&["--dry-run"]);
    assert_eq!(said, format!("machinedeployment {key} would be rolled back to revision 1 (class class-a)\n"));
    assert_eq!(rollback(&[]), format!("machinedeployment {key} rolled back to revision 1 (class class-a)\n"));
    wait_until_rolled_to(namespace, "class-a", "3").await;
    let said = rollback(&["--to-revision=3"]);
    assert_eq!(said, format!("machinedeployment {key} not changed: it has the template of that revision already\n"));

    // The deprecated field, and the result for a revision that does not exist.
    let ask = |revision: i64| json!({ "spec": { "rollbackTo": { "revision": revision } } }).to_string();
    namespace.kubectl(&["patch", "machinedeployment", SMALL, "--type=merge", "-p", &ask(2)]).await.succeed();
    wait_until_rolled_to(namespace, "class-b", "4").await;
    namespace.kubectl(&["patch", "machinedeployment", SMALL, "--type=merge", "-p", &ask(99)]).await.succeed();
    wait_until("rollbackTo to be removed, and an event", TIMEOUT, || async {
        let deployment = namespace.get("machinedeployment", SMALL).await;
        expect(deployment.pointer("/spec/rollbackTo").is_none(), || deployment["spec"].to_string())?;
        let events = events_of(namespace, SMALL).await;
        let reported = |text: &str| events.iter().any(|event| event.starts_with(text));
        expect(
            reported("DeploymentRollback: Rolled back deployment \"small\" to revision 2")
                && reported("DeploymentRollbackRevisionNotFound"),
            || format!("{events:#?}"),
        )
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_kept_and_updated_in_place_one_after_the_other() {
    let Some(rig) = Rig::own("rollout::machines_are_kept_and_updated_in_place").await else { return };
    rig.with_controller_manager().await;
    rig.install_crds().await;
    let namespace = rig.namespace("in-place").await;
    let _manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    let limits = json!({ "maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Auto" });
    let strategy = json!({ "type": "InPlaceUpdate", "inPlaceUpdate": limits });
    namespace.apply(&manifests(&namespace, "kept", 3, "class-a", &strategy)).await.succeed();
    let before: BTreeSet<String> =
        running_machines(&namespace, 3, TIMEOUT).await.iter().map(|machine| name(machine).to_owned()).collect();
    namespace.apply(&manifests(&namespace, "kept", 3, "class-b", &strategy)).await.succeed();

    wait_until("all machines to be updated", TIMEOUT, || async {
        let nodes = rig.list("nodes").await;
        let selected: Vec<&Value> = nodes.iter().filter(|node| is_selected(node)).collect();
        assert!(selected.len() <= 1, "{} nodes are updated at once", selected.len());
        for node in selected.into_iter().filter(|node| is_handed_over(node)) {
            play_update_agent(&rig, name(node)).await;
        }
        let deployment = namespace.get("machinedeployment", "kept").await;
        rolled_out(&deployment, 3).and_then(|()| {
            let said = progress(&deployment);
            expect(said.starts_with("NewMachineSetAvailable"), || said.clone())
        })
    })
    .await;

    let machines = namespace.list("machines").await;
    let after: BTreeSet<String> = machines.iter().map(|machine| name(machine).to_owned()).collect();
    assert_eq!(after, before, "machines are replaced");
    let sets = namespace.list("machinesets").await;
    let new = sets.iter().find(|set| text(set, "/spec/template/spec/class/name") == "class-b").expect("a new set");
    for machine in &machines {
        assert_eq!(text(machine, "/metadata/ownerReferences/0/name"), name(new), "{}", describe(machine));
    }
    wait_until("the labels of the update to be removed from nodes and machines", TIMEOUT, || async {
        let nodes = rig.list("nodes").await;
        let machines = namespace.list("machines").await;
        let marked: Vec<String> = nodes
            .iter()
            .chain(&machines)
            .filter(|object| object["metadata"]["labels"].to_string().contains("-update"))
            .chain(nodes.iter().filter(|node| node["spec"]["unschedulable"] == true))
            .map(|object| object["metadata"].to_string())
            .collect();
        expect(marked.is_empty(), || marked.join("\n"))
    })
    .await;
    let taints = rig.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].spec.taints[*].key}"]).await.succeed();
    assert_eq!(taints.matches("critical-components-not-ready").count(), 3, "{taints}");
    assert!(!taints.contains("prefer-no-schedule"), "{taints}");
}

/// Whether the node is selected and its update has no result yet.
pub fn is_selected(node: &Value) -> bool {
    let label = |key: &str| node.pointer(&format!("/metadata/labels/node.machine.sapcloud.io~1{key}"));
    label("selected-for-update").is_some() && label("update-result").is_none()
}

/// Whether the controller has drained the node and handed it over to its agent.
pub fn is_handed_over(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "InPlaceUpdate" && condition["reason"] == "ReadyForUpdate")
}

/// Plays the agent on the node: it updates, and labels the node with the result.
pub async fn play_update_agent(rig: &Rig, node: &str) {
    let done =
        json!({ "metadata": { "labels": { "node.machine.sapcloud.io/update-result": "successful" } } }).to_string();
    rig.kubectl(&["patch", "node", node, "--type=merge", "-p", &done]).await.succeed();
}
