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

fn order(cluster: &Cluster, hook: Value) -> Result<(), HookError> {
    cluster.server.order(serde_json::from_value(hook).unwrap())
}

#[rstest]
#[case::nothing(json!({}), "missing field `hook`")]
#[case::unknown(json!({"hook": "rain"}), "unknown variant `rain`")]
#[case::too_much(json!({"hook": "compact", "verb": "get"}), "unknown field `verb`")]
#[case::no_verb(json!({"hook": "fail-next", "verb": "eat", "status": 409}), "verb \"eat\" is none of get, list, watch,")]
#[case::no_status(json!({"hook": "fail-next"}), "missing field `status`")]
#[case::negative(json!({"hook": "delay", "milliseconds": -1}), "invalid value")]
fn what_is_no_hook_is_refused_with_the_reason(#[case] text: Value, #[case] expected: &str) {
    let error = serde_json::from_value::<Hook>(text).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::status(json!({"hook": "fail-next", "status": 302}), "status 302 is none of 400, 401,")]
#[case::delay(json!({"hook": "delay", "milliseconds": 60_001}), "longer than a request may be held up")]
#[case::skew(json!({"hook": "skew-clock", "seconds": i64::MIN}), "cannot be set off by")]
#[tokio::test]
async fn what_is_out_of_bounds_is_refused(#[case] hook: Value, #[case] expected: &str) {
    let error = order(&cluster([]), hook).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn orders_are_bounded() {
    let mut orders = Orders::default();
    let which = |number: usize| Which { verb: None, resource: Some(number.to_string()) };
    for number in 0..MOST_ORDERS {
        orders.fail(which(number), 409, 1).unwrap();
        orders.delay(which(number), LONGEST_DELAY).unwrap();
    }
    assert_eq!(orders.fail(which(0), 409, 1), Err(HookError::TooMany));
    assert_eq!(orders.delay(which(MOST_ORDERS), LONGEST_DELAY), Err(HookError::TooMany));
    orders.delay(which(0), Duration::ZERO).expect("what is there can be changed");
    orders.delay(which(MOST_ORDERS), LONGEST_DELAY).expect("one has gone");
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
fn whom_an_order_meets(#[case] verb: Option<Verb>, #[case] resource: Option<&str>, #[case] expected: bool) {
    let which = Which { verb, resource: resource.map(str::to_owned) };
    assert_eq!(which.meets(Verb::Update, &request("machines", Some("status"))), expected);
}

#[test]
fn a_request_uses_up_the_oldest_refusal_and_waits_the_longest_delay() {
    let mut orders = Orders::default();
    let machines = || Which { verb: None, resource: Some("machines".to_owned()) };
    orders.fail(machines(), 409, 2).unwrap();
    orders.fail(Which { verb: Some(Verb::Get), resource: None }, 503, 1).unwrap();
    orders.delay(machines(), Duration::from_millis(5)).unwrap();
    orders.delay(machines(), Duration::from_millis(3)).unwrap();
    orders.delay(Which { verb: Some(Verb::Get), resource: None }, Duration::from_millis(2)).unwrap();
    let struck = |delay, refusal| Weather { delay: Duration::from_millis(delay), refusal };
    assert_eq!(orders.strike(Verb::Get, &request("nodes", None)), struck(2, Some((503, "ServiceUnavailable"))));
    assert_eq!(orders.strike(Verb::Get, &request("machines", None)), struck(3, Some((409, "Conflict"))));
    assert_eq!(orders.strike(Verb::Update, &request("machines", None)), struck(3, Some((409, "Conflict"))));
    assert_eq!(orders.strike(Verb::Update, &request("machines", None)), struck(3, None));
    assert_eq!(orders.strike(Verb::Update, &request("nodes", None)), Weather::default());
}

#[tokio::test(start_paused = true)]
async fn the_next_request_is_refused_and_has_no_effect() {
    let cluster = cluster([]);
    order(&cluster, json!({"hook": "fail-next", "verb": "create", "resource": "configmaps", "status": 503})).unwrap();
    assert_eq!(ask(&cluster, "POST", MAPS, &map("a")).await, Err(503));
    assert_eq!(ask(&cluster, "GET", &format!("{MAPS}/a"), &Value::Null).await, Err(404));
    ask(&cluster, "POST", MAPS, &map("a")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_wait_and_the_clock_is_off() {
    let cluster = cluster([]);
    order(&cluster, json!({"hook": "delay", "resource": "configmaps", "milliseconds": 30_000})).unwrap();
    order(&cluster, json!({"hook": "skew-clock", "seconds": -3600})).unwrap();
    let made = ask(&cluster, "POST", MAPS, &map("a")).await.unwrap();
    assert_eq!(made["metadata"]["creationTimestamp"], "1969-12-31T23:00:30Z");
    order(&cluster, json!({"hook": "delay", "resource": "configmaps", "milliseconds": 0})).unwrap();
    order(&cluster, json!({"hook": "skew-clock", "seconds": 0})).unwrap();
    let made = ask(&cluster, "POST", MAPS, &map("b")).await.unwrap();
    assert_eq!(made["metadata"]["creationTimestamp"], "1970-01-01T00:00:30Z");
}

fn kinds(told: &[Value]) -> Vec<&str> {
    told.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_frozen_watch_tells_nothing_until_it_thaws() {
    let cluster = cluster([]);
    let since = ask(&cluster, "GET", MAPS, &Value::Null).await.unwrap();
    let since = since["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{MAPS}?watch=1&allowWatchBookmarks=1&resourceVersion={since}&timeoutSeconds=");
    order(&cluster, json!({"hook": "freeze-watch"})).unwrap();
    ask(&cluster, "POST", MAPS, &map("a")).await.unwrap();
    assert_eq!(watch(&cluster, &format!("{path}300")).await, Vec::<Value>::new());
    let thaws = async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        order(&cluster, json!({"hook": "thaw-watch"})).unwrap();
    };
    let watched = format!("{path}130");
    let (told, ()) = tokio::join!(watch(&cluster, &watched), thaws);
    assert_eq!(kinds(&told)[0], "ADDED", "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_behind_a_compaction_must_begin_anew() {
    let cluster = cluster([]);
    let made = ask(&cluster, "POST", MAPS, &map("a")).await.unwrap();
    ask(&cluster, "POST", MAPS, &map("b")).await.unwrap();
    order(&cluster, json!({"hook": "compact"})).unwrap();
    let since = made["metadata"]["resourceVersion"].as_str().unwrap();
    let told = watch(&cluster, &format!("{MAPS}?watch=1&resourceVersion={since}&timeoutSeconds=5")).await;
    assert_eq!(told[0]["object"]["code"], 410, "{told:?}");
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
async fn orders_come_over_a_socket_that_is_the_users_own() {
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
    let taken = cluster.server.listen_for_hooks(&path).await.unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    drop(socket);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_left_alone_and_a_socket_of_the_dead_is_not() {
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
    cluster.server.listen_for_hooks(&left).await.expect("nobody uses it");
}
