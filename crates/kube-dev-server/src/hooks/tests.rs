use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::*;
use crate::testing::{Cluster, ask, cluster, watch};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn apply(cluster: &Cluster, hook: Value) -> Result<(), HookError> {
    cluster.server.apply_hook(serde_json::from_value(hook).unwrap())
}

#[rstest]
#[case::nothing(json!({}), "missing field `hook`")]
#[case::unknown(json!({"hook": "rain"}), "unknown variant `rain`")]
#[case::too_much(json!({"hook": "compact", "verb": "get"}), "unknown field `verb`")]
#[case::no_verb(json!({"hook": "fail-next", "verb": "eat", "status": 409}), "verb \"eat\" is none of get, list, watch,")]
#[case::no_status(json!({"hook": "fail-next"}), "missing field `status`")]
#[case::negative(json!({"hook": "delay", "milliseconds": -1}), "invalid value")]
fn invalid_hooks_are_refused_with_the_reason(#[case] text: Value, #[case] expected: &str) {
    let error = serde_json::from_value::<Hook>(text).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::status(json!({"hook": "fail-next", "status": 302}), "status 302 is none of 400, 401,")]
#[case::delay(json!({"hook": "delay", "milliseconds": 60_001}), "longer than a request may be held up")]
#[case::skew(json!({"hook": "skew-clock", "seconds": i64::MIN}), "cannot be set off by")]
#[tokio::test]
async fn values_out_of_range_are_refused(#[case] hook: Value, #[case] expected: &str) {
    let error = apply(&cluster([]), hook).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn active_hooks_are_limited() {
    let mut hooks = ActiveHooks::default();
    let filter = |number: usize| RequestFilter { verb: None, resource: Some(number.to_string()) };
    for number in 0..MAX_ACTIVE {
        hooks.fail(filter(number), 409, 1).unwrap();
        hooks.delay(filter(number), LONGEST_DELAY).unwrap();
    }
    assert_eq!(hooks.fail(filter(0), 409, 1), Err(HookError::TooMany));
    assert_eq!(hooks.delay(filter(MAX_ACTIVE), LONGEST_DELAY), Err(HookError::TooMany));
    hooks.delay(filter(0), Duration::ZERO).expect("an active hook can be changed");
    hooks.delay(filter(MAX_ACTIVE), LONGEST_DELAY).expect("a hook has ended");
}

fn request(resource: &str, subresource: Option<&str>) -> ResourceRequest {
    ResourceRequest {
        group: "machine.sapcloud.io".to_owned(),
        version: "v1alpha1".to_owned(),
        namespace: Some("default".to_owned()),
        resource: resource.to_owned(),
        name: Some("m".to_owned()),
        subresource: subresource.map(str::to_owned),
        verb: None,
    }
}

#[rstest]
#[case::anything(None, None, true)]
#[case::its_verb(Some(Verb::Update), None, true)]
#[case::another_verb(Some(Verb::Get), None, false)]
#[case::the_resource_alone(None, Some("machines"), false)]
#[case::the_subresource(None, Some("machines/status"), true)]
#[case::another_one(None, Some("machines/scale"), false)]
#[case::another_resource(None, Some("nodes/status"), false)]
fn requests_that_match_a_filter(#[case] verb: Option<Verb>, #[case] resource: Option<&str>, #[case] expected: bool) {
    let filter = RequestFilter { verb, resource: resource.map(str::to_owned) };
    assert_eq!(filter.matches(Verb::Update, &request("machines", Some("status"))), expected);
}

#[test]
fn a_request_gets_the_oldest_failure_and_the_longest_delay() {
    let mut hooks = ActiveHooks::default();
    let machines = || RequestFilter { verb: None, resource: Some("machines".to_owned()) };
    hooks.fail(machines(), 409, 2).unwrap();
    hooks.fail(RequestFilter { verb: Some(Verb::Get), resource: None }, 503, 1).unwrap();
    hooks.delay(machines(), Duration::from_millis(5)).unwrap();
    hooks.delay(machines(), Duration::from_millis(3)).unwrap();
    hooks.delay(RequestFilter { verb: Some(Verb::Get), resource: None }, Duration::from_millis(2)).unwrap();
    let fault = |delay, failure| Fault { delay: Duration::from_millis(delay), failure };
    assert_eq!(hooks.fault_of(Verb::Get, &request("nodes", None)), fault(2, Some((503, "ServiceUnavailable"))));
    assert_eq!(hooks.fault_of(Verb::Get, &request("machines", None)), fault(3, Some((409, "Conflict"))));
    assert_eq!(hooks.fault_of(Verb::Update, &request("machines", None)), fault(3, Some((409, "Conflict"))));
    assert_eq!(hooks.fault_of(Verb::Update, &request("machines", None)), fault(3, None));
    assert_eq!(hooks.fault_of(Verb::Update, &request("nodes", None)), Fault::default());
}

#[tokio::test(start_paused = true)]
async fn the_next_request_is_refused_and_has_no_effect() {
    let cluster = cluster([]);
    apply(&cluster, json!({"hook": "fail-next", "verb": "create", "resource": "configmaps", "status": 503})).unwrap();
    assert_eq!(ask(&cluster, "POST", MAPS, &map("a")).await, Err(503));
    assert_eq!(ask(&cluster, "GET", &format!("{MAPS}/a"), &Value::Null).await, Err(404));
    ask(&cluster, "POST", MAPS, &map("a")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_are_delayed_and_the_clock_is_skewed() {
    let cluster = cluster([]);
    apply(&cluster, json!({"hook": "delay", "resource": "configmaps", "milliseconds": 30_000})).unwrap();
    apply(&cluster, json!({"hook": "skew-clock", "seconds": -3600})).unwrap();
    let made = ask(&cluster, "POST", MAPS, &map("a")).await.unwrap();
    assert_eq!(made["metadata"]["creationTimestamp"], "1969-12-31T23:00:30Z");
    apply(&cluster, json!({"hook": "delay", "resource": "configmaps", "milliseconds": 0})).unwrap();
    apply(&cluster, json!({"hook": "skew-clock", "seconds": 0})).unwrap();
    let made = ask(&cluster, "POST", MAPS, &map("b")).await.unwrap();
    assert_eq!(made["metadata"]["creationTimestamp"], "1970-01-01T00:00:30Z");
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_frozen_watch_sends_no_events_until_it_thaws() {
    let cluster = cluster([]);
    let since = ask(&cluster, "GET", MAPS, &Value::Null).await.unwrap();
    let since = since["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{MAPS}?watch=1&allowWatchBookmarks=1&resourceVersion={since}&timeoutSeconds=");
    apply(&cluster, json!({"hook": "freeze-watch"})).unwrap();
    ask(&cluster, "POST", MAPS, &map("a")).await.unwrap();
    assert_eq!(watch(&cluster, &format!("{path}300")).await, Vec::<Value>::new());
    let thaws = async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        apply(&cluster, json!({"hook": "thaw-watch"})).unwrap();
    };
    let watched = format!("{path}130");
    let (events, ()) = tokio::join!(watch(&cluster, &watched), thaws);
    assert_eq!(kinds(&events)[0], "ADDED", "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_before_a_compaction_gets_an_error() {
    let cluster = cluster([]);
    let made = ask(&cluster, "POST", MAPS, &map("a")).await.unwrap();
    ask(&cluster, "POST", MAPS, &map("b")).await.unwrap();
    apply(&cluster, json!({"hook": "compact"})).unwrap();
    let since = made["metadata"]["resourceVersion"].as_str().unwrap();
    let events = watch(&cluster, &format!("{MAPS}?watch=1&resourceVersion={since}&timeoutSeconds=5")).await;
    assert_eq!(events[0]["object"]["code"], 410, "{events:?}");
}

async fn sent(path: &std::path::Path, body: &str) -> String {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nhost: hooks\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_socket_accepts_hooks_and_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hooks.sock");
    let cluster = Arc::new(cluster([]));
    let socket = cluster.server.listen_for_hooks(&path).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = sent(&path, r#"{"hook": "fail-next", "verb": "list", "resource": "configmaps", "status": 429}"#).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
    assert_eq!(ask(&cluster, "GET", MAPS, &Value::Null).await, Err(429));
    let answer = sent(&path, "{").await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("the hook is not taken: EOF"), "{answer}");
    let answer = sent(&path, &" ".repeat(10_000)).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let in_use = cluster.server.listen_for_hooks(&path).await.unwrap_err();
    assert_eq!(in_use.kind(), std::io::ErrorKind::AddrInUse);
    drop(socket);
    assert!(!path.exists());
}

#[tokio::test]
async fn an_unused_socket_is_replaced_and_any_other_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster([]);
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "mine").unwrap();
    let refused = cluster.server.listen_for_hooks(&file).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let left = folder.path().join("hooks.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(left.exists(), "a closed listener leaves its socket behind");
    cluster.server.listen_for_hooks(&left).await.expect("no process uses it");
}
