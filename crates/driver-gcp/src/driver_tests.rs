//! Tests of the driver against the fake Compute Engine, which checks each request and answer against Google's discovery documents.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cloud_client::{
    Answer, Bytes, HttpOptions, HttpTransport, Limits, NoAnswer, Transport,
    http::{Method as HttpMethod, Request},
};
use fake_gce::{Method, OperationError, Refusal, Timing};
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, GCEPersistentDiskVolumeSource};
use machine_driver::{ErrorCodes, contract};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    state::Pending,
    test_rig::{CLUSTER, ROLE, Rig, class, cx, driver, id, instance, secret},
};

/// Long enough for a wait of half a second.
const SHORT: Duration = Duration::from_millis(5500);

/// A class with most options.
fn everything() -> Value {
    json!({
        "canIpForward": true, "description": "a node", "labels": {"name": "worker"}, "minCpuPlatform": "Intel Ice Lake",
        "metadata": [{"key": "block-project-ssh-keys", "value": "TRUE"}],
        "disks": [
            {"boot": true, "image": fake_gce::IMAGE, "sizeGb": 50, "type": "pd-ssd", "labels": {"name": "worker"},
             "encryption": {"kmsKeyName": "k", "kmsKeyServiceAccount": "a"}},
            {"sizeGb": 20, "type": "hyperdisk-balanced", "provisionedIops": 3000, "provisionedThroughput": 140, "autoDelete": true},
            {"type": "SCRATCH", "interface": "NVME"},
        ],
        "gpu": {"acceleratorType": fake_gce::GPU, "count": 1},
        "networkInterfaces": [{
            "network": fake_gce::NETWORK, "subnetwork": fake_gce::DUAL_SUBNETWORK, "disableExternalIP": true, "stackType": "IPV4_IPV6",
            "ipv6accessType": "EXTERNAL", "ipCidrRange": "/24", "subnetworkRangeName": fake_gce::SECONDARY_RANGE,
        }],
        "scheduling": {"automaticRestart": false, "onHostMaintenance": "TERMINATE", "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"},
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
        "serviceAccounts": [{"email": "e@p.iam.gserviceaccount.com", "scopes": ["https://www.googleapis.com/auth/compute"]}],
        "shieldedInstanceConfiguration": {"integrityMonitoring": true, "secureBoot": true, "vtpm": true},
        "advancedMachineFeatures": {"enableNestedVirtualization": true},
    })
}

#[rstest]
#[case::g01_a_plain_class(json!({}))]
#[case::g01_all_options(everything())]
#[case::g01_a_preemptible_instance(json!({"scheduling": {"automaticRestart": false, "onHostMaintenance": "TERMINATE", "preemptible": true}}))]
#[tokio::test]
async fn an_instance_is_created_and_deleted(#[case] patch: Value) {
    let rig = Rig::new().await.with(patch);
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    let created = rig.create().await.unwrap();
    assert_eq!((created.vm.provider_id.as_str(), created.vm.node_name.as_str()), (id("m-1").as_str(), "m-1"));
    assert_eq!(created.last_known_state, Some(format!("Created {}", id("m-1"))));
    assert!(created.vm.addresses.iter().any(|address| address.type_ == "InternalIP"));
    let insert = rig.gce.requests().into_iter().find(|call| call.method == Method::InsertInstance).unwrap();
    assert_eq!(insert.query["requestId"], crate::request_id::of(&rig.machine, 0));
    let instances = rig.gce.instances();
    assert_eq!((instances.len(), &instances[0]["tags"]["items"]), (1, &json!([CLUSTER, ROLE, "shoot"])));
    let rig = rig.with_id(&created.vm.provider_id);
    assert_eq!(rig.status().await.unwrap(), created.vm);
    rig.delete().await.unwrap();
    assert_eq!((rig.gce.instances().len(), rig.gce.disks().len()), (0, 0), "g07: disks go with their instance");
    let gone = rig.delete().await.unwrap_err();
    assert_eq!(gone.code, Code::NotFound);
    assert_eq!(gone.message, "machine name=m-1, uuid= not found");
}

#[tokio::test]
async fn a_machine_costs_few_requests() {
    let rig = Rig::new().await;
    rig.status().await.unwrap_err();
    let created = rig.create().await.unwrap();
    let rig = rig.with_id(&created.vm.provider_id);
    rig.delete().await.unwrap();
    let methods: Vec<_> = rig.gce.requests().iter().map(|call| call.method).collect();
    let (get, search, wait) = (Method::GetInstance, Method::AggregatedInstances, Method::WaitOperation);
    let expected = [get, search, search, Method::InsertInstance, wait, get, get, Method::DeleteInstance, wait];
    assert_eq!(methods, expected);
}

