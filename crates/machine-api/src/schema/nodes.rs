//! Schema nodes that say less or more than the Rust type behind them.
//!
//! The types name these functions by `#[schemars(schema_with = …)]`. What they spell out is how the original's
//! definitions treat the node: open metadata, atomic maps, lists keyed by type.

use k8s_openapi::{
    api::core::v1::NodeSpec,
    apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Metadata of the object itself; the API server knows its schema.
pub fn object_metadata(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object"})
}

/// Metadata inside a template: everything is kept. `creationTimestamp` stays undeclared, because it is stored as null.
pub fn template_metadata(_: &mut SchemaGenerator) -> Schema {
    open_object()
}

/// An object of any content.
pub fn any_object(_: &mut SchemaGenerator) -> Schema {
    open_object()
}

fn open_object() -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A label selector, which an apply owns as one value.
pub fn label_selector(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = LabelSelector::json_schema(generator);
    schema.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
    set_list_type(&mut schema, "/properties/matchExpressions", "atomic");
    set_list_type(&mut schema, "/properties/matchExpressions/items/properties/values", "atomic");
    schema
}

/// The original's copy of the Node specification, of which only taints are used.
pub fn node_spec(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = NodeSpec::json_schema(generator);
    set_list_type(&mut schema, "/properties/podCIDRs", "set");
    schema
}

/// Conditions, one per type.
pub fn condition_map(generator: &mut SchemaGenerator) -> Schema {
    let items = Condition::json_schema(generator);
    json_schema!({
        "type": "array",
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

fn set_list_type(schema: &mut Schema, pointer: &str, list_type: &str) {
    if let Some(node) = schema.pointer_mut(pointer).and_then(Value::as_object_mut) {
        node.insert("x-kubernetes-list-type".to_owned(), json!(list_type));
    }
}
