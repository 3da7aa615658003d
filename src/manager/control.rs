//! The control loops of one process, with the views that watches keep, the queues that changes fill, and leadership.

use std::{
    fmt::Debug,
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::core::v1::Secret;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::OnceCell;

use super::{
    Common,
    caches::{self, WatchStart},
    clusters::Clusters,
    diagnostics,
    drivers::Drivers,
    loops,
    references::CachedReferences,
    scrapes, stream,
    target::TargetViews,
    views::{ClusterState, inventories, outlooks},
};
use crate::{extension::views::Inventories, settings::Half};
use controller_runtime::{
    catch_up::caught_up,
    clients::{Cluster, Purpose},
    events::{self, EventNote, Publisher, Recorder},
    gate::Gate,
    installed_schemas::InstalledSchemas,
    latch::Latch,
    lease::{ElectionSettings, Ended, LeaderElection, Leadership, Times, identity_of},
    objects::{ApiServer, Objects},
    preflight::Preflight,
    refusals::Refusals,
    snapshot::Snapshot,
    store::Store,
    supervisor::{Stage, Supervisor},
    watch::{UndecodableObject, prune},
};
use driver_virtual::ConfigMapAccess;
use machine_api::v1alpha1::MachineClass;
use machine_controllers::{
    fleet_metrics::FleetMetrics,
    machine::outlook::Outlooks,
    snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot},
    views::ControlViews,
};

/// Component of events that come from no controller.
const COMPONENT: &str = "machine-controller-manager";
/// Reason of the event about an object that can't be decoded.
const UNDECODABLE: &str = "Undecodable";

/// The parts that every loop uses.
pub(super) struct Parts {
    pub(super) common: Arc<Common>,
    pub(super) views: ControlViews,
    pub(super) target: Option<TargetViews>,
    pub(super) gate: Gate,
    pub(super) leadership: Leadership,
    pub(super) notes: tokio::sync::mpsc::Sender<events::Pending>,
    /// Writes machine objects for the controller manager's half. Each half has a client with its own rate.
    pub(super) rollout: Writers,
    /// Writes machine objects for the machine controller's half.
    pub(super) machines: Writers,
    /// Clients that only check whether the API servers answer.
    pub(super) probes: Probes,
    /// Secrets of the control namespace.
    pub(super) secrets: Objects<Arc<Secret>>,
    /// Writes that the control cluster has refused.
    pub(super) refusals: Refusals,
    /// The drivers. They can be called once `drivers_live` is open.
    pub(super) drivers: Drivers,
    drivers_live: Arc<Latch>,
    /// The VMs that providers list.
    pub(super) inventories: Arc<Inventories>,
    /// The loops, once they are started.
    pub(super) running: OnceLock<loops::Running>,
    /// What is decided about machines now, for scrapes.
    outlooks: OnceLock<Arc<Outlooks>>,
    /// Reads live lists. When this process begins to lead, the views are compared with them.
    catching_up: kube::Client,
    caught_up: OnceCell<()>,
}

impl Parts {
    /// Waits until this process leads, its drivers have begun and its views are complete.
    pub(super) async fn ready_to_work(&self) {
        self.leadership.won().await;
        let views = &self.views;
        tokio::join!(
            views.machines.wait_synced(),
            views.sets.wait_synced(),
            views.deployments.wait_synced(),
            views.classes.wait_synced(),
            views.secrets.wait_synced(),
            async {
                if let Some(target) = &self.target {
                    target.node_store.wait_synced().await;
                }
            },
        );
        self.caught_up.get_or_init(|| self.catch_up()).await;
        self.drivers_live.opened().await;
    }

    /// Waits while a view is replaced because the API server's history went back. A decision on a partly replaced view could be
    /// wrong about objects that exist again, or that never existed (decisions.md 45).
    pub(super) async fn views_are_whole(&self) {
        are_whole(&self.views, self.target.as_ref()).await;
    }

    /// Waits until the views contain the last writes of the previous leader. Otherwise this process could do the same work a second
    /// time.
    async fn catch_up(&self) {
        let (client, namespace) = (&self.catching_up, self.common.settings.namespace.as_str());
        let views = &self.views;
        tokio::join!(
            caught_up(client, namespace, &views.machines),
            caught_up(client, namespace, &views.sets),
            caught_up(client, namespace, &views.deployments),
        );
    }

