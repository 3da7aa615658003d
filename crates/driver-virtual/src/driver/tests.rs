//! The driver from the view of its callers: waiting, cancellation, kills, many threads.

use std::{path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube_values::field::Findings;
use machine_api::v1alpha1::{Machine, MachineClass};
use machine_driver::{Code, Driver, ListRequest, MachineRequest, OpContext, SecretData, Status, VolumeIdsRequest};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Impersonation, SimulationConfig, SimulationError, SimulationOptions, StatePlace, VirtualCloud, start};

fn cx() -> OpContext {
    OpContext::within(Duration::from_secs(60))
}

fn options(text: &str) -> SimulationOptions {
    let defaults = SimulationConfig::without_latency().overlaid_by_text(text).unwrap();
    SimulationOptions { defaults, ..SimulationOptions::new(Timestamp::UNIX_EPOCH) }
}

async fn a_cloud(options: SimulationOptions) -> Arc<VirtualCloud> {
    start(options, None, CancellationToken::new()).await.unwrap().0
}

fn class(provider: &str, spec: Value) -> MachineClass {
    let mut class = MachineClass { provider: provider.to_owned(), provider_spec: spec, ..MachineClass::default() };
    class.metadata.name = Some("pool".to_owned());
    class.metadata.namespace = Some("shoot".to_owned());
    class
}

fn request_of(class: MachineClass, name: &str) -> MachineRequest {
    let mut machine = Machine::default();
    machine.metadata.name = Some(name.to_owned());
    machine.metadata.namespace = Some("shoot".to_owned());
    machine.metadata.uid = Some(format!("uid-{name}"));
    MachineRequest { machine: Arc::new(machine), class: Arc::new(class), secret: SecretData::default() }
}

fn request(name: &str) -> MachineRequest {
    request_of(class("virtual", json!({})), name)
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code, |_| Code::OK)
}

async fn machines(cloud: &VirtualCloud) -> Vec<String> {
    let request = ListRequest { class: Arc::new(class("virtual", json!({}))), secret: SecretData::default() };
    cloud.list_machines(&cx(), request).await.unwrap().into_iter().map(|vm| vm.machine_name).collect()
}

#[rstest]
#[case::itself("virtual", json!({"region": "eu-1"}))]
#[case::as_another_provider("AWS", json!({"region": "eu-1", "machineType": "m5.large"}))]
#[tokio::test(start_paused = true)]
async fn it_passes_the_contract_of_drivers(#[case] provider: &str, #[case] spec: Value) {
    let options =
        SimulationOptions { impersonation: Impersonation::Allowed, ..options("latency: {create: 2s, delete: 10s}") };
    let cloud = a_cloud(options).await;
    machine_driver::contract::holds_for(&*cloud, class(provider, spec), SecretData::default()).await;
}

