//! The number of requests, in the format of the metric of kube-apiserver, so that tools for that metric work here too.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Mutex, PoisonError},
};

use kube_protocol::request::{ResourceRequest, Verb};

/// The labels of the metric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    verb: &'static str,
    code: u16,
}

/// The request counters of a server.
#[derive(Debug, Default)]
pub(super) struct RequestCounts(Mutex<BTreeMap<Series, u64>>);

impl RequestCounts {
    /// Counts a request. Its resource must be served; otherwise a client could create any number of label values.
    pub(super) fn count(&self, request: &ResourceRequest, content_type: Option<&str>, code: u16) {
        let scope = match (&request.name, request.verb, &request.namespace) {
            (Some(_), ..) | (_, Some(Verb::Create), _) => "resource",
            (None, _, Some(_)) => "namespace",
            (None, _, None) => "cluster",
        };
        let Some(verb) = verb(request.verb, content_type) else { return };
        let series = Series {
            group: request.group.clone(),
            version: request.version.clone(),
            resource: request.resource.clone(),
            subresource: request.subresource.clone().unwrap_or_default(),
            scope,
            verb,
            code,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(series).or_default() += 1;
    }

    /// The text of `/metrics`.
    pub(super) fn render(&self) -> String {
        let mut text = "# HELP apiserver_request_total Requests for resources.\n\
                        # TYPE apiserver_request_total counter\n"
            .to_owned();
        for (series, count) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let Series { group, version, resource, subresource, scope, verb, code } = series;
            // Writing to a string never fails.
            let _ = writeln!(
                text,
                "apiserver_request_total{{code=\"{code}\",component=\"mcm-dev\",group=\"{group}\",resource=\"{resource}\",\
                 scope=\"{scope}\",subresource=\"{subresource}\",verb=\"{verb}\",version=\"{version}\"}} {count}"
            );
        }
        text
    }
}

/// The value of the label `verb`.
fn verb(verb: Option<Verb>, content_type: Option<&str>) -> Option<&'static str> {
    Some(match verb? {
        Verb::Get => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create => "POST",
        Verb::Update => "PUT",
        Verb::Patch if content_type.is_some_and(|text| text.starts_with("application/apply-patch")) => "APPLY",
        Verb::Patch => "PATCH",
        Verb::Delete => "DELETE",
        Verb::DeleteCollection => "DELETECOLLECTION",
    })
}

#[cfg(test)]
mod tests {
    use http::Method;
    use rstest::rstest;

    use super::*;
    use kube_protocol::request::{Query, Target, classify};

    #[rstest]
    #[case::create("POST", "/api/v1/namespaces/a/configmaps", None, "POST", "resource", "")]
    #[case::apply(
        "PATCH",
        "/api/v1/nodes/n/status",
        Some("application/apply-patch+yaml"),
        "APPLY",
        "resource",
        "status"
    )]
    #[case::patch("PATCH", "/api/v1/nodes/n", Some("application/merge-patch+json"), "PATCH", "resource", "")]
    #[case::list("GET", "/api/v1/nodes", None, "LIST", "cluster", "")]
    fn requests_are_counted_with_the_labels_of_kube_apiserver(
        #[case] method: &str,
        #[case] path: &str,
        #[case] content_type: Option<&str>,
        #[case] verb: &str,
        #[case] scope: &str,
        #[case] subresource: &str,
    ) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let Target::Resource(request) = classify(&method, path, &Query::default()).unwrap() else { panic!() };
        let counts = RequestCounts::default();
        for _ in 0..2 {
            counts.count(&request, content_type, 200);
        }
        let text = counts.render();
        let line = text.lines().last().unwrap();
        for part in [format!("verb=\"{verb}\""), format!("scope=\"{scope}\""), format!("subresource=\"{subresource}\"")]
        {
            assert!(line.contains(&part), "{line}");
        }
        assert!(line.ends_with("} 2"), "{line}");
    }
}
