//! Time limits of machines that are not Running, and the permit that keeps a large failure from replacing all machines at
//! once.
//!
//! Source: spec/machine-controller §5.4; decisions.md 10. Pure; the controller ensures that only one machine holds the
//! permit.

use std::time::Duration;

use super::{contest, in_words, report_contest};
use crate::machine::{
    in_place::timed_out,
    measures::Measurement,
    observation::{NodeSource, Observation, Permit, Sibling, VmCheck},
    plan::{
        Effect, Next, RuleResult,
        reporting::{report_when_new, reported_since},
        status_change::{StatusChange, TimeoutClock},
        waits::Wait,
    },
    standing::Waiting,
    time_limit::{Limited, TimeLimit, phase_limit},
};
use kube_values::duration::GoDuration;
use machine_api::{
    names::{label, machine_reason},
    v1alpha1::{MachinePhase, OperationState},
};

/// The siblings (the machine itself excluded) that keep a machine from being declared Failed for its health now: siblings that
/// are being replaced. A machine without a group has no siblings.
pub fn blocking_siblings(siblings: &[Sibling]) -> Vec<String> {
    siblings
        .iter()
        .filter(|sibling| blocks_siblings(&MachinePhase::from(sibling.phase.as_str()), sibling.preserved))
        .map(|sibling| sibling.name.clone())
        .collect()
}

/// Whether a machine keeps its siblings from being declared Failed: while it is in a phase other than Running or Unknown,
/// unless it is preserved; a Terminating machine even if it is preserved. Both the decision and the wake-ups use this
/// function.
pub(crate) fn blocks_siblings(phase: &MachinePhase, preserved: bool) -> bool {
    let settled = matches!(phase, MachinePhase::Running | MachinePhase::Unknown);
    *phase == MachinePhase::Terminating || (!settled && !preserved)
}

/// Decides by the time that a machine has spent in its phase.
pub fn timeouts(seen: &Observation) -> RuleResult {
    let Some(limit) = phase_limit(seen) else { return RuleResult::NOTHING };
    let vm_is_gone = limit.of == Limited::Health && seen.vm_check == VmCheck::Gone;
    if !limit.has_passed() && !vm_is_gone {
        return RuleResult::Pass(Some(limit.until_passed()));
    }
    match (limit.of, contest(seen)) {
        (Limited::Creation | Limited::Health, Some((node, why))) => undecided(seen, node, why),
        (Limited::Creation, None) => never_joined(seen, limit),
        (Limited::Health, None) => unhealthy(seen, limit),
        // An in-place update has its own timeout, whether the Node is there or not (MC-285). Its result is a label of the Node.
        (Limited::InPlaceUpdate, _) => {
            last_look(seen).unwrap_or_else(|| RuleResult::act("in-place-timeout", timed_out(seen), Next::Again))
        }
        // No phase has this limit.
        (Limited::Drain, _) => RuleResult::NOTHING,
    }
}

fn never_joined(seen: &Observation, limit: TimeLimit) -> RuleResult {
    if let Some(look) = last_look(seen) {
        return look;
    }
    let text = format!("Machine {} failed to join the cluster in {}.", seen.name(), duration(limit.length));
    let mut effects = failed(seen, machine_reason::CREATION_TIMEOUT, text);
    effects.push(Effect::Measure(Measurement::FailedJoin));
    RuleResult::act("creation-timeout", effects, Next::Again)
}

/// Reads the Node once more before its machine is declared Failed: this process may have been suspended and its watch may
/// lag, so that the kubelet may have joined or recovered meanwhile. Without the Node's name there is nothing to read.
fn last_look(seen: &Observation) -> Option<RuleResult> {
    (!seen.node_label().is_empty() && seen.node_source == NodeSource::View)
        .then(|| RuleResult::act("last-look-at-node", vec![Effect::RereadNode], Next::Again))
}

/// Nothing is concluded from a Node that may or may not be this machine's.
fn undecided(seen: &Observation, node: &str, why: &str) -> RuleResult {
    let effects = report_contest(seen, node, &format!("the time limit of this machine has passed, and {why}"));
    RuleResult::act("timeout-contested", effects, Next::LookAgain(Duration::from_secs(60), Wait::Contest))
}

/// An unhealthy machine whose health timeout has passed, or whose VM is gone. Its siblings and the permit decide whether it
/// is declared Failed now.
fn unhealthy(seen: &Observation, limit: TimeLimit) -> RuleResult {
    // The cheap check comes first, without the permit: a blocked machine must not keep the permit from the others.
    let blocking = seen.siblings.as_deref().map(blocking_siblings).unwrap_or_default();
    if !blocking.is_empty() {
        return deferred(seen, &blocking);
    }
    if seen.permit == Permit::NotHeld {
        return RuleResult::act("health-timeout", Vec::new(), Next::TakePermit);
    }
    if let Some(look) = last_look(seen) {
        return look;
    }
    if !limit.has_passed() {
        let text = format!(
            "Machine {} is unhealthy and has no VM any more, the provider said so twice. Updating machine phase to Failed. \
             Node Conditions: {}",
            seen.name(),
            in_words(seen.machine.conditions())
        );
        return RuleResult::act("vm-is-gone", failed(seen, machine_reason::VM_GONE, text), Next::Again);
    }
    let text = format!(
        "Machine {} health checks failing since last {}. Updating machine phase to Failed. Node Conditions: {}",
        seen.name(),
        duration(limit.length),
        in_words(seen.machine.conditions())
    );
    RuleResult::act("health-timeout", failed(seen, machine_reason::HEALTH_TIMEOUT, text), Next::Again)
}

