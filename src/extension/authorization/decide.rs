//! Rules of authorization: requests that need no review, the meaning of a review's answer, and the text of a refusal. Pure.
//!
//! Source: spec/extension-apiserver §2.8, §3.5.

use serde_json::Value;

use super::attributes::Attributes;
use crate::extension::authentication::identity::Identity;
use kube_protocol::status::{ApiStatus, qualified};

/// Paths that every caller may read without a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPaths(Vec<OpenPath>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum OpenPath {
    Exact(String),
    Prefix(String),
}

/// The health endpoints. Where one of them is open, the paths of its single checks are open too.
const HEALTH: [&str; 3] = ["/healthz", "/livez", "/readyz"];

impl OpenPaths {
    /// Reads the values of `--authorization-always-allow-paths`: whole paths, or prefixes that end in `*`.
    ///
    /// # Errors
    /// For an empty path.
    pub fn parse(paths: &[String]) -> Result<Self, String> {
        let path = |text: &String| {
            let text = text.trim();
            if text.is_empty() {
                return Err("one of the paths is empty".to_owned());
            }
            let path = format!("/{}", text.trim_start_matches('/'));
            Ok(match path.strip_suffix('*') {
                Some(prefix) => OpenPath::Prefix(prefix.to_owned()),
                None => OpenPath::Exact(path),
            })
        };
        paths.iter().map(path).collect::<Result<_, _>>().map(Self)
    }

    fn include(&self, path: &str) -> bool {
        let included = |open: &OpenPath| match open {
            OpenPath::Exact(own) => own == path,
            OpenPath::Prefix(prefix) => path.starts_with(prefix.as_str()),
        };
        let of_health = |own: &str| {
            let is_open = self.0.contains(&OpenPath::Exact(own.to_owned()));
            is_open && path.strip_prefix(own).is_some_and(|rest| rest.starts_with('/'))
        };
        self.0.iter().any(included) || HEALTH.into_iter().any(of_health)
    }
}

/// The path of these segments. `None` for a path that another server could read as a different one.
pub fn plain_path(segments: &[String]) -> Option<String> {
    let is_odd = |segment: &String| {
        segment.is_empty() || segment == "." || segment == ".." || segment.contains(['/', '%', '\0'])
    };
    (!segments.iter().any(is_odd)).then(|| format!("/{}", segments.join("/")))
}

/// Whether a caller may do something without a review by the API server.
pub fn needs_no_review(who: &Identity, what: &Attributes, open: &OpenPaths) -> bool {
    let is_open = matches!(what, Attributes::Path { path, .. } if open.include(path));
    who.is_master() || is_open
}

/// The answer of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The caller may do it.
    Allowed,
    /// The caller may not do it, for this reason, which may be empty.
    Refused(String),
}

/// The verdict in the status of a review. A status that both allows and denies is a refusal.
pub fn verdict(status: &Value) -> Verdict {
    if status["allowed"] == true && status["denied"] != true {
        Verdict::Allowed
    } else {
        Verdict::Refused(status["reason"].as_str().unwrap_or_default().to_owned())
    }
}

/// The refusal of a request, in the words of the API server.
pub fn refusal(who: &Identity, what: &Attributes, reason: &str) -> ApiStatus {
    let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    match what {
        Attributes::Path { path, verb } => {
            let message = format!("forbidden: User {:?} cannot {verb} path {path:?}{because}", who.user);
            ApiStatus::new(403, "Forbidden", message).with_details(serde_json::json!({}))
        }
        Attributes::Resource(of) => {
            let resource = if of.subresource.is_empty() {
                of.resource.clone()
            } else {
                format!("{}/{}", of.resource, of.subresource)
            };
            let place = if of.namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {:?}", of.namespace)
            };
            let why = format!(
                "User {:?} cannot {} resource {resource:?} in API group {:?} {place}{because}",
                who.user, of.verb, of.group
            );
            ApiStatus::forbidden(&of.group, &of.resource, &of.name, &why)
        }
    }
}

