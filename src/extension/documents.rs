//! The answers that are the same for all callers: discovery, `OpenAPI`, version, the list of paths. They are made once and kept as
//! bytes.
//!
//! Source: spec/extension-apiserver §2.3, §2.4, §2.12, §5.5.

use std::collections::BTreeMap;

use http::{HeaderMap, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    registry::Registry,
    view::{GROUP, VERSION},
};
use kube_protocol::{
    answer::{Answer, Document},
    discovery,
    negotiate::{Offer, Shape, accept},
    openapi,
    request::Query,
    resource::Resource,
    status::ApiStatus,
};

/// Prefix of the names of our schemas: names must be unique among all servers of a cluster.
const SCHEMA_PREFIX: &str = "io.sapcloud.machine.views.v1alpha1.";
/// Name of the schema of metadata. It has our prefix too, so that it does not collide with the schema of another server.
const OBJECT_META: &str = "ObjectMeta";

/// The documents of one set of views.
pub struct Documents {
    groups: Document,
    /// Aggregated discovery, by version of `apidiscovery.k8s.io`.
    aggregated: [(&'static str, Document); 2],
    group: Document,
    resources: Document,
    index: Document,
    open_api: Document,
    swagger: Document,
    version: Document,
    paths: Document,
}

impl Documents {
    /// The documents of the registered views.
    pub fn of(registry: &Registry) -> Self {
        let resources = registry.resources();
        let place = openapi::document_path(GROUP, VERSION);
        let schemas = schemas(registry);
        let open_api = Document::of(&openapi::document(&resources, &schemas, schema_name));
        let none = || json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"), "resources": []});
        Self {
            groups: Document::of(&discovery::group_list(&resources)),
            aggregated: ["v2", "v2beta1"]
                .map(|version| (version, Document::of(&discovery::aggregated(&resources, version)))),
            group: Document::of(&discovery::group(&resources, GROUP).unwrap_or_default()),
            // Without views the list is empty. A 404 would make the APIService unavailable.
            resources: Document::of(&discovery::resource_list(&resources, GROUP, VERSION).unwrap_or_else(none)),
            index: Document::of(&openapi::index([(place.as_str(), open_api.tag.as_str())].into_iter())),
            open_api,
            swagger: Document::of(&openapi::swagger(&resources, &schemas, schema_name)),
            version: Document::of(&version()),
            paths: Document::of(&json!({"paths": paths()})),
        }
    }

    /// The answer for a path that is no resource. `None` for a path without a document; 406 for an unsupported representation.
    pub fn answer(
        &self,
        segments: &[&str],
        query: &Query,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Option<Result<Answer, ApiStatus>> {
        let plain = |document| Some(Ok(Answer::document(document, headers)));
        let object = |document| Some(accept(headers, Offer::Objects).map(|_| Answer::document(document, headers)));
        match segments {
            [] => plain(&self.paths),
            ["version"] => plain(&self.version),
            ["apis"] => Some(self.groups(headers)),
            ["apis", group] if *group == GROUP => object(&self.group),
            ["apis", group, version] if *group == GROUP && *version == VERSION => object(&self.resources),
            ["openapi", "v3"] => object(&self.index),
            ["openapi", "v3", "apis", group, version] if *group == GROUP && *version == VERSION => {
                let place = format!("/openapi/v3/{}", openapi::document_path(GROUP, VERSION));
                let answer = |_| self.open_api.by_hash(query.get("hash"), &place, headers, now);
                Some(accept(headers, Offer::Objects).map(answer))
            }
            ["openapi", "v2"] => object(&self.swagger),
            _ => None,
        }
    }

    fn groups(&self, headers: &HeaderMap) -> Result<Answer, ApiStatus> {
        let asked = accept(headers, Offer::Discovery)?.shape;
        let aggregated = self.aggregated.iter().find(|(version, _)| asked == Shape::GroupDiscovery(version));
        Ok(match aggregated {
            Some((version, document)) => Answer::document(document, headers)
                .with_header(header::CONTENT_TYPE, &discovery::aggregated_content_type(version))
                .with_header(header::CACHE_CONTROL, "public"),
            None => Answer::document(&self.groups, headers),
        })
    }
}

fn schema_name(resource: &Resource) -> String {
    format!("{SCHEMA_PREFIX}{}", resource.kind.kind)
}

fn schemas(registry: &Registry) -> BTreeMap<String, Value> {
    let mut schemas = BTreeMap::from([(format!("{SCHEMA_PREFIX}{OBJECT_META}"), object_meta())]);
    for view in registry.views() {
        let kind = &view.resource().kind;
        let mut schema = view.schema().clone();
        if !schema["properties"].is_object() {
            schema["properties"] = json!({});
        }
        schema["type"] = json!("object");
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": kind.group, "version": kind.version, "kind": kind.kind}]);
        schema["properties"]["apiVersion"] =
            json!({"type": "string", "description": "Group and version of the object."});
        schema["properties"]["kind"] = json!({"type": "string", "description": "Kind of the object."});
        schema["properties"]["metadata"] = json!({
            "allOf": [{"$ref": format!("{}{SCHEMA_PREFIX}{OBJECT_META}", openapi::V3_REFERENCE)}],
            "description": "Name, namespace and labels of the object.",
        });
        schemas.insert(schema_name(view.resource()), schema);
    }
    schemas
}

fn object_meta() -> Value {
    let text = |what: &str| json!({"type": "string", "description": what});
    let map = |what: &str| json!({"type": "object", "additionalProperties": {"type": "string"}, "description": what});
    json!({
        "type": "object",
        "description": "Metadata of a computed object: nothing is stored, so there is no version of it and no owner.",
        "properties": {
            "name": text("Name, unique in its namespace."),
            "namespace": text("Namespace."),
            "generateName": text("Not used: a review without a name is called like what it asks about."),
            "uid": text("UID of the object that is viewed, or one made of its name."),
            "creationTimestamp": {
                "type": "string", "format": "date-time",
                "description": "When what is viewed was made, or when this was computed.",
            },
            "labels": map("Labels."),
            "annotations": map("Annotations."),
        },
    })
}

fn version() -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let mut numbers = version.split('.');
    json!({
        "major": numbers.next().unwrap_or_default(), "minor": numbers.next().unwrap_or_default(),
        "gitVersion": format!("v{version}"), "gitCommit": "", "gitTreeState": "", "buildDate": "",
        "goVersion": concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"), "+"), "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn paths() -> Vec<String> {
    vec![
        "/apis".to_owned(),
        format!("/apis/{GROUP}"),
        format!("/apis/{GROUP}/{VERSION}"),
        "/healthz".to_owned(),
        "/livez".to_owned(),
        "/metrics".to_owned(),
        "/openapi/v2".to_owned(),
        "/openapi/v3".to_owned(),
        format!("/openapi/v3/{}", openapi::document_path(GROUP, VERSION)),
        "/readyz".to_owned(),
        "/version".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT, ETAG, IF_NONE_MATCH};
    use rstest::rstest;

    use super::*;
    use crate::extension::testing::TestView;
    use kube_protocol::answer::AnswerBody;

    fn documents() -> Documents {
        Documents::of(&Registry::new(vec![TestView::served()]))
    }

    fn ask(documents: &Documents, path: &str, accept: &str) -> Option<Result<(Answer, Value), u16>> {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(ACCEPT, accept.parse().unwrap());
        }
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let answer = documents.answer(&segments, &Query::default(), &headers, now)?;
        Some(answer.map_err(|status| status.code).map(|answer| {
            let AnswerBody::Bytes(_, bytes) = &answer.body else { panic!() };
            let value = serde_json::from_slice(bytes).unwrap();
            (answer, value)
        }))
    }

    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

    #[test]
    fn xa_139_discovery_has_the_verbs_of_views_and_no_others() {
        let (_, list) = ask(&documents(), "/apis/views.machine.sapcloud.io/v1alpha1", "").unwrap().unwrap();
        let verbs = &list["resources"][0]["verbs"];
        assert_eq!(verbs, &json!(["create", "get", "list"]));
    }

    #[rstest]
    #[case::all("/apis", "APIGroupList")]
    #[case::group("/apis/views.machine.sapcloud.io", "APIGroup")]
    #[case::list("/apis/views.machine.sapcloud.io/v1alpha1", "APIResourceList")]
    fn plain_discovery(#[case] path: &str, #[case] kind: &str) {
        assert_eq!(ask(&documents(), path, "").unwrap().unwrap().1["kind"], kind);
    }

    #[rstest]
    #[case::xa_167_without_a_plain_clause(
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
         application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        AGGREGATED
    )]
    #[case::old_clients(
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
    )]
    fn aggregated_discovery(#[case] accept: &str, #[case] content_type: &str) {
        let (answer, list) = ask(&documents(), "/apis", accept).unwrap().unwrap();
        assert_eq!(answer.headers[header::CONTENT_TYPE], content_type);
        assert_eq!(list["items"][0]["versions"][0]["freshness"], "Current");
    }

