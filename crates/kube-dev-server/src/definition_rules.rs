//! The validation of custom resource definitions and their changes.
//!
//! Rules and messages are the same as in `ValidateCustomResourceDefinition` of the apiextensions server. The rules for the structure of a schema are
//! in [`super::schema::structure`]. Source: spec/extension-apiserver §6.4.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    crd::{is_accepted, versions},
    jsonpath::JsonPath,
    object::{name, text},
    schema::{Schema, Type, compile::structural, structure, validate},
};
use kube_protocol::status::Cause;

/// Validates a definition.
pub(super) fn check(definition: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut found = Vec::new();
    check_names(definition, &mut found);
    if !matches!(text(definition, "/spec/scope"), "Namespaced" | "Cluster") {
        let scopes = [json!("Cluster"), json!("Namespaced")];
        found.push(Cause::not_supported("spec.scope", &definition["spec"]["scope"], &scopes));
    }
    if definition["spec"]["preserveUnknownFields"] == json!(true) {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                   spec.versions[*].schema instead";
        found.push(Cause::invalid("spec.preserveUnknownFields", &json!(true), why));
    }
    check_versions(definition, &mut found);
    check_conversion(&definition["spec"]["conversion"], &mut found);
    if let Some(old) = old {
        check_change(definition, old, &mut found);
    }
    found
}

fn check_names(definition: &Value, found: &mut Vec<Cause>) {
    let (group, plural) = (text(definition, "/spec/group"), text(definition, "/spec/names/plural"));
    let expected = format!("{plural}.{group}");
    if name(definition) != expected {
        let why = format!("must be spec.names.plural+\".\"+spec.group, here {expected:?}");
        found.push(Cause::invalid("metadata.name", &json!(name(definition)), &why));
    }
    for field in ["group", "names/plural", "names/kind"] {
        if text(definition, &format!("/spec/{field}")).is_empty() {
            found.push(Cause::required(format!("spec.{}", field.replace('/', ".")), ""));
        }
    }
    let names = &definition["spec"]["names"];
    for field in ["plural", "singular", "kind", "listKind"] {
        let given = names[field].as_str().unwrap_or_default();
        let mixed_case = matches!(field, "kind" | "listKind");
        let fits = if mixed_case { is_label(&given.to_lowercase()) } else { is_label(given) };
        if !given.is_empty() && !fits {
            let prefix = if mixed_case { "may have mixed case, but should otherwise match: " } else { "" };
            found.push(Cause::invalid(format!("spec.names.{field}"), &names[field], &format!("{prefix}{LABEL}")));
        }
    }
    for field in ["shortNames", "categories"] {
        for (at, given) in names[field].as_array().into_iter().flatten().enumerate() {
            if !given.as_str().is_some_and(is_label) {
                found.push(Cause::invalid(format!("spec.names.{field}[{at}]"), given, LABEL));
            }
        }
    }
    if !names["kind"].is_null() && names["kind"] == names["listKind"] {
        let why = "kind and listKind may not be the same";
        found.push(Cause::invalid("spec.names.listKind", &names["listKind"], why));
    }
}

const LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
     character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is \
     '[a-z]([-a-z0-9]*[a-z0-9])?')";

/// Whether a text is a label of RFC 1035.
fn is_label(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(fine)
        && !text.ends_with('-')
}

fn check_versions(definition: &Value, found: &mut Vec<Cause>) {
    let all = versions(definition);
    let stored = all.iter().filter(|version| version["storage"] == json!(true)).count();
    if stored != 1 {
        let why = "must have exactly one version marked as storage version";
        found.push(Cause::invalid("spec.versions", &definition["spec"]["versions"], why));
    }
    let names: BTreeSet<&str> = all.iter().map(|version| text(version, "/name")).collect();
    if names.len() != all.len() {
        let why = "must contain unique version names";
        found.push(Cause::invalid("spec.versions", &definition["spec"]["versions"], why));
    }
    for (at, version) in all.iter().enumerate() {
        let path = format!("spec.versions[{at}]");
        if !is_label(text(version, "/name")) {
            found.push(Cause::invalid(format!("{path}.name"), &version["name"], LABEL));
        }
        check_schema(version, &path, found);
        check_columns(version, found);
        check_scale(&version["subresources"]["scale"], &path, found);
    }
}

fn check_schema(version: &Value, path: &str, found: &mut Vec<Cause>) {
    let schema = &version["schema"]["openAPIV3Schema"];
    let schema_path = format!("{path}.schema.openAPIV3Schema");
    if schema.is_null() {
        found.push(Cause::required(schema_path, "schemas are required"));
        return;
    }
    if schema["type"] != "object" {
        found.push(Cause::invalid(format!("{schema_path}.type"), &schema["type"], "must be object at the root"));
    }
    let before = found.len();
    found.extend(structure::check(schema, &schema_path));
    match structural(schema, &schema_path) {
        Err(causes) => found.extend(causes),
        Ok(compiled) if found.len() == before => {
            check_defaults(&compiled, &schema_path, found);
            check_selectable(version, &compiled, path, found);
        }
        Ok(_) => {}
    }
}

