//! Which deployments are looked at again when something changes. Pure over the stores.
//!
//! Source: spec/deployment-and-set §4 without its periodic requeues (decisions.md 38). Other than the original, a
//! deployment is woken by every change of its machines that counts, because its rollout is decided on the machines
//! themselves; and by Nodes, because their taints are kept level (D-41).

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;

use crate::{
    api::{
        names::annotation,
        selector,
        v1alpha1::{Machine, MachineDeployment, MachineSet, controller_of},
    },
    cluster::{key::ObjectKey, store::Change},
    controllers::{
        set::routing::{Wake, matters, set_of},
        views::{BY_CONTROLLER, BY_NAMESPACE, BY_NODE, ControlViews},
    },
};

/// The deployment itself.
pub fn deployments_of_deployment(change: &Change<MachineDeployment>) -> Vec<Wake> {
    change.newest().map(|deployment| Wake::now(ObjectKey::of(&**deployment))).into_iter().collect()
}

/// The deployment that controls the set, or controlled it before; for an orphan the deployments that it fits.
pub fn deployments_of_set(change: &Change<MachineSet>, views: &ControlViews) -> Vec<Wake> {
    let (old, new) = (change.old.as_deref(), change.new.as_deref());
    let mut keys: BTreeSet<ObjectKey> = [old, new]
        .into_iter()
        .flatten()
        .filter_map(|set| deployment_of(set, views))
        .map(|d| ObjectKey::of(&*d))
        .collect();
    if let Some(set) = new
        && controller_of(&set.metadata).is_none()
        && set.metadata.deletion_timestamp.is_none()
        && old.is_none_or(|old| {
            old.metadata.labels != set.metadata.labels || old.metadata.owner_references != set.metadata.owner_references
        })
    {
        keys.extend(deployments_that_fit(set, views));
    }
    keys.into_iter().map(Wake::soon).collect()
}

/// The deployment behind the set that controls the machine, or controlled it before.
pub fn deployments_of_machine(change: &Change<Machine>, views: &ControlViews) -> Vec<Wake> {
    let (old, new) = (change.old.as_deref(), change.new.as_deref());
    if let (Some(old), Some(new)) = (old, new)
        && !matters(old, new)
    {
        return Vec::new();
    }
    let keys: BTreeSet<ObjectKey> = [old, new]
        .into_iter()
        .flatten()
        .filter_map(|machine| deployment_of(&*set_of(machine, views)?, views))
        .map(|deployment| ObjectKey::of(&*deployment))
        .collect();
    keys.into_iter().map(Wake::soon).collect()
}

/// The deployments whose machine runs on the Node, when a rollout has something to do with Nodes at all.
pub fn deployments_of_node(change: &Change<Node>, views: &ControlViews) -> Vec<Wake> {
    let Some(new) = change.new.as_deref() else { return Vec::new() };
    if change.old.as_deref().is_some_and(|old| marks(old) == marks(new)) {
        return Vec::new();
    }
    let keys: BTreeSet<ObjectKey> = views
        .machines
        .by_index(BY_NODE, &new.name_any())
        .iter()
        .filter_map(|machine| deployment_of(&*set_of(machine, views)?, views))
        .filter(|deployment| {
            let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
            views.sets.by_index(BY_CONTROLLER, uid).len() > 1
        })
        .map(|deployment| ObjectKey::of(&*deployment))
        .collect();
    keys.into_iter().map(Wake::soon).collect()
}

/// What a rollout reads of a Node.
fn marks(node: &Node) -> (&[Taint], [Option<&String>; 2]) {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let annotations = node.annotations();
    (taints, [annotation::SCALE_DOWN_DISABLED, annotation::SCALE_DOWN_DISABLED_BY_MCM].map(|key| annotations.get(key)))
}

