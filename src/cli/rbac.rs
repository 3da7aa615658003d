//! The rights of the process: one typed list, and the RBAC objects made of it.
//!
//! Every grant says why it exists. A new kind of request needs a grant here and nowhere else. The process patches objects and does not
//! replace them, so that nearly no grant has `update`. Rules with `resourceNames` are separate from those without, because the names
//! of a rule apply to all of its resources.
//!
//! Sources: spec/machine-controller §1.1, spec/api-and-admission §10 "RBAC", spec/providers §7.4–7.6 (simulation).

mod halves;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::{manifests::webhooks::DEFAULT_NAMESPACE, webhook_scope::WebhookScope};
use crate::settings::Half;
use machine_api::names;

/// Group of the views.
const VIEWS: &str = crate::extension::view::GROUP;
/// Group of webhook configurations.
const WEBHOOKS: &str = "admissionregistration.k8s.io";
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

/// One action of the process, and its reason.
#[derive(Clone, Copy)]
struct Grant<'a> {
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    /// The only allowed names; empty means every name.
    names: &'a [&'a str],
    /// The reason, for readers of this list.
    #[allow(dead_code)]
    why: &'static str,
}

const READ: &[&str] = &["get", "list", "watch"];

/// Rights in the namespace of the machine objects (control cluster).
const CONTROL: &[Grant<'_>] = &[
    Grant {
        group: names::GROUP,
        resources: &["machines", "machinesets"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        names: &[],
        why: "deployments own sets, sets own machines",
    },
    Grant {
        group: names::GROUP,
        resources: &["machinedeployments", "machineclasses"],
        verbs: &["get", "list", "patch", "watch"],
        names: &[],
        why: "users make and delete them; finalizers and annotations are ours",
    },
    Grant {
        group: names::GROUP,
        resources: &["machines/status", "machinesets/status", "machinedeployments/status"],
        verbs: &["patch"],
        names: &[],
        why: "what was observed and done",
    },
    Grant {
        group: names::GROUP,
        resources: &["machinesets/finalizers", "machinedeployments/finalizers"],
        verbs: &["update"],
        names: &[],
        why: "owner references with blockOwnerDeletion",
    },
    Grant {
        group: "",
        resources: &["secrets"],
        verbs: &["get", "list", "patch", "watch"],
        names: &[],
        why: "credentials and user data of classes, and the finalizer on them",
    },
    Grant {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["create"],
        names: &[],
        why: "leader election; a create can't be restricted by name",
    },
    Grant {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "update"],
        names: &[names::LEASE_CONTROLLER_MANAGER, names::LEASE_MACHINE_CONTROLLER],
        why: "leader election",
    },
    Grant {
        group: "",
        resources: &["events"],
        verbs: &["create", "patch"],
        names: &[],
        why: "what a person should see",
    },
];

/// Rights in the namespace of the process, for its certificate.
///
/// None of them creates Secrets, because a create can't be restricted by name. With the right to create and read Secrets in a namespace,
/// a process could get the token of every service account there. The manifests contain the Secret without content, and the process fills
/// it.
const CERTIFICATE: &[Grant<'_>] = &[Grant {
    group: "",
    resources: &["secrets"],
    verbs: &["get", "list", "update", "watch"],
    names: &[names::CERTIFICATE_SECRET],
    why: "certificate and CA of the webhooks",
}];

/// Cluster-wide rights in the control cluster, for our own registrations, whose `caBundle` the process maintains.
const REGISTRATIONS: &[Grant<'_>] = &[
    Grant {
        group: WEBHOOKS,
        resources: &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
        verbs: &["get", "list", "patch", "watch"],
        names: &[names::WEBHOOK_CONFIGURATION],
        why: "caBundle of the webhooks",
    },
    Grant {
        group: "apiextensions.k8s.io",
        resources: &["customresourcedefinitions"],
        verbs: &["get", "list", "patch", "watch"],
        names: &[
            "machineclasses.machine.sapcloud.io",
            "machinedeployments.machine.sapcloud.io",
            "machines.machine.sapcloud.io",
            "machinesets.machine.sapcloud.io",
        ],
        why: "caBundle of the conversion webhook",
    },
];

