//! Reads what a bundle contains. Every part has a deadline, and a part that can't be read is a gap, never the end of the command.

use std::{collections::BTreeSet, time::Duration};

use futures::future::{FutureExt, LocalBoxFuture, join_all};
use kube::Client;
use machine_api::{kind::Kind, names};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::index::Gap;
use crate::cli::{
    cluster_objects::{API_SERVICES, DEFINITIONS, LEASES, MUTATING, Resource, SECRETS, VALIDATING, v1},
    doctor::{Examined, findings, missing_right},
    migrate_storage::definition::name_of,
    webhook_scope::WebhookScope,
};
use controller_runtime::{
    error::ApiError,
    objects::{ListQuery, ObjectApi, call},
};

/// How long one part may take.
const PART_DEADLINE: Duration = Duration::from_secs(25);
/// How long the doctor may take: it watches Leases.
const DOCTOR_DEADLINE: Duration = Duration::from_secs(40);
/// Objects per page of a list.
const PAGE: u32 = 500;
/// The most bytes of a log that are read, and the most lines.
const LOG_BYTES: usize = 8 << 20;
const LOG_LINES: u32 = 20_000;
/// The plain port with the metrics of a replica.
const METRICS_PORT: u16 = 10_258;
/// The most replicas whose logs and metrics are read.
const REPLICAS: usize = 5;

const NODES: Resource = v1("", "Node", "nodes");
const PODS: Resource = v1("", "Pod", "pods");
const EVENTS: Resource = v1("", "Event", "events");
const DEPLOYMENTS: Resource = v1("apps", "Deployment", "deployments");
const NAMESPACES: Resource = v1("", "Namespace", "namespaces");

/// A view of the extension API server.
const fn view(kind: &'static str, plural: &'static str) -> Resource {
    Resource { group: crate::extension::view::GROUP, version: crate::extension::view::VERSION, kind, plural }
}

/// The content of a part, before redaction.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Objects of the cluster.
    Objects(Vec<Value>),
    /// A value that this program has computed.
    Computed(Value),
    /// A log or metrics.
    Text(String),
}

/// A part that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Its file, below the folder of the bundle.
    pub path: String,
    /// What was read.
    pub content: Content,
}

/// The parts that were read, and the gaps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gathered {
    /// The parts.
    pub parts: Vec<Part>,
    /// What is missing.
    pub gaps: Vec<Gap>,
}

impl Gathered {
    fn add(&mut self, path: &str, read: Result<Content, String>) {
        match read {
            Ok(content) => self.parts.push(Part { path: path.to_owned(), content }),
            Err(why) => self.gaps.push(Gap { what: path.to_owned(), why }),
        }
    }

    fn extend(&mut self, other: Self) {
        self.parts.extend(other.parts);
        self.gaps.extend(other.gaps);
    }

    /// All objects of the parts.
    pub fn objects(&self) -> impl Iterator<Item = &Value> {
        self.parts.iter().flat_map(|part| match &part.content {
            Content::Objects(objects) => objects.as_slice(),
            Content::Computed(_) | Content::Text(_) => &[],
        })
    }
}

type Reading<'a> = LocalBoxFuture<'a, Gathered>;

/// Reads everything, side by side.
pub async fn gather(examined: &Examined<'_>) -> Gathered {
    let Examined { client, namespace, .. } = *examined;
    let home = home(client, examined.scope, namespace).await;
    let within = || ListQuery::within(namespace);
    let of_manager = ListQuery {
        selector: Some(format!("app.kubernetes.io/name={}", names::WEBHOOK_CONFIGURATION)),
        ..ListQuery::within(&home)
    };
    let mut readings: Vec<Reading<'_>> = Vec::new();
    for kind in Kind::ALL {
        let path = format!("objects/{}.json", kind.plural());
        readings.push(listed(path, client, Resource::of_kind(kind), within()));
    }
    for (resource, query) in [(EVENTS, within()), (LEASES, within()), (DEPLOYMENTS, of_manager.clone())] {
        readings.push(listed(format!("objects/{}.json", resource.plural), client, resource, query));
    }
    if let Some(target) = examined.target {
        readings.push(listed("target/nodes.json".to_owned(), target, NODES, ListQuery::default()));
        let about_nodes = ListQuery { fields: Some("involvedObject.kind=Node".to_owned()), ..ListQuery::default() };
        readings.push(listed("target/events.json".to_owned(), target, EVENTS, about_nodes));
        readings.push(version("target/version.json", target));
    }
    readings.push(version("version.json", client));
    let registered = registrations(examined.scope, namespace);
    readings.extend(registered.into_iter().map(|(resource, name)| single(client, resource, "", name)));
    for view in [view("MachineOutlook", "machineoutlooks"), view("FleetSummary", "fleetsummaries")] {
        readings.push(listed(format!("views/{}.json", view.plural), client, view, within()));
    }
    readings.push(secrets(client, namespace, &home, of_manager.clone()).boxed_local());
    readings.push(replicas(client, of_manager).boxed_local());
    readings.push(
        within_deadline("doctor.json", DOCTOR_DEADLINE, async {
            Ok(Content::Computed(json!({"findings": findings(examined).await})))
        })
        .boxed_local(),
    );
    let mut gathered = Gathered::default();
    for read in join_all(readings).await {
        gathered.extend(read);
    }
    gathered
}

