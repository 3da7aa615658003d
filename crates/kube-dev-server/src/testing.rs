//! A development server without sockets for tests, with a client.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    handle::{DevServer, DevServerOptions, Storage},
    limits::Limits,
    persistence::DataError,
    stand_ins::StandIn,
};

/// The longest time that a test waits for a condition.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server and a client.
pub(super) struct Cluster {
    pub(super) server: DevServer,
    client: kube::Client,
}

impl Cluster {
    fn of(server: DevServer) -> Self {
        let client = server.client("tester", "default");
        Self { server, client }
    }
}

/// A server with the clock of tokio, so that tests can pause its time.
pub(super) fn cluster(without: impl IntoIterator<Item = StandIn>) -> Cluster {
    with_tokio_clock(DevServerOptions { without: without.into_iter().collect(), ..DevServerOptions::default() })
}

/// A server with the clock of tokio and other request limits.
pub(super) fn cluster_with(limits: Limits) -> Cluster {
    with_tokio_clock(DevServerOptions { limits, ..DevServerOptions::default() })
}

fn with_tokio_clock(options: DevServerOptions) -> Cluster {
    let began = Instant::now();
    let clock = move || Timestamp::UNIX_EPOCH + SignedDuration::try_from(began.elapsed()).unwrap();
    let options = DevServerOptions { seed: 1, clock: Arc::new(clock), ..options };
    Cluster::of(DevServer::start(options).unwrap())
}

/// A clock that only the test moves.
#[derive(Clone)]
pub(super) struct HandClock(Arc<Mutex<Timestamp>>);

impl HandClock {
    pub(super) fn at(time: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(time)))
    }

    pub(super) fn set(&self, time: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = time;
    }
}

/// A server that stores its objects in a folder. Waits until an earlier server releases the folder.
pub(super) async fn cluster_in(
    folder: &Path,
    clock: &HandClock,
    without: impl IntoIterator<Item = StandIn>,
) -> Cluster {
    let without: BTreeSet<StandIn> = without.into_iter().collect();
    loop {
        let HandClock(time) = clock.clone();
        let options = DevServerOptions {
            storage: Storage::Folder(folder.to_path_buf()),
            clock: Arc::new(move || *time.lock().unwrap_or_else(PoisonError::into_inner)),
            without: without.clone(),
            ..DevServerOptions::default()
        };
        match DevServer::start(options) {
            Err(DataError::Busy(_)) => tokio::task::yield_now().await,
            started => return Cluster::of(started.unwrap()),
        }
    }
}

fn request(method: &str, path: &str, body: &Value) -> Request<Vec<u8>> {
    let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    Request::builder().method(method).uri(path).header("content-type", content_type).body(body).unwrap()
}

/// Sends a request. Returns the object of the answer, or the code of the error.
pub(super) async fn ask(cluster: &Cluster, method: &str, path: &str, body: &Value) -> Result<Value, u16> {
    match cluster.client.request_text(request(method, path, body)).await {
        Ok(text) => Ok(serde_json::from_str(&text).unwrap()),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

/// Reads an object. Returns the object, or the code of the error.
pub(super) async fn get(cluster: &Cluster, path: &str) -> Result<Value, u16> {
    ask(cluster, "GET", path, &Value::Null).await
}

/// Deletes an object.
pub(super) async fn delete(cluster: &Cluster, path: &str) {
    ask(cluster, "DELETE", path, &Value::Null).await.unwrap();
}

/// Waits until an object is gone.
pub(super) async fn gone(cluster: &Cluster, path: &str) {
    eventually(path, async || (get(cluster, path).await == Err(404)).then_some(())).await;
}

/// Waits for an object.
pub(super) async fn exists(cluster: &Cluster, path: &str) -> Value {
    eventually(path, async || ask(cluster, "GET", path, &Value::Null).await.ok()).await
}

/// Waits until `look` returns a value.
pub(super) async fn eventually<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not after {TIMEOUT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sends a GET request and returns the answer. The body is not read yet.
pub(super) async fn open(cluster: &Cluster, path: &str) -> Response<kube::client::Body> {
    cluster.client.send(request("GET", path, &Value::Null).map(Into::into)).await.unwrap()
}

/// Starts a watch and returns all its events until it ends.
pub(super) async fn watch(cluster: &Cluster, path: &str) -> Vec<Value> {
    read_events(open(cluster, path).await).await
}

/// Reads all events of a watch until it ends.
pub(super) async fn read_events(answer: Response<kube::client::Body>) -> Vec<Value> {
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}
