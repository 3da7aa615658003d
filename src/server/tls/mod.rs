//! Certificates of the TLS listener: their source, their lifetime, and the CA bundles by which callers trust them.
//!
//! Contains the three modes ([`CertMode`]), the pure rules of the self-managed mode ([`plan`], [`bundle`]), the passes that carry
//! them out, and the pair for the next handshake. The listener is in `server/`. Source: spec/api-and-admission §11,
//! spec/extension-apiserver §4.2.
//!
//! The passes run on a work queue, as those of the controllers do, but on every replica: webhooks are served without
//! leadership. They call kube's API themselves, since the Secret is replaced (its role grants `update` only) and bundles are
//! patched under a field manager of their own, in objects whose kinds are known at run time.

pub mod authority;
mod authority_files;
pub mod bundle;
mod client;
mod contest;
pub mod expiry;
mod files;
mod in_memory;
mod injection;
pub mod material;
mod names;
pub mod plan;
mod resolver;
mod self_managed;
mod shared;
mod sni;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use kube::{Api, Client};
use rustls::server::ResolvesServerCert;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use authority_files::AuthorityFile;
pub(super) use client::AnyHolder;
pub use client::{Authorities, LiveAuthorities};
pub use files::{NamedBy, POLL_INTERVAL, PairFiles};
pub use injection::Target;
pub use names::{InvalidServingName, serving_names};
pub use sni::SniPair;

use self::{
    expiry::EventTarget,
    in_memory::InMemory,
    injection::Injection,
    material::MaterialError,
    plan::PlanSettings,
    resolver::ServingCertificate,
    self_managed::SelfManaged,
    shared::{Shared, Subject},
};
use super::health::{Gate, Health};
use controller_runtime::queue::{Outcome, WorkQueue};
use mcm_metrics::Metrics;

/// The name of the queue.
const QUEUE: &str = "certificates";
/// A call that hangs lets the other subjects go on.
const WORKERS: usize = 4;
/// Callers can't verify this process while a pass fails, so the pause between two tries is at most this long.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

/// The wall clock.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;
/// How far the API server's clock is ahead of this host's clock.
pub type ClockOffset = Arc<dyn Fn() -> SignedDuration + Send + Sync>;
/// 128 random bits per call, for serial numbers and jitter.
pub type Entropy = Arc<dyn Fn() -> [u8; 16] + Send + Sync>;
/// The bundle (PEM) that callers should trust, once there is one.
type Bundle = Option<Arc<str>>;

/// Where the certificate comes from. `--cert-mode`.
#[derive(Clone, Debug)]
pub enum CertMode {
    /// The process makes and rotates it in a Secret, and keeps `caBundle` fields right.
    SelfManaged {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name, `machine-controller-manager-certs`.
        name: String,
        /// Names and lifetimes.
        settings: PlanSettings,
        /// Objects whose `caBundle` is kept right.
        targets: Vec<Target>,
    },
    /// Another program provides files.
    Files {
        /// Which.
        files: PairFiles,
        /// How often they are read; [`POLL_INTERVAL`].
        interval: Duration,
    },
    /// As self-managed, but kept in memory only and lost with the process.
    Dev {
        /// Names and lifetimes.
        settings: PlanSettings,
        /// Objects whose `caBundle` is kept right, if there is a cluster.
        targets: Vec<Target>,
    },
}

/// The settings of the certificate manager.
#[derive(Clone)]
pub struct CertificateSettings {
    /// Where the certificate comes from.
    pub mode: CertMode,
    /// Further pairs, for certain names.
    pub sni: Vec<SniPair>,
    /// The wall clock.
    pub clock: WallClock,
    /// Randomness.
    pub entropy: Entropy,
}

/// Why a mode can't work.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Self-managed certificates live in the control cluster.
    #[error("--cert-mode=self-managed needs the control cluster; without one use --cert-mode=files or --cert-mode=dev")]
    NoCluster,
    /// The ephemeral certificate could not be made.
    #[error("--cert-mode=dev: {0}")]
    Making(#[from] MaterialError),
}

/// Gives the rest of the process the current certificate. Clones share it.
#[derive(Clone)]
pub struct CertificateHandle {
    serving: Arc<ServingCertificate>,
    bundle: watch::Receiver<Bundle>,
}

impl CertificateHandle {
    /// For the TLS configuration of a listener.
    pub fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::clone(&self.serving) as _
    }

    /// The authorities (PEM) that callers must trust; none in mode `files`, or as long as there are none.
    pub fn ca_bundle(&self) -> Option<Arc<str>> {
        self.bundle.borrow().clone()
    }

    /// Whether handshakes can succeed.
    pub fn is_loaded(&self) -> bool {
        self.serving.current().is_some()
    }
}

/// Keeps the serving certificate and the CA bundles of callers up to date.
pub struct CertificateManager {
    client: Option<Client>,
    settings: CertificateSettings,
    shared: Shared,
    handle: CertificateHandle,
}

