//! The provider loses replies, is slow, has no capacity, and refuses our credentials.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;

use crate::{
    fleet::{none_left, phase},
    support::{cluster_object::text, wait::expect, wait_until},
    weather::{FLEET, TIMEOUT, Weather, explanation, names, sky},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_in_trouble_leaves_no_vm_and_no_machine_behind() {
    let flags = ["--resource-exhausted-retry=2s"];
    let Some(weather) = Weather::begin("weather::provider::a_provider_in_trouble", &flags).await else { return };
    replies_of_creations_are_lost(&weather).await;
    replies_are_slow(&weather).await;
    there_is_no_capacity_for_a_while(&weather).await;
    credentials_stop_working(&weather).await;
    calls_arrive_twice(&weather).await;
    replies_of_deletions_are_lost(&weather).await;
}

/// A cloud that shows and lists a VM only a long time after its creation.
const LATE: &str = "\
seed: 12
latency: {create: {constant: 3s}, boot: {constant: 1h}, delete: {constant: 100ms}, api: {constant: 5ms}}
consistency: {getLag: 1h, listLag: 1h}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_is_not_visible_yet_is_deleted_with_its_machine() {
    let Some(rig) = sky("weather::provider::a_vm_that_is_not_shown_yet").await else { return };
    let weather = Weather::with_cloud(rig, LATE, &[]).await;
    weather.want(1).await;
    wait_until("a VM to be ordered", TIMEOUT, || async {
        let ordered = weather.cloud.happened("ordered").await;
        expect(ordered.len() == 1, || format!("{ordered:?}"))
    })
    .await;
    weather.namespace.kubectl(&["delete", "machinedeployment", FLEET, "--wait=false"]).await.succeed();
    none_left(&weather.namespace, "machines", TIMEOUT).await;
    wait_until("the VM to go", Duration::from_secs(10), || async {
        // A cloud with delayed lists still lists deleted VMs.
        let vms = weather.cloud.vms().await;
        expect(vms.iter().all(|vm| vm["life"]["gone"].is_object()), || format!("{vms:#?}"))
    })
    .await;
    weather.no_machine_had_two_vms().await;
}

/// The VM exists, but the caller gets a timeout. The next attempt finds the VM.
async fn replies_of_creations_are_lost(weather: &Weather) {
    let lost = json!([{"op": "create", "count": 3, "effect": "created-but-error", "code": "DeadlineExceeded"}]);
    weather.cloud.fails(lost).await;
    weather.want(3).await;
    let machine = weather
        .wait_for_machine("the status to report a lost reply", |machine| phase(machine) == "CrashLoopBackOff")
        .await;
    assert_eq!(text(&machine, "/status/lastOperation/errorCode"), "DeadlineExceeded", "{}", machine["status"]);
    assert!(!explanation(&machine).is_empty(), "{}", machine["status"]);
    weather.wait_until_healthy(3).await;
}

/// A slow call is not repeated while it is still running.
async fn replies_are_slow(weather: &Weather) {
    weather.cloud.fails(json!([{"op": "create", "effect": "hang", "for": "3s"}])).await;
    weather.want(5).await;
    weather.wait_until_healthy(5).await;
    assert!(weather.cloud.happened("callHangs").await.len() >= 2, "the slow calls are made");
}

async fn there_is_no_capacity_for_a_while(weather: &Weather) {
    let full = json!([{"op": "create", "code": "ResourceExhausted", "message": "out of capacity in {zone}"}]);
    weather.cloud.fails(full).await;
    weather.want(6).await;
    let machine = weather
        .wait_for_machine("the status to report the missing capacity", |machine| {
            text(machine, "/status/lastOperation/errorCode") == "ResourceExhausted"
        })
        .await;
    // cluster-autoscaler reads these fields to try another group.
    assert_eq!(phase(&machine), "CrashLoopBackOff");
    assert_eq!(text(&machine, "/status/lastOperation/type"), "Create");
    assert!(text(&machine, "/status/lastOperation/description").contains("out of capacity"), "{}", machine["status"]);
    assert!(!explanation(&machine).is_empty(), "{}", machine["status"]);
    weather.cloud.is_well().await;
    weather.wait_until_healthy(6).await;
}

/// Running machines stay. A waiting machine is retried at once when the Secret changes.
async fn credentials_stop_working(weather: &Weather) {
    weather.cloud.fails(json!([{"op": "any", "effect": "auth-failure"}])).await;
    weather.want(7).await;
    let machine = weather
        .wait_for_machine("the status to report the refused credentials", |machine| {
            text(machine, "/status/lastOperation/errorCode") == "Unauthenticated"
        })
        .await;
    assert!(!explanation(&machine).is_empty(), "{}", machine["status"]);
    let running = weather.namespace.list("machines").await.iter().filter(|machine| phase(machine) == "Running").count();
    assert_eq!(running, 6, "machines that run do not need the provider");
    weather.cloud.is_well().await;
    let renewed = r#"{"stringData": {"credentials": "renewed"}}"#;
    weather.namespace.kubectl(&["patch", "secret", "fleet", "--type=merge", "-p", renewed]).await.succeed();
    weather.wait_until_healthy(7).await;
}

/// The network repeats each call, and the client gets the second answer.
async fn calls_arrive_twice(weather: &Weather) {
    weather.cloud.fails(json!([{"op": "any", "effect": "repeated"}])).await;
    weather.want(9).await;
    let before = weather.wait_until_healthy(9).await;
    let gone = text(&before[0], "/metadata/name").to_owned();
    weather.namespace.kubectl(&["delete", "machine", &gone, "--wait=false"]).await.succeed();
    wait_until("the machine to go", TIMEOUT, || async {
        let machines = weather.namespace.list("machines").await;
        expect(!names(&machines).contains(&gone), || format!("{:?}", names(&machines)))
    })
    .await;
    weather.wait_until_healthy(9).await;
    let stopped = weather.cloud.happened("stopping").await;
    assert_eq!(stopped.values().map(BTreeSet::len).sum::<usize>(), 1, "one VM is deleted, once: {stopped:?}");
    assert!(!weather.cloud.happened("callRepeated").await.is_empty());
    weather.cloud.is_well().await;
}

/// The VM is deleted, but the caller gets a timeout. The next attempt finds no VM and continues.
async fn replies_of_deletions_are_lost(weather: &Weather) {
    let lost = json!([{"op": "delete", "count": 9, "effect": "deleted-but-error", "code": "DeadlineExceeded"}]);
    weather.cloud.fails(lost).await;
    weather.namespace.kubectl(&["delete", "machinedeployment", FLEET, "--wait=false"]).await.succeed();
    none_left(&weather.namespace, "machines", TIMEOUT).await;
    wait_until("the last VM to go", Duration::from_secs(10), || async {
        let vms = weather.cloud.vms().await;
        expect(vms.is_empty(), || format!("{vms:#?}"))
    })
    .await;
    weather.no_machine_had_two_vms().await;
    let metrics = weather.cloud.metrics().await;
    assert!(metrics.contains("virtual_cloud_vms{life=\"running\"} 0"), "{metrics}");
    let counted = weather.manager.http_get("/metrics").await;
    for line in ["requests_total", "requests_failed_total", "api_request_duration_seconds_count"] {
        let line = format!("mcm_cloud_api_{line}{{provider=\"virtual\",service=\"create\"}} ");
        assert!(counted.contains(&line), "{line} is not in\n{counted}");
    }
}
