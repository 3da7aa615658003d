//! The requests of a watch to an API server, and the resulting store for each kind of response.

use std::{collections::VecDeque, sync::Mutex};

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::client::Body;
use rstest::rstest;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::watch::{Lazy, Scope, Watches, prune};
use machine_api::v1alpha1::Machine;

fn machine(name: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": version.to_string()},
        "spec": {}})
}

fn undecodable(name: &str, version: u64) -> Value {
    let mut object = machine(name, version);
    object["spec"] = json!(7);
    object
}

fn event(what: &str, object: &Value) -> Value {
    json!({"type": what, "object": object})
}

fn bookmark(version: u64) -> Value {
    let object = json!({"kind": "Machine", "apiVersion": "machine.sapcloud.io/v1alpha1",
        "metadata": {"resourceVersion": version.to_string()}});
    event("BOOKMARK", &object)
}

/// The answer of the API server to one request.
#[derive(Clone)]
enum Reply {
    /// A list of this version.
    List(u64, Vec<Value>),
    /// Events, after which the connection is closed.
    Events(Vec<Value>),
    /// Events, then nothing, with the connection left open.
    Silence(Vec<Value>),
    /// Events, then the connection is closed after this number of tenths of a second.
    Brief(Vec<Value>, u64),
    Refused(u16),
    /// No response.
    Nothing,
}

/// The requests so far: the time in seconds, and the version that a watch starts from. `None` instead of a version for a list.
type Asked = Arc<Mutex<Vec<(u64, Option<String>)>>>;

/// A feed over an API server that sends these replies in turn, and afterwards no response.
struct Rig {
    feed: Feed<Machine, Arc<Machine>>,
    reported: Arc<Mutex<Vec<String>>>,
    replies: Arc<Mutex<VecDeque<Reply>>>,
    asked: Asked,
    began: Instant,
}

impl Rig {
    fn new(replies: Vec<Reply>) -> Self {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&reported);
        let feed = Feed {
            kind: "machines",
            watching: Watching::objects(Scope::Namespace("ns".to_owned()), prune::common),
            store: Arc::new(Store::new(Vec::new())),
            health: Arc::default(),
            lists: Arc::new(Semaphore::new(1)),
            on_undecodable: Arc::new(move |undecodable| {
                let name = undecodable.object.name.clone().unwrap_or_default();
                log.lock().unwrap().push(format!("{name}@{}", undecodable.resource_version));
            }),
            silent_after: Duration::from_secs(90),
            lasts: 180,
            random: Arc::new(|| 100),
        };
        let replies = Arc::new(Mutex::new(VecDeque::from(replies)));
        Self { feed, reported, replies, asked: Arc::default(), began: Instant::now() }
    }

    fn api(&self) -> Api<Guarded<Machine>> {
        let (replies, asked, began) = (Arc::clone(&self.replies), Arc::clone(&self.asked), self.began);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let uri = request.uri().to_string();
            let version = uri.contains("watch=true").then(|| {
                assert!(uri.contains("allowWatchBookmarks=true"), "{uri}");
                uri.split("resourceVersion=").nth(1).unwrap().split('&').next().unwrap().to_owned()
            });
            asked.lock().unwrap().push((began.elapsed().as_secs(), version));
            let reply = replies.lock().unwrap().pop_front().unwrap_or(Reply::Nothing);
            async move { Ok::<_, kube::Error>(answer(reply).await) }
        });
        Api::namespaced_with(kube::Client::new(service, "ns"), "ns", &())
    }

    /// Runs the feed for this time.
    async fn run(&self, seconds: u64) {
        let limit = Duration::from_secs(seconds);
        assert!(tokio::time::timeout(limit, self.feed.keep(&self.api())).await.is_err());
    }

    fn asked(&self) -> Vec<(u64, Option<String>)> {
        self.asked.lock().unwrap().clone()
    }

    fn names(&self) -> Vec<String> {
        self.feed.store.snapshot().iter().filter_map(|machine| machine.metadata.name.clone()).collect()
    }
}

type AnyBody = UnsyncBoxBody<Bytes, std::io::Error>;