/// The refusal of a caller that may read a view, but not the objects that the view is computed from.
pub fn source_refusal(view: &str, group: &str, name: &str, missing: &ApiStatus) -> ApiStatus {
    let why = format!("what it is computed from may not be read: {}", missing.message);
    // A list, and a review without a name, name no object.
    let name = if name.is_empty() { String::new() } else { format!(" {name:?}") };
    ApiStatus { message: format!("{}{name} is forbidden: {why}", qualified(view, group)), ..missing.clone() }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::extension::{authentication::identity::MASTERS, authorization::attributes::ResourceAttributes};

    fn segments(path: &str) -> Vec<String> {
        path.split('|').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
    }

    fn defaults() -> OpenPaths {
        OpenPaths::parse(&["/healthz".to_owned(), "readyz".to_owned(), "/livez".to_owned()]).unwrap()
    }

    #[rstest]
    #[case::health("healthz", Some(true))]
    #[case::without_leading_slash("readyz", Some(true))]
    #[case::one_check("readyz|ping", Some(true))]
    #[case::something_like_it("healthzx", Some(false))]
    #[case::th_27_metrics("metrics", Some(false))]
    #[case::th_27_root("", Some(false))]
    #[case::th_20_up_again("healthz|..|metrics", None)]
    #[case::th_20_hidden_slash("healthz|../metrics", None)]
    #[case::th_20_slash_at_the_end("readyz/", None)]
    #[case::th_20_semicolon("healthz;x", Some(false))]
    fn paths_that_need_no_right(#[case] path: &str, #[case] expected: Option<bool>) {
        let alice = Identity { user: "alice".to_owned(), ..Identity::default() };
        let found = plain_path(&segments(path))
            .map(|path| needs_no_review(&alice, &Attributes::of_path(path, &Method::GET), &defaults()));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_prefix_ends_in_a_star() {
        let open = OpenPaths::parse(&["/version*".to_owned()]).unwrap();
        assert!(open.include("/version/x") && !open.include("/versio") && OpenPaths::parse(&[" ".to_owned()]).is_err());
    }

    #[test]
    fn masters_need_no_review() {
        let root = Identity { user: "root".to_owned(), groups: vec![MASTERS.to_owned()], ..Identity::default() };
        let what = Attributes::Resource(ResourceAttributes { verb: "list", ..ResourceAttributes::default() });
        assert!(needs_no_review(&root, &what, &defaults()));
    }

    #[rstest]
    #[case::allowed(json!({"allowed": true}), Verdict::Allowed)]
    #[case::denied(json!({"allowed": false, "denied": true, "reason": "no"}), Verdict::Refused("no".to_owned()))]
    #[case::both(json!({"allowed": true, "denied": true}), Verdict::Refused(String::new()))]
    #[case::neither(json!({}), Verdict::Refused(String::new()))]
    fn an_answer_means(#[case] status: Value, #[case] expected: Verdict) {
        assert_eq!(verdict(&status), expected);
    }

    fn list_in(namespace: &str, name: &str) -> Attributes {
        Attributes::Resource(ResourceAttributes {
            verb: "list",
            group: "g.example".to_owned(),
            version: "v1".to_owned(),
            resource: "things".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..ResourceAttributes::default()
        })
    }

    #[rstest]
    #[case::xa_142_in_a_namespace(
        list_in("n", ""), "",
        r#"things.g.example is forbidden: User "al\nice" cannot list resource "things" in API group "g.example" in the namespace "n""#
    )]
    #[case::everywhere_with_a_reason(
        list_in("", "x"), "RBAC: no",
        r#"things.g.example "x" is forbidden: User "al\nice" cannot list resource "things" in API group "g.example" at the cluster scope: RBAC: no"#
    )]
    #[case::xa_136_a_path(
        Attributes::of_path("/metrics".to_owned(), &Method::GET), "",
        r#"forbidden: User "al\nice" cannot get path "/metrics""#
    )]
    fn refusals_read_as_the_api_servers_do(#[case] what: Attributes, #[case] reason: &str, #[case] text: &str) {
        let who = Identity { user: "al\nice".to_owned(), ..Identity::default() };
        let status = refusal(&who, &what, reason);
        assert_eq!((status.code, status.message.as_str()), (403, text));
    }
    #[rstest]
    #[case::one("x", r#"views.g.example "x" is forbidden: what it is computed from may not be read: no"#)]
    #[case::a_list("", "views.g.example is forbidden: what it is computed from may not be read: no")]
    fn a_view_is_refused_for_its_source(#[case] name: &str, #[case] text: &str) {
        let missing = ApiStatus::new(403, "Forbidden", "no");
        assert_eq!(source_refusal("views", "g.example", name, &missing).message, text);
    }
}
