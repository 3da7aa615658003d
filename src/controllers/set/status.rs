//! What a set's status says, and when it is written.
//!
//! Source: spec/deployment-and-set §6.8, §6.9, D-08, D-20. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::{
    counts::{Counts, is_preserved_failed},
    observe::SetObservation,
    pacing::{News, Pace, pace},
    patches::merge_difference,
    plan::{Effect, Next, Plan},
    validity,
};
use crate::{
    api::{
        names::set_reason,
        selector,
        v1alpha1::{
            ConditionStatus, Machine, MachineSet, MachineSetCondition, MachineSetConditionType, MachineSetStatus,
            MachineSummary, OperationState, controller_of,
        },
    },
    cluster::{
        events::EventNote,
        objects::{Part, Patch},
    },
};

/// Machines whose last operation failed and which nobody keeps.
pub fn failed_machines<'a>(machines: impl IntoIterator<Item = &'a Arc<Machine>>) -> Vec<MachineSummary> {
    machines
        .into_iter()
        .filter(|machine| {
            machine.status.last_operation.state == OperationState::Failed && !is_preserved_failed(machine)
        })
        .map(|machine| MachineSummary {
            name: machine.metadata.name.clone().unwrap_or_default(),
            provider_id: machine.spec.provider_id.clone(),
            last_operation: machine.status.last_operation.clone(),
            owner_ref: controller_of(&machine.metadata).map(|owner| owner.name.clone()).unwrap_or_default(),
        })
        .collect()
}

/// The status that the set should have. `lastOperation` is left as it is.
fn wanted_status(seen: &SetObservation, claimed: &[Arc<Machine>], errors: &[String]) -> MachineSetStatus {
    let set = &seen.set;
    let mut status = set.status.clone();
    status.observed_generation = set.metadata.generation.unwrap_or_default();
    if errors.is_empty() {
        let counts = Counts::of(claimed.iter().map(AsRef::as_ref), set.spec.template.metadata.labels.as_ref());
        status.replicas = counts.replicas;
        status.fully_labeled_replicas = counts.fully_labeled;
        status.available_replicas = counts.available;
        status.ready_replicas = counts.ready;
        status.preserved_failed_replicas = counts.preserved_failed;
        status.auto_preserve_failed_machine_count = counts.auto_preserved;
        status.failed_machines = failed_machines(claimed);
        status.selector = set.spec.selector.as_ref().map(selector::to_query).unwrap_or_default();
        remove(&mut status.conditions, &MachineSetConditionType::Valid);
    } else {
        put(
            &mut status.conditions,
            MachineSetConditionType::Valid,
            ConditionStatus::False,
            set_reason::FAILED_VALIDATION,
            errors.join("; "),
            seen.now,
        );
    }
    match &seen.failure {
        Some(failure) => put(
            &mut status.conditions,
            MachineSetConditionType::ReplicaFailure,
            ConditionStatus::True,
            failure.reason,
            failure.message.clone(),
            seen.now,
        ),
        None => remove(&mut status.conditions, &MachineSetConditionType::ReplicaFailure),
    }
    status
}

fn remove(conditions: &mut Vec<MachineSetCondition>, kind: &MachineSetConditionType) {
    conditions.retain(|condition| condition.condition_type != *kind);
}

/// Sets a condition; one that says the same already is left untouched, a changed one goes to the end of the list.
fn put(
    conditions: &mut Vec<MachineSetCondition>,
    kind: MachineSetConditionType,
    status: ConditionStatus,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let before = conditions.iter().find(|condition| condition.condition_type == kind);
    if before.is_some_and(|known| known.status == status && known.reason == reason && known.message == message) {
        return;
    }
    let since = before.filter(|known| known.status == status).and_then(|known| known.last_transition_time.clone());
    remove(conditions, &kind);
    conditions.push(MachineSetCondition {
        condition_type: kind,
        status,
        last_transition_time: Some(since.unwrap_or(Time(now))),
        reason: reason.to_owned(),
        message,
    });
}

fn is_at_rest(set: &MachineSet, status: &MachineSetStatus) -> bool {
    status.replicas == set.spec.replicas
        && status.available_replicas == status.replicas
        && status.ready_replicas == status.replicas
}

/// Decides whether and how the status is written.
pub fn decide_status(seen: &SetObservation) -> Plan {
    let mut plan = Plan::default();
    let set = &seen.set;
    if set.metadata.deletion_timestamp.is_some() && !super::patches::has_finalizer(&set.metadata) {
        // The object is gone or about to be (D-32).
        return plan;
    }
    let errors = if set.metadata.deletion_timestamp.is_some() { Arc::default() } else { validity::set_errors(seen) };
    let wanted = wanted_status(seen, &seen.claimed(), &errors);
    let conditions_change = wanted.conditions != set.status.conditions;
    let news = if wanted == set.status {
        News::None
    } else if conditions_change || is_at_rest(set, &wanted) {
        News::Milestone
    } else {
        News::Churn
    };
    match pace(news, seen.status_written, seen.now) {
        Pace::Hold(next) => plan.next = next,
        Pace::Write => write(set, wanted, seen.now, &errors, &mut plan),
    }
    plan
}

