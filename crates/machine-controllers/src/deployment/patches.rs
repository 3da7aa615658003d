//! Makes the patches of effects; no other file of this folder does.
//!
//! Whole objects are written as the difference between the observed and the wanted object, so that unknown fields
//! survive. A list is replaced only in the observed version.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    fleet::owner,
    node_change::{Cordon, EFFECT, Guard, MARKER_VALUE, NodeChange, TaintChange, our_taint},
    plan::{Effect, Growth, Tainted},
};
use crate::{
    changes::Changes,
    set::{
        ownership::Owner,
        patches::{adoption, finalizer_added, finalizer_removed, merge_difference, release},
    },
    snapshots::{DeploymentSnapshot, MachineSnapshot, NodeSnapshot, SetSnapshot},
};
use controller_runtime::{
    key::Target,
    objects::{Part, Patch},
    snapshot::{Snapshot, Whole},
};
use kube_values::selector::Labels;
use machine_api::{
    names::{annotation, label, taint, update_result},
    v1alpha1::{MachineDeployment, MachineDeploymentStatus, MachineSet, MachineSetSpec},
};

const VERSION_PATH: &str = "/metadata/resourceVersion";

/// The patch of the deployment; `None` if the effect does not change the deployment.
pub fn of_deployment(effect: &Effect, deployment: &DeploymentSnapshot) -> Option<(Part, Patch)> {
    let version = deployment.resource_version();
    let guarded = |value| Patch::Merge(value).guarded_by(version);
    let main = |patch| Some((Part::Main, patch));
    match effect {
        Effect::AddFinalizer => main(finalizer_added(deployment.metadata())?),
        Effect::RemoveFinalizer => main(finalizer_removed(deployment.metadata())?),
        Effect::WriteRevision(revision) => {
            main(Patch::Merge(json!({ "metadata": { "annotations": { annotation::REVISION: revision } } })))
        }
        Effect::WriteTriggerList(list) => {
            main(guarded(json!({ "metadata": { "annotations": { annotation::TRIGGER_DELETION: list } } })))
        }
        Effect::RollBack(wanted) => {
            main(guarded(merge_difference(&rolled_back(deployment.whole_object()), &rolled_back(wanted))?))
        }
        Effect::CountCollision(collisions) => {
            Some((Part::Status, guarded(json!({ "status": { "collisionCount": collisions } }))))
        }
        // The patch replaces whole lists, so it must apply to the observed version only.
        Effect::WriteStatus(wanted) => {
            let change = merge_difference(deployment.status(), &**wanted)?;
            Some((Part::Status, guarded(json!({ "status": change }))))
        }
        Effect::CreateSet(_)
        | Effect::SyncSet { .. }
        | Effect::SetGrowth(..)
        | Effect::MarkTainted(..)
        | Effect::ScaleSet { .. }
        | Effect::AdoptSet(_)
        | Effect::ReleaseSet(_)
        | Effect::DeleteSet { .. }
        | Effect::MarkMachine { .. }
        | Effect::HandOver { .. }
        | Effect::ChangeNode { .. }
        | Effect::Tell(_) => None,
    }
}

/// The parts of a deployment that a rollback changes.
fn rolled_back(deployment: &MachineDeployment) -> Value {
    let annotations = deployment.metadata.annotations.clone().unwrap_or_default();
    json!({ "metadata": { "annotations": annotations }, "spec": deployment.spec })
}

/// The patch of an existing set, and the set; `None` if the effect does not change a set.
pub fn of_set(effect: &Effect, deployment: &DeploymentSnapshot) -> Option<(Target, Patch)> {
    let (set, patch) = match effect {
        Effect::SyncSet { set, wanted } => {
            (set, guarded_by_set(set, merge_difference(&Synced::of(set.whole_object()), &Synced::of(wanted))?))
        }
        Effect::SetGrowth(set, growth) => {
            let value = match growth {
                Growth::Blocked => Some("true"),
                Growth::Free => None,
            };
            (set, Patch::Merge(json!({ "metadata": { "labels": { label::SCALE_UP_DISABLED: value } } })))
        }
        Effect::MarkTainted(set, tainted) => {
            let value = match tainted {
                Tainted::Yes => Some(MARKER_VALUE),
                Tainted::No => None,
            };
            (set, Patch::Merge(json!({ "metadata": { "annotations": { annotation::PREFER_NO_SCHEDULE: value } } })))
        }
        Effect::ScaleSet { set, to, remembered } => (set, scaled(set, *to, remembered)),
        Effect::AdoptSet(set) => (set, adoption(&owner(deployment), set.metadata())),
        Effect::ReleaseSet(set) => (set, release(&owner(deployment), set.metadata())?),
        Effect::AddFinalizer
        | Effect::RemoveFinalizer
        | Effect::WriteRevision(_)
        | Effect::WriteTriggerList(_)
        | Effect::RollBack(_)
        | Effect::CountCollision(_)
        | Effect::WriteStatus(_)
        | Effect::CreateSet(_)
        | Effect::DeleteSet { .. }
        | Effect::MarkMachine { .. }
        | Effect::HandOver { .. }
        | Effect::ChangeNode { .. }
        | Effect::Tell(_) => return None,
    };
    Some((set.target(), patch))
}

