//! Whole deletions against the small cluster: restarts, lost writes, a cluster that does not answer, budgets, machines of
//! the same name, and drains that must not delay other machines.
//!
//! Source: spec/machine-controller §17.8–17.10.

use std::time::Duration;

use http::Method;
use rstest::rstest;
use serde_json::json;

use crate::{
    machine::testing::{
        cloud::Mishap,
        cluster::{Luck, MACHINE, MACHINES, Weather, World, lock},
    },
    testing_api::{FOR_EVER, Fault},
};

const NODES: &str = "/api/v1/nodes/";
const PODS: &str = "/api/v1/namespaces/ns/pods/";

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// A world with a Running machine and two pods on its node.
async fn running() -> World {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(2).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    for pod in ["a", "b"] {
        world.make_pod(pod);
    }
    world.api.forget_writes();
    world
}

fn all_gone(world: &World) {
    assert_eq!(world.phase(), None, "{:?}", world.api.get(MACHINE));
    assert!(world.api.names_under(NODES).is_empty());
    assert!(world.api.names_under(PODS).is_empty());
    let vms = world.vms();
    assert!(vms.by_name.is_empty());
    assert_eq!(vms.wrong_deletes, 0);
}

#[tokio::test(start_paused = true)]
async fn mc_187_a_deletion_ends_wherever_the_process_dies() {
    // Nine writes: seven and one for each pod.
    for writes in 0..=9 {
        let mut world = running().await;
        world.api.delete(MACHINE);
        while world.api.writes().len() < writes && world.phase().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        world.restart();
        wait(60).await;
        all_gone(&world);
        let deletes = world.vms().deletes;
        assert!(deletes <= 2, "after {writes} writes the VM was deleted {deletes} times");
    }
}

/// The kubelet may register at any moment of a deletion, and the watch reports the Node seconds later.
#[tokio::test(start_paused = true)]
async fn a_node_that_joins_unseen_while_its_vm_is_deleted_goes_too() {
    for joins_after in 1..=16 {
        let weather = Weather { watch_delay: Duration::from_secs(4), ..Weather::default() };
        let world = World::under(Luck::Slow(Duration::from_secs(3)), weather);
        *lock(&world.cloud.joins_after) = Duration::from_secs(joins_after);
        world.make_machine();
        while world.vms().by_name.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        world.api.delete(MACHINE);
        wait(300).await;
        all_gone(&world);
    }
}

