//! Who sends a request.
//!
//! What lives here: the rules ([`decide`], [`headers`], [`config`], all pure), the reviews of tokens ([`tokens`]) and the
//! watch of what the API server says about trust ([`watch`]). What does not: what somebody may do (`authorization/`), and the
//! proof that a caller holds the key of its certificate (`server/tls`).
//! Source: spec/extension-apiserver §3.1–§3.4.

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
    decide::{Caller, Opinion, Step, Way, conclude, refuse_impersonation, without_asking},
    headers::{Bearer, bearer},
    tokens::Tokens,
};
use kube_listener::PeerCertificates;
use kube_protocol::status::ApiStatus;

/// Finds out who sends requests.
pub struct Authentication {
    /// Whom to trust now.
    pub config: Arc<ArcSwap<AuthConfig>>,
    /// Owners of tokens.
    pub tokens: Tokens,
}

impl Authentication {
    /// Who sends a request with these headers over a connection with these certificates. Takes credentials out of the headers.
    ///
    /// # Errors
    /// 401 for credentials that nobody accepts, 400 for a front proxy that contradicts itself, 403 and 400 for whoever wants to
    /// be somebody else, 503 when a token can't be reviewed now.
    pub async fn identify(
        &self,
        chain: &PeerCertificates,
        headers: &mut HeaderMap,
        now: Timestamp,
    ) -> Result<Caller, ApiStatus> {
        let config = self.config.load_full();
        let found = self.ask(&config, chain, headers, now).await;
        let found = found.and_then(|caller| {
            refuse_impersonation(caller.way, headers)?;
            Ok(caller)
        });
        config.headers().strip(headers);
        let mut caller = found?;
        if caller.way != Way::Anonymous {
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
        match step {
            Step::Decided(caller) => Ok(caller),
            Step::Undecided(shown) => conclude(shown, Opinion::None),
            Step::AskToken(token, shown) => match self.tokens.owner(&token, now).await {
                Ok(opinion) => conclude(shown, opinion),
                Err(_) => Err(ApiStatus::new(503, "ServiceUnavailable", "the token cannot be reviewed now; try again")
                    .retry_after(1)),
            },
        }
    }
}

/// What a caller should hear about its credentials.
pub fn warnings(headers: &HeaderMap) -> Vec<String> {
    match bearer(headers) {
        Bearer::Empty => vec!["the bearer token is empty: is there a second space behind \"Bearer\"?".to_owned()],
        Bearer::None | Bearer::Token(_) => Vec::new(),
    }
}
