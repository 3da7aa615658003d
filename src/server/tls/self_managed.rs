//! Mode `self-managed`: the Secret that all replicas share.
//!
//! Every replica watches the Secret and loads what it holds; whichever finds a step due carries it out, with optimistic
//! concurrency: the loser of a race sees the winner's Secret and finds nothing left to do. No leader is needed, so that
//! webhooks are served before leadership. Which step is due is decided in [`super::plan`].

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, ResourceExt,
    api::PostParams,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::{
    authority::CertSecret,
    plan::{CertPlan, PlanSettings, RenewReason, carry_out, plan},
    shared::{LONGEST_WAIT, Shared, Subject, locked, look_at},
};
use controller_runtime::{error::ApiError, objects::call, queue::Outcome};
use machine_api::names::{CERTIFICATE_FIELD_MANAGER, annotation};

/// Steps that can wait do so for a random part of this, so that replicas rarely race.
const SPREAD: Duration = Duration::from_secs(15);
/// The same for steps that should not wait.
const SHORT_SPREAD: Duration = Duration::from_millis(300);

/// How often the clocks are looked at again while they differ.
const CLOCKS_LOOK: Duration = Duration::from_secs(10);
/// The watch brings the Secret. If it has not by then, the Secret is read.
const WATCH_BEGINS_WITHIN: Duration = Duration::from_secs(5);

/// What is known of the Secret.
#[derive(Clone, Default, PartialEq)]
enum Seen {
    /// Nothing, or nothing that can be relied on.
    #[default]
    Unknown,
    /// The last word of the watch, of a read, or of our own write.
    Known(Option<Arc<Secret>>),
}

/// A step that is going to be carried out.
struct Intended {
    step: CertPlan,
    at: Instant,
}

/// What passes and the watch leave to each other.
#[derive(Default)]
pub(super) struct Memory {
    seen: Seen,
    /// The problem that was reported last, until the watch or a write succeeds.
    reported: Option<ApiError>,
    last_good: Option<CertSecret>,
    intended: Option<Intended>,
    told_of_clocks: bool,
}

pub(super) struct SelfManaged {
    pub(super) api: Api<Secret>,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) settings: PlanSettings,
    pub(super) shared: Arc<Shared>,
    pub(super) memory: Mutex<Memory>,
}

impl SelfManaged {
    /// Watches the Secret.
    pub(super) async fn follow(&self) {
        self.shared.queue.add_after(Subject::Certificate, WATCH_BEGINS_WITHIN);
        let mut events = std::pin::pin!(watch_object(self.api.clone(), &self.name).default_backoff());
        while let Some(event) = events.next().await {
            self.see(event.map_err(ApiError::from));
            self.shared.queue.add(Subject::Certificate);
        }
    }

    fn see(&self, event: Result<Option<Secret>, ApiError>) {
        let memory = &mut *locked(&self.memory);
        match event {
            Ok(found) => (memory.seen, memory.reported) = (Seen::Known(found.map(Arc::new)), None),
            Err(error) => {
                memory.seen = Seen::Unknown;
                self.report_once(error, "watch", &mut memory.reported);
            }
        }
    }

    /// Loads what the Secret holds, and takes the step that is due.
    pub(super) async fn pass(&self) -> Outcome {
        let seen = locked(&self.memory).seen.clone();
        let found = match seen {
            Seen::Known(found) => found,
            Seen::Unknown => match self.read().await {
                Ok(found) => found,
                Err(error) => return Outcome::Retry(error.to_string()),
            },
        };
        let before = Seen::Known(found.clone());
        let (step, desired) = match self.decide(found.as_deref()) {
            Ok(due) => due,
            Err(outcome) => return outcome,
        };
        match self.write(found.as_deref(), &desired).await {
            Ok(written) => {
                info!(secret = %self.display(), step = ?Brief(&step), "wrote the certificate Secret");
                locked(&self.memory).reported = None;
                self.learn(&before, Seen::Known(Some(Arc::new(written))));
                Outcome::LookAgain(Duration::ZERO, "another step may be due")
            }
            Err(problem) => {
                self.report_once(problem.clone(), "write", &mut locked(&self.memory).reported);
                // The loser of a race reads at once what the winner wrote, lest it undo the winner's CA bundles.
                self.learn(&before, Seen::Unknown);
                Outcome::Retry(problem.to_string())
            }
        }
    }

    /// The step that is due and the content that the Secret has after it, or when to look again.
    fn decide(&self, found: Option<&Secret>) -> Result<(CertPlan, CertSecret), Outcome> {
        let memory = &mut *locked(&self.memory);
        let read = found.and_then(|secret| self.load(secret));
        // A Secret that was lost or spoilt is put back as it was, so that nobody's trust is broken.
        let restore = read.is_none();
        if read.is_some() {
            memory.last_good = read;
        }
        let (now, settings) = ((self.shared.clock)(), self.shared.with_hosts(&self.settings));
        let publication = self.shared.publication_of(memory.last_good.as_ref());
        let step = plan(memory.last_good.as_ref(), publication, now, &settings);
        let step = if restore && memory.last_good.is_some() { restored_first(&step, now) } else { step };
        let intended = memory.intended.take();
        if !matches!(step, CertPlan::Keep { .. }) && self.clocks_forbid(&step, &mut memory.told_of_clocks) {
            return Err(Outcome::LookAgain(CLOCKS_LOOK, "the clocks differ"));
        }
        memory.told_of_clocks = false;
        let desired = match &step {
            CertPlan::Keep { until } if !restore => return Err(look_at(*until, now)),
            CertPlan::Keep { .. } => Ok(memory.last_good.clone()),
            step => {
                let at = self.time_for(step, intended.as_ref());
                // A step whose write fails keeps its time: a new wait would end the back-off of the queue.
                memory.intended = Some(Intended { step: step.clone(), at });
                if at > Instant::now() {
                    return Err(Outcome::LookAgain(at - Instant::now(), "another replica may be faster"));
                }
                carry_out(step, memory.last_good.clone(), now, &settings, || (self.shared.entropy)())
            }
        };
        match desired {
            Ok(Some(desired)) => Ok((step, desired)),
            Ok(None) => Err(Outcome::LookAgain(LONGEST_WAIT, "there was nothing to do")),
            Err(error) => {
                error!("{error}; trying again in an hour");
                Err(Outcome::LookAgain(LONGEST_WAIT, "making failed"))
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
                Instant::now() + fraction_of(SHORT_SPREAD, (self.shared.entropy)())
            }
            _ => Instant::now() + fraction_of(SPREAD, (self.shared.entropy)()),
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
    async fn read(&self) -> Result<Option<Arc<Secret>>, ApiError> {
        let found = call(self.api.get_opt(&self.name)).await.map(|found| found.map(Arc::new));
        match &found {
            Ok(found) => self.learn(&Seen::Unknown, Seen::Known(found.clone())),
            Err(error) => {
                self.shared.certificate_is_missing(&format!("Secret {} cannot be read: {error}", self.display()));
                self.report_once(error.clone(), "read", &mut locked(&self.memory).reported);
            }
        }
        found
    }

    /// Takes in the result of a call, unless the watch has spoken meanwhile: what it has not brought yet, it brings later.
    fn learn(&self, before: &Seen, after: Seen) {
        let seen = &mut locked(&self.memory).seen;
        if *seen == *before {
            *seen = after;
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

/// A random part of a duration.
fn fraction_of(whole: Duration, random: [u8; 16]) -> Duration {
    whole.mul_f64(f64::from(random[1]) / 256.0)
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
