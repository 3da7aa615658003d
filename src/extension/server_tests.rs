//! The whole server in process: every request from head to answer, without a socket.

#[path = "server_tests/rig.rs"]
mod rig;

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use rstest::rstest;
use serde_json::{Value, json};

use self::rig::*;
use super::*;

#[rstest]
#[case::may_read("reader", "GET", VIEWS, 200, "TestViewList")]
#[case::xa_142_may_not("alice", "GET", VIEWS, 403, "in API group \\\"views.machine.sapcloud.io\\\"")]
#[case::may_read_views_but_not_their_source("viewer", "GET", VIEWS, 403, "cannot list resource \\\"machines\\\"")]
#[case::hx_23_may_read_one_by_name("named", "GET", &format!("{VIEWS}/a"), 200, "TestView")]
#[case::hx_23_the_same_by_a_field_selector(
    "named",
    "GET",
    &format!("{VIEWS}?fieldSelector=metadata.name%3Da"),
    200,
    "TestViewList"
)]
#[case::hx_23_and_no_other("named", "GET", &format!("{VIEWS}?fieldSelector=metadata.name%3Db"), 403, "cannot list")]
#[case::hx_23_nor_all("named", "GET", VIEWS, 403, "cannot list")]
#[case::th_28_everywhere(
    "reader",
    "GET",
    "/apis/views.machine.sapcloud.io/v1alpha1/testviews",
    403,
    "at the cluster scope"
)]
#[case::th_28_elsewhere(
    "reader",
    "GET",
    "/apis/views.machine.sapcloud.io/v1alpha1/namespaces/x/testviews",
    403,
    "namespace \\\"x\\\""
)]
#[case::xa_157_master("root/system:masters", "GET", VIEWS, 200, "TestViewList")]
#[case::unknown_resource(
    "root/system:masters",
    "GET",
    "/apis/views.machine.sapcloud.io/v1alpha1/nothings",
    404,
    "404 page not found"
)]
#[case::another_group(
    "root/system:masters",
    "GET",
    "/apis/machine.sapcloud.io/v1alpha1/machines",
    404,
    "404 page not found"
)]
#[case::authorised_before_it_is_looked_for("alice", "GET", "/apis/x/v1/nothings", 403, "cannot list")]
#[case::xa_155_anonymous("anonymous", "GET", "/apis", 403, "system:anonymous")]
#[case::xa_155_health("anonymous", "GET", "/healthz", 200, "ok")]
#[case::one_check("anonymous", "GET", "/livez/ping", 200, "ok")]
#[case::xa_166_documents("system:aggregator", "GET", "/openapi/v3", 200, "serverRelativeURL")]
#[case::xa_166_old_documents("system:aggregator", "GET", "/openapi/v2", 200, "swagger")]
#[case::xa_166_resources("system:aggregator", "GET", "/apis/views.machine.sapcloud.io/v1alpha1", 200, "testviews")]
#[case::th_27_metrics("anonymous", "GET", "/metrics", 403, "cannot get path \\\"/metrics\\\"")]
#[case::th_27_root("anonymous", "GET", "/", 403, "cannot get path")]
#[case::th_27_configz("anonymous", "GET", "/configz", 403, "cannot get path")]
#[case::metrics("root/system:masters", "GET", "/metrics", 200, "mcm_server")]
#[case::th_20_dots("anonymous", "GET", "/apis/../metrics", 404, "404")]
#[case::th_20_slashes("anonymous", "GET", "//metrics", 403, "/metrics")]
#[case::th_20_hidden("anonymous", "GET", "/healthz/..%2fmetrics", 404, "404")]
#[case::th_20_semicolon("anonymous", "GET", "/healthz;x", 403, "cannot get path")]
#[case::th_20_slash("anonymous", "GET", "/readyz%2f", 404, "404")]
#[case::xa_145_watch(
    "root/system:masters",
    "GET",
    "/apis/views.machine.sapcloud.io/v1alpha1/testviews?watch=1",
    405,
    "MethodNotAllowed"
)]
#[case::xa_146_delete(
    "root/system:masters",
    "DELETE",
    "/apis/views.machine.sapcloud.io/v1alpha1/namespaces/h/testviews/a",
    405,
    "MethodNotAllowed"
)]
#[case::documents_are_read("root/system:masters", "POST", "/apis", 405, "MethodNotAllowed")]
#[case::bad_timeout("root/system:masters", "GET", "/version?timeout=abc", 400, "invalid timeout")]
#[tokio::test]
async fn who_gets_what(
    #[case] user: &str,
    #[case] method: &str,
    #[case] path: &str,
    #[case] code: u16,
    #[case] text: &str,
) {
    let told = Rig::new().ask(user, method, path, &[], "").await;
    assert!(told.code == code && told.text().contains(text), "{} {}", told.code, told.text());
}

