//! Reviews by the API server of the control cluster: the owner of a token, and the rights of a caller.
//!
//! Sends a review, with a deadline and a bounded number of tries. The meaning of the answer is decided in `authentication` and `authorization`.
//! Source: spec/extension-apiserver §3.3, §3.5.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::reachability::Reachability;

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

/// The failure of one try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReviewError {
    /// Another try may succeed.
    Retryable(String),
    /// Another try would fail too.
    Final(String),
}

/// Sends one review.
#[async_trait]
pub trait Reviews: Send + Sync {
    /// Posts a review and returns it with its status.
    async fn review(&self, path: &'static str, body: &Value) -> Result<Value, ReviewError>;
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
    async fn review(&self, path: &'static str, body: &Value) -> Result<Value, ReviewError> {
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| ReviewError::Final(error.to_string()))?;
        match self.client.request::<Value>(request).await {
            Ok(answer) => {
                self.reachability.confirm();
                Ok(answer)
            }
            Err(kube::Error::Api(status)) => {
                self.reachability.confirm();
                // The text leaves the body of the review out, because it may contain a token.
                let text = format!("{} ({})", status.message, status.code);
                let is_retryable = status.code >= 500 || status.code == 429;
                Err(if is_retryable { ReviewError::Retryable(text) } else { ReviewError::Final(text) })
            }
            Err(other) => Err(ReviewError::Retryable(other.to_string())),
        }
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
        let why = match timeout(TRY_DEADLINE, reviews.review(path, &body)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(ReviewError::Final(why))) => return Err(why),
            Ok(Err(ReviewError::Retryable(why))) => why,
            Err(_) => format!("no answer within {}s", TRY_DEADLINE.as_secs()),
        };
        if tries == TRIES {
            return Err(why);
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

    struct Script(Mutex<Vec<Result<Value, ReviewError>>>);

    #[async_trait]
    impl Reviews for Script {
        async fn review(&self, _: &'static str, _: &Value) -> Result<Value, ReviewError> {
            self.0.lock().unwrap().remove(0)
        }
    }

    fn retryable() -> Result<Value, ReviewError> {
        Err(ReviewError::Retryable("busy".to_owned()))
    }

    #[rstest]
    #[case::at_once(vec![Ok(json!(1))], Ok(json!(1)))]
    #[case::after_retryable_failures(vec![retryable(), retryable(), Ok(json!(2))], Ok(json!(2)))]
    #[case::a_refusal_is_final(vec![Err(ReviewError::Final("no".to_owned())), Ok(json!(3))], Err("no".to_owned()))]
    #[case::five_times_at_most(vec![retryable(), retryable(), retryable(), retryable(), retryable()], Err("busy".to_owned()))]
    #[tokio::test(start_paused = true)]
    async fn reviews_are_tried_again(
        #[case] script: Vec<Result<Value, ReviewError>>,
        #[case] expected: Result<Value, String>,
    ) {
        let reviews = Arc::new(Script(Mutex::new(script)));
        assert_eq!(ask(reviews, ACCESS_REVIEWS, json!({}), || 0.5).await, expected);
    }
}