    /// A recorder for a component.
    pub(super) fn recorder(&self, component: &'static str) -> Recorder {
        Recorder::new(component, self.notes.clone())
    }
}

/// Clients for probes. A probe never waits for another call.
pub(super) struct Probes {
    pub(super) control: kube::Client,
    /// None without a target cluster.
    pub(super) target: Option<kube::Client>,
}

/// Reads and writes the four machine kinds.
pub(super) struct Writers {
    pub(super) machines: Objects<MachineSnapshot>,
    pub(super) sets: Objects<SetSnapshot>,
    pub(super) deployments: Objects<DeploymentSnapshot>,
    pub(super) classes: Objects<Arc<MachineClass>>,
}

/// What keeps a write of our kinds from being sent.
struct WriteLimits {
    refusals: Refusals,
    schemas: InstalledSchemas,
}

impl WriteLimits {
    fn of<S: Snapshot<Object: Serialize + Clone>>(&self, objects: Objects<S>) -> Objects<S> {
        objects.with_refusals(&self.refusals).with_schemas(&self.schemas)
    }
}

impl Writers {
    /// Writes with `client` and reads with `reader`.
    fn new(
        client: &kube::Client,
        reader: &kube::Client,
        gate: &Gate,
        views: &ControlViews,
        limits: &WriteLimits,
    ) -> Self {
        Self {
            machines: limits.of(objects(client, reader, gate, &views.machines)),
            sets: limits.of(objects(client, reader, gate, &views.sets)),
            deployments: limits.of(objects(client, reader, gate, &views.deployments)),
            classes: limits.of(objects(client, reader, gate, &views.classes)),
        }
    }
}

/// Objects of the control cluster. The answers of the API server go into `store`.
fn objects<S>(client: &kube::Client, reader: &kube::Client, gate: &Gate, store: &Arc<Store<S>>) -> Objects<S>
where
    S: Snapshot<Object: Serialize + DeserializeOwned + Clone + Debug>,
{
    let api = ApiServer::new(client.clone(), prune::common).reading_through(reader.clone());
    Objects::over(Arc::new(api), gate.clone(), Some(Arc::clone(store)))
}

/// Starts watches, leadership and loops.
pub(super) async fn start(
    common: &Arc<Common>,
    clusters: &Clusters,
    drivers: Drivers,
    references: &CachedReferences,
    tasks: &mut Supervisor,
) -> anyhow::Result<Arc<Parts>> {
    // Webhooks already answer, but the loops need an API server.
    clusters.control_preflight().reachable().await?;
    log_what_is_missing(clusters).await;

    let notes = publish(common, &clusters.control, "events", tasks);

    let leadership = lead(common, clusters, &notes, tasks);
    let gate = Gate::open_while(leadership.clone())
        .draining_calls(tasks.stop_of(Stage::Work), common.settings.shutdown.driver_drain);
    let views = ControlViews::default();
    references.use_stores(views.clone());
    let limits = WriteLimits { refusals: Refusals::default(), schemas: InstalledSchemas::default() };
    let target = clusters
        .target
        .as_ref()
        .map(|target| TargetViews::new(target, &gate, publish(common, target, "events of the target cluster", tasks)));

    let drivers_live = Arc::new(Latch::default());
    let begun = Arc::clone(&drivers_live);
    let rollout = clusters.control.client(Purpose::Rollout);
    let parts = Arc::new(Parts {
        common: Arc::clone(common),
        rollout: Writers::new(&rollout, &rollout, &gate, &views, &limits),
        machines: Writers::new(
            &clusters.control.client(Purpose::Machines),
            &clusters.control.client(Purpose::MachineReads),
            &gate,
            &views,
            &limits,
        ),
        probes: Probes {
            control: clusters.control.client(Purpose::Discovery),
            target: clusters.target.as_ref().map(|target| target.client(Purpose::Discovery)),
        },
        secrets: Objects::new(
            clusters.control.client(Purpose::ControlCore),
            gate.clone(),
            Some(Arc::clone(&views.secrets)),
            prune::common,
        )
        .with_refusals(&limits.refusals),
        refusals: limits.refusals,
        inventories: inventories(common, &views, &drivers.registry),
        views,
        target,
        gate,
        leadership,
        notes,
        drivers,
        drivers_live,
        running: OnceLock::new(),
        outlooks: OnceLock::new(),
        catching_up: clusters.control.client(Purpose::Watches),
        caught_up: OnceCell::new(),
    });
    // Listeners are attached before the watches begin, because a change without a listener would wake no loop. `start` runs once, so
    // the cell is still empty.
    let _ = parts.running.set(loops::start(&parts, tasks));
    measure(&parts)?;
    keep_views(&parts, clusters, limits.schemas, tasks);
    #[cfg(feature = "external")]
    super::external::report_on_classes(&parts, tasks);
    start_drivers(&parts, clusters, begun, tasks);
    Ok(parts)
}

