//! Decides how many machines are created or deleted, and which.
//!
//! Source: spec/deployment-and-set §6.2, §6.5. Pure. A Failed machine is replaced in two passes: it is deleted, and
//! when it is terminating its successor is created.

use std::collections::BTreeSet;

use super::{
    counts::{is_failed, is_terminating},
    new_machine::{names, new_machine},
    observe::SetObservation,
    plan::{Effect, Next, Plan},
    preservation::{NodePreserve, may_terminate},
    ranking::{is_marked, sort_for_deletion},
};
use crate::snapshots::{MachineSnapshot, SetSnapshot};
use controller_runtime::{events::EventNote, snapshot::Snapshot};
use kube_values::selector;
use machine_api::names::{UNSELECTED_TEMPLATE, label, set_reason, update_result};

/// Maximum number of creations, and of deletions, in one pass.
pub const BURST: usize = 100;

/// Adds the steps that bring the number of machines to the wanted one. Returns the number of creations or deletions
/// left for the next pass.
pub fn keep_replicas(seen: &SetObservation, claimed: &[MachineSnapshot], plan: &mut Plan) -> usize {
    let staying: Vec<&MachineSnapshot> = claimed.iter().filter(|machine| !is_terminating(machine)).collect();
    let wanted = usize::try_from(seen.set.replicas()).unwrap_or(0);
    if staying.len() < wanted {
        create_missing(seen, claimed, wanted - staying.len(), plan)
    } else {
        delete_superfluous(seen, staying, wanted, plan)
    }
}

/// Whether the set may not grow: it is frozen by the overshoot guard, or is an old set of an in-place rollout.
pub fn may_not_grow(set: &SetSnapshot) -> bool {
    let has = |key: &str| set.label(key);
    has(label::FREEZE).is_some_and(|value| value == "True") || has(label::SCALE_UP_DISABLED).is_some()
}

/// Whether the selector of the set matches its template.
fn selects_its_template(set: &SetSnapshot) -> bool {
    let labels = set.template().metadata.labels.clone().unwrap_or_default();
    set.selector().is_some_and(|selector| selector::matches(selector, &labels))
}

fn create_missing(seen: &SetObservation, claimed: &[MachineSnapshot], missing: usize, plan: &mut Plan) -> usize {
    if may_not_grow(&seen.set) {
        return 0;
    }
    if !selects_its_template(&seen.set) {
        plan.push(
            "replicas/unselected",
            Effect::Tell(EventNote::warning(set_reason::FAILED_CREATE, UNSELECTED_TEMPLATE)),
        );
        return 0;
    }
    let waiting = replacements_that_wait(seen, missing, plan);
    let count = (missing - waiting).min(BURST);
    let taken: BTreeSet<&str> = claimed.iter().map(Snapshot::name).collect();
    let set = seen.set.name();
    for name in names(set, count, &seen.unanswered, &taken, seen.name_seed) {
        let is_repetition = seen.unanswered.contains(&name);
        let machine = Box::new(new_machine(&seen.set, name));
        if is_repetition {
            plan.push("replicas/unanswered", Effect::CreateUnlessThere(machine));
        } else {
            plan.push("replicas/missing", Effect::CreateMachine(machine));
        }
    }
    missing - waiting - count
}

/// The number of missing machines whose replacement waits because their predecessors never joined (decisions.md 46).
fn replacements_that_wait(seen: &SetObservation, missing: usize, plan: &mut Plan) -> usize {
    let Some(hold) = &seen.hold else { return 0 };
    plan.next = plan.next.or_earlier(Next::After(hold.left(seen.now), "new machines never joined"));
    hold.replacements.min(missing)
}

