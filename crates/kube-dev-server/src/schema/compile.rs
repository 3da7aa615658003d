//! Compiles the schemas of definitions and `OpenAPI` documents.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value};

use super::{
    Additional, Bounds, ListType, MapType, Nature, PatchStrategy, Schema, Type,
    rules::{self, Rule},
};
use kube_protocol::{openapi::V3_REFERENCE, status::Cause};

/// A built-in schema that contains itself. It allows everything here, and [`super::structure`] checks it.
const RECURSIVE: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Compiles schemas that may refer to each other by name.
pub(crate) struct Compiler<'a> {
    named: &'a BTreeMap<String, Value>,
    done: RefCell<BTreeMap<String, Arc<Schema>>>,
}

/// Compiles the schema of a definition.
///
/// # Errors
/// A cause for each node that is invalid.
pub(crate) fn structural(schema: &Value, path: &str) -> Result<Schema, Vec<Cause>> {
    let none = BTreeMap::new();
    let compiler = Compiler { named: &none, done: RefCell::default() };
    let mut causes = Vec::new();
    let compiled = compiler.node(schema, path, &mut causes);
    if causes.is_empty() { Ok(compiled) } else { Err(causes) }
}

impl<'a> Compiler<'a> {
    pub(crate) fn over(named: &'a BTreeMap<String, Value>) -> Self {
        Self { named, done: RefCell::default() }
    }

    /// The schema with a name. An unknown name allows everything.
    pub(crate) fn named(&self, name: &str) -> Arc<Schema> {
        if let Some(done) = self.done.borrow().get(name) {
            return Arc::clone(done);
        }
        let schema = match self.named.get(name) {
            Some(schema) if name != RECURSIVE => self.node(schema, "", &mut Vec::new()),
            _ => Schema::anything(),
        };
        let schema = Arc::new(schema);
        self.done.borrow_mut().insert(name.to_owned(), Arc::clone(&schema));
        schema
    }

    fn node(&self, schema: &Value, path: &str, causes: &mut Vec<Cause>) -> Schema {
        let Some(fields) = schema.as_object() else {
            causes.push(Cause::invalid(path, schema, "must be a schema"));
            return Schema::anything();
        };
        if let Some(name) = reference(fields) {
            let mut found = (*self.named(name)).clone();
            // The extensions beside a reference apply to the field, not to the type.
            read_extensions(fields, &mut found);
            return found;
        }
        let mut node = Schema { bounds: bounds(fields, path, causes), ..Schema::default() };
        node.value_type = match fields.get("type").and_then(Value::as_str) {
            Some("object") => Some(Type::Object),
            Some("array") => Some(Type::Array),
            Some("string") => Some(Type::String),
            Some("integer") => Some(Type::Integer),
            Some("number") => Some(Type::Number),
            Some("boolean") => Some(Type::Boolean),
            Some(other) => {
                let supported = ["array", "boolean", "integer", "number", "object", "string"].map(Value::from);
                causes.push(Cause::not_supported(super::join(path, "type"), &Value::from(other), &supported));
                None
            }
            None => None,
        };
        if fields.get("nullable") == Some(&Value::Bool(true)) {
            node.nullable = true;
        }
        read_extensions(fields, &mut node);
        self.read_children(fields, path, causes, &mut node);
        if node.default.is_some()
            && node.value_type.is_none()
            && node.nature == Nature::Plain
            && !node.preserves_unknown
        {
            causes.push(Cause::required(super::join(path, "type"), "must not be empty for specified default"));
        }
        node
    }