#[tokio::test]
async fn xa_168_discovery_for_the_aggregator_needs_no_review() {
    let rig = Rig::new();
    *rig.server.down.lock().unwrap() = true;
    let path = "/apis/views.machine.sapcloud.io/v1alpha1";
    let mut best = Duration::MAX;
    // The bound comes from the specification. Other programs on the test's host may use the processor meanwhile, so
    // single measurements may be longer.
    for _ in 0..10 {
        let began = Instant::now();
        let answers = (0..5).map(|_| rig.get("system:kube-aggregator/system:masters", path));
        assert!(futures::future::join_all(answers).await.iter().all(|told| told.code == 200));
        best = best.min(began.elapsed());
    }
    assert!(best < Duration::from_millis(50), "all five took {best:?}");
    assert_eq!(rig.server.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn th_24_without_the_api_server_nothing_but_health_is_answered() {
    let rig = Rig::new();
    *rig.server.down.lock().unwrap() = true;
    let told = rig.get("reader", VIEWS).await;
    assert_eq!(
        (told.code, told.header("retry-after"), &told.json()["reason"]),
        (503, "1", &json!("ServiceUnavailable"))
    );
    assert_eq!(rig.get("anonymous", "/livez").await.code, 200);
}

#[rstest]
#[case::xa_163_good(&[("authorization", "Bearer alices")], 403, "User \\\"alice\\\"")]
#[case::xa_163_wrong(&[("authorization", "Bearer nobodys")], 401, "Unauthorized")]
#[case::xa_163_basic(&[("authorization", "Basic YTpi")], 403, "system:anonymous")]
#[case::xa_161_headers_alone(&[("x-remote-user", "root"), ("x-remote-group", "system:masters")], 403, "system:anonymous")]
#[case::th_26_impersonation(&[("authorization", "Bearer alices"), ("impersonate-user", "system:admin")], 403,
    "impersonation is not supported")]
#[tokio::test]
async fn who_comes_directly(#[case] headers: &[(&str, &str)], #[case] code: u16, #[case] text: &str) {
    let rig = Rig::new();
    let told = rig.ask("anonymous", "GET", VIEWS, headers, "").await;
    assert!(told.code == code && told.text().contains(text), "{} {}", told.code, told.text());
}

#[tokio::test]
async fn an_empty_token_is_no_token_and_its_sender_hears_of_it() {
    let rig = Rig::new();
    let told = rig.ask("anonymous", "GET", VIEWS, &[("authorization", "Bearer  alices")], "").await;
    assert!(told.code == 403 && told.text().contains("system:anonymous"), "{}", told.text());
    assert!(told.header("warning").contains("the bearer token is empty"), "{}", told.header("warning"));
}

#[tokio::test]
async fn two_users_on_one_connection_are_two() {
    let rig = Rig::new();
    let peer = Peer::new(SocketAddr::from(([10, 0, 0, 1], 1)), rig.proxy());
    for (user, code) in [("reader", 200), ("alice", 403), ("reader", 200)] {
        let mut request = Request::get(VIEWS).header("x-remote-user", user).body(Body::empty()).unwrap();
        request.extensions_mut().insert(peer.clone());
        assert_eq!(rig.extension.answer(request).await.status(), code, "{user}");
    }
}

#[rstest]
#[case("x-http-method-override")]
#[case("x-http-method")]
#[case("x-method-override")]
#[tokio::test]
async fn a_method_that_a_header_names_is_not_taken(#[case] header: &str) {
    let (rig, path) = (Rig::new(), format!("{VIEWS}/a"));
    assert_eq!(rig.ask("reader", "GET", &path, &[(header, "DELETE")], "").await.code, 200);
    assert_eq!(rig.ask("reader", "DELETE", &path, &[(header, "GET")], "").await.code, 405);
}

#[tokio::test]
async fn th_34_watches_are_refused_cheaply() {
    let rig = Rig::new();
    for _ in 0..1_000 {
        assert_eq!(rig.get("reader", &format!("{VIEWS}?watch=1")).await.code, 405);
    }
    assert_eq!(rig.server.asked.load(Ordering::SeqCst), 1, "the right is asked for once");
}

