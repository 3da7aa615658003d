//! Rollback to an earlier revision: finds its set and changes the deployment.
//!
//! Source: spec/deployment-and-set §12. Requested by `spec.rollbackTo` (deprecated, as in the original) or by
//! `mcm rollback` (D-37), which changes the deployment itself with the same functions. The next pass then rolls out the
//! change like any other change of the template. Pure.
//!
//! The original first creates the set of the present template. Here a template that has no set yet counts as the newest
//! revision, so that no machine is created only to be deleted at once.

use super::{
    fleet::Fleet,
    node_side_effects,
    observe::DeploymentObservation,
    plan::{Effect, Plan},
    revision::{copied_annotations, is_copied, revision_of},
    template_equality::is_equal,
};
use crate::snapshots::{DeploymentSnapshot, SetSnapshot};
use controller_runtime::{
    events::EventNote,
    snapshot::{Snapshot, Whole},
};
use kube_values::selector::Labels;
use machine_api::{
    names::{deployment_reason as reason, label},
    v1alpha1::MachineDeployment,
};

/// The requested revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollbackTarget {
    /// The revision before the present one.
    Previous,
    /// This revision.
    Revision(i64),
}

impl From<i64> for RollbackTarget {
    /// Reads `spec.rollbackTo.revision`: 0 is the previous revision.
    fn from(revision: i64) -> Self {
        if revision == 0 { Self::Previous } else { Self::Revision(revision) }
    }
}

/// The result of the search for a revision.
#[derive(Clone, Debug, PartialEq)]
pub enum Found<'a> {
    /// No set has that revision.
    Nothing,
    /// The set of that revision has the same template as the deployment.
    Unchanged,
    /// A set with another template.
    Set {
        /// The set.
        set: &'a SetSnapshot,
        /// Its revision.
        revision: i64,
    },
}

/// Finds the set of the requested revision among the deployment's sets.
pub fn find<'a>(deployment: &DeploymentSnapshot, sets: &[&'a SetSnapshot], target: RollbackTarget) -> Found<'a> {
    let is_present = |set: &SetSnapshot| is_equal(set.template(), deployment.template());
    let revisions = sets.iter().filter_map(|set| revision_of(set.metadata()));
    let revision = match target {
        RollbackTarget::Revision(revision) => Some(revision),
        RollbackTarget::Previous if sets.iter().any(|set| is_present(set)) => last_revision(revisions),
        RollbackTarget::Previous => revisions.max(),
    };
    let Some(revision) = revision.filter(|revision| *revision > 0) else { return Found::Nothing };
    let mut of_revision = sets.iter().filter(|set| revision_of(set.metadata()) == Some(revision)).peekable();
    if of_revision.peek().is_none() {
        return Found::Nothing;
    }
    match of_revision.find(|set| !is_present(set)) {
        Some(set) => Found::Set { set, revision },
        None => Found::Unchanged,
    }
}

/// The second highest revision. If two sets have the highest revision, that revision is returned.
fn last_revision(revisions: impl Iterator<Item = i64>) -> Option<i64> {
    let mut sorted: Vec<i64> = revisions.collect();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    sorted.get(1).copied()
}

/// The deployment without the request.
fn without_request(deployment: &DeploymentSnapshot) -> MachineDeployment {
    let mut wanted = MachineDeployment::clone(deployment.whole_object());
    wanted.spec.rollback_to = None;
    wanted
}

/// The deployment with the set's template and annotations, and without the request.
pub fn rolled_back_to(deployment: &DeploymentSnapshot, set: &SetSnapshot) -> MachineDeployment {
    let mut wanted = without_request(deployment);
    wanted.spec.template = set.template().clone();
    if let Some(labels) = &mut wanted.spec.template.metadata.labels {
        labels.remove(label::MACHINE_TEMPLATE_HASH);
    }
    let mut annotations: Labels = deployment.annotations().clone();
    annotations.retain(|key, _| !is_copied(key));
    annotations.extend(copied_annotations(set.metadata()));
    wanted.metadata.annotations = Some(annotations);
    wanted
}

