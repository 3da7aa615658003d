//! Owners of bearer tokens: reviews by the API server, and a cache of their results.
//!
//! Tokens are never logged, stored or compared: the keys of the cache are digests that only this process can make.
//! Source: spec/extension-apiserver §3.3.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{decide::AuthResult, headers::Token, identity::Identity};
use crate::{
    extension::{
        cache::Cache,
        digest::Digester,
        reviews::{Reviews, TOKEN_REVIEWS, ask},
    },
    server::LogLimit,
};

/// Maximum number of tokens in the cache.
const CAPACITY: usize = 32_768;

/// Asks the API server for the owners of tokens.
pub struct TokenReviewer {
    reviews: Arc<dyn Reviews>,
    digester: Digester,
    cache: Arc<Cache<AuthResult>>,
    time_to_live: Duration,
    audiences: Vec<String>,
    jitter: Arc<dyn Fn() -> f64 + Send + Sync>,
    log_limit: LogLimit,
}

impl TokenReviewer {
    /// Asks through `reviews`, and keeps results of both kinds for `time_to_live`.
    pub fn new(
        reviews: Arc<dyn Reviews>,
        digester: Digester,
        time_to_live: Duration,
        audiences: Vec<String>,
        jitter: Arc<dyn Fn() -> f64 + Send + Sync>,
    ) -> Self {
        let cache = Cache::new(CAPACITY);
        Self { reviews, digester, cache, time_to_live, audiences, jitter, log_limit: LogLimit::default() }
    }

    /// The owner of a token.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn owner(&self, token: &Token, now: Timestamp) -> Result<AuthResult, Arc<str>> {
        let mut parts = vec![token.expose().as_bytes()];
        parts.extend(self.audiences.iter().map(String::as_bytes));
        let key = self.digester.digest(&parts);
        let expiry = time_left(token.expose(), now).and_then(|left| Instant::now().checked_add(left));
        let time_to_live = self.time_to_live;
        let question = || {
            let (reviews, jitter, audiences) =
                (Arc::clone(&self.reviews), Arc::clone(&self.jitter), self.audiences.clone());
            let body = token_review(token, &audiences);
            async move {
                let answer = ask(reviews, TOKEN_REVIEWS, body, move || jitter()).await?;
                Ok(result_of(&answer["status"], &audiences))
            }
        };
        // The answer comes later than the question. The result must not outlive the token.
        let keep = move |_: &AuthResult| {
            let left = expiry.map(|expiry| expiry.saturating_duration_since(Instant::now()));
            left.map_or(time_to_live, |left| left.min(time_to_live))
        };
        let answer = self.cache.get(key, keep, question).await;
        // Any client may send any number of tokens.
        if let Err(why) = &answer
            && let Some(held_back) = self.log_limit.permit(Instant::now())
        {
            tracing::warn!(count = held_back, error = %why, "a token can't be reviewed");
        }
        answer
    }
}

/// The time until the expiry in a token, if the token is a JWT that has one. The signature is not checked: the expiry only
/// shortens the time for which the result of a review is kept.
fn time_left(token: &str, now: Timestamp) -> Option<Duration> {
    #[derive(serde::Deserialize)]
    struct Claims {
        exp: f64,
    }
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let Claims { exp } = serde_json::from_slice(&claims).ok()?;
    let now = now.as_duration().as_secs_f64();
    Some(Duration::try_from_secs_f64((exp - now).max(0.0)).unwrap_or(Duration::MAX))
}

fn token_review(token: &Token, audiences: &[String]) -> Value {
    let mut spec = json!({"token": token.expose()});
    if !audiences.is_empty() {
        spec["audiences"] = json!(audiences);
    }
    json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": spec})
}

