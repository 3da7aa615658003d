//! Structural schemas of objects, for built-in and custom kinds.
//!
//! [`structure`] checks whether the schema of a definition is structural. [`compile`] compiles a schema. [`prune`], [`defaults`], [`validate`] and
//! [`rules`] apply the compiled schema to objects. Patches and managed fields use its list and map types.
//! Source: spec/extension-apiserver §6.4.

pub(super) mod compile;
pub(super) mod defaults;
mod optional;
pub(super) mod prune;
#[cfg(test)]
mod release_tests;
pub(super) mod rules;
pub(super) mod structure;
mod undefined;
pub(super) mod validate;

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

/// The JSON type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// The additional fields that an object may have.
#[derive(Clone, Debug, Default)]
pub(super) enum Additional {
    /// No additional fields; they are dropped.
    #[default]
    None,
    /// Any additional fields.
    Any,
    /// Additional fields with this schema.
    Each(Arc<Schema>),
}

/// The type of a list for merging and field ownership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ListType {
    #[default]
    Atomic,
    Set,
    /// These fields are the key of an element.
    Map(Vec<String>),
}

/// Whether the fields of an object have separate owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MapType {
    #[default]
    Granular,
    Atomic,
}

/// Special types of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Nature {
    #[default]
    Plain,
    /// An integer or a string.
    IntOrString,
    /// An embedded Kubernetes object.
    Embedded,
}

/// The strategy of strategic merge patches for a list or object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum PatchStrategy {
    #[default]
    Replace,
    /// Elements are merged by this field. `None` for a list of plain values.
    Merge(Option<String>),
}

/// The bounds of a value.
#[derive(Clone, Debug, Default)]
pub(super) struct Bounds {
    pub(super) minimum: Option<f64>,
    pub(super) maximum: Option<f64>,
    pub(super) exclusive_minimum: bool,
    pub(super) exclusive_maximum: bool,
    pub(super) multiple_of: Option<f64>,
    pub(super) min_length: Option<u64>,
    pub(super) max_length: Option<u64>,
    pub(super) min_items: Option<u64>,
    pub(super) max_items: Option<u64>,
    pub(super) min_properties: Option<u64>,
    pub(super) max_properties: Option<u64>,
    pub(super) unique_items: bool,
    pub(super) pattern: Option<regex::Regex>,
    pub(super) format: Option<String>,
    pub(super) enum_values: Option<Vec<Value>>,
}

/// A node of a schema.
#[derive(Clone, Debug, Default)]
pub(super) struct Schema {
    pub(super) value_type: Option<Type>,
    /// Whether null is kept as a value. Otherwise null is dropped.
    pub(super) nullable: bool,
    pub(super) nature: Nature,
    pub(super) preserves_unknown: bool,
    pub(super) properties: BTreeMap<String, Arc<Schema>>,
    pub(super) additional: Additional,
    pub(super) items: Option<Arc<Schema>>,
    pub(super) required: Vec<String>,
    pub(super) default: Option<Value>,
    pub(super) bounds: Bounds,
    pub(super) list_type: ListType,
    pub(super) map_type: MapType,
    pub(super) patch_strategy: PatchStrategy,
    pub(super) all_of: Vec<Schema>,
    pub(super) any_of: Vec<Schema>,
    pub(super) one_of: Vec<Schema>,
    pub(super) not: Option<Box<Schema>>,
    pub(super) rules: Vec<rules::Rule>,
}

impl Schema {
    /// A node that allows every value.
    pub(super) fn anything() -> Self {
        Self { preserves_unknown: true, additional: Additional::Any, ..Self::default() }
    }

    /// The schema of a field.
    pub(super) fn field(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).map(AsRef::as_ref).or(match &self.additional {
            Additional::Each(schema) => Some(schema),
            Additional::None | Additional::Any => None,
        })
    }
}

/// The path of a field in messages.
pub(super) fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}