/// A key for pseudonyms that stays the same for a cluster and is in no bundle: the UID of a namespace that every cluster has.
pub async fn key_of_cluster(client: &Client) -> Option<String> {
    let read = tokio::time::timeout(PART_DEADLINE, NAMESPACES.read(client, "", "kube-system")).await.ok()?;
    read.ok()??.metadata.uid
}

/// The namespace of the manager: that of the webhooks' Service.
async fn home(client: &Client, scope: WebhookScope, namespace: &str) -> String {
    let name = scope.configuration(namespace);
    let read = tokio::time::timeout(PART_DEADLINE, VALIDATING.read(client, "", &name)).await;
    let configuration = read.ok().and_then(Result::ok).flatten();
    let pointer = "/webhooks/0/clientConfig/service/namespace";
    let home = configuration.and_then(|object| object.data.pointer(pointer)?.as_str().map(str::to_owned));
    home.unwrap_or_else(|| namespace.to_owned())
}

/// The objects by which the cluster reaches the manager.
fn registrations(scope: WebhookScope, namespace: &str) -> Vec<(Resource, String)> {
    let mut all: Vec<(Resource, String)> = Kind::ALL.map(|kind| (DEFINITIONS, name_of(kind))).to_vec();
    all.extend([MUTATING, VALIDATING].map(|resource| (resource, scope.configuration(namespace))));
    all.push((API_SERVICES, names::API_SERVICE.to_owned()));
    all
}

/// The outcome of a part within a time.
async fn within_deadline(
    path: &str,
    deadline: Duration,
    work: impl Future<Output = Result<Content, String>>,
) -> Gathered {
    let read = tokio::time::timeout(deadline, work).await;
    let mut gathered = Gathered::default();
    gathered.add(path, read.unwrap_or_else(|_| Err(format!("no answer within {} s", deadline.as_secs()))));
    gathered
}

fn listed(path: String, client: &Client, resource: Resource, query: ListQuery) -> Reading<'_> {
    async move {
        within_deadline(&path, PART_DEADLINE, async { list(client, resource, query).await.map(Content::Objects) }).await
    }
    .boxed_local()
}

/// The reason of a failed request. For a missing right it names the right.
fn reason(error: &ApiError, verb: &str, resource: Resource, namespace: &str) -> String {
    match error {
        ApiError::Forbidden(_) => missing_right(verb, resource.group, resource.plural, namespace),
        error => error.to_string(),
    }
}

async fn list(client: &Client, resource: Resource, query: ListQuery) -> Result<Vec<Value>, String> {
    let namespace = query.namespace.clone().unwrap_or_default();
    let page = resource.api(client).list_all(ListQuery { limit: Some(PAGE), ..query }).await;
    let mut items = page.map_err(|error| reason(&error, "list", resource, &namespace))?.items;
    for item in &mut items {
        name_kind(item, resource);
    }
    Ok(items)
}

/// The items of a list have no kind of their own.
fn name_kind(object: &mut Value, resource: Resource) {
    let slash = if resource.group.is_empty() { "" } else { "/" };
    object["apiVersion"] = Value::from(format!("{}{slash}{}", resource.group, resource.version));
    object["kind"] = Value::from(resource.kind);
}

