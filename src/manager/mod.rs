//! One manager: its clusters, views, servers and control loops, and the tasks that keep them going.
//!
//! This room only puts parts together; what any part does is decided in its own room. Everything hangs off one call of
//! [`run`]: there is no process-wide state, so that several managers in one process stay possible. Order of the start:
//! configuration, ports, certificates, webhooks, then clusters, watches, leadership and loops; webhooks are served before
//! and without leadership (design: who runs where).

mod caches;
mod clusters;
mod control;
mod drivers;
mod extension;
#[cfg(feature = "external")]
mod external;
mod listeners;
mod loops;
mod observers;
mod owner_places;
mod randomness;
mod references;
pub mod registered_drivers;
mod reviewer;
mod serving;
mod target;
mod timekeeping;
mod told;
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
    supervisor::{Graces, Supervisor},
};
use mcm_metrics::Metrics;

/// What all parts of one manager share.
struct Common {
    settings: Settings,
    clock: SharedClock,
    metrics: Metrics,
    health: Health,
    /// Where names, jitter, tokens and serial numbers come from.
    randomness: Randomness,
    /// Cancelled when what this manager has read can't be trusted any more, and another one could read it anew.
    views_spoilt: CancellationToken,
}

impl Common {
    /// A random generator of its own for a part; parts do not disturb each other.
    fn random(&self, part: u64) -> Random {
        self.randomness.of_part(part)
    }

    /// A source of random numbers that may be called from anywhere.
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
}

/// What a manager works in. None of it belongs to the process, so that a test can rule all of it.
pub struct Surroundings {
    /// How the clusters are reached.
    pub reach: Reach,
    /// How others reach admission and conversion.
    pub face: Face,
    /// What time it is. Waits go by tokio's clock.
    pub clock: SharedClock,
    /// Where all randomness comes from.
    pub randomness: Randomness,
    /// Which drivers there are.
    pub drivers: DriverSet,
}

impl Surroundings {
    /// Those of production: clusters and ports as the settings say, and the clock and the randomness of the system.
    fn of_a_process(reserved: ReservedPorts, drivers: DriverSet) -> Self {
        Self {
            reach: Reach::Settings,
            face: Face::Ports(reserved),
            clock: Arc::new(SystemClock::new()),
            randomness: Randomness::OperatingSystem,
            drivers,
        }
    }
}

/// How a manager reaches its clusters.
pub enum Reach {
    /// As the settings say: by kubeconfig or as a service account.
    Settings,
    /// Through given transports: an embedded API server, or a layer that injects faults.
    Clients {
        /// Where the machine objects live.
        control: kube::Client,
        /// Where the Nodes live; none without a target.
        target: Option<kube::Client>,
    },
}

/// How admission and conversion are reached.
pub enum Face {
    /// On the ports that the settings name, beside health and metrics; some may have been taken before.
    Ports(ReservedPorts),
    /// In this process: no port is taken and no certificate made; whoever starts the manager is given what answers.
    Given(Box<dyn FnOnce(Arc<dyn Reviewer>) + Send>),
}

/// Why a manager ends by itself although no part of it failed: what it holds can't be trusted, and the next one reads all anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", told::SPOILT_VIEWS)]
pub struct SpoiltViews;

/// Runs a manager until SIGTERM or SIGINT, then drains it; a further signal, a second later or more, ends it at once.
///
/// # Errors
/// When it can't do anything useful: bad configuration, a busy port, an API server that can't be reached at the start, a
/// lost lease, or a task that failed. When it was cut off by a second signal. [`SpoiltViews`] when another manager has to begin in
/// its place.
pub async fn run(settings: Settings, drivers: DriverSet) -> anyhow::Result<()> {
    run_over(ReservedPorts::default(), settings, drivers).await
}

/// The same where some of the ports that the settings name have been taken before.
///
/// # Errors
/// As [`run`].
pub async fn run_over(reserved: ReservedPorts, settings: Settings, drivers: DriverSet) -> anyhow::Result<()> {
    // The first one wins, and a second call tells nothing new.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let surroundings = Surroundings::of_a_process(reserved, drivers);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut asked = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let stop = CancellationToken::new();
    let mut running = std::pin::pin!(run_in(settings, surroundings, stop.clone().cancelled_owned()));
    tokio::select! {
        ended = &mut running => return ended,
        () = asked() => stop.cancel(),
    }
    tokio::select! {
        ended = running => ended,
        () = asked_again(asked) => Err(anyhow::anyhow!("told to stop for the second time: ended at once, whatever was under way")),
    }
}

