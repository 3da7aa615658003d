//! The conversion of custom resource definitions to served kinds, and the status of definitions. [`super::definition_rules`] validates definitions.
//!
//! Source: spec/extension-apiserver §6.4.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    jsonpath::JsonPath,
    kinds::{Conversion, Custom, DefinitionVersion, Origin, ScalePaths, Served, plain_columns, simple_path, verb},
    object::{self, name, text, time},
    schema::{Additional, Nature, Schema, compile::structural},
    store::Collection,
    table::{Cell, Column},
    write_rules::remove,
};
use kube_protocol::{
    resource::{GroupVersionKind, Resource, ResourceScope, Subresource},
    status::ApiStatus,
};

/// The finalizer of a definition until its objects are deleted.
pub(super) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The most bytes of all definitions together. The limit exists because each definition is compiled and is in memory in several forms.
pub(super) const QUOTA: usize = 64 * 1024 * 1024;

/// Checks that a definition and all others are within the limit.
pub(super) fn fits<'a>(definition: &Value, others: impl Iterator<Item = &'a Value>) -> Result<(), ApiStatus> {
    let name = name(definition);
    let others = others.filter(|other| self::name(other) != name).map(size).sum::<usize>();
    if others + size(definition) <= QUOTA {
        return Ok(());
    }
    let why = format!("all definitions together may have {QUOTA} bytes in the development server; delete some first");
    Err(ApiStatus::forbidden("apiextensions.k8s.io", "customresourcedefinitions", name, &why))
}

fn size(definition: &Value) -> usize {
    definition.to_string().len()
}

pub(super) fn versions(definition: &Value) -> &[Value] {
    definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Sets the defaults of names and conversion, as kube-apiserver does.
pub(super) fn default(definition: &mut Value) {
    let names = &mut definition["spec"]["names"];
    let kind = names["kind"].as_str().unwrap_or_default().to_owned();
    if names["singular"].is_null() {
        names["singular"] = json!(kind.to_lowercase());
    }
    if names["listKind"].is_null() {
        names["listKind"] = json!(format!("{kind}List"));
    }
    if definition["spec"]["conversion"].is_null() {
        definition["spec"]["conversion"] = json!({"strategy": "None"});
    }
}

/// The names of a definition that must be unique in its group: the names of the resource, and the names of the kinds.
fn claimed(names: &Value) -> (Vec<&Value>, Vec<&Value>) {
    let short = names["shortNames"].as_array().into_iter().flatten();
    let mut resources: Vec<&Value> = short.collect();
    resources.extend([&names["plural"], &names["singular"]]);
    (resources, vec![&names["kind"], &names["listKind"]])
}

/// A name of a definition that another definition of its group has already.
#[derive(Debug, PartialEq, Eq)]
struct Conflict<'a> {
    /// The field in `names`.
    field: &'static str,
    reason: &'static str,
    name: &'a Value,
}

/// The names of a definition that other definitions have, in the order in which kube-apiserver checks them.
fn conflicts<'a>(definition: &'a Value, others: impl Iterator<Item = &'a Value>) -> Vec<Conflict<'a>> {
    let others =
        others.filter(|other| name(other) != name(definition) && other["spec"]["group"] == definition["spec"]["group"]);
    let (mut resources, mut kinds) = (Vec::new(), Vec::new());
    for other in others {
        let (of_resource, of_kind) = claimed(&other["status"]["acceptedNames"]);
        resources.extend(of_resource);
        kinds.extend(of_kind);
    }
    let names = &definition["spec"]["names"];
    let one = |field: &'static str, reason: &'static str| Conflict { field, reason, name: &names[field] };
    let short = names["shortNames"].as_array().into_iter().flatten();
    let short = short.map(|name| Conflict { field: "shortNames", reason: "ShortNamesConflict", name });
    let of_resource = [one("plural", "PluralConflict"), one("singular", "SingularConflict")];
    let of_kind = [one("kind", "KindConflict"), one("listKind", "ListKindConflict")];
    // A definition keeps a name that was accepted before.
    let has = |wanted: &Conflict<'_>| {
        let own = &definition["status"]["acceptedNames"][wanted.field];
        own == wanted.name || own.as_array().is_some_and(|own| own.contains(wanted.name))
    };
    let is_used = |all: &[&Value], wanted: &Conflict<'_>| {
        wanted.name.as_str().is_some_and(|name| !name.is_empty()) && all.contains(&wanted.name) && !has(wanted)
    };
    let resource = of_resource.into_iter().chain(short).filter(|wanted| is_used(&resources, wanted));
    resource.chain(of_kind.into_iter().filter(|wanted| is_used(&kinds, wanted))).collect()
}

