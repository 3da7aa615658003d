//! The changes of `rollout pause`, `resume`, `restart` and `undo`: one minimal patch each, bound to UID and version.
//!
//! `undo` restores the same template as `mcm rollback` ([`crate::cli::rollback`]). Pure. Source: spec/packaging §5.2, PK-074.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::{
    output::counted,
    write::{Change, Decision, What},
};
use crate::cli::rollback::{self, Plan};
use controller_runtime::{objects::Patch, snapshot::Snapshot};
use machine_api::{kind::Kind, names::annotation};
use machine_controllers::{
    deployment::rollback::RollbackTarget,
    snapshots::{DeploymentSnapshot, SetSnapshot},
    times::rfc3339,
};

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A paused deployment replaces no machines.
    #[error("deployment {0} is paused, so that nothing would be restarted; kubectl mcm rollout resume {0} goes on")]
    Paused(String),
    /// The deployment is being deleted.
    #[error("deployment {0} is being deleted, so that a change would have no effect")]
    Deleting(String),
    /// The revision does not exist.
    #[error("{0}")]
    NoSuchRevision(String),
}

/// Refuses every change of a deployment that is being deleted.
///
/// # Errors
/// [`Refusal::Deleting`] for such a deployment.
pub fn refuse_deleting(deployment: &DeploymentSnapshot) -> Result<(), Refusal> {
    if deployment.is_deleting() { Err(Refusal::Deleting(deployment.name().to_owned())) } else { Ok(()) }
}

/// Pauses the deployment.
pub fn pause(deployment: &DeploymentSnapshot) -> Decision {
    if deployment.is_paused() {
        return Decision::Nothing(format!("deployment {} is paused already", deployment.name()));
    }
    let text = format!("pause deployment {}: its rollouts stop until it is resumed", deployment.name());
    changed(deployment, text, json!({ "spec": { "paused": true } }))
}

/// Resumes the deployment.
pub fn resume(deployment: &DeploymentSnapshot) -> Decision {
    if !deployment.is_paused() {
        return Decision::Nothing(format!("deployment {} is not paused", deployment.name()));
    }
    // The original leaves the field out when it is false.
    let text = format!("resume deployment {}: its rollouts go on", deployment.name());
    changed(deployment, text, json!({ "spec": { "paused": null } }))
}

/// Replaces all machines of the deployment, by an annotation in its template.
///
/// # Errors
/// [`Refusal::Paused`] for a paused deployment.
pub fn restart(deployment: &DeploymentSnapshot, now: Timestamp) -> Result<Decision, Refusal> {
    if deployment.is_paused() {
        return Err(Refusal::Paused(deployment.name().to_owned()));
    }
    let text = format!(
        "restart deployment {}: its strategy {} replaces each of its {}",
        deployment.name(),
        deployment.strategy().strategy_type.as_str(),
        counted(deployment.replicas(), "machine")
    );
    let annotations = json!({ annotation::RESTARTED_AT: rfc3339(now) });
    Ok(changed(deployment, text, json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } })))
}

/// Restores the template of an earlier revision.
///
/// # Errors
/// [`Refusal::NoSuchRevision`], with the revisions that exist.
pub fn undo(
    deployment: &DeploymentSnapshot,
    sets: &[&SetSnapshot],
    target: RollbackTarget,
) -> Result<Decision, Refusal> {
    let nothing = || Decision::Nothing(format!("deployment {} has the template of that revision", deployment.name()));
    match rollback::plan(deployment, sets, target) {
        Plan::NoSuchRevision(text) => Err(Refusal::NoSuchRevision(text)),
        Plan::Unchanged | Plan::Restore { change: None, .. } => Ok(nothing()),
        Plan::Restore { revision, class, change: Some((_, patch)) } => {
            let paused = if deployment.is_paused() {
                "; it is paused, so nothing is rolled out before it is resumed"
            } else {
                ""
            };
            let text =
                format!("undo deployment {}: back to revision {revision} (class {class}){paused}", deployment.name());
            let what = What::Patch(patch.bound_to(deployment.uid()));
            Ok(Decision::Change(Change { kind: Kind::MachineDeployment, target: deployment.target(), text, what }))
        }
    }
}

