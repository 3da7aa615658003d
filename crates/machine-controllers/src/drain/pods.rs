//! The pods that a drain moves, and the way of moving them.
//!
//! Source: spec/machine-controller §7.1, §7.3.

use serde::Serialize;

use crate::snapshots::PodSnapshot;

/// The treatment of a pod by a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PodClass {
    /// Stays: it is the mirror of a static pod.
    Mirror,
    /// Stays: its `DaemonSet` would create it again at once.
    DaemonSet,
    /// Is evicted concurrently with others.
    Plain,
    /// Is evicted alone, because its volumes must move with it.
    WithVolumes,
}

impl PodClass {
    /// Whether the pod stays on the node.
    pub const fn stays(self) -> bool {
        matches!(self, Self::Mirror | Self::DaemonSet)
    }
}

/// The treatment of this pod by a drain.
pub fn classify(pod: &PodSnapshot) -> PodClass {
    if pod.is_mirror() {
        PodClass::Mirror
    } else if pod.is_of_daemon_set() {
        PodClass::DaemonSet
    } else if pod.claims().next().is_none() {
        PodClass::Plain
    } else {
        PodClass::WithVolumes
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{EphemeralVolumeSource, PersistentVolumeClaimVolumeSource, Pod, Volume},
        apimachinery::pkg::apis::meta::v1::OwnerReference,
    };
    use kube::ResourceExt;
    use machine_api::names::annotation;
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
        assert_eq!(classify(&pod.into()), class);
    }
}
