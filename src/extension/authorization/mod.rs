//! The rights of a caller.
//!
//! Contents: the attributes of a request ([`attributes`]) and the decisions about the API server's answers ([`decide`]), both pure, and the requests
//! to the API server. The identity of the caller is elsewhere (`authentication/`). Source: spec/extension-apiserver §3.5.

pub mod attributes;
pub mod decide;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use self::{
    attributes::Attributes,
    decide::{OpenPaths, Verdict, needs_no_review, refusal, verdict},
};
use super::{
    authentication::identity::Identity,
    cache::Cache,
    digest::Digester,
    reviews::{ACCESS_REVIEWS, Reviews, ask},
};
use crate::server::LogLimit;
use kube_protocol::status::ApiStatus;

/// Maximum number of answers in the cache.
const CAPACITY: usize = 8_192;

/// How long answers stay in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Answers that allow.
    pub allowed: Duration,
    /// Answers that refuse.
    pub refused: Duration,
}

/// Asks the API server what callers may do.
pub struct Authorization {
    reviews: Arc<dyn Reviews>,
    digester: Digester,
    cache: Arc<Cache<Verdict>>,
    lifetimes: Lifetimes,
    open: OpenPaths,
    jitter: Arc<dyn Fn() -> f64 + Send + Sync>,
    log_limit: LogLimit,
}

impl Authorization {
    /// Asks through `reviews`.
    pub fn new(
        reviews: Arc<dyn Reviews>,
        digester: Digester,
        lifetimes: Lifetimes,
        open: OpenPaths,
        jitter: Arc<dyn Fn() -> f64 + Send + Sync>,
    ) -> Self {
        let cache = Cache::new(CAPACITY);
        Self { reviews, digester, cache, lifetimes, open, jitter, log_limit: LogLimit::default() }
    }

    /// Checks that a caller may do something.
    ///
    /// # Errors
    /// 403 if the caller may not, 503 when the API server does not answer.
    pub async fn check(&self, who: &Identity, what: &Attributes) -> Result<(), ApiStatus> {
        if needs_no_review(who, what, &self.open) {
            return Ok(());
        }
        match self.answer(what.review(who), what.is_cacheable()).await {
            Ok(Verdict::Allowed) => Ok(()),
            Ok(Verdict::Refused(reason)) => Err(refusal(who, what, &reason)),
            Err(why) => {
                if let Some(held_back) = self.log_limit.permit(Instant::now()) {
                    tracing::warn!(count = held_back, error = %why, "the API server does not say who may do what");
                }
                let message = "it cannot be found out now what you may do; try again";
                Err(ApiStatus::new(503, "ServiceUnavailable", message).retry_after(1))
            }
        }
    }

    async fn answer(&self, spec: Value, is_cacheable: bool) -> Result<Verdict, Arc<str>> {
        let key = self.digester.digest(&[spec.to_string().as_bytes()]);
        let question = || {
            let (reviews, jitter) = (Arc::clone(&self.reviews), Arc::clone(&self.jitter));
            let body = json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec});
            async move {
                let answer = ask(reviews, ACCESS_REVIEWS, body, move || jitter()).await?;
                Ok(verdict(&answer["status"]))
            }
        };
        if !is_cacheable {
            return question().await.map_err(|why: String| Arc::from(why));
        }
        let lifetimes = self.lifetimes;
        let keep = move |verdict: &Verdict| match verdict {
            Verdict::Allowed => lifetimes.allowed,
            Verdict::Refused(_) => lifetimes.refused,
        };
        self.cache.get(key, keep, question).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use async_trait::async_trait;
    use http::Method;

    use super::*;
    use controller_runtime::error::ApiError;

    /// Answers with `says`, and counts the reviews.
    struct Server {
        asked: AtomicUsize,
        says: Mutex<Result<bool, ApiError>>,
    }

    #[async_trait]
    impl Reviews for Server {
        async fn review(&self, _: &'static str, _: &Value) -> Result<Value, ApiError> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.says.lock().unwrap().clone().map(|allowed| json!({"status": {"allowed": allowed}}))
        }
    }

    fn authorization() -> (Arc<Server>, Authorization) {
        let server = Arc::new(Server { asked: AtomicUsize::new(0), says: Mutex::new(Ok(true)) });
        let lifetimes = Lifetimes { allowed: Duration::from_secs(10), refused: Duration::from_secs(5) };
        let open = OpenPaths::parse(&["/healthz".to_owned()]).unwrap();
        let reviews: Arc<dyn Reviews> = Arc::<Server>::clone(&server);
        (server, Authorization::new(reviews, Digester::new([1; 32]), lifetimes, open, Arc::new(|| 0.0)))
    }

    fn metrics() -> Attributes {
        Attributes::of_path("/metrics".to_owned(), &Method::GET)
    }

    async fn code(authorization: &Authorization, what: &Attributes) -> u16 {
        let alice = Identity { user: "alice".to_owned(), ..Identity::default() };
        authorization.check(&alice, what).await.map_or_else(|status| status.code, |()| 200)
    }

    #[tokio::test(start_paused = true)]
    async fn th_24_without_an_answer_only_cached_rights_and_health_are_allowed() {
        let (server, authorization) = authorization();
        assert_eq!(code(&authorization, &metrics()).await, 200);
        *server.says.lock().unwrap() = Err(ApiError::ServerFault("down".to_owned()));
        assert_eq!(code(&authorization, &metrics()).await, 200, "remembered");
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(code(&authorization, &metrics()).await, 503);
        let health = Attributes::of_path("/healthz".to_owned(), &Method::GET);
        assert_eq!(code(&authorization, &health).await, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn revoked_and_granted_rights_count_after_their_times() {
        let (server, authorization) = authorization();
        assert_eq!(code(&authorization, &metrics()).await, 200);
        *server.says.lock().unwrap() = Ok(false);
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(code(&authorization, &metrics()).await, 403);
        *server.says.lock().unwrap() = Ok(true);
        assert_eq!(code(&authorization, &metrics()).await, 403, "remembered");
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!((code(&authorization, &metrics()).await, server.asked.load(Ordering::SeqCst)), (200, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn large_questions_are_asked_each_time() {
        let (server, authorization) = authorization();
        let large = Attributes::of_path(format!("/{}", "x".repeat(20_000)), &Method::GET);
        for _ in 0..3 {
            assert_eq!(code(&authorization, &large).await, 200);
        }
        assert_eq!(server.asked.load(Ordering::SeqCst), 3);
    }
}
