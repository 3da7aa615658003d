//! Tests of what follows from the answers of long-running operations.

use rstest::rstest;
use serde_json::json;

use super::*;

const URL: &str = "https://management.azure.com/op";

fn url() -> Uri {
    URL.parse().unwrap()
}

/// URLs of the endpoint are followed.
fn followed(url: &str) -> Option<Uri> {
    (url == URL).then(self::url)
}

fn reply(status: u16, body: Value) -> Reply {
    Reply { status, body, ..Reply::default() }
}

fn state(state: &str) -> Value {
    json!({"properties": {"provisioningState": state}})
}

fn by_operation(mut reply: Reply, url: &str) -> Reply {
    reply.operation = Some(url.to_owned());
    reply.location = Some("https://management.azure.com/other".to_owned());
    reply
}

fn by_location(mut reply: Reply) -> Reply {
    reply.location = Some(URL.to_owned());
    reply
}

fn failed(code: &str, message: &str) -> Step {
    Step::Failed(ArmError::new(code, message))
}

#[rstest]
#[case::an_operation(
    Change::Write,
    by_operation(reply(201, state("Creating")), URL),
    Step::Wait(Follow::Operation(url()))
)]
#[case::an_operation_of_a_deletion(
    Change::Delete,
    by_operation(reply(202, Value::Null), URL),
    Step::Wait(Follow::Operation(url()))
)]
#[case::an_operation_elsewhere(
    Change::Write,
    by_operation(reply(201, Value::Null), "https://evil.example.org/"),
    Step::Wait(Follow::Resource)
)]
#[case::a_location(Change::Delete, by_location(reply(202, Value::Null)), Step::Wait(Follow::Location(url())))]
#[case::the_location_of_what_is_there(Change::Write, by_location(reply(201, state("Succeeded"))), Step::Done)]
#[case::the_resource_is_ready(Change::Write, reply(200, state("Succeeded")), Step::Done)]
#[case::the_resource_is_made(Change::Write, reply(201, state("Updating")), Step::Wait(Follow::Resource))]
#[case::the_resource_has_failed(Change::Write, reply(200, state("Failed")), failed("Failed", "Azure gives no reason"))]
#[case::a_resource_without_a_state(Change::Write, reply(200, json!({})), Step::Done)]
#[case::accepted(Change::Write, reply(202, Value::Null), Step::Wait(Follow::Resource))]
#[case::a_deletion_is_accepted(Change::Delete, reply(202, Value::Null), Step::Wait(Follow::Resource))]
#[case::nothing_to_delete(Change::Delete, reply(204, Value::Null), Step::Done)]
#[case::deleted(Change::Delete, reply(200, Value::Null), Step::Done)]
fn a_change_begins(#[case] change: Change, #[case] reply: Reply, #[case] expected: Step) {
    assert_eq!(begun(change, &reply, followed), expected);
}

#[rstest]
#[case::it_runs(Some(reply(200, json!({"status": "InProgress"}))), Step::Wait(Follow::Operation(url())))]
#[case::it_has_ended(Some(reply(200, json!({"status": "Succeeded"}))), Step::Done)]
#[case::it_has_failed(Some(reply(200, json!({"status": "Failed", "error": {"code": "A", "message": "b"}}))), failed("A", "b"))]
#[case::it_was_canceled(Some(reply(200, json!({"status": "Canceled"}))), failed("Canceled", "Azure gives no reason"))]
#[case::without_a_state(Some(reply(200, json!({}))), Step::Wait(Follow::Resource))]
#[case::without_a_body(Some(reply(202, Value::Null)), Step::Wait(Follow::Operation(url())))]
#[case::it_is_forgotten(None, Step::Wait(Follow::Resource))]
fn an_operation_is_followed(#[case] reply: Option<Reply>, #[case] expected: Step) {
    assert_eq!(of_operation(url(), reply.as_ref()), expected);
}

#[rstest]
#[case::it_runs(Change::Delete, Some(reply(202, Value::Null)), Step::Wait(Follow::Location(url())))]
#[case::it_has_ended(Change::Delete, Some(reply(204, Value::Null)), Step::Done)]
#[case::the_resource_is_there(Change::Write, Some(reply(200, state("Succeeded"))), Step::Done)]
#[case::the_resource_has_failed(
    Change::Write,
    Some(reply(200, state("Failed"))),
    failed("Failed", "Azure gives no reason")
)]
#[case::it_is_forgotten(Change::Delete, None, Step::Wait(Follow::Resource))]
fn a_location_is_followed(#[case] change: Change, #[case] reply: Option<Reply>, #[case] expected: Step) {
    assert_eq!(of_location(change, url(), reply.as_ref()), expected);
}

#[rstest]
#[case::it_is_gone(Change::Delete, None, Step::Done)]
#[case::it_is_still_there(Change::Delete, Some(state("Deleting")), Step::Wait(Follow::Resource))]
#[case::it_is_made(Change::Write, Some(state("Creating")), Step::Wait(Follow::Resource))]
#[case::it_is_ready(Change::Write, Some(state("succeeded")), Step::Done)]
#[case::somebody_has_deleted_it(
    Change::Write,
    None,
    failed("OperationPreempted", "the resource was deleted meanwhile")
)]
fn the_resource_itself_is_followed(#[case] change: Change, #[case] body: Option<Value>, #[case] expected: Step) {
    assert_eq!(of_resource(change, body.as_ref()), expected);
}

#[rstest]
#[case::azure_says_when(Some(15), 0, 15_000)]
#[case::at_once_is_too_soon(Some(0), 0, 100)]
#[case::not_longer_than_a_minute(Some(3600), 0, 60_000)]
#[case::the_first_look(None, 0, 1_000)]
#[case::a_later_look(None, 2, 4_000)]
#[case::the_longest_own_pause(None, 40, 10_000)]
fn a_look_comes_after_a_pause(#[case] asked: Option<u64>, #[case] looks: u32, #[case] expected: u64) {
    assert_eq!(pause(asked.map(Duration::from_secs), looks), Duration::from_millis(expected));
}

#[test]
fn headers_are_read() {
    let mut headers = HeaderMap::new();
    for (name, value) in [("azure-asyncoperation", URL), ("location", "https://x/"), ("retry-after", "7")] {
        headers.insert(name, value.parse().unwrap());
    }
    let answer = |body: &'static str| Answer {
        status: cloud_client::http::StatusCode::ACCEPTED,
        headers: headers.clone(),
        body: body.into(),
    };
    let reply = Reply::of(&answer(" \n")).unwrap();
    assert_eq!((reply.status, reply.operation.as_deref(), reply.body), (202, Some(URL), Value::Null));
    assert_eq!((reply.location.as_deref(), reply.retry_after), (Some("https://x/"), Some(Duration::from_secs(7))));
    assert!(Reply::of(&answer("<html>")).is_none());
}
