//! The `url` label of `rest_client_request_latency_seconds`: the URL of a call, without the names of objects.

/// A URL with `{namespace}` and `{name}` in place of names, so that the number of series does not grow with the number of
/// objects. The placeholders are encoded as in the original's client library. If the path is not a path of objects, only its
/// first segment is kept.
pub fn url_pattern(scheme_and_host: &str, path: &str) -> String {
    const NAMESPACE: &str = "%7Bnamespace%7D";
    const NAME: &str = "%7Bname%7D";
    const PREFIX: &str = "%7Bprefix%7D";
    let segments: Vec<&str> = path.split('?').next().unwrap_or_default().split('/').filter(|s| !s.is_empty()).collect();
    let mut pattern: Vec<&str> = Vec::with_capacity(segments.len());
    let resource_path = match segments.as_slice() {
        ["api", version, rest @ ..] => {
            pattern.extend(["api", *version]);
            rest
        }
        ["apis", group, version, rest @ ..] => {
            pattern.extend(["apis", *group, *version]);
            rest
        }
        [first, ..] => return format!("{scheme_and_host}/{first}"),
        [] => return format!("{scheme_and_host}/{PREFIX}"),
    };
    match resource_path {
        ["namespaces", _, resource, rest @ ..] => {
            pattern.extend(["namespaces", NAMESPACE, *resource]);
            name_and_subresource(rest, NAME, &mut pattern);
        }
        [resource, rest @ ..] => {
            pattern.push(resource);
            name_and_subresource(rest, NAME, &mut pattern);
        }
        [] => {}
    }
    format!("{scheme_and_host}/{}", pattern.join("/"))
}

fn name_and_subresource<'a>(rest: &[&'a str], name: &'a str, pattern: &mut Vec<&'a str>) {
    if let [_, subresource @ ..] = rest {
        pattern.push(name);
        pattern.extend(subresource);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::url_pattern;

    #[rstest]
    #[case::a_list(
        "/apis/machine.sapcloud.io/v1alpha1/namespaces/shoot/machines?limit=5",
        "apis/machine.sapcloud.io/v1alpha1/namespaces/%7Bnamespace%7D/machines"
    )]
    #[case::a_subresource(
        "/apis/machine.sapcloud.io/v1alpha1/namespaces/shoot/machines/m-1/status",
        "apis/machine.sapcloud.io/v1alpha1/namespaces/%7Bnamespace%7D/machines/%7Bname%7D/status"
    )]
    #[case::a_cluster_wide_object("/api/v1/nodes/n-1", "api/v1/nodes/%7Bname%7D")]
    #[case::a_namespace_itself("/api/v1/namespaces/shoot", "api/v1/namespaces/%7Bname%7D")]
    #[case::discovery("/apis/machine.sapcloud.io/v1alpha1", "apis/machine.sapcloud.io/v1alpha1")]
    #[case::no_resource("/healthz/etcd", "healthz")]
    #[case::the_root("/", "%7Bprefix%7D")]
    fn names_do_not_get_into_the_label(#[case] path: &str, #[case] pattern: &str) {
        assert_eq!(url_pattern("https://10.0.0.1:443", path), format!("https://10.0.0.1:443/{pattern}"));
    }
}