#[tokio::test]
async fn a_machine_of_a_class_that_was_never_edited_is_searched_in_its_zone_only() {
    let rig = Rig::new().await.with_first_class();
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    rig.create().await.unwrap();
    rig.delete().await.unwrap();
    let methods: Vec<_> = rig.gce.requests().iter().map(|call| call.method).collect();
    let (get, wait) = (Method::GetInstance, Method::WaitOperation);
    assert_eq!(methods, [get, Method::InsertInstance, wait, get, get, Method::DeleteInstance, wait]);
}

/// A cloud whose search in all zones lacks a zone that does not answer.
struct WithoutAZone(HttpTransport);

#[async_trait]
impl Transport for WithoutAZone {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        let is_search = request.uri().path().contains("/aggregated/");
        let mut answer = self.0.send(request).await?;
        if is_search {
            let mut page: Value = serde_json::from_slice(&answer.body).unwrap();
            page["items"]["zones/far-1a"] =
                json!({"warning": {"code": "UNREACHABLE", "message": "The zone 'far-1a' is unreachable"}});
            page["unreachables"] = json!(["zones/far-1a"]);
            answer.body = page.to_string().into();
        }
        Ok(answer)
    }
}

#[tokio::test]
async fn the_outage_of_another_zone_stops_no_creation_but_proves_nothing_to_a_deletion() {
    let mut rig = Rig::new().await;
    let options = GcpOptions { endpoint: Some(rig.gce.url().to_owned()), ..GcpOptions::default() };
    let transport = WithoutAZone(HttpTransport::new(HttpOptions::default()));
    rig.driver = GcpDriver::through(Client::new(transport, Limits::default()), options);
    let waits = rig.delete().await.unwrap_err();
    assert!(waits.code == Code::Unavailable && waits.message.contains("far-1a"), "{waits}");
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    rig.create().await.unwrap();
}

#[tokio::test]
async fn the_contract_of_drivers_holds() {
    let rig = Rig::new().await;
    contract::holds_for(&rig.driver, class(json!({})), rig.secret.clone()).await;
    assert_eq!(rig.gce.instances().len(), 0);
}

#[rstest]
#[case::g03_no_capacity(vec![OperationError::zone_exhausted(), OperationError::new("OTHER", "more")], Code::ResourceExhausted)]
#[case::a_quota(vec![OperationError::quota_exceeded()], Code::ResourceExhausted)]
#[case::an_internal_error(vec![OperationError::internal()], Code::Internal)]
#[tokio::test]
async fn a_failed_operation_is_reported_and_the_next_attempt_has_another_request_id(
    #[case] errors: Vec<OperationError>,
    #[case] code: Code,
) {
    let mut rig = Rig::new().await;
    rig.gce.fail(Method::InsertInstance, &errors, 1);
    let failed = rig.create().await.unwrap_err();
    assert_eq!(failed.code, code);
    assert!(failed.message.starts_with("Create machine \"m-1\" failed: "), "{failed}");
    assert_eq!(failed.message.matches("; ").count(), errors.len() - 1, "g03: the messages are joined: {failed}");
    assert_eq!(rig.gce.instances().len(), 0);
    rig.keep(&failed);
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    rig.create().await.unwrap();
    assert_eq!(rig.gce.inserted(), ["m-1", "m-1"]);
}

#[rstest]
#[case::g04_no_machine_type(json!({"zone": fake_gce::OTHER_ZONE, "machineType": fake_gce::OTHER_MACHINE_TYPE}), Code::ResourceExhausted, "does not exist in zone")]
#[case::no_image(json!({"disks": [{"boot": true, "image": "projects/p/global/images/x"}]}), Code::InvalidArgument, "cannot be found")]
#[case::no_zone(json!({"zone": "nowhere"}), Code::InvalidArgument, "Unknown zone")]
#[case::an_invalid_class(json!({"disks": []}), Code::InvalidArgument, "failed on validateProviderSpec: error while validating ProviderSpec providerSpec.disks")]
#[case::no_tags(json!({"tags": ["x"]}), Code::InvalidArgument, "tags must contain entries starting with")]
#[tokio::test]
async fn a_class_that_can_not_be_fulfilled_is_refused(#[case] patch: Value, #[case] code: Code, #[case] part: &str) {
    let rig = Rig::new().await.with(patch);
    let refused = rig.create().await.unwrap_err();
    assert!(refused.code == code && refused.message.contains(part), "{refused}");
    assert_eq!((rig.gce.inserted().len(), refused.last_known_state), (0, None));
}

