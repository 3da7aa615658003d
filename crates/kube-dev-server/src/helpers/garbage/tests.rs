use std::time::Duration;

use jiff::Timestamp;
use rstest::rstest;

use super::*;
use crate::{
    hooks::Hook,
    testing::{Cluster, HandClock, ask, cluster, cluster_in, delete, eventually, exists, get, gone},
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const EVENTS: &str = "/api/v1/namespaces/default/events";

fn owned(by: &Value) -> Value {
    json!({"metadata": {"name": "owned", "ownerReferences": [reference(by)]}})
}

fn reference(by: &Value) -> Value {
    json!({"apiVersion": by["apiVersion"], "kind": by["kind"], "name": object::name(by), "uid": object::uid(by)})
}

async fn map(cluster: &Cluster, name: &str) -> Value {
    ask(cluster, "POST", MAPS, &json!({"metadata": {"name": name}})).await.unwrap()
}

/// Waits until the controllers are idle.
async fn until_idle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[rstest]
#[case::no_owner(&[], false, &[], Decision::Keep)]
#[case::its_owner_exists(&[OwnerState::Exists], false, &[], Decision::Keep)]
#[case::its_owner_is_gone(&[OwnerState::Absent], false, &[], Decision::Delete(Propagation::Background))]
#[case::one_of_two_is_gone(&[OwnerState::Exists, OwnerState::Absent], false, &[], Decision::RemoveOwners(vec!["1".to_owned()]))]
#[case::one_of_two_waits_for_it(
    &[OwnerState::AwaitsDependents, OwnerState::Exists], true, &[], Decision::RemoveOwners(vec!["0".to_owned()])
)]
#[case::its_owner_waits(&[OwnerState::AwaitsDependents], false, &[], Decision::Delete(Propagation::Background))]
#[case::its_owner_waits_and_it_has_dependents(
    &[OwnerState::AwaitsDependents], true, &[], Decision::Delete(Propagation::Foreground)
)]
#[case::its_owner_is_gone_and_it_has_dependents(&[OwnerState::Absent], true, &[], Decision::Delete(Propagation::Background))]
#[case::it_has_the_finalizer_of_orphaning(&[OwnerState::Absent], true, &[ORPHAN], Decision::Delete(Propagation::Orphan))]
#[case::it_has_the_finalizer_of_foreground_deletion(&[OwnerState::Absent], false, &[FOREGROUND], Decision::Delete(Propagation::Foreground))]
#[case::an_unknown_kind(&[OwnerState::UnknownKind, OwnerState::Absent], false, &[], Decision::Retry)]
#[case::a_cluster_object_with_a_namespaced_owner(&[OwnerState::Absent, OwnerState::UnknownNamespace], false, &[], Decision::Keep)]
fn the_decision_about_an_object(
    #[case] states: &[OwnerState],
    #[case] has_dependents: bool,
    #[case] finalizers: &[&str],
    #[case] expected: Decision,
) {
    let owners: Vec<(String, OwnerState)> =
        states.iter().enumerate().map(|(at, state)| (at.to_string(), *state)).collect();
    assert_eq!(decide(&owners, has_dependents, finalizers), expected);
}

#[test]
fn the_event_is_equal_to_the_event_of_kube_controller_manager() {
    let dependent =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "d", "namespace": "b", "uid": "u2"}});
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u1"});
    let event = out_of_reach(&dependent, &owner, "0", Timestamp::UNIX_EPOCH);
    assert_eq!(
        text(&event, "/message"),
        r#"ownerRef [v1/Pod, namespace: b, name: o, uid: u1] does not exist in namespace "b""#
    );
    assert_eq!((text(&event, "/type"), text(&event, "/reason")), ("Warning", "OwnerRefInvalidNamespace"));
    assert_eq!(text(&event, "/source/component"), "garbage-collector-controller");
    assert_eq!(text(&event, "/metadata/namespace"), "b");
}

