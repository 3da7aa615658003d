//! Whether a machine that is being deleted is replaced by another one, and why. The event on its Node says so.
//!
//! The machine controller does not know who deleted a machine, nor why: that may have happened in another process. It is seen in the
//! objects: the revisions of set and deployment, the stored failure, and whether the set makes another machine.
//! Source: spec/packaging §7.3.

use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::{
    machine::{observation::replacement::Replacement, plan::deletion_stage::was_failed},
    snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot},
    views::{BY_CONTROLLER, ControlViews},
};
use machine_api::names::annotation;

/// The replacement of a machine, as the stores show it. `None` if no other machine takes its place, or if it is not being deleted.
pub fn replacement_in(machine: &MachineSnapshot, views: &ControlViews) -> Option<Replacement> {
    machine.is_deleting().then_some(())?;
    let key = |owner: &OwnerReference| ObjectKey::new(machine.namespace(), owner.name.clone());
    let owner = machine.controller()?;
    let set = views.sets.get(&key(owner)).filter(|set| set.uid() == owner.uid)?;
    let deployment = set
        .controller()
        .and_then(|owner| views.deployments.get(&key(owner)).filter(|deployment| deployment.uid() == owner.uid));
    let siblings = views.machines.by_index(BY_CONTROLLER, set.uid());
    replacement(machine, &set, deployment.as_ref(), &siblings)
}

/// The replacement of a machine of this set, which belongs to the deployment if to any.
fn replacement(
    machine: &MachineSnapshot,
    set: &SetSnapshot,
    deployment: Option<&DeploymentSnapshot>,
    siblings: &[MachineSnapshot],
) -> Option<Replacement> {
    // A set or deployment that is deleted takes its machines with it.
    if set.is_deleting() || deployment.is_some_and(DeploymentSnapshot::is_deleting) {
        return None;
    }
    if let Some(deployment) = deployment.filter(|deployment| is_old(set, deployment)) {
        return Some(Replacement::Rollout { deployment: deployment.name().to_owned() });
    }
    let name = set.name().to_owned();
    if !is_wanted(machine, set, siblings) {
        return None;
    }
    Some(if was_failed(machine) { Replacement::Unhealthy { set: name } } else { Replacement::Deleted { set: name } })
}

/// Whether the set has an earlier revision than its deployment. The deployment has the revision of its newest set.
fn is_old(set: &SetSnapshot, deployment: &DeploymentSnapshot) -> bool {
    let newest = deployment.annotation(annotation::REVISION);
    newest.is_some() && set.annotation(annotation::REVISION) != newest
}

/// Whether the set makes another machine: it has too few without this one, or has already made one since.
fn is_wanted(machine: &MachineSnapshot, set: &SetSnapshot, siblings: &[MachineSnapshot]) -> bool {
    let living = || siblings.iter().filter(|sibling| !sibling.is_deleting() && sibling.uid() != machine.uid());
    let is_short = usize::try_from(set.replicas()).is_ok_and(|wanted| living().count() < wanted);
    let since = machine.deleting_since();
    is_short || living().any(|sibling| sibling.created().is_some() && sibling.created() >= since)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use machine_api::v1alpha1::{Machine, MachineDeployment, MachineSet};

    fn machine(name: &str, status: &Value, deleted: bool, created: &str) -> MachineSnapshot {
        let mut object = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "creationTimestamp": created},
            "spec": {"class": {"kind": "MachineClass", "name": "c"}}, "status": status});
        if deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T12:00:00Z");
        }
        MachineSnapshot::from(serde_json::from_value::<Machine>(object).unwrap())
    }

    const LONG_AGO: &str = "2026-01-01T00:00:00Z";

    fn going() -> MachineSnapshot {
        machine("m", &json!({}), true, LONG_AGO)
    }

    fn failed() -> MachineSnapshot {
        machine("m", &json!({"currentStatus": {"phase": "Failed"}}), true, LONG_AGO)
    }

    fn other(created: &str) -> MachineSnapshot {
        machine("other", &json!({}), false, created)
    }

    fn set(replicas: i32, revision: &str, deleted: bool) -> SetSnapshot {
        let mut set = MachineSet::default();
        set.metadata.name = Some("set".to_owned());
        set.metadata.annotations = Some([(annotation::REVISION.to_owned(), revision.to_owned())].into());
        set.metadata.deletion_timestamp = going().to_object().metadata.deletion_timestamp.filter(|_| deleted);
        set.spec.replicas = replicas;
        SetSnapshot::from(set)
    }

    fn deployment(revision: &str) -> DeploymentSnapshot {
        let mut deployment = MachineDeployment::default();
        deployment.metadata.name = Some("dep".to_owned());
        deployment.metadata.annotations = Some([(annotation::REVISION.to_owned(), revision.to_owned())].into());
        DeploymentSnapshot::from(deployment)
    }

    #[rstest]
    #[case::of_an_old_set(going(), set(0, "1", false), Some(deployment("2")), vec![], Some("MachineDeployment dep has a newer template"))]
    #[case::it_had_failed(failed(), set(2, "2", false), Some(deployment("2")), vec![other(LONG_AGO)], Some("it was unhealthy; MachineSet set makes another"))]
    #[case::deleted_by_hand(going(), set(2, "2", false), Some(deployment("2")), vec![other(LONG_AGO)], Some("it was deleted, and MachineSet set makes another"))]
    #[case::the_other_is_made_already(
        going(), set(1, "2", false), None, vec![other("2026-01-01T12:00:01Z")], Some("it was deleted, and MachineSet set makes another"))]
    #[case::scaled_down(going(), set(1, "2", false), Some(deployment("2")), vec![other(LONG_AGO)], None)]
    #[case::scaled_down_to_none(failed(), set(0, "2", false), Some(deployment("2")), vec![], None)]
    #[case::the_set_is_deleted(going(), set(2, "1", true), Some(deployment("2")), vec![], None)]
    fn pk_108_a_replacement_has_a_reason(
        #[case] machine: MachineSnapshot,
        #[case] set: SetSnapshot,
        #[case] deployment: Option<DeploymentSnapshot>,
        #[case] siblings: Vec<MachineSnapshot>,
        #[case] expected: Option<&str>,
    ) {
        let found = replacement(&machine, &set, deployment.as_ref(), &siblings).map(|found| found.text());
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn a_machine_that_stays_is_not_replaced() {
        assert_eq!(replacement_in(&other(LONG_AGO), &ControlViews::default()), None);
    }
}