/// Checks that each default is valid in its schema.
fn check_defaults(node: &Schema, path: &str, found: &mut Vec<Cause>) {
    if let Some(default) = &node.default {
        let mut wrong = Vec::new();
        validate::check(default, None, node, "default", &mut wrong);
        for cause in wrong {
            found.push(Cause { field: format!("{path}.{}", cause.field), ..cause });
        }
    }
    for (name, property) in &node.properties {
        check_defaults(property, &format!("{path}.properties[{name}]"), found);
    }
    if let Some(items) = &node.items {
        check_defaults(items, &format!("{path}.items"), found);
    }
    if let super::schema::Additional::Each(each) = &node.additional {
        check_defaults(each, &format!("{path}.additionalProperties"), found);
    }
}

/// Checks that selectable fields are declared and have a simple type.
fn check_selectable(version: &Value, schema: &Schema, path: &str, found: &mut Vec<Cause>) {
    for (at, field) in version["selectableFields"].as_array().into_iter().flatten().enumerate() {
        let given = text(field, "/jsonPath");
        let path = format!("{path}.selectableFields[{at}].jsonPath");
        if given.is_empty() {
            found.push(Cause::required(path, ""));
            continue;
        }
        let steps = given.strip_prefix('.').unwrap_or_default().split('.');
        let node = steps.clone().try_fold(schema, |node, step| node.field(step));
        if steps.clone().next() == Some("metadata") {
            found.push(Cause::invalid(path, &field["jsonPath"], "must not point to fields in metadata"));
        } else if node.is_none() {
            let why = "is an invalid path: does not refer to a valid field";
            found.push(Cause::invalid(path, &field["jsonPath"], why));
        } else if !node
            .is_some_and(|node| matches!(node.value_type, Some(Type::String | Type::Boolean | Type::Integer)))
        {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                       formats are allowed.";
            found.push(Cause::invalid(path, &field["jsonPath"], why));
        }
    }
}

fn check_columns(version: &Value, found: &mut Vec<Cause>) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    for (at, column) in version["additionalPrinterColumns"].as_array().into_iter().flatten().enumerate() {
        let path = format!("spec.versions.additionalPrinterColumns[{at}]");
        if text(column, "/name").is_empty() {
            found.push(Cause::required(format!("{path}.name"), ""));
        }
        if !TYPES.contains(&text(column, "/type")) {
            let why = format!("must be one of {}", TYPES.join(","));
            found.push(Cause::invalid(format!("{path}.type"), &column["type"], &why));
        }
        if let Err(why) = JsonPath::parse(text(column, "/jsonPath")) {
            found.push(Cause::invalid(format!("{path}.jsonPath"), &column["jsonPath"], &why));
        }
    }
}

/// Checks that the paths of `scale` are simple and begin with spec or status.
fn check_scale(scale: &Value, path: &str, found: &mut Vec<Cause>) {
    if !scale.is_object() {
        return;
    }
    let under = |field: &str, roots: &[&str]| -> Option<Cause> {
        let given = text(scale, &format!("/{field}"));
        let path = format!("{path}.subresources.scale.{field}");
        let allowed = if roots.len() == 1 { roots[0].to_owned() } else { format!("either {}", roots.join(" or ")) };
        if !given.starts_with('.') {
            return Some(Cause::invalid(path, &scale[field], "must be a simple json path starting with ."));
        }
        let fits = roots.iter().any(|root| given.starts_with(&format!("{root}.")));
        (!fits).then(|| Cause::invalid(path, &scale[field], &format!("should be a json path under {allowed}")))
    };
    for (field, root) in [("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")] {
        if text(scale, &format!("/{field}")).is_empty() {
            found.push(Cause::required(format!("{path}.subresources.scale.{field}"), ""));
        } else {
            found.extend(under(field, &[root]));
        }
    }
    if !text(scale, "/labelSelectorPath").is_empty() {
        found.extend(under("labelSelectorPath", &[".spec", ".status"]));
    }
}

fn check_conversion(conversion: &Value, found: &mut Vec<Cause>) {
    if conversion["strategy"] != "Webhook" {
        return;
    }
    if conversion["webhook"]["conversionReviewVersions"].as_array().is_none_or(Vec::is_empty) {
        found.push(Cause::required("spec.conversion.webhook.conversionReviewVersions", ""));
    }
    if conversion["webhook"]["clientConfig"].is_null() {
        let why = "required when strategy is set to Webhook";
        found.push(Cause::required("spec.conversion.webhook.clientConfig", why));
    }
}

