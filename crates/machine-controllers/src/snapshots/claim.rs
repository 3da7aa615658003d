//! Accessors of volume claims.

use controller_runtime::snapshot::Snapshot;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::snapshot;

snapshot! {
    /// A claim of a volume.
    ClaimSnapshot of PersistentVolumeClaim
}

impl ClaimSnapshot {
    /// The volume that the claim is bound to.
    pub fn volume_name(&self) -> Option<&str> {
        self.0.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
    }
}
