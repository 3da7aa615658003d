//! Server-side apply: the merge of an applied configuration into an object, with conflicts.
//!
//! Source: spec/extension-apiserver §2.10, §6.7.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    fields::{self, Entry, FieldSet, Manager, ManagerOperation, Parts, element_key, parts, schema_of},
    object::time,
    schema::{ListType, MapType, Schema, prune, validate},
    server::Call,
};
use kube_protocol::status::{ApiStatus, Cause};

/// The object after an apply, with its managed fields. `old` is none if the object does not exist yet. With `force` the apply takes over fields of
/// other managers instead of failing with a conflict.
pub(super) fn apply(
    old: Option<&Value>,
    wanted: &Value,
    manager: &Manager,
    schema: &Schema,
    force: bool,
    now: Timestamp,
) -> Result<Value, ApiStatus> {
    let mut manager = manager.clone();
    manager.operation = ManagerOperation::Apply;
    let set = fields::of(wanted, schema);
    let mut entries = old.map(fields::read).unwrap_or_default();
    let mut result = old.map_or_else(|| wanted.clone(), |old| merge(old, wanted, schema));
    if let Some(old) = old {
        let differing = fields::difference(old, &result, schema).changed;
        let mut causes = Vec::new();
        for entry in entries.iter_mut().filter(|entry| !entry.manager.is(&manager)) {
            let conflicts = entry.fields.intersection(&differing);
            if conflicts.is_empty() {
                continue;
            }
            if force {
                entry.fields.subtract(&conflicts);
            } else {
                causes.extend(conflicts.paths().into_iter().map(|path| conflict(&entry.manager, &manager, path)));
            }
        }
        if !causes.is_empty() {
            return Err(conflicts(causes));
        }
        let mut dropped = entries
            .iter()
            .find(|entry| entry.manager.is(&manager))
            .map(|entry| entry.fields.clone())
            .unwrap_or_default();
        dropped.subtract(&set);
        let mut others = FieldSet::default();
        for entry in entries.iter().filter(|entry| !entry.manager.is(&manager)) {
            others.union(&entry.fields);
        }
        dropped.subtract(&others);
        remove_fields(&mut result, &dropped, &others, schema);
    }
    let unchanged =
        entries.iter().find(|entry| entry.manager.is(&manager) && entry.fields == set).map(|entry| entry.time.clone());
    entries.retain(|entry| !entry.manager.is(&manager));
    entries.insert(0, Entry { manager, fields: set, time: unchanged.unwrap_or_else(|| time(now)) });
    fields::write(&mut result, &entries);
    Ok(result)
}

fn conflict(owner: &Manager, applier: &Manager, path: String) -> Cause {
    let subresource = owner.subresource.as_ref().map(|name| format!(" with subresource {name:?}")).unwrap_or_default();
    let differs = owner.operation == ManagerOperation::Update || owner.api_version != applier.api_version;
    let version = if differs { format!(" using {}", owner.api_version) } else { String::new() };
    let message = format!("conflict with {:?}{subresource}{version}", owner.name);
    Cause { reason: "FieldManagerConflict", message, field: path }
}

fn conflicts(causes: Vec<Cause>) -> ApiStatus {
    let plural = if causes.len() == 1 { "" } else { "s" };
    let lines: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.message, cause.field)).collect();
    let message = format!("Apply failed with {} conflict{plural}: {}", causes.len(), lines.join(", "));
    ApiStatus { causes, ..ApiStatus::new(409, "Conflict", message) }
}

