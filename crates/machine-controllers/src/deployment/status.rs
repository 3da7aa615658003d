//! The status of a deployment, and when it is written.
//!
//! Source: spec/deployment-and-set §14 with D-08, D-28 (every difference is written), paced by [`crate::set::pacing`].
//! Pure.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    conditions::{self, ConditionContent},
    fleet::Fleet,
    in_place::{self, marks},
    observe::DeploymentObservation,
    patches::changes_status,
    plan::{Effect, Next, Plan},
    scaling, validity, waits,
};
use crate::{
    set::{
        counts::is_terminating,
        pacing::{ChangeKind, Pace, pace},
        patches::has_finalizer,
        status::failed_machines,
    },
    snapshots::DeploymentSnapshot,
};
use controller_runtime::{events::EventNote, snapshot::Snapshot};
use kube_values::selector;
use machine_api::{
    names::{annotation, deployment_reason as reason, set_reason, update_result},
    v1alpha1::{
        ConditionStatus, MachineDeploymentCondition, MachineDeploymentConditionType as Kind, MachineDeploymentStatus,
        MachineSetCondition, MachineSetConditionType,
    },
};

/// The report about the pass for the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Name of the set that was created.
    pub created_set: Option<String>,
    /// Why the set could not be created.
    pub create_error: Option<String>,
}

/// Decides whether the status is written, and its content.
pub fn decide_status(seen: &DeploymentObservation, report: &Report) -> Plan {
    let deployment = &seen.deployment;
    let deleting = deployment.is_deleting();
    if deleting && !has_finalizer(deployment.metadata()) {
        return Plan::default();
    }
    let errors = if deleting { Arc::default() } else { validity::deployment_errors(seen) };
    let fleet = Fleet::of(seen);
    let wanted = if errors.is_empty() { valid_status(seen, &fleet, report) } else { invalid_status(seen, &errors) };
    let mut plan = Plan::default();
    match pace(news(deployment, &wanted), seen.status_written, seen.now) {
        Pace::Hold(next) => plan.next = next,
        Pace::Write => write(deployment, &wanted, &errors, &mut plan),
    }
    if errors.is_empty()
        && !deleting
        && let Some(after) = conditions::timeout_check(deployment, &wanted, seen.now)
    {
        plan.next = plan.next.or_earlier(Next::After(after, "the progress deadline"));
    }
    if errors.is_empty()
        && !deleting
        && let Some(after) = waits::next_mention(seen, &fleet)
    {
        plan.next = plan.next.or_earlier(Next::After(after, "an old machine takes long to end"));
    }
    plan
}

fn invalid_status(seen: &DeploymentObservation, errors: &[String]) -> MachineDeploymentStatus {
    let mut status = seen.deployment.status().clone();
    status.observed_generation = seen.deployment.generation().unwrap_or_default();
    let says = ConditionContent::new(ConditionStatus::False, set_reason::FAILED_VALIDATION, errors.join("; "));
    if conditions::find(&status, &Kind::Valid).is_none_or(|known| known.message != says.message) {
        conditions::replace(&mut status, Kind::Valid, says, seen.now);
    }
    status
}

fn valid_status(seen: &DeploymentObservation, fleet: &Fleet<'_>, report: &Report) -> MachineDeploymentStatus {
    let deployment = &seen.deployment;
    let mut status = deployment.status().clone();
    status.observed_generation = deployment.generation().unwrap_or_default();
    status.replicas = fleet.sum(|set| set.counts.replicas);
    status.updated_replicas = fleet.new.as_ref().map_or(0, |new| new.counts.replicas);
    status.ready_replicas = fleet.sum(|set| set.counts.ready);
    status.available_replicas = fleet.sum(|set| set.counts.available);
    status.preserved_failed_replicas = fleet.sum(|set| set.counts.preserved_failed);
    status.unavailable_replicas =
        fleet.sum(super::fleet::SetState::spec).saturating_sub(status.available_replicas).max(0);
    status.failed_machines = fleet.all().flat_map(|set| failed_machines(set.machines)).collect();
    status.selector = deployment.selector().map(selector::to_query).unwrap_or_default();
    conditions::remove(&mut status, &Kind::Valid);
    set_conditions(seen, fleet, report, &mut status);
    status
}

