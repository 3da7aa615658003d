//! The webhooks' protocol on the socket of a real `mcm serve`: cases of spec/api-and-admission §12.4, and hostile clients.
//!
//! One line per case. Unit tests of the server cover the cases that need a faulty reviewer (P7, P13) or small limits (P8); `certificates` covers P14
//! to P16.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::support::{
    Rig,
    manager::{ManagerOptions, TestManager},
    secure::SecureConnection,
};

const MACHINE: &str = include_str!("../fixtures/reviews/machine.json");
const BAD_MACHINE: &str = include_str!("../fixtures/reviews/machine-bad.json");

/// A request and its expected answer.
struct Case {
    id: &'static str,
    /// The whole request.
    request: Vec<u8>,
    /// HTTP status.
    status: u16,
    /// Words in the answer, in its headers or its body.
    words: &'static [&'static str],
}

/// A review as an API server sends it.
pub fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path}?timeout=5s HTTP/1.1\r\nHost: mcm\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn case(id: &'static str, request: Vec<u8>, status: u16, words: &'static [&'static str]) -> Case {
    Case { id, request, status, words }
}

/// The review of the accepted machine, with changes.
fn changed(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut review: Value = serde_json::from_str(MACHINE).expect("JSON");
    change(&mut review);
    review.to_string().into_bytes()
}

fn conversion(objects: &[Value], desired: &str) -> Vec<u8> {
    let request = json!({"uid": "u-7", "desiredAPIVersion": desired, "objects": objects});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request})
        .to_string()
        .into_bytes()
}

fn machine(number: usize) -> Value {
    json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": format!("m-{number}")},
        "spec": {"class": {"kind": "MachineClass", "name": "c"}, "nodeConditions": "A,B"}})
}

