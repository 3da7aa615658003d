//! The RBAC objects of an installation, made of the rights in [`grants`] and [`halves`].

mod grants;
mod halves;

use clap::ValueEnum;
use serde_json::{Value, json};

use self::grants::{
    CERTIFICATE, Grant, LOCAL_MACHINES, NODE_EVENTS, OWNERS, READERS, REGISTRATIONS, SIMULATION, SIMULATION_LEASES,
    SIMULATION_STATE, TOKENS, VIEWS_REGISTRATION, WEBHOOKS,
};
use super::{manifests::webhooks::DEFAULT_NAMESPACE, webhook_scope::WebhookScope};
use crate::settings::Half;
use machine_api::names;

/// Name of the service account and prefix of all roles.
const NAME: &str = names::WEBHOOK_CONFIGURATION;
/// The label of all our objects.
const APP_LABEL: &str = "app.kubernetes.io/name";
/// Namespace of bootstrap tokens in the target cluster.
const TOKEN_NAMESPACE: &str = "kube-system";
/// Namespace of events about objects without a namespace, such as Nodes.
const NODE_EVENT_NAMESPACE: &str = "default";
/// Namespace of the Leases of kubelets, including simulated ones.
const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// The cluster that gets the objects. The control cluster has the machine objects, the target cluster has the Nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RightsIn {
    /// One cluster that is both
    #[default]
    Both,
    /// The control cluster, when the Nodes are elsewhere
    Control,
    /// The target cluster, when the machine objects are elsewhere
    Target,
}

impl RightsIn {
    const fn has_control(self) -> bool {
        matches!(self, Self::Both | Self::Control)
    }

    const fn has_target(self) -> bool {
        matches!(self, Self::Both | Self::Target)
    }
}

/// The installation that gets the rights.
#[derive(Clone, Copy, Debug)]
pub struct Installation<'a> {
    /// Namespace of the machine objects.
    pub namespace: &'a str,
    /// Namespace of the process, with its account and its certificate.
    pub service_namespace: &'a str,
    /// Whether other namespaces may have installations too. Then the installations share no object outside their namespaces.
    pub scope: WebhookScope,
    /// The half that the process runs, if it does not run both.
    pub half: Option<Half>,
    /// The cluster that gets the objects.
    pub cluster: RightsIn,
}

impl Installation<'_> {
    /// Name of an object outside the namespace. Names for the default namespace are plain. Names for any other namespace contain the name
    /// of the namespace. Otherwise a binding for a second namespace would replace the binding of the first one and remove its rights.
    fn name_outside(&self, part: &str) -> String {
        name_outside(self.namespace, self.scope, part)
    }
}

fn name_outside(namespace: &str, scope: WebhookScope, part: &str) -> String {
    let is_default = scope == WebhookScope::Cluster && namespace == DEFAULT_NAMESPACE;
    if is_default { format!("{NAME}-{part}") } else { format!("{NAME}-{part}-{namespace}") }
}

/// The RBAC objects of an installation, without the virtual cloud. In the target cluster alone, the account is one whose token the process
/// in the other cluster uses.
pub fn manifests(installation: &Installation<'_>) -> Vec<Value> {
    let home = installation.service_namespace;
    let mut objects = vec![object("v1", "ServiceAccount", NAME, Some(home), json!({}))];
    if installation.cluster.has_control() {
        objects.extend(control_manifests(installation));
    }
    if installation.cluster.has_target() {
        let name = installation.name_outside("target");
        objects.extend(bound_cluster_role(&name, halves::target(installation.half), home));
        if installation.half != Some(Half::ControllerManager) {
            objects.extend(bound_role(&installation.name_outside("events"), NODE_EVENT_NAMESPACE, NODE_EVENTS, home));
        }
    }
    objects
}

fn control_manifests(installation: &Installation<'_>) -> Vec<Value> {
    let (namespace, home) = (installation.namespace, installation.service_namespace);
    let mut objects = vec![
        // The Secret has no content here, so that applying it again does not remove the content that the process wrote.
        object("v1", "Secret", names::CERTIFICATE_SECRET, Some(home), json!({ "type": "Opaque" })),
    ];
    objects.extend(bound_role(NAME, namespace, halves::control(installation.half), home));
    objects.extend(bound_role(&format!("{NAME}-certificate"), home, CERTIFICATE, home));
    let configuration = installation.scope.configuration(namespace);
    let configurations = [configuration.as_str()];
    let registrations: Vec<Grant> = REGISTRATIONS
        .iter()
        .map(|grant| match grant.group {
            WEBHOOKS => Grant { names: &configurations, ..*grant },
            _ => *grant,
        })
        .chain(OWNERS.iter().copied().filter(|_| installation.scope == WebhookScope::Cluster))
        .collect();
    objects.extend(bound_cluster_role(&installation.name_outside("registrations"), &registrations, home));
    objects
}

/// The additional objects for classes that need bootstrap tokens, all in the target cluster: the rights, and a policy that restricts them
/// to bootstrap tokens.
pub fn token_manifests(installation: &Installation<'_>) -> Vec<Value> {
    if !installation.cluster.has_target() {
        return Vec::new();
    }
    let home = installation.service_namespace;
    let name = installation.name_outside("tokens");
    let mut objects = bound_role(&name, TOKEN_NAMESPACE, TOKENS, home);
    objects.extend(token_policy(&name, home));
    objects
}

