//! A fleet on moto while replies are lost, EC2 throttles and returns stale data, and the manager is killed at random moments. In the end each machine
//! has had exactly one instance, and nothing is left behind.
//!
//! The fault proxy causes the faults. It also adds behaviour of EC2 that moto lacks: client tokens, and a second termination of an instance that
//! succeeds. `MCM_TEST_SEED` repeats the moments of the kills. `MCM_AWS_FAULTS=N` chooses the number of machines.

use std::{collections::BTreeMap, time::Duration};

use fault_proxy::{Fault, FaultProxy, ReceivedRequest, Reply, Rule, action, any};
use serde_json::{Value, json};

use crate::{
    aws::{CLASS, DEPLOYMENT, Stage},
    fleet::{self, none_left},
    refusals::Seed,
    support::{
        ManagerOptions, TestManager,
        clouds::{NO_SIMULATION, chance, counted, killed, number},
        cluster_object::{name, text},
        wait::expect,
        wait_until,
    },
};

/// Machines in every run; the nightly run has more.
const MACHINES: usize = 30;
const KILLS: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(900);
/// The answer of EC2 to a client with too many requests.
const THROTTLED: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>RequestLimitExceeded</Code>\
    <Message>Request limit exceeded.</Message></Error></Errors><RequestID>2f4e7a10-9a63-4d0c-8b1c-0d5f6a7b8c9d</RequestID></Response>";

#[tokio::test(flavor = "multi_thread")]
async fn a_03_a_fleet_has_one_instance_for_each_machine_in_spite_of_lost_replies() {
    let Some(stage) = Stage::new("aws::faults::a_fleet_has_one_instance_for_each_machine").await else { return };
    let machines = number("MCM_AWS_FAULTS").unwrap_or(MACHINES);
    let mut chance = chance();

    let proxy = FaultProxy::before(&stage.moto.url).await.expect("a port");
    proxy.keep_to_tokens("ClientToken");
    // EC2 accepts repeated terminations of an instance. moto fails on the second one, because the network interface is missing
    // (InvalidNetworkInterfaceID.NotFound).
    proxy.forward_once(action("TerminateInstances"));
    let options = ManagerOptions {
        simulation: NO_SIMULATION.to_owned(),
        flags: vec![format!("--provider-endpoint=AWS={}", proxy.url())],
        ..ManagerOptions::default()
    };
    let mut manager = TestManager::start(&stage.rig, &stage.namespace, &options).await;
    stage.apply_secrets_and_class().await;
    faults_of_creations(&proxy);
    let mut deployment = Seed::Deployment.object();
    deployment["spec"]["replicas"] = json!(machines);
    stage.namespace.apply(&deployment.to_string()).await.succeed();
    killed(&mut manager, KILLS, &mut chance).await;
    wait_until("all machines to run", TIMEOUT, || async {
        let all = stage.namespace.list("machines").await;
        let running = all.iter().filter(|machine| fleet::phase(machine) == "Running").count();
        let waiting = all.iter().filter(|machine| fleet::phase(machine) != "Running").map(fleet::describe);
        expect((running, all.len()) == (machines, machines), || waiting.collect::<Vec<_>>().join("\n"))
    })
    .await;
    each_machine_has_had_one_instance(&stage, machines).await;
    println!("{machines} machines run: {}, {} of them EC2 has got", counted(&actions(&proxy)), arrived(&stage));

    faults_of_deletions(&proxy);
    stage.namespace.kubectl(&["delete", "machinedeployment", DEPLOYMENT, "--wait=false"]).await.succeed();
    killed(&mut manager, KILLS, &mut chance).await;
    for resource in ["machines", "machinesets", "machinedeployments"] {
        none_left(&stage.namespace, resource, TIMEOUT).await;
    }
    stage.account_and_cluster_are_empty().await;
    println!("{machines} machines are gone: {}, {} of them EC2 has got", counted(&actions(&proxy)), arrived(&stage));
    stage.namespace.kubectl(&["delete", "machineclass", CLASS, "--timeout=300s"]).await.succeed();
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
}

/// Each kind of fault has its own period, so that the faults coincide in changing combinations.
fn faults_of_creations(proxy: &FaultProxy) {
    proxy.clear();
    proxy.add(throttling());
    proxy.add(Rule::new(action("RunInstances"), Fault::LoseReply).every(3));
    proxy.add(Rule::new(action("RunInstances"), Fault::Delay(Duration::from_millis(700))).every(4));
    proxy.add(Rule::new(action("ModifyNetworkInterfaceAttribute"), Fault::LoseReply).every(5));
    // EC2 returns stale data: the instance is not visible yet.
    proxy.add(Rule::new(is_lookup, Fault::Stale).every(7));
    proxy.add(Rule::new(action("DescribeInstances"), Fault::Cut(100)).every(13));
    proxy.add(Rule::new(any, Fault::Drop).every(17));
}

fn faults_of_deletions(proxy: &FaultProxy) {
    proxy.clear();
    proxy.add(throttling());
    proxy.add(Rule::new(action("TerminateInstances"), Fault::LoseReply).every(3));
    proxy.add(Rule::new(action("TerminateInstances"), Fault::Drop).every(4));
    proxy.add(Rule::new(action("DescribeInstances"), Fault::Drop).every(17));
}

/// Throttles rarely, because the driver halves its rate for a while after each throttled reply.
fn throttling() -> Rule {
    Rule::new(any, Fault::Answer(Reply::new(503, THROTTLED))).every(120)
}

/// A lookup of the instance of one machine by its tags.
fn is_lookup(request: &ReceivedRequest) -> bool {
    request.parameter("Action") == "DescribeInstances" && request.parameter("Filter.1.Name") == "tag:Name"
}

fn actions(proxy: &FaultProxy) -> Vec<String> {
    proxy.requests().iter().map(|request| request.parameter("Action").to_owned()).collect()
}

fn arrived(stage: &Stage) -> usize {
    stage.moto.actions_of(&stage.moto.manager).len()
}

/// Each name has had exactly one instance in total; EC2 also shows terminated instances.
async fn each_machine_has_had_one_instance(stage: &Stage, count: usize) {
    let machines = stage.namespace.list("machines").await;
    let wanted: BTreeMap<_, _> =
        machines.iter().map(|machine| (name(machine).to_owned(), vec![id_of(machine)])).collect();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for instance in stage.moto.aws(&["ever"]).await.as_array().into_iter().flatten() {
        let tags = instance["Tags"].as_array().into_iter().flatten();
        let name = tags.clone().find(|tag| text(tag, "/Key") == "Name").map(|tag| text(tag, "/Value").to_owned());
        found.entry(name.unwrap_or_default()).or_default().push(text(instance, "/InstanceId").to_owned());
    }
    assert_eq!(found, wanted);
    assert_eq!(found.len(), count);
}

fn id_of(machine: &Value) -> String {
    text(machine, "/spec/providerID").rsplit('/').next().unwrap_or_default().to_owned()
}
