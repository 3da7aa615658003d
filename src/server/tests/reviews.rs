//! Reviews that get an answer, good or bad. Case numbers: spec/api-and-admission §12.4.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use rstest::rstest;
use tokio::time::Instant;

use super::rig::{Rig, head, options, until};
use crate::server::ServerOptions;
use kube_listener::RequestLimits;
use mcm_traces::{Key, Outcome, Span, SpanKind, TraceParent, Tracer};

fn with(requests: RequestLimits) -> ServerOptions {
    ServerOptions { requests, ..options() }
}

#[rstest]
#[case::mutation("/mutate?timeout=5s", "mutate 2")]
#[case::validation("/validate?timeout=5s", "validate 2")]
#[case::validation_of_status("/validate-status", "validate-status 2")]
#[case::conversion("/convert?timeout=30s", "convert 2")]
#[tokio::test]
async fn a_review_is_answered_over_both_protocols(#[case] path: &str, #[case] answer: &str) {
    let rig = Rig::start(options()).await;
    let (status, headers, body) = rig.h2().await.post(path, "{}").await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, answer));
    assert_eq!(headers["content-type"], "application/json");
    let mut raw = rig.h1().await;
    for _ in 0..2 {
        let response = raw.post(path, "{}").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with(answer), "{response}");
    }
}

#[rstest]
#[case::that_is_there("\"owner\"", "Some(String(\"owner\"))")]
#[case::that_never_comes("\"nobody\"", "None")]
#[tokio::test]
async fn a_review_may_wait_for_another_object(#[case] body: &str, #[case] answer: &str) {
    let rig = Rig::start(options()).await;
    for body in [body.to_owned(), format!("{body}{}", " ".repeat(100_000))] {
        let (status, _, said) = rig.h2().await.post("/validate?timeout=1s", body.clone()).await;
        assert_eq!((status, said), (StatusCode::OK, format!("{answer} {}", body.len())));
    }
}

#[tokio::test]
async fn a_body_without_declared_length_is_read() {
    let rig = Rig::start(options()).await;
    let mut raw = rig.h1().await;
    raw.send(
        "POST /validate HTTP/1.1\r\nHost: mcm\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    )
    .await;
    raw.send("2\r\n{}\r\n").await;
    raw.send("3\r\n   \r\n0\r\n\r\n").await;
    assert!(raw.response().await.ends_with("validate 5"));
}

#[rstest]
#[case::p2_get("GET /validate HTTP/1.1\r\nHost: mcm\r\n\r\n", 405, "allow: POST")]
#[case::a_wrong_path("POST /admit HTTP/1.1\r\nHost: mcm\r\nContent-Length: 0\r\n\r\n", 404, "\"reason\":\"NotFound\"")]
#[case::p3_text(
    "POST /validate HTTP/1.1\r\nHost: mcm\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
    415,
    "UnsupportedMediaType"
)]
#[case::no_type_at_all("POST /convert HTTP/1.1\r\nHost: mcm\r\nContent-Length: 2\r\n\r\n{}", 415, "application/json")]
#[case::no_http("hello\r\n\r\n", 400, "")]
#[tokio::test]
async fn a_request_that_is_no_review_is_refused(#[case] request: &str, #[case] code: u16, #[case] word: &str) {
    let rig = Rig::start(options()).await;
    let mut raw = rig.h1().await;
    raw.send(request).await;
    let response = raw.response().await;
    assert!(response.starts_with(&format!("HTTP/1.1 {code} ")) && response.contains(word), "{response}");
}

#[tokio::test]
async fn p5_a_body_that_declares_too_much_is_refused_unread_and_the_connection_closed() {
    let rig = Rig::start(options()).await;
    let mut raw = rig.h1().await;
    raw.send(&head("/validate", 9 << 20)).await;
    let response = raw.rest().await;
    assert!(response.starts_with("HTTP/1.1 413 ") && response.contains("connection: close"), "{response}");
    assert!(rig.metrics.render().unwrap().contains(r#"reason="body_too_large"} 1"#));
    raw = rig.h1().await;
    raw.send(&head("/convert", 65 << 20)).await;
    assert!(raw.rest().await.starts_with("HTTP/1.1 413 "));
}

#[tokio::test]
async fn a_body_that_grows_too_large_is_refused_while_it_comes() {
    let rig = Rig::start(with(RequestLimits { admission_bytes: 10, ..RequestLimits::default() })).await;
    let mut raw = rig.h1().await;
    raw.send("POST /validate HTTP/1.1\r\nHost: mcm\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{      }\r\n").await;
    raw.send("8\r\n{      }\r\n").await;
    assert!(raw.rest().await.starts_with("HTTP/1.1 413 "));
}

#[tokio::test]
async fn a_large_review_is_answered() {
    let rig = Rig::start(options()).await;
    let large = "x".repeat(300 * 1024);
    let (status, _, body) = rig.h2().await.post("/convert", large).await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "convert 307200"));
}

