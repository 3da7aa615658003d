//! Tests of the driver over real connections to [`FakeEc2`], through a proxy with faults.

use std::sync::Arc;

use fault_proxy::{Fault, FaultProxy, Reply, Rule, action, any};
use machine_driver::ErrorCodes;
use rstest::rstest;
use serde_json::json;

use super::{
    tests::{class, secret},
    *,
};
use crate::{OwnIdentity, fake_ec2::FakeEc2};
use cloud_client::Secret;

/// A driver that is connected to a fake EC2 through a proxy.
struct Wire {
    ec2: FakeEc2,
    proxy: FaultProxy,
    driver: AwsDriver,
}

impl Wire {
    async fn new() -> Self {
        let ec2 = FakeEc2::new();
        let behind = ec2.clone();
        let proxy = FaultProxy::of(move |seen| behind.reply(seen)).await.unwrap();
        let driver = reaching(proxy.url());
        Self { ec2, proxy, driver }
    }

    async fn create(&self) -> Result<CreatedVm, Status> {
        self.driver.create_machine(&within(60), machine("m-1")).await
    }

    async fn list(&self) -> Result<Vec<ListedVm>, Status> {
        let request = ListRequest { class: Arc::new(class(json!({}))), secret: secret() };
        self.driver.list_machines(&within(60), request).await
    }
}

fn reaching(url: &str) -> AwsDriver {
    AwsDriver::new(AwsOptions { ec2_endpoint: Some(url.to_owned()), ..AwsOptions::default() })
}

fn within(seconds: u64) -> OpContext {
    OpContext::within(Duration::from_secs(seconds))
}

fn machine(name: &str) -> MachineRequest {
    let mut machine = Machine::default();
    machine.metadata.name = Some(name.to_owned());
    machine.metadata.uid = Some(format!("uid-{name}"));
    MachineRequest { machine: Arc::new(machine), class: Arc::new(class(json!({}))), secret: secret() }
}

#[rstest]
#[case::a_03_lost(Fault::LoseReply)]
#[case::cut_off_in_the_middle(Fault::Cut(200))]
#[tokio::test]
async fn the_attempt_after_a_launch_without_an_answer_finds_its_instance(#[case] fault: Fault) {
    let wire = Wire::new().await;
    wire.proxy.add(Rule::new(action("RunInstances"), fault).times(1));
    let refused = wire.create().await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable, "{}", refused.message);
    assert_eq!(wire.create().await.unwrap().vm.provider_id, "aws:///eu-west-1/i-1");
    assert_eq!(wire.ec2.live().len(), 1);
}

#[tokio::test]
async fn a_read_whose_answer_is_cut_off_is_repeated() {
    let wire = Wire::new().await;
    wire.create().await.unwrap();
    wire.proxy.add(Rule::new(any, Fault::Cut(40)).times(1));
    assert_eq!(wire.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn c_10_a_list_whose_second_page_gets_lost_is_an_error() {
    let wire = Wire::new().await;
    for name in ["m-1", "m-2"] {
        wire.driver.create_machine(&within(60), machine(name)).await.unwrap();
    }
    wire.ec2.state().page = 1;
    assert_eq!(wire.list().await.unwrap().len(), 2);
    wire.proxy.add(Rule::new(|seen| !seen.parameter("NextToken").is_empty(), Fault::Drop));
    assert_eq!(wire.list().await.unwrap_err().code, Code::Unavailable);
}

#[tokio::test]
async fn c_11_a_throttled_read_is_repeated_after_the_time_in_the_answer() {
    let wire = Wire::new().await;
    let busy = Reply::new(429, "").with("Retry-After", "1");
    wire.proxy.add(Rule::new(any, Fault::Answer(busy)).times(3));
    let began = Instant::now();
    assert_eq!(wire.list().await.unwrap().len(), 0);
    assert_eq!(wire.proxy.count(any), 4);
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test]
async fn c_13_a_call_to_an_unresponsive_ec2_ends_at_its_deadline() {
    let wire = Wire::new().await;
    wire.proxy.add(Rule::new(any, Fault::NoResponse));
    let began = Instant::now();
    let refused = wire.driver.get_machine_status(&within(1), machine("m-1")).await.unwrap_err();
    assert_eq!(refused.code, Code::DeadlineExceeded);
    assert!(began.elapsed() < Duration::from_millis(1200), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_20_an_instance_that_is_not_described_yet_is_waited_for() {
    let wire = Wire::new().await;
    let unknown = Reply::new(
        400,
        "<Response><Errors><Error><Code>InvalidInstanceID.NotFound</Code><Message>no</Message></Error></Errors></Response>",
    );
    let by_id = |seen: &fault_proxy::ReceivedRequest| !seen.parameter("InstanceId.1").is_empty();
    wire.proxy.add(Rule::new(by_id, Fault::Answer(unknown)).times(2));
    wire.create().await.unwrap();
    assert_eq!(wire.proxy.count(action("RunInstances")), 1);
}

#[tokio::test]
async fn an_endpoint_without_a_listener_is_unavailable() {
    let url = FaultProxy::of(|_| Reply::new(200, "")).await.unwrap().url().to_owned();
    let refused = reaching(&url).get_machine_status(&within(3), machine("m-1")).await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.message.contains("Connection refused"), "{}", refused.message);
}

#[tokio::test]
async fn c_14_no_log_contains_a_secret() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::TRACE);
    let subscriber = subscriber.with_writer(Arc::new(log.reopen().unwrap())).finish();
    let logging = tracing_subscriber::util::SubscriberInitExt::set_default(subscriber);
    let ec2 = FakeEc2::new();
    let behind = ec2.clone();
    let proxy = FaultProxy::of(move |seen| behind.reply(seen)).await.unwrap();
    let own = OwnIdentity::Keys {
        id: "AKIDOWN".to_owned(),
        secret: Secret::new("the-secret-key"),
        token: Some(Secret::new("the-session-token")),
    };
    let options = AwsOptions {
        ec2_endpoint: Some(proxy.url().to_owned()),
        own,
        error_codes: ErrorCodes::Fine,
        ..AwsOptions::default()
    };
    let driver = AwsDriver::new(options);
    let mut request = machine("m-1");
    request.secret = SecretData::default();
    request.secret.set("userData", b"#!/bin/sh\njoin --token=the-bootstrap-token\n".to_vec());
    driver.create_machine(&within(60), request.clone()).await.unwrap();
    driver.delete_machine(&within(60), request).await.unwrap();
    drop(logging);
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("signing request"), "the signing crate logs each request: {log}");
    for secret in ["the-secret-key", "the-session-token", "the-bootstrap-token", "IyEvYmluL3NoCmpvaW4gLS10"] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
}
