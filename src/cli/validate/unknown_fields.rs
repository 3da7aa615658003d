//! Finds fields that are not in the definitions. An API server drops them, and kubectl refuses to apply them. In both cases a
//! misspelt field has no effect, so it is an error here.

use std::collections::BTreeMap;

use kube_values::{
    field::{FieldPath, Findings, RuleId},
    syntax,
};
use machine_api::{
    crd::{CrdOptions, definitions},
    kind::{ApiVersion, Kind},
};
use serde_json::{Map, Value};

const RULE: RuleId = RuleId::declare("SCHEMA");
/// Members that every object has. They are not in the definitions, because the API server defines them.
const FRAME: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// The schemas of all kinds in all versions.
pub struct Schemas(BTreeMap<(Kind, ApiVersion), Value>);

impl Schemas {
    /// The schemas of the definitions this program installs.
    pub fn of_definitions() -> Self {
        let mut schemas = BTreeMap::new();
        for mut definition in definitions(&CrdOptions::default()) {
            let text = |value: &Value| value.as_str().map(str::to_owned).unwrap_or_default();
            let Some(kind) = Kind::from_name(&text(&definition["spec"]["names"]["kind"])) else { continue };
            for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
                if let Some(name) = ApiVersion::from_name(&text(&version["name"])) {
                    schemas.insert((kind, name), version["schema"]["openAPIV3Schema"].take());
                }
            }
        }
        Self(schemas)
    }

    /// Adds an error for every field of an object that its schema does not know.
    pub fn find_unknown_fields(&self, kind: Kind, version: ApiVersion, object: &Value, found: &mut Findings) {
        let Some(schema) = self.0.get(&(kind, version)) else { return };
        let known = properties(schema);
        for (name, value) in object.as_object().into_iter().flatten() {
            if !FRAME.contains(&name.as_str()) {
                member(known, name, value, &FieldPath::default(), found);
            }
        }
    }
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

fn member(known: Option<&Map<String, Value>>, name: &str, value: &Value, path: &FieldPath, found: &mut Findings) {
    if let Some(schema) = known.and_then(|known| known.get(name)) {
        return inside(schema, value, &path.child(name), found);
    }
    let meant = syntax::nearest(name, known.into_iter().flatten().map(|(known, _)| known.as_str()));
    let hint = meant.map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default();
    found.forbidden(RULE, path.child(name), format!("unknown field{hint}"));
}

fn inside(schema: &Value, value: &Value, path: &FieldPath, found: &mut Findings) {
    match value {
        Value::Object(members) => {
            if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
                for (key, value) in members {
                    inside(values, value, &path.key(key), found);
                }
                return;
            }
            let keeps_unknown = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
            let known = properties(schema);
            for (name, value) in members {
                // A schema without properties is skipped: other code checks such an object, or the value should be a text.
                if known.is_some() && !(keeps_unknown && known.is_none_or(|known| !known.contains_key(name))) {
                    member(known, name, value, path, found);
                }
            }
        }
        Value::Array(elements) => {
            if let Some(schema) = schema.get("items") {
                elements.iter().enumerate().for_each(|(index, value)| inside(schema, value, &path.index(index), found));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::a_misspelt_name(Kind::Machine, json!({"spec": {"drainTimout": "5m"}}), &["spec.drainTimout: Forbidden: unknown field; did you mean \"drainTimeout\"?"])]
    #[case::the_wrong_case(Kind::Machine, json!({"spec": {"providerId": "x"}}), &["spec.providerId: Forbidden: unknown field; did you mean \"providerID\"?"])]
    #[case::nothing_like_it(Kind::MachineSet, json!({"spec": {"template": {"spec": {"cloud": "x"}}}}), &["spec.template.spec.cloud: Forbidden: unknown field"])]
    #[case::in_a_list(Kind::Machine, json!({"spec": {"nodeTemplate": {"spec": {"taints": [{"keys": "k"}]}}}}), &["spec.nodeTemplate.spec.taints[0].keys: Forbidden: unknown field; did you mean \"key\"?"])]
    #[case::at_the_top(Kind::MachineClass, json!({"providerspec": {}}), &["providerspec: Forbidden: unknown field; did you mean \"providerSpec\"?"])]
    #[case::unknown_fields_are_allowed(Kind::MachineClass, json!({"providerSpec": {"anything": {"goes": 1}}}), &[])]
    #[case::in_template_metadata(Kind::MachineSet, json!({"spec": {"template": {"metadata": {"labels": {"a": "b"}, "creationTimestamp": null}}}}), &[])]
    #[case::in_maps(Kind::MachineClass, json!({"nodeTemplate": {"capacity": {"hugepages-2Mi": 1}}}), &[])]
    #[case::not_in_own_metadata(Kind::Machine, json!({"metadata": {"anything": 1}}), &[])]
    #[case::not_in_a_value_that_is_no_object(Kind::Machine, json!({"spec": 5}), &[])]
    fn an_unknown_field_is_found(#[case] kind: Kind, #[case] object: Value, #[case] expected: &[&str]) {
        let mut found = Findings::new();
        Schemas::of_definitions().find_unknown_fields(kind, ApiVersion::V1alpha1, &object, &mut found);
        assert_eq!(found.errors().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn both_versions_of_every_kind_have_a_schema() {
        assert_eq!(Schemas::of_definitions().0.len(), 2 * Kind::ALL.len());
    }
}
