//! A small API server for `ConfigMaps`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use http::{Method, Request, Response};
use kube::client::Body;
use machine_api::names::label;
use serde_json::{Value, json};

use super::ConfigMapAccess;

/// The config maps by name, and whether the reply of the next write is lost.
#[derive(Default)]
pub(super) struct Server {
    pub(super) objects: BTreeMap<String, Value>,
    version: u64,
    pub(super) loses_reply: bool,
}

pub(super) type Shared = Arc<Mutex<Server>>;

pub(super) fn access(server: &Shared) -> ConfigMapAccess {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap_or_default();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let name = parts.uri.path().split('/').nth(6).unwrap_or_default();
            let (code, answer) = server.lock().unwrap().answer(&parts.method, name, &body);
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap();
            Ok::<_, kube::Error>(answer)
        }
    });
    ConfigMapAccess { client: kube::Client::new(service, "ns"), namespace: "ns".to_owned() }
}

impl Server {
    fn answer(&mut self, method: &Method, name: &str, body: &Value) -> (u16, Value) {
        let failure = |code: u16| {
            let reason = if *method == Method::POST { "AlreadyExists" } else { "x" };
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"}))
        };
        if *method == Method::GET {
            let ours = |object: &&Value| object["metadata"]["labels"][label::SIMULATION_STATE] == "vms";
            let items: Vec<&Value> = self.objects.values().filter(ours).collect();
            return (200, json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": items}));
        }
        let name = if *method == Method::POST { body["metadata"]["name"].as_str().unwrap() } else { name }.to_owned();
        let known = self.objects.get(&name).cloned();
        let mut object = match (method, known) {
            (&Method::POST, Some(_)) => return failure(409),
            (&Method::POST, None) => body.clone(),
            (_, Some(known)) if known["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] => {
                return failure(409);
            }
            (_, Some(mut known)) => {
                json_patch::merge(&mut known, body);
                known
            }
            (_, None) => return failure(404),
        };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["uid"] = json!(format!("uid-{name}"));
        self.objects.insert(name, object.clone());
        if std::mem::take(&mut self.loses_reply) { failure(503) } else { (200, object) }
    }
}
