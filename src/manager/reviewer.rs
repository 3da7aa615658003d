//! Passes reviews from the server to admission, and counts their results.

use std::{fmt::Debug, sync::Arc, time::Duration};

use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::timeout;

use super::owner_read_limiter::OwnerReadLimiter;
use crate::server::{Answer, LogLimit, Lookup, Reply, Reviewer};
use controller_runtime::{
    error::ApiError,
    key::ObjectKey,
    objects::{ApiServer, ObjectApi},
};
use machine_api::{
    admission::{Admission, ConversionFacts, Progress, ReviewAnswer, ReviewFacts, Verdict, convert_unless},
    kind::Kind,
    v1alpha1::{MachineDeployment, MachineSet},
    validation::OwnerKey,
    webhooks::{Endpoint, Webhook},
};
use mcm_metrics::{Conversion, Metrics, Outcome, Reviewed, RuleHit};

/// Deadline for reading the owner of a new object. After the deadline the object is refused, and its controller tries
/// again.
const OWNER_TIMEOUT: Duration = Duration::from_secs(1);

/// Admission behind the server's listener.
#[derive(Clone)]
pub(super) struct AdmissionReviewer(Arc<Parts>);

struct Parts {
    admission: Admission,
    metrics: Metrics,
    /// Reads owners that are not in the caches.
    owners: kube::Client,
    owner_reads: OwnerReadLimiter,
    log_limit: LogLimit,
}

impl AdmissionReviewer {
    pub(super) fn new(admission: Admission, metrics: Metrics, owners: kube::Client) -> Self {
        let (owner_reads, log_limit) = (OwnerReadLimiter::default(), LogLimit::default());
        Self(Arc::new(Parts { admission, metrics, owners, owner_reads, log_limit }))
    }

    fn admit(&self, endpoint: Endpoint, body: &[u8]) -> Reply {
        let key = match self.0.admission.begin(endpoint, body) {
            Progress::Answered(answer) => return self.0.counted(endpoint, answer).into(),
            Progress::NeedsOwner(key) => key,
        };
        let (reader, parts) = (Arc::clone(&self.0), Arc::clone(&self.0));
        Reply::Later(Lookup {
            read: Box::pin(async move { reader.read(&key).await }),
            answer: Box::new(move |body, owner| {
                parts.counted(endpoint, parts.admission.conclude(endpoint, body, owner.as_ref()))
            }),
        })
    }
}

impl Parts {
    /// The owner as the API server stores it now.
    async fn read(&self, key: &OwnerKey) -> Option<Value> {
        let why = match self.owner_reads.acquire(&key.namespace) {
            Ok(_permit) => match timeout(OWNER_TIMEOUT, self.get(key)).await {
                Ok(Ok(owner)) => return Some(owner),
                Ok(Err(ApiError::NotFound(_))) => return None,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("there was no answer within {OWNER_TIMEOUT:?}"),
            },
            Err(full) => full.to_string(),
        };
        self.log_limited(|held_back| {
            tracing::warn!(
                kind = %key.kind, namespace = key.namespace, name = key.name, error = why, count = held_back,
                "the owner of a new object could not be read, so that its mistakes are not forgiven"
            );
        });
        None
    }

    async fn get(&self, key: &OwnerKey) -> Result<Value, ApiError> {
        let client = self.owners.clone();
        match key.kind {
            Kind::MachineSet => stored::<MachineSet>(client, key).await,
            Kind::MachineDeployment => stored::<MachineDeployment>(client, key).await,
            Kind::Machine | Kind::MachineClass => Err(ApiError::NotFound(format!("{} owns nothing", key.kind))),
        }
    }

    /// Logs a problem that any caller of the webhooks can cause, at a limited rate.
    fn log_limited(&self, write: impl FnOnce(u64)) {
        if let Some(held_back) = self.log_limit.permit(tokio::time::Instant::now()) {
            write(held_back);
        }
    }

    fn counted(&self, endpoint: Endpoint, answer: ReviewAnswer) -> Answer {
        self.count(endpoint, &answer.facts);
        Answer { status: answer.status, body: answer.body }
    }

    fn convert(&self, given_up: &dyn Fn() -> bool, body: &[u8]) -> Answer {
        let answer = convert_unless(given_up, body);
        self.count_conversion(&answer.facts);
        Answer { status: answer.status, body: answer.body }
    }

    fn count(&self, endpoint: Endpoint, facts: &ReviewFacts) {
        let (webhook, allowed) = (Webhook::Admission(endpoint), facts.verdict == Verdict::Allowed);
        let ReviewFacts { kind, operation, .. } = *facts;
        self.metrics.admission.requests.inc(&Reviewed { webhook, kind, operation, allowed });
        for (rule, level) in &facts.rules {
            self.metrics.admission.rules.inc(&RuleHit { rule: rule.as_str(), level: *level, kind, operation });
        }
        if facts.verdict == Verdict::Failed {
            self.log_limited(|held_back| {
                tracing::warn!(
                    operation = ?endpoint, error = facts.failure, count = held_back,
                    "a review could not be judged"
                );
            });
        }
    }

