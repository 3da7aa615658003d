//! Rule MCH-10: the node conditions that make a machine unhealthy.
//!
//! In v1alpha1 one comma-separated string that is not trimmed, in v1beta1 a list. An entry that can never equal a
//! condition type would silently disable the check it stands for.

use super::{node::Node, syntax};
use crate::api::field::{FieldPath, Findings};

const RULE: &str = "MCH-10";

/// The comma-separated form. The empty string is valid: it disables the checks.
pub fn text_names_conditions(conditions: Node<'_>, path: impl Fn() -> FieldPath, found: &mut Findings) {
    let Some(text) = conditions.text().filter(|text| !text.is_empty()) else { return };
    let mut seen = Vec::new();
    for entry in text.split(',') {
        if let Some(objection) = objection(entry) {
            found.invalid(RULE, path(), text, objection);
        } else if seen.contains(&entry) {
            found.duplicate(RULE, path(), entry, "");
            found.depends_on(text.into());
        }
        seen.push(entry);
    }
}

/// The list form.
pub fn list_names_conditions(conditions: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let mut seen = Vec::new();
    for (index, entry) in conditions.elements().iter().enumerate() {
        let Some(entry) = entry.as_str() else { continue };
        if let Some(objection) = objection(entry) {
            found.invalid(RULE, path.index(index), entry, objection);
        } else if seen.contains(&entry) {
            found.duplicate(RULE, path.index(index), entry, "");
        }
        seen.push(entry);
    }
}

fn objection(entry: &str) -> Option<String> {
    if entry.is_empty() {
        return Some("entry \"\" must not be empty".to_owned());
    }
    if entry.chars().any(char::is_whitespace) {
        return Some(format!("entry {entry:?} must not contain whitespace"));
    }
    let objections = syntax::qualified_name(entry);
    (!objections.is_empty())
        .then(|| format!("entry {entry:?} is not a valid condition type: {}", objections.join("; ")))
}
