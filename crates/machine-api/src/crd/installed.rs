//! Compares the schemas of an installed definition with the schemas of this program, and removes from a change what an installed schema lacks.
//! Pure functions.
//!
//! An API server drops each field that the schema of a definition does not have, without a word. A definition that is older than the
//! program therefore loses what the program writes (spec/packaging §7.4, §8.2 PK-121).

use serde_json::{Map, Value};

use super::{CrdOptions, definitions};
use crate::{kind::Kind, names};

/// The number of fields in a message. Further fields are counted.
const NAMED: usize = 5;

/// The fields of this program's schemas that an installed definition lacks, as `version: path`, in every version that both have.
///
/// A definition with `preserveUnknownFields`, from the time of its version v1beta1, lacks none: API servers keep all fields of its objects.
pub fn missing_fields(kind: Kind, installed: &Value) -> Vec<String> {
    if installed["spec"]["preserveUnknownFields"] == true {
        return Vec::new();
    }
    let own = definitions(&CrdOptions::default());
    let Some(own) = own.iter().find(|definition| definition["spec"]["names"]["kind"] == kind.as_str()) else {
        return Vec::new();
    };
    let mut missing = Vec::new();
    for (name, schema) in schemas(own) {
        if let Some((_, there)) = schemas(installed).find(|(other, _)| *other == name) {
            compare(schema, there, &format!("{name}: "), &mut missing);
        }
    }
    missing
}

/// The schema of v1alpha1, the version that this program writes, in an installed definition.
pub fn written_schema(installed: &Value) -> Option<&Value> {
    schemas(installed).find(|(name, _)| *name == names::V1ALPHA1).map(|(_, schema)| schema)
}

/// The members of each object that no schema lists, because the API server itself defines them.
const OF_EVERY_OBJECT: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes the fields of a merge patch, or of a whole object, that an API server drops because of this schema.
pub fn remove_unknown(change: &mut Value, schema: &Value) {
    if let Value::Object(fields) = change {
        fields.retain(|name, below| OF_EVERY_OBJECT.contains(&name.as_str()) || field_is_kept(name, below, schema));
    }
}

/// Whether an API server with this schema keeps the value at a JSON pointer (RFC 6901), as operations of JSON patches have it.
pub fn is_kept(pointer: &str, schema: &Value) -> bool {
    let mut tokens = pointer.split('/').skip(1);
    let first = tokens.next().unwrap_or_default();
    if first.is_empty() || OF_EVERY_OBJECT.contains(&first) {
        return true;
    }
    let mut below = below_member(first, schema);
    for token in tokens {
        below = match below {
            Below::Schema(schema) if schema["items"].is_object() => Below::Schema(&schema["items"]),
            Below::Schema(schema) => below_member(&token.replace("~1", "/").replace("~0", "~"), schema),
            other => return other.is_kept(),
        };
    }
    below.is_kept()
}

/// What a schema says about the value of a member.
#[derive(Clone, Copy)]
enum Below<'a> {
    /// Its schema.
    Schema(&'a Value),
    /// It is kept as it is.
    Anything,
    /// It is dropped.
    Nothing,
}

impl Below<'_> {
    const fn is_kept(self) -> bool {
        !matches!(self, Self::Nothing)
    }
}

fn below_member<'a>(name: &str, schema: &'a Value) -> Below<'a> {
    if let Some(known) = schema["properties"].get(name) {
        return Below::Schema(known);
    }
    if schema["additionalProperties"].is_object() {
        return Below::Schema(&schema["additionalProperties"]);
    }
    let keeps_all = schema["x-kubernetes-preserve-unknown-fields"] == true || schema["additionalProperties"] == true;
    if keeps_all { Below::Anything } else { Below::Nothing }
}

/// Removes what is unknown in the value of a member. False if the member itself is unknown.
fn field_is_kept(name: &str, value: &mut Value, schema: &Value) -> bool {
    match below_member(name, schema) {
        Below::Schema(below) => {
            remove_within(value, below);
            true
        }
        other => other.is_kept(),
    }
}

fn remove_within(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => fields.retain(|name, below| field_is_kept(name, below, schema)),
        Value::Array(items) => items.iter_mut().for_each(|item| remove_within(item, &schema["items"])),
        _ => {}
    }
}

/// The first of many fields, for a message.
pub fn some(fields: &[String]) -> String {
    let first = fields.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match fields.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn schemas<'a>(definition: &'a Value) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let versions = definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let schema =
        |version: &'a Value| Some(&version["schema"]["openAPIV3Schema"]).filter(|schema: &&Value| schema.is_object());
    versions.iter().filter_map(move |version| Some((version["name"].as_str()?, schema(version)?)))
}

