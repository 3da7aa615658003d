//! The rules of Secrets and `ConfigMaps`.
//!
//! Source: spec/extension-apiserver §6.2; `ValidateSecret` and `ValidateConfigMap` of Kubernetes.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{kinds::Served, write_rules::remove};
use kube_protocol::status::{ApiStatus, Cause};

/// The maximum number of bytes of the data of an object, decoded.
const DATA_LIMIT: usize = 1024 * 1024;
/// The maximum number of characters of a key.
const LONGEST_KEY: usize = 253;

/// Converts the data of an object to its stored form. Values that are not base64 are refused.
pub(super) fn decode(served: &Served, object: &mut Value) -> Result<(), ApiStatus> {
    let kind = served.kind();
    if kind == "Secret" {
        encode_strings(object);
    }
    let field = encoded_field(served);
    for (key, value) in object[field].as_object().into_iter().flatten() {
        if let Some(Err(error)) = value.as_str().map(|text| BASE64_STANDARD.decode(text)) {
            return Err(ApiStatus::bad_request(format!(
                "{kind} in version \"v1\" cannot be handled as a {kind}: illegal base64 data in {field}.{key}: {error}"
            )));
        }
    }
    Ok(())
}

/// The field whose values are base64.
fn encoded_field(served: &Served) -> &'static str {
    if served.kind() == "Secret" { "data" } else { "binaryData" }
}

/// Moves `stringData` into `data`, and sets the default type.
fn encode_strings(secret: &mut Value) {
    let plain = secret["stringData"].take();
    remove(secret, "stringData");
    if let Value::Object(plain) = plain {
        for (key, value) in plain {
            if !secret["data"].is_object() {
                secret["data"] = json!({});
            }
            secret["data"][&key] = json!(BASE64_STANDARD.encode(value.as_str().unwrap_or_default()));
        }
    }
    if secret["type"].is_null() {
        secret["type"] = json!("Opaque");
    }
}

/// Validates the data of an object.
pub(super) fn check(served: &Served, object: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    let encoded = encoded_field(served);
    let mut size = 0;
    for field in ["data", "binaryData"] {
        for (key, value) in object[field].as_object().into_iter().flatten() {
            let path = format!("{field}[{key}]");
            if let Some(why) = key_problem(key) {
                found.push(Cause::invalid(&path, &json!(key), why));
            }
            if field == "binaryData" && !object["data"][key].is_null() {
                found.push(Cause::invalid(&path, &json!(key), "duplicate of key present in data"));
            }
            let text = value.as_str().unwrap_or_default();
            size += if field == encoded { decoded_length(text) } else { text.len() };
        }
    }
    if size > DATA_LIMIT {
        let path = if served.kind() == "Secret" { "data" } else { "" };
        found.push(Cause::too_long(path, "may not be more than 1048576 bytes"));
    }
    let Some(old) = old else { return };
    if served.kind() == "Secret" && old["type"] != object["type"] {
        found.push(Cause::invalid("type", &object["type"], "field is immutable"));
    }
    if old["immutable"] == json!(true) {
        for field in ["data", "binaryData", "immutable"] {
            if old[field] != object[field] {
                found.push(Cause::forbidden(field, "field is immutable when `immutable` is set"));
            }
        }
    }
}

fn key_problem(key: &str) -> Option<&'static str> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if key.is_empty() || !key.chars().all(fine) || matches!(key, "." | "..") || key.starts_with("..") {
        return Some(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        );
    }
    (key.len() > LONGEST_KEY).then_some("must be no more than 253 characters")
}

/// The number of bytes of a base64 text after decoding.
fn decoded_length(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}
