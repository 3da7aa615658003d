//! Rules for the labels, annotations and taints that a Node gets from its machine (spec/api-and-admission §5.2, MCH-11 to MCH-18 and MCH-27).
//! [`super::types`] checks that the values of labels are texts (MCH-11).

use std::collections::HashSet;

use kube_values::syntax;
use serde_json::Value;

use super::{
    labels,
    node::Node,
    rule::{Rule, check, original, refuses, warns},
};
use crate::names::{annotation, label};
use kube_values::{
    field::{Findings, PathRef},
    json::{Json, Members},
};

/// The effects of taints.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub const MCH_11: Rule = original("MCH-11", "The labels and annotations for the Node are strings.", &["V32"]);

pub const MCH_12: Rule = Rule {
    policy_cel: &[check(
        "node_labels",
        "variables.node_labels.all(k, k.matches(<name>) && variables.node_labels[k].matches(<label>))",
        "nodeTemplate.metadata.labels: keys must be qualified names and values label values",
    )],
    ..refuses("MCH-12", "The labels for the Node are well-formed.", &["V30", "V31", "V33"])
};

pub const MCH_13: Rule = Rule {
    policy_cel: &[
        check(
            "node_annotations",
            "variables.node_annotations.all(k, k.lowerAscii().matches(<name>))",
            "nodeTemplate.metadata.annotations: keys must be qualified names",
        ),
        check(
            "node_annotations",
            "variables.node_annotations.map(k, size(bytes(k)) + size(bytes(variables.node_annotations[k]))).sum() <= 262144",
            "nodeTemplate.metadata.annotations: may not be more than 262144 bytes",
        ),
    ],
    ..refuses("MCH-13", "The annotations for the Node are well-formed and not too large.", &["MCH-13"])
};

/// Runs all rules of a node template.
pub fn rules(template: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    if template.is_absent() {
        return;
    }
    let (metadata, metadata_path) = (template.get("metadata"), path.child("metadata"));
    labels::labels_are_wellformed(MCH_12.id, metadata.get("labels"), metadata_path.child("labels"), found);
    let annotations_path = metadata_path.child("annotations");
    labels::annotations_are_wellformed(MCH_13.id, metadata.get("annotations"), annotations_path, found);
    let (spec, spec_path) = (template.get("spec"), path.child("spec"));
    taints_are_wellformed(spec.get("taints"), spec_path, found);
    other_fields_have_no_effect(metadata, metadata_path, spec, spec_path, found);
    reserved_keys_have_no_effect(metadata, metadata_path, found);
}

pub const MCH_15: Rule = Rule {
    policy_cel: &[check(
        "taints",
        "variables.taints.all(t, t.?value.orValue('').matches(<label>))",
        "nodeTemplate.spec.taints: every value must be a label value",
    )],
    ..refuses("MCH-15", "The value of a taint is a label value.", &["MCH-15"])
};

pub const MCH_17: Rule = Rule {
    policy_cel: &[check(
        "taints",
        "variables.taints.all(t, variables.taints.exists_one(u, u.?key == t.?key && u.?effect == t.?effect))",
        "nodeTemplate.spec.taints: taints must be unique by key and effect pair",
    )],
    ..refuses("MCH-17", "No two taints have the same key and effect.", &["V39", "V40"])
};

fn taints_are_wellformed(taints: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    let (taints, path) = (taints.elements(), path.child("taints"));
    let mut seen = HashSet::with_capacity(taints.len());
    for (index, taint) in taints.iter().enumerate() {
        let (taint, path) = (Node::of(taint), path.index(index));
        taint_key_is_qualified(taint, path, found);
        if let Some(value) = taint.get("value").text() {
            for objection in syntax::label_value(value) {
                found.invalid(MCH_15.id, path.child("value"), value, objection);
            }
        }
        taint_effect_is_known(taint, path, found);
        if let (Some(key), Some(effect)) = (taint.get("key").text(), taint.get("effect").text())
            && !seen.insert((key, effect))
        {
            let value = format_args!("{key}:{effect}");
            found.duplicate(MCH_17.id, path, value, "taints must be unique by key and effect pair");
        }
    }
}

pub const MCH_14: Rule = Rule {
    policy_cel: &[check(
        "taints",
        "variables.taints.all(t, t.?key.orValue('').matches(<name>))",
        "nodeTemplate.spec.taints: every key must be a qualified name",
    )],
    ..refuses("MCH-14", "The key of a taint is a qualified name.", &["V38"])
};

/// MCH-14.
fn taint_key_is_qualified(taint: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    match taint.get("key").text_or_empty() {
        Some("") => found.required(MCH_14.id, path.child("key"), ""),
        Some(key) => {
            for objection in syntax::qualified_name(key) {
                found.invalid(MCH_14.id, path.child("key"), key, objection);
            }
        }
        None => {}
    }
}

pub const MCH_16: Rule = Rule {
    policy_cel: &[check(
        "taints",
        "variables.taints.all(t, t.?effect.orValue('') in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",
        "nodeTemplate.spec.taints: every effect must be \"NoSchedule\", \"PreferNoSchedule\" or \"NoExecute\"",
    )],
    ..refuses("MCH-16", "The effect of a taint is known.", &["V34", "V35", "V36", "V37"])
};

/// MCH-16.
fn taint_effect_is_known(taint: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    match taint.get("effect").text_or_empty() {
        Some("") => found.required(MCH_16.id, path.child("effect"), ""),
        Some(effect) if !EFFECTS.contains(&effect) => {
            found.not_supported(MCH_16.id, path.child("effect"), effect, &EFFECTS);
        }
        Some(_) | None => {}
    }
}

pub const MCH_18: Rule =
    warns("MCH-18", "The template of the Node sets labels, annotations and taints only.", &["V41"]);

/// MCH-18: a Node gets only labels, annotations and taints. Go writes `creationTimestamp: null`, which is allowed.
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
            found.warn(MCH_18.id, metadata_path.child(key), Value::Null, detail);
        }
    }
    for (key, value) in spec.members().into_iter().flat_map(Members::iter) {
        if key != "taints" && set(value) {
            found.warn(MCH_18.id, spec_path.child(key), Value::Null, "is ignored: only taints are applied to nodes");
        }
    }
}

pub const MCH_27: Rule =
    warns("MCH-27", "The labels and annotations for the Node leave alone what controllers write.", &["MCH-27"]);

/// MCH-27: no key is written by the controllers or the kubelet.
fn reserved_keys_have_no_effect(metadata: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    for field in ["annotations", "labels"] {
        for key in metadata.get(field).members().into_iter().flat_map(Members::keys) {
            let reserved = key.starts_with(annotation::LAST_APPLIED_PREFIX)
                || matches!(key, label::MACHINE_NAME | label::HOSTNAME);
            if reserved {
                found.warn(MCH_27.id, path.child(field).key(key), Value::Null, "is reserved and will be ignored");
            }
        }
    }
}
