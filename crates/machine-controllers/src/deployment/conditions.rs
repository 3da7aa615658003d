//! Sets the conditions of a deployment, above all `Available` and `Progressing`.
//!
//! Source: spec/deployment-and-set §7.3, §14. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{fleet::Fleet, waits};
use crate::snapshots::DeploymentSnapshot;
use controller_runtime::snapshot::Snapshot;
use machine_api::{
    names::{deployment_reason as reason, label, update_result},
    v1alpha1::{
        ConditionStatus, MachineDeploymentCondition, MachineDeploymentConditionType as Kind, MachineDeploymentStatus,
    },
};

const LAST_SECOND: Duration = Duration::from_secs(1);
/// A deadline has passed only when it lies before now, so the check comes this much later.
const SHORTLY: Duration = Duration::from_millis(1);

/// The condition of a kind.
pub fn find<'a>(status: &'a MachineDeploymentStatus, kind: &Kind) -> Option<&'a MachineDeploymentCondition> {
    status.conditions.iter().find(|condition| condition.condition_type == *kind)
}

/// Removes the condition of a kind.
pub fn remove(status: &mut MachineDeploymentStatus, kind: &Kind) {
    status.conditions.retain(|condition| condition.condition_type != *kind);
}

/// The content of a condition without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionContent {
    /// Whether it holds.
    pub status: ConditionStatus,
    /// The reason, for programs.
    pub reason: String,
    /// The message, for users.
    pub message: String,
}

impl ConditionContent {
    /// Content with this status, reason and message.
    pub fn new(status: ConditionStatus, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: message.into() }
    }
}

/// Sets a condition. A condition with the same status and reason stays as it is. A changed condition moves to the end
/// of the list; its transition time changes only if its status changes.
pub fn put(status: &mut MachineDeploymentStatus, kind: Kind, says: ConditionContent, now: Timestamp) {
    let before = find(status, &kind);
    if before.is_some_and(|known| known.status == says.status && known.reason == says.reason) {
        return;
    }
    replace(status, kind, says, now);
}

/// Sets a condition even if its status and reason are the same; its update time becomes `now`.
pub fn replace(status: &mut MachineDeploymentStatus, kind: Kind, says: ConditionContent, now: Timestamp) {
    let before = find(status, &kind);
    let since = before.filter(|known| known.status == says.status).and_then(|known| known.last_transition_time.clone());
    let ConditionContent { status: holds, reason, message } = says;
    remove(status, &kind);
    status.conditions.push(MachineDeploymentCondition {
        condition_type: kind,
        status: holds,
        last_update_time: Some(Time(now)),
        last_transition_time: Some(since.unwrap_or(Time(now))),
        reason,
        message,
    });
}

/// Sets `Available`.
pub fn set_available(status: &mut MachineDeploymentStatus, fleet: &Fleet<'_>, now: Timestamp) {
    let least = (fleet.min_available() - status.preserved_failed_replicas).max(0);
    let says = if status.available_replicas >= least {
        ConditionContent::new(ConditionStatus::True, reason::MINIMUM_AVAILABLE, "Deployment has minimum availability.")
    } else {
        ConditionContent::new(
            ConditionStatus::False,
            reason::MINIMUM_UNAVAILABLE,
            "Deployment does not have minimum availability.",
        )
    };
    put(status, Kind::Available, says, now);
}

/// Sets `Progressing` when the deployment is paused or resumed.
pub fn set_paused(status: &mut MachineDeploymentStatus, deployment: &DeploymentSnapshot, now: Timestamp) {
    let known = find(status, &Kind::Progressing).map(|condition| condition.reason.as_str());
    if known == Some(reason::DEADLINE_EXCEEDED) {
        return;
    }
    let is_reported = known == Some(reason::PAUSED);
    if deployment.is_paused() && !is_reported {
        put(
            status,
            Kind::Progressing,
            ConditionContent::new(ConditionStatus::Unknown, reason::PAUSED, "Deployment is paused"),
            now,
        );
    } else if !deployment.is_paused() && is_reported {
        let says = ConditionContent::new(ConditionStatus::Unknown, reason::RESUMED, "Deployment is resumed");
        put(status, Kind::Progressing, says, now);
    }
}

