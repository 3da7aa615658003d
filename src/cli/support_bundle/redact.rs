//! Redacts objects by the lists of allowed fields. Pure functions.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use super::allowed::{ANNOTATIONS, Keep, MANAGERS, of_kind, of_metadata};

/// Whether addresses of nodes and servers stay in a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// They stay.
    Keep,
    /// They are removed.
    Remove,
}

/// The allowed part of an object; `None` for a kind that no bundle contains. `schema` is the driver's schema of its `providerSpec`.
pub fn redacted(object: &Value, schema: Option<&Value>, addresses: Addresses) -> Option<Value> {
    let keep = of_kind(object["kind"].as_str()?)?;
    let redaction = Redaction { schema, addresses };
    let mut kept = Map::new();
    for field in ["apiVersion", "kind"] {
        kept.insert(field.to_owned(), object[field].clone());
    }
    if let Some(metadata) = redaction.part(&object["metadata"], &of_metadata()) {
        kept.insert("metadata".to_owned(), metadata);
    }
    if let Some(Value::Object(members)) = redaction.part(object, &keep) {
        let others =
            members.into_iter().filter(|(name, _)| !["apiVersion", "kind", "metadata"].contains(&name.as_str()));
        kept.extend(others);
    }
    Some(Value::Object(kept))
}

/// Every text in a `providerSpec` that is not kept. It must not be in any other file either.
pub fn withheld(provider_spec: &Value, schema: Option<&Value>) -> Vec<String> {
    match provider_spec {
        Value::Object(members) => {
            members.iter().flat_map(|(name, value)| withheld(value, member_schema(schema, name))).collect()
        }
        Value::Array(items) => items.iter().flat_map(|item| withheld(item, item_schema(schema))).collect(),
        Value::String(text) if !is_harmless(schema) => vec![text.clone()],
        _ => Vec::new(),
    }
}

struct Redaction<'a> {
    schema: Option<&'a Value>,
    addresses: Addresses,
}

impl Redaction<'_> {
    /// The allowed part of a value; `None` if nothing of it is kept.
    fn part(&self, value: &Value, keep: &Keep) -> Option<Value> {
        if value.is_null() {
            return None;
        }
        match keep {
            Keep::All => Some(value.clone()),
            Keep::Only(members) => {
                let object = value.as_object()?;
                let kept = members
                    .iter()
                    .filter_map(|(name, keep)| Some(((*name).to_owned(), self.part(object.get(*name)?, keep)?)));
                Some(Value::Object(kept.collect()))
            }
            Keep::Each(keep) => Some(value.as_array()?.iter().filter_map(|element| self.part(element, keep)).collect()),
            Keep::Annotations => {
                let kept = value.as_object()?.iter().map(|(key, value)| {
                    let is_kept = ANNOTATIONS.contains(&key.as_str());
                    (key.clone(), if is_kept { value.clone() } else { length_of(value) })
                });
                Some(Value::Object(kept.collect()))
            }
            Keep::Lengths => {
                let lengths = value.as_object()?.iter().map(|(key, value)| (key.clone(), decoded_length(value)));
                Some(Value::Object(lengths.collect()))
            }
            Keep::Length => Some(length_of(value)),
            Keep::Address => (self.addresses == Addresses::Keep).then(|| value.clone()),
            Keep::ByDriverSchema => Some(provider_spec(value, self.schema)),
            Keep::Names => {
                let names = value.as_array()?.iter().filter_map(|element| Some(json!({"name": element.get("name")?})));
                Some(names.collect())
            }
            Keep::Containers(keep) => {
                let containers = value.as_array()?.iter();
                Some(containers.filter_map(|container| self.container(container, keep)).collect())
            }
            Keep::Arguments => {
                let texts = value.as_array()?.iter().filter_map(Value::as_str);
                Some(texts.map(with_hosts_only).collect())
            }
        }
    }

    fn container(&self, container: &Value, keep: &Keep) -> Option<Value> {
        let mut kept = self.part(container, keep)?;
        if !runs_manager(container) {
            kept.as_object_mut()?.remove("args");
        }
        Some(kept)
    }
}

/// Whether the container's name or its image says that it runs the manager.
fn runs_manager(container: &Value) -> bool {
    let image = container["image"].as_str().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let image = last.split([':', '@']).next().unwrap_or_default();
    MANAGERS.iter().any(|name| container["name"] == *name || image == *name)
}

/// The argument without the user, the password, the path and the query of its address. A path on this host stays.
fn with_hosts_only(argument: &str) -> String {
    match argument.split_once("://") {
        Some((scheme, rest)) if !rest.starts_with('/') => {
            let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
            let end = host.find(['/', '?', '#']).unwrap_or(host.len());
            format!("{scheme}://{}", &host[..end])
        }
        _ => argument.to_owned(),
    }
}

/// The value's length in place of the value.
fn length_of(value: &Value) -> Value {
    match value {
        Value::String(text) => json!(format!("<{} bytes>", text.len())),
        _ => json!("<withheld>"),
    }
}