/// Also in a process that is not the leader.
#[tokio::test(start_paused = true)]
async fn it_names_the_owner_of_the_vms_of_a_class() {
    let tags = json!({ "kubernetes.io/cluster/shoot": "1", "kubernetes.io/role/node": "1" });
    let class = class("virtual", json!({ "tags": tags }));
    let owner = a_cloud(options("{}")).await.owner(&class);
    let standby = VirtualCloud::new(&options("{}")).unwrap().owner(&class);
    assert!(owner.is_some());
    assert_eq!(owner.map(|owner| owner.to_string()), standby.map(|owner| owner.to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_create_returns_when_the_vm_exists_and_a_delete_when_it_is_gone() {
    let cloud = a_cloud(options("latency: {create: 2s, delete: 10s}")).await;
    let started = Instant::now();
    let created = cloud.create_machine(&cx(), request("m")).await.unwrap();
    assert_eq!(started.elapsed(), Duration::from_secs(2));
    assert_eq!(created.vm.node_name, "m");
    assert_eq!(cloud.get_machine_status(&cx(), request("m")).await, Ok(created.vm));
    cloud.delete_machine(&cx(), request("m")).await.unwrap();
    assert_eq!(started.elapsed(), Duration::from_secs(12));
    assert_eq!(code(cloud.get_machine_status(&cx(), request("m")).await), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn the_next_create_finds_the_vm_of_a_cancelled_create() {
    let cloud = a_cloud(options("latency: {create: 10s}")).await;
    let given_up = tokio::time::timeout(Duration::from_secs(3), cloud.create_machine(&cx(), request("m"))).await;
    assert!(given_up.is_err());
    let started = Instant::now();
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    assert_eq!((started.elapsed(), cloud.vm_count()), (Duration::from_secs(7), 1));
}

#[tokio::test(start_paused = true)]
async fn a_create_may_hang_although_the_vm_is_made() {
    let cloud = a_cloud(options("failures: [{op: create, effect: created-but-error, for: 10m, count: 1}]")).await;
    let started = Instant::now();
    let cx = cx();
    let hanging = cloud.create_machine(&cx, request("m"));
    tokio::pin!(hanging);
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut hanging).await.is_err());
    assert_eq!(cloud.get_machine_status(&cx, request("m")).await.unwrap().node_name, "m");
    assert_eq!(code(hanging.await), Code::Unknown);
    assert_eq!((started.elapsed(), cloud.vm_count()), (Duration::from_secs(600), 1));
}

#[rstest]
#[case::c01_another_provider(class("aws", json!({})), "requested for Provider 'aws', we only support 'virtual'")]
#[case::c03_a_list(class("virtual", json!([])), "providerSpec: Invalid value: []: must be an object")]
#[case::a_wrong_override(class("virtual", json!({"sim": {"latency": {"boot": "x"}}})), "providerSpec.sim.latency.boot: Invalid value")]
#[tokio::test(start_paused = true)]
async fn a_class_that_cannot_be_served_is_an_invalid_argument(#[case] class: MachineClass, #[case] words: &str) {
    let cloud = a_cloud(options("")).await;
    let status = cloud.create_machine(&cx(), request_of(class, "m")).await.unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument);
    assert!(status.message.contains(words), "{}", status.message);
}

#[rstest]
#[case::empty(json!({}))]
#[case::null(Value::Null)]
#[case::fields_of_another_provider(json!({"ami": "ami-1", "iam": {"name": "x"}}))]
#[tokio::test]
async fn c02_anything_else_in_a_provider_spec_is_fine(#[case] spec: Value) {
    let cloud = a_cloud(options("")).await;
    let mut found = Findings::new();
    cloud.validate(&class("virtual", spec), &mut found);
    assert!(found.is_empty(), "{}", found.aggregate());
}

#[tokio::test(start_paused = true)]
async fn a_class_may_take_longer_than_others() {
    let cloud = a_cloud(options("")).await;
    let slow = class("virtual", json!({"sim": {"latency": {"create": "7s"}}}));
    let started = Instant::now();
    cloud.create_machine(&cx(), request_of(slow, "slow")).await.unwrap();
    assert_eq!(started.elapsed(), Duration::from_secs(7));
    cloud.create_machine(&cx(), request("fast")).await.unwrap();
    assert_eq!(started.elapsed(), Duration::from_secs(7));
}

#[tokio::test]
async fn other_providers_are_served_only_with_simulation_enabled() {
    let allowed = SimulationOptions { impersonation: Impersonation::Allowed, ..options("") };
    let cloud = a_cloud(allowed).await;
    assert_eq!(cloud.info().providers, ["virtual", "AWS", "Azure", "GCP", "OpenStack"]);
    let aws = class("AWS", json!({"region": "eu-1", "machineType": "m5.large"}));
    let created = cloud.create_machine(&cx(), request_of(aws, "m")).await.unwrap();
    assert!(created.vm.provider_id.starts_with("aws:///eu-1/i-"), "{}", created.vm.provider_id);
    let refused = start(options("impersonate: [AWS]"), None, CancellationToken::new()).await;
    assert!(matches!(refused, Err(SimulationError::ImpersonationRefused)));
}

#[tokio::test(start_paused = true)]
async fn v02_six_creates_at_once_against_a_quota_of_five() {
    let cloud = a_cloud(options("latency: {create: 2s}\nquota: [{max: 5}]")).await;
    let names: Vec<String> = (0..6).map(|n| format!("m-{n}")).collect();
    let cx = cx();
    let calls = names.iter().map(|name| cloud.create_machine(&cx, request(name)));
    let codes: Vec<Code> = futures::future::join_all(calls).await.into_iter().map(code).collect();
    assert_eq!(codes.iter().filter(|code| **code == Code::OK).count(), 5);
    assert_eq!(codes.iter().filter(|code| **code == Code::ResourceExhausted).count(), 1);
}

/// Creates 200 machines with up to three attempts each, at the same time of a clock that stands still.
fn events_with(threads: usize) -> Value {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
    runtime.block_on(async {
        let text = "clock: virtual\nfailures: [{op: create, rate: 0.05, code: Internal}]
outcomes: [{rate: 0.05, effect: duplicate-vm}, {rate: 0.05, effect: never-joins}]";
        let cloud = a_cloud(options(text)).await;
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..200 {
            let cloud = Arc::clone(&cloud);
            calls.spawn(async move {
                for _ in 0..3 {
                    drop(cloud.create_machine(&cx(), request(&format!("m-{n}"))).await);
                    tokio::task::yield_now().await;
                }
            });
        }
        calls.join_all().await;
        serde_json::to_value(cloud.shared().unwrap().with(|cloud, _| cloud.events())).unwrap()
    })
}

#[test]
fn v01_the_number_of_threads_does_not_change_the_events() {
    let one = events_with(1);
    assert!(one.as_array().unwrap().iter().any(|event| event["what"] == "callFailed"));
    assert_eq!(one, events_with(8));
}

async fn a_kept_cloud(place: StatePlace) -> Result<Arc<VirtualCloud>, SimulationError> {
    let options = SimulationOptions { state: Some(place), ..options("") };
    start(options, None, CancellationToken::new()).await.map(|(cloud, _)| cloud)
}

fn places(directory: &Path) -> [StatePlace; 2] {
    [StatePlace::File(directory.join("journal")), StatePlace::Json(directory.join("vms.json"))]
}

#[tokio::test]
async fn v05_answered_calls_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    for place in places(directory.path()) {
        let cloud = a_kept_cloud(place.clone()).await.unwrap();
        let created = cloud.create_machine(&cx(), request("m")).await.unwrap();
        cloud.create_machine(&cx(), request("other")).await.unwrap();
        cloud.delete_machine(&cx(), request("other")).await.unwrap();
        assert!(matches!(a_kept_cloud(place.clone()).await, Err(SimulationError::State(_))), "two writers of {place}");
        // Nothing is written at the end. The data was written before the calls returned.
        drop(cloud);
        let again = a_kept_cloud(place.clone()).await.unwrap();
        assert_eq!(machines(&again).await, ["m"], "{place}");
        let adopted = again.create_machine(&cx(), request("m")).await.unwrap();
        assert_eq!((adopted.vm.provider_id, again.vm_count()), (created.vm.provider_id, 1), "{place}");
    }
}

#[tokio::test]
async fn changes_that_no_place_stores_are_forgotten() {
    let cloud = a_cloud(options("")).await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    cloud.delete_machine(&cx(), request("m")).await.unwrap();
    assert_eq!(cloud.shared().unwrap().with(|cloud, _| cloud.take_changes()), Vec::new());
}

#[tokio::test]
async fn creates_at_once_are_all_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    for place in places(directory.path()) {
        let cloud = a_kept_cloud(place.clone()).await.unwrap();
        let names: Vec<String> = (0..50).map(|n| format!("m-{n:02}")).collect();
        let cx = cx();
        let calls = names.iter().map(|name| cloud.create_machine(&cx, request(name)));
        assert!(futures::future::join_all(calls).await.iter().all(Result::is_ok));
        drop(cloud);
        assert_eq!(machines(&a_kept_cloud(place.clone()).await.unwrap()).await, names, "{place}");
    }
}

