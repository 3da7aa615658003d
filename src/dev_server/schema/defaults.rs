//! Fills in defaults.

use serde_json::Value;

use super::{Null, Schema};

/// Fills in what is missing, and what is null where null can't be kept.
pub(in crate::dev_server) fn fill(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(fields) => {
            for (name, schema) in &schema.properties {
                let missing = match fields.get(name) {
                    None => true,
                    Some(Value::Null) => schema.null == Null::Dropped,
                    Some(_) => false,
                };
                if let (true, Some(default)) = (missing, &schema.default) {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields {
                if let Some(schema) = schema.field(name) {
                    fill(value, schema);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for item in items {
                    fill(item, schema);
                }
            }
        }
        _ => {}
    }
}
