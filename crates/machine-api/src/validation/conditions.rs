//! Rule MCH-10: the node conditions that make a machine unhealthy.
//!
//! v1alpha1 has a comma-separated string that is not trimmed, and v1beta1 a list. An entry that can't be a condition type would silently disable the
//! check of that condition.

use std::{collections::HashSet, fmt};

use kube_values::syntax;

use super::{
    node::Node,
    rule::{Rule, check, refuses},
};
use kube_values::field::{FieldPath, Findings, FirstFew, PathRef, quoted};

pub const MCH_10: Rule = Rule {
    policy_cel: &[check(
        "conditions",
        "variables.conditions == '' || variables.conditions.split(',').all(e, e.matches(<name>) && variables.conditions.split(',').exists_one(f, f == e))",
        "nodeConditions: must be condition types, each once, separated by commas without blanks",
    )],
    ..refuses(
        "MCH-10",
        "Each node condition is a condition type and stands there once.",
        &["V22", "V23", "V24", "V25", "V26", "V27", "V28", "V29"],
    )
};

/// Checks the comma-separated string. The empty string is valid and disables the checks. Makes one finding for all invalid entries, and one finding
/// for all duplicates.
pub fn text_names_conditions(conditions: Node<'_>, path: impl Fn() -> FieldPath, found: &mut Findings) {
    let Some(text) = conditions.text().filter(|text| !text.is_empty()) else { return };
    let mut seen = HashSet::new();
    let mut objections = FirstFew::default();
    let (mut twice, mut others) = (None, FirstFew::default());
    for entry in text.split(',') {
        if !is_wellformed(entry) {
            objections.add(|| Objection(entry).to_string());
        } else if !seen.insert(entry) {
            match twice {
                None => twice = Some(entry),
                Some(_) => others.add(|| quoted(entry)),
            }
        }
    }
    if !objections.is_empty() {
        found.invalid(MCH_10.id, path(), text, objections.joined("; "));
    }
    if let Some(entry) = twice {
        let detail = if others.is_empty() { String::new() } else { format!("and so are {}", others.joined(", ")) };
        found.given(&text).duplicate(MCH_10.id, path(), entry, detail);
    }
}

/// Checks the list.
pub fn list_names_conditions(conditions: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    let mut seen = HashSet::new();
    for (index, entry) in conditions.elements().iter().enumerate() {
        let Some(entry) = entry.as_str() else { continue };
        let is_first = seen.insert(entry);
        if !is_wellformed(entry) {
            found.invalid(MCH_10.id, path.index(index), entry, Objection(entry));
        } else if !is_first {
            found.duplicate(MCH_10.id, path.index(index), entry, "");
        }
    }
}

fn is_wellformed(entry: &str) -> bool {
    // A qualified name contains no whitespace.
    syntax::is_qualified_name(entry)
}

/// The problem of an entry. The text is made only if it is needed.
struct Objection<'e>(&'e str);

impl fmt::Display for Objection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = self.0;
        if entry.is_empty() {
            return f.write_str("entry \"\" must not be empty");
        }
        let quoted = quoted(entry);
        if entry.chars().any(char::is_whitespace) {
            return write!(f, "entry {quoted} must not contain whitespace");
        }
        let objections = syntax::qualified_name(entry);
        write!(f, "entry {quoted} is not a valid condition type: {}", objections.join("; "))
    }
}