#[rstest]
#[case::a_quota(Refusal::quota_exceeded(), 1, Code::ResourceExhausted)]
#[case::no_right(Refusal::forbidden(), 1, Code::PermissionDenied)]
#[case::too_many_requests(Refusal::rate_limited(), 4, Code::Unavailable)]
#[case::an_outage(Refusal::unavailable(), 4, Code::Unavailable)]
#[tokio::test]
async fn a_refused_request_has_its_code(#[case] refusal: Refusal, #[case] times: usize, #[case] code: Code) {
    let mut rig = Rig::new().await;
    rig.gce.refuse(Method::InsertInstance, refusal, times);
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, code, "{refused}");
    rig.keep(&refused);
    rig.create().await.unwrap();
    assert_eq!(rig.gce.inserted(), ["m-1"]);
}

#[tokio::test]
async fn c_11_a_throttled_request_is_repeated() {
    let rig = Rig::new().await;
    rig.gce.refuse(Method::InsertInstance, Refusal::rate_limited(), 3);
    rig.create().await.unwrap();
    assert_eq!((rig.gce.count(Method::InsertInstance), rig.gce.inserted().len()), (4, 1));
}

#[rstest]
#[case::g05_ours(&[CLUSTER, ROLE], Ok(()))]
#[case::g05_of_another_role(&[CLUSTER], Err(Code::AlreadyExists))]
#[case::g05_without_tags(&[], Err(Code::AlreadyExists))]
#[tokio::test]
async fn an_instance_with_the_name_is_adopted_if_it_has_our_tags(
    #[case] tags: &[&str],
    #[case] expected: Result<(), Code>,
) {
    let rig = Rig::new().await;
    rig.gce.put_instance(&instance("m-1", tags));
    let outcome = rig.create().await;
    assert_eq!(
        outcome.as_ref().map(|created| created.vm.provider_id.clone()).map_err(|status| status.code),
        expected.map(|()| id("m-1"))
    );
    assert_eq!(rig.gce.instances().len(), 1, "nothing is deleted");
    if expected.is_err() {
        assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
        let is_of_cluster = tags.contains(&CLUSTER);
        let code = if is_of_cluster { Code::FailedPrecondition } else { Code::NotFound };
        assert_eq!(rig.delete().await.unwrap_err().code, code, "the tags may have been edited");
        assert_eq!((rig.list().await.unwrap(), rig.gce.instances().len()), (Vec::new(), 1));
    }
}

#[tokio::test]
async fn g06_an_operation_that_runs_too_long_is_polled_by_the_next_call() {
    let mut rig = Rig::new().await;
    rig.gce.hold_operations();
    let late = rig.create_within(SHORT).await.unwrap_err();
    assert_eq!(late.code, Code::DeadlineExceeded, "{late}");
    let pending = Pending::of(late.last_known_state.as_deref().unwrap()).unwrap();
    assert_eq!((pending.zone.as_str(), pending.attempt, pending.operation.is_some()), (fake_gce::ZONE, 0, true));
    rig.keep(&late);
    let status = rig.status().await.unwrap_err();
    assert_eq!((status.code, &status.last_known_state), (Code::Unimplemented, &late.last_known_state));
    rig.gce.release_operations();
    let created = rig.create().await.unwrap();
    assert_eq!((created.vm.provider_id, rig.gce.count(Method::InsertInstance)), (id("m-1"), 1));
}

/// The process is killed after the request, before it could write anything.
#[tokio::test]
async fn a_creation_without_a_trace_goes_on_with_the_same_operation() {
    let mut rig = Rig::new().await;
    rig.gce.hold_operations();
    tokio::time::timeout(Duration::from_millis(300), rig.create()).await.unwrap_err();
    assert_eq!(rig.gce.inserted(), ["m-1"]);
    rig.driver = driver(GcpOptions { endpoint: Some(rig.gce.url().to_owned()), ..GcpOptions::default() });
    assert_eq!(rig.status().await.unwrap_err().code, Code::Unimplemented, "it is not whole yet");
    rig.gce.release_operations();
    rig.create().await.unwrap();
    assert_eq!(rig.gce.inserted(), ["m-1"]);
}

