//! Collects who wants to hear of changes, kind by kind, and attaches them to the views.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Node, Pod, Secret},
    storage::v1::VolumeAttachment,
};
use kube::Resource;

use super::control::Parts;
use controller_runtime::{
    key::ObjectKey,
    queue::WorkQueue,
    refusals::{About, Refusals},
    store::{Change, Listener},
};
use machine_api::v1alpha1::{Machine, MachineClass, MachineDeployment, MachineSet};
use machine_controllers::{
    set::routing::{Strength, Wake},
    views::ControlViews,
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
    pub(super) fn attach(mut self, parts: &Parts) {
        let views = &parts.views;
        hear_first(&mut self.machines, &parts.refusals);
        hear_first(&mut self.sets, &parts.refusals);
        hear_first(&mut self.deployments, &parts.refusals);
        hear_first(&mut self.classes, &parts.refusals);
        hear_first(&mut self.secrets, &parts.refusals);
        if let Some(target) = &parts.target {
            hear_first(&mut self.nodes, &target.refusals);
        }
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

/// Refusals hear of a change before whoever is woken by it: what was refused of the object may be tried again then.
fn hear_first<K>(listeners: &mut Vec<Listener<K>>, refusals: &Refusals)
where
    K: Resource<DynamicType = ()> + 'static,
{
    let refusals = refusals.clone();
    listeners.insert(0, Box::new(move |change| refusals.see(change)));
}

/// Makes refused creations of sets due that a change names, such as one of their class.
pub(super) fn makes_due<K: 'static>(
    refusals: &Refusals,
    views: &ControlViews,
    route: fn(&Change<K>, &ControlViews) -> Vec<Wake>,
) -> Listener<K> {
    let (refusals, views) = (refusals.clone(), views.clone());
    Box::new(move |change| {
        for wake in route(change, &views) {
            refusals.changed(About { kind: "MachineSet", key: &wake.key });
        }
    })
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
