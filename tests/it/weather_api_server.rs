//! The API server goes away and comes back, and forgets its history.

use std::{sync::Arc, time::Duration};

use crate::{
    fleet::none_left,
    support::{wait::expect, wait_until},
    weather::{FLEET, PATIENCE, Weather, names},
};

#[tokio::test(flavor = "multi_thread")]
async fn mc_254_an_api_server_that_is_silent_freezes_everything_and_harms_nobody() {
    let flags = [
        "--machine-safety-apiserver-statuscheck-timeout=3s",
        "--machine-safety-apiserver-statuscheck-period=3s",
        "--machine-health-timeout=4s",
        "--machine-safety-orphan-vms-period=2s",
    ];
    let Some(weather) = Weather::begin("weather_api_server::mc_254_silent", &flags).await else { return };
    weather.want(5).await;
    let before = weather.clears_up(5).await;

    weather.rig.suspend_api_server();
    frozen(&weather, "1").await;
    // Longer than the health timeout: a verdict from the old view would come now.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(weather.cloud.vms().await.len(), 5, "nothing is deleted meanwhile");
    weather.rig.resume_api_server();

    frozen(&weather, "0").await;
    let after = weather.clears_up(5).await;
    assert_eq!(names(&before), names(&after), "nobody was replaced");
    assert!(weather.cloud.happened("stopping").await.is_empty());
    // And work goes on.
    weather.want(6).await;
    weather.clears_up(6).await;
}

async fn frozen(weather: &Weather, value: &str) {
    wait_until(&format!("mcm_machine_controller_frozen {value}"), PATIENCE, || async {
        let metrics = weather.manager.http_get("/metrics").await;
        let line = metrics.lines().find(|line| line.starts_with("mcm_machine_controller_frozen ")).unwrap_or_default();
        expect(line.ends_with(value), || line.to_owned())
    })
    .await;
}

/// While the manager sleeps the world changes, and the API server that it asks next knows nothing of that time (410 Gone).
#[tokio::test(flavor = "multi_thread")]
async fn mc_031_a_watch_whose_history_is_lost_is_begun_anew() {
    let Some(weather) = Weather::begin("weather_api_server::mc_031_lost_history", &[]).await else { return };
    weather.rig.with_controller_manager().await;
    weather.want(3).await;
    let before = weather.clears_up(3).await;

    weather.manager.suspend();
    weather.namespace.kubectl(&["scale", "machinedeployment", FLEET, "--replicas=4"]).await.succeed();
    let lost = names(&before).into_iter().next().expect("three machines");
    weather.namespace.kubectl(&["delete", "machine", &lost, "--wait=false"]).await.succeed();
    let rig = Arc::clone(&weather.rig);
    rig.restart_api_server().await;
    weather.manager.resume();

    wait_until("the deleted machine to go", PATIENCE, || async {
        let machines = weather.namespace.list("machines").await;
        expect(!names(&machines).contains(&lost), || format!("{:?}", names(&machines)))
    })
    .await;
    weather.clears_up(4).await;
    weather.namespace.kubectl(&["delete", "machinedeployment", FLEET, "--wait=false"]).await.succeed();
    none_left(&weather.namespace, "machines", PATIENCE).await;
    assert!(weather.cloud.vms().await.is_empty(), "no VM outlives its machine");
}
