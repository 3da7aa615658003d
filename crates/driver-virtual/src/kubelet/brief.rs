//! Watched objects, cut down to what a simulated kubelet reads. Everything else is skipped while it is decoded.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Node, Pod},
        storage::v1::VolumeAttachment,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde::Deserialize;

use super::volumes::NodeVolumes;
use crate::{
    cloud::{KnownNode, NodeStage},
    template::VmTemplate,
};
use machine_api::names::{annotation, label};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MetaWire {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    finalizers: Option<Vec<String>>,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
    deletion_grace_period_seconds: Option<i64>,
}

impl MetaWire {
    /// The few fields that the watch itself needs.
    fn identity(&self) -> ObjectMeta {
        ObjectMeta {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            uid: self.uid.clone(),
            resource_version: self.resource_version.clone(),
            deletion_timestamp: self.deletion_timestamp.map(Time),
            ..ObjectMeta::default()
        }
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConditionWire {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// Implements `kube::Resource` for a cut-down object as the real kind does.
macro_rules! brief {
    ($brief:ident, $kind:ident, $scope:ident) => {
        impl kube::Resource for $brief {
            type DynamicType = ();
            type Scope = k8s_openapi::$scope;

            fn kind(_: &()) -> Cow<'_, str> {
                <$kind as kube::Resource>::kind(&())
            }
            fn group(_: &()) -> Cow<'_, str> {
                <$kind as kube::Resource>::group(&())
            }
            fn version(_: &()) -> Cow<'_, str> {
                <$kind as kube::Resource>::version(&())
            }
            fn plural(_: &()) -> Cow<'_, str> {
                <$kind as kube::Resource>::plural(&())
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// What a Node says of its readiness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// Nothing, or that nobody knows.
    #[default]
    Unknown,
    /// It is ready.
    Ready,
    /// It is not.
    NotReady,
}

/// A Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "NodeWire")]
pub struct NodeBrief {
    metadata: ObjectMeta,
    /// Whether it is one of ours, and then of which VM.
    pub simulated: Option<SimulatedNode>,
    /// Its readiness.
    pub ready: Shown,
    /// The volumes that it shows.
    pub(super) volumes: NodeVolumes,
}
brief!(NodeBrief, Node, ClusterResourceScope);

/// What only simulated Nodes have.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedNode {
    /// Identity of its VM.
    pub provider_id: String,
    /// `namespace/name` of the machine; the namespace may be empty.
    key: String,
    /// The template as it was kept in the annotation.
    template: Option<String>,
    created: Option<Timestamp>,
}

#[derive(Deserialize)]
struct NodeWire {
    #[serde(default)]
    metadata: MetaWire,
    #[serde(default)]
    spec: NodeSpecWire,
    #[serde(default)]
    status: NodeStatusWire,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeSpecWire {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeStatusWire {
    conditions: Option<Vec<ConditionWire>>,
    volumes_attached: Option<Vec<AttachedVolumeWire>>,
    volumes_in_use: Option<BTreeSet<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AttachedVolumeWire {
    name: String,
}

impl From<NodeWire> for NodeBrief {
    fn from(wire: NodeWire) -> Self {
        let meta = &wire.metadata;
        let conditions = wire.status.conditions.unwrap_or_default();
        let attached = wire.status.volumes_attached.unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition.kind == "Ready");
        let simulated = (meta.annotation(annotation::SIMULATED_NODE) == Some("true")).then(|| {
            let name = meta.name.clone().unwrap_or_default();
            let machine = meta.labels.as_ref().and_then(|labels| labels.get(label::MACHINE_NAME)).unwrap_or(&name);
            let namespace = meta.annotation(annotation::SIMULATED_NAMESPACE).unwrap_or_default();
            // Nodes of earlier versions have the VM's own id there.
            let provider_id = meta.annotation(annotation::SIMULATED_PROVIDER_ID).map(str::to_owned);
            SimulatedNode {
                provider_id: provider_id.or(wire.spec.provider_id).unwrap_or_default(),
                key: format!("{namespace}/{machine}"),
                template: meta.annotation(annotation::SIMULATED_OWNER).map(str::to_owned),
                created: meta.creation_timestamp,
            }
        });
        Self {
            metadata: meta.identity(),
            simulated,
            volumes: NodeVolumes {
                attached: attached.into_iter().map(|volume| volume.name).collect(),
                in_use: wire.status.volumes_in_use.unwrap_or_default(),
            },
            ready: match ready.map(|ready| ready.status.as_str()) {
                Some("True") => Shown::Ready,
                Some("False") => Shown::NotReady,
                _ => Shown::Unknown,
            },
        }
    }
}

impl NodeBrief {
    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// What it tells of its VM, if it is simulated.
    pub fn known(&self, now: Timestamp) -> Option<KnownNode> {
        let node = self.simulated.as_ref()?;
        let of_identity = VmTemplate::of_provider_id(&node.provider_id);
        let owner = node.template.as_ref().and_then(|text| serde_json::from_str::<VmTemplate>(text).ok());
        let template = owner.map(|owner| VmTemplate {
            capacity: of_identity.capacity,
            architecture: of_identity.architecture,
            ..owner
        });
        Some(KnownNode {
            node_name: self.name().to_owned(),
            provider_id: node.provider_id.clone(),
            key: node.key.clone(),
            template,
            created: node.created.unwrap_or(now),
            stage: if self.ready == Shown::Ready { NodeStage::Ready } else { NodeStage::Registered },
        })
    }
}

/// A container as far as its status needs it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerBrief {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// `Always` for an init container that stays.
    pub restart_policy: Option<String>,
}

/// A Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "PodWire")]
pub struct PodBrief {
    metadata: ObjectMeta,
    /// The Node it is bound to.
    pub node: String,
    /// Its phase.
    pub phase: String,
    /// Grace of its deletion in seconds, when it is being deleted.
    pub deleting: Option<i64>,
    /// It runs so long and then succeeds.
    pub run_for: Option<String>,
    /// It never ends by itself.
    pub refuses: bool,
    /// Its containers.
    pub containers: Vec<ContainerBrief>,
    /// Its init containers.
    pub init: Vec<ContainerBrief>,
    /// Its readiness gates.
    pub gates: Vec<String>,
    /// The claims of its volumes, as `namespace/name`.
    pub claims: Vec<String>,
}
brief!(PodBrief, Pod, NamespaceResourceScope);

#[derive(Deserialize)]
struct PodWire {
    #[serde(default)]
    metadata: MetaWire,
    #[serde(default)]
    spec: PodSpecWire,
    #[serde(default)]
    status: PodStatusWire,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpecWire {
    node_name: Option<String>,
    containers: Option<Vec<ContainerBrief>>,
    init_containers: Option<Vec<ContainerBrief>>,
    readiness_gates: Option<Vec<GateWire>>,
    volumes: Option<Vec<VolumeWire>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeWire {
    persistent_volume_claim: Option<ClaimWire>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimWire {
    claim_name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GateWire {
    condition_type: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatusWire {
    phase: Option<String>,
}

impl From<PodWire> for PodBrief {
    fn from(wire: PodWire) -> Self {
        let meta = &wire.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let claims =
            wire.spec.volumes.unwrap_or_default().into_iter().filter_map(|volume| volume.persistent_volume_claim);
        Self {
            claims: claims.map(|claim| format!("{namespace}/{}", claim.claim_name)).collect(),
            metadata: meta.identity(),
            node: wire.spec.node_name.unwrap_or_default(),
            phase: wire.status.phase.unwrap_or_default(),
            deleting: meta.deletion_timestamp.map(|_| meta.deletion_grace_period_seconds.unwrap_or(30)),
            run_for: meta.annotation(annotation::SIMULATED_RUN_FOR).map(str::to_owned),
            refuses: meta.annotation(annotation::SIMULATED_REFUSE_TERMINATION) == Some("true"),
            containers: wire.spec.containers.unwrap_or_default(),
            init: wire.spec.init_containers.unwrap_or_default(),
            gates: wire.spec.readiness_gates.unwrap_or_default().into_iter().map(|gate| gate.condition_type).collect(),
        }
    }
}

impl PodBrief {
    /// Path of the Pod in the API.
    pub fn path(&self) -> String {
        let meta = &self.metadata;
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("/api/v1/namespaces/{}/pods/{}", part(&meta.namespace), part(&meta.name))
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
}

/// A `VolumeAttachment`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "AttachmentWire")]
pub struct AttachmentBrief {
    metadata: ObjectMeta,
    /// The CSI driver.
    pub attacher: String,
    /// The Node that it attaches to.
    pub node: String,
    /// Name of the `PersistentVolume`; none for an inline volume.
    pub volume: Option<String>,
    /// Whether it is attached.
    pub attached: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its finalizers.
    pub finalizers: Vec<String>,
}
brief!(AttachmentBrief, VolumeAttachment, ClusterResourceScope);

#[derive(Deserialize)]
struct AttachmentWire {
    #[serde(default)]
    metadata: MetaWire,
    #[serde(default)]
    spec: AttachmentSpecWire,
    #[serde(default)]
    status: AttachmentStatusWire,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentSpecWire {
    attacher: String,
    node_name: String,
    source: AttachmentSourceWire,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentSourceWire {
    persistent_volume_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AttachmentStatusWire {
    attached: bool,
}

impl From<AttachmentWire> for AttachmentBrief {
    fn from(wire: AttachmentWire) -> Self {
        Self {
            metadata: wire.metadata.identity(),
            attacher: wire.spec.attacher,
            node: wire.spec.node_name,
            volume: wire.spec.source.persistent_volume_name,
            attached: wire.status.attached,
            deleting: wire.metadata.deletion_timestamp.is_some(),
            finalizers: wire.metadata.finalizers.unwrap_or_default(),
        }
    }
}

impl AttachmentBrief {
    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Its version.
    pub fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_simulated_only_with_the_annotation() {
        let mut node = json!({"metadata": {"name": "n", "managedFields": [{"manager": "x"}]},
            "spec": {"providerID": "virtual:///a/b/i-1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let brief: NodeBrief = serde_json::from_value(node.clone()).unwrap();
        assert_eq!((brief.simulated, brief.ready), (None, Shown::Ready));
        node["metadata"]["annotations"] = json!({"virtual.machine.sapcloud.io/simulated": "true"});
        let known = |node: &serde_json::Value| {
            let brief: NodeBrief = serde_json::from_value(node.clone()).unwrap();
            brief.known(Timestamp::UNIX_EPOCH).unwrap()
        };
        // A Node of an earlier version has the VM's own id in its spec.
        assert_eq!((known(&node).provider_id.as_str(), known(&node).key.as_str()), ("virtual:///a/b/i-1", "/n"));
        node["metadata"]["annotations"]["virtual.machine.sapcloud.io/provider-id"] = json!("virtual:///a/c/i-1");
        assert_eq!(known(&node).provider_id, "virtual:///a/c/i-1");
    }

    #[test]
    fn a_pod_tells_how_it_ends() {
        let brief: PodBrief = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": 7, "annotations": {"virtual.machine.sapcloud.io/refuse-termination": "true"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "readinessGates": null},
            "status": {}
        }))
        .unwrap();
        assert_eq!(
            (brief.path().as_str(), brief.deleting, brief.refuses),
            ("/api/v1/namespaces/ns/pods/p", Some(7), true)
        );
    }
}
