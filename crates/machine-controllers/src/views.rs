//! The stores that the controllers share, and their indexes.

use std::sync::Arc;

use crate::snapshots::{DeploymentSnapshot, Described, MachineSnapshot, NodeSnapshot, SetSnapshot};
use controller_runtime::{
    snapshot::Snapshot,
    store::{IndexName, Store},
};
use k8s_openapi::api::core::v1::Secret;
use machine_api::{
    names::label,
    v1alpha1::{MachineClass, MachinePhase},
};
use machine_driver::same_instance::instance_key;

/// Index: objects by the UID of their controller.
pub const BY_CONTROLLER: IndexName = "controller";
/// Index: objects without a controller, by namespace.
pub const ORPHANS: IndexName = "orphans";
/// Index: machines by `namespace/class name`.
pub const BY_CLASS: IndexName = "class";
/// Index: machines by the name of their Node.
pub const BY_NODE: IndexName = "node";
/// Index: machines by `namespace/label name`, the group of the failure permit.
pub const BY_NAME_LABEL: IndexName = "name-label";
/// Index: machines whose health timeout may be waiting for a failure permit, by `namespace/label name`.
pub const UNHEALTHY_BY_NAME_LABEL: IndexName = "unhealthy-name-label";
/// Index: sets and deployments by the `namespace/class name` of their template.
pub const BY_TEMPLATE_CLASS: IndexName = "template-class";
/// Index: nodes by the machine name on their label.
pub const BY_MACHINE: IndexName = "machine";
/// Index: nodes and machines by [`instance_key`], which is the same for all spellings of an instance's id.
pub const BY_INSTANCE: IndexName = "instance";
/// Index: classes by the `namespace/name` of the Secrets they refer to.
pub const BY_SECRET: IndexName = "secret";
/// Index: all objects of a namespace.
pub const BY_NAMESPACE: IndexName = "namespace";

/// `namespace/name`, the value of indexes that refer to a named object.
pub fn qualified(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The stores of the control cluster.
#[derive(Clone)]
pub struct ControlViews {
    /// Machines.
    pub machines: Arc<Store<MachineSnapshot>>,
    /// Sets.
    pub sets: Arc<Store<SetSnapshot>>,
    /// Deployments.
    pub deployments: Arc<Store<DeploymentSnapshot>>,
    /// Classes.
    pub classes: Arc<Store<Arc<MachineClass>>>,
    /// Secrets of the control namespace, with their data.
    pub secrets: Arc<Store<Arc<Secret>>>,
}

impl Default for ControlViews {
    fn default() -> Self {
        Self {
            machines: Arc::new(Store::new(vec![
                (BY_CONTROLLER, controller),
                (ORPHANS, orphan),
                (BY_CLASS, |machine| vec![qualified(&namespace(machine), &machine.class_ref().name)]),
                (BY_NODE, |machine| label_of(machine, label::NODE)),
                (BY_INSTANCE, |machine| instance_key(machine.provider_id()).into_iter().collect()),
                (BY_NAME_LABEL, |machine| {
                    label_of(machine, label::NAME).iter().map(|name| qualified(&namespace(machine), name)).collect()
                }),
                (UNHEALTHY_BY_NAME_LABEL, |machine| {
                    let waits = matches!(
                        machine.phase(),
                        MachinePhase::Unknown
                            | MachinePhase::InPlaceUpdateSuccessful
                            | MachinePhase::InPlaceUpdateFailed
                    );
                    let name = if waits { label_of(machine, label::NAME) } else { Vec::new() };
                    name.iter().map(|name| qualified(&namespace(machine), name)).collect()
                }),
                (BY_NAMESPACE, |machine| vec![namespace(machine)]),
            ])),
            sets: Arc::new(Store::new(vec![
                (BY_CONTROLLER, controller),
                (ORPHANS, orphan),
                (BY_TEMPLATE_CLASS, |set| vec![qualified(&namespace(set), &set.template().spec.class.name)]),
                (BY_NAMESPACE, |set| vec![namespace(set)]),
            ])),
            deployments: Arc::new(Store::new(vec![
                (BY_TEMPLATE_CLASS, |deployment| {
                    vec![qualified(&namespace(deployment), &deployment.template().spec.class.name)]
                }),
                (BY_NAMESPACE, |deployment| vec![namespace(deployment)]),
            ])),
            classes: Arc::new(Store::new(vec![(BY_SECRET, |class| {
                let own = namespace(class);
                let mut secrets: Vec<String> = [&class.secret_ref, &class.credentials_secret_ref]
                    .into_iter()
                    .flatten()
                    .map(|reference| {
                        let namespace = if reference.namespace.is_empty() { &own } else { &reference.namespace };
                        qualified(namespace, &reference.name)
                    })
                    .collect();
                secrets.dedup();
                secrets
            })])),
            secrets: Arc::new(Store::new(Vec::new())),
        }
    }
}

/// The store of Nodes in the target cluster.
pub fn node_store() -> Arc<Store<NodeSnapshot>> {
    Arc::new(Store::new(vec![
        (BY_MACHINE, |node| {
            let machine = node.label(label::MACHINE_NAME).filter(|name| !name.is_empty());
            machine.map(str::to_owned).into_iter().collect()
        }),
        (BY_INSTANCE, |node| instance_key(node.provider_id()).into_iter().collect()),
    ]))
}

fn namespace(object: &impl Snapshot) -> String {
    object.namespace().to_owned()
}

fn controller(object: &impl Described) -> Vec<String> {
    object.metadata().controller().map(|owner| owner.uid.clone()).into_iter().collect()
}

fn orphan(object: &impl Described) -> Vec<String> {
    if object.metadata().controller().is_some() { Vec::new() } else { vec![namespace(object)] }
}

fn label_of(machine: &MachineSnapshot, key: &str) -> Vec<String> {
    machine.label(key).filter(|value| !value.is_empty()).map(str::to_owned).into_iter().collect()
}
