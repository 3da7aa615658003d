//! The rules of writes: which fields a write may change, and whether the new object is valid. Pure functions of the old and the new object.
//!
//! Source: spec/extension-apiserver §2.9, §6.3.

use serde_json::{Value, json};

use super::{
    builtin_rules, definition_rules,
    kinds::{Served, value_at},
    object::{self, metadata},
    schema::{rules, validate},
    server::Call,
    store::revision_of,
};
use kube_protocol::status::{ApiStatus, Cause};

/// The fields of the metadata that only the server sets.
const SERVER_ONLY: [&str; 6] =
    ["uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"];

/// Validates an object.
pub(super) fn check(served: &Served, object: &Value, old: Option<&Value>) -> Result<(), ApiStatus> {
    let mut found = Vec::new();
    if old.is_none() {
        found.extend(object::check_name(object::name(object), served.name_rule()));
    }
    found.extend(object::check_metadata(object));
    if let Some(old) = old.filter(|old| object::is_deleting(old)) {
        let known = object::finalizers(old);
        let new: Vec<&str> = object::finalizers(object).into_iter().filter(|name| !known.contains(name)).collect();
        if !new.is_empty() {
            let why =
                format!("no new finalizers can be added if the object is being deleted, found new finalizers {new:?}");
            found.push(Cause::forbidden("metadata.finalizers", &why));
        }
    }
    if served.is_custom() {
        let before = found.len();
        validate::check(object, old, &served.schema, "", &mut found);
        found.extend(check_scale(served, object));
        if found.len() == before {
            found.extend(rules::check(object, old, &served.schema));
        } else if has_rules(&served.schema) {
            let why = "some validation rules were not checked because the object was invalid; correct the existing errors \
                       to complete validation";
            found.push(Cause::invalid("<nil>", &Value::Null, why));
        }
    } else {
        found.extend(builtin_rules::check(served, object, old));
        if served.is("apiextensions.k8s.io", "customresourcedefinitions") {
            found.extend(definition_rules::check(object, old));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(ApiStatus::invalid(served.group(), served.kind(), object::name(object), found))
}

/// Checks that the numbers of replicas are not negative. The errors name the paths of the definition.
fn check_scale(served: &Served, object: &Value) -> Vec<Cause> {
    let Some(paths) = &served.scale else { return Vec::new() };
    let of = |path: &[String]| {
        let value = value_at(object, path);
        let negative = value.as_i64().is_some_and(|number| number < 0);
        negative.then(|| Cause::invalid(format!(".{}", path.join(".")), value, "should be a non-negative integer"))
    };
    [&paths.spec_replicas, &paths.status_replicas].into_iter().filter_map(|path| of(path)).collect()
}

fn has_rules(schema: &super::schema::Schema) -> bool {
    !schema.rules.is_empty()
        || schema.properties.values().any(|schema| has_rules(schema))
        || schema.items.as_ref().is_some_and(|items| has_rules(items))
}

/// Whether an update without a resource version may replace objects of a kind (`AllowUnconditionalUpdate`).
fn updates_unconditionally(served: &Served) -> bool {
    let conditional = served.is_custom()
        || matches!(
            (served.group(), served.plural()),
            ("coordination.k8s.io", "leases")
                | ("policy", "poddisruptionbudgets")
                | ("storage.k8s.io", "volumeattachments" | "csinodes" | "csidrivers")
                | ("admissionregistration.k8s.io" | "apiregistration.k8s.io" | "apiextensions.k8s.io", _)
        );
    !conditional
}

/// Checks that name, namespace and UID do not change and that the resource version is the stored one. Most kinds require a resource version. Returns
/// whether the write is only valid for this version, so that it must not be retried after a conflict.
pub(super) fn check_preconditions(call: &Call<'_>, old: &Value, new: &Value) -> Result<bool, ApiStatus> {
    if object::name(new) != object::name(old) || object::namespace(new) != object::namespace(old) {
        return Err(ApiStatus::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            object::name(new),
            object::name(old)
        )));
    }
    let uid = object::uid(new);
    if !uid.is_empty() && uid != object::uid(old) {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", object::uid(old));
        return Err(ApiStatus::conflict(call.served.group(), call.served.plural(), call.name(), &why));
    }
    let revision = object::text(new, "/metadata/resourceVersion");
    if revision.is_empty() || revision == "0" {
        if updates_unconditionally(&call.served) {
            return Ok(false);
        }
        let cause = Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        return Err(ApiStatus::invalid(call.served.group(), call.served.kind(), call.name(), vec![cause]));
    }
    if kube_protocol::options::resource_version(revision)? != revision_of(old) {
        return Err(call.modified());
    }
    // A patched object has the version of the stored object, so only a version in the body is a precondition.
    Ok(call.body.windows(15).any(|window| window == b"resourceVersion"))
}

