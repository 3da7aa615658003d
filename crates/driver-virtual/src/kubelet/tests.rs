//! The kubelets with a small API server in memory, on paused time: the calls they make, and when.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use jiff::Timestamp;
use kube::client::Body;
use machine_api::v1alpha1::{Machine, MachineClass};
use machine_driver::{Driver, MachineRequest, OpContext, SecretData};
use serde_json::{Value, json};
use tokio::{sync::broadcast, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{SimulationConfig, SimulationOptions, VirtualCloud, start};

fn cx() -> OpContext {
    OpContext::within(Duration::from_secs(60))
}

type Answer = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// Objects by path, the writes so far, and the watches.
#[derive(Clone)]
struct ApiServer {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    writes: Arc<Mutex<Vec<String>>>,
    changes: broadcast::Sender<(String, Value)>,
    version: Arc<AtomicU64>,
}

impl ApiServer {
    fn new() -> Self {
        Self {
            objects: Arc::default(),
            writes: Arc::default(),
            changes: broadcast::Sender::new(1000),
            version: Arc::default(),
        }
    }

    fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| -> BoxFuture<'static, _> {
            let server = server.clone();
            Box::pin(async move { Ok::<_, std::convert::Infallible>(server.answer(request).await) })
        });
        kube::Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let (path, query) = (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
        if parts.method == Method::GET && query.contains("watch=true") {
            return Response::new(self.watch(path));
        }
        let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
        if parts.method != Method::GET {
            self.writes.lock().unwrap().push(format!("{} {path}", parts.method));
        }
        let (code, answer) = match parts.method {
            Method::GET => self.read(&path),
            Method::POST => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
                if self.object(&path).is_some() { (409, json!({})) } else { (201, self.put(&path, body)) }
            }
            Method::PATCH => {
                let path = path.trim_end_matches("/status");
                match self.object(path) {
                    None => (404, json!({})),
                    Some(mut object) => {
                        json_patch::merge(&mut object, &body);
                        (200, self.put(path, object))
                    }
                }
            }
            _ => (if self.delete(&path) { 200 } else { 404 }, json!({})),
        };
        let failure = |reason: &str| json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code});
        let answer = match code {
            404 => failure("NotFound"),
            409 => failure("AlreadyExists"),
            _ => answer,
        };
        let mut response = Response::new(Full::from(answer.to_string()).boxed_unsync());
        *response.status_mut() = StatusCode::from_u16(code).unwrap();
        response
    }

    fn read(&self, path: &str) -> (u16, Value) {
        if path == "/version" {
            return (200, json!({"gitVersion": "v1.33.0"}));
        }
        if let Some(object) = self.object(path) {
            return (200, object);
        }
        if !path.ends_with('s') {
            return (404, json!({}));
        }
        let items: Vec<Value> = self
            .objects
            .lock()
            .unwrap()
            .iter()
            .filter(|(at, _)| kind_of(at) == path)
            .map(|(_, object)| object.clone())
            .collect();
        let version = self.version.load(Ordering::Relaxed).to_string();
        (200, json!({"metadata": {"resourceVersion": version}, "items": items}))
    }

    fn watch(&self, path: String) -> Answer {
        let changes = futures::stream::unfold(self.changes.subscribe(), |mut changes| async {
            let change = changes.recv().await.ok()?;
            Some((change, changes))
        });
        let lines = changes.filter_map(move |(at, event)| {
            // The type comes first, like in answers of an API server.
            let line = (kind_of(&at) == path)
                .then(|| Bytes::from(format!("{{\"type\":{},\"object\":{}}}\n", event["type"], event["object"])));
            std::future::ready(line.map(|line| Ok::<_, std::convert::Infallible>(Frame::data(line))))
        });
        StreamBody::new(lines).boxed_unsync()
    }

    fn object(&self, path: &str) -> Option<Value> {
        self.objects.lock().unwrap().get(path).cloned()
    }

    fn put(&self, path: &str, mut object: Value) -> Value {
        object["metadata"]["resourceVersion"] = json!(self.next_version());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!("uid");
        }
        let before = self.objects.lock().unwrap().insert(path.to_owned(), object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        drop(self.changes.send((path.to_owned(), json!({"type": kind, "object": object}))));
        object
    }

    fn next_version(&self) -> String {
        (self.version.fetch_add(1, Ordering::Relaxed) + 1).to_string()
    }

    fn delete(&self, path: &str) -> bool {
        let mut gone = self.objects.lock().unwrap().remove(path);
        if let Some(gone) = &mut gone {
            gone["metadata"]["resourceVersion"] = json!(self.next_version());
        }
        let event = gone.as_ref().map(|object| json!({"type": "DELETED", "object": object}));
        event.map(|event| self.changes.send((path.to_owned(), event))).is_some()
    }

    fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }

    fn ready(&self, node: &str) -> Option<String> {
        let node = self.object(&format!("/api/v1/nodes/{node}"))?;
        let conditions = node["status"]["conditions"].as_array()?.clone();
        let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready")?;
        ready["status"].as_str().map(str::to_owned)
    }
}