/// The end of a process that has requested a VM.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// It keeps running; its call times out.
    LivesOn,
    /// It crashes during the call.
    CrashesDuringTheCall,
    /// Its call times out, and it crashes during the deletion that follows.
    CrashesDuringTheDeletion,
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn the_vm_of_a_creation_without_an_answer_goes_with_its_deleted_machine(
    #[values(Fate::LivesOn, Fate::CrashesDuringTheCall, Fate::CrashesDuringTheDeletion)] fate: Fate,
    #[values(World::new(Luck::Good), World::with_a_driver_that_repeats_itself())] mut world: World,
) {
    let takes = Duration::from_secs(40);
    let mishap = if fate == Fate::CrashesDuringTheCall { Mishap::Unattended(takes) } else { Mishap::Late(takes) };
    *lock(&world.cloud.mishap) = Some(mishap);
    world.make_machine();
    wait(3).await;
    if fate == Fate::CrashesDuringTheCall {
        world.restart();
    }
    world.api.delete(MACHINE);
    wait(10).await;
    if fate == Fate::CrashesDuringTheDeletion {
        world.restart();
    }
    wait(20).await;
    let machine = world.api.get(MACHINE).expect("a VM of the machine may still show itself");
    let reported = machine["status"]["machineConditions"][0]["message"].as_str().unwrap_or_default();
    assert!(reported.contains("whether the last creation made a VM"), "{reported}");
    let writes = world.api.writes().len();
    wait(100).await;
    assert_eq!(world.vms().creates, 1);
    all_gone(&world);
    assert!(world.api.writes().len() - writes < 10, "waiting costs no writes: {:#?}", world.api.writes());
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_was_refused_holds_up_no_deletion() {
    let world = World::new(Luck::Good);
    // This process has seen its second machine being created, so it knows that no other process has asked for that machine's
    // VM.
    world.make_machine_named("m-first");
    wait(10).await;
    world.api.fail_next("POST /api/v1/namespaces/kube-system/secrets", Fault::Answer(403));
    world.make_machine();
    wait(2).await;
    assert_eq!(world.phase().as_deref(), Some("CrashLoopBackOff"));
    world.api.delete(MACHINE);
    wait(2).await;
    assert_eq!(world.phase(), None);
    let vms = world.vms();
    assert_eq!((vms.creates, vms.by_name.len()), (1, 1), "that of the first machine");
}

#[tokio::test(start_paused = true)]
async fn mc_194_a_conflict_in_any_write_costs_one_write_more() {
    for (method, path) in [
        (Method::PATCH, "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m-abcde/status"),
        (Method::PATCH, "/api/v1/nodes/m-abcde"),
        (Method::PATCH, "/api/v1/nodes/m-abcde/status"),
        (Method::DELETE, "/api/v1/nodes/m-abcde"),
    ] {
        let world = running().await;
        world.api.fail_next(&format!("{method} {path}"), Fault::Answer(409));
        world.api.delete(MACHINE);
        wait(30).await;
        all_gone(&world);
        let writes = world.api.writes();
        assert!(writes.len() <= 10, "{method} {path}: {writes:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn mc_192_while_the_target_cluster_is_away_nothing_is_skipped() {
    let world = running().await;
    world.api.fail("/api/v1/nodes", Fault::LoseRequest, FOR_EVER);
    world.api.delete(MACHINE);
    wait(600).await;
    assert_eq!(world.phase().as_deref(), Some("Terminating"));
    assert_eq!(world.vms().deletes, 0, "the VM has to wait for the drain");
    assert_eq!(world.api.names_under(PODS).len(), 2);
    let machine = world.api.get(MACHINE).unwrap();
    let reported = machine["status"]["machineConditions"][0]["message"].as_str().unwrap().to_owned();
    assert!(reported.contains("away"), "{reported}");
    world.api.heal("/api/v1/nodes");
    wait(30).await;
    all_gone(&world);
}

#[tokio::test(start_paused = true)]
async fn mc_193_a_new_leader_goes_on_with_a_drain_and_the_old_one_stops() {
    let mut world = running().await;
    world.hold("a");
    world.api.delete(MACHINE);
    wait(10).await;
    assert_eq!(world.api.names_under(PODS).len(), 1);
    world.restart();
    world.api.forget_writes();
    wait(99).await;
    let evictions = world.api.writes().iter().filter(|write| write.ends_with("/a/eviction")).count();
    assert_eq!(evictions, 5, "one process asks, every twenty seconds");
    world.let_go("");
    wait(30).await;
    all_gone(&world);
    assert_eq!(world.vms().deletes, 1);
}

#[tokio::test(start_paused = true)]
async fn mc_286_a_namesake_of_a_deleted_machine_lives() {
    let world = running().await;
    world.api.delete(MACHINE);
    wait(10).await;
    all_gone(&world);
    wait(110).await;
    world.make_machine();
    wait(15 * 60).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    let vms = world.vms();
    assert_eq!((vms.by_name.len(), vms.creates, vms.deletes, vms.wrong_deletes), (1, 2, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn mc_225_two_hundred_blocked_drains_hold_up_nobody() {
    let world = World::new(Luck::Good);
    for number in 0..201 {
        world.make_machine_named(&format!("m-{number}"));
    }
    wait(10).await;
    for number in 0..201 {
        let name = format!("m-{number}");
        let status = world.api.get(&format!("{MACHINES}{name}")).unwrap()["status"].clone();
        assert_eq!(status["currentStatus"]["phase"], "Running", "{name}: {status:#}");
    }
    for number in 0..200 {
        world.make_pod_on(&format!("held-{number}"), &format!("m-{number}"));
        world.hold(&format!("held-{number}"));
        world.api.delete(&format!("{MACHINES}m-{number}"));
    }
    wait(60).await;
    assert_eq!(world.api.names_under(PODS).len(), 200);
    for number in 0..200 {
        let name = format!("m-{number}");
        assert_eq!(world.phase_of(&name).as_deref(), Some("Terminating"), "{name}");
    }
    world.api.delete(&format!("{MACHINES}m-200"));
    world.make_machine_named("m-new");
    wait(2).await;
    assert_eq!(world.phase_of("m-200"), None);
    assert_eq!(world.phase_of("m-new").as_deref(), Some("Running"));
    assert_eq!(world.vms().by_name.len(), 201, "200 that wait, and the new one");
}

#[tokio::test(start_paused = true)]
async fn mc_156_a_preserved_machine_whose_drain_is_blocked_holds_up_nobody() {
    let world = running().await;
    world.hold("a");
    let now = world.now();
    let ill = json!([{ "type": "Ready", "status": "True" }, { "type": "DiskPressure", "status": "True" }]);
    world.api.edit("/api/v1/nodes/m-abcde", |node| node["status"]["conditions"] = ill);
    world.api.edit(MACHINE, |machine| {
        machine["metadata"]["annotations"]["node.machine.sapcloud.io/preserve"] = json!("now");
        machine["status"]["currentStatus"] = json!({ "phase": "Failed", "lastUpdateTime": now });
    });
    wait(3600).await;
    let machine = world.api.get(MACHINE).unwrap();
    assert_eq!(machine["status"]["machineConditions"][0]["reason"], "DrainBlocked", "{machine:#}");
    world.make_machine_named("m-new");
    wait(2).await;
    assert_eq!(world.phase_of("m-new").as_deref(), Some("Running"));
    world.let_go("");
    wait(30).await;
    let node = world.api.get("/api/v1/nodes/m-abcde").unwrap();
    let preserved = node["status"]["conditions"].as_array().unwrap().last().cloned().unwrap();
    assert_eq!((preserved["type"].as_str(), preserved["status"].as_str()), (Some("Preserved"), Some("True")));
    assert!(world.api.names_under(PODS).is_empty());
    assert_eq!(world.phase().as_deref(), Some("Failed"));
}

#[tokio::test(start_paused = true)]
async fn mc_239_a_conflict_on_the_node_is_retried_within_a_second() {
    let world = running().await;
    world.api.fail_next("PATCH /api/v1/nodes/m-abcde", Fault::Answer(409));
    world.api.edit(MACHINE, |machine| machine["spec"]["nodeTemplate"]["metadata"]["labels"]["pool"] = json!("b"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let node = world.api.get("/api/v1/nodes/m-abcde").unwrap();
    assert_eq!(node["metadata"]["labels"]["pool"], "b");
    assert!(!world.api.is_to_fail("nodes"), "the conflict did not happen");
}

#[tokio::test(start_paused = true)]
async fn mc_235_virtual_capacity_goes_with_the_node_template_of_its_class() {
    const CLASS: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machineclasses/c";
    let mut world = running().await;
    let capacity = |world: &World| world.api.get("/api/v1/nodes/m-abcde").unwrap()["status"]["capacity"].clone();
    world.api.edit(CLASS, |class| {
        class["nodeTemplate"] = json!({
            "capacity": { "cpu": "1", "gpu": "0", "memory": "1Gi" }, "instanceType": "small", "region": "eu", "zone": "a",
            "virtualCapacity": { "x.io/y": "4" },
        });
    });
    world.restart();
    wait(2).await;
    assert_eq!(capacity(&world)["x.io/y"], "4");
    world.api.edit(CLASS, |class| class["nodeTemplate"] = json!(null));
    world.restart();
    wait(2).await;
    assert!(capacity(&world)["x.io/y"].is_null(), "{}", capacity(&world));
}
