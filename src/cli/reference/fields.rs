//! The fields of the four kinds in both versions, from the schemas of their definitions.

use machine_api::crd::{CrdOptions, definitions};
use serde_json::Value;

use super::page::{Draft, Page, code};

/// The metadata of an object: the API server has its schema, and refuses a description in a definition.
const METADATA: &str = "Standard metadata of Kubernetes objects.";

/// The page about all fields.
pub fn page() -> Page {
    let mut draft = Draft::new("fields", "Fields of the kinds");
    draft.paragraph(
        "All fields that the definitions declare, with what the API server itself demands. \
         The rules that the webhooks check in addition are in [rules](../rules.md). \
         `kubectl explain machinedeployment.spec` shows the same texts. `[]` is an item of a list, `{}` a value of a map.",
    );
    for definition in definitions(&CrdOptions::default()) {
        let kind = definition.pointer("/spec/names/kind").and_then(Value::as_str).unwrap_or_default();
        for version in definition.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten() {
            let name = version["name"].as_str().unwrap_or_default();
            let Some(schema) = version.pointer("/schema/openAPIV3Schema") else { continue };
            write_version(&mut draft, kind, name, schema);
        }
    }
    draft.finish()
}

fn write_version(draft: &mut Draft, kind: &str, version: &str, schema: &Value) {
    let title = format!("{kind} {version}");
    draft.section(&title);
    let about = schema["description"].as_str().unwrap_or_default();
    let about = draft.described(&title, about);
    draft.paragraph(&about);
    let mut found = Found::default();
    found.descend(schema, "");
    let fields: Vec<_> = found
        .fields
        .into_iter()
        .map(|field| {
            let meaning = draft.described(&format!("{title} {}", field.path), &field.meaning);
            [code(&field.path), field.value_type, code(&field.default), meaning]
        })
        .collect();
    draft.table(["Field", "Type", "Default", "Meaning"], fields);
    let rules: Vec<_> = found
        .rules
        .into_iter()
        .map(|rule| {
            draft.described(&format!("{title} {} {}", rule.path, rule.expression), &rule.message);
            [code(&rule.path), code(&rule.message), code(&rule.expression)]
        })
        .collect();
    if !rules.is_empty() {
        draft.paragraph("The API server also checks these expressions (CEL):");
    }
    draft.table(["Field", "Answer when it does not hold", "Expression"], rules);
}

#[derive(Default)]
struct Found {
    fields: Vec<Field>,
    rules: Vec<CelRule>,
}

struct Field {
    path: String,
    value_type: String,
    default: String,
    meaning: String,
}

struct CelRule {
    path: String,
    message: String,
    expression: String,
}

impl Found {
    fn descend(&mut self, schema: &Value, path: &str) {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let text = |key: &str| rule[key].as_str().unwrap_or_default();
            let path = match (path, text("fieldPath")) {
                ("", below) => below.trim_start_matches('.').to_owned(),
                (path, below) => format!("{path}{below}"),
            };
            let message = [text("message"), text("messageExpression")].concat();
            self.rules.push(CelRule { path, message, expression: text("rule").to_owned() });
        }
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let own = below["description"].as_str().unwrap_or_default();
            let meaning = if path == "metadata" { METADATA } else { own };
            self.fields.push(Field {
                path: path.clone(),
                value_type: value_type(below),
                default: below.get("default").map(ToString::to_string).unwrap_or_default(),
                meaning: meaning.to_owned(),
            });
            self.descend(below, &path);
        }
        // Items and values have no row of their own: the row of the list or map names their type.
        if schema["items"].is_object() {
            self.descend(&schema["items"], &format!("{path}[]"));
        }
        if schema["additionalProperties"].is_object() {
            self.descend(&schema["additionalProperties"], &format!("{path}{{}}"));
        }
    }
}

/// The type of a value, with its words or bounds.
fn value_type(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    if let Some(words) = schema["enum"].as_array() {
        return words
            .iter()
            .filter_map(Value::as_str)
            .map(|word| code(&format!("\"{word}\"")))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let of = |key: &str| value_type(&schema[key]);
    match schema["type"].as_str().unwrap_or("any") {
        "array" => format!("list of {}", of("items")),
        "object" if schema["additionalProperties"].is_object() => format!("map of {}", of("additionalProperties")),
        "string" if schema["format"].is_string() => {
            format!("string ({})", schema["format"].as_str().unwrap_or_default())
        }
        "integer" if schema["minimum"].is_number() => format!("integer ≥ {}", schema["minimum"]),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({"type": "string"}), "string")]
    #[case(json!({"type": "string", "format": "date-time"}), "string (date-time)")]
    #[case(json!({"type": "array", "items": {"type": "object"}}), "list of object")]
    #[case(json!({"type": "object", "additionalProperties": {"type": "string"}}), "map of string")]
    #[case(json!({"type": "string", "enum": ["", "A"]}), "`\"\"`, `\"A\"`")]
    #[case(json!({"type": "integer", "minimum": 0}), "integer ≥ 0")]
    #[case(json!({"x-kubernetes-int-or-string": true, "anyOf": []}), "integer or string")]
    #[case(json!({"x-kubernetes-preserve-unknown-fields": true}), "any")]
    fn a_type_has_its_words_and_bounds(#[case] schema: Value, #[case] expected: &str) {
        assert_eq!(value_type(&schema), expected);
    }

    #[test]
    fn fields_below_lists_and_maps_are_found_with_their_rules() {
        let schema = json!({"properties": {"a": {"type": "array", "description": "A.", "items": {
            "x-kubernetes-validations": [{"rule": "r", "message": "m", "fieldPath": ".b"}],
            "properties": {"b": {"type": "string"}},
        }}}});
        let mut found = Found::default();
        found.descend(&schema, "");
        let paths: Vec<_> = found.fields.iter().map(|field| field.path.as_str()).collect();
        assert_eq!(paths, ["a", "a[].b"]);
        assert_eq!((found.rules[0].path.as_str(), found.rules[0].expression.as_str()), ("a[].b", "r"));
    }
}