async fn answer(reply: Reply) -> http::Response<AnyBody> {
    let lines = |events: Vec<Value>| {
        // The type comes first, as from API servers: an undecodable object is found by its text, which must not have been consumed
        // before.
        let line = |event: Value| format!("{{\"type\":{},\"object\":{}}}\n", event["type"], event["object"]);
        stream::iter(events).map(move |event| Ok::<_, std::io::Error>(Frame::data(Bytes::from(line(event)))))
    };
    let text = |text: Value| Full::new(Bytes::from(text.to_string())).map_err(|never| match never {}).boxed_unsync();
    match reply {
        Reply::List(version, items) => {
            http::Response::new(text(json!({"metadata": {"resourceVersion": version.to_string()}, "items": items})))
        }
        Reply::Events(events) => http::Response::new(StreamBody::new(lines(events)).boxed_unsync()),
        Reply::Silence(events) => {
            http::Response::new(StreamBody::new(lines(events).chain(stream::pending())).boxed_unsync())
        }
        Reply::Brief(events, tenths) => {
            let end = stream::once(tokio::time::sleep(Duration::from_millis(100 * tenths)));
            let end = end.filter_map(|()| std::future::ready(None));
            http::Response::new(StreamBody::new(lines(events).chain(end)).boxed_unsync())
        }
        Reply::Refused(code) => {
            let status =
                json!({"kind": "Status", "status": "Failure", "code": code, "reason": "x", "message": "refused"});
            http::Response::builder().status(code).body(text(status)).unwrap()
        }
        Reply::Nothing => std::future::pending().await,
    }
}

// Reads like the compared value: a request from a version.
#[allow(clippy::unnecessary_wraps)]
fn from(version: &str) -> Option<String> {
    Some(version.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_list_and_its_watch_fill_the_store() {
    let events =
        vec![event("ADDED", &machine("c", 3)), event("MODIFIED", &machine("b", 4)), event("DELETED", &machine("a", 5))];
    let rig = Rig::new(vec![Reply::List(2, vec![machine("a", 1), machine("b", 2)]), Reply::Silence(events)]);
    rig.run(1).await;
    assert_eq!(rig.names(), ["b", "c"]);
    assert!(rig.feed.store.is_synced());
    assert_eq!(rig.feed.lists.available_permits(), 1);
    assert_eq!(rig.asked(), [(0, None), (0, from("2"))]);
}

#[tokio::test(start_paused = true)]
async fn a_second_list_removes_missing_objects() {
    let expired = event("ERROR", &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}));
    let rig = Rig::new(vec![
        Reply::List(1, vec![machine("a", 1)]),
        Reply::Events(vec![expired]),
        Reply::List(2, vec![machine("b", 2)]),
        Reply::Silence(Vec::new()),
    ]);
    rig.run(5).await;
    assert_eq!(rig.names(), ["b"]);
    let health = rig.feed.health.read(crate::watch::WatchedCluster::Control, "machines");
    assert_eq!((health.lists, health.failures, health.last_error), (2, 1, None));
}

