//! Views of the target cluster, and the clients that write to it.

use std::sync::{Arc, OnceLock};

use k8s_openapi::api::core::v1::Secret;
use tokio::sync::mpsc;

use super::caches::WatchStart;
use controller_runtime::{
    clients::{Cluster, Purpose},
    events,
    gate::Gate,
    key::ObjectKey,
    objects::{ApiServer, Objects},
    refusals::Refusals,
    snapshot::Snapshot,
    store::{IndexName, Store},
    supervisor::{Stage, Supervisor},
    watch::{Lazy, SMALL_PAGE, Scope, WatchedCluster, Watches, Watching, prune},
};
use machine_controllers::{
    drain::observe::{DrainViews, MissingView},
    snapshots::{AttachmentSnapshot, BudgetSnapshot, ClaimSnapshot, NodeSnapshot, PodSnapshot, VolumeSnapshot},
    views::{node_store, qualified},
};

/// Index: pods and attachments by the name of their node.
const ON_NODE: IndexName = "on-node";
/// Index: pods by the `namespace/name` of the claims they use.
const OF_CLAIM: IndexName = "of-claim";
/// Index: attachments by the name of their volume.
const OF_VOLUME: IndexName = "of-volume";
/// Index: budgets by namespace.
const IN_NAMESPACE: IndexName = "in-namespace";

fn node_of_pod(pod: &PodSnapshot) -> Vec<String> {
    pod.node_name().map(str::to_owned).into_iter().collect()
}

fn claims_of_pod(pod: &PodSnapshot) -> Vec<String> {
    pod.claims().map(|claim| qualified(&claim.namespace, &claim.name)).collect()
}

fn node_of_attachment(attachment: &AttachmentSnapshot) -> Vec<String> {
    vec![attachment.node_name().to_owned()]
}

fn volume_of_attachment(attachment: &AttachmentSnapshot) -> Vec<String> {
    attachment.volume_name().map(str::to_owned).into_iter().collect()
}

/// The views of the target cluster. Kinds that only drains need are watched from the first drain on.
#[derive(Clone)]
pub(super) struct TargetViews {
    pub(super) evictions: kube::Client,
    /// Events that are written to the target cluster.
    pub(super) notes: mpsc::Sender<events::Pending>,
    pub(super) node_store: Arc<Store<NodeSnapshot>>,
    pub(super) nodes: Objects<NodeSnapshot>,
    pub(super) bootstrap_tokens: Objects<Arc<Secret>>,
    /// Writes that the target cluster has refused.
    pub(super) refusals: Refusals,
    pub(super) pods: Lazy<PodSnapshot>,
    pub(super) volumes: Lazy<VolumeSnapshot>,
    pub(super) claims: Lazy<ClaimSnapshot>,
    pub(super) attachments: Lazy<AttachmentSnapshot>,
    pub(super) budgets: Lazy<BudgetSnapshot>,
    /// The watches, once they run. They know why a list fails.
    watches: Arc<OnceLock<Watches>>,
}

impl TargetViews {
    pub(super) fn new(cluster: &Cluster, gate: &Gate, notes: mpsc::Sender<events::Pending>) -> Self {
        let client = cluster.client(Purpose::TargetCore);
        let node_store = node_store();
        let refusals = Refusals::default();
        let nodes = ApiServer::new(client.clone(), prune::node).reading_through(cluster.client(Purpose::TargetReads));
        Self {
            nodes: Objects::over(Arc::new(nodes), gate.clone(), Some(Arc::clone(&node_store))).with_refusals(&refusals),
            bootstrap_tokens: Objects::new(client, gate.clone(), None, prune::common).with_refusals(&refusals),
            refusals,
            pods: Lazy::new(Arc::new(Store::new(vec![(ON_NODE, node_of_pod), (OF_CLAIM, claims_of_pod)]))),
            volumes: Lazy::new(Arc::new(Store::new(Vec::new()))),
            claims: Lazy::new(Arc::new(Store::new(Vec::new()))),
            attachments: Lazy::new(Arc::new(Store::new(vec![
                (ON_NODE, node_of_attachment),
                (OF_VOLUME, volume_of_attachment),
            ]))),
            budgets: Lazy::new(Arc::new(Store::new(vec![(IN_NAMESPACE, |budget| {
                vec![budget.namespace().to_owned()]
            })]))),
            node_store,
            evictions: cluster.client(Purpose::Evictions),
            notes,
            watches: Arc::default(),
        }
    }

    /// Waits until no view is being replaced because history went back.
    pub(super) async fn wait_whole(&self) {
        self.node_store.wait_whole().await;
        self.pods.store().wait_whole().await;
        self.volumes.store().wait_whole().await;
        self.claims.store().wait_whole().await;
        self.attachments.store().wait_whole().await;
        self.budgets.store().wait_whole().await;
    }