fn compare(own: &Value, there: &Value, path: &str, missing: &mut Vec<String>) {
    let known = there["properties"].as_object();
    // Such a schema keeps every field.
    let keeps_all = there["x-kubernetes-preserve-unknown-fields"] == true;
    for (name, schema) in own["properties"].as_object().unwrap_or(&Map::new()) {
        let place = format!("{path}{name}");
        match known.and_then(|known| known.get(name)) {
            Some(there) => compare(schema, there, &format!("{place}."), missing),
            None if keeps_all => {}
            None => missing.push(place),
        }
    }
    for inner in ["items", "additionalProperties"] {
        if own[inner].is_object() && there[inner].is_object() {
            compare(&own[inner], &there[inner], path, missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::known(json!({"status": {"a": 1}}), json!({"status": {"a": 1}}))]
    #[case::unknown(json!({"status": {"a": 1, "b": {"c": 1}}}), json!({"status": {"a": 1}}))]
    #[case::only_unknown(json!({"status": {"b": null}}), json!({"status": {}}))]
    #[case::unknown_at_the_top(json!({"other": 1}), json!({}))]
    #[case::in_a_list(json!({"status": {"l": [{"a": 1, "b": 2}, {"b": 2}]}}), json!({"status": {"l": [{"a": 1}, {}]}}))]
    #[case::in_a_map(json!({"status": {"m": {"k": {"a": 1, "b": 2}}}}), json!({"status": {"m": {"k": {"a": 1}}}}))]
    #[case::kept_as_it_is(json!({"free": {"x": {"y": 1}}}), json!({"free": {"x": {"y": 1}}}))]
    #[case::of_every_object(
        json!({"metadata": {"uid": "u", "labels": {"l": "1"}}}), json!({"metadata": {"uid": "u", "labels": {"l": "1"}}}))]
    fn pk_121_what_a_schema_lacks_is_removed_from_a_change(#[case] mut change: Value, #[case] expected: Value) {
        remove_unknown(&mut change, &small());
        assert_eq!(change, expected);
    }

    #[rstest]
    #[case::known("/status/a", true)]
    #[case::unknown("/status/b", false)]
    #[case::below_an_unknown_field("/status/b/c", false)]
    #[case::in_a_list("/status/l/0/a", true)]
    #[case::unknown_in_a_list("/status/l/-/b", false)]
    #[case::in_a_map("/status/m/some~1key/a", true)]
    #[case::kept_as_it_is("/free/x/y", true)]
    #[case::of_every_object("/metadata/finalizers/0", true)]
    #[case::the_whole_object("", true)]
    fn pk_121_a_pointer_is_kept_as_the_schema_says(#[case] pointer: &str, #[case] expected: bool) {
        assert_eq!(is_kept(pointer, &small()), expected);
    }

    fn small() -> Value {
        let item = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        json!({"properties": {
            "metadata": {"type": "object"},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "status": {"type": "object", "properties": {
                "a": {"type": "integer"},
                "l": {"type": "array", "items": item},
                "m": {"type": "object", "additionalProperties": item},
            }},
        }})
    }

    #[test]
    fn our_own_schemas_keep_all_that_our_types_write() {
        for kind in Kind::ALL {
            let definition = own(kind);
            let schema = written_schema(&definition).unwrap();
            assert!(is_kept("/metadata/labels", schema));
            let parts: &[&str] =
                if kind == Kind::MachineClass { &["/providerSpec/x/y"] } else { &["/status", "/spec"] };
            assert!(parts.iter().all(|part| is_kept(part, schema)), "{kind}");
        }
    }

    fn own(kind: Kind) -> Value {
        let all = definitions(&CrdOptions::default());
        all.into_iter().find(|definition| definition["spec"]["names"]["kind"] == kind.as_str()).unwrap()
    }

    fn without(mut definition: Value, pointer: &str, field: &str) -> Value {
        let place = definition.pointer_mut(pointer).and_then(Value::as_object_mut).unwrap();
        assert!(place.remove(field).is_some(), "{pointer} has {field}");
        definition
    }

    #[test]
    fn our_own_definitions_lack_nothing() {
        for kind in Kind::ALL {
            assert_eq!(missing_fields(kind, &own(kind)), Vec::<String>::new());
        }
    }

    #[rstest]
    #[case::a_field_of_the_specification("spec/properties", "drainTimeout", "v1alpha1: spec.drainTimeout")]
    #[case::a_whole_part("spec/properties", "nodeTemplate", "v1alpha1: spec.nodeTemplate")]
    #[case::at_the_top("", "status", "v1alpha1: status")]
    fn pk_121_a_field_that_an_older_definition_lacks_is_named(
        #[case] within: &str,
        #[case] field: &str,
        #[case] expected: &str,
    ) {
        let pointer = format!("/spec/versions/0/schema/openAPIV3Schema/properties/{within}");
        let older = without(own(Kind::Machine), pointer.trim_end_matches('/'), field);
        assert_eq!(missing_fields(Kind::Machine, &older), [expected]);
    }

    #[rstest]
    #[case::kept(true, 0)]
    #[case::dropped(false, 1)]
    fn pk_121_a_definition_that_preserves_unknown_fields_lacks_none(#[case] preserves: bool, #[case] missing: usize) {
        let mut older = without(own(Kind::Machine), "/spec/versions/0/schema/openAPIV3Schema/properties", "status");
        older["spec"]["preserveUnknownFields"] = preserves.into();
        assert_eq!(missing_fields(Kind::Machine, &older).len(), missing);
    }

    #[test]
    fn a_definition_without_one_version_is_compared_in_the_other() {
        let mut older = own(Kind::Machine);
        older["spec"]["versions"].as_array_mut().unwrap().truncate(1);
        assert_eq!(missing_fields(Kind::Machine, &older), Vec::<String>::new());
    }

    #[test]
    fn only_the_first_fields_are_named() {
        let fields: Vec<String> = (0..7).map(|number| number.to_string()).collect();
        assert_eq!(some(&fields), "0, 1, 2, 3, 4 and 2 more");
        assert_eq!(some(&fields[..2]), "0, 1");
    }
}