#[tokio::test]
async fn a_creation_whose_instance_is_gone_makes_another() {
    let rig = Rig::new().await;
    rig.create().await.unwrap();
    rig.delete().await.unwrap();
    rig.create().await.unwrap();
    assert_eq!((rig.gce.inserted().len(), rig.gce.instances().len()), (2, 1));
}

#[tokio::test]
async fn a_disk_that_was_kept_stands_in_the_way_of_an_instance_of_its_name() {
    let disk = json!({"boot": true, "image": fake_gce::IMAGE, "autoDelete": false});
    let rig = Rig::new().await.with(json!({"disks": [disk]}));
    rig.create().await.unwrap();
    rig.delete().await.unwrap();
    assert_eq!((rig.gce.instances().len(), rig.gce.disks().len()), (0, 1), "the class keeps its disk");
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::AlreadyExists);
    assert!(refused.message.contains("/disks/m-1' already exists"), "{refused}");
}

/// Carries requests out, and loses the first answers to requests with this method.
struct LosingReplies {
    inner: HttpTransport,
    method: HttpMethod,
    left: AtomicUsize,
}

#[async_trait]
impl Transport for LosingReplies {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        let is_meant = *request.method() == self.method && !request.uri().path().ends_with("/wait");
        let answer = self.inner.send(request).await?;
        let lost = |left: usize| left.checked_sub(1);
        if is_meant && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lost).is_ok() {
            return Err(NoAnswer::Lost("connection reset".to_owned()));
        }
        Ok(answer)
    }
}

fn losing(rig: &Rig, method: HttpMethod, times: usize) -> GcpDriver {
    let transport =
        LosingReplies { inner: HttpTransport::new(HttpOptions::default()), method, left: AtomicUsize::new(times) };
    let options = GcpOptions { endpoint: Some(rig.gce.url().to_owned()), ..GcpOptions::default() };
    GcpDriver::through(Client::new(transport, Limits { rate: 1000.0, burst: 1000.0 }), options)
}

#[rstest]
#[case::repeated_in_the_call(1)]
#[case::repeated_by_the_next_call(4)]
#[tokio::test]
async fn a_lost_reply_makes_no_second_instance(#[case] times: usize) {
    let mut rig = Rig::new().await;
    rig.driver = losing(&rig, HttpMethod::POST, times);
    if let Err(lost) = rig.create().await {
        assert_eq!((lost.code, times), (Code::Unavailable, 4), "{lost}");
        rig.keep(&lost);
        rig.create().await.unwrap();
    }
    assert_eq!(rig.gce.inserted(), ["m-1"]);
    rig.driver = losing(&rig, HttpMethod::DELETE, 1);
    rig.delete().await.unwrap();
    assert_eq!(rig.gce.instances().len(), 0);
}

#[tokio::test]
async fn an_instance_is_found_where_it_was_asked_for_although_the_class_names_another_zone_now() {
    let mut rig = Rig::new().await;
    rig.driver = losing(&rig, HttpMethod::POST, 4);
    let lost = rig.create().await.unwrap_err();
    rig.keep(&lost);
    let mut rig = rig.with(json!({"zone": fake_gce::OTHER_ZONE}));
    assert_eq!(rig.status().await.unwrap().provider_id, id("m-1"));
    assert_eq!(rig.create().await.unwrap().vm.provider_id, id("m-1"));
    rig.delete().await.unwrap();
    assert_eq!(rig.gce.instances().len(), 0);
    // Now there is nothing in the first zone, and the next instance is created in the zone of the class.
    rig.keep(&lost);
    let created = rig.create().await.unwrap();
    assert!(created.vm.provider_id.contains(fake_gce::OTHER_ZONE), "{created:?}");
}

/// The process is killed after the request, before it could write anything, and the class is edited.
#[tokio::test]
async fn an_instance_without_a_trace_is_found_in_the_zone_that_the_class_had() {
    let rig = Rig::new().await;
    rig.gce.hold_operations();
    tokio::time::timeout(Duration::from_millis(300), rig.create()).await.unwrap_err();
    let rig = rig.with(json!({"zone": fake_gce::OTHER_ZONE}));
    assert_eq!(rig.status().await.unwrap_err().code, Code::Unimplemented, "it is not whole yet");
    rig.gce.release_operations();
    assert_eq!(rig.create().await.unwrap().vm.provider_id, id("m-1"));
    assert_eq!(rig.gce.inserted(), ["m-1"]);
    assert_eq!(rig.status().await.unwrap().provider_id, id("m-1"));
    rig.delete().await.unwrap();
    assert_eq!(rig.gce.instances().len(), 0);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::NotFound);
    rig.gce.refuse(Method::AggregatedInstances, Refusal::forbidden(), 1);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::PermissionDenied, "a missing list proves nothing");
}