/// Starts a publisher of events in a cluster, and returns where it takes them from.
fn publish(
    common: &Arc<Common>,
    cluster: &Cluster,
    task: &'static str,
    tasks: &mut Supervisor,
) -> tokio::sync::mpsc::Sender<events::Pending> {
    let (notes, pending) = events::channel();
    let publisher = Publisher::new(pending, cluster.client(Purpose::Events), Arc::clone(&common.clock));
    tasks.spawn(Stage::Support, task, publisher.run(tasks.stop_of(Stage::Support)));
    notes
}

/// Lets scrapes see the fleet, as this process knows it.
fn measure(parts: &Arc<Parts>) -> anyhow::Result<()> {
    let common = &parts.common;
    let halves = common.settings.controllers.halves();
    let outlooks = parts.outlooks.get_or_init(|| Arc::new(outlooks(&ClusterState::of(parts))));
    let fleet = FleetMetrics::of(parts.views.clone(), halves.clone(), common.settings.metrics.per_machine)?;
    common.metrics.register(fleet.judging_by(outlooks, Arc::clone(&common.clock)))?;
    scrapes::show_known_objects(&common.metrics, &halves, parts.views.clone());
    scrapes::show_leases(&common.metrics, halves, parts.leadership.clone());
    Ok(())
}

/// Logs missing kinds and an unreachable target cluster. The loops wait for them, because they can appear at any time.
async fn log_what_is_missing(clusters: &Clusters) {
    if let Err(error) = clusters.control_preflight().serves_machine_kinds().await {
        tracing::error!(%error, "the loops can't begin yet");
    }
    if let Some(target) = clusters.target_preflight()
        && let Err(error) = Preflight::reachable(&target).await
    {
        tracing::error!(%error, "the loops can't begin yet");
    }
}

fn lead(
    common: &Arc<Common>,
    clusters: &Clusters,
    notes: &tokio::sync::mpsc::Sender<events::Pending>,
    tasks: &mut Supervisor,
) -> Leadership {
    let settings = &common.settings;
    let Some(election) = &settings.leader_election else {
        return Leadership::without_election(tasks.stop_of(Stage::Lease));
    };
    let election = LeaderElection::over(
        ElectionSettings {
            namespace: settings.namespace.clone(),
            leases: settings.controllers.halves().into_iter().map(Half::lease_name).map(str::to_owned).collect(),
            identity: identity_of(&election.host_name, common.random_source(stream::IDENTITY)),
            times: Times {
                lease_duration: election.lease_duration,
                renew_deadline: election.renew_deadline,
                retry_period: election.retry_period,
            },
        },
        clusters.control.client(Purpose::Leases),
        Arc::clone(&common.clock),
        common.random_source(stream::LEASES),
        Some(Recorder::new(COMPONENT, notes.clone())),
    );
    let leadership = election.leadership();
    let stop = tasks.stop_of(Stage::Lease);
    tasks.spawn_fallible(Stage::Lease, "leader election", async move {
        match election.run(stop).await {
            Ended::Released | Ended::Expiring { .. } => Ok(()),
            Ended::Lost { lease, why } => Err(format!("lease {lease} is lost: {why}")),
        }
    });
    leadership
}

/// Keeps all views equal to the API servers' objects. Every replica does so, unless `--standby-caches` says that a replica without
/// leadership keeps no caches.
fn keep_views(parts: &Arc<Parts>, clusters: &Clusters, schemas: InstalledSchemas, tasks: &mut Supervisor) {
    let notes = parts.notes.clone();
    let on_undecodable = move |undecodable: &UndecodableObject| {
        let text = format!("the object can't be decoded and is left as it is: {}", undecodable.error);
        Recorder::new(COMPONENT, notes.clone())
            .note_about(undecodable.object.clone(), EventNote::warning(UNDECODABLE, text));
    };
    let stop = tasks.stop_of(Stage::Support);
    let begin = WatchStart::of(parts.common.settings.standby_caches, &parts.leadership, stop);
    let watches = caches::keep_views(&parts.common, clusters, &parts.views, &begin, Arc::new(on_undecodable), tasks);
    let effects = diagnostics::Effects { gate: parts.gate.clone(), schemas };
    diagnostics::start(&parts.common, clusters, watches.clone(), Some(effects), tasks);
    if let (Some(target), Some(cluster)) = (&parts.target, &clusters.target) {
        target.keep(&watches, cluster, &begin, tasks);
    }
}

