//! Rules over what a machine hands to its Node: labels, annotations and taints (spec/api-and-admission §5.2, MCH-11 to
//! MCH-18 and MCH-27). That label values are texts (MCH-11) is said by [`super::types`].

use std::collections::HashSet;

use kube_values::syntax;
use serde_json::Value;

use super::{labels, node::Node};
use crate::names::{annotation, label};
use kube_values::{
    field::{Findings, PathRef},
    json::{Json, Members},
};

/// Effects a taint may have.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Runs all rules of a node template.
pub fn rules(template: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    if template.is_absent() {
        return;
    }
    let (metadata, metadata_path) = (template.get("metadata"), path.child("metadata"));
    labels::labels_are_wellformed("MCH-12", metadata.get("labels"), metadata_path.child("labels"), found);
    let annotations_path = metadata_path.child("annotations");
    labels::annotations_are_wellformed("MCH-13", metadata.get("annotations"), annotations_path, found);
    let (spec, spec_path) = (template.get("spec"), path.child("spec"));
    taints_are_wellformed(spec.get("taints"), spec_path, found);
    other_fields_have_no_effect(metadata, metadata_path, spec, spec_path, found);
    reserved_keys_have_no_effect(metadata, metadata_path, found);
}

fn taints_are_wellformed(taints: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    let (taints, path) = (taints.elements(), path.child("taints"));
    let mut seen = HashSet::with_capacity(taints.len());
    for (index, taint) in taints.iter().enumerate() {
        let (taint, path) = (Node::of(taint), path.index(index));
        taint_key_is_qualified(taint, path, found);
        if let Some(value) = taint.get("value").text() {
            for objection in syntax::label_value(value) {
                found.invalid("MCH-15", path.child("value"), value, objection);
            }
        }
        taint_effect_is_known(taint, path, found);
        if let (Some(key), Some(effect)) = (taint.get("key").text(), taint.get("effect").text())
            && !seen.insert((key, effect))
        {
            let value = format_args!("{key}:{effect}");
            found.duplicate("MCH-17", path, value, "taints must be unique by key and effect pair");
        }
    }
}

/// MCH-14.
fn taint_key_is_qualified(taint: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    match taint.get("key").text_or_empty() {
        Some("") => found.required("MCH-14", path.child("key"), ""),
        Some(key) => {
            for objection in syntax::qualified_name(key) {
                found.invalid("MCH-14", path.child("key"), key, objection);
            }
        }
        None => {}
    }
}

/// MCH-16.
fn taint_effect_is_known(taint: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    match taint.get("effect").text_or_empty() {
        Some("") => found.required("MCH-16", path.child("effect"), ""),
        Some(effect) if !EFFECTS.contains(&effect) => {
            found.not_supported("MCH-16", path.child("effect"), effect, &EFFECTS);
        }
        Some(_) | None => {}
    }
}

/// MCH-18: a Node gets labels, annotations and taints, nothing else. Go writes `creationTimestamp: null`.
fn other_fields_have_no_effect(
    metadata: Node<'_>,
    metadata_path: PathRef<'_>,
    spec: Node<'_>,
    spec_path: PathRef<'_>,
    found: &mut Findings,
) {
    let set = |value: &Json<'_>| !value.is_null() && *value != "";
    for (key, value) in metadata.members().into_iter().flat_map(Members::iter) {
        if !matches!(key, "labels" | "annotations") && set(value) {
            let detail = "is ignored: only labels and annotations are applied to nodes";
            found.warn("MCH-18", metadata_path.child(key), Value::Null, detail);
        }
    }
    for (key, value) in spec.members().into_iter().flat_map(Members::iter) {
        if key != "taints" && set(value) {
            found.warn("MCH-18", spec_path.child(key), Value::Null, "is ignored: only taints are applied to nodes");
        }
    }
}

/// MCH-27: keys that the controllers or the kubelet write themselves.
fn reserved_keys_have_no_effect(metadata: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    for field in ["annotations", "labels"] {
        for key in metadata.get(field).members().into_iter().flat_map(Members::keys) {
            let reserved = key.starts_with(annotation::LAST_APPLIED_PREFIX)
                || matches!(key, label::MACHINE_NAME | label::HOSTNAME);
            if reserved {
                found.warn("MCH-27", path.child(field).key(key), Value::Null, "is reserved and will be ignored");
            }
        }
    }
}