    fn read_children(&self, fields: &Map<String, Value>, path: &str, causes: &mut Vec<Cause>, node: &mut Schema) {
        if let Some(properties) = fields.get("properties").and_then(Value::as_object) {
            for (name, schema) in properties {
                let path = format!("{path}.properties[{name}]");
                node.properties.insert(name.clone(), Arc::new(self.node(schema, &path, causes)));
            }
        }
        node.additional = match fields.get("additionalProperties") {
            None | Some(Value::Bool(false)) => node.additional.clone(),
            Some(Value::Bool(true)) => Additional::Any,
            Some(schema) => {
                let path = super::join(path, "additionalProperties");
                Additional::Each(Arc::new(self.node(schema, &path, causes)))
            }
        };
        if let Some(items) = fields.get("items") {
            node.items = Some(Arc::new(self.node(items, &super::join(path, "items"), causes)));
        }
        let mut listed = |key: &str| -> Vec<Schema> {
            let list = fields.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            list.iter().map(|schema| self.node(schema, &super::join(path, key), causes)).collect()
        };
        node.all_of = listed("allOf");
        node.any_of = listed("anyOf");
        node.one_of = listed("oneOf");
        node.not = fields.get("not").map(|schema| Box::new(self.node(schema, &super::join(path, "not"), causes)));
        node.required = strings(fields.get("required"));
        if self.named.is_empty() {
            node.default = fields.get("default").cloned();
        } else if matches!(node.value_type, None | Some(Type::Object))
            && fields.get("properties").is_none()
            && fields.get("additionalProperties").is_none()
        {
            // A built-in object without declared fields allows every field. The defaults of built-in kinds are not used, because they only describe
            // zero values.
            node.preserves_unknown = true;
            node.additional = Additional::Any;
        }
        for (at, rule) in
            fields.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten().enumerate()
        {
            match Rule::compile(rule, node) {
                Ok(rule) => node.rules.push(rule),
                Err(why) => {
                    let path = format!("{path}.x-kubernetes-validations[{at}].rule");
                    causes.push(Cause::invalid(path, &rule["rule"], &format!("compilation failed: {why}")));
                }
            }
        }
        if node.rules.len() > rules::MAX_PER_NODE {
            causes.push(Cause::too_long(super::join(path, "x-kubernetes-validations"), "must have at most 100 items"));
        }
        for keyword in
            ["deprecated", "discriminator", "id", "patternProperties", "definitions", "dependencies", "readOnly"]
        {
            if fields.get(keyword).is_some_and(|value| !value.is_null()) && self.named.is_empty() {
                causes.push(Cause::forbidden(super::join(path, keyword), &format!("{keyword} is not supported")));
            }
        }
    }
}

fn reference(fields: &Map<String, Value>) -> Option<&str> {
    let direct = fields.get("$ref").and_then(Value::as_str);
    let wrapped = || match fields.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
        Some([only]) => only["$ref"].as_str(),
        _ => None,
    };
    direct.or_else(wrapped)?.strip_prefix(V3_REFERENCE)
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn read_extensions(fields: &Map<String, Value>, node: &mut Schema) {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    let flag = |key: &str| fields.get(key) == Some(&Value::Bool(true));
    if flag("x-kubernetes-preserve-unknown-fields") {
        node.preserves_unknown = true;
    }
    if flag("x-kubernetes-int-or-string") || text("format") == Some("int-or-string") {
        node.nature = Nature::IntOrString;
    } else if flag("x-kubernetes-embedded-resource") {
        node.nature = Nature::Embedded;
    }
    match text("x-kubernetes-list-type") {
        Some("set") => node.list_type = ListType::Set,
        Some("map") => node.list_type = ListType::Map(strings(fields.get("x-kubernetes-list-map-keys"))),
        Some("atomic") => node.list_type = ListType::Atomic,
        _ => {}
    }
    if text("x-kubernetes-map-type") == Some("atomic") {
        node.map_type = MapType::Atomic;
    }
    if text("x-kubernetes-patch-strategy").is_some_and(|strategy| strategy.split(',').any(|word| word == "merge")) {
        node.patch_strategy = PatchStrategy::Merge(text("x-kubernetes-patch-merge-key").map(str::to_owned));
    }
}

fn bounds(fields: &Map<String, Value>, path: &str, causes: &mut Vec<Cause>) -> Bounds {
    let float = |key: &str| fields.get(key).and_then(Value::as_f64);
    let count = |key: &str| fields.get(key).and_then(Value::as_u64);
    let flag = |key: &str| fields.get(key) == Some(&Value::Bool(true));
    let pattern = fields.get("pattern").and_then(Value::as_str).and_then(|text| {
        // The time of a match is always linear in the length of the text. The limit bounds the size of the compiled pattern.
        let compiled = regex::RegexBuilder::new(text).size_limit(1 << 20).build();
        compiled
            .map_err(|error| {
                let why = error.to_string().lines().last().unwrap_or_default().to_owned();
                causes.push(Cause::invalid(super::join(path, "pattern"), &Value::from(text), &why));
            })
            .ok()
    });
    Bounds {
        minimum: float("minimum"),
        maximum: float("maximum"),
        exclusive_minimum: flag("exclusiveMinimum"),
        exclusive_maximum: flag("exclusiveMaximum"),
        multiple_of: float("multipleOf"),
        min_length: count("minLength"),
        max_length: count("maxLength"),
        min_items: count("minItems"),
        max_items: count("maxItems"),
        min_properties: count("minProperties"),
        max_properties: count("maxProperties"),
        unique_items: flag("uniqueItems"),
        pattern,
        format: fields.get("format").and_then(Value::as_str).map(str::to_owned),
        enum_values: fields.get("enum").and_then(Value::as_array).cloned(),
    }
}