fn changed(deployment: &DeploymentSnapshot, text: String, patch: Value) -> Decision {
    let patch = Patch::Merge(patch).bound_to(deployment.uid()).guarded_by(deployment.resource_version());
    Decision::Change(Change {
        kind: Kind::MachineDeployment,
        target: deployment.target(),
        text,
        what: What::Patch(patch),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::testing::{deployment, now, set};
    use super::*;

    fn patch(decision: Decision) -> Value {
        match decision {
            Decision::Change(Change { what: What::Patch(Patch::Merge(patch)), .. }) => patch,
            other => panic!("no merge patch: {other:?}"),
        }
    }

    fn paused() -> DeploymentSnapshot {
        deployment("web", 2, &json!({ "spec": { "paused": true } }))
    }

    fn plain() -> DeploymentSnapshot {
        deployment("web", 2, &json!({}))
    }

    const BOUND: (&str, &str) = ("u-web", "7");

    #[test]
    fn pk_074_pause_and_resume_change_one_field() {
        let bound = json!({ "uid": BOUND.0, "resourceVersion": BOUND.1 });
        assert_eq!(patch(pause(&plain())), json!({ "metadata": bound, "spec": { "paused": true } }));
        assert_eq!(patch(resume(&paused())), json!({ "metadata": bound, "spec": { "paused": null } }));
        assert_eq!(pause(&paused()), Decision::Nothing("deployment web is paused already".to_owned()));
        assert_eq!(resume(&plain()), Decision::Nothing("deployment web is not paused".to_owned()));
    }

    #[test]
    fn pk_074_restart_sets_one_annotation_of_the_template() {
        let expected = json!({
            "metadata": { "uid": BOUND.0, "resourceVersion": BOUND.1 },
            "spec": { "template": { "metadata": { "annotations": {
                "machine.sapcloud.io/restartedAt": "2027-01-15T08:00:00Z",
            } } } },
        });
        assert_eq!(patch(restart(&plain(), now()).unwrap()), expected);
        assert_eq!(restart(&paused(), now()), Err(Refusal::Paused("web".to_owned())));
    }

    #[test]
    fn pk_074_a_deployment_that_is_being_deleted_is_not_changed() {
        let leaving = deployment("web", 2, &json!({ "metadata": { "deletionTimestamp": "2027-01-15T08:00:00Z" } }));
        assert_eq!(refuse_deleting(&leaving), Err(Refusal::Deleting("web".to_owned())));
        assert_eq!(refuse_deleting(&plain()), Ok(()));
    }

    #[test]
    fn pk_074_a_restart_is_another_template() {
        let mut stored = serde_json::to_value(plain()).unwrap();
        let before: DeploymentSnapshot = plain();
        json_patch::merge(&mut stored, &patch(restart(&before, now()).unwrap()));
        let after: DeploymentSnapshot =
            serde_json::from_value::<machine_api::v1alpha1::MachineDeployment>(stored).unwrap().into();
        let is_equal = machine_controllers::deployment::template_equality::is_equal;
        assert!(!is_equal(before.template(), after.template()), "its machines are replaced");
    }

    #[test]
    fn pk_074_undo_restores_the_template_of_the_revision_before() {
        let (old, new) = (set("web-1", "web", 1, 0), set("web-2", "web", 2, 3));
        let undone = patch(undo(&plain(), &[&old, &new], RollbackTarget::Previous).unwrap());
        assert_eq!(undone["spec"], json!({ "template": { "spec": { "class": { "name": "class-1" } } } }));
        assert_eq!(
            (&undone["metadata"]["uid"], &undone["metadata"]["resourceVersion"]),
            (&json!("u-web"), &json!("7"))
        );
        let same = undo(&plain(), &[&old, &new], RollbackTarget::Revision(2)).unwrap();
        assert!(matches!(same, Decision::Nothing(_)), "{same:?}");
        let refused = undo(&plain(), &[&old, &new], RollbackTarget::Revision(9)).unwrap_err().to_string();
        assert!(refused.contains("has no revision 9; there are: 1 (web-1"), "{refused}");
    }

    /// The objects that Go's manager has written.
    fn recorded(text: &str) -> Vec<Value> {
        serde_json::from_str::<Value>(text).unwrap()["items"].as_array().unwrap().clone()
    }

    fn named<'a>(all: &'a [Value], name: &str) -> &'a Value {
        all.iter().find(|object| object["metadata"]["name"] == name).unwrap()
    }

    fn snapshot(stored: &Value) -> DeploymentSnapshot {
        serde_json::from_value::<machine_api::v1alpha1::MachineDeployment>(stored.clone()).unwrap().into()
    }

    fn after(stored: &Value, decision: Decision) -> Value {
        let mut stored = stored.clone();
        json_patch::merge(&mut stored, &patch(decision));
        stored
    }

    #[test]
    fn pk_074_the_patches_make_the_objects_on_which_the_go_manager_was_recorded() {
        let deployments = recorded(include_str!("../../../../tests/fixtures/go/machinedeployments.json"));
        let recorded_sets = recorded(include_str!("../../../../tests/fixtures/go/machinesets.json"));
        let sets: Vec<SetSnapshot> = recorded_sets
            .iter()
            .map(|stored| serde_json::from_value::<machine_api::v1alpha1::MachineSet>(stored.clone()).unwrap().into())
            .collect();
        let set_of = |name: &str| sets.iter().find(|set| set.name() == name).unwrap();

        // Go has stopped the rollout of `half` in the middle: the old set keeps three machines, the new one two.
        let half = named(&deployments, "half");
        assert_eq!((set_of("half-58884").replicas(), set_of("half-f676c").replicas()), (3, 2));
        let mut running = half.clone();
        running["spec"].as_object_mut().unwrap().remove("paused");
        assert_eq!(after(&running, pause(&snapshot(&running)))["spec"], half["spec"], "as it was recorded");
        // Go has rolled deployments without the field, and that is what is left of it.
        let resumed = after(half, resume(&snapshot(half)));
        assert_eq!(resumed["spec"], running["spec"]);
        assert_eq!(named(&deployments, "rolling")["spec"].get("paused"), None);

        for (name, old) in [("rolling", "rolling-cf574"), ("recreate", "recreate-76f8b")] {
            let stored = named(&deployments, name);
            let own: Vec<&SetSnapshot> = sets.iter().filter(|set| set.name().starts_with(name)).collect();
            // Go finds the set of a template by comparing it without the hash, and scales that set up again.
            let undone = after(stored, undo(&snapshot(stored), &own, RollbackTarget::Previous).unwrap());
            let mut of_old_set = named(&recorded_sets, old)["spec"]["template"].clone();
            of_old_set["metadata"]["labels"].as_object_mut().unwrap().remove("machine-template-hash");
            assert_eq!(undone["spec"]["template"], of_old_set, "{name}");
            // No recorded set has the template of a restart, so that Go makes another one.
            let restarted = snapshot(&after(stored, restart(&snapshot(stored), now()).unwrap()));
            let is_equal = machine_controllers::deployment::template_equality::is_equal;
            assert!(own.iter().all(|set| !is_equal(set.template(), restarted.template())), "{name}");
            assert!(own.iter().any(|set| is_equal(set.template(), snapshot(stored).template())), "{name}");
        }
    }
}
