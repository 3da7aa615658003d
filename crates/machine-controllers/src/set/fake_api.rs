//! An API server in a map, for tests of what controllers really write: it creates, patches and deletes objects as the
//! real one does, counts the writes, and can lose answers or refuse.
//!
//! It knows nothing of admission, schemas or watches: stores learn from the answers of writes, and from [`FakeApi::edit`].

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

use controller_runtime::error::testing::not_found_at;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

/// What goes wrong with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is done, but the answer is lost.
    LoseAnswer,
    /// It is not done, and no answer comes.
    LoseRequest,
    /// It is refused.
    Refuse,
    /// It is not done, and the server says what it failed at: a webhook that it can't reach.
    Fail,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    writes: BTreeMap<String, usize>,
    /// For writes whose `METHOD resource` this is, one each.
    faults: VecDeque<(String, Fault)>,
}

/// The API server. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<State>>,
}

impl FakeApi {
    pub(crate) fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect_bytes().await?;
                let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                let kind = parts.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
                let (status, answer) = api.answer(&parts.method, parts.uri.path(), kind, body);
                let response = Response::builder().status(status).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, kube::Error>(response.unwrap())
            }
        });
        kube::Client::new(service, "ns")
    }

    /// The next write of this kind (`POST machines`, `PATCH machinesets/status`, …) goes wrong.
    pub(crate) fn fail_next(&self, what: &str, fault: Fault) {
        self.state.lock().unwrap().faults.push_back((what.to_owned(), fault));
    }

    /// How many writes there were, by kind.
    pub(crate) fn writes(&self) -> BTreeMap<String, usize> {
        self.state.lock().unwrap().writes.clone()
    }

    /// All objects of a kind, by name.
    pub(crate) fn all(&self, plural: &str) -> Vec<Value> {
        let prefix = format!("{}/", collection(plural));
        self.state
            .lock()
            .unwrap()
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(&prefix))
            .map(|(_, o)| o.clone())
            .collect()
    }

    /// Changes an object as somebody else would; `None` as the result of `change` removes it. Returns it as it was last.
    pub(crate) fn edit(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value) -> Option<()>) -> Value {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        let path = format!("{}/{name}", collection(plural));
        let mut object = state.objects.remove(&path).unwrap_or_else(|| json!({ "metadata": { "name": name } }));
        let keep = change(&mut object);
        object["metadata"]["resourceVersion"] = version.to_string().into();
        if keep.is_some() {
            state.objects.insert(path, object.clone());
        }
        object
    }

    fn answer(&self, method: &Method, path: &str, kind: &str, body: Value) -> (StatusCode, Value) {
        let mut state = self.state.lock().unwrap();
        if method == Method::GET {
            return match state.objects.get(path) {
                Some(object) => (StatusCode::OK, object.clone()),
                None => (StatusCode::NOT_FOUND, not_found_at(path)),
            };
        }
        let (object_path, status_part) = match path.strip_suffix("/status") {
            Some(object_path) => (object_path, true),
            None => (path, false),
        };
        let plural = path.split('/').nth(6).unwrap_or_default();
        let what = format!("{method} {plural}{}", if status_part { "/status" } else { "" });
        *state.writes.entry(what.clone()).or_insert(0) += 1;
        let place = state.faults.iter().position(|(of, _)| *of == what);
        let fault = place.and_then(|place| state.faults.remove(place)).map(|(_, fault)| fault);
        match fault {
            Some(Fault::Refuse) => {
                // A refusal quotes the name, also the one that was drawn for it.
                let name = body["metadata"]["name"].as_str().unwrap_or(object_path);
                let text = format!("{plural} \"{name}\" is forbidden: exceeded quota");
                return failure(StatusCode::FORBIDDEN, "Forbidden", &text);
            }
            Some(Fault::Fail) => {
                let text =
                    "Internal error occurred: failed calling webhook \"machines.example.com\": connection refused";
                return failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", text);
            }
            Some(Fault::LoseRequest) => return failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "lost"),
            Some(Fault::LoseAnswer) | None => {}
        }
        let answer = if method == Method::POST {
            state.create(path, body)
        } else if method == Method::DELETE {
            state.delete(object_path, &body["preconditions"])
        } else {
            state.patch(object_path, status_part, kind, body)
        };
        if fault == Some(Fault::LoseAnswer) {
            return failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "lost");
        }
        answer
    }
}

fn collection(plural: &str) -> String {
    format!("/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/{plural}")
}

fn failure(status: StatusCode, reason: &str, message: &str) -> (StatusCode, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message,
        "code": status.as_u16(), "metadata": {},
    });
    (status, body)
}

impl State {
    fn create(&mut self, path: &str, mut object: Value) -> (StatusCode, Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let path = format!("{path}/{name}");
        if self.objects.contains_key(&path) {
            return failure(StatusCode::CONFLICT, "AlreadyExists", &path);
        }
        self.version += 1;
        object["metadata"]["uid"] = format!("uid-{name}").into();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        object["metadata"]["generation"] = 1.into();
        object["metadata"]["creationTimestamp"] =
            super::testing::at(i64::try_from(self.version).unwrap()).to_string().into();
        object.as_object_mut().unwrap().remove("status");
        self.objects.insert(path, object.clone());
        (StatusCode::CREATED, object)
    }

    fn patch(&mut self, path: &str, status_part: bool, kind: &str, patch: Value) -> (StatusCode, Value) {
        let Some(before) = self.objects.get(path).cloned() else {
            return (StatusCode::NOT_FOUND, not_found_at(path));
        };
        let mut after = before.clone();
        if kind == "application/json-patch+json" {
            let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
            if json_patch::patch(&mut after, &patch).is_err() {
                return failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", path);
            }
        } else {
            json_patch::merge(&mut after, &patch);
        }
        if ["uid", "resourceVersion"].iter().any(|field| after["metadata"][*field] != before["metadata"][*field]) {
            return failure(StatusCode::CONFLICT, "Conflict", path);
        }
        if status_part {
            let status = after["status"].take();
            after = before.clone();
            after["status"] = status;
        } else {
            after["status"] = before["status"].clone();
            if after["spec"] != before["spec"] {
                after["metadata"]["generation"] = (before["metadata"]["generation"].as_i64().unwrap_or(0) + 1).into();
            }
        }
        if after != before {
            self.version += 1;
            after["metadata"]["resourceVersion"] = self.version.to_string().into();
        }
        let has_finalizers = after["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if after["metadata"]["deletionTimestamp"].is_string() && !has_finalizers {
            self.objects.remove(path);
        } else {
            self.objects.insert(path.to_owned(), after.clone());
        }
        (StatusCode::OK, after)
    }

    fn delete(&mut self, path: &str, preconditions: &Value) -> (StatusCode, Value) {
        let Some(mut object) = self.objects.get(path).cloned() else {
            return (StatusCode::NOT_FOUND, not_found_at(path));
        };
        let is_broken = |(field, wanted): (&String, &Value)| object["metadata"][field] != *wanted;
        if preconditions.as_object().into_iter().flatten().any(is_broken) {
            return failure(StatusCode::CONFLICT, "Conflict", path);
        }
        self.objects.remove(path);
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty()) {
            object["metadata"]["deletionTimestamp"] = super::testing::now().to_string().into();
            self.objects.insert(path.to_owned(), object.clone());
        }
        (StatusCode::OK, object)
    }
}
