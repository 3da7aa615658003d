//! The trust configuration: the `ConfigMap` `extension-apiserver-authentication`, key by key.
//!
//! A key that can't be read keeps its last good value. Without a good value the authenticator is absent: its callers are
//! refused. Source: spec/extension-apiserver §3.1, §3.2.

use std::collections::BTreeMap;

use http::HeaderName;
use jiff::{SignedDuration, Timestamp};

use super::headers::ProxyHeaders;
use crate::{server::tls::Authorities, settings::SharedAuthority};

/// Keys of the `ConfigMap`.
pub mod key {
    /// Certificate authorities of clients, in PEM.
    pub const CLIENT_CA: &str = "client-ca-file";
    /// Certificate authorities of front proxies, in PEM.
    pub const PROXY_CA: &str = "requestheader-client-ca-file";
    /// Allowed names of front proxies, a JSON list.
    pub const ALLOWED_NAMES: &str = "requestheader-allowed-names";
    /// Headers with the user's name.
    pub const USER_HEADERS: &str = "requestheader-username-headers";
    /// Headers with the user's UID.
    pub const UID_HEADERS: &str = "requestheader-uid-headers";
    /// Headers with groups.
    pub const GROUP_HEADERS: &str = "requestheader-group-headers";
    /// Prefixes of the headers with further attributes.
    pub const EXTRA_PREFIXES: &str = "requestheader-extra-headers-prefix";
}

/// Time for which front proxies are still trusted after their authorities are removed from the `ConfigMap`.
const GRACE: SignedDuration = SignedDuration::from_mins(5);

/// The front proxies that may assert identities of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontProxy {
    /// Certificate authorities of the front proxies.
    pub authorities: Authorities,
    /// Allowed names of the front proxies; empty: all names.
    pub allowed_names: Vec<String>,
    /// The headers that assert an identity.
    pub headers: ProxyHeaders,
}

/// The part of the configuration that flags set. The `ConfigMap` is not read for it.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// `--client-ca-file`.
    pub clients: Option<Authorities>,
    /// `--requestheader-client-ca-file` and the flags that belong to it.
    pub front_proxy: Option<FrontProxy>,
    /// `--allow-shared-front-proxy-ca`.
    pub shared: SharedAuthority,
}

/// The present trust configuration.
#[derive(Clone, Debug, Default)]
pub struct AuthConfig {
    fixed: Fixed,
    clients: Option<Authorities>,
    proxy_authorities: Option<Authorities>,
    /// Allowed names of front proxies; absent until the `ConfigMap` has had them once.
    allowed_names: Option<Vec<String>>,
    headers: ProxyHeaders,
    /// The time since which the `ConfigMap` lacks the authorities of front proxies.
    proxy_missing_since: Option<Timestamp>,
}

/// A key that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    /// The key.
    pub key: &'static str,
    /// The reason.
    pub why: String,
}

impl AuthConfig {
    /// The configuration of the flags, before the `ConfigMap` is read.
    pub fn fixed(fixed: Fixed) -> Self {
        Self { fixed, ..Self::default() }
    }

    /// The same with other authorities of clients, from the file that `--client-ca-file` names.
    #[must_use]
    pub fn with_clients(&self, authorities: Authorities) -> Self {
        let fixed = Fixed { clients: Some(authorities), ..self.fixed.clone() };
        Self { fixed, ..self.clone() }
    }

    /// The same with other authorities of front proxies, from the file that `--requestheader-client-ca-file` names. Without this
    /// flag nothing changes.
    #[must_use]
    pub fn with_proxies(&self, authorities: Authorities) -> Self {
        let proxy = self.fixed.front_proxy.clone().map(|proxy| FrontProxy { authorities, ..proxy });
        let fixed = Fixed { front_proxy: proxy, ..self.fixed.clone() };
        Self { fixed, ..self.clone() }
    }

    /// Whether the `ConfigMap` is read at all.
    pub fn reads_config_map(&self) -> bool {
        self.fixed.clients.is_none() || self.fixed.front_proxy.is_none()
    }

    /// Certificate authorities of clients.
    pub fn clients(&self) -> Option<&Authorities> {
        self.fixed.clients.as_ref().or(self.clients.as_ref())
    }

    /// The trusted front proxies, if there are any.
    pub fn front_proxy(&self) -> Option<FrontProxy> {
        self.usable_front_proxy().ok()
    }