fn set_conditions(
    seen: &DeploymentObservation,
    fleet: &Fleet<'_>,
    report: &Report,
    status: &mut MachineDeploymentStatus,
) {
    let (deployment, now) = (&seen.deployment, seen.now);
    conditions::set_available(status, fleet, now);
    set_replica_failure(seen, fleet, status);
    conditions::set_failed_updates(status, &failed_updates(seen, fleet), now);
    if deployment.is_deleting() {
        return;
    }
    conditions::set_paused(status, deployment, now);
    if let Some(name) = &report.created_set {
        let message = format!("Created new machine set \"{name}\"");
        conditions::put(
            status,
            Kind::Progressing,
            ConditionContent::new(ConditionStatus::True, reason::NEW_SET_CREATED, message),
            now,
        );
    } else if let Some(error) = &report.create_error {
        // The message names a cause. The cause can change while the reason stays, for example when the template and
        // with it the set changes.
        if conditions::is_new_create_error(status, error) {
            let says = ConditionContent::new(ConditionStatus::False, reason::SET_CREATE_ERROR, error.clone());
            conditions::replace(status, Kind::Progressing, says, now);
        }
    } else if let Some(new) = &fleet.new
        && conditions::find(status, &Kind::Progressing).is_none()
    {
        let message = format!("Found new machine set \"{}\"", new.name());
        conditions::put(
            status,
            Kind::Progressing,
            ConditionContent::new(ConditionStatus::True, reason::FOUND_NEW_SET, message),
            now,
        );
    }
    if deployment.is_paused() {
        return;
    }
    if in_place::lacks_target(seen) {
        let says = ConditionContent::new(ConditionStatus::False, reason::STRATEGY_NOT_SUPPORTED, in_place::NO_TARGET);
        conditions::put(status, Kind::Progressing, says, now);
    } else if !scaling::is_due(fleet) {
        // If a set can't be created, the status reports only that, whatever the other machines do. Otherwise two
        // reasons would alternate, and each change is a write. The original does the same.
        if report.create_error.is_none() {
            conditions::set_progress(status, fleet, now);
        }
        conditions::explain_progress(status, waits::explain(seen, fleet).as_deref());
    }
}

/// Machines whose update in place has failed, each with the message of its node.
fn failed_updates(seen: &DeploymentObservation, fleet: &Fleet<'_>) -> Vec<String> {
    let machines = fleet.all().flat_map(|set| set.machines).filter(|machine| !is_terminating(machine));
    let mut failed: Vec<String> = machines
        .filter_map(|machine| {
            let node = marks::node_of(seen, machine);
            let says_so = node.is_some_and(|(_, marks)| marks.result == Some(update_result::FAILED));
            if !says_so && !marks::has_failed(machine) {
                return None;
            }
            let why = node.and_then(|(node, _)| node.annotation(annotation::UPDATE_FAILED_REASON));
            let name = machine.name().to_owned();
            Some(why.map_or(name.clone(), |why| format!("{name} ({why})")))
        })
        .collect();
    failed.sort();
    failed
}

fn set_replica_failure(seen: &DeploymentObservation, fleet: &Fleet<'_>, status: &mut MachineDeploymentStatus) {
    let of_set = |conditions: &[MachineSetCondition]| {
        conditions.iter().find(|found| found.condition_type == MachineSetConditionType::ReplicaFailure).cloned()
    };
    let found = fleet.new.iter().chain(&fleet.old).find_map(|set| of_set(&set.set.status().conditions));
    match found {
        Some(failure) => {
            let says = ConditionContent { status: failure.status, reason: failure.reason, message: failure.message };
            let known = conditions::find(status, &Kind::ReplicaFailure);
            // Unlike most conditions this one names a cause, which may change while the reason stays (D-20).
            if known.is_some_and(|known| known.message != says.message) {
                conditions::replace(status, Kind::ReplicaFailure, says, seen.now);
            } else {
                conditions::put(status, Kind::ReplicaFailure, says, seen.now);
            }
        }
        None => conditions::remove(status, &Kind::ReplicaFailure),
    }
}

/// The content of a condition that decides about an event, without message and times.
fn said(condition: &MachineDeploymentCondition) -> (Kind, ConditionStatus, String) {
    (condition.condition_type.clone(), condition.status.clone(), condition.reason.clone())
}