/// The names of a definition without the conflicting names.
fn accepted_names(names: &Value, conflicts: &[Conflict<'_>]) -> Value {
    let mut accepted = names.clone();
    for Conflict { field, .. } in conflicts {
        match *field {
            // These two fields are required.
            "plural" | "kind" => accepted[field] = json!(""),
            other => remove(&mut accepted, other),
        }
    }
    accepted
}

/// Whether the names of a definition are accepted.
pub(super) fn is_accepted(definition: &Value) -> bool {
    let mut conditions = definition["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "NamesAccepted" && condition["status"] == "True")
}

/// The status of a definition, given all stored definitions.
pub(super) fn status<'a>(definition: &'a Value, all: impl Iterator<Item = &'a Value>, now: jiff::Timestamp) -> Value {
    let conflicts = conflicts(definition, all);
    let storage = versions(definition).iter().find(|version| version["storage"] == json!(true));
    let storage = storage.map_or(Value::Null, |version| version["name"].clone());
    let mut stored = definition["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
    if !stored.contains(&storage) {
        stored.push(storage);
    }
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        let mut known = definition["status"]["conditions"].as_array().into_iter().flatten();
        let known = known.find(|known| known["type"] == kind && known["status"] == status);
        let since = known.map_or_else(|| time(now), |known| known["lastTransitionTime"].clone());
        json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
    };
    // With several conflicts kube-apiserver reports the last one.
    let conditions = match conflicts.last() {
        None => [
            condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
            condition("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        Some(Conflict { reason, name, .. }) => [
            condition("NamesAccepted", "False", reason, &format!("{name} is already in use")),
            condition("Established", "False", "NotAccepted", "not all names are accepted"),
        ],
    };
    // Other conditions, such as the one of `terminating`, stay.
    let known = definition["status"]["conditions"].as_array().into_iter().flatten();
    let others = known.filter(|known| conditions.iter().all(|ours| ours["type"] != known["type"])).cloned();
    let conditions: Vec<Value> = conditions.iter().cloned().chain(others).collect();
    let accepted = accepted_names(&definition["spec"]["names"], &conflicts);
    json!({"acceptedNames": accepted, "storedVersions": stored, "conditions": conditions})
}

/// Whether a definition is being deleted. Its objects can't be created then.
pub(super) fn is_terminating(definition: &Value) -> bool {
    object::is_deleting(definition)
}

/// A definition with the condition `Terminating`, which says that its objects are being deleted or why their deletion failed. None if the condition
/// is unchanged.
pub(super) fn terminating(definition: &Value, failure: Option<&str>, now: jiff::Timestamp) -> Option<Value> {
    const TYPE: &str = "Terminating";
    let (reason, message) = match failure {
        None => ("InstanceDeletionInProgress", "CustomResource deletion is in progress".to_owned()),
        Some(failure) => ("InstanceDeletionFailed", format!("could not issue all deletes: {failure}")),
    };
    let mut changed = definition.clone();
    let conditions = &mut changed["status"]["conditions"];
    let mut all = conditions.as_array().cloned().unwrap_or_default();
    let known = all.iter().position(|known| known["type"] == TYPE);
    let since = known.map_or_else(|| time(now), |at| all[at]["lastTransitionTime"].clone());
    let condition =
        json!({"type": TYPE, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since});
    match known {
        Some(at) if all[at] == condition => return None,
        Some(at) => all[at] = condition,
        None => all.push(condition),
    }
    *conditions = json!(all);
    Some(changed)
}

/// The served kinds of a definition; none while its names are not accepted.
pub(super) fn served(definition: &Value) -> Vec<Arc<Served>> {
    if !is_accepted(definition) {
        return Vec::new();
    }
    let strings = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (group, plural) = (text(definition, "/spec/group"), text(definition, "/spec/names/plural"));
    let names = &definition["spec"]["names"];
    let storage = versions(definition).iter().find(|version| version["storage"] == json!(true));
    let storage_version = storage.map(|version| text(version, "/name").to_owned()).unwrap_or_default();
    let conversion = match text(definition, "/spec/conversion/strategy") {
        "Webhook" => Conversion::Webhook(definition["spec"]["conversion"]["webhook"]["clientConfig"].clone()),
        _ => Conversion::None,
    };
    let mut kinds = Vec::new();
    for version in versions(definition)
        .iter()
        .filter(|version| version["served"] == json!(true) || version["storage"] == json!(true))
    {
        let schema = &version["schema"]["openAPIV3Schema"];
        let Ok(mut compiled) = structural(schema, "") else { continue };
        complete(&mut compiled);
        let kind = GroupVersionKind {
            group: group.to_owned(),
            version: text(version, "/name").to_owned(),
            kind: text(names, "/kind").to_owned(),
        };
        let is_served = version["served"] == json!(true);
        let deprecation = (version["deprecated"] == json!(true)).then(|| {
            let own = text(version, "/deprecationWarning");
            if own.is_empty() { format!("{} {} is deprecated", kind.api_version(), kind.kind) } else { own.to_owned() }
        });
        let scale = &version["subresources"]["scale"];
        let scale =
            simple_path(text(scale, "/specReplicasPath")).filter(|_| scale.is_object()).map(|spec| ScalePaths {
                spec_replicas: spec,
                status_replicas: simple_path(text(scale, "/statusReplicasPath")).unwrap_or_default(),
                selector: simple_path(text(scale, "/labelSelectorPath")).filter(|path| !path.is_empty()),
            });
        kinds.push(Arc::new(Served {
            columns: columns(version),
            schema: Arc::new(compiled),
            schema_name: schema_name(&kind),
            collection: Collection::new(group, plural),
            origin: Origin::Custom(Arc::new(Custom {
                storage_version: storage_version.clone(),
                conversion: conversion.clone(),
                selectable: version["selectableFields"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|field| text(field, "/jsonPath").trim_start_matches('.').to_owned())
                    .collect(),
                deprecation,
                raw_schema: schema.clone(),
                definition: DefinitionVersion {
                    uid: text(definition, "/metadata/uid").to_owned(),
                    generation: definition["metadata"]["generation"].as_i64().unwrap_or_default(),
                },
            })),
            resource: Resource {
                list_kind: text(names, "/listKind").to_owned(),
                plural: plural.to_owned(),
                singular: text(names, "/singular").to_owned(),
                short_names: strings(&names["shortNames"]),
                categories: strings(&names["categories"]),
                scope: match text(definition, "/spec/scope") {
                    "Cluster" => ResourceScope::Cluster,
                    _ => ResourceScope::Namespaced,
                },
                // A version that is stored but not served has no verbs, so that clients can't use it.
                verbs: if is_served {
                    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
                        .iter()
                        .filter_map(|name| verb(name))
                        .collect()
                } else {
                    Vec::new()
                },
                subresources: subresources(version, &kind, scale.is_some()),
                kind,
            },
            scale,
        }));
    }
    kinds
}

/// Adds the fields that every object has to a schema.
fn complete(schema: &mut Schema) {
    let text = || Arc::new(Schema { value_type: Some(super::schema::Type::String), ..Schema::default() });
    for field in ["apiVersion", "kind"] {
        schema.properties.insert(field.to_owned(), text());
    }
    // The metadata has the same schema for all kinds.
    let metadata = super::kinds::Registry::new(Vec::new());
    let metadata =
        metadata.find("", "v1", "configmaps").and_then(|served| served.schema.properties.get("metadata").cloned());
    let own = schema.properties.get("metadata").cloned();
    let mut metadata = metadata.map_or_else(Schema::anything, |metadata| (*metadata).clone());
    if let Some(own) = own {
        metadata.rules.clone_from(&own.rules);
        for (name, node) in &own.properties {
            if let Some(known) = metadata.properties.get(name) {
                let mut known = (**known).clone();
                known.bounds = node.bounds.clone();
                known.rules.clone_from(&node.rules);
                metadata.properties.insert(name.clone(), Arc::new(known));
            }
        }
    }
    schema.properties.insert("metadata".to_owned(), Arc::new(metadata));
    debug_assert!(schema.nature == Nature::Plain && !matches!(schema.additional, Additional::Each(_)));
}

fn subresources(version: &Value, kind: &GroupVersionKind, scales: bool) -> Vec<Subresource> {
    let verbs: Vec<_> = ["get", "patch", "update"].iter().filter_map(|name| verb(name)).collect();
    let mut found = Vec::new();
    if version["subresources"]["status"].is_object() {
        found.push(Subresource { name: "status".to_owned(), kind: kind.clone(), verbs: verbs.clone() });
    }
    if scales {
        let scale =
            GroupVersionKind { group: "autoscaling".to_owned(), version: "v1".to_owned(), kind: "Scale".to_owned() };
        found.push(Subresource { name: "scale".to_owned(), kind: scale, verbs });
    }
    found
}

fn columns(version: &Value) -> Vec<Column> {
    let Some(own) = version["additionalPrinterColumns"].as_array().filter(|own| !own.is_empty()) else {
        return plain_columns();
    };
    let mut columns = vec![plain_columns().swap_remove(0)];
    for column in own {
        let Ok(path) = JsonPath::parse(text(column, "/jsonPath")) else { continue };
        columns.push(Column {
            name: text(column, "/name").to_owned(),
            value_type: text(column, "/type").to_owned(),
            format: text(column, "/format").to_owned(),
            description: text(column, "/description").to_owned(),
            priority: column["priority"].as_i64().unwrap_or(0),
            cell: Cell::Path(path),
        });
    }
    columns
}

/// The name of the schema of a custom kind in documents. It begins with the reversed domain of the group.
fn schema_name(kind: &GroupVersionKind) -> String {
    let reversed: Vec<&str> = kind.group.split('.').rev().collect();
    format!("{}.{}.{}", reversed.join("."), kind.version, kind.kind)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn definition(plural: &str, names: &Value) -> Value {
        let mut definition = json!({
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "names": names, "versions": [{"name": "v1", "served": true, "storage": true}]},
        });
        definition["spec"]["names"]["plural"] = json!(plural);
        definition
    }

    #[rstest]
    #[case::no_conflict(json!({"kind": "Other", "listKind": "OtherList", "singular": "other", "shortNames": ["ot"]}), None)]
    #[case::kind(json!({"kind": "Thing", "singular": "other"}), Some(("KindConflict", "\"Thing\" is already in use")))]
    #[case::list_kind(json!({"kind": "Other", "listKind": "ThingList"}),
        Some(("ListKindConflict", "\"ThingList\" is already in use")))]
    #[case::singular(json!({"kind": "Other", "singular": "thing"}),
        Some(("SingularConflict", "\"thing\" is already in use")))]
    #[case::short_name_that_is_a_plural(json!({"kind": "Other", "shortNames": ["ot", "things"]}),
        Some(("ShortNamesConflict", "\"things\" is already in use")))]
    fn names_are_unique_in_a_group(#[case] names: Value, #[case] expected: Option<(&str, &str)>) {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let names_of_first =
            json!({"kind": "Thing", "listKind": "ThingList", "singular": "thing", "shortNames": ["th"]});
        let mut first = definition("things", &names_of_first);
        first["status"] = status(&first, std::iter::empty(), now);
        assert!(is_accepted(&first));
        let second = definition("others", &names);
        let new_status = status(&second, [&first, &second].into_iter(), now);
        let accepted = &new_status["conditions"][0];
        let found = (accepted["status"] == "False").then(|| (text(accepted, "/reason"), text(accepted, "/message")));
        assert_eq!(found, expected);
        let mut second = second;
        second["status"] = new_status;
        assert_eq!(second["status"]["conditions"][1]["status"] == "True", expected.is_none());
        assert_eq!(is_accepted(&second), expected.is_none());
        let again = status(&first, [&first, &second].into_iter(), now);
        assert_eq!(again, first["status"], "the first definition keeps its names");
        let mut other_group = second.clone();
        other_group["spec"]["group"] = json!("example.org");
        assert_eq!(conflicts(&other_group, [&first].into_iter()), []);
    }

    #[test]
    fn only_conflicting_names_are_not_accepted() {
        let names = json!({"plural": "others", "singular": "other", "kind": "Thing", "listKind": "OtherList"});
        let used = json!("Thing");
        let conflict = Conflict { field: "kind", reason: "KindConflict", name: &used };
        let expected = json!({"plural": "others", "singular": "other", "kind": "", "listKind": "OtherList"});
        assert_eq!(accepted_names(&names, &[conflict]), expected);
    }

    #[test]
    fn th_39_all_definitions_together_have_a_quota() {
        let definition = |name: &str, bytes: usize| json!({"metadata": {"name": name}, "spec": "x".repeat(bytes)});
        let stored = [definition("one", QUOTA / 2), definition("two", QUOTA / 4)];
        assert!(fits(&definition("three", QUOTA / 5), stored.iter()).is_ok());
        let refused = fits(&definition("three", QUOTA / 4), stored.iter()).unwrap_err();
        assert!(refused.code == 403 && refused.message.contains("67108864 bytes"), "{refused:?}");
        assert!(fits(&definition("one", QUOTA / 2), stored.iter()).is_ok(), "a definition replaces itself");
    }
}
