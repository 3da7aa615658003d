//! Headers about the caller: identities that a front proxy asserts, bearer tokens, and impersonation.
//!
//! Pure rules over headers. Whether the sender may assert an identity is decided in [`super::decide`].
//! Source: spec/extension-apiserver §3.3, §3.4, §3.7.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};

use super::identity::Identity;

/// The headers in which a front proxy asserts the identity of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHeaders {
    /// Headers with the user's name. The first one with a value wins.
    pub users: Vec<HeaderName>,
    /// Headers with the user's UID. Empty unless configured: older API servers pass such headers of clients on.
    pub uids: Vec<HeaderName>,
    /// Headers with groups, one group in each header line.
    pub groups: Vec<HeaderName>,
    /// Lower-case prefixes of headers with further attributes.
    pub extra_prefixes: Vec<String>,
}

impl Default for ProxyHeaders {
    fn default() -> Self {
        Self {
            users: vec![HeaderName::from_static("x-remote-user")],
            uids: Vec::new(),
            groups: vec![HeaderName::from_static("x-remote-group")],
            extra_prefixes: vec!["x-remote-extra-".to_owned()],
        }
    }
}

/// The reason why headers can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// A header that names the user has several different values.
    Conflicting(HeaderName),
    /// A value is not valid UTF-8.
    Unreadable(HeaderName),
}

impl std::fmt::Display for HeaderFault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Conflicting(name) => write!(out, "header {name} comes more than once with different values"),
            Self::Unreadable(name) => write!(out, "header {name} is not valid UTF-8"),
        }
    }
}

impl ProxyHeaders {
    /// The identity that the headers assert; `None` when they name no user.
    ///
    /// # Errors
    /// [`HeaderFault`] when the headers contradict each other.
    pub fn identity(&self, headers: &HeaderMap) -> Result<Option<Identity>, HeaderFault> {
        let Some(user) = only_value(headers, &self.users)? else { return Ok(None) };
        let uid = only_value(headers, &self.uids)?.unwrap_or_default();
        let mut groups = Vec::new();
        for name in &self.groups {
            for value in headers.get_all(name) {
                // A comma is a part of the group's name.
                groups.push(text(name, value)?);
            }
        }
        Ok(Some(Identity { user, uid, groups, extra: self.extra(headers)? }))
    }

    fn extra(&self, headers: &HeaderMap) -> Result<BTreeMap<String, Vec<String>>, HeaderFault> {
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers {
            // `HeaderMap` has the names in lower case.
            let key = self.extra_prefixes.iter().find_map(|prefix| name.as_str().strip_prefix(prefix.as_str()));
            if let Some(key) = key {
                extra.entry(unescaped(key)).or_default().push(text(name, value)?);
            }
        }
        Ok(extra)
    }

    /// Removes all headers with credentials or identities, so that no later step logs or forwards them.
    pub fn strip(&self, headers: &mut HeaderMap) {
        let of_proxy = |name: &HeaderName| {
            name.as_str().starts_with("x-remote-")
                || self.users.iter().chain(&self.uids).chain(&self.groups).any(|own| own == name)
                || self.extra_prefixes.iter().any(|prefix| name.as_str().starts_with(prefix.as_str()))
        };
        let doomed: Vec<HeaderName> =
            headers.keys().filter(|name| *name == AUTHORIZATION || of_proxy(name)).cloned().collect();
        for name in doomed {
            headers.remove(name);
        }
    }
}

/// The value of the first header that has one. Empty values do not count.
fn only_value(headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<String>, HeaderFault> {
    for name in names {
        let mut values = headers.get_all(name).iter().filter(|value| !value.is_empty());
        let Some(first) = values.next() else { continue };
        if values.any(|value| value != first) {
            return Err(HeaderFault::Conflicting(name.clone()));
        }
        return text(name, first).map(Some);
    }
    Ok(None)
}

fn text(name: &HeaderName, value: &HeaderValue) -> Result<String, HeaderFault> {
    std::str::from_utf8(value.as_bytes()).map(str::to_owned).map_err(|_| HeaderFault::Unreadable(name.clone()))
}

/// Decodes escapes such as `%2f`. A key with an invalid escape stays as it is.
fn unescaped(key: &str) -> String {
    let decoded = || {
        let mut bytes = Vec::with_capacity(key.len());
        let mut rest = key.as_bytes();
        while let Some((byte, after)) = rest.split_first() {
            if *byte == b'%' {
                let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok())?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &after[2..];
            } else {
                bytes.push(*byte);
                rest = after;
            }
        }
        String::from_utf8(bytes).ok()
    };
    decoded().unwrap_or_else(|| key.to_owned())
}

/// A bearer token. It is never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token itself, for its review.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("<redacted>")
    }
}

/// The bearer token of an `Authorization` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bearer {
    /// There is no header with this scheme.
    None,
    /// The header has the scheme, but an empty token.
    Empty,
    /// A token.
    Token(Token),
}

