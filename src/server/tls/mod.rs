//! Certificates of the TLS listener: where they come from, how long they live, and how callers learn to trust them.
//!
//! What lives here: the three modes ([`CertMode`]), the pure rules of the self-managed one ([`plan`], [`bundle`]), the
//! loops that carry them out, and the pair that the next handshake gets. What does not: the listener (`server/`) and the
//! manifests of webhooks and CRDs. Source: spec/api-and-admission §11, spec/extension-apiserver §4.2.

pub mod authority;
mod authority_files;
pub mod bundle;
mod calls;
mod client;
mod contest;
pub mod expiry;
mod files;
mod injection;
pub mod material;
mod names;
pub mod plan;
mod resolver;
mod self_managed;
mod sni;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use rustls::server::ResolvesServerCert;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub use authority_files::AuthorityFile;
pub(super) use client::AnyHolder;
pub use client::{Authorities, LiveAuthorities};
pub use files::{NamedBy, POLL_INTERVAL, PairFiles};
pub use injection::Target;
pub use names::{InvalidServingName, serving_names};
pub use sni::SniPair;

use self::{
    authority::{CLOCK_SKEW, CertSecret},
    expiry::Audience,
    injection::{Bundle, Injection},
    material::{Certificate as Material, KeyPair, MaterialError},
    plan::{CertPlan, PlanSettings, Publication, Published, carry_out, plan},
    resolver::{ServingCertificate, Validity},
    self_managed::SelfManaged,
    sni::SniTable,
};
use super::health::{Check, Gate, Health};
use mcm_metrics::{Certificate, Metrics};

/// The wall clock.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;
/// What the API server's clock shows more than this host's.
pub type ClockOffset = Arc<dyn Fn() -> SignedDuration + Send + Sync>;
/// 128 random bits per call, for serial numbers and jitter.
pub type Entropy = Arc<dyn Fn() -> [u8; 16] + Send + Sync>;

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
    /// Somebody else provides files.
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

/// What the certificate manager works with.
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

/// The mode cannot work as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Self-managed certificates live in the control cluster.
    #[error("--cert-mode=self-managed needs the control cluster; without one use --cert-mode=files or --cert-mode=dev")]
    NoCluster,
    /// The ephemeral certificate could not be made.
    #[error("--cert-mode=dev: {0}")]
    Making(#[from] MaterialError),
}

/// The certificate as the rest of the process sees it. Clones see the same.
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

/// What the loops of this room have in common.
#[derive(Clone)]
struct Shared {
    serving: Arc<ServingCertificate>,
    bundle: Arc<watch::Sender<Bundle>>,
    /// Hosts of the URLs that the objects in our care call us by.
    hosts: Arc<watch::Sender<BTreeSet<String>>>,
    loaded: Check,
    bundles: Check,
    /// Where there are pairs for certain names.
    names: Option<Check>,
    metrics: Metrics,
    /// Rings while the certificate in use is not valid.
    alarm: Arc<Notify>,
    /// What the API server's clock shows more than this host's.
    offset: ClockOffset,
}

impl Shared {
    /// Takes a pair into use for the next handshakes; answers when it ends. The pair in use already is left as it is.
    fn load(&self, pair: &KeyPair) -> Result<Timestamp, MaterialError> {
        let certified = pair.certified_key()?;
        let Material { not_before: from, not_after: expires, .. } = *pair.leaf();
        if self.serving.current().is_none_or(|current| current.cert != certified.cert) {
            self.serving.replace(certified, Validity { from, until: expires });
            self.loaded.pass();
        }
        self.metrics.certificate.expiry.set(&Certificate { name: "serving" }, seconds(expires));
        Ok(expires)
    }

    /// Takes pairs for certain names into use.
    fn load_for_names(&self, table: SniTable, ends: impl Iterator<Item = Timestamp>) {
        self.serving.replace_names(table);
        if let Some(first) = ends.min() {
            self.metrics.certificate.expiry.set(&Certificate { name: "sni" }, seconds(first));
        }
    }