#[tokio::test(start_paused = true)]
async fn a_broken_list_removes_nothing_and_releases_its_permit() {
    let rig = Rig::new(vec![Reply::List(1, vec![machine("a", 1)]), Reply::Refused(410), Reply::Refused(500)]);
    rig.run(2).await;
    assert_eq!(rig.names(), ["a"]);
    assert_eq!(rig.feed.lists.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_is_reported_once_per_version_and_stops_no_other() {
    let rig = Rig::new(vec![
        Reply::List(2, vec![undecodable("bad", 1), machine("good", 2)]),
        Reply::Refused(410),
        Reply::List(2, vec![undecodable("bad", 1), machine("good", 2)]),
        Reply::Silence(vec![event("MODIFIED", &undecodable("bad", 3))]),
    ]);
    rig.run(5).await;
    assert_eq!(rig.names(), ["good"]);
    assert_eq!(*rig.reported.lock().unwrap(), ["bad@1", "bad@3"]);
    assert_eq!(rig.feed.health.read(crate::watch::WatchedCluster::Control, "machines").undecodable, 1);
}

#[tokio::test(start_paused = true)]
async fn a_known_object_that_becomes_undecodable_is_not_taken_for_deleted() {
    let first = vec![event("MODIFIED", &undecodable("a", 2))];
    let rig = Rig::new(vec![
        Reply::List(1, vec![machine("a", 1)]),
        Reply::Events(first),
        Reply::Refused(410),
        Reply::List(2, vec![undecodable("a", 2)]),
    ]);
    rig.run(10).await;
    assert_eq!(rig.names(), ["a"]);
    rig.replies.lock().unwrap().extend([
        Reply::List(2, vec![undecodable("a", 2)]),
        Reply::Silence(vec![event("DELETED", &undecodable("a", 3))]),
    ]);
    rig.run(10).await;
    assert!(rig.names().is_empty());
    assert_eq!(rig.feed.health.read(crate::watch::WatchedCluster::Control, "machines").undecodable, 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_without_progress_begins_again() {
    let rig = Rig::new(vec![Reply::Nothing, Reply::List(1, vec![machine("a", 1)]), Reply::Silence(Vec::new())]);
    rig.run(70).await;
    assert_eq!(rig.asked()[1], (60, None));
    assert_eq!(
        (rig.names(), rig.feed.health.read(crate::watch::WatchedCluster::Control, "machines").failures),
        (vec!["a".to_owned()], 1)
    );
}

#[rstest]
#[case::forbidden(403, &[0, 0, 2, 6, 13, 27, 55, 111, 177, 243])]
#[case::credentials(401, &[0, 0, 2, 6, 13, 27, 55, 111, 177, 243])]
#[case::overload(429, &[0, 0, 2, 6, 13, 27, 55, 88, 121, 154, 187, 219, 252, 285])]
#[case::fault(500, &[0, 0, 2, 6, 13, 27, 55, 88, 121, 154, 187, 219, 252, 285])]
#[tokio::test(start_paused = true)]
async fn refused_lists_are_retried_after_growing_pauses(#[case] code: u16, #[case] seconds: &[u64]) {
    let rig = Rig::new(vec![Reply::Refused(code); 40]);
    rig.run(300).await;
    assert_eq!(rig.asked().iter().map(|(at, _)| *at).collect::<Vec<_>>(), seconds);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_works_before_each_refused_watch_does_not_shorten_the_pauses() {
    let mut replies = vec![Reply::List(1, Vec::new())];
    replies.extend(vec![Reply::Refused(403); 40]);
    let rig = Rig::new(replies);
    rig.run(300).await;
    assert_eq!(rig.asked().len(), 11, "{:?}", rig.asked());
}

#[tokio::test(start_paused = true)]
async fn an_idle_watch_is_opened_again_from_its_last_version() {
    let rig = Rig::new(vec![
        Reply::List(1, vec![machine("a", 1)]),
        Reply::Silence(vec![event("MODIFIED", &machine("a", 5)), bookmark(9)]),
        Reply::Silence(vec![event("ADDED", &machine("b", 10))]),
    ]);
    rig.run(100).await;
    assert_eq!(rig.asked(), [(0, None), (0, from("1")), (90, from("9"))]);
    assert_eq!(rig.names(), ["a", "b"]);
    assert!(rig.feed.store.is_current());
}

#[tokio::test(start_paused = true)]
async fn an_api_server_without_bookmarks_gets_three_new_connections_and_then_fewer() {
    let mut replies = vec![Reply::List(1, Vec::new())];
    replies.extend(vec![Reply::Silence(Vec::new()); 40]);
    let rig = Rig::new(replies);
    rig.run(1000).await;
    let opened: Vec<u64> = rig.asked().iter().skip(1).map(|(at, _)| *at).collect();
    assert_eq!(opened, [0, 90, 180, 270, 360, 660, 960]);
}

#[tokio::test(start_paused = true)]
async fn a_store_is_stale_only_while_no_connection_can_be_opened() {
    let rig = Rig::new(vec![
        Reply::List(1, Vec::new()),
        Reply::Silence(vec![bookmark(2)]),
        Reply::Refused(503),
        Reply::Silence(vec![bookmark(3)]),
    ]);
    let api = rig.api();
    let mut keep = pin!(rig.feed.keep(&api));
    let mut stale = Vec::new();
    for half_second in 0..200 {
        assert!(tokio::time::timeout(Duration::from_millis(500), &mut keep).await.is_err());
        if !rig.feed.store.is_current() {
            stale.push(half_second);
        }
    }
    // In the pause after the refusal; not before it, and not afterwards.
    assert!(stale.contains(&180) && stale.len() <= 2, "{stale:?}");
    assert_eq!(rig.asked().len(), 4);
}

/// The tenths of a second at which the store was not current, over this number of seconds.
async fn stale(rig: &Rig, seconds: usize) -> Vec<usize> {
    let api = rig.api();
    let mut keep = pin!(rig.feed.keep(&api));
    let mut stale = Vec::new();
    for tenth in 0..seconds * 10 {
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut keep).await.is_err());
        if !rig.feed.store.is_current() {
            stale.push(tenth);
        }
    }
    stale
}

/// Times are tenths of a second. Between the refusals, from 0.0 to 12.5, the pauses are 0.8, 1.7, 3.5 and 7.0 s.
#[rstest]
#[case::as_an_event(Reply::Silence(vec![json!({"type": "ERROR", "object": {
    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 410, "reason": "Expired", "message": "too old",
}})]))]
#[case::as_a_status(Reply::Refused(410))]
#[tokio::test(start_paused = true)]
async fn a_store_that_is_behind_after_an_outage_is_stale_until_a_list_that_starts_at_once(#[case] behind: Reply) {
    let mut replies = vec![Reply::List(1, vec![machine("a", 1)])];
    replies.extend(vec![Reply::Refused(503); 4]);
    replies.extend([behind, Reply::Nothing]);
    let rig = Rig::new(replies);
    let stale = stale(&rig, 30).await;
    assert_eq!((stale.len(), rig.names()), (300, vec!["a".to_owned()]), "the list never came: {stale:?}");
    let asked = rig.asked();
    assert_eq!(asked[5].0, asked[6].0, "the list waits for no pause: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_a_store_is_current_two_seconds_after_the_watch_opens_or_at_a_bookmark() {
    let modified = || event("MODIFIED", &machine("a", 5));
    let after = |reply| vec![Reply::List(1, Vec::new()), Reply::Refused(503), reply];
    let tenths = |quiet: usize| (0..quiet).collect::<Vec<_>>();
    // The watch is opened 0.9 s after the refusal.
    assert_eq!(stale(&Rig::new(after(Reply::Silence(Vec::new()))), 10).await, tenths(28));
    assert_eq!(stale(&Rig::new(after(Reply::Silence(vec![modified()]))), 10).await, tenths(28));
    assert_eq!(stale(&Rig::new(after(Reply::Silence(vec![modified(), bookmark(6)]))), 10).await, tenths(8));
}

/// This happens behind a proxy that closes each connection soon. The first watch is opened 0.9 s after the refusal.
#[rstest]
#[case::soon(Reply::Brief(Vec::new(), 15), 54)]
#[case::soon_after_an_event(Reply::Brief(vec![event("MODIFIED", &machine("a", 5))], 15), 54)]
#[tokio::test(start_paused = true)]
async fn watches_that_all_end_before_they_have_sent_the_missed_events_lead_to_a_list(
    #[case] brief: Reply,
    #[case] tenths: usize,
) {
    let mut replies = vec![Reply::List(1, vec![machine("a", 1)]), Reply::Refused(503)];
    replies.extend(vec![brief.clone(); 3]);
    replies.push(Reply::List(7, vec![machine("b", 7)]));
    replies.extend(vec![brief; 100]);
    let rig = Rig::new(replies);
    let stale = stale(&rig, 60).await;
    assert_eq!(
        stale,
        (0..stale.len()).collect::<Vec<_>>(),
        "it is current from the list on, however brief the watches are"
    );
    assert!(stale.len().abs_diff(tenths) <= 1, "{stale:?}");
    let lists = rig.asked().iter().filter(|(_, version)| version.is_none()).count();
    assert_eq!((lists, rig.names().contains(&"b".to_owned())), (2, true));
}

#[tokio::test(start_paused = true)]
async fn watches_after_an_outage_that_end_at_once_lead_to_a_list_too() {
    let mut replies = vec![Reply::List(1, Vec::new()), Reply::Refused(503)];
    replies.extend(vec![Reply::Events(Vec::new()); 3]);
    replies.extend([Reply::List(7, Vec::new()), Reply::Events(Vec::new()), Reply::Nothing]);
    let rig = Rig::new(replies);
    rig.run(60).await;
    let lists: Vec<usize> =
        rig.asked().iter().enumerate().filter(|(_, (_, version))| version.is_none()).map(|(at, _)| at).collect();
    assert_eq!(lists, [0, 5]);
}

/// API servers do this when a CRD changes, for example when the certificate of its conversion is written.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_is_opened_at_once_and_the_next_times_after_pauses() {
    let mut replies = vec![Reply::List(1, Vec::new())];
    replies.extend(vec![Reply::Events(Vec::new()); 4]);
    let rig = Rig::new(replies);
    rig.run(60).await;
    let moments: Vec<u64> = rig.asked().iter().map(|(second, _)| *second).collect();
    assert_eq!(moments, [0, 0, 0, 0, 2, 6], "a list, a watch and its next one, and then pauses of 0.9, 1.7 and 3.5 s");
}

