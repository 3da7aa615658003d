//! The owners of fields (`metadata.managedFields`): sets of fields, and their change by a plain write.
//!
//! [`super::apply`] implements server-side apply.
//! Source: spec/extension-apiserver §6.7.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    object::{metadata, text, time},
    schema::{ListType, MapType, Schema},
};

/// The fields of the metadata that have no owner.
const UNOWNED: [&str; 12] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
];

/// A set of fields, as a tree. The keys have the format of `FieldsV1`: `f:name`, `k:{"key":"value"}`, `v:"value"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldSet {
    /// Whether this field itself is in the set.
    pub(super) here: bool,
    pub(super) below: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    pub(super) fn is_empty(&self) -> bool {
        !self.here && self.below.is_empty()
    }

    fn leaf() -> Self {
        Self { here: true, below: BTreeMap::new() }
    }

    pub(super) fn union(&mut self, other: &Self) {
        self.here |= other.here;
        for (key, other) in &other.below {
            self.below.entry(key.clone()).or_default().union(other);
        }
    }

    /// Removes the fields of another set from this set.
    pub(super) fn subtract(&mut self, other: &Self) {
        if other.here {
            self.here = false;
        }
        for (key, other) in &other.below {
            if let Some(own) = self.below.get_mut(key) {
                own.subtract(other);
                if own.is_empty() {
                    self.below.remove(key);
                }
            }
        }
    }

    /// The fields that are in both sets.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self { here: self.here && other.here, below: BTreeMap::new() };
        for (key, own) in &self.below {
            if let Some(other) = other.below.get(key) {
                let common = own.intersection(other);
                if !common.is_empty() {
                    both.below.insert(key.clone(), common);
                }
            }
        }
        both
    }

    pub(super) fn to_json(&self) -> Value {
        let mut fields = Map::new();
        if self.here && !self.below.is_empty() {
            fields.insert(".".to_owned(), json!({}));
        }
        for (key, below) in &self.below {
            fields.insert(key.clone(), below.to_json());
        }
        Value::Object(fields)
    }

    pub(super) fn from_json(value: &Value) -> Self {
        let Some(fields) = value.as_object() else { return Self::default() };
        let mut set = Self { here: fields.is_empty() || fields.contains_key("."), below: BTreeMap::new() };
        for (key, value) in fields.iter().filter(|(key, _)| *key != ".") {
            set.below.insert(key.clone(), Self::from_json(value));
        }
        set
    }

    /// The paths of the fields, for messages.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect(String::new(), &mut paths);
        paths
    }

    fn collect(&self, path: String, paths: &mut Vec<String>) {
        for (key, below) in &self.below {
            below.collect(format!("{path}{}", readable(key)), paths);
        }
        if self.here {
            paths.push(path);
        }
    }
}

fn readable(key: &str) -> String {
    match key.split_at(key.len().min(2)) {
        ("f:", name) => format!(".{name}"),
        ("k:", keys) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        (_, value) => format!("[={value}]"),
    }
}

/// The parts of a value that have separate owners.
pub(super) enum Parts<'a> {
    /// The value is owned as a whole.
    Whole,
    Fields(&'a Map<String, Value>),
    /// The elements of a list by their keys.
    Elements(Vec<(String, &'a Value)>),
}

pub(super) fn parts<'a>(value: &'a Value, schema: &Schema) -> Parts<'a> {
    match value {
        Value::Object(fields) if schema.map_type == MapType::Granular && !fields.is_empty() => Parts::Fields(fields),
        Value::Array(items) if !items.is_empty() => match &schema.list_type {
            ListType::Atomic => Parts::Whole,
            ListType::Set => Parts::Elements(items.iter().map(|item| (format!("v:{item}"), item)).collect()),
            ListType::Map(keys) => Parts::Elements(items.iter().map(|item| (element_key(item, keys), item)).collect()),
        },
        _ => Parts::Whole,
    }
}

