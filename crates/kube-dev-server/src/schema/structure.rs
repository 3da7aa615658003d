//! Checks whether the schema of a definition is structural.
//!
//! The rules and messages are the same as in the apiextensions server (`schema/validation.go`, `apis/apiextensions/validation`). The cost of CEL
//! rules is not checked. Source: spec/extension-apiserver §6.4; Kubernetes, "Specifying a structural schema".

use serde_json::{Map, Value};

use super::join;
use kube_protocol::status::Cause;

/// The position of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
    /// Under `allOf`, `anyOf`, `oneOf` or `not`. Such a node restricts values and declares no fields.
    Junctor,
}

/// The errors of a schema that is not structural.
pub(crate) fn check(schema: &Value, path: &str) -> Vec<Cause> {
    let mut found = Vec::new();
    node(schema, Level::Root, path, &mut found);
    found
}

fn node(schema: &Value, level: Level, path: &str, found: &mut Vec<Cause>) {
    let Some(fields) = schema.as_object() else { return };
    value_type(fields, level, path, found);
    unsupported_keywords(fields, path, found);
    list_type(fields, path, found);
    if level == Level::Root {
        root(fields, path, found);
    }
    let below = if level == Level::Junctor { Level::Junctor } else { Level::Field };
    for (name, property) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{path}.properties[{name}]");
        if level == Level::Root && name == "metadata" {
            root_metadata(property, &path, found);
        } else {
            node(property, below, &path, found);
        }
    }
    if let Some(additional) = fields.get("additionalProperties") {
        node(additional, below, &join(path, "additionalProperties"), found);
    }
    if let Some(items) = fields.get("items") {
        let below = if level == Level::Junctor { Level::Junctor } else { Level::Item };
        node(items, below, &join(path, "items"), found);
    }
    if !is_int_or_string(fields) {
        for keyword in ["allOf", "anyOf", "oneOf"] {
            for (at, part) in fields.get(keyword).and_then(Value::as_array).into_iter().flatten().enumerate() {
                node(part, Level::Junctor, &format!("{path}.{keyword}[{at}]"), found);
            }
        }
    }
    if let Some(part) = fields.get("not") {
        node(part, Level::Junctor, &join(path, "not"), found);
    }
}

fn flag(fields: &Map<String, Value>, keyword: &str) -> bool {
    fields.get(keyword) == Some(&Value::Bool(true))
}

/// Whether a node is an integer or a string. Its `anyOf` may contain `type`.
fn is_int_or_string(fields: &Map<String, Value>) -> bool {
    flag(fields, "x-kubernetes-int-or-string")
}

fn text<'a>(fields: &'a Map<String, Value>, keyword: &str) -> &'a str {
    fields.get(keyword).and_then(Value::as_str).unwrap_or_default()
}

/// Checks that every declared value has a type, and that nodes that only restrict values have none.
fn value_type(fields: &Map<String, Value>, level: Level, path: &str, found: &mut Vec<Cause>) {
    let given = text(fields, "type");
    let path = join(path, "type");
    if level == Level::Junctor {
        if !given.is_empty() {
            found.push(Cause::forbidden(path, "must be empty to be structural"));
        }
        return;
    }
    if !given.is_empty() || is_int_or_string(fields) || flag(fields, "x-kubernetes-preserve-unknown-fields") {
        return;
    }
    let why = match level {
        Level::Root => "must not be empty at the root",
        Level::Item => "must not be empty for specified array items",
        Level::Field | Level::Junctor => "must not be empty for specified object fields",
    };
    found.push(Cause::required(path, why));
}

fn root(fields: &Map<String, Value>, path: &str, found: &mut Vec<Cause>) {
    if fields.get("additionalProperties").is_some_and(|additional| !additional.is_null()) {
        found.push(Cause::forbidden(join(path, "additionalProperties"), "must not be used at the root"));
    }
    if flag(fields, "nullable") {
        found.push(Cause::forbidden(join(path, "nullable"), "nullable cannot be true at the root"));
    }
}

/// Checks the schema of `metadata`. The API server declares the metadata, and a schema may only restrict `name` and `generateName`.
fn root_metadata(schema: &Value, path: &str, found: &mut Vec<Cause>) {
    let Some(fields) = schema.as_object() else { return };
    if text(fields, "type") != "object" {
        found.push(Cause::invalid(join(path, "type"), &schema["type"], "must be object"));
    }
    let bounds_names_only = fields.iter().all(|(keyword, value)| match keyword.as_str() {
        "type" | "description" => true,
        "properties" => value
            .as_object()
            .is_none_or(|properties| properties.keys().all(|name| matches!(name.as_str(), "name" | "generateName"))),
        _ => false,
    });
    if !bounds_names_only {
        let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        found.push(Cause::forbidden(path, why));
    }
}

