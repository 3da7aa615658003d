//! Keystone's answer to a login: a token, its lifetime and the catalogue of services.

use std::time::Duration;

use cloud_client::{Answer, Failure, Secret};
use jiff::Timestamp;
use machine_driver::{Code, Instant, Status};
use serde::Deserialize;

/// A service of `OpenStack` that the driver uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Keystone.
    Identity,
    /// Nova.
    Compute,
    /// Neutron.
    Network,
    /// Glance.
    Image,
    /// Cinder.
    Volume,
}

impl Service {
    /// The name of the service in metrics and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "keystone",
            Self::Compute => "nova",
            Self::Network => "neutron",
            Self::Image => "glance",
            Self::Volume => "cinder",
        }
    }

    /// The types of the service in catalogues, the preferred type first.
    const fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::Identity => &["identity"],
            Self::Compute => &["compute"],
            Self::Network => &["network"],
            Self::Image => &["image"],
            Self::Volume => &["block-storage", "volumev3", "block-store"],
        }
    }

    /// The version of the API that is added to a URL of the catalogue without a version.
    const fn version(self) -> &'static str {
        match self {
            Self::Identity | Self::Volume => "v3",
            Self::Compute => "v2.1",
            Self::Network => "v2.0",
            Self::Image => "v2",
        }
    }

    /// The microversion that the driver's requests are written for.
    pub const fn microversion(self) -> Option<&'static str> {
        match self {
            Self::Compute => Some("compute 2.1"),
            Self::Volume => Some("volume 3.0"),
            Self::Identity | Self::Network | Self::Image => None,
        }
    }
}

/// A token, the time until which it is used, its project and the catalogue of services.
#[derive(Debug)]
pub struct Token {
    /// The value that requests carry.
    pub secret: Secret,
    /// The id of the login's project. `None` for a login without a project.
    pub project: Option<String>,
    received: Instant,
    good_until: Instant,
    catalog: Vec<Entry>,
}

#[derive(Deserialize)]
struct Body {
    token: Described,
}

#[derive(Deserialize)]
struct Described {
    issued_at: Timestamp,
    expires_at: Timestamp,
    #[serde(default)]
    project: Option<Project>,
    #[serde(default)]
    catalog: Vec<Entry>,
}

#[derive(Deserialize)]
struct Project {
    id: String,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    interface: String,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    region_id: Option<String>,
    url: String,
}

/// The longest time before its end in which a token is no longer used. For a short lifetime it is a fifth of that.
const LONGEST_MARGIN: Duration = Duration::from_secs(60);

/// The time after which a login is repeated for a service that the catalogue lacks.
const RENEW_CATALOGUE_AFTER: Duration = Duration::from_secs(60);

impl Token {
    /// Reads the token in an answer that was received at this time.
    ///
    /// # Errors
    /// `Internal` for an unreadable answer.
    pub fn read(answer: &Answer, now: Instant) -> Result<Self, Failure> {
        let unread = || Failure::permanent(Code::Internal, "logging in: the answer of Keystone can't be read");
        let token = answer.headers.get("x-subject-token").and_then(|token| token.to_str().ok()).ok_or_else(unread)?;
        let Body { token: described } = serde_json::from_slice(&answer.body).map_err(|_| unread())?;
        // Both times come from Keystone's clock, because the clock of this host may be wrong.
        let lifetime = described.expires_at.duration_since(described.issued_at);
        let lifetime = Duration::try_from(lifetime).unwrap_or_default();
        let margin = (lifetime / 5).min(LONGEST_MARGIN);
        Ok(Self {
            secret: Secret::new(token),
            project: described.project.map(|project| project.id),
            received: now,
            good_until: now + lifetime.saturating_sub(margin),
            catalog: described.catalog,
        })
    }

    /// Whether the token may be used at this time.
    pub fn is_good(&self, now: Instant) -> bool {
        now < self.good_until
    }

    /// Whether another login may bring a better catalogue, because this one lacks a service in a region. An operator may have added the region
    /// since, or Keystone may have left it out for a moment.
    pub fn is_worth_renewing(&self, service: Service, region: &str, now: Instant) -> bool {
        self.url(service, region).is_err() && now.saturating_duration_since(self.received) >= RENEW_CATALOGUE_AFTER
    }