/// The result that the status of a review means.
fn result_of(status: &Value, audiences: &[String]) -> AuthResult {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    if status["authenticated"] != true {
        return AuthResult::Rejected;
    }
    let accepted = texts(&status["audiences"]);
    if !audiences.is_empty() && !audiences.iter().any(|audience| accepted.contains(audience)) {
        return AuthResult::Rejected;
    }
    let user = &status["user"];
    let name = user["username"].as_str().unwrap_or_default();
    if name.is_empty() {
        // An empty name would be an identity without any user.
        return AuthResult::Rejected;
    }
    let extra: BTreeMap<String, Vec<String>> = user["extra"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, values)| (key.to_ascii_lowercase(), texts(values)))
        .collect();
    AuthResult::Known(Identity {
        user: name.to_owned(),
        uid: user["uid"].as_str().unwrap_or_default().to_owned(),
        groups: texts(&user["groups"]),
        extra,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use http::{HeaderMap, header::AUTHORIZATION};
    use rstest::rstest;

    use super::{
        super::headers::{Bearer, bearer},
        *,
    };
    use controller_runtime::error::ApiError;

    #[rstest]
    #[case::known(json!({"authenticated": true, "user": {"username": "a", "groups": ["g"]}}), &[], Some("a"))]
    #[case::unknown(json!({"authenticated": false, "error": "x"}), &[], None)]
    #[case::th_23_without_a_name(json!({"authenticated": true, "user": {}}), &[], None)]
    #[case::nothing_said(json!({}), &[], None)]
    #[case::for_us(
        json!({"authenticated": true, "audiences": ["mcm"], "user": {"username": "a"}}), &["mcm"], Some("a")
    )]
    #[case::for_somebody_else(json!({"authenticated": true, "user": {"username": "a"}}), &["mcm"], None)]
    fn the_status_of_a_review_means(#[case] status: Value, #[case] audiences: &[&str], #[case] user: Option<&str>) {
        let audiences: Vec<String> = audiences.iter().map(|audience| (*audience).to_owned()).collect();
        let found = match result_of(&status, &audiences) {
            AuthResult::Known(identity) => Some(identity.user),
            AuthResult::NoIdentity | AuthResult::Rejected => None,
        };
        assert_eq!(found.as_deref(), user);
    }

    /// Knows tokens that begin with `good-`, until they are revoked.
    struct Registry {
        asked: AtomicUsize,
        revoked: std::sync::atomic::AtomicBool,
    }

    #[async_trait]
    impl Reviews for Registry {
        async fn review(&self, _: &'static str, body: &Value) -> Result<Value, ApiError> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let name = body["spec"]["token"].as_str().unwrap().strip_prefix("good-");
            let known = name.filter(|_| !self.revoked.load(Ordering::SeqCst));
            Ok(json!({"status": {"authenticated": known.is_some(), "user": {"username": known.unwrap_or_default()}}}))
        }
    }

    fn token(text: &str) -> Token {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {text}").parse().unwrap());
        let Bearer::Token(token) = bearer(&headers) else { panic!() };
        token
    }

    fn tokens() -> (Arc<Registry>, TokenReviewer) {
        let registry = Arc::new(Registry { asked: AtomicUsize::new(0), revoked: false.into() });
        let digester = Digester::new([1; 32]);
        let ttl = Duration::from_secs(10);
        (Arc::clone(&registry), TokenReviewer::new(registry, digester, ttl, Vec::new(), Arc::new(|| 0.0)))
    }

    #[tokio::test(start_paused = true)]
    async fn th_21_a_revoked_token_is_refused_after_its_time() {
        let (registry, tokens) = tokens();
        let known = |result: &AuthResult| matches!(result, AuthResult::Known(_));
        assert!(known(&tokens.owner(&token("good-a"), now()).await.unwrap()));
        registry.revoked.store(true, Ordering::SeqCst);
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(!known(&tokens.owner(&token("good-a"), now()).await.unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn th_22_tokens_are_not_mixed_up_and_bad_ones_are_remembered_too() {
        let (registry, tokens) = tokens();
        let long = format!("good-{}", "x".repeat(10_000));
        let longer = format!("{long}y");
        for _ in 0..3 {
            for (text, expected) in [(&long, &long[5..]), (&longer, &longer[5..])] {
                let AuthResult::Known(identity) = tokens.owner(&token(text), now()).await.unwrap() else { panic!() };
                assert_eq!(identity.user, expected);
            }
            assert_eq!(tokens.owner(&token("bad"), now()).await.unwrap(), AuthResult::Rejected);
        }
        assert_eq!(registry.asked.load(Ordering::SeqCst), 3);
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    /// A token that the registry knows, with these claims.
    fn expiring(claims: &str) -> String {
        format!("good-head.{}.signature", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[rstest]
    #[case::long(r#"{"exp": 1800000100}"#, Some(100))]
    #[case::with_a_fraction(r#"{"exp": 1800000001.5, "sub": "a"}"#, Some(1))]
    #[case::over(r#"{"exp": 1}"#, Some(0))]
    #[case::absurd(r#"{"exp": 1e300}"#, Some(u64::MAX))]
    #[case::without_end(r#"{"sub": "a"}"#, None)]
    #[case::of_another_type(r#"{"exp": "tomorrow"}"#, None)]
    #[case::no_json("{", None)]
    fn the_expiry_of_a_jwt_is_read(#[case] claims: &str, #[case] seconds: Option<u64>) {
        assert_eq!(time_left(&expiring(claims), now()).map(|left| left.as_secs()), seconds);
    }

    #[test]
    fn a_text_that_is_no_jwt_has_no_expiry() {
        for text in ["", "a.b", "a.b.c", "a.b.c.d", "a.====.c"] {
            assert_eq!(time_left(text, now()), None, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_not_kept_beyond_the_end_of_its_token() {
        let (registry, tokens) = tokens();
        let short = token(&expiring(r#"{"exp": 1800000003}"#));
        let began = Instant::now();
        for (second, asked) in [(0, 1), (2, 1), (4, 2), (5, 3)] {
            tokio::time::sleep_until(began + Duration::from_secs(second)).await;
            let now = now() + jiff::SignedDuration::from_secs(i64::try_from(second).unwrap());
            tokens.owner(&short, now).await.unwrap();
            assert_eq!(registry.asked.load(Ordering::SeqCst), asked, "second {second}");
        }
    }
}
