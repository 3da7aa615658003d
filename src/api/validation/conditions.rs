//! Rule MCH-10: the node conditions that make a machine unhealthy.
//!
//! In v1alpha1 one comma-separated string that is not trimmed, in v1beta1 a list. An entry that can never equal a
//! condition type would silently disable the check it stands for.

use std::collections::HashSet;

use super::{node::Node, syntax};
use crate::api::field::{FieldPath, Findings, FirstFew, quoted};

const RULE: &str = "MCH-10";

/// The comma-separated form. The empty string is valid: it disables the checks. One finding for all entries that are wrong,
/// one for all that stand there twice.
pub fn text_names_conditions(conditions: Node<'_>, path: impl Fn() -> FieldPath, found: &mut Findings) {
    let Some(text) = conditions.text().filter(|text| !text.is_empty()) else { return };
    let mut seen = HashSet::new();
    let mut objections = FirstFew::default();
    let (mut twice, mut others) = (None, FirstFew::default());
    for entry in text.split(',') {
        let is_first = seen.insert(entry);
        match (is_wellformed(entry), twice) {
            (false, _) => objections.add(|| objection(entry)),
            (true, None) if !is_first => twice = Some(entry),
            (true, Some(_)) if !is_first => others.add(|| quoted(entry)),
            (true, _) => {}
        }
    }
    if !objections.is_empty() {
        found.invalid(RULE, path(), text, objections.joined("; "));
    }
    if let Some(entry) = twice {
        let detail = if others.is_empty() { String::new() } else { format!("and so are {}", others.joined(", ")) };
        found.duplicate(RULE, path(), entry, detail);
        found.depends_on(&text.into());
    }
}

/// The list form.
pub fn list_names_conditions(conditions: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let mut seen = HashSet::new();
    for (index, entry) in conditions.elements().iter().enumerate() {
        let Some(entry) = entry.as_str() else { continue };
        let is_first = seen.insert(entry);
        if !is_wellformed(entry) {
            found.invalid(RULE, path.index(index), entry, objection(entry));
        } else if !is_first {
            found.duplicate(RULE, path.index(index), entry, "");
        }
    }
}

fn is_wellformed(entry: &str) -> bool {
    // No qualified name holds whitespace.
    syntax::is_qualified_name(entry)
}

fn objection(entry: &str) -> String {
    if entry.is_empty() {
        return "entry \"\" must not be empty".to_owned();
    }
    let quoted = quoted(entry);
    if entry.chars().any(char::is_whitespace) {
        return format!("entry {quoted} must not contain whitespace");
    }
    let objections = syntax::qualified_name(entry);
    format!("entry {quoted} is not a valid condition type: {}", objections.join("; "))
}
