//! Time that passes without the manager: the process, or its machine, is suspended.
//!
//! The manager uses a monotonic clock, so changes of the host's clock have no effect. After a suspension, all deadlines have passed at once, and all
//! cached data is outdated.

use std::time::Duration;

use crate::{
    fleet::phase,
    support::cluster_object::name,
    weather::{Weather, explanation, names, node_of},
};

/// Long enough that no machine fails before the suspension, however busy the host is. It passes during the suspension.
const FLAGS: [&str; 1] = ["--machine-health-timeout=20s"];
const SLEEP: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread")]
async fn mc_281_a_machine_that_recovers_while_the_manager_is_suspended_is_kept() {
    let Some(weather) = Weather::begin("weather::clock::mc_281_a_machine_that_recovers", &FLAGS).await else { return };
    weather.want(3).await;
    let before = weather.wait_until_healthy(3).await;
    let (ill, node) = (name(&before[0]).to_owned(), node_of(&before[0]).to_owned());
    // Without this the simulated kubelet reports again at once.
    weather.cloud.does(&ill, "freeze-heartbeat").await;
    weather.set_nodes_ready(&[&node], "Unknown").await;
    let reported = weather.wait_for_machine("the machine to report its unresponsive Node", |machine| {
        name(machine) == ill && phase(machine) == "Unknown" && !explanation(machine).is_empty()
    });
    let reported = reported.await;
    assert!(explanation(&reported).contains("to recover"), "{}", explanation(&reported));

    weather.manager.suspend();
    weather
        .wait_for_machine("the unhealthy machine", |machine| name(machine) == ill && phase(machine) == "Unknown")
        .await;
    weather.set_nodes_ready(&[&node], "True").await;
    tokio::time::sleep(SLEEP).await;
    weather.manager.resume();

    let after = weather.wait_until_healthy(3).await;
    assert_eq!(names(&before), names(&after), "no machine is replaced");
    assert!(weather.cloud.happened("stopping").await.is_empty(), "no VM is deleted");
}
