//! The documents that are no objects: discovery, `OpenAPI`, health, version.
//!
//! Documents are created once for a set of definitions and cached as bytes.
//! Source: spec/extension-apiserver §2.3, §2.4, §2.12.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, Method, StatusCode, header};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::{
    builtin,
    kinds::{Registry, Served},
    server::{Answer, Server},
};
use kube_listener::pipeline::{Answered, ApiRequest};
use kube_protocol::{
    answer::Document,
    discovery,
    health::{self, CheckState},
    negotiate::{Offer, Shape, accept},
    openapi, openapi_protobuf,
    request::{Query, Verb},
    resource::{GroupVersionKind, Resource},
    status::ApiStatus,
};

const CHECKS: [&str; 4] = ["ping", "log", "storage", "shutdown"];

/// A cache of documents.
#[derive(Default)]
pub(super) struct Documents(Mutex<State>);

#[derive(Default)]
struct State {
    generation: Generation,
    documents: BTreeMap<String, Arc<Document>>,
}

/// Counts the changes of the served kinds. A caller reads the generation before it creates a document, so that a document of an earlier generation is
/// not cached for a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Generation(u64);

impl Documents {
    /// Clears the cache after a change of the served kinds.
    pub(super) fn clear(&self) {
        let mut state = self.state();
        state.generation.0 += 1;
        state.documents.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn generation(&self) -> Generation {
        self.state().generation
    }

    fn get(&self, generation: Generation, name: &str, make: impl FnOnce() -> Value) -> Arc<Document> {
        self.get_document(generation, name, || Document::of(&make()))
    }

    fn get_document(&self, generation: Generation, name: &str, make: impl FnOnce() -> Document) -> Arc<Document> {
        let mut state = self.state();
        if let Some(known) = state.documents.get(name) {
            return Arc::clone(known);
        }
        let document = Arc::new(make());
        if state.generation == generation {
            state.documents.insert(name.to_owned(), Arc::clone(&document));
        }
        document
    }
}

impl Server {
    pub(super) async fn other(&self, request: &ApiRequest, segments: &[String]) -> Answered {
        let (query, headers) = (&request.query, &request.head.headers);
        if !matches!(request.head.method, Method::GET | Method::HEAD) {
            return Err(ApiStatus::method_not_allowed());
        }
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        let generation = self.documents.generation();
        let registry = self.registry();
        let visible = |served: &Served| !served.resource.verbs.is_empty();
        let answer = match parts.as_slice() {
            [] => Answer::ok(json!({"paths": self.paths(&registry)})),
            [endpoint, rest @ ..] if health::ENDPOINTS.contains(endpoint) => {
                return self.health(endpoint, rest, query).await;
            }
            ["version"] => Answer::ok(version()),
            ["openapi", "v3", rest @ ..] => return self.openapi_v3((generation, &registry), rest, query, headers),
            ["openapi", "v2"] => {
                let swagger = || {
                    let resources = registry.resources(visible);
                    let schemas = all_schemas(&registry);
                    let own = openapi::swagger(&resources, &schemas, |resource| schema_name(&registry, resource));
                    self.aggregator.swagger(own)
                };
                let wanted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
                if openapi_protobuf::is_wanted(wanted) {
                    let make =
                        || Document::encoded(openapi_protobuf::encode(&swagger()), openapi_protobuf::CONTENT_TYPE);
                    let document = self.documents.get_document(generation, "v2 protobuf", make);
                    return Ok(Answer::document(&document, headers));
                }
                accept(headers, Offer::Objects)?;
                let document = self.documents.get(generation, "v2", swagger);
                return Ok(Answer::document(&document, headers));
            }
            ["api"] => {
                let core = registry.resources(|served| visible(served) && served.group().is_empty());
                let aggregated = |version: &str| discovery::aggregated(&core, version);
                return self
                    .discovery((generation, "api"), headers, aggregated, || discovery::api_versions("127.0.0.1:443"));
            }
            ["apis"] => {
                let groups = registry.resources(|served| visible(served) && !served.group().is_empty());
                let aggregated =
                    |version: &str| self.aggregator.aggregated(discovery::aggregated(&groups, version), &registry);
                let plain = || self.aggregator.group_list(discovery::group_list(&groups), &registry);
                return self.discovery((generation, "apis"), headers, aggregated, plain);
            }
            ["api", "v1"] => Answer::ok(listed(&registry, "", "v1")?),
            ["apis", group] => {
                let local = discovery::group(&registry.resources(visible), group);
                Answer::ok(self.aggregator.group(local, group).ok_or_else(ApiStatus::page_not_found)?)
            }
            ["apis", group, version] => Answer::ok(listed(&registry, group, version)?),
            ["metrics"] => Answer::text(StatusCode::OK, self.counts.render()),
            _ => return Err(ApiStatus::page_not_found()),
        };
        Ok(answer)
    }

