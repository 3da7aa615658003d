//! The API of both clusters for the tests of the whole controller: JSON objects by path behind a tower service, with
//! refusals, lost answers, budgets, and news for views that hear a little later.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::testing::at;
use crate::drain::observe::{DrainViews, MissingView};
use crate::snapshots::{AttachmentSnapshot, BudgetSnapshot, ClaimSnapshot, PodSnapshot, VolumeSnapshot};
use controller_runtime::{clock::SharedClock, error::testing::not_found_at, key::ObjectKey};

pub const MACHINES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/";
pub const MACHINE: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m-abcde";
pub const NODES: &str = "/api/v1/nodes/";
pub(super) const PODS: &str = "/api/v1/namespaces/ns/pods/";

/// The objects of both clusters by path, and what was asked of them.
#[derive(Default)]
pub struct Api {
    pub(super) objects: BTreeMap<String, Value>,
    pub(super) version: u64,
    /// Writes in the order they were asked for: method and path.
    pub writes: Vec<String>,
    /// Requests that are refused once: method, beginning of the path, code of the answer.
    pub refusals: Vec<(Method, &'static str, u16)>,
    /// Changes that the views have not heard of.
    pub(super) news: VecDeque<(String, Value, bool)>,
    pub(super) changed: Arc<Notify>,
    pub(super) faults: Option<ChaCha8Rng>,
    pub(super) clock: Option<SharedClock>,
    /// Requests whose `METHOD path` holds one of these texts are answered 503.
    pub unreachable: Vec<&'static str>,
    /// Pods whose eviction a budget refuses.
    pub held: BTreeSet<String>,
    /// Whether the views of pods are still empty, because they are slow to fill.
    pub pods_are_late: bool,
    /// Whether the views hear nothing of Nodes.
    pub nodes_are_untold: bool,
    /// The budgets of the namespace.
    pub budgets: Vec<BudgetSnapshot>,
    /// Objects that were deleted, each with the grace period that was asked for.
    pub deletions: Vec<(String, Option<i64>)>,
}

impl Api {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let deleting = object["metadata"]["deletionTimestamp"].is_string();
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if deleting && !held {
            self.objects.remove(path);
            self.news.push_back((path.to_owned(), object.clone(), true));
        } else {
            self.objects.insert(path.to_owned(), object.clone());
            self.news.push_back((path.to_owned(), object.clone(), false));
        }
        self.changed.notify_waiters();
        object
    }

    /// Creates an object as somebody else would.
    pub fn put(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["uid"] = json!(format!("{:06x}-uid", self.version));
        object["metadata"]["creationTimestamp"] = json!(self.now());
        self.store(path, object);
    }