#[tokio::test]
async fn impersonation_through_the_proxy_is_a_mistake() {
    let told = Rig::new().ask("reader", "GET", VIEWS, &[("impersonate-user", "x")], "").await;
    assert_eq!(told.code, 400);
}

#[tokio::test]
async fn th_44_a_panic_in_one_view_harms_nobody_else() {
    let (rig, log) = (Rig::new(), tempfile::NamedTempFile::new().unwrap());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(Arc::new(log.reopen().unwrap())).finish();
    let logging = tracing::subscriber::set_default(subscriber);
    let told = rig.get("reader", &format!("{VIEWS}/panic")).await;
    drop(logging);
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("operation=\"testviews\""), "{log}");
    assert_eq!((told.code, told.text().trim()), (500, pipeline::PANIC));
    assert_eq!(told.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(rig.get("reader", &format!("{VIEWS}/a")).await.code, 200);
    assert!(rig.metrics.render().unwrap().contains("mcm_panics_total{view=\"testviews\"} 1"));
}

#[rstest]
#[case::by_the_caller("?timeout=2s", 2)]
#[case::by_us("", 60)]
#[case::never_longer("?timeout=10h", 60)]
#[case::zero_is_the_longest("?timeout=0s", 60)]
#[tokio::test(start_paused = true)]
async fn a_request_has_a_deadline(#[case] query: &str, #[case] seconds: u64) {
    let (rig, began) = (Rig::new(), Instant::now());
    let told = rig.get("reader", &format!("{VIEWS}/never{query}")).await;
    assert_eq!((told.code, began.elapsed().as_secs()), (504, seconds));
}

#[tokio::test(start_paused = true)]
async fn requests_at_a_time_are_limited_but_health_and_administrators_are_not() {
    let rig = Rig::with(Limits { in_flight: 1, deadline: Duration::from_secs(5), ..Limits::default() }).open();
    let (stuck, later) = (format!("{VIEWS}/never"), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let busy = rig.get("reader", VIEWS).await;
        assert_eq!((busy.code, busy.header("retry-after")), (429, "1"));
        assert_eq!(rig.get("anonymous", "/livez").await.code, 200);
        assert_eq!(rig.get("root/system:masters", VIEWS).await.code, 200);
    });
    let (first, ()) = tokio::join!(rig.get("reader", &stuck), later);
    assert_eq!((first.code, rig.get("reader", VIEWS).await.code), (504, 200));
}

#[rstest]
#[case::th_02_announced_too_large("application/json", "", 3 << 20 | 1, 413)]
#[case::th_04_compressed("application/json", "gzip", 10, 415)]
#[case::protobuf("application/vnd.kubernetes.protobuf", "", 10, 415)]
#[tokio::test]
async fn bodies_that_are_not_read(#[case] kind: &str, #[case] coding: &str, #[case] length: usize, #[case] code: u16) {
    let headers: Vec<_> = [("content-type", kind), ("content-encoding", coding)]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect();
    let told = Rig::new().ask("reader", "POST", VIEWS, &headers, &"x".repeat(length)).await;
    assert_eq!(told.code, code, "{}", told.text());
}

#[tokio::test]
async fn th_03_a_body_without_an_end_is_cut_off() {
    let rig = Rig::new();
    let read = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&read);
    let endless = futures::stream::repeat_with(move || {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 64 * 1024]))
    });
    let mut request = Request::post(VIEWS).header("x-remote-user", "reader").body(Body::from_stream(endless)).unwrap();
    request.extensions_mut().insert(Peer::new(SocketAddr::from(([10, 0, 0, 1], 1)), rig.proxy()));
    let response = rig.extension.answer(request).await;
    let chunks = read.load(Ordering::SeqCst);
    assert!(response.status() == 413 && chunks <= 3 * 16 + 1, "{} after {chunks} chunks", response.status());
}

#[tokio::test]
async fn th_05_aliases_do_not_multiply_without_bound() {
    let line = |n: usize| match n {
        0 => "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned(),
        n => format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", ")),
    };
    let bomb: Vec<String> = (0..30).map(line).collect();
    let bomb = bomb.concat();
    let began = std::time::Instant::now();
    let told = Rig::new().ask("reader", "POST", VIEWS, &[("content-type", "application/yaml")], &bomb).await;
    assert!(told.code == 400 && began.elapsed() < Duration::from_secs(2), "{} {:?}", told.code, began.elapsed());
}

