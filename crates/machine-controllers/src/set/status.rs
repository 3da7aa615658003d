//! The status of a set, and when it is written.
//!
//! Source: spec/deployment-and-set §6.8, §6.9, D-08, D-20. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    counts::{Counts, is_preserved_failed},
    new_machine::without_new_names,
    observe::{ReplicaFailure, SetObservation},
    pacing::{ChangeKind, Pace, pace},
    plan::{Effect, Next, Plan},
    validity,
};
use crate::snapshots::{MachineSnapshot, SetSnapshot};
use controller_runtime::{events::EventNote, snapshot::Snapshot};
use kube_values::{field::cut, selector};
use machine_api::{
    names::set_reason,
    v1alpha1::{
        ConditionStatus, LastOperation, MachineSetCondition, MachineSetConditionType, MachineSetStatus, MachineSummary,
        OperationState,
    },
};

/// Machines whose last operation failed and that are not preserved.
pub fn failed_machines<'a>(machines: impl IntoIterator<Item = &'a MachineSnapshot>) -> Vec<MachineSummary> {
    machines
        .into_iter()
        .filter(|machine| machine.last_operation().state == OperationState::Failed && !is_preserved_failed(machine))
        .map(|machine| MachineSummary {
            name: machine.name().to_owned(),
            provider_id: machine.provider_id().to_owned(),
            last_operation: in_short(machine.last_operation()),
            owner_ref: machine.controller().map(|owner| owner.name.clone()).unwrap_or_default(),
        })
        .collect()
}

/// Maximum length of an operation's description in the status of an owner, in characters. All failed machines of a
/// deployment are in one object, whose size the API server limits.
const LONGEST_DESCRIPTION: usize = 300;

fn in_short(operation: &LastOperation) -> LastOperation {
    let description = cut(operation.description.clone(), LONGEST_DESCRIPTION);
    LastOperation { description, ..operation.clone() }
}

