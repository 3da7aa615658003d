//! Questions to the API server of the control cluster: whose token is this, who may do that.
//!
//! What lives here: sending one, with a deadline and a bounded number of tries. What its answer means is decided in
//! `authentication` and `authorization`. Source: spec/extension-apiserver §3.3, §3.5.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::reachability::Reachability;

/// One try takes no longer.
const TRY: Duration = Duration::from_secs(10);
/// How often a question is sent.
const TRIES: u32 = 5;
/// Wait after the first failure; each further one is half as long again.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Where reviews are created.
pub const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Where access is asked for.
pub const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// Why one try failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryError {
    /// Another try may help.
    Passing(String),
    /// It would be refused again.
    Final(String),
}

/// Sends one review.
#[async_trait]
pub trait Reviews: Send + Sync {
    /// Posts a review and answers it with its status.
    async fn review(&self, path: &'static str, body: &Value) -> Result<Value, TryError>;
}

/// Reviews by an API server.
pub struct ApiReviews {
    client: kube::Client,
    reachability: Reachability,
}

impl ApiReviews {
    /// Asks through this client; every answer shows that the server can be reached.
    pub fn new(client: kube::Client, reachability: Reachability) -> Self {
        Self { client, reachability }
    }
}

#[async_trait]
impl Reviews for ApiReviews {
    async fn review(&self, path: &'static str, body: &Value) -> Result<Value, TryError> {
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| TryError::Final(error.to_string()))?;
        match self.client.request::<Value>(request).await {
            Ok(answer) => {
                self.reachability.confirm();
                Ok(answer)
            }
            Err(kube::Error::Api(status)) => {
                self.reachability.confirm();
                // Never the body of the question: it may hold a token.
                let text = format!("{} ({})", status.message, status.code);
                let passes = status.code >= 500 || status.code == 429;
                Err(if passes { TryError::Passing(text) } else { TryError::Final(text) })
            }
            Err(other) => Err(TryError::Passing(other.to_string())),
        }
    }
}

/// Sends a review until it is answered, five times at most. `jitter` gives numbers from 0 to 1.
///
/// # Errors
/// With the last failure.
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
        let why = match timeout(TRY, reviews.review(path, &body)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(TryError::Final(why))) => return Err(why),
            Ok(Err(TryError::Passing(why))) => why,
            Err(_) => format!("no answer within {}s", TRY.as_secs()),
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

    struct Script(Mutex<Vec<Result<Value, TryError>>>);

    #[async_trait]
    impl Reviews for Script {
        async fn review(&self, _: &'static str, _: &Value) -> Result<Value, TryError> {
            self.0.lock().unwrap().remove(0)
        }
    }

    fn passing() -> Result<Value, TryError> {
        Err(TryError::Passing("busy".to_owned()))
    }

    #[rstest]
    #[case::at_once(vec![Ok(json!(1))], Ok(json!(1)))]
    #[case::after_failures_that_pass(vec![passing(), passing(), Ok(json!(2))], Ok(json!(2)))]
    #[case::a_refusal_is_final(vec![Err(TryError::Final("no".to_owned())), Ok(json!(3))], Err("no".to_owned()))]
    #[case::five_times_at_most(vec![passing(), passing(), passing(), passing(), passing()], Err("busy".to_owned()))]
    #[tokio::test(start_paused = true)]
    async fn questions_are_tried_again(
        #[case] script: Vec<Result<Value, TryError>>,
        #[case] expected: Result<Value, String>,
    ) {
        let reviews = Arc::new(Script(Mutex::new(script)));
        assert_eq!(ask(reviews, ACCESS_REVIEWS, json!({}), || 0.5).await, expected);
    }
}