    fn all_names_have_certificates(&self) {
        if let Some(names) = &self.names {
            names.pass();
        }
    }

    /// Once all of them were loaded, a pair that is spoilt does not take the replica out of service: the old one stays in use.
    fn a_name_has_no_certificate(&self, why: &str) {
        self.count_refusal("sni");
        if let Some(names) = self.names.as_ref().filter(|names| !names.has_passed()) {
            names.fail(why);
        }
    }

    /// Tells callers whom to trust.
    fn publish(&self, content: &CertSecret) {
        if let Some(newest) = content.authorities.first() {
            let expires = seconds(newest.certificate.not_after);
            self.metrics.certificate.expiry.set(&Certificate { name: "ca" }, expires);
        }
        let pem: Arc<str> = content.bundle_pem().into();
        self.bundle.send_if_modified(|bundle| {
            let changed = bundle.as_deref() != Some(&*pem);
            if changed {
                *bundle = Some(pem);
            }
            changed
        });
    }

    fn bundle(&self) -> watch::Receiver<Bundle> {
        let mut receiver = self.bundle.subscribe();
        receiver.mark_changed();
        receiver
    }

    /// From now on the certificate should be valid for these hosts, too.
    fn called_by(&self, hosts: BTreeSet<String>) {
        self.hosts.send_if_modified(|known| {
            let changed = *known != hosts;
            *known = hosts;
            changed
        });
    }

    fn certificate_is_missing(&self, why: &str) {
        if self.serving.current().is_none() {
            self.loaded.fail(why);
        }
    }

    /// No handshake succeeds. The check passes again when another certificate is loaded, or this one is valid again; whoever
    /// can make another one is woken.
    fn certificate_is_not_valid(&self, why: &str) {
        self.loaded.fail(why);
        self.alarm.notify_waiters();
    }

    fn certificate_is_valid_again(&self) {
        self.loaded.pass();
    }

    /// Why no certificate may be made now: callers judge it by the API server's clock, and by this host's it would be valid
    /// too late, or too early.
    fn clocks_apart(&self) -> Option<String> {
        let offset = (self.offset)();
        (offset.abs() > CLOCK_SKEW).then(|| {
            format!(
                "no certificate is made while the clocks of this host and of the API server are {:#} apart; another replica may \
                 make it, or set the wrong clock right",
                offset.abs()
            )
        })
    }

    fn bundles_not_in_order(&self, objects: usize) {
        #[allow(clippy::cast_precision_loss)] // A handful of objects.
        self.metrics.certificate.ca_bundles_drifted.set(&(), objects as f64);
    }

    fn count_refusal(&self, name: &'static str) {
        self.metrics.certificate.reload_failures.inc(&Certificate { name });
    }

    fn count_repair(&self) {
        self.metrics.certificate.ca_bundle_repairs.inc(&());
    }

    fn count_contest(&self) {
        self.metrics.certificate.ca_bundle_contests.inc(&());
    }

    fn bundles_are_in_order(&self) {
        self.bundles.pass();
    }

    /// Once all bundles were seen, a later drift does not take the replica out of service: it can't be helped by that.
    fn bundles_are_missing(&self, why: &str) {
        if !self.bundles.has_passed() {
            self.bundles.fail(why);
        }
    }
}

#[allow(clippy::cast_precision_loss)] // Unix seconds stay far below 2^52.
fn seconds(time: Timestamp) -> f64 {
    time.as_second() as f64
}

