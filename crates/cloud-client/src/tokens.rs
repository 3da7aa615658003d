//! The tokens that authorize requests of an account: kept until they expire, and renewed before. How a cloud issues a token is its driver's business.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use machine_driver::{Code, Instant, SecretData, Status, Timestamp};
use tokio::time::timeout;

use crate::{
    failure::Failure,
    secret::{CredentialsKey, Secret},
};

/// Tokens are renewed this long before they expire.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
/// After a refusal, the issuer is not asked again for this time. Otherwise every machine of the class would ask it and wait.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// How long the renewal of a valid token may take. All calls of the account wait for it.
const RENEWED_WITHIN: Duration = Duration::from_secs(10);
/// The codes of refusals.
const REFUSALS: [Code; 3] = [Code::Unauthenticated, Code::PermissionDenied, Code::InvalidArgument];
/// The maximum number of accounts in the cache.
const MAX_ENTRIES: usize = 256;

/// A token for the requests of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The text of the token.
    pub value: Secret,
    /// When it expires.
    pub expires: Timestamp,
}

impl Token {
    /// The failure without the token, which a service may have repeated.
    #[must_use]
    pub fn redacted(&self, failure: Failure) -> Failure {
        redacted(&[&self.value], failure)
    }
}

/// The failure without these secrets, which a service may have repeated.
#[must_use]
pub fn redacted(secrets: &[&Secret], mut failure: Failure) -> Failure {
    let mut data = SecretData::default();
    for (index, secret) in secrets.iter().enumerate() {
        data.set(index.to_string(), secret.reveal().as_bytes().to_vec());
    }
    failure.status.message = data.redacted(&failure.status.message);
    failure
}

/// The tokens of all accounts, until they expire.
#[derive(Default)]
pub struct Tokens {
    entries: Mutex<HashMap<CredentialsKey, Slot>>,
}

/// One call gets a token for an account at a time. Other calls of the account wait for it.
type Slot = Arc<tokio::sync::Mutex<Entry>>;

#[derive(Default)]
struct Entry {
    token: Option<Token>,
    /// When the issuer last refused a token, and why.
    refused: Option<(Instant, Status)>,
    /// When the renewal of a valid token last failed.
    not_renewed: Option<Instant>,
}

impl Tokens {
    fn slot(&self, account: CredentialsKey) -> Slot {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MAX_ENTRIES && !entries.contains_key(&account) {
            entries.clear();
        }
        Arc::clone(entries.entry(account).or_default())
    }

    /// Removes a token that a service has refused. A newer token of the account stays.
    pub async fn forget(&self, account: CredentialsKey, refused: &Token) {
        self.slot(account).lock().await.token.take_if(|cached| cached == refused);
    }

    /// A valid token, renewed before it expires. `fetch` asks the issuer for one.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn token(
        &self,
        account: CredentialsKey,
        now: Timestamp,
        fetch: impl Future<Output = Result<Token, Failure>> + Send,
    ) -> Result<Token, Status> {
        let slot = self.slot(account);
        let mut entry = slot.lock().await;
        let lasts = |token: &Token, ahead: Duration| now.saturating_add(ahead).is_ok_and(|soon| soon < token.expires);
        if let Some(token) = entry.token.as_ref().filter(|token| lasts(token, RENEW_BEFORE)) {
            return Ok(token.clone());
        }
        // The old token is used until it expires.
        if let Some(old) = entry.token.clone().filter(|token| lasts(token, Duration::ZERO)) {
            if entry.not_renewed.is_some_and(|since| since.elapsed() < RETRY_AFTER) {
                return Ok(old);
            }
            let renewed = timeout(RENEWED_WITHIN, fetch).await.ok().and_then(Result::ok);
            entry.not_renewed = renewed.is_none().then(Instant::now);
            let token = renewed.unwrap_or(old);
            entry.token = Some(token.clone());
            return Ok(token);
        }
        let refused = match entry.refused.take().filter(|(since, _)| since.elapsed() < RETRY_AFTER) {
            Some(refused) => refused,
            None => match fetch.await {
                Ok(token) => {
                    entry.token = Some(token.clone());
                    return Ok(token);
                }
                Err(failure) => (Instant::now(), Status::from(failure)),
            },
        };
        // Another failure, such as the end of this call's time, says nothing about other calls.
        if REFUSALS.contains(&refused.1.code) {
            entry.refused = Some(refused.clone());
        }
        Err(refused.1)
    }
}

