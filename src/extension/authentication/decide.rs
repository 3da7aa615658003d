//! The caller of a request: the order of the authenticators, and the caller that follows from their results. Pure.
//!
//! Source: spec/extension-apiserver §3.3, §3.4.

use http::HeaderMap;
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{
    config::AuthConfig,
    headers::{Bearer, HeaderFault, Token, asks_to_impersonate, bearer},
    identity::Identity,
};
use kube_listener::PeerCertificates;
use kube_protocol::status::ApiStatus;

/// The authenticator that identified a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMethod {
    /// The headers of a trusted front proxy.
    FrontProxy,
    /// The caller's own client certificate.
    Certificate,
    /// A bearer token.
    Token,
    /// None: the caller sent no credentials.
    Anonymous,
}

/// A caller, and the authenticator that identified it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The caller's identity.
    pub identity: Identity,
    /// The authenticator.
    pub auth_method: AuthMethod,
}

/// The result of one authenticator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthResult {
    /// The request has no credentials for this authenticator, or they name no user.
    NoIdentity,
    /// The credentials are accepted and belong to this identity.
    Known(Identity),
    /// The credentials are not accepted.
    Rejected,
}

/// The result of checking certificate and headers without a review of the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The caller is known.
    Decided(Caller),
    /// The token decides, if there is one.
    Undecided(Undecided),
}

/// A request whose certificate and headers identify no caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    /// The bearer token, which is still to be reviewed.
    pub token: Option<Token>,
    /// Whether the certificate was rejected.
    is_rejected: bool,
}

impl Undecided {
    /// The caller that follows from the result for the token; for a request without a token that is `NoIdentity`. A caller is
    /// anonymous only if it has sent no credentials: credentials that no authenticator accepts are refused.
    ///
    /// # Errors
    /// 401.
    pub fn conclude(&self, token: AuthResult) -> Result<Caller, ApiStatus> {
        match token {
            AuthResult::Known(identity) => Ok(Caller { identity, auth_method: AuthMethod::Token }),
            AuthResult::NoIdentity if !self.is_rejected => {
                Ok(Caller { identity: Identity::anonymous(), auth_method: AuthMethod::Anonymous })
            }
            AuthResult::NoIdentity | AuthResult::Rejected => Err(ApiStatus::unauthorized()),
        }
    }
}

/// The identity that a front proxy asserts. The proxy must present a certificate of its own authority, with an allowed name.
///
/// # Errors
/// [`HeaderFault`] when a trusted proxy contradicts itself.
pub fn front_proxy(
    config: &AuthConfig,
    chain: &PeerCertificates,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<AuthResult, HeaderFault> {
    let Some(proxy) = config.front_proxy().filter(|_| !chain.is_empty()) else { return Ok(AuthResult::NoIdentity) };
    let vouched = proxy.authorities.vouch_for(chain, now).is_ok();
    let name_is_allowed = || {
        proxy.allowed_names.is_empty() || common_name(&chain[0]).is_some_and(|name| proxy.allowed_names.contains(&name))
    };
    if !vouched || !name_is_allowed() {
        return Ok(AuthResult::Rejected);
    }
    Ok(proxy.headers.identity(headers)?.map_or(AuthResult::NoIdentity, AuthResult::Known))
}

/// The identity in a certificate of the clients' authority.
pub fn client_certificate(config: &AuthConfig, chain: &PeerCertificates, now: Timestamp) -> AuthResult {
    let Some(authorities) = config.clients().filter(|_| !chain.is_empty()) else { return AuthResult::NoIdentity };
    if authorities.vouch_for(chain, now).is_err() {
        return AuthResult::Rejected;
    }
    subject(&chain[0]).map_or(AuthResult::NoIdentity, AuthResult::Known)
}

/// Calls the authenticators that need no review, in the order of the specification.
///
/// # Errors
/// [`HeaderFault`] when a trusted proxy contradicts itself.
pub fn without_asking(
    config: &AuthConfig,
    chain: &PeerCertificates,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<Step, HeaderFault> {
    let mut is_rejected = false;
    let results = [
        (AuthMethod::FrontProxy, front_proxy(config, chain, headers, now)?),
        (AuthMethod::Certificate, client_certificate(config, chain, now)),
    ];
    for (auth_method, result) in results {
        match result {
            AuthResult::Known(identity) => return Ok(Step::Decided(Caller { identity, auth_method })),
            AuthResult::Rejected => is_rejected = true,
            AuthResult::NoIdentity => {}
        }
    }
    let token = match bearer(headers) {
        Bearer::Token(token) => Some(token),
        Bearer::None | Bearer::Empty => None,
    };
    Ok(Step::Undecided(Undecided { token, is_rejected }))
}

/// Refuses a request that asks for impersonation. Behind a front proxy, the API server has done the impersonation already. A
/// direct client must not believe that it acts with fewer rights.
///
/// # Errors
/// 400 for a front proxy, 403 for all other callers.
pub fn refuse_impersonation(auth_method: AuthMethod, headers: &HeaderMap) -> Result<(), ApiStatus> {
    const WHY: &str = "impersonation is not supported on this endpoint";
    match (asks_to_impersonate(headers), auth_method) {
        (false, _) => Ok(()),
        (true, AuthMethod::FrontProxy) => Err(ApiStatus::bad_request(WHY)),
        (true, _) => Err(ApiStatus::new(403, "Forbidden", WHY)),
    }
}

fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
    Some(name).filter(|name| !name.is_empty())
}

/// User, groups and credential ID of a certificate; `None` for a certificate without a common name.
fn subject(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let user = common_name(certificate)?;
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let groups = parsed.subject().iter_organization().filter_map(|group| group.as_str().ok());
    let credential = format!("X509SHA256={}", crate::extension::digest::sha256_hex(certificate));
    Some(Identity {
        user,
        uid: String::new(),
        groups: groups.map(str::to_owned).collect(),
        extra: [("authentication.kubernetes.io/credential-id".to_owned(), vec![credential])].into(),
    })
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
