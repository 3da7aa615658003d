//! Removes fields that are never read before objects are kept. They are often half of an object.
//!
//! Objects are only patched, never written back as a whole, so removed fields stay in the cluster.

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
    storage::v1::VolumeAttachment,
};
use kube::Resource;
use machine_api::names::annotation;

/// Removes managed fields and kubectl's last-applied annotation. For all kinds; enough for machine objects and Secrets.
pub fn common<K: Resource>(object: &mut K) {
    let metadata = object.meta_mut();
    metadata.managed_fields = None;
    metadata.self_link = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(annotation::KUBECTL_LAST_APPLIED);
    }
}

/// Removes from a Node its images, software versions, ports and addresses.
pub fn node(node: &mut Node) {
    common(node);
    if let Some(spec) = &mut node.spec {
        spec.config_source = None;
    }
    if let Some(status) = &mut node.status {
        status.images = None;
        status.addresses = None;
        status.node_info = None;
        status.daemon_endpoints = None;
        status.config = None;
        status.runtime_handlers = None;
        status.features = None;
    }
}

/// Keeps of a Pod what a drain needs: its node, owner, volumes, priority, grace period and phase.
pub fn pod(pod: &mut Pod) {
    common(pod);
    if let Some(spec) = &mut pod.spec {
        spec.containers = Vec::new();
        spec.init_containers = None;
        spec.ephemeral_containers = None;
        spec.affinity = None;
        spec.topology_spread_constraints = None;
        spec.tolerations = None;
        spec.security_context = None;
        spec.image_pull_secrets = None;
        spec.host_aliases = None;
        spec.dns_config = None;
        spec.readiness_gates = None;
        spec.node_selector = None;
        // Only attachable volumes matter: claims, and claims made for this pod alone.
        if let Some(volumes) = &mut spec.volumes {
            volumes.retain(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
            for volume in volumes {
                if let Some(ephemeral) = &mut volume.ephemeral {
                    ephemeral.volume_claim_template = None;
                }
            }
        }
    }
    if let Some(status) = &mut pod.status {
        status.container_statuses = None;
        status.init_container_statuses = None;
        status.ephemeral_container_statuses = None;
        status.pod_ips = None;
        status.host_ips = None;
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(|condition| condition.type_ == "Ready");
        }
    }
}

/// Removes from a persistent volume its node affinity and its mount options.
pub fn persistent_volume(volume: &mut PersistentVolume) {
    common(volume);
    if let Some(spec) = &mut volume.spec {
        spec.node_affinity = None;
        spec.mount_options = None;
    }
}

/// Keeps of a claim what a drain needs: the name of its volume.
pub fn persistent_volume_claim(claim: &mut PersistentVolumeClaim) {
    common(claim);
    if let Some(spec) = &mut claim.spec {
        spec.selector = None;
        spec.resources = None;
    }
    if let Some(status) = &mut claim.status {
        status.conditions = None;
        status.capacity = None;
    }
}

/// Removes the private data of the attacher from a volume attachment.
pub fn volume_attachment(attachment: &mut VolumeAttachment) {
    common(attachment);
    attachment.spec.source.inline_volume_spec = None;
    if let Some(status) = &mut attachment.status {
        status.attachment_metadata = None;
    }
}

/// Removes the conditions of a disruption budget. `disruptedPods` stays: without the pods whose eviction was just allowed, a budget
/// in use looks like a budget that can never allow an eviction.
pub fn pod_disruption_budget(budget: &mut PodDisruptionBudget) {
    common(budget);
    if let Some(status) = &mut budget.status {
        status.conditions = None;
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{Container, ContainerImage, NodeStatus, PersistentVolumeClaimVolumeSource, PodSpec, Volume},
        api::policy::v1::PodDisruptionBudgetStatus,
        apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time},
    };

    use super::*;

    #[test]
    fn a_node_loses_images_and_managed_fields_and_keeps_its_conditions() {
        let mut subject = Node::default();
        subject.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        subject.metadata.annotations = Some([(annotation::KUBECTL_LAST_APPLIED.to_owned(), "{}".to_owned())].into());
        subject.status = Some(NodeStatus {
            images: Some(vec![ContainerImage::default()]),
            conditions: Some(Vec::new()),
            ..NodeStatus::default()
        });
        node(&mut subject);
        assert_eq!(subject.metadata.managed_fields, None);
        assert_eq!(subject.metadata.annotations, Some(std::collections::BTreeMap::new()));
        let status = subject.status.unwrap();
        assert_eq!((status.images, status.conditions), (None, Some(Vec::new())));
    }

    #[test]
    fn a_budget_keeps_the_evictions_under_way() {
        let mut subject = PodDisruptionBudget {
            status: Some(PodDisruptionBudgetStatus {
                disrupted_pods: Some([("pod".to_owned(), Time(jiff::Timestamp::UNIX_EPOCH))].into()),
                ..PodDisruptionBudgetStatus::default()
            }),
            ..PodDisruptionBudget::default()
        };
        pod_disruption_budget(&mut subject);
        assert!(subject.status.unwrap().disrupted_pods.is_some_and(|pods| pods.contains_key("pod")));
    }

    #[test]
    fn a_pod_keeps_where_it_runs_and_its_claims() {
        let claim = Volume {
            name: "data".to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource::default()),
            ..Volume::default()
        };
        let token = Volume { name: "token".to_owned(), ..Volume::default() };
        let mut subject = Pod {
            spec: Some(PodSpec {
                node_name: Some("n".to_owned()),
                containers: vec![Container::default()],
                volumes: Some(vec![claim, token]),
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        pod(&mut subject);
        let spec = subject.spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("n"));
        assert!(spec.containers.is_empty());
        let volumes: Vec<String> = spec.volumes.unwrap().into_iter().map(|volume| volume.name).collect();
        assert_eq!(volumes, ["data"]);
    }
}