/// The deployment that controls a set: of the right kind, in its namespace, with the UID that the reference names.
pub fn deployment_of(set: &MachineSet, views: &ControlViews) -> Option<Arc<MachineDeployment>> {
    let owner = controller_of(&set.metadata).filter(|owner| owner.kind == "MachineDeployment")?;
    let key = ObjectKey::new(set.metadata.namespace.clone().unwrap_or_default(), owner.name.clone());
    views.deployments.get(&key).filter(|deployment| deployment.metadata.uid.as_ref() == Some(&owner.uid))
}

fn deployments_that_fit(set: &MachineSet, views: &ControlViews) -> Vec<ObjectKey> {
    let Some(labels) = set.metadata.labels.as_ref().filter(|labels| !labels.is_empty()) else { return Vec::new() };
    let namespace = set.metadata.namespace.clone().unwrap_or_default();
    views
        .deployments
        .by_index(BY_NAMESPACE, &namespace)
        .iter()
        .filter(|deployment| {
            let wanted = deployment.spec.selector.as_ref();
            wanted.is_some_and(|wanted| !selector::is_empty(wanted) && selector::matches(wanted, labels))
        })
        .map(|deployment| ObjectKey::of(&**deployment))
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::controllers::{
        deployment::testing::*,
        set::testing::{Building, controller_reference},
    };

    fn views() -> ControlViews {
        let views = ControlViews::default();
        views.deployments.apply(deployment(1, 1, 0).build());
        views.sets.apply(owned());
        views
    }

    fn owned() -> MachineSet {
        set_of_class("md-new", "new", 1, 0)
    }

    fn owner_is(name: &str, uid: &str) -> MachineSet {
        let mut set = owned();
        set.metadata.owner_references = Some(vec![controller_reference("MachineDeployment", name, uid)]);
        set
    }

    fn orphan() -> MachineSet {
        Building(owned()).no_owner().build()
    }

    #[rstest]
    #[case::s_evt_02_owned_and_added(None, Some(owned()), true)]
    #[case::s_evt_03_deleting_at_first_sight(None, Some(Building(owned()).deleting().build()), true)]
    #[case::s_evt_04_an_orphan_that_fits(None, Some(orphan()), true)]
    #[case::s_evt_05_an_orphan_that_does_not(None, Some(Building(orphan()).label("set", "y").build()), false)]
    #[case::s_evt_06_an_unknown_owner(None, Some(owner_is("other", "uid-other")), false)]
    #[case::s_evt_08_the_owner_is_lost(Some(owned()), Some(orphan()), true)]
    #[case::s_evt_09_an_orphan_without_news(Some(orphan()), Some(orphan()), false)]
    #[case::s_evt_10_the_owner_changes(Some(owned()), Some(owner_is("other", "uid-other")), true)]
    #[case::s_evt_11_an_orphan_is_removed(Some(orphan()), None, false)]
    #[case::s_evt_12_an_owner_with_another_uid(Some(owner_is("md", "uid-other")), None, false)]
    fn a_set_wakes_its_deployment(
        #[case] old: Option<MachineSet>,
        #[case] new: Option<MachineSet>,
        #[case] wakes: bool,
    ) {
        let change = Change { old: old.map(Arc::new), new: new.map(Arc::new) };
        assert_eq!(deployments_of_set(&change, &views()).len(), usize::from(wakes));
    }

    #[test]
    fn s_evt_01_a_deployment_wakes_itself() {
        let change = Change { old: None, new: Some(Arc::new(deployment(1, 1, 0).build())) };
        assert_eq!(deployments_of_deployment(&change), [Wake::now(ObjectKey::new("ns", "md"))]);
    }

    #[test]
    fn a_machine_wakes_the_deployment_behind_its_set() {
        let machine = machines_of(&owned(), 1, 1).remove(0);
        let change = Change { old: None, new: Some(Arc::clone(&machine)) };
        assert_eq!(deployments_of_machine(&change, &views()), [Wake::soon(ObjectKey::new("ns", "md"))]);
        let unchanged = Change { old: Some(Arc::clone(&machine)), new: Some(machine) };
        assert_eq!(deployments_of_machine(&unchanged, &views()), []);
    }
}