/// The key of an element of a list of type `map`.
pub(super) fn element_key(item: &Value, keys: &[String]) -> String {
    let keys: BTreeMap<&String, &Value> = keys.iter().map(|key| (key, &item[key])).collect();
    format!("k:{}", json!(keys))
}

/// The schema of a part. A part without a schema allows everything.
pub(super) fn schema_of<'a>(schema: &'a Schema, part: &str, anything: &'a Schema) -> &'a Schema {
    match part.strip_prefix("f:") {
        Some(name) => schema.field(name).unwrap_or(anything),
        None => schema.items.as_deref().unwrap_or(anything),
    }
}

/// All fields of an object.
pub(super) fn of(object: &Value, schema: &Schema) -> FieldSet {
    let mut set = of_value(object, schema);
    strip(&mut set);
    set
}

fn of_value(value: &Value, schema: &Schema) -> FieldSet {
    let anything = Schema::anything();
    let mut set = FieldSet::default();
    match parts(value, schema) {
        Parts::Whole => set.here = true,
        Parts::Fields(fields) => {
            for (name, value) in fields {
                let key = format!("f:{name}");
                let below = of_value(value, schema_of(schema, &key, &anything));
                set.below.insert(key, below);
            }
        }
        Parts::Elements(items) => {
            for (key, item) in items {
                let mut below = if key.starts_with("v:") {
                    FieldSet::leaf()
                } else {
                    of_value(item, schema_of(schema, &key, &anything))
                };
                below.here = true;
                set.below.insert(key, below);
            }
        }
    }
    set
}

fn strip(set: &mut FieldSet) {
    set.here = false;
    for key in ["f:apiVersion", "f:kind"] {
        set.below.remove(key);
    }
    if let Some(metadata) = set.below.get_mut("f:metadata") {
        for field in UNOWNED {
            metadata.below.remove(&format!("f:{field}"));
        }
        metadata.here = false;
        if metadata.is_empty() {
            set.below.remove("f:metadata");
        }
    }
}

/// The difference between two states: new or changed fields, and removed fields.
pub(super) struct Difference {
    pub(super) changed: FieldSet,
    pub(super) removed: FieldSet,
}

pub(super) fn difference(old: &Value, new: &Value, schema: &Schema) -> Difference {
    let mut difference = Difference { changed: FieldSet::default(), removed: FieldSet::default() };
    compare(old, new, schema, &mut difference.changed, &mut difference.removed);
    strip(&mut difference.changed);
    strip(&mut difference.removed);
    difference
}

fn compare(old: &Value, new: &Value, schema: &Schema, changed: &mut FieldSet, removed: &mut FieldSet) {
    if old == new {
        return;
    }
    let (Some(before), Some(after)) = (named_parts(old, schema), named_parts(new, schema)) else {
        // One of the values is owned as a whole. So all fields of the new value count as changed, and all fields of the old value as
        // removed.
        changed.union(&of_value(new, schema));
        let mut gone = of_value(old, schema);
        gone.subtract(&of_value(new, schema));
        removed.union(&gone);
        return;
    };
    let anything = Schema::anything();
    for (key, value) in &after {
        let below = schema_of(schema, key, &anything);
        match before.get(key) {
            None => {
                let mut set = of_value(value, below);
                set.here |= !key.starts_with("f:");
                changed.below.entry(key.clone()).or_default().union(&set);
            }
            Some(old) => {
                let (mut more, mut less) = (FieldSet::default(), FieldSet::default());
                compare(old, value, below, &mut more, &mut less);
                for (target, set) in [(&mut *changed, more), (&mut *removed, less)] {
                    if !set.is_empty() {
                        target.below.entry(key.clone()).or_default().union(&set);
                    }
                }
            }
        }
    }
    for (key, value) in before.iter().filter(|(key, _)| !after.contains_key(*key)) {
        let mut set = of_value(value, schema_of(schema, key, &anything));
        set.here = true;
        removed.below.entry(key.clone()).or_default().union(&set);
    }
}