/// Signals so soon after the first one are the same wish: `timeout` and supervisors signal a process and its group.
const SAME_WISH: Duration = Duration::from_secs(1);

/// Waits until the process, which has just been asked to stop, is asked for the second time.
async fn asked_again(mut asked: impl AsyncFnMut()) {
    let first = Instant::now();
    loop {
        asked().await;
        if first.elapsed() >= SAME_WISH {
            return;
        }
        tracing::debug!("asked to stop again within a second: the same wish");
    }
}

/// What drivers answered while the process is stopping may take so long to be recorded.
const RECORDING: Duration = Duration::from_secs(10);

/// How long the parts of a process may take to end.
fn graces(settings: ShutdownSettings) -> Graces {
    // The server keeps to its own times; a little more lets it say what it had to cut off.
    let serve = settings.delay.saturating_add(settings.timeout).saturating_add(Duration::from_secs(2));
    Graces { work: settings.timeout.max(settings.driver_drain.saturating_add(RECORDING)), serve }
}

/// Runs a manager in given surroundings until `stop` ends, then drains it.
///
/// # Errors
/// As [`run`].
pub async fn run_in(
    settings: Settings,
    surroundings: Surroundings,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let common = Arc::new(Common {
        clock: surroundings.clock,
        metrics: Metrics::new(Arc::new(move || started.elapsed()))?,
        health: Health::default(),
        randomness: surroundings.randomness,
        views_spoilt: CancellationToken::new(),
        settings,
    });
    let clusters = clusters::Clusters::reach(&common, surroundings.reach).await?;
    let mut tasks = Supervisor::new(graces(common.settings.shutdown));
    timekeeping::start(&common, &mut tasks);
    let drivers = drivers::Drivers::new(&common, &surroundings.drivers, &mut tasks)?;
    let references = references::CachedReferences::of_namespace(&common.settings.namespace);
    let views = match &surroundings.face {
        Face::Ports(_) => extension::prepare(&common, &clusters, &mut tasks).await?,
        Face::Given(_) => None,
    };
    serving::start(&common, &clusters, &drivers, &references, surroundings.face, views.clone(), &mut tasks).await?;
    let seen = if common.settings.controllers.is_empty() {
        caches::only_to_answer(&common, &clusters, drivers.registry, &references, &mut tasks)
    } else {
        let parts = control::start(&common, &clusters, drivers, &references, &mut tasks).await?;
        Some(views::Seen::of(&parts))
    };
    if let Some(views) = &views {
        extension::open(views, seen.as_ref());
    }
    let asked = async {
        tokio::select! {
            biased;
            () = stop => {}
            () = common.views_spoilt.cancelled() => {}
        }
    };
    tasks.run(asked).await?;
    tracing::info!("stopped");
    if common.views_spoilt.is_cancelled() { Err(SpoiltViews.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that a seed draws are seen by everybody, and would tell the tokens that it draws.
    #[test]
    fn a_process_draws_its_tokens_from_the_operating_system() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        assert_eq!(
            Surroundings::of_a_process(ReservedPorts::default(), DriverSet::built_in()).randomness,
            Randomness::OperatingSystem
        );
    }

    #[rstest::rstest]
    #[case::a_moment_later_is_the_same_wish(&[3, 700], None)]
    #[case::seconds_later_is_a_second_wish(&[3000], Some(3000))]
    #[case::after_a_double_signal_too(&[3, 5000], Some(5000))]
    #[tokio::test(start_paused = true)]
    async fn a_further_signal(#[case] signals: &[u64], #[case] ends_after: Option<u64>) {
        let began = Instant::now();
        let mut signals = signals.iter().map(|after| began + Duration::from_millis(*after));
        let asked = async || match signals.next() {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), asked_again(asked)).await;
        assert_eq!(ended.ok().map(|()| began.elapsed()), ends_after.map(Duration::from_millis));
    }
}
