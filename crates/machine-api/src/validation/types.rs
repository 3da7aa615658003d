//! Checks that every known field has its JSON type. Wrong types are reported only here.
//!
//! The schema validation of the API server does the same if the current CRDs are installed. These checks are for older schemas, for parts that keep
//! unknown fields, for stored invalid values, and for `mcm validate`. Unknown fields are ignored, because the API server removes them.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::Value;

use super::{
    machine_spec::MCH_24,
    node::{Node, integer},
    node_template::MCH_11,
    rule::{Rule, original},
};
use crate::{
    kind::{ApiVersion, Kind},
    schema,
};
use kube_values::{
    field::{Findings, PathRef, RuleId},
    json::{Json, Members},
};

/// The rule for a wrong type if no other rule is for the field.
pub const TYPE: Rule = original("TYPE", "Every known field has its JSON type.", &["V19", "M15", "M23"]);

/// The JSON type of a field.
enum Shape {
    Text,
    Boolean,
    Int32,
    Int64,
    IntOrText,
    /// Any object.
    Map,
    /// An object with text values. The rule is for a value that is no text.
    TextMap(RuleId),
    List(Box<Shape>),
    Object(Fields),
}

/// The fields that are checked, in the order in which mistakes are reported.
type Fields = Vec<(String, Shape)>;

use Shape::{Boolean, Int32, Int64, IntOrText, List, Map, Object, Text, TextMap};

/// The order in which mistakes are reported, for all kinds together. Other fields come last, sorted by name.
#[rustfmt::skip]
const ORDER: &[&str] = &[
    "metadata", "apiGroup", "key", "value", "effect", "kind", "name", "generateName", "namespace", "matchLabels", "labels", "annotations",
    "provider", "providerSpec", "secretRef", "userDataSecretRef", "credentialsSecretRef",
    "replicas", "selector", "machineClass", "template", "type", "rollingUpdate", "strategy", "class", "classRef", "providerID", "nodeTemplate",
    "drainTimeout", "healthTimeout", "creationTimeout", "inPlaceUpdateTimeout", "machinePreserveTimeout", "preserveTimeout",
    "disableHealthTimeout", "healthCheck", "maxEvictRetries", "nodeConditions", "unhealthyNodeConditions",
    "maxSurge", "maxUnavailable", "minReadySeconds", "revisionHistoryLimit", "paused", "rollbackTo", "progressDeadlineSeconds",
    "capacity", "virtualCapacity", "instanceType", "region", "zone",
];

/// Adds a finding for every known field of an object that has the wrong JSON type. `null` counts as absent, except as an
/// element of a list.
pub fn fields_have_their_types(kind: Kind, version: ApiVersion, object: &Json<'_>, found: &mut Findings) {
    if !object.is_object() {
        found.mistyped(TYPE.id, PathRef::new(""), object, "must be an object");
        return;
    }
    let shapes = shape_of(kind, version);
    // Almost every object is valid.
    if members_fit(shapes, object) {
        return;
    }
    let root = PathRef::new("");
    for (name, shape) in shapes {
        shape.check(Node::of(object).get(name), root.child(name), found);
    }
}

fn shape_of(kind: Kind, version: ApiVersion) -> &'static [(String, Shape)] {
    static SHAPES: LazyLock<BTreeMap<(Kind, ApiVersion), Fields>> = LazyLock::new(|| {
        let all = Kind::ALL.into_iter().flat_map(|kind| ApiVersion::ALL.map(|version| (kind, version)));
        all.map(|(kind, version)| ((kind, version), fields(&schema::of(kind, version), ""))).collect()
    });
    &SHAPES[&(kind, version)]
}

/// The fields in the schema of an object, without the status, and without the parts of a node template that the Node does not get.
fn fields(schema: &Value, path: &str) -> Fields {
    let is_judged = |name: &str| match path {
        "" => !["apiVersion", "kind", "status"].contains(&name),
        path => !path.ends_with("nodeTemplate.spec") || name == "taints",
    };
    let declared = schema["properties"].as_object().into_iter().flatten().filter(|(name, _)| is_judged(name));
    let mut fields: Fields = declared
        .map(|(name, schema)| (name.clone(), shape(schema, format!("{path}.{name}").trim_start_matches('.'))))
        .collect();
    fields.sort_by_key(|(name, _)| ORDER.iter().position(|known| known == name).unwrap_or(ORDER.len()));
    fields
}

