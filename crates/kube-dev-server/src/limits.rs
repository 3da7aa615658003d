//! How many requests are answered at a time, and how long each may take.
//!
//! Decided as kube-apiserver decides it: requests that read and requests that write each have so many places. Administrators, among them the
//! server's own helpers, and health checks need none and take none from others. Watches are counted by themselves: each costs memory for as
//! long as it lasts, whoever has opened it.
//! Source: spec/extension-apiserver §4.4.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use http::Method;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access::User;
use kube_protocol::{
    answer::{Answer, AnswerBody},
    request::{Query, Target, Verb, check_timeout},
    status::{ApiStatus, Form},
};

/// How much callers may ask for. 0 requests or watches mean that nobody counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests at a time that only read (`--max-requests-inflight`).
    pub reading: usize,
    /// Requests at a time that may write (`--max-mutating-requests-inflight`).
    pub writing: usize,
    /// Watches at a time (`--max-watches`).
    pub watches: usize,
    /// No request takes longer, whatever its caller says; watches excepted (`--request-timeout`).
    pub deadline: Duration,
    /// Connections of a listener (`--max-connections`).
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { reading: 400, writing: 200, watches: 10_000, deadline: Duration::from_secs(60), connections: 2_000 }
    }
}

/// With whom a request shares its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Reading,
    Writing,
    Watching,
    /// Health checks are answered however much there is to do.
    Health,
}

impl Lane {
    pub(super) fn of(target: &Target, method: &Method) -> Self {
        match target {
            Target::Resource(request) => match request.verb {
                Some(Verb::Watch) => Self::Watching,
                Some(Verb::Get | Verb::List) => Self::Reading,
                _ => Self::Writing,
            },
            Target::Other(segments) => match segments.first().map(String::as_str) {
                Some("healthz" | "livez" | "readyz") => Self::Health,
                _ if matches!(*method, Method::GET | Method::HEAD) => Self::Reading,
                _ => Self::Writing,
            },
        }
    }
}

/// Whether a request is answered only if there is a place for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    NeedsPlace,
    Exempt,
}

/// What a request needs, by its lane and by who sends it.
fn entry(lane: Lane, caller: &User) -> Entry {
    match lane {
        Lane::Health => Entry::Exempt,
        Lane::Reading | Lane::Writing if caller.is_master() => Entry::Exempt,
        Lane::Reading | Lane::Writing | Lane::Watching => Entry::NeedsPlace,
    }
}

/// When a request must be answered, by what its caller asks for; a watch has no deadline, and what it asks for is not looked at.
fn deadline(lane: Lane, query: &Query, most: Duration) -> Result<Option<Duration>, ApiStatus> {
    if lane == Lane::Watching {
        return Ok(None);
    }
    let asked = check_timeout(query)?;
    Ok(Some(asked.map_or(most, |asked| asked.min(most))))
}

/// As a real server says it: not as an object.
fn too_many() -> ApiStatus {
    let message = "Too many requests, please try again later.";
    ApiStatus { form: Form::Text, ..ApiStatus::new(429, "TooManyRequests", message).retry_after(1) }
}

/// A place among those that are answered, until it is dropped.
pub(super) type Place = Option<OwnedSemaphorePermit>;

/// The places of all requests.
#[derive(Debug)]
pub(super) struct Places {
    reading: Option<Arc<Semaphore>>,
    writing: Option<Arc<Semaphore>>,
    watching: Option<Arc<Semaphore>>,
    deadline: Duration,
}

