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
pub const RULE: RuleId = RuleId::declare("SIM-1");

const DURATION: &str = "must be a duration such as \"30s\", \"10m\" or 0";

/// One object of the tree and which of its keys were asked for.
pub struct Section<'a, 'f> {
    map: &'a Map<String, Value>,
    path: FieldPath,
    asked: Vec<&'a str>,
    found: &'f mut Findings,
}

/// Reads an object; keys that `read` does not ask for are reported.
pub fn object<'a, T>(
    value: &'a Value,
    path: &FieldPath,
    found: &mut Findings,
    read: impl FnOnce(&mut Section<'a, '_>) -> T,
) -> Option<T> {
    let Value::Object(map) = value else {
        found.invalid(RULE, path.clone(), value.clone(), "must be an object");
        return None;
    };
    let mut section = Section { map, path: path.clone(), asked: Vec::new(), found };
    let result = read(&mut section);
    for key in map.keys().filter(|key| !section.asked.contains(&key.as_str())) {
        section.found.forbidden(RULE, path.child(key), "no such key; see the simulation's configuration reference");
    }
    Some(result)
}

/// Reads a list of objects; what `read` makes nothing of is left out.
pub fn objects<'a, T>(
    list: &'a [Value],
    path: &FieldPath,
    found: &mut Findings,
    mut read: impl FnMut(usize, &mut Section<'a, '_>) -> Option<T>,
) -> Vec<T> {
    let one =
        |(at, value): (usize, &'a Value)| object(value, &path.index(at), found, |section| read(at, section)).flatten();
    list.iter().enumerate().filter_map(one).collect()
}

/// A value that was read takes the place of the target's.
pub fn set<T>(target: &mut T, read: Option<T>) {
    if let Some(read) = read {
        *target = read;
    }
}

impl<'a> Section<'a, '_> {
    /// The whole object.
    pub const fn map(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// Whether there is a value under a key; `null` counts as absent.
    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// The value under a key together with its path; `null` counts as absent.
    fn take(&mut self, key: &str) -> Option<(&'a Value, FieldPath)> {
        let (name, value) = self.map.get_key_value(key)?;
        self.asked.push(name);
        (!value.is_null()).then(|| (value, self.path.child(key)))
    }

    /// What `read` makes of the value under a key.
    pub fn read<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&'a Value, &FieldPath, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        let (value, path) = self.take(key)?;
        read(value, &path, self.found)
    }

    /// The value under a key, as `read` understands it. A value that `read` does not understand is a finding that says what the value must be.
    pub fn value<T>(&mut self, key: &str, must: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Option<T> {
        let (value, path) = self.take(key)?;
        let read = read(value);
        if read.is_none() {
            self.found.invalid(RULE, path, value.clone(), must);
        }
        read
    }

    /// What `read` makes of the object under a key.
    pub fn object<T>(&mut self, key: &str, read: impl FnOnce(&mut Section<'a, '_>) -> T) -> Option<T> {
        self.read(key, |value, path, found| object(value, path, found, read))
    }

    /// What `read` makes of the objects in the list under a key.
    pub fn objects<T>(
        &mut self,
        key: &str,
        read: impl FnMut(usize, &mut Section<'a, '_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let list = self.value(key, "must be a list", Value::as_array)?;
        Some(objects(list, &self.path.child(key), self.found, read))
    }

    /// A duration.
    pub fn duration(&mut self, key: &str) -> Option<Duration> {
        self.value(key, DURATION, duration)
    }

    /// A duration that must be there.
    pub fn required_duration(&mut self, key: &str) -> Option<Duration> {
        if !self.has(key) {
            self.required(key, "must be a duration such as \"30s\"");
        }
        self.duration(key)
    }

    /// A text.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.value(key, "must be a string", |value| value.as_str().map(str::to_owned))
    }

    /// What one of some words stands for.
    pub fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(key)?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.found.not_supported(RULE, self.path.child(key), text, &words);
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// A whole number.
    pub fn number(&mut self, key: &str) -> Option<u64> {
        self.value(key, "must be a whole number of 0 or more", Value::as_u64)
    }

    /// A number from 0 to 1.
    pub fn rate(&mut self, key: &str) -> Option<f64> {
        let rate = |value: &Value| value.as_f64().filter(|rate| (0.0..=1.0).contains(rate));
        self.value(key, "must be a number from 0 to 1", rate)
    }

    /// A switch.
    pub fn switch(&mut self, key: &str) -> Option<bool> {
        self.value(key, "must be true or false", Value::as_bool)
    }

    /// A list of texts that are not empty.
    pub fn names(&mut self, key: &str, must: &str) -> Option<Vec<String>> {
        let name = |name: &Value| name.as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        self.value(key, must, |value| value.as_array()?.iter().map(name).collect())
    }

    /// A key that must be there is missing.
    pub fn required(&mut self, key: &str, detail: &str) {
        self.found.required(RULE, self.path.child(key), detail);
    }

    /// A key that may not be there, if it is.
    pub fn forbid(&mut self, key: &str, detail: &str) {
        if let Some((_, path)) = self.take(key) {
            self.found.forbidden(RULE, path, detail);
        }
    }

    /// The value under a key does not go with others.
    pub fn invalid_key(&mut self, key: &str, value: impl Into<Value>, detail: &str) {
        self.found.invalid(RULE, self.path.child(key), value.into(), detail);
    }

    /// The whole object is wrong.
    pub fn invalid(&mut self, detail: &str) {
        self.found.invalid(RULE, self.path.clone(), Value::Object(self.map.clone()), detail);
    }
}

/// A Go-style duration that is not negative; the number 0 is one too.
pub fn duration(value: &Value) -> Option<Duration> {
    let read = match value {
        Value::String(text) => text.parse::<GoDuration>().ok().filter(|length| !length.is_negative()),
        Value::Number(number) if number.as_u64() == Some(0) => Some(GoDuration::ZERO),
        _ => None,
    };
    read.map(GoDuration::to_std)
}

/// A [`duration`], with a finding when it is none.
pub fn duration_at(value: &Value, path: &FieldPath, found: &mut Findings) -> Option<Duration> {
    let read = duration(value);
    if read.is_none() {
        found.invalid(RULE, path.clone(), value.clone(), DURATION);
    }
    read
}
