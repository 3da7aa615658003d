//! The objects of a new server: namespaces, roles, role bindings, and the Service `kubernetes`.
//!
//! Source: spec/extension-apiserver §6.2.

use serde_json::{Value, json};

use super::{
    access::{AUTHENTICATED, MASTERS, UNAUTHENTICATED},
    authorization::{self, GROUP},
    object,
    server::Server,
    store::{Collection, Expect, key},
};

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
/// The resources of the role `view`: the resources in namespaces, except Secrets.
const VISIBLE: [(&str, &[&str]); 6] = [
    (
        "",
        &[
            "configmaps",
            "endpoints",
            "events",
            "limitranges",
            "namespaces",
            "persistentvolumeclaims",
            "pods",
            "pods/status",
            "replicationcontrollers",
            "resourcequotas",
            "serviceaccounts",
            "services",
        ],
    ),
    ("apps", &["daemonsets", "deployments", "replicasets", "statefulsets"]),
    ("batch", &["cronjobs", "jobs"]),
    ("discovery.k8s.io", &["endpointslices"]),
    ("networking.k8s.io", &["ingresses", "networkpolicies"]),
    ("policy", &["poddisruptionbudgets"]),
];

/// Creates the objects that do not exist yet.
pub(super) fn first_content(server: &Server) {
    for name in NAMESPACES {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        put(server, &Collection::new("", "namespaces"), namespace);
    }
    put(server, &Collection::new("", "services"), own_service());
    for role in cluster_roles() {
        put(server, &Collection::new(GROUP, "clusterroles"), role);
    }
    for binding in cluster_role_bindings() {
        put(server, &Collection::new(GROUP, "clusterrolebindings"), binding);
    }
    put(server, &Collection::new(GROUP, "roles"), authentication_reader());
}

/// The Service of the API server. Here it is only an object: it has no address and routes no traffic.
fn own_service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kubernetes", "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
        "status": {"loadBalancer": {}},
    })
}

fn put(server: &Server, collection: &Collection, mut object: Value) {
    let place = key(object::namespace(&object), object::name(&object));
    let uid = object::new_uid(&mut *server.random());
    object["metadata"]["uid"] = json!(uid);
    object["metadata"]["creationTimestamp"] = object::time(server.now());
    // An existing object stays unchanged.
    let _ = server.store.write(collection, &place, Expect::Absent, Some(object));
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

fn cluster_role(name: &str, rules: &Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
}

/// A role with the rules of other roles.
fn aggregate(name: &str, part_of: Option<&str>) -> Value {
    let mut role = cluster_role(name, &json!([]));
    role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {aggregation_label(name): "true"}}]});
    if let Some(larger) = part_of {
        role["metadata"]["labels"] = json!({aggregation_label(larger): "true"});
    }
    role
}

fn part_of(larger: &str, rules: &Value) -> Value {
    let mut role = cluster_role(&format!("system:aggregate-to-{larger}"), rules);
    role["metadata"]["labels"] = json!({aggregation_label(larger): "true"});
    role
}

fn aggregation_label(role: &str) -> String {
    format!("{GROUP}/aggregate-to-{role}")
}

fn cluster_roles() -> Vec<Value> {
    let visible = VISIBLE.map(|(group, resources)| rule(group, resources, READ));
    let mut editable = VISIBLE.map(|(group, resources)| rule(group, resources, WRITE)).to_vec();
    editable.push(rule("", &["secrets"], &[READ, WRITE].concat()));
    editable.push(rule("", &["pods/eviction", "serviceaccounts/token"], &["create"]));
    let reviews = json!([
        rule("authentication.k8s.io", &["selfsubjectreviews"], &["create"]),
        rule("authorization.k8s.io", &["selfsubjectaccessreviews", "selfsubjectrulesreviews"], &["create"]),
    ]);
    let delegation = json!([
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ]);
    let paths = |paths: &[&str]| json!([{"nonResourceURLs": paths, "verbs": ["get"]}]);
    let discovery = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    vec![
        cluster_role("cluster-admin", &json!(authorization::everything())),
        aggregate("admin", None),
        aggregate("edit", Some("admin")),
        aggregate("view", Some("edit")),
        part_of("admin", &json!([rule(GROUP, &["rolebindings", "roles"], &[READ, WRITE].concat())])),
        part_of("edit", &json!(editable)),
        part_of("view", &json!(visible)),
        cluster_role("system:auth-delegator", &delegation),
        cluster_role("system:basic-user", &reviews),
        cluster_role("system:discovery", &paths(&discovery)),
        cluster_role("system:public-info-viewer", &paths(&["/healthz", "/livez", "/readyz", "/version", "/version/"])),
    ]
}

fn cluster_role_bindings() -> Vec<Value> {
    let binding = |role: &str, groups: &[&str]| {
        let subjects: Vec<Value> =
            groups.iter().map(|group| json!({"apiGroup": GROUP, "kind": "Group", "name": group})).collect();
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": role},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}, "subjects": subjects,
        })
    };
    vec![
        binding("cluster-admin", &[MASTERS]),
        binding("system:basic-user", &[AUTHENTICATED]),
        binding("system:discovery", &[AUTHENTICATED]),
        binding("system:public-info-viewer", &[AUTHENTICATED, UNAUTHENTICATED]),
    ]
}

/// The role that allows extension API servers to read the configuration of authentication.
fn authentication_reader() -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "Role",
        "metadata": {"name": "extension-apiserver-authentication-reader", "namespace": "kube-system"},
        "rules": [{
            "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["extension-apiserver-authentication"],
            "verbs": READ,
        }],
    })
}
