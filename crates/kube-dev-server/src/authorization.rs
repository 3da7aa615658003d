//! Authorization by RBAC, as pure functions over the stored roles and bindings.
//!
//! This file contains: the attributes of a request, the roles of a user, the check whether a rule allows a request, and the rules of aggregated
//! roles. [`super::access`] authenticates the user. Not implemented, as documented: the checks of `bind` and `escalate`, which prevent that users
//! grant more rights than they have.
//! Source: spec/extension-apiserver §3.5, §6.2, §6.6.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};

use super::{
    access::User,
    object::text,
    store::{Collection, Store, Stored, key},
};
use kube_protocol::{
    request::{Query, ResourceRequest, Target, Verb},
    selectors::FieldSelector,
    status::ApiStatus,
};
use kube_values::selector;

/// The API group of RBAC.
pub(super) const GROUP: &str = "rbac.authorization.k8s.io";

/// The authorization of authenticated users (`--authorization-mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// All authenticated users are allowed to do everything.
    #[default]
    AlwaysAllow,
    /// Roles and their bindings decide.
    Rbac,
}

/// The attributes of a request for its authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) verb: String,
    pub(super) object: RequestObject,
}

/// The object of a request: a resource or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestObject {
    Resource {
        group: String,
        resource: String,
        subresource: String,
        /// Empty for the whole cluster.
        namespace: String,
        /// Empty for a collection.
        name: String,
    },
    Path(String),
}

impl Attributes {
    /// The attributes of a request.
    pub(super) fn of_request(target: &Target, method: &Method, path: &str, query: &Query) -> Self {
        match target {
            Target::Resource(request) => Self::of_resource(request, method, query),
            Target::Other(_) => {
                Self { verb: method.as_str().to_lowercase(), object: RequestObject::Path(path.to_owned()) }
            }
        }
    }

    fn of_resource(request: &ResourceRequest, method: &Method, query: &Query) -> Self {
        let verb = request.verb.map_or_else(|| method.as_str().to_lowercase(), |verb| verb.name().to_owned());
        // A list with a field selector for one name is a request for the object with this name.
        let selected = || {
            let fields = FieldSelector::parse(query.get("fieldSelector")?).ok()?;
            fields.exact_name().map(str::to_owned)
        };
        let name = request.name.clone().or_else(selected).unwrap_or_default();
        // For RBAC a namespace is in itself.
        let is_namespace = request.group.is_empty() && request.resource == "namespaces";
        let namespace = if is_namespace { request.name.clone() } else { request.namespace.clone() };
        Self {
            verb,
            object: RequestObject::Resource {
                group: request.group.clone(),
                resource: request.resource.clone(),
                subresource: request.subresource.clone().unwrap_or_default(),
                namespace: namespace.unwrap_or_default(),
                name,
            },
        }
    }

    /// The attributes of the creation of the object of another request.
    pub(super) fn to_create(request: &ResourceRequest) -> Self {
        let request = ResourceRequest { verb: Some(Verb::Create), ..request.clone() };
        Self::of_resource(&request, &Method::POST, &Query::default())
    }

    /// The attributes in an access review. `None` if the review has neither a resource nor a path.
    pub(super) fn of_review(spec: &Value) -> Option<Self> {
        let part = |at: &str| text(spec, at).to_owned();
        if spec["resourceAttributes"].is_object() {
            return Some(Self {
                verb: part("/resourceAttributes/verb"),
                object: RequestObject::Resource {
                    group: part("/resourceAttributes/group"),
                    resource: part("/resourceAttributes/resource"),
                    subresource: part("/resourceAttributes/subresource"),
                    namespace: part("/resourceAttributes/namespace"),
                    name: part("/resourceAttributes/name"),
                },
            });
        }
        let path = part("/nonResourceAttributes/path");
        spec["nonResourceAttributes"]
            .is_object()
            .then(|| Self { verb: part("/nonResourceAttributes/verb"), object: RequestObject::Path(path) })
    }

    /// The attributes of an impersonation.
    pub(super) fn impersonating(resource: &str, name: &str) -> Self {
        Self {
            verb: "impersonate".to_owned(),
            object: RequestObject::Resource {
                group: String::new(),
                resource: resource.to_owned(),
                subresource: String::new(),
                namespace: String::new(),
                name: name.to_owned(),
            },
        }
    }

