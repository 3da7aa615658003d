//! The names that the serving certificate must be valid for.

use std::{collections::BTreeSet, net::IpAddr};

/// A name that no certificate can contain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidServingName {
    /// The name is neither a DNS name nor an IP address.
    #[error("{0:?} is neither a DNS name nor an IP address; the serving certificate cannot be made for it")]
    Name(String),
}

/// The DNS names of the Service, and further names or addresses (`--cert-extra-san`). API servers verify
/// `SERVICE.NAMESPACE.svc`. The hosts of URLs are added later, from the objects that contain the URLs.
pub fn serving_names(service: &str, namespace: &str, extra: &[String]) -> Result<BTreeSet<String>, InvalidServingName> {
    let mut names = BTreeSet::from([
        service.to_owned(),
        format!("{service}.{namespace}"),
        format!("{service}.{namespace}.svc"),
        format!("{service}.{namespace}.svc.cluster.local"),
    ]);
    names.extend(extra.iter().cloned());
    names.into_iter().map(|name| normalised(&name)).collect()
}

/// The host or address that a caller of this URL verifies. `None` if no certificate can be made for it.
pub(super) fn url_host(url: &str) -> Option<String> {
    let parsed: http::Uri = url.parse().ok()?;
    let host = parsed.host().filter(|host| !host.is_empty() && parsed.scheme_str() == Some("https"))?;
    normalised(host.trim_matches(['[', ']'])).ok()
}

/// The name in the form in which the certificate parser prints names, so that wanted and present names can be compared.
fn normalised(name: &str) -> Result<String, InvalidServingName> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(address.to_string());
    }
    let valid = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'*'))
    };
    if name.len() <= 253 && name.split('.').all(valid) {
        Ok(name.to_ascii_lowercase())
    } else {
        Err(InvalidServingName::Name(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const SERVICE: [&str; 4] = ["mcm", "mcm.ns", "mcm.ns.svc", "mcm.ns.svc.cluster.local"];

    #[rstest]
    #[case::a_service_alone(&[], &[])]
    #[case::an_address(&["0:0::1"], &["::1"])]
    #[case::a_host(&["Extra.Example.COM"], &["extra.example.com"])]
    fn names_are_gathered(#[case] extra: &[&str], #[case] more: &[&str]) {
        let extra: Vec<String> = extra.iter().map(|name| (*name).to_owned()).collect();
        let expected: BTreeSet<String> = SERVICE.iter().chain(more).map(|name| (*name).to_owned()).collect();
        assert_eq!(serving_names("mcm", "ns", &extra).unwrap(), expected);
    }

    #[rstest]
    #[case::an_address("https://127.0.0.1:9443", Some("127.0.0.1"))]
    #[case::an_ipv6_address("https://[0:0::1]:9443/base", Some("::1"))]
    #[case::a_host("https://Hooks.example.com", Some("hooks.example.com"))]
    #[case::no_url("hello world", None)]
    #[case::no_tls("http://127.0.0.1:9443", None)]
    #[case::no_host("https:///path", None)]
    fn a_url_has_a_host_that_can_be_verified(#[case] url: &str, #[case] host: Option<&str>) {
        assert_eq!(url_host(url).as_deref(), host);
    }

    #[test]
    fn a_name_must_be_one() {
        let extra = ["no spaces please".to_owned()];
        assert!(matches!(serving_names("mcm", "ns", &extra), Err(InvalidServingName::Name(_))));
    }
}