#[tokio::test]
async fn a_review_is_answered_in_yaml_as_asked() {
    let headers = [("content-type", "application/yaml"), ("accept", "application/yaml")];
    let body = "kind: TestView\nspec: {machineName: m, other: 1}\n";
    let told = Rig::new().ask("reader", "POST", &format!("{VIEWS}?dryRun=All"), &headers, body).await;
    assert_eq!((told.code, told.header("content-type")), (201, "application/yaml"));
    assert!(told.text().contains("machineName: m"), "{}", told.text());
    assert_eq!(told.header("warning"), "299 - \"unknown field \\\"spec.other\\\"\"");
}

#[tokio::test]
async fn headers_of_every_answer() {
    let rig = Rig::new();
    let told = rig.ask("reader", "GET", VIEWS, &[("audit-id", "abc-1"), ("user-agent", "curl/8")], "").await;
    assert_eq!((told.header("audit-id"), told.header("cache-control")), ("abc-1", "no-cache, private"));
    assert!(told.text().starts_with("{\n  \""), "for people");
    assert_eq!(told.header("warning"), "299 - \"one class is missing\"");
    let head = rig.ask("reader", "HEAD", &format!("{VIEWS}/a"), &[], "").await;
    assert!(head.code == 200 && head.body.is_empty());
    assert_eq!(head.header("audit-id"), "00000000-0000-4000-8000-000000000007");
}

#[tokio::test]
async fn documents_are_compressed_for_callers_that_accept_gzip() {
    let response = Response::new(Body::from("x".repeat(200_000)));
    let packed = compressed(response).await;
    assert_eq!(packed.headers()[header::CONTENT_ENCODING], "gzip");
    let bytes = packed.into_body().collect().await.unwrap().to_bytes();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut text).unwrap();
    assert_eq!(text.len(), 200_000);
    let small = compressed(Response::new(Body::from("x"))).await;
    assert!(small.headers().is_empty());
}

#[rstest]
#[case("gzip, deflate", true)]
#[case("br, gzip;q=0.5", true)]
#[case("gzip;q=0", false)]
#[case("identity", false)]
fn who_reads_gzip(#[case] text: &str, #[case] reads: bool) {
    let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, text.parse().unwrap())]);
    assert_eq!(takes_gzip(&headers), reads);
}

#[tokio::test]
async fn before_the_views_are_there_nothing_is_missing_for_good() {
    let rig = Rig::with(Limits::default());
    for path in [VIEWS, "/apis", "/openapi/v2"] {
        let told = rig.get("root/system:masters", path).await;
        assert_eq!((told.code, told.header("retry-after")), (503, "1"), "{path}");
    }
    assert_eq!(rig.get("anonymous", "/livez").await.code, 200);
    rig.extension.parts.checks.reachability.confirm();
    assert!(rig.get("anonymous", "/readyz").await.text().contains("[-]informer-sync"));
    let rig = rig.open();
    assert_eq!(
        (rig.get("root/system:masters", VIEWS).await.code, rig.get("anonymous", "/readyz").await.code),
        (200, 200)
    );
}

#[tokio::test]
async fn readiness_names_missing_parts() {
    let rig = Rig::new();
    let told = rig.get("anonymous", "/readyz").await;
    assert!(told.code == 500 && told.text().contains("[-]control-api failed: reason withheld"), "{}", told.text());
    rig.extension.parts.checks.reachability.confirm();
    let told = rig.get("anonymous", "/readyz?verbose").await;
    assert!(told.code == 200 && told.text().starts_with("[+]ping ok\n"), "{}", told.text());
}

#[tokio::test]
async fn the_audit_log_contains_every_request_and_no_token() {
    let mut rig = Rig::new();
    let headers = [("x-forwarded-for", "9.9.9.9, 10.1.1.1"), ("authorization", "Bearer hidden")];
    rig.ask("reader", "GET", &format!("{VIEWS}/a?token=hidden"), &headers, "").await;
    rig.ask("anonymous", "GET", "/metrics", &[("authorization", "Bearer hidden")], "").await;
    let (folder, writer) = rig.log.take().unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    stop.cancel();
    writer.run(stop).await;
    let text = std::fs::read_to_string(folder.path().join("audit.log")).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!text.contains("hidden"), "{text}");
    assert_eq!(events[0]["user"]["username"], "reader");
    assert_eq!(events[0]["objectRef"]["name"], "a");
    assert_eq!(events[0]["sourceIPs"], json!(["10.1.1.1", "10.0.0.1"]));
    assert_eq!(events[1]["responseStatus"]["code"], 401);
}