    #[test]
    fn an_unchanged_document_is_not_sent_again() {
        let (documents, mut headers) = (documents(), HeaderMap::new());
        headers.insert(ACCEPT, AGGREGATED.parse().unwrap());
        let now = Timestamp::UNIX_EPOCH;
        let first = documents.answer(&["apis"], &Query::default(), &headers, now).unwrap().unwrap();
        headers.insert(IF_NONE_MATCH, first.headers[ETAG].clone());
        let second = documents.answer(&["apis"], &Query::default(), &headers, now).unwrap().unwrap();
        assert_eq!(second.status, 304);
    }

    #[test]
    fn the_index_leads_to_the_document() {
        let documents = documents();
        let (_, index) = ask(&documents, "/openapi/v3", "").unwrap().unwrap();
        let url = index["paths"]["apis/views.machine.sapcloud.io/v1alpha1"]["serverRelativeURL"].as_str().unwrap();
        let (path, hash) = url.split_once("?hash=").unwrap();
        let (answer, document) = ask(&documents, path, "").unwrap().unwrap();
        assert_eq!(answer.headers[ETAG], format!("\"{hash}\""));
        let schema = &document["components"]["schemas"]["io.sapcloud.machine.views.v1alpha1.TestView"];
        assert_eq!(schema["x-kubernetes-group-version-kind"][0]["kind"], "TestView");
        let post =
            &document["paths"]["/apis/views.machine.sapcloud.io/v1alpha1/namespaces/{namespace}/testviews"]["post"];
        let names = post["parameters"].as_array().unwrap().iter().map(|parameter| &parameter["name"]);
        assert!(names.into_iter().any(|name| name == "fieldValidation"));
        let (_, swagger) = ask(&documents, "/openapi/v2", "application/json").unwrap().unwrap();
        assert_eq!(swagger["swagger"], "2.0");
        assert!(swagger["definitions"]["io.sapcloud.machine.views.v1alpha1.TestView"].is_object());
    }

    #[rstest]
    #[case::protobuf_alone("/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")]
    #[case::html("/apis/views.machine.sapcloud.io", "text/html")]
    fn unsupported_representations(#[case] path: &str, #[case] accept: &str) {
        assert_eq!(ask(&documents(), path, accept).unwrap().unwrap_err(), 406);
    }

    #[rstest]
    #[case("/api")]
    #[case("/apis/views.machine.sapcloud.io/v9")]
    #[case("/openapi/v3/apis/nope/v1")]
    #[case("/configz")]
    fn other_paths_have_no_document(#[case] path: &str) {
        assert!(ask(&documents(), path, "").is_none());
    }
}
