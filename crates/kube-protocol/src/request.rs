//! The resource and the verb of a request.
//!
//! Source: spec/extension-apiserver §2.1. Authorization and routing use these attributes, never the raw path.

use std::time::Duration;

use http::Method;

use super::status::ApiStatus;
use kube_values::duration::GoDuration;

/// The verb of a request, as authorization names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read a collection.
    List,
    /// Watch a collection.
    Watch,
    /// Store a new object, or request a review.
    Create,
    /// Replace an object.
    Update,
    /// Change parts of an object.
    Patch,
    /// Delete an object.
    Delete,
    /// Delete a collection.
    DeleteCollection,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 8] = [
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Create,
        Self::Update,
        Self::Patch,
        Self::Delete,
        Self::DeleteCollection,
    ];

    /// The name in discovery and RBAC.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// A request for a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRequest {
    /// API group; empty for the core group.
    pub group: String,
    /// Version in the group.
    pub version: String,
    /// Namespace; none for a path without a namespace.
    pub namespace: Option<String>,
    /// Plural name of the resource.
    pub resource: String,
    /// Name of the object; none for a collection.
    pub name: Option<String>,
    /// Subresource; none for the object itself.
    pub subresource: Option<String>,
    /// The verb; none for an HTTP method that has no verb.
    pub verb: Option<Verb>,
}

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A resource.
    Resource(ResourceRequest),
    /// The decoded segments of any other path, such as discovery, documents and health.
    Other(Vec<String>),
}

/// Classifies a request by method, path and query.
///
/// # Errors
/// 400 for an invalid name; 404 for a path with too many segments.
pub fn classify(method: &Method, path: &str, query: &Query) -> Result<Target, ApiStatus> {
    let mut segments: Vec<String> = path.split('/').map(decode).collect();
    while segments.first().is_some_and(String::is_empty) {
        segments.remove(0);
    }
    while segments.last().is_some_and(String::is_empty) {
        segments.pop();
    }
    let (group, version, rest) = match segments.first().map(String::as_str) {
        Some("api") if segments.len() > 2 => (String::new(), segments[1].clone(), &segments[2..]),
        Some("apis") if segments.len() > 3 => (segments[1].clone(), segments[2].clone(), &segments[3..]),
        _ => return Ok(Target::Other(segments)),
    };
    let own_subresource = |segment: &String| segment == "status" || segment == "finalize";
    let (namespace, rest) =
        if rest[0] == "namespaces" && rest.len() > 2 && !(rest.len() == 3 && own_subresource(&rest[2])) {
            (Some(rest[1].clone()), &rest[2..])
        } else {
            (None, rest)
        };
    if rest.len() > 3 {
        return Err(ApiStatus::page_not_found());
    }
    for name in rest.get(1).into_iter().chain(&namespace) {
        if name == "." || name == ".." || name.contains('/') || name.contains('%') {
            return Err(ApiStatus::bad_request(format!(
                "Name parameter invalid: \"{name}\": may not be '.' or '..' and may not contain '/' or '%'"
            )));
        }
    }
    let name = rest.get(1).cloned();
    Ok(Target::Resource(ResourceRequest {
        verb: verb(method, name.is_some(), query),
        group,
        version,
        namespace,
        resource: rest[0].clone(),
        name,
        subresource: rest.get(2).cloned(),
    }))
}

fn verb(method: &Method, named: bool, query: &Query) -> Option<Verb> {
    let watches = query.get("watch").is_some_and(|value| value != "0" && value != "false");
    match *method {
        Method::GET | Method::HEAD if named => Some(Verb::Get),
        Method::GET | Method::HEAD if watches => Some(Verb::Watch),
        Method::GET | Method::HEAD => Some(Verb::List),
        Method::POST => Some(Verb::Create),
        Method::PUT => Some(Verb::Update),
        Method::PATCH => Some(Verb::Patch),
        Method::DELETE if named => Some(Verb::Delete),
        Method::DELETE => Some(Verb::DeleteCollection),
        _ => None,
    }
}

/// The time for the answer: the longest time of the server, which the client may shorten. For a request without a longest time, which is a watch, the
/// parameter is ignored.
///
/// # Errors
/// 400 for a timeout that is not a duration.
pub fn time_limit(query: &Query, longest: Option<Duration>) -> Result<Option<Duration>, ApiStatus> {
    let (Some(longest), Some(text)) = (longest, query.get("timeout")) else { return Ok(longest) };
    let asked: GoDuration = text.parse().map_err(|_| {
        ApiStatus::bad_request(format!(
            "invalid timeout specified in the request URL - time: invalid duration {text:?}"
        ))
    })?;
    let asked = Some(asked.to_std()).filter(|asked| !asked.is_zero());
    Ok(Some(asked.map_or(longest, |asked| asked.min(longest))))
}