    fn namespace(&self) -> &str {
        match &self.object {
            RequestObject::Resource { namespace, .. } => namespace,
            RequestObject::Path(_) => "",
        }
    }

    /// The error for a request that is not allowed, with the message of kube-apiserver.
    pub(super) fn forbidden(&self, user: &User) -> ApiStatus {
        match &self.object {
            RequestObject::Resource { group, resource, subresource, namespace, name } => {
                let whole = if subresource.is_empty() { resource.clone() } else { format!("{resource}/{subresource}") };
                let place = if namespace.is_empty() {
                    "at the cluster scope".to_owned()
                } else {
                    format!("in the namespace {namespace:?}")
                };
                let why = format!(
                    "User {:?} cannot {} resource {whole:?} in API group {group:?} {place}",
                    user.name, self.verb
                );
                ApiStatus::forbidden(group, resource, name, &why)
            }
            RequestObject::Path(path) => {
                let message = format!("forbidden: User {:?} cannot {} path {path:?}", user.name, self.verb);
                ApiStatus::new(403, "Forbidden", message).with_details(json!({}))
            }
        }
    }
}

/// Whether the stored roles allow a request of a user.
pub(super) fn allows(store: &Store, user: &User, attributes: &Attributes) -> bool {
    user.is_master()
        || roles_of(store, user, attributes.namespace()).iter().any(|role| role_allows(&role.value, attributes))
}

/// The rules of a user in a namespace, as they are stored.
pub(super) fn rules_of(store: &Store, user: &User, namespace: &str) -> Vec<Value> {
    if user.is_master() {
        return everything();
    }
    let roles = roles_of(store, user, namespace);
    roles.iter().flat_map(|role| role.value["rules"].as_array().cloned().unwrap_or_default()).collect()
}

/// Rules that allow everything.
pub(super) fn everything() -> Vec<Value> {
    vec![
        json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}),
        json!({"nonResourceURLs": ["*"], "verbs": ["*"]}),
    ]
}

/// The roles of a user: those for the whole cluster, and those in a namespace.
fn roles_of(store: &Store, user: &User, namespace: &str) -> Vec<Arc<Stored>> {
    let mut found = Vec::new();
    let mut take = |bindings: &str, prefix: &str| {
        for (_, binding) in store.list(&Collection::new(GROUP, bindings), prefix).objects {
            if names(&binding.value, user) {
                found.extend(role_of(store, &binding.value));
            }
        }
    };
    take("clusterrolebindings", "");
    if !namespace.is_empty() {
        take("rolebindings", &format!("{namespace}/"));
    }
    found
}

fn role_of(store: &Store, binding: &Value) -> Option<Arc<Stored>> {
    let name = text(binding, "/roleRef/name");
    match text(binding, "/roleRef/kind") {
        "ClusterRole" => store.get(&Collection::new(GROUP, "clusterroles"), &key(None, name)),
        "Role" => {
            let namespace = text(binding, "/metadata/namespace");
            store.get(&Collection::new(GROUP, "roles"), &key(Some(namespace), name))
        }
        _ => None,
    }
}

/// Whether a binding names a user.
fn names(binding: &Value, user: &User) -> bool {
    let own = text(binding, "/metadata/namespace");
    binding["subjects"].as_array().into_iter().flatten().any(|subject| {
        let name = text(subject, "/name");
        match text(subject, "/kind") {
            "User" => user.name == name,
            "Group" => user.groups.iter().any(|group| group == name),
            "ServiceAccount" => {
                let namespace = subject["namespace"].as_str().filter(|text| !text.is_empty()).unwrap_or(own);
                user.name == format!("system:serviceaccount:{namespace}:{name}")
            }
            _ => false,
        }
    })
}

fn role_allows(role: &Value, attributes: &Attributes) -> bool {
    role["rules"].as_array().into_iter().flatten().any(|rule| rule_allows(rule, attributes))
}

