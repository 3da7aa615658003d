//! Decides which Failed machines a set preserves automatically, so that users can examine them.
//!
//! Source: spec/deployment-and-set §6.7, second half. The allowance is compared with the machines themselves, not with
//! the counter in the status, which may be a second old. Terminating machines neither count nor are preserved.
//!
//! A machine whose preservation has ended is not chosen again. Its annotation is removed with the preservation, so the
//! original's rule would preserve it again, forever. Pure.

use std::cmp::Reverse;

use super::{
    counts::{is_auto_preserved, is_failed, is_terminating},
    plan::{Effect, Keeping, Plan},
};
use crate::snapshots::{MachineSnapshot, SetSnapshot};
use controller_runtime::snapshot::Snapshot;
use machine_api::names::{annotation, machine_condition, machine_reason, preserve_value};

/// All valid values of the annotation. With any other value there is no decision yet.
const KNOWN_VALUES: [&str; 4] =
    [preserve_value::NOW, preserve_value::WHEN_FAILED, preserve_value::AUTO_PRESERVED, preserve_value::FALSE];

/// Adds annotations until the allowance is used up, or removes those beyond it. Returns the machines as they will be: a
/// machine that is preserved now must not be replaced in the same pass.
pub fn keep_failed(
    set: &SetSnapshot,
    claimed: Vec<MachineSnapshot>,
    now: jiff::Timestamp,
    plan: &mut Plan,
) -> Vec<MachineSnapshot> {
    let staying = || claimed.iter().filter(|machine| !is_terminating(machine));
    let kept = staying().filter(|machine| is_auto_preserved(machine)).count();
    let allowed = usize::try_from(set.auto_preserve_failed_machine_max()).unwrap_or(0);
    let mut chosen: Vec<MachineSnapshot>;
    let (keeping, count) = if kept < allowed {
        let may_be_kept =
            |machine: &&MachineSnapshot| is_failed(machine) && is_undecided(machine) && !has_had_its_time(machine, now);
        chosen = staying().filter(may_be_kept).cloned().collect();
        chosen.sort_by_key(|machine| (Reverse(created(machine)), machine.name().to_owned()));
        (Keeping::Keep, allowed - kept)
    } else {
        chosen = staying().filter(|machine| is_auto_preserved(machine)).cloned().collect();
        chosen.sort_by_key(|machine| (created(machine), machine.name().to_owned()));
        (Keeping::LetGo, kept - allowed)
    };
    chosen.truncate(count);
    if chosen.is_empty() {
        return claimed;
    }
    for machine in &chosen {
        let rule = match keeping {
            Keeping::Keep => "preservation/keep",
            Keeping::LetGo => "preservation/let-go",
        };
        plan.push(rule, Effect::Keep(machine.clone(), keeping));
    }
    let is_chosen = |machine: &MachineSnapshot| chosen.iter().any(|one| one.uid() == machine.uid());
    claimed
        .into_iter()
        .map(|machine| if is_chosen(&machine) { annotated(&machine, keeping) } else { machine })
        .collect()
}

/// Whether neither the machine nor its Node says yet whether to preserve the machine. Only the value on the Node counts.
/// The machine controller removes a different value from the machine.
fn is_undecided(machine: &MachineSnapshot) -> bool {
    let by_node = machine.annotation(annotation::LAST_APPLIED_NODE_PRESERVE_VALUE).unwrap_or_default();
    by_node.is_empty() && machine.annotation(annotation::PRESERVE).is_none_or(|value| !KNOWN_VALUES.contains(&value))
}

/// Whether the machine's preservation has ended. At first only the expiry time shows that, afterwards the reason in the
/// machine's condition.
fn has_had_its_time(machine: &MachineSnapshot, now: jiff::Timestamp) -> bool {
    let is_over = machine.preserve_expiry_time().is_some_and(|until| until <= now);
    let mut told = machine.machine_conditions().iter();
    is_over
        || told.any(|told| {
            told.type_ == machine_condition::PROGRESSING && told.reason == machine_reason::PRESERVATION_STOPPED
        })
}

fn created(machine: &MachineSnapshot) -> Option<jiff::Timestamp> {
    machine.created()
}

