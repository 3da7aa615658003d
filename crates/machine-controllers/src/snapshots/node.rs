//! Accessors of Nodes.

use std::collections::BTreeMap;

use controller_runtime::snapshot::Snapshot;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{AttachedVolume, Node, NodeCondition, NodeStatus, Taint},
    apimachinery::pkg::api::resource::Quantity,
};
use machine_api::names::finalizer;

use super::snapshot;

snapshot! {
    /// A Node.
    NodeSnapshot of Node
}

impl NodeSnapshot {
    /// When it was created.
    pub fn created(&self) -> Option<Timestamp> {
        self.0.metadata.creation_timestamp.as_ref().map(|time| time.0)
    }

    /// Its labels.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        pairs(self.0.metadata.labels.as_ref())
    }

    /// Its annotations.
    pub fn annotations(&self) -> impl Iterator<Item = (&str, &str)> {
        pairs(self.0.metadata.annotations.as_ref())
    }

    /// Its finalizers.
    pub fn finalizers(&self) -> &[String] {
        self.0.metadata.finalizers.as_deref().unwrap_or_default()
    }

    /// Whether the Node has our finalizer. Then it stays until its machine removes the finalizer.
    pub fn is_held(&self) -> bool {
        self.finalizers().iter().any(|name| name == finalizer::NODE)
    }

    /// Whether the Node has a `spec` that a JSON patch can add to.
    pub fn has_spec(&self) -> bool {
        self.0.spec.is_some()
    }

    /// The provider id of its instance; empty while the id is unknown.
    pub fn provider_id(&self) -> &str {
        self.0.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
    }

    /// Whether no new pods are scheduled on it.
    pub fn is_cordoned(&self) -> bool {
        self.0.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
    }

    /// Its taints.
    pub fn taints(&self) -> &[Taint] {
        self.0.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
    }

    /// Its conditions.
    pub fn conditions(&self) -> &[NodeCondition] {
        self.status().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
    }

    /// The volumes that its status lists as attached.
    pub fn attached_volumes(&self) -> &[AttachedVolume] {
        self.status().and_then(|status| status.volumes_attached.as_deref()).unwrap_or_default()
    }

    /// All of its resources.
    pub fn capacity(&self) -> Option<&BTreeMap<String, Quantity>> {
        self.status()?.capacity.as_ref()
    }

    /// The resources that pods may use.
    pub fn allocatable(&self) -> Option<&BTreeMap<String, Quantity>> {
        self.status()?.allocatable.as_ref()
    }

    fn status(&self) -> Option<&NodeStatus> {
        self.0.status.as_ref()
    }
}

#[cfg(test)]
impl NodeSnapshot {
    /// The Node, for a test that changes it.
    pub(crate) fn to_mut(&mut self) -> &mut Node {
        std::sync::Arc::make_mut(&mut self.0)
    }
}

fn pairs(pairs: Option<&BTreeMap<String, String>>) -> impl Iterator<Item = (&str, &str)> {
    pairs.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
}
