//! Accessors of volumes.

use controller_runtime::snapshot::Snapshot;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};

use super::snapshot;

snapshot! {
    /// A volume.
    VolumeSnapshot of PersistentVolume
}

impl VolumeSnapshot {
    /// The handle of a CSI volume.
    pub fn handle(&self) -> Option<&str> {
        Some(&self.spec()?.csi.as_ref()?.volume_handle)
    }

    /// The `spec`, from which a driver finds the name of the volume at its provider.
    pub fn spec(&self) -> Option<&PersistentVolumeSpec> {
        self.0.spec.as_ref()
    }
}
