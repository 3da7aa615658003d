//! The identity of the caller of a request.
//!
//! Contents: the rules ([`decide`], [`headers`], [`config`], all pure), the reviews of tokens ([`tokens`]) and the watch of the trust configuration
//! of the API server ([`watch`]). Elsewhere: the rights of a caller (`authorization/`), and the proof that a caller holds the key of its certificate
//! (`server/tls`). Source: spec/extension-apiserver §3.1–§3.4.

pub mod config;
pub mod decide;
pub mod headers;
pub mod identity;
pub mod tokens;
pub mod watch;

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderMap;
use jiff::Timestamp;

use self::{
    config::AuthConfig,
    decide::{AuthMethod, AuthResult, Caller, Step, refuse_impersonation, without_asking},
    headers::{Bearer, bearer},
    tokens::TokenReviewer,
};
use kube_listener::PeerCertificates;
use kube_protocol::status::ApiStatus;

/// Identifies the callers of requests.
pub struct Authentication {
    /// The present trust configuration.
    pub config: Arc<ArcSwap<AuthConfig>>,
    /// Reviews tokens.
    pub tokens: TokenReviewer,
}

impl Authentication {
    /// The caller of a request with these headers, over a connection with these certificates. Removes the credentials from the
    /// headers.
    ///
    /// # Errors
    /// 401 for credentials that no authenticator accepts, 400 for a front proxy with contradictory headers, 400 and 403 for
    /// impersonation, 503 when a token can't be reviewed now.
    pub async fn identify(
        &self,
        chain: &PeerCertificates,
        headers: &mut HeaderMap,
        now: Timestamp,
    ) -> Result<Caller, ApiStatus> {
        let config = self.config.load_full();
        let found = self.ask(&config, chain, headers, now).await;
        let found = found.and_then(|caller| {
            refuse_impersonation(caller.auth_method, headers)?;
            Ok(caller)
        });
        config.headers().strip(headers);
        let mut caller = found?;
        if caller.auth_method != AuthMethod::Anonymous {
            caller.identity = caller.identity.among_the_authenticated();
        }
        Ok(caller)
    }

    async fn ask(
        &self,
        config: &AuthConfig,
        chain: &PeerCertificates,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Caller, ApiStatus> {
        let step =
            without_asking(config, chain, headers, now).map_err(|fault| ApiStatus::bad_request(fault.to_string()))?;
        let undecided = match step {
            Step::Decided(caller) => return Ok(caller),
            Step::Undecided(undecided) => undecided,
        };
        let result = match &undecided.token {
            None => AuthResult::NoIdentity,
            Some(token) => self.tokens.owner(token, now).await.map_err(|_| {
                ApiStatus::new(503, "ServiceUnavailable", "the token cannot be reviewed now; try again").retry_after(1)
            })?,
        };
        undecided.conclude(result)
    }
}

/// Warnings for the caller about its credentials.
pub fn warnings(headers: &HeaderMap) -> Vec<String> {
    match bearer(headers) {
        Bearer::Empty => vec!["the bearer token is empty: is there a second space behind \"Bearer\"?".to_owned()],
        Bearer::None | Bearer::Token(_) => Vec::new(),
    }
}