/// The decoded parameters of a query, in the order of the URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the part of a URL after `?`.
    pub fn parse(text: Option<&str>) -> Self {
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&key.replace('+', " ")), decode(&value.replace('+', " ")))
        };
        Self(text.into_iter().flat_map(|text| text.split('&')).filter(|text| !text.is_empty()).map(pair).collect())
    }

    /// The first value of the parameter that is not empty.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, value)| name == key && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// Whether the query has the parameter, with or without a value.
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name == key)
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Whether the parameter is true, in Go's spellings of a boolean.
    pub fn is_set(&self, key: &str) -> bool {
        matches!(self.get(key), Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
    }
}

/// Decodes escapes such as `%41`. A `%` that begins no valid escape stays.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::core_list("GET", "/api/v1/pods", "", "|v1||pods||", Some(Verb::List))]
    #[case::namespaced_get("GET", "/api/v1/namespaces/a/pods/p", "", "|v1|a|pods|p|", Some(Verb::Get))]
    #[case::watch("GET", "/apis/g/v1/namespaces/a/things", "watch=foo", "g|v1|a|things||", Some(Verb::Watch))]
    #[case::xa_130_watch_false_is_a_list("GET", "/apis/g/v1/things", "watch=false", "g|v1||things||", Some(Verb::List))]
    #[case::a_named_watch_is_a_get("GET", "/apis/g/v1/things/x", "watch=1", "g|v1||things|x|", Some(Verb::Get))]
    #[case::namespace_itself("DELETE", "/api/v1/namespaces/a", "", "|v1||namespaces|a|", Some(Verb::Delete))]
    #[case::namespace_status("PUT", "/api/v1/namespaces/a/status", "", "|v1||namespaces|a|status", Some(Verb::Update))]
    #[case::finalize("PUT", "/api/v1/namespaces/a/finalize", "", "|v1||namespaces|a|finalize", Some(Verb::Update))]
    #[case::subresource(
        "POST",
        "/api/v1/namespaces/a/pods/p/eviction",
        "",
        "|v1|a|pods|p|eviction",
        Some(Verb::Create)
    )]
    #[case::collection("DELETE", "/apis/g/v1/namespaces/a/things", "", "g|v1|a|things||", Some(Verb::DeleteCollection))]
    #[case::xa_042_other_methods("OPTIONS", "/api/v1/pods", "", "|v1||pods||", None)]
    fn requests_for_resources(
        #[case] method: &str,
        #[case] path: &str,
        #[case] query: &str,
        #[case] expected: &str,
        #[case] verb: Option<Verb>,
    ) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let Target::Resource(found) = classify(&method, path, &Query::parse(Some(query))).unwrap() else { panic!() };
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        let flat = format!(
            "{}|{}|{}|{}|{}|{}",
            found.group,
            found.version,
            text(&found.namespace),
            found.resource,
            text(&found.name),
            text(&found.subresource)
        );
        assert_eq!((flat.as_str(), found.verb), (expected, verb));
    }

    #[rstest]
    #[case::root("/")]
    #[case::groups("/apis")]
    #[case::with_slash("/apis/g/v1/")]
    #[case::core("/api/v1")]
    #[case::health("/healthz")]
    fn other_paths_are_no_resources(#[case] path: &str) {
        assert!(matches!(classify(&Method::GET, path, &Query::default()), Ok(Target::Other(_))), "{path}");
    }

    #[test]
    fn xa_044_a_name_of_two_dots_is_refused() {
        let refused = classify(&Method::GET, "/api/v1/namespaces/a/configmaps/..", &Query::default()).unwrap_err();
        assert!(refused.code == 400 && refused.message.contains("Name parameter invalid"), "{refused:?}");
    }

    const LONGEST: Option<Duration> = Some(Duration::from_secs(60));

    #[rstest]
    #[case::none(LONGEST, "", Ok(Some(60_000)))]
    #[case::shorter(LONGEST, "timeout=1500ms", Ok(Some(1_500)))]
    #[case::longer_than_allowed(LONGEST, "timeout=2h", Ok(Some(60_000)))]
    #[case::zero_is_none(LONGEST, "timeout=0s", Ok(Some(60_000)))]
    #[case::negative_is_none(LONGEST, "timeout=-5s", Ok(Some(60_000)))]
    #[case::xa_041_no_duration(LONGEST, "timeout=abc", Err(400))]
    #[case::watches_have_none(None, "timeout=1s", Ok(None))]
    #[case::the_timeout_of_a_watch_is_ignored(None, "timeout=abc", Ok(None))]
    fn the_deadline_of_a_request(
        #[case] longest: Option<Duration>,
        #[case] query: &str,
        #[case] expected: Result<Option<u64>, u16>,
    ) {
        let found = time_limit(&Query::parse(Some(query)), longest);
        let expected = expected.map(|limit| limit.map(Duration::from_millis));
        assert_eq!(found.map_err(|status| status.code), expected);
    }
}