/// The wanted status of the set. `lastOperation` does not change.
fn wanted_status(seen: &SetObservation, claimed: &[MachineSnapshot], errors: &[String]) -> MachineSetStatus {
    let set = &seen.set;
    let mut status = set.status().clone();
    status.observed_generation = set.generation().unwrap_or_default();
    if errors.is_empty() {
        let counts = Counts::of(claimed, set.template().metadata.labels.as_ref());
        status.replicas = counts.replicas;
        status.fully_labeled_replicas = counts.fully_labeled;
        status.available_replicas = counts.available;
        status.ready_replicas = counts.ready;
        status.preserved_failed_replicas = counts.preserved_failed;
        status.auto_preserve_failed_machine_count = counts.auto_preserved;
        status.failed_machines = failed_machines(claimed);
        status.selector = set.selector().map(selector::to_query).unwrap_or_default();
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
    match trouble(seen) {
        // Each refusal contains the newly drawn name.
        Some(failure) if says_already(set, &failure) => {}
        Some(failure) => put(
            &mut status.conditions,
            MachineSetConditionType::ReplicaFailure,
            ConditionStatus::True,
            failure.reason,
            failure.message,
            seen.now,
        ),
        None => remove(&mut status.conditions, &MachineSetConditionType::ReplicaFailure),
    }
    status
}

/// Why machines are missing: a refusal, or the wait before machines that never joined are replaced.
fn trouble(seen: &SetObservation) -> Option<ReplicaFailure> {
    let waits = seen.hold.as_ref().map(|hold| ReplicaFailure {
        reason: set_reason::NEVER_JOINED,
        message: hold.message(),
        told: hold.since,
    });
    seen.failure.clone().or(waits)
}

/// Whether the condition of the set already says this, apart from the names of new machines.
fn says_already(set: &SetSnapshot, failure: &ReplicaFailure) -> bool {
    let name = set.name();
    set.status().conditions.iter().any(|known| {
        known.condition_type == MachineSetConditionType::ReplicaFailure
            && known.status == ConditionStatus::True
            && known.reason == failure.reason
            && without_new_names(name, &known.message) == without_new_names(name, &failure.message)
    })
}

fn remove(conditions: &mut Vec<MachineSetCondition>, kind: &MachineSetConditionType) {
    conditions.retain(|condition| condition.condition_type != *kind);
}

/// Sets a condition. An equal condition stays as it is; a changed one moves to the end of the list.
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

fn is_at_rest(set: &SetSnapshot, status: &MachineSetStatus) -> bool {
    status.replicas == set.replicas()
        && status.available_replicas == status.replicas
        && status.ready_replicas == status.replicas
}

/// Decides whether the status is written, and its content.
pub fn decide_status(seen: &SetObservation) -> Plan {
    let mut plan = Plan::default();
    let set = &seen.set;
    if set.is_deleting() && !super::patches::has_finalizer(set.metadata()) {
        // The object is gone or about to go (D-32).
        return plan;
    }
    let errors = if set.is_deleting() { Arc::default() } else { validity::set_errors(seen) };
    let wanted = wanted_status(seen, &seen.claimed(), &errors);
    let conditions_change = wanted.conditions != set.status().conditions;
    let news = if wanted == *set.status() {
        ChangeKind::None
    } else if conditions_change || is_at_rest(set, &wanted) {
        ChangeKind::Milestone
    } else {
        ChangeKind::Churn
    };
    match pace(news, seen.status_written, seen.now) {
        Pace::Hold(next) => plan.next = next,
        Pace::Write => write(set, wanted, seen.now, &errors, &mut plan),
    }
    plan
}

fn write(set: &SetSnapshot, mut wanted: MachineSetStatus, now: Timestamp, errors: &[String], plan: &mut Plan) {
    let conditions_change = wanted.conditions != set.status().conditions;
    wanted.last_operation.last_update_time = Some(Time(now));
    if wanted != *set.status() {
        plan.push("status/set", Effect::WriteStatus(Box::new(wanted)));
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
    use crate::set::{back_off::Hold, patches::patch_of_set, testing::*};
    use controller_runtime::objects::{Part, Patch};
    use machine_api::v1alpha1::Machine;
    use machine_api::v1alpha1::MachinePhase;

    /// The status in the decided write.
    fn written(seen: &SetObservation) -> Option<Value> {
        decide_status(seen).steps.iter().find_map(|step| match patch_of_set(&step.effect, &seen.set) {
            Some((Part::Status, Patch::Merge(patch))) => Some(patch["status"].clone()),
            _ => None,
        })
    }

    /// A set whose status describes these machines.
    fn settled(wanted: i32, machines: Vec<Machine>) -> SetObservation {
        let mut seen = seeing(set(wanted).build(), machines);
        seen.set.to_mut().status = wanted_status(&seen, &seen.claimed(), &[]);
        seen
    }

    #[test]
    fn s_msst_03_nothing_changed_nothing_is_written() {
        assert_eq!(decide_status(&settled(1, vec![running("a").build()])), Plan::default());
    }

    #[test]
    fn s_msst_04_a_new_generation_alone_is_written() {
        let mut seen = settled(1, vec![running("a").build()]);
        seen.set.to_mut().metadata.generation = Some(7);
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

    /// A driver repeats the message of its cloud on each of a thousand machines.
    #[test]
    fn messages_of_failed_machines_are_short_in_the_status_of_their_owner() {
        let operation = LastOperation { description: "x".repeat(30_000), ..LastOperation::default() };
        assert_eq!(in_short(&operation).description.chars().count(), LONGEST_DESCRIPTION);
        let operation = LastOperation { description: "no quota".to_owned(), ..LastOperation::default() };
        assert_eq!(in_short(&operation), operation);
    }

    #[test]
    fn s_pres_17_a_preserved_failed_machine_is_counted_and_not_listed() {
        let machine = failed("a").preserved_until(3600).failed_operation().build();
        let status = written(&seeing(set(1).build(), [machine])).unwrap();
        assert_eq!(status["preservedFailedReplicas"], 1);
        assert!(status.get("failedMachines").is_none());
    }

    fn failing(message: &str) -> ReplicaFailure {
        ReplicaFailure { reason: set_reason::FAILED_CREATE, message: message.to_owned(), told: now() }
    }

    #[test]
    fn s_ms_29_a_failure_is_reported_s_msst_07_refreshed_and_s_ms_30_removed() {
        let mut seen = settled(3, vec![]);
        seen.failure = Some(failing("quota"));
        let status = written(&seen).unwrap();
        assert_eq!(status["machineSetCondition"][0]["reason"], "FailedCreate");
        assert_eq!(status["machineSetCondition"][0]["message"], "quota");

        seen.set.to_mut().status = wanted_status(&seen, &[], &[]);
        assert_eq!(written(&seen), None);
        seen.failure = Some(failing("no permission"));
        assert_eq!(written(&seen).unwrap()["machineSetCondition"][0]["message"], "no permission");
        seen.failure = None;
        assert_eq!(written(&seen).unwrap()["machineSetCondition"], Value::Null);
    }

    const REFUSED: &str =
        "Error creating: forbidden: machines.machine.sapcloud.io \"set-bcdfg\" is forbidden: exceeded quota";

    #[rstest]
    #[case::under_another_name(REFUSED.replace("bcdfg", "x2z4v"), false)]
    #[case::for_another_cause(REFUSED.replace("exceeded", "failed"), true)]
    #[case::of_another_set(REFUSED.replace("set-bcdfg", "other-bcdfg"), true)]
    fn a_failure_is_written_again_when_its_cause_changes(#[case] message: String, #[case] expected: bool) {
        let mut seen = settled(3, vec![]);
        seen.failure = Some(failing(REFUSED));
        seen.set.to_mut().status = wanted_status(&seen, &[], &[]);
        seen.failure = Some(failing(&message));
        assert_eq!(written(&seen).is_some(), expected);
    }

    #[rstest]
    #[case::for_the_first_time(None, REFUSED, 0, true)]
    #[case::under_another_name(Some(REFUSED), "set-x2z4v", 60, false)]
    #[case::an_hour_later(Some(REFUSED), "set-x2z4v", 3600, true)]
    #[case::for_another_cause(Some("Error creating: no"), "set-bcdfg", 60, true)]
    fn an_event_reports_a_failure_once_an_hour(
        #[case] known: Option<&str>,
        #[case] name: &str,
        #[case] later: i64,
        #[case] expected: bool,
    ) {
        let mut seen = settled(3, vec![]);
        seen.failure = known.map(failing);
        seen.now = at(later);
        let failure = ReplicaFailure::after(set_reason::FAILED_CREATE, REFUSED.replace("set-bcdfg", name), &seen);
        assert_eq!(failure.is_news(&seen), expected);
    }

    #[test]
    fn a_wait_before_replacements_is_explained_unless_something_was_refused() {
        let mut seen = settled(3, vec![]);
        let hold = Hold { since: now(), until: at(30), replacements: 1, in_a_row: 3, last: "m".to_owned() };
        seen.hold = Some(hold.clone());
        let condition = &written(&seen).unwrap()["machineSetCondition"][0];
        assert_eq!(
            (&condition["type"], &condition["reason"]),
            (&"ReplicaFailure".into(), &"MachinesNeverJoined".into())
        );
        assert_eq!(condition["message"], hold.message());
        seen.failure = Some(failing("quota"));
        assert_eq!(written(&seen).unwrap()["machineSetCondition"][0]["message"], "quota");
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
    fn d_32_an_ending_set_without_our_finalizer_gets_no_status() {
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
        // A rollout waits for sets that have not observed their size. This set has observed it, although it will not
        // act on it.
        assert_eq!(written(&seen).unwrap()["observedGeneration"], 1);
        seen.set.to_mut().status = wanted_status(&seen, &[], &validity::set_errors(&seen));
        assert_eq!(decide_status(&seen), Plan::default());
        seen.set.to_mut().metadata.generation = Some(2);
        assert_eq!(written(&seen).unwrap()["observedGeneration"], 2);
    }
}
