//! The report of a machine while it is frozen, because an API server can't be reached or the clock can't be trusted (decisions.md 46).
//!
//! Only a machine that the controller would otherwise act upon reports this, and only while the control cluster's API server
//! answers: then only the Nodes can't be seen. Deletions go on, and report what they wait for themselves. Pure. Source:
//! spec/machine-controller §9.3; decisions.md 30.

use std::time::Duration;

use super::{pending_wait, unhealthy_wait};
use crate::machine::{
    observation::{Freeze, Observation, Silence},
    plan::{
        Next, RuleResult,
        reporting::{report_when_new, reported_reason, reported_since},
        status_change::StatusChange,
        waits::Wait,
    },
    standing::Waiting,
};
use controller_runtime::clock::ClockTrouble;
use machine_api::{names::machine_condition, v1alpha1::MachinePhase};

/// How long a machine waits for the next pass while the clock can't be trusted.
const CLOCK_PAUSE: Duration = Duration::from_secs(30);

/// While an API server can't be reached, nothing is decided on stores that may be outdated. Afterwards a machine reports its
/// own wait again.
pub fn frozen(seen: &Observation) -> RuleResult {
    match seen.freeze {
        Freeze::Frozen => {
            let next = match seen.clock {
                None => Next::Settled,
                // Nothing wakes the machines when the clock can be trusted again.
                Some(_) => Next::LookAgain(CLOCK_PAUSE, Wait::Deadline),
            };
            if !should_report(seen) {
                return RuleResult::act("frozen", Vec::new(), next);
            }
            let wait = frozen_wait(seen);
            let effects = report_when_new(seen, &wait);
            RuleResult::waits("frozen", wait, effects, next)
        }
        Freeze::Flowing if reported_reason(&seen.machine) == Some(machine_condition::REASON_FROZEN) => {
            let change = StatusChange::new().waits(resumed_wait(seen)).effect(seen);
            RuleResult::act("thawed", vec![change], Next::Again)
        }
        Freeze::Flowing => RuleResult::NOTHING,
    }
}

/// Whether the machine is not in its intended state, and its status can be written.
fn should_report(seen: &Observation) -> bool {
    // The status must keep showing that a VM was taken over: this sets the start of the creation timeout (M-13).
    let adopted = Some(machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM);
    let can_be_written = match (seen.silence, seen.clock) {
        (Silence::Target, _) | (Silence::None, Some(ClockTrouble::Apart(_))) => true,
        // A pause of a minute is not worth a write.
        (Silence::None, Some(ClockTrouble::Stepped) | None) | (Silence::Control, _) => false,
    };
    can_be_written && is_under_way(seen.phase()) && reported_reason(&seen.machine) != adopted
}

/// Whether the controller itself moves a machine on from this phase.
pub fn is_under_way(phase: &MachinePhase) -> bool {
    match phase {
        MachinePhase::Unset
        | MachinePhase::Pending
        | MachinePhase::CrashLoopBackOff
        | MachinePhase::Unknown
        | MachinePhase::InPlaceUpdating
        | MachinePhase::InPlaceUpdateSuccessful
        | MachinePhase::InPlaceUpdateFailed => true,
        MachinePhase::Available
        | MachinePhase::Running
        | MachinePhase::Terminating
        | MachinePhase::Failed
        | MachinePhase::Other(_) => false,
    }
}

fn frozen_wait(seen: &Observation) -> Waiting {
    if let (Silence::None, Some(ClockTrouble::Apart(_))) = (seen.silence, seen.clock) {
        return Waiting::on(
            machine_condition::REASON_FROZEN,
            "the clocks of the manager's host and of the API server to agree",
        )
        .since(reported_since(seen, machine_condition::REASON_FROZEN))
        .seen(
            "they differ by more than five minutes, so that no VM is made and no verdict is given on health until then",
        )
        .ended_by("the wrong one is set right; see metric mcm_clock_offset_seconds");
    }
    Waiting::on(machine_condition::REASON_FROZEN, "the API server of the target cluster to answer")
        .since(reported_since(seen, machine_condition::REASON_FROZEN))
        .seen("what is known of Nodes may be old, so that no VM is made and no verdict is given on health until then")
        .ended_by("it answers again; see metric mcm_machine_controller_frozen and the log of the process")
}