fn unsupported_keywords(fields: &Map<String, Value>, path: &str, found: &mut Vec<Cause>) {
    if flag(fields, "uniqueItems") {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        found.push(Cause::forbidden(join(path, "uniqueItems"), why));
    }
    if !text(fields, "$ref").is_empty() {
        found.push(Cause::forbidden(join(path, "$ref"), "$ref is not supported"));
    }
    let has = |keyword: &str| fields.get(keyword).is_some_and(|value| !value.is_null() && value != &Value::Bool(false));
    let declares = fields.get("properties").and_then(Value::as_object).is_some_and(|properties| !properties.is_empty());
    if declares && has("additionalProperties") {
        let why = "additionalProperties and properties are mutual exclusive";
        found.push(Cause::forbidden(join(path, "additionalProperties"), why));
    }
}

/// Checks that lists declare their items, and that the keys of lists of type `map` are declared and always set.
fn list_type(fields: &Map<String, Value>, path: &str, found: &mut Vec<Cause>) {
    let items = fields.get("items");
    if text(fields, "type") == "array" && items.is_none_or(Value::is_null) {
        found.push(Cause::required(join(path, "items"), "must be specified"));
    }
    let kind = text(fields, "x-kubernetes-list-type");
    let listed = fields.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
    let keys: Vec<&str> = listed.into_iter().flatten().filter_map(Value::as_str).collect();
    if !matches!(kind, "" | "atomic" | "set" | "map") {
        let types = ["atomic", "set", "map"].map(Value::from);
        found.push(Cause::not_supported(join(path, "x-kubernetes-list-type"), &Value::from(kind), &types));
    }
    if !keys.is_empty() && kind != "map" {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        found.push(Cause::invalid(join(path, "x-kubernetes-list-type"), &Value::from(kind), why));
    }
    if kind != "map" {
        return;
    }
    if keys.is_empty() {
        let why = "must not be empty if x-kubernetes-list-type is map";
        found.push(Cause::required(join(path, "x-kubernetes-list-map-keys"), why));
    }
    let Some(items) = items else { return };
    for key in keys {
        let property = &items["properties"][key];
        if property.is_null() {
            let why = "entries must all be names of item properties";
            found.push(Cause::invalid(join(path, "x-kubernetes-list-map-keys"), &Value::from(key), why));
            continue;
        }
        let is_required = items["required"].as_array().into_iter().flatten().any(|required| required == key);
        if !is_required && property["default"].is_null() {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            found.push(Cause::required(format!("{path}.items.properties[{key}].default"), why));
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::of_a_plain_kind(json!({"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}), &[])]
    #[case::without_type(json!({"spec": {}}), &["s.properties[spec].type"])]
    #[case::item_without_type(json!({"l": {"type": "array", "items": {}}}), &["s.properties[l].items.type"])]
    #[case::list_without_items(json!({"l": {"type": "array"}}), &["s.properties[l].items"])]
    #[case::any_value(json!({"a": {"x-kubernetes-preserve-unknown-fields": true}}), &[])]
    #[case::number_or_text(
        json!({"a": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}}), &[])]
    #[case::type_under_a_junctor(json!({"a": {"type": "string", "anyOf": [{"type": "string"}]}}),
        &["s.properties[a].anyOf[0].type"])]
    #[case::properties_beside_additional(
        json!({"a": {"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"}}}),
        &["s.properties[a].additionalProperties"])]
    #[case::unique_items(json!({"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}}),
        &["s.properties[a].uniqueItems"])]
    #[case::reference(json!({"a": {"type": "object", "$ref": "#/x"}}), &["s.properties[a].$ref"])]
    #[case::names_of_metadata(json!({"metadata": {"type": "object", "properties": {"name": {"maxLength": 3}}}}), &[])]
    #[case::labels_of_metadata(json!({"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}),
        &["s.properties[metadata]"])]
    #[case::key_that_may_be_missing(json!({"l": {"type": "array", "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}}}}}),
        &["s.properties[l].items.properties[k].default"])]
    #[case::key_that_is_required(json!({"l": {"type": "array", "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}}}), &[])]
    #[case::undeclared_key(json!({"l": {"type": "array", "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {}}}}),
        &["s.properties[l].x-kubernetes-list-map-keys"])]
    fn a_structural_schema(#[case] properties: Value, #[case] wrong: &[&str]) {
        let found = check(&json!({"type": "object", "properties": properties}), "s");
        assert_eq!(found.iter().map(|cause| cause.field.as_str()).collect::<Vec<_>>(), wrong, "{found:?}");
    }
}
