//! What answers prove: a 404 about what was known when the question was sent, and a live read about what the store lacks.

use std::sync::Mutex;

use http::{Method, Request, Response};
use kube::client::Body;
use rstest::rstest;
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use super::*;
use crate::{
    api::v1alpha1::Machine,
    cluster::{error::testing::not_found_at, objects::Patch},
};

const PATH: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m";

fn machine(uid: &str, version: u64) -> Machine {
    let mut machine = Machine::default();
    machine.metadata.name = Some("m".to_owned());
    machine.metadata.namespace = Some("ns".to_owned());
    machine.metadata.uid = Some(uid.to_owned());
    machine.metadata.resource_version = Some(version.to_string());
    machine
}

/// Objects over an API server that does something and then gives this answer to everything.
fn objects(
    answer: (u16, String),
    meanwhile: impl Fn(&Store<Machine>) + Send + Sync + 'static,
) -> (Objects<Machine>, Arc<Store<Machine>>) {
    let store = Arc::new(Store::new(Vec::new()));
    store.apply(machine("1", 5));
    let (seen, meanwhile) = (Arc::clone(&store), Arc::new(meanwhile));
    let service = service_fn(move |_: Request<Body>| {
        meanwhile(&seen);
        let (code, body) = answer.clone();
        async move { Ok::<_, kube::Error>(Response::builder().status(code).body(Body::from(body.into_bytes())).unwrap()) }
    });
    let gate = Gate::open_until(CancellationToken::new());
    let client = kube::Client::new(service, "ns");
    (Objects::new(client, gate, Some(Arc::clone(&store)), |_| {}), store)
}

fn proof() -> (u16, String) {
    (404, not_found_at(PATH).to_string())
}

fn page() -> (u16, String) {
    (404, "default backend - 404".to_owned())
}

fn about_another() -> (u16, String) {
    (404, not_found_at("/api/v1/nodes/m").to_string())
}

fn key() -> ObjectKey {
    ObjectKey::new("ns", "m")
}

async fn ask(objects: &Objects<Machine>, method: &Method) -> Result<(), ApiError> {
    let target = Target { key: key(), uid: "1".to_owned() };
    match *method {
        Method::GET => objects.get(&key()).await.map(drop),
        Method::DELETE => objects.delete(&target, DeleteHow::default()).await.map(drop),
        _ => objects.patch(&target, Part::Main, Patch::Merge(json!({}))).await.map(drop),
    }
}

#[rstest]
#[tokio::test]
async fn only_an_answer_that_names_the_object_proves_that_it_is_gone(
    #[values(Method::GET, Method::PATCH, Method::DELETE)] method: Method,
) {
    for (answer, is_proof) in [(proof(), true), (page(), false), (about_another(), false)] {
        let (objects, store) = objects(answer.clone(), |_| {});
        let outcome = ask(&objects, &method).await;
        assert_eq!(store.is_empty(), is_proof, "{method} {answer:?}");
        let is_unavailable = matches!(&outcome, Err(ApiError::Unavailable(_)));
        assert_eq!(is_unavailable, !is_proof, "{method} {answer:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_late_404_says_nothing_about_a_namesake_that_came_meanwhile() {
    let (objects, store) = objects(proof(), |store| {
        store.delete(&machine("1", 7));
        store.apply(machine("2", 9));
    });
    assert!(objects.get(&key()).await.unwrap().is_none());
    assert_eq!(store.get(&key()).unwrap().metadata.uid.as_deref(), Some("2"));
}

#[tokio::test]
async fn a_late_404_says_nothing_about_an_object_that_was_not_known_when_it_was_asked_for() {
    let first = Mutex::new(true);
    let (objects, store) = objects(proof(), move |store| {
        if !std::mem::take(&mut *first.lock().unwrap()) {
            store.apply(machine("2", 9));
        }
    });
    objects.get(&key()).await.unwrap();
    assert!(store.is_empty());
    objects.get(&key()).await.unwrap();
    assert_eq!(store.len(), 1);
}

#[tokio::test]
async fn a_live_read_mends_what_the_store_has_lost() {
    let text = serde_json::to_string(&machine("1", 4)).unwrap();
    let (objects, store) = objects((200, text), |_| {});
    store.forget(&key(), "1");
    objects.get(&key()).await.unwrap();
    assert_eq!(store.len(), 1);
}

#[tokio::test]
async fn an_object_that_is_gone_with_its_deletion_is_not_shown_until_the_watch_tells() {
    let (objects, store) = objects((200, json!({"kind": "Status", "status": "Success"}).to_string()), |_| {});
    ask(&objects, &Method::DELETE).await.unwrap();
    store.apply(machine("1", 5));
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_live_look_passes_no_object_over_because_it_cannot_be_decoded() {
    let list = json!({"items": [{"metadata": {"name": "odd"}, "spec": {"class": 7}}]}).to_string();
    let (objects, _) = objects((200, list), |_| {});
    let found = objects.find_live("ns", |machine| machine["spec"]["class"] == 7).await;
    assert_eq!(found, Ok(Some("odd".to_owned())));
    assert_eq!(objects.find_live("ns", |_| false).await, Ok(None));
}
