//! Conditions of sets and deployments ↔ `metav1.Condition` (spec/api-and-admission §8.4).

use std::collections::HashSet;

use serde_json::{Value, json};

use super::Object;

/// The time of a condition that has none.
const NO_TIME: &str = "1970-01-01T00:00:00Z";

/// Whether the older shape of a condition has `lastUpdateTime`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UpdateTime {
    Kept,
    Absent,
}

/// The list as `metav1.Condition`s, one per type: of several, the last one stays. `None` if there is no list.
pub(super) fn up(conditions: &Value) -> Option<Value> {
    let mut list: Vec<Value> = Vec::new();
    let mut seen = HashSet::new();
    for condition in conditions.as_array()?.iter().rev() {
        let Some(condition_type) = condition.get("type").and_then(Value::as_str) else { continue };
        if !seen.insert(condition_type) {
            continue;
        }
        let word = |name: &str| condition.get(name).and_then(Value::as_str).filter(|word| !word.is_empty());
        list.push(json!({
            "type": condition_type,
            "status": word("status").unwrap_or("Unknown"),
            "reason": valid_reason(word("reason").unwrap_or("Unknown")),
            "message": word("message").unwrap_or(""),
            "lastTransitionTime": word("lastTransitionTime").unwrap_or(NO_TIME),
        }));
    }
    list.reverse();
    Some(Value::Array(list))
}

/// The list in the older shape; what stands for "none" there is left out. `None` if there is no list.
pub(super) fn down(conditions: &Value, update_time: UpdateTime) -> Option<Value> {
    let mut list: Vec<Value> = Vec::new();
    for condition in conditions.as_array()? {
        let Some(condition_type) = condition.get("type").and_then(Value::as_str) else { continue };
        let word = |name: &str| condition.get(name).and_then(Value::as_str).filter(|word| !word.is_empty());
        let mut older = Object::new();
        older.insert("type".to_owned(), condition_type.into());
        older.insert("status".to_owned(), word("status").unwrap_or("Unknown").into());
        for name in ["reason", "message"] {
            if let Some(word) = word(name) {
                older.insert(name.to_owned(), word.into());
            }
        }
        if let Some(time) = word("lastTransitionTime").filter(|time| *time != NO_TIME) {
            older.insert("lastTransitionTime".to_owned(), time.into());
            if update_time == UpdateTime::Kept {
                older.insert("lastUpdateTime".to_owned(), time.into());
            }
        }
        list.push(Value::Object(older));
    }
    Some(Value::Array(list))
}

/// A reason that matches `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`; what doesn't belong becomes an underscore.
fn valid_reason(reason: &str) -> String {
    let mut valid: String = reason
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | ',' | ':') { c } else { '_' })
        .collect();
    if !valid.starts_with(|c: char| c.is_ascii_alphabetic()) {
        valid.insert_str(0, "Reason_");
    }
    if valid.ends_with([',', ':']) {
        valid.pop();
        valid.push('_');
    }
    valid
}
