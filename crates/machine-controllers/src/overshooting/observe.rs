//! The observation of a namespace: its sets with their numbers of machines, and its deployments.

use jiff::Timestamp;
use serde::Serialize;

use super::limits::Margins;
use crate::{
    set::counts::{Counts, is_terminating},
    snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot},
    views::{BY_CONTROLLER, BY_NAMESPACE, ControlViews},
};
use controller_runtime::snapshot::Snapshot;

/// Version of [`OvershootObservation`] in its serialised form.
pub const OBSERVATION_VERSION: u32 = 1;

/// A set and the number of its machines.
#[derive(Clone, Debug, Serialize)]
pub struct GuardedSet {
    /// The set.
    pub set: SetSnapshot,
    /// Machines that the set controls by UID (D-52) and that have all labels of its template. Terminating machines that
    /// had a Node are not counted: a scale-in with long drains is no overshooting, but would be frozen until most
    /// machines are gone. Terminating machines that never joined count, as in the original: a loop that creates and
    /// deletes machines is what the guard must stop.
    pub machines: i64,
    /// Machines that the set controls and that are not terminating.
    pub staying: i64,
}

/// Everything that a run depends on.
#[derive(Clone, Debug, Serialize)]
pub struct OvershootObservation {
    /// Version of this structure.
    pub version: u32,
    /// The time of the observation.
    pub now: Timestamp,
    /// The margins from the command line.
    pub margins: Margins,
    /// The sets of the namespace.
    pub sets: Vec<GuardedSet>,
    /// The deployments of the namespace.
    pub deployments: Vec<DeploymentSnapshot>,
}

impl OvershootObservation {
    /// An empty namespace.
    pub fn of(margins: Margins, now: Timestamp) -> Self {
        Self { version: OBSERVATION_VERSION, now, margins, sets: Vec::new(), deployments: Vec::new() }
    }

    /// Reads a namespace from the stores.
    pub fn look_up(views: &ControlViews, namespace: &str, margins: Margins, now: Timestamp) -> Self {
        let sets = views.sets.by_index(BY_NAMESPACE, namespace).into_iter().map(|set| {
            let machines = views.machines.by_index(BY_CONTROLLER, set.uid());
            let labels = set.template().metadata.labels.as_ref();
            let counted = machines.iter().filter(|machine| !leaves_after_service(machine));
            let counts = Counts::of(counted, labels);
            GuardedSet { set, machines: counts.fully_labeled.into(), staying: counts.staying.into() }
        });
        Self {
            sets: sets.collect(),
            deployments: views.deployments.by_index(BY_NAMESPACE, namespace),
            ..Self::of(margins, now)
        }
    }
}

/// Whether the machine is terminating and had a Node.
fn leaves_after_service(machine: &MachineSnapshot) -> bool {
    is_terminating(machine) && !machine.conditions().is_empty()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeCondition;

    use super::*;
    use crate::{
        overshooting::decide::decide,
        set::testing::{Building, at, now, running},
    };
    use machine_api::v1alpha1::Machine;

    /// A set of three with terminating machines: `served` of them had a Node, `newborn` never joined.
    fn rules(served: usize, newborn: usize) -> Vec<&'static str> {
        let views = ControlViews::default();
        let set = crate::set::testing::set(3).build();
        views.sets.apply(set);
        let conditions = || vec![NodeCondition { type_: "Ready".to_owned(), ..NodeCondition::default() }];
        let leaving = (0..served + newborn).map(|number| {
            let machine: Building<Machine> = running(&format!("m{number}")).deleting();
            machine.with(|m| m.status.conditions = if number < served { conditions() } else { Vec::new() })
        });
        let staying = (0..3).map(|number| running(&format!("n{number}")).created_at(number));
        for machine in leaving.chain(staying) {
            views.machines.apply(machine.build());
        }
        let seen = OvershootObservation::look_up(&views, "ns", Margins { up: 2, down: 1 }, now());
        assert_eq!(seen.now, at(0));
        decide(&seen).iter().map(super::super::decide::Effect::rule).collect()
    }

    #[test]
    fn a_scale_in_with_long_drains_freezes_nothing_and_newborns_that_go_again_do() {
        assert!(rules(9, 0).is_empty());
        assert!(rules(9, 4).is_empty());
        assert_eq!(rules(0, 5), ["overshooting/freeze"]);
    }
}