/// Adds the effects for `spec.rollbackTo`. In every case the request is removed from the deployment.
pub fn step(seen: &DeploymentObservation, fleet: &Fleet<'_>, target: RollbackTarget, plan: &mut Plan) {
    let deployment = fleet.deployment;
    let sets: Vec<&SetSnapshot> = fleet.all().map(|state| state.set).collect();
    let (wanted, note) = match find(deployment, &sets, target) {
        Found::Nothing => {
            (without_request(deployment), EventNote::warning(reason::ROLLBACK_REVISION_NOT_FOUND, not_found(target)))
        }
        Found::Unchanged => {
            let text = format!(
                "The rollback revision contains the same template as current deployment {:?}",
                deployment.name()
            );
            (without_request(deployment), EventNote::warning(reason::ROLLBACK_TEMPLATE_UNCHANGED, text))
        }
        Found::Set { set, revision } => {
            if let Some(state) = fleet.old.iter().find(|state| state.set.uid() == set.uid()) {
                node_side_effects::untaint_first(seen, state, plan);
            }
            let text = format!("Rolled back deployment {:?} to revision {revision}", deployment.name());
            (rolled_back_to(deployment, set), EventNote::normal(reason::ROLLED_BACK, text))
        }
    };
    plan.push("rollback", Effect::RollBack(Box::new(wanted)));
    plan.push("rollback", Effect::Tell(note));
}