fn shape(schema: &Value, path: &str) -> Shape {
    const OF_TEMPLATES: [&str; 6] = ["name", "generateName", "namespace", "labels", "annotations", "finalizers"];
    // The API server has the schema of metadata.
    if path == "metadata" {
        return metadata(&[&OF_TEMPLATES[..], &["deletionTimestamp", "ownerReferences"]].concat(), TYPE.id);
    } else if path.ends_with("nodeTemplate.metadata") {
        return metadata(&["labels", "annotations"], MCH_11.id);
    } else if path.ends_with("template.metadata") {
        return metadata(&OF_TEMPLATES, MCH_24.id);
    }
    match schema["type"].as_str() {
        Some("string") => Text,
        Some("boolean") => Boolean,
        Some("integer") if schema["format"] == "int64" => Int64,
        Some("integer") => Int32,
        Some("array") => List(Box::new(shape(&schema["items"], path))),
        Some(_) if schema["properties"].is_object() => Object(fields(schema, path)),
        Some(_) if schema["additionalProperties"]["type"] == "string" => TextMap(TYPE.id),
        Some(_) => Map,
        None => IntOrText,
    }
}

/// Metadata in which these fields are checked.
fn metadata(names: &[&str], rule: RuleId) -> Shape {
    let shape = |name: &str| match name {
        "labels" | "annotations" => TextMap(rule),
        "finalizers" => List(Box::new(Text)),
        "ownerReferences" => List(Box::new(Map)),
        _ => Text,
    };
    Object(names.iter().map(|name| ((*name).to_owned(), shape(name))).collect())
}

/// Whether all known members have their types.
fn members_fit(fields: &[(String, Shape)], object: &Json<'_>) -> bool {
    object.as_object().is_some_and(|members| {
        members.iter().all(|(name, value)| {
            let shape = fields.iter().find(|(known, _)| known == name).map(|(_, shape)| shape);
            value.is_null() || shape.is_none_or(|shape| shape.fits(value))
        })
    })
}

impl Shape {
    /// Whether [`Self::check`] would find no mistake in a value that is present.
    fn fits(&self, value: &Json<'_>) -> bool {
        match self {
            Text => value.is_string(),
            Boolean => value.is_boolean(),
            Int32 => integer(value).is_some_and(|number| i32::try_from(number).is_ok()),
            Int64 => integer(value).is_some(),
            IntOrText => value.is_string() || integer(value).is_some(),
            Map => value.is_object(),
            TextMap(_) => value.as_object().is_some_and(|members| members.iter().all(|(_, value)| value.is_string())),
            List(element) => value.as_array().is_some_and(|list| list.iter().all(|value| element.fits(value))),
            Object(fields) => members_fit(fields, value),
        }
    }

    fn check(&self, node: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
        let Some(value) = node.value() else { return };
        let expected = match self {
            Text if !value.is_string() => "must be a string",
            Boolean if !value.is_boolean() => "must be a boolean",
            Int32 | Int64 if integer(value).is_none() => "must be an integer",
            Int32 if integer(value).is_some_and(|number| i32::try_from(number).is_err()) => "must fit a 32-bit integer",
            IntOrText if !value.is_string() && integer(value).is_none() => "must be an integer or a string",
            Map | TextMap(_) | Object(_) if !value.is_object() => "must be an object",
            List(_) if !value.is_array() => "must be a list",
            Text | Boolean | Int32 | Int64 | IntOrText | Map => return,
            TextMap(rule) => return values_are_texts(*rule, node, path, found),
            List(element) => return elements_have_their_type(element, value, path, found),
            Object(fields) => {
                for (name, shape) in fields {
                    shape.check(node.get(name), path.child(name), found);
                }
                return;
            }
        };
        found.mistyped(TYPE.id, path, value, expected);
    }
}

