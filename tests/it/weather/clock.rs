//! Time that passes without the manager: the process, or its host, was suspended.
//!
//! Its own clock is monotonic, so that the clock of the host may be set. After a suspension, all deadlines have passed at once, and all cached data
//! is old.

use std::time::Duration;

use crate::{
    fleet::phase,
    support::cluster_object::name,
    weather::{Weather, explanation, names, node_of},
};

/// Long enough that no machine fails before the suspension begins, on any host. Afterwards it has passed.
const FLAGS: [&str; 1] = ["--machine-health-timeout=20s"];
const SLEEP: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread")]
async fn mc_281_who_recovers_while_the_manager_sleeps_is_not_given_up() {
    let Some(weather) = Weather::begin("weather::clock::mc_281_who_recovers", &FLAGS).await else { return };
    weather.want(3).await;
    let before = weather.clears_up(3).await;
    let (ill, node) = (name(&before[0]).to_owned(), node_of(&before[0]).to_owned());
    // Otherwise the simulated kubelet would send heartbeats at once.
    weather.cloud.does(&ill, "freeze-heartbeat").await;
    weather.nodes_show(&[&node], "Unknown").await;
    let told = weather.some_machine("the silence to be shown", |machine| {
        name(machine) == ill && phase(machine) == "Unknown" && !explanation(machine).is_empty()
    });
    let told = told.await;
    assert!(explanation(&told).contains("to recover"), "{}", explanation(&told));

    weather.manager.suspend();
    weather.some_machine("the one that is ill", |machine| name(machine) == ill && phase(machine) == "Unknown").await;
    weather.nodes_show(&[&node], "True").await;
    tokio::time::sleep(SLEEP).await;
    weather.manager.resume();

    let after = weather.clears_up(3).await;
    assert_eq!(names(&before), names(&after), "nobody was replaced");
    assert!(weather.cloud.happened("stopping").await.is_empty(), "no VM was deleted");
}