/// Cluster-wide rights in the control cluster, for admission in all namespaces.
const OWNERS: &[Grant<'_>] = &[Grant {
    group: names::GROUP,
    resources: &["machinedeployments", "machinesets"],
    verbs: &["get"],
    names: &[],
    why: "whether a new machine or set has its mistakes from its owner; nothing is read in other namespaces otherwise",
}];

/// Cluster-wide rights in the control cluster, for the views only.
const VIEWS_REGISTRATION: &[Grant<'_>] = &[Grant {
    group: "apiregistration.k8s.io",
    resources: &["apiservices"],
    verbs: &["get", "list", "patch", "watch"],
    names: &[names::API_SERVICE],
    why: "caBundle of the views",
}];

/// The roles of readers of views: name of the role, the user role that includes it, if any, and its rules.
const READERS: [(&str, Option<&str>, &[Grant<'_>]); 3] = [
    (
        "mcm-views-reader",
        Some("view"),
        &[
            Grant {
                group: VIEWS,
                resources: &["fleetsummaries", "machineoutlooks", "providermachines"],
                verbs: &["get", "list"],
                names: &[],
                why: "what is",
            },
            Grant {
                group: VIEWS,
                resources: &["rolloutplans"],
                verbs: &["get"],
                names: &[],
                why: "what is left of rollouts",
            },
        ],
    ),
    (
        "mcm-views-planner",
        Some("edit"),
        &[Grant {
            group: VIEWS,
            resources: &["drainplans", "rolloutplans"],
            verbs: &["create", "get"],
            names: &[],
            why: "what would be",
        }],
    ),
    (
        "mcm-drainplan-reader",
        None,
        &[Grant {
            group: VIEWS,
            resources: &["drainplans"],
            verbs: &["get"],
            names: &[],
            why: "it shows names of pods of the target cluster, so no user role includes it",
        }],
    ),
];

/// Cluster-wide rights in the target cluster.
const TARGET: &[Grant<'_>] = &[
    Grant {
        group: "",
        resources: &["nodes"],
        verbs: &["delete", "get", "list", "patch", "watch"],
        names: &[],
        why: "health, cordon, labels and taints of templates, finalizer, removal",
    },
    Grant {
        group: "",
        resources: &["nodes/status"],
        verbs: &["patch"],
        names: &[],
        why: "condition Terminating and virtual capacity",
    },
    Grant {
        group: "",
        resources: &["pods"],
        verbs: &["delete", "get", "list", "watch"],
        names: &[],
        why: "drain; deletion once eviction is not possible any more",
    },
    Grant { group: "", resources: &["pods/eviction"], verbs: &["create"], names: &[], why: "drain" },
    Grant {
        group: "",
        resources: &["persistentvolumeclaims", "persistentvolumes"],
        verbs: READ,
        names: &[],
        why: "volumes of drained pods",
    },
    Grant {
        group: "storage.k8s.io",
        resources: &["volumeattachments"],
        verbs: &["delete", "get", "list", "watch"],
        names: &[],
        why: "detach and attach of volumes; removed after a forced drain",
    },
    Grant {
        group: "policy",
        resources: &["poddisruptionbudgets"],
        verbs: READ,
        names: &[],
        why: "budgets that can never allow an eviction",
    },
];

/// Rights in [`NODE_EVENT_NAMESPACE`] of the target cluster.
const NODE_EVENTS: &[Grant<'_>] = &[Grant {
    group: "",
    resources: &["events"],
    verbs: &["create", "patch"],
    names: &[],
    why: "why a Node is drained and deleted",
}];

/// Rights in [`TOKEN_NAMESPACE`] of the target cluster, for classes whose user data needs a bootstrap token. RBAC can't restrict names by
/// prefix; [`token_policy`] does it.
const TOKENS: &[Grant<'_>] = &[Grant {
    group: "",
    resources: &["secrets"],
    verbs: &["create", "delete", "get"],
    names: &[],
    why: "one bootstrap token per machine that joins; their names are not known before",
}];

