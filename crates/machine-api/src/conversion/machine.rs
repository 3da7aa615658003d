//! `Machine`, and the machine specification in the templates of sets and deployments.

use std::borrow::Cow;

use super::{Object, nested, object_of, operation, rename};
use crate::names::label;
use kube_values::{duration::GoDuration, json::Json};

/// The timeouts: the name in v1alpha1, and the name below `lifecycle` in v1beta1.
const TIMEOUTS: [(&str, &str); 5] = [
    ("drainTimeout", "drainTimeout"),
    ("creationTimeout", "creationTimeout"),
    ("healthTimeout", "healthTimeout"),
    ("inPlaceUpdateTimeout", "inPlaceUpdateTimeout"),
    ("machinePreserveTimeout", "preserveTimeout"),
];

/// The fields of `status.currentStatus`, which are in `status` itself in v1beta1.
const CURRENT_STATUS: [(&str, &str); 4] = [
    ("phase", "phase"),
    ("lastUpdateTime", "phaseUpdateTime"),
    ("timeoutActive", "timeoutActive"),
    ("preserveExpiryTime", "preserveExpiryTime"),
];

pub(super) fn up(machine: &mut Object<'_>) {
    if let Some(spec) = nested(machine, "spec") {
        spec_up(spec);
    }
    if let Some(status) = nested(machine, "status") {
        status_up(status);
    }
    mirror_node_label(machine);
}

pub(super) fn down(machine: &mut Object<'_>) {
    if let Some(spec) = nested(machine, "spec") {
        spec_down(spec);
    }
    forget_node_reference(machine);
    if let Some(status) = nested(machine, "status") {
        status_down(status);
    }
}

pub(super) fn spec_up<'a>(spec: &mut Object<'a>) {
    rename(spec, "class", "classRef");
    let mut lifecycle = Object::default();
    let mut put = |name: &'static str, value: Option<Json<'a>>| {
        if let Some(value) = value {
            lifecycle.insert(name, value);
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
        spec.insert("lifecycle", lifecycle);
    }
    keep_used_node_template(spec);
}

pub(super) fn spec_down<'a>(spec: &mut Object<'a>) {
    rename(spec, "classRef", "class");
    for (older, _) in TIMEOUTS {
        spec.remove(older);
    }
    for older in ["disableHealthTimeout", "maxEvictRetries", "nodeConditions"] {
        spec.remove(older);
    }
    if let Some(Json::Object(mut lifecycle)) = spec.remove("lifecycle") {
        let mut put = |name: &'static str, value: Option<Json<'a>>| {
            if let Some(value) = value {
                spec.insert(name, value);
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

/// Whether the schemas of both versions accept the duration. Other values were stored before there was a pattern, and are not converted.
fn is_duration(value: &Json<'_>) -> bool {
    let Some(text) = value.as_str() else { return false };
    text.len() <= 64 && !text.starts_with('-') && text.parse::<GoDuration>().is_ok()
}

fn health_check(disable_health_timeout: &Json<'_>) -> Option<Json<'static>> {
    disable_health_timeout.as_bool().map(|disabled| if disabled { "Disabled" } else { "Enabled" }.into())
}

fn disable_health_timeout(health_check: &Json<'_>) -> Option<Json<'static>> {
    match health_check.as_str()? {
        "Disabled" => Some(true.into()),
        "Enabled" => Some(false.into()),
        _ => None,
    }
}

/// The maximum number of conditions in a comma-separated string. A longer string is not split, because each entry of a list takes a hundred times the
/// memory of a comma. No object that the schema accepts has this many useful conditions.
const CONDITIONS_MAX: usize = 4_096;

fn are_too_many(text: &str) -> bool {
    text.bytes().filter(|byte| *byte == b',').count() >= CONDITIONS_MAX
}

/// The conditions of a comma string, untrimmed. An empty list for the empty string, and one entry for a string with too many conditions.
fn split_conditions<'a>(conditions: &Json<'a>) -> Option<Json<'a>> {
    let Json::Text(text) = conditions else { return None };
    Some(match text {
        text if text.is_empty() => [].into_iter().collect(),
        text if are_too_many(text) => [conditions.clone()].into_iter().collect(),
        Cow::Borrowed(text) => text.split(',').map(Json::from).collect(),
        Cow::Owned(text) => text.split(',').map(|word| Json::from(word.to_owned())).collect(),
    })
}

/// The comma string of conditions. `None` for a list that no comma string can represent.
fn join_conditions<'a>(list: &Json<'a>) -> Option<Json<'a>> {
    let list = list.as_array()?;
    let words = list.iter().map(Json::as_str).collect::<Option<Vec<_>>>()?;
    if let ([text], [only]) = (words.as_slice(), list)
        && are_too_many(text)
    {
        return Some(only.clone());
    }
    let ambiguous = words == [""] || words.iter().any(|word| word.contains(','));
    (!ambiguous).then(|| words.join(",").into())
}

/// Keeps the part of the node template that v1beta1 has: labels, annotations and taints.
fn keep_used_node_template(spec: &mut Object<'_>) {
    let Some(template) = nested(spec, "nodeTemplate") else { return };
    keep_only(template, &["metadata", "spec"]);
    if let Some(metadata) = nested(template, "metadata") {
        keep_only(metadata, &["labels", "annotations"]);
    }
    if let Some(spec) = nested(template, "spec") {
        keep_only(spec, &["taints"]);
    }
}

fn keep_only(object: &mut Object<'_>, names: &[&str]) {
    object.retain(|name, _| names.contains(&name));
}

fn status_up(status: &mut Object<'_>) {
    status.remove("observedGeneration");
    rename(status, "conditions", "nodeConditions");
    rename(status, "machineConditions", "conditions");
    let current = status.remove("currentStatus");
    for (older, newer) in CURRENT_STATUS {
        status.remove(newer);
        if let Some(value) = current.as_ref().and_then(|current| current.as_object()?.get(older)) {
            status.insert(newer, value.clone());
        }
    }
    operation::up(status);
}

fn status_down(status: &mut Object<'_>) {
    status.remove("observedGeneration");
    rename(status, "conditions", "machineConditions");
    rename(status, "nodeConditions", "conditions");
    let mut current = Object::default();
    for (older, newer) in CURRENT_STATUS {
        if let Some(value) = status.remove(newer) {
            current.insert(older, value);
        }
    }
    status.remove("currentStatus");
    if !current.is_empty() {
        status.insert("currentStatus", current);
    }
    operation::down(status);
}

/// Sets `status.nodeRef` of a v1beta1 machine to the node of its label.
pub(super) fn mirror_node_label(machine: &mut Object<'_>) {
    let node = machine.get("metadata").and_then(|metadata| metadata.get("labels")?.get(label::NODE));
    let Some(node) = node.filter(|node| node.as_str().is_some_and(|node| !node.is_empty())).cloned() else {
        return forget_node_reference(machine);
    };
    if let Some(status) = machine.get_or_insert_object("status").as_object_mut() {
        status.insert("nodeRef", object_of([("name", node)]));
    }
}

/// Removes the node reference, and the status if it is empty then.
fn forget_node_reference(machine: &mut Object<'_>) {
    let Some(status) = nested(machine, "status") else { return };
    if status.remove("nodeRef").is_some() && status.is_empty() {
        machine.remove("status");
    }
}
