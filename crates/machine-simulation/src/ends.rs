//! Checks that no pod and no volume is left on a Node that was drained without force when the VM of its machine is
//! deleted.

use std::collections::BTreeMap;

use super::{api::Api, checks::Checks, played::target::node_of, volumes::is_attached};
use controller_runtime::{key::Target, snapshot::Snapshot};
use kube::ResourceExt;
use machine_controllers::machine::{
    deletion::drain::{DrainMode, drain_mode},
    observation::{DrainState, Observation},
    plan::Plan,
};

/// The Nodes that were drained without force, by the UIDs of their machines.
#[derive(Debug, Default)]
pub struct Drained(BTreeMap<String, Node>);

#[derive(Debug)]
struct Node {
    name: String,
    uid: String,
}

/// Whether a forced deletion continues although its Node could not be drained.
pub(super) fn is_given_up_by_force(seen: &Observation) -> bool {
    drain_mode(seen) == DrainMode::Forced && seen.drain != DrainState::Drained
}

impl Checks {
    /// Records a decision that treats the Node as drained.
    pub(super) fn node_is_drained(&mut self, seen: &Observation, plan: &Plan) {
        let is_drained = plan.rule == "drained" && seen.drain == DrainState::Drained;
        if !is_drained || drain_mode(seen) != DrainMode::Normal {
            return;
        }
        if let Some(node) = seen.node.ours() {
            self.drained.0.insert(
                seen.machine.uid().to_owned(),
                Node { name: node.name().to_owned(), uid: node.uid().to_owned() },
            );
        }
    }

    /// Checks before the VM of a machine is deleted.
    pub fn vm_ends(&mut self, api: &Api, machine: &Target) {
        let Some(Node { name, uid }) = self.drained.0.remove(&machine.uid) else { return };
        if api.nodes.get(&name).is_none_or(|node| Snapshot::uid(node) != uid) {
            return;
        }
        let is_left = |pod: &&std::sync::Arc<k8s_openapi::api::core::v1::Pod>| {
            node_of(pod) == Some(name.as_str()) && pod.metadata.deletion_timestamp.is_none()
        };
        if let Some(pod) = api.pods.values().find(is_left) {
            self.violated("the VM of a drained Node ends with a pod that nobody has asked to go", || {
                format!("{} on {name}", pod.name_any())
            });
        }
        let mut attached = api.attachments.values().filter(|one| one.spec.node_name == name);
        if let Some(attachment) = attached.find(|one| is_attached(one)) {
            self.violated("the VM of a drained Node ends with a volume that is still attached", || {
                format!("{} to {name}", attachment.name_any())
            });
        }
    }
}
