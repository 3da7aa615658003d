//! Scenarios of drains that need the whole controller with the real module `drain`: flows that give up a drain and other
//! flows that follow, budgets that refuse, lists that never arrive.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    machine::testing::{
        cloud::Mishap,
        cluster::{Luck, MACHINE, NODES, NoticedBy, World, lock},
    },
    testing_api::{FOR_EVER, Fault},
};

const NODE: &str = "/api/v1/nodes/m-abcde";
const BUDGET: &str = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/guard";
const PODS: &str = "/api/v1/namespaces/ns/pods/";

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// A Running machine whose Node has a pod that its budget keeps.
async fn with_held_pod(name: &str) -> World {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    hold(&world, name);
    world
}

fn hold(world: &World, pod: &str) {
    world.make_pod(pod);
    world.hold(pod);
}

/// Removes the pod and its budget.
fn release(world: &World, pod: &str) {
    world.let_go(pod);
    world.api.delete(&format!("{PODS}{pod}"));
}

fn evictions_of(world: &World, pod: &str) -> usize {
    let request = format!("POST {PODS}{pod}/eviction");
    world.api.writes().iter().filter(|write| **write == request).count()
}

fn label(world: &World, key: &str) {
    world.api.set(NODE, &format!("/metadata/labels/node.machine.sapcloud.io~1{key}"), json!("true"));
}

/// Removes the labels of an update, as the deployment does when the change of its class is undone.
fn withdraw(world: &World) {
    world.api.edit(NODE, |node| {
        let labels = node["metadata"]["labels"].as_object_mut().unwrap();
        labels.retain(|key, _| !key.ends_with("-for-update"));
        node["spec"]["unschedulable"] = Value::Null;
    });
}

fn update_stage(world: &World) -> Value {
    let conditions = world.api.get(NODE).unwrap()["status"]["conditions"].clone();
    let all = conditions.as_array().unwrap();
    all.iter().find(|one| one["type"] == "InPlaceUpdate").map(|one| one["reason"].clone()).unwrap_or_default()
}

/// The deletion asks for the eviction of the pod, waits while it is refused, and ends when it is not.
async fn the_deletion_heeds_the_budget_of(world: &World, pod: &str) {
    world.api.delete(MACHINE);
    wait(60).await;
    assert!(evictions_of(world, pod) > 0, "nobody asked for the eviction of pod {pod}");
    assert_eq!(world.phase().as_deref(), Some("Terminating"));
    assert_eq!(world.vms().deletes, 0, "the VM went with its pod");
    world.let_go("");
    wait(60).await;
    assert_eq!(world.phase(), None);
    assert!(world.vms().by_name.is_empty() && world.api.names_under(NODES).is_empty());
}

