//! The volumes that simulated Nodes show: the attached volumes, from the attachments, and the volumes in use, from the Pods with their claims.
//!
//! In a real cluster the attach-detach controller writes one list and the kubelet the other. Here the kubelet writes both.
//! Source: spec/providers §7.6.

use std::{collections::BTreeSet, sync::Arc};

use controller_runtime::snapshot::Snapshot;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use serde_json::{Value, json};

use super::{
    BY_NODE, Call, Job, Kubelet, attachments::is_attached, call, nodes::NodeJob, pods::PodRecord, target::PatchKind,
};

/// A volume with its name in Nodes, and its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttachedVolume {
    /// `kubernetes.io/csi/<driver>^<handle>`.
    pub(super) unique_name: String,
    /// `namespace/name` of the claim that is bound to the volume.
    pub(super) claim: Option<String>,
}

impl AttachedVolume {
    /// The volume of a `PersistentVolume` of this driver. `None` for another driver.
    pub(super) fn of(volume: &PersistentVolume, driver: &str) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == driver)?;
        let bound = |claim: &ObjectReference| Some(format!("{}/{}", claim.namespace.as_ref()?, claim.name.as_ref()?));
        let unique_name = format!("kubernetes.io/csi/{driver}^{}", csi.volume_handle);
        Some(Self { unique_name, claim: spec.claim_ref.as_ref().and_then(bound) })
    }
}

/// The two lists of volumes in the status of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeVolumes {
    /// `status.volumesAttached`, by name.
    pub(super) attached: BTreeSet<String>,
    /// `status.volumesInUse`.
    pub(super) in_use: BTreeSet<String>,
}

impl NodeVolumes {
    fn patch(&self) -> Value {
        let attached: Vec<Value> = self.attached.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
        json!({"status": {"volumesAttached": attached, "volumesInUse": self.in_use}})
    }
}

impl Kubelet {
    /// Updates the volumes of a simulated Node, if they have changed.
    pub(super) fn volumes_changed(&mut self, node: &str) {
        if let Some((name, _)) = self.nodes.get_key_value(node) {
            self.queue.push_back(Job::Node(Arc::clone(name), NodeJob::Volumes));
        }
    }

    fn volumes_of(&self, node: &str) -> NodeVolumes {
        let attachments = self.watched_attachments.by_index(BY_NODE, node);
        let attached = attachments.iter().filter(|attachment| is_attached(attachment));
        let attached: Vec<&AttachedVolume> =
            attached.filter_map(|attachment| self.attachments.get(attachment.name())?.volume.as_ref()).collect();
        let pods = self.watched_pods.by_index(BY_NODE, node);
        let working = pods.iter().filter(|pod| self.pods.get(&pod.key).is_some_and(PodRecord::uses_volumes));
        let claims: BTreeSet<&String> = working.flat_map(|pod| &pod.facts.claims).collect();
        let is_used = |volume: &&&AttachedVolume| volume.claim.as_ref().is_some_and(|claim| claims.contains(claim));
        NodeVolumes {
            in_use: attached.iter().filter(is_used).map(|volume| volume.unique_name.clone()).collect(),
            attached: attached.iter().map(|volume| volume.unique_name.clone()).collect(),
        }
    }

    pub(super) fn begin_volumes(&mut self, name: &Arc<str>) -> Option<Call> {
        let wanted = self.volumes_of(name);
        let record = self.nodes.get(name).filter(|record| record.is_shown() && record.volumes != wanted)?;
        let (target, name, vm) = (self.target.clone(), Arc::clone(name), record.vm);
        let write = async move {
            target.patch(&format!("/api/v1/nodes/{name}/status"), PatchKind::Merge, &wanted.patch()).await?;
            Ok((name, wanted))
        };
        Some(call(write, move |kubelet, (name, shown)| {
            if let Some(record) = kubelet.nodes.get_mut(&name).filter(|record| record.vm == vm) {
                record.volumes = shown;
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: &str = "virtual.csi.sapcloud.io";

    #[test]
    fn a_volume_is_called_by_driver_and_handle() {
        let volume = |spec: Value| serde_json::from_value::<PersistentVolume>(json!({ "spec": spec })).unwrap();
        let ours = volume(json!({
            "csi": {"driver": DRIVER, "volumeHandle": "vol-1"}, "claimRef": {"namespace": "ns", "name": "data"},
        }));
        let found = AttachedVolume::of(&ours, DRIVER).unwrap();
        assert_eq!(found.unique_name, "kubernetes.io/csi/virtual.csi.sapcloud.io^vol-1");
        assert_eq!(found.claim.as_deref(), Some("ns/data"));
        assert_eq!(AttachedVolume::of(&ours, "other"), None);
        assert_eq!(AttachedVolume::of(&volume(json!({"nfs": {"path": "/", "server": "s"}})), DRIVER), None);
    }
}
