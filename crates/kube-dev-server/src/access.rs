//! Authentication of users by certificate, token or impersonation.
//!
//! Health and version are public. All other requests need a token, or a client certificate that the authority of the server has signed.
//! [`super::authorization`] authorizes the requests of authenticated users.
//! Source: spec/extension-apiserver §6.6.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use http::{HeaderMap, header};
use kube_protocol::{health, request::Target, status::ApiStatus};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The group of administrators. Its users may also impersonate other users.
pub(super) const MASTERS: &str = "system:masters";
pub(super) const AUTHENTICATED: &str = "system:authenticated";
pub(super) const UNAUTHENTICATED: &str = "system:unauthenticated";
const ANONYMOUS: &str = "system:anonymous";

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) groups: Vec<String>,
}

impl User {
    /// An authenticated user.
    pub(super) fn known(name: impl Into<String>, groups: impl IntoIterator<Item = String>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().collect();
        groups.push(AUTHENTICATED.to_owned());
        Self { name: name.into(), groups }
    }

    /// The user of a review. It is in the groups of the review and in no others.
    pub(super) fn reviewed(name: &str, groups: Vec<String>) -> Self {
        Self { name: name.to_owned(), groups }
    }

    fn anonymous() -> Self {
        Self { name: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()] }
    }

    /// A service account.
    pub(super) fn service_account(namespace: &str, name: &str) -> Self {
        let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        Self::known(format!("system:serviceaccount:{namespace}:{name}"), groups)
    }

    pub(super) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// Whether the user is an administrator.
    pub(super) fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// The groups of the user, except the group of all authenticated users.
    pub(super) fn own_groups(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(String::as_str).filter(|group| *group != AUTHENTICATED)
    }

    /// The user in the format of reviews.
    pub(super) fn to_json(&self) -> Value {
        json!({"username": self.name, "groups": self.groups})
    }
}

/// The tokens that are not tokens of service accounts. They are valid until the process ends.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    known: Mutex<BTreeMap<String, User>>,
}

impl Tokens {
    pub(super) fn add(&self, token: String, user: User) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(token, user);
    }

    /// Adds the tokens of a file with a line `token,user,uid,"group,group"` for each token. The groups are optional.
    pub(super) fn add_file(&self, text: &str) -> Result<(), TokenFileError> {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let (token, user) = token_line(line).ok_or(TokenFileError { line: at + 1 })?;
            self.add(token, user);
        }
        Ok(())
    }

    pub(super) fn user(&self, token: &str) -> Option<User> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }
}

/// The error of a token file with a wrong format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the token file is not: token,user,uid,\"group,group\" (the groups may be left out)")]
pub struct TokenFileError {
    /// The line, counted from 1.
    pub line: usize,
}

fn token_line(line: &str) -> Option<(String, User)> {
    let mut fields = line.trim().splitn(4, ',').map(str::trim);
    let (token, name, _uid) = (fields.next()?, fields.next()?, fields.next()?);
    let groups = fields.next().unwrap_or_default().trim_matches('"');
    let groups = groups.split(',').map(str::trim).filter(|group| !group.is_empty()).map(str::to_owned);
    (!token.is_empty() && !name.is_empty()).then(|| (token.to_owned(), User::known(name, groups)))
}

/// Authenticates a request by certificate or token. A request without both is anonymous.
///
/// # Errors
/// 401 for an unknown token.
pub(super) fn authenticate(
    certificate: Option<&[u8]>,
    headers: &HeaderMap,
    user_of_token: impl FnOnce(&str) -> Option<User>,
) -> Result<User, ApiStatus> {
    if let Some(user) = certificate.and_then(user_of_certificate) {
        return Ok(user);
    }
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match authorization.and_then(|text| text.strip_prefix("Bearer ")) {
        Some(token) => user_of_token(token.trim()).ok_or_else(ApiStatus::unauthorized),
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

/// The user that a request asks to impersonate; none for a request without impersonation.
///
/// # Errors
/// 400 for a group without a user.
pub(super) fn impersonation(headers: &HeaderMap) -> Result<Option<User>, ApiStatus> {
    let groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(str::to_owned)
        .collect();
    match headers.get("impersonate-user").and_then(|value| value.to_str().ok()) {
        Some(name) => Ok(Some(User::known(name, groups))),
        None if groups.is_empty() => Ok(None),
        None => Err(ApiStatus::bad_request("requested groups without impersonating a user")),
    }
}

/// Checks that the user is authenticated or the path is public.
pub(super) fn authorize(user: &User, target: &Target, path: &str) -> Result<(), ApiStatus> {
    if !user.is_anonymous() {
        return Ok(());
    }
    let open = match target {
        Target::Other(segments) => {
            health::is_endpoint(segments) || segments.first().is_some_and(|first| first == "version")
        }
        Target::Resource(_) => false,
    };
    // A path with escapes or dots may mean another path.
    if open && !path.contains(['%', ';']) && !path.contains("..") { Ok(()) } else { Err(ApiStatus::unauthorized()) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::with_groups("t,alice,1,\"one,two\"", Some(("alice", vec!["one", "two", AUTHENTICATED])))]
    #[case::one_group("t,alice,1,one", Some(("alice", vec!["one", AUTHENTICATED])))]
    #[case::no_group("t, alice ,1", Some(("alice", vec![AUTHENTICATED])))]
    #[case::no_uid("t,alice", None)]
    #[case::no_token(",alice,1", None)]
    fn token_files(#[case] line: &str, #[case] expected: Option<(&str, Vec<&str>)>) {
        let tokens = Tokens::default();
        let read = tokens.add_file(&format!("\n{line}\n"));
        assert_eq!(read, if expected.is_some() { Ok(()) } else { Err(TokenFileError { line: 2 }) });
        let expected =
            expected.map(|(name, groups)| (name.to_owned(), groups.into_iter().map(str::to_owned).collect()));
        let found = tokens.user("t").map(|user| (user.name, user.groups));
        assert_eq!(found, expected);
    }
}
