//! The part of the `Progressing` message that names the machines for which a rollout waits.
//!
//! The message is for users who watch a deployment. It names only what is delayed: an old machine whose own condition
//! says that its drain is stuck; an old machine that has been deleting, or updating in place, for longer than
//! [`HELD_UP`]; a new machine whose VM the provider refuses; nodes that the user must select. Not in the original,
//! whose texts come first in the message. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{
    fleet::{Fleet, SetState},
    in_place,
    observe::DeploymentObservation,
};
use crate::snapshots::MachineSnapshot;
use controller_runtime::snapshot::Snapshot;
use kube_values::field::cut;
use machine_api::{
    names::{label, machine_condition},
    v1alpha1::{MachinePhase, OrchestrationType, StrategyType},
};

/// A machine whose deletion or update in place takes longer than this is named.
pub const HELD_UP: Duration = Duration::from_secs(30);
/// Maximum number of machines named in a message; the others are counted.
const NAMED: usize = 3;
/// Maximum length of a text quoted from a machine, in characters.
const QUOTED: usize = 240;
/// The beginning of the explanation, after the text of the original.
const OPENING: &str = " Waiting for ";

/// The wait of the rollout. `None` if nothing is delayed.
pub fn explain(seen: &DeploymentObservation, fleet: &Fleet<'_>) -> Option<String> {
    if !fleet.is_rolling() {
        return None;
    }
    let mut parts = Vec::new();
    let ending = machines(&fleet.old, |machine| {
        ending_for(machine, seen.now).is_some_and(|time| time >= HELD_UP || is_stuck(machine))
    });
    parts.extend(part("old machine to end", "old machines to end", &ending));
    let updating = machines(&fleet.old, |machine| is_held_up_in_update(fleet, machine, seen.now));
    parts.extend(part("old machine to be updated", "old machines to be updated", &updating));
    let refused = fleet
        .new
        .as_ref()
        .map(|new| machines(std::slice::from_ref(new), |machine| *machine.phase() == MachinePhase::CrashLoopBackOff));
    parts.extend(part("new machine to be created", "new machines to be created", &refused.unwrap_or_default()));
    parts.extend(user_is_to_pick(seen, fleet));
    (!parts.is_empty()).then(|| format!("{OPENING}{}.", parts.join("; ")))
}

/// The message with this explanation instead of its earlier one.
pub fn with_explanation(message: &str, explanation: Option<&str>) -> String {
    let text = message.split(OPENING).next().unwrap_or(message);
    format!("{text}{}", explanation.unwrap_or_default())
}

/// Time until a machine that is being deleted or updated in place will be named.
pub fn next_mention(seen: &DeploymentObservation, fleet: &Fleet<'_>) -> Option<Duration> {
    let machines = fleet.old.iter().flat_map(|set| set.machines);
    machines
        .filter_map(|machine| ending_for(machine, seen.now).or_else(|| updating_for(machine, seen.now)))
        .filter_map(|time| HELD_UP.checked_sub(time))
        .filter(|left| !left.is_zero())
        .min()
}

fn ending_for(machine: &MachineSnapshot, now: Timestamp) -> Option<Duration> {
    let since = machine.deleting_since()?;
    Some(Duration::try_from(now.duration_since(since)).unwrap_or_default())
}

/// How long the Node's agent has been asked to update the Node in place.
fn updating_for(machine: &MachineSnapshot, now: Timestamp) -> Option<Duration> {
    if *machine.phase() != MachinePhase::InPlaceUpdating {
        return None;
    }
    let since = machine.last_operation().last_update_time.as_ref()?.0;
    Some(Duration::try_from(now.duration_since(since)).unwrap_or_default())
}

/// Whether the machine is to be updated in place and its drain or its agent makes no progress.
fn is_held_up_in_update(fleet: &Fleet<'_>, machine: &MachineSnapshot, now: Timestamp) -> bool {
    fleet.deployment.strategy().strategy_type == StrategyType::InPlaceUpdate
        && !machine.is_deleting()
        && (is_stuck(machine) || updating_for(machine, now).is_some_and(|time| time >= HELD_UP))
}

