//! The state of one machine, as commands show it: stage, waits, time limits, next effects.
//!
//! With the views it is the outlook that the manager computes. Without them it is what the stored object says: its condition
//! `Progressing`, and its last operation. No rule of a controller is repeated here. Pure. Source: spec/packaging §5.2.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    effects,
    output::{Detail, Health, Style, length, one_line},
    views::{Blocker, Outlook},
};
use controller_runtime::snapshot::Snapshot;
use machine_api::{
    names::{label, machine_condition},
    v1alpha1::{MachinePhase, OperationState},
};
use machine_controllers::{
    deployment::waits::is_stuck,
    machine::{outlook::Stage, plan::deletion_stage::DeletionStage},
    snapshots::MachineSnapshot,
    times::rfc3339,
};

/// A wait.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The reason, as one word in CamelCase.
    pub reason: String,
    /// The reason, as a sentence.
    pub message: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
    /// What ends the wait. Absent if the message says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_when: Option<String>,
}

/// What happens at a time unless the machine gets on before.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Deadline {
    /// The limited action.
    pub name: String,
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The consequence.
    pub then: String,
}

/// What the machine controller does next.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct NextStep {
    /// The effect, as one word in CamelCase.
    pub effect: String,
    /// The effect as a sentence. Absent if it only writes down what is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
    /// The object that it changes, as `Kind name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// When; absent: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub at: Option<Timestamp>,
}

/// The state of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineState {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// How well it is.
    pub health: Health,
    /// The phase.
    pub phase: String,
    /// The stage of its life.
    #[schemars(extend("enum" = Stage::ALL.map(Stage::as_str)))]
    pub stage: &'static str,
    /// Since when it is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub deleting_since: Option<Timestamp>,
    /// Its Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its VM at the provider.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// What it waits for.
    pub waits: Vec<Wait>,
    /// Its time limits.
    pub deadlines: Vec<Deadline>,
    /// What comes next.
    pub next: Vec<NextStep>,
}

impl MachineState {
    /// The state of a machine, from its outlook if there is one.
    pub fn of(machine: &MachineSnapshot, outlook: Option<&Outlook>) -> Self {
        let computed = outlook.and_then(|outlook| Stage::ALL.into_iter().find(|stage| stage.as_str() == outlook.stage));
        let stage = computed.unwrap_or_else(|| Stage::of_stored(machine));
        let waits: Vec<Wait> = match outlook {
            Some(outlook) => outlook.blockers.iter().map(wait_of).collect(),
            None => stored_wait(machine).into_iter().collect(),
        };
        Self {
            namespace: machine.namespace().to_owned(),
            name: machine.name().to_owned(),
            health: health(machine, &waits),
            phase: machine.phase().as_str().to_owned(),
            stage: stage.as_str(),
            deleting_since: machine.deleting_since(),
            node: machine.label(label::NODE).filter(|name| !name.is_empty()).map(str::to_owned),
            provider_id: Some(machine.provider_id().to_owned()).filter(|id| !id.is_empty()),
            waits,
            deadlines: outlook.map(deadlines_of).unwrap_or_default(),
            next: outlook.map(next_of).unwrap_or_default(),
        }
    }

    /// The state as the end of a sentence that begins with the machine's name.
    pub fn words(&self) -> &'static str {
        let stage = Stage::ALL.into_iter().find(|stage| stage.as_str() == self.stage).unwrap_or(Stage::Create);
        words(stage)
    }

    /// The line with mark, name and state.
    pub fn title(&self, indent: &str, style: &Style) -> String {
        format!("{indent}{} {} {}\n", style.mark(self.health), self.name, self.words())
    }

    /// The lines about waits, limits and next effects.
    pub fn details(&self, indent: &str, style: &Style) -> String {
        let mut text: String = self.waits.iter().map(|wait| wait_lines(wait, indent, style)).collect();
        for deadline in &self.deadlines {
            text.push_str(&line(indent, "at latest", &format!("{}: {}", style.moment(deadline.at), deadline.then)));
        }
        for next in &self.next {
            let Some(sentence) = &next.sentence else { continue };
            let at = next.at.map(|at| format!(", at {}", style.moment(at))).unwrap_or_default();
            text.push_str(&line(indent, "then", &format!("{sentence}{at}")));
        }
        if style.detail == Detail::Wide {
            for (name, value) in [("VM", &self.provider_id), ("Node", &self.node)] {
                text.push_str(&value.as_ref().map(|value| line(indent, name, value)).unwrap_or_default());
            }
        }
        text
    }
}

/// A line of a text with facts.
pub fn line(indent: &str, name: &str, value: &str) -> String {
    format!("{indent}{name:<11} {}\n", one_line(value))
}

/// The lines about a wait.
pub fn wait_lines(wait: &Wait, indent: &str, style: &Style) -> String {
    let since = wait.since.map(|since| format!("   since {} ({})", rfc3339(since), length(style.now, since)));
    let (awaited, end) = parts(wait);
    // The name of the line says it already.
    let awaited = awaited.strip_prefix("waiting for ").unwrap_or(&awaited);
    let mut text = line(indent, "waits for", &format!("{awaited}{}", since.unwrap_or_default()));
    if let Some(end) = end {
        text.push_str(&line(indent, "ends when", &end));
    }
    text
}