/// Whether the status differs from the stored one.
pub fn changes_status(deployment: &DeploymentSnapshot, wanted: &MachineDeploymentStatus) -> bool {
    merge_difference(deployment.status(), wanted).is_some()
}

/// Whether the set differs from the wanted one.
pub fn changes_set(set: &SetSnapshot, wanted: &MachineSet) -> bool {
    merge_difference(&Synced::of(set.whole_object()), &Synced::of(wanted)).is_some()
}

/// The parts of a set that are copied from its deployment.
#[derive(PartialEq, Serialize)]
struct Synced<'a> {
    metadata: &'a ObjectMeta,
    spec: &'a MachineSetSpec,
}

impl<'a> Synced<'a> {
    fn of(set: &'a MachineSet) -> Self {
        Self { metadata: &set.metadata, spec: &set.spec }
    }
}

fn guarded_by_set(set: &SetSnapshot, change: Value) -> Patch {
    Patch::Merge(change).guarded_by(set.resource_version())
}

fn scaled(set: &SetSnapshot, to: i32, remembered: &Labels) -> Patch {
    let mut change = Map::new();
    if to != set.replicas() {
        change.insert("spec".to_owned(), json!({ "replicas": to }));
    }
    if !remembered.is_empty() {
        change.insert("metadata".to_owned(), json!({ "annotations": remembered }));
    }
    guarded_by_set(set, Value::Object(change))
}

/// The patch of a machine, and the machine; `None` if the effect does not change a machine.
pub fn of_machine(effect: &Effect) -> Option<(Target, Patch)> {
    match effect {
        Effect::MarkMachine { machine, labels, annotations } => {
            Some((machine.target(), Patch::Merge(json!({ "metadata": maps(labels, annotations) }))))
        }
        Effect::HandOver { machine, from, to } => Some((machine.target(), handed_over(machine, from, to)?)),
        Effect::AddFinalizer
        | Effect::RemoveFinalizer
        | Effect::WriteRevision(_)
        | Effect::WriteTriggerList(_)
        | Effect::RollBack(_)
        | Effect::CountCollision(_)
        | Effect::WriteStatus(_)
        | Effect::CreateSet(_)
        | Effect::SyncSet { .. }
        | Effect::SetGrowth(..)
        | Effect::MarkTainted(..)
        | Effect::ScaleSet { .. }
        | Effect::AdoptSet(_)
        | Effect::ReleaseSet(_)
        | Effect::DeleteSet { .. }
        | Effect::ChangeNode { .. }
        | Effect::Tell(_) => None,
    }
}

fn maps(labels: &Changes, annotations: &Changes) -> Map<String, Value> {
    [("labels", labels), ("annotations", annotations)]
        .into_iter()
        .filter(|(_, changes)| !changes.is_empty())
        .map(|(field, changes)| (field.to_owned(), json!(changes)))
        .collect()
}

/// The patch that moves the machine to the new set: owner and labels in one write. It fails if the old set does not own
/// the machine any more. `None` if it does not own the machine now.
fn handed_over(machine: &MachineSnapshot, from: &SetSnapshot, to: &SetSnapshot) -> Option<Patch> {
    let owners = machine.metadata().owner_references;
    let place = owners.iter().position(|owner| owner.uid == from.uid())?;
    let owner_path = format!("/metadata/ownerReferences/{place}");
    let mut operations = vec![
        json!({"op": "test", "path": format!("{owner_path}/uid"), "value": from.uid()}),
        json!({"op": "replace", "path": owner_path, "value": Owner::of_set(to).reference()}),
    ];
    let labels = machine.labels();
    let selected = |set: &SetSnapshot| -> Labels {
        set.selector().and_then(|selector| selector.match_labels.clone()).unwrap_or_default()
    };
    let mut wanted = selected(to);
    wanted.insert(label::UPDATE_RESULT.to_owned(), update_result::SUCCESSFUL.to_owned());
    for key in selected(from).keys().filter(|key| labels.contains_key(*key) && !wanted.contains_key(*key)) {
        operations.push(json!({"op": "remove", "path": label_path(key)}));
    }
    for (key, value) in wanted {
        operations.push(json!({"op": "add", "path": label_path(&key), "value": value}));
    }
    Some(Patch::Json(operations))
}

