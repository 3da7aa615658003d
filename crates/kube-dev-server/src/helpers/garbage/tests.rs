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

/// Until everything that happens at once has happened.
async fn rest() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[rstest]
#[case::no_owner(&[], false, &[], Verdict::Stays)]
#[case::its_owner_is_there(&[Standing::Solid], false, &[], Verdict::Stays)]
#[case::its_owner_is_gone(&[Standing::Absent], false, &[], Verdict::Goes(Propagation::Background))]
#[case::one_of_two_is_gone(&[Standing::Solid, Standing::Absent], false, &[], Verdict::LetsGo(vec!["1".to_owned()]))]
#[case::one_of_two_waits_for_it(
    &[Standing::AwaitsDependents, Standing::Solid], true, &[], Verdict::LetsGo(vec!["0".to_owned()])
)]
#[case::its_owner_waits(&[Standing::AwaitsDependents], false, &[], Verdict::Goes(Propagation::Background))]
#[case::its_owner_waits_and_others_for_it(
    &[Standing::AwaitsDependents], true, &[], Verdict::Goes(Propagation::Foreground)
)]
#[case::others_wait_for_it_alone(&[Standing::Absent], true, &[], Verdict::Goes(Propagation::Background))]
#[case::it_is_to_orphan(&[Standing::Absent], true, &[ORPHAN], Verdict::Goes(Propagation::Orphan))]
#[case::it_is_to_wait(&[Standing::Absent], false, &[FOREGROUND], Verdict::Goes(Propagation::Foreground))]
#[case::an_unknown_kind(&[Standing::UnknownKind, Standing::Absent], false, &[], Verdict::Later)]
#[case::of_the_cluster_with_a_namespaced_owner(&[Standing::Absent, Standing::Nowhere], false, &[], Verdict::Stays)]
fn what_becomes_of_an_object(
    #[case] standings: &[Standing],
    #[case] owns_something: bool,
    #[case] finalizers: &[&str],
    #[case] expected: Verdict,
) {
    let owners: Vec<(String, Standing)> =
        standings.iter().enumerate().map(|(at, standing)| (at.to_string(), *standing)).collect();
    assert_eq!(verdict(&owners, owns_something, finalizers), expected);
}

