//! Views of the target cluster, and what writes to it.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret},
    policy::v1::PodDisruptionBudget,
    storage::v1::VolumeAttachment,
};

use crate::{
    cluster::{
        clients::{Cluster, Purpose},
        gate::Gate,
        objects::Objects,
        store::Store,
        supervisor::{Stage, Supervisor},
        watch::{Lazy, SMALL_PAGE, Scope, Watches, Watching, prune},
    },
    controllers::views::node_store,
};

/// What is known of the target cluster. What only drains need is watched from the first drain on.
#[derive(Clone)]
pub(super) struct TargetViews {
    pub(super) client: kube::Client,
    pub(super) node_store: Arc<Store<Node>>,
    pub(super) nodes: Objects<Node>,
    pub(super) bootstrap_tokens: Objects<Secret>,
    pub(super) pods: Lazy<Pod>,
    pub(super) volumes: Lazy<PersistentVolume>,
    pub(super) claims: Lazy<PersistentVolumeClaim>,
    pub(super) attachments: Lazy<VolumeAttachment>,
    pub(super) budgets: Lazy<PodDisruptionBudget>,
}

impl TargetViews {
    pub(super) fn new(cluster: &Cluster, gate: &Gate) -> Self {
        let client = cluster.client(Purpose::TargetCore);
        let node_store = node_store();
        Self {
            nodes: Objects::new(client.clone(), gate.clone(), Some(Arc::clone(&node_store)), prune::node),
            bootstrap_tokens: Objects::new(client.clone(), gate.clone(), None, prune::common),
            pods: Lazy::new(Arc::new(Store::new(crate::controllers::drain::pod_indexes()))),
            volumes: Lazy::new(Arc::new(Store::new(Vec::new()))),
            claims: Lazy::new(Arc::new(Store::new(Vec::new()))),
            attachments: Lazy::new(Arc::new(Store::new(crate::controllers::drain::attachment_indexes()))),
            budgets: Lazy::new(Arc::new(Store::new(crate::controllers::drain::budget_indexes()))),
            node_store,
            client,
        }
    }

    /// Starts the watches.
    pub(super) fn keep(&self, watches: &Watches, cluster: &Cluster, tasks: &mut Supervisor) {
        let stop = tasks.stop_of(Stage::Support);
        let client = || cluster.client(Purpose::Watches);
        let nodes = Watching::objects(Scope::Cluster, prune::node).page(SMALL_PAGE);
        tasks.spawn(
            Stage::Support,
            "watch of nodes",
            watches.clone().keep("nodes", client(), nodes, Arc::clone(&self.node_store), stop.clone()),
        );
        macro_rules! keep {
            ($kind:literal, $lazy:expr, $watching:expr) => {
                tasks.spawn(
                    Stage::Support,
                    concat!("watch of ", $kind),
                    $lazy.clone().keep(watches.clone(), $kind, client(), $watching, stop.clone()),
                );
            };
        }
        let cluster_wide = Scope::Cluster;
        let pods = Watching::objects(cluster_wide.clone(), prune::pod).page(SMALL_PAGE).with_fields("spec.nodeName!=");
        keep!("pods", self.pods, pods);
        keep!("persistentvolumes", self.volumes, Watching::objects(cluster_wide.clone(), prune::persistent_volume));
        keep!(
            "persistentvolumeclaims",
            self.claims,
            Watching::objects(cluster_wide.clone(), prune::persistent_volume_claim)
        );
        keep!("volumeattachments", self.attachments, Watching::objects(cluster_wide.clone(), prune::volume_attachment));
        keep!(
            "poddisruptionbudgets",
            self.budgets,
            Watching::objects(cluster_wide, prune::pod_disruption_budget)
        );
    }
}
