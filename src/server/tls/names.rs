//! The names that the serving certificate must be valid for.

use std::{collections::BTreeSet, net::IpAddr};

/// A name that no certificate can carry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidServingName {
    /// The URL has no host, or is none.
    #[error("--webhook-url {0:?}: expected a URL such as https://host:9443")]
    Url(String),
    /// Not a DNS name and no IP address.
    #[error("{0:?} is neither a DNS name nor an IP address; the serving certificate cannot be made for it")]
    Name(String),
}

/// DNS names of the Service, any further names or addresses (`--cert-extra-san`), and the host of the URL that webhooks
/// are called by where API servers cannot reach a Service. API servers verify `SERVICE.NAMESPACE.svc`.
pub fn serving_names(
    service: &str,
    namespace: &str,
    extra: &[String],
    webhook_url: Option<&str>,
) -> Result<BTreeSet<String>, InvalidServingName> {
    let mut names = BTreeSet::from([
        service.to_owned(),
        format!("{service}.{namespace}"),
        format!("{service}.{namespace}.svc"),
        format!("{service}.{namespace}.svc.cluster.local"),
    ]);
    names.extend(extra.iter().cloned());
    if let Some(url) = webhook_url {
        names.insert(url_host(url).ok_or_else(|| InvalidServingName::Url(url.to_owned()))?);
    }
    names.into_iter().map(|name| normalised(&name)).collect()
}

/// The host or address that a caller of this URL verifies; none if no certificate could be made for it.
pub(super) fn url_host(url: &str) -> Option<String> {
    let parsed: http::Uri = url.parse().ok()?;
    let host = parsed.host().filter(|host| !host.is_empty() && parsed.scheme_str() == Some("https"))?;
    normalised(host.trim_matches(['[', ']'])).ok()
}

/// As a certificate's reader prints it, so that wanted and present names compare.
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
    #[case::a_service_alone(&[], None, &[])]
    #[case::an_address_of_a_url(&[], Some("https://127.0.0.1:9443"), &["127.0.0.1"])]
    #[case::an_ipv6_address(&[], Some("https://[0:0::1]:9443/base"), &["::1"])]
    #[case::a_host(&["Extra.Example.COM"], Some("https://hooks.example.com"), &["extra.example.com", "hooks.example.com"])]
    fn names_are_gathered(#[case] extra: &[&str], #[case] url: Option<&str>, #[case] more: &[&str]) {
        let extra: Vec<String> = extra.iter().map(|name| (*name).to_owned()).collect();
        let expected: BTreeSet<String> = SERVICE.iter().chain(more).map(|name| (*name).to_owned()).collect();
        assert_eq!(serving_names("mcm", "ns", &extra, url).unwrap(), expected);
    }

    #[rstest]
    #[case::no_url("hello world")]
    #[case::no_tls("http://127.0.0.1:9443")]
    #[case::no_host("https:///path")]
    fn a_url_must_lead_to_us(#[case] url: &str) {
        assert_eq!(serving_names("mcm", "ns", &[], Some(url)), Err(InvalidServingName::Url(url.to_owned())));
    }

    #[test]
    fn a_name_must_be_one() {
        let extra = ["no spaces please".to_owned()];
        assert!(matches!(serving_names("mcm", "ns", &extra, None), Err(InvalidServingName::Name(_))));
    }
}