#[tokio::test]
async fn the_exchange_format_is_exactly_as_documented() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vms.json");
    let cloud = a_kept_cloud(StatePlace::Json(path.clone())).await.unwrap();
    let id = cloud.create_machine(&cx(), request("m")).await.unwrap().vm.provider_id;
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(written["version"], 1);
    let vm = written["vms"][0].as_object().unwrap();
    assert_eq!(vm.keys().collect::<Vec<_>>(), ["created", "name", "nodeName", "providerID"]);
    assert_eq!((&vm["name"], &vm["providerID"], &vm["nodeName"]), (&json!("m"), &json!(id), &json!("m")));
}

#[tokio::test]
async fn unreadable_state_is_an_error_and_not_an_empty_cloud() {
    let directory = tempfile::tempdir().unwrap();
    for place in places(directory.path()) {
        if let StatePlace::File(path) | StatePlace::Json(path) = &place {
            std::fs::write(path, "rubbish\n").unwrap();
        }
        let error = a_kept_cloud(place).await.unwrap_err().to_string();
        assert!(error.contains("move the file away"), "{error}");
    }
    let error = a_kept_cloud(StatePlace::ConfigMap("sim".to_owned())).await.unwrap_err().to_string();
    assert!(error.contains("needs a control cluster"), "{error}");
}

#[tokio::test]
async fn v09_volumes_of_the_simulated_driver_have_their_handle() {
    let cloud = a_cloud(options("")).await;
    let volume = |driver: &str| {
        serde_json::from_value(json!({"csi": {"driver": driver, "volumeHandle": format!("{driver}-1")}})).unwrap()
    };
    let volumes = vec![volume("virtual.csi.sapcloud.io"), volume("nfs.csi.k8s.io"), volume("ebs.csi.aws.com")];
    let ids = cloud.get_volume_ids(&cx(), VolumeIdsRequest { volumes }).await.unwrap();
    assert_eq!(ids, ["virtual.csi.sapcloud.io-1", "ebs.csi.aws.com-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_arrives_twice_makes_one_vm_and_the_second_deletion_finds_none() {
    let cloud = a_cloud(options("failures: [{op: any, effect: repeated}]")).await;
    let made = cloud.create_machine(&cx(), request("m")).await.unwrap();
    assert_eq!(cloud.vm_count(), 1);
    assert_eq!(cloud.initialize_machine(&cx(), request("m")).await, Ok(made.vm));
    let answer = cloud.delete_machine(&cx(), request("m")).await.unwrap_err();
    assert_eq!(answer.code, Code::NotFound, "the second answer: {answer}");
}

#[tokio::test]
async fn it_begins_only_with_options_and_only_once() {
    let standby = VirtualCloud::new(&options("")).unwrap();
    let stop = CancellationToken::new();
    assert_eq!(code(standby.begin(stop.clone()).await.map(drop)), Code::FailedPrecondition);
    assert_eq!(code(standby.shared()), Code::Unavailable, "it lives elsewhere");
    standby.may_begin(options(""), None);
    drop(standby.begin(stop.clone()));
    assert!(!standby.begin(stop.clone()).await.unwrap().is_empty(), "a try that was given up does not count");
    assert!(standby.shared().is_ok());
    assert!(standby.begin(stop).await.unwrap().is_empty(), "a cloud lives once");
}
