//! Mode `self-managed`: the Secret that all replicas share.
//!
//! Every replica watches the Secret and loads what it holds; whichever finds a step due carries it out, with optimistic
//! concurrency: the loser of a race sees the winner's Secret and finds nothing left to do. No leader is needed, so that
//! webhooks are served before leadership. Which step is due is decided in [`super::plan`].

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, ResourceExt,
    api::PostParams,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    Entropy, Shared, WallClock,
    authority::CertSecret,
    calls::{back_off, call, fraction_of},
    plan::{CertPlan, PlanSettings, Publication, Published, RenewReason, carry_out, plan},
};
use controller_runtime::error::ApiError;
use machine_api::names::{CERTIFICATE_FIELD_MANAGER, annotation};

/// Steps that can wait do so for a random part of this, so that replicas rarely race.
const SPREAD: Duration = Duration::from_secs(15);
/// The same for steps that should not wait.
const SHORT_SPREAD: Duration = Duration::from_millis(300);

/// How often the clocks are looked at again while they differ.
const CLOCKS_LOOK: Duration = Duration::from_secs(10);

/// What is known of the Secret.
enum Seen {
    /// Nothing yet.
    Unknown,
    /// The watch's last word.
    Known(Option<Box<Secret>>),
}

/// A step that is going to be carried out.
struct Intended {
    step: CertPlan,
    at: Instant,
}

pub(super) struct SelfManaged {
    pub(super) api: Api<Secret>,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) settings: PlanSettings,
    pub(super) clock: WallClock,
    pub(super) entropy: Entropy,
    pub(super) shared: Shared,
}