fn write(set: &MachineSet, mut wanted: MachineSetStatus, now: Timestamp, errors: &[String], plan: &mut Plan) {
    let conditions_change = wanted.conditions != set.status.conditions;
    wanted.last_operation.last_update_time = Some(Time(now));
    if let Some(change) = merge_difference(&set.status, &wanted) {
        let patch = Patch::Merge(json!({ "status": change }));
        // The list of conditions is replaced whole, so nobody may have changed it meanwhile (D-15).
        let patch = if conditions_change { patch.guarded_by(set.metadata.resource_version.as_deref()) } else { patch };
        plan.push("status/set", Effect::PatchSet { part: Part::Status, patch });
    }
    if conditions_change && !errors.is_empty() {
        plan.push("validity/set", Effect::Tell(EventNote::warning(set_reason::FAILED_VALIDATION, errors.join("; "))));
    }
    plan.next = Next::OnChange;
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::Value;

    use super::*;
    use crate::{
        api::v1alpha1::MachinePhase,
        controllers::set::{observe::ReplicaFailure, testing::*},
    };

    /// The status part of the write that is decided on.
    fn written(seen: &SetObservation) -> Option<Value> {
        decide_status(seen).steps.into_iter().find_map(|step| match step.effect {
            Effect::PatchSet { part: Part::Status, patch: Patch::Merge(patch) } => Some(patch["status"].clone()),
            _ => None,
        })
    }

    /// A set whose status says what is true of these machines.
    fn settled(wanted: i32, machines: Vec<Machine>) -> SetObservation {
        let mut seen = seeing(set(wanted).build(), machines);
        let mut told = (*seen.set).clone();
        told.status = wanted_status(&seen, &seen.claimed(), &[]);
        seen.set = Arc::new(told);
        seen
    }

    #[test]
    fn s_msst_03_nothing_changed_nothing_is_written() {
        assert_eq!(decide_status(&settled(1, vec![running("a").build()])), Plan::default());
    }

    #[test]
    fn s_msst_04_a_new_generation_alone_is_written() {
        let mut seen = settled(1, vec![running("a").build()]);
        Arc::make_mut(&mut seen.set).metadata.generation = Some(7);
        let status = written(&seen).unwrap();
        assert_eq!(status["observedGeneration"], 7);
        assert!(status.get("replicas").is_none());
    }

    #[test]
    fn s_msst_05_a_failed_operation_is_listed_with_its_owner() {
        let machine = machine("a").phase(MachinePhase::Pending).failed_operation().build();
        let status = written(&seeing(set(1).build(), [machine])).unwrap();
        assert_eq!(status["failedMachines"][0]["name"], "a");
        assert_eq!(status["failedMachines"][0]["ownerRef"], "set");
    }

    #[test]
    fn s_pres_17_a_preserved_failed_machine_is_counted_and_not_listed() {
        let machine = failed("a").preserved_until(3600).failed_operation().build();
        let status = written(&seeing(set(1).build(), [machine])).unwrap();
        assert_eq!(status["preservedFailedReplicas"], 1);
        assert!(status.get("failedMachines").is_none());
    }

    fn failing(message: &str) -> ReplicaFailure {
        ReplicaFailure { reason: set_reason::FAILED_CREATE, message: message.to_owned() }
    }

    #[test]
    fn s_ms_29_a_failure_is_told_s_msst_07_refreshed_and_s_ms_30_taken_back() {
        let mut seen = settled(3, vec![]);
        seen.failure = Some(failing("quota"));
        let status = written(&seen).unwrap();
        assert_eq!(status["machineSetCondition"][0]["reason"], "FailedCreate");
        assert_eq!(status["machineSetCondition"][0]["message"], "quota");

        let mut told = (*seen.set).clone();
        told.status = wanted_status(&seen, &[], &[]);
        seen.set = Arc::new(told);
        assert_eq!(written(&seen), None);
        seen.failure = Some(failing("no permission"));
        assert_eq!(written(&seen).unwrap()["machineSetCondition"][0]["message"], "no permission");
        seen.failure = None;
        assert_eq!(written(&seen).unwrap()["machineSetCondition"], Value::Null);
    }

    #[rstest]
    #[case::churn_waits(vec![running("a").build()], false)]
    #[case::rest_is_written_at_once(vec![running("a").build(), running("b").build()], true)]
    fn counts_are_paced(#[case] machines: Vec<Machine>, #[case] expected: bool) {
        let mut seen = seeing(set(2).build(), machines);
        seen.status_written = Some(now());
        assert_eq!(written(&seen).is_some(), expected);
        assert_eq!(decide_status(&seen).next != Next::OnChange, !expected);
    }

    #[test]
    fn d_32_a_set_without_our_finalizer_that_ends_is_told_nothing() {
        let ends = set(1).deleting().with(|set| set.metadata.finalizers = None).build();
        assert_eq!(decide_status(&seeing(ends, [running("a").build()])), Plan::default());
    }

    #[test]
    fn an_invalid_set_says_so_once() {
        let mut seen = seeing(set(1).with(|set| set.spec.selector = None).build(), []);
        let plan = decide_status(&seen);
        assert!(
            plan.steps
                .iter()
                .any(|step| matches!(&step.effect, Effect::Tell(note) if note.reason == "FailedValidation"))
        );
        assert_eq!(written(&seen).unwrap()["machineSetCondition"][0]["type"], "Valid");
        // A rollout waits for sets that have not seen their size; this one has, although nothing will come of it.
        assert_eq!(written(&seen).unwrap()["observedGeneration"], 1);
        let mut told = (*seen.set).clone();
        told.status = wanted_status(&seen, &[], &validity::set_errors(&seen));
        seen.set = Arc::new(told);
        assert_eq!(decide_status(&seen), Plan::default());
        Arc::make_mut(&mut seen.set).metadata.generation = Some(2);
        assert_eq!(written(&seen).unwrap()["observedGeneration"], 2);
    }
}
