//! The API server is unavailable and returns, and loses its history.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use crate::{
    fleet::{none_left, phase},
    support::{Rights, wait::expect, wait_until},
    weather::{FLEET, StuckMachines, TIMEOUT, Weather, explanation, names, sky},
};

/// A tenth of the default durations, so that twelve seconds correspond to two minutes.
const TENTHS: [&str; 3] = [
    "--machine-safety-apiserver-statuscheck-timeout=3s",
    "--machine-safety-apiserver-statuscheck-period=3s",
    "--machine-health-timeout=4s",
];
const TWO_MINUTES: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread")]
async fn mc_254_an_unresponsive_api_server_freezes_the_loops_and_deletes_no_machine() {
    let Some(weather) = Weather::alone("weather::api_server::mc_254_silent", &TENTHS).await else { return };
    weather.want(5).await;
    let before = weather.wait_until_healthy(5).await;

    weather.rig.suspend_api_server();
    frozen(&weather, "1").await;
    // Longer than the health timeout: a decision from the outdated cache would be made now.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(weather.cloud.vms().await.len(), 5, "no VM is deleted meanwhile");
    weather.rig.resume_api_server();

    frozen(&weather, "0").await;
    let after = weather.wait_until_healthy(5).await;
    assert_eq!(names(&before), names(&after), "no machine is replaced");
    assert!(weather.cloud.happened("stopping").await.is_empty());
    // The controllers continue.
    weather.want(6).await;
    weather.wait_until_healthy(6).await;
    an_api_server_that_is_stopped(&weather).await;
}

/// The API server is stopped for two minutes, in the middle of creations and a deletion. Their driver calls end meanwhile.
async fn an_api_server_that_is_stopped(weather: &Weather) {
    let before = names(&weather.namespace.list("machines").await);
    let slow = ["create", "delete"].map(|op| json!({"op": op, "effect": "hang", "for": "4s"}));
    weather.cloud.fails(json!(slow)).await;
    weather.want(8).await;
    let deleted = before.first().expect("six machines");
    weather.namespace.kubectl(&["delete", "machine", deleted, "--wait=false"]).await.succeed();
    wait_until("four slow calls", TIMEOUT, || async {
        // Two requested machines, one replacement of the deleted machine, and the deletion.
        let slow = weather.cloud.happened("callHangs").await;
        expect(slow.len() >= 4, || format!("{slow:?}"))
    })
    .await;

    weather.rig.stop_api_server();
    frozen(weather, "1").await;
    tokio::time::sleep(TWO_MINUTES).await;
    let stopped = weather.cloud.happened("stopping").await;
    assert!(stopped.keys().all(|machine| machine.ends_with(deleted.as_str())), "no other VM ends: {stopped:?}");
    weather.rig.restart_api_server().await;
    weather.cloud.is_well().await;

    frozen(weather, "0").await;
    weather.wait_until_explained().await;
    let after = names(&weather.wait_until_healthy(8).await);
    let kept = before.intersection(&after).count();
    assert_eq!((kept, after.contains(deleted)), (5, false), "before {before:?}, after {after:?}");
    let stopped = weather.cloud.happened("stopping").await;
    assert_eq!(stopped.len(), 1, "only the deleted machine loses its VM: {stopped:?}");
}

/// Machines and Nodes may be in two clusters. While only the Nodes are unreachable, a machine in creation reports it in its own status.
#[tokio::test(flavor = "multi_thread")]
async fn mc_260_a_machine_blocked_by_an_unresponsive_target_cluster_reports_it() {
    let Some(control) = sky("weather::api_server::mc_260_a_silent_target").await else { return };
    let target = control.another().await;
    let namespace = target.namespace("weather").await;
    let kubeconfig = target.manager_kubeconfig(&namespace, Rights::Everything).await;
    let to_target = format!("--target-kubeconfig={}", kubeconfig.display());
    // Short, so that only the freeze prevents the creation of a VM.
    let retry = "--resource-exhausted-retry=2s";
    let flags = [TENTHS[0], TENTHS[1], TENTHS[2], retry, to_target.as_str()];
    let weather = Weather::over(control, &flags).await;
    weather.want(2).await;
    let before = weather.wait_until_healthy(2).await;
    let report = weather.manager.http("/readyz?verbose").await.1;
    assert!(report.contains("[+]cluster-control ok\n") && report.contains("[+]cluster-target ok\n"), "{report}");
    weather.cloud.fails(json!([{"op": "create", "code": "ResourceExhausted"}])).await;
    weather.want(3).await;
    weather.wait_for_machine("a machine in creation", |machine| phase(machine) == "CrashLoopBackOff").await;

    target.suspend_api_server();
    frozen(&weather, "1").await;
    weather.cloud.is_well().await;
    let held = weather
        .wait_for_machine("a machine to report the freeze", |machine| explanation(machine).contains("target cluster"));
    let held = explanation(&held.await);
    assert!(held.contains("since ") && held.contains("ends when "), "{held}");
    assert_eq!(weather.cloud.vms().await.len(), 2, "no VM is created from an outdated cache");
    target.resume_api_server();

    frozen(&weather, "0").await;
    let after = weather.wait_until_healthy(3).await;
    assert!(names(&before).is_subset(&names(&after)), "no machine is replaced");
    let stale: Vec<String> = after.iter().map(explanation).filter(|text| text.contains("target cluster")).collect();
    assert!(stale.is_empty(), "a running machine is not frozen: {stale:?}");
}

async fn frozen(weather: &Weather, value: &str) {
    wait_until(&format!("mcm_machine_controller_frozen {value}"), TIMEOUT, || async {
        let metrics = weather.manager.http_get("/metrics").await;
        let line = metrics.lines().find(|line| line.starts_with("mcm_machine_controller_frozen ")).unwrap_or_default();
        expect(line.ends_with(value), || line.to_owned())
    })
    .await;
}

/// While the manager is suspended, objects change. The restarted API server has no history of that time (410 Gone).
#[tokio::test(flavor = "multi_thread")]
async fn mc_031_a_watch_restarts_after_its_history_is_lost() {
    let Some(weather) = Weather::alone("weather::api_server::mc_031_lost_history", &[]).await else { return };
    weather.rig.with_controller_manager().await;
    weather.want(3).await;
    let before = weather.wait_until_healthy(3).await;

    weather.manager.suspend();
    weather.namespace.kubectl(&["scale", "machinedeployment", FLEET, "--replicas=4"]).await.succeed();
    let lost = names(&before).into_iter().next().expect("three machines");
    weather.namespace.kubectl(&["delete", "machine", &lost, "--wait=false"]).await.succeed();
    let rig = Arc::clone(&weather.rig);
    rig.restart_api_server().await;
    weather.manager.resume();

    let silences = StuckMachines::default();
    wait_until("the deleted machine to go", TIMEOUT, || async {
        let machines = weather.namespace.list("machines").await;
        silences.look(&machines);
        expect(!names(&machines).contains(&lost), || format!("{:?}", names(&machines)))
    })
    .await;
    weather.wait_until_explained().await;
    weather.wait_until_healthy(4).await;
    weather.namespace.kubectl(&["delete", "machinedeployment", FLEET, "--wait=false"]).await.succeed();
    none_left(&weather.namespace, "machines", TIMEOUT).await;
    assert!(weather.cloud.vms().await.is_empty(), "no VM remains without its machine");
}
