//! A fleet on the services of `OpenStack` while replies are lost, connections break, services throttle, and the manager is killed at random moments.
//! In the end each machine has one server, and nothing is left behind.
//!
//! `MCM_TEST_SEED` repeats the moments of the kills, `MCM_OPENSTACK_FAULTS=N` chooses the number of machines.

use std::time::Duration;

use fault_proxy::{Fault, FaultProxy, Reply, Rule, any, request};
use http::Method;

use crate::{
    cloud::{During, a_fleet_with_faults},
    openstack::stage,
    support::{clouds::number, openstack::Project},
};

/// Machines in every run; the nightly run has more.
const MACHINES: usize = 12;

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_has_one_server_for_each_machine_in_spite_of_lost_replies() {
    let Some(stage) = stage("openstack::faults::a_fleet_has_one_server_for_each_machine").await else { return };
    let machines = number("MCM_OPENSTACK_FAULTS").unwrap_or(MACHINES);
    let project = &stage.account;
    a_fleet_with_faults(&stage, machines, Vec::new(), |during| match during {
        During::Creations => faults_of_creations(project),
        During::Deletions => faults_of_deletions(project),
    })
    .await;
    let ever = project.servers_ever().await;
    let ever = ever.as_object().into_iter().flat_map(|names| names.values());
    println!(
        "servers that the names have had: {:?}",
        ever.map(|ids| ids.as_array().map_or(0, Vec::len)).collect::<Vec<_>>()
    );
}

/// Each kind of fault has its own period, so that the faults coincide in changing combinations. After a lost reply, the driver looks at once for what
/// the request has created. After a refused or lost request, the machine waits a minute until its next creation.
fn faults_of_creations(project: &Project) {
    add_connection_faults(project);
    project.identity.add(Rule::new(request(Method::POST, "/v3/auth/tokens"), Fault::LoseReply).every(3));
    lose(&project.compute, Method::POST, "/v2.1/servers", 3);
    lose(&project.network, Method::POST, "/v2.0/ports", 3);
    lose(&project.network, Method::PUT, "/v2.0/ports", 11);
    lose(&project.volume, Method::POST, "/v3/", 3);
}

fn faults_of_deletions(project: &Project) {
    add_connection_faults(project);
    lose(&project.compute, Method::DELETE, "/v2.1/servers", 3);
    lose(&project.network, Method::DELETE, "/v2.0/ports", 3);
    lose(&project.volume, Method::DELETE, "/v3/", 3);
}

/// The request takes effect, and its reply is lost.
fn lose(proxy: &FaultProxy, method: Method, path: &str, every: usize) {
    proxy.add(Rule::new(request(method, path), Fault::LoseReply).every(every));
}

/// Broken connections, throttled services, and gateways that refuse.
fn add_connection_faults(project: &Project) {
    project.clear();
    for proxy in [&project.compute, &project.network, &project.volume] {
        let throttled =
            Reply::new(429, r#"{"overLimit": {"code": 429, "message": "slow down"}}"#).with("retry-after", "1");
        for (fault, every) in [
            (Fault::Answer(throttled), 60),
            (Fault::Drop, 47),
            (Fault::Cut(10), 41),
            (Fault::Answer(Reply::new(502, "<html>Bad Gateway</html>")), 43),
            (Fault::Delay(Duration::from_millis(300)), 11),
        ] {
            proxy.add(Rule::new(any, fault).every(every));
        }
    }
}
