//! Makes the structural schema that Kubernetes requires from a Rust type.
//!
//! The types derive `JsonSchema`, so that a new field is declared automatically. A structural schema allows less than JSON Schema, and this file
//! rewrites the differences. [`nodes`] has the nodes whose schema differs from their Rust type. [`crate::crd`] adds bounds and rules.

pub mod nodes;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    kind::{ApiVersion, Kind},
    v1alpha1, v1beta1,
};

/// The schema of the objects of a kind in a version.
pub fn of(kind: Kind, version: ApiVersion) -> Value {
    match (kind, version) {
        (Kind::Machine, ApiVersion::V1alpha1) => structural::<v1alpha1::Machine>(),
        (Kind::Machine, ApiVersion::V1beta1) => structural::<v1beta1::Machine>(),
        (Kind::MachineSet, ApiVersion::V1alpha1) => structural::<v1alpha1::MachineSet>(),
        (Kind::MachineSet, ApiVersion::V1beta1) => structural::<v1beta1::MachineSet>(),
        (Kind::MachineDeployment, ApiVersion::V1alpha1) => structural::<v1alpha1::MachineDeployment>(),
        (Kind::MachineDeployment, ApiVersion::V1beta1) => structural::<v1beta1::MachineDeployment>(),
        (Kind::MachineClass, ApiVersion::V1alpha1) => structural::<v1alpha1::MachineClass>(),
        (Kind::MachineClass, ApiVersion::V1beta1) => structural::<v1beta1::MachineClass>(),
    }
}

/// The schema of a stored type, with `apiVersion` and `kind`, and without parts that an API server refuses.
fn structural<T: JsonSchema>() -> Value {
    made_of::<T>(SchemaSettings::draft07())
}

/// The schema of a type that only this program writes: a field is required if it is always written.
pub fn structural_of_answers<T: JsonSchema>() -> Value {
    made_of::<T>(SchemaSettings::draft07().for_serialize())
}

fn made_of<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let generator = settings.with(|settings| settings.inline_subschemas = true).into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    rewrite(&mut schema);
    if let Some(properties) = schema.pointer_mut("/properties").and_then(Value::as_object_mut) {
        for (name, description) in
            [("apiVersion", "Group and version of this representation of the object."), ("kind", "Kind of the object.")]
        {
            properties.insert(name.to_owned(), json!({"type": "string", "description": description}));
        }
        // The API server has its own schema for metadata, and refuses every other keyword here, also a description.
        if properties.contains_key("metadata") {
            properties.insert("metadata".to_owned(), json!({"type": "object"}));
        }
    }
    schema
}

fn rewrite(schema: &mut Value) {
    if *schema == json!(true) {
        *schema = json!({"x-kubernetes-preserve-unknown-fields": true});
    }
    let Some(node) = schema.as_object_mut() else { return };
    // A default would change the stored objects. The intended defaults are among the rules.
    for word in ["$schema", "title", "default", "definitions"] {
        node.remove(word);
    }
    forget_null(node);
    // The bounds of Rust's integer types are not the bounds of the field.
    if node.get("type") == Some(&json!("integer")) {
        node.remove("minimum");
        node.remove("maximum");
    }
    if node.get("x-kubernetes-int-or-string") == Some(&json!(true)) {
        node.insert("anyOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
    }
    if let Some(Value::String(description)) = node.get_mut("description") {
        *description = for_users(description);
    }
    if let Some(properties) = node.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(rewrite);
    }
    for child in ["items", "additionalProperties"] {
        if let Some(child) = node.get_mut(child) {
            rewrite(child);
        }
    }
}

/// Removes null from the schema of an `Option`. The API server drops nulls of fields that are not nullable, which has the meaning of Go's zero
/// values.
fn forget_null(node: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = node.get("type") {
        let others: Vec<_> = types.iter().filter(|name| **name != json!("null")).cloned().collect();
        if let [only] = others.as_slice() {
            node.insert("type".to_owned(), only.clone());
        }
    }
    let Some(Value::Array(branches)) = node.get("anyOf") else { return };
    let others: Vec<_> = branches.iter().filter(|branch| branch.get("type") != Some(&json!("null"))).cloned().collect();
    if let [Value::Object(only)] = others.as_slice() {
        node.remove("anyOf");
        for (word, value) in only {
            node.entry(word.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// A doc comment as `kubectl explain` shows it: one paragraph, without links and without references for developers.
fn for_users(description: &str) -> String {
    let mut text = description.split_whitespace().collect::<Vec<_>>().join(" ");
    for reference in [" (spec/", " (decisions.md"] {
        while let Some(start) = text.find(reference) {
            let Some(len) = text[start..].find(')') else { break };
            text.replace_range(start..=start + len, "");
        }
    }
    text.replace("[`", "`").replace("`]", "`")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source is not part of the text (spec/nowhere §1).
    #[derive(JsonSchema)]
    #[allow(dead_code)]
    struct Sample {
        /// A count.
        count: Option<i32>,
        nested: Option<Nested>,
        list: Vec<Nested>,
    }

    #[derive(JsonSchema, Default)]
    #[schemars(default)]
    #[allow(dead_code)]
    struct Nested {
        size: u8,
    }

    /// A type with fields that are left out.
    #[derive(JsonSchema, serde::Serialize)]
    #[allow(dead_code)]
    struct Told {
        #[serde(default)]
        always: i32,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        sometimes: Vec<i32>,
    }

    #[test]
    fn fields_that_are_always_written_are_required() {
        assert_eq!(structural_of_answers::<Told>()["required"], json!(["always"]));
    }

    #[test]
    fn a_type_becomes_a_structural_schema() {
        let nested = json!({"type": "object", "properties": {"size": {"type": "integer", "format": "uint8"}}});
        let mut schema = structural::<Sample>();
        schema["properties"].as_object_mut().unwrap().retain(|name, _| name != "apiVersion" && name != "kind");
        assert_eq!(
            schema,
            json!({
                "description": "The source is not part of the text.",
                "type": "object",
                "required": ["list"],
                "properties": {
                    "count": {"description": "A count.", "type": "integer", "format": "int32"},
                    "nested": nested,
                    "list": {"type": "array", "items": nested},
                },
            })
        );
    }
}