    fn discovery(
        &self,
        (generation, name): (Generation, &str),
        headers: &HeaderMap,
        aggregated: impl FnOnce(&str) -> Value,
        plain: impl FnOnce() -> Value,
    ) -> Result<Answer, ApiStatus> {
        match accept(headers, Offer::Discovery)?.shape {
            Shape::GroupDiscovery(version) => {
                let document = self.documents.get(generation, &format!("{name} {version}"), || aggregated(version));
                let answer = Answer::document(&document, headers)
                    .with_header(header::CONTENT_TYPE, &discovery::aggregated_content_type(version))
                    .with_header(header::CACHE_CONTROL, "public");
                Ok(answer)
            }
            _ => Ok(Answer::ok(plain()).with_header(header::VARY, "Accept")),
        }
    }

    fn openapi_v3(
        &self,
        (generation, registry): (Generation, &Registry),
        rest: &[&str],
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Answer, ApiStatus> {
        accept(headers, Offer::Objects)?;
        if rest.is_empty() {
            let documents: Vec<(String, String)> = group_versions(registry)
                .into_iter()
                .map(|(group, version)| {
                    let document = self.group_version(generation, registry, &group, &version);
                    (openapi::document_path(&group, &version), document.tag.clone())
                })
                .collect();
            let own = || openapi::index(documents.iter().map(|(path, hash)| (path.as_str(), hash.as_str())));
            let document = self.documents.get(generation, "v3", || self.aggregator.open_api_index(own()));
            return Ok(Answer::document(&document, headers));
        }
        let (group, version) = match rest {
            ["api", version] => ("", *version),
            ["apis", group, version] => (*group, *version),
            _ => return Err(ApiStatus::page_not_found()),
        };
        if !group_versions(registry).contains(&(group.to_owned(), version.to_owned())) {
            return Err(ApiStatus::page_not_found());
        }
        let document = self.group_version(generation, registry, group, version);
        let path = format!("/openapi/v3/{}", openapi::document_path(group, version));
        Ok(document.by_hash(query.get("hash"), &path, headers, self.now()))
    }

    fn group_version(&self, generation: Generation, registry: &Registry, group: &str, version: &str) -> Arc<Document> {
        self.documents.get(generation, &openapi::document_path(group, version), || {
            let resources = registry.resources(|served| {
                !served.resource.verbs.is_empty() && served.group() == group && served.resource.kind.version == version
            });
            let schemas = reachable(registry, &resources);
            openapi::document(&resources, &schemas, |resource| schema_name(registry, resource))
        })
    }

    fn paths(&self, registry: &Registry) -> Vec<String> {
        let mut paths: BTreeSet<String> =
            ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
                .map(str::to_owned)
                .into();
        for (group, version) in group_versions(registry) {
            paths.insert(format!("/{}", openapi::document_path(&group, &version)));
            if !group.is_empty() {
                paths.insert(format!("/apis/{group}"));
            }
        }
        paths.extend(self.aggregator.paths());
        paths.into_iter().collect()
    }

    async fn health(&self, endpoint: &str, rest: &[&str], query: &Query) -> Result<Answer, ApiStatus> {
        let storage = self.store.durable(0).await;
        let failure = |check: &str| match check {
            "storage" if storage.is_err() => Some("storage cannot be written".to_owned()),
            // A server that shuts down is still live.
            "shutdown" if endpoint == "readyz" && self.shutdown.is_cancelled() => {
                Some("process is shutting down".to_owned())
            }
            _ => None,
        };
        let checks = CHECKS.map(|name| CheckState { name, failure: failure(name) });
        health::answer(endpoint, rest, &checks, query)
    }
}

fn listed(registry: &Registry, group: &str, version: &str) -> Result<Value, ApiStatus> {
    let resources = registry.resources(|served| !served.resource.verbs.is_empty());
    let mut list = discovery::resource_list(&resources, group, version).ok_or_else(ApiStatus::page_not_found)?;
    for entry in list["resources"].as_array_mut().into_iter().flatten() {
        let served = entry["name"].as_str().and_then(|plural| registry.find(group, version, plural));
        let storage = served.as_ref().and_then(|served| registry.storage_of(&served.collection));
        if let Some(storage) = storage.filter(|storage| storage.resource.serves(Verb::Get)) {
            entry["storageVersionHash"] = json!(storage_version_hash(&storage.resource.kind));
        }
    }
    Ok(list)
}

/// The hash of the storage version in discovery, as in kube-apiserver since 1.15. Clients notice by it that the storage version has changed.
fn storage_version_hash(kind: &GroupVersionKind) -> String {
    let name = format!("{}/{}/{}", kind.group, kind.version, kind.kind);
    BASE64_STANDARD.encode(&digest(&SHA256, name.as_bytes()).as_ref()[..8])
}

fn group_versions(registry: &Registry) -> BTreeSet<(String, String)> {
    let served = registry.all().iter().filter(|served| !served.resource.verbs.is_empty());
    served.map(|served| (served.group().to_owned(), served.resource.kind.version.clone())).collect()
}

fn schema_name(registry: &Registry, resource: &Resource) -> String {
    let served = registry.find(&resource.kind.group, &resource.kind.version, &resource.plural);
    served.map(|served| served.schema_name.clone()).unwrap_or_default()
}

/// The schema of a custom kind for documents.
fn custom_schema(served: &Served) -> Option<Value> {
    let mut schema = served.custom()?.raw_schema.clone();
    let kind = &served.resource.kind;
    schema["x-kubernetes-group-version-kind"] =
        json!([{"group": kind.group, "version": kind.version, "kind": kind.kind}]);
    let text = |what: &str| json!({"type": "string", "description": what});
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    schema["properties"]["apiVersion"] =
        text("APIVersion defines the versioned schema of this representation of an object.");
    schema["properties"]["kind"] =
        text("Kind is a string value representing the REST resource this object represents.");
    schema["properties"]["metadata"] = json!({
        "allOf": [{"$ref": format!("{}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", openapi::V3_REFERENCE)}],
        "description": "Standard object's metadata.",
    });
    Some(schema)
}

fn all_schemas(registry: &Registry) -> BTreeMap<String, Value> {
    let mut schemas = registry.schemas.clone();
    for served in registry.all() {
        if let Some(schema) = custom_schema(served) {
            schemas.insert(served.schema_name.clone(), schema);
        }
    }
    schemas
}

/// The schemas of some resources, and the schemas that they refer to.
fn reachable(registry: &Registry, resources: &[&Resource]) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut open: Vec<String> = vec!["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions".to_owned()];
    for resource in resources {
        let Some(served) = registry.find(&resource.kind.group, &resource.kind.version, &resource.plural) else {
            continue;
        };
        match custom_schema(&served) {
            Some(schema) => {
                references(&schema, &mut open);
                found.insert(served.schema_name.clone(), schema);
            }
            None => open.push(served.schema_name.clone()),
        }
    }
    while let Some(name) = open.pop() {
        if found.contains_key(&name) {
            continue;
        }
        if let Some(schema) = registry.schemas.get(&name) {
            references(schema, &mut open);
            found.insert(name, schema.clone());
        }
    }
    found
}

fn references(schema: &Value, open: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(name) =
                fields.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(openapi::V3_REFERENCE))
            {
                open.push(name.to_owned());
            }
            for value in fields.values() {
                references(value, open);
            }
        }
        Value::Array(items) => {
            for item in items {
                references(item, open);
            }
        }
        _ => {}
    }
}

