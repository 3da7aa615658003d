//! Conclusions from answers: from a 404 for an object that was known when the request was sent, and from a read of an object that the store lacks.

use std::{sync::Mutex, time::Duration};

use http::{Method, Request, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::client::Body;
use rstest::rstest;
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use super::*;
use crate::{error::testing::not_found_at, objects::Patch};
use machine_api::v1alpha1::Machine;

const PATH: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m";

fn machine(uid: &str, version: u64) -> Machine {
    let mut machine = Machine::default();
    machine.metadata.name = Some("m".to_owned());
    machine.metadata.namespace = Some("ns".to_owned());
    machine.metadata.uid = Some(uid.to_owned());
    machine.metadata.resource_version = Some(version.to_string());
    machine
}

/// Objects over an API server that runs `meanwhile` and then gives the same answer to each request.
fn objects(
    answer: (u16, String),
    meanwhile: impl Fn(&Store<Arc<Machine>>) + Send + Sync + 'static,
) -> (Objects<Arc<Machine>>, Arc<Store<Arc<Machine>>>) {
    let store = Arc::new(Store::new(Vec::new()));
    store.apply(machine("1", 5));
    let (watched, meanwhile) = (Arc::clone(&store), Arc::new(meanwhile));
    let service = service_fn(move |_: Request<Body>| {
        meanwhile(&watched);
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

async fn ask(objects: &Objects<Arc<Machine>>, method: &Method) -> Result<(), ApiError> {
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
        let says_nothing = matches!(&outcome, Err(ApiError::NotServed(_)));
        assert_eq!(says_nothing, !is_proof, "{method} {answer:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_late_404_does_not_remove_a_new_object_of_the_same_name() {
    let (objects, store) = objects(proof(), |store| {
        store.delete(&machine("1", 7));
        store.apply(machine("2", 9));
    });
    assert!(objects.get(&key()).await.unwrap().is_none());
    assert_eq!(store.get(&key()).unwrap().metadata.uid.as_deref(), Some("2"));
}

#[tokio::test]
async fn a_late_404_does_not_remove_an_object_that_was_unknown_at_the_request() {
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
async fn a_live_read_restores_an_object_that_the_store_has_lost() {
    let text = serde_json::to_string(&machine("1", 4)).unwrap();
    let (objects, store) = objects((200, text), |_| {});
    store.forget(&key(), "1");
    objects.get(&key()).await.unwrap();
    assert_eq!(store.len(), 1);
}

#[tokio::test]
async fn an_object_that_ends_with_its_deletion_is_not_restored_by_old_events() {
    let (objects, store) = objects((200, json!({"kind": "Status", "status": "Success"}).to_string()), |_| {});
    ask(&objects, &Method::DELETE).await.unwrap();
    store.apply(machine("1", 5));
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_live_search_includes_undecodable_objects() {
    let list = json!({"items": [{"metadata": {"name": "odd"}, "spec": {"class": 7}}]}).to_string();
    let (objects, _) = objects((200, list), |_| {});
    let found = objects.find_live("ns", |machine| machine["spec"]["class"] == 7).await;
    assert_eq!(found, Ok(Some("odd".to_owned())));
    assert_eq!(objects.find_live("ns", |_| false).await, Ok(None));
}

fn refused() -> (u16, String) {
    let status = json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403 });
    (403, status.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_is_not_sent_again_before_its_pause_is_over() {
    let sent = Arc::new(Mutex::new(0));
    let count = Arc::clone(&sent);
    let (objects, store) = objects(refused(), move |_| *count.lock().unwrap() += 1);
    let refusals = Refusals::default();
    let (recording, observer) = (objects.clone().with_refusals(&refusals), refusals.clone());
    store.set_listeners(vec![Box::new(move |change| observer.see(change))]);
    let target = Target { key: key(), uid: "1".to_owned() };
    let label = |value: &str| Patch::Merge(json!({ "metadata": { "labels": { "a": value } } }));
    for expected in [1, 1] {
        let answer = recording.patch(&target, Part::Main, label("b")).await;
        assert!(matches!(answer, Err(ApiError::Forbidden(text)) if text == "no"), "the same each time");
        assert_eq!(*sent.lock().unwrap(), expected);
    }
    assert!(objects.patch(&target, Part::Main, label("b")).await.is_err(), "objects without refusals send it");
    assert!(recording.patch(&target, Part::Main, label("c")).await.is_err(), "another write");
    assert!(recording.delete(&target, DeleteHow::default()).await.is_err(), "and another one");
    assert_eq!(*sent.lock().unwrap(), 4);
    // A change of the status is no reason to try again; a change of the metadata is.
    store.apply(machine("1", 6));
    assert!(recording.patch(&target, Part::Main, label("b")).await.is_err());
    assert_eq!(*sent.lock().unwrap(), 4);
    let mut labelled = machine("1", 7);
    labelled.metadata.labels = Some([("by".to_owned(), "somebody".to_owned())].into());
    store.apply(labelled);
    assert!(recording.patch(&target, Part::Main, label("b")).await.is_err());
    assert_eq!(*sent.lock().unwrap(), 5);
}

#[tokio::test]
async fn pk_121_a_write_that_the_definition_would_drop_is_not_sent() {
    let sent = Arc::new(Mutex::new(0));
    let count = Arc::clone(&sent);
    let (objects, store) = objects(refused(), move |_| *count.lock().unwrap() += 1);
    let schemas = InstalledSchemas::default();
    let objects = objects.with_schemas(&schemas);
    let schema = json!({"openAPIV3Schema": {"properties": {"status": {"properties": {}}}}});
    let definition =
        json!({"metadata": {"generation": 1}, "spec": {"versions": [{"name": "v1alpha1", "schema": schema}]}});
    schemas.learn(machine_api::kind::Kind::Machine, &definition);
    let target = Target { key: key(), uid: "1".to_owned() };
    let patch = |content: Value| objects.patch(&target, Part::Status, Patch::Merge(content));
    let kept = patch(json!({"status": {"machineConditions": []}})).await.expect("it is not sent");
    assert_eq!(kept.metadata.resource_version, store.get(&key()).unwrap().metadata.resource_version);
    assert_eq!(*sent.lock().unwrap(), 0);
    assert!(patch(json!({"metadata": {"labels": {"a": "b"}}})).await.is_err(), "the answer of the API server");
    assert_eq!(*sent.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_creation_is_recorded_for_the_owner() {
    let sent = Arc::new(Mutex::new(0));
    let count = Arc::clone(&sent);
    let (objects, _) = objects(refused(), move |_| *count.lock().unwrap() += 1);
    let refusals = Refusals::default();
    let objects = objects.with_refusals(&refusals);
    let of_set = |set: &str, name: &str| {
        let mut machine = machine("", 0);
        let owner = OwnerReference {
            api_version: "machine.sapcloud.io/v1alpha1".to_owned(),
            kind: "MachineSet".to_owned(),
            name: set.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.owner_references = Some(vec![owner]);
        machine
    };
    for (set, name, expected) in [("a", "a-1", 1), ("a", "a-2", 1), ("b", "b-1", 2), ("a", "a-3", 2)] {
        assert!(matches!(objects.create(&of_set(set, name)).await, Err(ApiError::Forbidden(_))));
        assert_eq!(*sent.lock().unwrap(), expected, "{name}");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(objects.create(&of_set("a", "a-4")).await.is_err());
    assert_eq!(*sent.lock().unwrap(), 3);
    refusals.changed(About { kind: "MachineSet", key: &ObjectKey::new("ns", "a") });
    assert!(objects.create(&of_set("a", "a-5")).await.is_err());
    assert_eq!(*sent.lock().unwrap(), 4);
}

/// A kind that is known at run time is read like any other, here with metadata only.
#[tokio::test]
async fn a_list_has_the_objects_of_all_pages_and_the_selectors_are_sent() {
    let asked: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let noted = Arc::clone(&asked);
    let service = service_fn(move |request: Request<Body>| {
        let accept = request.headers()[http::header::ACCEPT].to_str().unwrap().to_owned();
        let uri = request.uri().to_string();
        let (name, next) = if uri.contains("continue=") { ("b", "") } else { ("a", "more") };
        noted.lock().unwrap().push((uri, accept));
        let item = json!({ "metadata": { "name": name, "namespace": "ns" } });
        let list = json!({ "metadata": { "continue": next, "resourceVersion": "7" }, "items": [item] });
        async move { Ok::<_, kube::Error>(Response::new(Body::from(list.to_string().into_bytes()))) }
    });
    let kind = kube::api::ApiResource::erase::<k8s_openapi::api::core::v1::Secret>(&());
    let client = kube::Client::new(service, "ns");
    let api = ApiServer::<kube::core::PartialObjectMeta<kube::api::DynamicObject>>::of_kind(client, kind);
    let query = ListQuery {
        selector: Some("a=b".to_owned()),
        fields: Some("metadata.name=x".to_owned()),
        limit: Some(1),
        ..ListQuery::within("ns")
    };
    let all = api.list_all(query).await.unwrap();
    let names: Vec<_> = all.items.into_iter().map(|item| ObjectKey::of(&*api.decode(item).unwrap()).name).collect();
    assert_eq!((names, all.version.as_deref()), (vec!["a".to_owned(), "b".to_owned()], Some("7")));
    let form = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1".to_owned();
    let path = |limits: &str| {
        format!("/api/v1/namespaces/ns/secrets?{limits}&labelSelector=a%3Db&fieldSelector=metadata.name%3Dx")
    };
    let expected = [(path("limit=1"), form.clone()), (path("limit=1&continue=more"), form)];
    assert_eq!(*asked.lock().unwrap(), expected);
}

#[tokio::test]
async fn only_a_list_is_read_as_a_list() {
    for (answer, expected) in [
        (json!({ "kind": "PartialObjectMetadataList", "metadata": { "resourceVersion": "7" }, "items": null }), true),
        (json!({ "kind": "NodeList", "metadata": {}, "items": [] }), true),
        (json!({ "items": null }), false),
        (json!({ "kind": "NodeList", "metadata": {} }), false),
        (json!({ "kind": "Status", "items": "none" }), false),
    ] {
        let body = answer.to_string().into_bytes();
        let service = service_fn(move |_: Request<Body>| {
            let body = body.clone();
            async move { Ok::<_, kube::Error>(Response::new(Body::from(body))) }
        });
        let api = ApiServer::<k8s_openapi::api::core::v1::Node>::of_kind(kube::Client::new(service, "ns"), ());
        let page = api.list(&ListQuery::default()).await;
        assert_eq!(page.is_ok_and(|page| page.items.is_empty()), expected, "{answer}");
    }
}
