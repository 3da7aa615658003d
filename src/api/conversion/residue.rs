//! What one version says and the other cannot, carried in an annotation.
//!
//! A residue is the list of edits that turn "the mapped-back object" into the original. Each edit remembers what the
//! mapping gave at its place; when it gives something else later, somebody edited the field in the other version, and
//! **the edit wins**: that part of the residue is dropped. Lists keyed by type or name are edited per entry.
//!
//! A residue can be tampered with like any annotation, so that it is bound to the object's name, never touches
//! identity, and only holds what the version it is carried in cannot show: an edit that changes what is shown there is
//! dropped. Therefore nobody can change by it what admission has looked at.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Object;

/// The edits of one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Residue {
    /// Name of the object it was made for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    edits: Vec<Edit>,
}

/// One place, what it held originally, and what the mapping makes of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Edit {
    at: Vec<Step>,
    /// The original value; absent means that the field was absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    put: Option<Value>,
    /// The mapped value; absent means that the mapping gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    was: Option<Value>,
}

/// One step into an object or a keyed list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Step {
    /// A field.
    Field(String),
    /// The entry of a list with this type.
    Type {
        /// The type.
        #[serde(rename = "type")]
        key: String,
    },
    /// The entry of a list with this name.
    Name {
        /// The name.
        #[serde(rename = "name")]
        key: String,
    },
}

impl Residue {
    /// What has to be done to `mapped` to get `original`; `None` if they are equal.
    pub fn between(mapped: &Object, original: &Object) -> Option<Self> {
        let mut edits = differences(mapped, original);
        edits.retain(Edit::is_allowed);
        (!edits.is_empty()).then(|| Self { name: name_of(original), edits })
    }

    /// Reads an annotation; `None` if it holds no residue.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The text of the annotation; conditions go first when it is too long, `None` if that does not suffice.
    pub fn fits(mut self, max_bytes: usize) -> Option<String> {
        let text = serde_json::to_string(&self).ok()?;
        if text.len() <= max_bytes {
            return Some(text);
        }
        self.edits.retain(|edit| !edit.is_about_conditions());
        let text = serde_json::to_string(&self).ok()?;
        (text.len() <= max_bytes && !self.edits.is_empty()).then_some(text)
    }

    /// Restores what the mapping lost of `source`, as far as nobody changed it since. `shown` maps an object back to the
    /// source's version; no edit may make it say there what the source does not say.
    pub fn apply(&self, mapped: Object, source: &Object, shown: impl Fn(Object) -> Object) -> Object {
        if self.name != name_of(&mapped) {
            return mapped;
        }
        let valid: Vec<_> = self.edits.iter().filter(|edit| edit.is_allowed() && edit.guard_holds(&mapped)).collect();
        let differences = |object: &Object| differences(&shown(object.clone()), source);
        let before = differences(&mapped);

        let mut restored = mapped.clone();
        for edit in &valid {
            edit.write(&mut restored);
        }
        if !covered(&differences(&restored), &before) {
            // Some edit shows. Keep those that don't, one by one.
            restored = mapped;
            for edit in valid {
                let mut candidate = restored.clone();
                edit.write(&mut candidate);
                if covered(&differences(&candidate), &before) {
                    restored = candidate;
                }
            }
        }
        restored
    }
}

/// The edits that turn one object into the other.
fn differences(from: &Object, to: &Object) -> Vec<Edit> {
    let mut edits = Vec::new();
    compare_fields(from, to, &mut Vec::new(), &mut edits);
    edits
}

/// Whether every place of the first list is a place of the second, or below one.
fn covered(inner: &[Edit], outer: &[Edit]) -> bool {
    inner.iter().all(|edit| outer.iter().any(|other| edit.at.starts_with(&other.at)))
}

fn name_of(object: &Object) -> String {
    let name = object.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
    name.unwrap_or_default().to_owned()
}

fn compare(mapped: Option<&Value>, original: Option<&Value>, at: &mut Vec<Step>, edits: &mut Vec<Edit>) {
    match (mapped, original) {
        (Some(mapped), Some(original)) if mapped == original => {}
        (Some(Value::Object(mapped)), Some(Value::Object(original))) => compare_fields(mapped, original, at, edits),
        (Some(Value::Array(mapped)), Some(Value::Array(original))) if keys(mapped, at) == keys(original, at) => {
            match keys(mapped, at) {
                Some(steps) => {
                    for ((step, mapped), original) in steps.into_iter().zip(mapped).zip(original) {
                        at.push(step);
                        compare(Some(mapped), Some(original), at, edits);
                        at.pop();
                    }
                }
                None => edits.push(Edit {
                    at: at.clone(),
                    put: Some(Value::Array(original.clone())),
                    was: Some(Value::Array(mapped.clone())),
                }),
            }
        }
        (None, None) => {}
        (mapped, original) => edits.push(Edit { at: at.clone(), put: original.cloned(), was: mapped.cloned() }),
    }
}

