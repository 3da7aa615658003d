//! Collects who wants to hear of changes, kind by kind, and attaches them to the views.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Node, Pod, Secret},
    storage::v1::VolumeAttachment,
};

use super::control::Parts;
use crate::{
    api::v1alpha1::{Machine, MachineClass, MachineDeployment, MachineSet},
    cluster::{
        key::ObjectKey,
        queue::WorkQueue,
        store::{Change, Listener},
    },
    controllers::{
        set::routing::{Strength, Wake},
        views::ControlViews,
    },
};

/// The listeners of each view, before they are attached.
#[derive(Default)]
pub(super) struct Listeners {
    pub(super) machines: Vec<Listener<Machine>>,
    pub(super) sets: Vec<Listener<MachineSet>>,
    pub(super) deployments: Vec<Listener<MachineDeployment>>,
    pub(super) classes: Vec<Listener<MachineClass>>,
    pub(super) secrets: Vec<Listener<Secret>>,
    pub(super) nodes: Vec<Listener<Node>>,
    pub(super) pods: Vec<Listener<Pod>>,
    pub(super) attachments: Vec<Listener<VolumeAttachment>>,
}

impl Listeners {
    /// Attaches all of them; to be called once, before the watches begin.
    pub(super) fn attach(self, parts: &Parts) {
        let views = &parts.views;
        let mut attached = views.machines.set_listeners(self.machines)
            & views.sets.set_listeners(self.sets)
            & views.deployments.set_listeners(self.deployments)
            & views.classes.set_listeners(self.classes)
            & views.secrets.set_listeners(self.secrets);
        if let Some(target) = &parts.target {
            attached &= target.node_store.set_listeners(self.nodes)
                & target.pods.store().set_listeners(self.pods)
                & target.attachments.store().set_listeners(self.attachments);
        }
        debug_assert!(attached, "listeners are attached once per manager");
    }
}

/// Keys that a change wakes, as controllers name them.
pub(super) trait Woken {
    /// Puts the key into the queue.
    fn wake(self, queue: &WorkQueue<ObjectKey>);
}

impl Woken for Wake {
    fn wake(self, queue: &WorkQueue<ObjectKey>) {
        match self.strength {
            Strength::EndsBackOff => queue.add_after(self.key, self.after),
            Strength::KeepsBackOff => queue.add_unless_backing_off(self.key),
        }
    }
}

impl Woken for ObjectKey {
    fn wake(self, queue: &WorkQueue<ObjectKey>) {
        queue.add(self);
    }
}

/// Wakes `queue` for whatever `route` makes of a change.
pub(super) fn wakes<K, I>(
    queue: &Arc<WorkQueue<ObjectKey>>,
    views: &ControlViews,
    route: fn(&Change<K>, &ControlViews) -> I,
) -> Listener<K>
where
    K: 'static,
    I: IntoIterator<Item: Woken> + 'static,
{
    let (queue, views) = (Arc::clone(queue), views.clone());
    Box::new(move |change| {
        for woken in route(change, &views) {
            woken.wake(&queue);
        }
    })
}
