//! The rights of a process that runs one half of the loops beside another program. They are fewer than the rights of a process with both halves.
//!
//! The process reads what both halves read, because its views, its webhooks and the back-off of its sets need it. It writes only what
//! its own loops write. A test compares the halves with the whole.

use super::grants::{CONTROL, Grant, READ, TARGET};
use crate::settings::Half;
use machine_api::names;

/// The rights in the namespace of the machine objects; `None` means both halves.
pub(super) fn control(half: Option<Half>) -> &'static [Grant<'static>] {
    match half {
        None => CONTROL,
        Some(Half::ControllerManager) => CONTROL_OF_DEPLOYMENTS,
        Some(Half::MachineController) => CONTROL_OF_MACHINES,
    }
}

/// The rights in the target cluster.
pub(super) fn target(half: Option<Half>) -> &'static [Grant<'static>] {
    match half {
        None | Some(Half::MachineController) => TARGET,
        Some(Half::ControllerManager) => TARGET_OF_DEPLOYMENTS,
    }
}

const FINALIZERS: Grant<'_> = Grant {
    group: names::GROUP,
    resources: &["machinesets/finalizers", "machinedeployments/finalizers"],
    verbs: &["update"],
    names: &[],
    why: "owner references with blockOwnerDeletion",
};
const NEW_LEASE: Grant<'_> = Grant {
    group: "coordination.k8s.io",
    resources: &["leases"],
    verbs: &["create"],
    names: &[],
    why: "leader election; a create can't be restricted by name",
};
const EVENTS: Grant<'_> = Grant {
    group: "",
    resources: &["events"],
    verbs: &["create", "patch"],
    names: &[],
    why: "what a person should see",
};

/// For deployments, sets and the guard against too many machines.
const CONTROL_OF_DEPLOYMENTS: &[Grant<'_>] = &[
    Grant {
        group: names::GROUP,
        resources: &["machines", "machinesets"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        names: &[],
        why: "deployments own sets, sets own machines",
    },
    Grant {
        group: names::GROUP,
        resources: &["machinedeployments"],
        verbs: &["get", "list", "patch", "watch"],
        names: &[],
        why: "users make and delete them; finalizers and annotations are ours",
    },
    Grant {
        group: names::GROUP,
        resources: &["machineclasses"],
        verbs: READ,
        names: &[],
        why: "a change ends back-offs",
    },
    Grant {
        group: names::GROUP,
        resources: &["machinesets/status", "machinedeployments/status"],
        verbs: &["patch"],
        names: &[],
        why: "what was observed and done; the status of a machine is the other half's",
    },
    FINALIZERS,
    Grant {
        group: "",
        resources: &["secrets"],
        verbs: READ,
        names: &[],
        why: "a change ends back-offs; rules over classes",
    },
    NEW_LEASE,
    Grant {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "update"],
        names: &[names::LEASE_CONTROLLER_MANAGER],
        why: "leader election",
    },
    EVENTS,
];

/// For machines, classes, Secrets, orphans and the freeze.
const CONTROL_OF_MACHINES: &[Grant<'_>] = &[
    Grant {
        group: names::GROUP,
        resources: &["machines"],
        verbs: &["delete", "get", "list", "patch", "watch"],
        names: &[],
        why: "their life; one whose Node was deleted by hand is deleted",
    },
    Grant {
        group: names::GROUP,
        resources: &["machinedeployments", "machinesets"],
        verbs: READ,
        names: &[],
        why: "webhooks and views; a process works once it has read all kinds",
    },
    Grant {
        group: names::GROUP,
        resources: &["machineclasses"],
        verbs: &["get", "list", "patch", "watch"],
        names: &[],
        why: "finalizers",
    },
    Grant {
        group: names::GROUP,
        resources: &["machines/status"],
        verbs: &["patch"],
        names: &[],
        why: "what was observed and done",
    },
    Grant {
        group: "",
        resources: &["secrets"],
        verbs: &["get", "list", "patch", "watch"],
        names: &[],
        why: "credentials and user data of classes, and the finalizer on them",
    },
    NEW_LEASE,
    Grant {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "update"],
        names: &[names::LEASE_MACHINE_CONTROLLER],
        why: "leader election",
    },
    EVENTS,
];

/// The deployment loop marks and prepares the Nodes of its machines. It changes nothing else in the target cluster.
const TARGET_OF_DEPLOYMENTS: &[Grant<'_>] = &[Grant {
    group: "",
    resources: &["nodes"],
    verbs: &["get", "list", "patch", "watch"],
    names: &[],
    why: "taints and annotations of rollouts, labels of updates in place, availability",
}];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each verb on each resource. A grant for all names has one entry with an empty name.
    fn rights(grants: &'static [Grant<'static>]) -> BTreeSet<[&'static str; 4]> {
        let of_grant = |grant: &'static Grant<'static>| {
            let names = if grant.names.is_empty() { &[""][..] } else { grant.names };
            let triples =
                grant.resources.iter().flat_map(move |resource| grant.verbs.iter().map(move |verb| (resource, verb)));
            triples
                .flat_map(move |(resource, verb)| names.iter().map(move |name| [grant.group, *resource, *verb, *name]))
        };
        grants.iter().flat_map(of_grant).collect()
    }

    #[test]
    fn both_halves_together_have_exactly_the_rights_of_the_whole() {
        for of in [control, target] {
            let whole = rights(of(None));
            let halves = Half::ALL.map(|half| rights(of(Some(half))));
            let both: BTreeSet<_> = halves.iter().flatten().copied().collect();
            assert_eq!(both, whole);
        }
        assert!(Half::ALL.map(|half| rights(control(Some(half))).len()).iter().all(|few| *few < rights(CONTROL).len()));
    }

    #[test]
    fn neither_half_may_take_the_lease_or_the_status_of_the_other_one() {
        let may = |half: Half, resource: &str, name: &str| {
            rights(control(Some(half)))
                .iter()
                .any(|[_, of, verb, named]| (*of, *named) == (resource, name) && matches!(*verb, "patch" | "update"))
        };
        let (deployments, machines) = (Half::ControllerManager, Half::MachineController);
        assert!(may(machines, "machines/status", "") && !may(deployments, "machines/status", ""));
        assert!(may(deployments, "machinesets/status", "") && !may(machines, "machinesets/status", ""));
        assert!(
            may(deployments, "leases", "machine-controller-manager") && may(machines, "leases", "machine-controller")
        );
        assert!(
            !may(machines, "leases", "machine-controller-manager") && !may(deployments, "leases", "machine-controller")
        );
    }
}
