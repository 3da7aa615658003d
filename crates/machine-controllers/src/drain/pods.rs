//! Which pods a drain moves, and how.
//!
//! Source: spec/machine-controller §7.1, §7.3.

use std::time::Duration;

use controller_runtime::key::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use machine_api::{names::annotation, v1alpha1::controller_of};
use serde::Serialize;

/// Kubernetes' default grace period.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// What a drain does with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PodClass {
    /// It stays: a static pod's mirror.
    Mirror,
    /// It stays: its `DaemonSet` would make it again at once.
    DaemonSet,
    /// It goes, together with others.
    Plain,
    /// It goes, one after the other, as its volumes have to move.
    WithVolumes,
}

impl PodClass {
    /// Whether the pod stays on the node.
    pub const fn stays(self) -> bool {
        matches!(self, Self::Mirror | Self::DaemonSet)
    }
}

/// What a drain does with this pod.
pub fn classify(pod: &Pod) -> PodClass {
    if pod.annotations().contains_key(annotation::MIRROR_POD) {
        PodClass::Mirror
    } else if controller_of(&pod.metadata).is_some_and(|owner| owner.kind == "DaemonSet") {
        PodClass::DaemonSet
    } else if claims_of(pod).is_empty() {
        PodClass::Plain
    } else {
        PodClass::WithVolumes
    }
}

/// The claims a pod names. Generic ephemeral volumes go with their pod and don't count.
pub fn claims_of(pod: &Pod) -> Vec<ObjectKey> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    volumes
        .iter()
        .filter_map(|volume| volume.persistent_volume_claim.as_ref())
        .map(|claim| ObjectKey::new(namespace.clone(), claim.claim_name.clone()))
        .collect()
}

/// The pod's own grace period.
pub fn grace_of(pod: &Pod) -> Duration {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds)
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(DEFAULT_GRACE, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{EphemeralVolumeSource, PersistentVolumeClaimVolumeSource, Volume},
        apimachinery::pkg::apis::meta::v1::OwnerReference,
    };
    use rstest::rstest;

    use super::*;

    fn owned_by(kind: &str) -> Pod {
        let mut pod = Pod::default();
        let owner = OwnerReference { kind: kind.to_owned(), controller: Some(true), ..OwnerReference::default() };
        pod.metadata.owner_references = Some(vec![owner]);
        pod
    }

    fn with_phase(mut pod: Pod, phase: &str) -> Pod {
        pod.status.get_or_insert_default().phase = Some(phase.to_owned());
        pod
    }

    fn with_volume(volume: Volume) -> Pod {
        let mut pod = owned_by("StatefulSet");
        pod.spec.get_or_insert_default().volumes = Some(vec![volume]);
        pod
    }

    fn mirror() -> Pod {
        let mut pod = Pod::default();
        pod.annotations_mut().insert(annotation::MIRROR_POD.to_owned(), "x".to_owned());
        pod
    }

    #[rstest]
    #[case::mc_195_a_mirror_pod_stays(mirror(), PodClass::Mirror)]
    #[case::mc_195_a_pod_of_a_daemon_set_stays(owned_by("DaemonSet"), PodClass::DaemonSet)]
    #[case::mc_196_even_when_it_is_finished(with_phase(owned_by("DaemonSet"), "Succeeded"), PodClass::DaemonSet)]
    #[case::mc_195_a_bare_pod_goes(Pod::default(), PodClass::Plain)]
    #[case::mc_195_a_finished_job_goes(with_phase(owned_by("Job"), "Succeeded"), PodClass::Plain)]
    #[case::a_pod_with_a_claim_goes_alone(
        with_volume(Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource::default()),
            ..Volume::default()
        }),
        PodClass::WithVolumes
    )]
    #[case::mc_222_a_generic_ephemeral_volume_does_not_count(
        with_volume(Volume { ephemeral: Some(EphemeralVolumeSource::default()), ..Volume::default() }),
        PodClass::Plain
    )]
    fn a_pod_is_classified(#[case] pod: Pod, #[case] class: PodClass) {
        assert_eq!(classify(&pod), class);
    }
}
