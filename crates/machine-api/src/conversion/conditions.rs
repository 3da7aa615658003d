//! Conditions of sets and deployments ↔ `metav1.Condition` (spec/api-and-admission §8.4).

use std::{borrow::Cow, collections::HashSet};

use kube_values::json::{Json, Members};

/// The time for a condition without a time.
const NO_TIME: &str = "1970-01-01T00:00:00Z";
/// The reason for a condition without a reason.
const NO_REASON: &str = "Unknown";

/// Whether conditions of v1alpha1 have `lastUpdateTime`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UpdateTime {
    Kept,
    Absent,
}

/// The list as `metav1.Condition`s, one per type. If a type occurs several times, the last condition is used. `None` if there is no list.
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
        let fields = [
            ("type", condition_type.clone()),
            ("status", word("status", "Unknown")),
            ("reason", valid_reason(word("reason", NO_REASON))),
            ("message", word("message", "")),
            ("lastTransitionTime", word("lastTransitionTime", NO_TIME)),
        ];
        list.push(one_of([condition], fields.map(|(name, value)| (name, Some(value)))));
    }
    list.reverse();
    Some(list.into_iter().collect())
}

/// The list in the shape of v1alpha1, without the values that stand for "none". `None` if there is no list.
///
/// `origin` is the list that these conditions were converted from. Entries that are equal to entries of `origin` are shared with it.
pub(super) fn down<'a>(conditions: &Json<'a>, update_time: UpdateTime, origin: Option<&Json<'a>>) -> Option<Json<'a>> {
    let conditions = conditions.as_array()?;
    let mut origins = origin.and_then(Json::as_array).unwrap_or_default().iter();
    let mut list: Vec<Json<'a>> = Vec::with_capacity(conditions.len());
    for condition in conditions {
        let Some(condition_type) = condition.get("type").filter(|found| found.is_string()) else { continue };
        let time = word(condition, "lastTransitionTime").filter(|time| **time != NO_TIME);
        let fields = [
            ("type", Some(condition_type.clone())),
            ("status", Some(word(condition, "status").cloned().unwrap_or(Json::from("Unknown")))),
            ("reason", word(condition, "reason").filter(|reason| **reason != NO_REASON).cloned()),
            ("message", word(condition, "message").cloned()),
            ("lastTransitionTime", time.cloned()),
            ("lastUpdateTime", time.filter(|_| update_time == UpdateTime::Kept).cloned()),
        ];
        list.push(one_of([condition].into_iter().chain(origins.next()), fields));
    }
    Some(list.into_iter().collect())
}

/// The first of these objects that has exactly the given fields. Makes a new object if there is none. So ten thousand conditions that are converted
/// up, and back again to find losses, are allocated only once.
fn one_of<'o, 'a: 'o, const N: usize>(
    objects: impl IntoIterator<Item = &'o Json<'a>>,
    fields: [(&'static str, Option<Json<'a>>); N],
) -> Json<'a> {
    let count = fields.iter().filter(|(_, value)| value.is_some()).count();
    let is_same = |object: &Members<'a>| {
        object.len() == count && fields.iter().all(|(name, value)| object.get(name) == value.as_ref())
    };
    let same = objects.into_iter().find(|object| object.as_object().is_some_and(is_same));
    same.cloned().unwrap_or_else(|| {
        let mut present = Vec::with_capacity(count);
        present.extend(fields.into_iter().filter_map(|(name, value)| Some((Cow::Borrowed(name), value?))));
        Json::Object(present.into_iter().collect())
    })
}

/// A text that is not empty.
fn word<'o, 'a>(condition: &'o Json<'a>, name: &str) -> Option<&'o Json<'a>> {
    condition.get(name).filter(|word| word.as_str().is_some_and(|word| !word.is_empty()))
}

/// A reason that matches `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`. Other characters become underscores.
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