/// Cluster-wide rights in the target cluster, for the virtual cloud only.
const SIMULATION: &[Grant<'_>] = &[
    Grant {
        group: "",
        resources: &["nodes"],
        verbs: &["create"],
        names: &[],
        why: "a simulated kubelet registers its Node",
    },
    Grant {
        group: "",
        resources: &["pods/status"],
        verbs: &["patch"],
        names: &[],
        why: "a simulated kubelet runs the pods bound to it",
    },
    Grant {
        group: "storage.k8s.io",
        resources: &["volumeattachments", "volumeattachments/status"],
        verbs: &["patch"],
        names: &[],
        why: "a simulated CSI driver attaches and detaches",
    },
];

/// Rights in [`NODE_LEASE_NAMESPACE`] of the target cluster, for the virtual cloud only.
const SIMULATION_LEASES: &[Grant<'_>] = &[Grant {
    group: "coordination.k8s.io",
    resources: &["leases"],
    verbs: &["create", "patch"],
    names: &[],
    why: "heartbeats of simulated kubelets",
}];

/// Rights in the namespace of the machine objects, for the virtual cloud only.
const SIMULATION_STATE: &[Grant<'_>] = &[Grant {
    group: "",
    resources: &["configmaps"],
    verbs: &["create", "list", "patch"],
    names: &[],
    why: "VMs remembered with --simulation-state=configmap:NAME; found by label, their number is not known before",
}];

/// Rights in the namespace of the machine objects, for machines that are pods of this namespace (provider `local`).
///
/// With them a process can read every Secret of the namespace and become root on the hosts of its pods, so they are never part of the usual rights.
const LOCAL_MACHINES: &[Grant<'_>] = &[
    Grant {
        group: "",
        resources: &["pods"],
        verbs: &["create", "delete", "get", "list"],
        names: &[],
        why: "the pods that are machines; their names are those of machines",
    },
    Grant {
        group: "",
        resources: &["secrets", "services"],
        verbs: &["create", "get", "patch"],
        names: &[],
        why: "user data and address of each machine, owned by its pod; their owners are read before a change",
    },
];

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
mod tests {
    use rstest::rstest;

    use super::*;

    fn all_grants() -> impl Iterator<Item = &'static Grant<'static>> {
        let own = [
            CONTROL,
            CERTIFICATE,
            REGISTRATIONS,
            OWNERS,
            VIEWS_REGISTRATION,
            TARGET,
            NODE_EVENTS,
            TOKENS,
            SIMULATION,
            SIMULATION_LEASES,
            SIMULATION_STATE,
            LOCAL_MACHINES,
        ];
        own.into_iter().chain(READERS.iter().map(|(_, _, grants)| *grants)).flatten()
    }

    #[test]
    fn nothing_is_granted_by_wildcard() {
        for grant in all_grants() {
            let words = grant.resources.iter().chain(grant.verbs).chain(grant.names);
            assert!(!words.chain([&grant.group]).any(|word| word.contains('*')), "{:?}", grant.resources);
            assert!(!grant.why.is_empty());
        }
    }

    #[test]
    fn a_create_is_never_restricted_by_name() {
        // The API server does not know the name when it authorises a create, so such a rule grants nothing.
        assert!(all_grants().all(|grant| grant.names.is_empty() || !grant.verbs.contains(&"create")));
    }

    #[test]
    fn secrets_outside_our_namespaces_are_never_listed() {
        let cluster_wide = REGISTRATIONS.iter().chain(TARGET).chain(SIMULATION);
        assert!(cluster_wide.flat_map(|grant| grant.resources).all(|resource| *resource != "secrets"));
        assert!(TOKENS.iter().all(|grant| !grant.verbs.contains(&"list")));
    }