#[tokio::test]
async fn p7_a_stuck_review_is_aborted_before_its_caller_gives_up() {
    let rig = Rig::start(with(RequestLimits { inline_bytes: 0, ..RequestLimits::default() })).await;
    let client = rig.h2().await;
    let began = Instant::now();
    let (status, _, body) = client.post("/validate?timeout=1s", "\"stuck\"").await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{body}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

/// A write of an object may need both, so a flood of one kind must not block the other kind.
#[tokio::test]
async fn conversions_that_hang_do_not_block_admission() {
    let limits = RequestLimits { inline_bytes: 0, large_at_a_time: 1, ..RequestLimits::default() };
    let rig = Rig::start(with(limits)).await;
    let (stuck, client) = (rig.h2().await, rig.h2().await);
    let hanging = tokio::spawn(async move { stuck.post("/convert?timeout=1s", "\"stuck\"").await.0 });
    assert_eq!(hanging.await.unwrap(), StatusCode::GATEWAY_TIMEOUT);
    // Its work continues for a second.
    let (status, _, body) = client.post("/convert?timeout=500ms", "{}").await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{body}");
    let (status, _, body) = client.post("/validate?timeout=500ms", "{}").await;
    assert_eq!(status, StatusCode::OK, "{body}");
}

#[tokio::test]
async fn p8_a_review_above_the_limit_is_asked_to_retry() {
    let rig = Rig::start(with(RequestLimits { admission_in_flight: 1, ..RequestLimits::default() })).await;
    let mut first = rig.h1().await;
    first.begin_review("/validate").await;
    let client = rig.h2().await;
    let (status, headers, _) = client.post("/mutate", "{}").await;
    assert_eq!((status, &headers["retry-after"]), (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap()));
    let (status, _, _) = client.post("/convert", "{}").await;
    assert_eq!(status, StatusCode::OK, "conversion has a limit of its own");
    first.send("{}").await;
    assert!(first.response().await.starts_with("HTTP/1.1 200 "));
    let (status, _, _) = client.post("/mutate", "{}").await;
    assert_eq!(status, StatusCode::OK);
}

#[rstest]
#[case::where_it_arrived(64 * 1024)]
#[case::beside(0)]
#[tokio::test]
async fn p13_a_panic_ends_one_request_and_nothing_else(#[case] inline_bytes: usize) {
    let rig = Rig::start(with(RequestLimits { inline_bytes, ..RequestLimits::default() })).await;
    let client = rig.h2().await;
    let (status, _, body) = client.post("/validate", "\"panic\"").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((body["kind"].as_str(), body["code"].as_u64()), (Some("Status"), Some(500)));
    assert_eq!(client.post("/validate", "{}").await.0, StatusCode::OK, "on the same connection");
    assert!(rig.metrics.render().unwrap().contains(r#"mcm_server_panics_total{webhook="validate"} 1"#));
}

#[tokio::test]
async fn requests_are_timed() {
    let rig = Rig::start(options()).await;
    rig.h2().await.post("/validate", "{}").await;
    until(|| rig.metrics.render().unwrap().contains(r#"mcm_admission_duration_seconds_count{webhook="validate"} 1"#))
        .await;
}

/// The headers of a review whose caller has this `traceparent`.
fn traced(path: &str, traceparent: Option<&str>) -> String {
    let header = traceparent.map(|value| format!("traceparent: {value}\r\n")).unwrap_or_default();
    head(path, 2).replacen("Content-Length", &format!("{header}Content-Length"), 1)
}

#[rstest]
#[case::of_a_recorded_request(Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), 1, true)]
#[case::of_a_request_that_is_not_recorded(Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"), 100, false)]
#[case::alone(None, 100, true)]
#[case::one_of_the_other_ninety_nine(None, 101, false)]
#[case::a_header_that_is_none(Some("what"), 101, false)]
#[tokio::test]
async fn pk_103_a_review_continues_the_span_of_the_api_server(
    #[case] traceparent: Option<&str>,
    #[case] draw: u64,
    #[case] recorded: bool,
) {
    let spans = Arc::<Mutex<Vec<Span>>>::default();
    let taken = Arc::clone(&spans);
    let tracer = Tracer::new(move |span| taken.lock().unwrap().push(span), jiff::Timestamp::now, move || draw);
    let rig = Rig::start(ServerOptions { tracer, ..options() }).await;
    let mut raw = rig.h1().await;
    raw.send(&format!("{}{{}}", traced("/validate?timeout=5s", traceparent))).await;
    assert!(raw.response().await.ends_with("validate 2"));
    let spans = spans.lock().unwrap();
    assert_eq!(spans.len(), usize::from(recorded), "{spans:?}");
    let caller = traceparent.and_then(TraceParent::parse);
    for span in spans.iter() {
        assert_eq!((span.name.as_ref(), span.kind, span.outcome), ("/validate", SpanKind::Server, Outcome::Fine));
        assert_eq!(span.parent, caller.map(|caller| caller.span));
        assert!(caller.is_none_or(|caller| caller.trace == span.trace));
        assert_eq!(span.attributes, [(Key::HttpStatus, 200.into())]);
    }
}
