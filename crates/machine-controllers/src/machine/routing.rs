//! The changes that wake a machine: changes of the machine, its siblings, its Node, its class, its Secrets, and the pods of its Node.
//!
//! Pure functions from a change to keys; [`MachineController::wakes`] gathers them. Source:
//! spec/machine-controller §2.3, §2.5.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use super::{
    MachineController,
    health::{conditions_changed, is_critical_component_missing, timeout::blocks_siblings},
    in_place,
    node::metadata,
};
use crate::{
    snapshots::{AttachmentSnapshot, MachineSnapshot, NodeSnapshot, PodSnapshot},
    views::{BY_CLASS, BY_INSTANCE, BY_NODE, BY_SECRET, ControlViews, UNHEALTHY_BY_NAME_LABEL, qualified},
    wakes::{Wakes, route},
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Change};
use machine_api::{
    names::{annotation, finalizer, label},
    v1alpha1::{MachineClass, MachinePhase},
};
use machine_driver::same_instance::instance_key;

/// Machines to look at after a change of a machine.
pub fn after_machine(change: &Change<MachineSnapshot>, views: &ControlViews) -> BTreeSet<ObjectKey> {
    let mut keys = BTreeSet::new();
    let Some(newest) = change.newest() else { return keys };
    let matters = match (&change.old, &change.new) {
        (Some(old), Some(new)) => machine_update_matters(old, new),
        _ => true,
    };
    if matters {
        keys.insert(newest.key());
    }
    if may_block_siblings(change.old.as_ref()) && !may_block_siblings(change.new.as_ref()) {
        let group = newest.labels().get(label::NAME).cloned().unwrap_or_default();
        let group = qualified(newest.namespace(), &group);
        let waiting = views.machines.by_index(UNHEALTHY_BY_NAME_LABEL, &group);
        keys.extend(waiting.iter().map(Snapshot::key));
    }
    keys.extend(after_claim(change, views));
    keys
}

/// Machines that name the same Node or the same instance as the changed machine, when that machine gives up its claim,
/// learns its provider ID or is deleted. It may be clear now to which machine the Node and the VM belong.
fn after_claim(change: &Change<MachineSnapshot>, views: &ControlViews) -> Vec<ObjectKey> {
    let claim = |machine: &MachineSnapshot| {
        (
            machine.labels().get(label::NODE).cloned().unwrap_or_default(),
            machine.provider_id().to_owned(),
            machine.is_deleting(),
        )
    };
    let (old, new) = (change.old.as_ref().map(claim), change.new.as_ref().map(claim));
    if old == new {
        return Vec::new();
    }
    let claims = old.into_iter().chain(new).flat_map(|(node, id, _)| {
        let instance = instance_key(&id);
        let node = Some(node).filter(|node| !node.is_empty());
        [node.map(|node| (BY_NODE, node)), instance.map(|instance| (BY_INSTANCE, instance))]
    });
    let claims: BTreeSet<_> = claims.flatten().collect();
    let machines = claims.iter().flat_map(|(index, value)| views.machines.by_index(index, value));
    machines.map(|machine| machine.key()).collect()
}

/// Whether an update of a machine may change a decision. Only this controller writes the status, apart from manual changes.
fn machine_update_matters(old: &MachineSnapshot, new: &MachineSnapshot) -> bool {
    let label = |machine: &MachineSnapshot, key: &str| machine.labels().get(key).cloned();
    let note = |machine: &MachineSnapshot, key: &str| machine.annotations().get(key).cloned();
    let had_finalizer = old.metadata().has_finalizer(finalizer::MACHINE);
    let has_finalizer = new.metadata().has_finalizer(finalizer::MACHINE);
    let preserved = new.annotations().contains_key(annotation::PRESERVE) && old.phase() != new.phase();
    old.uid() != new.uid()
        || old.generation() != new.generation()
        || old.is_deleting() != new.is_deleting()
        || (had_finalizer && !has_finalizer)
        || preserved
        || [label::NODE, label::FORCE_DELETION, label::FORCE_DRAIN, label::NAME]
            .iter()
            .any(|key| label(old, key) != label(new, key))
        || [annotation::PRESERVE, annotation::EFFECTIVE_CREATION_TIMEOUT]
            .iter()
            .any(|key| note(old, key) != note(new, key))
}

