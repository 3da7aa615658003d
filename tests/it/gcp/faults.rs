//! A fleet on the fake of Compute Engine while replies are lost, connections break, the service throttles, and the manager is killed at random
//! moments. Each machine has one instance, also over time, and nothing is left behind.
//!
//! `MCM_TEST_SEED` repeats the moments of the kills, `MCM_GCP_FAULTS=N` chooses the number of machines.

use std::{collections::BTreeSet, time::Duration};

use fake_gce::Refusal;
use fault_proxy::{Fault, FaultProxy, Reply, Rule, any, request};
use http::Method as Verb;

use crate::{
    gcp::Stage,
    support::{
        ManagerOptions, TestManager,
        clouds::{NO_SIMULATION, chance, counted, killed, number},
    },
};

/// Machines in every run; the nightly run has more.
const MACHINES: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_has_one_instance_for_each_machine_in_spite_of_lost_replies() {
    let Some(stage) = Stage::new("gcp::faults::a_fleet_has_one_instance_for_each_machine").await else { return };
    let machines = number("MCM_GCP_FAULTS").unwrap_or(MACHINES);
    let timeout = Duration::from_secs(300 + 12 * machines as u64);
    let kills = (machines / 8).clamp(3, 10);
    let mut chance = chance();
    let proxy = FaultProxy::before(stage.gce.fake.url()).await.expect("a port");
    let options = ManagerOptions {
        simulation: NO_SIMULATION.to_owned(),
        flags: vec![format!("--provider-endpoint=GCP={}", proxy.url())],
        ..ManagerOptions::default()
    };
    let mut manager = TestManager::start(&stage.rig, &stage.namespace, &options).await;

    add_faults(&proxy, &Verb::POST);
    stage.apply_machines(machines).await;
    killed(&mut manager, kills, &mut chance).await;
    stage.each_machine_has_its_instance(machines, timeout).await;
    println!("{machines} machines run, {kills} kills: {}", counted(&stage.gce.requests()));
    let ever = stage.gce.fake.inserted();
    assert_eq!((ever.len(), ever.iter().collect::<BTreeSet<_>>().len()), (machines, machines), "{ever:?}");

    add_faults(&proxy, &Verb::DELETE);
    stage.delete_the_deployment().await;
    killed(&mut manager, kills, &mut chance).await;
    stage.nothing_is_left(timeout).await;
    println!("{machines} machines are gone, {kills} more kills: {}", counted(&stage.gce.requests()));
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
}

/// Each kind of fault has its own period, so that the faults coincide in changing combinations. `loses` is the verb whose replies are lost.
fn add_faults(proxy: &FaultProxy, loses: &Verb) {
    proxy.clear();
    let answer = |refusal: Refusal| Fault::Answer(Reply::new(refusal.status(), refusal.body()));
    proxy.add(Rule::new(request(loses.clone(), "/compute/v1/"), Fault::LoseReply).every(3));
    for (fault, every) in [
        (answer(Refusal::rate_limited()), 61),
        (answer(Refusal::unavailable()), 43),
        (Fault::Drop, 47),
        (Fault::Cut(10), 41),
        (Fault::Answer(Reply::new(502, "<html>Bad Gateway</html>")), 37),
        (Fault::Delay(Duration::from_millis(300)), 11),
    ] {
        proxy.add(Rule::new(any, fault).every(every));
    }
}