fn decoded_length(value: &Value) -> Value {
    let bytes = value.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    bytes.map_or_else(|| json!("<withheld>"), |bytes| json!(format!("<{} bytes>", bytes.len())))
}

/// A `providerSpec` with all keys, and with the values that the schema calls harmless.
fn provider_spec(value: &Value, schema: Option<&Value>) -> Value {
    match value {
        Value::Object(members) => {
            let kept =
                members.iter().map(|(name, value)| (name.clone(), provider_spec(value, member_schema(schema, name))));
            Value::Object(kept.collect())
        }
        Value::Array(items) => items.iter().map(|item| provider_spec(item, item_schema(schema))).collect(),
        Value::Null => Value::Null,
        value if is_harmless(schema) => value.clone(),
        value => length_of(value),
    }
}

fn member_schema<'a>(schema: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    schema?.get("properties")?.get(name)
}

fn item_schema(schema: Option<&Value>) -> Option<&Value> {
    schema?.get("items")
}

/// Whether a schema allows only values without content of a user: numbers, switches, words of a list, and what Nodes show anyway.
fn is_harmless(schema: Option<&Value>) -> bool {
    let Some(schema) = schema else { return false };
    let is_plain = schema["type"].as_str().is_some_and(|kind| matches!(kind, "boolean" | "integer" | "number"));
    is_plain || schema["enum"].is_array() || schema.get("x-node-template").is_some()
}

#[cfg(test)]
mod tests {
    use machine_api::names::annotation;
    use rstest::rstest;

    use super::*;

    const CANARY: &str = "canary-5f2e";

    fn with_canary(kind: &str, pointer: &str) -> Value {
        let mut object = json!({"apiVersion": "v", "kind": kind, "metadata": {"name": "n"}});
        let mut place = &mut object;
        for name in pointer.split('/') {
            place = match name.parse::<usize>() {
                Ok(_) => {
                    if !place.is_array() {
                        *place = json!([null]);
                    }
                    &mut place[0]
                }
                Err(_) => &mut place[name.replace('~', "/")],
            };
        }
        *place = json!(CANARY);
        object
    }

