//! Bodies of writes: read, held against the URL, and brought into the shape of their kind.
//!
//! Source: spec/extension-apiserver §2.9, §6.4.

use serde_json::{Value, json};

use super::{
    builtin_rules,
    kinds::Served,
    object::{self, metadata},
    schema::{defaults, prune},
    server::{BODY_LIMIT, Call},
};
use crate::protocol::{
    options::{FieldValidation, WriteOptions},
    status::{ApiStatus, Cause},
};

/// Reads the body of a write: an object with a kind.
pub(super) fn read_body(
    call: &Call<'_>,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<Value, ApiStatus> {
    if call.body.len() > BODY_LIMIT {
        return Err(ApiStatus::too_large(BODY_LIMIT));
    }
    let object = call.decoded()?;
    if !object.is_object() {
        return Err(ApiStatus::bad_request("the object provided is unrecognized: it must be an object"));
    }
    if options.field_validation != FieldValidation::Ignore {
        let duplicates = super::duplicates::find(call.body);
        let lines = duplicates.iter().map(|field| format!("duplicate field {field:?}"));
        match options.field_validation {
            FieldValidation::Strict if !duplicates.is_empty() => {
                let mut dropped = object.clone();
                let unknown = prune::object(&mut dropped, &call.served.schema);
                let lines = lines.chain(unknown.iter().map(|field| format!("unknown field {field:?}")));
                return Err(strict(&call.served, &lines.collect::<Vec<_>>()));
            }
            _ => warnings.extend(lines),
        }
    }
    Ok(object)
}

fn strict(served: &Served, lines: &[String]) -> ApiStatus {
    let (kind, version) = (served.kind(), &served.resource.kind.version);
    let message = format!(
        "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
        lines.join(", ")
    );
    ApiStatus::bad_request(message)
}

/// Kind, version and namespace of the body must be those of the URL.
pub(super) fn agree_with_url(call: &Call<'_>, body: &mut Value) -> Result<(), ApiStatus> {
    let served = &*call.served;
    let api_version = object::text(body, "/apiVersion").to_owned();
    if !api_version.is_empty() && api_version != served.api_version() {
        let message = format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            served.api_version()
        );
        return Err(ApiStatus::bad_request(message));
    }
    let kind = object::text(body, "/kind").to_owned();
    if !kind.is_empty() && kind != served.kind() {
        if served.is_custom() {
            let cause = Cause::invalid("kind", &json!(kind), &format!("must be {}", served.kind()));
            return Err(ApiStatus::invalid(served.group(), served.kind(), object::name(body), vec![cause]));
        }
        let message =
            format!("{kind} in version {:?} cannot be handled as a {}", served.resource.kind.version, served.kind());
        return Err(ApiStatus::bad_request(message));
    }
    body["apiVersion"] = json!(served.api_version());
    body["kind"] = json!(served.kind());
    if !body["metadata"].is_object() && !body["metadata"].is_null() {
        return Err(ApiStatus::bad_request("metadata must be an object"));
    }
    let namespace = object::text(body, "/metadata/namespace").to_owned();
    if !namespace.is_empty() && Some(namespace.as_str()) != call.namespace() && served.is_namespaced() {
        return Err(ApiStatus::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    match call.namespace().filter(|_| served.is_namespaced()) {
        Some(namespace) => metadata(body).insert("namespace".to_owned(), json!(namespace)),
        None => metadata(body).remove("namespace"),
    };
    Ok(())
}

/// Drops what the kind does not know, fills in defaults, and refuses what has the wrong type.
pub(super) fn normalise(
    served: &Served,
    object: &mut Value,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<(), ApiStatus> {
    let dropped = prune::object(object, &served.schema);
    if !dropped.is_empty() {
        let lines: Vec<String> = dropped.iter().map(|field| format!("unknown field {field:?}")).collect();
        match options.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => warnings.extend(lines),
            FieldValidation::Strict => return Err(strict(served, &lines)),
        }
    }
    if served.is_custom() {
        defaults::fill(object, &served.schema);
        prune::nulls(object, &served.schema);
    } else {
        prune::nulls(object, &served.schema);
        builtin_rules::decode(served, object)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dev_server::kinds::Registry, protocol::request::Query};

    #[test]
    fn nulls_in_fields_of_built_in_kinds_say_nothing() {
        let nodes = Registry::new(Vec::new()).find("", "v1", "nodes").unwrap();
        let condition = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": null});
        let mut node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"providerID": null, "taints": null},
            "status": {"conditions": [condition]},
        });
        let options = WriteOptions::parse(&Query::default(), "CreateOptions").unwrap();
        normalise(&nodes, &mut node, &options, &mut Vec::new()).unwrap();
        assert_eq!(node["spec"], json!({}));
        assert_eq!(node["status"]["conditions"], json!([{"type": "Ready", "status": "True"}]));
    }
}
