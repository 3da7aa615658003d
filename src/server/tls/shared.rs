//! The state that all certificate passes share: the certificate in use, the CA bundle, and the queue.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::watch;

use super::{
    Bundle, ClockOffset, Entropy, Target, WallClock,
    authority::{CLOCK_SKEW, CertSecret},
    material::{Certificate as Material, KeyPair, MaterialError},
    plan::{PlanSettings, Publication, Published},
    resolver::{ServingCertificate, Validity},
    sni::SniTable,
};
use crate::server::health::Check;
use controller_runtime::{
    lock,
    queue::{Outcome, WorkQueue},
};
use mcm_metrics::{Certificate, Metrics};

/// The longest wait for the next pass of a subject.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The subject of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// The certificate and its authorities.
    Certificate,
    /// The CA bundle in the target at this place.
    Bundle(usize),
}

/// The state that all certificate passes share.
pub(super) struct Shared {
    pub(super) queue: Arc<WorkQueue<Subject>>,
    pub(super) clock: WallClock,
    pub(super) entropy: Entropy,
    /// How far the API server's clock is ahead of this host's clock.
    pub(super) offset: ClockOffset,
    pub(super) serving: Arc<ServingCertificate>,
    pub(super) bundle: watch::Sender<Bundle>,
    /// The objects whose `caBundle` this process keeps right.
    pub(super) targets: Vec<Target>,
    /// Hosts in the URLs by which these objects call this process.
    pub(super) hosts: Mutex<BTreeSet<String>>,
    /// The bundle that all of them have.
    pub(super) published: Mutex<Option<Published>>,
    pub(super) loaded: Check,
    pub(super) bundles: Check,
    /// `None` without pairs for certain names.
    pub(super) names: Option<Check>,
    pub(super) metrics: Metrics,
}

impl Shared {
    /// Uses a pair for the next handshakes. Returns when it expires. If the pair is already used, nothing changes.
    pub(super) fn load(&self, pair: &KeyPair) -> Result<Timestamp, MaterialError> {
        let certified = pair.certified_key()?;
        let Material { not_before: from, not_after: expires, .. } = *pair.leaf();
        if self.serving.current().is_none_or(|current| current.cert != certified.cert) {
            self.serving.replace(certified, Validity { from, until: expires });
            self.loaded.pass();
        }
        self.metrics.certificate.expiry.set(&Certificate { name: "serving" }, seconds(expires));
        Ok(expires)
    }

    /// Uses pairs for certain names.
    pub(super) fn load_for_names(&self, table: SniTable, ends: impl Iterator<Item = Timestamp>) {
        self.serving.replace_names(table);
        if let Some(first) = ends.min() {
            self.metrics.certificate.expiry.set(&Certificate { name: "sni" }, seconds(first));
        }
    }

    pub(super) fn all_names_have_certificates(&self) {
        if let Some(names) = &self.names {
            names.pass();
        }
    }

    /// After all of them were loaded, an unusable pair does not make the replica unready, because the old pair stays in use.
    pub(super) fn a_name_has_no_certificate(&self, why: &str) {
        self.count_refusal("sni");
        if let Some(names) = self.names.as_ref().filter(|names| !names.has_passed()) {
            names.fail(why);
        }
    }

    /// Publishes the CA bundle for callers.
    pub(super) fn publish(&self, content: &CertSecret) {
        if let Some(newest) = content.authorities.first() {
            let expires = seconds(newest.certificate.not_after);
            self.metrics.certificate.expiry.set(&Certificate { name: "ca" }, expires);
        }
        let pem: Arc<str> = content.bundle_pem().into();
        let changed = self.bundle.send_if_modified(|bundle| {
            let changed = bundle.as_deref() != Some(&*pem);
            if changed {
                *bundle = Some(pem);
            }
            changed
        });
        if changed {
            // Without targets, no caller needs the bundle. With targets, their passes report later when all of them have it.
            self.held_by_all(self.bundle().filter(|_| self.targets.is_empty()));
            (0..self.targets.len()).for_each(|place| self.queue.add(Subject::Bundle(place)));
        }
    }

    /// The authorities (PEM) that callers must trust, if there are any yet.
    pub(super) fn bundle(&self) -> Bundle {
        self.bundle.borrow().clone()
    }

    /// Every target has this bundle. `None` means that not all have the same.
    pub(super) fn held_by_all(&self, bundle: Bundle) {
        let mut published = lock(&self.published);
        if published.as_ref().map(|published| &published.bundle) != bundle.as_ref() {
            *published = bundle.map(|bundle| Published { bundle, since: (self.clock)() });
            self.queue.add(Subject::Certificate);
        }
    }

