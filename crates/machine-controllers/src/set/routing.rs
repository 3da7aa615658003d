//! The sets that a change wakes. Pure functions over the stores.
//!
//! Source: spec/deployment-and-set §4 without its periodic requeues (decisions.md 38). A change that no decision about
//! a set reads wakes no set.

use std::{collections::BTreeSet, sync::Arc};

use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Change};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube_values::selector;
use machine_api::{names::annotation, v1alpha1::MachineClass};

use crate::{
    snapshots::{MachineSnapshot, NodeSnapshot, SetSnapshot},
    views::{BY_NAMESPACE, BY_NODE, BY_SECRET, BY_TEMPLATE_CLASS, ControlViews, qualified},
    wakes::Wake,
};

/// The set itself.
pub fn sets_of_set(change: &Change<SetSnapshot>) -> Vec<Wake> {
    let is_status_alone = |old: &SetSnapshot, new: &SetSnapshot| {
        old.status() != new.status() && old.has_spec_of(new) && old.has_metadata_of(new)
    };
    Wake::by_itself(change, is_status_alone).into_iter().collect()
}

/// The set that controls the machine, or controlled it before; for an orphan the sets whose selector matches.
pub fn sets_of_machine(change: &Change<MachineSnapshot>, views: &ControlViews) -> Vec<Wake> {
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    if let (Some(old), Some(new)) = (old, new)
        && !matters(old, new)
    {
        return Vec::new();
    }
    let mut keys: BTreeSet<ObjectKey> =
        [old, new].into_iter().flatten().filter_map(|machine| set_of(machine, views)).map(|set| set.key()).collect();
    if let Some(machine) = new
        && machine.controller().is_none()
        && !machine.is_deleting()
        && old.is_none_or(|old| {
            old.labels() != machine.labels() || old.metadata().owner_references != machine.metadata().owner_references
        })
    {
        keys.extend(sets_that_fit(machine, views));
    }
    keys.into_iter().map(Wake::soon).collect()
}

/// The sets that use the class, if it has changed: a reason for failed machines may be gone.
pub fn sets_of_class(change: &Change<Arc<MachineClass>>, views: &ControlViews) -> Vec<Wake> {
    if let (Some(old), Some(new)) = (change.old.as_ref(), change.new.as_ref())
        && (&old.metadata.uid, old.metadata.generation) == (&new.metadata.uid, new.metadata.generation)
    {
        return Vec::new();
    }
    change.newest().map(|class| sets_with_class(class, views)).unwrap_or_default()
}

/// The sets whose class refers to the Secret, if its data has changed.
pub fn sets_of_secret(change: &Change<Arc<Secret>>, views: &ControlViews) -> Vec<Wake> {
    if let (Some(old), Some(new)) = (change.old.as_ref(), change.new.as_ref())
        && old.data == new.data
    {
        return Vec::new();
    }
    let Some(secret) = change.newest() else { return Vec::new() };
    let name = qualified(secret.metadata.namespace.as_deref().unwrap_or_default(), &secret.name_any());
    views.classes.by_index(BY_SECRET, &name).iter().flat_map(|class| sets_with_class(class, views)).collect()
}

fn sets_with_class(class: &MachineClass, views: &ControlViews) -> Vec<Wake> {
    let name = qualified(class.metadata.namespace.as_deref().unwrap_or_default(), &class.name_any());
    views.sets.by_index(BY_TEMPLATE_CLASS, &name).iter().map(|set| Wake::by_grant(set.key())).collect()
}

/// The sets of Failed machines whose Node has a new preservation value.
pub fn sets_of_node(change: &Change<NodeSnapshot>, views: &ControlViews) -> Vec<Wake> {
    if let (Some(old), Some(new)) = (&change.old, &change.new)
        && old.annotation(annotation::PRESERVE) == new.annotation(annotation::PRESERVE)
    {
        return Vec::new();
    }
    let Some(node) = change.newest() else { return Vec::new() };
    let machines = views.machines.by_index(BY_NODE, node.name());
    let sets: BTreeSet<ObjectKey> = machines
        .iter()
        .filter(|machine| super::counts::is_failed(machine))
        .filter_map(|machine| set_of(machine, views))
        .map(|set| set.key())
        .collect();
    sets.into_iter().map(Wake::soon).collect()
}

/// The set that controls a machine: with the right kind, namespace and UID.
pub fn set_of(machine: &MachineSnapshot, views: &ControlViews) -> Option<SetSnapshot> {
    let owner = machine.controller().filter(|owner| owner.kind == "MachineSet")?;
    let key = ObjectKey::new(machine.namespace(), owner.name.clone());
    views.sets.get(&key).filter(|set| set.uid() == owner.uid)
}

fn sets_that_fit(machine: &MachineSnapshot, views: &ControlViews) -> Vec<ObjectKey> {
    let Some(labels) = Some(machine.labels()).filter(|labels| !labels.is_empty()) else { return Vec::new() };
    views
        .sets
        .by_index(BY_NAMESPACE, machine.namespace())
        .iter()
        .filter(|set| {
            let wanted = set.selector();
            wanted.is_some_and(|wanted| !selector::is_empty(wanted) && selector::matches(wanted, labels))
        })
        .map(Snapshot::key)
        .collect()
}

