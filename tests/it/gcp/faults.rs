//! A fleet on the fake of Compute Engine while replies are lost, connections break, the service throttles and has no capacity, and the manager is
//! killed at random moments. In the end each machine has one instance, and nothing is left behind.
//!
//! `MCM_TEST_SEED` repeats the moments of the kills, `MCM_GCP_FAULTS=N` chooses the number of machines.

use std::{collections::BTreeMap, time::Duration};

use fake_gce::{Method, OperationError, Refusal};
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
    // Operations fail, too. The instance of such an operation is gone with it.
    stage.gce.fake.fail(Method::InsertInstance, &[OperationError::internal()], machines.div_ceil(10));
    stage.apply_machines(machines).await;
    killed(&mut manager, kills, &mut chance).await;
    stage.each_machine_has_its_instance(machines, timeout).await;
    println!("{machines} machines run, {kills} kills: {}", counted(&stage.gce.requests()));
    each_name_has_had_one_instance(&stage, machines);

    add_faults(&proxy, &Verb::DELETE);
    stage.gce.fake.fail(Method::DeleteInstance, &[OperationError::internal()], machines.div_ceil(10));
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

/// Only a creation that the project has failed is repeated.
fn each_name_has_had_one_instance(stage: &Stage, machines: usize) {
    let mut counts = BTreeMap::<_, usize>::new();
    for name in stage.gce.fake.inserted() {
        *counts.entry(name).or_default() += 1;
    }
    let failed = stage
        .gce
        .fake
        .operations()
        .iter()
        .filter(|one| one["operationType"] == "insert" && !one["error"].is_null())
        .count();
    assert_eq!((counts.len(), counts.values().sum::<usize>() - failed), (machines, machines), "{counts:?}");
}