fn single<'a>(client: &'a Client, resource: Resource, namespace: &'a str, name: String) -> Reading<'a> {
    async move {
        let path = format!("registrations/{}.{name}.json", resource.plural);
        within_deadline(&path, PART_DEADLINE, async {
            Ok(Content::Objects(read(client, resource, namespace, &name).await?.into_iter().collect()))
        })
        .await
    }
    .boxed_local()
}

async fn read(client: &Client, resource: Resource, namespace: &str, name: &str) -> Result<Option<Value>, String> {
    let read = resource.read(client, namespace, name).await;
    let object = read.map_err(|error| reason(&error, "get", resource, namespace))?;
    let mut value = object.map(|object| serde_json::to_value(object).map_err(|error| error.to_string())).transpose()?;
    if let Some(value) = &mut value {
        name_kind(value, resource);
    }
    Ok(value)
}

fn version<'a>(path: &'a str, client: &'a Client) -> Reading<'a> {
    within_deadline(path, PART_DEADLINE, async {
        let version = call(client.apiserver_version()).await.map_err(|error| error.to_string())?;
        Ok(Content::Computed(json!({"apiServer": version})))
    })
    .boxed_local()
}

/// The Secrets that classes name, the Secrets that pods of the manager use, and the Secret of the certificate. Without the pods there is a gap.
async fn secrets(client: &Client, namespace: &str, home: &str, of_manager: ListQuery) -> Gathered {
    const PATH: &str = "objects/secrets.json";
    let read_all = async {
        let pods = list(client, PODS, of_manager).await;
        let classes = list(client, Resource::of_kind(Kind::MachineClass), ListQuery::within(namespace)).await;
        let mut wanted = BTreeSet::from([(home.to_owned(), names::CERTIFICATE_SECRET.to_owned())]);
        for class in classes.unwrap_or_default() {
            for reference in [&class["secretRef"], &class["credentialsSecretRef"]] {
                let text = |field: &str| reference[field].as_str().filter(|text| !text.is_empty());
                if let Some(name) = text("name") {
                    wanted.insert((text("namespace").unwrap_or(namespace).to_owned(), name.to_owned()));
                }
            }
        }
        for pod in pods.unwrap_or_default() {
            let namespace = pod["metadata"]["namespace"].as_str().unwrap_or(home);
            wanted.extend(secrets_of_pod(&pod["spec"]).into_iter().map(|name| (namespace.to_owned(), name)));
        }
        let (mut found, mut failures) = (Vec::new(), BTreeSet::new());
        for (namespace, name) in wanted {
            match read(client, SECRETS, &namespace, &name).await {
                Ok(secret) => found.extend(secret),
                Err(why) => {
                    failures.insert(why);
                }
            }
        }
        (found, failures)
    };
    let mut gathered = Gathered::default();
    match tokio::time::timeout(PART_DEADLINE, read_all).await {
        Ok((found, failures)) => {
            if !found.is_empty() || failures.is_empty() {
                gathered.add(PATH, Ok(Content::Objects(found)));
            }
            if !failures.is_empty() {
                gathered.add(PATH, Err(failures.into_iter().collect::<Vec<_>>().join("; ")));
            }
        }
        Err(_) => gathered.add(PATH, Err(format!("no answer within {} s", PART_DEADLINE.as_secs()))),
    }
    gathered
}

