//! The attributes of a request, as a `SubjectAccessReview` has them. They never contain the raw path.
//!
//! Source: spec/extension-apiserver §2.1, §3.5.

use http::Method;
use kube_protocol::{
    request::{Query, ResourceRequest, Verb},
    selectors::{FieldSelector, LabelSelector},
};
use serde_json::{Value, json};

use crate::extension::authentication::identity::Identity;

/// Answers about attributes of more bytes are not cached: a caller must not be able to fill the memory.
const MAX_CACHEABLE: usize = 10_000;

/// The action that a caller requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Attributes {
    /// A request for a resource.
    Resource(ResourceAttributes),
    /// Any other request.
    Path {
        /// The decoded path, with a leading slash.
        path: String,
        /// The method in lower case.
        verb: String,
    },
}

/// Attributes of a request for a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceAttributes {
    /// The verb, such as `list`; empty for an unsupported method.
    pub verb: &'static str,
    /// API group.
    pub group: String,
    /// Version of the group.
    pub version: String,
    /// Plural of the resource.
    pub resource: String,
    /// Subresource; empty for none.
    pub subresource: String,
    /// Namespace; empty for all.
    pub namespace: String,
    /// Name; empty for all.
    pub name: String,
    /// The label selector of a list. An unreadable selector is left out: the caller then needs the right on the whole list.
    pub labels: LabelSelector,
    /// The field selector of a list, read in the same way.
    pub fields: FieldSelector,
}

impl Attributes {
    /// The attributes of a request for a resource.
    pub fn of_resource(request: &ResourceRequest, query: &Query) -> Self {
        let lists = matches!(request.verb, Some(Verb::List | Verb::Watch | Verb::DeleteCollection));
        let text = |key| query.get(key).filter(|_| lists).unwrap_or_default();
        let labels = LabelSelector::parse(text("labelSelector")).unwrap_or_default();
        let fields = FieldSelector::parse(text("fieldSelector")).unwrap_or_default();
        let name = request.name.clone().or_else(|| fields.exact_name().map(str::to_owned));
        Self::Resource(ResourceAttributes {
            verb: request.verb.map_or("", Verb::name),
            group: request.group.clone(),
            version: request.version.clone(),
            resource: request.resource.clone(),
            subresource: request.subresource.clone().unwrap_or_default(),
            namespace: request.namespace.clone().unwrap_or_default(),
            name: name.unwrap_or_default(),
            labels,
            fields,
        })
    }

    /// The attributes of any other request.
    pub fn of_path(path: String, method: &Method) -> Self {
        Self::Path { path, verb: method.as_str().to_ascii_lowercase() }
    }

    /// The `spec` of a `SubjectAccessReview`.
    pub fn review(&self, who: &Identity) -> Value {
        let mut spec = json!({"user": who.user});
        let mut put = |key: &str, value: Value| spec[key] = value;
        if !who.uid.is_empty() {
            put("uid", json!(who.uid));
        }
        if !who.groups.is_empty() {
            put("groups", json!(who.groups));
        }
        if !who.extra.is_empty() {
            put("extra", json!(who.extra));
        }
        match self {
            Self::Path { path, verb } => put("nonResourceAttributes", json!({"path": path, "verb": verb})),
            Self::Resource(resource) => put("resourceAttributes", resource.review()),
        }
        spec
    }

    /// Whether an answer may be cached.
    pub fn is_cacheable(&self) -> bool {
        let size = match self {
            Self::Path { path, verb } => path.len() + verb.len(),
            Self::Resource(resource) => resource.review().to_string().len(),
        };
        size <= MAX_CACHEABLE
    }
}

impl ResourceAttributes {
    fn review(&self) -> Value {
        let mut attributes = json!({});
        let texts = [
            ("namespace", self.namespace.as_str()),
            ("verb", self.verb),
            ("group", &self.group),
            ("version", &self.version),
            ("resource", &self.resource),
            ("subresource", &self.subresource),
            ("name", &self.name),
        ];
        for (key, text) in texts {
            if !text.is_empty() {
                attributes[key] = json!(text);
            }
        }
        let requirements =
            [("fieldSelector", self.fields.requirements()), ("labelSelector", self.labels.requirements())];
        for (key, requirements) in requirements {
            if !requirements.is_empty() {
                attributes[key] = json!({"requirements": requirements});
            }
        }
        attributes
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use kube_protocol::request::{Target, classify};

    #[rstest]
    #[case::list(
        "GET", "/apis/g/v1/namespaces/n/things", "",
        json!({"namespace": "n", "verb": "list", "group": "g", "version": "v1", "resource": "things"})
    )]
    #[case::one_name_by_selector(
        "GET", "/apis/g/v1/things", "fieldSelector=metadata.name%3Dx",
        json!({"verb": "list", "group": "g", "version": "v1", "resource": "things", "name": "x",
               "fieldSelector": {"requirements": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]}})
    )]
    #[case::labels(
        "GET", "/apis/g/v1/things", "labelSelector=a%3D1,!b,c!%3D2,d",
        json!({"verb": "list", "group": "g", "version": "v1", "resource": "things", "labelSelector": {"requirements": [
            {"key": "a", "operator": "In", "values": ["1"]}, {"key": "b", "operator": "DoesNotExist"},
            {"key": "c", "operator": "NotIn", "values": ["2"]}, {"key": "d", "operator": "Exists"}]}})
    )]
    #[case::an_unreadable_selector_widens(
        "GET", "/apis/g/v1/things", "labelSelector=a%20b%20c",
        json!({"verb": "list", "group": "g", "version": "v1", "resource": "things"})
    )]
    #[case::a_watch_is_no_list(
        "GET", "/apis/g/v1/things", "watch=true",
        json!({"verb": "watch", "group": "g", "version": "v1", "resource": "things"})
    )]
    #[case::head_is_get(
        "HEAD", "/apis/g/v1/namespaces/n/things/x", "",
        json!({"namespace": "n", "verb": "get", "group": "g", "version": "v1", "resource": "things", "name": "x"})
    )]
    fn a_review_has_the_attributes_of_the_request(
        #[case] method: &str,
        #[case] path: &str,
        #[case] query: &str,
        #[case] expected: Value,
    ) {
        let query = Query::parse(Some(query));
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let Ok(Target::Resource(request)) = classify(&method, path, &query) else { panic!() };
        let who = Identity { user: "alice".to_owned(), ..Identity::default() };
        let spec = Attributes::of_resource(&request, &query).review(&who);
        assert_eq!(spec, json!({"user": "alice", "resourceAttributes": expected}));
    }

    #[test]
    fn a_review_has_all_attributes_of_the_caller() {
        let who = Identity {
            user: "a".to_owned(),
            uid: "u".to_owned(),
            groups: vec!["g".to_owned()],
            extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
        };
        let spec = Attributes::of_path("/metrics".to_owned(), &Method::GET).review(&who);
        let expected = json!({"user": "a", "uid": "u", "groups": ["g"], "extra": {"k": ["v"]},
                              "nonResourceAttributes": {"path": "/metrics", "verb": "get"}});
        assert_eq!(spec, expected);
    }

    #[rstest]
    #[case(9_000, true)]
    #[case(10_000, false)]
    fn th_18_large_questions_are_not_cached(#[case] length: usize, #[case] is_cacheable: bool) {
        let path = format!("/{}", "x".repeat(length));
        assert_eq!(Attributes::of_path(path, &Method::GET).is_cacheable(), is_cacheable);
    }
}