fn values_are_texts(rule: RuleId, map: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    for (key, value) in map.members().into_iter().flat_map(Members::iter) {
        if !value.is_string() {
            found.mistyped(rule, path.key(key), value, "must be a string");
        }
    }
}

fn elements_have_their_type(element: &Shape, list: &Json<'_>, path: PathRef<'_>, found: &mut Findings) {
    for (index, value) in list.as_array().into_iter().flatten().enumerate() {
        if value.is_null() {
            found.mistyped(TYPE.id, path.index(index), value, "must not be null");
        }
        element.check(Node::of(value), path.index(index), found);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::v019_a_number_for_a_duration(Kind::Machine, json!({"spec": {"drainTimeout": 300}}), &["spec.drainTimeout: Invalid value: 300: must be a string"])]
    #[case::a_number_for_the_whole_spec(Kind::Machine, json!({"spec": 5}), &["spec: Invalid value: 5: must be an object"])]
    #[case::no_object_at_all(Kind::Machine, json!([]), &["Invalid value: []: must be an object"])]
    #[case::v032_a_number_for_a_label(Kind::Machine, json!({"spec": {"nodeTemplate": {"metadata": {"labels": {"a": 1}}}}}), &["spec.nodeTemplate.metadata.labels[a]: Invalid value: 1: must be a string"])]
    #[case::null_is_absent(Kind::Machine, json!({"metadata": null, "spec": {"class": null}}), &[])]
    #[case::null_in_a_list_is_not(Kind::Machine, json!({"spec": {"nodeTemplate": {"spec": {"taints": [null]}}}}), &["spec.nodeTemplate.spec.taints[0]: Invalid value: \"\": must not be null"])]
    #[case::several_at_once(Kind::MachineSet, json!({"spec": {"replicas": "3", "selector": [], "template": {"spec": {"maxEvictRetries": 1.5}}}}),
        &["spec.replicas: Invalid value: \"3\": must be an integer", "spec.selector: Invalid value: []: must be an object", "spec.template.spec.maxEvictRetries: Invalid value: 1.5: must be an integer"])]
    #[case::too_wide(Kind::MachineSet, json!({"spec": {"replicas": 2_147_483_648_i64}}), &["spec.replicas: Invalid value: 2147483648: must fit a 32-bit integer"])]
    #[case::a_float_without_fraction_is_whole(Kind::MachineSet, json!({"spec": {"replicas": 3.0}}), &[])]
    fn a_wrong_type_is_found_with_its_path(#[case] kind: Kind, #[case] object: Value, #[case] expected: &[&str]) {
        let mut found = Findings::new();
        fields_have_their_types(kind, ApiVersion::V1alpha1, &Json::from(&object), &mut found);
        assert_eq!(found.errors().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]
    #[rstest]
    #[case::text(Text)]
    #[case::boolean(Boolean)]
    #[case::int32(Int32)]
    #[case::int64(Int64)]
    #[case::int_or_text(IntOrText)]
    #[case::map(Map)]
    #[case::text_map(TextMap(TYPE.id))]
    #[case::list(List(Box::new(Text)))]
    #[case::list_of_maps(List(Box::new(Map)))]
    #[case::object(shape(&json!({}), "metadata"))]
    fn the_quick_check_and_the_full_check_agree(#[case] shape: Shape) {
        let values = [
            json!("x"),
            json!(true),
            json!(7),
            json!(2.5),
            json!(3.0),
            json!(2_147_483_648_i64),
            json!(1e300),
            json!([]),
            json!(["x"]),
            json!(["x", null]),
            json!([{}]),
            json!([5]),
            json!({}),
            json!({"a": "b"}),
            json!({"a": null}),
            json!({"a": 5}),
            json!({"name": 5}),
            json!({"labels": {"a": 5}}),
            json!({"labels": null, "name": "x"}),
            json!({"finalizers": [null]}),
            json!({"unknown": 5}),
        ];
        for value in &values {
            let value = Json::from(value);
            let mut found = Findings::new();
            shape.check(Node::of(&value), PathRef::new(""), &mut found);
            assert_eq!(shape.fits(&value), found.is_empty(), "{value:?}");
        }
    }
}
