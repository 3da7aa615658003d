//! Sends evictions and deletions of pods, and interprets the answers of the API server.
//!
//! Evictions always use `policy/v1` (spec/machine-controller §7.2 \[N\]). Every request passes the gate.

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

/// Pause when the API server is busy and names no pause itself.
const BUSY: Duration = Duration::from_secs(1);

/// Sends eviction requests. It makes single calls and keeps no state; [`Evictor`] handles gate, limit and metrics.
#[async_trait]
pub trait EvictionApi: Send + Sync {
    /// Requests the eviction of exactly this pod; another pod with the same name is not evicted.
    ///
    /// # Errors
    /// The error of the call; [`ApiError::DisruptionBudget`] if a budget does not allow the eviction now.
    async fn evict(&self, pod: &Target) -> Result<(), ApiError>;
}

/// Evictions through the API server.
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
            .map_err(|error| ApiError::about::<Pod>(error, &(), name))
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
    /// An evictor that uses this client for at most `at_once` concurrent requests.
    pub fn new(client: kube::Client, gate: Gate, at_once: usize) -> Self {
        let pods = Objects::new(client.clone(), gate.clone(), None, |_| {});
        let attachments = Objects::new(client.clone(), gate.clone(), None, |_| {});
        Self::over(Arc::new(Evictions(client)), pods, attachments, gate, at_once)
    }

    /// An evictor that uses these ports for at most `at_once` concurrent requests.
    pub fn over(
        evictions: Arc<dyn EvictionApi>,
        pods: Objects<Arc<Pod>>,
        attachments: Objects<Arc<VolumeAttachment>>,
        gate: Gate,
        at_once: usize,
    ) -> Self {
        Self { evictions, pods, attachments, gate, slots: Semaphore::new(at_once.max(1)), metrics: None }
    }

    /// The same evictor, which also counts its requests in `metrics`.
    #[must_use]
    pub fn measured_by(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// The gate that its requests pass.
    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Carries out the action of a step on a pod.
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

/// Interprets the result of a request.
fn answer(outcome: Result<(), ApiError>) -> PodAnswer {
    match outcome {
        Ok(()) => PodAnswer::Accepted,
        Err(ApiError::NotFound(_)) => PodAnswer::Gone,
        Err(ApiError::DisruptionBudget(_)) => PodAnswer::Refused,
        Err(ApiError::TooManyRequests(pause)) => PodAnswer::Busy(pause.unwrap_or(BUSY)),
        // The next step observes whether the request was carried out. A conflict means that another pod has this name,
        // or that two evictions under one budget collided; the UID shows whether the pod is gone.
        Err(
            ApiError::Conflict(_)
            | ApiError::TimedOut(_)
            | ApiError::Unavailable(_)
            | ApiError::NotServed(_)
            | ApiError::NotLeading(_),
        ) => PodAnswer::Busy(BUSY),
        // This includes code 500, with which a pod under two budgets is refused (spec §7.5).
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
    #[case::a_proxys_404(ApiError::NotServed(String::new()), PodAnswer::Busy(BUSY))]
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