/// The message when the revision does not exist; the texts of the original.
fn not_found(target: RollbackTarget) -> &'static str {
    match target {
        RollbackTarget::Previous => "Unable to find last revision.",
        RollbackTarget::Revision(_) => "Unable to find the revision to rollback to.",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::patches;
    use super::*;
    use crate::{
        deployment::{decide::decide, observe::SetSeen, testing::*},
        set::testing::{Building, meta},
    };
    use controller_runtime::objects::Patch;
    use machine_api::{
        names::{annotation, taint},
        v1alpha1::RollbackConfig,
    };

    #[rstest]
    #[case::s_rev_06_the_second_highest(&[1, 2, 5], Some(2))]
    #[case::s_rev_06_the_highest_twice(&[5, 5], Some(5))]
    #[case::s_rev_06_there_is_only_one(&[3], None)]
    fn the_last_revision_is_found(#[case] revisions: &[i64], #[case] expected: Option<i64>) {
        assert_eq!(last_revision(revisions.iter().copied()), expected);
    }

    fn revised(mut seen: SetSeen, revision: &str) -> SetSeen {
        seen.set
            .to_mut()
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(annotation::REVISION.to_owned(), revision.to_owned());
        seen
    }

    /// A deployment at revision 2 that had revision 1 before and is requested to go back.
    fn asked(to: i64, sets: Vec<SetSeen>) -> DeploymentObservation {
        let built = deployment(1, 1, 0)
            .annotation(annotation::REVISION, "2")
            .annotation("team", "new")
            .with(|d| d.spec.rollback_to = Some(RollbackConfig { revision: to }));
        seeing_sets(built.build(), sets)
    }

    fn two() -> Vec<SetSeen> {
        let mut first = revised(old(0, 0), "1");
        first.set.to_mut().metadata.annotations.get_or_insert_default().insert("team".to_owned(), "old".to_owned());
        let mut second = revised(new(1, 1), "2");
        second.set.to_mut().metadata.annotations.get_or_insert_default().insert("team".to_owned(), "new".to_owned());
        vec![first, second]
    }

    /// The deployment after the rollback, and the text of the event.
    fn rolled_back(seen: &DeploymentObservation) -> (MachineDeployment, String) {
        let mut plan = Plan::default();
        step(seen, &Fleet::of(seen), RollbackTarget::from(seen.deployment.rollback_to().unwrap().revision), &mut plan);
        let mut document = serde_json::to_value(&seen.deployment).unwrap();
        let mut told = String::new();
        for step in plan.steps {
            match step.effect {
                effect @ Effect::RollBack(_) => {
                    let Some((_, Patch::Merge(patch))) = patches::of_deployment(&effect, &seen.deployment) else {
                        panic!("{effect:?}")
                    };
                    json_patch::merge(&mut document, &patch);
                }
                Effect::Tell(note) => told = format!("{}: {}", note.reason, note.message),
                _ => {}
            }
        }
        (serde_json::from_value(document).unwrap(), told)
    }

    #[rstest]
    #[case::s_rb_01_the_previous_revision(0)]
    #[case::s_md_11_revision_1(1)]
    fn the_template_of_the_set_comes_back(#[case] to: i64) {
        let (deployment, told) = rolled_back(&asked(to, two()));
        assert_eq!(deployment.spec.rollback_to, None);
        assert_eq!(deployment.spec.template.spec.class.name, "old");
        assert!(!deployment.spec.template.metadata.labels.unwrap().contains_key(label::MACHINE_TEMPLATE_HASH));
        let annotations = deployment.metadata.annotations.unwrap();
        assert_eq!((annotations["team"].as_str(), annotations[annotation::REVISION].as_str()), ("old", "2"));
        assert_eq!(told, "DeploymentRollback: Rolled back deployment \"md\" to revision 1");
    }

    #[rstest]
    #[case::s_rb_02_an_unknown_revision(
        9,
        two(),
        "DeploymentRollbackRevisionNotFound: Unable to find the revision to rollback to."
    )]
    #[case::s_rb_02_no_previous_revision(
        0, vec![revised(new(1, 1), "2")], "DeploymentRollbackRevisionNotFound: Unable to find last revision.")]
    #[case::s_rb_03_the_template_is_the_same(
        2,
        two(),
        "DeploymentRollbackTemplateUnchanged: The rollback revision contains the same template as current deployment \"md\""
    )]
    fn an_impossible_rollback_is_reported_and_removed(
        #[case] to: i64,
        #[case] sets: Vec<SetSeen>,
        #[case] expected: &str,
    ) {
        let seen = asked(to, sets);
        let (deployment, told) = rolled_back(&seen);
        assert_eq!(deployment.spec.rollback_to, None);
        assert_eq!(&deployment.spec.template, seen.deployment.template());
        assert_eq!(told, expected);
    }

    #[test]
    fn a_template_without_a_set_counts_as_the_newest_revision() {
        let (deployment, _) = rolled_back(&asked(0, vec![revised(old(1, 1), "2")]));
        assert_eq!(deployment.spec.template.spec.class.name, "old");
    }

    #[test]
    fn s_rb_04_the_nodes_of_the_set_are_untainted_first() {
        let mut sets = two();
        let first = sets[0].set.to_mut();
        first.spec.replicas = 1;
        first
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(annotation::PREFER_NO_SCHEDULE.to_owned(), "True".to_owned());
        sets[0].machines = machines_of(sets[0].set.whole_object(), 1, 1);
        sets[0].machines[0]
            .to_mut()
            .metadata
            .labels
            .get_or_insert_default()
            .insert(label::NODE.to_owned(), "node".to_owned());
        let mut seen = asked(1, sets);
        let node: k8s_openapi::api::core::v1::Node = serde_json::from_value(json!({
            "metadata": meta("node"),
            "spec": { "taints": [{ "key": taint::PREFER_NO_SCHEDULE, "value": "True", "effect": "PreferNoSchedule" }] },
        }))
        .unwrap();
        seen.nodes = Some(BTreeMap::from([("node".to_owned(), node.into())]));
        let rules: Vec<&str> = decide(&seen).steps.iter().map(|step| step.rule).collect();
        assert_eq!(rules, ["rollback/untaint", "rollback/untaint", "rollback", "rollback"]);
    }

    #[test]
    fn a_paused_deployment_waits_with_its_rollback() {
        let mut seen = asked(1, two());
        seen.deployment.to_mut().spec.paused = true;
        assert_eq!(decide(&seen).steps, []);
    }

    #[test]
    fn a_change_meanwhile_makes_the_api_server_refuse() {
        let seen = asked(1, two());
        let effect = Effect::RollBack(Box::new(rolled_back_to(&seen.deployment, &seen.sets[0].set)));
        let Some((_, Patch::Merge(patch))) = patches::of_deployment(&effect, &seen.deployment) else {
            panic!("{effect:?}")
        };
        assert_eq!(patch["metadata"]["resourceVersion"], "1");
        assert_eq!(patch["spec"]["rollbackTo"], Value::Null);
    }

    #[test]
    fn an_unreadable_revision_belongs_to_no_set() {
        let set = Building(set_of_class("a", "old", 0, 0)).annotation(annotation::REVISION, "x").snapshot();
        assert_eq!(find(&deployment(1, 1, 0).snapshot(), &[&set], RollbackTarget::Previous), Found::Nothing);
    }
}