/// Whether the status says that all machines are new and available, and that their number is the wanted one.
pub fn is_complete(deployment: &DeploymentSnapshot, status: &MachineDeploymentStatus) -> bool {
    let replicas = deployment.replicas();
    status.updated_replicas == replicas
        && status.replicas == replicas
        && status.available_replicas == replicas
        && status.observed_generation >= deployment.generation().unwrap_or_default()
}

/// Sets `Progressing` according to the difference between the stored status and the new one.
pub fn set_progress(status: &mut MachineDeploymentStatus, fleet: &Fleet<'_>, now: Timestamp) {
    let stored = fleet.deployment.status();
    let known = find(status, &Kind::Progressing).cloned();
    let reason_is = |wanted: &str| known.as_ref().is_some_and(|condition| condition.reason == wanted);
    if status.replicas == status.updated_replicas && reason_is(reason::NEW_SET_AVAILABLE) {
        return;
    }
    let subject = match &fleet.new {
        Some(new) => format!("MachineSet \"{}\"", new.name()),
        None => format!("Machine Deployment \"{}\"", fleet.deployment.name()),
    };
    let moved = status.updated_replicas > stored.updated_replicas
        || status.replicas - status.updated_replicas < stored.replicas - stored.updated_replicas
        || status.ready_replicas > stored.ready_replicas
        || status.available_replicas > stored.available_replicas;
    if is_complete(fleet.deployment, status) {
        let message = format!("{subject} has successfully progressed.");
        put(
            status,
            Kind::Progressing,
            ConditionContent::new(ConditionStatus::True, reason::NEW_SET_AVAILABLE, message),
            now,
        );
    } else if moved {
        let message = format!("{subject} is progressing.");
        replace(
            status,
            Kind::Progressing,
            ConditionContent::new(ConditionStatus::True, reason::SET_UPDATED, message),
            now,
        );
    } else if has_timed_out(fleet.deployment, known.as_ref(), now) {
        let message = format!("{subject} has timed out progressing.");
        put(
            status,
            Kind::Progressing,
            ConditionContent::new(ConditionStatus::False, reason::DEADLINE_EXCEEDED, message),
            now,
        );
    }
}

/// Replaces the explanation in `Progressing` that says which machines the rollout waits for; `None` removes it. The
/// times of the condition do not change, because a rollout that waits makes no progress.
pub fn explain_progress(status: &mut MachineDeploymentStatus, explanation: Option<&str>) {
    let progressing = status.conditions.iter_mut().find(|condition| condition.condition_type == Kind::Progressing);
    if let Some(condition) = progressing {
        condition.message = waits::with_explanation(&condition.message, explanation);
    }
}

/// Sets the condition that names the machines whose update in place failed, or removes it if there are none (D-24).
pub fn set_failed_updates(status: &mut MachineDeploymentStatus, failed: &[String], now: Timestamp) {
    if failed.is_empty() {
        return remove(status, &Kind::InPlaceUpdateFailed);
    }
    let message = format!(
        "{} failed to be updated in place and counts as unavailable: {}. Repair the node and label it {}={}, or delete \
         the machine",
        if failed.len() == 1 { "1 machine".to_owned() } else { format!("each of {} machines", failed.len()) },
        failed.join(", "),
        label::UPDATE_RESULT,
        update_result::SUCCESSFUL,
    );
    if find(status, &Kind::InPlaceUpdateFailed).is_none_or(|known| known.message != message) {
        let says = ConditionContent::new(ConditionStatus::True, reason::IN_PLACE_UPDATE_FAILED, message);
        replace(status, Kind::InPlaceUpdateFailed, says, now);
    }
}

fn deadline(deployment: &DeploymentSnapshot, progressing: &MachineDeploymentCondition) -> Option<Timestamp> {
    let seconds = SignedDuration::from_secs(i64::from(deployment.progress_deadline_seconds()?));
    progressing.last_update_time.as_ref()?.0.checked_add(seconds).ok()
}