/// Merges an applied configuration into an object.
fn merge(old: &Value, wanted: &Value, schema: &Schema) -> Value {
    let anything = Schema::anything();
    match (old, wanted) {
        (Value::Object(before), Value::Object(after)) if schema.map_type == MapType::Granular => {
            let mut merged = before.clone();
            for (name, value) in after {
                let below = schema.field(name).unwrap_or(&anything);
                let value = before.get(name).map_or_else(|| value.clone(), |old| merge(old, value, below));
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Value::Array(before), Value::Array(after)) => match &schema.list_type {
            ListType::Atomic => wanted.clone(),
            ListType::Set => {
                let mut merged = before.clone();
                merged.extend(after.iter().filter(|item| !before.contains(item)).cloned());
                Value::Array(merged)
            }
            ListType::Map(keys) => {
                let below = schema.items.as_deref().unwrap_or(&anything);
                let mut merged = before.clone();
                for item in after {
                    let key = element_key(item, keys);
                    match merged.iter_mut().find(|known| element_key(known, keys) == key) {
                        Some(known) => *known = merge(known, item, below),
                        None => merged.push(item.clone()),
                    }
                }
                Value::Array(merged)
            }
        },
        _ => wanted.clone(),
    }
}

/// Removes the fields of a set, and objects and lists that become empty. Fields of other managers stay.
fn remove_fields(value: &mut Value, set: &FieldSet, others: &FieldSet, schema: &Schema) {
    let anything = Schema::anything();
    let none = FieldSet::default();
    match value {
        Value::Object(fields) => {
            for (key, below) in &set.below {
                let Some(name) = key.strip_prefix("f:") else { continue };
                let others = others.below.get(key).unwrap_or(&none);
                let Some(value) = fields.get_mut(name) else { continue };
                let was_whole = matches!(parts(value, schema_of(schema, key, &anything)), Parts::Whole);
                if below.here && others.is_empty() && (was_whole || below.below.is_empty()) {
                    fields.remove(name);
                    continue;
                }
                remove_fields(value, below, others, schema_of(schema, key, &anything));
                let emptied = match value {
                    Value::Object(fields) => fields.is_empty(),
                    Value::Array(items) => items.is_empty(),
                    _ => false,
                };
                if emptied && others.is_empty() {
                    fields.remove(name);
                }
            }
        }
        Value::Array(items) => {
            let keys: &[String] = match &schema.list_type {
                ListType::Map(keys) => keys,
                ListType::Set | ListType::Atomic => &[],
            };
            items.retain_mut(|item| {
                let key = if keys.is_empty() { format!("v:{item}") } else { element_key(item, keys) };
                let Some(below) = set.below.get(&key) else { return true };
                let others = others.below.get(&key).unwrap_or(&none);
                if below.here && others.is_empty() {
                    return false;
                }
                remove_fields(item, below, others, schema_of(schema, &key, &anything));
                true
            });
        }
        _ => {}
    }
}

/// Checks that an applied configuration has no managed fields.
pub(super) fn check(wanted: &Value) -> Result<(), ApiStatus> {
    match &wanted["metadata"]["managedFields"] {
        Value::Null => Ok(()),
        Value::Array(entries) if entries.is_empty() => Ok(()),
        _ => Err(ApiStatus::bad_request("metadata.managedFields must be nil")),
    }
}

/// Checks that every field of an applied configuration is declared and has the right type, and that every list has unique elements.
///
/// As in kube-apiserver the error is 500, independent of `fieldValidation`: fields without a schema can have no owner.
pub(super) fn check_type(wanted: &mut Value, call: &Call<'_>) -> Result<(), ApiStatus> {
    let schema = &call.served.schema;
    let untyped = |what: String| {
        let place = call.namespace().map_or_else(String::new, |namespace| format!("{namespace}/"));
        let why = format!(
            "failed to create typed patch object ({place}{}; {}, Kind={}): {what}",
            call.name(),
            call.served.api_version(),
            call.served.kind()
        );
        ApiStatus::new(500, "InternalError", why)
    };
    if let Some(field) = prune::object(wanted, schema).first() {
        return Err(untyped(format!(".{field}: field not declared in schema")));
    }
    let mut found = Vec::new();
    validate::check(wanted, None, schema, "", &mut found);
    let wrong = found.into_iter().find(|cause| matches!(cause.reason, "FieldValueTypeInvalid" | "FieldValueDuplicate"));
    match wrong {
        Some(cause) if !cause.field.starts_with("metadata.") => {
            Err(untyped(format!(".{}: {}", cause.field, cause.message)))
        }
        _ => Ok(()),
    }
}

/// Removes the fields of the metadata that a client can't apply.
pub(super) fn without_head(mut wanted: Value) -> Value {
    if let Value::Object(fields) = &mut wanted["metadata"] {
        for field in ["managedFields", "creationTimestamp", "uid", "generation", "selfLink"] {
            fields.remove(field);
        }
    }
    if wanted["metadata"].is_null() {
        wanted["metadata"] = json!({});
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::compile::structural;

    fn schema() -> Schema {
        structural(
            &json!({"type": "object", "properties": {
                "spec": {"type": "object", "properties": {
                    "color": {"type": "string"}, "replicas": {"type": "integer"},
                    "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                             "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string"}}}},
                    "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                }},
            }}),
            "",
        )
        .unwrap()
    }

    fn by(name: &str) -> Manager {
        Manager {
            name: name.to_owned(),
            operation: ManagerOperation::Apply,
            api_version: "g/v1".to_owned(),
            subresource: None,
        }
    }

    fn applied(old: Option<&Value>, spec: impl Into<Value>, name: &str, force: bool) -> Result<Value, ApiStatus> {
        let spec = spec.into();
        let wanted = json!({"metadata": {"name": "a"}, "spec": spec});
        apply(old, &wanted, &by(name), &schema(), force, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn xa_087_an_apply_fails_with_a_conflict_and_a_forced_apply_takes_the_field() {
        let one = applied(None, json!({"color": "red", "replicas": 2}), "m1", false).unwrap();
        let refused = applied(Some(&one), json!({"replicas": 3}), "m2", false).unwrap_err();
        assert_eq!((refused.code, refused.causes[0].field.as_str()), (409, ".spec.replicas"));
        assert_eq!(refused.causes[0].message, "conflict with \"m1\"");
        let two = applied(Some(&one), json!({"replicas": 3}), "m2", true).unwrap();
        let owned: Vec<_> =
            fields::read(&two).into_iter().map(|entry| (entry.manager.name, entry.fields.paths())).collect();
        assert_eq!(
            owned,
            [("m2".to_owned(), vec![".spec.replicas".to_owned()]), ("m1".to_owned(), vec![".spec.color".to_owned()])]
        );
    }

    #[test]
    fn equal_values_have_two_owners_and_a_field_is_removed_with_its_last_owner() {
        let one = applied(None, json!({"color": "red", "replicas": 2}), "m1", false).unwrap();
        let two = applied(Some(&one), json!({"replicas": 2}), "m2", false).unwrap();
        let three = applied(Some(&two), json!({"color": "red"}), "m1", false).unwrap();
        assert_eq!(three["spec"], json!({"color": "red", "replicas": 2}));
        let four = applied(Some(&three), json!({}), "m2", false).unwrap();
        assert_eq!(four["spec"], json!({"color": "red"}));
    }

    #[test]
    fn xa_089_each_list_element_has_its_own_owners() {
        let one = applied(None, json!({"list": [{"k": "a"}, {"k": "b"}], "set": ["x"]}), "m1", false).unwrap();
        let two = applied(Some(&one), json!({"list": [{"k": "c"}], "set": ["y"]}), "m2", false).unwrap();
        let three = applied(Some(&two), json!({"list": [{"k": "a"}]}), "m1", false).unwrap();
        assert_eq!(three["spec"], json!({"list": [{"k": "a"}, {"k": "c"}], "set": ["y"]}));
    }
}