/// Checks that the names of the storage do not change, and that versions with stored objects stay.
fn check_change(definition: &Value, old: &Value, found: &mut Vec<Cause>) {
    let always: &[&str] = &["group", "names/plural"];
    let established: &[&str] = if is_accepted(old) { &["scope", "names/kind"] } else { &[] };
    for field in established.iter().chain(always) {
        let pointer = format!("/spec/{field}");
        if definition.pointer(&pointer) != old.pointer(&pointer) {
            let given = definition.pointer(&pointer).unwrap_or(&Value::Null);
            found.push(Cause::invalid(format!("spec.{}", field.replace('/', ".")), given, "field is immutable"));
        }
    }
    for stored in old["status"]["storedVersions"].as_array().into_iter().flatten() {
        if !versions(definition).iter().any(|version| &version["name"] == stored) {
            let why = format!("must appear in spec.versions: {stored}");
            found.push(Cause::invalid("status.storedVersions", stored, &why));
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn definition() -> Value {
        json!({
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "properties": {
                            "a": {"type": "string"}, "n": {"type": "integer", "minimum": 2},
                        }},
                    }}},
                }],
            },
            "status": {"conditions": [{"type": "NamesAccepted", "status": "True"}], "storedVersions": ["v1"]},
        })
    }

    fn with(pointer: &str, value: Value) -> Value {
        let mut changed = definition();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[field] = value;
        changed
    }

    const VERSION: &str = "/spec/versions/0";
    const FIELDS: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";

    #[rstest]
    #[case::fine(definition(), None)]
    #[case::default_of_the_wrong_type(with(&format!("{FIELDS}/a"), json!({"type": "string", "default": 7})),
        Some("spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[a].default"))]
    #[case::default_below_the_minimum(with(&format!("{FIELDS}/n"), json!({"type": "integer", "minimum": 2, "default": 1})),
        Some("spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[n].default"))]
    #[case::no_type(with(&format!("{FIELDS}/a"), json!({})),
        Some("spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[a].type"))]
    #[case::rule_over_no_field(
        with("/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations",
            json!([{"rule": "self.nope > 1"}])),
        Some("spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"))]
    #[case::rule_over_a_field(
        with("/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations",
            json!([{"rule": "!has(self.n) || self.n > 1"}])), None)]
    #[case::scale_path_without_dot(
        with(&format!("{VERSION}/subresources"),
            json!({"scale": {"specReplicasPath": "spec.n", "statusReplicasPath": ".status.n"}})),
        Some("spec.versions[0].subresources.scale.specReplicasPath"))]
    #[case::unknown_selectable_field(with(&format!("{VERSION}/selectableFields"), json!([{"jsonPath": ".spec.zz"}])),
        Some("spec.versions[0].selectableFields[0].jsonPath"))]
    #[case::selectable_field(with(&format!("{VERSION}/selectableFields"), json!([{"jsonPath": ".spec.a"}])), None)]
    #[case::preserves_unknown(with("/spec/preserveUnknownFields", json!(true)), Some("spec.preserveUnknownFields"))]
    #[case::name_of_a_version(with("/spec/versions/0/name", json!("V_1")), Some("spec.versions[0].name"))]
    #[case::type_of_a_column(
        with(&format!("{VERSION}/additionalPrinterColumns"), json!([{"name": "A", "type": "zz", "jsonPath": ".spec.a"}])),
        Some("spec.versions.additionalPrinterColumns[0].type"))]
    #[case::short_name(with("/spec/names/shortNames", json!(["B A D"])), Some("spec.names.shortNames[0]"))]
    fn a_definition(#[case] definition: Value, #[case] wrong: Option<&str>) {
        let found = check(&definition, None);
        assert_eq!(
            found.iter().map(|cause| cause.field.as_str()).collect::<Vec<_>>(),
            Vec::from_iter(wrong),
            "{found:?}"
        );
    }

    #[rstest]
    #[case::nothing(definition(), &[])]
    #[case::scope(with("/spec/scope", json!("Cluster")), &["spec.scope"])]
    #[case::kind(with("/spec/names/kind", json!("Other")), &["spec.names.kind"])]
    #[case::stored_version(with("/spec/versions/0/name", json!("v2")), &["status.storedVersions"])]
    fn changes_of_an_established_definition(#[case] new: Value, #[case] wrong: &[&str]) {
        let found = check(&new, Some(&definition()));
        assert_eq!(found.iter().map(|cause| cause.field.as_str()).collect::<Vec<_>>(), wrong, "{found:?}");
    }

    #[test]
    fn the_scope_can_change_until_the_names_are_accepted() {
        let mut old = definition();
        old["status"]["conditions"] = json!([]);
        assert_eq!(check(&with("/spec/scope", json!("Cluster")), Some(&old)), []);
    }
}
