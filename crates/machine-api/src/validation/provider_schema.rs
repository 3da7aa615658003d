//! Checks a `providerSpec` with the JSON Schema of its driver (spec/api-and-admission §5.4, CLS-4, CLS-5, CLS-18).
//!
//! A schema is compiled once and used often. It may have references to its own parts, but no other references: no file is read and nothing is
//! fetched. A value is first changed to what Go would read: `null` counts as absent, and a key that differs from a known key only by case counts as
//! the known key.

use std::borrow::Cow;

use jsonschema::{
    Validator,
    error::{TypeKind, ValidationError, ValidationErrorKind},
    paths::{Location, LocationSegment},
};
use kube_values::syntax;
use serde_json::{Map, Value};

use super::{
    node::Node,
    rule::{Rule, refuses, warns},
};
use kube_values::field::{FieldPath, Findings};

pub const CLS_4: Rule = refuses(
    "CLS-4",
    "The fields of the provider specification have the types that the driver demands.",
    &["V118", "V119"],
);
pub const CLS_5: Rule =
    warns("CLS-5", "The driver knows the fields of the provider specification.", &["V118", "V118b"]);
pub const CLS_18: Rule = warns("CLS-18", "The node template says the same as the provider specification.", &["CLS-18"]);
/// The keyword of a property that must be equal to a field of `nodeTemplate`. Its value is the name of the field.
const SAME_AS: &str = "x-node-template";
/// The maximum depth of the search for unknown fields.
const DEPTH_MAX: usize = 32;

/// A compiled schema.
#[derive(Debug)]
pub struct ProviderSchema {
    schema: Value,
    validator: Validator,
}

impl ProviderSchema {
    /// Compiles a schema of draft 2020-12.
    ///
    /// # Errors
    ///
    /// The problem of the schema: it is invalid, or it has a reference to another document.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        let options = jsonschema::options().with_draft(jsonschema::Draft::Draft202012);
        let validator = options.build(schema).map_err(|error| error.to_string())?;
        Ok(Self { schema: schema.clone(), validator })
    }

    /// Adds the findings of the schema for a `providerSpec`. `path` is the prefix of all paths.
    pub fn check(&self, provider_spec: &Value, path: &FieldPath, found: &mut Findings) {
        let read = as_go_reads(&self.schema, provider_spec);
        for error in self.validator.iter_errors(&read) {
            objection(&error, path, found);
        }
        walk(&self.schema, &self.schema, &read, path, 0, &mut |path, name, known| {
            if found.warnings_are_full() {
                return found.leave_out_warning(CLS_5.id);
            }
            let meant = syntax::nearest(name, known.keys().map(String::as_str));
            let hint = meant.map(|meant| format!(" (did you mean {meant:?}?)")).unwrap_or_default();
            let detail = format!("unknown field \"{}\"{hint}", path.child(name));
            found.warn(CLS_5.id, FieldPath::default(), Value::Null, detail);
        });
    }

    /// Adds a warning for each field that differs from the node template. `path` is the prefix of all paths.
    pub fn compare_with_node_template(
        &self,
        provider_spec: Node<'_>,
        node_template: Node<'_>,
        path: (&FieldPath, &FieldPath),
        found: &mut Findings,
    ) {
        let (spec_path, template_path) = path;
        compare(&self.schema, provider_spec, spec_path, &mut |field, value, path| {
            let template = node_template.get(field).text().filter(|text| !text.is_empty());
            if let Some(text) = template.filter(|text| *text != value) {
                found.warn(CLS_18.id, template_path.child(field), text, format!("differs from {path}"));
            }
        });
    }
}

/// The value that Go's decoder would read for this schema.
pub fn as_go_reads(schema: &Value, value: &Value) -> Value {
    read(schema, schema, value, 0)
}

fn read(root: &Value, schema: &Value, value: &Value, depth: usize) -> Value {
    let schema = resolve(root, schema);
    match value {
        _ if depth > DEPTH_MAX => value.clone(),
        Value::Object(members) => {
            let known = properties(schema);
            let mut out = Map::new();
            for (key, value) in members.iter().filter(|(_, value)| !value.is_null()) {
                let (key, below) = known_key(known, members, key);
                let below = below.or_else(|| schema.get("additionalProperties")).unwrap_or(&Value::Null);
                out.insert(key.to_owned(), read(root, below, value, depth + 1));
            }
            Value::Object(out)
        }
        Value::Array(elements) => {
            let below = schema.get("items").unwrap_or(&Value::Null);
            elements.iter().map(|value| read(root, below, value, depth + 1)).collect()
        }
        other => other.clone(),
    }
}