impl Places {
    pub(super) fn new(limits: &Limits) -> Self {
        let places = |count: usize| (count > 0).then(|| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))));
        Self {
            reading: places(limits.reading),
            writing: places(limits.writing),
            watching: places(limits.watches),
            deadline: limits.deadline,
        }
    }

    /// A place in a lane.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn enter(&self, lane: Lane, caller: &User) -> Result<Place, ApiStatus> {
        let places = match lane {
            _ if entry(lane, caller) == Entry::Exempt => None,
            Lane::Reading => self.reading.as_ref(),
            Lane::Writing => self.writing.as_ref(),
            Lane::Watching => self.watching.as_ref(),
            Lane::Health => None,
        };
        let place = places.map(|places| Arc::clone(places).try_acquire_owned());
        place.transpose().map_err(|_| too_many())
    }

    /// Answers within the time that a request has.
    ///
    /// # Errors
    /// 504 when that is over; 400 when the caller asks for what is no time.
    pub(super) async fn in_time(
        &self,
        lane: Lane,
        query: &Query,
        answered: impl Future<Output = Result<Answer, ApiStatus>>,
    ) -> Result<Answer, ApiStatus> {
        let Some(limit) = deadline(lane, query, self.deadline)? else { return answered.await };
        tokio::time::timeout(limit, answered).await.unwrap_or_else(|_| {
            let message = "Timeout: request did not complete within the allotted timeout";
            Err(ApiStatus::new(504, "Timeout", message).with_details(serde_json::json!({})))
        })
    }
}

