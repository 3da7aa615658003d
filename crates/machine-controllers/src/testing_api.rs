//! The API server for tests of whole controllers: the development server, in this process and without sockets. The
//! client of the controllers records requests, and makes calls get lost or refused.
//!
//! Requests of the test itself meet no faults and are answered at once, so that tests need not wait.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use controller_runtime::clock::SharedClock;
use futures::{FutureExt, StreamExt, stream::BoxStream};
use http::{Method, Request, Response, header::CONTENT_TYPE, request::Parts};
use http_body_util::{BodyExt, Either, Full};
use kube::{client::Body, core::WatchEvent};
use kube_dev_server::{DevServer, DevServerOptions, StandIn};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// Paths that do not begin with a slash are below this one.
const OF_MACHINES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/";
/// The kinds that tests create, by the plural in the path.
const KINDS: [(&str, &str); 8] = [
    ("machines", "Machine"),
    ("machinesets", "MachineSet"),
    ("machinedeployments", "MachineDeployment"),
    ("machineclasses", "MachineClass"),
    ("nodes", "Node"),
    ("pods", "Pod"),
    ("secrets", "Secret"),
    ("poddisruptionbudgets", "PodDisruptionBudget"),
];
/// The first entries of [`KINDS`] are custom resources; this is their number.
const CUSTOM: usize = 4;
const JSON: &str = "application/json";

/// For faults that last until [`TestApi::heal`].
pub(crate) const FOR_EVER: usize = usize::MAX;

/// A fault that a request meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The request is carried out, but its answer is lost.
    LoseAnswer,
    /// The request is not carried out and gets no answer.
    LoseRequest,
    /// The request is not carried out and is answered with this code.
    Answer(u16),
}

impl Fault {
    /// The refusal by a quota.
    pub(crate) const REFUSE: Self = Self::Answer(403);
    /// The server can't reach a webhook.
    pub(crate) const FAIL: Self = Self::Answer(500);
}

/// A write request of the controllers.
struct Write {
    /// Method and path.
    line: String,
    /// Method and resource, such as `PATCH machinesets/status`.
    kind: String,
    /// The grace period of a deletion, in seconds.
    grace: Option<i64>,
}

#[derive(Default)]
struct State {
    writes: Vec<Write>,
    /// Ordered faults: text that selects requests, fault, how often it still happens.
    faults: Vec<(String, Fault, usize)>,
    bad_luck: Option<ChaCha8Rng>,
}

/// The API server of both clusters. Cheap to clone; all clones share one server.
#[derive(Clone)]
pub(crate) struct TestApi {
    server: Arc<DevServer>,
    state: Arc<Mutex<State>>,
}

impl TestApi {
    /// An API server with our kinds that uses this clock. The definitions have no schema: the real ones would cost each
    /// test an eighth of a second, and `tests/it` covers them.
    pub(crate) fn new(clock: SharedClock) -> Self {
        let options = DevServerOptions {
            seed: 1,
            clock: Arc::new(move || clock.now()),
            without: StandIn::NAMED.map(|(_, stand_in)| stand_in).into(),
            ..DevServerOptions::default()
        };
        let server = Arc::new(DevServer::start(options).unwrap());
        let api = Self { server, state: Arc::default() };
        api.must("POST", "/api/v1/namespaces", JSON, &json!({ "metadata": { "name": "ns" } }));
        for (plural, kind) in &KINDS[..CUSTOM] {
            let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
            let definition = json!({
                "metadata": { "name": format!("{plural}.machine.sapcloud.io") },
                "spec": {
                    "group": "machine.sapcloud.io", "scope": "Namespaced", "names": { "plural": plural, "kind": kind },
                    "versions": [{
                        "name": "v1alpha1", "served": true, "storage": true, "subresources": { "status": {} },
                        "schema": { "openAPIV3Schema": schema },
                    }],
                },
            });
            api.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", JSON, &definition);
        }
        api
    }