    #[test]
    fn a_bootstrap_token_is_created_read_and_deleted_but_never_changed() {
        // An expired token is deleted and created again: `machine_controllers::machine::tokens`.
        assert!(TOKENS.iter().all(|grant| grant.verbs == ["create", "delete", "get"]));
    }

    #[test]
    fn readers_may_only_read_and_create_plans() {
        let verbs = READERS.iter().flat_map(|(_, _, grants)| grants.iter()).flat_map(|grant| grant.verbs);
        assert!(verbs.into_iter().all(|verb| matches!(*verb, "get" | "list" | "create")));
        let roles = reader_roles();
        assert_eq!(roles[0]["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"], "true");
        assert_eq!(roles[2]["metadata"]["labels"], json!({ APP_LABEL: NAME }));
    }

    #[rstest]
    #[case::with_their_own_webhooks(WebhookScope::Namespace, "one")]
    #[case::beside_the_default_namespace(WebhookScope::Cluster, DEFAULT_NAMESPACE)]
    fn installations_of_two_namespaces_share_no_object(#[case] scope: WebhookScope, #[case] first: &str) {
        let objects = |namespace| {
            let installation =
                Installation { namespace, service_namespace: namespace, scope, half: None, cluster: RightsIn::Both };
            let views = views_manifests(namespace);
            let [local, simulation] = [local_machine_manifests(&installation), simulation_manifests(&installation)];
            [manifests(&installation), simulation, token_manifests(&installation), local, views].concat()
        };
        let identity = |object: &Value| {
            let metadata = &object["metadata"];
            format!("{} {}/{}", object["kind"], metadata["namespace"], metadata["name"])
        };
        let (one, two) = (objects(first), objects("two"));
        for object in &one {
            assert!(two.iter().all(|other| identity(other) != identity(object)), "{}", identity(object));
        }
    }

    #[test]
    fn a_manager_of_one_namespace_may_patch_its_own_registrations() {
        let objects = manifests(&Installation {
            namespace: "one",
            service_namespace: "one",
            scope: WebhookScope::Namespace,
            half: None,
            cluster: RightsIn::Both,
        });
        let registrations =
            objects.iter().find(|object| object["metadata"]["name"] == format!("{NAME}-registrations-one"));
        assert_eq!(registrations.unwrap()["rules"][0]["resourceNames"], json!(["machine-controller-manager-one"]));
    }

    #[test]
    fn no_role_may_create_secrets_where_it_may_read_them() {
        let in_own_namespaces = CONTROL.iter().chain(CERTIFICATE).chain(SIMULATION_STATE);
        for grant in in_own_namespaces.filter(|grant| grant.resources.contains(&"secrets")) {
            assert!(!grant.verbs.contains(&"create"), "{}", grant.why);
        }
        let objects = manifests(&Installation {
            namespace: "mcm",
            service_namespace: "mcm",
            scope: WebhookScope::Cluster,
            half: None,
            cluster: RightsIn::Both,
        });
        let secret = objects.iter().find(|object| object["kind"] == "Secret").expect("the certificate Secret");
        assert_eq!((&secret["metadata"]["name"], secret.get("data")), (&json!(names::CERTIFICATE_SECRET), None));
        assert!(
            objects.iter().all(|object| object["metadata"]["namespace"] != TOKEN_NAMESPACE),
            "only token_manifests has such objects"
        );
    }

    #[test]
    fn a_policy_restricts_secrets_in_the_target_cluster_to_bootstrap_tokens() {
        let objects = token_manifests(&Installation {
            namespace: "one",
            service_namespace: "one",
            scope: WebhookScope::Cluster,
            half: None,
            cluster: RightsIn::Both,
        });
        let [_, bound, policy, binding] = objects.as_slice() else { panic!("{objects:?}") };
        assert_eq!(bound["metadata"]["namespace"], TOKEN_NAMESPACE);
        let of_account = policy["spec"]["matchConditions"][0]["expression"].as_str().unwrap();
        assert!(of_account.contains("system:serviceaccount:one:machine-controller-manager"), "{of_account}");
        assert_eq!(policy["metadata"]["name"], binding["spec"]["policyName"]);
        assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
    }