/// Keeps the serving certificate, and what callers trust, in order.
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
        let shared = Shared {
            serving: Arc::clone(&serving),
            bundle: Arc::new(sender),
            hosts: Arc::new(watch::Sender::default()),
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
            alarm: Arc::default(),
            offset: Arc::new(|| SignedDuration::ZERO),
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

    /// What listeners need.
    pub fn handle(&self) -> CertificateHandle {
        self.handle.clone()
    }

    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { client, settings: CertificateSettings { mode, sni, clock, entropy }, shared, .. } = self;
        let audience = match (&mode, &client) {
            (CertMode::SelfManaged { namespace, name, .. }, Some(client)) => {
                Some(Audience::of_secret(client.clone(), namespace, name))
            }
            _ => None,
        };
        let expiry = expiry::run(shared.clone(), Arc::clone(&clock), audience, shutdown.clone());
        let names = sni::run(sni, shared.clone(), shutdown.clone());
        let expiry = async { tokio::join!(expiry, names) };
        let (published, publication) = watch::channel(None);
        let inject = |targets: Vec<Target>| {
            let client = client.clone().filter(|_| !targets.is_empty());
            let (clock, entropy, shared) = (Arc::clone(&clock), Arc::clone(&entropy), shared.clone());
            let shutdown = shutdown.clone();
            async move {
                if let Some(client) = client {
                    Injection { client, targets, clock, entropy, shared }.run(published, shutdown).await;
                } else {
                    // There is nobody to tell.
                    shared.bundles_are_in_order();
                    let mut bundle = shared.bundle();
                    loop {
                        let held = bundle.borrow_and_update().clone();
                        published.send_replace(held.map(|bundle| Published { bundle, since: (clock)() }));
                        tokio::select! {
                            () = shutdown.cancelled() => return,
                            Ok(()) = bundle.changed() => {}
                        }
                    }
                }
            }
        };
        match mode {
            CertMode::Files { files, interval } => {
                shared.bundles_are_in_order();
                tokio::join!(files::run(files, interval, shared, shutdown), expiry);
            }
            CertMode::Dev { settings, targets } => {
                let keep = keep_in_memory(settings, &clock, &entropy, &shared, publication, shutdown.clone());
                tokio::join!(keep, inject(targets), expiry);
            }
            CertMode::SelfManaged { namespace, name, settings, targets } => {
                let Some(client) = client.clone() else { return };
                let api: Api<Secret> = Api::namespaced(client, &namespace);
                let secret = SelfManaged {
                    api,
                    namespace,
                    name,
                    settings,
                    clock: Arc::clone(&clock),
                    entropy: Arc::clone(&entropy),
                    shared: shared.clone(),
                };
                tokio::join!(secret.run(publication, shutdown.clone()), inject(targets), expiry);
            }
        }
    }
}

/// Mode `dev`: the same steps as the Secret's, on a value.
async fn keep_in_memory(
    settings: PlanSettings,
    clock: &WallClock,
    entropy: &Entropy,
    shared: &Shared,
    mut published: watch::Receiver<Option<Published>>,
    shutdown: CancellationToken,
) {
    let mut content: Option<CertSecret> = None;
    let mut hosts = shared.hosts.subscribe();
    loop {
        // Heard from here on, or an alarm between the look and the wait would be lost.
        let alarm = shared.alarm.notified();
        let now = (clock)();
        let settings = settings.including(&hosts.borrow_and_update());
        let publication = Publication::of(published.borrow_and_update().as_ref(), content.as_ref());
        let step = plan(content.as_ref(), publication, now, &settings);
        let mut wait = Duration::ZERO;
        match (&step, carry_out(&step, content.clone(), now, &settings, || (entropy)())) {
            (CertPlan::Keep { until }, _) => wait = Duration::try_from(until.duration_since(now)).unwrap_or_default(),
            (_, Ok(Some(next))) => {
                if let Err(error) = shared.load(&next.serving) {
                    error!("the ephemeral certificate cannot be used: {error}");
                }
                shared.publish(&next);
                info!("made an ephemeral certificate; callers must trust this authority:\n{}", next.bundle_pem());
                content = Some(next);
            }
            (_, Ok(None)) => wait = Duration::from_secs(3600),
            (_, Err(error)) => {
                error!("{error}; trying again in a minute");
                wait = Duration::from_secs(60);
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait.min(Duration::from_secs(3600))) => {}
            () = alarm => {}
            Ok(()) = published.changed() => {}
            Ok(()) = hosts.changed() => {}
        }
    }
}

#[cfg(test)]
mod fake_api;
#[cfg(test)]
mod life_tests;
