//! The webhooks on the TLS listener. Their paths are in [`machine_api::webhooks`].
//!
//! This file handles what all reviews have in common: content type, size, concurrency, deadline and panics. A [`Reviewer`] answers the review itself.
//! Source: spec/api-and-admission §9, cases §12.4.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, response::Response, routing::any};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE};
use jiff::Timestamp;
use kube_listener::{
    Peer, Refusal as Limit,
    body::{self, Collected, LargeBodies},
};
use serde_json::Value;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout, timeout_at},
};
use tracing::error;

use super::{ClientCertificates, Health, LogLimit, plain::health_routes, status::Refusal, tls::LiveAuthorities};
use kube_listener::RequestLimits;
use kube_values::duration::GoDuration;
use machine_api::webhooks::Webhook;
use mcm_metrics::{Listener, Metrics, OfWebhook, Panicked, Rejected, Rejection};
use mcm_traces::{Key, OpenSpan, Outcome, Sampled, SpanKind, TraceParent, Tracer, is_sampled};

/// The answer of a reviewer. The body is JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status; 200 also for a denial.
    pub status: u16,
    /// The review, or a `Status` that says why it failed.
    pub body: Vec<u8>,
}

/// Answers reviews. A reviewer gets complete bodies of limited size and must not wait for I/O.
pub trait Reviewer: Send + Sync + 'static {
    /// Answers a review to this webhook: an `AdmissionReview`, or a `ConversionReview` to [`Webhook::Convert`]. A conversion of many objects stops as
    /// soon as `given_up` returns that the client no longer waits.
    fn review(&self, webhook: Webhook, given_up: &dyn Fn() -> bool, body: &[u8]) -> Reply;
}

/// The reply of a reviewer.
pub enum Reply {
    /// The answer.
    Answer(Answer),
    /// The answer depends on an object that has to be read first.
    Later(Lookup),
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self::Answer(answer)
    }
}

/// Answers a review with the object that was read for it.
pub type AnswerWith = Box<dyn FnOnce(&[u8], Option<Value>) -> Answer + Send>;

/// An object that has to be read before a review can be answered.
pub struct Lookup {
    /// Reads the object within its own timeout. `None` if the object does not exist or could not be read.
    pub read: BoxFuture<'static, Option<Value>>,
    /// Answers the same review with the object.
    pub answer: AnswerWith,
}

/// Subtracted from the timeout of a client, so that the answer reaches it in time.
const ANSWER_MARGIN: Duration = Duration::from_millis(200);

pub(super) struct Webhooks {
    reviewer: Arc<dyn Reviewer>,
    admission: ReviewLimits,
    conversion: ReviewLimits,
    limits: RequestLimits,
    callers: Callers,
    metrics: Metrics,
    panics: LogLimit,
    tracer: Tracer,
}

/// The limits of one kind of reviews. Admission and conversion have separate limits, because one write of an object may need both, and many reviews
/// of one kind must not block the other kind.
struct ReviewLimits {
    in_flight: Semaphore,
    large_bodies: LargeBodies,
    /// Large reviews that are being answered.
    large_reviews: Arc<Semaphore>,
    /// Maximum number of bytes of a body.
    body_bytes: usize,
}

impl ReviewLimits {
    fn new(in_flight: usize, body_bytes: usize, large_bytes: usize, large_at_a_time: usize) -> Self {
        Self {
            in_flight: Semaphore::new(in_flight),
            large_bodies: LargeBodies::of(large_bytes),
            large_reviews: Arc::new(Semaphore::new(large_at_a_time)),
            body_bytes,
        }
    }
}

/// The clients that may call the webhooks.
#[derive(Clone, Debug)]
pub(super) enum Callers {
    All,
    VerifiedBy(LiveAuthorities),
}

impl Callers {
    pub(super) fn of(client_certificates: &ClientCertificates) -> Self {
        match client_certificates {
            ClientCertificates::NotAsked | ClientCertificates::Asked => Self::All,
            ClientCertificates::DemandedByWebhooks { authorities } => Self::VerifiedBy(authorities.clone()),
        }
    }

    fn include(&self, peer: Option<&Peer>) -> bool {
        match self {
            Self::All => true,
            Self::VerifiedBy(authorities) => {
                peer.is_some_and(|peer| authorities.get().vouch_for(&peer.certificates, Timestamp::now()).is_ok())
            }
        }
    }
}

impl Webhooks {
    pub(super) fn new(
        reviewer: Arc<dyn Reviewer>,
        limits: RequestLimits,
        callers: Callers,
        metrics: Metrics,
        tracer: Tracer,
    ) -> Arc<Self> {
        Arc::new(Self {
            reviewer,
            admission: ReviewLimits::new(
                limits.admission_in_flight,
                limits.admission_bytes,
                limits.large_admission_bytes,
                limits.large_at_a_time,
            ),
            conversion: ReviewLimits::new(
                limits.conversion_in_flight,
                limits.conversion_bytes,
                limits.large_bytes,
                limits.large_at_a_time,
            ),
            limits,
            callers,
            metrics,
            panics: LogLimit::default(),
            tracer,
        })
    }
}