async fn in_vain_for_an_update(world: &World) {
    for key in ["candidate-for-update", "selected-for-update"] {
        label(world, key);
    }
    wait(30).await;
    assert!(evictions_of(world, "a") > 0, "the update drains the Node");
    assert_eq!(update_stage(world), "SelectedForUpdate");
    withdraw(world);
    wait(30).await;
    release(world, "a");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_lists_the_pods_again_after_an_update_was_withdrawn() {
    let world = with_held_pod("a").await;
    in_vain_for_an_update(&world).await;
    wait(3600).await;
    hold(&world, "b");
    the_deletion_heeds_the_budget_of(&world, "b").await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_right_after_an_update_lists_the_pods_again() {
    let world = with_held_pod("a").await;
    for key in ["candidate-for-update", "selected-for-update"] {
        label(&world, key);
    }
    wait(30).await;
    release(&world, "a");
    hold(&world, "b");
    // The labels are still there: no pass in between finds that nothing is to be drained.
    the_deletion_heeds_the_budget_of(&world, "b").await;
}

#[tokio::test(start_paused = true)]
async fn a_second_update_lists_the_pods_again() {
    let world = with_held_pod("a").await;
    in_vain_for_an_update(&world).await;
    wait(60).await;
    hold(&world, "b");
    for key in ["candidate-for-update", "selected-for-update"] {
        label(&world, key);
    }
    wait(30).await;
    assert!(evictions_of(&world, "b") > 0);
    assert_eq!(update_stage(&world), "SelectedForUpdate", "the agent must not begin under a pod that stays");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_lists_the_pods_again_after_a_preserved_machine_has_recovered() {
    let world = with_held_pod("a").await;
    world.api.set(MACHINE, "/metadata/annotations/node.machine.sapcloud.io~1preserve", json!("now"));
    let reports = |deadlock: &str| {
        let conditions = json!([
            { "type": "Ready", "status": "True" }, { "type": "KernelDeadlock", "status": deadlock },
        ]);
        world.api.set(NODE, "/status/conditions", conditions);
    };
    reports("True");
    wait(700).await;
    assert_eq!(world.phase().as_deref(), Some("Failed"));
    assert!(evictions_of(&world, "a") > 0, "a preserved machine is drained");
    reports("False");
    wait(60).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    world.api.edit(MACHINE, |machine| machine["metadata"]["annotations"] = json!({}));
    release(&world, "a");
    wait(3600).await;
    hold(&world, "b");
    the_deletion_heeds_the_budget_of(&world, "b").await;
}

/// A budget over all pods that never allows an eviction.
fn is_guarded_for_ever(world: &World) {
    let budget = json!({
        "metadata": { "namespace": "ns" },
        "spec": { "selector": {} },
        "status": { "expectedPods": 1, "currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 0, "observedGeneration": 1 },
    });
    world.api.put(BUDGET, budget);
}

fn shown_condition(world: &World) -> (String, String) {
    let condition = world.api.get(MACHINE).unwrap()["status"]["machineConditions"][0].clone();
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

/// The deleted pods, each with the requested grace period.
fn pods_deleted(world: &World) -> Vec<(String, Option<i64>)> {
    world.api.deletions(PODS)
}

/// A pod that is never gone.
fn make_lasting_pod(world: &World, name: &str) {
    world.make_pod_with(name, "m-abcde", &json!({ "namespace": "ns", "finalizers": ["example.com/hold"] }));
}

fn by_force(world: &World) {
    world.api.set(MACHINE, "/metadata/labels/force-deletion", json!("True"));
}

#[tokio::test(start_paused = true)]
async fn mc_199_a_budget_that_never_allows_is_asked_until_the_drains_time_is_over_and_costs_no_writes() {
    let world = with_held_pod("a").await;
    is_guarded_for_ever(&world);
    world.api.delete(MACHINE);
    wait(60).await;
    let (reason, message) = shown_condition(&world);
    assert_eq!(reason, "DrainFailed");
    assert!(message.contains("pod disruption budget ns/guard is misconfigured"), "{message}");
    let refused = || world.metrics.render().unwrap().contains("mcm_drain_pods{state=\"refused\"} 1\n");
    assert!(refused(), "also between the attempts");
    world.api.forget_writes();
    wait(1000).await;
    assert!(evictions_of(&world, "a") >= 40, "asked again every 20 s");
    let writes: Vec<String> = world.api.writes().iter().filter(|write| !write.starts_with("POST")).cloned().collect();
    assert_eq!(writes, Vec::<String>::new(), "an unchanged failure costs no write");
    wait(6000).await;
    assert_eq!((world.phase().as_deref(), pods_deleted(&world).len()), (Some("Terminating"), 0));
    wait(300).await;
    assert_eq!(world.phase(), None);
    assert_eq!(pods_deleted(&world), [("a".to_owned(), Some(0))], "then by force");
    assert!(world.vms().by_name.is_empty());
    assert!(!refused());
}

/// Each answer to an eviction steps the drain. A write that the API server refuses is not repeated with every step.
#[tokio::test(start_paused = true)]
async fn a_drain_whose_status_is_refused_tries_to_write_it_less_and_less_often() {
    let world = with_held_pod("a").await;
    hold(&world, "b");
    world.api.delete(MACHINE);
    wait(60).await;
    let refused = format!("PATCH {MACHINE}");
    world.api.fail(&refused, Fault::REFUSE, FOR_EVER);
    release(&world, "a");
    wait(60).await;
    world.api.forget_writes();
    wait(3600).await;
    let tried = world.api.writes().iter().filter(|write| write.starts_with("PATCH")).count();
    assert!((1..=30).contains(&tried), "{tried} writes were tried in an hour");
    assert!(evictions_of(&world, "b") > 0, "the drain goes on");
    world.api.heal(&refused);
    release(&world, "b");
    wait(400).await;
    assert_eq!(world.phase(), None, "it ends once the API server agrees again");
}

#[tokio::test(start_paused = true)]
async fn mc_207_a_pod_that_is_never_gone_fails_the_drain_and_by_force_the_vm_goes_anyway() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    make_lasting_pod(&world, "a");
    world.api.delete(MACHINE);
    wait(70).await;
    let (reason, message) = shown_condition(&world);
    assert_eq!(reason, "DrainFailed");
    assert!(message.contains("timeout expired while waiting for pod \"ns/a\" terminating"), "{message}");
    wait(7000).await;
    assert_eq!((world.phase().as_deref(), world.vms().deletes), (Some("Terminating"), 0));
    wait(300).await;
    assert_eq!(world.phase(), None);
    assert!(world.vms().by_name.is_empty());
    assert!(world.api.get(&format!("{PODS}a")).is_some());
}

#[tokio::test(start_paused = true)]
async fn mc_224_by_force_all_pods_are_deleted_with_no_grace_and_not_waited_for() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    for number in 0..30 {
        make_lasting_pod(&world, &format!("p-{number:02}"));
    }
    by_force(&world);
    world.api.delete(MACHINE);
    wait(10).await;
    assert_eq!(world.phase(), None);
    let deleted = pods_deleted(&world);
    assert_eq!(deleted.len(), 30, "{deleted:?}");
    assert!(deleted.iter().all(|(_, grace)| *grace == Some(0)), "{deleted:?}");
    assert_eq!(world.api.names_under(PODS).len(), 30);
}

#[tokio::test(start_paused = true)]
async fn mc_135_when_the_drains_time_is_over_the_pods_of_a_selected_node_are_deleted_with_no_grace() {
    let world = with_held_pod("a").await;
    for key in ["candidate-for-update", "selected-for-update"] {
        label(&world, key);
    }
    wait(7100).await;
    assert_eq!((update_stage(&world), pods_deleted(&world).len()), (json!("SelectedForUpdate"), 0));
    wait(200).await;
    assert_eq!(pods_deleted(&world), [("a".to_owned(), Some(0))]);
    assert_eq!(update_stage(&world), "ReadyForUpdate");
}

#[tokio::test(start_paused = true)]
async fn mc_143_a_preserved_machine_keeps_its_time_through_an_update_in_place() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    world.api.set(MACHINE, "/metadata/annotations/node.machine.sapcloud.io~1preserve", json!("now"));
    wait(5).await;
    let expiry = || world.api.get(MACHINE).unwrap()["status"]["currentStatus"]["preserveExpiryTime"].clone();
    let until = expiry();
    assert!(until.is_string(), "it is preserved");
    for key in ["candidate-for-update", "selected-for-update"] {
        label(&world, key);
    }
    wait(60).await;
    assert_eq!((world.phase().as_deref(), expiry()), (Some("InPlaceUpdating"), until.clone()));
    world.api.set(NODE, "/metadata/labels/node.machine.sapcloud.io~1update-result", json!("successful"));
    wait(60).await;
    assert_eq!((world.phase().as_deref(), expiry()), (Some("Running"), until));
}

fn reports_ready(world: &World, status: &str) {
    let ready = json!({ "type": "Ready", "status": status, "lastTransitionTime": world.now() });
    world.api.set(NODE, "/status/conditions", json!([ready]));
}

#[rstest]
#[case::the_watches_find_no_connection(NoticedBy::Watches)]
#[case::only_the_probes_get_no_answer(NoticedBy::Probes)]
#[tokio::test(start_paused = true)]
async fn a_node_that_recovers_while_the_target_cluster_is_silent_is_drained_gently_afterwards(
    #[case] noticed: NoticedBy,
) {
    let world = with_held_pod("a").await;
    reports_ready(&world, "False");
    wait(5).await;
    assert_eq!(world.phase().as_deref(), Some("Unknown"));
    world.target_falls_silent(noticed);
    wait(8).await;
    reports_ready(&world, "True");
    wait(330).await;
    world.api.delete(MACHINE);
    wait(30).await;
    let stage = world.api.get(MACHINE).unwrap()["status"]["lastOperation"]["description"].clone();
    assert!(stage.as_str().unwrap().ends_with("Initiate node drain"), "{stage}");
    world.target_answers_again();
    wait(60).await;
    assert!(evictions_of(&world, "a") > 0, "nobody asked for the eviction of the pod");
    assert_eq!((world.phase().as_deref(), world.vms().deletes), (Some("Terminating"), 0), "the VM went with its pod");
    assert!(pods_deleted(&world).is_empty(), "{:?}", pods_deleted(&world));
    world.let_go("");
    wait(60).await;
    assert_eq!(world.phase(), None);
    assert!(world.vms().by_name.is_empty());
}

#[rstest]
#[case::by_force("True", 200)]
#[case::its_time_is_over("", 7400)]
#[tokio::test(start_paused = true)]
async fn a_silent_target_cluster_keeps_no_vm_whose_deletion_is_forced_or_overdue(
    #[case] label: &str,
    #[case] within: u64,
) {
    let world = with_held_pod("a").await;
    reports_ready(&world, "False");
    wait(5).await;
    world.target_falls_silent(NoticedBy::Watches);
    world.api.set(MACHINE, "/metadata/labels/force-deletion", json!(label));
    world.api.delete(MACHINE);
    wait(within).await;
    assert_eq!(world.vms().deletes, 1);
    assert!(world.vms().by_name.is_empty());
}

#[tokio::test(start_paused = true)]
async fn lists_that_never_come_hold_a_deletion_by_force_for_a_minute() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    world.pods_are_late();
    by_force(&world);
    world.api.delete(MACHINE);
    wait(50).await;
    assert_eq!((world.phase().as_deref(), world.vms().deletes), (Some("Terminating"), 0));
    wait(30).await;
    assert_eq!(world.phase(), None);
    assert!(world.vms().by_name.is_empty());
}

#[tokio::test(start_paused = true)]
async fn lists_that_never_come_hold_a_deletion_until_its_drains_time_is_over() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    world.pods_are_late();
    world.api.delete(MACHINE);
    wait(7100).await;
    assert_eq!((world.phase().as_deref(), world.vms().deletes), (Some("Terminating"), 0));
    wait(200).await;
    assert_eq!(world.phase(), None);
    assert!(world.vms().by_name.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_the_cloud_does_not_show_yet_goes_with_the_machine_that_was_deleted_while_it_was_made() {
    let world = World::new(Luck::Good);
    *lock(&world.cloud.mishap) = Some(Mishap::Slow(Duration::from_secs(3)));
    *lock(&world.cloud.lag) = Duration::from_secs(600);
    world.make_machine();
    wait(1).await;
    world.api.delete(MACHINE);
    wait(200).await;
    assert_eq!(world.phase(), None);
    assert_eq!(world.vms().creates, 1);
    assert!(world.vms().by_name.is_empty(), "the VM is left behind");
}

const HOUR: i64 = 3600;

#[rstest]
#[case::refused_by_a_budget(false)]
#[case::in_an_attempt_that_failed(true)]
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_by_hours_holds_up_no_eviction(#[case] for_ever: bool) {
    let world = with_held_pod("a").await;
    world.clock.watch();
    if for_ever {
        is_guarded_for_ever(&world);
    }
    world.api.delete(MACHINE);
    wait(60).await;
    world.clock.jump(-2 * HOUR);
    let before = evictions_of(&world, "a");
    wait(60).await;
    assert!(evictions_of(&world, "a") >= before + 2, "asked again every 20 s");
    world.api.delete(BUDGET);
    world.let_go("");
    wait(60).await;
    assert_eq!(world.phase(), None);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_forward_leaves_the_lists_of_pods_their_time() {
    let world = World::new(Luck::Good);
    world.clock.watch();
    world.pods_are_late();
    world.make_machine();
    wait(5).await;
    world.make_pod("a");
    world.api.delete(MACHINE);
    wait(120).await;
    world.clock.jump(3 * HOUR);
    world.wake();
    wait(9 * 60).await;
    assert_eq!((world.phase().as_deref(), world.vms().deletes), (Some("Terminating"), 0));
    wait(2 * 60).await;
    assert_eq!(world.phase(), None, "once it was watched, the time of the drain counts as over");
}
