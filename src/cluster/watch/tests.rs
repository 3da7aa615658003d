use futures::stream;
use rstest::rstest;
use tokio::time::Instant;
use watcher::Event;

use super::*;
use crate::api::v1alpha1::Machine;

fn machine(name: &str, version: u64) -> Guarded<Machine> {
    let text = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"uid-{name}","resourceVersion":"{version}"}},"spec":{{}}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn poison(name: &str, version: u64) -> Guarded<Machine> {
    let text = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"uid-{name}","resourceVersion":"{version}"}},"spec":7}}"#
    );
    serde_json::from_str(&text).unwrap()
}

struct Rig {
    feed: Feed<Machine, Machine>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Rig {
    fn new() -> Self {
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&told);
        let feed = Feed {
            kind: "machines",
            watching: Watching::objects(Scope::Namespace("ns".to_owned()), prune::common),
            store: Arc::new(Store::new(Vec::new())),
            health: Arc::default(),
            lists: Arc::new(Semaphore::new(1)),
            on_poison: Arc::new(move |poison| {
                let name = poison.object.name.clone().unwrap_or_default();
                log.lock().unwrap().push(format!("{name}@{}", poison.resource_version));
            }),
        };
        Self { feed, told }
    }

    async fn follow(&self, events: Vec<watcher::Result<Event<Guarded<Machine>>>>) {
        self.feed.follow(stream::iter(events)).await;
    }

    fn names(&self) -> Vec<String> {
        self.feed.store.snapshot().iter().filter_map(|machine| machine.metadata.name.clone()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_and_its_watch_fill_the_store() {
    let rig = Rig::new();
    rig.follow(vec![
        Ok(Event::Init),
        Ok(Event::InitApply(machine("a", 1))),
        Ok(Event::InitApply(machine("b", 2))),
        Ok(Event::InitDone),
        Ok(Event::Apply(machine("c", 3))),
        Ok(Event::Delete(machine("a", 4))),
    ])
    .await;
    assert_eq!(rig.names(), ["b", "c"]);
    assert!(rig.feed.store.is_synced());
    assert_eq!(rig.feed.lists.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_second_list_removes_what_it_does_not_mention() {
    let rig = Rig::new();
    rig.follow(vec![
        Ok(Event::Init),
        Ok(Event::InitApply(machine("a", 1))),
        Ok(Event::InitDone),
        Err(watcher::Error::NoResourceVersion),
        Ok(Event::Init),
        Ok(Event::InitApply(machine("b", 2))),
        Ok(Event::InitDone),
    ])
    .await;
    assert_eq!(rig.names(), ["b"]);
    let health = rig.feed.health.read("machines");
    assert_eq!((health.lists, health.failures, health.last_error), (2, 1, None));
}

#[tokio::test(start_paused = true)]
async fn a_broken_list_removes_nothing_and_gives_its_turn_back() {
    let rig = Rig::new();
    rig.follow(vec![
        Ok(Event::Init),
        Ok(Event::InitApply(machine("a", 1))),
        Ok(Event::InitDone),
        Ok(Event::Init),
        Err(watcher::Error::NoResourceVersion),
    ])
    .await;
    assert_eq!(rig.names(), ["a"]);
    assert_eq!(rig.feed.lists.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_is_told_of_once_per_version_and_stops_nobody() {
    let rig = Rig::new();
    rig.follow(vec![
        Ok(Event::Init),
        Ok(Event::InitApply(poison("bad", 1))),
        Ok(Event::InitApply(machine("good", 2))),
        Ok(Event::InitDone),
        Ok(Event::Init),
        Ok(Event::InitApply(poison("bad", 1))),
        Ok(Event::InitApply(machine("good", 2))),
        Ok(Event::InitDone),
        Ok(Event::Apply(poison("bad", 3))),
    ])
    .await;
    assert_eq!(rig.names(), ["good"]);
    assert_eq!(*rig.told.lock().unwrap(), ["bad@1", "bad@3"]);
    assert_eq!(rig.feed.health.read("machines").undecodable, 1);
}

#[tokio::test(start_paused = true)]
async fn a_known_object_that_becomes_undecodable_is_not_taken_for_deleted() {
    let rig = Rig::new();
    rig.follow(vec![
        Ok(Event::Init),
        Ok(Event::InitApply(machine("a", 1))),
        Ok(Event::InitDone),
        Ok(Event::Apply(poison("a", 2))),
        Ok(Event::Init),
        Ok(Event::InitApply(poison("a", 2))),
        Ok(Event::InitDone),
    ])
    .await;
    assert_eq!(rig.names(), ["a"]);
    rig.follow(vec![Ok(Event::Delete(poison("a", 3)))]).await;
    assert!(rig.names().is_empty());
    assert_eq!(rig.feed.health.read("machines").undecodable, 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_stands_still_is_begun_anew() {
    let rig = Rig::new();
    let began = Instant::now();
    let stalled = stream::iter(vec![Ok(Event::Init)]).chain(stream::pending());
    rig.feed.follow(stalled).await;
    assert_eq!(began.elapsed(), LIST_STALL);
    assert_eq!(rig.feed.health.read("machines").failures, 1);
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
    let lazy = Lazy::<Machine>::new(Arc::new(Store::new(Vec::new())));
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
fn a_failed_watch_says_what_to_do(#[case] code: u16, #[case] words: &str) {
    let status = kube::core::Status { code, message: "refused".to_owned(), ..kube::core::Status::default() };
    let error = watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()));
    let text = explain("machines", &error);
    assert!(text.contains(words) && text.contains("machines"), "{text}");
}