/// Starts the drivers once this process leads, because a simulated cloud must not run twice. Only the half that calls drivers starts
/// them.
fn start_drivers(parts: &Arc<Parts>, clusters: &Clusters, begun: Arc<Latch>, tasks: &mut Supervisor) {
    if !parts.common.settings.controllers.halves().contains(&Half::MachineController) {
        begun.open();
        return;
    }
    let stop = tasks.stop_of(Stage::Support);
    let target = clusters.target.as_ref().map(|target| target.client(Purpose::Simulation));
    let state = ConfigMapAccess {
        client: clusters.control.client(Purpose::Simulation),
        namespace: parts.common.settings.namespace.clone(),
    };
    parts.drivers.set_simulation_clients(target, state);
    parts.drivers.set_pod_client(clusters.control.client(Purpose::MachinePods));
    let parts = Arc::clone(parts);
    tasks.spawn_fallible(Stage::Support, "drivers", async move {
        match stop.run_until_cancelled(parts.leadership.won()).await {
            None => Ok(()),
            Some(()) => parts.drivers.run(&stop, &begun).await,
        }
    });
}

async fn are_whole(views: &ControlViews, target: Option<&TargetViews>) {
    views.machines.wait_whole().await;
    views.sets.wait_whole().await;
    views.deployments.wait_whole().await;
    views.classes.wait_whole().await;
    views.secrets.wait_whole().await;
    if let Some(target) = target {
        target.wait_whole().await;
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, time::Duration};

    use rstest::rstest;
    use tokio::time::timeout;

    use super::{super::target::tests::unanswered_views, *};
    use controller_runtime::store::{History, Store};

    /// All views of a process.
    struct Views<'a>(&'a ControlViews, &'a TargetViews);

    /// A list that replaces a view because history went back. `end` is the last page of the list.
    struct Replacing {
        end: Box<dyn FnOnce()>,
    }

    fn replace(store: &Arc<Store<impl Snapshot>>) -> Replacing {
        store.watched(10);
        store.list_begins();
        assert_eq!(store.list_is_of(5), History::WentBack);
        let store = Arc::clone(store);
        Replacing { end: Box::new(move || store.list_ends()) }
    }

    async fn is_over(wait: impl Future<Output = ()>) -> bool {
        timeout(Duration::from_secs(60), wait).await.is_ok()
    }

    #[rstest]
    #[case::machines(|views: Views<'_>| replace(&views.0.machines))]
    #[case::sets(|views: Views<'_>| replace(&views.0.sets))]
    #[case::deployments(|views: Views<'_>| replace(&views.0.deployments))]
    #[case::classes(|views: Views<'_>| replace(&views.0.classes))]
    #[case::secrets(|views: Views<'_>| replace(&views.0.secrets))]
    #[case::nodes(|views: Views<'_>| replace(&views.1.node_store))]
    #[case::pods(|views: Views<'_>| replace(views.1.pods.store()))]
    #[case::volumes(|views: Views<'_>| replace(views.1.volumes.store()))]
    #[case::claims(|views: Views<'_>| replace(views.1.claims.store()))]
    #[case::attachments(|views: Views<'_>| replace(views.1.attachments.store()))]
    #[case::budgets(|views: Views<'_>| replace(views.1.budgets.store()))]
    #[tokio::test(start_paused = true)]
    async fn a_pass_waits_while_a_view_is_replaced(#[case] replace: fn(Views<'_>) -> Replacing) {
        let (views, target) = (ControlViews::default(), unanswered_views());
        assert!(is_over(are_whole(&views, Some(&target))).await, "nothing is replaced");
        let replacing = replace(Views(&views, &target));
        assert!(!is_over(are_whole(&views, Some(&target))).await, "half of the view is of another history");
        (replacing.end)();
        assert!(is_over(are_whole(&views, Some(&target))).await);
    }
}