/// What is awaited, and what ends the wait. The message of a manager has both in one sentence, with times that have lines of their own:
/// `being deleted since T; waiting for A since T: WHY; ends when E; at T CONSEQUENCE`.
pub fn parts(wait: &Wait) -> (String, Option<String>) {
    let mut message = one_line(&wait.message);
    if let Some(since) = wait.since {
        message = message.replacen(&format!(" since {}", rfc3339(since)), "", 1);
    }
    let (awaited, end) = match message.split_once("; ends when ") {
        Some((awaited, end)) => (awaited, Some(end.to_owned())),
        None => (message.as_str(), None),
    };
    let awaited = awaited.strip_prefix("being deleted; ").unwrap_or(awaited);
    (awaited.to_owned(), wait.ends_when.clone().or(end))
}

fn wait_of(blocker: &Blocker) -> Wait {
    Wait {
        reason: blocker.reason.clone(),
        message: blocker.message.clone(),
        since: blocker.since,
        ends_when: blocker.resolved_by.clone(),
    }
}

/// The wait that the stored object reports. The last operation counts only for machines of the Go original, which have no condition.
fn stored_wait(machine: &MachineSnapshot) -> Option<Wait> {
    let progressing = machine.machine_conditions().iter().find(|known| known.type_ == machine_condition::PROGRESSING);
    if let Some(known) = progressing {
        return (known.reason != machine_condition::REASON_SETTLED).then(|| Wait {
            reason: known.reason.clone(),
            message: known.message.clone(),
            since: Some(known.last_transition_time.0),
            ends_when: None,
        });
    }
    let last = machine.last_operation();
    let is_open = matches!(last.state, OperationState::Processing | OperationState::Failed);
    (is_open && !last.description.is_empty()).then(|| Wait {
        reason: format!("{}{}", last.operation.as_str(), last.state.as_str()),
        message: last.description.clone(),
        since: last.last_update_time.as_ref().map(|time| time.0),
        ends_when: None,
    })
}

fn deadlines_of(outlook: &Outlook) -> Vec<Deadline> {
    let limits = outlook.deadlines.iter();
    limits.map(|limit| Deadline { name: limit.name.clone(), at: limit.at, then: limit.on_expiry.clone() }).collect()
}

fn next_of(outlook: &Outlook) -> Vec<NextStep> {
    let effects = outlook.next_effects.iter();
    let object = |target: &super::views::Object| format!("{} {}", target.kind, target.name);
    effects
        .map(|next| NextStep {
            effect: next.effect.clone(),
            sentence: effects::sentence(next),
            object: next.target.as_ref().map(object),
            at: next.at,
        })
        .collect()
}

fn health(machine: &MachineSnapshot, waits: &[Wait]) -> Health {
    match machine.phase() {
        _ if is_stuck(machine) => Health::Bad,
        MachinePhase::Failed
        | MachinePhase::Unknown
        | MachinePhase::CrashLoopBackOff
        | MachinePhase::InPlaceUpdateFailed => Health::Bad,
        MachinePhase::Running | MachinePhase::Available if waits.is_empty() && !machine.is_deleting() => Health::Well,
        _ => Health::Busy,
    }
}

