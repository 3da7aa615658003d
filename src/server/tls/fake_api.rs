//! An API server in memory, for the loops of this room: enough of get, list, watch, create, update and patch, and faults.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Clones are the same server.
#[derive(Clone)]
pub(super) struct FakeApi(Arc<Mutex<State>>);

struct State {
    revision: u64,
    objects: BTreeMap<String, Value>,
    /// Collection, revision, event.
    history: Vec<(String, u64, Value)>,
    writes: Vec<String>,
    faults: VecDeque<(Method, &'static str, u16)>,
    forbidden: Vec<&'static str>,
    /// Requests that were refused for that.
    refused: usize,
    changed: watch::Sender<u64>,
}

pub(super) const SECRET: &str = "/api/v1/namespaces/ns/secrets/certs";
pub(super) const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/mcm";

impl FakeApi {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            revision: 1,
            objects: BTreeMap::new(),
            history: Vec::new(),
            writes: Vec::new(),
            faults: VecDeque::new(),
            forbidden: Vec::new(),
            refused: 0,
            changed: watch::Sender::new(1),
        })))
    }

    pub(super) fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        kube::Client::new(service, "ns")
    }

    /// Puts an object there as somebody else would.
    pub(super) fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().store(path, object);
    }

    pub(super) fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    /// Changes an object as somebody else would.
    pub(super) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(path).unwrap();
        change(&mut object);
        self.put(path, object);
    }

    pub(super) fn delete(&self, path: &str) {
        self.0.lock().unwrap().remove(path);
    }

    /// The next request of this method to a path with this end fails.
    pub(super) fn fail_next(&self, method: Method, path_end: &'static str, code: u16) {
        self.0.lock().unwrap().faults.push_back((method, path_end, code));
    }

    /// The requests that are still to fail.
    pub(super) fn faults_left(&self) -> usize {
        self.0.lock().unwrap().faults.len()
    }

    /// Nobody may touch paths that contain this any more.
    pub(super) fn forbid(&self, part: &'static str) {
        self.0.lock().unwrap().forbidden.push(part);
    }

    /// Requests for what nobody may touch, so far.
    pub(super) fn refused(&self) -> usize {
        self.0.lock().unwrap().refused
    }

    /// Successful writes so far: method and path.
    pub(super) fn writes(&self) -> Vec<String> {
        self.0.lock().unwrap().writes.clone()
    }

    /// Resolves when something changes after this call.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.0.lock().unwrap().changed.subscribe()
    }

    async fn answer(&self, request: Request<kube::client::Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default().to_owned());
        let mut state = self.0.lock().unwrap();
        if state.forbidden.iter().any(|part| path.contains(part)) {
            state.refused += 1;
            return failure(403, "not for you");
        }
        if let Some(place) = state.faults.iter().position(|(m, end, _)| *m == head.method && path.ends_with(end)) {
            let code = state.faults.remove(place).map_or(500, |(_, _, code)| code);
            return failure(code, "as asked");
        }
        match head.method {
            Method::GET if query.contains("watch=true") => {
                let since = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse().ok());
                let changed = state.changed.subscribe();
                drop(state);
                self.watch(&path, &named(&query), since.unwrap_or(0), changed)
            }
            Method::GET if query.contains("fieldSelector") => {
                let items: Vec<Value> =
                    state.objects.get(&format!("{path}/{}", named(&query))).cloned().into_iter().collect();
                let metadata = json!({ "resourceVersion": state.revision.to_string() });
                success(&json!({ "kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items }))
            }
            Method::GET => state.objects.get(&path).map_or_else(|| failure(404, "not found"), success),
            Method::POST => {
                let object: Value = serde_json::from_slice(&body).unwrap();
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                if state.objects.contains_key(&path) {
                    return failure(409, "already exists");
                }
                state.writes.push(format!("POST {path}"));
                success(&state.store(&path, object))
            }
            Method::PUT | Method::PATCH => {
                let Some(stored) = state.objects.get(&path).cloned() else { return failure(404, "not found") };
                let given: Value = serde_json::from_slice(&body).unwrap();
                let same = |field: &str| given["metadata"][field] == stored["metadata"][field];
                if !same("resourceVersion") || !same("uid") {
                    return failure(409, "the object has been modified");
                }
                state.writes.push(format!("{} {path}", head.method));
                let object = if head.method == Method::PUT { given } else { merged(stored, &given) };
                success(&state.store(&path, object))
            }
            _ => failure(405, "not here"),
        }
    }

    /// Events of one object after a revision, for as long as the caller listens.
    fn watch(&self, collection: &str, name: &str, since: u64, changed: watch::Receiver<u64>) -> Response<Body> {
        let (api, path) = (self.clone(), format!("{collection}/{name}"));
        let events = futures::stream::unfold((since, changed), move |(since, mut changed)| {
            let (api, path) = (api.clone(), path.clone());
            async move {
                loop {
                    let next = {
                        let state = api.0.lock().unwrap();
                        state.history.iter().find(|(of, at, _)| *of == path && *at > since).cloned()
                    };
                    if let Some((_, at, event)) = next {
                        let line = Bytes::from(format!("{event}\n"));
                        return Some((Ok::<_, Infallible>(line), (at, changed)));
                    }
                    changed.changed().await.ok()?;
                }
            }
        });
        Response::new(Body::from_stream(events))
    }
}

impl State {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.revision += 1;
        let kind = if self.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        let uid =
            self.objects.get(path).map_or_else(|| json!(self.revision.to_string()), |o| o["metadata"]["uid"].clone());
        object["metadata"]["uid"] = uid;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        self.happened(path, json!({ "type": kind, "object": object }));
        object
    }

    fn remove(&mut self, path: &str) {
        self.revision += 1;
        if let Some(mut object) = self.objects.remove(path) {
            object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
            self.happened(path, json!({ "type": "DELETED", "object": object }));
        }
    }

    fn happened(&mut self, path: &str, event: Value) {
        self.history.push((path.to_owned(), self.revision, event));
        self.changed.send_replace(self.revision);
    }
}

/// The name of a field selector `metadata.name=NAME`.
fn named(query: &str) -> String {
    let selector = query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=")).unwrap_or_default();
    selector.replace("%3D", "=").split('=').nth(1).unwrap_or_default().to_owned()
}

/// A merge patch that merges lists by `name`, as a strategic one does with webhooks.
fn merged(stored: Value, patch: &Value) -> Value {
    match (stored, patch) {
        (Value::Object(mut stored), Value::Object(patch)) => {
            for (key, value) in patch {
                let before = stored.remove(key).unwrap_or_default();
                stored.insert(key.clone(), merged(before, value));
            }
            Value::Object(stored)
        }
        (Value::Array(stored), Value::Array(patch)) => {
            let entry = |stored: Value| match patch.iter().find(|patch| patch["name"] == stored["name"]) {
                Some(patch) => merged(stored, patch),
                None => stored,
            };
            Value::Array(stored.into_iter().map(entry).collect())
        }
        (_, patch) => patch.clone(),
    }
}

fn success(object: &Value) -> Response<Body> {
    Response::new(Body::from(object.to_string()))
}

fn failure(code: u16, message: &str) -> Response<Body> {
    let reason = if code == 404 { "NotFound" } else { "" };
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code });
    let mut response = success(&status);
    *response.status_mut() = code.try_into().unwrap();
    response
}
