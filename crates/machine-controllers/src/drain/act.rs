//! Sends evictions and deletions of pods, and says what the API server answered.
//!
//! Evictions always use `policy/v1` (spec/machine-controller §7.2 \[N\]). Every one passes the gate.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::Eviction, storage::v1::VolumeAttachment},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions},
};
use tokio::sync::Semaphore;

use super::{
    progress::PodAnswer,
    step::{How, PodAction},
};
use controller_runtime::{
    error::ApiError,
    gate::{Destruction, Gate},
    key::{ObjectKey, Target},
    objects::{DeleteHow, Objects, in_time},
};
use mcm_metrics::{ApiWrite, Metrics};

/// Pause when a busy server does not say how long.
const BUSY: Duration = Duration::from_secs(1);

/// Asks for evictions. It makes single calls and remembers nothing: gate, limit and counts are the business of [`Evictor`].
#[async_trait]
pub trait EvictionApi: Send + Sync {
    /// Asks for the eviction of this pod and of none of its name.
    ///
    /// # Errors
    /// Those of the call; [`ApiError::DisruptionBudget`] when a budget does not allow it now.
    async fn evict(&self, pod: &Target) -> Result<(), ApiError>;
}

/// Evictions at an API server.
struct Evictions(kube::Client);

#[async_trait]
impl EvictionApi for Evictions {
    async fn evict(&self, pod: &Target) -> Result<(), ApiError> {
        let ObjectKey { namespace, name } = &pod.key;
        let body = Eviction {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                preconditions: Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
                ..DeleteOptions::default()
            }),
        };
        let body = serde_json::to_vec(&body).map_err(|error| ApiError::Other(error.to_string()))?;
        let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(http::header::ACCEPT, "application/json")
            .body(body)
            .map_err(|error| ApiError::Other(format!("eviction of pod {pod}: {error}")))?;
        in_time(request, |request| self.0.request_text(request))
            .await?
            .map(drop)
            .map_err(|error| ApiError::about::<Pod>(error, name))
    }
}

/// Removes pods and attachments in the target cluster.
pub struct Evictor {
    evictions: Arc<dyn EvictionApi>,
    gate: Gate,
    pods: Objects<Arc<Pod>>,
    attachments: Objects<Arc<VolumeAttachment>>,
    slots: Semaphore,
    metrics: Option<Metrics>,
}

impl Evictor {
    /// Removes pods through this client, so many at once.
    pub fn new(client: kube::Client, gate: Gate, at_once: usize) -> Self {
        let pods = Objects::new(client.clone(), gate.clone(), None, |_| {});
        let attachments = Objects::new(client.clone(), gate.clone(), None, |_| {});
        Self::over(Arc::new(Evictions(client)), pods, attachments, gate, at_once)
    }

    /// Removes pods by these calls, so many at once.
    pub fn over(
        evictions: Arc<dyn EvictionApi>,
        pods: Objects<Arc<Pod>>,
        attachments: Objects<Arc<VolumeAttachment>>,
        gate: Gate,
        at_once: usize,
    ) -> Self {
        Self { evictions, pods, attachments, gate, slots: Semaphore::new(at_once.max(1)), metrics: None }
    }

    /// The same evictor, whose requests are counted.
    #[must_use]
    pub fn measured_by(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// The gate that its requests pass.
    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Does what a step wants done to a pod.
    pub async fn remove(&self, action: &PodAction) -> PodAnswer {
        let Ok(_slot) = self.slots.acquire().await else {
            return PodAnswer::Failed("the process is stopping".to_owned());
        };
        let target = Target { key: action.key.clone(), uid: action.uid.clone() };
        let (object, rule) = match action.how {
            How::Evict => ("pod/eviction", "drain-evict"),
            How::Delete => ("pod", "drain-refused"),
            How::DeleteNow => ("pod", "drain-forced"),
        };
        if let Some(metrics) = &self.metrics {
            metrics.machine.api_writes.inc(&ApiWrite { object, reason: rule });
        }
        let outcome = match action.how {
            How::Evict => self.evict(&target, rule).await,
            How::Delete => self.delete(&target, rule, None).await,
            How::DeleteNow => self.delete(&target, rule, Some(0)).await,
        };
        answer(outcome)
    }

    /// Deletes a volume attachment.
    pub async fn detach(&self, name: &str, uid: &str) -> Result<(), ApiError> {
        let target = Target { key: ObjectKey::cluster_scoped(name), uid: uid.to_owned() };
        self.gate.permit(Destruction::VolumeAttachment, "detach-by-force", &target)?;
        self.attachments.delete(&target, DeleteHow::default()).await.map(drop)
    }

    async fn evict(&self, target: &Target, rule: &'static str) -> Result<(), ApiError> {
        self.gate.permit(Destruction::Pod, rule, target)?;
        self.evictions.evict(target).await
    }

    async fn delete(&self, target: &Target, rule: &'static str, grace: Option<u32>) -> Result<(), ApiError> {
        self.gate.permit(Destruction::Pod, rule, target)?;
        self.pods.delete(target, DeleteHow { grace_seconds: grace, ..DeleteHow::default() }).await.map(drop)
    }
}

/// What an outcome means for the pod.
fn answer(outcome: Result<(), ApiError>) -> PodAnswer {
    match outcome {
        Ok(()) => PodAnswer::Accepted,
        Err(ApiError::NotFound(_)) => PodAnswer::Gone,
        Err(ApiError::DisruptionBudget(_)) => PodAnswer::Refused,
        Err(ApiError::TooManyRequests(pause)) => PodAnswer::Busy(pause.unwrap_or(BUSY)),
        // Whether it happened is seen by looking again. A conflict means another pod of this name, or that evictions under one
        // budget got into each other's way; by its UID the pod is then gone, or still there.
        Err(ApiError::Conflict(_) | ApiError::TimedOut(_) | ApiError::Unavailable(_) | ApiError::NotLeading(_)) => {
            PodAnswer::Busy(BUSY)
        }
        // Among them 500, by which a pod under two budgets is refused (spec §7.5).
        Err(error) => PodAnswer::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::mc_227_gone(ApiError::NotFound(String::new()), PodAnswer::Gone)]
    #[case::mc_206_another_pod_of_that_name_or_a_contended_budget(
        ApiError::Conflict(String::new()),
        PodAnswer::Busy(BUSY)
    )]
    #[case::a_budget(ApiError::DisruptionBudget(String::new()), PodAnswer::Refused)]
    #[case::mc_203_a_busy_server(
        ApiError::TooManyRequests(Some(Duration::from_secs(3))),
        PodAnswer::Busy(Duration::from_secs(3))
    )]
    #[case::mc_204_two_budgets(
        ApiError::ServerFault("more than one budget".to_owned()),
        PodAnswer::Failed("the API server failed: more than one budget".to_owned())
    )]
    #[case::a_server_that_is_away(ApiError::Unavailable("503".to_owned()), PodAnswer::Busy(BUSY))]
    fn an_outcome_is_understood(#[case] error: ApiError, #[case] expected: PodAnswer) {
        assert_eq!(answer(Err(error)), expected);
    }
}
