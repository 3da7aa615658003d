//! Reads a configuration tree key by key, so that every mistake is reported with the path of its key.
//!
//! Serde would stop at the first mistake and report no path. The reader also applies the overrides of a class to the configuration of the whole
//! simulation, so that absent keys don't change their target.

use std::time::Duration;

use kube_values::{
    duration::GoDuration,
    field::{FieldPath, Findings, RuleId},
};
use serde_json::{Map, Value};

/// The rule id of all findings for the configuration of a simulation.
pub const RULE: RuleId = RuleId::declare("SIM-1");

const DURATION: &str = "must be a duration such as \"30s\", \"10m\" or 0";

/// An object of the tree, and its keys that were read.
pub struct Section<'a, 'f> {
    map: &'a Map<String, Value>,
    path: FieldPath,
    asked: Vec<&'a str>,
    found: &'f mut Findings,
}

/// Reads an object. Reports keys that `read` does not use.
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

/// Reads a list of objects. Elements for which `read` returns `None` are left out.
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

/// Sets the target, if a value was read.
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

    /// Whether there is a value for a key. `null` counts as absent.
    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// The value of a key with its path. `null` counts as absent.
    fn take(&mut self, key: &str) -> Option<(&'a Value, FieldPath)> {
        let (name, value) = self.map.get_key_value(key)?;
        self.asked.push(name);
        (!value.is_null()).then(|| (value, self.path.child(key)))
    }

    /// Reads the value of a key with `read`.
    pub fn read<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&'a Value, &FieldPath, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        let (value, path) = self.take(key)?;
        read(value, &path, self.found)
    }

    /// Reads the value of a key with `read`. If `read` returns `None`, reports what the value must be.
    pub fn value<T>(&mut self, key: &str, must: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Option<T> {
        let (value, path) = self.take(key)?;
        let read = read(value);
        if read.is_none() {
            self.found.invalid(RULE, path, value.clone(), must);
        }
        read
    }

    /// Reads the object of a key with `read`.
    pub fn object<T>(&mut self, key: &str, read: impl FnOnce(&mut Section<'a, '_>) -> T) -> Option<T> {
        self.read(key, |value, path, found| object(value, path, found, read))
    }

    /// Reads the list of objects of a key with `read`.
    pub fn objects<T>(
        &mut self,
        key: &str,
        read: impl FnMut(usize, &mut Section<'a, '_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let list = self.value(key, "must be a list", Value::as_array)?;
        Some(objects(list, &self.path.child(key), self.found, read))
    }

    /// Reads a duration.
    pub fn duration(&mut self, key: &str) -> Option<Duration> {
        self.value(key, DURATION, duration)
    }

    /// Reads a required duration.
    pub fn required_duration(&mut self, key: &str) -> Option<Duration> {
        if !self.has(key) {
            self.required(key, "must be a duration such as \"30s\"");
        }
        self.duration(key)
    }

    /// Reads a text.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.value(key, "must be a string", |value| value.as_str().map(str::to_owned))
    }

    /// Reads one of these texts, and returns its meaning.
    pub fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(key)?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.found.not_supported(RULE, self.path.child(key), text, &words);
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// Reads an integer of at least 0.
    pub fn number(&mut self, key: &str) -> Option<u64> {
        self.value(key, "must be a whole number of 0 or more", Value::as_u64)
    }

    /// Reads a number from 0 to 1.
    pub fn rate(&mut self, key: &str) -> Option<f64> {
        let rate = |value: &Value| value.as_f64().filter(|rate| (0.0..=1.0).contains(rate));
        self.value(key, "must be a number from 0 to 1", rate)
    }

    /// Reads a boolean.
    pub fn switch(&mut self, key: &str) -> Option<bool> {
        self.value(key, "must be true or false", Value::as_bool)
    }

    /// Reads a list of texts that are not empty.
    pub fn names(&mut self, key: &str, must: &str) -> Option<Vec<String>> {
        let name = |name: &Value| name.as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        self.value(key, must, |value| value.as_array()?.iter().map(name).collect())
    }

    /// Reports that a required key is missing.
    pub fn required(&mut self, key: &str, detail: &str) {
        self.found.required(RULE, self.path.child(key), detail);
    }

    /// Reports a forbidden key, if it is present.
    pub fn forbid(&mut self, key: &str, detail: &str) {
        if let Some((_, path)) = self.take(key) {
            self.found.forbidden(RULE, path, detail);
        }
    }

    /// Reports that the value of a key does not fit to other keys.
    pub fn invalid_key(&mut self, key: &str, value: impl Into<Value>, detail: &str) {
        self.found.invalid(RULE, self.path.child(key), value.into(), detail);
    }

    /// Reports that the whole object is invalid.
    pub fn invalid(&mut self, detail: &str) {
        self.found.invalid(RULE, self.path.clone(), Value::Object(self.map.clone()), detail);
    }
}

/// A duration in Go's syntax that is not negative. The number 0 is allowed too.
pub fn duration(value: &Value) -> Option<Duration> {
    let read = match value {
        Value::String(text) => text.parse::<GoDuration>().ok().filter(|length| !length.is_negative()),
        Value::Number(number) if number.as_u64() == Some(0) => Some(GoDuration::ZERO),
        _ => None,
    };
    read.map(GoDuration::to_std)
}

/// A [`duration`]. Reports any other value.
pub fn duration_at(value: &Value, path: &FieldPath, found: &mut Findings) -> Option<Duration> {
    let read = duration(value);
    if read.is_none() {
        found.invalid(RULE, path.clone(), value.clone(), DURATION);
    }
    read
}