/// The names of the Secrets whose values the containers of a pod can print: in their environment and in their volumes.
fn secrets_of_pod(spec: &Value) -> BTreeSet<String> {
    fn items(value: &Value) -> impl Iterator<Item = &Value> {
        value.as_array().into_iter().flatten()
    }
    let containers = items(&spec["containers"]).chain(items(&spec["initContainers"]));
    let of_environment = containers.flat_map(|container| {
        let single = items(&container["env"]).map(|variable| &variable["valueFrom"]["secretKeyRef"]["name"]);
        single.chain(items(&container["envFrom"]).map(|source| &source["secretRef"]["name"]))
    });
    let of_volumes = items(&spec["volumes"]).flat_map(|volume| {
        let projected = items(&volume["projected"]["sources"]).map(|source| &source["secret"]["name"]);
        std::iter::once(&volume["secret"]["secretName"]).chain(projected)
    });
    of_environment.chain(of_volumes).filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The pods of the manager, with their logs and metrics.
async fn replicas(client: &Client, query: ListQuery) -> Gathered {
    const PATH: &str = "replicas/pods.json";
    let began = Instant::now();
    let listed = tokio::time::timeout(PART_DEADLINE, list(client, PODS, query)).await;
    let pods = listed.unwrap_or_else(|_| Err(format!("no answer within {} s", PART_DEADLINE.as_secs())));
    let mut gathered = Gathered::default();
    let left = PART_DEADLINE.saturating_sub(began.elapsed());
    if let Ok(pods) = &pods {
        let names = pods.iter().filter_map(|pod| {
            let text = |field: &str| pod["metadata"][field].as_str().map(str::to_owned);
            Some((text("namespace")?, text("name")?))
        });
        let names: Vec<(String, String)> = names.take(REPLICAS).collect();
        if pods.is_empty() {
            let why =
                "no pod of the manager is there: it may run outside the cluster; add its log and /metrics by hand";
            gathered.gaps.push(Gap { what: "replicas/".to_owned(), why: why.to_owned() });
        }
        for read in join_all(names.iter().map(|(namespace, name)| replica(client, namespace, name, left))).await {
            gathered.extend(read);
        }
    }
    gathered.add(PATH, pods.map(Content::Objects));
    gathered
}

/// The present log, the log of the container before, and the metrics of a replica.
async fn replica(client: &Client, namespace: &str, name: &str, deadline: Duration) -> Gathered {
    let pod = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let log = format!("{pod}/log?timestamps=true&tailLines={LOG_LINES}&limitBytes={LOG_BYTES}");
    let before = format!("{log}&previous=true");
    let metrics = format!("/api/v1/namespaces/{namespace}/pods/{name}:{METRICS_PORT}/proxy/metrics");
    let (log, before, metrics) = futures::future::join3(
        within_deadline_of_text(client, &log, "pods/log", namespace, deadline),
        within_deadline_of_text(client, &before, "pods/log", namespace, deadline),
        within_deadline_of_text(client, &metrics, "pods/proxy", namespace, deadline),
    )
    .await;
    let mut gathered = Gathered::default();
    gathered.add(&format!("replicas/{name}/log.txt"), log.map_err(|(why, _)| why));
    match before {
        // The container was never started again.
        Err((_, ApiError::Invalid(_))) => {}
        before => gathered.add(&format!("replicas/{name}/log-previous.txt"), before.map_err(|(why, _)| why)),
    }
    gathered.add(&format!("replicas/{name}/metrics.txt"), metrics.map_err(|(why, _)| why));
    gathered
}

async fn within_deadline_of_text(
    client: &Client,
    path: &str,
    resource: &'static str,
    namespace: &str,
    deadline: Duration,
) -> Result<Content, (String, ApiError)> {
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| {
        let why = error.to_string();
        (why.clone(), ApiError::Other(why))
    })?;
    let answer = tokio::time::timeout(deadline, client.request_text(request)).await;
    let answer = answer.map_or(Err(ApiError::TimedOut(deadline)), |answer| answer.map_err(ApiError::from));
    answer.map(Content::Text).map_err(|error| {
        let why = match &error {
            ApiError::Forbidden(_) => missing_right("get", "", resource, namespace),
            error => error.to_string(),
        };
        (why, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pk_102_secrets_of_a_pod_are_those_of_its_environment_and_its_volumes() {
        let spec = json!({
            "containers": [
                {"env": [{"name": "A", "value": "x"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "of-env", "key": "k"}}},
                    {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "no-secret", "key": "k"}}}]},
                {"envFrom": [{"secretRef": {"name": "of-env-from"}}, {"configMapRef": {"name": "no-secret"}}]},
            ],
            "initContainers": [{"env": [{"name": "D", "valueFrom": {"secretKeyRef": {"name": "of-init", "key": "k"}}}]}],
            "volumes": [{"secret": {"secretName": "of-kubeconfig"}}, {"configMap": {"name": "no-secret"}},
                {"projected": {"sources": [{"secret": {"name": "of-projection"}}, {"serviceAccountToken": {"path": "t"}}]}}],
        });
        let expected = ["of-env", "of-env-from", "of-init", "of-kubeconfig", "of-projection"];
        assert_eq!(secrets_of_pod(&spec), BTreeSet::from(expected.map(str::to_owned)));
        assert_eq!(secrets_of_pod(&json!({})), BTreeSet::new());
    }
}