/// Whether the machine may keep a sibling from being declared Failed.
fn may_block_siblings(machine: Option<&MachineSnapshot>) -> bool {
    machine.is_some_and(|machine| {
        let current = &machine.status().current_status;
        blocks_siblings(&current.phase, current.preserve_expiry_time.is_some())
    })
}

/// The consequences of a change of a Node for its machines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NodeNews {
    /// Machines to look at.
    pub wake: BTreeSet<ObjectKey>,
    /// Machines whose Node was removed.
    pub vanished: BTreeSet<ObjectKey>,
    /// Machines whose Node was added.
    pub appeared: BTreeSet<ObjectKey>,
}

/// Machines to look at after a change of a Node.
pub fn after_node(change: &Change<NodeSnapshot>, views: &ControlViews) -> NodeNews {
    let mut news = NodeNews::default();
    let Some(newest) = change.newest() else { return news };
    let is_ignored = newest.annotation(annotation::NOT_MANAGED).is_some();
    // When the annotation goes or a machine is linked, changes of the Node count again. Only its removal is ignored for
    // good.
    for machine in views.machines.by_index(BY_NODE, newest.name()) {
        let key = machine.key();
        match (&change.old, &change.new) {
            (None, Some(_)) => {
                news.appeared.insert(key.clone());
                news.wake.insert(key);
            }
            (Some(_), None) if !is_ignored => {
                news.vanished.insert(key.clone());
                news.wake.insert(key);
            }
            (Some(old), Some(new)) if !is_ignored && node_update_matters(old, new, &machine) => {
                news.wake.insert(key);
            }
            _ => {}
        }
    }
    if owner_may_change(change) {
        news.wake.extend(unlinked_with_the_instance_of(newest, views));
    }
    news
}

/// Whether the Node belongs to another machine than before the change, or to a machine at all.
fn owner_may_change(change: &Change<NodeSnapshot>) -> bool {
    let Some(new) = &change.new else { return false };
    change.old.as_ref().is_none_or(|old| {
        old.provider_id() != new.provider_id() || old.label(label::MACHINE_NAME) != new.label(label::MACHINE_NAME)
    })
}

/// Machines with the instance of this Node that have lost their link.
fn unlinked_with_the_instance_of(node: &NodeSnapshot, views: &ControlViews) -> impl Iterator<Item = ObjectKey> {
    let instance = instance_key(node.provider_id());
    let machines = instance.map(|instance| views.machines.by_index(BY_INSTANCE, &instance)).unwrap_or_default();
    let is_unlinked = |machine: &MachineSnapshot| machine.labels().get(label::NODE).is_none_or(String::is_empty);
    machines.into_iter().filter(is_unlinked).map(|machine| machine.key())
}

/// Whether an update of a Node may change a decision about its machine.
fn node_update_matters(old: &NodeSnapshot, new: &NodeSnapshot, machine: &MachineSnapshot) -> bool {
    let appeared = |key: &str| old.label(key).is_none() && new.label(key).is_some();
    // The removal of the label counts, too: only then may a Node become a candidate again (MC-142).
    let result_changed = new.label(label::UPDATE_RESULT) != old.label(label::UPDATE_RESULT);
    let phase = machine.phase();
    let by_conditions = !matches!(phase, MachinePhase::CrashLoopBackOff | MachinePhase::Terminating)
        && conditions_changed(old.conditions(), new.conditions());
    let metadata_changed = !old.labels().eq(new.labels())
        || !old.annotations().eq(new.annotations())
        || old.finalizers() != new.finalizers()
        || old.taints() != new.taints();
    old.uid() != new.uid()
        || old.provider_id() != new.provider_id()
        || old.is_deleting() != new.is_deleting()
        || is_critical_component_missing(old) != is_critical_component_missing(new)
        || appeared(label::CANDIDATE_FOR_UPDATE)
        || appeared(label::SELECTED_FOR_UPDATE)
        || result_changed
        || old.annotation(annotation::PRESERVE) != new.annotation(annotation::PRESERVE)
        || by_conditions
        || old.capacity() != new.capacity()
        || (may_be_drained(machine) && old.attached_volumes() != new.attached_volumes())
        || (metadata_changed && !metadata::wanted(machine.name(), machine.node_template(), new).dress.is_empty())
}

