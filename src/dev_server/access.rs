//! Who calls, and what callers may do.
//!
//! Whoever is known may do everything: this is a development server. Health and version are for anybody, all else needs a
//! client certificate of the server's own authority or a token.
//! Source: spec/extension-apiserver §6.6.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use http::{HeaderMap, header};
use jiff::Timestamp;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::protocol::{request::Target, status::ApiStatus};

/// The group of those who may impersonate.
pub(super) const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";
const ANONYMOUS: &str = "system:anonymous";

/// A caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) groups: Vec<String>,
}

impl User {
    /// Somebody who is known.
    pub(super) fn known(name: impl Into<String>, groups: impl IntoIterator<Item = String>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().collect();
        groups.push(AUTHENTICATED.to_owned());
        Self { name: name.into(), groups }
    }

    fn anonymous() -> Self {
        Self { name: ANONYMOUS.to_owned(), groups: vec!["system:unauthenticated".to_owned()] }
    }

    /// A service account.
    fn service_account(namespace: &str, name: &str) -> Self {
        let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        Self::known(format!("system:serviceaccount:{namespace}:{name}"), groups)
    }

    pub(super) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// As reviews write users.
    pub(super) fn to_json(&self) -> Value {
        json!({"username": self.name, "groups": self.groups})
    }
}

/// The tokens that callers may show. They end with the process.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    known: Mutex<BTreeMap<String, (User, Option<Timestamp>)>>,
}

impl Tokens {
    pub(super) fn add(&self, token: String, user: User, until: Option<Timestamp>) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(token, (user, until));
    }

    /// For a service account.
    pub(super) fn issue(&self, token: &str, namespace: &str, name: &str, until: Timestamp) {
        self.add(token.to_owned(), User::service_account(namespace, name), Some(until));
    }

    pub(super) fn user(&self, token: &str, now: Timestamp) -> Option<User> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (user, until) = known.get(token)?;
        until.is_none_or(|until| now < until).then(|| user.clone())
    }
}

/// Who calls, by certificate or token.
///
/// # Errors
/// 401 for a token that nobody has.
pub(super) fn authenticate(
    certificate: Option<&[u8]>,
    headers: &HeaderMap,
    tokens: &Tokens,
    now: Timestamp,
) -> Result<User, ApiStatus> {
    if let Some(user) = certificate.and_then(user_of_certificate) {
        return Ok(user);
    }
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match authorization.and_then(|text| text.strip_prefix("Bearer ")) {
        Some(token) => tokens.user(token.trim(), now).ok_or_else(ApiStatus::unauthorized),
        None => Ok(User::anonymous()),
    }
}

fn user_of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups: Vec<String> =
        subject.iter_organization().filter_map(|group| group.as_str().ok()).map(str::to_owned).collect();
    Some(User::known(name, groups))
}

/// The user that a caller wants to be, if it may.
///
/// # Errors
/// 403 for anybody but an administrator, 400 for a group without a user.
pub(super) fn impersonated(user: User, headers: &HeaderMap) -> Result<User, ApiStatus> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(str::to_owned)
        .collect();
    let Some(name) = text("impersonate-user") else {
        if groups.is_empty() {
            return Ok(user);
        }
        return Err(ApiStatus::bad_request("requested groups without impersonating a user"));
    };
    if !user.groups.iter().any(|group| group == MASTERS) {
        let why = format!(
            "User {:?} cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
            user.name
        );
        return Err(ApiStatus::forbidden("", "users", &name, &why));
    }
    Ok(User::known(name, groups))
}

/// Whether a caller may do something.
pub(super) fn authorize(user: &User, target: &Target, path: &str) -> Result<(), ApiStatus> {
    if !user.is_anonymous() {
        return Ok(());
    }
    let open = match target {
        Target::Other(segments) => {
            matches!(segments.first().map(String::as_str), Some("healthz" | "livez" | "readyz" | "version"))
        }
        Target::Resource(_) => false,
    };
    // A path with escapes or dots is not what it looks like.
    if open && !path.contains(['%', ';']) && !path.contains("..") { Ok(()) } else { Err(ApiStatus::unauthorized()) }
}