    /// Starts the watches.
    pub(super) fn keep(&self, watches: &Watches, cluster: &Cluster, begin: &WatchStart, tasks: &mut Supervisor) {
        let watches = watches.clone().of_cluster(WatchedCluster::Target);
        // A second call has the same watches.
        let _ = self.watches.set(watches.clone());
        let stop = tasks.stop_of(Stage::Support);
        let client = || cluster.client(Purpose::Watches);
        let nodes = Watching::objects(Scope::Cluster, prune::node).page(SMALL_PAGE);
        tasks.spawn(
            Stage::Support,
            "watch of nodes",
            begin.clone().run(watches.clone().keep(
                "nodes",
                client(),
                nodes,
                Arc::clone(&self.node_store),
                stop.clone(),
            )),
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
        keep!("poddisruptionbudgets", self.budgets, Watching::objects(cluster_wide, prune::pod_disruption_budget));
    }
}

impl TargetViews {
    /// The kinds that drains need, each with whether its view is listed completely and current. Nodes are among them because the Node
    /// decides whether a drain is forced.
    fn listed(&self) -> [(&'static str, bool); 6] {
        [
            ("nodes", is_usable(&self.node_store)),
            ("pods", is_usable(self.pods.store())),
            ("persistentvolumes", is_usable(self.volumes.store())),
            ("persistentvolumeclaims", is_usable(self.claims.store())),
            ("volumeattachments", is_usable(self.attachments.store())),
            ("poddisruptionbudgets", is_usable(self.budgets.store())),
        ]
    }
}

/// Whether a view is complete and its watch has a connection.
fn is_usable(store: &Store<impl Snapshot>) -> bool {
    store.is_synced() && store.is_current()
}

impl DrainViews for TargetViews {
    fn ready(&self) -> bool {
        // `&` evaluates all operands, so that all watches begin.
        let complete = self.pods.begin()
            & self.volumes.begin()
            & self.claims.begin()
            & self.attachments.begin()
            & self.budgets.begin();
        complete && self.complete()
    }

    fn complete(&self) -> bool {
        self.listed().iter().all(|(_, is_complete)| *is_complete)
    }

    fn missing(&self) -> Vec<MissingView> {
        let health = self.watches.get().map(Watches::health).unwrap_or_default();
        let why = |kind| {
            let mut watches = health.iter().filter(|watch| watch.cluster == WatchedCluster::Target);
            watches.find(|watch| watch.kind == kind).and_then(|watch| watch.last_error.clone())
        };
        let incomplete = self.listed().into_iter().filter(|(_, is_complete)| !is_complete);
        incomplete.map(|(kind, _)| MissingView { kind, why: why(kind) }).collect()
    }

    fn pods_on(&self, node: &str) -> Vec<PodSnapshot> {
        self.pods.store().by_index(ON_NODE, node)
    }

    fn pods_using(&self, claim: &ObjectKey) -> Vec<PodSnapshot> {
        self.pods.store().by_index(OF_CLAIM, &qualified(&claim.namespace, &claim.name))
    }

    fn budgets_in(&self, namespace: &str) -> Vec<BudgetSnapshot> {
        self.budgets.store().by_index(IN_NAMESPACE, namespace)
    }

    fn claim(&self, key: &ObjectKey) -> Option<ClaimSnapshot> {
        self.claims.store().get(key)
    }

    fn volume(&self, name: &str) -> Option<VolumeSnapshot> {
        self.volumes.store().get(&ObjectKey::cluster_scoped(name))
    }

    fn attachments_on(&self, node: &str) -> Vec<AttachmentSnapshot> {
        self.attachments.store().by_index(ON_NODE, node)
    }

    fn attachments_of(&self, volume: &str) -> Vec<AttachmentSnapshot> {
        self.attachments.store().by_index(OF_VOLUME, volume)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use rstest::rstest;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use controller_runtime::clients::{ClientSettings, Rate};

    /// Views of a target cluster that never answers.
    pub(in crate::manager) fn unanswered_views() -> TargetViews {
        let unresponsive = tower::service_fn(|_: Request<Body>| async {
            std::future::pending::<()>().await;
            Ok::<_, kube::Error>(Response::new(Body::empty()))
        });
        let client = kube::Client::new(unresponsive, "ns");
        let settings = ClientSettings { rate: Rate { qps: 1.0, burst: 1 }, observer: None };
        let gate = Gate::open_until(CancellationToken::new());
        TargetViews::new(&Cluster::over(&client, &client, "test", &settings), &gate, events::channel().0)
    }

    /// An event of a view.
    #[derive(Clone, Copy)]
    enum Event {
        List,
        Connection,
        Outage,
    }

    fn apply(store: &Store<impl Snapshot>, event: Event) {
        match event {
            Event::List => {
                store.list_begins();
                store.list_ends();
            }
            Event::Connection => store.set_current(true),
            Event::Outage => store.set_current(false),
        }
    }

    #[rstest]
    #[case::nodes("nodes", |views: &TargetViews, event| apply(&views.node_store, event))]
    #[case::pods("pods", |views: &TargetViews, event| apply(views.pods.store(), event))]
    #[case::volumes("persistentvolumes", |views: &TargetViews, event| apply(views.volumes.store(), event))]
    #[case::claims("persistentvolumeclaims", |views: &TargetViews, event| apply(views.claims.store(), event))]
    #[case::attachments("volumeattachments", |views: &TargetViews, event| apply(views.attachments.store(), event))]
    #[case::budgets("poddisruptionbudgets", |views: &TargetViews, event| apply(views.budgets.store(), event))]
    #[tokio::test]
    async fn a_kind_is_listed_while_its_own_view_is_complete_and_current(
        #[case] kind: &'static str,
        #[case] apply: fn(&TargetViews, Event),
    ) {
        let views = unanswered_views();
        let listed = || {
            let listed = views.listed().into_iter().filter(|(_, is_listed)| *is_listed);
            listed.map(|(kind, _)| kind).collect::<Vec<_>>()
        };
        assert_eq!(listed(), [""; 0], "nothing is known at first");
        apply(&views, Event::Connection);
        assert_eq!(listed(), [""; 0], "the first list is not complete");
        apply(&views, Event::List);
        assert_eq!(listed(), [kind]);
        apply(&views, Event::Outage);
        assert_eq!(listed(), [""; 0], "the view is outdated");
        apply(&views, Event::Connection);
        assert_eq!(listed(), [kind]);
    }
}
