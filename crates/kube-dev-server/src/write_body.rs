//! Bodies of writes: decoding, comparison with the URL, and normalisation by the schema of the kind.
//!
//! Source: spec/extension-apiserver §2.9, §6.4.

use serde_json::Value;

use super::{
    builtin_rules,
    kinds::Served,
    schema::{defaults, prune},
    server::{BODY_LIMIT, Call},
};
use kube_protocol::{
    bodies::{self, Origin},
    duplicates,
    options::{FieldValidation, WriteOptions},
    status::ApiStatus,
};

/// Decodes the body of a write, which must be an object.
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
        let duplicates = duplicates::find(call.body);
        let lines = duplicates.iter().map(|field| format!("duplicate field {field:?}"));
        match options.field_validation {
            FieldValidation::Strict if !duplicates.is_empty() => {
                let mut dropped = object.clone();
                let unknown = prune::object(&mut dropped, &call.served.schema);
                let lines = lines.chain(unknown.iter().map(|field| format!("unknown field {field:?}")));
                return Err(bodies::strict(&call.served.resource.kind, &lines.collect::<Vec<_>>()));
            }
            _ => warnings.extend(lines),
        }
    }
    Ok(object)
}

/// Checks that kind, version and namespace of the body are the same as in the URL.
pub(super) fn agree_with_url(call: &Call<'_>, body: &mut Value) -> Result<(), ApiStatus> {
    let origin = if call.served.is_custom() { Origin::Custom } else { Origin::BuiltIn };
    bodies::agree_with_url(body, &call.served.resource, call.namespace(), origin)
}

/// Drops unknown fields, fills in defaults, and refuses values of a wrong type.
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
            FieldValidation::Strict => return Err(bodies::strict(&served.resource.kind, &lines)),
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
    use serde_json::json;

    use super::*;
    use crate::kinds::Registry;
    use kube_protocol::request::Query;

    #[test]
    fn null_fields_of_built_in_kinds_are_dropped() {
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
