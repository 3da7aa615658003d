//! The TLS listener's paths: `/mutate`, `/validate`, `/validate-status`, `/convert`.
//!
//! What lives here: everything around a review that is the same for all of them, namely type, size, number, deadline and
//! panics. What does not: the review itself, which comes in as a [`Reviewer`] over bytes.
//! Source: spec/api-and-admission §9, cases §12.4.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, response::Response, routing::any};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use jiff::Timestamp;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use tracing::error;

use super::{
    ClientCertificates, Health, LogLimit, Peer,
    body::{self, Collected, LargeBodies},
    plain::health_routes,
    status::Refusal,
    tls::LiveAuthorities,
};
use crate::{
    api::duration::GoDuration,
    metrics::{Listener, Metrics, OfWebhook, Panicked, Rejected, Rejection, Webhook},
    settings::RequestLimits,
};

/// What a reviewer answers. The body is JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status; 200 also for a denial.
    pub status: u16,
    /// The review, or a `Status` that says why there is none.
    pub body: Vec<u8>,
}

/// Answers reviews. Called with whole bodies of bounded size; must not block on anything but the CPU.
pub trait Reviewer: Send + Sync + 'static {
    /// Answers an `AdmissionReview` to `/mutate`.
    fn mutate(&self, body: &[u8]) -> Answer;

    /// Answers an `AdmissionReview` to `/validate` or `/validate-status`.
    fn validate(&self, body: &[u8]) -> Answer;

    /// Answers a `ConversionReview` to `/convert`.
    fn convert(&self, body: &[u8]) -> Answer;
}

/// Subtracted from a caller's timeout, so that the answer still reaches it.
const ANSWER_MARGIN: Duration = Duration::from_millis(200);

pub(super) struct Webhooks {
    reviewer: Arc<dyn Reviewer>,
    admission: Semaphore,
    conversion: Semaphore,
    large_bodies: LargeBodies,
    /// Places of large reviews that are being answered.
    large_reviews: Arc<Semaphore>,
    limits: RequestLimits,
    callers: Callers,
    metrics: Metrics,
    complaints: LogLimit,
}

/// Who may call.
#[derive(Clone, Debug)]
pub(super) enum Callers {
    Anybody,
    KnownTo(LiveAuthorities),
}

impl Callers {
    pub(super) fn of(client_certificates: &ClientCertificates) -> Self {
        match client_certificates {
            ClientCertificates::NotAsked | ClientCertificates::Asked => Self::Anybody,
            ClientCertificates::DemandedByWebhooks { authorities } => Self::KnownTo(authorities.clone()),
        }
    }

