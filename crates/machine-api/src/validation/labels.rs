//! Checks labels, annotations and finalizers of templates with the checks of the API machinery.

use std::borrow::Cow;

use kube_values::syntax;

use super::node::Node;
use kube_values::{
    field::{Findings, PathRef, RuleId},
    json::Members,
};

/// The maximum bytes of all annotations of an object, with their keys.
pub const ANNOTATIONS_MAX: usize = 262_144;

/// Checks that keys are qualified names and values are label values. Values of another type are reported elsewhere.
pub fn labels_are_wellformed(rule: RuleId, labels: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    for (key, value) in labels.members().into_iter().flat_map(Members::iter) {
        for objection in syntax::qualified_name(key) {
            found.invalid(rule, path, key, objection);
        }
        if let Some(value) = value.as_str() {
            for objection in syntax::label_value(value) {
                found.invalid(rule, path, value, objection);
            }
        }
    }
}

/// Checks that keys are qualified names in lower case, and that the sum is not too large.
pub fn annotations_are_wellformed(rule: RuleId, annotations: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    let mut size = 0;
    for (key, value) in annotations.members().into_iter().flat_map(Members::iter) {
        for objection in syntax::qualified_name(&lower_cased(key)) {
            found.invalid(rule, path, key, objection);
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_MAX {
        found.too_long(rule, path, ANNOTATIONS_MAX);
    }
}

/// The key in lower case. Most keys are in lower case already.
fn lower_cased(key: &str) -> Cow<'_, str> {
    let is_lower = key.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
    if is_lower { Cow::Borrowed(key) } else { Cow::Owned(key.to_lowercase()) }
}

/// Checks that finalizers are qualified names with a domain.
pub fn finalizers_are_qualified(rule: RuleId, finalizers: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    for (index, finalizer) in finalizers.elements().iter().enumerate() {
        let Some(text) = finalizer.as_str() else { continue };
        let objections = syntax::qualified_name(text);
        if objections.is_empty() && !text.contains('/') {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            found.invalid(rule, path.index(index), text, detail);
        }
        for objection in objections {
            found.invalid(rule, path.index(index), text, objection);
        }
    }
}
