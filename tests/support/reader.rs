//! Reads objects with a client in the process of the test, as `kubectl get -o json` prints them.
//!
//! Tests that wait read objects several times a second. A run of kubectl costs some fifty times the processor time of such a request.
//! Tests whose subject is kubectl run it ([`super::kubectl`]).

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Mutex,
};

use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResource};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use tokio::runtime::{Handle, Id};

/// Reads objects of one API server.
pub struct Reader {
    kubeconfig: PathBuf,
    /// A client belongs to the runtime in which it was made, and each test has its own runtime.
    clients: Mutex<HashMap<Id, Client>>,
    /// What the API server has said about names of resources.
    resources: Mutex<BTreeMap<String, Resource>>,
}

/// A resource of the API server.
#[derive(Clone, Debug)]
struct Resource {
    /// Path of its version.
    version: String,
    plural: String,
    namespaced: bool,
}

impl Reader {
    pub fn new(kubeconfig: PathBuf) -> Self {
        Self { kubeconfig, clients: Mutex::default(), resources: Mutex::default() }
    }

    /// A client of the current runtime.
    pub async fn client(&self) -> Client {
        let runtime = Handle::current().id();
        let known = self.clients.lock().expect("no holder panics").get(&runtime).cloned();
        if let Some(client) = known {
            return client;
        }
        let client = Client::try_from(config(&self.kubeconfig).await).expect("a client");
        self.clients.lock().expect("no holder panics").insert(runtime, client.clone());
        client
    }

    /// The objects of a resource. The resource is called as in kubectl: plural, singular or short, with or without version and group.
    /// A missing namespace means all namespaces.
    pub async fn list(&self, resource: &str, namespace: Option<&str>) -> Result<Vec<Value>, String> {
        let mut list = self.read(resource, None, namespace).await?;
        let kind = list["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).unwrap_or_default().to_owned();
        let api_version = list["apiVersion"].take();
        let mut items = super::cluster_object::items(&list);
        for item in &mut items {
            // Lists of built-in kinds leave both out.
            item["kind"] = Value::from(kind.clone());
            item["apiVersion"] = api_version.clone();
            drop_managed_fields(item);
        }
        Ok(items)
    }

    /// One object.
    pub async fn get(&self, resource: &str, name: &str, namespace: Option<&str>) -> Result<Value, String> {
        let mut object = self.read(resource, Some(name), namespace).await?;
        drop_managed_fields(&mut object);
        Ok(object)
    }

    async fn read(&self, resource: &str, name: Option<&str>, namespace: Option<&str>) -> Result<Value, String> {
        let failed = |error: kube::Error| format!("{resource} {}: {error}", name.unwrap_or_default());
        let client = self.client().await;
        let known = self.resources.lock().expect("no holder panics").get(resource).cloned();
        if let Some(known) = known {
            match ask(&client, &known.path(name, namespace)).await {
                // The test may have replaced definitions.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                answer => return answer.map_err(failed),
            }
        }
        let found = find(&client, resource).await.map_err(failed)?;
        let found = found.ok_or_else(|| format!("the API server has no resource {resource}"))?;
        self.resources.lock().expect("no holder panics").insert(resource.to_owned(), found.clone());
        ask(&client, &found.path(name, namespace)).await.map_err(failed)
    }
}

impl Resource {
    fn path(&self, name: Option<&str>, namespace: Option<&str>) -> String {
        let namespace = namespace.filter(|_| self.namespaced).map(|namespace| format!("/namespaces/{namespace}"));
        let name = name.map(|name| format!("/{name}"));
        format!("{}{}/{}{}", self.version, namespace.unwrap_or_default(), self.plural, name.unwrap_or_default())
    }
}

/// The configuration of a client with this kubeconfig.
pub async fn config(kubeconfig: &Path) -> Config {
    // Only the first call in a process succeeds. A later call would install the same provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig is readable");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    config.expect("the kubeconfig is complete")
}

/// Creates an object at the path of its resource.
pub async fn create(client: &Client, path: &str, object: &Value) -> Result<(), kube::Error> {
    let request = Request::post(path).header("Content-Type", "application/json").body(object.to_string().into_bytes());
    client.request::<Value>(request.expect("a path")).await.map(|_| ())
}

/// Whether the API server answers each of these paths with success.
pub async fn answers(client: &Client, paths: &[&str]) -> bool {
    for path in paths {
        if client.request_text(Request::get(*path).body(Vec::new()).expect("a path")).await.is_err() {
            return false;
        }
    }
    true
}

async fn ask(client: &Client, path: &str) -> Result<Value, kube::Error> {
    client.request(Request::get(path).body(Vec::new()).expect("a path")).await
}

/// Looks for a resource in the order of kubectl, except that our own groups come before other groups.
async fn find(client: &Client, resource: &str) -> Result<Option<Resource>, kube::Error> {
    let (name, group) = resource.split_once('.').unwrap_or((resource, ""));
    if group.is_empty() {
        let core = client.list_core_api_resources("v1").await?.resources;
        if let Some(found) = named(&core, name) {
            return Ok(Some(described(found, "/api/v1")));
        }
    }
    let mut groups = client.list_api_groups().await?.groups;
    groups.sort_by_key(|group| !group.name.ends_with("machine.sapcloud.io"));
    for version in groups.iter().filter_map(|known| version_in(known, group)) {
        // A group that another server answers for may be unavailable.
        let Ok(list) = client.list_api_group_resources(version).await else { continue };
        if let Some(found) = named(&list.resources, name) {
            return Ok(Some(described(found, &format!("/apis/{version}"))));
        }
    }
    Ok(None)
}

/// The version of a group, such as `apps/v1`, that a name with `wanted` behind its first dot means: nothing, the group, or version and group.
fn version_in<'a>(group: &'a APIGroup, wanted: &str) -> Option<&'a str> {
    if wanted.is_empty() || wanted == group.name {
        return group
            .preferred_version
            .as_ref()
            .or(group.versions.first())
            .map(|version| version.group_version.as_str());
    }
    let named = group.versions.iter().find(|version| format!("{}.{}", version.version, group.name) == wanted);
    named.map(|version| version.group_version.as_str())
}

fn named<'a>(resources: &'a [APIResource], name: &str) -> Option<&'a APIResource> {
    resources.iter().filter(|resource| !resource.name.contains('/')).find(|resource| {
        let short = resource.short_names.iter().flatten().any(|short| short == name);
        resource.name == name || resource.singular_name == name || resource.kind.to_lowercase() == name || short
    })
}

fn described(resource: &APIResource, version: &str) -> Resource {
    Resource { version: version.to_owned(), plural: resource.name.clone(), namespaced: resource.namespaced }
}

/// kubectl shows these only on request.
fn drop_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}
