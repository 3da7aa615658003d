//! Checks of the body of a create request. Its kind, version and namespace must be the same as in the URL. In strict mode it has no unknown fields.
//!
//! Source: spec/extension-apiserver §2.9.

use serde_json::{Map, Value, json};

use super::{
    resource::{GroupVersionKind, Resource, ResourceScope},
    status::{ApiStatus, Cause},
};

/// The origin of a kind. The messages of errors depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A kind of Kubernetes itself.
    BuiltIn,
    /// A kind of a custom resource definition or of an extension API server.
    Custom,
}

/// Checks that kind, version and namespace of the body are the same as in the URL. Adds them if they are missing.
///
/// # Errors
/// 400, or 422 for a custom object of another kind.
pub fn agree_with_url(
    body: &mut Value,
    resource: &Resource,
    namespace: Option<&str>,
    origin: Origin,
) -> Result<(), ApiStatus> {
    let expected = &resource.kind;
    let text = |place: &str| body.pointer(place).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("/apiVersion"), text("/kind"));
    let (name, given) = (text("/metadata/name"), text("/metadata/namespace"));
    if !api_version.is_empty() && api_version != expected.api_version() {
        return Err(ApiStatus::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            expected.api_version()
        )));
    }
    if !kind.is_empty() && kind != expected.kind {
        if origin == Origin::Custom {
            let cause = Cause::invalid("kind", &json!(kind), &format!("must be {}", expected.kind));
            return Err(ApiStatus::invalid(&expected.group, &expected.kind, &name, vec![cause]));
        }
        let message = format!("{kind} in version {:?} cannot be handled as a {}", expected.version, expected.kind);
        return Err(ApiStatus::bad_request(message));
    }
    if !body["metadata"].is_object() && !body["metadata"].is_null() {
        return Err(ApiStatus::bad_request("metadata must be an object"));
    }
    let namespaced = resource.scope == ResourceScope::Namespaced;
    if !given.is_empty() && Some(given.as_str()) != namespace && namespaced {
        return Err(ApiStatus::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    body["apiVersion"] = json!(expected.api_version());
    body["kind"] = json!(expected.kind);
    if body["metadata"].is_null() {
        body["metadata"] = Value::Object(Map::new());
    }
    match namespace.filter(|_| namespaced) {
        Some(namespace) => body["metadata"]["namespace"] = json!(namespace),
        None => {
            body["metadata"].as_object_mut().and_then(|metadata| metadata.remove("namespace"));
        }
    }
    Ok(())
}

/// The most unknown or duplicate fields that an error names. A kube-apiserver has the same limit.
const MAX_NAMED: usize = 100;

/// The error for a body with unknown or duplicate fields.
pub fn strict(kind: &GroupVersionKind, lines: &[String]) -> ApiStatus {
    ApiStatus::bad_request(format!(
        "{name} in version {version:?} cannot be handled as a {name}: strict decoding error: {all}",
        name = kind.kind,
        version = kind.version,
        all = lines[..lines.len().min(MAX_NAMED)].join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn things() -> Resource {
        let kind = GroupVersionKind { group: "g".to_owned(), version: "v1".to_owned(), kind: "Thing".to_owned() };
        Resource {
            kind,
            list_kind: "ThingList".to_owned(),
            plural: "things".to_owned(),
            singular: "thing".to_owned(),
            short_names: Vec::new(),
            categories: Vec::new(),
            scope: ResourceScope::Namespaced,
            verbs: Vec::new(),
            subresources: Vec::new(),
        }
    }

    #[test]
    fn an_error_names_at_most_a_hundred_fields() {
        let lines: Vec<String> = (0..100_000).map(|n| format!("unknown field \"f{n}\"")).collect();
        let message = strict(&things().kind, &lines).message;
        assert!(message.ends_with("unknown field \"f99\""), "{}", message.len());
    }

    #[rstest]
    #[case::nothing_said(json!({}), Origin::Custom, None)]
    #[case::all_said(json!({"apiVersion": "g/v1", "kind": "Thing", "metadata": {"namespace": "n"}}), Origin::Custom, None)]
    #[case::other_version(json!({"apiVersion": "g/v2"}), Origin::Custom, Some(400))]
    #[case::other_kind(json!({"kind": "Other"}), Origin::Custom, Some(422))]
    #[case::other_built_in_kind(json!({"kind": "Other"}), Origin::BuiltIn, Some(400))]
    #[case::other_namespace(json!({"metadata": {"namespace": "m"}}), Origin::Custom, Some(400))]
    #[case::metadata_of_another_type(json!({"metadata": 5}), Origin::Custom, Some(400))]
    fn a_body_agrees_with_its_url(#[case] mut body: Value, #[case] origin: Origin, #[case] refused: Option<u16>) {
        let found = agree_with_url(&mut body, &things(), Some("n"), origin);
        assert_eq!(found.err().map(|status| status.code), refused);
        if refused.is_none() {
            assert_eq!(body, json!({"apiVersion": "g/v1", "kind": "Thing", "metadata": {"namespace": "n"}}));
        }
    }
}
