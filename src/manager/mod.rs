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
mod listeners;
mod loops;
mod observers;
mod references;
mod reviewer;
mod serving;
mod target;
mod views;

use std::{sync::Arc, time::Duration};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{
        clock::{SharedClock, TokioClock},
        supervisor::{Graces, Supervisor},
    },
    metrics::Metrics,
    server::{Health, Reviewer, Taken},
    settings::{Settings, ShutdownSettings},
};

/// What all parts of one manager share.
struct Common {
    settings: Settings,
    clock: SharedClock,
    metrics: Metrics,
    health: Health,
    /// Where all randomness of the process comes from: names, jitter, serial numbers.
    seed: u64,
}

impl Common {
    /// A random generator of its own for a part; parts do not disturb each other.
    fn random(&self, part: u64) -> ChaCha8Rng {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(part);
        random
    }

    /// A source of random numbers that may be called from anywhere.
    fn random_source(&self, part: u64) -> impl Fn() -> u64 + Send + Sync + 'static {
        let random = std::sync::Mutex::new(self.random(part));
        move || random.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next_u64()
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
}

/// What a manager works in. None of it belongs to the process, so that a test can rule all of it.
pub struct Surroundings {
    /// How the clusters are reached.
    pub reach: Reach,
    /// How others reach admission and conversion.
    pub face: Face,
    /// What time it is. Waits go by tokio's clock.
    pub clock: SharedClock,
    /// Where all randomness comes from: the same seed draws the same numbers.
    pub seed: u64,
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
    Ports(Taken),
    /// In this process: no port is taken and no certificate made; whoever starts the manager is given what answers.
    Given(Box<dyn FnOnce(Arc<dyn Reviewer>) + Send>),
}

/// Runs a manager until SIGTERM or SIGINT, then drains it; a second signal ends it at once.
///
/// # Errors
/// When it can't do anything useful: bad configuration, a busy port, an API server that can't be reached at the start, a
/// lost lease, or a task that failed. When it was cut off by a second signal.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    run_over(Taken::default(), settings).await
}

/// The same where some of the ports that the settings name have been taken before.
///
/// # Errors
/// As [`run`].
pub async fn run_over(taken: Taken, settings: Settings) -> anyhow::Result<()> {
    // The first one wins, and a second call tells nothing new.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let surroundings = Surroundings {
        reach: Reach::Settings,
        face: Face::Ports(taken),
        clock: Arc::new(TokioClock::system()),
        seed: rand::random(),
    };
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
        () = asked() => Err(anyhow::anyhow!("told to stop for the second time: ended at once, whatever was under way")),
    }
}

/// How long the parts of a process may take to end.
fn graces(settings: ShutdownSettings) -> Graces {
    // The server keeps to its own times; a little more lets it say what it had to cut off.
    let serve = settings.delay.saturating_add(settings.timeout).saturating_add(Duration::from_secs(2));
    Graces { work: settings.timeout, serve }
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
        seed: surroundings.seed,
        settings,
    });
    let clusters = clusters::Clusters::reach(&common, surroundings.reach).await?;
    let mut tasks = Supervisor::new(graces(common.settings.shutdown));
    let drivers = drivers::Drivers::new(&common)?;
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
    tasks.run(stop).await?;
    tracing::info!("stopped");
    Ok(())
}