#[rstest]
#[case::in_the_zone_of_the_class(json!({"tags": [CLUSTER, "kubernetes-io-role-other"]}), Ok(()))]
#[case::in_another_zone(json!({"zone": fake_gce::OTHER_ZONE, "tags": [CLUSTER, "kubernetes-io-role-other"]}), Err(Code::AlreadyExists))]
#[tokio::test]
async fn a_deletion_does_not_end_while_the_tags_of_the_class_were_edited(
    #[case] patch: Value,
    #[case] created: Result<(), Code>,
) {
    let rig = Rig::new().await;
    rig.create().await.unwrap();
    let mut rig = rig.with(patch);
    // The request id of the machine proves its instance in the zone of the first request only.
    assert_eq!(rig.create().await.map(|_| ()).map_err(|status| status.code), created);
    rig.machine.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    for refused in [rig.status().await.unwrap_err(), rig.delete().await.unwrap_err()] {
        assert_eq!(refused.code, Code::FailedPrecondition, "{refused}");
        assert!(refused.message.contains("remove the machine's finalizer"), "{refused}");
    }
    assert_eq!(rig.gce.inserted(), ["m-1"]);
    rig.gce.change_instance("m-1", |one| one["tags"]["items"] = json!([CLUSTER, "kubernetes-io-role-other"]));
    rig.delete().await.unwrap();
    assert_eq!(rig.gce.instances().len(), 0);
}

/// A user removes the tags of a class that has machines.
#[rstest]
#[case::all(json!({"tags": ["shoot"]}))]
#[case::the_role(json!({"tags": [CLUSTER]}))]
#[case::the_list(json!({"tags": null}))]
#[tokio::test]
async fn a_machine_of_a_class_without_tags_is_found_and_never_counts_as_gone(#[case] patch: Value) {
    let rig = Rig::new().await;
    rig.gce.hold_operations();
    let late = rig.create_within(SHORT).await.unwrap_err();
    rig.gce.release_operations();
    let mut rig = rig.with(patch);
    let refused = rig.create().await.unwrap_err();
    assert!(refused.message.contains("tags must contain entries starting with"), "{refused}");
    rig.machine.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    for refused in [rig.status().await.unwrap_err(), rig.delete().await.unwrap_err()] {
        assert_eq!(refused.code, Code::FailedPrecondition, "by name alone: {refused}");
    }
    let mut rig = rig.with_id(&id("m-1"));
    assert_eq!(rig.status().await.unwrap().provider_id, id("m-1"), "by its id");
    rig.machine.spec.provider_id.clear();
    rig.keep(&late);
    assert_eq!(rig.status().await.unwrap().provider_id, id("m-1"), "by the state of its creation");
    assert_eq!(rig.list().await, Ok(Vec::new()));
    rig.delete().await.unwrap();
    assert_eq!((rig.gce.instances().len(), rig.delete().await.unwrap_err().code), (0, Code::NotFound));
}

#[tokio::test]
async fn a_machine_of_a_class_with_an_unknown_zone_is_deleted() {
    let rig = Rig::new().await.with(json!({"zone": "nowhere"}));
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::NotFound);
    let named = format!("gce:///{}/nowhere/m-1", fake_gce::PROJECT);
    let rig = rig.with_id(&named);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::InvalidArgument, "an id is not a mistake in a class");
}

#[tokio::test]
async fn an_instance_is_deleted_although_its_operation_can_not_be_read() {
    let mut rig = Rig::new().await;
    rig.gce.hold_operations();
    let late = rig.create_within(SHORT).await.unwrap_err();
    rig.keep(&late);
    rig.gce.release_operations();
    rig.gce.refuse(Method::GetOperation, Refusal::forbidden(), 2);
    rig.delete().await.unwrap();
    assert_eq!(rig.gce.instances().len(), 0);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::PermissionDenied, "an instance may still appear");
    rig.gce.refuse(Method::GetOperation, Refusal::new(410, "deleted", "The operation is gone"), 1);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn an_operation_in_the_state_of_a_machine_is_no_path() {
    let mut rig = Rig::new().await;
    let pending = Pending {
        project: fake_gce::PROJECT.to_owned(),
        zone: fake_gce::ZONE.to_owned(),
        attempt: 0,
        operation: Some("../instances/m-1/reset?x=".to_owned()),
        ended: false,
    };
    rig.machine.status.last_known_state = pending.state();
    rig.create().await.unwrap();
    rig.delete().await.unwrap();
    assert!(rig.gce.requests().iter().all(|call| !call.path.contains("reset")));
}