/// Path of a label in a JSON patch.
fn label_path(key: &str) -> String {
    format!("/metadata/labels/{}", escaped(key))
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The patch of a Node; `None` if the Node is already as wanted.
///
/// Adding and removing the taint tests its index in the list, so that taints of other programs survive without a guard
/// by version. A merge patch can't express that, so the other changes become JSON patch operations too.
pub fn of_node(change: &NodeChange, node: &NodeSnapshot) -> Option<Patch> {
    let merged = merged(change);
    let by_place = match &change.taints {
        TaintChange::Keep | TaintChange::Replace(_) => {
            let patch = Patch::Merge(merged);
            return Some(match change.guard {
                Guard::Any => patch,
                Guard::Observed => patch.guarded_by(node.resource_version()),
            });
        }
        TaintChange::Add => with_taint(node),
        TaintChange::Remove => without_taint(node),
    };
    let mut operations = by_place.unwrap_or_default();
    let mut needs_version = change.guard == Guard::Observed;
    as_operations("", &merged, &document(node), &mut operations, &mut needs_version);
    let is_version_test = |operation: &Value| operation["op"] == "test" && operation["path"] == VERSION_PATH;
    let is_tested = operations.iter().any(is_version_test);
    operations.retain(|operation| !is_version_test(operation));
    if operations.is_empty() {
        return None;
    }
    if needs_version || is_tested {
        let version = json!({"op": "test", "path": VERSION_PATH, "value": node.resource_version()});
        operations.insert(0, version);
    }
    Some(Patch::Json(operations))
}

/// The fields of a Node that a merge patch names. The API server drops empty maps.
fn document(node: &NodeSnapshot) -> Value {
    let maps: [(_, BTreeMap<_, _>); 2] =
        [("labels", node.labels().collect()), ("annotations", node.annotations().collect())];
    let maps = maps.into_iter().filter(|(_, pairs)| !pairs.is_empty());
    let metadata: BTreeMap<_, _> = maps.collect();
    let mut document = json!({ "metadata": metadata });
    if node.has_spec() {
        document["spec"] = if node.is_cordoned() { json!({ "unschedulable": true }) } else { json!({}) };
    }
    document
}

/// The part of a change that a merge patch can express.
fn merged(change: &NodeChange) -> Value {
    let mut patch = Map::new();
    let metadata = maps(&change.labels, &change.annotations);
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), Value::Object(metadata));
    }
    let mut spec = Map::new();
    if change.cordon == Cordon::Lift {
        spec.insert("unschedulable".to_owned(), Value::Null);
    }
    if let TaintChange::Replace(taints) = &change.taints {
        spec.insert("taints".to_owned(), json!(taints));
    }
    if !spec.is_empty() {
        patch.insert("spec".to_owned(), Value::Object(spec));
    }
    Value::Object(patch)
}

/// Removes the taint of old sets; `None` if it is absent.
fn without_taint(node: &NodeSnapshot) -> Option<Vec<Value>> {
    let (index, found) = our_taint(node)?;
    let path = format!("/spec/taints/{index}");
    Some(vec![
        json!({"op": "test", "path": format!("{path}/key"), "value": found.key}),
        json!({"op": "remove", "path": path}),
    ])
}

/// Adds the taint of old sets; `None` if it is present.
fn with_taint(node: &NodeSnapshot) -> Option<Vec<Value>> {
    let (value, effect) = (MARKER_VALUE, EFFECT);
    let wanted = json!({"key": taint::PREFER_NO_SCHEDULE, "value": value, "effect": effect});
    Some(match our_taint(node) {
        Some((_, Taint { value: Some(found), .. })) if found == value => return None,
        Some((index, found)) => {
            let path = format!("/spec/taints/{index}");
            vec![
                json!({"op": "test", "path": format!("{path}/key"), "value": found.key}),
                json!({"op": "replace", "path": path, "value": wanted}),
            ]
        }
        None if !node.taints().is_empty() => vec![json!({"op": "add", "path": "/spec/taints/-", "value": wanted})],
        None => {
            // A JSON patch cannot add to a missing field.
            let (path, value) = if node.has_spec() {
                ("/spec/taints", json!([wanted]))
            } else {
                ("/spec", json!({ "taints": [wanted] }))
            };
            vec![
                json!({"op": "test", "path": VERSION_PATH, "value": node.resource_version()}),
                json!({"op": "add", "path": path, "value": value}),
            ]
        }
    })
}

/// Converts a merge patch of the document into JSON patch operations. Sets `needs_version` if the operations are valid
/// only for this exact document.
fn as_operations(path: &str, patch: &Value, document: &Value, operations: &mut Vec<Value>, needs_version: &mut bool) {
    for (key, value) in patch.as_object().into_iter().flatten() {
        let place = format!("{path}/{}", escaped(key));
        match (value, document.get(key)) {
            (Value::Null, None) => {}
            (Value::Null, Some(_)) => operations.push(json!({"op": "remove", "path": place})),
            (Value::Object(_), Some(there)) if there.is_object() => {
                as_operations(&place, value, there, operations, needs_version);
            }
            (Value::Object(fields), _) => {
                // Another program may add the field meanwhile, and this operation would overwrite it.
                *needs_version = true;
                let kept: serde_json::Map<String, Value> =
                    fields.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
                operations.push(json!({"op": "add", "path": place, "value": kept}));
            }
            _ => operations.push(json!({"op": "add", "path": place, "value": value})),
        }
    }
}
