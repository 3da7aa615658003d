//! Writers of one state, on an API server of a few lines.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

/// Config maps by name, and whether the reply of the next write gets lost.
#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    version: u64,
    loses_reply: bool,
}

type Shared = Arc<Mutex<Server>>;

fn access(server: &Shared) -> ConfigMapAccess {
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
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": "x", "message": "no"}))
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

fn machine(made: u32) -> Entry {
    Entry::Machine { key: "ns/m".to_owned(), made, calls: vec![0] }
}

async fn open(server: &Shared, writer: u64) -> (ConfigMaps, Vec<Entry>) {
    ConfigMaps::open(&access(server), "vms", writer).await.unwrap()
}

#[tokio::test]
async fn what_was_written_is_read_by_the_next_one_and_the_former_writes_no_more() {
    let server = Shared::default();
    let (mut first, found) = open(&server, 1).await;
    assert_eq!(found, Vec::new());
    first.write(vec![machine(1)], None).await.unwrap();
    let (mut second, found) = open(&server, 2).await;
    assert_eq!(found, vec![machine(1)]);
    // The first one's request meets another version; once it has looked it knows why.
    assert!(first.write(vec![machine(7)], None).await.is_err());
    assert!(first.wants_snapshot());
    let refused = first.write(Vec::new(), Some(vec![machine(7)])).await.unwrap_err();
    assert!(matches!(refused, StateError::Taken { .. }), "{refused}");
    second.write(vec![machine(2)], None).await.unwrap();
    assert_eq!(open(&server, 3).await.1, vec![machine(2)]);
}

#[tokio::test]
async fn after_a_lost_reply_everything_is_read_again_and_nothing_is_lost() {
    let server = Shared::default();
    let (mut store, _) = open(&server, 1).await;
    server.lock().unwrap().loses_reply = true;
    assert!(store.write(vec![machine(1)], None).await.is_err());
    assert!(store.wants_snapshot());
    store.write(vec![machine(2)], Some(vec![machine(2)])).await.unwrap();
    assert!(!store.wants_snapshot());
    assert_eq!(open(&server, 2).await.1, vec![machine(2)]);
}

#[tokio::test]
async fn a_config_map_of_somebody_else_is_refused_and_left_alone() {
    let server = Shared::default();
    let foreign = json!({"metadata": {"name": "vms", "resourceVersion": "1"}, "data": {"mine": "1"}});
    server.lock().unwrap().objects.insert("vms".to_owned(), foreign.clone());
    let refused = ConfigMaps::open(&access(&server), "vms", 1).await.unwrap_err();
    assert!(matches!(refused, StateError::NotOurs { .. }), "{refused}");
    assert_eq!(server.lock().unwrap().objects["vms"], foreign);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_told_with_the_remedy() {
    let server = Shared::default();
    drop(open(&server, 1).await);
    server.lock().unwrap().objects.get_mut("vms").unwrap()["data"] = json!({"vm.1": "rubbish"});
    let refused = ConfigMaps::open(&access(&server), "vms", 2).await.unwrap_err().to_string();
    assert!(refused.contains("ConfigMap ns/vms: key \"vm.1\"") && refused.contains("delete it"), "{refused}");
}
