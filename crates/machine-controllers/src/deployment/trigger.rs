//! Machines that cluster-autoscaler wants deleted: turns the list on the deployment into marks on machines.
//!
//! The set controller then deletes marked machines first. Source: spec/deployment-and-set §16. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{
    observe::DeploymentObservation,
    plan::{Effect, Plan},
};
use crate::{
    changes::{self, Changes},
    set::counts::{is_failed, is_terminating},
    snapshots::MachineSnapshot,
};
use controller_runtime::snapshot::Snapshot;
use machine_api::names::annotation;

/// Adds the marks for the machines in the deployment's list, and removes entries that are done or can't be carried out.
/// Returns whether anything was added.
pub fn apply(seen: &DeploymentObservation, plan: &mut Plan) -> bool {
    let deployment = &seen.deployment;
    let Some(list) = deployment.annotation(annotation::TRIGGER_DELETION).filter(|list| !list.is_empty()) else {
        return false;
    };
    let scaled_at = deployment.annotation(annotation::LAST_REPLICA_CHANGE_BY_SCALER).filter(|time| !time.is_empty());
    let default_time = scaled_at.map_or_else(|| whole_seconds(seen.now), str::to_owned);
    let machines: BTreeMap<&str, &MachineSnapshot> =
        seen.sets.iter().flat_map(|set| &set.machines).map(|machine| (machine.name(), machine)).collect();
    // The list keeps its order, so that it is written as rarely as possible. cluster-autoscaler writes the list too,
    // and each of our writes can cause a conflict for it.
    let wanted: Vec<(&str, String)> = list
        .split(',')
        .filter_map(|entry| parse(entry, &default_time))
        .filter(|(name, _)| machines.get(name).is_some_and(|machine| !is_failed(machine) && !is_terminating(machine)))
        .collect();
    let before = plan.steps.len();
    let kept = wanted.iter().map(|(name, time)| format!("{name}~{time}")).collect::<Vec<_>>().join(",");
    if kept != list {
        plan.push("trigger/list", Effect::WriteTriggerList(Some(kept).filter(|kept| !kept.is_empty())));
    }
    let mut named = BTreeSet::new();
    for (name, time) in wanted {
        // If an entry for a machine occurs twice, the time of the first one counts.
        let Some(machine) = machines.get(name).filter(|_| named.insert(name)) else { continue };
        let annotations = mark(machine, &time);
        if !annotations.is_empty() {
            let machine = (*machine).clone();
            plan.push("trigger/mark", Effect::MarkMachine { machine, labels: Changes::new(), annotations });
        }
    }
    plan.steps.len() > before
}

fn whole_seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// Parses `name~time`, or the older form `name`. Returns `None` for anything else.
fn parse<'a>(entry: &'a str, default_time: &str) -> Option<(&'a str, String)> {
    let mut parts = entry.split('~');
    let name = parts.next().map(str::trim).filter(|name| !name.is_empty())?;
    let time = parts.next().map_or_else(|| default_time.to_owned(), str::to_owned);
    if parts.next().is_some() || time.parse::<Timestamp>().is_err() {
        return None;
    }
    Some((name, time))
}

