//! `OpenAPI` documents: the index, one document per group-version (v3), and one document of all resources (v2).
//!
//! The documents contain what `kubectl explain`, `apply` and `diff` and server-side validation need.
//! Source: spec/extension-apiserver §2.4.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    request::Verb,
    resource::{Resource, ResourceScope},
};

/// The prefix of references in v3.
pub const V3_REFERENCE: &str = "#/components/schemas/";
/// The prefix of references in v2.
pub const V2_REFERENCE: &str = "#/definitions/";

/// Parameters of writes. `kubectl` checks that `fieldValidation` is there.
const WRITES: [&str; 3] = ["dryRun", "fieldManager", "fieldValidation"];

/// Path of a group-version below `/openapi/v3/`.
pub fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// `/openapi/v3`: the paths of the documents, each with its hash.
pub fn index<'a>(documents: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    let paths: Map<String, Value> = documents
        .map(|(path, hash)| (path.to_owned(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")})))
        .collect();
    json!({"paths": paths})
}

/// The v3 document of one group-version.
pub fn document(
    resources: &[&Resource],
    schemas: &BTreeMap<String, Value>,
    schema_of: impl Fn(&Resource) -> String,
) -> Value {
    let mut paths = Map::new();
    for resource in resources {
        let schema = schema_of(resource);
        add_paths(&mut paths, resource, &schema, Version::V3);
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1"},
        "paths": paths, "components": {"schemas": schemas},
    })
}

/// The v2 document of all resources.
pub fn swagger(
    resources: &[&Resource],
    schemas: &BTreeMap<String, Value>,
    schema_of: impl Fn(&Resource) -> String,
) -> Value {
    let mut paths = Map::new();
    for resource in resources {
        let schema = schema_of(resource);
        add_paths(&mut paths, resource, &schema, Version::V2);
    }
    let definitions: Map<String, Value> = schemas.iter().map(|(name, schema)| (name.clone(), as_v2(schema))).collect();
    json!({
        "swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1"},
        "paths": paths, "definitions": definitions,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V2,
    V3,
}

fn add_paths(paths: &mut Map<String, Value>, resource: &Resource, schema: &str, version: Version) {
    let base = format!("/{}", document_path(&resource.kind.group, &resource.kind.version));
    let collection = match resource.scope {
        ResourceScope::Namespaced => format!("{base}/namespaces/{{namespace}}/{}", resource.plural),
        ResourceScope::Cluster => format!("{base}/{}", resource.plural),
    };
    let operation = |action: &str, verb: Verb, parameters: &[&str]| {
        let reference = match version {
            Version::V3 => {
                json!({"content": {"application/json": {"schema": {"$ref": format!("{V3_REFERENCE}{schema}")}}}})
            }
            Version::V2 => json!({"schema": {"$ref": format!("{V2_REFERENCE}{schema}")}}),
        };
        let mut response = reference;
        response["description"] = json!("OK");
        let parameter = |name: &&str| match version {
            Version::V3 => json!({"name": name, "in": "query", "schema": {"type": "string"}}),
            Version::V2 => json!({"name": name, "in": "query", "type": "string"}),
        };
        let code = if verb == Verb::Create { "201" } else { "200" };
        let mut operation = json!({
            "operationId": format!("{}{}{}", verb.name(), resource.kind.version, resource.kind.kind),
            "responses": {code: response},
            "parameters": parameters.iter().map(parameter).collect::<Vec<_>>(),
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind":
                {"group": resource.kind.group, "version": resource.kind.version, "kind": resource.kind.kind},
        });
        if version == Version::V2 {
            operation["produces"] = json!(["application/json", "application/yaml"]);
        }
        operation
    };
    let mut on_collection = Map::new();
    let mut on_object = Map::new();
    for verb in &resource.verbs {
        let (paths, method, action, parameters): (_, _, _, &[&str]) = match verb {
            Verb::List => (&mut on_collection, "get", "list", &["labelSelector", "fieldSelector", "limit", "continue"]),
            Verb::Create => (&mut on_collection, "post", "post", &WRITES),
            Verb::DeleteCollection => (&mut on_collection, "delete", "deletecollection", &["labelSelector"]),
            Verb::Get => (&mut on_object, "get", "get", &[]),
            Verb::Update => (&mut on_object, "put", "put", &WRITES),
            Verb::Patch => (&mut on_object, "patch", "patch", &["dryRun", "fieldManager", "fieldValidation", "force"]),
            Verb::Delete => (&mut on_object, "delete", "delete", &["dryRun", "propagationPolicy"]),
            Verb::Watch => continue,
        };
        paths.insert(method.to_owned(), operation(action, *verb, parameters));
    }
    paths.insert(format!("{collection}/{{name}}"), Value::Object(on_object));
    paths.insert(collection, Value::Object(on_collection));
}

/// Converts a schema to v2. References have another prefix, and keywords that v2 does not have are removed.
fn as_v2(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            // In v3 a reference is wrapped in `allOf` so that it can have a description. In v2 it is not wrapped.
            if let Some(Value::Array(all)) = fields.get("allOf")
                && let [Value::Object(only)] = all.as_slice()
                && only.contains_key("$ref")
            {
                let mut merged = fields.clone();
                merged.remove("allOf");
                merged.extend(only.clone());
                return as_v2(&Value::Object(merged));
            }
            let keep = |key: &str| !matches!(key, "oneOf" | "anyOf" | "allOf" | "not" | "nullable");
            let convert = |(key, value): (&String, &Value)| match value {
                Value::String(text) if key == "$ref" => (key.clone(), json!(text.replace(V3_REFERENCE, V2_REFERENCE))),
                Value::Object(properties) if key == "properties" => {
                    // The names of fields are not keywords.
                    let properties = properties.iter().map(|(name, schema)| (name.clone(), as_v2(schema)));
                    (key.clone(), Value::Object(properties.collect()))
                }
                other => (key.clone(), as_v2(other)),
            };
            Value::Object(fields.iter().filter(|(key, _)| keep(key)).map(convert).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(as_v2).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_in_v2_keeps_references_and_field_names() {
        let schema = json!({
            "properties": {
                "nullable": {"type": "string"},
                "spec": {"allOf": [{"$ref": "#/components/schemas/a.B"}], "description": "d", "nullable": true},
            },
        });
        assert_eq!(
            as_v2(&schema),
            json!({"properties": {
                "nullable": {"type": "string"},
                "spec": {"$ref": "#/definitions/a.B", "description": "d"},
            }})
        );
    }
}
