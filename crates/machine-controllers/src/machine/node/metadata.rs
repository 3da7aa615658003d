//! The metadata that the Node of a machine should have: finalizer, machine name, the machine's template, and the annotation with the last applied
//! template.
//!
//! All of it goes into one write, guarded by the version because finalizers and taints are lists. Keys that neither the
//! template nor the last applied template names are not touched. Source: spec/machine-controller §8.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Taint;
use machine_api::{
    names::{annotation, finalizer, label},
    v1alpha1::NodeTemplateSpec,
};

use crate::{changes::Changes, machine::plan::node_dress::NodeDress, snapshots::NodeSnapshot};

/// Keys of a template that are not applied: the machine's name, the annotations with last applied values, and the kubelet's
/// own name.
const PROTECTED_LABELS: [&str; 2] = [label::MACHINE_NAME, "kubernetes.io/hostname"];
const PROTECTED_ANNOTATION_PREFIX: &str = "node.machine.sapcloud.io/last-applied-";

/// The missing metadata of a Node.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The changes; empty when the Node is as it should be.
    pub dress: NodeDress,
    /// Whether the last applied template on the Node could be read, if there is one. An unreadable one counts as empty.
    pub last_applied_is_readable: bool,
}

/// The missing metadata of this machine's Node.
pub fn wanted(machine: &str, template: &NodeTemplateSpec, node: &NodeSnapshot) -> Wanted {
    let (is_readable, before) = last_applied(node);
    let finalizers = (!node.is_held() && !node.is_deleting()).then(|| {
        let mut all = node.finalizers().to_vec();
        all.push(finalizer::NODE.to_owned());
        all
    });

    let template_labels = unprotected_labels(template);
    let mut labels = changes(
        &template_labels,
        &keys(before.metadata.labels.as_ref()),
        |key| node.label(key),
        |key| PROTECTED_LABELS.contains(&key),
    );
    if node.label(label::MACHINE_NAME) != Some(machine) {
        labels.insert(label::MACHINE_NAME.to_owned(), Some(machine.to_owned()));
    }

    let template_annotations = unprotected_annotations(template);
    let mut annotations = changes(
        &template_annotations,
        &keys(before.metadata.annotations.as_ref()),
        |key| node.annotation(key),
        |key| key.starts_with(PROTECTED_ANNOTATION_PREFIX),
    );
    // A machine links to the node, so the node is managed (M-56).
    if node.annotation(annotation::NOT_MANAGED).is_some() {
        annotations.insert(annotation::NOT_MANAGED.to_owned(), None);
    }
    // The last applied template is compared by meaning, so that the text of the Go binaries costs no write.
    let says_the_same = is_readable && meaning(&before) == meaning(template);
    let has_memory = node.annotation(annotation::LAST_APPLIED_TEMPLATE).is_some();
    let empty = meaning(template) == meaning(&NodeTemplateSpec::default());
    if !says_the_same || !(has_memory || empty) {
        annotations.insert(annotation::LAST_APPLIED_TEMPLATE.to_owned(), Some(as_memory(template)));
    }

    let taints = taints(template, &before, node.taints());
    Wanted { dress: NodeDress { finalizers, labels, annotations, taints }, last_applied_is_readable: is_readable }
}

/// The last applied template according to the Node, and whether it could be read.
fn last_applied(node: &NodeSnapshot) -> (bool, NodeTemplateSpec) {
    match node.annotation(annotation::LAST_APPLIED_TEMPLATE) {
        None => (true, NodeTemplateSpec::default()),
        Some(text) => match serde_json::from_str(text) {
            Ok(template) => (true, template),
            Err(_) => (false, NodeTemplateSpec::default()),
        },
    }
}

/// The text of the annotation, in the form that the Go binaries read.
fn as_memory(template: &NodeTemplateSpec) -> String {
    serde_json::to_string(template).unwrap_or_else(|_| "{}".to_owned())
}

type Pairs = BTreeMap<String, String>;
type TaintKey = (String, String);

/// The labels, annotations and taints that a template demands of a Node.
fn meaning(template: &NodeTemplateSpec) -> (Pairs, Pairs, BTreeMap<TaintKey, Option<String>>) {
    let taints = template.spec.taints.iter().flatten();
    (
        template.metadata.labels.clone().unwrap_or_default(),
        template.metadata.annotations.clone().unwrap_or_default(),
        taints.map(|taint| (identity(taint), taint.value.clone().filter(|value| !value.is_empty()))).collect(),
    )
}

fn keys(pairs: Option<&Pairs>) -> BTreeSet<String> {
    pairs.into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

fn unprotected_labels(template: &NodeTemplateSpec) -> Pairs {
    let labels = template.metadata.labels.iter().flatten();
    labels.filter(|(key, _)| !PROTECTED_LABELS.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn unprotected_annotations(template: &NodeTemplateSpec) -> Pairs {
    let annotations = template.metadata.annotations.iter().flatten();
    annotations
        .filter(|(key, _)| !key.starts_with(PROTECTED_ANNOTATION_PREFIX))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Keys to set and, with `None`, keys to remove.
fn changes<'a>(
    template: &Pairs,
    before: &BTreeSet<String>,
    has: impl Fn(&str) -> Option<&'a str>,
    is_protected: fn(&str) -> bool,
) -> Changes {
    let removed = before
        .iter()
        .filter(|key| !template.contains_key(*key) && has(key).is_some() && !is_protected(key))
        .map(|key| (key.clone(), None));
    let set = template
        .iter()
        .filter(|(key, value)| has(key) != Some(value.as_str()))
        .map(|(key, value)| (key.clone(), Some(value.clone())));
    removed.chain(set).collect()
}

fn identity(taint: &Taint) -> TaintKey {
    (taint.key.clone(), taint.effect.clone())
}

/// The Node's taints and the taints of the template, or `None` when nothing changes. `timeAdded` does not count.
fn taints(template: &NodeTemplateSpec, before: &NodeTemplateSpec, has: &[Taint]) -> Option<Vec<Taint>> {
    let wanted: Vec<&Taint> = template.spec.taints.iter().flatten().collect();
    let is_wanted = |taint: &Taint| wanted.iter().find(|wanted| identity(wanted) == identity(taint)).copied();
    let was_ours: BTreeSet<TaintKey> = before.spec.taints.iter().flatten().map(identity).collect();
    let mut changed = false;
    let mut all = Vec::new();
    for taint in has {
        match is_wanted(taint) {
            Some(wanted) if value(wanted) == value(taint) => all.push(taint.clone()),
            Some(wanted) => {
                changed = true;
                all.push(wanted.clone());
            }
            None if was_ours.contains(&identity(taint)) => changed = true,
            None => all.push(taint.clone()),
        }
    }
    for wanted in &wanted {
        if !all.iter().any(|taint| identity(taint) == identity(wanted)) {
            changed = true;
            all.push((*wanted).clone());
        }
    }
    changed.then_some(all)
}

fn value(taint: &Taint) -> &str {
    taint.value.as_deref().unwrap_or_default()
}
