//! Who sends a request: the order in which ways to tell are asked, and what their answers come to.
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

/// How somebody became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A front proxy says so.
    FrontProxy,
    /// By a certificate of its own.
    Certificate,
    /// By a token.
    Token,
    /// Not at all.
    Anonymous,
}

/// A caller, and how it became known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who it is.
    pub identity: Identity,
    /// How that is known.
    pub way: Way,
}

/// What one way to tell has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opinion {
    /// Nothing.
    None,
    /// It is this one.
    Known(Identity),
    /// What was shown is not accepted.
    Rejected,
}

/// What follows from certificate and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is clear who it is.
    Decided(Caller),
    /// A token is to be reviewed; what else was shown counts in the end.
    AskToken(Token, Shown),
    /// Nothing more to ask.
    Undecided(Shown),
}

/// Whether something was shown that was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Nothing that was refused.
    NothingWrong,
    /// Credentials that nobody accepted.
    Rejected,
}

/// What a front proxy says: it must show a certificate of its own authority, under an allowed name.
///
/// # Errors
/// [`HeaderFault`] when a trusted proxy contradicts itself.
pub fn front_proxy(
    config: &AuthConfig,
    chain: &PeerCertificates,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<Opinion, HeaderFault> {
    let Some(proxy) = config.front_proxy().filter(|_| !chain.is_empty()) else { return Ok(Opinion::None) };
    let vouched = proxy.authorities.vouch_for(chain, now).is_ok();
    let name_is_allowed = || {
        proxy.allowed_names.is_empty() || common_name(&chain[0]).is_some_and(|name| proxy.allowed_names.contains(&name))
    };
    if !vouched || !name_is_allowed() {
        return Ok(Opinion::Rejected);
    }
    Ok(proxy.headers.identity(headers)?.map_or(Opinion::None, Opinion::Known))
}

/// Who a certificate of the clients' authority names.
pub fn client_certificate(config: &AuthConfig, chain: &PeerCertificates, now: Timestamp) -> Opinion {
    let Some(authorities) = config.clients().filter(|_| !chain.is_empty()) else { return Opinion::None };
    if authorities.vouch_for(chain, now).is_err() {
        return Opinion::Rejected;
    }
    subject(&chain[0]).map_or(Opinion::None, Opinion::Known)
}

/// What certificate and headers come to, in the order of the specification.
///
/// # Errors
/// [`HeaderFault`] when a trusted proxy contradicts itself.
pub fn without_asking(
    config: &AuthConfig,
    chain: &PeerCertificates,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<Step, HeaderFault> {
    let mut shown = Shown::NothingWrong;
    let opinions = [
        (Way::FrontProxy, front_proxy(config, chain, headers, now)?),
        (Way::Certificate, client_certificate(config, chain, now)),
    ];
    for (way, opinion) in opinions {
        match opinion {
            Opinion::Known(identity) => return Ok(Step::Decided(Caller { identity, way })),
            Opinion::Rejected => shown = Shown::Rejected,
            Opinion::None => {}
        }
    }
    Ok(match bearer(headers) {
        Bearer::Token(token) => Step::AskToken(token, shown),
        Bearer::None | Bearer::Empty => Step::Undecided(shown),
    })
}

/// What all opinions come to. Whoever showed something that nobody accepts is refused; only who showed nothing is anonymous.
///
/// # Errors
/// 401.
pub fn conclude(shown: Shown, token: Opinion) -> Result<Caller, ApiStatus> {
    match (token, shown) {
        (Opinion::Known(identity), _) => Ok(Caller { identity, way: Way::Token }),
        (Opinion::Rejected, _) | (Opinion::None, Shown::Rejected) => Err(ApiStatus::unauthorized()),
        (Opinion::None, Shown::NothingWrong) => Ok(Caller { identity: Identity::anonymous(), way: Way::Anonymous }),
    }
}

/// Nobody is somebody else here: behind a front proxy that has happened already, and who comes directly must not believe to
/// have dropped rights.
///
/// # Errors
/// 400 for a front proxy, 403 for everybody else.
pub fn refuse_impersonation(way: Way, headers: &HeaderMap) -> Result<(), ApiStatus> {
    const WHY: &str = "impersonation is not supported on this endpoint";
    match (asks_to_impersonate(headers), way) {
        (false, _) => Ok(()),
        (true, Way::FrontProxy) => Err(ApiStatus::bad_request(WHY)),
        (true, _) => Err(ApiStatus::new(403, "Forbidden", WHY)),
    }
}

fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
    Some(name).filter(|name| !name.is_empty())
}

/// User, groups and credential ID of a certificate; none without a common name.
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
