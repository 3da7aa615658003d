//! Mode `self-managed`: the Secret that all replicas share.
//!
//! Every replica watches the Secret and loads its content. A replica that finds a step due carries it out with optimistic
//! concurrency: the loser of a race reads the winner's Secret and has nothing left to do. No leader is needed, so that webhooks
//! are served before leadership. [`super::plan`] decides which step is due, and when.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
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
    plan::{Due, Observation, PlanSettings, Scheduled, carry_out, due},
    shared::{LONGEST_WAIT, Shared, Subject, look_again_at},
};
use controller_runtime::{error::ApiError, lock, objects::call, queue::Outcome};
use machine_api::names::{CERTIFICATE_FIELD_MANAGER, annotation};

/// How often the clocks are compared while they differ.
const CLOCKS_PERIOD: Duration = Duration::from_secs(10);
/// The watch brings the Secret. If it has not by then, the Secret is read.
const WATCH_BEGINS_WITHIN: Duration = Duration::from_secs(5);

/// The Secret, as far as it is known.
#[derive(Clone, Default, PartialEq)]
enum Known {
    /// It is not known.
    #[default]
    Nothing,
    /// The last result of the watch, of a read, or of our own write.
    Secret(Option<Arc<Secret>>),
}

/// The state that passes and the watch share.
#[derive(Default)]
pub(super) struct Memory {
    known: Known,
    /// The problem that was reported last, until the watch or a write succeeds.
    reported: Option<ApiError>,
    last_usable: Option<CertSecret>,
    scheduled: Option<Scheduled>,
    /// Whether it was reported that a step waits because the clocks differ.
    clocks_reported: bool,
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
            self.observe(event.map_err(ApiError::from));
            self.shared.queue.add(Subject::Certificate);
        }
    }

    fn observe(&self, event: Result<Option<Secret>, ApiError>) {
        let memory = &mut *lock(&self.memory);
        match event {
            Ok(found) => (memory.known, memory.reported) = (Known::Secret(found.map(Arc::new)), None),
            Err(error) => {
                memory.known = Known::Nothing;
                self.report_once(error, "watch", &mut memory.reported);
            }
        }
    }

    /// Loads the content of the Secret, and takes the step that is due.
    pub(super) async fn pass(&self) -> Outcome {
        let known = lock(&self.memory).known.clone();
        let found = match known {
            Known::Secret(found) => found,
            Known::Nothing => match self.read().await {
                Ok(found) => found,
                Err(error) => return Outcome::Retry(error.to_string()),
            },
        };
        let read = found.as_deref().and_then(|secret| self.load(secret));
        let is_lost = read.is_none();
        let (content, scheduled) = self.remember(read);
        let (now, settings) = ((self.shared.clock)(), self.shared.with_hosts(&self.settings));
        let clocks_apart = self.shared.clocks_apart();
        let observation = Observation {
            content: content.as_ref(),
            is_lost,
            published: self.shared.publication_of(content.as_ref()),
            clocks_differ: clocks_apart.is_some(),
            scheduled: scheduled.as_ref(),
            now,
            instant: Instant::now(),
        };
        let due = due(&observation, &settings, || (self.shared.entropy)());
        self.report_clocks(&due, clocks_apart);
        let (step, desired) = match due {
            Due::Nothing { until } => return look_again_at(until, now),
            Due::AfterClocksAgree(_) => return Outcome::LookAgain(CLOCKS_PERIOD, "the clocks differ"),
            Due::Restore => ("restore".to_owned(), Ok(content)),
            Due::Take(next) => {
                // A step whose write fails keeps its moment: a new wait would end the back-off of the queue.
                lock(&self.memory).scheduled = Some(next.clone());
                let wait = next.at.saturating_duration_since(Instant::now());
                if !wait.is_zero() {
                    return Outcome::LookAgain(wait, "another replica may be faster");
                }
                (next.step.to_string(), carry_out(&next.step, content, now, &settings, || (self.shared.entropy)()))
            }
        };
        match desired {
            Ok(Some(desired)) => self.replace(found, &desired, &step).await,
            Ok(None) => Outcome::LookAgain(LONGEST_WAIT, "there was nothing to do"),
            Err(error) => {
                error!(%error, "the certificate Secret cannot be renewed; trying again in an hour");
                Outcome::LookAgain(LONGEST_WAIT, "making failed")
            }
        }
    }

    /// Keeps usable content. Returns the last usable content, and the step that the previous pass scheduled.
    fn remember(&self, read: Option<CertSecret>) -> (Option<CertSecret>, Option<Scheduled>) {
        let memory = &mut *lock(&self.memory);
        if read.is_some() {
            memory.last_usable = read;
        }
        (memory.last_usable.clone(), memory.scheduled.take())
    }

    /// Reports once that a step waits because the clocks differ.
    fn report_clocks(&self, due: &Due, why: Option<String>) {
        let waits = if let Due::AfterClocksAgree(step) = due { why.map(|why| (step, why)) } else { None };
        let was_reported = std::mem::replace(&mut lock(&self.memory).clocks_reported, waits.is_some());
        let Some((step, why)) = waits else { return };
        if !was_reported {
            error!(
                kind = "Secret", name = %self.display(), stage = %step, error = %why,
                "the certificate Secret is not as it should be"
            );
        }
        self.shared.certificate_is_missing(&why);
    }

    /// Writes new content over the Secret that was found.
    async fn replace(&self, found: Option<Arc<Secret>>, desired: &CertSecret, step: &str) -> Outcome {
        let written = self.write(found.as_deref(), desired).await;
        let before = Known::Secret(found);
        match written {
            Ok(written) => {
                info!(kind = "Secret", name = %self.display(), stage = %step, "wrote the certificate Secret");
                lock(&self.memory).reported = None;
                self.learn(&before, Known::Secret(Some(Arc::new(written))));
                Outcome::LookAgain(Duration::ZERO, "another step may be due")
            }
            Err(problem) => {
                self.report_once(problem.clone(), "write", &mut lock(&self.memory).reported);
                // The loser of a race reads at once what the winner wrote, so that it does not undo the winner's CA bundles.
                self.learn(&before, Known::Nothing);
                Outcome::Retry(problem.to_string())
            }
        }
    }

    /// Uses the pair of the Secret from now on, if it is usable.
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
                warn!(
                    kind = "Secret", name = %self.display(), %error,
                    "the certificate Secret cannot be used and is written anew"
                );
                None
            }
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
        // Keys of other clients stay.
        secret.data.get_or_insert_default().extend(desired.to_data());
        match found {
            // The Secret contains the resource version of the read, so that a faster replica wins.
            Some(_) => call(self.api.replace(&self.name, &params, &secret)).await,
            None => call(self.api.create(&params, &secret)).await,
        }
    }

    /// Reads the Secret, because the watch or a write failed.
    async fn read(&self) -> Result<Option<Arc<Secret>>, ApiError> {
        let found = call(self.api.get_opt(&self.name)).await.map(|found| found.map(Arc::new));
        match &found {
            Ok(found) => self.learn(&Known::Nothing, Known::Secret(found.clone())),
            Err(error) => {
                self.shared.certificate_is_missing(&format!("Secret {} cannot be read: {error}", self.display()));
                self.report_once(error.clone(), "read", &mut lock(&self.memory).reported);
            }
        }
        found
    }

    /// Keeps the result of a call, unless the watch has delivered a change meanwhile. The watch delivers later changes too.
    fn learn(&self, before: &Known, after: Known) {
        let known = &mut lock(&self.memory).known;
        if *known == *before {
            *known = after;
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
            problem if lost_a_race(problem) => {
                info!(kind = "Secret", name = %secret, "another replica wrote the certificate Secret first");
            }
            ApiError::Forbidden(why) => {
                error!(
                    kind = "Secret", name = %secret, operation = verb, error = %why,
                    "may not use the certificate Secret: grant get, list, watch and update on it, apply the empty \
                     Secret that `mcm manifests rbac` prints, or run with --cert-mode=files"
                );
            }
            other => {
                warn!(
                    kind = "Secret", name = %secret, operation = verb, error = %other,
                    "cannot use the certificate Secret; trying again"
                );
            }
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
