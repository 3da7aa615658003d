//! Accessors of pods.

use std::time::Duration;

use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::ResourceExt;
use kube_values::selector;
use machine_api::{names::annotation, v1alpha1::controller_of};

use super::snapshot;

/// The default grace period of Kubernetes.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

snapshot! {
    /// A pod.
    PodSnapshot of Pod
}

impl PodSnapshot {
    /// Whether the pod is the mirror of a static pod.
    pub fn is_mirror(&self) -> bool {
        self.annotation(annotation::MIRROR_POD).is_some()
    }

    /// Whether a `DaemonSet` controls the pod and would create it again at once.
    pub fn is_of_daemon_set(&self) -> bool {
        controller_of(&self.0.metadata).is_some_and(|owner| owner.kind == "DaemonSet")
    }

    /// The Node on which the pod runs.
    pub fn node_name(&self) -> Option<&str> {
        self.0.spec.as_ref()?.node_name.as_deref()
    }

    /// Its priority; absent counts as zero (M-25).
    pub fn priority(&self) -> i32 {
        self.0.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
    }

    /// Its grace period.
    pub fn grace(&self) -> Duration {
        let seconds = self.0.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(DEFAULT_GRACE, Duration::from_secs)
    }

    /// The claims of its volumes. Claims of generic ephemeral volumes are deleted with their pod and don't count.
    pub fn claims(&self) -> impl Iterator<Item = ObjectKey> {
        let volumes = self.0.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let claims = volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        claims.map(|claim| ObjectKey::new(self.namespace(), claim.claim_name.clone()))
    }

    /// Whether a selector matches its labels.
    pub fn fits(&self, wanted: &LabelSelector) -> bool {
        selector::matches(wanted, self.0.labels())
    }

    /// Whether the pod has not started, or has ended.
    pub fn does_not_run(&self) -> bool {
        let phase = self.0.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Pending" | "Succeeded" | "Failed"))
    }

    /// Whether it is ready.
    pub fn is_ready(&self) -> bool {
        let conditions = self.0.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }
}
