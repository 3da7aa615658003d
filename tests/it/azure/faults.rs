//! A fleet on the fake of Azure while replies are lost, connections break, the service throttles, operations fail, and the manager is killed at random
//! moments. Each machine has one VM with its parts, also over time, and nothing is left behind.
//!
//! `MCM_TEST_SEED` repeats the moments of the kills, `MCM_AZURE_FAULTS=N` chooses the number of machines.

use std::{collections::BTreeSet, time::Duration};

use fake_azure::{Method, OperationError, Refusal};
use fault_proxy::{Fault, FaultProxy, Reply, Rule, any, request};
use http::Method as Verb;

use crate::{
    azure::stage,
    cloud::{During, a_fleet_with_faults},
    support::clouds::number,
};

/// Machines in every run; the nightly run has more.
const MACHINES: usize = 10;
/// The creations of VMs that Azure accepts and then can't fulfil, half of them for lack of capacity. Each VM is deleted, and made again later.
const FAILURES: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_has_one_vm_for_each_machine_in_spite_of_lost_replies() {
    let Some(stage) = stage("azure::faults::a_fleet_has_one_vm_for_each_machine").await else { return };
    let machines = number("MCM_AZURE_FAULTS").unwrap_or(MACHINES);
    let proxy = FaultProxy::before(stage.account.fake.url()).await.expect("a port");
    let flags = vec![format!("--provider-endpoint=Azure={}", proxy.url()), "--resource-exhausted-retry=2s".to_owned()];
    let fake = &stage.account.fake;
    let passing = OperationError::new("RetryableError", "A retryable error occurred.");
    fake.set_graph_lag(1);
    a_fleet_with_faults(&stage, machines, flags, |during| match during {
        During::Creations => {
            add_faults(&proxy, &Verb::PUT);
            fake.fail(Method::CreateNic, &passing, 1);
            fake.fail(Method::CreateDisk, &passing, 1);
            fake.fail(Method::CreateVm, &passing, FAILURES / 2);
            fake.fail(Method::CreateVm, &OperationError::zonal_allocation_failed(), FAILURES / 2);
        }
        During::Deletions => {
            add_faults(&proxy, &Verb::DELETE);
            fake.fail(Method::DeleteVm, &passing, 1);
            fake.fail(Method::DeleteDisk, &passing, 1);
        }
    })
    .await;
    let ever = fake.created();
    assert_eq!(ever.iter().collect::<BTreeSet<_>>().len(), machines, "{ever:?}");
    assert_eq!(ever.len(), machines + FAILURES, "each failed creation, and no other one, was repeated: {ever:?}");
}

/// Each kind of fault has its own period, so that the faults coincide in changing combinations. `loses` is the verb whose replies are lost.
fn add_faults(proxy: &FaultProxy, loses: &Verb) {
    proxy.clear();
    let answer = |refusal: Refusal| {
        let reply = Reply::new(refusal.status(), refusal.body());
        Fault::Answer(refusal.headers().iter().fold(reply, |reply, (name, value)| reply.with(name, value)))
    };
    proxy.add(Rule::new(request(loses.clone(), "/subscriptions/"), Fault::LoseReply).every(3));
    for (fault, every) in [
        (answer(Refusal::throttled(1)), 61),
        (answer(Refusal::unavailable()), 43),
        // A proxy that says 404 knows nothing about the resource.
        (answer(Refusal::html(404)), 53),
        (Fault::Drop, 47),
        (Fault::Cut(10), 41),
        (Fault::Answer(Reply::new(502, "<html>Bad Gateway</html>")), 37),
        (Fault::Delay(Duration::from_millis(300)), 11),
    ] {
        proxy.add(Rule::new(any, fault).every(every));
    }
}