/// Keeps the place of a watch until it has told everything.
pub(super) fn held(lane: Lane, place: Place, mut answer: Answer) -> Answer {
    if let (Lane::Watching, AnswerBody::Stream(body)) = (lane, &mut answer.body) {
        let told = std::mem::take(body).map_frame(move |frame| {
            let _held = &place;
            frame
        });
        answer.body = AnswerBody::Stream(Body::new(told));
    }
    answer
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        access::MASTERS,
        testing::{ask, cluster_with, open, watch},
    };
    use kube_protocol::request::classify;

    fn user(groups: &[&str]) -> User {
        User::known("somebody", groups.iter().map(|group| (*group).to_owned()))
    }

    #[rstest]
    #[case::get("GET", "/api/v1/namespaces/a/pods/p", "", Lane::Reading)]
    #[case::list("GET", "/api/v1/pods", "", Lane::Reading)]
    #[case::watch("GET", "/api/v1/pods", "watch=1", Lane::Watching)]
    #[case::watch_of_one_object_is_a_get("GET", "/api/v1/namespaces/a/pods/p", "watch=1", Lane::Reading)]
    #[case::create("POST", "/api/v1/namespaces/a/pods", "", Lane::Writing)]
    #[case::a_review_is_created("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "", Lane::Writing)]
    #[case::delete("DELETE", "/api/v1/namespaces/a/pods/p", "", Lane::Writing)]
    #[case::discovery("GET", "/apis", "", Lane::Reading)]
    #[case::other("POST", "/version", "", Lane::Writing)]
    #[case::health("GET", "/readyz/storage", "", Lane::Health)]
    fn whom_a_request_shares_its_places_with(
        #[case] method: &str,
        #[case] path: &str,
        #[case] query: &str,
        #[case] expected: Lane,
    ) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let target = classify(&method, path, &Query::parse(Some(query))).unwrap();
        assert_eq!(Lane::of(&target, &method), expected);
    }

    #[rstest]
    #[case::somebody_reads(Lane::Reading, &["others"], Entry::NeedsPlace)]
    #[case::somebody_writes(Lane::Writing, &[], Entry::NeedsPlace)]
    #[case::an_administrator_reads(Lane::Reading, &[MASTERS], Entry::Exempt)]
    #[case::an_administrator_writes(Lane::Writing, &["others", MASTERS], Entry::Exempt)]
    #[case::watches_of_anybody(Lane::Watching, &[MASTERS], Entry::NeedsPlace)]
    #[case::health(Lane::Health, &[], Entry::Exempt)]
    fn who_needs_a_place(#[case] lane: Lane, #[case] groups: &[&str], #[case] expected: Entry) {
        assert_eq!(entry(lane, &user(groups)), expected);
    }

    #[rstest]
    #[case::none(Lane::Reading, "", Ok(Some(60_000)))]
    #[case::shorter(Lane::Writing, "timeout=1500ms", Ok(Some(1_500)))]
    #[case::longer_than_allowed(Lane::Reading, "timeout=2h", Ok(Some(60_000)))]
    #[case::zero_is_none(Lane::Reading, "timeout=0s", Ok(Some(60_000)))]
    #[case::negative_is_none(Lane::Reading, "timeout=-5s", Ok(Some(60_000)))]
    #[case::xa_041_no_time(Lane::Reading, "timeout=abc", Err(400))]
    #[case::watches_have_none(Lane::Watching, "timeout=1s", Ok(None))]
    #[case::and_are_not_asked(Lane::Watching, "timeout=abc", Ok(None))]
    fn when_a_request_must_be_answered(
        #[case] lane: Lane,
        #[case] query: &str,
        #[case] expected: Result<Option<u64>, u16>,
    ) {
        let found = deadline(lane, &Query::parse(Some(query)), Duration::from_secs(60));
        let expected = expected.map(|limit| limit.map(Duration::from_millis));
        assert_eq!(found.map_err(|status| status.code), expected);
    }

    const MAPS: &str = "/api/v1/namespaces/default/configmaps";

    #[tokio::test(start_paused = true)]
    async fn places_are_free_again_when_their_requests_are_answered() {
        let places = Places::new(&Limits { reading: 1, writing: 1, watches: 1, ..Limits::default() });
        let (somebody, master) = (user(&[]), user(&[MASTERS]));
        let own = places.enter(Lane::Reading, &master).unwrap();
        assert!(own.is_none(), "administrators take no place from others");
        let first = places.enter(Lane::Reading, &somebody).unwrap();
        let refused = places.enter(Lane::Reading, &somebody).unwrap_err();
        assert_eq!((refused.code, refused.retry_after, refused.form), (429, Some(1), Form::Text));
        assert!(places.enter(Lane::Reading, &master).is_ok());
        assert!(places.enter(Lane::Writing, &somebody).unwrap().is_some(), "a lane of its own");
        drop(first);
        assert!(places.enter(Lane::Reading, &somebody).unwrap().is_some());
        let endless = Places::new(&Limits { reading: 0, ..Limits::default() });
        assert!(endless.enter(Lane::Reading, &somebody).unwrap().is_none(), "nobody counts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_has_its_place_until_it_ends() {
        let cluster = cluster_with(Limits { watches: 1, ..Limits::default() });
        let follow = format!("{MAPS}?watch=1&timeoutSeconds=5");
        let first = open(&cluster, &follow).await;
        assert_eq!((first.status().as_u16(), open(&cluster, &follow).await.status().as_u16()), (200, 429));
        assert_eq!(open(&cluster, MAPS).await.status(), 200, "a list is no watch");
        drop(first);
        assert_eq!(open(&cluster, &follow).await.status(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_answered_in_time_gets_504_and_a_watch_does_not() {
        let cluster = cluster_with(Limits { deadline: Duration::from_secs(3), ..Limits::default() });
        let delay = crate::Hook::Delay { verb: None, resource: Some("configmaps".to_owned()), milliseconds: 10_000 };
        cluster.server.order(delay).unwrap();
        let began = tokio::time::Instant::now();
        let map = json!({"metadata": {"name": "late"}});
        assert_eq!(ask(&cluster, "POST", MAPS, &map).await.unwrap_err(), 504);
        assert_eq!(ask(&cluster, "GET", &format!("{MAPS}?timeout=1s"), &Value::Null).await.unwrap_err(), 504);
        assert_eq!(began.elapsed().as_secs(), 4);
        watch(&cluster, &format!("{MAPS}?watch=1&timeoutSeconds=5")).await;
        assert_eq!(began.elapsed().as_secs(), 4 + 10 + 5, "held up, then for as long as it was asked to");
        assert_eq!(
            ask(&cluster, "GET", "/api/v1/namespaces/default/secrets/late", &Value::Null).await.unwrap_err(),
            404
        );
    }
}