#[cfg(test)]
mod tests {
    use std::{future, sync::atomic::AtomicUsize, sync::atomic::Ordering};

    use super::*;
    use crate::failure::FailureKind;

    const LIFETIME: Duration = Duration::from_secs(3600);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::UNIX_EPOCH.saturating_add(Duration::from_secs(seconds)).unwrap()
    }

    fn account() -> CredentialsKey {
        CredentialsKey::of(&["a"])
    }

    /// An issuer that counts its answers.
    #[derive(Default)]
    struct Issuer(AtomicUsize);

    impl Issuer {
        async fn issue(&self, now: Timestamp) -> Result<Token, Failure> {
            tokio::task::yield_now().await;
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            let expires = now.saturating_add(LIFETIME).unwrap();
            Ok(Token { value: Secret::new(format!("token-{number}")), expires })
        }

        async fn fail(&self, code: Code) -> Result<Token, Failure> {
            tokio::task::yield_now().await;
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(Failure::new(code, "no", FailureKind::Permanent))
        }

        fn asked(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn a_token_is_kept_until_five_minutes_before_its_end_or_until_a_service_refuses_it() {
        let (tokens, issuer) = (Tokens::default(), Issuer::default());
        let first = tokens.token(account(), at(0), issuer.issue(at(0))).await.unwrap();
        assert_eq!(tokens.token(account(), at(3299), issuer.issue(at(3299))).await, Ok(first.clone()));
        let second = tokens.token(account(), at(3300), issuer.issue(at(3300))).await.unwrap();
        assert_ne!(first, second);
        tokens.forget(account(), &first).await;
        assert_eq!(tokens.token(account(), at(3300), issuer.issue(at(3300))).await, Ok(second.clone()));
        tokens.forget(account(), &second).await;
        tokens.token(account(), at(3300), issuer.issue(at(3300))).await.unwrap();
        assert_eq!(issuer.asked(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_the_answer_for_a_while_and_another_failure_is_not() {
        let (tokens, issuer) = (Tokens::default(), Issuer::default());
        for _ in 0..2 {
            let failed = tokens.token(account(), at(0), issuer.fail(Code::Unavailable)).await;
            assert_eq!(failed.unwrap_err().code, Code::Unavailable);
        }
        assert_eq!(issuer.asked(), 2);
        for _ in 0..2 {
            let refused = tokens.token(account(), at(0), issuer.fail(Code::Unauthenticated)).await;
            assert_eq!(refused.unwrap_err().code, Code::Unauthenticated);
        }
        assert_eq!(issuer.asked(), 3);
        tokio::time::advance(RETRY_AFTER).await;
        tokens.token(account(), at(0), issuer.issue(at(0))).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_renewal_of_a_valid_token_delays_calls_for_ten_seconds_at_most_and_not_each_of_them() {
        let (tokens, issuer) = (Tokens::default(), Issuer::default());
        let token = tokens.token(account(), at(0), issuer.issue(at(0))).await.unwrap();
        let began = Instant::now();
        for _ in 0..3 {
            let silent = future::pending::<Result<Token, Failure>>();
            assert_eq!(tokens.token(account(), at(3500), silent).await, Ok(token.clone()));
        }
        assert!(began.elapsed() < RENEWED_WITHIN + Duration::from_secs(1), "{:?}", began.elapsed());
        tokio::time::advance(RETRY_AFTER).await;
        assert_ne!(tokens.token(account(), at(3510), issuer.issue(at(3510))).await, Ok(token));
    }
}