/// The stage as the end of a sentence.
const fn words(stage: Stage) -> &'static str {
    match stage {
        Stage::Create => "is being created",
        Stage::Join => "has a VM, and its Node is joining the cluster",
        Stage::Run => "runs",
        Stage::Unhealthy => "has an unhealthy or missing Node",
        Stage::Fail => "has failed",
        Stage::InPlace => "is being updated in place",
        Stage::Preserved => "is preserved",
        Stage::Frozen => "is left alone, because an API server does not answer",
        Stage::Deleting(stage) => match stage {
            DeletionStage::GetVmStatus => "is being deleted; the provider is asked about its VM",
            DeletionStage::Drain => "is being drained, to be deleted",
            DeletionStage::DeleteVolumeAttachments => "is being deleted; its volumes are detached",
            DeletionStage::DeleteVm => "is being deleted; its VM is deleted",
            DeletionStage::DeleteNode => "is being deleted; its Node is deleted",
            DeletionStage::RemoveFinalizer => "is being deleted; only its finalizer is left",
        },
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::testing::{ago, machine};
    use super::*;

    fn condition(reason: &str, message: &str) -> Value {
        json!({ "status": {
            "currentStatus": { "phase": "Running" },
            "machineConditions": [{
                "type": "Progressing", "status": "True", "reason": reason, "message": message,
                "lastTransitionTime": ago(60),
            }],
        } })
    }

    #[rstest]
    #[case::settled(condition("Settled", "the Node is ready"), Health::Well, None)]
    #[case::a_budget_blocks(condition("DrainBlocked", "waiting for Pod a/b"), Health::Bad, Some("waiting for Pod a/b"))]
    #[case::it_waits(condition("WaitingForNode", "waiting for Node n"), Health::Busy, Some("waiting for Node n"))]
    #[case::of_the_original(
        json!({ "status": { "currentStatus": { "phase": "CrashLoopBackOff" },
            "lastOperation": { "type": "Create", "state": "Failed", "description": "no quota" } } }),
        Health::Bad, Some("no quota"))]
    #[case::of_the_original_and_well(
        json!({ "status": { "currentStatus": { "phase": "Running" },
            "lastOperation": { "type": "Create", "state": "Successful", "description": "joined" } } }),
        Health::Well, None)]
    fn without_views_the_stored_words_are_shown(
        #[case] stored: Value,
        #[case] health: Health,
        #[case] message: Option<&str>,
    ) {
        let state = MachineState::of(&machine("m", &stored), None);
        assert_eq!((state.health, state.waits.first().map(|wait| wait.message.as_str())), (health, message));
    }

    #[test]
    fn an_outlook_replaces_the_stored_words() {
        let outlook: Outlook = serde_json::from_value(json!({
            "metadata": { "name": "m" }, "stage": "Drain",
            "blockers": [{ "reason": "DrainBlocked", "message": "computed", "since": ago(60), "resolvedBy": "a budget" }],
            "deadlines": [{ "name": "drain", "at": ago(-60), "onExpiry": "pods are deleted by force" }],
            "nextEffects": [
                { "effect": "PatchMachineStatus", "target": { "kind": "Machine", "name": "m" }, "when": "now" },
                { "effect": "DrainNode", "target": { "kind": "Node", "name": "n" }, "when": "now" },
            ],
        }))
        .unwrap();
        let state = MachineState::of(&machine("m", &condition("DrainBlocked", "stored")), Some(&outlook));
        assert_eq!(state.stage, "Drain");
        let text = state.details("  ", &super::super::output::testing::plain(super::super::testing::now()));
        assert_eq!(
            text,
            "  waits for   computed   since 2027-01-15T07:59:00Z (1m0s)\n  ends when   a budget\n  at latest   \
             2027-01-15T08:01:00Z (in 1m0s): pods are deleted by force\n  then        Node n is drained\n"
        );
    }

    #[test]
    fn a_message_of_several_lines_stays_in_its_line() {
        let stored = condition("Waiting", "waiting for\nNode n\r\n\tof a VM");
        let text = MachineState::of(&machine("m", &stored), None)
            .details("  ", &super::super::output::testing::plain(super::super::testing::now()));
        assert!(text.starts_with("  waits for   Node n of a VM   since") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn pk_071_each_blocker_of_the_views_has_its_object_its_time_and_a_way_out() {
        let answers = include_str!("../../extension/views/answers.txt").lines();
        let lists = answers.filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok());
        let lists = lists.filter(|value| value["kind"] == "MachineOutlookList");
        let outlooks = lists.flat_map(|list| list["items"].as_array().cloned().unwrap_or_default());
        let mut seen = std::collections::BTreeSet::new();
        let named = regex::Regex::new("\"[^\"]+\"").unwrap();
        for outlook in outlooks.filter(|outlook| outlook["blockers"].is_array()) {
            let outlook: Outlook = serde_json::from_value(outlook).unwrap();
            let text = MachineState::of(&machine(&outlook.metadata.name, &json!({})), Some(&outlook))
                .details("  ", &super::super::output::testing::plain(super::super::testing::now()));
            for blocker in &outlook.blockers {
                seen.insert(blocker.reason.clone());
                assert!(named.find_iter(&blocker.message).all(|name| text.contains(name.as_str())), "{text}");
                let since = format!("since {}", rfc3339(blocker.since.unwrap()));
                assert_eq!(text.matches(&since).count(), 1, "{text}");
                let end = format!("  ends when   {}\n", blocker.resolved_by.as_deref().unwrap());
                assert!(text.contains(&end), "{text}");
            }
            for limit in &outlook.deadlines {
                assert!(text.contains(&limit.on_expiry) && text.contains(&rfc3339(limit.at)), "{text}");
            }
        }
        assert!(seen.len() >= 3, "{seen:?}");
    }

    #[test]
    fn what_the_message_repeats_has_its_own_line() {
        let message = "being deleted since 2027-01-15T07:59:00Z; waiting for its node to be drained (shop/db-0): no eviction; \
                       ends when the budget allows it; at 2027-01-15T09:00:00Z pods are deleted by force";
        let text = MachineState::of(&machine("m", &condition("DrainBlocked", message)), None)
            .details("  ", &super::super::output::testing::plain(super::super::testing::now()));
        assert_eq!(
            text,
            "  waits for   its node to be drained (shop/db-0): no eviction   since 2027-01-15T07:59:00Z (1m0s)\n  ends when   \
             the budget allows it; at 2027-01-15T09:00:00Z pods are deleted by force\n"
        );
    }
}
