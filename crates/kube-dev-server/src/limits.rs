//! The limits of concurrent requests, and their deadlines.
//!
//! The limits are the same as in kube-apiserver: one for read requests and one for write requests. Requests of administrators, such as the built-in
//! controllers, and health checks are exempt. Watches have a limit of their own, without exemptions: each watch costs memory as long as it lasts.
//! Source: spec/extension-apiserver §4.4.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use http::Method;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access::User;
use kube_listener::pipeline::ApiRequest;
use kube_protocol::{
    answer::{Answer, AnswerBody},
    health,
    request::{Target, Verb},
    status::{ApiStatus, Form},
};

/// The limits of requests and connections. 0 requests or watches mean that there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most concurrent read requests (`--max-requests-inflight`).
    pub reading: usize,
    /// The most concurrent write requests (`--max-mutating-requests-inflight`).
    pub writing: usize,
    /// The most concurrent watches (`--max-watches`).
    pub watches: usize,
    /// The longest time of a request, except for watches (`--request-timeout`).
    pub deadline: Duration,
    /// The most connections of a listener (`--max-connections`).
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { reading: 400, writing: 200, watches: 10_000, deadline: Duration::from_secs(60), connections: 2_000 }
    }
}

/// The class of a request. The requests of a class share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestClass {
    Reading,
    Writing,
    Watching,
    /// Health checks have no limit.
    Health,
}

impl RequestClass {
    pub(super) fn of(request: &ApiRequest) -> Self {
        match &request.target {
            Target::Resource(request) => match request.verb {
                Some(Verb::Watch) => Self::Watching,
                Some(Verb::Get | Verb::List) => Self::Reading,
                _ => Self::Writing,
            },
            Target::Other(segments) if health::is_endpoint(segments) => Self::Health,
            Target::Other(_) if matches!(request.head.method, Method::GET | Method::HEAD) => Self::Reading,
            Target::Other(_) => Self::Writing,
        }
    }
}

/// Whether the limits apply to a request of a user.
fn is_limited(class: RequestClass, user: &User) -> bool {
    match class {
        RequestClass::Health => false,
        RequestClass::Reading | RequestClass::Writing => !user.is_master(),
        RequestClass::Watching => true,
    }
}

/// The error has the form of a kube-apiserver: a text and no object.
fn too_many() -> ApiStatus {
    let message = "Too many requests, please try again later.";
    ApiStatus { form: Form::Text, ..ApiStatus::new(429, "TooManyRequests", message).retry_after(1) }
}

/// The permit of a request; none for a request without a limit. The next request gets it when it is dropped.
pub(super) type RequestPermit = Option<OwnedSemaphorePermit>;

/// Limits the concurrent requests.
#[derive(Debug)]
pub(super) struct RequestLimiter {
    reading: Option<Arc<Semaphore>>,
    writing: Option<Arc<Semaphore>>,
    watching: Option<Arc<Semaphore>>,
    deadline: Duration,
}

impl RequestLimiter {
    pub(super) fn new(limits: &Limits) -> Self {
        let permits = |count: usize| (count > 0).then(|| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))));
        Self {
            reading: permits(limits.reading),
            writing: permits(limits.writing),
            watching: permits(limits.watches),
            deadline: limits.deadline,
        }
    }

    /// Acquires a permit for a request.
    ///
    /// # Errors
    /// 429 if all permits are in use.
    pub(super) fn acquire(&self, class: RequestClass, user: &User) -> Result<RequestPermit, ApiStatus> {
        let permits = match class {
            _ if !is_limited(class, user) => None,
            RequestClass::Reading => self.reading.as_ref(),
            RequestClass::Writing => self.writing.as_ref(),
            RequestClass::Watching => self.watching.as_ref(),
            RequestClass::Health => None,
        };
        let permit = permits.map(|permits| Arc::clone(permits).try_acquire_owned());
        permit.transpose().map_err(|_| too_many())
    }

    /// The longest time for the answer of a request. A watch has no deadline.
    pub(super) fn longest_time(&self, class: RequestClass) -> Option<Duration> {
        (class != RequestClass::Watching).then_some(self.deadline)
    }
}