/// Whether a rule allows a request.
fn rule_allows(rule: &Value, attributes: &Attributes) -> bool {
    let lists = |field: &str, wanted: &dyn Fn(&str) -> bool| {
        rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).any(wanted)
    };
    let has = |field: &str, value: &str| lists(field, &|listed| listed == "*" || listed == value);
    if !has("verbs", &attributes.verb) {
        return false;
    }
    match &attributes.object {
        RequestObject::Resource { group, resource, subresource, name, .. } => {
            let is_resource = |listed: &str| match listed {
                "*" => true,
                listed if subresource.is_empty() => listed == resource,
                listed => listed
                    .split_once('/')
                    .is_some_and(|(whole, part)| part == subresource && (whole == "*" || whole == resource)),
            };
            let any_name = rule["resourceNames"].as_array().is_none_or(Vec::is_empty);
            has("apiGroups", group)
                && lists("resources", &is_resource)
                && (any_name || (!name.is_empty() && lists("resourceNames", &|listed| listed == name)))
        }
        RequestObject::Path(path) => lists("nonResourceURLs", &|listed| match listed.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => listed == path,
        }),
    }
}

/// The rules of an aggregated role: the rules of all roles that it selects, sorted by the names of the roles. `None` for a role that is not
/// aggregated.
pub(super) fn aggregated(role: &Value, all: &[(String, Arc<Stored>)]) -> Option<Vec<Value>> {
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array()?;
    let mut rules: Vec<Value> = Vec::new();
    for (_, other) in all {
        let chosen = other.value["metadata"]["name"] != role["metadata"]["name"]
            && selectors.iter().any(|selector| selects(selector, &other.value));
        for rule in other.value["rules"].as_array().into_iter().flatten().filter(|_| chosen) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    Some(rules)
}

fn selects(labels: &Value, object: &Value) -> bool {
    let Ok(wanted) = serde_json::from_value(labels.clone()) else { return false };
    selector::matches(&wanted, &serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{persistence::Durable, store::Expect};
    use kube_protocol::request::classify;

    fn attributes(method: &str, path: &str) -> Attributes {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let query = Query::parse(Some(query));
        Attributes::of_request(&classify(&method, path, &query).unwrap(), &method, path, &query)
    }

    fn rule(groups: &[&str], resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
        json!({"apiGroups": groups, "resources": resources, "verbs": verbs, "resourceNames": names})
    }

    #[rstest]
    #[case::plain(rule(&[""], &["pods"], &["list"], &[]), "GET", "/api/v1/pods", true)]
    #[case::other_verb(rule(&[""], &["pods"], &["list"], &[]), "GET", "/api/v1/namespaces/a/pods/p", false)]
    #[case::other_group(rule(&["apps"], &["pods"], &["list"], &[]), "GET", "/api/v1/pods", false)]
    #[case::everything(rule(&["*"], &["*"], &["*"], &[]), "DELETE", "/apis/g/v1/namespaces/a/things/x", true)]
    #[case::a_resource_does_not_include_its_subresources(rule(&[""], &["pods"], &["create"], &[]), "POST", "/api/v1/namespaces/a/pods/p/eviction", false)]
    #[case::a_subresource(rule(&[""], &["pods/eviction"], &["create"], &[]), "POST", "/api/v1/namespaces/a/pods/p/eviction", true)]
    #[case::a_subresource_of_all_resources(rule(&[""], &["*/status"], &["patch"], &[]), "PATCH", "/api/v1/nodes/n/status", true)]
    #[case::its_name(rule(&["g"], &["things"], &["get"], &["x"]), "GET", "/apis/g/v1/namespaces/a/things/x", true)]
    #[case::another_name(rule(&["g"], &["things"], &["get"], &["x"]), "GET", "/apis/g/v1/namespaces/a/things/y", false)]
    #[case::a_creation_has_no_name(rule(&["g"], &["things"], &["create"], &["x"]), "POST", "/apis/g/v1/namespaces/a/things", false)]
    #[case::a_watch_of_one_object(rule(&["g"], &["things"], &["watch"], &["x"]), "GET", "/apis/g/v1/things?watch=1&fieldSelector=metadata.name%3Dx", true)]
    #[case::a_watch_of_all_objects(rule(&["g"], &["things"], &["watch"], &["x"]), "GET", "/apis/g/v1/things?watch=1", false)]
    #[case::a_path(json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}), "GET", "/metrics", true)]
    #[case::paths(json!({"nonResourceURLs": ["/openapi/*"], "verbs": ["get"]}), "GET", "/openapi/v3/apis/g", true)]
    #[case::no_path(json!({"nonResourceURLs": ["/openapi/*"], "verbs": ["get"]}), "GET", "/metrics", false)]
    fn rules(#[case] rule: Value, #[case] method: &str, #[case] path: &str, #[case] allowed: bool) {
        assert_eq!(rule_allows(&rule, &attributes(method, path)), allowed);
    }

    #[rstest]
    #[case::user(json!({"kind": "User", "name": "alice"}), true)]
    #[case::another_user(json!({"kind": "User", "name": "bob"}), false)]
    #[case::group(json!({"kind": "Group", "name": "system:authenticated"}), true)]
    #[case::account_of_the_same_name(json!({"kind": "ServiceAccount", "name": "alice", "namespace": "a"}), false)]
    fn subjects(#[case] subject: Value, #[case] named: bool) {
        let binding = json!({"metadata": {"namespace": "a"}, "subjects": [subject]});
        assert_eq!(names(&binding, &User::known("alice", [])), named);
    }

    fn put(store: &Store, resource: &str, object: Value) {
        let (namespace, name) = (object["metadata"]["namespace"].as_str(), text(&object, "/metadata/name").to_owned());
        let place = key(namespace, &name);
        store.write(&Collection::new(GROUP, resource), &place, Expect::Absent, Some(object)).unwrap();
    }

    #[test]
    fn a_role_binding_holds_only_in_its_namespace() {
        let store = Store::new(1, Vec::new(), Durable::memory());
        let alice = User::known("alice", []);
        let role = json!({"metadata": {"name": "reader"}, "rules": [rule(&[""], &["pods"], &["list"], &[])]});
        put(&store, "clusterroles", role);
        let subjects = json!([{"kind": "User", "name": "alice"}]);
        let reference = json!({"kind": "ClusterRole", "name": "reader"});
        let binding = json!({"metadata": {"name": "b", "namespace": "a"}, "subjects": subjects, "roleRef": reference});
        put(&store, "rolebindings", binding);
        assert!(allows(&store, &alice, &attributes("GET", "/api/v1/namespaces/a/pods")));
        assert!(!allows(&store, &alice, &attributes("GET", "/api/v1/namespaces/b/pods")));
        assert!(!allows(&store, &alice, &attributes("GET", "/api/v1/pods")));
        assert!(!allows(&store, &User::known("bob", []), &attributes("GET", "/api/v1/namespaces/a/pods")));
        assert!(allows(
            &store,
            &User::known("root", [crate::access::MASTERS.to_owned()]),
            &attributes("GET", "/api/v1/pods")
        ));
        let refused = attributes("GET", "/api/v1/pods").forbidden(&alice).message;
        let words =
            r#"pods is forbidden: User "alice" cannot list resource "pods" in API group "" at the cluster scope"#;
        assert_eq!(refused, words);
    }

    #[test]
    fn an_aggregated_role_has_the_rules_of_the_roles_that_it_selects() {
        let role = |name: &str, labels: Value, rules: Value| {
            let value = json!({"metadata": {"name": name, "labels": labels}, "rules": rules});
            (name.to_owned(), Arc::new(Stored::of(1, value)))
        };
        let all = [
            role("one", json!({"to-view": "true"}), json!([rule(&[""], &["pods"], &["get"], &[])])),
            role("other", json!({}), json!([rule(&[""], &["secrets"], &["get"], &[])])),
            role("two", json!({"to-view": "true"}), json!([rule(&[""], &["pods"], &["get"], &[])])),
        ];
        let view = json!({"metadata": {"name": "view"},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to-view": "true"}}]}});
        assert_eq!(aggregated(&view, &all), Some(vec![rule(&[""], &["pods"], &["get"], &[])]));
        assert_eq!(aggregated(&all[0].1.value, &all), None);
    }
}