fn compare_fields(mapped: &Object, original: &Object, at: &mut Vec<Step>, edits: &mut Vec<Edit>) {
    let new = original.keys().filter(|name| !mapped.contains_key(*name));
    for name in mapped.keys().chain(new) {
        at.push(Step::Field(name.clone()));
        compare(mapped.get(name), original.get(name), at, edits);
        at.pop();
    }
}

/// The steps to the entries of a list keyed by type or name; `None` for other lists and for ambiguous ones.
fn keys(list: &[Value], at: &[Step]) -> Option<Vec<Step>> {
    let Some(Step::Field(list_name)) = at.last() else { return None };
    let key_field = match list_name.as_str() {
        "conditions" | "nodeConditions" | "machineConditions" | "machineSetCondition" => "type",
        "failedMachines" => "name",
        _ => return None,
    };
    let mut steps = Vec::with_capacity(list.len());
    for entry in list {
        let key = entry.get(key_field)?.as_str()?.to_owned();
        let step = if key_field == "type" { Step::Type { key } } else { Step::Name { key } };
        if steps.contains(&step) {
            return None;
        }
        steps.push(step);
    }
    Some(steps)
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        match self {
            Self::Field(name) => value.as_object()?.get(name),
            Self::Type { key } => {
                value.as_array()?.iter().find(|entry| entry.get("type") == Some(&Value::from(&**key)))
            }
            Self::Name { key } => {
                value.as_array()?.iter().find(|entry| entry.get("name") == Some(&Value::from(&**key)))
            }
        }
    }

    fn of_mut<'a>(&self, value: &'a mut Value) -> Option<&'a mut Value> {
        match self {
            Self::Field(name) => value.as_object_mut()?.get_mut(name),
            Self::Type { key } => {
                value.as_array_mut()?.iter_mut().find(|entry| entry.get("type") == Some(&Value::from(&**key)))
            }
            Self::Name { key } => {
                value.as_array_mut()?.iter_mut().find(|entry| entry.get("name") == Some(&Value::from(&**key)))
            }
        }
    }

    fn is_field(&self, wanted: &[&str]) -> bool {
        matches!(self, Self::Field(name) if wanted.contains(&name.as_str()))
    }
}

impl Edit {
    /// Of metadata only labels and annotations may change; an API server would refuse the rest.
    fn is_allowed(&self) -> bool {
        match self.at.as_slice() {
            [] => false,
            [first, ..] if first.is_field(&["apiVersion", "kind"]) => false,
            [first, rest @ ..] if first.is_field(&["metadata"]) => {
                rest.first().is_some_and(|second| second.is_field(&["labels", "annotations"]))
            }
            _ => true,
        }
    }

    fn is_about_conditions(&self) -> bool {
        matches!(self.at.as_slice(), [status, list, ..] if status.is_field(&["status"])
            && list.is_field(&["conditions", "machineConditions", "machineSetCondition"]))
    }

    /// Whether the mapping still gives what it gave. Where the surroundings are gone, nothing is restored.
    fn guard_holds(&self, mapped: &Object) -> bool {
        let (Some(Step::Field(first)), Some((last, parents))) = (self.at.first(), self.at.split_last()) else {
            return false;
        };
        if parents.is_empty() {
            return mapped.get(first) == self.was.as_ref();
        }
        let Some(top) = mapped.get(first) else { return false };
        let parent = parents.iter().skip(1).try_fold(top, |value, step| step.of(value));
        parent.is_some_and(|parent| {
            let fits = if matches!(last, Step::Field(_)) { parent.is_object() } else { parent.is_array() };
            fits && last.of(parent) == self.was.as_ref()
        })
    }

    fn write(&self, object: &mut Object) {
        let (Some(Step::Field(first)), Some((last, parents))) = (self.at.first(), self.at.split_last()) else { return };
        if parents.is_empty() {
            return write_field(object, first, self.put.as_ref());
        }
        let Some(top) = object.get_mut(first) else { return };
        let Some(parent) = parents.iter().skip(1).try_fold(top, |value, step| step.of_mut(value)) else { return };
        match last {
            Step::Field(name) => {
                if let Some(fields) = parent.as_object_mut() {
                    write_field(fields, name, self.put.as_ref());
                }
            }
            // Lists of other entries are edited whole, so that no single entry is ever taken out.
            Step::Type { .. } | Step::Name { .. } => {
                if let (Some(entry), Some(value)) = (last.of_mut(parent), &self.put) {
                    *entry = value.clone();
                }
            }
        }
    }
}

fn write_field(fields: &mut Object, name: &str, value: Option<&Value>) {
    match value {
        Some(value) => drop(fields.insert(name.to_owned(), value.clone())),
        None => drop(fields.remove(name)),
    }
}
