//! Fills in defaults.

use std::sync::Arc;

use serde_json::Value;

use super::Schema;

/// Whether [`fill`] would leave the value unchanged.
pub(crate) fn is_filled(value: &Value, schema: &Schema) -> bool {
    match value {
        Value::Object(fields) => {
            let missing = |(name, schema): (&String, &Arc<Schema>)| {
                schema.default.is_some() && fields.get(name).is_none_or(|value| value.is_null() && !schema.nullable)
            };
            !schema.properties.iter().any(missing)
                && fields.iter().all(|(name, value)| schema.field(name).is_none_or(|schema| is_filled(value, schema)))
        }
        Value::Array(items) => {
            schema.items.as_ref().is_none_or(|schema| items.iter().all(|item| is_filled(item, schema)))
        }
        _ => true,
    }
}

/// Fills the defaults into missing fields, and into null fields that are not nullable.
pub(crate) fn fill(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(fields) => {
            for (name, schema) in &schema.properties {
                let missing = match fields.get(name) {
                    None => true,
                    Some(Value::Null) => !schema.nullable,
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