#[tokio::test]
async fn a_failed_creation_does_not_bind_its_machine_to_a_project() {
    let mut rig = Rig::new().await;
    rig.gce.fail(Method::InsertInstance, &[OperationError::zone_exhausted()], 1);
    let failed = rig.create().await.unwrap_err();
    // The Secret names another project now.
    let state = failed.last_known_state.unwrap().replace(fake_gce::PROJECT, "an-earlier-project");
    rig.machine.status.last_known_state = state;
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::NotFound);
    assert_eq!(rig.create().await.unwrap().vm.provider_id, id("m-1"));
    rig.delete().await.unwrap();
    assert_eq!(rig.gce.instances().len(), 0);
}

#[tokio::test]
async fn request_ids_of_instances_that_are_gone_are_tried_only_once() {
    let mut rig = Rig::new().await;
    for _ in 0..4 {
        rig.create().await.unwrap();
        rig.delete().await.unwrap();
    }
    let failed = rig.create().await.unwrap_err();
    assert_eq!(failed.code, Code::Internal, "{failed}");
    rig.keep(&failed);
    rig.create().await.unwrap();
    assert_eq!(rig.gce.inserted().len(), 5);
}

#[tokio::test]
async fn a_message_of_gce_about_metadata_does_not_show_user_data() {
    let rig = Rig::new().await;
    let message = "Invalid value for field 'resource.metadata': '{ \"item\": [{\"value\": \"#!/bi...'. Too large.";
    rig.gce.refuse(Method::InsertInstance, Refusal::new(400, "invalid", message), 1);
    let refused = rig.create().await.unwrap_err();
    assert!(!refused.message.contains("#!/bi") && refused.message.contains("Too large."), "{refused}");
    let rig = rig.with(json!({"metadata": [{"key": "startup-script", "value": "x"}]}));
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert!(refused.message.contains("providerSpec.metadata[0].key: Forbidden"), "{refused}");
    assert_eq!(rig.gce.count(Method::InsertInstance), 1);
}

#[tokio::test]
async fn a_machine_is_deleted_while_its_instance_is_created() {
    let mut rig = Rig::new().await;
    rig.gce.hold_operations();
    let late = rig.create_within(SHORT).await.unwrap_err();
    rig.keep(&late);
    rig.machine.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(rig.status().await.unwrap().provider_id, id("m-1"), "a deletion sees what there is");
    rig.gce.release_operations();
    rig.delete().await.unwrap();
    assert_eq!((rig.gce.instances().len(), rig.gce.disks().len()), (0, 0));
}

#[tokio::test]
async fn g09_a_machine_of_an_invalid_class_is_deleted() {
    let rig = Rig::new().await;
    rig.create().await.unwrap();
    let wrong_types = json!({"labels": 5, "gpu": "x", "canIpForward": "yes", "metadata": {}});
    let rig = rig.with(wrong_types);
    assert_eq!(rig.create().await.unwrap_err().code, Code::InvalidArgument);
    assert_eq!((rig.status().await.unwrap().provider_id, rig.list().await.unwrap().len()), (id("m-1"), 1));
    let rig = rig.with(json!({"disks": 7, "machineType": null, "scheduling": null, "networkInterfaces": []}));
    assert_eq!(rig.create().await.unwrap_err().code, Code::InvalidArgument);
    assert_eq!(rig.status().await.unwrap().provider_id, id("m-1"));
    rig.delete().await.unwrap();
    assert_eq!(rig.gce.instances().len(), 0);
}

