//! `VolumeAttachment`s of simulated CSI drivers on simulated Nodes: attaches and detaches them after some time.
//!
//! This is the part of an external attacher. [`super::volumes`] has the volumes in the status of a Node.

use std::{sync::Arc, time::Duration};

use controller_runtime::{error::ApiError, key::ObjectKey, snapshot::Snapshot};
use k8s_openapi::api::{core::v1::PersistentVolume, storage::v1::VolumeAttachment};
use serde_json::{Value, json};

use super::{
    BY_NODE, Call, Job, Kubelet, call,
    target::{PatchKind, Target},
    volumes::AttachedVolume,
};
use crate::{
    cloud::{MachineCall, Verdict},
    rules::Operation,
};

/// A step of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Attaching {
    Attach,
    /// Look up the volume of the attachment. After a restart only the cluster knows it.
    LookUp,
    Detach,
}

/// The state of an attachment.
#[derive(Debug)]
pub(super) struct AttachmentRecord {
    uid: String,
    /// Whether the Node is simulated. `false` for an unknown Node, which may be gone or not simulated.
    is_ours: bool,
    begun: Option<Attaching>,
    /// The volume of the attachment, if it is known.
    pub(super) volume: Option<AttachedVolume>,
}

impl Kubelet {
    /// Handles the attachments of a Node that existed before the Node was known. After a restart, an attachment that was already being detached was
    /// taken for a foreign one.
    pub(super) fn place_attachments(&mut self, node: &str) {
        for attachment in self.watched_attachments.by_index(BY_NODE, node) {
            let name = attachment.name();
            if self.attachments.get(name).is_some_and(|record| !record.is_ours) {
                self.attachments.remove(name);
            }
            self.on_attachment(&attachment, true);
        }
    }

    pub(super) fn on_attachment(&mut self, attachment: &Arc<VolumeAttachment>, is_there: bool) {
        let (spec, settings) = (&attachment.spec, self.config().volumes.clone());
        let is_deleting = attachment.metadata.deletion_timestamp.is_some();
        let name: Arc<str> = Arc::from(attachment.name());
        if !is_there {
            if self.attachments.remove(&name).is_some() {
                self.volumes_changed(&spec.node_name);
            }
            return;
        }
        if !settings.drivers.contains(&spec.attacher) {
            return;
        }
        if self.attachments.get(&name).is_some_and(|known| known.uid != attachment.uid()) {
            self.attachments.remove(&name);
        }
        let known = self.attachments.get(&name).map(|known| known.is_ours);
        let is_ours = match known {
            _ if self.nodes.contains_key(spec.node_name.as_str()) => true,
            Some(known) => known,
            None if is_deleting => false,
            None => return,
        };
        let new = || AttachmentRecord { uid: attachment.uid().to_owned(), is_ours, begun: None, volume: None };
        let record = self.attachments.entry(Arc::clone(&name)).or_insert_with(new);
        record.is_ours = is_ours;
        let (step, latency, operation) = match (is_deleting, is_attached(attachment)) {
            (false, false) => (Attaching::Attach, settings.attach, Some(Operation::Attach)),
            (false, true) if record.volume.is_none() => (Attaching::LookUp, Duration::ZERO, None),
            (false, true) => return self.volumes_changed(&spec.node_name),
            (true, _) => (Attaching::Detach, settings.detach, Some(Operation::Detach)),
        };
        if record.begun == Some(step) {
            return;
        }
        record.begun = Some(step);
        let after = latency + operation.map(|operation| self.hang_of(operation, &name)).unwrap_or_default();
        self.schedule(after, Job::Attachment(name, step));
    }

    /// The additional time by the failure rules. A failure counts as a minute of retries.
    fn hang_of(&self, operation: Operation, attachment: &str) -> Duration {
        let call = MachineCall { machine: attachment.to_owned(), ..MachineCall::default() };
        let admission = self.shared.with(|cloud, now| cloud.admit(operation, &call, now));
        let failed = matches!(admission.verdict, Verdict::FailBefore(_) | Verdict::FailAfter(..));
        admission.hang.unwrap_or_default() + Duration::from_secs(if failed { 60 } else { 0 })
    }

    pub(super) fn begin_attachment(&mut self, name: &Arc<str>, step: Attaching) -> Option<Call> {
        let record = self.attachments.get(name).filter(|record| record.begun == Some(step))?;
        let attachment = self.watched_attachments.get(&ObjectKey::cluster_scoped(&**name))?;
        let (target, name, is_ours) = (self.target.clone(), Arc::clone(name), record.is_ours);
        let node = attachment.spec.node_name.clone();
        let work = async move {
            match step {
                Attaching::Attach => attach(&target, &attachment).await,
                Attaching::LookUp => volume_of(&target, &attachment).await,
                Attaching::Detach => detach(&target, &attachment, is_ours).await.map(|()| None),
            }
        };
        Some(call(work, move |kubelet, volume| {
            if let Some(record) = kubelet.attachments.get_mut(&name).filter(|_| step != Attaching::Detach) {
                record.volume = volume;
                kubelet.volumes_changed(&node);
            }
        }))
    }
}

/// Whether a volume is attached.
pub(super) fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

fn path_of(attachment: &Arc<VolumeAttachment>) -> String {
    format!("/apis/storage.k8s.io/v1/volumeattachments/{}", attachment.name())
}

/// Adds or removes the finalizer of the attacher. Finalizers of other programs stay.
async fn finalize(target: &Target, attachment: &Arc<VolumeAttachment>, wanted: bool) -> Result<(), ApiError> {
    let ours = format!("external-attacher/{}", attachment.spec.attacher.replace('.', "-"));
    let mut finalizers = attachment.metadata.finalizers.clone().unwrap_or_default();
    if finalizers.contains(&ours) == wanted {
        return Ok(());
    }
    if wanted {
        finalizers.push(ours);
    } else {
        finalizers.retain(|other| *other != ours);
    }
    let metadata =
        json!({"uid": attachment.uid(), "resourceVersion": attachment.resource_version(), "finalizers": finalizers});
    target.patch(&path_of(attachment), PatchKind::Merge, &json!({"metadata": metadata})).await
}

async fn attach(target: &Target, attachment: &Arc<VolumeAttachment>) -> Result<Option<AttachedVolume>, ApiError> {
    let volume = volume_of(target, attachment).await?;
    finalize(target, attachment, true).await?;
    let patch = json!({"status": {"attached": true}});
    target.patch(&format!("{}/status", path_of(attachment)), PatchKind::Merge, &patch).await?;
    Ok(volume)
}

/// The volume of an attachment. `None` if the cluster does not have it, or if it is an inline volume.
async fn volume_of(target: &Target, attachment: &Arc<VolumeAttachment>) -> Result<Option<AttachedVolume>, ApiError> {
    let Some(name) = &attachment.spec.source.persistent_volume_name else { return Ok(None) };
    let volume: Option<PersistentVolume> = target.get(&format!("/api/v1/persistentvolumes/{name}")).await?;
    Ok(volume.and_then(|volume| AttachedVolume::of(&volume, &attachment.spec.attacher)))
}

/// Detaches. An attachment is foreign if its Node exists and is not simulated.
async fn detach(target: &Target, attachment: &Arc<VolumeAttachment>, is_ours: bool) -> Result<(), ApiError> {
    let node = format!("/api/v1/nodes/{}", attachment.spec.node_name);
    if !is_ours && target.get::<Value>(&node).await?.is_some() {
        return Ok(());
    }
    finalize(target, attachment, false).await
}