/// A policy that lets the service account write bootstrap tokens only.
fn token_policy(name: &str, namespace: &str) -> [Value; 2] {
    let account = format!("system:serviceaccount:{namespace}:{NAME}");
    let is_token = "variables.secret.metadata.name.startsWith('bootstrap-token-') && variables.secret.type == \
                    'bootstrap.kubernetes.io/token'";
    let policy = json!({ "spec": {
        "failurePolicy": "Fail",
        // With its defaults: the API server compares it as a whole, and a rendering that is applied again would differ.
        "matchConstraints": {
            "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
            "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["secrets"], "scope": "*",
            }],
        },
        "matchConditions": [{ "name": "the-manager", "expression": format!("request.userInfo.username == '{account}'") }],
        "variables": [{ "name": "secret", "expression": "request.operation == 'DELETE' ? oldObject : object" }],
        "validations": [{ "expression": is_token, "message": "the machine controller manager may write bootstrap tokens only" }],
    } });
    let in_namespace = json!({ "key": "kubernetes.io/metadata.name", "operator": "In", "values": [TOKEN_NAMESPACE] });
    let binding = json!({ "spec": {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {
            "matchPolicy": "Equivalent", "namespaceSelector": { "matchExpressions": [in_namespace] }, "objectSelector": {},
        },
    } });
    [
        object(POLICY, "ValidatingAdmissionPolicy", name, None, policy),
        object(POLICY, "ValidatingAdmissionPolicyBinding", name, None, binding),
    ]
}

/// The additional objects for the virtual cloud.
pub fn simulation_manifests(installation: &Installation<'_>) -> Vec<Value> {
    let (namespace, home) = (installation.namespace, installation.service_namespace);
    let outside = installation.name_outside("simulation");
    let mut objects = Vec::new();
    if installation.cluster.has_target() {
        objects.extend(bound_cluster_role(&outside, SIMULATION, home));
        objects.extend(bound_role(&outside, NODE_LEASE_NAMESPACE, SIMULATION_LEASES, home));
    }
    if installation.cluster.has_control() {
        objects.extend(bound_role(&format!("{NAME}-simulation-state"), namespace, SIMULATION_STATE, home));
    }
    objects
}

/// The additional objects for machines that are pods, all in the control cluster.
pub fn local_machine_manifests(installation: &Installation<'_>) -> Vec<Value> {
    if !installation.cluster.has_control() {
        return Vec::new();
    }
    let name = format!("{NAME}-local-machines");
    bound_role(&name, installation.namespace, LOCAL_MACHINES, installation.service_namespace)
}

/// The additional objects for the views, all in the control cluster.
pub fn views_manifests(namespace: &str) -> Vec<Value> {
    let outside = |part: &str| name_outside(namespace, WebhookScope::Cluster, part);
    let reader = "extension-apiserver-authentication-reader";
    let mut objects = vec![
        // To read the authorities that the API server trusts.
        object(
            RBAC,
            "RoleBinding",
            &outside("authentication-reader"),
            Some("kube-system"),
            binding("Role", reader, namespace),
        ),
        // To create token reviews and access reviews.
        object(
            RBAC,
            "ClusterRoleBinding",
            &outside("auth-delegator"),
            None,
            binding("ClusterRole", "system:auth-delegator", namespace),
        ),
    ];
    objects.extend(bound_cluster_role(&outside("views"), VIEWS_REGISTRATION, namespace));
    objects
}

/// The roles of readers of views.
pub fn reader_roles() -> Vec<Value> {
    let role = |(name, part_of, grants): &(&str, Option<&str>, &[Grant<'_>])| {
        let mut role = object(RBAC, "ClusterRole", name, None, json!({ "rules": rules(grants) }));
        if let Some(part_of) = part_of {
            role["metadata"]["labels"][format!("rbac.authorization.k8s.io/aggregate-to-{part_of}")] = json!("true");
        }
        role
    };
    READERS.iter().map(role).collect()
}

fn bound_role(name: &str, role_namespace: &str, grants: &[Grant<'_>], account_namespace: &str) -> Vec<Value> {
    let place = Some(role_namespace);
    vec![
        object(RBAC, "Role", name, place, json!({ "rules": rules(grants) })),
        object(RBAC, "RoleBinding", name, place, binding("Role", name, account_namespace)),
    ]
}

fn bound_cluster_role(name: &str, grants: &[Grant<'_>], account_namespace: &str) -> Vec<Value> {
    vec![
        object(RBAC, "ClusterRole", name, None, json!({ "rules": rules(grants) })),
        object(RBAC, "ClusterRoleBinding", name, None, binding("ClusterRole", name, account_namespace)),
    ]
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";
const POLICY: &str = "admissionregistration.k8s.io/v1";

fn rules(grants: &[Grant<'_>]) -> Vec<Value> {
    let rule = |grant: &Grant<'_>| {
        let mut rule = json!({ "apiGroups": [grant.group], "resources": grant.resources, "verbs": grant.verbs });
        if !grant.names.is_empty() {
            rule["resourceNames"] = json!(grant.names);
        }
        rule
    };
    grants.iter().map(rule).collect()
}

fn binding(role_kind: &str, role: &str, account_namespace: &str) -> Value {
    json!({
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": account_namespace }],
    })
}

/// An object with our label. `body` has everything except the metadata.
fn object(api_version: &str, kind: &str, name: &str, namespace: Option<&str>, body: Value) -> Value {
    let mut object = json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": { "name": name, "labels": { APP_LABEL: NAME } },
    });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    if let (Value::Object(object), Value::Object(body)) = (&mut object, body) {
        object.extend(body);
    }
    object
}

#[cfg(test)]
mod tests;
