//! Compares the schemas of an installed definition with those of this program. Pure functions.
//!
//! An API server drops each field that the schema of a definition does not have, without a word. A definition that is older than the
//! program therefore loses what the program writes (spec/packaging §7.4, PK-121).

use machine_api::{
    crd::{CrdOptions, definitions},
    kind::Kind,
};
use serde_json::{Map, Value};

/// The number of fields in a message. Further fields are counted.
const NAMED: usize = 5;

/// The fields of this program's schemas that an installed definition lacks, as `version: path`, in every version that both have.
pub fn missing_fields(kind: Kind, installed: &Value) -> Vec<String> {
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

    use super::*;

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