/// The annotations that are missing on the machine so that it is deleted first.
fn mark(machine: &MachineSnapshot, time: &str) -> Changes {
    let mut missing = Changes::new();
    if machine.annotation(annotation::MACHINE_PRIORITY) != Some("1") {
        missing.extend([changes::set(annotation::MACHINE_PRIORITY, "1")]);
    }
    if machine.annotation(annotation::MARKED_FOR_DELETION_TIME).unwrap_or_default().is_empty() {
        missing.extend([changes::set(annotation::MARKED_FOR_DELETION_TIME, time)]);
    }
    missing
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::deployment::testing::*;
    use machine_api::v1alpha1::Machine;
    use machine_api::v1alpha1::MachinePhase;

    const TIME: &str = "2026-11-21T08:00:00Z";

    /// The marked machines, and the changed list.
    fn applied(list: &str, change: impl FnOnce(&mut Machine)) -> (Vec<String>, Option<String>) {
        let built = deployment(2, 1, 0)
            .annotation(annotation::TRIGGER_DELETION, list)
            .annotation(annotation::LAST_REPLICA_CHANGE_BY_SCALER, TIME)
            .build();
        let mut set = new(2, 2);
        change(set.machines[1].to_mut());
        let mut plan = Plan::default();
        apply(&seeing_sets(built, vec![set]), &mut plan);
        let mut marked = Vec::new();
        let mut changed = None;
        for step in plan.steps {
            match step.effect {
                Effect::MarkMachine { machine, .. } => marked.push(machine.name().to_owned()),
                // Empty means removed.
                Effect::WriteTriggerList(list) => changed = Some(list.unwrap_or_default()),
                other => panic!("{other:?}"),
            }
        }
        (marked, changed)
    }

    #[test]
    fn s_trig_01_s_trig_03_s_md_12_both_are_alive_and_marked() {
        let list = format!("md-new-0~{TIME},md-new-1~{TIME}");
        let (marked, changed) = applied(&list, |_| {});
        assert_eq!(marked, ["md-new-0", "md-new-1"]);
        assert_eq!(changed, None);
    }

    #[rstest]
    #[case::backwards("md-new-1~2026-11-21T08:00:00Z,md-new-0~2026-11-21T08:00:00Z", None)]
    #[case::twice("md-new-1~2026-11-21T08:00:00Z,md-new-0~2026-11-21T08:00:00Z,md-new-1~2026-11-21T07:00:00Z", None)]
    #[case::one_falls_away(
        "md-new-1~2026-11-21T08:00:00Z,gone~2026-11-21T08:00:00Z,md-new-0~2026-11-21T07:00:00Z",
        Some("md-new-1~2026-11-21T08:00:00Z,md-new-0~2026-11-21T07:00:00Z")
    )]
    fn the_list_keeps_its_order_and_is_written_when_an_entry_falls_away(
        #[case] list: &str,
        #[case] expected: Option<&str>,
    ) {
        let (marked, changed) = applied(list, |_| {});
        assert_eq!(marked, ["md-new-1", "md-new-0"]);
        assert_eq!(changed, expected.map(str::to_owned));
    }

    #[test]
    fn s_trig_03_a_mark_is_priority_1_and_the_time_of_the_list() {
        let machine = crate::set::testing::running("m").build();
        let expected = [(annotation::MACHINE_PRIORITY, "1"), (annotation::MARKED_FOR_DELETION_TIME, TIME)];
        let machine = MachineSnapshot::from(machine);
        assert_eq!(mark(&machine, TIME), Changes::from(expected.map(|(key, value)| changes::set(key, value))));
    }

    #[test]
    fn s_trig_02_a_terminating_machine_is_taken_off_the_list() {
        let list = format!("md-new-0~{TIME},md-new-1~{TIME}");
        let (marked, changed) =
            applied(&list, |machine| machine.status.current_status.phase = MachinePhase::Terminating);
        assert_eq!(marked, ["md-new-0"]);
        assert_eq!(changed, Some(format!("md-new-0~{TIME}")));
    }

    #[rstest]
    #[case::s_trig_04_no_list("", &[], None)]
    #[case::s_trig_05_the_older_form("md-new-0", &["md-new-0"], Some(format!("md-new-0~{TIME}")))]
    #[case::s_trig_06_too_many_parts("md-new-0~t~x", &[], Some(String::new()))]
    #[case::s_trig_07_no_time("md-new-0~notatime", &[], Some(String::new()))]
    #[case::an_unknown_machine("other~2026-11-21T08:00:00Z", &[], Some(String::new()))]
    fn the_list_is_read(#[case] list: &str, #[case] marked: &[&str], #[case] changed: Option<String>) {
        let (found, list) = applied(list, |_| {});
        assert_eq!((found.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), list), (marked, changed));
    }

    #[test]
    fn a_marked_machine_is_not_marked_again() {
        let machine = crate::set::testing::running("m")
            .annotation(annotation::MACHINE_PRIORITY, "1")
            .annotation(annotation::MARKED_FOR_DELETION_TIME, TIME)
            .build();
        let machine = MachineSnapshot::from(machine);
        assert_eq!(mark(&machine, TIME), Changes::new());
    }
}
