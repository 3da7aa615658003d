//! Scenarios of spec/machine-controller that need the whole controller: refused writes, late stores, clocks that differ,
//! clouds that crash. Life cycles with write budgets and random histories are in `controller`.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use crate::{
    machine::testing::{
        cloud::Mishap,
        cluster::{Luck, MACHINE, NODES, Weather, World, lock},
    },
    testing_api::Fault,
};

const NODE: &str = "/api/v1/nodes/m-abcde";
const TOKENS: &str = "/api/v1/namespaces/kube-system/secrets/";

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn status_of(world: &World) -> serde_json::Value {
    world.api.get(MACHINE).map(|machine| machine["status"].clone()).unwrap_or_default()
}

/// The counts of the cloud; a copy, so that no lock is held while they are compared.
struct Counts {
    creates: usize,
    doubles: usize,
    deletes: usize,
}

fn counts(world: &World) -> Counts {
    let vms = world.vms();
    Counts { creates: vms.creates, doubles: vms.doubles, deletes: vms.deletes }
}

fn writes_of(world: &World, start: &str) -> usize {
    world.api.writes().iter().filter(|write| write.starts_with(start)).count()
}

#[tokio::test(start_paused = true)]
async fn mc_028_a_machine_whose_deletion_is_refused_once_still_goes_with_its_node() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(2).await;
    world.api.fail_next(&format!("DELETE {MACHINE}"), Fault::Answer(500));
    world.api.delete(NODE);
    wait(10).await;
    assert_eq!(world.phase(), None);
    assert!(world.vms().by_name.is_empty());
    assert_eq!(writes_of(&world, &format!("DELETE {MACHINE}")), 2);
}

#[tokio::test(start_paused = true)]
async fn mc_058_a_creation_that_finishes_after_its_caller_gave_up_makes_one_vm() {
    let world = World::new(Luck::Good);
    *lock(&world.cloud.mishap) = Some(Mishap::Late(Duration::from_secs(40)));
    world.make_machine();
    wait(20).await;
    assert_eq!(status_of(&world)["lastOperation"]["errorCode"], "Aborted");
    assert_eq!(status_of(&world)["machineConditions"][0]["reason"], "CreateFailed");
    wait(60).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    let vms = counts(&world);
    assert_eq!((vms.creates, vms.doubles), (1, 0));
}