fn has_timed_out(
    deployment: &DeploymentSnapshot,
    progressing: Option<&MachineDeploymentCondition>,
    now: Timestamp,
) -> bool {
    let Some(progressing) = progressing.filter(|_| deployment.progress_deadline_seconds().is_some()) else {
        return false;
    };
    match progressing.reason.as_str() {
        reason::NEW_SET_AVAILABLE => false,
        reason::DEADLINE_EXCEEDED => true,
        _ => deadline(deployment, progressing).is_some_and(|deadline| deadline < now),
    }
}

/// Time until the check whether a rollout without progress has timed out: one second after its deadline. If less than a
/// second is left, the check comes right after the deadline.
pub fn timeout_check(
    deployment: &DeploymentSnapshot,
    status: &MachineDeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    let progressing = find(status, &Kind::Progressing)?;
    if is_complete(deployment, status) || has_timed_out(deployment, Some(progressing), now) {
        return None;
    }
    if progressing.reason == reason::NEW_SET_AVAILABLE || deployment.is_paused() {
        return None;
    }
    let left = Duration::try_from(deadline(deployment, progressing)?.duration_since(now)).unwrap_or_default();
    // The original checks continuously in the last second.
    Some(left + if left < LAST_SECOND { SHORTLY } else { LAST_SECOND })
}