    /// The client for the controllers.
    pub(crate) fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let fault = api.state().receives(&head, &serde_json::from_slice(&body).unwrap_or_default());
                match fault {
                    Some(Fault::Answer(code)) => return Ok(refusal(code, &head, &body).map(Either::Right)),
                    Some(Fault::LoseRequest) => return Err(tower::BoxError::from("the API server is away")),
                    Some(Fault::LoseAnswer) | None => {}
                }
                let answer = api.server.answer("controllers", Request::from_parts(head, Body::from(body))).await;
                if fault.is_some() { Err("the answer is lost".into()) } else { Ok(answer.map(Either::Left)) }
            }
        });
        kube::Client::new(service, "ns")
    }

    /// The changes of the objects of a list since a version, without any faults.
    pub(crate) async fn watch(&self, path: &str, version: &str) -> BoxStream<'static, WatchEvent<Value>> {
        let path = format!("{}?watch=true&resourceVersion={version}", full(path));
        let client = self.server.client("onlooker", "ns");
        let events = client.request_events(Request::get(path).body(Vec::new()).unwrap()).await.unwrap();
        events.map(Result::unwrap).boxed()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The next `times` requests of this kind (`POST machines`, `PATCH machinesets/status`, …), or with this text in
    /// `METHOD path`, meet the fault.
    pub(crate) fn fail(&self, what: &str, fault: Fault, times: usize) {
        self.state().faults.push((what.to_owned(), fault, times));
    }

    /// The next request of this kind meets the fault.
    pub(crate) fn fail_next(&self, what: &str, fault: Fault) {
        self.fail(what, fault, 1);
    }

    /// Ends the faults that were ordered with this text.
    pub(crate) fn heal(&self, what: &str) {
        self.state().faults.retain(|(ordered, ..)| !ordered.contains(what));
    }

    /// Whether a fault that was ordered with this text is still to happen.
    pub(crate) fn is_to_fail(&self, what: &str) -> bool {
        self.state().faults.iter().any(|(ordered, ..)| ordered.contains(what))
    }

    /// From now on, requests meet random faults, or none.
    pub(crate) fn set_luck(&self, bad_luck: Option<ChaCha8Rng>) {
        self.state().bad_luck = bad_luck;
    }

    /// The writes in the order in which they arrived: method and path.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.state().writes.iter().map(|write| write.line.clone()).collect()
    }

    /// The number of writes by kind.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for write in &self.state().writes {
            *counts.entry(write.kind.clone()).or_default() += 1;
        }
        counts
    }

    /// The deletions below a path, each with its grace period.
    pub(crate) fn deletions(&self, below: &str) -> Vec<(String, Option<i64>)> {
        let prefix = format!("DELETE {below}");
        let state = self.state();
        let name = |write: &Write| Some((write.line.strip_prefix(&prefix)?.to_owned(), write.grace));
        state.writes.iter().filter_map(name).collect()
    }

    /// Forgets the recorded writes.
    pub(crate) fn forget_writes(&self) {
        self.state().writes.clear();
    }

    fn ask(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<Value, Value> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(full(path)).header(CONTENT_TYPE, content_type);
        let answered = async {
            let answer = self.server.answer("somebody else", request.body(Body::from(body)).unwrap()).await;
            (answer.status(), answer.into_body().collect().await.unwrap().to_bytes())
        };
        let (status, text) = tokio::task::unconstrained(answered).now_or_never().expect("nothing is waited for");
        let answer = serde_json::from_slice(&text).unwrap();
        if status.is_success() { Ok(answer) } else { Err(answer) }
    }

    fn must(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Value {
        let answer = self.ask(method, path, content_type, body);
        answer.unwrap_or_else(|refusal| panic!("{method} {path} {body}: {refusal}"))
    }

    /// An object, if it exists.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.ask("GET", path, JSON, &Value::Null).ok()
    }

    /// The objects of a list, ordered by name.
    pub(crate) fn all(&self, path: &str) -> Vec<Value> {
        match self.must("GET", path, JSON, &Value::Null)["items"].take() {
            Value::Array(items) => items,
            other => panic!("{path} holds {other}"),
        }
    }

    /// Creates an object with its status, as another client does. The API server draws the UIDs, so owner references
    /// with UIDs of the builders (`uid-NAME`) get the stored UIDs.
    pub(crate) fn put(&self, path: &str, mut object: Value) -> Value {
        let path = full(path);
        let (collection, name) = path.rsplit_once('/').unwrap();
        let (version, plural) =
            (collection.split("/namespaces/").next().unwrap(), collection.rsplit('/').next().unwrap());
        let version = if version.starts_with("/api/") { "v1" } else { version.trim_start_matches("/apis/") };
        object["kind"] = KINDS.iter().find(|(known, _)| *known == plural).unwrap().1.into();
        object["apiVersion"] = version.into();
        object["metadata"]["name"] = name.into();
        object["metadata"]["resourceVersion"].take();
        for owner in object.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut).into_iter().flatten()
        {
            let name = owner["name"].as_str().unwrap();
            let place = format!("{}s/{name}", owner["kind"].as_str().unwrap().to_lowercase());
            if owner["uid"] == format!("uid-{name}")
                && let Some(stored) = self.get(&place)
            {
                owner["uid"] = stored["metadata"]["uid"].clone();
            }
        }
        let stored = self.must("POST", collection, JSON, &object);
        // The API server drops the status when it creates a custom resource.
        let mut status = stored["status"].clone();
        json_patch::merge(&mut status, &object["status"]);
        if status == stored["status"] { stored } else { self.set(&path, "/status", status) }
    }

    /// Changes an object and its status, as another client does.
    pub(crate) fn edit(&self, path: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut stored = self.get(path).unwrap_or_else(|| panic!("{path} is not there"));
        let mut wanted = stored.clone();
        change(&mut wanted);
        let parts = |object: &Value| {
            let mut main = object.clone();
            let status = main["status"].take();
            [main, status]
        };
        let changed = parts(&wanted).into_iter().zip(parts(&stored)).map(|(wanted, stored)| wanted != stored);
        for (part, is_changed) in ["", "/status"].into_iter().zip(changed.collect::<Vec<_>>()) {
            if is_changed {
                wanted["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
                stored = self.must("PUT", &format!("{path}{part}"), JSON, &wanted);
            }
        }
        stored
    }

    /// Sets a field of an object, as another client does; the field is a JSON pointer.
    pub(crate) fn set(&self, path: &str, field: &str, value: impl Into<Value>) -> Value {
        let part = if field.starts_with("/status") { "/status" } else { "" };
        let patch = json!([{ "op": "add", "path": field, "value": value.into() }]);
        self.must("PATCH", &format!("{path}{part}"), "application/json-patch+json", &patch)
    }

    /// Deletes an object, as another client does. Does nothing if the object is gone.
    pub(crate) fn delete(&self, path: &str) {
        let _ = self.ask("DELETE", path, JSON, &json!({ "gracePeriodSeconds": 0 }));
    }

    /// Deletes an object and removes its finalizers. Returns its last state.
    pub(crate) fn remove(&self, path: &str) -> Value {
        self.delete(path);
        self.set(path, "/metadata/finalizers", json!([]))
    }

    /// The names of the objects below a path that ends in a slash.
    pub(crate) fn names_under(&self, path: &str) -> std::collections::BTreeSet<String> {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        self.all(path.trim_end_matches('/')).iter().map(name).collect()
    }
}