    /// Deletes an object as somebody else would.
    pub fn delete(&mut self, path: &str) {
        let Some(mut object) = self.objects.get(path).cloned() else { return };
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!(self.now());
        }
        self.store(path, object);
    }

    /// Sets a field of an object as somebody else would; the field is a JSON pointer.
    pub fn set(&mut self, path: &str, field: &str, value: impl Into<Value>) {
        let Some(mut object) = self.objects.get(path).cloned() else { return };
        let patch: json_patch::Patch =
            serde_json::from_value(json!([{ "op": "add", "path": field, "value": value.into() }])).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
        self.store(path, object);
    }

    pub fn get(&self, path: &str) -> Option<&Value> {
        self.objects.get(path)
    }

    /// Changes an object as somebody else would.
    pub fn edit(&mut self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.objects[path].clone();
        change(&mut object);
        if let Some(generation) = object["metadata"]["generation"].as_i64() {
            object["metadata"]["generation"] = json!(generation + 1);
        }
        self.store(path, object);
    }

    pub fn names_under(&self, prefix: &str) -> BTreeSet<String> {
        self.objects.keys().filter_map(|path| path.strip_prefix(prefix)).map(str::to_owned).collect()
    }

    fn now(&self) -> String {
        super::status_change::rfc3339(self.clock.as_ref().map_or(at(0), |clock| clock.now()))
    }

    fn answer(&mut self, method: &Method, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
        if *method != Method::GET {
            self.writes.push(format!("{method} {path}"));
        }
        let refused =
            self.refusals.iter().position(|(refused, prefix, _)| refused == method && path.starts_with(prefix));
        if let Some(place) = refused {
            return match self.refusals.remove(place).2 {
                409 if *method == Method::POST => failure(409, "AlreadyExists", "somebody was faster"),
                409 => failure(409, "Conflict", "somebody was faster"),
                code => failure(code, "InternalError", "refused once"),
            };
        }
        let request = format!("{method} {path}");
        if self.unreachable.iter().any(|text| request.contains(text)) {
            return failure(503, "ServiceUnavailable", "away");
        }
        match self.faults.as_mut().map(|random| random.random_range(0..100)) {
            Some(0..4) => return failure(500, "InternalError", "the request got lost"),
            Some(4..8) if *method == Method::PATCH => return failure(409, "Conflict", "somebody was faster"),
            Some(8..12) => {
                self.perform(method, path, content_type, body);
                return failure(500, "InternalError", "the answer got lost");
            }
            _ => {}
        }
        self.perform(method, path, content_type, body)
    }

    /// The objects under a path that carry a label.
    fn list(&self, path: &str, selector: &str) -> (u16, Value) {
        if self.unreachable.iter().any(|away| format!("GET {path}").contains(away)) {
            return failure(503, "ServiceUnavailable", "away");
        }
        let selector = selector.replace("%2F", "/").replace("%3D", "=");
        let (label, value) = selector.split_once('=').unwrap_or_default();
        let under = format!("{path}/");
        let items: Vec<&Value> = self
            .objects
            .iter()
            .filter(|(path, object)| path.starts_with(&under) && object["metadata"]["labels"][label] == value)
            .map(|(_, object)| object)
            .collect();
        (200, json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items }))
    }

    fn perform(&mut self, method: &Method, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
        if let Some(pod) = path.strip_suffix("/eviction") {
            if self.held.iter().any(|held| pod.ends_with(held.as_str())) {
                let mut refusal = failure(429, "TooManyRequests", "it would violate the budget");
                refusal.1["details"] = json!({ "causes": [{ "reason": "DisruptionBudget" }] });
                return refusal;
            }
            self.objects.get(pod).cloned().map_or_else(
                || not_found(pod),
                |mut object| {
                    object["metadata"]["deletionTimestamp"] = json!(self.now());
                    self.store(pod, object);
                    (201, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
                },
            )
        } else if *method == Method::POST {
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
            if self.objects.contains_key(&path) {
                return failure(409, "AlreadyExists", "exists");
            }
            self.put(&path, body.clone());
            (201, self.objects[&path].clone())
        } else {
            let (path, part) = path.strip_suffix("/status").map_or((path, None), |main| (main, Some("status")));
            let Some(object) = self.objects.get(path).cloned() else { return not_found(path) };
            match *method {
                Method::GET => (200, object),
                Method::DELETE if body["preconditions"]["uid"] != object["metadata"]["uid"] => {
                    failure(409, "Conflict", "uid")
                }
                Method::DELETE => {
                    self.deletions.push((path.to_owned(), body["gracePeriodSeconds"].as_i64()));
                    self.delete(path);
                    match self.objects.get(path) {
                        Some(object) => (200, object.clone()),
                        None => (200, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" })),
                    }
                }
                _ => self.patch(path, part, content_type, body, &object),
            }
        }
    }

    fn patch(
        &mut self,
        path: &str,
        part: Option<&str>,
        content_type: &str,
        body: &Value,
        object: &Value,
    ) -> (u16, Value) {
        let mut patched = object.clone();
        if content_type.contains("json-patch") {
            let Ok(patch) = serde_json::from_value::<json_patch::Patch>(body.clone()) else {
                return failure(400, "BadRequest", "no patch");
            };
            if json_patch::patch(&mut patched, &patch).is_err() {
                return failure(422, "Invalid", "the server rejected our request due to an error in our request");
            }
        } else {
            for field in ["uid", "resourceVersion"] {
                if body["metadata"][field].is_string() && body["metadata"][field] != object["metadata"][field] {
                    return failure(409, "Conflict", field);
                }
            }
            json_patch::merge(&mut patched, body);
        }
        let mut stored = object.clone();
        for field in part.map_or(vec!["metadata", "spec"], |part| vec![part]) {
            stored[field] = patched[field].clone();
        }
        stored["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
        if stored == *object {
            return (200, stored);
        }
        (200, self.store(path, stored))
    }
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
    });
    (code, status)
}

fn not_found(path: &str) -> (u16, Value) {
    (404, not_found_at(path))
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// What a drain sees of pods.
pub(super) struct Pods(pub(super) Arc<Mutex<Api>>);

impl DrainViews for Pods {
    fn ready(&self) -> bool {
        !lock(&self.0).pods_are_late
    }
    fn pods_on(&self, node: &str) -> Vec<PodSnapshot> {
        let api = lock(&self.0);
        api.objects
            .range(PODS.to_owned()..)
            .take_while(|(path, _)| path.starts_with(PODS))
            .filter(|(_, pod)| pod["spec"]["nodeName"] == node)
            .map(|(_, object)| serde_json::from_value::<Pod>(object.clone()).unwrap().into())
            .collect()
    }
    fn pods_using(&self, _claim: &ObjectKey) -> Vec<PodSnapshot> {
        Vec::new()
    }
    fn missing(&self) -> Vec<MissingView> {
        let why = Some("forbidden to list and watch pods".to_owned());
        if self.ready() { Vec::new() } else { vec![MissingView { kind: "pods", why }] }
    }
    fn budgets_in(&self, _namespace: &str) -> Vec<BudgetSnapshot> {
        lock(&self.0).budgets.clone()
    }
    fn claim(&self, _key: &ObjectKey) -> Option<ClaimSnapshot> {
        None
    }
    fn volume(&self, _name: &str) -> Option<VolumeSnapshot> {
        None
    }
    fn attachments_on(&self, _node: &str) -> Vec<AttachmentSnapshot> {
        Vec::new()
    }
    fn attachments_of(&self, _volume: &str) -> Vec<AttachmentSnapshot> {
        Vec::new()
    }
}

/// A client of this API.
pub(super) fn client(api: &Arc<Mutex<Api>>) -> kube::Client {
    let api = Arc::clone(api);
    let service = tower::service_fn(move |request: Request<Body>| {
        let api = Arc::clone(&api);
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await?;
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            let kind =
                parts.headers.get(http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            let (code, answer) = match parts.uri.query().and_then(|query| query.strip_prefix("labelSelector=")) {
                Some(selector) => lock(&api).list(parts.uri.path(), selector),
                None => lock(&api).answer(&parts.method, parts.uri.path(), kind, &body),
            };
            let response = Response::builder().status(code).body(Body::from(serde_json::to_vec(&answer)?))?;
            Ok::<_, tower::BoxError>(response)
        }
    });
    kube::Client::new(service, "ns")
}