impl CertificateManager {
    /// Prepares the mode. Registers the readiness checks `certificate` and, where bundles are in our care, `ca-bundles`.
    ///
    /// # Errors
    /// When the mode needs a cluster and there is none.
    pub fn new(
        client: Option<Client>,
        settings: CertificateSettings,
        metrics: &Metrics,
        health: &Health,
    ) -> Result<Self, CertificateError> {
        if matches!(settings.mode, CertMode::SelfManaged { .. }) && client.is_none() {
            return Err(CertificateError::NoCluster);
        }
        let serving = Arc::new(ServingCertificate::default());
        let (sender, bundle) = watch::channel(None);
        let targets = match &settings.mode {
            CertMode::SelfManaged { targets, .. } | CertMode::Dev { targets, .. } if client.is_some() => {
                targets.clone()
            }
            _ => Vec::new(),
        };
        let queue = WorkQueue::new(QUEUE, metrics.queue(QUEUE)).retrying_within(LONGEST_BACKOFF);
        let shared = Shared {
            queue: Arc::new(queue),
            clock: Arc::clone(&settings.clock),
            entropy: Arc::clone(&settings.entropy),
            offset: Arc::new(|| SignedDuration::ZERO),
            serving: Arc::clone(&serving),
            bundle: sender,
            targets,
            hosts: Mutex::default(),
            published: Mutex::default(),
            loaded: health.check("certificate", Gate::Readiness, "no serving certificate is loaded yet"),
            bundles: health.check("ca-bundles", Gate::Readiness, "the webhook configurations were not seen yet"),
            names: (!settings.sni.is_empty()).then(|| {
                health.check(
                    "sni-certificates",
                    Gate::Readiness,
                    "the certificates of --tls-sni-cert-key are not loaded yet",
                )
            }),
            metrics: metrics.clone(),
        };
        let handle = CertificateHandle { serving, bundle };
        Ok(Self { client, settings, shared, handle })
    }

    /// The same manager, which makes no certificate while this host's clock differs too much from the API server's.
    #[must_use]
    pub fn comparing_clocks(mut self, offset: ClockOffset) -> Self {
        self.shared.offset = offset;
        self
    }

    /// The handle for listeners.
    pub fn handle(&self) -> CertificateHandle {
        self.handle.clone()
    }

    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { client, settings: CertificateSettings { mode, sni, .. }, shared, .. } = self;
        let shared = Arc::new(shared);
        if shared.targets.is_empty() {
            shared.bundles.pass();
        }
        let injection = Injection::new(client.as_ref(), &shared);
        let mut events = None;
        let keeper = match mode {
            CertMode::Files { files, interval } => Keeper::Files(files, interval),
            CertMode::Dev { settings, .. } => {
                Keeper::Memory(InMemory { settings, shared: Arc::clone(&shared), content: Mutex::default() })
            }
            CertMode::SelfManaged { namespace, name, settings, .. } => {
                let Some(client) = client else { return };
                events = Some(EventTarget::of_secret(client.clone(), &namespace, &name));
                let (api, shared) = (Api::namespaced(client, &namespace), Arc::clone(&shared));
                let memory = Mutex::default();
                Keeper::Secret(Box::new(SelfManaged { api, namespace, name, settings, shared, memory }))
            }
        };
        let controller = Arc::new(Controller { keeper, injection });
        let working = Arc::clone(&controller);
        let pass = move |subject| {
            let controller = Arc::clone(&working);
            async move { controller.pass(subject).await }
        };
        let passes = Arc::clone(&shared.queue).run(WORKERS, shutdown.clone(), pass);
        let sources = async {
            tokio::join!(controller.follow(&shared), sni::follow(sni, &shared), expiry::follow(&shared, events))
        };
        tokio::join!(passes, shutdown.run_until_cancelled(sources));
    }
}

/// Where the certificate of a mode is kept.
enum Keeper {
    Secret(Box<SelfManaged>),
    Memory(InMemory),
    Files(PairFiles, Duration),
}

/// Runs the pass of each subject.
struct Controller {
    keeper: Keeper,
    injection: Injection,
}

impl Controller {
    async fn pass(&self, subject: Subject) -> Outcome {
        match (subject, &self.keeper) {
            (Subject::Certificate, Keeper::Secret(secret)) => secret.pass().await,
            (Subject::Certificate, Keeper::Memory(memory)) => memory.pass(),
            // The writer of the files renews the certificate.
            (Subject::Certificate, Keeper::Files(..)) => Outcome::Settled,
            (Subject::Bundle(place), _) => self.injection.pass(place).await,
        }
    }

    /// Watches for changes, and queues a pass for each.
    async fn follow(&self, shared: &Shared) {
        let keeper = async {
            match &self.keeper {
                Keeper::Secret(secret) => secret.follow().await,
                Keeper::Memory(_) => shared.queue.add(Subject::Certificate),
                Keeper::Files(files, interval) => files::follow(files, *interval, shared).await,
            }
        };
        tokio::join!(keeper, self.injection.follow());
    }
}

#[cfg(test)]
mod fake_api;
#[cfg(test)]
mod life_tests;