    fn count_conversion(&self, facts: &ConversionFacts) {
        let metrics = &self.metrics.conversion;
        let result = if facts.failure.is_empty() { Outcome::Success } else { Outcome::Failure };
        metrics.requests.inc(&Conversion { from: facts.from, to: facts.to, result });
        metrics.objects.add(&(), facts.objects);
        if !facts.losses.is_empty() {
            metrics.residue_dropped.add(&(), facts.losses.len() as u64);
            self.log_limited(|held_back| {
                tracing::warn!(
                    error = ?facts.losses, count = held_back,
                    "data that only the other version can express got lost in a conversion: an annotation below \
                     conversion.machine.sapcloud.io/ was edited or would have been too large"
                );
            });
        }
        if result == Outcome::Failure {
            self.log_limited(|held_back| {
                tracing::warn!(error = facts.failure, count = held_back, "objects could not be converted");
            });
        }
    }
}

/// A stored object, as the controllers read it and copy its template.
async fn stored<K>(client: kube::Client, key: &OwnerKey) -> Result<Value, ApiError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize + Send + Sync + 'static,
{
    let object = ApiServer::<K>::of_kind(client, ()).read(&ObjectKey::new(&*key.namespace, &*key.name)).await?;
    serde_json::to_value(&*object).map_err(|error| ApiError::Unreadable(error.to_string()))
}

impl Reviewer for AdmissionReviewer {
    fn review(&self, webhook: Webhook, given_up: &dyn Fn() -> bool, body: &[u8]) -> Reply {
        match webhook {
            Webhook::Admission(endpoint) => self.admit(endpoint, body),
            Webhook::Convert => self.0.convert(given_up, body).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use http::{Request, Response};
    use serde_json::json;

    use super::*;
    use machine_api::validation::Policy;

    /// An API server with a set `s1` in every namespace. It never answers requests for the namespace `crowded`.
    async fn owners(request: Request<kube::client::Body>) -> Result<Response<Body>, Infallible> {
        let namespace = request.uri().path().split('/').nth(5).unwrap_or_default().to_owned();
        if namespace == "crowded" {
            return std::future::pending().await;
        }
        let set = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet",
            "metadata": {"name": "s1", "namespace": namespace, "uid": "u1"},
            "spec": {"template": {"spec": {"class": {"kind": "MachineClass", "name": "c"}, "nodeConditions": "A, B"}}},
        });
        Ok(Response::new(Body::from(set.to_string())))
    }

    fn creation(namespace: &str) -> Vec<u8> {
        let owner = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet", "name": "s1", "uid": "u1", "controller": true});
        let machine = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "namespace": namespace, "ownerReferences": [owner]},
            "spec": {"class": {"kind": "MachineClass", "name": "c"}, "nodeConditions": "A, B"},
        });
        let request = json!({
            "uid": "u", "kind": {"group": "machine.sapcloud.io", "version": "v1alpha1", "kind": "Machine"}, "name": "m",
            "namespace": namespace, "operation": "CREATE", "userInfo": {"username": "u"}, "object": machine,
        });
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        review.to_string().into_bytes()
    }

    /// A reviewer with this client for owners, and its metrics.
    fn reviewer(client: kube::Client) -> (AdmissionReviewer, Metrics) {
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        (AdmissionReviewer::new(Admission::new(Policy::default()), metrics.clone(), client), metrics)
    }

    #[tokio::test]
    async fn each_webhook_has_a_path_of_its_own_and_is_counted_by_it() {
        let (reviewer, metrics) = reviewer(kube::Client::new(tower::service_fn(owners), "default"));
        let mut review: Value = serde_json::from_slice(&creation("quiet")).unwrap();
        let request = &mut review["request"];
        (request["operation"], request["subResource"]) = (json!("UPDATE"), json!("status"));
        request["oldObject"] = request["object"].clone();
        let answered = |path: &str| {
            let answer = crate::server::answer_at(&reviewer, path, review.to_string().as_bytes()).unwrap();
            serde_json::from_slice::<Value>(&answer.body).unwrap()["response"].clone()
        };
        let warned = answered("/validate-status");
        assert_eq!(warned["warnings"], json!(["status: is written by the machine controller manager"]), "{warned}");
        assert!(answered("/validate")["warnings"].is_null() && answered("/mutate")["patch"].is_null());
        let text = metrics.render().unwrap();
        // A write of a status is of no kind that the other two webhooks check.
        for (webhook, kind) in [("validate-status", "Machine"), ("validate", "other"), ("mutate", "other")] {
            let labels = format!(r#"allowed="true",kind="{kind}",operation="UPDATE",webhook="{webhook}""#);
            assert!(text.contains(&format!("mcm_admission_requests_total{{{labels}}} 1")), "{labels}: {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn invented_owners_of_a_namespace_do_not_hold_up_the_reviews_of_others() {
        let client = kube::Client::new(tower::service_fn(owners), "default");
        let (reviewer, _) = reviewer(client);
        let reading = |namespace: &str| match reviewer.review(
            Webhook::Admission(Endpoint::Validate),
            &|| false,
            &creation(namespace),
        ) {
            Reply::Later(lookup) => lookup,
            Reply::Answer(answer) => panic!("answered at once: {}", String::from_utf8_lossy(&answer.body)),
        };
        let mut crowd: Vec<_> = (0..100).map(|_| reading("crowded").read).collect();
        // Each read is either running or refused.
        for read in &mut crowd {
            drop(futures::poll!(read));
        }
        let other = reading("quiet");
        let owner = other.read.await;
        let answer = (other.answer)(&creation("quiet"), owner);
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer["response"]["allowed"], true, "{answer}");
    }
}