/// Whether the machine's own condition says that its drain makes no progress, because of a budget or an error.
pub fn is_stuck(machine: &MachineSnapshot) -> bool {
    let stuck = [machine_condition::REASON_DRAIN_BLOCKED, machine_condition::REASON_DRAIN_FAILED];
    progressing(machine).is_some_and(|found| stuck.contains(&found.reason.as_str()))
}

fn progressing(machine: &MachineSnapshot) -> Option<&Condition> {
    machine.machine_conditions().iter().find(|condition| condition.type_ == machine_condition::PROGRESSING)
}

fn machines<'a>(sets: &[SetState<'a>], which: impl Fn(&MachineSnapshot) -> bool) -> Vec<&'a MachineSnapshot> {
    let mut found: Vec<&MachineSnapshot> =
        sets.iter().flat_map(|set| set.machines).filter(|machine| which(machine)).collect();
    found.sort_by(|a, b| a.name().cmp(b.name()));
    found
}

fn part(one: &str, several: &str, machines: &[&MachineSnapshot]) -> Option<String> {
    if machines.is_empty() {
        return None;
    }
    let named: Vec<String> = machines.iter().take(NAMED).map(|machine| quote(machine)).collect();
    let more = match machines.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = if machines.len() == 1 { one } else { several };
    Some(format!("{} {what}: {}{more}", machines.len(), named.join(", ")))
}

/// A machine and its own message about its wait.
fn quote(machine: &MachineSnapshot) -> String {
    let name = machine.name();
    let said =
        progressing(machine).map_or(machine.last_operation().description.as_str(), |found| found.message.as_str());
    if said.is_empty() {
        return name.to_owned();
    }
    let quoted = cut(said.to_owned(), QUOTED);
    format!("{name} ({})", quoted.trim_end_matches('.'))
}

