//! The volumes that simulated Nodes show: those that are attached, by their attachments, and those that are in use, by the
//! Pods that claim them.
//!
//! In a real cluster the attach-detach controller writes the one list and the kubelet the other; here nobody else does.
//! Source: spec/providers §7.6.

use std::{collections::BTreeSet, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};

use super::{CallError, Done, Job, Kubelet, back_off, log_call_error, nodes::NodeJob, target::PatchKind};

/// A volume as Nodes call it, and who may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttachedVolume {
    /// `kubernetes.io/csi/<driver>^<handle>`.
    pub(super) unique_name: String,
    /// `namespace/name` of the claim that is bound to it.
    pub(super) claim: Option<String>,
}

impl AttachedVolume {
    /// The volume behind a `PersistentVolume` of this driver; `None` when it is another driver's.
    pub(super) fn of(volume: &Value, driver: &str) -> Option<Self> {
        let csi = volume.pointer("/spec/csi")?;
        if csi.get("driver").and_then(Value::as_str) != Some(driver) {
            return None;
        }
        let handle = csi.get("volumeHandle").and_then(Value::as_str)?;
        let claim = |field: &str| volume.pointer(&format!("/spec/claimRef/{field}")).and_then(Value::as_str);
        let claim = claim("namespace").zip(claim("name")).map(|(namespace, name)| format!("{namespace}/{name}"));
        Some(Self { unique_name: format!("kubernetes.io/csi/{driver}^{handle}"), claim })
    }
}

/// The two lists of volumes in a Node's status.
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

/// Whether the lists of a Node are being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Listing {
    #[default]
    Idle,
    Writing,
    /// They have changed since the write began.
    Outdated,
}

impl Kubelet {
    /// Lets a Node of ours show its volumes, if they have changed.
    pub(super) fn volumes_changed(&mut self, node: &str) {
        if let Some((name, _)) = self.nodes.get_key_value(node) {
            self.queue.push_back(Job::Node(Arc::clone(name), NodeJob::Volumes));
        }
    }

    fn volumes_of(&self, node: &str) -> NodeVolumes {
        let attached: Vec<&AttachedVolume> =
            self.attachments.values().filter_map(|attachment| attachment.shown_on(node)).collect();
        let claims: BTreeSet<&str> = self.pods.values().flat_map(|pod| pod.claims_on(node)).collect();
        let is_used = |volume: &&&AttachedVolume| volume.claim.as_deref().is_some_and(|claim| claims.contains(claim));
        NodeVolumes {
            in_use: attached.iter().filter(is_used).map(|volume| volume.unique_name.clone()).collect(),
            attached: attached.iter().map(|volume| volume.unique_name.clone()).collect(),
        }
    }

    pub(super) fn begin_volumes(&mut self, name: &Arc<str>) -> Option<BoxFuture<'static, Done>> {
        let wanted = self.volumes_of(name);
        let record = self.nodes.get_mut(name).filter(|record| record.is_shown())?;
        if record.listing != Listing::Idle {
            record.listing = Listing::Outdated;
            return None;
        }
        if record.volumes == wanted {
            return None;
        }
        record.listing = Listing::Writing;
        let (target, name, vm) = (self.target.clone(), Arc::clone(name), record.vm);
        let work = async move {
            let path = format!("/api/v1/nodes/{name}/status");
            let result = target.patch(&path, PatchKind::Merge, &wanted.patch()).await;
            Done::volumes(name, vm, wanted, result)
        };
        Some(work.boxed())
    }

    pub(super) fn on_volumes_done(&mut self, name: Arc<str>, written: NodeVolumes, result: Result<(), CallError>) {
        let Some(record) = self.nodes.get_mut(&name) else { return };
        let outdated = record.listing == Listing::Outdated;
        record.listing = Listing::Idle;
        match result {
            Ok(()) => {
                record.volumes = written;
                if outdated {
                    self.queue.push_back(Job::Node(name, NodeJob::Volumes));
                }
            }
            // It shows its volumes when it is there again.
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                log_call_error("node's volumes", &name, &error);
                let after = back_off(&name, if error.is_final() { 6 } else { 1 });
                self.schedule(after, Job::Node(name, NodeJob::Volumes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: &str = "virtual.csi.sapcloud.io";

    #[test]
    fn a_volume_is_called_by_driver_and_handle() {
        let volume = json!({"spec": {
            "csi": {"driver": DRIVER, "volumeHandle": "vol-1"}, "claimRef": {"namespace": "ns", "name": "data"},
        }});
        let found = AttachedVolume::of(&volume, DRIVER).unwrap();
        assert_eq!(found.unique_name, "kubernetes.io/csi/virtual.csi.sapcloud.io^vol-1");
        assert_eq!(found.claim.as_deref(), Some("ns/data"));
        assert_eq!(AttachedVolume::of(&volume, "other"), None);
        assert_eq!(AttachedVolume::of(&json!({"spec": {"nfs": {}}}), DRIVER), None);
    }
}
