//! One manager: its clusters, views, servers and control loops, and the tasks that run them.
//!
//! This module only connects the parts, and each part makes its decisions in its own module. [`run`] holds all state. There is no
//! process-wide state, so that one process can run several managers. The start has this order: configuration, ports, certificates,
//! webhooks, clusters, watches, leadership, loops. Webhooks are served before leadership is won and without it.

mod caches;
mod clusters;
mod control;
mod diagnostics;
mod drivers;
mod extension;
#[cfg(feature = "external")]
mod external;
mod kubeconfigs;
mod listeners;
mod loops;
mod observers;
mod owner_read_limiter;
mod randomness;
mod references;
pub mod registered_drivers;
mod reviewer;
mod scrapes;
mod serving;
mod target;
mod timekeeping;
mod traces;
mod views;

use std::{sync::Arc, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use self::randomness::Random;
pub use self::randomness::Randomness;
use crate::{
    DriverSet,
    server::{Health, ReservedPorts, Reviewer},
    settings::{Settings, ShutdownSettings},
};
use controller_runtime::{
    clock::{SharedClock, SystemClock},
    supervisor::{Graces, Stage, Supervisor},
};
use mcm_metrics::Metrics;
use mcm_traces::Tracer;

/// The values that all parts of one manager share.
struct Common {
    settings: Settings,
    clock: SharedClock,
    metrics: Metrics,
    health: Health,
    /// The source of names, jitter, tokens and serial numbers.
    randomness: Randomness,
    /// Cancelled when the caches may contain hollow objects (without most of their fields) and a new manager can read complete
    /// objects.
    caches_corrupt: CancellationToken,
    /// Records spans.
    tracer: Tracer,
}

impl Common {
    /// The random generator of one part. Each part has its own, so that the draws of one part do not change the draws of another.
    fn random(&self, part: u64) -> Random {
        self.randomness.of_part(part)
    }

    /// The generator of one part, as a function that any thread can call.
    fn random_source(&self, part: u64) -> impl Fn() -> u64 + Send + Sync + 'static {
        self.randomness.source_of_part(part)
    }
}

/// The parts that draw random numbers.
mod stream {
    pub const WATCHES: u64 = 1;
    pub const LEASES: u64 = 2;
    pub const CERTIFICATES: u64 = 3;
    pub const SET_NAMES: u64 = 4;
    pub const MACHINES: u64 = 5;
    pub const SIMULATION: u64 = 6;
    pub const REVIEWS: u64 = 7;
    pub const IDENTITY: u64 = 8;
    pub const TRACES: u64 = 9;
}

/// Everything that a manager takes from outside. Nothing in it is global to the process, so that a test can replace every part.
pub struct Environment {
    /// How the manager reaches its clusters.
    pub cluster_access: ClusterAccess,
    /// How callers reach admission and conversion.
    pub endpoints: Endpoints,
    /// The time of day. Waits use tokio's clock.
    pub clock: SharedClock,
    /// The source of all random numbers.
    pub randomness: Randomness,
    /// The drivers of the program.
    pub drivers: DriverSet,
}

impl Environment {
    /// The environment of production: clusters and ports from the settings, clock and random numbers from the operating system.
    fn of_process(reserved: ReservedPorts, drivers: DriverSet) -> Self {
        Self {
            cluster_access: ClusterAccess::Settings,
            endpoints: Endpoints::Ports(reserved),
            clock: Arc::new(SystemClock::new()),
            randomness: Randomness::OperatingSystem,
            drivers,
        }
    }
}

/// How a manager reaches its clusters.
pub enum ClusterAccess {
    /// By the settings: with a kubeconfig or as a service account.
    Settings,
    /// Through given transports: an embedded API server, or a layer that injects faults.
    Clients {
        /// The cluster with the machine objects.
        control: kube::Client,
        /// The cluster with the Nodes. `None` without a target cluster.
        target: Option<kube::Client>,
    },
}

/// How callers reach admission and conversion.
pub enum Endpoints {
    /// On the ports that the settings name, beside health and metrics. Some of these ports may be bound already.
    Ports(ReservedPorts),
    /// In this process, without port or certificate. The function receives the reviewer that answers.
    InProcess(Box<dyn FnOnce(Arc<dyn Reviewer>) + Send>),
}

/// Why a manager ends although no part of it failed: its caches may hold hollow objects, and the next manager reads all objects again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", diagnostics::CORRUPT_CACHES)]
pub struct CorruptCaches;

/// Runs a manager until SIGTERM, SIGINT or, if the settings say so, a changed kubeconfig, then drains it. A second signal ends it at once, unless it comes within a second after the
/// first.
///
/// # Errors
/// When the manager can't work: bad configuration, a port in use, an API server that can't be reached at the start, a lost lease, or a
/// failed task. Also when a second signal ended the manager. [`CorruptCaches`] when the caller has to start a new manager.
pub async fn run(settings: Settings, drivers: DriverSet) -> anyhow::Result<()> {
    run_over(ReservedPorts::default(), settings, drivers).await
}