/// Holds the permit of a watch until its event stream ends.
pub(super) fn hold_permit(class: RequestClass, permit: RequestPermit, mut answer: Answer) -> Answer {
    if let (RequestClass::Watching, AnswerBody::Stream(body)) = (class, &mut answer.body) {
        let stream = std::mem::take(body).map_frame(move |frame| {
            let _held = &permit;
            frame
        });
        answer.body = AnswerBody::Stream(Body::new(stream));
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
    use kube_protocol::request::{Query, classify};

    fn user(groups: &[&str]) -> User {
        User::known("tester", groups.iter().map(|group| (*group).to_owned()))
    }

    #[rstest]
    #[case::get("GET", "/api/v1/namespaces/a/pods/p", "", RequestClass::Reading)]
    #[case::list("GET", "/api/v1/pods", "", RequestClass::Reading)]
    #[case::watch("GET", "/api/v1/pods", "watch=1", RequestClass::Watching)]
    #[case::watch_of_one_object_is_a_get("GET", "/api/v1/namespaces/a/pods/p", "watch=1", RequestClass::Reading)]
    #[case::create("POST", "/api/v1/namespaces/a/pods", "", RequestClass::Writing)]
    #[case::a_review_is_created(
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        "",
        RequestClass::Writing
    )]
    #[case::delete("DELETE", "/api/v1/namespaces/a/pods/p", "", RequestClass::Writing)]
    #[case::discovery("GET", "/apis", "", RequestClass::Reading)]
    #[case::other("POST", "/version", "", RequestClass::Writing)]
    #[case::health("GET", "/readyz/storage", "", RequestClass::Health)]
    fn the_class_of_a_request(
        #[case] method: &str,
        #[case] path: &str,
        #[case] query: &str,
        #[case] expected: RequestClass,
    ) {
        let (head, ()) = http::Request::builder().method(method).uri(path).body(()).unwrap().into_parts();
        let query = Query::parse(Some(query));
        let target = classify(&head.method, path, &query).unwrap();
        assert_eq!(RequestClass::of(&ApiRequest { head, target, query, deadline: None }), expected);
    }

    #[rstest]
    #[case::a_user_reads(RequestClass::Reading, &["others"], true)]
    #[case::a_user_writes(RequestClass::Writing, &[], true)]
    #[case::an_administrator_reads(RequestClass::Reading, &[MASTERS], false)]
    #[case::an_administrator_writes(RequestClass::Writing, &["others", MASTERS], false)]
    #[case::an_administrator_watches(RequestClass::Watching, &[MASTERS], true)]
    #[case::health(RequestClass::Health, &[], false)]
    fn limits_apply_to_all_but_administrators_and_health_checks(
        #[case] class: RequestClass,
        #[case] groups: &[&str],
        #[case] limited: bool,
    ) {
        assert_eq!(is_limited(class, &user(groups)), limited);
    }

    const MAPS: &str = "/api/v1/namespaces/default/configmaps";

    #[tokio::test(start_paused = true)]
    async fn permits_are_free_again_when_their_requests_are_answered() {
        let limiter = RequestLimiter::new(&Limits { reading: 1, writing: 1, watches: 1, ..Limits::default() });
        let (caller, master) = (user(&[]), user(&[MASTERS]));
        let own = limiter.acquire(RequestClass::Reading, &master).unwrap();
        assert!(own.is_none(), "administrators need no permit");
        let first = limiter.acquire(RequestClass::Reading, &caller).unwrap();
        let refused = limiter.acquire(RequestClass::Reading, &caller).unwrap_err();
        assert_eq!((refused.code, refused.retry_after, refused.form), (429, Some(1), Form::Text));
        assert!(limiter.acquire(RequestClass::Reading, &master).is_ok());
        assert!(limiter.acquire(RequestClass::Writing, &caller).unwrap().is_some(), "writes have another limit");
        drop(first);
        assert!(limiter.acquire(RequestClass::Reading, &caller).unwrap().is_some());
        let unlimited = RequestLimiter::new(&Limits { reading: 0, ..Limits::default() });
        assert!(unlimited.acquire(RequestClass::Reading, &caller).unwrap().is_none(), "0 means no limit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_has_its_permit_until_it_ends() {
        let cluster = cluster_with(Limits { watches: 1, ..Limits::default() });
        let follow = format!("{MAPS}?watch=1&timeoutSeconds=5");
        let first = open(&cluster, &follow).await;
        assert_eq!((first.status().as_u16(), open(&cluster, &follow).await.status().as_u16()), (200, 429));
        assert_eq!(open(&cluster, MAPS).await.status(), 200, "the limit of watches does not apply to a list");
        drop(first);
        assert_eq!(open(&cluster, &follow).await.status(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_answered_with_504_after_its_deadline_and_a_watch_is_not() {
        let cluster = cluster_with(Limits { deadline: Duration::from_secs(3), ..Limits::default() });
        let delay = crate::Hook::Delay { verb: None, resource: Some("configmaps".to_owned()), milliseconds: 10_000 };
        cluster.server.apply_hook(delay).unwrap();
        let began = tokio::time::Instant::now();
        let map = json!({"metadata": {"name": "late"}});
        assert_eq!(ask(&cluster, "POST", MAPS, &map).await.unwrap_err(), 504);
        assert_eq!(ask(&cluster, "GET", &format!("{MAPS}?timeout=1s"), &Value::Null).await.unwrap_err(), 504);
        assert_eq!(began.elapsed().as_secs(), 4);
        watch(&cluster, &format!("{MAPS}?watch=1&timeoutSeconds=5")).await;
        assert_eq!(began.elapsed().as_secs(), 4 + 10 + 5, "the delay of the hook and the timeout of the watch");
        assert_eq!(
            ask(&cluster, "GET", "/api/v1/namespaces/default/secrets/late", &Value::Null).await.unwrap_err(),
            404
        );
    }
}
