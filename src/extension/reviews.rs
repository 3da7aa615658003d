//! Reviews by the API server of the control cluster: the owner of a token, and the rights of a caller.
//!
//! Sends a review, with a deadline and a bounded number of tries. The meaning of the answer is decided in `authentication` and `authorization`.
//! Source: spec/extension-apiserver §3.3, §3.5.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::reachability::Reachability;
use controller_runtime::error::ApiError;

/// Deadline of one try.
const TRY_DEADLINE: Duration = Duration::from_secs(10);
/// Tries of one review.
const TRIES: u32 = 5;
/// Wait after the first failure. Each further wait is 1.5 times as long.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Path of `TokenReviews`.
pub const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Path of `SubjectAccessReviews`.
pub const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// Sends one review.
#[async_trait]
pub trait Reviews: Send + Sync {
    /// Posts a review and returns it with its status.
    async fn review(&self, path: &'static str, body: &Value) -> Result<Value, ApiError>;
}

/// Reviews by an API server.
pub struct ApiReviews {
    client: kube::Client,
    reachability: Reachability,
}

impl ApiReviews {
    /// Sends reviews through this client. Each answer confirms that the API server is reachable.
    pub fn new(client: kube::Client, reachability: Reachability) -> Self {
        Self { client, reachability }
    }
}

#[async_trait]
impl Reviews for ApiReviews {
    async fn review(&self, path: &'static str, body: &Value) -> Result<Value, ApiError> {
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| ApiError::Other(error.to_string()))?;
        // Errors leave the body of the review out, because it may contain a token.
        let answer = self.client.request::<Value>(request).await.map_err(ApiError::from);
        // A refusal is an answer of the API server, too.
        if answer.as_ref().err().is_none_or(ApiError::is_explained) {
            self.reachability.confirm();
        }
        answer
    }
}

/// Sends a review until it is answered, at most five times. `jitter` returns numbers from 0 to 1.
///
/// # Errors
/// The last failure.
pub async fn ask(
    reviews: Arc<dyn Reviews>,
    path: &'static str,
    body: Value,
    jitter: impl Fn() -> f64,
) -> Result<Value, String> {
    let mut wait = FIRST_WAIT;
    let mut tries = 0;
    loop {
        tries += 1;
        let answer = timeout(TRY_DEADLINE, reviews.review(path, &body)).await;
        match answer.unwrap_or(Err(ApiError::TimedOut(TRY_DEADLINE))) {
            Ok(answer) => return Ok(answer),
            // An unreadable answer may be the page of a proxy.
            Err(error) if tries < TRIES && (error.is_temporary() || matches!(error, ApiError::Unreadable(_))) => {}
            Err(error) => return Err(error.to_string()),
        }
        sleep(wait.mul_f64(1.0 + 0.2 * jitter())).await;
        wait = wait.mul_f64(1.5);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    struct Script(Mutex<Vec<Result<Value, ApiError>>>);

    #[async_trait]
    impl Reviews for Script {
        async fn review(&self, _: &'static str, _: &Value) -> Result<Value, ApiError> {
            self.0.lock().unwrap().remove(0)
        }
    }

    fn retryable() -> Result<Value, ApiError> {
        Err(ApiError::ServerFault("busy".to_owned()))
    }

    #[rstest]
    #[case::at_once(vec![Ok(json!(1))], Ok(json!(1)))]
    #[case::after_retryable_failures(vec![retryable(), retryable(), Ok(json!(2))], Ok(json!(2)))]
    #[case::a_refusal_is_final(vec![Err(ApiError::Other("no".to_owned())), Ok(json!(3))], Err("no".to_owned()))]
    #[case::five_times_at_most(vec![retryable(), retryable(), retryable(), retryable(), retryable()],
        Err("the API server failed: busy".to_owned()))]
    #[tokio::test(start_paused = true)]
    async fn reviews_are_tried_again(
        #[case] script: Vec<Result<Value, ApiError>>,
        #[case] expected: Result<Value, String>,
    ) {
        let reviews = Arc::new(Script(Mutex::new(script)));
        assert_eq!(ask(reviews, ACCESS_REVIEWS, json!({}), || 0.5).await, expected);
    }
}