fn version() -> Value {
    let emulated = &builtin::document().version;
    let mut numbers = emulated.trim_start_matches('v').split('.');
    let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
    json!({
        "major": numbers.next().unwrap_or_default(), "minor": numbers.next().unwrap_or_default(),
        "gitVersion": format!("{emulated}+mcm-dev.{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "rustc", "compiler": "rustc", "platform": platform,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_the_storage_version_is_equal_to_that_of_kube_apiserver() {
        let kind = |version: &str, kind: &str| GroupVersionKind {
            group: "machine.sapcloud.io".to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
        };
        assert_eq!(storage_version_hash(&kind("v1beta1", "Machine")), "k79vme4o3o0=");
        assert_eq!(storage_version_hash(&kind("v1beta1", "MachineClass")), "EAQGx+KL1DI=");
    }

    #[test]
    fn documents_of_an_earlier_generation_are_not_cached() {
        let documents = Documents::default();
        let before = documents.generation();
        documents.clear();
        let text = |document: &Document| String::from_utf8_lossy(&document.bytes).into_owned();
        assert_eq!(text(&documents.get(before, "v3", || json!("old"))), "\"old\"");
        let now = documents.generation();
        assert_eq!(text(&documents.get(now, "v3", || json!("new"))), "\"new\"");
        assert_eq!(text(&documents.get(now, "v3", || json!("never"))), "\"new\"");
    }
}
