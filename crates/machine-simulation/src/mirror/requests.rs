//! Converts changes of a mirror into requests to an API server.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use machine_api::v1alpha1::{Machine, MachineDeployment, MachineSet};
use serde_json::{Map, Value, json};

use super::super::api::{Api, Kind};

/// A request to an API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Create this object.
    Create {
        /// The resource of the object.
        resource: &'static str,
        /// The object.
        object: Value,
    },
    /// Change an object with a merge patch.
    Change {
        /// The resource of the object.
        resource: &'static str,
        /// Its name.
        name: String,
        /// The subresource with a leading slash, or an empty string.
        part: &'static str,
        /// The patch.
        patch: Value,
    },
    /// Delete an object.
    Delete {
        /// The resource of the object.
        resource: &'static str,
        /// Its name.
        name: String,
    },
}

/// Metadata that the API server sets.
const OF_THE_SERVER: [&str; 6] =
    ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "deletionTimestamp"];

/// The object in the request.
pub(super) fn whole<K: Kind>(object: &K) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(object)?;
    value["apiVersion"] = json!(K::api_version(&()));
    value["kind"] = json!(K::kind(&()));
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.retain(|key, _| !OF_THE_SERVER.contains(&key.as_str()));
    }
    Ok(value)
}

/// The requests that turn the objects of users and Nodes in `before` into those in `after`.
pub(super) fn between(before: &Api, after: &Api) -> Vec<Request> {
    let mut asked = Vec::new();
    of_kind::<MachineDeployment>(before, after, "machinedeployments", &mut asked);
    of_kind::<MachineSet>(before, after, "machinesets", &mut asked);
    of_kind::<Machine>(before, after, "machines", &mut asked);
    of_kind::<Node>(before, after, "nodes", &mut asked);
    asked
}

fn of_kind<K: Kind>(before: &Api, after: &Api, resource: &'static str, asked: &mut Vec<Request>) {
    for (name, old) in K::table(before) {
        match K::table(after).get(name) {
            Some(new) if Arc::ptr_eq(old, new) => {}
            Some(new) if new.meta().deletion_timestamp == old.meta().deletion_timestamp => {
                changes(&**old, &**new, resource, name, asked);
            }
            _ => asked.push(Request::Delete { resource, name: name.clone() }),
        }
    }
    for (name, new) in K::table(after) {
        if !K::table(before).contains_key(name)
            && let Ok(object) = whole(&**new)
        {
            asked.push(Request::Create { resource, object });
        }
    }
}

fn changes<K: Kind>(old: &K, new: &K, resource: &'static str, name: &str, asked: &mut Vec<Request>) {
    let (Ok(old), Ok(new)) = (whole(old), whole(new)) else { return };
    let Some(Value::Object(mut patch)) = merge_patch(&old, &new) else { return };
    let status = patch.remove("status");
    let mut ask = |part, patch| asked.push(Request::Change { resource, name: name.to_owned(), part, patch });
    if !patch.is_empty() {
        ask("", Value::Object(patch));
    }
    if let Some(status) = status {
        ask("/status", json!({ "status": status }));
    }
}

/// The merge patch from one value to another; `None` if they are equal.
fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return Some(new.clone()) };
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = new.iter().filter_map(|(key, new)| {
        let patch = match old.get(key) {
            Some(old) => merge_patch(old, new)?,
            None => new.clone(),
        };
        Some((key.clone(), patch))
    });
    Some(Value::Object(gone.chain(changed).collect::<Map<String, Value>>()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(json!({ "a": 1 }), json!({ "a": 1 }), None)]
    #[case::one_field(json!({ "a": 1, "b": { "c": 2, "d": 3 } }), json!({ "a": 1, "b": { "c": 4, "d": 3 } }), Some(json!({ "b": { "c": 4 } })))]
    #[case::a_field_goes(json!({ "a": { "b": 1 } }), json!({ "a": {} }), Some(json!({ "a": { "b": null } })))]
    #[case::a_list_is_whole(json!({ "a": [1, 2] }), json!({ "a": [2] }), Some(json!({ "a": [2] })))]
    fn a_merge_patch_leads_from_one_to_the_other(
        #[case] old: Value,
        #[case] new: Value,
        #[case] expected: Option<Value>,
    ) {
        let patch = merge_patch(&old, &new);
        assert_eq!(patch, expected);
        let mut patched = old;
        json_patch::merge(&mut patched, &patch.unwrap_or_else(|| json!({})));
        assert_eq!(patched, new);
    }
}