/// Whether a field has changed that a decision about a set or a deployment reads.
pub fn matters(old: &MachineSnapshot, new: &MachineSnapshot) -> bool {
    let (before, after) = (old.metadata(), new.metadata());
    let (was, is) = (old.status(), new.status());
    before.uid != after.uid
        || before.deleting_since != after.deleting_since
        || before.labels != after.labels
        || before.annotations != after.annotations
        || before.owner_references != after.owner_references
        || was.current_status.phase != is.current_status.phase
        || was.current_status.preserve_expiry_time != is.current_status.preserve_expiry_time
        || was.last_operation.state != is.last_operation.state
        || was.last_operation.description != is.last_operation.description
        || old.spec() != new.spec()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::set::testing::*;
    use crate::wakes::Strength;
    use machine_api::v1alpha1::Machine;
    use machine_api::v1alpha1::MachineSet;

    fn views() -> ControlViews {
        let views = ControlViews::default();
        views.sets.apply(set(1).build());
        views
    }

    fn woken(old: Option<Machine>, new: Option<Machine>) -> Vec<String> {
        let change = Change { old: old.map(Into::into), new: new.map(Into::into) };
        sets_of_machine(&change, &views()).into_iter().map(|wake| wake.key.name).collect()
    }

    fn owned_by(kind: &str, uid: &str) -> Building<Machine> {
        let reference = controller_reference(kind, "set", uid);
        machine("m").with(|machine| machine.metadata.owner_references = Some(vec![reference]))
    }

    #[rstest]
    #[case::s_evt_20_owned_and_added(None, Some(machine("m")), true)]
    #[case::s_evt_21_an_orphan_that_fits(None, Some(machine("m").no_owner()), true)]
    #[case::s_evt_22_deleting_at_first_sight(None, Some(machine("m").deleting()), true)]
    #[case::s_evt_23_owned_by_nobody_known(None, Some(owned_by("MachineSet", "uid-other")), false)]
    #[case::s_own_02_owner_of_another_kind(None, Some(owned_by("MachineDeployment", "uid-set")), false)]
    #[case::s_evt_24_nothing_changed(Some(machine("m")), Some(machine("m")), false)]
    #[case::s_evt_25_deletion_begins(Some(machine("m")), Some(machine("m").deleting()), true)]
    #[case::s_evt_25_labels_change(Some(machine("m")), Some(machine("m").label("a", "b")), true)]
    #[case::s_evt_25_owner_removed(Some(machine("m")), Some(machine("m").no_owner()), true)]
    #[case::s_evt_25_owner_changed(Some(machine("m")), Some(owned_by("MachineSet", "uid-other")), true)]
    #[case::s_evt_26_an_orphans_status(Some(machine("m").no_owner()), Some(running("m").no_owner()), false)]
    #[case::removed(Some(machine("m")), None, true)]
    fn a_machine_wakes_its_set(
        #[case] old: Option<Building<Machine>>,
        #[case] new: Option<Building<Machine>>,
        #[case] wakes: bool,
    ) {
        let names = woken(old.map(Building::build), new.map(Building::build));
        assert_eq!(names, if wakes { vec!["set"] } else { vec![] });
    }

    #[rstest]
    #[case::its_status_alone(|set: &mut MachineSet| set.status.replicas = 3, Strength::KeepsBackOff)]
    #[case::its_size(|set: &mut MachineSet| set.spec.replicas = 3, Strength::EndsBackOff)]
    #[case::size_and_status(|set: &mut MachineSet| (set.spec.replicas, set.status.replicas) = (3, 1), Strength::EndsBackOff)]
    #[case::its_end(
        |set: &mut MachineSet| set.metadata.deletion_timestamp = set.metadata.creation_timestamp.clone(), Strength::EndsBackOff)]
    #[case::another_of_the_same_name(
        |set: &mut MachineSet| set.metadata.uid = Some("another".to_owned()), Strength::EndsBackOff)]
    #[case::nothing_that_shows(|_: &mut MachineSet| {}, Strength::EndsBackOff)]
    fn a_failed_set_is_not_woken_by_its_own_report(#[case] change: fn(&mut MachineSet), #[case] expected: Strength) {
        let old = Building(set(1).build()).created_at(-9).build();
        let mut new = old.clone();
        new.metadata.resource_version = Some("99".to_owned());
        change(&mut new);
        let woken = sets_of_set(&Change { old: Some(old.into()), new: Some(new.into()) });
        assert_eq!(woken.iter().map(|wake| wake.strength).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn a_changed_class_or_secret_wakes_the_sets_that_may_wait_for_it() {
        let views = views();
        let class = |generation: i64| {
            let mut class = MachineClass { metadata: meta("class"), ..MachineClass::default() };
            class.metadata.generation = Some(generation);
            class.secret_ref =
                Some(machine_api::v1alpha1::SecretReference { name: "s".to_owned(), namespace: String::new() });
            Arc::new(class)
        };
        views.classes.apply((*class(1)).clone());
        let changed = |to: i64| sets_of_class(&Change { old: Some(class(1)), new: Some(class(to)) }, &views).len();
        assert_eq!((changed(1), changed(2)), (0, 1));
        let secret = |value: &str| {
            let mut secret = Secret { metadata: meta("s"), ..Secret::default() };
            secret.data = Some([("k".to_owned(), k8s_openapi::ByteString(value.as_bytes().to_vec()))].into());
            Arc::new(secret)
        };
        let changed =
            |to: &str| sets_of_secret(&Change { old: Some(secret("a")), new: Some(secret(to)) }, &views).len();
        assert_eq!((changed("a"), changed("b")), (0, 1));
    }

    #[test]
    fn s_own_12_an_empty_selector_fits_no_orphan() {
        let views = ControlViews::default();
        views.sets.apply(set(1).with(|set| set.spec.selector = Some(selector(&[]))).build());
        let change = Change { old: None, new: Some(machine("m").no_owner().snapshot()) };
        assert_eq!(sets_of_machine(&change, &views), []);
    }
}