/// The webhook of a request; none if the path is not a webhook or the method is not POST.
pub(super) fn of_request<B>(request: &http::Request<B>) -> Option<Webhook> {
    Webhook::at(request.uri().path()).filter(|_| request.method() == http::Method::POST)
}

/// Answers all other requests on the port of the webhooks. Reviews are not routed here, because routing would be a tenth of their cost.
pub(super) fn router(health: Health) -> Router {
    let mut router = Router::new();
    for webhook in Webhook::ALL {
        router = router.route(webhook.path(), any(async || Refusal::MethodNotAllowed));
    }
    router.merge(health_routes(health)).fallback(async || Refusal::NotFound)
}

/// Answers one review.
pub(super) async fn review(webhooks: Arc<Webhooks>, webhook: Webhook, request: Request) -> Response {
    let began = Instant::now();
    let version = request.version();
    let span = span_of(&webhooks.tracer, webhook, request.headers());
    let answer = answer(&webhooks, webhook, request, began).await;
    match webhook {
        Webhook::Convert => webhooks.metrics.conversion.duration.observe(&(), began.elapsed()),
        Webhook::Admission(_) => webhooks.metrics.admission.duration.observe(&OfWebhook { webhook }, began.elapsed()),
    }
    let response = match answer {
        Ok(answer) => answer_response(answer),
        Err(refusal) => {
            count(&webhooks.metrics, refusal);
            refusal.response(version)
        }
    };
    if let Some(span) = span {
        let status = response.status();
        let outcome = if status.is_server_error() { Outcome::Failed } else { Outcome::Fine };
        span.with(Key::HttpStatus, i64::from(status.as_u16()).into()).end(outcome);
    }
    response
}

/// The span of a review, if it is recorded: a child of the API server's span, or alone.
fn span_of(tracer: &Tracer, webhook: Webhook, headers: &HeaderMap) -> Option<OpenSpan> {
    if !tracer.is_on() {
        return None;
    }
    let header = headers.get(TraceParent::HEADER).and_then(|value| value.to_str().ok());
    let caller = header.and_then(TraceParent::parse);
    let draw = if caller.is_none() { tracer.draw() } else { 0 };
    let (trace, parent) = match is_sampled(caller, draw) {
        Sampled::No => return None,
        Sampled::InTraceOf(parent) => (parent.trace, Some(parent.span)),
        Sampled::Alone => (tracer.new_trace(), None),
    };
    tracer.begin(trace, parent, SpanKind::Server, webhook.path())
}

async fn answer(
    webhooks: &Arc<Webhooks>,
    webhook: Webhook,
    request: Request,
    began: Instant,
) -> Result<Answer, Refusal> {
    if !webhooks.callers.include(request.extensions().get::<Peer>()) {
        return Err(Refusal::Unauthorized);
    }
    if !is_json(request.headers().get(CONTENT_TYPE)) {
        return Err(Refusal::UnsupportedMediaType);
    }
    let review_limits = match webhook {
        Webhook::Convert => &webhooks.conversion,
        Webhook::Admission(_) => &webhooks.admission,
    };
    let _permit = review_limits.in_flight.try_acquire().map_err(|_| Limit::TooManyRequests)?;
    let deadline = began + budget(request.uri().query(), webhooks.limits.default_timeout);
    let collected = body::collect(
        request.into_body(),
        review_limits.body_bytes,
        Some(deadline),
        &webhooks.limits,
        &review_limits.large_bodies,
    )
    .await?;
    if Instant::now() >= deadline {
        return Err(Limit::Timeout.into());
    }
    let reviewer = Arc::clone(&webhooks.reviewer);
    let work = Work { webhooks, webhook, limits: review_limits, deadline };
    let (reply, collected) =
        work.run(collected, move |given_up, body| reviewer.review(webhook, given_up, body)).await?;
    let lookup = match reply {
        Reply::Answer(answer) => return Ok(answer),
        Reply::Later(lookup) => lookup,
    };
    // The answer gets the other half of the time.
    let for_lookup = deadline.saturating_duration_since(Instant::now()) / 2;
    let read = timeout(for_lookup, lookup.read).await.ok().flatten();
    let (answer, _) = work.run(collected, move |_, body| (lookup.answer)(body, read)).await?;
    Ok(answer)
}

/// Work of a review, with its limits and its deadline.
struct Work<'a> {
    webhooks: &'a Arc<Webhooks>,
    webhook: Webhook,
    limits: &'a ReviewLimits,
    deadline: Instant,
}

