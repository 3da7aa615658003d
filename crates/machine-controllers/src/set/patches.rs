//! Makes the patches of effects; no other file of this folder does.
//!
//! A patch is the difference between the observed and the wanted object. Both are serialised from the same types, so
//! unknown fields never appear in the patch and survive. A list is replaced as a whole, and only in the observed
//! version.

use controller_runtime::{
    key::Target,
    objects::{Part, Patch},
    snapshot::Snapshot,
};
use machine_api::{
    names::{annotation, finalizer, preserve_value},
    v1alpha1::{MachineSetStatus, MachineSpec},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    ownership::Owner,
    plan::{Effect, Keeping},
};
use crate::{
    finalizer_patches,
    snapshots::{MachineSnapshot, Metadata, SetSnapshot},
};

/// The patch of the set; `None` if the effect does not change the set.
pub fn patch_of_set(effect: &Effect, set: &SetSnapshot) -> Option<(Part, Patch)> {
    match effect {
        Effect::AddFinalizer => finalizer_added(set.metadata()).map(|patch| (Part::Main, patch)),
        Effect::RemoveFinalizer => finalizer_removed(set.metadata()).map(|patch| (Part::Main, patch)),
        Effect::WriteStatus(status) => written_status(set, status).map(|patch| (Part::Status, patch)),
        Effect::Adopt(_)
        | Effect::Release(_)
        | Effect::Keep(..)
        | Effect::SyncTemplate { .. }
        | Effect::CreateMachine(_)
        | Effect::CreateUnlessThere(_)
        | Effect::DeleteMachine { .. }
        | Effect::Tell(_) => None,
    }
}

/// The patch of a machine, and the machine; `None` if the effect does not change an existing machine.
pub fn patch_of_machine(effect: &Effect, set: &SetSnapshot) -> Option<(Target, Patch)> {
    let (machine, patch) = match effect {
        Effect::Adopt(machine) => (machine, Some(adoption(&Owner::of_set(set), machine.metadata()))),
        Effect::Release(machine) => (machine, release(&Owner::of_set(set), machine.metadata())),
        Effect::Keep(machine, keeping) => (machine, Some(kept(machine, *keeping))),
        Effect::SyncTemplate { machine, spec } => (machine, synced(machine, spec)),
        Effect::AddFinalizer
        | Effect::RemoveFinalizer
        | Effect::WriteStatus(_)
        | Effect::CreateMachine(_)
        | Effect::CreateUnlessThere(_)
        | Effect::DeleteMachine { .. }
        | Effect::Tell(_) => return None,
    };
    Some((machine.target(), patch?))
}

/// The patch that writes this status.
pub fn written_status(set: &SetSnapshot, status: &MachineSetStatus) -> Option<Patch> {
    let patch = Patch::Merge(json!({ "status": merge_difference(set.status(), status)? }));
    // The patch replaces the list of conditions, so it must apply to the observed version only (D-15).
    let replaces_list = status.conditions != set.status().conditions;
    Some(if replaces_list { patch.guarded_by(set.resource_version()) } else { patch })
}

/// The patch that writes this `spec`. Taints are a list.
fn synced(machine: &MachineSnapshot, spec: &MachineSpec) -> Option<Patch> {
    let change = merge_difference(machine.spec(), spec)?;
    Some(unchanged(machine, Patch::Merge(json!({ "spec": change }))))
}

/// The patch that adds or removes the preservation annotation. A user may have decided meanwhile, so the version is
/// tested.
fn kept(machine: &MachineSnapshot, keeping: Keeping) -> Patch {
    let value = match keeping {
        Keeping::Keep => Some(preserve_value::AUTO_PRESERVED),
        Keeping::LetGo => None,
    };
    unchanged(machine, Patch::Merge(json!({ "metadata": { "annotations": { annotation::PRESERVE: value } } })))
}

/// The same patch, for the observed version of the machine only.
fn unchanged(machine: &MachineSnapshot, patch: Patch) -> Patch {
    patch.guarded_by(machine.resource_version())
}