/// Restores the fields that a write can't change.
pub(super) fn restore_fixed(served: &Served, subresource: Option<&str>, old: &Value, object: &mut Value) {
    object["kind"] = old["kind"].clone();
    object["apiVersion"] = json!(served.api_version());
    match subresource {
        Some("status") => {
            let status = object["status"].take();
            let mut kept = old.clone();
            set_or_remove(&mut kept, "status", status);
            if !served.is_custom() {
                for field in ["labels", "annotations", "finalizers"] {
                    let value = object["metadata"][field].take();
                    set_or_remove(&mut kept["metadata"], field, value);
                }
            }
            let managed = object["metadata"]["managedFields"].take();
            set_or_remove(&mut kept["metadata"], "managedFields", managed);
            *object = kept;
        }
        Some("finalize") => {
            let spec = object["spec"].take();
            let mut kept = old.clone();
            set_or_remove(&mut kept, "spec", spec);
            *object = kept;
        }
        _ => {
            if served.has_status() {
                set_or_remove(object, "status", old["status"].clone());
            }
        }
    }
    builtin_rules::set_fixed(served, object);
    let fields = metadata(object);
    for field in SERVER_ONLY {
        match old["metadata"].get(field) {
            Some(value) => fields.insert(field.to_owned(), value.clone()),
            None => fields.remove(field),
        };
    }
    if !old["metadata"]["generateName"].is_null() && !fields.contains_key("generateName") {
        fields.insert("generateName".to_owned(), old["metadata"]["generateName"].clone());
    }
    if !fields.contains_key("managedFields")
        && let Some(managed) = old["metadata"].get("managedFields")
    {
        fields.insert("managedFields".to_owned(), managed.clone());
    }
}

fn set_or_remove(object: &mut Value, field: &str, value: Value) {
    if value.is_null() {
        remove(object, field);
    } else {
        object[field] = value;
    }
}

pub(super) fn remove(object: &mut Value, field: &str) {
    if let Value::Object(fields) = object {
        fields.remove(field);
    }
}

/// Whether the objects of a kind have a `generation`, which counts the changes of their desired state.
pub(super) fn counts_generations(served: &Served) -> bool {
    served.is_custom()
        || matches!(
            (served.group(), served.plural()),
            ("", "pods" | "replicationcontrollers")
                | ("apps" | "policy" | "batch" | "apiextensions.k8s.io" | "admissionregistration.k8s.io", _)
        )
}

pub(super) fn bump_generation(served: &Served, old: &Value, object: &mut Value) {
    if !counts_generations(served) {
        return;
    }
    let wanted = |value: &Value| {
        let mut wanted = value.clone();
        remove(&mut wanted, "metadata");
        if served.has_status() || !served.is_custom() {
            remove(&mut wanted, "status");
        }
        wanted
    };
    let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
    let changed = wanted(old) != wanted(object);
    metadata(object).insert("generation".to_owned(), json!(if changed { generation + 1 } else { generation }));
}

/// Whether two states are equal except for the times of managed fields.
pub(super) fn same(one: &Value, other: &Value) -> bool {
    let timeless = |value: &Value| {
        let mut value = value.clone();
        for entry in value["metadata"]["managedFields"].as_array_mut().into_iter().flatten() {
            remove(entry, "time");
        }
        value
    };
    one == other || timeless(one) == timeless(other)
}

pub(super) fn finalizer_warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let known = old.map(object::finalizers).unwrap_or_default();
    object::finalizers(object)
        .into_iter()
        .filter(|name| !name.contains('/') && !known.contains(name) && !matches!(*name, "orphan" | "foregroundDeletion"))
        .map(|name| {
            format!("metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers")
        })
        .collect()
}