fn news(deployment: &DeploymentSnapshot, wanted: &MachineDeploymentStatus) -> ChangeKind {
    let stored = deployment.status();
    if stored == wanted {
        return ChangeKind::None;
    }
    let all_said = |status: &'_ MachineDeploymentStatus| status.conditions.iter().map(said).collect::<BTreeSet<_>>();
    let says_the_same = all_said(stored) == all_said(wanted);
    let at_rest = conditions::is_complete(deployment, wanted) && wanted.ready_replicas == wanted.replicas;
    if !says_the_same || at_rest || stored.observed_generation != wanted.observed_generation {
        ChangeKind::Milestone
    } else {
        ChangeKind::Churn
    }
}

fn write(deployment: &DeploymentSnapshot, wanted: &MachineDeploymentStatus, errors: &[String], plan: &mut Plan) {
    if changes_status(deployment, wanted) {
        plan.push("status/deployment", Effect::WriteStatus(Box::new(wanted.clone())));
    }
    let news_of = |kind: &Kind, reason: &str| {
        let is = |status: &MachineDeploymentStatus| conditions::find(status, kind).is_some_and(|c| c.reason == reason);
        is(wanted) && !is(deployment.status())
    };
    if !errors.is_empty() && deployment.status().conditions != wanted.conditions {
        let selects_all = deployment.selector().is_some_and(selector::is_empty);
        let reason = if selects_all { reason::SELECTING_ALL } else { set_reason::FAILED_VALIDATION };
        plan.push("validity/deployment", Effect::Tell(EventNote::warning(reason, errors.join("; "))));
    }
    for (kind, reason) in [
        (Kind::Progressing, reason::STRATEGY_NOT_SUPPORTED),
        (Kind::InPlaceUpdateFailed, reason::IN_PLACE_UPDATE_FAILED),
    ] {
        if news_of(&kind, reason)
            && let Some(condition) = conditions::find(wanted, &kind)
        {
            plan.push("in-place/trouble", Effect::Tell(EventNote::warning(reason, condition.message.clone())));
        }
    }
}

#[cfg(test)]
mod tests {

    use controller_runtime::objects::Patch;
    use jiff::SignedDuration;
    use rstest::rstest;
    use serde_json::Value;

    use super::*;
    use crate::{
        deployment::{patches, testing::*},
        set::testing::{now, selector},
    };
    use controller_runtime::snapshot::Whole;
    use machine_api::v1alpha1::OrchestrationType;

    fn written(seen: &DeploymentObservation, report: &Report) -> Option<Value> {
        decide_status(seen, report).steps.into_iter().find_map(|step| match step.effect {
            effect @ Effect::WriteStatus(_) => match patches::of_deployment(&effect, &seen.deployment)? {
                (_, Patch::Merge(patch)) => Some(patch["status"].clone()),
                other => panic!("{other:?}"),
            },
            _ => None,
        })
    }

    fn reasons(status: &Value) -> Vec<&str> {
        status["conditions"].as_array().unwrap().iter().map(|c| c["reason"].as_str().unwrap()).collect()
    }

    #[test]
    fn counts_are_sums_over_the_sets() {
        let status = written(&seeing_sets(deployment(5, 1, 1).build(), vec![old(3, 3), new(3, 1)]), &Report::default());
        let status = status.unwrap();
        assert_eq!(
            [
                &status["replicas"],
                &status["updatedReplicas"],
                &status["availableReplicas"],
                &status["unavailableReplicas"]
            ],
            [6, 3, 4, 2]
        );
        assert_eq!(status["observedGeneration"], 1);
        assert_eq!(status["selector"], "set=x");
        assert_eq!(reasons(&status), ["MinimumReplicasAvailable", "MachineSetUpdated"]);
    }

    #[test]
    fn a_new_set_is_reported() {
        let report = Report { created_set: Some("md-new".to_owned()), create_error: None };
        let status = written(&seeing_sets(deployment(5, 1, 1).build(), vec![old(5, 5)]), &report).unwrap();
        assert!(reasons(&status).contains(&"MinimumReplicasAvailable"));
        let mut empty = new(5, 0);
        empty.machines.clear();
        let status = written(&seeing_sets(deployment(5, 1, 1).build(), vec![empty]), &report).unwrap();
        assert_eq!(reasons(&status), ["MinimumReplicasUnavailable", "NewMachineSetCreated"]);
    }

