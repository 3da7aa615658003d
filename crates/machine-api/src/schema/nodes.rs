//! Schema nodes that differ from the schema of their Rust type.
//!
//! The types name these functions with `#[schemars(schema_with = …)]`. The functions follow the definitions of the Go original: open metadata, atomic
//! maps, and lists with the type as key.

use k8s_openapi::{
    api::core::v1::NodeSpec,
    apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// The metadata of the object itself. The API server has its schema.
pub fn object_metadata(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object"})
}

/// The metadata of a template, where every field is kept. `creationTimestamp` is not declared, because it is stored as null.
pub fn template_metadata(_: &mut SchemaGenerator) -> Schema {
    open_object()
}

/// An object with any content.
pub fn any_object(_: &mut SchemaGenerator) -> Schema {
    open_object()
}

fn open_object() -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A label selector. It is atomic: server-side apply owns it as one value.
pub fn label_selector(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = LabelSelector::json_schema(generator);
    schema.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
    set_list_type(&mut schema, "/properties/matchExpressions", "atomic");
    set_list_type(&mut schema, "/properties/matchExpressions/items/properties/values", "atomic");
    schema
}

/// The Go original's copy of the Node specification, of which only the taints are used.
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
