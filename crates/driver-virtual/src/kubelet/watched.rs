//! Watched Nodes and Pods, reduced to the data that a simulated kubelet reads.

use std::{fmt::Debug, ops::Deref, sync::Arc};

use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use kube::{Resource, ResourceExt};
use machine_api::names::{annotation, label};

use super::volumes::NodeVolumes;
use crate::{
    cloud::{KnownVm, NodeStage},
    template::VmTemplate,
};

/// The data of objects of a kind.
pub trait Facts: Debug + Send + Sync + 'static {
    /// The kind.
    type Object: Resource<DynamicType = ()> + Send + Sync + 'static;

    /// The data of an object.
    fn of(object: &Self::Object) -> Self;
}

/// An object in one version. Clones share it.
#[derive(Debug)]
pub struct Watched<F>(Arc<StoredFacts<F>>);

/// The stored data of an object.
#[derive(Debug)]
pub struct StoredFacts<F> {
    /// The namespace and the name.
    pub key: ObjectKey,
    /// The UID.
    pub uid: String,
    /// The resource version.
    pub version: String,
    /// The data.
    pub facts: F,
}

impl<F: Facts> Watched<F> {
    /// The stored data of this object.
    pub fn new(object: &F::Object) -> Self {
        let meta = object.meta();
        Self(Arc::new(StoredFacts {
            key: ObjectKey::of(object),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            facts: F::of(object),
        }))
    }
}

impl<F> Clone for Watched<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F> Deref for Watched<F> {
    type Target = StoredFacts<F>;

    fn deref(&self) -> &StoredFacts<F> {
        &self.0
    }
}

impl<F: Facts> Snapshot for Watched<F> {
    type Object = F::Object;

    fn of(object: Arc<F::Object>) -> Self {
        Self::new(&object)
    }
    fn namespace(&self) -> &str {
        &self.key.namespace
    }
    fn name(&self) -> &str {
        &self.key.name
    }
    fn uid(&self) -> &str {
        &self.uid
    }
    fn resource_version(&self) -> Option<&str> {
        Some(&self.version)
    }
    /// Answers of writes are not stored.
    fn has_gone(&self) -> bool {
        false
    }
    fn has_metadata_of(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

/// The readiness of a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    /// The readiness is unknown or absent.
    #[default]
    Unknown,
    /// The Node is ready.
    Ready,
    /// The Node is not ready.
    NotReady,
}

/// The data of a Node.
#[derive(Debug)]
pub struct NodeFacts {
    /// The data of a simulated Node.
    pub simulated: Option<SimulatedNode>,
    /// The readiness.
    pub ready: Readiness,
    /// The volumes that the Node shows.
    pub(super) volumes: NodeVolumes,
}

/// The data that only simulated Nodes have.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedNode {
    /// The provider id of the VM.
    pub provider_id: String,
    /// `namespace/name` of the machine. The namespace may be empty.
    key: String,
    /// The template as stored in the annotation.
    template: Option<String>,
    created: Option<Timestamp>,
}

impl Facts for NodeFacts {
    type Object = Node;

    fn of(node: &Node) -> Self {
        let annotation = |key: &str| node.annotations().get(key).map(String::as_str);
        let status = node.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let attached = status.and_then(|status| status.volumes_attached.as_deref()).unwrap_or_default();
        let in_use = status.and_then(|status| status.volumes_in_use.as_deref()).unwrap_or_default();
        let simulated = (annotation(annotation::SIMULATED_NODE) == Some("true")).then(|| {
            let name = node.name_any();
            let machine = node.labels().get(label::MACHINE_NAME).unwrap_or(&name);
            let namespace = annotation(annotation::SIMULATED_NAMESPACE).unwrap_or_default();
            // Nodes of earlier versions have the provider id of the machine there.
            let in_spec = || node.spec.as_ref()?.provider_id.clone();
            let provider_id = annotation(annotation::SIMULATED_PROVIDER_ID).map(str::to_owned).or_else(in_spec);
            SimulatedNode {
                provider_id: provider_id.unwrap_or_default(),
                key: format!("{namespace}/{machine}"),
                template: annotation(annotation::SIMULATED_OWNER).map(str::to_owned),
                created: node.creation_timestamp().map(|time| time.0),
            }
        });
        Self {
            simulated,
            volumes: NodeVolumes {
                attached: attached.iter().map(|volume| volume.name.clone()).collect(),
                in_use: in_use.iter().cloned().collect(),
            },
            ready: match conditions.iter().find(|condition| condition.type_ == "Ready") {
                Some(ready) if ready.status == "True" => Readiness::Ready,
                Some(ready) if ready.status == "False" => Readiness::NotReady,
                _ => Readiness::Unknown,
            },
        }
    }
}