/// Reads the bearer token of a request.
pub fn bearer(headers: &HeaderMap) -> Bearer {
    let text = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default().trim();
    let mut parts = text.splitn(3, ' ');
    match (parts.next(), parts.next()) {
        (Some(scheme), Some(token)) if scheme.eq_ignore_ascii_case("bearer") => {
            if token.is_empty() {
                Bearer::Empty
            } else {
                Bearer::Token(Token(token.to_owned()))
            }
        }
        _ => Bearer::None,
    }
}

/// Whether a request asks for impersonation.
pub fn asks_to_impersonate(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with("impersonate-"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// User, groups and further attributes.
    type Asserted = (&'static str, Vec<&'static str>, Vec<(&'static str, Vec<&'static str>)>);

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        let mut all = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            all.append(name, value);
        }
        all
    }

    #[rstest]
    #[case::nobody(&[("x-remote-group", "a")], Ok(None))]
    #[case::empty_is_nobody(&[("x-remote-user", "")], Ok(None))]
    #[case::user(&[("X-Remote-User", "alice")], Ok(Some(("alice", vec![], vec![]))))]
    #[case::th_18_underscores_are_no_hyphens(&[("X_Remote_User", "root")], Ok(None))]
    #[case::th_18_twice_and_different(&[("x-remote-user", "a"), ("x-remote-user", "b")], Err(()))]
    #[case::twice_the_same(&[("x-remote-user", "a"), ("x-remote-user", "a")], Ok(Some(("a", vec![], vec![]))))]
    #[case::th_17_commas_split_nothing(
        &[("x-remote-user", "a"), ("x-remote-group", "a, system:masters"), ("x-remote-group", "b;c")],
        Ok(Some(("a", vec!["a, system:masters", "b;c"], vec![])))
    )]
    #[case::extra_keys_are_decoded(
        &[("x-remote-user", "a"), ("x-remote-extra-some%2fkey", "1"), ("x-remote-extra-some%2fkey", "2")],
        Ok(Some(("a", vec![], vec![("some/key", vec!["1", "2"])])))
    )]
    #[case::th_18_a_broken_escape_stays(
        &[("x-remote-user", "a"), ("x-remote-extra-%zz", "1")],
        Ok(Some(("a", vec![], vec![("%zz", vec!["1"])])))
    )]
    #[case::uids_only_when_configured(&[("x-remote-user", "a"), ("x-remote-uid", "u")], Ok(Some(("a", vec![], vec![]))))]
    #[case::no_text(&[("x-remote-user", "\u{e9}")], Ok(Some(("\u{e9}", vec![], vec![]))))]
    fn identities_that_a_front_proxy_asserts(
        #[case] given: &[(&str, &str)],
        #[case] expected: Result<Option<Asserted>, ()>,
    ) {
        let found = ProxyHeaders::default().identity(&headers(given));
        let owned = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect::<Vec<_>>();
        let expected = expected.map(|identity| {
            identity.map(|(user, groups, extra)| Identity {
                user: user.to_owned(),
                uid: String::new(),
                groups: owned(groups),
                extra: extra.into_iter().map(|(key, values)| (key.to_owned(), owned(values))).collect(),
            })
        });
        assert_eq!(found.map_err(|_| ()), expected);
    }

    #[test]
    fn configured_headers_are_read_in_their_order() {
        let custom = ProxyHeaders {
            users: vec![HeaderName::from_static("x-first"), HeaderName::from_static("x-second")],
            uids: vec![HeaderName::from_static("x-uid")],
            ..ProxyHeaders::default()
        };
        let given = headers(&[("x-first", ""), ("x-second", "bob"), ("x-uid", "u1"), ("x-remote-user", "root")]);
        let found = custom.identity(&given).unwrap().unwrap();
        assert_eq!((found.user.as_str(), found.uid.as_str()), ("bob", "u1"));
    }

    #[test]
    fn credentials_are_stripped_and_nothing_else() {
        let mut given = headers(&[
            ("authorization", "Bearer t"),
            ("x-remote-user", "a"),
            ("x-remote-uid", "u"),
            ("x-remote-extra-k", "v"),
            ("accept", "*/*"),
        ]);
        ProxyHeaders::default().strip(&mut given);
        assert_eq!(given.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[rstest]
    #[case::none("", "None")]
    #[case::basic("Basic YTpi", "None")]
    #[case::token("Bearer abc", "Token(<redacted>)")]
    #[case::any_case("bEARER abc", "Token(<redacted>)")]
    #[case::two_spaces("Bearer  abc", "Empty")]
    #[case::word_alone("Bearer", "None")]
    fn tokens(#[case] text: &str, #[case] expected: &str) {
        let given = if text.is_empty() { HeaderMap::new() } else { headers(&[("authorization", text)]) };
        assert_eq!(format!("{:?}", bearer(&given)), expected);
    }

    #[rstest]
    #[case("impersonate-user", true)]
    #[case("Impersonate-Extra-reason", true)]
    #[case("x-impersonate", false)]
    fn impersonation(#[case] name: &str, #[case] asked: bool) {
        assert_eq!(asks_to_impersonate(&headers(&[(name, "x")])), asked);
    }
}
