//! `Machine`, and the machine specification inside the templates of sets and deployments.

use serde_json::{Value, json};

use super::{Object, nested, operation, rename};
use crate::api::{duration::GoDuration, names::label};

/// Timeouts: name in v1alpha1, name below `lifecycle` in v1beta1.
const TIMEOUTS: [(&str, &str); 5] = [
    ("drainTimeout", "drainTimeout"),
    ("creationTimeout", "creationTimeout"),
    ("healthTimeout", "healthTimeout"),
    ("inPlaceUpdateTimeout", "inPlaceUpdateTimeout"),
    ("machinePreserveTimeout", "preserveTimeout"),
];

/// Members of `status.currentStatus`, which v1beta1 has in `status` itself.
const CURRENT_STATUS: [(&str, &str); 4] = [
    ("phase", "phase"),
    ("lastUpdateTime", "phaseUpdateTime"),
    ("timeoutActive", "timeoutActive"),
    ("preserveExpiryTime", "preserveExpiryTime"),
];

pub(super) fn up(machine: &mut Object) {
    if let Some(spec) = nested(machine, "spec") {
        spec_up(spec);
    }
    if let Some(status) = nested(machine, "status") {
        status_up(status);
    }
    mirror_node_label(machine);
}

pub(super) fn down(machine: &mut Object) {
    if let Some(spec) = nested(machine, "spec") {
        spec_down(spec);
    }
    forget_node_reference(machine);
    if let Some(status) = nested(machine, "status") {
        status_down(status);
    }
}

pub(super) fn spec_up(spec: &mut Object) {
    rename(spec, "class", "classRef");
    let mut lifecycle = Object::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            lifecycle.insert(name.to_owned(), value);
        }
    };
    for (older, newer) in TIMEOUTS {
        put(newer, spec.remove(older).filter(is_duration));
    }
    put("healthCheck", spec.remove("disableHealthTimeout").as_ref().and_then(health_check));
    put("maxEvictRetries", spec.remove("maxEvictRetries"));
    put("unhealthyNodeConditions", spec.remove("nodeConditions").as_ref().and_then(split_conditions));
    spec.remove("lifecycle");
    if !lifecycle.is_empty() {
        spec.insert("lifecycle".to_owned(), Value::Object(lifecycle));
    }
    keep_used_node_template(spec);
}

pub(super) fn spec_down(spec: &mut Object) {
    rename(spec, "classRef", "class");
    for (older, _) in TIMEOUTS {
        spec.remove(older);
    }
    for older in ["disableHealthTimeout", "maxEvictRetries", "nodeConditions"] {
        spec.remove(older);
    }
    if let Some(Value::Object(mut lifecycle)) = spec.remove("lifecycle") {
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                spec.insert(name.to_owned(), value);
            }
        };
        for (older, newer) in TIMEOUTS {
            put(older, lifecycle.remove(newer).filter(is_duration));
        }
        put("disableHealthTimeout", lifecycle.get("healthCheck").and_then(disable_health_timeout));
        put("maxEvictRetries", lifecycle.remove("maxEvictRetries"));
        put("nodeConditions", lifecycle.get("unhealthyNodeConditions").and_then(join_conditions));
    }
    keep_used_node_template(spec);
}

/// Whether both versions' schemas take it; what was stored before there was a pattern is not passed on.
fn is_duration(value: &Value) -> bool {
    let Some(text) = value.as_str() else { return false };
    text.len() <= 64 && !text.starts_with('-') && text.parse::<GoDuration>().is_ok()
}

fn health_check(disable_health_timeout: &Value) -> Option<Value> {
    disable_health_timeout.as_bool().map(|disabled| if disabled { "Disabled" } else { "Enabled" }.into())
}

fn disable_health_timeout(health_check: &Value) -> Option<Value> {
    match health_check.as_str()? {
        "Disabled" => Some(true.into()),
        "Enabled" => Some(false.into()),
        _ => None,
    }
}

/// More conditions in one text are not taken apart: each entry of a list takes a hundred times the comma that stands for it.
/// No object that the schema takes has so many that mean anything.
const CONDITIONS_MAX: usize = 4_096;

fn are_too_many(text: &str) -> bool {
    text.bytes().filter(|byte| *byte == b',').count() >= CONDITIONS_MAX
}

/// The conditions of a comma string, untrimmed; none at all for the empty string, and one for a text of too many.
fn split_conditions(text: &Value) -> Option<Value> {
    match text.as_str()? {
        "" => Some(json!([])),
        text if are_too_many(text) => Some(json!([text])),
        text => Some(text.split(',').collect()),
    }
}

/// The comma string of conditions; `None` for lists that no comma string stands for.
fn join_conditions(list: &Value) -> Option<Value> {
    let words = list.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
    if let [text] = words.as_slice()
        && are_too_many(text)
    {
        return Some((*text).into());
    }
    let ambiguous = words == [""] || words.iter().any(|word| word.contains(','));
    (!ambiguous).then(|| words.join(",").into())
}

/// Of the node template, v1beta1 has only what is used: labels, annotations and taints.
fn keep_used_node_template(spec: &mut Object) {
    let Some(template) = nested(spec, "nodeTemplate") else { return };
    keep_only(template, &["metadata", "spec"]);
    if let Some(metadata) = nested(template, "metadata") {
        keep_only(metadata, &["labels", "annotations"]);
    }
    if let Some(spec) = nested(template, "spec") {
        keep_only(spec, &["taints"]);
    }
}

fn keep_only(object: &mut Object, names: &[&str]) {
    object.retain(|name, _| names.contains(&name.as_str()));
}

fn status_up(status: &mut Object) {
    status.remove("observedGeneration");
    rename(status, "conditions", "nodeConditions");
    rename(status, "machineConditions", "conditions");
    let current = status.remove("currentStatus");
    for (older, newer) in CURRENT_STATUS {
        status.remove(newer);
        if let Some(value) = current.as_ref().and_then(|current| current.as_object()?.get(older)) {
            status.insert(newer.to_owned(), value.clone());
        }
    }
    operation::up(status);
}

fn status_down(status: &mut Object) {
    status.remove("observedGeneration");
    rename(status, "conditions", "machineConditions");
    rename(status, "nodeConditions", "conditions");
    let mut current = Object::new();
    for (older, newer) in CURRENT_STATUS {
        if let Some(value) = status.remove(newer) {
            current.insert(older.to_owned(), value);
        }
    }
    status.remove("currentStatus");
    if !current.is_empty() {
        status.insert("currentStatus".to_owned(), Value::Object(current));
    }
    operation::down(status);
}

/// Makes `status.nodeRef` of a v1beta1 machine say what its label says; the label decides.
pub(super) fn mirror_node_label(machine: &mut Object) {
    let node = machine.get("metadata").and_then(|metadata| metadata.get("labels")?.get(label::NODE)?.as_str());
    let Some(node) = node.filter(|node| !node.is_empty()).map(str::to_owned) else {
        return forget_node_reference(machine);
    };
    let status = machine.entry("status").or_insert_with(|| Value::Object(Object::new()));
    if let Some(status) = status.as_object_mut() {
        status.insert("nodeRef".to_owned(), json!({"name": node}));
    }
}

/// Takes the node reference off, and the status with it if it held nothing else.
fn forget_node_reference(machine: &mut Object) {
    let Some(status) = nested(machine, "status") else { return };
    if status.remove("nodeRef").is_some() && status.is_empty() {
        machine.remove("status");
    }
}
