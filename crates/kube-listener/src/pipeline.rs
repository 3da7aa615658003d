//! The way of a request through an API server, from its head to its response.
//!
//! The steps, in this order: query, audit id, target, deadline, panics, identity, limit of concurrent requests, rights, dispatch, response. The
//! pipeline does what is equal in all API servers. An [`Exchange`] does what differs: it is one request in the view of one server.
//!
//! Dispatch is a step of the server, with the body and the negotiation in it. The development server reads every body before it knows whether another
//! server answers, and the extension API server reads only the bodies of reviews, after it has found their view.
//! Source: spec/extension-apiserver §2.2, §4.4, §4.5.

use std::{panic::AssertUnwindSafe, time::Duration};

use axum::body::Body;
use futures::FutureExt;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use tokio::time::{Instant, timeout};
use tracing::error;

use crate::Peer;
use kube_protocol::{
    answer::{Answer, refused, written},
    negotiate,
    request::{Query, Target, classify, time_limit},
    status::{ApiStatus, Form},
};

/// The header with the id of a request in logs.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// The message of the error after a panic.
pub const PANIC: &str = "This request caused apiserver to panic. Look in the logs for details.";

/// The message of the error after the deadline.
const TIMEOUT: &str = "Timeout: request did not complete within the allotted timeout";

/// A request to an API server.
#[derive(Debug)]
pub struct ApiRequest {
    /// Method, path and headers.
    pub head: Parts,
    /// The target.
    pub target: Target,
    /// The parameters.
    pub query: Query,
    /// The end of the time for the answer; none for a request without a deadline.
    pub deadline: Option<Instant>,
}

/// One request in the view of one API server. The methods are the steps in which servers differ, in the order of the calls. A value keeps what the
/// server learns about the request on the way, for metrics and logs.
pub trait Exchange: Send {
    /// A user.
    type User: Send + Sync;

    /// The longest time for the answer; none for a request without a deadline. A client may ask for less.
    fn longest_time(&self, request: &ApiRequest) -> Option<Duration>;

    /// Authenticates the user. Credentials may be removed from the headers.
    fn identify(&mut self, request: &mut ApiRequest) -> impl Future<Output = Result<Self::User, ApiStatus>> + Send;

    /// Takes one of the permits for concurrent requests. The exchange holds it.
    fn take_permit(&mut self, user: &Self::User, request: &ApiRequest) -> Result<(), ApiStatus>;

    /// Checks the rights of the user.
    fn authorize(&self, user: &Self::User, request: &ApiRequest) -> impl Future<Output = Result<(), ApiStatus>> + Send;

    /// Answers the request.
    fn dispatch(
        &mut self,
        user: &Self::User,
        request: &ApiRequest,
        body: Body,
    ) -> impl Future<Output = Answered> + Send;

    /// Warnings about the request itself. They come before the warnings of the answer.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// Reports a panic in one of the steps.
    fn panicked(&self, request: &ApiRequest) {
        error!(path = request.head.uri.path(), "a request panicked; its caller gets a failure and the process goes on");
    }

    /// The error after the deadline, in the form of this server.
    fn timed_out(&self, status: ApiStatus) -> ApiStatus {
        status
    }
}

/// The answer to a request, or its error.
pub type Answered = Result<Answer, ApiStatus>;

/// Answers a request.
pub async fn answer(
    exchange: &mut impl Exchange,
    mut head: Parts,
    body: Body,
    audit_id: HeaderValue,
) -> Response<Body> {
    // Another server that answers this request uses the same id.
    head.headers.insert(AUDIT_ID, audit_id.clone());
    let query = Query::parse(head.uri.query());
    let agent = head.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let layout = negotiate::layout(query.get("pretty"), agent);
    let (is_head, peer) = (head.method == Method::HEAD, head.extensions.get::<Peer>().cloned());
    let mut response = match answered(exchange, head, query, body).await {
        Ok(mut answer) => {
            answer.warnings.splice(0..0, exchange.warnings().iter().cloned());
            written(answer, layout)
        }
        Err(status) => refused(&status.warned(exchange.warnings()), layout),
    };
    if is_head {
        *response.body_mut() = Body::empty();
    }
    let body_is_unread = matches!(response.status(), StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE);
    if let Some(peer) = peer.filter(|_| body_is_unread) {
        // The client may still send the rest of the body.
        peer.close_connection();
    }
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, audit_id);
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    response
}