#[test]
fn the_event_is_that_of_the_garbage_collector() {
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
async fn an_owner_in_another_namespace_is_told_once_and_none() {
    let cluster = cluster([]);
    ask(&cluster, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.unwrap();
    let owner = ask(&cluster, "POST", "/api/v1/namespaces/a/configmaps", &json!({"metadata": {"name": "owner"}}))
        .await
        .unwrap();
    rest().await;
    ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
    gone(&cluster, &format!("{MAPS}/owned")).await;
    let events = get(&cluster, EVENTS).await.unwrap();
    assert_eq!(events["items"].as_array().map(Vec::len), Some(1), "{events}");
    let event = &events["items"][0];
    assert_eq!(text(event, "/reason"), "OwnerRefInvalidNamespace");
    assert_eq!(text(event, "/involvedObject/name"), "owned");
    assert!(text(event, "/message").ends_with("does not exist in namespace \"default\""), "{event}");
    get(&cluster, "/api/v1/namespaces/a/configmaps/owner").await.expect("the owner has nothing to do with it");
}

/// As with a real one: there is nowhere to look for its owner, so that nobody can say that it is absent.
#[tokio::test(start_paused = true)]
async fn an_object_of_the_cluster_with_a_namespaced_owner_is_told_and_stays() {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    rest().await;
    ask(&cluster, "POST", "/api/v1/nodes", &owned(&owner)).await.unwrap();
    let event = eventually("the event", async || {
        let events = get(&cluster, EVENTS).await.unwrap();
        let mut items = events["items"].as_array().unwrap().iter();
        items.find(|event| event["reason"] == "OwnerRefInvalidNamespace").cloned()
    })
    .await;
    let message = text(&event, "/message");
    assert!(message.contains("namespace: , name: owner") && message.ends_with(r#"namespace """#), "{message}");
    rest().await;
    // Whoever loses sight of the history looks at everything anew, and tells nothing twice.
    cluster.server.compact();
    map(&cluster, "another").await;
    rest().await;
    get(&cluster, "/api/v1/nodes/owned").await.expect("it stays");
    let events = get(&cluster, EVENTS).await.unwrap();
    assert_eq!(events["items"].as_array().map(Vec::len), Some(1), "{events}");
}

#[tokio::test(start_paused = true)]
async fn one_owner_of_two_is_enough_and_the_other_is_taken_off() {
    let cluster = cluster([]);
    let (stays, goes) = (map(&cluster, "stays").await, map(&cluster, "goes").await);
    let body = json!({"metadata": {"name": "owned", "ownerReferences": [reference(&goes), reference(&stays)]}});
    ask(&cluster, "POST", MAPS, &body).await.unwrap();
    rest().await;
    delete(&cluster, &format!("{MAPS}/goes")).await;
    let left = eventually("the owner to be taken off", async || {
        let owned = get(&cluster, &format!("{MAPS}/owned")).await.unwrap();
        (references(&owned).len() == 1).then_some(owned)
    })
    .await;
    assert_eq!(references(&left)[0]["uid"], stays["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_was_never_there_can_come_with_an_update() {
    let cluster = cluster([]);
    map(&cluster, "owned").await;
    rest().await;
    let nobody = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "none"});
    ask(&cluster, "PATCH", &format!("{MAPS}/owned"), &json!({"metadata": {"ownerReferences": [nobody]}}))
        .await
        .unwrap();
    gone(&cluster, &format!("{MAPS}/owned")).await;
}

/// Orders that the next requests are refused.
fn refuse(cluster: &Cluster, verb: kube_protocol::request::Verb, status: u16, times: u32) {
    let resource = Some("configmaps".to_owned());
    cluster.server.order(Hook::FailNext { verb: Some(verb), resource, status, times }).unwrap();
}

#[rstest]
#[case::a_webhook_refuses(403)]
#[case::others_write_in_between(409)]
#[case::the_storage_is_full(500)]
#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_refused_is_tried_again(#[case] status: u16) {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
    rest().await;
    delete(&cluster, &format!("{MAPS}/owner")).await;
    // Nobody has come between the two in this thread.
    refuse(&cluster, kube_protocol::request::Verb::Delete, status, 4);
    tokio::time::sleep(Duration::from_millis(3_600)).await;
    get(&cluster, &format!("{MAPS}/owned")).await.expect("attempts after 0, 0.25, 0.75 and 1.75 s were refused");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(get(&cluster, &format!("{MAPS}/owned")).await, Err(404));
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_the_foreground_is_let_go_though_that_is_refused_at_first() {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    let mut blocking = owned(&owner);
    blocking["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(true);
    ask(&cluster, "POST", MAPS, &blocking).await.unwrap();
    rest().await;
    ask(&cluster, "DELETE", &format!("{MAPS}/owner?propagationPolicy=Foreground"), &Value::Null).await.unwrap();
    refuse(&cluster, kube_protocol::request::Verb::Delete, 403, 2);
    refuse(&cluster, kube_protocol::request::Verb::Patch, 409, 2);
    gone(&cluster, &format!("{MAPS}/owned")).await;
    gone(&cluster, &format!("{MAPS}/owner")).await;
}

#[tokio::test(start_paused = true)]
async fn orphans_are_let_go_before_their_owner_is_though_that_is_refused_at_first() {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
    rest().await;
    ask(&cluster, "DELETE", &format!("{MAPS}/owner?propagationPolicy=Orphan"), &Value::Null).await.unwrap();
    refuse(&cluster, kube_protocol::request::Verb::Patch, 403, 3);
    gone(&cluster, &format!("{MAPS}/owner")).await;
    let orphan = get(&cluster, &format!("{MAPS}/owned")).await.expect("it stays");
    assert!(references(&orphan).is_empty(), "{orphan}");
}

#[tokio::test(start_paused = true)]
async fn who_falls_behind_the_history_collects_all_the_same() {
    let cluster = cluster([]);
    let owner = map(&cluster, "owner").await;
    ask(&cluster, "POST", MAPS, &owned(&owner)).await.unwrap();
    // In this thread nobody else comes between the two.
    delete(&cluster, &format!("{MAPS}/owner")).await;
    cluster.server.compact();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(get(&cluster, &format!("{MAPS}/owned")).await.unwrap_err(), 404);
}

#[tokio::test]
async fn what_lost_its_owner_before_a_restart_is_collected_after_it() {
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
async fn deletions_of_one_kind_that_take_long_hold_up_no_other_kind() {
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
    cluster.server.order(slow).unwrap();
    gone(&cluster, &format!("{secrets}/owned")).await;
    assert_eq!(get(&cluster, MAPS).await.unwrap()["items"].as_array().unwrap().len(), 50, "they are being deleted");
    tokio::time::sleep(Duration::from_secs(80)).await;
    assert!(get(&cluster, MAPS).await.unwrap()["items"].as_array().unwrap().is_empty(), "several at a time");
}