/// Machines to look at after a change of a class.
pub fn after_class(change: &Change<Arc<MachineClass>>, views: &ControlViews) -> BTreeSet<ObjectKey> {
    let Some(newest) = change.newest() else { return BTreeSet::new() };
    let matters = match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            let has = |class: &MachineClass| class.finalizers().iter().any(|name| name == finalizer::MACHINE);
            old.metadata.generation != new.metadata.generation
                || has(old) != has(new)
                || old.provider != new.provider
                || old.node_template != new.node_template
                || old.secret_ref != new.secret_ref
                || old.credentials_secret_ref != new.credentials_secret_ref
        }
        _ => true,
    };
    if matters { machines_of_class(newest, views).collect() } else { BTreeSet::new() }
}

fn machines_of_class(class: &MachineClass, views: &ControlViews) -> impl Iterator<Item = ObjectKey> {
    let name = qualified(class.metadata.namespace.as_deref().unwrap_or_default(), &class.name_any());
    views.machines.by_index(BY_CLASS, &name).into_iter().map(|machine| machine.key())
}

/// Machines to look at after a change of a Secret: machines that may wait for it.
pub fn after_secret(change: &Change<Arc<Secret>>, views: &ControlViews) -> BTreeSet<ObjectKey> {
    let Some(newest) = change.newest() else { return BTreeSet::new() };
    let matters = match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.data != new.data,
        _ => true,
    };
    if !matters {
        return BTreeSet::new();
    }
    let name = qualified(newest.namespace(), newest.name());
    let classes = views.classes.by_index(BY_SECRET, &name);
    classes
        .iter()
        .flat_map(|class| {
            let name = qualified(class.metadata.namespace.as_deref().unwrap_or_default(), &class.name_any());
            views.machines.by_index(BY_CLASS, &name)
        })
        .filter(|machine| {
            matches!(machine.phase(), MachinePhase::Unset | MachinePhase::CrashLoopBackOff | MachinePhase::Terminating)
        })
        .map(|machine| machine.key())
        .collect()
}

/// Machines to look at after a change of a pod: machines whose node has the pod, while they are drained.
pub fn after_pod(change: &Change<PodSnapshot>, views: &ControlViews) -> BTreeSet<ObjectKey> {
    // A drain makes progress only when a pod is removed.
    if change.new.is_some() {
        return BTreeSet::new();
    }
    let node = change.old.as_ref().and_then(PodSnapshot::node_name).unwrap_or_default();
    drained_on(node, views)
}

/// Machines to look at after a change of a volume attachment on their node.
pub fn after_attachment(change: &Change<AttachmentSnapshot>, views: &ControlViews) -> BTreeSet<ObjectKey> {
    change.newest().map(|attachment| drained_on(attachment.node_name(), views)).unwrap_or_default()
}

fn drained_on(node: &str, views: &ControlViews) -> BTreeSet<ObjectKey> {
    let machines = views.machines.by_index(BY_NODE, node);
    machines.iter().filter(|machine| may_be_drained(machine)).map(Snapshot::key).collect()
}

/// Whether a drain of the machine's node may be under way: it is being deleted, updated in place, or has failed and is
/// preserved.
fn may_be_drained(machine: &MachineSnapshot) -> bool {
    let current = &machine.status().current_status;
    let is_kept = current.phase == MachinePhase::Failed && current.preserve_expiry_time.is_some();
    machine.is_deleting() || is_kept || in_place::is_selected(machine)
}

impl MachineController {
    /// The changes that wake this controller. The returned functions also remember which Nodes were removed and added.
    pub fn wakes(self: &Arc<Self>) -> Wakes {
        let remembers = Arc::clone(self);
        Wakes {
            machines: route(after_machine),
            nodes: route(move |change, views| remembers.woken_by_node(change, views)),
            classes: route(after_class),
            secrets: route(after_secret),
            pods: route(after_pod),
            attachments: route(after_attachment),
            ..Wakes::default()
        }
    }

    fn woken_by_node(&self, change: &Change<NodeSnapshot>, views: &ControlViews) -> BTreeSet<ObjectKey> {
        let news = after_node(change, views);
        for key in &news.vanished {
            self.node_vanished(key);
        }
        for key in &news.appeared {
            self.node_appeared(key);
        }
        news.wake
    }
}

#[cfg(test)]
mod tests;