    #[rstest]
    #[case::data_of_a_secret("Secret", "data/key")]
    #[case::plain_data_of_a_secret("Secret", "stringData/key")]
    #[case::user_data_of_a_class("MachineClass", "providerSpec/userData")]
    #[case::a_list_in_a_class("MachineClass", "providerSpec/tags/0/value")]
    #[case::the_applied_manifest("Machine", "metadata/annotations/kubectl.kubernetes.io~last-applied-configuration")]
    #[case::the_applied_template(
        "Node",
        "metadata/annotations/node.machine.sapcloud.io~last-applied-anno-labels-taints"
    )]
    #[case::an_unknown_annotation("MachineClass", "metadata/annotations/example.com~token")]
    #[case::the_state_of_a_driver("Machine", "status/lastKnownState")]
    #[case::a_field_of_the_future("Machine", "spec/token")]
    #[case::a_field_of_the_future_at_the_top("MachineClass", "token")]
    #[case::an_annotation_of_a_template("MachineDeployment", "spec/template/metadata/annotations/example.com~x")]
    #[case::a_node_template("Machine", "spec/nodeTemplate/spec/configSource/x")]
    #[case::an_environment("Pod", "spec/containers/0/env/0/value")]
    #[case::an_environment_of_a_workload("Deployment", "spec/template/spec/containers/0/env/0/value")]
    #[case::a_volume("Pod", "spec/volumes/0/projected")]
    #[case::a_bundle_of_a_webhook("ValidatingWebhookConfiguration", "webhooks/0/clientConfig/caBundle")]
    #[case::an_address_of_a_node("Node", "status/addresses/0/address")]
    #[case::an_address_of_a_machine("Machine", "status/addresses/0/address")]
    #[case::the_url_of_a_webhook("MutatingWebhookConfiguration", "webhooks/0/clientConfig/url")]
    #[case::fields_of_a_manager("Machine", "metadata/managedFields/0/fieldsV1")]
    #[case::an_image_of_a_node("Node", "status/images/0")]
    fn pk_102_what_is_not_allowed_is_left_out(#[case] kind: &str, #[case] pointer: &str) {
        let object = with_canary(kind, pointer);
        assert!(object.to_string().contains(CANARY));
        let kept = redacted(&object, None, Addresses::Remove).unwrap();
        assert!(!kept.to_string().contains(CANARY), "{kept}");
        assert_eq!((&kept["kind"], &kept["metadata"]["name"]), (&json!(kind), &json!("n")));
    }

    #[rstest]
    #[case::a_message("Machine", "status/lastOperation/description")]
    #[case::a_condition("MachineDeployment", "status/conditions/0/message")]
    #[case::an_event("Event", "message")]
    #[case::a_label("Node", "metadata/labels/zone")]
    #[case::an_annotation_of_ours("Machine", "metadata/annotations/machinepriority.machine.sapcloud.io")]
    #[case::a_holder("Lease", "spec/holderIdentity")]
    #[case::a_stored_version("CustomResourceDefinition", "status/storedVersions/0")]
    #[case::a_name_of_an_environment("Pod", "spec/containers/0/env/0/name")]
    fn what_explains_a_problem_is_kept(#[case] kind: &str, #[case] pointer: &str) {
        let kept = redacted(&with_canary(kind, pointer), None, Addresses::Remove).unwrap();
        assert!(kept.to_string().contains(CANARY), "{kept}");
    }

    #[rstest]
    #[case::by_its_name("mcm", "example.com/own:1", true)]
    #[case::by_its_image("m", "example.com:5000/x/machine-controller-manager@sha256:ab", true)]
    #[case::by_its_image_with_a_tag("m", "example.com/mcm:1", true)]
    #[case::a_sidecar("proxy", "example.com/mcm/proxy:1", false)]
    fn pk_102_only_the_manager_keeps_its_arguments(#[case] name: &str, #[case] image: &str, #[case] is_kept: bool) {
        let container = json!({"name": name, "image": image, "args": ["--password=canary"]});
        let template = json!({"spec": {"containers": [container]}});
        let pod = json!({"kind": "Pod", "metadata": {}, "spec": template["spec"]});
        let workload = json!({"kind": "Deployment", "metadata": {}, "spec": {"template": template}});
        for object in [pod, workload] {
            let kept = redacted(&object, None, Addresses::Keep).unwrap().to_string();
            assert_eq!(kept.contains("canary"), is_kept, "{kept}");
            assert!(kept.contains(image), "{kept}");
        }
    }

    #[rstest]
    #[case::a_password("--external-driver=http://user:PASSWORD9@h:1", "--external-driver=http://h:1")]
    #[case::a_strange_password("--x=http://u:a/b?@c@h/", "--x=http://h")]
    #[case::a_path("--tracing-endpoint=https://h/token/v1", "--tracing-endpoint=https://h")]
    #[case::a_query("--x=https://h?key=1", "--x=https://h")]
    #[case::a_socket("--x=unix:///run/x.sock", "--x=unix:///run/x.sock")]
    #[case::no_address("--leader-elect=true", "--leader-elect=true")]
    fn pk_102_addresses_in_arguments_have_no_secret(#[case] argument: &str, #[case] expected: &str) {
        let spec = json!({"containers": [{"name": "mcm", "args": [argument]}]});
        let pod = json!({"kind": "Pod", "metadata": {}, "spec": spec});
        let kept = redacted(&pod, None, Addresses::Keep).unwrap();
        assert_eq!(kept["spec"]["containers"][0]["args"], json!([expected]));
    }

    #[test]
    fn addresses_stay_if_that_is_asked_for() {
        let object = with_canary("Node", "status/addresses/0/address");
        assert!(redacted(&object, None, Addresses::Keep).unwrap().to_string().contains(CANARY));
    }

    #[test]
    fn a_kind_without_a_list_is_left_out() {
        assert_eq!(redacted(&json!({"kind": "ConfigMap", "data": {"a": "b"}}), None, Addresses::Keep), None);
    }

    #[test]
    fn a_secret_shrinks_to_key_names_and_lengths() {
        let secret = json!({"kind": "Secret", "apiVersion": "v1", "type": "Opaque",
            "metadata": {"name": "s"}, "data": {"userData": "YWJjZA=="}});
        assert_eq!(redacted(&secret, None, Addresses::Keep).unwrap()["data"], json!({"userData": "<4 bytes>"}));
    }

    #[test]
    fn a_provider_spec_keeps_keys_and_harmless_values() {
        let schema = json!({"properties": {
            "region": {"type": "string", "x-node-template": "region"},
            "size": {"type": "integer"}, "kind": {"enum": ["a", "b"]}, "image": {"type": "string"},
            "disks": {"items": {"properties": {"encrypted": {"type": "boolean"}, "key": {"type": "string"}}}},
        }});
        let spec = json!({"region": "eu", "size": 3, "kind": "a", "image": "img-1", "unknown": {"x": 1},
            "disks": [{"encrypted": true, "key": "abc"}]});
        let class = json!({"kind": "MachineClass", "apiVersion": "v", "metadata": {}, "providerSpec": spec});
        let kept = redacted(&class, Some(&schema), Addresses::Keep).unwrap();
        assert_eq!(
            kept["providerSpec"],
            json!({
                "region": "eu", "size": 3, "kind": "a", "image": "<5 bytes>", "unknown": {"x": "<withheld>"},
                "disks": [{"encrypted": true, "key": "<3 bytes>"}],
            })
        );
        let mut texts = withheld(&spec, Some(&schema));
        texts.sort();
        assert_eq!(texts, ["abc", "img-1"]);
    }

    #[test]
    fn annotations_with_manifests_are_never_kept() {
        let never = [annotation::KUBECTL_LAST_APPLIED, annotation::CONVERSION_V1ALPHA1, annotation::CONVERSION_V1BETA1];
        assert!(
            ANNOTATIONS.iter().all(|kept| !never.contains(kept) && !kept.starts_with(annotation::LAST_APPLIED_PREFIX))
        );
    }
}