/// Declares the machine Failed; the type of the last operation stays.
fn failed(seen: &Observation, reason: &'static str, text: String) -> Vec<Effect> {
    let operation = seen.machine.last_operation().operation.clone();
    let change = StatusChange::new()
        .phase(MachinePhase::Failed, TimeoutClock::Inactive)
        .operation(operation, OperationState::Failed, text.clone())
        .rests(failed_wait(seen, reason, &text));
    vec![change.effect(seen), Effect::Warn { reason, message: text }]
}

/// The wait of a Failed machine.
pub fn failed_wait(seen: &Observation, reason: &'static str, text: &str) -> Waiting {
    let recovers = if seen.node_label().is_empty() { "" } else { ", or its Node recovers" };
    let (on, ended_by) = if seen.machine.controller().is_some() {
        ("its MachineSet to replace it", format!("the machine is deleted{recovers}"))
    } else {
        ("somebody to delete or repair it", format!("it is deleted or its spec changes{recovers}"))
    };
    Waiting::on(reason, on).since(reported_since(seen, reason)).seen(text).ended_by(ended_by)
}

/// Other machines are being replaced: report that once, and let their changes wake the machine.
fn deferred(seen: &Observation, in_progress: &[String]) -> RuleResult {
    let reason = machine_reason::HEALTH_TIMEOUT_REPLACEMENT_DEFERRED;
    let group = seen.machine.labels().get(label::NAME).map(String::as_str).unwrap_or_default();
    let wait = Waiting::on(reason, format!("the replacement of {} other machine(s) of {group}", in_progress.len()))
        .since(reported_since(seen, reason))
        .seen(format!(
            "the time limit of this machine has passed, and {} is being replaced",
            in_progress.first().map(String::as_str).unwrap_or_default()
        ))
        .ended_by("each of them is Running or gone; then this machine is declared Failed");
    let effects = report_when_new(seen, &wait);
    // Changes of siblings wake the machine; the minute is for a lost change.
    let next = Next::LookAgain(Duration::from_secs(60), Wait::Siblings);
    RuleResult::waits("health-timeout-deferred", wait, effects, next)
}

fn duration(limit: Duration) -> GoDuration {
    GoDuration::from(limit)
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use rstest::rstest;

    use super::*;
    use crate::machine::{
        decide::decide,
        observation::{NodeView, shared_instance::VmOwner},
        testing::*,
    };
    use machine_api::v1alpha1::OperationType;

    #[rstest]
    #[case::it_is_early(1000, "cloud:///n", false)]
    #[case::its_time_is_over(1201, "cloud:///n", true)]
    #[case::its_creation_goes_on(1201, "", false)]
    fn a_machine_that_lost_its_label_before_its_node_joined_has_its_creation_timeout(
        #[case] age: i64,
        #[case] provider_id: &str,
        #[case] is_over: bool,
    ) {
        let mut machine = in_phase(MachinePhase::Pending, 10, OperationType::Create, OperationState::Processing);
        machine.labels_mut().remove(label::NODE);
        machine.spec.provider_id = provider_id.to_owned();
        let mut seen = seen(machine, age);
        seen.node = NodeView::NotLinked { candidate: None, namesake: None };
        let plan = decide(&seen);
        assert_eq!(plan.rule == "creation-timeout", is_over, "{plan:?}");
    }

    #[rstest]
    #[case::nobody_can_tell_whose_its_vm_is(VmOwner::This, MachinePhase::Pending, "timeout-contested")]
    #[case::its_vm_is_another_machines(VmOwner::Living("a".to_owned()), MachinePhase::Failed, "creation-timeout")]
    fn the_creation_timeout_of_a_machine_whose_node_is_contested(
        #[case] vm_owner: VmOwner,
        #[case] phase: MachinePhase,
        #[case] rule: &str,
    ) {
        let mut seen = seen(pending(), 1201);
        seen.node = NodeView::Contested { name: "n".to_owned(), why: "machine a has it".to_owned() };
        seen.vm_owner = vm_owner;
        // The report about the Node comes first.
        for _ in 0..2 {
            seen.machine = after(&decide(&seen), &seen.machine);
        }
        let plan = decide(&seen);
        let reported = after(&plan, &seen.machine);
        assert_eq!((plan.rule, reported.phase().clone()), (rule, phase));
        if rule == "timeout-contested" {
            let progress = reported.machine_conditions().iter().find(|one| one.type_ == "Progressing").unwrap();
            assert_eq!(progress.reason, "NodeContested");
            assert!(
                progress.message.contains("machine a has it") && !progress.message.contains("Failed"),
                "{progress:?}"
            );
            assert_eq!(plan.effects, [], "it was reported when the contest began");
        }
    }

    #[test]
    fn m_62_a_duration_is_printed_as_go_prints_it() {
        let seen = seen(pending(), 1201);
        let reported = after(&decide(&seen), &seen.machine).last_operation().description.clone();
        assert_eq!(reported, "Machine m-abcde failed to join the cluster in 20m0s.");
    }
}