impl State {
    /// Records a request, and returns the fault that it meets.
    fn receives(&mut self, head: &Parts, body: &Value) -> Option<Fault> {
        let path = head.uri.path();
        let (line, kind) = (format!("{} {path}", head.method), format!("{} {}", head.method, resource_of(path)));
        let meets = |ordered: &str| kind == ordered || line.contains(ordered);
        let fault = self.faults.iter_mut().find(|(ordered, ..)| meets(ordered)).map(|(_, fault, times)| {
            *times -= 1;
            *fault
        });
        self.faults.retain(|(.., times)| *times > 0);
        if head.method != Method::GET {
            self.writes.push(Write { line, kind, grace: body["gracePeriodSeconds"].as_i64() });
        }
        fault.or_else(|| match self.bad_luck.as_mut()?.random_range(0..100) {
            0..4 => Some(Fault::LoseRequest),
            4..8 if head.method == Method::PATCH => Some(Fault::Answer(409)),
            8..12 => Some(Fault::LoseAnswer),
            _ => None,
        })
    }
}

fn full(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{OF_MACHINES}{path}") }
}

/// The resource in a path, such as `machines` or `machinesets/status`.
fn resource_of(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    let place = parts.iter().rposition(|part| KINDS.iter().any(|(plural, _)| plural == part)).unwrap_or_default();
    let subresource = parts.get(place + 2).map(|part| format!("/{part}")).unwrap_or_default();
    format!("{}{subresource}", parts[place])
}

/// The answer of an API server that refuses a request with this code. It contains the name, also one that the server
/// has drawn.
fn refusal<D: From<Vec<u8>>>(code: u16, head: &Parts, body: &[u8]) -> Response<Full<D>>
where
    Full<D>: From<Vec<u8>>,
{
    let path = head.uri.path();
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let name = body["metadata"]["name"].as_str().unwrap_or(path);
    let (reason, message) = match code {
        403 => ("Forbidden", format!("{} \"{name}\" is forbidden: exceeded quota", resource_of(path))),
        409 if head.method == Method::POST => ("AlreadyExists", format!("{name} already exists")),
        409 => ("Conflict", format!("{name} has been modified")),
        429 => ("TooManyRequests", "it would violate the budget".to_owned()),
        _ => ("InternalError", "failed calling webhook \"machines.example.com\": connection refused".to_owned()),
    };
    let causes = if code == 429 { json!([{ "reason": "DisruptionBudget" }]) } else { Value::Null };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": message, "details": { "causes": causes },
    });
    Response::builder().status(code).body(Full::from(status.to_string().into_bytes())).unwrap()
}