impl Work<'_> {
    /// Works on a body and returns the body too. The work on a large body is done on a blocking thread, because it may take long.
    async fn run<T: Send + 'static>(
        &self,
        collected: Collected,
        work: impl FnOnce(&dyn Fn() -> bool, &[u8]) -> T + Send + 'static,
    ) -> Result<(T, Collected), Refusal> {
        let Self { webhooks, webhook, limits, deadline } = *self;
        if collected.bytes.len() <= webhooks.limits.inline_bytes {
            let done = guarded(webhooks, webhook, deadline, |given_up| work(given_up, &collected.bytes))?;
            return Ok((done, collected));
        }
        let permit = timeout_at(deadline, Arc::clone(&limits.large_reviews).acquire_owned()).await;
        let large = permit.map_err(|_| Limit::Timeout)?;
        let webhooks = Arc::clone(webhooks);
        let work = tokio::task::spawn_blocking(move || {
            // The permits are held until the work is done, even if the client has disconnected. The work ends soon after the deadline.
            let (_large, Collected { bytes, permit }) = (large, collected);
            guarded(&webhooks, webhook, deadline, |given_up| work(given_up, &bytes))
                .map(|done| (done, Collected { bytes, permit }))
        });
        match timeout_at(deadline, work).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(Limit::Panic.into()),
            Err(_) => Err(Limit::Timeout.into()),
        }
    }
}

/// The answer of a reviewer to a request for this path, for callers in this process. No object is looked up. `None` if the path is not the path of a
/// webhook.
pub fn answer_at(reviewer: &dyn Reviewer, path: &str, body: &[u8]) -> Option<Answer> {
    let webhook = Webhook::at(path)?;
    Some(match reviewer.review(webhook, &|| false, body) {
        Reply::Answer(answer) => answer,
        Reply::Later(lookup) => (lookup.answer)(body, None),
    })
}

/// Does the work of a review. A panic fails only this review.
fn guarded<T>(
    webhooks: &Webhooks,
    webhook: Webhook,
    deadline: Instant,
    work: impl FnOnce(&dyn Fn() -> bool) -> T,
) -> Result<T, Refusal> {
    let given_up = || Instant::now() >= deadline;
    if given_up() {
        return Err(Limit::Timeout.into());
    }
    catch_unwind(AssertUnwindSafe(|| work(&given_up))).map_err(|_| {
        if let Some(held_back) = webhooks.panics.permit(Instant::now()) {
            error!(
                operation = ?webhook, count = held_back,
                "a review panicked; the caller gets a failure and the process goes on"
            );
        }
        webhooks.metrics.server.panics.inc(&Panicked { webhook });
        Refusal::from(Limit::Panic)
    })
}

/// `application/json`, with or without parameters.
fn is_json(content_type: Option<&HeaderValue>) -> bool {
    let essence = content_type.and_then(|value| value.to_str().ok()).and_then(|text| text.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// How long the answer may take: the `timeout` of the client, which the API server sends with every call, less the margin.
fn budget(query: Option<&str>, default: Duration) -> Duration {
    let asked = query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .find_map(|pair| pair.strip_prefix("timeout="))
        .and_then(|text| text.parse::<GoDuration>().ok())
        .map(GoDuration::to_std)
        .filter(|timeout| !timeout.is_zero());
    let timeout = asked.unwrap_or(default).min(default);
    timeout.saturating_sub(ANSWER_MARGIN).max(timeout / 2)
}

fn answer_response(answer: Answer) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn count(metrics: &Metrics, refusal: Refusal) {
    let Refusal::Limit(limit) = refusal else { return };
    let reason = match limit {
        Limit::TooManyRequests => Rejection::InFlightLimit,
        Limit::TooLarge { .. } => Rejection::BodyTooLarge,
        Limit::RequestTimeout => Rejection::BodyTooSlow,
        _ => return,
    };
    metrics.server.rejected.inc(&Rejected { listener: Listener::Secure, reason });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none_means_the_default(None, 29_800)]
    #[case::the_callers_less_a_margin(Some("timeout=5s"), 4_800)]
    #[case::beside_other_parameters(Some("a=b&timeout=2s"), 1_800)]
    #[case::a_short_one_is_halved(Some("timeout=100ms"), 50)]
    #[case::nobody_waits_longer_than_the_default(Some("timeout=10m"), 29_800)]
    #[case::nonsense_means_the_default(Some("timeout=soon"), 29_800)]
    fn the_caller_limits_the_time_of_an_answer(#[case] query: Option<&str>, #[case] millis: u64) {
        assert_eq!(budget(query, Duration::from_secs(30)), Duration::from_millis(millis));
    }

    #[rstest]
    #[case::plain("application/json", true)]
    #[case::with_parameters("Application/JSON; charset=utf-8", true)]
    #[case::text("text/plain", false)]
    #[case::something_like_it("application/json-patch+json", false)]
    fn only_json_is_read(#[case] value: &'static str, #[case] read: bool) {
        assert_eq!(is_json(Some(&HeaderValue::from_static(value))), read);
    }
}