impl SelfManaged {
    /// Keeps the Secret and what is served in order until `shutdown`.
    pub(super) async fn run(self, mut published: watch::Receiver<Option<Published>>, shutdown: CancellationToken) {
        let mut events = std::pin::pin!(watch_object(self.api.clone(), &self.name).default_backoff());
        let mut hosts = self.shared.hosts.subscribe();
        let mut seen = Seen::Unknown;
        let mut intended: Option<Intended> = None;
        let mut last_good: Option<CertSecret> = None;
        // The watch brings the Secret; only if it does not is it read.
        let mut look_again = Instant::now() + Duration::from_secs(5);
        let mut failures = 0;
        let mut reported = None;
        let mut told_of_clocks = false;
        let ringing = self.shared.alarm.clone();
        let mut alarm = std::pin::pin!(ringing.notified());
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = &mut alarm => alarm.set(ringing.notified()),
                event = events.next() => match event {
                    Some(Ok(found)) => (seen, reported) = (Seen::Known(found.map(Box::new)), None),
                    Some(Err(error)) => {
                        self.report_once(ApiError::from(error), "watch", &mut reported);
                        seen = self.read(&mut reported).await;
                    }
                    None => return,
                },
                Ok(()) = published.changed() => {}
                Ok(()) = hosts.changed() => {}
                () = tokio::time::sleep_until(look_again) => if matches!(seen, Seen::Unknown) {
                    seen = self.read(&mut reported).await;
                }
            }
            look_again = Instant::now() + Duration::from_secs(3600);
            let Seen::Known(found) = &seen else {
                // A healthy watch of an unchanged Secret says nothing: ask again.
                failures += 1;
                look_again = Instant::now() + back_off(failures, (self.entropy)());
                continue;
            };
            let read = found.as_deref().and_then(|secret| self.load(secret));
            // A Secret that was lost or spoilt is put back as it was, so that nobody's trust is broken.
            let restore = read.is_none();
            if read.is_some() {
                last_good.clone_from(&read);
            }
            let now = (self.clock)();
            let settings = self.settings.including(&hosts.borrow_and_update());
            let publication = Publication::of(published.borrow_and_update().as_ref(), last_good.as_ref());
            let step = plan(last_good.as_ref(), publication, now, &settings);
            let step = if restore && last_good.is_some() { restored_first(&step, now) } else { step };
            let makes = !matches!(step, CertPlan::Keep { .. });
            if makes && self.clocks_forbid(&step, &mut told_of_clocks) {
                (intended, look_again) = (None, Instant::now() + CLOCKS_LOOK);
                continue;
            }
            told_of_clocks = false;
            let desired = match &step {
                CertPlan::Keep { until } if !restore => {
                    intended = None;
                    let wait = Duration::try_from(until.duration_since(now)).unwrap_or_default();
                    look_again = Instant::now() + wait.min(Duration::from_secs(3600));
                    continue;
                }
                CertPlan::Keep { .. } => Ok(last_good.clone()),
                step => {
                    let at = self.time_for(step, intended.as_ref());
                    if at > Instant::now() {
                        (intended, look_again) = (Some(Intended { step: step.clone(), at }), at);
                        continue;
                    }
                    carry_out(step, last_good.clone(), now, &settings, || (self.entropy)())
                }
            };
            intended = None;
            let desired = match desired {
                Ok(Some(desired)) => desired,
                Ok(None) => continue,
                Err(error) => {
                    error!("{error}; trying again in an hour");
                    continue;
                }
            };
            match self.write(found.as_deref(), &desired).await {
                Ok(written) => {
                    failures = 0;
                    info!(secret = %self.display(), step = ?Brief(&step), "wrote the certificate Secret");
                    seen = Seen::Known(Some(Box::new(written)));
                    look_again = Instant::now();
                }
                Err(problem) => {
                    failures += 1;
                    self.report(&problem, "write");
                    // The loser of a race learns at once what the winner wrote, lest it undo the winner's CA bundles.
                    if lost_a_race(&problem) && failures <= 3 {
                        seen = self.read(&mut reported).await;
                        look_again = Instant::now();
                    } else {
                        seen = Seen::Unknown;
                        look_again = Instant::now() + back_off(failures, (self.entropy)());
                    }
                }
            }
        }
    }

    /// Whether the clocks differ too much for a certificate to be made; that is told once.
    fn clocks_forbid(&self, step: &CertPlan, told: &mut bool) -> bool {
        let Some(why) = self.shared.clocks_apart() else { return false };
        if !std::mem::replace(told, true) {
            error!(secret = %self.display(), step = ?Brief(step), "{why}");
        }
        self.shared.certificate_is_missing(&why);
        true
    }

    /// Takes the Secret's pair into use if it is any good.
    fn load(&self, secret: &Secret) -> Option<CertSecret> {
        let read = CertSecret::from_data(secret.data.as_ref()?);
        let loaded = read.and_then(|content| self.shared.load(&content.serving).map(|_| content));
        match loaded {
            Ok(content) => {
                self.shared.publish(&content);
                Some(content)
            }
            Err(error) => {
                self.shared.count_refusal("serving");
                warn!(secret = %self.display(), "the certificate Secret cannot be used and is written anew: {error}");
                None
            }
        }
    }

    /// When to carry a step out: what cannot wait now, the rest after a random wait that is kept while the step stays.
    fn time_for(&self, step: &CertPlan, intended: Option<&Intended>) -> Instant {
        match (step, intended) {
            (CertPlan::Create, _) => Instant::now(),
            (step, Some(intended)) if intended.step == *step => intended.at,
            // Somebody cannot call until it is done.
            (CertPlan::RenewServing { reason: RenewReason::NameMissing | RenewReason::Unusable, .. }, _) => {
                Instant::now() + fraction_of(SHORT_SPREAD, (self.entropy)())
            }
            _ => Instant::now() + fraction_of(SPREAD, (self.entropy)()),
        }
    }

    async fn write(&self, found: Option<&Secret>, desired: &CertSecret) -> Result<Secret, ApiError> {
        let params = PostParams { field_manager: Some(CERTIFICATE_FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let mut secret = found.cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        });
        let generation = secret
            .annotations()
            .get(annotation::CERTIFICATE_GENERATION)
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(0);
        secret.annotations_mut().insert(annotation::CERTIFICATE_GENERATION.to_owned(), (generation + 1).to_string());
        // Keys that somebody else put there stay.
        secret.data.get_or_insert_default().extend(desired.to_data());
        match found {
            // The Secret carries the resourceVersion it was read with: a faster replica wins.
            Some(_) => call(self.api.replace(&self.name, &params, &secret)).await,
            None => call(self.api.create(&params, &secret)).await,
        }
    }

    /// Reads the Secret, because the watch or a write failed.
    async fn read(&self, reported: &mut Option<ApiError>) -> Seen {
        match call(self.api.get_opt(&self.name)).await {
            Ok(found) => Seen::Known(found.map(Box::new)),
            Err(error) => {
                self.shared.certificate_is_missing(&format!("Secret {} cannot be read: {error}", self.display()));
                self.report_once(error, "read", reported);
                Seen::Unknown
            }
        }
    }

    /// Reports a problem unless it is the one reported last.
    fn report_once(&self, problem: ApiError, verb: &str, reported: &mut Option<ApiError>) {
        if reported.as_ref() != Some(&problem) {
            self.report(&problem, verb);
            *reported = Some(problem);
        }
    }

    fn report(&self, problem: &ApiError, verb: &str) {
        let secret = self.display();
        match problem {
            problem if lost_a_race(problem) => info!(%secret, "another replica wrote the certificate Secret first"),
            ApiError::Forbidden(why) => error!(
                %secret,
                "may not {verb} the certificate Secret: {why}; grant get, list, watch and update on it, apply the empty \
                 Secret that `mcm manifests rbac` prints, or run with --cert-mode=files"
            ),
            other => warn!(%secret, "cannot {verb} the certificate Secret: {other}; trying again"),
        }
    }

    fn display(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Whether another replica was faster.
fn lost_a_race(problem: &ApiError) -> bool {
    matches!(problem, ApiError::Conflict(_) | ApiError::AlreadyExists(_))
}

/// A Secret that was spoilt is put back before anything else is done with it: a replica that finds nothing usable would make a
/// new authority. It isn't put back if nothing in it is valid any more.
fn restored_first(step: &CertPlan, now: Timestamp) -> CertPlan {
    match step {
        CertPlan::Create => CertPlan::Create,
        CertPlan::Keep { .. }
        | CertPlan::AddAuthority(_)
        | CertPlan::RenewServing { .. }
        | CertPlan::DropAuthorities(_) => CertPlan::Keep { until: now },
    }
}

/// A step in a log line, without the names of a certificate.
struct Brief<'a>(&'a CertPlan);

impl std::fmt::Debug for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            CertPlan::Keep { .. } => f.write_str("restore"),
            CertPlan::Create => f.write_str("create"),
            CertPlan::AddAuthority(reason) => write!(f, "add authority ({reason:?})"),
            CertPlan::RenewServing { reason, .. } => write!(f, "renew serving certificate ({reason:?})"),
            CertPlan::DropAuthorities(places) => write!(f, "drop {} old authorities", places.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spoilt_secret_is_put_back_before_any_other_step() {
        let now = Timestamp::UNIX_EPOCH;
        for step in
            [CertPlan::DropAuthorities(vec![1]), CertPlan::AddAuthority(super::super::plan::AuthorityReason::Ageing)]
        {
            assert_eq!(restored_first(&step, now), CertPlan::Keep { until: now });
        }
        assert_eq!(restored_first(&CertPlan::Create, now), CertPlan::Create, "what is over is not put back");
    }
}
