//! What is no object: discovery, `OpenAPI`, health, version.
//!
//! Source: spec/extension-apiserver §2.3, §2.4, §2.12. Documents are made once per set of definitions and kept as bytes.

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

/// Documents that have been asked for.
#[derive(Default)]
pub(super) struct Documents(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    edition: Edition,
    made: BTreeMap<String, Arc<Document>>,
}

/// Counts the changes of what documents are made of. Whoever makes one asks for the edition first: what was made of an
/// earlier one must not be kept for a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Edition(u64);

impl Documents {
    /// What documents are made of has changed.
    pub(super) fn forget(&self) {
        let mut shelf = self.shelf();
        shelf.edition.0 += 1;
        shelf.made.clear();
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn edition(&self) -> Edition {
        self.shelf().edition
    }

    fn get(&self, edition: Edition, name: &str, make: impl FnOnce() -> Value) -> Arc<Document> {
        self.get_document(edition, name, || Document::of(&make()))
    }

    fn get_document(&self, edition: Edition, name: &str, make: impl FnOnce() -> Document) -> Arc<Document> {
        let mut shelf = self.shelf();
        if let Some(known) = shelf.made.get(name) {
            return Arc::clone(known);
        }
        let made = Arc::new(make());
        if shelf.edition == edition {
            shelf.made.insert(name.to_owned(), Arc::clone(&made));
        }
        made
    }
}

impl Server {
    pub(super) async fn other(
        &self,
        method: &Method,
        segments: &[String],
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Answer, ApiStatus> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(ApiStatus::method_not_allowed());
        }
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        let edition = self.documents.edition();
        let registry = self.registry();
        let visible = |served: &Served| !served.resource.verbs.is_empty();
        let answer = match parts.as_slice() {
            [] => Answer::ok(json!({"paths": self.paths(&registry)})),
            [endpoint @ ("healthz" | "livez" | "readyz"), rest @ ..] => {
                return self.health(endpoint, rest, query).await;
            }
            ["version"] => Answer::ok(version()),
            ["openapi", "v3", rest @ ..] => return self.openapi_v3((edition, &registry), rest, query, headers),
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
                    let made = self.documents.get_document(edition, "v2 protobuf", make);
                    return Ok(Answer::document(&made, headers));
                }
                accept(headers, Offer::Objects)?;
                let made = self.documents.get(edition, "v2", swagger);
                return Ok(Answer::document(&made, headers));
            }
            ["api"] => {
                let core = registry.resources(|served| visible(served) && served.group().is_empty());
                let aggregated = |version: &str| discovery::aggregated(&core, version);
                return self
                    .discovery((edition, "api"), headers, aggregated, || discovery::api_versions("127.0.0.1:443"));
            }
            ["apis"] => {
                let groups = registry.resources(|served| visible(served) && !served.group().is_empty());
                let aggregated =
                    |version: &str| self.aggregator.aggregated(discovery::aggregated(&groups, version), &registry);
                let plain = || self.aggregator.group_list(discovery::group_list(&groups), &registry);
                return self.discovery((edition, "apis"), headers, aggregated, plain);
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
        (edition, name): (Edition, &str),
        headers: &HeaderMap,
        aggregated: impl FnOnce(&str) -> Value,
        plain: impl FnOnce() -> Value,
    ) -> Result<Answer, ApiStatus> {
        match accept(headers, Offer::Discovery)?.shape {
            Shape::GroupDiscovery(version) => {
                let made = self.documents.get(edition, &format!("{name} {version}"), || aggregated(version));
                let answer = Answer::document(&made, headers)
                    .with_header(header::CONTENT_TYPE, &discovery::aggregated_content_type(version))
                    .with_header(header::CACHE_CONTROL, "public");
                Ok(answer)
            }
            _ => Ok(Answer::ok(plain()).with_header(header::VARY, "Accept")),
        }
    }

    fn openapi_v3(
        &self,
        (edition, registry): (Edition, &Registry),
        rest: &[&str],
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Answer, ApiStatus> {
        accept(headers, Offer::Objects)?;
        if rest.is_empty() {
            let documents: Vec<(String, String)> = group_versions(registry)
                .into_iter()
                .map(|(group, version)| {
                    let made = self.group_version(edition, registry, &group, &version);
                    (openapi::document_path(&group, &version), made.tag.clone())
                })
                .collect();
            let own = || openapi::index(documents.iter().map(|(path, hash)| (path.as_str(), hash.as_str())));
            let made = self.documents.get(edition, "v3", || self.aggregator.open_api_index(own()));
            return Ok(Answer::document(&made, headers));
        }
        let (group, version) = match rest {
            ["api", version] => ("", *version),
            ["apis", group, version] => (*group, *version),
            _ => return Err(ApiStatus::page_not_found()),
        };
        if !group_versions(registry).contains(&(group.to_owned(), version.to_owned())) {
            return Err(ApiStatus::page_not_found());
        }
        let made = self.group_version(edition, registry, group, version);
        let place = format!("/openapi/v3/{}", openapi::document_path(group, version));
        Ok(made.by_hash(query.get("hash"), &place, headers, self.now()))
    }

    fn group_version(&self, edition: Edition, registry: &Registry, group: &str, version: &str) -> Arc<Document> {
        self.documents.get(edition, &openapi::document_path(group, version), || {
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
            // Who is ending still lives.
            "shutdown" if endpoint == "readyz" && self.ending.is_cancelled() => {
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

/// Tells clients in which version objects are stored, without telling its name, as API servers do since 1.15.
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

/// The schema of a custom kind, as documents write it.
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

/// The schemas of some resources, and those that they refer to.
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
    fn the_hash_of_a_stored_version_is_the_one_that_api_servers_write() {
        let kind = |version: &str, kind: &str| GroupVersionKind {
            group: "machine.sapcloud.io".to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
        };
        assert_eq!(storage_version_hash(&kind("v1beta1", "Machine")), "k79vme4o3o0=");
        assert_eq!(storage_version_hash(&kind("v1beta1", "MachineClass")), "EAQGx+KL1DI=");
    }

    #[test]
    fn what_was_made_of_earlier_definitions_is_not_kept_for_later_ones() {
        let documents = Documents::default();
        let before = documents.edition();
        documents.forget();
        let text = |document: &Document| String::from_utf8_lossy(&document.bytes).into_owned();
        assert_eq!(text(&documents.get(before, "v3", || json!("old"))), "\"old\"");
        let now = documents.edition();
        assert_eq!(text(&documents.get(now, "v3", || json!("new"))), "\"new\"");
        assert_eq!(text(&documents.get(now, "v3", || json!("never"))), "\"new\"");
    }
}
