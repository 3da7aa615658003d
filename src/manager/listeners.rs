//! Collects the listeners of each kind and attaches them to the views.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;

use super::{control::Parts, loops::Queue};
use controller_runtime::{
    refusals::{About, Refusals},
    snapshot::Snapshot,
    store::{Change, Listener},
};
use machine_api::{kind::Kind, v1alpha1::MachineClass};
use machine_controllers::{
    loops::Loop,
    snapshots::{AttachmentSnapshot, DeploymentSnapshot, MachineSnapshot, NodeSnapshot, PodSnapshot, SetSnapshot},
    wakes::{Route, Strength, Wake, listener},
};

/// The listeners of each view, before they are attached.
#[derive(Default)]
pub(super) struct Listeners {
    machines: Vec<Listener<MachineSnapshot>>,
    sets: Vec<Listener<SetSnapshot>>,
    deployments: Vec<Listener<DeploymentSnapshot>>,
    classes: Vec<Listener<Arc<MachineClass>>>,
    secrets: Vec<Listener<Arc<Secret>>>,
    nodes: Vec<Listener<NodeSnapshot>>,
    pods: Vec<Listener<PodSnapshot>>,
    attachments: Vec<Listener<AttachmentSnapshot>>,
}

impl Listeners {
    /// Adds the listeners that put the keys of a loop into its queue.
    pub(super) fn wake(&mut self, looped: &Loop, queue: &Queue, parts: &Parts) {
        let (routes, kind) = (looped.wakes.clone(), looped.controller.kind());
        self.machines.extend(routes.machines.map(|route| queueing(route, kind, queue, parts)));
        self.sets.extend(routes.sets.map(|route| queueing(route, kind, queue, parts)));
        self.deployments.extend(routes.deployments.map(|route| queueing(route, kind, queue, parts)));
        self.classes.extend(routes.classes.map(|route| queueing(route, kind, queue, parts)));
        self.secrets.extend(routes.secrets.map(|route| queueing(route, kind, queue, parts)));
        self.nodes.extend(routes.nodes.map(|route| queueing(route, kind, queue, parts)));
        self.pods.extend(routes.pods.map(|route| queueing(route, kind, queue, parts)));
        self.attachments.extend(routes.attachments.map(|route| queueing(route, kind, queue, parts)));
    }

    /// Adds a listener that sees each change of a machine.
    pub(super) fn see_machines(&mut self, see: impl Fn(&Change<MachineSnapshot>) + Send + Sync + 'static) {
        self.machines.push(Box::new(see));
    }

    /// Attaches all listeners. The caller calls it once, before the watches begin.
    pub(super) fn attach(mut self, parts: &Parts) {
        let views = &parts.views;
        end_refusals_first(&mut self.machines, &parts.refusals);
        end_refusals_first(&mut self.sets, &parts.refusals);
        end_refusals_first(&mut self.deployments, &parts.refusals);
        end_refusals_first(&mut self.classes, &parts.refusals);
        end_refusals_first(&mut self.secrets, &parts.refusals);
        if let Some(target) = &parts.target {
            end_refusals_first(&mut self.nodes, &target.refusals);
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

/// Adds `refusals` as the first listener: a change ends the refusals of writes to the object before it wakes a loop.
fn end_refusals_first(listeners: &mut Vec<Listener<impl Snapshot>>, refusals: &Refusals) {
    let refusals = refusals.clone();
    listeners.insert(0, Box::new(move |change| refusals.see(change)));
}

/// A listener that puts the keys that a change wakes into the queue of a loop.
fn queueing<S: 'static>(route: Route<S>, kind: Option<Kind>, queue: &Queue, parts: &Parts) -> Listener<S> {
    let (queue, refusals) = (Arc::clone(queue), parts.refusals.clone());
    listener(route, &parts.views, move |Wake { key, after, strength }| {
        if let (Strength::EndsRefusals, Some(kind)) = (strength, kind) {
            refusals.changed(About { kind: kind.as_str(), key: &key });
        }
        match strength {
            Strength::EndsRefusals | Strength::EndsBackOff => queue.add_after(key, after),
            Strength::KeepsBackOff => queue.add_unless_backing_off(key),
        }
    })
}
