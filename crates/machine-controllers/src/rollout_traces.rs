//! The trace of a pass over a set or a deployment: a rollout is a deployment and its newest revision. Source: spec/packaging §7.2.

use crate::{
    snapshots::{DeploymentSnapshot, SetSnapshot},
    views::{BY_CONTROLLER, ControlViews},
};
use controller_runtime::snapshot::Snapshot;
use kube_values::selector::Labels;
use machine_api::names::annotation;
use mcm_traces::TraceId;

/// A trace, and the revision that is rolled out in it.
pub type Rollout = (TraceId, Option<i64>);

/// The revision in these annotations; `None` if there is none that can be read.
fn revision(annotations: &Labels) -> Option<i64> {
    annotations.get(annotation::REVISION)?.parse().ok()
}

/// The rollout of a deployment with these sets, to which a pass adds `new`.
pub fn of_deployment<'a>(
    deployment: &DeploymentSnapshot,
    sets: impl Iterator<Item = &'a SetSnapshot>,
    new: Option<&Labels>,
) -> Rollout {
    let of_sets = sets.map(|set| revision(set.annotations()));
    let known = of_sets.chain([new.and_then(revision), revision(deployment.annotations())]);
    newest(deployment.uid(), known)
}

/// The rollout of a set: of its deployment, with the sets that the stores hold, or of the set alone.
pub fn of_set(set: &SetSnapshot, views: &ControlViews) -> Rollout {
    let Some(owner) = set.controller() else { return (TraceId::of_object(set.uid()), None) };
    let siblings = views.sets.by_index(BY_CONTROLLER, &owner.uid);
    newest(&owner.uid, siblings.iter().chain([set]).map(|set| revision(set.annotations())))
}

/// The rollout of the highest of these revisions.
fn newest(deployment: &str, revisions: impl Iterator<Item = Option<i64>>) -> Rollout {
    let revision = revisions.flatten().max().unwrap_or_default();
    (TraceId::of_rollout(deployment, revision), Some(revision))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use kube::ResourceExt;
    use rstest::rstest;

    use super::*;
    use machine_api::v1alpha1::{MachineDeployment, MachineSet};

    fn set(name: &str, revision: Option<&str>, owner: Option<&str>) -> MachineSet {
        let mut set = MachineSet::default();
        set.metadata.name = Some(name.to_owned());
        set.metadata.namespace = Some("ns".to_owned());
        set.metadata.uid = Some(format!("uid-{name}"));
        set.metadata.resource_version = Some("1".to_owned());
        if let Some(revision) = revision {
            set.annotations_mut().insert(annotation::REVISION.to_owned(), revision.to_owned());
        }
        set.metadata.owner_references = owner.map(|uid| {
            vec![OwnerReference { uid: uid.to_owned(), controller: Some(true), ..OwnerReference::default() }]
        });
        set
    }

    #[rstest]
    #[case::none_yet(&[], None, 0)]
    #[case::the_newest_set(&[Some("1"), Some("3"), Some("2")], None, 3)]
    #[case::the_set_that_the_pass_makes(&[Some("1")], Some("2"), 2)]
    #[case::unreadable(&[Some("x"), None], None, 0)]
    fn pk_103_a_rollout_is_a_deployment_and_its_newest_revision(
        #[case] sets: &[Option<&str>],
        #[case] new: Option<&str>,
        #[case] expected: i64,
    ) {
        let mut deployment = MachineDeployment::default();
        deployment.metadata.uid = Some("uid".to_owned());
        let deployment = DeploymentSnapshot::from(deployment);
        let sets: Vec<SetSnapshot> = sets.iter().map(|revision| set("s", *revision, None).into()).collect();
        let new = new.map(|text| Labels::from([(annotation::REVISION.to_owned(), text.to_owned())]));
        let found = of_deployment(&deployment, sets.iter(), new.as_ref());
        assert_eq!(found, (TraceId::of_rollout("uid", expected), Some(expected)));
    }

    #[test]
    fn an_old_set_is_part_of_the_newest_rollout() {
        let views = ControlViews::default();
        let (old, new) = (set("old", Some("1"), Some("uid")), set("new", Some("2"), Some("uid")));
        views.sets.apply(old.clone());
        views.sets.apply(new);
        assert_eq!(of_set(&old.into(), &views), (TraceId::of_rollout("uid", 2), Some(2)));
        assert_eq!(of_set(&set("lone", None, None).into(), &views), (TraceId::of_object("uid-lone"), None));
    }
}
