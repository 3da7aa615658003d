//! A fleet on the fake of Elastic Compute Service while replies are lost, connections break, the service throttles and has no stock, and the manager is
//! killed at random moments. Each machine has one instance, also over time, and nothing is left behind.
//!
//! `MCM_TEST_SEED` repeats the moments of the kills, `MCM_ALICLOUD_FAULTS=N` chooses the number of machines.

use std::time::Duration;

use fake_ecs::{Action, Refusal};
use fault_proxy::{Fault, FaultProxy, ReceivedRequest, Reply, Rule, any};

use crate::{
    alicloud::{each_was_created_once, stage},
    cloud::{During, a_fleet_with_faults},
    support::clouds::number,
};

/// Machines in every run; the nightly run has more.
const MACHINES: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn y22_a_fleet_has_one_instance_for_each_machine_in_spite_of_lost_replies() {
    let Some(stage) = stage("alicloud::faults::a_fleet_has_one_instance_for_each_machine").await else { return };
    let machines = number("MCM_ALICLOUD_FAULTS").unwrap_or(MACHINES);
    let proxy = FaultProxy::before(stage.account.fake.url()).await.expect("a port");
    let flags =
        vec![format!("--provider-endpoint=Alicloud={}", proxy.url()), "--resource-exhausted-retry=5s".to_owned()];
    a_fleet_with_faults(&stage, machines, flags, |during| match during {
        During::Creations => add_faults(&proxy, Action::RunInstances),
        During::Deletions => add_faults(&proxy, Action::DeleteInstance),
    })
    .await;
    each_was_created_once(&stage, machines);
}

/// Each kind of fault has its own period, so that the faults coincide in changing combinations. `loses` is the action whose replies are lost.
fn add_faults(proxy: &FaultProxy, loses: Action) {
    proxy.clear();
    let answer = |refusal: Refusal| {
        let reply = Reply::new(refusal.status(), refusal.body("of-the-proxy"));
        Fault::Answer(reply.with("content-type", refusal.content_type()))
    };
    proxy.add(Rule::new(calls(loses), Fault::LoseReply).every(3));
    // It may follow a lost reply to the same client token, whose instance is there.
    proxy.add(Rule::new(calls(Action::RunInstances), answer(Refusal::no_stock())).every(8));
    for (fault, every) in [
        (answer(Refusal::throttled()), 61),
        (answer(Refusal::unavailable()), 43),
        (Fault::Drop, 47),
        (Fault::Cut(10), 41),
        (answer(Refusal::page(404)), 37),
        (Fault::Delay(Duration::from_millis(300)), 11),
    ] {
        proxy.add(Rule::new(any, fault).every(every));
    }
}

/// Requests for an action. Its name is in a header.
fn calls(action: Action) -> impl Fn(&ReceivedRequest) -> bool + Send + Sync {
    move |request| request.headers.get("x-acs-action").is_some_and(|name| name.as_bytes() == action.name().as_bytes())
}