    /// The URL of a service in a region.
    ///
    /// # Errors
    /// `FailedPrecondition` if the catalogue has no public endpoint of the service in the region.
    pub fn url(&self, service: Service, region: &str) -> Result<String, Status> {
        let of = |kind: &&str| {
            let endpoints = self.catalog.iter().filter(|entry| entry.kind == *kind).flat_map(|entry| &entry.endpoints);
            endpoints.into_iter().find(|endpoint| endpoint.is_public_in(region))
        };
        let found = service.kinds().iter().find_map(of).ok_or_else(|| {
            let message = format!(
                "the catalogue has no public endpoint of the service {} in region {region:?}",
                service.kinds().first().unwrap_or(&"")
            );
            Status::new(Code::FailedPrecondition, message)
        })?;
        Ok(versioned(&found.url, service.version()))
    }
}

impl Endpoint {
    fn is_public_in(&self, region: &str) -> bool {
        let names = [self.region_id.as_deref(), self.region.as_deref()];
        self.interface == "public" && names.contains(&Some(region))
    }
}

/// Adds the version of the API to a URL without a version.
fn versioned(url: &str, version: &str) -> String {
    let url = url.trim_end_matches('/');
    let is_version =
        |segment: &str| segment.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let path = url.split_once("://").map_or(url, |(_, rest)| rest);
    if path.split('/').skip(1).any(is_version) { url.to_owned() } else { format!("{url}/{version}") }
}

#[cfg(test)]
mod tests {
    use cloud_client::http::{HeaderMap, StatusCode};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn token(now: Instant) -> Token {
        let endpoint = |region: &str, interface: &str, url: &str| json!({"interface": interface, "region": region, "region_id": region, "url": url});
        let body = json!({"token": {
            "issued_at": "2026-01-01T00:00:00.000000Z", "expires_at": "2026-01-01T00:00:30.000000Z", "project": {"id": "p"},
            "catalog": [
                {"type": "compute", "endpoints": [
                    endpoint("a", "internal", "http://inside/v2.1"), endpoint("a", "public", "http://a/v2.1"),
                    endpoint("b", "public", "http://b/compute/v2.1/p")]},
                {"type": "volumev3", "endpoints": [endpoint("a", "public", "http://a/v3/p")]},
                {"type": "network", "endpoints": [endpoint("a", "public", "http://v6.example/")]},
                {"type": "image", "endpoints": [endpoint("a", "public", "http://a:9292/image")]},
            ],
        }});
        let headers: HeaderMap = [("x-subject-token".parse().unwrap(), "t".parse().unwrap())].into_iter().collect();
        let answer = Answer { status: StatusCode::CREATED, headers, body: body.to_string().into() };
        Token::read(&answer, now).unwrap()
    }

    #[rstest]
    #[case(Service::Compute, "a", Some("http://a/v2.1"))]
    #[case(Service::Compute, "b", Some("http://b/compute/v2.1/p"))]
    #[case::a_host_is_no_version(Service::Network, "a", Some("http://v6.example/v2.0"))]
    #[case(Service::Image, "a", Some("http://a:9292/image/v2"))]
    #[case::an_older_type(Service::Volume, "a", Some("http://a/v3/p"))]
    #[case::another_region(Service::Volume, "b", None)]
    #[case::no_region(Service::Compute, "", None)]
    fn the_catalogue_has_the_url_of_a_service(
        #[case] service: Service,
        #[case] region: &str,
        #[case] url: Option<&str>,
    ) {
        let found = token(Instant::now()).url(service, region);
        assert_eq!(found.clone().ok().as_deref(), url);
        assert!(url.is_some() || found.unwrap_err().code == Code::FailedPrecondition);
    }

    #[rstest]
    #[case::the_region_is_there("a", 3600, false)]
    #[case::it_is_missing("c", 60, true)]
    #[case::the_login_was_just_now("c", 59, false)]
    fn a_catalogue_without_a_region_is_read_again(#[case] region: &str, #[case] age: u64, #[case] expected: bool) {
        let now = Instant::now();
        let later = now + Duration::from_secs(age);
        assert_eq!(token(now).is_worth_renewing(Service::Compute, region, later), expected);
    }

    #[test]
    fn a_token_has_a_project() {
        assert_eq!(token(Instant::now()).project.as_deref(), Some("p"));
    }

    #[test]
    fn a_token_is_renewed_before_its_end() {
        let now = Instant::now();
        let token = token(now);
        assert!(token.is_good(now + Duration::from_secs(23)));
        assert!(!token.is_good(now + Duration::from_secs(24)));
    }
}