/// Whether a failed creation of a set deserves an event. Not if the stored condition already says the same, because the
/// creation is retried as long as it fails.
pub(super) fn is_new_create_error(status: &MachineDeploymentStatus, error: &str) -> bool {
    find(status, &Kind::Progressing)
        .is_none_or(|known| known.reason != reason::SET_CREATE_ERROR || !known.message.starts_with(error))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{
        deployment::testing::*,
        set::testing::{at, now},
    };

    fn progressing(reason: &str, updated: i64) -> MachineDeploymentCondition {
        MachineDeploymentCondition {
            condition_type: Kind::Progressing,
            status: ConditionStatus::True,
            last_update_time: Some(Time(at(updated))),
            last_transition_time: Some(Time(at(-5000))),
            reason: reason.to_owned(),
            message: String::new(),
        }
    }

    #[rstest]
    #[case::for_the_first_time(reason::FOUND_NEW_SET, "no room", true)]
    #[case::as_before(reason::SET_CREATE_ERROR, "no room", false)]
    #[case::as_before_with_a_wait(reason::SET_CREATE_ERROR, "no room Waiting for the set.", false)]
    #[case::for_another_cause(reason::SET_CREATE_ERROR, "no permission", true)]
    fn an_event_reports_a_set_that_can_not_be_made_once_per_cause(
        #[case] stored: &str,
        #[case] message: &str,
        #[case] expected: bool,
    ) {
        let known = MachineDeploymentCondition { message: message.to_owned(), ..progressing(stored, 0) };
        let status = MachineDeploymentStatus { conditions: vec![known], ..counts(1, 1, 1) };
        assert_eq!(is_new_create_error(&status, "no room"), expected);
    }

    fn counts(replicas: i32, updated: i32, available: i32) -> MachineDeploymentStatus {
        MachineDeploymentStatus {
            observed_generation: 1,
            replicas,
            updated_replicas: updated,
            available_replicas: available,
            ready_replicas: available,
            ..MachineDeploymentStatus::default()
        }
    }

    /// The reason of `Progressing` after the counts changed from the stored status to these.
    fn condition_after(
        deadline: Option<i32>,
        stored: MachineDeploymentStatus,
        now_counted: &MachineDeploymentStatus,
        known: MachineDeploymentCondition,
    ) -> MachineDeploymentCondition {
        let built = deployment(5, 1, 1).with(|d| {
            d.status = stored;
            d.spec.progress_deadline_seconds = deadline;
        });
        let seen = seeing_sets(built.build(), vec![new(5, 5)]);
        let mut status = now_counted.clone();
        status.conditions = vec![known];
        set_progress(&mut status, &Fleet::of(&seen), now());
        find(&status, &Kind::Progressing).unwrap().clone()
    }

    #[test]
    fn s_prog_01_all_is_new_and_available() {
        let condition = condition_after(None, counts(5, 4, 4), &counts(5, 5, 5), progressing(reason::SET_UPDATED, -9));
        assert_eq!(condition.reason, reason::NEW_SET_AVAILABLE);
        assert_eq!(condition.message, "MachineSet \"md-new\" has successfully progressed.");
        assert_eq!(condition.last_transition_time, Some(Time(at(-5000))));
    }

    #[test]
    fn s_prog_02_more_are_available() {
        let condition = condition_after(None, counts(5, 5, 2), &counts(5, 5, 3), progressing(reason::SET_UPDATED, -9));
        assert_eq!(condition.reason, reason::SET_UPDATED);
        assert_eq!(
            (condition.last_update_time, condition.last_transition_time),
            (Some(Time(now())), Some(Time(at(-5000))))
        );
    }

    #[rstest]
    #[case::s_prog_03_nothing_moved_for_too_long(Some(600), -700, "ProgressDeadlineExceeded")]
    #[case::not_yet(Some(600), -500, "MachineSetUpdated")]
    #[case::s_prog_04_no_deadline(None, -70_000, "MachineSetUpdated")]
    fn a_rollout_times_out(#[case] deadline: Option<i32>, #[case] updated: i64, #[case] expected: &str) {
        let condition =
            condition_after(deadline, counts(5, 5, 2), &counts(5, 5, 2), progressing(reason::SET_UPDATED, updated));
        assert_eq!(condition.reason, expected);
    }

    #[rstest]
    #[case::s_prog_05_in_time(-180_000, Some(421_000))]
    #[case::s_prog_06_almost_over(-599_500, Some(501))]
    #[case::s_prog_06_over_right_now(-600_000, Some(1))]
    fn a_stuck_rollout_is_looked_at_again(#[case] updated_millis: i64, #[case] expected_millis: Option<u64>) {
        let built = deployment(5, 1, 1).with(|d| d.spec.progress_deadline_seconds = Some(600)).snapshot();
        let mut condition = progressing(reason::SET_UPDATED, 0);
        condition.last_update_time = Some(Time(now() + SignedDuration::from_millis(updated_millis)));
        let status = MachineDeploymentStatus { conditions: vec![condition], ..counts(5, 5, 2) };
        let expected = expected_millis.map(Duration::from_millis);
        assert_eq!(timeout_check(&built, &status, now()), expected);
    }

    #[rstest]
    #[case::s_prog_07_preserved_machines_are_excused(2, "MinimumReplicasAvailable")]
    #[case::s_prog_08_one_too_few(1, "MinimumReplicasUnavailable")]
    fn enough_machines_are_available(#[case] available: i32, #[case] expected: &str) {
        let seen = seeing_sets(deployment(5, 0, 1).build(), vec![]);
        let mut status = MachineDeploymentStatus { preserved_failed_replicas: 2, ..counts(5, 5, available) };
        set_available(&mut status, &Fleet::of(&seen), now());
        assert_eq!(find(&status, &Kind::Available).unwrap().reason, expected);
    }

    #[test]
    fn s_prog_10_a_pause_and_its_end_are_reported() {
        let mut status = counts(5, 5, 5);
        let mut deployment = deployment(5, 1, 1).with(|d| d.spec.paused = true).snapshot();
        set_paused(&mut status, &deployment, now());
        let condition = find(&status, &Kind::Progressing).unwrap();
        assert_eq!((condition.reason.as_str(), &condition.status), (reason::PAUSED, &ConditionStatus::Unknown));
        deployment.to_mut().spec.paused = false;
        set_paused(&mut status, &deployment, now());
        let condition = find(&status, &Kind::Progressing).unwrap();
        assert_eq!((condition.reason.as_str(), &condition.status), (reason::RESUMED, &ConditionStatus::Unknown));
    }
}
