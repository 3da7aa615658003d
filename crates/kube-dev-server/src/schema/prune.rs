//! Drops unknown fields.

use serde_json::Value;

use super::{Additional, Nature, Schema, join};

/// Drops the unknown fields of an object and returns their paths. `apiVersion`, `kind` and `metadata` stay.
pub(crate) fn object(value: &mut Value, schema: &Schema) -> Vec<String> {
    let mut dropped = Vec::new();
    prune(value, schema, "", true, &mut dropped);
    dropped
}

fn prune(value: &mut Value, schema: &Schema, path: &str, is_object: bool, dropped: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let keeps_head = is_object || schema.nature == Nature::Embedded;
            let head = |name: &str| keeps_head && matches!(name, "apiVersion" | "kind" | "metadata");
            let open = schema.preserves_unknown || matches!(schema.additional, Additional::Any);
            fields.retain(|name, _| {
                let known = open || head(name) || schema.field(name).is_some();
                if !known {
                    dropped.push(join(path, name));
                }
                known
            });
            for (name, value) in fields {
                if let Some(schema) = schema.field(name)
                    && (!head(name) || schema.properties.contains_key("labels"))
                {
                    prune(value, schema, &join(path, name), false, dropped);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = &schema.items else { return };
            for (at, item) in items.iter_mut().enumerate() {
                prune(item, schema, &format!("{path}[{at}]"), false, dropped);
            }
        }
        _ => {}
    }
}

/// Drops null fields that are not nullable. Kubernetes does the same when it decodes an object into its Go type.
pub(crate) fn nulls(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                !value.is_null()
                    || schema.preserves_unknown && schema.field(name).is_none()
                    || schema.field(name).is_none_or(|schema| schema.nullable || schema.preserves_unknown)
                        && schema.field(name).is_some()
            });
            for (name, value) in fields {
                if let Some(schema) = schema.field(name) {
                    nulls(value, schema);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for item in items {
                    nulls(item, schema);
                }
            }
        }
        _ => {}
    }
}
