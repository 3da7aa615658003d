//! Accessors of volume attachments.

use controller_runtime::snapshot::Snapshot;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::snapshot;

snapshot! {
    /// The attachment of a volume to a Node.
    AttachmentSnapshot of VolumeAttachment
}

impl AttachmentSnapshot {
    /// The Node.
    pub fn node_name(&self) -> &str {
        &self.0.spec.node_name
    }

    /// The volume, unless it is an inline one.
    pub fn volume_name(&self) -> Option<&str> {
        self.0.spec.source.persistent_volume_name.as_deref()
    }

    /// Whether its status says that the volume is attached.
    pub fn is_attached(&self) -> bool {
        self.0.status.as_ref().is_some_and(|status| status.attached)
    }
}
