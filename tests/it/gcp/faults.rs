//! A fleet on the fake of Compute Engine while replies are lost, connections break, the service throttles, and the manager is killed at random
//! moments. Each machine has one instance, also over time, and nothing is left behind.
//!
//! `MCM_TEST_SEED` repeats the moments of the kills, `MCM_GCP_FAULTS=N` chooses the number of machines.

use std::time::Duration;

use fake_gce::Refusal;
use fault_proxy::{Fault, FaultProxy, Reply, Rule, any, request};
use http::Method as Verb;

use crate::{
    cloud::{During, a_fleet_with_faults},
    gcp::{each_was_inserted_once, stage},
    support::clouds::number,
};

/// Machines in every run; the nightly run has more.
const MACHINES: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_has_one_instance_for_each_machine_in_spite_of_lost_replies() {
    let Some(stage) = stage("gcp::faults::a_fleet_has_one_instance_for_each_machine").await else { return };
    let machines = number("MCM_GCP_FAULTS").unwrap_or(MACHINES);
    let proxy = FaultProxy::before(stage.account.fake.url()).await.expect("a port");
    let flags = vec![format!("--provider-endpoint=GCP={}", proxy.url())];
    a_fleet_with_faults(&stage, machines, flags, |during| match during {
        During::Creations => add_faults(&proxy, &Verb::POST),
        During::Deletions => add_faults(&proxy, &Verb::DELETE),
    })
    .await;
    each_was_inserted_once(&stage, machines);
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