/// With orchestration `Manual` nothing happens until the user selects nodes.
fn user_is_to_pick(seen: &DeploymentObservation, fleet: &Fleet<'_>) -> Option<String> {
    let strategy = fleet.deployment.strategy();
    let manual = strategy.in_place_update.as_ref().is_some_and(|limits| {
        strategy.strategy_type == StrategyType::InPlaceUpdate && limits.orchestration_type == OrchestrationType::Manual
    });
    if !manual {
        return None;
    }
    let waiting = fleet
        .old
        .iter()
        .flat_map(|set| &set.kept)
        .filter(|machine| in_place::marks::node_of(seen, machine).is_some_and(|(_, marks)| !marks.selected))
        .count();
    (waiting > 0)
        .then(|| format!("you to pick nodes with the label {}; candidates left: {waiting}", label::SELECTED_FOR_UPDATE))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;
    use crate::{
        deployment::{observe::SetSeen, testing::*},
        set::testing::at,
    };

    fn ending(mut set: SetSeen, number: usize, since: i64, says: &str) -> SetSeen {
        let machine = set.machines[number].to_mut();
        machine.metadata.deletion_timestamp = Some(Time(at(since)));
        machine.status.machine_conditions = vec![Condition {
            type_: machine_condition::PROGRESSING.to_owned(),
            status: "True".to_owned(),
            reason: "Draining".to_owned(),
            message: says.to_owned(),
            last_transition_time: Time(at(since)),
            observed_generation: None,
        }];
        set
    }

    fn explained(sets: Vec<SetSeen>) -> Option<String> {
        let seen = seeing_sets(deployment(3, 1, 0).build(), sets);
        explain(&seen, &Fleet::of(&seen))
    }

    #[test]
    fn an_old_machine_that_is_held_up_is_named_with_its_own_words() {
        let set = ending(old(3, 3), 1, -40, "the budget default/db allows no eviction.");
        assert_eq!(
            explained(vec![set, new(1, 1)]).unwrap(),
            " Waiting for 1 old machine to end: md-old-1 (the budget default/db allows no eviction)."
        );
    }

    #[test]
    fn one_that_takes_its_usual_time_is_not() {
        assert_eq!(explained(vec![ending(old(3, 3), 1, -10, "…"), new(1, 1)]), None);
        let seen = seeing_sets(deployment(3, 1, 0).build(), vec![ending(old(3, 3), 1, -10, "…")]);
        assert_eq!(next_mention(&seen, &Fleet::of(&seen)), Some(Duration::from_secs(20)));
    }

    #[rstest]
    #[case::a_budget_refuses(machine_condition::REASON_DRAIN_BLOCKED, true)]
    #[case::an_attempt_has_failed(machine_condition::REASON_DRAIN_FAILED, true)]
    #[case::pods_end(machine_condition::REASON_DRAINING, false)]
    #[case::the_vm_ends(machine_condition::REASON_DELETING_VM, false)]
    fn a_machine_that_reports_to_be_stuck_is_named_at_once(#[case] reason: &str, #[case] named: bool) {
        let mut set = ending(old(3, 3), 1, -1, "the budget default/db allows no eviction.");
        reason.clone_into(&mut set.machines[1].to_mut().status.machine_conditions[0].reason);
        let expected = " Waiting for 1 old machine to end: md-old-1 (the budget default/db allows no eviction).";
        assert_eq!(explained(vec![set, new(1, 1)]).as_deref(), named.then_some(expected));
    }

    #[rstest]
    #[case::a_budget_refuses(MachinePhase::Running, machine_condition::REASON_DRAIN_BLOCKED, -1, true)]
    #[case::the_agent_is_silent(MachinePhase::InPlaceUpdating, machine_condition::REASON_WAITING_FOR_UPDATE, -30, true)]
    #[case::the_agent_has_just_begun(MachinePhase::InPlaceUpdating, machine_condition::REASON_WAITING_FOR_UPDATE, -29, false)]
    #[case::it_waits_for_its_turn(MachinePhase::Running, machine_condition::REASON_SETTLED, -300, false)]
    fn one_that_is_held_up_in_its_update_in_place_is_named(
        #[case] phase: MachinePhase,
        #[case] reason: &str,
        #[case] since: i64,
        #[case] named: bool,
    ) {
        let mut set = ending(old(3, 3), 1, since, "its words.");
        let machine = set.machines[1].to_mut();
        machine.metadata.deletion_timestamp = None;
        machine.status.current_status.phase = phase;
        machine.status.last_operation.last_update_time = Some(Time(at(since)));
        reason.clone_into(&mut machine.status.machine_conditions[0].reason);
        let explained = |strategy: StrategyType| {
            let deployment = deployment(3, 1, 0).with(|d| d.spec.strategy.strategy_type = strategy).build();
            let seen = seeing_sets(deployment, vec![set.clone(), new(1, 1)]);
            let fleet = Fleet::of(&seen);
            (explain(&seen, &fleet), next_mention(&seen, &fleet))
        };
        let expected = " Waiting for 1 old machine to be updated: md-old-1 (its words).";
        let (text, next) = explained(StrategyType::InPlaceUpdate);
        assert_eq!(text.as_deref(), named.then_some(expected));
        assert_eq!(next, (since == -29).then_some(Duration::from_secs(1)));
        assert_eq!(explained(StrategyType::RollingUpdate).0, None);
    }

    #[test]
    fn many_are_counted() {
        let set = (0..5).fold(old(5, 5), |set, number| ending(set, number, -60, ""));
        assert_eq!(
            explained(vec![set]).unwrap(),
            " Waiting for 5 old machines to end: md-old-0, md-old-1, md-old-2 and 2 more."
        );
    }

    #[test]
    fn a_refused_creation_is_named() {
        let mut set = new(1, 0);
        let machine = set.machines[0].to_mut();
        machine.status.current_status.phase = MachinePhase::CrashLoopBackOff;
        machine.status.last_operation.description = "no quota".to_owned();
        assert_eq!(
            explained(vec![old(3, 3), set]).unwrap(),
            " Waiting for 1 new machine to be created: md-new-0 (no quota)."
        );
    }

    #[test]
    fn an_explanation_replaces_the_one_before() {
        let text = with_explanation("MachineSet \"a\" is progressing.", Some(" Waiting for x."));
        assert_eq!(text, "MachineSet \"a\" is progressing. Waiting for x.");
        assert_eq!(with_explanation(&text, Some(" Waiting for y.")), "MachineSet \"a\" is progressing. Waiting for y.");
        assert_eq!(with_explanation(&text, None), "MachineSet \"a\" is progressing.");
    }
}