/// The same as [`run`], with ports of the settings that are bound already.
///
/// # Errors
/// The errors of [`run`].
pub async fn run_over(reserved: ReservedPorts, settings: Settings, drivers: DriverSet) -> anyhow::Result<()> {
    // Only the first call in a process succeeds. A later call would install the same provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let environment = Environment::of_process(reserved, drivers);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut next_signal = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let stop = CancellationToken::new();
    let mut running = std::pin::pin!(run_in(settings, environment, stop.clone().cancelled_owned()));
    tokio::select! {
        ended = &mut running => return ended,
        () = next_signal() => stop.cancel(),
    }
    tokio::select! {
        ended = running => ended,
        () = second_signal(next_signal) => Err(anyhow::anyhow!("stopped by a second signal: ended at once, and aborted everything that was running")),
    }
}

/// A signal within this time after the first one is a repetition: `timeout` and supervisors signal a process and its group.
const REPETITION: Duration = Duration::from_secs(1);

/// Waits for a second signal after the first one, which has just come.
async fn second_signal(mut next_signal: impl AsyncFnMut()) {
    let first = Instant::now();
    loop {
        next_signal().await;
        if first.elapsed() >= REPETITION {
            return;
        }
        tracing::debug!("ignored a signal within a second after the first one");
    }
}

/// How long recording the answers of drivers may take while the process is stopping.
const RECORDING: Duration = Duration::from_secs(10);

/// How long the parts of a process may take to end.
fn graces(settings: ShutdownSettings) -> Graces {
    // The server keeps its own deadlines. Two seconds more let it log the requests that it had to abort.
    let serve = settings.delay.saturating_add(settings.timeout).saturating_add(Duration::from_secs(2));
    Graces { work: settings.timeout.max(settings.driver_drain.saturating_add(RECORDING)), serve }
}

/// Runs a manager in the given environment until `stop` ends, then drains it.
///
/// # Errors
/// The errors of [`run`].
pub async fn run_in(
    settings: Settings,
    environment: Environment,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let metrics = Metrics::new(Arc::new(move || started.elapsed()))?;
    let draw = environment.randomness.source_of_part(stream::TRACES);
    let (tracer, exporter) = traces::prepare(settings.tracing.as_ref(), &metrics, &environment.clock, draw);
    let common = Arc::new(Common {
        clock: environment.clock,
        metrics,
        tracer,
        health: Health::default(),
        randomness: environment.randomness,
        caches_corrupt: CancellationToken::new(),
        settings,
    });
    // Before the clients read the files: a change in between is noticed too.
    let kubeconfigs = kubeconfigs::Kubeconfigs::of(&common.settings).await;
    scrapes::show_build(&common.metrics);
    let clusters = clusters::Clusters::connect(&common, environment.cluster_access).await?;
    let mut tasks = Supervisor::new(graces(common.settings.shutdown));
    if let Some(exporter) = exporter {
        tasks.spawn(Stage::Support, "traces", exporter.run(tasks.stop_of(Stage::Support)));
    }
    timekeeping::start(&common, &mut tasks);
    let drivers = drivers::Drivers::new(&common, &environment.drivers, &mut tasks)?;
    let references = references::CachedReferences::of_namespace(&common.settings.namespace);
    let views = match &environment.endpoints {
        Endpoints::Ports(_) => extension::prepare(&common, &clusters, &mut tasks).await?,
        Endpoints::InProcess(_) => None,
    };
    serving::start(&common, &clusters, &drivers, &references, environment.endpoints, views.clone(), &mut tasks).await?;
    let state = if common.settings.controllers.is_empty() {
        caches::keep_without_controllers(&common, &clusters, drivers.registry, &references, &mut tasks)
    } else {
        let parts = control::start(&common, &clusters, drivers, &references, &mut tasks).await?;
        Some(views::ClusterState::of(&parts))
    };
    if let Some(views) = &views {
        extension::open(views, state.as_ref());
    }
    let stop_requested = async {
        tokio::select! {
            biased;
            () = stop => {}
            () = common.caches_corrupt.cancelled() => {}
            () = kubeconfigs.changed() => {}
        }
    };
    tasks.run(stop_requested).await?;
    tracing::info!("stopped");
    if common.caches_corrupt.is_cancelled() { Err(CorruptCaches.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are public. With a seed, the tokens could be computed from the names.
    #[test]
    fn a_process_draws_its_tokens_from_the_operating_system() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        assert_eq!(
            Environment::of_process(ReservedPorts::default(), DriverSet::built_in()).randomness,
            Randomness::OperatingSystem
        );
    }

    #[rstest::rstest]
    #[case::a_moment_later_is_a_repetition(&[3, 700], None)]
    #[case::seconds_later_is_a_second_signal(&[3000], Some(3000))]
    #[case::after_a_double_signal_too(&[3, 5000], Some(5000))]
    #[tokio::test(start_paused = true)]
    async fn a_further_signal(#[case] signals: &[u64], #[case] ends_after: Option<u64>) {
        let began = Instant::now();
        let mut signals = signals.iter().map(|after| began + Duration::from_millis(*after));
        let next_signal = async || match signals.next() {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), second_signal(next_signal)).await;
        assert_eq!(ended.ok().map(|()| began.elapsed()), ends_after.map(Duration::from_millis));
    }
}
