//! Drops what a kind does not know.

use serde_json::Value;

use super::{Additional, Nature, Schema, join};

/// Drops unknown fields of a whole object, and tells their paths. `apiVersion`, `kind` and `metadata` stay.
pub(crate) fn object(value: &mut Value, schema: &Schema) -> Vec<String> {
    let mut dropped = Vec::new();
    prune(value, schema, "", IsObject::Yes, &mut dropped);
    dropped
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IsObject {
    Yes,
    No,
}

fn prune(value: &mut Value, schema: &Schema, path: &str, is_object: IsObject, dropped: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let keeps_head = is_object == IsObject::Yes || schema.nature == Nature::Embedded;
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
                    prune(value, schema, &join(path, name), IsObject::No, dropped);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = &schema.items else { return };
            for (at, item) in items.iter_mut().enumerate() {
                prune(item, schema, &format!("{path}[{at}]"), IsObject::No, dropped);
            }
        }
        _ => {}
    }
}

/// Drops nulls in fields that can't be null, as decoding into types does.
pub(crate) fn nulls(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                !value.is_null()
                    || schema.preserves_unknown && schema.field(name).is_none()
                    || schema
                        .field(name)
                        .is_none_or(|schema| schema.null == super::Null::Kept || schema.preserves_unknown)
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
