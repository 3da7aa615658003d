//! Keeps the views of the machine objects equal to the API server's objects: in leaders, in standby replicas, and in processes
//! without control loops. The loops, admission and the extension API server read these views.

use std::{fmt::Debug, future::Future, sync::Arc};

use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{
    Common,
    clusters::Clusters,
    loops::Running,
    references::CachedReferences,
    stream,
    target::TargetViews,
    views::{ClusterState, inventories},
};
use crate::settings::StandbyCaches;
use controller_runtime::{
    clients::Purpose,
    events,
    gate::Gate,
    lease::Leadership,
    snapshot::Snapshot,
    storage_version::StorageVersions,
    store::Store,
    supervisor::{Stage, Supervisor},
    watch::{Beta, OnUndecodable, PAGE, Scope, Watches, Watching, prune},
};
use machine_api::kind::{ApiVersion, Kind};
use machine_controllers::views::ControlViews;
use machine_driver::Registry;

/// When watches begin: at once, or once the process leads.
#[derive(Clone)]
pub(super) struct WatchStart {
    leadership: Option<Leadership>,
    stop: CancellationToken,
}

impl WatchStart {
    /// With filled caches the watches begin at once, with empty caches when the replica leads.
    pub(super) fn of(standby: StandbyCaches, leadership: &Leadership, stop: CancellationToken) -> Self {
        let leadership = match standby {
            StandbyCaches::Warm => None,
            StandbyCaches::Cold => Some(leadership.clone()),
        };
        Self { leadership, stop }
    }

    /// Runs the watch once it may begin.
    pub(super) async fn run(self, watch: impl Future<Output = ()>) {
        if let Some(leadership) = &self.leadership
            && self.stop.run_until_cancelled(leadership.won()).await.is_none()
        {
            return;
        }
        watch.await;
    }
}

/// Keeps the caches of a process without control loops, and returns what the computed views read. Admission needs the caches for
/// rules that read several objects. When the API server does not answer, the process continues, and these rules are skipped.
pub(super) fn keep_without_controllers(
    common: &Arc<Common>,
    clusters: &Clusters,
    drivers: Registry,
    references: &CachedReferences,
    tasks: &mut Supervisor,
) -> Option<ClusterState> {
    if common.settings.secure.is_none() || common.settings.standby_caches == StandbyCaches::Cold {
        return None;
    }
    let views = ControlViews::default();
    references.use_stores(views.clone());
    let begin = WatchStart { leadership: None, stop: tasks.stop_of(Stage::Support) };
    // The watch itself logs objects that can't be decoded. Only processes with control loops write events about them.
    let watches = keep_views(common, clusters, &views, &begin, Arc::new(|_| ()), tasks);
    super::diagnostics::start(common, clusters, watches.clone(), None, tasks);
    // Only the extension API server reads the target cluster here, and nothing writes to it.
    let target = clusters.target.as_ref().filter(|_| common.settings.extension.is_some());
    let target = target.map(|cluster| {
        let (notes, _) = events::channel();
        let target = TargetViews::new(cluster, &Gate::closed(), notes);
        target.keep(&watches, cluster, &begin, tasks);
        target
    });
    Some(ClusterState {
        common: Arc::clone(common),
        inventories: inventories(common, &views, &drivers),
        views,
        target,
        drivers,
        is_leading: Arc::new(|| false),
        running: Running::default(),
    })
}

/// Keeps all views of the control cluster. The caller can add more watches to the returned ones.
pub(super) fn keep_views(
    common: &Common,
    clusters: &Clusters,
    views: &ControlViews,
    begin: &WatchStart,
    on_undecodable: OnUndecodable,
    tasks: &mut Supervisor,
) -> Watches {
    let watches = Watches::new(on_undecodable, common.random_source(stream::WATCHES))
        .silent_after(common.settings.safety.watch_silence);
    super::scrapes::show_caches(common, watches.clone());
    let kept = ControlWatches {
        watches: watches.clone(),
        client: clusters.control.client(Purpose::Watches),
        scope: Scope::Namespace(common.settings.namespace.clone()),
        versions: StorageVersions::new(clusters.control.client(Purpose::Discovery), common.settings.read_version),
        stop: tasks.stop_of(Stage::Support),
    };
    tasks.spawn(
        Stage::Support,
        "watch of machines",
        begin.clone().run(kept.clone().machine_kind(Kind::Machine, Arc::clone(&views.machines))),
    );
    tasks.spawn(
        Stage::Support,
        "watch of machinesets",
        begin.clone().run(kept.clone().machine_kind(Kind::MachineSet, Arc::clone(&views.sets))),
    );
    tasks.spawn(
        Stage::Support,
        "watch of machinedeployments",
        begin.clone().run(kept.clone().machine_kind(Kind::MachineDeployment, Arc::clone(&views.deployments))),
    );
    tasks.spawn(
        Stage::Support,
        "watch of machineclasses",
        begin.clone().run(kept.clone().machine_kind(Kind::MachineClass, Arc::clone(&views.classes))),
    );
    let secrets = Watching::objects(kept.scope.clone(), prune::common);
    let secrets = kept.watches.keep("secrets", kept.client, secrets, Arc::clone(&views.secrets), kept.stop);
    tasks.spawn(Stage::Support, "watch of secrets", begin.clone().run(secrets));
    watches
}

/// The watches of the control cluster, with everything that they share.
#[derive(Clone)]
struct ControlWatches {
    watches: Watches,
    client: kube::Client,
    scope: Scope,
    versions: StorageVersions,
    stop: CancellationToken,
}

impl ControlWatches {
    /// Watches a kind in the stored version, and starts a new watch when the stored version changes.
    async fn machine_kind<S>(self, kind: Kind, store: Arc<Store<S>>)
    where
        S: Snapshot<Object: DeserializeOwned + Clone + Debug>,
    {
        let stop = self.stop.clone();
        // Until the version is known, `/readyz?verbose` reports the kind as not listed.
        self.watches.announce(kind.plural());
        let forever = async {
            let mut version = self.versions.first(kind).await;
            loop {
                let watch = self.clone().in_version(kind, version, Arc::clone(&store));
                tokio::select! {
                    biased;
                    () = watch => return,
                    other = self.versions.other_than(kind, version) => version = other,
                }
            }
        };
        Box::pin(stop.run_until_cancelled(forever)).await;
    }

    async fn in_version<S>(self, kind: Kind, version: ApiVersion, store: Arc<Store<S>>)
    where
        S: Snapshot<Object: DeserializeOwned + Clone + Debug>,
    {
        let Self { watches, client, scope, stop, .. } = self;
        match version {
            ApiVersion::V1alpha1 => {
                watches
                    .keep(kind.plural(), client, Watching::objects(scope, prune::common::<S::Object>), store, stop)
                    .await;
            }
            ApiVersion::V1beta1 => {
                let project = |Beta(mut object): Beta<S::Object>| {
                    prune::common(&mut object);
                    object
                };
                let watching = Watching::projected(scope, project).page(PAGE);
                watches.keep(kind.plural(), client, watching, store, stop).await;
            }
        }
    }
}