/// Adds the owner reference if the object has its observed version. Other references stay.
pub fn adoption(owner: &Owner<'_>, object: Metadata<'_>) -> Patch {
    let unchanged = json!({"op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version});
    let reference = owner.reference();
    let add = if object.owner_references.is_empty() {
        json!({"op": "add", "path": "/metadata/ownerReferences", "value": [reference]})
    } else {
        json!({"op": "add", "path": "/metadata/ownerReferences/-", "value": reference})
    };
    Patch::Json(vec![unchanged, add])
}

/// Removes the owner reference. `None` if the object has none.
pub fn release(owner: &Owner<'_>, object: Metadata<'_>) -> Option<Patch> {
    let index = object.owner_references.iter().position(|reference| reference.uid == owner.meta.uid)?;
    let path = format!("/metadata/ownerReferences/{index}");
    Some(Patch::Json(vec![
        json!({"op": "test", "path": format!("{path}/uid"), "value": owner.meta.uid}),
        json!({"op": "remove", "path": path}),
    ]))
}

/// The JSON merge patch that turns `seen` into `wanted`; `None` when they are the same. Lists are replaced whole.
pub fn merge_difference<T: Serialize + PartialEq>(seen: &T, wanted: &T) -> Option<Value> {
    // In most passes both are equal, and comparing values is cheaper than making JSON.
    if seen == wanted {
        return None;
    }
    // Serialising an API type never fails: keys are strings, and no implementation returns errors.
    let seen = serde_json::to_value(seen).unwrap_or_default();
    let wanted = serde_json::to_value(wanted).unwrap_or_default();
    difference(&seen, &wanted)
}

fn difference(seen: &Value, wanted: &Value) -> Option<Value> {
    if seen == wanted {
        return None;
    }
    let (Value::Object(seen), Value::Object(wanted)) = (seen, wanted) else { return Some(wanted.clone()) };
    let mut patch = Map::new();
    for key in seen.keys().filter(|key| !wanted.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in wanted {
        match seen.get(key) {
            Some(before) => {
                if let Some(change) = difference(before, value) {
                    patch.insert(key.clone(), change);
                }
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Whether the object has our finalizer.
pub fn has_finalizer(meta: Metadata<'_>) -> bool {
    meta.has_finalizer(finalizer::MACHINE)
}

/// Adds our finalizer; `None` if it is present.
pub fn finalizer_added(meta: Metadata<'_>) -> Option<Patch> {
    if has_finalizer(meta) {
        return None;
    }
    let unchanged = json!({"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version});
    let add = if meta.finalizers.is_empty() {
        json!({"op": "add", "path": "/metadata/finalizers", "value": [finalizer::MACHINE]})
    } else {
        json!({"op": "add", "path": "/metadata/finalizers/-", "value": finalizer::MACHINE})
    };
    Some(Patch::Json(vec![unchanged, add]))
}

/// Whether the object was deleted with the propagation policy `Orphan` (`kubectl delete --cascade=orphan`) and the
/// garbage collector has not yet removed the owner references of its dependents. The original deletes the dependents in
/// that time.
pub fn is_orphaning(meta: Metadata<'_>) -> bool {
    meta.is_deleting() && meta.has_finalizer(finalizer::ORPHAN)
}

/// Removes our finalizer; `None` if it is absent.
pub fn finalizer_removed(meta: Metadata<'_>) -> Option<Patch> {
    finalizer_patches::without(meta.finalizers, finalizer::MACHINE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::testing::*;

    #[test]
    fn the_difference_contains_only_changes() {
        let seen = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [1]});
        let wanted = json!({"a": 1, "b": {"c": 4}, "e": [1, 2]});
        assert_eq!(merge_difference(&seen, &wanted), Some(json!({"b": {"c": 4, "d": null}, "e": [1, 2]})));
        assert_eq!(merge_difference(&seen, &seen), None);
    }

    #[test]
    fn s_util_06_removed_labels_are_nulled_and_s_util_07_nothing_removed_is_no_write() {
        let labels = |pairs: &[(&str, &str)]| json!({"metadata": {"labels": pairs.iter().copied().collect::<std::collections::BTreeMap<_, _>>()}});
        let seen = labels(&[("foo1", "bar1"), ("foo2", "bar2"), ("foo3", "bar3")]);
        let patch = merge_difference(&seen, &labels(&[("foo3", "bar3")])).unwrap();
        assert_eq!(patch.to_string(), r#"{"metadata":{"labels":{"foo1":null,"foo2":null}}}"#);
        assert_eq!(merge_difference(&seen, &seen), None);
    }

    /// Maps are changed only by the difference between two of them.
    #[rstest::rstest]
    #[case::s_util_01_nothing_added(json!({"labels": {"foo1": "bar1"}}), json!({"labels": {"foo1": "bar1"}}), None)]
    #[case::s_util_03_a_first_label(json!({}), json!({"labels": {"foo4": "food"}}), Some(json!({"labels": {"foo4": "food"}})))]
    #[case::s_util_04_a_selector_without_labels(
        json!({"selector": {}}), json!({"selector": {"matchLabels": {"foo4": "12"}}}),
        Some(json!({"selector": {"matchLabels": {"foo4": "12"}}})))]
    fn a_map_is_changed(#[case] seen: Value, #[case] wanted: Value, #[case] patch: Option<Value>) {
        assert_eq!(merge_difference(&seen, &wanted), patch);
    }

    #[test]
    fn s_util_02_what_was_added_is_taken_back_and_s_util_05_maps_are_written_in_order() {
        let before = json!({"labels": {"foo2": "bar2", "foo1": "bar1"}});
        let mut labels = before.clone();
        let mut with = before.clone();
        with["labels"]["foo4"] = json!("42");
        json_patch::merge(&mut labels, &merge_difference(&before, &with).unwrap());
        assert_eq!(labels, with);
        json_patch::merge(&mut labels, &merge_difference(&with, &before).unwrap());
        assert_eq!(labels.to_string(), r#"{"labels":{"foo1":"bar1","foo2":"bar2"}}"#);
        assert_eq!(serde_json::to_string(&kube_values::selector::Labels::new()).unwrap(), "{}");
    }

    #[test]
    fn s_ms_34_exactly_our_finalizer_is_toggled() {
        let with = machine("m").build();
        let without = machine("m").with(|machine| machine.metadata.finalizers = Some(vec!["other".to_owned()])).build();
        assert_eq!(finalizer_added((&with.metadata).into()), None);
        assert_eq!(finalizer_removed((&without.metadata).into()), None);
        let Some(Patch::Json(added)) = finalizer_added((&without.metadata).into()) else { panic!("nothing to add") };
        assert_eq!(added[1], json!({"op": "add", "path": "/metadata/finalizers/-", "value": finalizer::MACHINE}));
        let Some(Patch::Json(removed)) = finalizer_removed((&with.metadata).into()) else {
            panic!("nothing to remove")
        };
        assert_eq!(removed[1], json!({"op": "remove", "path": "/metadata/finalizers/0"}));
    }
}