/// The property of a key, and its schema: the property with this name, or else a property that differs by case and is not in the object itself.
fn known_key<'a>(
    known: Option<&'a Map<String, Value>>,
    given: &Map<String, Value>,
    key: &'a str,
) -> (&'a str, Option<&'a Value>) {
    if let Some(schema) = known.and_then(|known| known.get(key)) {
        return (key, Some(schema));
    }
    let by_case = known.into_iter().flatten().find(|(name, _)| name.eq_ignore_ascii_case(key));
    match by_case.filter(|(name, _)| !given.contains_key(*name)) {
        Some((name, schema)) => (name, Some(schema)),
        None => (key, None),
    }
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

/// The schema, or the part of the whole schema that it refers to.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let pointer = schema.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
    pointer.and_then(|pointer| root.pointer(pointer)).unwrap_or(schema)
}

/// CLS-4: makes one finding from one error of the schema.
fn objection(error: &ValidationError<'_>, path: &FieldPath, found: &mut Findings) {
    let path = below(path, error.instance_path());
    let value = error.instance().as_ref();
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            found.required(CLS_4.id, child(&path, property.as_str().unwrap_or_default()), "");
        }
        ValidationErrorKind::Type { kind } => {
            let detail = format!("expected {}, got {}", type_names(kind), type_name(value));
            found.invalid(CLS_4.id, path, value.clone(), detail);
        }
        ValidationErrorKind::Enum { options } => {
            let words: Vec<Cow<'_, str>> = options.as_array().into_iter().flatten().map(word).collect();
            let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
            found.not_supported(CLS_4.id, path, value.clone(), &words);
        }
        // CLS-5 reports unknown fields as warnings, also if the schema forbids them, because the driver ignores them.
        ValidationErrorKind::AdditionalProperties { .. } | ValidationErrorKind::UnevaluatedProperties { .. } => {}
        // The message of the schema without the value, because the value may be a secret.
        _ => found.invalid(CLS_4.id, path, value.clone(), error.masked().to_string()),
    }
}

fn word(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

fn below(path: &FieldPath, location: &Location) -> FieldPath {
    location.segments().fold(path.clone(), |path, segment| match segment {
        LocationSegment::Property(name) => child(&path, &name),
        LocationSegment::Index(index) => path.index(index),
    })
}

/// `path.name`, or `path[name]` if the name is not a plain identifier, such as the key of a tag.
fn child(path: &FieldPath, name: &str) -> FieldPath {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'$'));
    if is_word { path.child(name) } else { path.key(name) }
}

