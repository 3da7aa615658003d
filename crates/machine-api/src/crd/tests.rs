//! Checks the definitions against the types, and against the specification of names, columns and versions.

use std::collections::BTreeSet;

use rstest::rstest;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::*;
use crate::{v1alpha1, v1beta1};

/// One object of each kind with every field.
fn every_field(version: ApiVersion) -> Vec<Value> {
    let text = match version {
        ApiVersion::V1alpha1 => include_str!("../../../../tests/fixtures/every-field-v1alpha1.yaml"),
        ApiVersion::V1beta1 => include_str!("../../../../tests/fixtures/every-field-v1beta1.yaml"),
    };
    serde_saphyr::from_multiple(text).unwrap()
}

fn schema(definitions: &[Value], kind: &str, version: ApiVersion) -> Value {
    let definition = definitions.iter().find(|it| it["spec"]["names"]["kind"] == kind).unwrap();
    let place = usize::from(version == ApiVersion::V1beta1);
    definition["spec"]["versions"][place]["schema"]["openAPIV3Schema"].clone()
}

/// Fields of the value that the schema does not declare. The API server would remove them.
fn undeclared(value: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                let declared = &schema["properties"][name];
                if !declared.is_null() {
                    undeclared(value, declared, &path, found);
                } else if schema["additionalProperties"].is_object() {
                    undeclared(value, &schema["additionalProperties"], &path, found);
                } else if schema["x-kubernetes-preserve-unknown-fields"] != true {
                    found.push(path);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| undeclared(value, &schema["items"], path, found)),
        _ => {}
    }
}

/// Fields of the schema that the value does not have.
fn unset(schema: &Value, values: &[&Value], path: &str, found: &mut BTreeSet<String>) {
    for (name, declared) in schema["properties"].as_object().into_iter().flatten() {
        let below: Vec<_> = values
            .iter()
            .flat_map(|value| value.as_array().map_or_else(|| vec![*value], |list| list.iter().collect()))
            .filter_map(|value| value.get(name))
            .collect();
        let path = format!("{path}.{name}");
        if below.is_empty() {
            found.insert(path);
        } else {
            let declared = if declared["items"].is_object() { &declared["items"] } else { declared };
            unset(declared, &below, &path, found);
        }
    }
}

#[rstest]
#[case::v1alpha1(ApiVersion::V1alpha1)]
#[case::v1beta1(ApiVersion::V1beta1)]
fn every_field_is_declared(#[case] version: ApiVersion) {
    let definitions = definitions(&CrdOptions::default());
    for object in every_field(version) {
        let kind = object["kind"].as_str().unwrap();
        let mut found = Vec::new();
        let mut schema = schema(&definitions, kind, version);
        schema["properties"]["metadata"] = json!({"x-kubernetes-preserve-unknown-fields": true});
        undeclared(&object, &schema, kind, &mut found);
        assert_eq!(found, Vec::<String>::new());
    }
}

/// Without this test, [`every_field_is_declared`] and the round trips of the conversion would miss a new field.
#[rstest]
#[case::v1alpha1(ApiVersion::V1alpha1)]
#[case::v1beta1(ApiVersion::V1beta1)]
fn every_declared_field_is_in_the_fixtures(#[case] version: ApiVersion) {
    let definitions = definitions(&CrdOptions::default());
    let mut found = BTreeSet::new();
    for object in every_field(version) {
        let kind = object["kind"].as_str().unwrap();
        unset(&schema(&definitions, kind, version), &[&object], kind, &mut found);
    }
    // A machine specification and the metadata of a template are the same at all places. The fixtures have all their fields only once.
    let repeated = ["MachineSet.spec.template.spec.", "MachineDeployment.spec.template.", ".nodeTemplate.metadata."];
    found.retain(|path| !repeated.iter().any(|part| path.contains(part)));
    assert_eq!(found, BTreeSet::new());
}

fn reread<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    let mut written = serde_json::to_value(typed).unwrap();
    written["apiVersion"] = object["apiVersion"].clone();
    written["kind"] = object["kind"].clone();
    written
}