    /// Seed 8122: when the creation of a set was refused for hours, each attempt caused an event, or none did.
    #[rstest]
    #[case::no_machine_is_wanted(0, 0)]
    #[case::others_have_moved(5, 5)]
    #[case::some_are_missing(5, 3)]
    fn a_set_that_can_not_be_made_is_reported_once(#[case] replicas: i32, #[case] available: usize) {
        let report = Report { created_set: None, create_error: Some("no room for md-new".to_owned()) };
        let wanting = deployment(replicas, 1, 1).with(|d| d.spec.progress_deadline_seconds = Some(600));
        let mut seen = seeing_sets(wanting.build(), vec![old(replicas, available)]);
        let status = written(&seen, &report).unwrap();
        assert!(reasons(&status).contains(&reason::SET_CREATE_ERROR), "{status}");
        let deployment = seen.deployment.to_mut();
        let mut stored = serde_json::to_value(&deployment.status).unwrap();
        json_patch::merge(&mut stored, &status);
        deployment.status = serde_json::from_value(stored).unwrap();
        for seconds in [5, 700, 1500] {
            seen.now = now() + SignedDuration::from_secs(seconds);
            assert_eq!(written(&seen, &report), None, "{seconds} s later");
        }
    }

    /// Seed 12153: after a collision the status named the set that was refused first, and each attempt caused an event
    /// about the other one.
    #[test]
    fn another_set_that_can_not_be_made_is_reported_too() {
        let mut seen = seeing_sets(deployment(5, 1, 1).build(), vec![old(5, 5)]);
        let refused = |set: &str| Report { created_set: None, create_error: Some(format!("no room for {set}")) };
        for set in ["md-first", "md-second"] {
            let status = written(&seen, &refused(set)).unwrap();
            let deployment = seen.deployment.to_mut();
            let mut stored = serde_json::to_value(&deployment.status).unwrap();
            json_patch::merge(&mut stored, &status);
            deployment.status = serde_json::from_value(stored).unwrap();
            let known = conditions::find(&deployment.status, &Kind::Progressing).unwrap();
            assert_eq!(
                (known.reason.as_str(), &known.message),
                (reason::SET_CREATE_ERROR, &format!("no room for {set}"))
            );
            assert!(!conditions::is_new_create_error(&deployment.status, &format!("no room for {set}")));
        }
    }

    #[test]
    fn s_prog_09_the_failure_of_the_new_set_comes_first() {
        let failing = |mut seen: super::super::observe::SetSeen, message: &str| {
            seen.set.to_mut().status.conditions.push(MachineSetCondition {
                condition_type: MachineSetConditionType::ReplicaFailure,
                status: ConditionStatus::True,
                reason: "FailedCreate".to_owned(),
                message: message.to_owned(),
                last_transition_time: None,
            });
            seen
        };
        let sets = |of_new: &str| vec![failing(old(1, 1), "old"), failing(new(1, 1), of_new)];
        let message = |status: &Value| {
            let conditions = status["conditions"].as_array().unwrap().clone();
            conditions.iter().find(|c| c["type"] == "ReplicaFailure").unwrap()["message"].clone()
        };
        let mut seen = seeing_sets(deployment(2, 1, 1).build(), sets("new"));
        assert_eq!(message(&written(&seen, &Report::default()).unwrap()), "new");

        // D-20: the message changes with the cause.
        seen.deployment.to_mut().status = valid_status(&seen, &Fleet::of(&seen), &Report::default());
        assert_eq!(written(&seen, &Report::default()), None);
        seen.sets = sets("another cause");
        assert_eq!(message(&written(&seen, &Report::default()).unwrap()), "another cause");
    }

    #[test]
    fn s_inpl_24_without_nodes_nothing_can_be_updated_in_place() {
        let built = deployment(2, 1, 0).with(|d| d.spec.strategy = in_place(0, 1, OrchestrationType::Auto)).build();
        let seen = seeing_sets(built, vec![old(2, 2)]);
        assert_eq!(crate::deployment::decide::decide(&seen).steps, []);
        let plan = decide_status(&seen, &Report::default());
        let told = plan.steps.iter().find_map(|step| match &step.effect {
            Effect::Tell(note) => Some(format!("{}: {}", note.reason, note.message)),
            _ => None,
        });
        assert_eq!(
            told.unwrap(),
            "StrategyNotSupported: in-place updates are not supported if running without a target cluster"
        );
        assert!(reasons(&written(&seen, &Report::default()).unwrap()).contains(&"StrategyNotSupported"));
    }

