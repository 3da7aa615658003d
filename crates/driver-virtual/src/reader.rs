//! Reading a configuration tree key by key, so that every mistake is reported with the path of its key.
//!
//! Serde would stop at the first mistake and name no path; the same reader also lays a class's overrides over the
//! configuration of the whole simulation, which is why absent keys leave their target alone.

use std::time::Duration;

use kube_values::{
    duration::GoDuration,
    field::{FieldPath, Findings, RuleId},
};
use serde_json::{Map, Value};

/// The rule id of all findings about a simulation's configuration.
pub const RULE: RuleId = "SIM-1";

/// One object of the tree and which of its keys were asked for.
pub struct Section<'a> {
    map: &'a Map<String, Value>,
    path: FieldPath,
    known: Vec<&'a str>,
}

impl<'a> Section<'a> {
    /// The object at `path`; a finding when it is none.
    pub fn of(value: &'a Value, path: &FieldPath, found: &mut Findings) -> Option<Self> {
        let Value::Object(map) = value else {
            found.invalid(RULE, path.clone(), value.clone(), "must be an object");
            return None;
        };
        Some(Self { map, path: path.clone(), known: Vec::new() })
    }

    /// The value under a key together with its path; `null` counts as absent.
    pub fn take(&mut self, key: &str) -> Option<(&'a Value, FieldPath)> {
        let (name, value) = self.map.get_key_value(key)?;
        self.known.push(name);
        (!value.is_null()).then(|| (value, self.path.child(key)))
    }

    /// The object under a key.
    pub fn section(&mut self, key: &str, found: &mut Findings) -> Option<Self> {
        let (value, path) = self.take(key)?;
        Section::of(value, &path, found)
    }

    /// The elements of the list under a key.
    pub fn list(&mut self, key: &str, found: &mut Findings) -> Option<(&'a [Value], FieldPath)> {
        let (value, path) = self.take(key)?;
        let Value::Array(list) = value else {
            found.invalid(RULE, path, value.clone(), "must be a list");
            return None;
        };
        Some((list, path))
    }

    /// A duration; absent leaves the target alone.
    pub fn duration(&mut self, key: &str, target: &mut Duration, found: &mut Findings) {
        if let Some((value, path)) = self.take(key)
            && let Some(read) = duration_of(value, &path, found)
        {
            *target = read;
        }
    }

    /// A duration that may be absent.
    pub fn optional_duration(&mut self, key: &str, found: &mut Findings) -> Option<Duration> {
        let (value, path) = self.take(key)?;
        duration_of(value, &path, found)
    }

    /// A duration that must be there.
    pub fn required_duration(&mut self, key: &str, found: &mut Findings) -> Option<Duration> {
        let Some((value, path)) = self.take(key) else {
            found.required(RULE, self.path.child(key), "must be a duration such as \"30s\"");
            return None;
        };
        duration_of(value, &path, found)
    }

    /// A text that may be absent.
    pub fn text(&mut self, key: &str, found: &mut Findings) -> Option<String> {
        let (value, path) = self.take(key)?;
        let Value::String(text) = value else {
            found.invalid(RULE, path, value.clone(), "must be a string");
            return None;
        };
        Some(text.clone())
    }

    /// A whole number that may be absent.
    pub fn number(&mut self, key: &str, found: &mut Findings) -> Option<u64> {
        let (value, path) = self.take(key)?;
        let number = value.as_u64();
        if number.is_none() {
            found.invalid(RULE, path, value.clone(), "must be a whole number of 0 or more");
        }
        number
    }

    /// A number from 0 to 1.
    pub fn rate(&mut self, key: &str, found: &mut Findings) -> Option<f64> {
        let (value, path) = self.take(key)?;
        let rate = value.as_f64().filter(|rate| (0.0..=1.0).contains(rate));
        if rate.is_none() {
            found.invalid(RULE, path, value.clone(), "must be a number from 0 to 1");
        }
        rate
    }

    /// A switch; absent leaves the target alone.
    pub fn switch(&mut self, key: &str, target: &mut bool, found: &mut Findings) {
        if let Some((value, path)) = self.take(key) {
            match value.as_bool() {
                Some(read) => *target = read,
                None => found.invalid(RULE, path, value.clone(), "must be true or false"),
            }
        }
    }

    /// The path of a key of this object.
    pub fn path_of(&self, key: &str) -> FieldPath {
        self.path.child(key)
    }

    /// Reports the keys that nobody asked for.
    pub fn finish(self, found: &mut Findings) {
        for key in self.map.keys().filter(|key| !self.known.contains(&key.as_str())) {
            found.forbidden(RULE, self.path.child(key), "no such key; see the simulation's configuration reference");
        }
    }
}

/// A Go-style duration that is not negative; the number 0 is one too.
pub fn duration_of(value: &Value, path: &FieldPath, found: &mut Findings) -> Option<Duration> {
    let read = match value {
        Value::String(text) => text.parse::<GoDuration>().ok().filter(|length| !length.is_negative()),
        Value::Number(number) if number.as_u64() == Some(0) => Some(GoDuration::ZERO),
        _ => None,
    };
    if read.is_none() {
        found.invalid(RULE, path.clone(), value.clone(), "must be a duration such as \"30s\", \"10m\" or 0");
    }
    read.map(GoDuration::to_std)
}