#[tokio::test(start_paused = true)]
async fn an_object_with_an_owner_in_another_namespace_is_reported_once_and_deleted() {
    let cluster = cluster([]);
    ask(&cluster, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.unwrap();
    let owner = ask(&cluster, "POST", "/api/v1/namespaces/a/configmaps", &json!({"metadata": {"name": "owner"}}))
        .await
        .unwrap();
    until_idle().await;
    ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
    gone(&cluster, &format!("{MAPS}/owned")).await;
    let events = get(&cluster, EVENTS).await.unwrap();
    assert_eq!(events["items"].as_array().map(Vec::len), Some(1), "{events}");
    let event = &events["items"][0];
    assert_eq!(text(event, "/reason"), "OwnerRefInvalidNamespace");
    assert_eq!(text(event, "/involvedObject/name"), "owned");
    assert!(text(event, "/message").ends_with("does not exist in namespace \"default\""), "{event}");
    get(&cluster, "/api/v1/namespaces/a/configmaps/owner").await.expect("the owner stays");
}

/// As in a cluster: the namespace of the owner is unknown, so that the owner can't be known to be absent.
#[tokio::test(start_paused = true)]
async fn a_cluster_object_with_a_namespaced_owner_is_reported_and_stays() {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    until_idle().await;
    ask(&cluster, "POST", "/api/v1/nodes", &owned(&owner)).await.unwrap();
    let event = eventually("the event", async || {
        let events = get(&cluster, EVENTS).await.unwrap();
        let mut items = events["items"].as_array().unwrap().iter();
        items.find(|event| event["reason"] == "OwnerRefInvalidNamespace").cloned()
    })
    .await;
    let message = text(&event, "/message");
    assert!(message.contains("namespace: , name: owner") && message.ends_with(r#"namespace """#), "{message}");
    until_idle().await;
    // Without the history the controllers process all objects again, and report nothing twice.
    cluster.server.compact();
    map(&cluster, "another").await;
    until_idle().await;
    get(&cluster, "/api/v1/nodes/owned").await.expect("it stays");
    let events = get(&cluster, EVENTS).await.unwrap();
    assert_eq!(events["items"].as_array().map(Vec::len), Some(1), "{events}");
}

#[tokio::test(start_paused = true)]
async fn an_object_stays_with_one_of_two_owners_and_loses_the_reference_to_the_other() {
    let cluster = cluster([]);
    let (stays, goes) = (map(&cluster, "stays").await, map(&cluster, "goes").await);
    let body = json!({"metadata": {"name": "owned", "ownerReferences": [reference(&goes), reference(&stays)]}});
    ask(&cluster, "POST", MAPS, &body).await.unwrap();
    until_idle().await;
    delete(&cluster, &format!("{MAPS}/goes")).await;
    let left = eventually("the removal of the reference", async || {
        let owned = get(&cluster, &format!("{MAPS}/owned")).await.unwrap();
        (references(&owned).len() == 1).then_some(owned)
    })
    .await;
    assert_eq!(references(&left)[0]["uid"], stays["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn an_update_with_an_owner_that_never_existed_deletes_the_object() {
    let cluster = cluster([]);
    map(&cluster, "owned").await;
    until_idle().await;
    let missing = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "missing", "uid": "none"});
    ask(&cluster, "PATCH", &format!("{MAPS}/owned"), &json!({"metadata": {"ownerReferences": [missing]}}))
        .await
        .unwrap();
    gone(&cluster, &format!("{MAPS}/owned")).await;
}

/// Makes the server refuse the next requests.
fn refuse(cluster: &Cluster, verb: kube_protocol::request::Verb, status: u16, times: u32) {
    let resource = Some("configmaps".to_owned());
    cluster.server.apply_hook(Hook::FailNext { verb: Some(verb), resource, status, times }).unwrap();
}

#[rstest]
#[case::a_webhook_refuses(403)]
#[case::a_conflict(409)]
#[case::the_storage_is_full(500)]
#[tokio::test(start_paused = true)]
async fn a_refused_deletion_is_retried(#[case] status: u16) {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
    until_idle().await;
    delete(&cluster, &format!("{MAPS}/owner")).await;
    // The test has one thread, so that the controllers have not run between the two calls.
    refuse(&cluster, kube_protocol::request::Verb::Delete, status, 4);
    tokio::time::sleep(Duration::from_millis(3_600)).await;
    get(&cluster, &format!("{MAPS}/owned")).await.expect("attempts after 0, 0.25, 0.75 and 1.75 s were refused");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(get(&cluster, &format!("{MAPS}/owned")).await, Err(404));
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_ends_although_requests_are_refused_at_first() {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    let mut blocking = owned(&owner);
    blocking["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(true);
    ask(&cluster, "POST", MAPS, &blocking).await.unwrap();
    until_idle().await;
    ask(&cluster, "DELETE", &format!("{MAPS}/owner?propagationPolicy=Foreground"), &Value::Null).await.unwrap();
    refuse(&cluster, kube_protocol::request::Verb::Delete, 403, 2);
    refuse(&cluster, kube_protocol::request::Verb::Patch, 409, 2);
    gone(&cluster, &format!("{MAPS}/owned")).await;
    gone(&cluster, &format!("{MAPS}/owner")).await;
}

#[tokio::test(start_paused = true)]
async fn dependents_are_orphaned_before_their_owner_is_deleted_although_requests_are_refused_at_first() {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
    until_idle().await;
    ask(&cluster, "DELETE", &format!("{MAPS}/owner?propagationPolicy=Orphan"), &Value::Null).await.unwrap();
    refuse(&cluster, kube_protocol::request::Verb::Patch, 403, 3);
    gone(&cluster, &format!("{MAPS}/owner")).await;
    let orphan = get(&cluster, &format!("{MAPS}/owned")).await.expect("it stays");
    assert!(references(&orphan).is_empty(), "{orphan}");
}

#[tokio::test(start_paused = true)]
async fn garbage_is_collected_after_a_compaction_of_unprocessed_changes() {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
    // The test has one thread, so that the controllers do not run between the two calls.
    delete(&cluster, &format!("{MAPS}/owner")).await;
    cluster.server.compact();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(get(&cluster, &format!("{MAPS}/owned")).await.unwrap_err(), 404);
}

#[tokio::test]
async fn garbage_from_before_a_restart_is_collected() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("data");
    let clock = HandClock::at(Timestamp::UNIX_EPOCH);
    {
        let without = [StandIn::GarbageCollection];
        let cluster = cluster_in(&folder, &clock, without).await;
        let owner = map(&cluster, "owner").await;
        ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
        delete(&cluster, &format!("{MAPS}/owner")).await;
        exists(&cluster, &format!("{MAPS}/owned")).await;
    }
    let cluster = cluster_in(&folder, &clock, []).await;
    gone(&cluster, &format!("{MAPS}/owned")).await;
}

#[tokio::test(start_paused = true)]
async fn slow_deletions_of_one_kind_do_not_delay_another_kind() {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    let secrets = "/api/v1/namespaces/default/secrets";
    for number in 0..50 {
        let mut owned = owned(&owner);
        owned["metadata"]["name"] = json!(format!("owned-{number}"));
        ask(&cluster, "POST", MAPS, &owned).await.unwrap();
    }
    ask(&cluster, "POST", secrets, &owned(&owner)).await.unwrap();
    delete(&cluster, &format!("{MAPS}/owner")).await;
    let verb = Some(kube_protocol::request::Verb::Delete);
    let slow = Hook::Delay { verb, resource: Some("configmaps".to_owned()), milliseconds: 10_000 };
    cluster.server.apply_hook(slow).unwrap();
    gone(&cluster, &format!("{secrets}/owned")).await;
    assert_eq!(get(&cluster, MAPS).await.unwrap()["items"].as_array().unwrap().len(), 50, "they are being deleted");
    tokio::time::sleep(Duration::from_secs(80)).await;
    assert!(get(&cluster, MAPS).await.unwrap()["items"].as_array().unwrap().is_empty(), "several at a time");
}
