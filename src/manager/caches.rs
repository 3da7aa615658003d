//! Views of the machine objects, kept equal to what the API server holds: by replicas that lead, that stand by, and by
//! processes that only serve. What is asked of the views is the business of the loops, of admission and of the extension.

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
    views::{Seen, inventories},
};
use crate::{extension::views::Standing, settings::StandbyCaches};
use controller_runtime::{
    clients::Purpose,
    gate::Gate,
    lease::Leadership,
    snapshot::Snapshot,
    storage_version::StorageVersions,
    store::Store,
    supervisor::{Stage, Supervisor},
    watch::{Beta, OnPoison, PAGE, Scope, Watches, Watching, prune},
};
use machine_api::kind::{ApiVersion, Kind};
use machine_controllers::views::ControlViews;
use machine_driver::Registry;

/// When watches begin: at once, or with leadership.
#[derive(Clone)]
pub(super) struct Begin {
    leadership: Option<Leadership>,
    stop: CancellationToken,
}

impl Begin {
    /// Warm replicas begin at once, cold ones when they lead.
    pub(super) fn of(standby: StandbyCaches, leadership: &Leadership, stop: CancellationToken) -> Self {
        let leadership = match standby {
            StandbyCaches::Warm => None,
            StandbyCaches::Cold => Some(leadership.clone()),
        };
        Self { leadership, stop }
    }

    /// Does the work once it is time.
    pub(super) async fn then(self, work: impl Future<Output = ()>) {
        if let Some(leadership) = &self.leadership
            && self.stop.run_until_cancelled(leadership.won()).await.is_none()
        {
            return;
        }
        work.await;
    }
}

/// Keeps the views of a process without control loops, so that its rules and views know other objects too; answers what it sees
/// then. Nothing ends here when the API server is silent: what is not known is not judged.
pub(super) fn only_to_answer(
    common: &Arc<Common>,
    clusters: &Clusters,
    drivers: Registry,
    references: &CachedReferences,
    tasks: &mut Supervisor,
) -> Option<Seen> {
    if common.settings.secure.is_none() || common.settings.standby_caches == StandbyCaches::Cold {
        return None;
    }
    let views = ControlViews::default();
    references.know(views.clone());
    let begin = Begin { leadership: None, stop: tasks.stop_of(Stage::Support) };
    // The watch itself logs what can't be decoded; events about it are told by those who act on objects.
    let watches = keep_views(common, clusters, &views, &begin, Arc::new(|_| ()), tasks);
    super::told::tell(common, clusters, watches.clone(), None, tasks);
    // Only views look at the target cluster here, and nothing ever writes to it.
    let shown = clusters.target.as_ref().filter(|_| common.settings.extension.is_some());
    let target = shown.map(|cluster| {
        let target = TargetViews::new(cluster, &Gate::closed());
        target.keep(&watches, cluster, &begin, tasks);
        target
    });
    Some(Seen {
        common: Arc::clone(common),
        inventories: inventories(common, &views, &drivers),
        views,
        target,
        drivers,
        standing: Arc::new(|| Standing::Standby),
        running: Running::default(),
    })
}

/// Keeps all views of the control cluster; answers the watches, for those who watch more.
pub(super) fn keep_views(
    common: &Common,
    clusters: &Clusters,
    views: &ControlViews,
    begin: &Begin,
    on_poison: OnPoison,
    tasks: &mut Supervisor,
) -> Watches {
    let watches = Watches::new(on_poison, common.random_source(stream::WATCHES))
        .silent_after(common.settings.safety.watch_silence);
    let kept = Kept {
        watches: watches.clone(),
        client: clusters.control.client(Purpose::Watches),
        scope: Scope::Namespace(common.settings.namespace.clone()),
        versions: StorageVersions::new(clusters.control.client(Purpose::Discovery), common.settings.read_version),
        stop: tasks.stop_of(Stage::Support),
    };
    tasks.spawn(
        Stage::Support,
        "watch of machines",
        begin.clone().then(kept.clone().machine_kind(Kind::Machine, Arc::clone(&views.machines))),
    );
    tasks.spawn(
        Stage::Support,
        "watch of machinesets",
        begin.clone().then(kept.clone().machine_kind(Kind::MachineSet, Arc::clone(&views.sets))),
    );
    tasks.spawn(
        Stage::Support,
        "watch of machinedeployments",
        begin.clone().then(kept.clone().machine_kind(Kind::MachineDeployment, Arc::clone(&views.deployments))),
    );
    tasks.spawn(
        Stage::Support,
        "watch of machineclasses",
        begin.clone().then(kept.clone().machine_kind(Kind::MachineClass, Arc::clone(&views.classes))),
    );
    let secrets = Watching::objects(kept.scope.clone(), prune::common);
    let secrets = kept.watches.keep("secrets", kept.client, secrets, Arc::clone(&views.secrets), kept.stop);
    tasks.spawn(Stage::Support, "watch of secrets", begin.clone().then(secrets));
    watches
}

/// How the views of the control cluster are kept.
#[derive(Clone)]
struct Kept {
    watches: Watches,
    client: kube::Client,
    scope: Scope,
    versions: StorageVersions,
    stop: CancellationToken,
}

impl Kept {
    /// Watches a kind in the version that is stored, and begins anew when that changes.
    async fn machine_kind<S>(self, kind: Kind, store: Arc<Store<S>>)
    where
        S: Snapshot<Object: DeserializeOwned + Clone + Debug>,
    {
        let stop = self.stop.clone();
        // A kind whose version is not known yet is told of as one that is not listed.
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
