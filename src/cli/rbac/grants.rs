//! The rights of the process, as values.
//!
//! Every grant says why it exists. A new kind of request needs a grant here and nowhere else. The process patches objects and does not
//! replace them, so that nearly no grant has `update`. Rules with `resourceNames` are separate from those without, because the names
//! of a rule apply to all of its resources.
//!
//! Sources: spec/machine-controller §1.1, spec/api-and-admission §10 "RBAC", spec/providers §7.4–7.6 (simulation).

use machine_api::names;

/// Group of the views.
const VIEWS: &str = crate::extension::view::GROUP;
/// Group of webhook configurations.
pub(super) const WEBHOOKS: &str = "admissionregistration.k8s.io";

/// One action of the process, and its reason.
#[derive(Clone, Copy)]
pub(super) struct Grant<'a> {
    pub(super) group: &'static str,
    pub(super) resources: &'static [&'static str],
    pub(super) verbs: &'static [&'static str],
    /// The only allowed names; empty means every name.
    pub(super) names: &'a [&'a str],
    /// The reason, for readers of this list.
    #[allow(dead_code)]
    pub(super) why: &'static str,
}

pub(super) const READ: &[&str] = &["get", "list", "watch"];

/// Rights in the namespace of the machine objects (control cluster).
pub(super) const CONTROL: &[Grant<'_>] = &[
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
pub(super) const CERTIFICATE: &[Grant<'_>] = &[Grant {
    group: "",
    resources: &["secrets"],
    verbs: &["get", "list", "update", "watch"],
    names: &[names::CERTIFICATE_SECRET],
    why: "certificate and CA of the webhooks",
}];

/// Cluster-wide rights in the control cluster, for our own registrations, whose `caBundle` the process maintains.
pub(super) const REGISTRATIONS: &[Grant<'_>] = &[
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
pub(super) const OWNERS: &[Grant<'_>] = &[Grant {
    group: names::GROUP,
    resources: &["machinedeployments", "machinesets"],
    verbs: &["get"],
    names: &[],
    why: "whether a new machine or set has its mistakes from its owner; nothing is read in other namespaces otherwise",
}];

/// Cluster-wide rights in the control cluster, for the views only.
pub(super) const VIEWS_REGISTRATION: &[Grant<'_>] = &[Grant {
    group: "apiregistration.k8s.io",
    resources: &["apiservices"],
    verbs: &["get", "list", "patch", "watch"],
    names: &[names::API_SERVICE],
    why: "caBundle of the views",
}];

/// The roles of readers of views: name of the role, the user role that includes it, if any, and its rules.
pub(super) const READERS: [(&str, Option<&str>, &[Grant<'_>]); 3] = [
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
pub(super) const TARGET: &[Grant<'_>] = &[
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

/// Rights in [`super::NODE_EVENT_NAMESPACE`] of the target cluster.
pub(super) const NODE_EVENTS: &[Grant<'_>] = &[Grant {
    group: "",
    resources: &["events"],
    verbs: &["create", "patch"],
    names: &[],
    why: "why a Node is drained and deleted",
}];

/// Rights in [`super::TOKEN_NAMESPACE`] of the target cluster, for classes whose user data needs a bootstrap token. RBAC can't restrict names by
/// prefix; [`super::token_policy`] does it.
pub(super) const TOKENS: &[Grant<'_>] = &[Grant {
    group: "",
    resources: &["secrets"],
    verbs: &["create", "delete", "get"],
    names: &[],
    why: "one bootstrap token per machine that joins; their names are not known before",
}];

/// Cluster-wide rights in the target cluster, for the virtual cloud only.
pub(super) const SIMULATION: &[Grant<'_>] = &[
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

/// Rights in [`super::NODE_LEASE_NAMESPACE`] of the target cluster, for the virtual cloud only.
pub(super) const SIMULATION_LEASES: &[Grant<'_>] = &[Grant {
    group: "coordination.k8s.io",
    resources: &["leases"],
    verbs: &["create", "patch"],
    names: &[],
    why: "heartbeats of simulated kubelets",
}];

/// Rights in the namespace of the machine objects, for the virtual cloud only.
pub(super) const SIMULATION_STATE: &[Grant<'_>] = &[Grant {
    group: "",
    resources: &["configmaps"],
    verbs: &["create", "list", "patch"],
    names: &[],
    why: "VMs remembered with --simulation-state=configmap:NAME; found by label, their number is not known before",
}];

/// Rights in the namespace of the machine objects, for machines that are pods of this namespace (provider `local`).
///
/// With them a process can read every Secret of the namespace and become root on the hosts of its pods, so they are never part of the usual rights.
pub(super) const LOCAL_MACHINES: &[Grant<'_>] = &[
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

#[cfg(test)]
mod tests {
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
}