fn type_names(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(wanted) => wanted.to_string(),
        TypeKind::Multiple(wanted) => {
            let names: Vec<_> = wanted.iter().map(|wanted| wanted.to_string()).filter(|name| name != "null").collect();
            names.join(" or ")
        }
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Called for each unknown member, with its parent's path, its name, and the known names there.
type Report<'a> = dyn FnMut(&FieldPath, &str, &Map<String, Value>) + 'a;

/// Reports each member that is not in the properties of the schema. If the schema allows additional properties, all members are known.
fn walk(root: &Value, schema: &Value, value: &Value, path: &FieldPath, depth: usize, report: &mut Report<'_>) {
    if depth > DEPTH_MAX {
        return;
    }
    let schema = resolve(root, schema);
    match value {
        Value::Object(members) => {
            let further = schema.get("additionalProperties").filter(|further| **further != Value::Bool(false));
            let known = properties(schema);
            for (name, value) in members {
                match (known.and_then(|known| known.get(name)), further) {
                    (Some(below), _) | (None, Some(below)) => {
                        walk(root, below, value, &child(path, name), depth + 1, report);
                    }
                    (None, None) => {
                        if let Some(known) = known {
                            report(path, name, known);
                        }
                    }
                }
            }
        }
        Value::Array(elements) => {
            if let Some(below) = schema.get("items") {
                for (index, value) in elements.iter().enumerate() {
                    walk(root, below, value, &path.index(index), depth + 1, report);
                }
            }
        }
        _ => {}
    }
}

/// Reports each text whose property must be equal to a field of the node template.
fn compare(schema: &Value, value: Node<'_>, path: &FieldPath, report: &mut dyn FnMut(&str, &str, &FieldPath)) {
    for (name, schema) in properties(schema).into_iter().flatten() {
        let (value, path) = (value.get(name), child(path, name));
        match (schema.get(SAME_AS).and_then(Value::as_str), value.text()) {
            (Some(field), Some(text)) => report(field, text, &path),
            _ => compare(schema, value, &path, report),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use kube_values::json::Json;

    fn schema() -> Value {
        json!({
            "type": "object",
            "required": ["image"],
            "properties": {
                "image": {"type": "string"},
                "place": {"type": "object", "properties": {"region": {"type": "string", "x-node-template": "region"}}},
                "disks": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/disk"}},
                "tags": {"type": "object", "additionalProperties": {"type": "string"}},
                "mode": {"enum": ["fast", "slow"]},
                "count": {"type": ["integer", "null"], "minimum": 1},
                "password": {"type": "string", "pattern": "^[a-z]+$"},
                "open": {"type": "object", "properties": {"a": {}}, "additionalProperties": true},
            },
            "$defs": {"disk": {"type": "object", "properties": {"size": {"type": "integer"}}}},
        })
    }

    #[rstest]
    #[case::nothing_wrong(json!({"image": "i"}), &[], &[])]
    #[case::v119_a_number_in_quotes(json!({"image": "i", "disks": [{"size": "50"}]}), &["providerSpec.disks[0].size: Invalid value: \"50\": expected integer, got string"], &[])]
    #[case::missing(json!({}), &["providerSpec.image: Required value"], &[])]
    #[case::null_is_missing(json!({"image": null}), &["providerSpec.image: Required value"], &[])]
    #[case::null_is_no_wrong_type(json!({"image": "i", "tags": null}), &[], &[])]
    #[case::another_case_means_the_same(json!({"IMAGE": 5}), &["providerSpec.image: Invalid value: 5: expected string, got integer"], &[])]
    #[case::a_word_nobody_knows(json!({"image": "i", "mode": "warp"}), &["providerSpec.mode: Unsupported value: \"warp\": supported values: \"fast\", \"slow\""], &[])]
    #[case::several_types(json!({"image": "i", "count": "x"}), &["providerSpec.count: Invalid value: \"x\": expected integer, got string"], &[])]
    #[case::a_bound(json!({"image": "i", "count": 0}), &["providerSpec.count: Invalid value: 0: value is less than the minimum of 1"], &[])]
    #[case::a_secret_is_not_shown(json!({"image": "i", "password": "S3cret"}), &["providerSpec.password: Invalid value: \"***\": value does not match \"^[a-z]+$\""], &[])]
    #[case::a_key_that_is_no_word(json!({"image": "i", "tags": {"a.b/c": 5}}), &["providerSpec.tags[a.b/c]: Invalid value: 5: expected string, got integer"], &[])]
    #[case::v118_a_slip(json!({"image": "i", "imag": "x"}), &[], &["unknown field \"providerSpec.imag\" (did you mean \"image\"?)"])]
    #[case::deeper(json!({"image": "i", "disks": [{"zoom": 1}]}), &[], &["unknown field \"providerSpec.disks[0].zoom\""])]
    #[case::where_anything_goes(json!({"image": "i", "open": {"b": 1}}), &[], &[])]
    #[case::no_object(json!("x"), &["providerSpec: Invalid value: \"x\": expected object, got string"], &[])]
    fn a_provider_spec_is_checked(#[case] spec: Value, #[case] denials: &[&str], #[case] warnings: &[&str]) {
        let mut found = Findings::new();
        ProviderSchema::compile(&schema()).unwrap().check(&spec, &FieldPath::new("providerSpec"), &mut found);
        assert_eq!(found.errors().map(ToString::to_string).collect::<Vec<_>>(), denials);
        assert_eq!(found.warnings().collect::<Vec<_>>(), warnings);
    }

    #[rstest]
    #[case::the_same(json!({"region": "r"}), &[])]
    #[case::another(json!({"region": "s"}), &["nodeTemplate.region: differs from providerSpec.place.region"])]
    #[case::none(json!({}), &[])]
    fn cls_18_the_node_template_is_compared(#[case] template: Value, #[case] warnings: &[&str]) {
        let mut found = Findings::new();
        let spec = json!({"image": "i", "place": {"region": "r"}});
        let paths = (&FieldPath::new("providerSpec"), &FieldPath::new("nodeTemplate"));
        let schema = ProviderSchema::compile(&schema()).unwrap();
        let (spec, template) = (Json::from(&spec), Json::from(&template));
        schema.compare_with_node_template(Node::of(&spec), Node::of(&template), paths, &mut found);
        assert_eq!(found.warnings().collect::<Vec<_>>(), warnings);
    }

    #[rstest]
    #[case::elsewhere_on_the_network(json!({"$ref": "https://example.com/schema.json"}))]
    #[case::a_file(json!({"$ref": "file:///etc/passwd"}))]
    #[case::no_schema(json!({"type": "strong"}))]
    fn a_schema_that_cannot_be_used_is_refused(#[case] schema: Value) {
        assert!(ProviderSchema::compile(&schema).is_err());
    }

    #[test]
    fn deep_nesting_ends() {
        let schema = json!({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}});
        let mut spec = json!({});
        for _ in 0..100 {
            spec = json!({ "n": spec });
        }
        let mut found = Findings::new();
        ProviderSchema::compile(&schema).unwrap().check(&spec, &FieldPath::new("providerSpec"), &mut found);
        assert!(found.is_empty());
    }
}
