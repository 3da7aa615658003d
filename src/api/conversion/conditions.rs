//! Conditions of sets and deployments ↔ `metav1.Condition` (spec/api-and-admission §8.4).

use std::{borrow::Cow, collections::HashSet};

use super::object_of;
use crate::api::json::Json;

/// The time of a condition that has none.
const NO_TIME: &str = "1970-01-01T00:00:00Z";

/// Whether the older shape of a condition has `lastUpdateTime`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UpdateTime {
    Kept,
    Absent,
}

/// The list as `metav1.Condition`s, one per type: of several, the last one stays. `None` if there is no list.
pub(super) fn up<'a>(conditions: &Json<'a>) -> Option<Json<'a>> {
    let conditions = conditions.as_array()?;
    let mut list: Vec<Json<'a>> = Vec::with_capacity(conditions.len());
    let mut seen = HashSet::with_capacity(conditions.len());
    for condition in conditions.iter().rev() {
        let Some(condition_type) = condition.get("type").filter(|found| found.is_string()) else { continue };
        if !seen.insert(condition_type.as_str()) {
            continue;
        }
        let word = |name: &str, otherwise| word(condition, name).cloned().unwrap_or(Json::from(otherwise));
        list.push(object_of([
            ("type", condition_type.clone()),
            ("status", word("status", "Unknown")),
            ("reason", valid_reason(word("reason", "Unknown"))),
            ("message", word("message", "")),
            ("lastTransitionTime", word("lastTransitionTime", NO_TIME)),
        ]));
    }
    list.reverse();
    Some(list.into_iter().collect())
}

/// The list in the older shape; what stands for "none" there is left out. `None` if there is no list.
pub(super) fn down<'a>(conditions: &Json<'a>, update_time: UpdateTime) -> Option<Json<'a>> {
    let conditions = conditions.as_array()?;
    let mut list: Vec<Json<'a>> = Vec::with_capacity(conditions.len());
    for condition in conditions {
        let Some(condition_type) = condition.get("type").filter(|found| found.is_string()) else { continue };
        let time = word(condition, "lastTransitionTime").filter(|time| **time != NO_TIME);
        let fields = [
            ("type", Some(condition_type.clone())),
            ("status", Some(word(condition, "status").cloned().unwrap_or(Json::from("Unknown")))),
            ("reason", word(condition, "reason").cloned()),
            ("message", word(condition, "message").cloned()),
            ("lastTransitionTime", time.cloned()),
            ("lastUpdateTime", time.filter(|_| update_time == UpdateTime::Kept).cloned()),
        ];
        let count = fields.iter().filter(|(_, value)| value.is_some()).count();
        let mut older = Vec::with_capacity(count);
        older.extend(fields.into_iter().filter_map(|(name, value)| Some((Cow::Borrowed(name), value?))));
        list.push(Json::Object(older.into_iter().collect()));
    }
    Some(list.into_iter().collect())
}

/// A text that says something.
fn word<'o, 'a>(condition: &'o Json<'a>, name: &str) -> Option<&'o Json<'a>> {
    condition.get(name).filter(|word| word.as_str().is_some_and(|word| !word.is_empty()))
}

/// A reason that matches `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`; what doesn't belong becomes an underscore.
fn valid_reason(given: Json<'_>) -> Json<'_> {
    let reason = given.as_str().unwrap_or_default();
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b',' | b':');
    if reason.starts_with(|c: char| c.is_ascii_alphabetic())
        && reason.bytes().all(is_inner)
        && !reason.ends_with([',', ':'])
    {
        return given;
    }
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
    Json::from(valid)
}