fn named_parts<'a>(value: &'a Value, schema: &Schema) -> Option<BTreeMap<String, &'a Value>> {
    match parts(value, schema) {
        Parts::Whole => None,
        Parts::Fields(fields) => Some(fields.iter().map(|(name, value)| (format!("f:{name}"), value)).collect()),
        Parts::Elements(items) => Some(items.into_iter().collect()),
    }
}

/// The operation of a field manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManagerOperation {
    Apply,
    Update,
}

/// A field manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manager {
    pub(super) name: String,
    pub(super) operation: ManagerOperation,
    pub(super) api_version: String,
    pub(super) subresource: Option<String>,
}

impl Manager {
    pub(super) fn update(name: String, api_version: String, subresource: Option<String>) -> Self {
        Self { name, operation: ManagerOperation::Update, api_version, subresource }
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        (&self.name, self.operation, &self.subresource) == (&other.name, other.operation, &other.subresource)
    }
}

/// The fields of a manager.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) manager: Manager,
    pub(super) fields: FieldSet,
    pub(super) time: Value,
}

/// Reads the managed fields of an object.
pub(super) fn read(object: &Value) -> Vec<Entry> {
    let entries = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let entry = |entry: &Value| {
        let subresource = Some(text(entry, "/subresource").to_owned()).filter(|name| !name.is_empty());
        Entry {
            manager: Manager {
                name: text(entry, "/manager").to_owned(),
                operation: if entry["operation"] == "Apply" {
                    ManagerOperation::Apply
                } else {
                    ManagerOperation::Update
                },
                api_version: text(entry, "/apiVersion").to_owned(),
                subresource,
            },
            fields: FieldSet::from_json(&entry["fieldsV1"]),
            time: entry["time"].clone(),
        }
    };
    entries.iter().filter(|entry| entry.as_object().is_some_and(|fields| !fields.is_empty())).map(entry).collect()
}

/// Writes the managed fields into an object.
pub(super) fn write(object: &mut Value, entries: &[Entry]) {
    let entries: Vec<Value> = entries
        .iter()
        .filter(|entry| !entry.fields.is_empty())
        .map(|entry| {
            let mut value = json!({
                "manager": entry.manager.name,
                "operation": match entry.manager.operation { ManagerOperation::Apply => "Apply", ManagerOperation::Update => "Update" },
                "apiVersion": entry.manager.api_version,
                "time": entry.time,
                "fieldsType": "FieldsV1",
                "fieldsV1": entry.fields.to_json(),
            });
            if let Some(subresource) = &entry.manager.subresource {
                value["subresource"] = json!(subresource);
            }
            value
        })
        .collect();
    if entries.is_empty() {
        metadata(object).remove("managedFields");
    } else {
        metadata(object).insert("managedFields".to_owned(), json!(entries));
    }
}

/// Records a plain write: the writer becomes the only owner of the fields that it has changed.
pub(super) fn record(old: Option<&Value>, new: &mut Value, manager: &Manager, schema: &Schema, now: Timestamp) {
    let cleared = new["metadata"]["managedFields"]
        .as_array()
        .is_some_and(|entries| entries.iter().all(|entry| entry.as_object().is_none_or(Map::is_empty)));
    let mut entries = if cleared { Vec::new() } else { read(old.unwrap_or(new)) };
    let Difference { changed, removed } = if let Some(old) = old {
        difference(old, new, schema)
    } else {
        entries.clear();
        Difference { changed: of(new, schema), removed: FieldSet::default() }
    };
    if cleared && old.is_some() {
        write(new, &[]);
        return;
    }
    if changed.is_empty() && removed.is_empty() {
        write(new, &entries);
        return;
    }
    for entry in &mut entries {
        entry.fields.subtract(&removed);
        if !entry.manager.is(manager) {
            entry.fields.subtract(&changed);
        }
    }
    match entries.iter_mut().find(|entry| entry.manager.is(manager)) {
        Some(entry) => {
            entry.fields.union(&changed);
            entry.manager.api_version.clone_from(&manager.api_version);
            entry.time = time(now);
        }
        None => entries.push(Entry { manager: manager.clone(), fields: changed, time: time(now) }),
    }
    write(new, &entries);
}