    /// Whether every target has the bundle of this content.
    pub(super) fn publication_of(&self, content: Option<&CertSecret>) -> Publication {
        Publication::of(lock(&self.published).as_ref(), content)
    }

    /// The certificate must also be valid for these hosts from now on.
    pub(super) fn called_by(&self, hosts: BTreeSet<String>) {
        let mut known = lock(&self.hosts);
        if *known != hosts {
            *known = hosts;
            self.queue.add(Subject::Certificate);
        }
    }

    /// These settings, with the hosts by which targets call this process.
    pub(super) fn with_hosts(&self, settings: &PlanSettings) -> PlanSettings {
        settings.including(&lock(&self.hosts))
    }

    pub(super) fn certificate_is_missing(&self, why: &str) {
        if self.serving.current().is_none() {
            self.loaded.fail(why);
        }
    }

    /// No handshake succeeds. The check passes again when another certificate is loaded, or when this one is valid again. A pass
    /// that can make another certificate is queued.
    pub(super) fn certificate_is_not_valid(&self, why: &str) {
        self.loaded.fail(why);
        self.queue.add(Subject::Certificate);
    }

    /// Why no certificate may be made now: callers judge it by the API server's clock, and by this host's it would be valid
    /// too late, or too early.
    pub(super) fn clocks_apart(&self) -> Option<String> {
        let offset = (self.offset)();
        (offset.abs() > CLOCK_SKEW).then(|| {
            format!(
                "no certificate is made while the clocks of this host and of the API server are {:#} apart; another replica may \
                 make it, or set the wrong clock right",
                offset.abs()
            )
        })
    }

    pub(super) fn bundles_not_in_order(&self, objects: usize) {
        #[allow(clippy::cast_precision_loss)] // A handful of objects.
        self.metrics.certificate.ca_bundles_drifted.set(&(), objects as f64);
    }

    pub(super) fn count_refusal(&self, name: &'static str) {
        self.metrics.certificate.reload_failures.inc(&Certificate { name });
    }

    /// After all bundles were right once, a later drift does not make the replica unready, because that would not help.
    pub(super) fn bundles_are_missing(&self, why: &str) {
        if !self.bundles.has_passed() {
            self.bundles.fail(why);
        }
    }
}

#[allow(clippy::cast_precision_loss)] // Unix seconds stay far below 2^52.
fn seconds(time: Timestamp) -> f64 {
    time.as_second() as f64
}

/// The outcome of a pass whose subject is due again at this moment.
pub(super) fn look_again_at(moment: Timestamp, now: Timestamp) -> Outcome {
    let wait = Duration::try_from(moment.duration_since(now)).unwrap_or_default();
    Outcome::LookAgain(wait.min(LONGEST_WAIT), "time alone makes a step due")
}
#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::{
        super::{
            CertMode, CertificateManager, CertificateSettings,
            fake_api::FakeApi,
            plan::{CertPlan, carry_out},
        },
        *,
    };
    use crate::server::Health;

    /// The passes of the targets report a bundle that all targets have, and a later change of the publication would remove that report. The
    /// metrics read their clock when a subject is queued. In that moment its pass could begin.
    #[tokio::test]
    async fn the_old_publication_ends_before_the_passes_of_a_new_bundle_are_queued() {
        let shared = Arc::new(OnceLock::<Shared>::new());
        let publications = Arc::new(Mutex::new(Vec::new()));
        let (probe, seen) = (Arc::clone(&shared), Arc::clone(&publications));
        let metrics = Metrics::new(Arc::new(move || {
            // The publication is locked while its own change queues a subject.
            if let Some(Ok(published)) = probe.get().map(|shared| shared.published.try_lock()) {
                lock(&seen).push(published.is_some());
            }
            Duration::ZERO
        }));
        let (metrics, names) = (metrics.unwrap(), PlanSettings::for_names(["mcm".to_owned()].into()));
        let content = carry_out(&CertPlan::Create, None, Timestamp::now(), &names, || [7; 16]).unwrap().unwrap();
        let settings = CertificateSettings {
            mode: CertMode::SelfManaged {
                namespace: "ns".to_owned(),
                name: "certs".to_owned(),
                settings: names,
                targets: Target::all("mcm", None),
            },
            sni: Vec::new(),
            clock: Arc::new(Timestamp::now),
            entropy: Arc::new(|| [7; 16]),
        };
        let manager = CertificateManager::new(Some(FakeApi::new().client()), settings, &metrics, &Health::default());
        let shared = shared.get_or_init(|| manager.unwrap().shared);
        *lock(&shared.published) = Some(Published { bundle: "before".into(), since: Timestamp::now() });
        shared.publish(&content);
        assert_eq!(*lock(&publications), vec![false; shared.targets.len()]);
    }
}