    #[test]
    fn d_24_failed_updates_are_named_and_reported_once() {
        let built = deployment(2, 1, 0).with(|d| d.spec.strategy = in_place(0, 1, OrchestrationType::Auto)).build();
        let mut set = old(2, 2);
        set.machines[1].to_mut().status.current_status.phase = machine_api::v1alpha1::MachinePhase::InPlaceUpdateFailed;
        let mut seen = seeing_sets(built, vec![set]);
        seen.nodes = Some(std::collections::BTreeMap::new());
        let status = written(&seen, &Report::default()).unwrap();
        let failed = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "InPlaceUpdateFailed");
        assert_eq!(
            failed.unwrap()["message"],
            "1 machine failed to be updated in place and counts as unavailable: md-old-1. Repair the node and label it \
             node.machine.sapcloud.io/update-result=successful, or delete the machine"
        );
        let told = |seen: &DeploymentObservation| {
            let plan = decide_status(seen, &Report::default());
            plan.steps.iter().any(|step| matches!(&step.effect, Effect::Tell(note) if note.reason == "UpdateFailed"))
        };
        assert!(told(&seen));
        seen.deployment.to_mut().status = valid_status(&seen, &Fleet::of(&seen), &Report::default());
        assert!(!told(&seen));
        seen.sets[0].machines[1].to_mut().status.current_status.phase = machine_api::v1alpha1::MachinePhase::Running;
        let status = valid_status(&seen, &Fleet::of(&seen), &Report::default());
        assert!(conditions::find(&status, &Kind::InPlaceUpdateFailed).is_none());
    }

    #[test]
    fn the_wait_of_a_rollout_is_reported_and_is_no_progress() {
        use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

        use crate::set::testing::at;
        let mut seen = seeing_sets(deployment(3, 1, 0).build(), vec![old(3, 3), new(1, 1)]);
        let before = valid_status(&seen, &Fleet::of(&seen), &Report::default());
        let updated = conditions::find(&before, &Kind::Progressing).unwrap().last_update_time.clone();
        seen.deployment.to_mut().status = before;
        seen.sets[0].machines[0].to_mut().metadata.deletion_timestamp = Some(Time(at(0)));
        seen.now = at(31);
        let status = valid_status(&seen, &Fleet::of(&seen), &Report::default());
        let progressing = conditions::find(&status, &Kind::Progressing).unwrap();
        assert_eq!(
            progressing.message,
            "MachineSet \"md-new\" is progressing. Waiting for 1 old machine to end: md-old-0."
        );
        assert_eq!(progressing.last_update_time, updated);
    }

    #[test]
    fn s_md_03_an_empty_selector_is_reported_and_observed() {
        let built = deployment(2, 1, 0).with(|d| d.spec.selector = Some(selector(&[]))).build();
        let seen = seeing_sets(built, vec![]);
        let plan = decide_status(&seen, &Report::default());
        assert!(
            plan.steps.iter().any(|step| matches!(&step.effect, Effect::Tell(note) if note.reason == "SelectingAll"))
        );
        assert_eq!(written(&seen, &Report::default()).unwrap()["observedGeneration"], 1);
    }

    #[test]
    fn d_28_a_change_of_preserved_machines_alone_is_written() {
        let mut seen = seeing_sets(deployment(5, 1, 3).build(), vec![new(5, 3)]);
        seen.deployment.to_mut().status = valid_status(&seen, &Fleet::of(&seen), &Report::default());
        let machine = seen.sets[0].machines[4].to_mut();
        machine.status.current_status.phase = machine_api::v1alpha1::MachinePhase::Failed;
        machine.status.current_status.preserve_expiry_time =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
        assert_eq!(written(&seen, &Report::default()).unwrap(), serde_json::json!({ "preservedFailedReplicas": 1 }));
    }

    #[test]
    fn a_status_is_not_written_twice_and_churn_is_limited() {
        let mut seen = seeing_sets(deployment(5, 1, 3).build(), vec![new(5, 3)]);
        let told = valid_status(&seen, &Fleet::of(&seen), &Report::default());
        seen.deployment.to_mut().status = told;
        assert_eq!(decide_status(&seen, &Report::default()).steps, []);

        seen.sets[0].machines = machines_of(seen.sets[0].set.whole_object(), 5, 4);
        seen.status_written = Some(now());
        let plan = decide_status(&seen, &Report::default());
        assert_eq!(plan.steps, []);
        assert_ne!(plan.next, Next::OnChange);
    }
}