fn delete_superfluous(seen: &SetObservation, staying: Vec<&MachineSnapshot>, wanted: usize, plan: &mut Plan) -> usize {
    // A machine just handed over by an in-place update counts as a replica but is never deleted here.
    let mut candidates: Vec<MachineSnapshot> = staying
        .into_iter()
        .filter(|machine| machine.label(label::UPDATE_RESULT) != Some(update_result::SUCCESSFUL))
        .cloned()
        .collect();
    let surplus = candidates.len().saturating_sub(wanted);
    if surplus > 0 {
        sort_for_deletion(&mut candidates, seen.now);
    }
    let may_go = |machine: &MachineSnapshot| {
        let name = machine.name();
        let node = seen.node_preserve.get(name).unwrap_or(&NodePreserve::NoNode);
        may_terminate(machine, node, seen.now)
    };
    let (first, rest) = candidates.split_at(surplus);
    let superfluous = first.iter().map(|machine| ("replicas/surplus", machine));
    let marked = rest.iter().filter(|machine| is_marked(machine, &seen.set)).map(|m| ("replicas/marked", m));
    let failed = rest
        .iter()
        .filter(|machine| !is_marked(machine, &seen.set) && is_failed(machine) && may_go(machine))
        .map(|machine| ("replicas/failed", machine));
    let all: Vec<_> = superfluous.chain(marked).chain(failed).collect();
    for (rule, machine) in all.iter().take(BURST) {
        // Since the choice the machine may have become available, or may have been marked or preserved. The original
        // deletes its last observed choice in any case.
        let version = machine.resource_version().map(str::to_owned);
        plan.push(rule, Effect::DeleteMachine { machine: machine.target(), version });
    }
    all.len().saturating_sub(BURST)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
    use rstest::rstest;

    use super::*;
    use crate::set::{back_off::Hold, testing::*};
    use machine_api::v1alpha1::Machine;
    use machine_api::{names::annotation, v1alpha1::MachinePhase};

    /// The number of creations, the names of deletions, and the number left over.
    fn decide(seen: &SetObservation) -> (usize, Vec<String>, usize) {
        let mut plan = Plan::default();
        let left = keep_replicas(seen, &seen.machines, &mut plan);
        let creations = plan.steps.iter().filter(|step| matches!(step.effect, Effect::CreateMachine(_))).count();
        let deletions = plan.steps.iter().filter_map(|step| match &step.effect {
            Effect::DeleteMachine { machine, .. } => Some(machine.key.name.clone()),
            _ => None,
        });
        (creations, deletions.collect(), left)
    }

    /// They would belong to no set and would be created again and again.
    #[test]
    fn machines_that_the_set_would_not_select_are_not_made() {
        let expression =
            LabelSelectorRequirement { key: "pool".to_owned(), operator: "Exists".to_owned(), values: None };
        let set = set(3).with(|set| set.spec.selector.as_mut().unwrap().match_expressions = Some(vec![expression]));
        let seen = seeing(set.build(), []);
        assert_eq!(decide(&seen), (0, vec![], 0));
        let plan = super::super::decide::decide(&seen);
        assert_eq!(plan.steps.iter().map(|step| step.rule).collect::<Vec<_>>(), ["replicas/unselected"]);
    }

    #[rstest]
    #[case::s_ms_01_one_is_missing(3, 2, 1, 0, 0)]
    #[case::s_ms_02_a_burst_at_most(200, 2, 100, 0, 98)]
    #[case::s_ms_03_nothing_to_do(3, 3, 0, 0, 0)]
    #[case::s_ms_20_from_nothing(3, 0, 3, 0, 0)]
    #[case::s_ms_25_a_burst_of_deletions(0, 150, 0, 100, 50)]
    fn running_machines_are_brought_to_the_wanted_number(
        #[case] wanted: i32,
        #[case] running: usize,
        #[case] created: usize,
        #[case] deleted: usize,
        #[case] left: usize,
    ) {
        let (creations, deletions, rest) = decide(&seeing_running(set(wanted).build(), running));
        assert_eq!((creations, deletions.len(), rest), (created, deleted, left));
    }

    fn successful(name: &str) -> Building<Machine> {
        running(name).label(label::UPDATE_RESULT, "successful")
    }

    fn marked(name: &str) -> Building<Machine> {
        running(name)
            .annotation(annotation::MACHINE_PRIORITY, "1")
            .annotation(annotation::MARKED_FOR_DELETION_TIME, "2026-11-21T08:00:00Z")
    }

    #[rstest]
    #[case::s_ms_04_the_failed_one_goes(3, vec![running("a"), running("b"), running("c"), failed("d")], 0, &["d"])]
    #[case::s_ms_05_the_oldest_goes(
        3, vec![running("a").created_at(4), running("b").created_at(1), running("c").created_at(2), running("d").created_at(3)],
        0, &["b"])]
    #[case::s_ms_06_a_terminating_one_is_replaced(
        3, vec![running("a"), running("b"), machine("c").phase(MachinePhase::Terminating)], 1, &[])]
    #[case::s_ms_06_also_by_its_deletion_timestamp(
        3, vec![running("a"), running("b"), running("c").deleting()], 1, &[])]
    #[case::s_ms_07_first_the_failed_one_is_deleted(3, vec![running("a"), running("b"), failed("c")], 0, &["c"])]
    #[case::s_ms_08_a_handed_over_machine_counts(3, vec![running("a"), successful("b")], 1, &[])]
    #[case::s_ms_09_enough_with_a_handed_over_one(3, vec![running("a"), running("b"), successful("c")], 0, &[])]
    #[case::s_ms_10_a_handed_over_one_is_not_chosen(
        3, vec![running("a"), running("b"), running("c"), running("d"), successful("e")], 0, &["a"])]
    #[case::s_pres_18_a_preserved_failed_one_keeps_its_place(1, vec![failed("a").preserved_until(60)], 0, &[])]
    fn machines_are_created_or_chosen(
        #[case] wanted: i32,
        #[case] machines: Vec<Building<Machine>>,
        #[case] created: usize,
        #[case] deleted: &[&str],
    ) {
        let seen = seeing(set(wanted).build(), machines.into_iter().map(Building::build));
        let (creations, deletions, _) = decide(&seen);
        assert_eq!((creations, deletions), (created, deleted.iter().map(|name| (*name).to_owned()).collect()));
    }

    #[test]
    fn s_ms_11_marked_machines_go_although_the_number_is_right() {
        let set = set(2).annotation(annotation::LAST_REPLICA_CHANGE_BY_SCALER, "2026-11-21T08:01:00Z").build();
        let seen = seeing(set, [marked("a").build(), marked("b").build()]);
        assert_eq!(decide(&seen).1, ["a", "b"]);
    }

    #[rstest]
    #[case::s_ms_16_frozen(label::FREEZE, "True", 5, 3, 0)]
    #[case::s_ms_17_frozen_may_shrink(label::FREEZE, "True", 1, 3, 2)]
    #[case::s_ms_18_growth_disabled_by_any_value(label::SCALE_UP_DISABLED, "false", 5, 3, 0)]
    fn a_set_that_may_not_grow_may_shrink(
        #[case] key: &str,
        #[case] value: &str,
        #[case] wanted: i32,
        #[case] running: usize,
        #[case] deleted: usize,
    ) {
        let (creations, deletions, _) = decide(&seeing_running(set(wanted).label(key, value).build(), running));
        assert_eq!((creations, deletions.len()), (0, deleted));
    }

    #[rstest]
    #[case::all_that_are_missing_replace_such(1, 2, 2, 0)]
    #[case::one_that_served_is_replaced_at_once(0, 2, 1, 1)]
    #[case::growth_goes_on(0, 5, 3, 2)]
    #[case::none_is_missing(3, 3, 1, 0)]
    fn machines_that_never_joined_are_replaced_when_their_wait_is_over(
        #[case] running: usize,
        #[case] wanted: i32,
        #[case] waiting: usize,
        #[case] created: usize,
    ) {
        let mut seen = seeing_running(set(wanted).build(), running);
        seen.hold =
            Some(Hold { since: at(-10), until: at(20), replacements: waiting, in_a_row: 3, last: "m".to_owned() });
        let mut plan = Plan::default();
        let left = keep_replicas(&seen, &seen.machines, &mut plan);
        assert_eq!((plan.steps.len(), left), (created, 0));
        let looks_again = Next::After(std::time::Duration::from_secs(20), "new machines never joined");
        assert_eq!(plan.next == looks_again, running < usize::try_from(wanted).unwrap());
    }

    #[test]
    fn an_unanswered_creation_is_asked_about_before_any_other_name_is_used() {
        let mut seen = seeing_running(set(2).build(), 0);
        seen.unanswered.insert("set-zzzzz".to_owned());
        let mut plan = Plan::default();
        keep_replicas(&seen, &seen.machines, &mut plan);
        assert!(matches!(&plan.steps[0].effect, Effect::CreateUnlessThere(machine)
            if machine.metadata.name.as_deref() == Some("set-zzzzz")));
        assert_eq!(plan.steps.len(), 2);
    }
}
