//! How far the rollout of a deployment is, and what it waits for.
//!
//! Conditions and counts of the stored deployment decide; the waits are those of its machines. Pure. Source: spec/packaging §5.2, PK-073.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::{
    fleet::{Fleet, revision_of_deployment},
    output::{Health, Style},
    state::{MachineState, Wait, line, wait_lines},
};
use controller_runtime::snapshot::Snapshot;
use machine_api::{
    names::deployment_reason,
    v1alpha1::{ConditionStatus, MachineDeploymentCondition, MachineDeploymentConditionType as Kind},
};
use machine_controllers::{
    deployment::conditions::{find, is_complete},
    snapshots::DeploymentSnapshot,
};

/// The state of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Verdict {
    /// All machines are new and available.
    Complete,
    /// It goes on.
    Progressing,
    /// The deployment is paused, so it does not go on.
    Paused,
    /// It did not get on until its deadline, or its specification can't be acted on.
    Failed,
    /// The deployment is being deleted.
    Deleting,
}

impl Verdict {
    /// How well the deployment is.
    pub const fn health(self) -> Health {
        match self {
            Self::Complete => Health::Well,
            Self::Progressing | Self::Paused | Self::Deleting => Health::Busy,
            Self::Failed => Health::Bad,
        }
    }

    /// Whether nothing but a change by the user ends the state.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Progressing)
    }

    /// The state as the end of a sentence that begins with the deployment's name.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Complete => "is rolled out",
            Self::Progressing => "is being rolled out",
            Self::Paused => "is paused; kubectl mcm rollout resume goes on",
            Self::Failed => "is stuck",
            Self::Deleting => "is being deleted",
        }
    }
}

/// A rollout.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The namespace of the deployment.
    pub namespace: String,
    /// The deployment.
    pub name: String,
    /// The state.
    pub verdict: Verdict,
    /// The revision of the template.
    pub revision: i64,
    /// Wanted machines.
    pub wanted: i32,
    /// Machines with the present template.
    pub updated: i32,
    /// Available machines.
    pub available: i32,
    /// All machines.
    pub total: i32,
    /// What the conditions of the deployment report.
    pub waits: Vec<Wait>,
    /// The machines that the rollout waits for.
    pub waits_for: Vec<MachineState>,
}

impl Progress {
    /// The progress of a deployment.
    pub fn of(deployment: &DeploymentSnapshot, fleet: &Fleet) -> Self {
        let status = deployment.status();
        let verdict = verdict(deployment);
        let machines = fleet.machines_of_deployment(deployment).into_iter();
        let is_awaited = |state: &MachineState| state.health != Health::Well;
        Self {
            namespace: deployment.namespace().to_owned(),
            name: deployment.name().to_owned(),
            verdict,
            revision: revision_of_deployment(deployment),
            wanted: deployment.replicas(),
            updated: status.updated_replicas,
            available: status.available_replicas,
            total: status.replicas,
            waits: status.conditions.iter().filter_map(reported).collect(),
            waits_for: machines.map(|machine| fleet.state_of(machine)).filter(is_awaited).collect(),
        }
    }

    /// The first sentence: what the rollout does, and its counts.
    pub fn summary(&self) -> String {
        format!(
            "{} {} (revision {}): {} of {} machines updated, {} available, {} in all",
            self.name,
            self.verdict.words(),
            self.revision,
            self.updated,
            self.wanted,
            self.available,
            self.total
        )
    }

    /// The names of the machines that the rollout waits for, as the end of a message.
    pub fn awaited(&self) -> String {
        let names: Vec<&str> = self.waits_for.iter().map(|machine| machine.name.as_str()).collect();
        if names.is_empty() { String::new() } else { format!("; it waits for {}", names.join(", ")) }
    }

    /// Everything as text.
    pub fn text(&self, style: &Style) -> String {
        let mut text = format!("{} {}\n", style.mark(self.verdict.health()), self.summary());
        for wait in &self.waits {
            text.push_str(&line("  ", "reports", &format!("{}: {}", wait.reason, wait.message)));
        }
        for machine in &self.waits_for {
            text.push_str(&machine.title("  ", style));
            text.extend(machine.waits.iter().map(|wait| wait_lines(wait, "    ", style)));
        }
        text
    }
}