    #[test]
    fn the_rights_of_two_clusters_are_together_those_of_one() {
        let objects = |cluster| {
            let scope = WebhookScope::Cluster;
            let installation = Installation { namespace: "mcm", service_namespace: "mcm", scope, half: None, cluster };
            [manifests(&installation), token_manifests(&installation), simulation_manifests(&installation)].concat()
        };
        let [both, control, target] = [RightsIn::Both, RightsIn::Control, RightsIn::Target].map(objects);
        assert!(both.iter().all(|object| control.contains(object) || target.contains(object)));
        let shared: Vec<_> = control.iter().filter(|object| target.contains(object)).collect();
        assert!(shared.iter().all(|object| object["kind"] == "ServiceAccount"), "{shared:?}");
        let text = serde_json::to_string(&control).unwrap();
        for right in ["nodes", "pods", "persistentvolumes", "volumeattachments", "poddisruptionbudgets", "kube-system"]
        {
            assert!(!text.contains(&format!("{right:?}")), "{right} belongs to the target cluster");
        }
    }

    #[test]
    fn rights_for_machines_as_pods_are_granted_only_on_request_and_in_one_namespace() {
        let of = |cluster| {
            let scope = WebhookScope::Cluster;
            let installation = Installation { namespace: "mcm", service_namespace: "home", scope, half: None, cluster };
            (local_machine_manifests(&installation), manifests(&installation))
        };
        let (objects, usual) = of(RightsIn::Both);
        assert_eq!(objects.iter().map(|object| object["kind"].clone()).collect::<Vec<_>>(), ["Role", "RoleBinding"]);
        assert!(objects.iter().all(|object| object["metadata"]["namespace"] == "mcm"));
        assert_eq!(objects[1]["subjects"][0]["namespace"], "home");
        assert!(usual.iter().all(|object| !objects.contains(object)));
        assert_eq!(of(RightsIn::Target).0, Vec::<Value>::new());
    }

    #[test]
    fn the_account_of_another_namespace_gets_the_rights_in_the_namespace_of_the_machine_objects() {
        let objects = manifests(&Installation {
            namespace: "machines",
            service_namespace: "home",
            scope: WebhookScope::Cluster,
            half: None,
            cluster: RightsIn::Both,
        });
        let place = |kind: &str, name: &str| {
            let found = objects.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name);
            found.map(|object| object["metadata"]["namespace"].clone())
        };
        assert_eq!(place("ServiceAccount", NAME), Some(json!("home")));
        assert_eq!(place("Secret", names::CERTIFICATE_SECRET), Some(json!("home")));
        assert_eq!(place("Role", NAME), Some(json!("machines")));
        assert_eq!(place("Role", &format!("{NAME}-certificate")), Some(json!("home")));
        assert_eq!(place("ClusterRole", &format!("{NAME}-target-machines")), Some(Value::Null));
        for subject in objects.iter().filter_map(|object| object["subjects"].get(0)) {
            assert_eq!(subject["namespace"], "home");
        }
    }

    #[test]
    fn every_role_is_bound_to_the_service_account() {
        let objects = manifests(&Installation {
            namespace: "mcm",
            service_namespace: "mcm",
            scope: WebhookScope::Cluster,
            half: None,
            cluster: RightsIn::Both,
        });
        let of_kind = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
        assert_eq!(of_kind("Role"), of_kind("RoleBinding"));
        assert_eq!(of_kind("ClusterRole"), of_kind("ClusterRoleBinding"));
        assert!(objects.iter().filter(|object| object["kind"] == "ClusterRoleBinding").all(|object| {
            object["subjects"] == json!([{ "kind": "ServiceAccount", "name": NAME, "namespace": "mcm" }])
        }));
    }
}
