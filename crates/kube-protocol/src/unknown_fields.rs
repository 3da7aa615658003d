//! Finds the fields of an object that its `OpenAPI` schema does not declare.
//!
//! Source: spec/extension-apiserver §2.9 (`fieldValidation`).

use serde_json::Value;

/// The path of a field of the object at `path`.
pub fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

/// Paths of the fields of an object that its schema does not declare. `apiVersion`, `kind` and `metadata` are always known.
pub fn find(object: &Value, schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let Value::Object(fields) = object else { return found };
    for (name, value) in fields {
        if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            field(name, value, schema, "", &mut found);
        }
    }
    found
}

fn field(name: &str, value: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    let path = join(path, name);
    match (schema["properties"].get(name), &schema["additionalProperties"]) {
        (Some(schema), _) | (None, schema @ Value::Object(_)) => walk(value, schema, &path, found),
        (None, Value::Bool(true)) => {}
        _ if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
        _ => found.push(path),
    }
}

fn walk(value: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            // A schema without declared fields is a reference, or it allows every field.
            let declares_no_fields = schema.get("properties").is_none() && schema.get("additionalProperties").is_none();
            let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true;
            if declares_no_fields && (is_open || schema["type"] != "object") {
                return;
            }
            for (name, value) in fields {
                field(name, value, schema, path, found);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                walk(item, &schema["items"], &format!("{path}[{at}]"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_named_with_their_path() {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "name": {"type": "string"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "any": {},
            }},
        }});
        let object = json!({
            "apiVersion": "g/v1", "kind": "Thing", "metadata": {"name": "n", "odd": 1}, "extra": 1,
            "spec": {
                "name": "x", "nmae": "y", "list": [{"a": "1"}, {"b": 2}], "labels": {"k": "v"}, "open": {"z": 1}, "any": {"z": 1},
            },
        });
        let mut found = find(&object, &schema);
        found.sort();
        assert_eq!(found, ["extra", "spec.list[1].b", "spec.nmae"]);
    }
}