#[tokio::test(start_paused = true)]
async fn a_store_is_stale_while_the_request_for_its_watch_has_no_response() {
    let rig = Rig::new(vec![Reply::List(1, Vec::new()), Reply::Nothing]);
    assert_eq!(stale(&rig, 5).await, (19..50).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_from_the_past_shows_that_history_went_back() {
    let rig = Rig::new(vec![
        Reply::List(2000, vec![machine("a", 1900)]),
        Reply::Silence(vec![bookmark(1100)]),
        Reply::List(1100, vec![machine("a", 900), machine("b", 950)]),
        Reply::Silence(Vec::new()),
    ]);
    rig.run(5).await;
    assert_eq!(rig.asked(), [(0, None), (0, from("2000")), (0, None), (0, from("1100"))]);
    assert_eq!(rig.names(), ["a", "b"]);
    assert!(rig.feed.store.is_whole());
}

#[tokio::test(start_paused = true)]
async fn an_old_event_does_not_take_the_position_of_a_watch_back() {
    let old = vec![event("MODIFIED", &machine("a", 9)), event("MODIFIED", &machine("a", 3))];
    let rig = Rig::new(vec![Reply::List(2, vec![machine("a", 2)]), Reply::Silence(old), Reply::Silence(Vec::new())]);
    rig.run(91).await;
    assert_eq!(rig.asked().last(), Some(&(90, from("9"))));
    assert_eq!(rig.feed.store.snapshot()[0].metadata.resource_version.as_deref(), Some("9"));
}

#[test]
fn the_same_error_is_logged_once_until_a_watch_is_opened() {
    let health = Health::default();
    assert!(health.failed("a") && !health.failed("a") && health.failed("b") && health.failed("a"));
    health.works();
    assert!(!health.failed("a"));
    health.opened();
    assert!(health.failed("a"));
}

#[tokio::test(start_paused = true)]
async fn a_lazy_watch_begins_when_it_is_wanted() {
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let is_list = !request.uri().to_string().contains("watch=");
        *count.lock().unwrap() += usize::from(is_list);
        async move {
            if !is_list {
                std::future::pending::<()>().await;
            }
            let body =
                r#"{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"m","uid":"1"},"spec":{}}]}"#;
            Ok::<_, kube::Error>(http::Response::new(kube::client::Body::from(body.as_bytes().to_vec())))
        }
    });
    let client = kube::Client::new(service, "ns");
    let watches = Watches::new(Arc::new(|_| ()), || 7);
    let lazy = Lazy::<Arc<Machine>>::new(Arc::new(Store::new(Vec::new())));
    let shutdown = CancellationToken::new();
    let watching = Watching::objects(Scope::Cluster, prune::common);
    let running =
        tokio::spawn(lazy.clone().keep::<Machine>(watches.clone(), "machines", client, watching, shutdown.clone()));
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(*asked.lock().unwrap(), 0);
    let store = lazy.ensure_started(Duration::from_secs(5)).await.unwrap();
    assert_eq!(store.len(), 1);
    let health = watches.health();
    assert_eq!((health.len(), health[0].synced, health[0].silent_for), (1, true, Some(Duration::ZERO)));
    shutdown.cancel();
    running.await.unwrap();
}

#[rstest]
#[case::forbidden(403, "grant both verbs")]
#[case::no_crd(404, "mcm manifests crds | kubectl apply -f -")]
#[case::credentials(401, "does not accept the credentials")]
fn a_failed_watch_advises_the_user(#[case] code: u16, #[case] words: &str) {
    let status = kube::core::Status { code, message: "refused".to_owned(), ..kube::core::Status::default() };
    let text = refusal("machines", &status).text;
    assert!(text.contains(words) && text.contains("machines"), "{text}");
}