fn annotated(machine: &MachineSnapshot, keeping: Keeping) -> MachineSnapshot {
    let value = match keeping {
        Keeping::Keep => Some(preserve_value::AUTO_PRESERVED),
        Keeping::LetGo => None,
    };
    machine.with_annotation(annotation::PRESERVE, value)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
    use rstest::rstest;

    use super::*;
    use crate::set::{decide::decide, testing::*};
    use machine_api::v1alpha1::Machine;

    fn preserve(machine: Building<Machine>, value: &str) -> Building<Machine> {
        machine.annotation(annotation::PRESERVE, value)
    }

    /// Four machines: two Failed ones, of which `newer` is the newer; a running one; and a Failed one whose user has
    /// given it up.
    fn fleet() -> Vec<Building<Machine>> {
        vec![
            failed("older").created_at(-20),
            failed("newer").created_at(-10),
            running("runs"),
            preserve(failed("given-up").created_at(-5), "false"),
        ]
    }

    /// The condition that the machine controller sets when a preservation ends.
    fn over() -> Condition {
        Condition {
            type_: machine_condition::PROGRESSING.to_owned(),
            status: "True".to_owned(),
            reason: machine_reason::PRESERVATION_STOPPED.to_owned(),
            message: String::new(),
            last_transition_time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()),
            observed_generation: None,
        }
    }

    fn with_kept(count: usize) -> Vec<Building<Machine>> {
        let kept = (0..count).map(|number| preserve(failed(&format!("kept-{number}")), preserve_value::AUTO_PRESERVED));
        fleet().into_iter().chain(kept).collect()
    }

    #[rstest]
    #[case::s_pres_11_the_newest_first(1, fleet(), &["keep newer"])]
    #[case::s_pres_12_no_allowance(0, fleet(), &[])]
    #[case::s_pres_13_the_allowance_is_used_up(2, with_kept(2), &[])]
    #[case::s_pres_14_an_allowance_of_two(2, fleet(), &["keep newer", "keep older"])]
    #[case::s_pres_15_more_than_there_are(3, fleet(), &["keep newer", "keep older"])]
    #[case::s_pres_16_one_too_many(0, with_kept(1), &["let-go kept-0"])]
    #[case::the_oldest_is_let_go_first(1, vec![
        preserve(failed("b").created_at(-5), preserve_value::AUTO_PRESERVED),
        preserve(failed("a").created_at(-9), preserve_value::AUTO_PRESERVED)
    ], &["let-go a"])]
    #[case::an_unknown_value_is_no_decision(1, vec![preserve(failed("a"), "perhaps")], &["keep a"])]
    // The machine controller removed the annotation again, forever.
    #[case::its_node_has_decided(
        1, vec![failed("a").annotation(annotation::LAST_APPLIED_NODE_PRESERVE_VALUE, "false")], &[])]
    // Seed 2589: preserved again and again, and never replaced.
    #[case::its_time_is_over(1, vec![failed("a").preserved_until(-1)], &[])]
    #[case::its_time_was_over(1, vec![failed("a").with(|machine| machine.status.machine_conditions = vec![over()])], &[])]
    #[case::machines_on_their_way_out_do_not_count(
        1, vec![preserve(failed("a"), preserve_value::AUTO_PRESERVED).deleting(), failed("b"), failed("c").deleting()], &["keep b"])]
    fn failed_machines_are_kept(#[case] max: i32, #[case] machines: Vec<Building<Machine>>, #[case] expected: &[&str]) {
        let set = set(3).with(|set| set.spec.auto_preserve_failed_machine_max = max).snapshot();
        let mut plan = Plan::default();
        keep_failed(&set, machines.into_iter().map(Building::<Machine>::snapshot).collect(), now(), &mut plan);
        let said: Vec<String> = plan
            .steps
            .iter()
            .map(|step| match &step.effect {
                Effect::Keep(machine, _) => {
                    let name = machine.name();
                    format!("{} {name}", step.rule.trim_start_matches("preservation/"))
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(said, expected);
    }

    #[test]
    fn a_machine_kept_now_is_not_replaced_now_and_one_let_go_is() {
        let allowing = |max| set(1).with(|set| set.spec.auto_preserve_failed_machine_max = max).build();
        let rules = |set, machine: Building<Machine>| -> Vec<&'static str> {
            decide(&seeing(set, [machine.build()])).steps.iter().map(|step| step.rule).collect()
        };
        assert_eq!(rules(allowing(1), failed("m")), ["preservation/keep"]);
        assert_eq!(
            rules(allowing(0), preserve(failed("m"), preserve_value::AUTO_PRESERVED)),
            ["preservation/let-go", "replicas/failed"]
        );
        assert_eq!(rules(allowing(0), failed("m")), ["replicas/failed"]);
    }
}