/// Takes the steps from target to dispatch within the deadline. A panic fails this request alone.
async fn answered(exchange: &mut impl Exchange, head: Parts, query: Query, body: Body) -> Answered {
    let target = classify(&head.method, head.uri.path(), &query)?;
    let mut request = ApiRequest { head, target, query, deadline: None };
    let limit = time_limit(&request.query, exchange.longest_time(&request))?;
    request.deadline = limit.map(|limit| Instant::now() + limit);
    let steps = async {
        let user = exchange.identify(&mut request).await?;
        exchange.take_permit(&user, &request)?;
        exchange.authorize(&user, &request).await?;
        exchange.dispatch(&user, &request, body).await
    };
    // The future is on the heap because it is large and every outer future would contain it.
    let steps = Box::pin(AssertUnwindSafe(steps).catch_unwind());
    // A request without a deadline gets no timer: paused time would advance to it.
    let ended = match limit {
        Some(limit) => timeout(limit, steps).await,
        None => Ok(steps.await),
    };
    match ended {
        Ok(Ok(answered)) => answered,
        Ok(Err(_)) => {
            exchange.panicked(&request);
            Err(ApiStatus { form: Form::Text, ..ApiStatus::new(500, "InternalError", PANIC) })
        }
        Err(_) => Err(exchange.timed_out(ApiStatus::new(504, "Timeout", TIMEOUT))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rstest::rstest;

    use super::*;

    /// Ends each request in the step that its path names.
    #[derive(Default)]
    struct Scripted {
        panicked: AtomicBool,
    }

    fn unless(step: &str, request: &ApiRequest, code: u16) -> Result<(), ApiStatus> {
        if request.head.uri.path() == step { Err(ApiStatus::new(code, "Refused", step)) } else { Ok(()) }
    }

    impl Exchange for Scripted {
        type User = ();

        fn longest_time(&self, _: &ApiRequest) -> Option<Duration> {
            Some(Duration::from_secs(60))
        }

        async fn identify(&mut self, request: &mut ApiRequest) -> Result<(), ApiStatus> {
            unless("/identify", request, 401)
        }

        fn take_permit(&mut self, (): &(), request: &ApiRequest) -> Result<(), ApiStatus> {
            unless("/permit", request, 429)
        }

        async fn authorize(&self, (): &(), request: &ApiRequest) -> Result<(), ApiStatus> {
            unless("/authorize", request, 403)
        }

        async fn dispatch(&mut self, (): &(), request: &ApiRequest, _: Body) -> Answered {
            match request.head.uri.path() {
                "/panic" => panic!("as the path asks"),
                "/never" => std::future::pending().await,
                _ => unless("/large", request, 413).map(|()| Answer::text(StatusCode::OK, "fine")),
            }
        }

        fn panicked(&self, _: &ApiRequest) {
            self.panicked.store(true, Ordering::SeqCst);
        }
    }

    #[rstest]
    #[case::answered("GET", "/version", 200, "fine")]
    #[case::no_body_for_head("HEAD", "/version", 200, "")]
    #[case::no_target("GET", "/apis/g/v1/things/..", 400, "Name parameter invalid")]
    #[case::no_time("GET", "/version?timeout=abc", 400, "invalid timeout")]
    #[case::unknown("GET", "/identify", 401, "Refused")]
    #[case::too_many("GET", "/permit", 429, "Refused")]
    #[case::forbidden("GET", "/authorize", 403, "Refused")]
    #[case::too_large("POST", "/large", 413, "Refused")]
    #[case::th_44_a_panic("GET", "/panic", 500, PANIC)]
    #[case::too_late("GET", "/never?timeout=2s", 504, TIMEOUT)]
    #[tokio::test(start_paused = true)]
    async fn each_step_can_end_a_request(
        #[case] method: &str,
        #[case] path: &str,
        #[case] code: u16,
        #[case] text: &str,
    ) {
        let request = http::Request::builder().method(method).uri(path).body(()).unwrap();
        let mut exchange = Scripted::default();
        let id = HeaderValue::from_static("id-1");
        let response = answer(&mut exchange, request.into_parts().0, Body::empty(), id.clone()).await;
        assert_eq!((response.status().as_u16(), &response.headers()[AUDIT_ID]), (code, &id));
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-cache, private");
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(if text.is_empty() { body.is_empty() } else { body.contains(text) }, "{body}");
        assert_eq!(exchange.panicked.load(Ordering::SeqCst), code == 500);
    }
}