#[test]
fn the_types_hold_every_field_of_the_fixtures() {
    let alpha = every_field(ApiVersion::V1alpha1);
    let beta = every_field(ApiVersion::V1beta1);
    assert_eq!(reread::<v1alpha1::Machine>(&alpha[0]), alpha[0]);
    assert_eq!(reread::<v1alpha1::MachineSet>(&alpha[1]), alpha[1]);
    assert_eq!(reread::<v1alpha1::MachineDeployment>(&alpha[2]), alpha[2]);
    assert_eq!(reread::<v1alpha1::MachineClass>(&alpha[3]), alpha[3]);
    assert_eq!(reread::<v1beta1::Machine>(&beta[0]), beta[0]);
    assert_eq!(reread::<v1beta1::MachineSet>(&beta[1]), beta[1]);
    assert_eq!(reread::<v1beta1::MachineDeployment>(&beta[2]), beta[2]);
    assert_eq!(reread::<v1beta1::MachineClass>(&beta[3]), beta[3]);
}

#[rstest]
#[case::machine("Machine", &["mc"], &["Status", "Age", "Node", "ProviderID"])]
#[case::machine_set("MachineSet", &["mcs"], &["Desired", "Current", "Ready", "Age"])]
#[case::machine_deployment("MachineDeployment", &["mcd"], &["Ready", "Desired", "Up-to-date", "Available", "Age"])]
#[case::machine_class("MachineClass", &["mcc"], &["Provider", "Type", "Zone", "Age"])]
fn short_names_and_columns_are_the_originals(#[case] kind: &str, #[case] short: &[&str], #[case] columns: &[&str]) {
    let definitions = definitions(&CrdOptions::default());
    let spec = &definitions.iter().find(|it| it["spec"]["names"]["kind"] == kind).unwrap()["spec"];
    assert_eq!(spec["names"]["shortNames"], json!(short));
    assert_eq!(spec["names"]["categories"], json!(["mcm"]));
    for version in spec["versions"].as_array().unwrap() {
        let names: Vec<_> =
            version["additionalPrinterColumns"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
        assert_eq!(json!(names), json!(columns));
    }
}

/// Every `jsonPath` of a column and every path of the scale subresource is the path of a declared field.
#[test]
fn every_path_is_the_path_of_a_field() {
    for definition in definitions(&CrdOptions::default()) {
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let columns = version["additionalPrinterColumns"].as_array().unwrap().iter().map(|it| &it["jsonPath"]);
            let scale = version["subresources"]["scale"].as_object().into_iter().flat_map(|paths| paths.values());
            for path in columns.chain(scale).map(|path| path.as_str().unwrap()) {
                if path.starts_with(".metadata.") {
                    continue;
                }
                let pointer = path.replace('.', "/properties/");
                assert!(version["schema"]["openAPIV3Schema"].pointer(&pointer).is_some(), "{path}");
            }
        }
    }
}

#[test]
fn v1beta1_is_defined_but_not_served_by_default() {
    for definition in definitions(&CrdOptions::default()) {
        assert_eq!(definition["spec"]["conversion"], json!({"strategy": "None"}));
        assert_eq!(definition["spec"]["versions"][0]["storage"], true);
        assert_eq!(definition["spec"]["versions"][1]["served"], false);
        assert_eq!(definition["spec"]["versions"][1]["storage"], false);
    }
}

#[rstest]
#[case::by_service(
    Client::Service { namespace: "garden".into(), name: "mcm".into() },
    json!({"service": {"namespace": "garden", "name": "mcm", "port": 443, "path": "/convert"}})
)]
#[case::by_url(Client::Url("https://127.0.0.1:9443/".into()), json!({"url": "https://127.0.0.1:9443/convert"}))]
fn a_served_v1beta1_names_its_converter(#[case] converter: Client, #[case] client_config: Value) {
    let options = CrdOptions { v1beta1: V1Beta1::Served(converter), ..CrdOptions::default() };
    for definition in definitions(&options) {
        assert_eq!(definition["spec"]["versions"][1]["served"], true);
        assert_eq!(definition["spec"]["conversion"]["strategy"], "Webhook");
        assert_eq!(definition["spec"]["conversion"]["webhook"]["clientConfig"], client_config);
        assert_eq!(definition["spec"]["conversion"]["webhook"]["conversionReviewVersions"], json!(["v1"]));
    }
}