/// The state of a deployment's rollout.
pub fn verdict(deployment: &DeploymentSnapshot) -> Verdict {
    let status = deployment.status();
    let is = |kind: &Kind, holds: &ConditionStatus| find(status, kind).filter(|known| known.status == *holds);
    let has_timed_out = is(&Kind::Progressing, &ConditionStatus::False)
        .is_some_and(|known| known.reason == deployment_reason::DEADLINE_EXCEEDED);
    if deployment.is_deleting() {
        Verdict::Deleting
    } else if is_complete(deployment, status) {
        Verdict::Complete
    } else if deployment.is_paused() {
        Verdict::Paused
    } else if has_timed_out || is(&Kind::Valid, &ConditionStatus::False).is_some() {
        Verdict::Failed
    } else {
        Verdict::Progressing
    }
}

/// What a condition reports, if it reports something that a user must know.
fn reported(condition: &MachineDeploymentCondition) -> Option<Wait> {
    let is_bad = match condition.condition_type {
        Kind::Progressing => {
            ![deployment_reason::NEW_SET_AVAILABLE, deployment_reason::RESUMED].contains(&condition.reason.as_str())
        }
        Kind::Available | Kind::Valid => condition.status == ConditionStatus::False,
        _ => condition.status == ConditionStatus::True,
    };
    let time = |time: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time| -> Timestamp { time.0 };
    is_bad.then(|| Wait {
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: condition.last_transition_time.as_ref().map(time),
        ends_when: None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::super::{
        output::testing::plain,
        testing::{ago, deployment, fleet, now},
    };
    use super::*;

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({ "spec": { "replicas": 4 }, "status": { "conditions": [{ "type": kind, "status": status, "reason": reason,
            "message": "…", "lastTransitionTime": ago(5) }] } })
    }

    #[rstest]
    #[case::complete(json!({}), Verdict::Complete)]
    #[case::more_are_wanted(json!({ "spec": { "replicas": 4 } }), Verdict::Progressing)]
    #[case::the_change_is_not_seen_yet(json!({ "metadata": { "generation": 5 } }), Verdict::Progressing)]
    #[case::paused(json!({ "spec": { "replicas": 4, "paused": true } }), Verdict::Paused)]
    #[case::paused_and_complete(json!({ "spec": { "paused": true } }), Verdict::Complete)]
    #[case::too_late(condition("Progressing", "False", "ProgressDeadlineExceeded"), Verdict::Failed)]
    #[case::not_valid(condition("Valid", "False", "FailedValidation"), Verdict::Failed)]
    #[case::stuck_but_in_time(condition("Progressing", "True", "MachineSetUpdated"), Verdict::Progressing)]
    #[case::deleted(json!({ "metadata": { "deletionTimestamp": ago(5) } }), Verdict::Deleting)]
    fn pk_073_the_state_follows_from_the_stored_deployment(#[case] patch: Value, #[case] expected: Verdict) {
        assert_eq!(Progress::of(&deployment("web", 2, &patch), &fleet()).verdict, expected);
    }

    #[test]
    fn pk_073_the_machine_that_the_rollout_waits_for_is_named() {
        let fleet = fleet();
        let progress = Progress::of(&fleet.deployments[0], &fleet);
        assert_eq!(progress.awaited(), "; it waits for web-1-a");
        let text = progress.text(&plain(now()));
        assert_eq!(
            text,
            "! web is being rolled out (revision 2): 2 of 3 machines updated, 2 available, 3 in all\n  reports     \
             MachineSetUpdated: MachineSet \"web-2\" is progressing.\n  ✗ web-1-a is being drained, to be deleted\n    \
             waits for   Pod shop/db-0: PodDisruptionBudget shop/db allows 0 disruptions   since \
             2027-01-15T07:22:00Z (38m0s)\n"
        );
    }
}