fn cases() -> Vec<Case> {
    let replaced = |from: &str, to: &str| MACHINE.replacen(from, to, 1).into_bytes();
    let annotated = |count: usize| {
        changed(|review| {
            let entries = (10..10 + count).map(|number| format!("entry-{number}")).collect::<Vec<_>>().join(",");
            review["request"]["kind"]["kind"] = json!("MachineDeployment");
            review["request"]["object"]["kind"] = json!("MachineDeployment");
            review["request"]["object"]["metadata"]["annotations"] =
                json!({"node.machine.sapcloud.io/trigger-deletion-by-mcm": entries});
        })
    };
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    vec![
        case("p1 another review version", post("/validate", &replaced("admission.k8s.io/v1", "admission.k8s.io/v1beta1")), 400, &["admission.k8s.io/v1beta1", "BadRequest"]),
        case("p2 GET", b"GET /validate HTTP/1.1\r\nHost: mcm\r\n\r\n".to_vec(), 405, &["allow: POST"]),
        case("p3 text", b"POST /validate HTTP/1.1\r\nHost: mcm\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}".to_vec(), 415, &["application/json"]),
        case("p3 a form", b"POST /mutate HTTP/1.1\r\nHost: mcm\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 2\r\n\r\n{}".to_vec(), 415, &[]),
        case("p3 no type", b"POST /convert HTTP/1.1\r\nHost: mcm\r\nContent-Length: 2\r\n\r\n{}".to_vec(), 415, &[]),
        case("p4 empty body", post("/validate", b""), 400, &["empty"]),
        case("p4 truncated JSON", post("/validate", &MACHINE.as_bytes()[..MACHINE.len() / 2]), 400, &["BadRequest"]),
        case("p4 empty conversion", post("/convert", b""), 400, &["BadRequest"]),
        case("p4 truncated conversion", post("/convert", b"{\"apiVersion\":\"apiext"), 400, &["BadRequest"]),
        case("p4 no JSON", post("/mutate", b"\xff\xfe\x00"), 400, &["BadRequest"]),
        case("p5 9 MiB", post("/validate", &vec![b' '; 9 << 20]), 413, &["connection: close"]),
        case("p5 65 MiB for conversion", format!("POST /convert HTTP/1.1\r\nHost: mcm\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", 65 << 20).into_bytes(), 413, &["connection: close"]),
        case("p6 no request", post("/validate", br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#), 400, &["has no request"]),
        case("p6 no uid", post("/validate", &changed(|review| drop(review["request"].as_object_mut().unwrap().remove("uid")))), 400, &["has no uid"]),
        case("p6 no object", post("/validate", &changed(|review| drop(review["request"].as_object_mut().unwrap().remove("object")))), 400, &["no object"]),
        case("p9 a denial is 200", post("/validate", BAD_MACHINE.as_bytes()), 200, &["\"allowed\":false", "\"code\":422", "\"reason\":\"Invalid\""]),
        // The answer contains the first five warnings and the number of the others.
        case("p10 40 warnings", post("/validate", &annotated(40)), 200, &["\"warnings\":", "without time: \\\"entry-14\\\"", "and 35 more"]),
        case("p10 33 warnings", post("/validate", &annotated(33)), 200, &["entry-14", "and 28 more"]),
        case("p10 4,000 warnings", post("/validate", &annotated(4_000)), 200, &["\"warnings\":", "and 3995 more"]),
        case("p11 DELETE without oldObject", post("/validate", &changed(|review| {
            review["request"]["operation"] = json!("DELETE");
            review["request"]["object"] = Value::Null;
        })), 200, &["\"allowed\":true"]),
        case("p12 paths of v1beta1", post("/validate", &changed(|review| {
            review["request"]["kind"] = json!({"group": "machine.sapcloud.io", "version": "v1beta1", "kind": "Machine"});
            review["request"]["object"]["apiVersion"] = json!("machine.sapcloud.io/v1beta1");
            review["request"]["object"]["spec"] = json!({"classRef": {"kind": "MachineClass", "name": "c"}, "lifecycle": {"drainTimeout": "soon"}});
        })), 200, &["spec.lifecycle.drainTimeout"]),
        // Every connection in this test uses an unknown server name.
        case(
            "p14 an unknown name in the handshake",
            b"GET /healthz HTTP/1.1\r\nHost: mcm\r\n\r\n".to_vec(),
            200,
            &["OK"],
        ),
        case("deep nesting", post("/validate", MACHINE.replacen("\"object\":", &format!("\"oldObject\": {deep}, \"object\":"), 1).as_bytes()), 400, &["recursion"]),
        case("deep nesting in a conversion", post("/convert", String::from_utf8(conversion(&[], "machine.sapcloud.io/v1beta1")).unwrap().replace("[]", &format!("[{deep}]")).as_bytes()), 200, &["\"status\":\"Failure\"", "object 0: recursion limit"]),
        case("a key twice", post("/validate", &replaced("\"uid\":", "\"uid\": \"first\", \"uid\":")), 400, &["duplicate field"]),
        case("a key of the object twice", post("/validate", &replaced("\"object\": {", "\"object\": {\"kind\": \"Other\", ")), 200, &["\"allowed\":true"]),
        case("a map that would fill the memory", post("/validate", format!("[{}0]", "{},".repeat(1 << 20)).as_bytes()), 413, &["too complex"]),
        case("an object that would fill the memory", post("/convert", String::from_utf8(conversion(&[], "machine.sapcloud.io/v1beta1")).unwrap().replace("[]", &format!("[{{\"spec\":[{}0]}}]", "{},".repeat(1 << 20))).as_bytes()), 200, &["\"status\":\"Failure\"", "object 0 is too complex"]),
        case("an unknown kind passes", post("/validate", &changed(|review| review["request"]["kind"]["kind"] = json!("Rocket"))), 200, &["\"allowed\":true"]),
        case("an unknown version of the object passes", post("/validate", &changed(|review| review["request"]["kind"]["version"] = json!("v7"))), 200, &["\"allowed\":true"]),
        case("an unknown operation passes", post("/validate", &changed(|review| review["request"]["operation"] = json!("CONNECT"))), 200, &["\"allowed\":true"]),
        case("k21 an unknown kind fails a conversion", post("/convert", &conversion(&[machine(1), json!({"kind": "Rocket", "apiVersion": "x/v1"})], "machine.sapcloud.io/v1beta1")), 200, &["\"status\":\"Failure\"", "object 1 (Rocket)", "\"convertedObjects\":[]", "u-7"]),
        case("k22 an unknown version fails a conversion", post("/convert", &conversion(&[machine(1)], "machine.sapcloud.io/v2")), 200, &["\"status\":\"Failure\"", "machine.sapcloud.io/v2"]),
        case("k28 5,000 objects", post("/convert", &conversion(&(0..5_000).map(machine).collect::<Vec<_>>(), "machine.sapcloud.io/v1beta1")), 200, &["\"status\":\"Success\"", "m-4999", "\"unhealthyNodeConditions\":[\"A\",\"B\"]"]),
        case("another path, for strangers", post("/admit", b"{}"), 403, &["Forbidden", "system:anonymous"]),
        case("a path that climbs", b"GET /../../etc/passwd HTTP/1.1\r\nHost: mcm\r\n\r\n".to_vec(), 404, &[]),
        case("no HTTP", b"\x16\x03\x01 hello\r\n\r\n".to_vec(), 400, &[]),
        case("two lengths", b"POST /validate HTTP/1.1\r\nHost: mcm\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}".to_vec(), 400, &[]),
        case("a length and chunks", b"POST /validate HTTP/1.1\r\nHost: mcm\r\nContent-Type: application/json\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n".to_vec(), 400, &[]),
        case("a head of 256 KiB", format!("GET /healthz HTTP/1.1\r\nHost: mcm\r\nX-Padding: {}\r\n\r\n", "x".repeat(256 << 10)).into_bytes(), 431, &[]),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_case_gets_its_expected_answer_and_memory_stays_bounded() {
    let Some(rig) = Rig::shared("protocol::every_case").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("protocol").await;
    let options = ManagerOptions { flags: vec!["--controllers=none".to_owned()], ..ManagerOptions::default() };
    let manager = TestManager::start(&rig, &namespace, &options).await;

    let mut wrong = Vec::new();
    for case in cases() {
        let mut connection = SecureConnection::open(manager.secure_port).await;
        let answer = connection.exchange(&case.request, Duration::from_secs(20)).await;
        let right = answer.starts_with(&format!("HTTP/1.1 {} ", case.status));
        if !right || case.words.iter().any(|word| !answer.contains(word)) {
            let shown: String = answer.chars().take(600).collect();
            wrong.push(format!("{}: expected {} with {:?}, got {shown:?}", case.id, case.status, case.words));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    m21_m23_unknown_fields_are_left_unchanged(manager.secure_port).await;
    p04_anonymous_callers_can_neither_flood_the_log_nor_write_into_it(&manager).await;

    broken_handshakes(manager.secure_port).await;
    slow_senders_and_floods(&manager).await;
    let resident = manager.resident_mib();
    assert!(resident < 512, "{resident} MiB resident: more than the Deployment allows");
    let metrics = manager.http_get("/metrics").await;
    assert!(metrics.contains("mcm_server_panics_total{webhook=\"validate\"} 0"), "{metrics}");
    let mut connection = SecureConnection::open(manager.secure_port).await;
    let answer = connection.exchange(&post("/validate", MACHINE.as_bytes()), Duration::from_secs(5)).await;
    assert!(answer.contains("\"allowed\":true"), "{answer}");
}

/// The patch in the answer of `/mutate`, if there is one.
async fn patch_of(connection: &mut SecureConnection, review: &[u8]) -> Option<Value> {
    let answer = connection.exchange(&post("/mutate", review), Duration::from_secs(5)).await;
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body["response"]["allowed"], true, "{body}");
    let patch = body["response"]["patch"].as_str()?;
    Some(serde_json::from_slice(&STANDARD.decode(patch).expect("base64")).expect("JSON"))
}

/// An API server prunes unknown fields before it calls a webhook. Other callers may not.
async fn m21_m23_unknown_fields_are_left_unchanged(port: u16) {
    let mut connection = SecureConnection::open(port).await;
    let future = changed(|review| review["request"]["object"]["spec"]["future"] = json!(1));
    let patch = patch_of(&mut connection, &future).await.expect("there are defaults");
    for edit in patch.as_array().expect("a list") {
        let path = edit["path"].as_str().expect("a path");
        assert!(edit["op"] == "add" && path.starts_with("/metadata/"), "M21: {patch}");
    }
    let list = changed(|review| review["request"]["object"] = json!([]));
    assert_eq!(patch_of(&mut connection, &list).await, None, "M23");
    let number = changed(|review| review["request"]["object"]["spec"] = json!(5));
    let patch = patch_of(&mut connection, &number).await.expect("metadata still has defaults");
    assert!(!patch.to_string().contains("/spec"), "M23: {patch}");
}

async fn p04_anonymous_callers_can_neither_flood_the_log_nor_write_into_it(manager: &TestManager) {
    const CONTENT: &str = "content-that-must-not-be-logged";
    let began = std::time::Instant::now();
    let mut connection = SecureConnection::open(manager.secure_port).await;
    let review = changed(|review| review["request"]["userInfo"] = json!(CONTENT));
    for path in ["/validate", "/mutate", "/convert"] {
        for _ in 0..100 {
            let answer = connection.exchange(&post(path, &review), Duration::from_secs(5)).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        }
    }
    let log = manager.log();
    assert!(!log.contains(CONTENT), "{log}");
    assert!(!log.lines().any(|line| line.contains("ERROR")), "{log}");
    let complaints = log.lines().filter(|line| line.contains("could not be")).count();
    // The earlier cases wrote some dozens of lines within as many seconds.
    let bound = began.elapsed().as_secs() + 60;
    assert!((1..=bound).contains(&(complaints as u64)), "{complaints} lines: {log}");
}

/// Handshakes that are interrupted, missing or invalid.
async fn broken_handshakes(port: u16) {
    use tokio::{io::AsyncWriteExt, net::TcpStream};
    let hello = SecureConnection::client_hello();
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &hello[..hello.len() / 2], &hello] {
        let mut held = Vec::new();
        for _ in 0..20 {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connections are accepted");
            stream.write_all(bytes).await.expect("it is sent");
            held.push(stream);
        }
        // While all these connections hang, other clients are served.
        let mut connection = SecureConnection::open(port).await;
        let answer = connection.exchange(&post("/validate", MACHINE.as_bytes()), Duration::from_secs(5)).await;
        assert!(answer.contains("\"allowed\":true"), "{answer}");
    }
}

/// Many callers that send slowly, and many callers that send large bodies.
async fn slow_senders_and_floods(manager: &TestManager) {
    let port = manager.secure_port;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut connection = SecureConnection::open(port).await;
        connection.send(b"POST /validate HTTP/1.1\r\nHost: mcm\r\nContent-Type: application/json\r\nContent-Length: 8000000\r\n\r\n{").await;
        slow.push(connection);
    }
    // All bodies at once would need much more memory than is available.
    let large = format!("{{\"x\":[{}0]}}", "\"some text\",".repeat(600_000));
    let large = std::sync::Arc::new(post("/convert", large.as_bytes()));
    let flood = (0..40).map(|_| {
        let large = std::sync::Arc::clone(&large);
        async move {
            let mut connection = SecureConnection::open(port).await;
            connection.exchange(&large, Duration::from_secs(60)).await
        }
    });
    let small = async {
        let mut connection = SecureConnection::open(port).await;
        for _ in 0..50 {
            let answer = connection.exchange(&post("/validate", MACHINE.as_bytes()), Duration::from_secs(10)).await;
            assert!(answer.contains("\"allowed\":true"), "{answer}");
        }
    };
    let (answers, ()) = tokio::join!(futures::future::join_all(flood), small);
    for answer in answers {
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(["400", "503"].contains(&status), "{answer}");
    }
}