#[test]
fn exactly_one_version_is_stored_and_it_is_served() {
    let converter = || Client::Url("https://127.0.0.1:9443".into());
    for (v1beta1, stored) in [
        (V1Beta1::NotServed, "v1alpha1"),
        (V1Beta1::Served(converter()), "v1alpha1"),
        (V1Beta1::Stored(converter()), "v1beta1"),
    ] {
        for definition in definitions(&CrdOptions { v1beta1: v1beta1.clone(), ..CrdOptions::default() }) {
            let versions = definition["spec"]["versions"].as_array().unwrap();
            let names: Vec<_> = versions.iter().filter(|version| version["storage"] == true).collect();
            assert_eq!(names.len(), 1);
            assert_eq!((&names[0]["name"], &names[0]["served"]), (&json!(stored), &json!(true)));
        }
    }
}

#[test]
fn older_servers_get_no_bounds_but_the_default_of_replicas() {
    let options = CrdOptions { servers: OldestServer::NotRatcheting, ..CrdOptions::default() };
    let definitions = definitions(&options);
    let text = serde_json::to_string(&definitions).unwrap();
    for word in
        ["\"x-kubernetes-validations\"", "\"minimum\"", "\"pattern\"", "\"maxLength\"", "\"maxItems\"", "\"enum\""]
    {
        assert!(!text.contains(word), "{word}");
    }
    for kind in ["MachineSet", "MachineDeployment"] {
        let schema = schema(&definitions, kind, ApiVersion::V1alpha1);
        assert_eq!(schema["properties"]["spec"]["properties"]["replicas"]["default"], json!(0));
    }
}

/// On objects, only rules that compare with `oldSelf` are allowed. Other rules would block changes of other fields.
#[test]
fn rules_on_objects_forgive_stored_mistakes() {
    fn walk(schema: &Value, path: &str) {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            if schema["type"] == "object" {
                assert_eq!(rule["optionalOldSelf"], true, "{path}: {rule}");
                assert!(rule["fieldPath"].is_string(), "{path}: {rule}");
            }
        }
        for (name, child) in schema["properties"].as_object().into_iter().flatten() {
            walk(child, &format!("{path}.{name}"));
        }
    }
    for definition in definitions(&CrdOptions::default()) {
        for version in definition["spec"]["versions"].as_array().unwrap() {
            walk(&version["schema"]["openAPIV3Schema"], definition["spec"]["names"]["kind"].as_str().unwrap());
        }
    }
}

/// Texts and lists at or below a node without a bound, or with a bound in a status.
fn unlike(schema: &Value, path: &str, bounded: bool, found: &mut Vec<String>) {
    let has = |word: &str| !schema[word].is_null();
    let text = schema["type"] == "string" || schema["x-kubernetes-int-or-string"] == true;
    let is_bounded = (!text || has("maxLength") || has("enum")) && (schema["type"] != "array" || has("maxItems"));
    if (text || schema["type"] == "array") && is_bounded != bounded {
        found.push(path.to_owned());
    }
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        unlike(child, &format!("{path}.{name}"), bounded, found);
    }
    for child in ["items", "additionalProperties"] {
        if has(child) {
            unlike(&schema[child], &format!("{path}.{child}"), bounded, found);
        }
    }
}

#[test]
fn user_fields_have_bounds_and_a_status_has_none() {
    let mut found = Vec::new();
    for definition in definitions(&CrdOptions::default()) {
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
            for (name, schema) in version["schema"]["openAPIV3Schema"]["properties"].as_object().unwrap() {
                if !["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
                    unlike(schema, &format!("{kind}.{name}"), name != "status", &mut found);
                }
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

#[rstest]
#[case::conditions("Machine", "/spec/properties/nodeConditions", "maxLength", 16_384)]
#[case::another_text("Machine", "/spec/properties/providerID", "maxLength", 65_536)]
#[case::a_list("Machine", "/spec/properties/nodeTemplate/properties/spec/properties/taints", "maxItems", 4_096)]
#[case::a_label_of_machines(
    "MachineSet",
    "/spec/properties/template/properties/metadata/properties/labels/additionalProperties",
    "maxLength",
    63
)]
#[case::a_name_of_a_secret("MachineClass", "/secretRef/properties/name", "maxLength", 253)]
#[case::a_namespace("MachineClass", "/credentialsSecretRef/properties/namespace", "maxLength", 63)]
fn bounds_are_those_of_kubernetes_or_far_above_any_use(
    #[case] kind: &str,
    #[case] place: &str,
    #[case] word: &str,
    #[case] bound: u32,
) {
    let schema = schema(&definitions(&CrdOptions::default()), kind, ApiVersion::V1alpha1);
    let node = schema["properties"].pointer(place).unwrap();
    assert_eq!(node[word], json!(bound));
}