    fn include(&self, peer: Option<&Peer>) -> bool {
        match self {
            Self::Anybody => true,
            Self::KnownTo(authorities) => {
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
    ) -> Arc<Self> {
        Arc::new(Self {
            reviewer,
            admission: Semaphore::new(limits.admission_in_flight),
            conversion: Semaphore::new(limits.conversion_in_flight),
            large_bodies: LargeBodies::new(&limits),
            large_reviews: Arc::new(Semaphore::new(limits.large_at_a_time)),
            limits,
            callers,
            metrics,
            complaints: LogLimit::default(),
        })
    }
}

/// The paths and what answers there.
const PATHS: [(&str, Webhook); 4] = [
    ("/mutate", Webhook::Mutate),
    ("/validate", Webhook::Validate),
    ("/validate-status", Webhook::ValidateStatus),
    ("/convert", Webhook::Convert),
];

/// The webhook that a request is for; none if it is for something else, or not sent by POST.
pub(super) fn asked<B>(request: &http::Request<B>) -> Option<Webhook> {
    let found = PATHS.iter().find(|(path, _)| *path == request.uri().path())?;
    (request.method() == http::Method::POST).then_some(found.1)
}

/// Whether a path belongs to the webhooks, whatever the method.
pub(super) fn is_path(path: &str) -> bool {
    PATHS.iter().any(|(own, _)| *own == path)
}

/// What is served on the port of the webhooks beside the reviews, which don't come this way: routing would be a tenth of
/// their cost.
pub(super) fn router(health: Health) -> Router {
    let mut router = Router::new();
    for (path, _) in PATHS {
        router = router.route(path, any(async || Refusal::MethodNotAllowed));
    }
    router.merge(health_routes(health)).fallback(async || Refusal::NotFound)
}

/// One review from head to answer.
pub(super) async fn review(webhooks: Arc<Webhooks>, webhook: Webhook, request: Request) -> Response {
    let began = Instant::now();
    let version = request.version();
    let answer = answer(&webhooks, webhook, request, began).await;
    match webhook {
        Webhook::Convert => webhooks.metrics.conversion.duration.observe(&(), began.elapsed()),
        _ => webhooks.metrics.admission.duration.observe(&OfWebhook { webhook }, began.elapsed()),
    }
    match answer {
        Ok(answer) => answer_response(answer),
        Err(refusal) => {
            count(&webhooks.metrics, refusal);
            refusal.response(version)
        }
    }
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
    let (in_flight, limit) = match webhook {
        Webhook::Convert => (&webhooks.conversion, webhooks.limits.conversion_bytes),
        Webhook::Mutate | Webhook::Validate | Webhook::ValidateStatus => {
            (&webhooks.admission, webhooks.limits.admission_bytes)
        }
    };
    let _permit = in_flight.try_acquire().map_err(|_| Refusal::Busy)?;
    let deadline = began + budget(request.uri().query(), webhooks.limits.default_timeout);
    let collected =
        body::collect(request.into_body(), limit, deadline, &webhooks.limits, &webhooks.large_bodies).await?;
    if Instant::now() >= deadline {
        return Err(Refusal::Timeout);
    }
    if collected.bytes.len() <= webhooks.limits.inline_bytes {
        return guarded(webhooks, webhook, &collected.bytes);
    }
    let turn = timeout_at(deadline, Arc::clone(&webhooks.large_reviews).acquire_owned()).await;
    let turn = turn.map_err(|_| Refusal::Timeout)?;
    let behind = Arc::clone(webhooks);
    let work = tokio::task::spawn_blocking(move || {
        // Given back when the work is over, also when its caller has gone.
        let (_turn, Collected { bytes, place: _place }) = (turn, collected);
        guarded(&behind, webhook, &bytes)
    });
    match timeout_at(deadline, work).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Refusal::Panic),
        Err(_) => Err(Refusal::Timeout),
    }
}

/// What a reviewer answers at a path, for callers in this process; none where there is no webhook.
pub fn answer_at(reviewer: &dyn Reviewer, path: &str, body: &[u8]) -> Option<Answer> {
    let (_, webhook) = PATHS.iter().find(|(known, _)| *known == path)?;
    Some(ask(reviewer, *webhook, body))
}

fn ask(reviewer: &dyn Reviewer, webhook: Webhook, body: &[u8]) -> Answer {
    match webhook {
        Webhook::Mutate => reviewer.mutate(body),
        Webhook::Validate | Webhook::ValidateStatus => reviewer.validate(body),
        Webhook::Convert => reviewer.convert(body),
    }
}

/// Asks the reviewer; a panic there ends this request and nothing else.
fn guarded(webhooks: &Webhooks, webhook: Webhook, body: &Bytes) -> Result<Answer, Refusal> {
    let asked = catch_unwind(AssertUnwindSafe(|| ask(&*webhooks.reviewer, webhook, body)));
    asked.map_err(|_| {
        if let Some(held_back) = webhooks.complaints.permit(Instant::now()) {
            error!(?webhook, held_back, "a review panicked; the caller gets a failure and the process goes on");
        }
        webhooks.metrics.server.panics.inc(&Panicked { webhook });
        Refusal::Panic
    })
}

/// `application/json`, with or without parameters.
fn is_json(content_type: Option<&HeaderValue>) -> bool {
    let essence = content_type.and_then(|value| value.to_str().ok()).and_then(|text| text.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// How long the answer may take: the caller's `timeout`, which the API server sends with every call, less the margin.
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
    let reason = match refusal {
        Refusal::Busy => Rejection::InFlightLimit,
        Refusal::TooLarge { .. } => Rejection::BodyTooLarge,
        Refusal::RequestTimeout => Rejection::BodyTooSlow,
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
    fn the_caller_says_how_long_an_answer_may_take(#[case] query: Option<&str>, #[case] millis: u64) {
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