#[rstest]
#[case::the_process_lives_on(false)]
#[case::the_process_crashes_during_the_call(true)]
#[tokio::test(start_paused = true)]
async fn a_driver_that_repeats_itself_is_asked_for_a_late_vm_before_another_one_is_made(#[case] crashes: bool) {
    let mut world = World::with_a_driver_that_repeats_itself();
    if crashes {
        *lock(&world.cloud.mishap) = Some(Mishap::Unattended(Duration::from_secs(40)));
    } else {
        *lock(&world.cloud.mishap) = Some(Mishap::Late(Duration::from_secs(40)));
    }
    world.make_machine();
    wait(5).await;
    if crashes {
        assert_eq!(status_of(&world)["lastOperation"]["state"], "Processing", "the intent is stored");
        world.restart();
    } else {
        assert_eq!(world.phase().as_deref(), Some("CrashLoopBackOff"));
    }
    wait(20).await;
    assert_eq!(status_of(&world)["machineConditions"][0]["reason"], "WaitingForProvider", "{}", status_of(&world));
    wait(30).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    let vms = counts(&world);
    assert_eq!((vms.creates, vms.doubles), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_repeats_itself_is_asked_for_another_vm_a_minute_after_one_was_lost() {
    let world = World::with_a_driver_that_repeats_itself();
    *lock(&world.cloud.mishap) = Some(Mishap::Late(Duration::from_secs(100_000)));
    world.make_machine();
    wait(50).await;
    assert_eq!(world.vms().creates, 0);
    wait(30).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    assert_eq!(world.vms().creates, 1);
}

#[tokio::test(start_paused = true)]
async fn mc_059_the_identity_of_the_vm_lands_although_others_are_faster_three_times() {
    let world = World::new(Luck::Good);
    for _ in 0..3 {
        world.api.fail_next(&format!("PATCH {MACHINE}"), Fault::Answer(409));
    }
    world.make_machine();
    wait(10).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    assert_eq!(world.vms().creates, 1);
    assert_eq!(world.api.get(MACHINE).unwrap()["spec"]["providerID"], "small:///m-abcde");
}

#[tokio::test(start_paused = true)]
async fn a_condition_of_another_program_survives_a_write_from_a_late_view() {
    let late = Weather { watch_delay: Duration::from_secs(5), ..Weather::default() };
    let world = World::under(Luck::Good, late);
    world.make_machine();
    wait(60).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    world.api.set(NODE, "/status/conditions", json!([{ "type": "Ready", "status": "Unknown" }]));
    wait(4).await;
    // The change of the Node arrives before this one.
    world.api.edit(MACHINE, |machine| {
        let all = machine["status"]["machineConditions"].as_array_mut().unwrap();
        all.push(json!({
            "type": "SomebodyElses", "status": "True", "reason": "X", "message": "",
            "lastTransitionTime": "2027-01-15T08:00:00Z",
        }));
    });
    wait(2).await;
    assert_eq!(world.phase().as_deref(), Some("Unknown"));
    let status = status_of(&world);
    let kinds: Vec<_> = status["machineConditions"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
    assert_eq!(kinds, ["SomebodyElses", "Progressing"], "{status}");
}

#[tokio::test(start_paused = true)]
async fn mc_087_no_vm_is_made_for_a_machine_that_is_deleted_while_the_view_is_late() {
    let late = Weather { watch_delay: Duration::from_secs(30), ..Weather::default() };
    let world = World::under(Luck::Slow(Duration::from_secs(3)), late);
    world.make_machine();
    // The driver is asked whether there is a VM as soon as the machine is known.
    while world.api.get(MACHINE).is_some() && world.cloud_calls() == 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.api.delete(MACHINE);
    wait(120).await;
    assert_eq!(world.phase(), None);
    assert_eq!(world.vms().creates, 0);
}

#[tokio::test(start_paused = true)]
async fn mc_090_a_driver_that_crashes_costs_one_attempt() {
    let world = World::new(Luck::Good);
    *lock(&world.cloud.mishap) = Some(Mishap::Crash);
    world.make_machine();
    wait(2).await;
    assert_eq!(world.phase().as_deref(), Some("CrashLoopBackOff"));
    assert_eq!(status_of(&world)["lastOperation"]["errorCode"], "Internal");
    let reported = status_of(&world)["machineConditions"][0]["message"].as_str().unwrap().to_owned();
    assert!(reported.contains("the driver crashed") && reported.contains("then every 3m0s"), "{reported}");
    wait(200).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
}

#[tokio::test(start_paused = true)]
async fn mc_101_a_token_that_can_not_be_deleted_does_not_keep_a_machine_from_running() {
    let world = World::new(Luck::Good);
    world.api.fail_next(&format!("DELETE {TOKENS}"), Fault::Answer(500));
    world.make_machine();
    wait(5).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    assert_eq!(world.api.names_under(TOKENS).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn mc_127_a_machine_fails_once_although_the_write_of_it_was_refused() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    world.api.set(NODE, "/status/conditions", json!([{ "type": "Ready", "status": "Unknown" }]));
    wait(590).await;
    assert_eq!(world.phase().as_deref(), Some("Unknown"));
    world.api.forget_writes();
    world.api.fail_next(&format!("PATCH {MACHINE}"), Fault::Answer(409));
    wait(30).await;
    assert_eq!(world.phase().as_deref(), Some("Failed"));
    let writes = world.api.writes();
    assert_eq!(writes.len(), 2, "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn mc_280_a_view_that_is_half_a_minute_late_makes_nothing_twice() {
    let late = Weather { watch_delay: Duration::from_secs(30), ..Weather::default() };
    let world = World::under(Luck::Good, late);
    world.make_machine();
    wait(200).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    let vms = counts(&world);
    assert_eq!((vms.creates, vms.doubles), (1, 0));
    assert_eq!(writes_of(&world, "POST /api/v1/namespaces/kube-system/secrets"), 1);
    for pod in ["a", "b"] {
        world.make_pod(pod);
    }
    world.api.delete(MACHINE);
    wait(300).await;
    assert_eq!(world.phase(), None);
    assert!(world.vms().by_name.is_empty() && world.api.names_under(NODES).is_empty());
    assert_eq!(writes_of(&world, "POST /api/v1/namespaces/ns/pods"), 2);
}

#[rstest]
#[case::mc_281_two_minutes_ahead(120)]
#[case::mc_281_two_minutes_behind(-120)]
#[tokio::test(start_paused = true)]
async fn a_clock_that_differs_lets_no_machine_fail_too_early(#[case] clock_ahead: i64) {
    let world = World::under(Luck::Good, Weather { clock_ahead, ..Weather::default() });
    *lock(&world.cloud.joins_after) = Duration::from_secs(19 * 60);
    world.make_machine();
    wait(18 * 60).await;
    assert_eq!(world.phase().as_deref(), Some("Pending"));
    wait(70).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    world.make_pod("a");
    world.api.delete(MACHINE);
    wait(10).await;
    assert_eq!(world.phase(), None);
    assert_eq!(writes_of(&world, "DELETE /api/v1/namespaces/ns/pods"), 0, "no pod is deleted by force");
}

const HOUR: i64 = 3600;

fn reports(world: &World, ready: &str) {
    world.api.set(NODE, "/status/conditions", json!([{ "type": "Ready", "status": ready }]));
}

#[rstest]
#[case::mc_281_ahead(HOUR)]
#[case::mc_281_back(-HOUR)]
#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_harms_no_machine_that_runs(#[case] by: i64) {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    world.clock.jump(by);
    world.api.forget_writes();
    reports(&world, "Unknown");
    wait(60).await;
    assert_eq!(world.phase().as_deref(), Some("Unknown"), "the jump itself is no time that has passed");
    reports(&world, "True");
    wait(700).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    let vms = counts(&world);
    assert_eq!((vms.creates, vms.doubles, vms.deletes), (1, 0, 0));
}

#[rstest]
#[case::forward(2 * HOUR)]
#[case::back(-2 * HOUR)]
#[tokio::test(start_paused = true)]
async fn a_step_of_two_hours_fails_no_machine_that_was_unhealthy_for_a_minute(#[case] by: i64) {
    let world = World::new(Luck::Good);
    world.clock.watch();
    let names: Vec<String> = (0..10).map(|number| format!("m-{number:05}")).collect();
    let all_are = |phase: &str| names.iter().all(|name| world.phase_of(name).as_deref() == Some(phase));
    let report = |ready: &str| {
        for name in &names {
            world.api.set(
                &format!("{NODES}{name}"),
                "/status/conditions",
                json!([{ "type": "Ready", "status": ready }]),
            );
        }
    };
    for name in &names {
        world.make_machine_named(name);
    }
    wait(5).await;
    assert!(all_are("Running"));
    report("Unknown");
    wait(60).await;
    assert!(all_are("Unknown"));
    world.clock.jump(by);
    for name in &names {
        world.wake_named(name);
    }
    wait(9 * 60).await;
    assert!(all_are("Unknown"), "nobody has been unhealthy for ten minutes by any clock");
    report("True");
    wait(60).await;
    assert!(all_are("Running"));
    let vms = counts(&world);
    assert_eq!((vms.creates, vms.deletes), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_stays_unhealthy_after_a_step_is_given_up_once_it_was_watched() {
    let world = World::new(Luck::Good);
    world.clock.watch();
    world.make_machine();
    wait(5).await;
    reports(&world, "Unknown");
    wait(60).await;
    world.clock.jump(2 * HOUR);
    // The manager reads its clock each second.
    world.wake();
    wait(9 * 60).await;
    assert_eq!(world.phase().as_deref(), Some("Unknown"));
    wait(2 * 60).await;
    assert_eq!(world.phase().as_deref(), Some("Failed"));
}

/// All deadlines pass at once, and the stores are outdated: the process was suspended, or the clock was set.
#[tokio::test(start_paused = true)]
async fn mc_281_a_machine_that_has_recovered_does_not_fail_by_an_outdated_store() {
    let late = Weather { watch_delay: Duration::from_secs(30), ..Weather::default() };
    let world = World::under(Luck::Good, late);
    world.make_machine();
    wait(200).await;
    reports(&world, "Unknown");
    wait(60).await;
    assert_eq!(world.phase().as_deref(), Some("Unknown"));
    reports(&world, "True");
    world.clock.jump(HOUR);
    world.wake();
    wait(5).await;
    assert_eq!(world.phase().as_deref(), Some("Running"), "the API server knew better than the view");
    assert_eq!(world.vms().deletes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_creation_and_a_drain_go_on_across_a_jump() {
    let world = World::new(Luck::Slow(Duration::from_secs(10)));
    world.make_machine();
    wait(5).await;
    world.clock.jump(HOUR);
    wait(60).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    world.make_pod("a");
    world.hold("a");
    world.api.delete(MACHINE);
    wait(5).await;
    world.clock.jump(HOUR / 2);
    world.let_go("");
    wait(120).await;
    assert_eq!(world.phase(), None);
    let vms = counts(&world);
    assert_eq!((vms.creates, vms.doubles, vms.deletes), (1, 0, 1));
    assert_eq!(writes_of(&world, "DELETE /api/v1/namespaces/ns/pods"), 0, "no pod is deleted by force");
}

#[tokio::test(start_paused = true)]
async fn mc_009_a_machine_is_made_while_the_pods_are_not_known_and_its_drain_waits_for_them() {
    let world = World::new(Luck::Good);
    world.pods_are_late();
    world.make_machine();
    wait(5).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    world.make_pod("a");
    world.api.delete(MACHINE);
    wait(70).await;
    assert_eq!(world.phase().as_deref(), Some("Terminating"));
    let reported = status_of(&world)["machineConditions"][0].clone();
    assert_eq!(reported["reason"], "WaitingForPodList");
    assert!(reported["message"].as_str().unwrap().contains("pods can't be listed: forbidden"), "{reported}");
    assert_eq!((world.vms().deletes, writes_of(&world, "POST /api/v1/namespaces/ns/pods")), (0, 0));
    world.pods_are_listed();
    wait(10).await;
    assert_eq!(world.phase(), None);
    assert_eq!(writes_of(&world, "POST /api/v1/namespaces/ns/pods"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_pods_that_drains_wait_for_are_counted() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    for pod in ["a", "b"] {
        world.make_pod(pod);
    }
    world.hold("a");
    let shown = |state: &str, pods: u32| {
        let sample = format!("mcm_drain_pods{{state=\"{state}\"}} {pods}\n");
        let text = world.metrics.render().unwrap();
        assert!(text.contains(&sample), "{sample} is not in\n{text}");
    };
    shown("refused", 0);
    world.api.delete(MACHINE);
    wait(15).await;
    shown("refused", 1);
    shown("pending", 0);
    world.let_go("");
    wait(60).await;
    assert_eq!(world.phase(), None);
    for state in ["pending", "refused", "terminating", "detaching"] {
        shown(state, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn mc_286_a_new_machine_of_the_same_name_is_not_disturbed() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    world.api.delete(MACHINE);
    wait(120).await;
    assert_eq!(world.phase(), None);
    world.make_machine();
    for _ in 0..15 {
        wait(60).await;
        assert_eq!(world.phase().as_deref(), Some("Running"));
    }
    assert_eq!(world.vms().by_name.len(), 1);
    assert_eq!(world.vms().deletes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_driver_call_is_explained_after_a_minute_in_one_write() {
    let world = World::new(Luck::Good);
    *lock(&world.cloud.mishap) = Some(Mishap::Slow(Duration::from_secs(100)));
    world.make_machine();
    wait(55).await;
    assert!(status_of(&world)["machineConditions"].is_null(), "the call has just begun: {}", status_of(&world));
    wait(15).await;
    let reported = status_of(&world)["machineConditions"][0].clone();
    assert_eq!(reported["reason"], "WaitingForVM");
    assert!(reported["message"].as_str().unwrap().contains("the provider to make the VM since"), "{reported}");
    assert_eq!(writes_of(&world, &format!("PATCH {MACHINE}/status")), 1);
    wait(60).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
}

#[tokio::test(start_paused = true)]
async fn mc_137_a_whole_update_in_place_keeps_the_vm() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    world.make_pod("a");
    let label = |key: &str, value: &str| {
        world.api.set(NODE, &format!("/metadata/labels/node.machine.sapcloud.io~1{key}"), json!(value));
    };
    let stage = || {
        let conditions = world.api.get(NODE).unwrap()["status"]["conditions"].clone();
        let all = conditions.as_array().unwrap().clone();
        all.iter().find(|condition| condition["type"] == "InPlaceUpdate").map(|found| found["reason"].clone())
    };
    label("candidate-for-update", "true");
    wait(2).await;
    assert_eq!(stage(), Some(json!("CandidateForUpdate")));
    assert_eq!(world.phase().as_deref(), Some("Running"));
    label("selected-for-update", "true");
    wait(10).await;
    assert_eq!(stage(), Some(json!("ReadyForUpdate")));
    assert_eq!(world.phase().as_deref(), Some("InPlaceUpdating"));
    assert!(world.api.get("/api/v1/namespaces/ns/pods/a").is_none(), "the pod was moved away");
    assert_eq!(world.api.get(NODE).unwrap()["spec"]["unschedulable"], true);
    wait(600).await;
    label("update-result", "successful");
    wait(2).await;
    assert_eq!(stage(), Some(json!("UpdateSuccessful")));
    assert_eq!(world.phase().as_deref(), Some("Running"));
    let stored = status_of(&world)["conditions"].clone();
    assert!(stored.as_array().unwrap().iter().any(|condition| condition["reason"] == "UpdateSuccessful"), "{stored}");
    let vms = counts(&world);
    assert_eq!((vms.creates, vms.deletes), (1, 0));
    world.api.forget_writes();
    wait(3600).await;
    let writes = world.api.writes();
    assert_eq!(writes, Vec::<String>::new(), "an updated machine costs nothing");
}

/// A user mends the class while the provider still works on the request with the old class.
#[rstest]
#[case::of_the_class("machineclasses/c", "/providerSpec", json!({ "type": "another" }))]
#[case::of_its_secret("/api/v1/namespaces/ns/secrets/s", "/data/key", json!("bmV3"))]
#[tokio::test(start_paused = true)]
async fn a_change_during_a_call_that_fails_is_tried_at_once(
    #[case] object: &str,
    #[case] field: &str,
    #[case] value: serde_json::Value,
) {
    let world = World::new(Luck::Good);
    *lock(&world.cloud.mishap) = Some(Mishap::Full(Duration::from_secs(30)));
    world.make_machine();
    wait(10).await;
    world.api.set(object, field, value);
    wait(25).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_without_a_change_is_followed_by_a_pause() {
    let world = World::new(Luck::Good);
    *lock(&world.cloud.mishap) = Some(Mishap::Full(Duration::from_secs(30)));
    world.make_machine();
    wait(35).await;
    let calls = world.cloud_calls();
    wait(300).await;
    assert_eq!((world.phase().as_deref(), world.cloud_calls()), (Some("CrashLoopBackOff"), calls));
}