#[tokio::test]
async fn a_provider_id_decides_the_place_and_a_foreign_instance_is_not_touched() {
    let rig = Rig::new().await;
    rig.create().await.unwrap();
    // The class names another zone now.
    let rig = rig.with(json!({"zone": fake_gce::OTHER_ZONE})).with_id(&id("m-1").replace("gce:///", "gce://"));
    assert_eq!(rig.status().await.unwrap().provider_id, id("m-1"));
    rig.gce.change_instance("m-1", |instance| instance["tags"]["items"] = json!(["x"]));
    assert_eq!(rig.status().await.unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(rig.gce.instances().len(), 1);
    let rig = rig.with_id("gce:///another-project/europe-west1-b/m-1");
    assert_eq!(rig.status().await.unwrap_err().code, Code::PermissionDenied, "never NotFound");
    let rig = rig.with_id("aws:///eu-west-1/i-1");
    assert_eq!(rig.delete().await.unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test]
async fn an_orphan_is_deleted_by_its_id_if_it_has_our_tags() {
    let rig = Rig::new().await.orphan(&id("m-1"));
    rig.gce.put_instance(&instance("m-1", &[CLUSTER]));
    assert_eq!(rig.delete().await.unwrap_err().code, Code::FailedPrecondition);
    rig.gce.change_instance("m-1", |instance| instance["tags"]["items"] = json!([CLUSTER, ROLE]));
    rig.delete().await.unwrap();
    assert_eq!(rig.gce.instances().len(), 0);
}

#[tokio::test]
async fn a_preempted_instance_still_exists_and_a_stopping_one_is_not_adopted() {
    let rig = Rig::new().await;
    rig.create().await.unwrap();
    rig.gce.change_instance("m-1", |instance| instance["status"] = json!("STOPPING"));
    // Another attempt, as after a failed one.
    let mut machine = rig.machine.clone();
    machine.metadata.uid = Some("uid-2".to_owned());
    let request = MachineRequest { machine: Arc::new(machine), ..rig.request() };
    let refused = rig.driver.create_machine(&cx(), request.clone()).await.unwrap_err();
    assert_eq!(refused.code, Code::Aborted, "{refused}");
    rig.gce.terminate_instance("m-1");
    assert_eq!(rig.driver.create_machine(&cx(), request).await.unwrap().vm.provider_id, id("m-1"));
    assert_eq!(rig.status().await.unwrap().provider_id, id("m-1"));
    assert_eq!(rig.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_protected_instance_is_deleted_when_its_protection_is_lifted() {
    let rig = Rig::new().await.with(json!({"deletionProtection": true}));
    rig.create().await.unwrap();
    let refused = rig.delete().await.unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(refused.message.contains("is protected against deletion"), "{refused}");
    assert_eq!(rig.gce.count(Method::DeleteInstance), 0);
    rig.gce.change_instance("m-1", |instance| instance["deletionProtection"] = json!(false));
    rig.delete().await.unwrap();
    assert_eq!(rig.gce.count(Method::SetDeletionProtection), 0);
}

#[tokio::test]
async fn a_protection_is_lifted_if_the_machine_says_so() {
    let mut rig = Rig::new().await.with(json!({"deletionProtection": true}));
    rig.create().await.unwrap();
    let annotation = ("machine.sapcloud.io/lift-deletion-protection".to_owned(), "true".to_owned());
    rig.machine.metadata.annotations = Some([annotation].into());
    rig.delete().await.unwrap();
    assert_eq!((rig.gce.count(Method::SetDeletionProtection), rig.gce.instances().len()), (1, 0));
}

#[tokio::test]
async fn a_list_has_all_pages_or_fails() {
    let rig = Rig::new().await;
    for number in 0..501 {
        let tags: &[&str] = if number % 100 == 0 { &[CLUSTER, ROLE] } else { &[CLUSTER] };
        rig.gce.put_instance(&instance(&format!("i-{number:03}"), tags));
    }
    let listed = rig.list().await.unwrap();
    let names: Vec<_> = listed.iter().map(|vm| vm.machine_name.as_str()).collect();
    assert_eq!(names, ["i-000", "i-100", "i-200", "i-300", "i-400", "i-500"]);
    assert!(listed.iter().all(|vm| vm.created.is_some() && vm.provider_id == id(&vm.machine_name)));
    assert_eq!(rig.gce.count(Method::ListInstances), 2);
    rig.gce.refuse(Method::ListInstances, Refusal::forbidden(), 1);
    let refused = rig.list().await.unwrap_err();
    assert!(refused.message.starts_with("List machines failed: "), "{refused}");
}

/// Sends only requests for first pages.
struct WithoutSecondPages(HttpTransport);

#[async_trait]
impl Transport for WithoutSecondPages {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        if request.uri().query().is_some_and(|query| query.contains("pageToken")) {
            return Err(NoAnswer::TooLong);
        }
        self.0.send(request).await
    }
}

#[tokio::test]
async fn c_10_a_list_without_its_second_page_is_a_failure() {
    let mut rig = Rig::new().await;
    for number in 0..501 {
        rig.gce.put_instance(&instance(&format!("i-{number:03}"), &[CLUSTER, ROLE]));
    }
    let transport = WithoutSecondPages(HttpTransport::new(HttpOptions::default()));
    let options = GcpOptions { endpoint: Some(rig.gce.url().to_owned()), ..GcpOptions::default() };
    rig.driver = GcpDriver::through(Client::new(transport, Limits::default()), options);
    assert_eq!(rig.list().await.unwrap_err().code, Code::Internal);
    assert_eq!(rig.gce.count(Method::ListInstances), 1);
}

#[tokio::test]
async fn g08_a_class_without_a_tag_of_its_cluster_lists_nothing() {
    let rig = Rig::new().await.with(json!({"tags": [ROLE, "x"]}));
    rig.gce.put_instance(&instance("m-1", &[ROLE, "x"]));
    assert_eq!(rig.list().await, Ok(Vec::new()));
    assert_eq!(rig.driver.owner(&class(json!({"tags": [ROLE]}))), None);
    assert_eq!(rig.driver.owner(&class(json!({}))), Some(Owner::new("shoot", "node")));
}

#[rstest]
#[case("M-1", Code::InvalidArgument)]
#[case("1m", Code::InvalidArgument)]
#[case("a.b", Code::InvalidArgument)]
#[case("", Code::InvalidArgument)]
#[tokio::test]
async fn a_name_that_no_instance_can_have_is_refused_without_a_request(#[case] name: &str, #[case] code: Code) {
    let mut rig = Rig::new().await;
    rig.machine.metadata.name = Some(name.to_owned());
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, code);
    assert_eq!(refused.message, format!("machine name {name:?} is not a valid GCE instance name"));
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::NotFound);
    assert_eq!(rig.gce.requests().len(), 0);
}

#[tokio::test]
async fn a_slow_operation_is_waited_for() {
    let rig = Rig::new().await;
    rig.gce.set_timing(Timing {
        operation: Duration::from_millis(100),
        wait: Duration::from_millis(50),
        ..Timing::default()
    });
    rig.create().await.unwrap();
    assert_eq!(rig.gce.count(Method::WaitOperation), 2, "GCE may answer a wait before the end");
}

#[tokio::test]
async fn in_strict_mode_failures_are_internal() {
    let mut rig = Rig::new().await;
    let endpoint = Some(rig.gce.url().to_owned());
    rig.driver = driver(GcpOptions { endpoint, codes: ErrorCodes::AsGo, ..GcpOptions::default() });
    rig.gce.refuse(Method::InsertInstance, Refusal::forbidden(), 1);
    assert_eq!(rig.create().await.unwrap_err().code, Code::Internal);
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn an_initialisation_is_not_needed() {
    let rig = Rig::new().await;
    let status = rig.driver.initialize_machine(&cx(), rig.request()).await.unwrap_err();
    assert_eq!(
        (status.code, status.message.as_str()),
        (Code::Unimplemented, "GCP Provider does not yet implement InitializeMachine")
    );
}

#[tokio::test]
async fn user_data_is_required_and_not_in_messages() {
    let mut rig = Rig::new().await;
    rig.gce.refuse(Method::InsertInstance, Refusal::forbidden(), 1);
    let refused = rig.create().await.unwrap_err();
    assert!(!refused.message.contains("a-secret-of-the-node"), "{refused}");
    let mut without = SecretData::default();
    without.set("serviceAccountJSON", rig.gce.service_account().into_bytes());
    rig.secret = without;
    assert_eq!(rig.create().await.unwrap_err().message, "data[userData]: Required value: userData is required");
    rig.secret = secret("other", "x");
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.message, "serviceAccountJSON, serviceaccount.json or credentialsConfig is required");
}

#[tokio::test]
async fn volumes_have_their_names_at_gce() {
    let rig = Rig::new().await;
    let handle = "projects/p/zones/z/disks/pv-2";
    let disk = GCEPersistentDiskVolumeSource { pd_name: "pv-1".to_owned(), ..Default::default() };
    let csi = |driver: &str| CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle.to_owned(),
        ..Default::default()
    };
    let volumes = vec![
        PersistentVolumeSpec { gce_persistent_disk: Some(disk), ..Default::default() },
        PersistentVolumeSpec { csi: Some(csi("pd.csi.storage.gke.io")), ..Default::default() },
        PersistentVolumeSpec { csi: Some(csi("nfs.csi.k8s.io")), ..Default::default() },
    ];
    let ids = rig.driver.get_volume_ids(&cx(), VolumeIdsRequest { volumes }).await.unwrap();
    assert_eq!(ids, ["pv-1", handle]);
}
