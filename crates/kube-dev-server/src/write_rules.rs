//! What a write may change, and what is wrong with what it would leave: pure rules over the old and the new object.
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

/// What no writer can set.
const SERVER_ONLY: [&str; 6] =
    ["uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"];

/// Everything that is wrong with an object.
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

/// What the scale subresource shows can't be negative; the field is told as the definition writes its path.
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

/// Whether a write insists on the state that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demands {
    Nothing,
    Revision,
}

/// Whether an object of a kind may be replaced by a writer that names no version of it (`AllowUnconditionalUpdate`).
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

/// Name, kind and UID must stay; a resource version that is named must be the stored one, and of most kinds one must be named.
pub(super) fn demands(call: &Call<'_>, old: &Value, new: &Value) -> Result<Demands, ApiStatus> {
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
            return Ok(Demands::Nothing);
        }
        let cause = Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        return Err(ApiStatus::invalid(call.served.group(), call.served.kind(), call.name(), vec![cause]));
    }
    if kube_protocol::options::resource_version(revision)? != revision_of(old) {
        return Err(call.modified());
    }
    // A patch leaves the version as it was found: only a caller who named one insists on it.
    let named_by_patch = call.body.windows(15).any(|window| window == b"resourceVersion");
    Ok(if named_by_patch { Demands::Revision } else { Demands::Nothing })
}

/// What a writer can't change is as before.
pub(super) fn keep_what_is_kept(served: &Served, subresource: Option<&str>, old: &Value, object: &mut Value) {
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
    builtin_rules::keep(served, object);
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

/// Whether objects of a kind say how often their wanted state has changed.
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

/// Whether two states differ in nothing that matters; times of field owners don't.
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