    /// The trusted front proxies, or the reason why no front proxy is trusted.
    ///
    /// # Errors
    /// The reason, for health checks and logs.
    pub fn usable_front_proxy(&self) -> Result<FrontProxy, &'static str> {
        let proxy = match (&self.fixed.front_proxy, &self.proxy_authorities, &self.allowed_names) {
            (Some(fixed), _, _) => fixed.clone(),
            (None, Some(authorities), Some(allowed_names)) => FrontProxy {
                authorities: authorities.clone(),
                allowed_names: allowed_names.clone(),
                headers: self.headers.clone(),
            },
            (None, Some(_), None) => {
                return Err("which names front proxies may have is not known: requestheader-allowed-names of the \
                            ConfigMap kube-system/extension-apiserver-authentication is missing or unreadable");
            }
            (None, None, _) => return Err("no authority of front proxies is known"),
        };
        let is_shared = self.clients().is_some_and(|clients| clients.share_with(&proxy.authorities));
        if is_shared && proxy.allowed_names.is_empty() && self.fixed.shared == SharedAuthority::Refused {
            return Err(
                "one authority signs clients and front proxies, and no names of front proxies are given: every client \
                        could claim to be anybody; set requestheader-allowed-names or --allow-shared-front-proxy-ca",
            );
        }
        Ok(proxy)
    }

    /// The headers that assert identities, whether or not a front proxy is trusted.
    pub fn headers(&self) -> &ProxyHeaders {
        self.fixed.front_proxy.as_ref().map_or(&self.headers, |proxy| &proxy.headers)
    }

    /// The configuration that follows from the present `ConfigMap`, and the keys that can't be used. `None`: there is no
    /// `ConfigMap`.
    #[must_use]
    pub fn after(&self, data: Option<&BTreeMap<String, String>>, now: Timestamp) -> (Self, Vec<Complaint>) {
        let empty = BTreeMap::new();
        let data = data.unwrap_or(&empty);
        let (mut next, mut complaints) = (self.clone(), Vec::new());
        let mut complain = |key: &'static str, why: String| complaints.push(Complaint { key, why });
        if self.fixed.clients.is_none() {
            match authorities(data, key::CLIENT_CA) {
                Ok(found) => next.clients = Some(same_or(self.clients.as_ref(), found)),
                Err(why) => complain(key::CLIENT_CA, why),
            }
        }
        if self.fixed.front_proxy.is_some() {
            return (next, complaints);
        }
        match authorities(data, key::PROXY_CA) {
            Ok(found) => {
                next.proxy_authorities = Some(same_or(self.proxy_authorities.as_ref(), found));
                next.proxy_missing_since = None;
            }
            Err(why) => {
                complain(key::PROXY_CA, why);
                next.proxy_missing_since =
                    if data.contains_key(key::PROXY_CA) { None } else { Some(self.proxy_missing_since.unwrap_or(now)) };
            }
        }
        if next.proxy_missing_since.is_some_and(|since| now.duration_since(since) >= GRACE) {
            // Aggregation is switched off.
            next.proxy_authorities = None;
        }
        if !data.keys().any(|key| key.starts_with("requestheader-")) {
            return (next, complaints);
        }
        match names(data, key::ALLOWED_NAMES) {
            Ok(found) => next.allowed_names = Some(found),
            Err(why) => complain(key::ALLOWED_NAMES, why),
        }
        match headers(data, key::USER_HEADERS) {
            Ok(found) if found.is_empty() => complain(key::USER_HEADERS, "it names no header".to_owned()),
            Ok(found) => next.headers.users = found,
            Err(why) => complain(key::USER_HEADERS, why),
        }
        // API servers before 1.32 do not write this key.
        if data.contains_key(key::UID_HEADERS) {
            match headers(data, key::UID_HEADERS) {
                Ok(found) => next.headers.uids = found,
                Err(why) => complain(key::UID_HEADERS, why),
            }
        }
        match headers(data, key::GROUP_HEADERS) {
            Ok(found) => next.headers.groups = found,
            Err(why) => complain(key::GROUP_HEADERS, why),
        }
        match names(data, key::EXTRA_PREFIXES) {
            Ok(found) => next.headers.extra_prefixes = found.iter().map(|prefix| prefix.to_ascii_lowercase()).collect(),
            Err(why) => complain(key::EXTRA_PREFIXES, why),
        }
        (next, complaints)
    }
}

fn value<'a>(data: &'a BTreeMap<String, String>, key: &str) -> Result<&'a str, String> {
    match data.get(key).map(String::as_str) {
        None => Err("the key is missing".to_owned()),
        Some(text) if text.trim().is_empty() => Err("the value is empty".to_owned()),
        Some(text) => Ok(text),
    }
}