/// The path for watching the kind of an object in all namespaces.
fn kind_of(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["", "api", "v1", "namespaces", _, kind, _] => format!("/api/v1/{kind}"),
        [kind @ .., _] => kind.join("/"),
        [] => String::new(),
    }
}

async fn a_cloud(server: &ApiServer, text: &str) -> Arc<VirtualCloud> {
    let quiet = "nodes: {leaseInterval: 0, statusPeriod: 0}";
    let defaults = SimulationConfig::without_latency().overlaid_by_text(quiet).unwrap().overlaid_by_text(text).unwrap();
    let options = SimulationOptions { defaults, ..SimulationOptions::new(Timestamp::UNIX_EPOCH) };
    let (cloud, tasks) = start(options, Some(server.client()), CancellationToken::new()).await.unwrap();
    for task in tasks {
        tokio::spawn(task.run);
    }
    cloud
}

fn request(name: &str) -> MachineRequest {
    let mut class =
        MachineClass { provider: "virtual".to_owned(), provider_spec: json!({}), ..MachineClass::default() };
    class.metadata.name = Some("pool".to_owned());
    let mut machine = Machine::default();
    machine.metadata.name = Some(name.to_owned());
    machine.metadata.namespace = Some("shoot".to_owned());
    machine.metadata.uid = Some("uid".to_owned());
    MachineRequest { machine: Arc::new(machine), class: Arc::new(class), secret: SecretData::default() }
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

const POST_NODE: &str = "POST /api/v1/nodes";
const PATCH_M: &str = "PATCH /api/v1/nodes/m/status";

#[tokio::test(start_paused = true)]
async fn without_latency_a_ready_node_needs_one_write() {
    let server = ApiServer::new();
    let cloud = a_cloud(&server, "").await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    seconds(60).await;
    assert_eq!(server.take_writes(), [POST_NODE]);
    assert_eq!(server.ready("m").as_deref(), Some("True"));
    let node = server.object("/api/v1/nodes/m").unwrap();
    assert_eq!(node["metadata"]["labels"]["node.gardener.cloud/machine-name"], "m");
    assert_eq!(node["status"]["allocatable"]["cpu"], "920m");
}

#[tokio::test(start_paused = true)]
async fn a_node_registers_first_and_is_ready_later() {
    let server = ApiServer::new();
    let cloud = a_cloud(&server, "latency: {boot: 20s, ready: 5s}").await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    seconds(19).await;
    assert_eq!(server.ready("m"), None);
    seconds(3).await;
    assert_eq!(server.ready("m").as_deref(), Some("False"));
    seconds(5).await;
    assert_eq!(server.ready("m").as_deref(), Some("True"));
    assert_eq!(server.take_writes(), [POST_NODE, PATCH_M]);
}

#[tokio::test(start_paused = true)]
async fn the_node_of_a_deleted_vm_is_kept_and_its_heartbeats_stop() {
    let server = ApiServer::new();
    let cloud = a_cloud(&server, "nodes: {leaseInterval: 10s, statusPeriod: 0}").await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    seconds(60).await;
    let renewals = server.take_writes();
    assert!((5..=8).contains(&(renewals.len() - 1)), "{renewals:?}");
    cloud.delete_machine(&cx(), request("m")).await.unwrap();
    seconds(60).await;
    assert_eq!(server.take_writes(), Vec::<String>::new());
    assert!(server.object("/api/v1/nodes/m").is_some());
}

#[tokio::test(start_paused = true)]
async fn v07_a_node_deleted_under_a_running_vm_registers_again() {
    let server = ApiServer::new();
    let cloud = a_cloud(&server, "nodes: {reregister: 30s}").await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    seconds(5).await;
    server.take_writes();
    assert!(server.delete("/api/v1/nodes/m"));
    seconds(29).await;
    assert_eq!(server.take_writes(), Vec::<String>::new());
    seconds(2).await;
    assert_eq!(server.take_writes(), [POST_NODE]);
}

#[tokio::test(start_paused = true)]
async fn v08_a_real_node_with_the_name_is_not_changed() {
    let server = ApiServer::new();
    server.put("/api/v1/nodes/m", json!({"metadata": {"name": "m"}, "spec": {"providerID": "aws:///eu/i-1"}}));
    let cloud = a_cloud(&server, "").await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    seconds(100).await;
    assert!(server.take_writes().iter().all(|write| write == POST_NODE));
    assert_eq!(server.ready("m"), None);
    let events = serde_json::to_string(&cloud.shared().unwrap().with(|cloud, _| cloud.events())).unwrap();
    assert_eq!(events.matches("nodeRefused").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_stored_state_the_vms_are_those_of_the_nodes() {
    let server = ApiServer::new();
    let cloud = a_cloud(&server, "").await;
    let made = cloud.create_machine(&cx(), request("m")).await.unwrap();
    seconds(1).await;
    server.take_writes();
    let again = a_cloud(&server, "").await;
    assert_eq!(again.get_machine_status(&cx(), request("m")).await, Ok(made.vm.clone()));
    assert_eq!(again.create_machine(&cx(), request("m")).await.map(|created| created.vm), Ok(made.vm));
    seconds(60).await;
    assert_eq!(server.take_writes(), Vec::<String>::new());
}

fn a_pod(annotations: &Value) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid", "annotations": annotations},
        "spec": {"nodeName": "m", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Pending"},
    })
}

const POD: &str = "/api/v1/namespaces/ns/pods/p";

/// A Pod with the volume of [`a_volume`].
fn a_pod_with_a_volume() -> Value {
    let mut pod = a_pod(&json!({}));
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_and_ends_within_its_grace() {
    let server = ApiServer::new();
    // The Pod is bound before its Node is known.
    server.put(POD, a_pod(&json!({})));
    let cloud = a_cloud(&server, "pods: {startLatency: 1s, terminationLatency: 5s}").await;
    seconds(1).await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    seconds(3).await;
    let mut pod = server.object(POD).unwrap();
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["status"]["containerStatuses"][0]["ready"], true);
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(3);
    server.put(POD, pod);
    seconds(2).await;
    assert!(server.object(POD).is_some());
    seconds(2).await;
    assert_eq!(server.object(POD), None);
}

#[tokio::test(start_paused = true)]
async fn a_pod_may_refuse_to_end_or_end_by_itself() {
    let server = ApiServer::new();
    let cloud = a_cloud(&server, "").await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    let mut pod = a_pod(&json!({
        "virtual.machine.sapcloud.io/refuse-termination": "true",
        "virtual.machine.sapcloud.io/run-for": "30s",
    }));
    server.put(POD, pod.clone());
    seconds(31).await;
    assert_eq!(server.object(POD).unwrap()["status"]["phase"], "Succeeded");
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.put(POD, pod);
    seconds(600).await;
    assert!(server.object(POD).is_some());
}

#[tokio::test(start_paused = true)]
async fn v09_an_attachment_is_attached_and_detached_after_its_times() {
    let server = ApiServer::new();
    let cloud = a_cloud(&server, "volumes: {attach: 2s, detach: 3s}").await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    seconds(1).await;
    server.take_writes();
    let path = ATTACHMENT;
    server.put(path, an_attachment("m"));
    seconds(1).await;
    assert!(server.take_writes().is_empty());
    seconds(2).await;
    let mut attachment = server.object(path).unwrap();
    assert_eq!(attachment["status"]["attached"], true);
    assert_eq!(attachment["metadata"]["finalizers"], json!(["external-attacher/virtual-csi-sapcloud-io"]));
    attachment["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.put(path, attachment);
    seconds(4).await;
    assert_eq!(server.object(path).unwrap()["metadata"]["finalizers"], json!([]));
}

const ATTACHMENT: &str = "/apis/storage.k8s.io/v1/volumeattachments/va";

fn an_attachment(node: &str) -> Value {
    json!({"metadata": {"name": "va"}, "spec": {
        "attacher": "virtual.csi.sapcloud.io", "nodeName": node, "source": {"persistentVolumeName": "pv"},
    }})
}

fn a_volume() -> Value {
    json!({"metadata": {"name": "pv"}, "spec": {
        "csi": {"driver": "virtual.csi.sapcloud.io", "volumeHandle": "vol-1"},
        "claimRef": {"namespace": "ns", "name": "data"},
    }})
}

#[tokio::test(start_paused = true)]
async fn a_node_shows_the_volumes_that_are_attached_and_those_in_use() {
    let server = ApiServer::new();
    server.put("/api/v1/persistentvolumes/pv", a_volume());
    // The attachment is created before the Node is known.
    server.put(ATTACHMENT, an_attachment("m"));
    let cloud = a_cloud(&server, "volumes: {attach: 2s, detach: 3s}").await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    seconds(5).await;
    let shown = || {
        let status = server.object("/api/v1/nodes/m").unwrap()["status"].clone();
        (status["volumesAttached"].clone(), status["volumesInUse"].clone())
    };
    let name = "kubernetes.io/csi/virtual.csi.sapcloud.io^vol-1";
    let attached = json!([{"name": name, "devicePath": ""}]);
    assert_eq!(shown(), (attached.clone(), json!([])));
    server.put(POD, a_pod_with_a_volume());
    seconds(2).await;
    assert_eq!(shown(), (attached.clone(), json!([name])));
    server.delete(POD);
    seconds(1).await;
    assert_eq!(shown(), (attached, json!([])));
    let before = server.take_writes();
    assert!(before.len() <= 8, "{before:?}");
    server.delete(ATTACHMENT);
    seconds(1).await;
    assert_eq!(shown(), (json!([]), json!([])));
    assert_eq!(server.take_writes(), [PATCH_M]);
}

/// The watch shows the next Pod of the name as a change of the first one.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_predecessor_of_the_same_name_was_deleted_unseen_starts_and_frees_the_volumes() {
    let server = ApiServer::new();
    server.put("/api/v1/persistentvolumes/pv", a_volume());
    server.put(ATTACHMENT, an_attachment("m"));
    server.put(POD, a_pod_with_a_volume());
    let cloud = a_cloud(&server, "volumes: {attach: 0s, detach: 0s}").await;
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    let shown = || {
        let phase = server.object(POD).unwrap()["status"]["phase"].clone();
        (phase, server.object("/api/v1/nodes/m").unwrap()["status"]["volumesInUse"].as_array().map_or(0, Vec::len))
    };
    seconds(5).await;
    assert_eq!(shown(), (json!("Running"), 1));
    let mut next = a_pod(&json!({}));
    next["metadata"]["uid"] = json!("next-pod-uid");
    server.put(POD, next);
    seconds(5).await;
    assert_eq!(shown(), (json!("Running"), 0));
}

#[tokio::test(start_paused = true)]
async fn an_attachment_to_a_foreign_node_is_not_changed() {
    let server = ApiServer::new();
    server.put("/api/v1/nodes/other", json!({"metadata": {"name": "other"}}));
    let mut attachment = an_attachment("other");
    attachment["metadata"]["finalizers"] = json!(["external-attacher/virtual-csi-sapcloud-io"]);
    server.put(ATTACHMENT, attachment.clone());
    let _cloud = a_cloud(&server, "volumes: {attach: 0s, detach: 0s}").await;
    seconds(5).await;
    attachment["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.put(ATTACHMENT, attachment.clone());
    seconds(5).await;
    assert_eq!(server.take_writes(), Vec::<String>::new());
    // The Node is gone, so that no other program detaches it.
    server.delete("/api/v1/nodes/other");
    let _later = a_cloud(&server, "volumes: {attach: 0s, detach: 0s}").await;
    seconds(5).await;
    assert_eq!(server.object(ATTACHMENT).unwrap()["metadata"]["finalizers"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn an_attachment_whose_detachment_began_before_its_node_was_known_is_detached() {
    let server = ApiServer::new();
    server.put("/api/v1/nodes/m", json!({"metadata": {"name": "m"}}));
    let mut attachment = an_attachment("m");
    attachment["metadata"]["finalizers"] = json!(["external-attacher/virtual-csi-sapcloud-io"]);
    attachment["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.put(ATTACHMENT, attachment);
    let cloud = a_cloud(&server, "volumes: {attach: 0s, detach: 0s}").await;
    seconds(5).await;
    assert_eq!(server.take_writes(), Vec::<String>::new(), "the attachment may belong to another program");
    cloud.create_machine(&cx(), request("m")).await.unwrap();
    seconds(5).await;
    assert_eq!(server.object(ATTACHMENT).unwrap()["metadata"]["finalizers"], json!([]));
}