/// The wait of the machine after the API servers answer again.
fn resumed_wait(seen: &Observation) -> Waiting {
    let node = seen.node_label();
    match seen.phase() {
        MachinePhase::Unknown => unhealthy_wait(seen),
        MachinePhase::Pending if !node.is_empty() => {
            let on = format!("Node {node} to register and become Ready");
            pending_wait(seen, machine_condition::REASON_WAITING_FOR_NODE, on)
                .ended_by("the kubelet on the VM has joined the cluster")
        }
        MachinePhase::InPlaceUpdating => {
            Waiting::on(machine_condition::REASON_WAITING_FOR_UPDATE, format!("the agent on Node {node} to update it"))
                .since(seen.now)
                .ended_by("the agent labels the Node with the result")
        }
        _ => Waiting::on(machine_condition::REASON_WAITING_FOR_PROVIDER, "the next attempt of its creation")
            .since(seen.now)
            .ended_by("the provider has answered"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{
        machine::{decide::decide, plan::Plan, standing::Standing, testing::*},
        snapshots::MachineSnapshot,
    };
    use machine_api::v1alpha1::{Machine, OperationState, OperationType};

    fn frozen_at(machine: impl Into<MachineSnapshot>, second: i64) -> Observation {
        let mut seen = seen(machine, second);
        seen.freeze = Freeze::Frozen;
        seen.silence = Silence::Target;
        seen
    }

    fn ill() -> Machine {
        in_phase(MachinePhase::Unknown, 0, OperationType::HealthCheck, OperationState::Processing)
    }

    #[rstest]
    #[case::new(machine())]
    #[case::without_a_node_yet(pending())]
    #[case::mc_258_ill(ill())]
    fn a_machine_in_progress_reports_once_that_it_is_frozen(#[case] machine: Machine) {
        let seen = frozen_at(machine, 900);
        let plan = decide(&seen);
        let reported = after(&plan, &seen.machine);
        assert_eq!(reported_reason(&reported), Some("Frozen"));
        let message = reported.machine_conditions()[0].message.clone();
        assert!(message.contains("the API server of the target cluster to answer since "), "{message}");
        assert_eq!(reported.phase(), seen.machine.phase(), "no verdict");
        let again = decide(&frozen_at(reported, 960));
        assert_eq!((again.rule, again.effects, again.next), ("frozen", Vec::new(), Next::Settled));
        let wait = again.standing.as_deref().and_then(Standing::wait).unwrap();
        assert_eq!(wait.began(), Some(at(900)), "the plan says since when, though nothing is written");
    }

    #[test]
    fn a_machine_in_its_intended_state_reports_nothing() {
        assert_eq!(decide(&frozen_at(running(), 900)), Plan::wait("frozen", Next::Settled));
    }

    #[test]
    fn m_59_a_node_that_is_deleted_while_frozen_takes_nobody_along() {
        let mut going = node(vec![condition("Ready", "True")]);
        going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(800)));
        let mut seen = with_node(frozen_at(running(), 900), going);
        assert_eq!(decide(&seen), Plan::wait("frozen", Next::Settled));
        seen.freeze = Freeze::Flowing;
        assert_eq!(decide(&seen).rule, "node-was-deleted");
    }

    #[rstest]
    #[case::half_an_hour_apart(ClockTrouble::Apart(jiff::SignedDuration::from_mins(-30)), Some("Frozen"))]
    #[case::a_step_is_over_soon(ClockTrouble::Stepped, None)]
    fn no_verdict_is_given_by_a_clock_that_cannot_be_trusted(
        #[case] clock: ClockTrouble,
        #[case] reported: Option<&str>,
    ) {
        for machine in [machine(), pending(), ill()] {
            let mut seen = frozen_at(machine, 7200);
            (seen.silence, seen.clock) = (Silence::None, Some(clock));
            let plan = decide(&seen);
            assert_eq!((plan.rule, &plan.next), ("frozen", &Next::LookAgain(CLOCK_PAUSE, Wait::Deadline)));
            let after = after(&plan, &seen.machine);
            assert_eq!(reported_reason(&after).filter(|reason| *reason == "Frozen"), reported);
            assert_eq!(after.phase(), seen.machine.phase());
        }
    }

    #[test]
    fn nothing_is_written_to_an_api_server_that_does_not_answer() {
        let mut seen = frozen_at(ill(), 900);
        seen.silence = Silence::Control;
        assert_eq!(decide(&seen), Plan::wait("frozen", Next::Settled));
    }

    #[test]
    fn that_a_vm_was_taken_over_stays_known() {
        let adopted = pending();
        let change = StatusChange::new()
            .waits(Waiting::on(machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM, "its Node"))
            .effect(&seen(adopted.clone(), 0));
        let adopted = after(&Plan::new("test", vec![change], Next::Settled), &adopted);
        assert_eq!(decide(&frozen_at(adopted, 900)), Plan::wait("frozen", Next::Settled));
    }

    #[rstest]
    #[case::new(machine(), "WaitingForProvider")]
    #[case::without_a_node_yet(pending(), "WaitingForNode")]
    #[case::ill(ill(), "NodeMissing")]
    fn after_the_freeze_a_machine_reports_its_own_wait(#[case] machine: Machine, #[case] reason: &str) {
        let before = frozen_at(machine, 100);
        let reported = after(&decide(&before), &before.machine);
        let thawed = seen(reported, 130);
        let plan = decide(&thawed);
        assert_eq!(plan.rule, "thawed");
        assert_eq!(reported_reason(&after(&plan, &thawed.machine)), Some(reason));
    }
}