fn authorities(data: &BTreeMap<String, String>, key: &str) -> Result<Authorities, String> {
    Authorities::from_pem(value(data, key)?.as_bytes())
}

/// The known authorities if the found ones are equal, so that verified certificates stay verified.
fn same_or(known: Option<&Authorities>, found: Authorities) -> Authorities {
    known.filter(|known| **known == found).cloned().unwrap_or(found)
}

fn names(data: &BTreeMap<String, String>, key: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> =
        serde_json::from_str(value(data, key)?).map_err(|_| "it is no JSON list of strings".to_owned())?;
    // A blank prefix would match all headers, a blank name any certificate.
    if names.iter().any(|name| name.trim().is_empty()) {
        Err("one of its entries is blank".to_owned())
    } else {
        Ok(names)
    }
}

fn headers(data: &BTreeMap<String, String>, key: &str) -> Result<Vec<HeaderName>, String> {
    names(data, key)?.iter().map(|name| header_name(name)).collect()
}

/// Reads the name of a header.
///
/// # Errors
/// For a text that can't be the name of a header.
pub fn header_name(text: &str) -> Result<HeaderName, String> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| format!("{text:?} can't be the name of a header"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::extension::testing::Pki;

    fn data(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn at(minutes: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
    }

    fn whole(clients: &str, proxies: &str, names: &str) -> BTreeMap<String, String> {
        data(&[
            (key::CLIENT_CA, clients),
            (key::PROXY_CA, proxies),
            (key::ALLOWED_NAMES, names),
            (key::USER_HEADERS, r#"["X-Remote-User"]"#),
            (key::GROUP_HEADERS, r#"["X-Remote-Group"]"#),
            (key::EXTRA_PREFIXES, r#"["X-Remote-Extra-"]"#),
        ])
    }

    #[test]
    fn a_whole_config_map_is_taken_over_without_complaint() {
        let (clients, proxies) = (Pki::new("clients"), Pki::new("proxies"));
        let (config, complaints) =
            AuthConfig::default().after(Some(&whole(&clients.pem(), &proxies.pem(), r#"["proxy"]"#)), at(0));
        assert_eq!(complaints, []);
        assert!(config.clients().is_some() && config.reads_config_map());
        assert_eq!(config.front_proxy().unwrap().allowed_names, ["proxy"]);
        assert_eq!(config.headers(), &ProxyHeaders::default());
    }

    #[test]
    fn files_of_flags_may_change() {
        let (old, new) = (Pki::new("old"), Pki::new("new"));
        let front_proxy = FrontProxy {
            authorities: old.authorities(),
            allowed_names: vec!["proxy".to_owned()],
            headers: ProxyHeaders::default(),
        };
        let fixed = Fixed { clients: Some(old.authorities()), front_proxy: Some(front_proxy), ..Fixed::default() };
        let config = AuthConfig::fixed(fixed).with_clients(new.authorities());
        assert_eq!(config.clients(), Some(&new.authorities()));
        assert_eq!(config.front_proxy().unwrap().authorities, old.authorities());
        let config = config.with_proxies(new.authorities());
        let proxy = config.front_proxy().unwrap();
        assert_eq!((proxy.authorities, proxy.allowed_names), (new.authorities(), vec!["proxy".to_owned()]));
        assert!(AuthConfig::default().with_proxies(new.authorities()).front_proxy().is_none(), "no flag, no proxy");
    }

    #[rstest]
    #[case::xa_165_garbage("no certificate")]
    #[case::emptied("")]
    fn a_bad_part_keeps_its_last_good_value(#[case] bad: &str) {
        let (clients, proxies) = (Pki::new("clients"), Pki::new("proxies"));
        let good = whole(&clients.pem(), &proxies.pem(), r#"["proxy"]"#);
        let (before, _) = AuthConfig::default().after(Some(&good), at(0));
        let mut changed = good.clone();
        changed.insert(key::PROXY_CA.to_owned(), bad.to_owned());
        changed.insert(key::ALLOWED_NAMES.to_owned(), r#"["other"]"#.to_owned());
        let (after, complaints) = before.after(Some(&changed), at(60));
        assert_eq!(complaints.iter().map(|complaint| complaint.key).collect::<Vec<_>>(), [key::PROXY_CA]);
        let proxy = after.front_proxy().unwrap();
        assert!(proxy.authorities == before.front_proxy().unwrap().authorities && proxy.allowed_names == ["other"]);
    }

    #[rstest]
    #[case::th_25_kept_for_a_while(4, true)]
    #[case::dropped_when_aggregation_is_off(5, false)]
    fn front_proxies_that_are_gone(#[case] minutes: i64, #[case] believed: bool) {
        let (clients, proxies) = (Pki::new("clients"), Pki::new("proxies"));
        let (config, _) = AuthConfig::default().after(Some(&whole(&clients.pem(), &proxies.pem(), r#"["p"]"#)), at(0));
        let (config, complaints) = config.after(None, at(10));
        assert!(config.front_proxy().is_some() && !complaints.is_empty());
        let (config, _) = config.after(None, at(10 + minutes));
        assert_eq!((config.front_proxy().is_some(), config.clients().is_some()), (believed, true));
    }

    #[rstest]
    #[case::any_name(r"[]", SharedAuthority::Refused, false)]
    #[case::names_given(r#"["proxy"]"#, SharedAuthority::Refused, true)]
    #[case::allowed(r"[]", SharedAuthority::Allowed, true)]
    fn one_authority_for_both_needs_names(#[case] names: &str, #[case] shared: SharedAuthority, #[case] used: bool) {
        let both = Pki::new("both");
        let start = AuthConfig::fixed(Fixed { shared, ..Fixed::default() });
        let (config, _) = start.after(Some(&whole(&both.pem(), &both.pem(), names)), at(0));
        assert_eq!(config.front_proxy().is_some(), used);
    }

    /// As in the Go library: an empty list allows all names, a missing list allows none.
    #[rstest]
    #[case::no_json(Some("front-proxy-client"), false)]
    #[case::no_list(Some(r#""front-proxy-client""#), false)]
    #[case::a_blank_value(Some(" "), false)]
    #[case::missing(None, false)]
    #[case::any_name(Some("[]"), true)]
    fn no_front_proxy_is_trusted_before_its_names_were_read(#[case] names: Option<&str>, #[case] believed: bool) {
        let (clients, proxies) = (Pki::new("clients"), Pki::new("proxies"));
        let mut given = whole(&clients.pem(), &proxies.pem(), "[]");
        match names {
            Some(names) => drop(given.insert(key::ALLOWED_NAMES.to_owned(), names.to_owned())),
            None => drop(given.remove(key::ALLOWED_NAMES)),
        }
        let (config, complaints) = AuthConfig::default().after(Some(&given), at(0));
        assert_eq!((config.front_proxy().is_some(), complaints.is_empty()), (believed, believed));
        given.insert(key::ALLOWED_NAMES.to_owned(), r#"["proxy"]"#.to_owned());
        let (mended, _) = config.after(Some(&given), at(1));
        given.insert(key::ALLOWED_NAMES.to_owned(), "spoilt".to_owned());
        let (spoilt, _) = mended.after(Some(&given), at(2));
        assert_eq!(spoilt.front_proxy().unwrap().allowed_names, ["proxy"], "the last good value");
    }

    #[rstest]
    #[case::no_list(key::USER_HEADERS, r#""X-Remote-User""#)]
    #[case::no_header(key::USER_HEADERS, "[]")]
    #[case::a_blank_prefix(key::EXTRA_PREFIXES, r#"[" "]"#)]
    #[case::a_blank_name(key::ALLOWED_NAMES, r#"[""]"#)]
    #[case::no_header_name(key::GROUP_HEADERS, r#"["a b"]"#)]
    fn lists_that_mean_nothing_are_refused(#[case] key: &str, #[case] value: &str) {
        let (clients, proxies) = (Pki::new("clients"), Pki::new("proxies"));
        let mut given = whole(&clients.pem(), &proxies.pem(), r#"["proxy"]"#);
        given.insert(key.to_owned(), value.to_owned());
        let (_, complaints) = AuthConfig::default().after(Some(&given), at(0));
        assert_eq!(complaints.iter().map(|complaint| complaint.key).collect::<Vec<_>>(), [key]);
    }

    #[test]
    fn values_of_flags_are_not_read() {
        let (own, other) = (Pki::new("own"), Pki::new("other"));
        let fixed = Fixed { clients: Some(own.authorities()), ..Fixed::default() };
        let (config, _) = AuthConfig::fixed(fixed).after(Some(&whole(&other.pem(), &other.pem(), r#"["p"]"#)), at(0));
        assert_eq!(config.clients(), Some(&own.authorities()));
    }
}