impl Watched<NodeFacts> {
    /// The VM of the Node, if the Node is simulated.
    pub fn known(&self, now: Timestamp) -> Option<KnownVm> {
        let node = self.facts.simulated.as_ref()?;
        let of_identity = VmTemplate::of_provider_id(&node.provider_id);
        let owner = node.template.as_ref().and_then(|text| serde_json::from_str::<VmTemplate>(text).ok());
        let template = owner.map(|owner| VmTemplate {
            capacity: of_identity.capacity,
            architecture: of_identity.architecture,
            ..owner
        });
        Some(KnownVm {
            node_name: self.key.name.clone(),
            provider_id: node.provider_id.clone(),
            key: node.key.as_str().into(),
            template,
            created: node.created.unwrap_or(now),
            stage: if self.facts.ready == Readiness::Ready { NodeStage::Ready } else { NodeStage::Registered },
        })
    }
}

/// The data of a container for its status.
#[derive(Clone, Debug)]
pub struct ContainerFacts {
    /// The name.
    pub name: String,
    /// The image.
    pub image: String,
    /// Whether this is an init container that keeps running (a sidecar).
    pub stays: bool,
}

impl ContainerFacts {
    fn all(containers: &[Container]) -> Vec<Self> {
        let one = |container: &Container| Self {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            stays: container.restart_policy.as_deref() == Some("Always"),
        };
        containers.iter().map(one).collect()
    }
}

/// The data of a Pod.
#[derive(Debug, Default)]
pub struct PodFacts {
    /// The Node of the Pod.
    pub node: String,
    /// The phase.
    pub phase: String,
    /// The grace period of the deletion in seconds, if the Pod is being deleted.
    pub deleting: Option<i64>,
    /// How long the Pod runs before it succeeds.
    pub run_for: Option<String>,
    /// Whether the Pod never ends after its deletion.
    pub refuses: bool,
    /// The containers.
    pub containers: Vec<ContainerFacts>,
    /// The init containers.
    pub init: Vec<ContainerFacts>,
    /// The readiness gates.
    pub gates: Vec<String>,
    /// The claims of its volumes, as `namespace/name`.
    pub claims: Vec<String>,
}

impl Facts for PodFacts {
    type Object = Pod;

    fn of(pod: &Pod) -> Self {
        let (meta, Some(spec)) = (&pod.metadata, &pod.spec) else { return Self::default() };
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let claims = spec.volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        Self {
            node: spec.node_name.clone().unwrap_or_default(),
            phase: pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default(),
            deleting: meta.deletion_timestamp.as_ref().map(|_| meta.deletion_grace_period_seconds.unwrap_or(30)),
            run_for: pod.annotations().get(annotation::SIMULATED_RUN_FOR).cloned(),
            refuses: pod.annotations().get(annotation::SIMULATED_REFUSE_TERMINATION).is_some_and(|word| word == "true"),
            containers: ContainerFacts::all(&spec.containers),
            init: ContainerFacts::all(spec.init_containers.as_deref().unwrap_or_default()),
            gates: spec.readiness_gates.iter().flatten().map(|gate| gate.condition_type.clone()).collect(),
            claims: claims.map(|claim| format!("{namespace}/{}", claim.claim_name)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_simulated_only_with_the_annotation() {
        let watched =
            |node: &serde_json::Value| Watched::<NodeFacts>::new(&serde_json::from_value(node.clone()).unwrap());
        let mut node = json!({"metadata": {"name": "n", "managedFields": [{"manager": "x"}]},
            "spec": {"providerID": "virtual:///a/b/i-1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let plain = watched(&node);
        assert_eq!((&plain.facts.simulated, plain.facts.ready), (&None, Readiness::Ready));
        node["metadata"]["annotations"] = json!({"virtual.machine.sapcloud.io/simulated": "true"});
        let known = |node: &serde_json::Value| watched(node).known(Timestamp::UNIX_EPOCH).unwrap();
        // A Node of an earlier version has the provider id of the machine in its spec.
        assert_eq!((known(&node).provider_id.as_str(), &*known(&node).key), ("virtual:///a/b/i-1", "/n"));
        node["metadata"]["annotations"]["virtual.machine.sapcloud.io/provider-id"] = json!("virtual:///a/c/i-1");
        assert_eq!(known(&node).provider_id, "virtual:///a/c/i-1");
    }

    #[test]
    fn the_annotations_of_a_pod_decide_how_it_ends() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": 7, "annotations": {"virtual.machine.sapcloud.io/refuse-termination": "true"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "readinessGates": null},
            "status": {}
        }))
        .unwrap();
        let pod = PodFacts::of(&pod);
        assert_eq!((pod.deleting, pod.refuses, pod.node.as_str()), (Some(7), true, "n"));
    }
}
