//! Whether the VM of an unhealthy machine still exists (M-48). With `--machine-vm-gone-check` the driver is asked. A VM that
//! the driver does not find twice does not cost the whole health timeout.
//!
//! Only the answer `NotFound` counts, never an error, and only when it comes twice, a minute apart. The siblings still
//! decide whether a machine may be declared Failed (`timeout`). Pure; the answers live in memory, so that the driver is
//! asked again after a restart. Source: spec/machine-controller §14, M-48; decisions.md 12.

use std::time::Duration;

use crate::{
    machine::{
        observation::{Answer, Call, ClassState, Observation, VmCheck},
        plan::{Effect, Memo, Next, RuleResult},
        settings::VmGoneCheck,
    },
    times::since,
};
use machine_api::v1alpha1::MachinePhase;
use machine_driver::Code;

/// The driver is asked for the first time after this time in Unknown, and again this long after `NotFound`.
const FIRST_AFTER: Duration = Duration::from_secs(60);
/// The driver is asked again after this time when it found the VM, or did not answer.
const AGAIN_AFTER: Duration = Duration::from_secs(5 * 60);

/// Asks the driver when it is time, and takes in its answer.
pub fn vm_gone(seen: &Observation) -> RuleResult {
    if seen.limits.vm_gone_check == VmGoneCheck::Off
        || *seen.phase() != MachinePhase::Unknown
        || seen.machine.provider_id().is_empty()
    {
        return RuleResult::NOTHING;
    }
    if let Some(Answer::Status(answer)) = &seen.flow.answer {
        let missing = matches!(answer, Err(status) if status.code == Code::NotFound);
        let next = match (seen.vm_check, missing) {
            (_, false) => VmCheck::NoEvidence(seen.steady),
            (VmCheck::MissingOnce(_) | VmCheck::Gone, true) => VmCheck::Gone,
            (VmCheck::NotAsked | VmCheck::NoEvidence(_), true) => VmCheck::MissingOnce(seen.steady),
        };
        let effects = vec![Effect::Remember(Memo::FlowDone), Effect::Remember(Memo::VmChecked(next))];
        return RuleResult::act("vm-check-answered", effects, Next::Again);
    }
    let Some(left) = left(seen) else { return RuleResult::NOTHING };
    if seen.flow.in_flight.is_some() || seen.class.state != ClassState::Usable {
        return RuleResult::NOTHING;
    }
    if !left.is_zero() {
        return RuleResult::Pass(Some(left));
    }
    RuleResult::act("ask-whether-vm-is-gone", vec![Effect::Start(Call::Status)], Next::AwaitCall)
}

/// The time until the driver is asked; `None` once the VM is known to be gone.
fn left(seen: &Observation) -> Option<Duration> {
    let (length, elapsed) = match seen.vm_check {
        VmCheck::NotAsked => {
            let began = seen.machine.last_update_time().unwrap_or(seen.now);
            (FIRST_AFTER, since(seen.now, began))
        }
        VmCheck::MissingOnce(asked) => (FIRST_AFTER, since(seen.steady, asked)),
        VmCheck::NoEvidence(asked) => (AGAIN_AFTER, since(seen.steady, asked)),
        VmCheck::Gone => return None,
    };
    Some(length.saturating_sub(elapsed))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{
        machine::{decide::decide, testing::*},
        snapshots::MachineSnapshot,
    };
    use machine_api::v1alpha1::{Machine, OperationState, OperationType};
    use machine_driver::{Status, VmIdentity};

    /// A machine in phase Unknown since second 0, with an unhealthy node and the check switched on.
    fn unknown(second: i64, check: VmCheck) -> Observation {
        let mut machine = in_phase(MachinePhase::Unknown, 0, OperationType::HealthCheck, OperationState::Processing);
        machine.status.conditions = vec![condition("Ready", "Unknown")];
        let mut seen = with_node(seen(machine, second), node(vec![condition("Ready", "Unknown")]));
        seen.limits.vm_gone_check = VmGoneCheck::On;
        seen.vm_check = check;
        seen.siblings = Some(Vec::new());
        seen
    }

    fn answered(mut seen: Observation, answer: Result<VmIdentity, Status>) -> Option<VmCheck> {
        seen.flow.learn(Answer::Status(answer));
        decide(&seen).effects.iter().find_map(|effect| match effect {
            Effect::Remember(Memo::VmChecked(check)) => Some(*check),
            _ => None,
        })
    }

    fn missing() -> Result<VmIdentity, Status> {
        Err(Status::new(Code::NotFound, "no VM"))
    }

    #[rstest]
    #[case::not_in_the_first_minute(unknown(59, VmCheck::NotAsked), false)]
    #[case::after_a_minute(unknown(60, VmCheck::NotAsked), true)]
    #[case::a_minute_after_it_was_missing(unknown(120, VmCheck::MissingOnce(at(60))), true)]
    #[case::not_sooner(unknown(119, VmCheck::MissingOnce(at(60))), false)]
    #[case::five_minutes_after_it_was_there(unknown(360, VmCheck::NoEvidence(at(60))), true)]
    #[case::not_once_it_is_known_to_be_gone(unknown(360, VmCheck::Gone), false)]
    #[case::not_unless_switched_on(Observation { limits: crate::machine::settings::MachineSettings::default()
        .limits_of(&Machine::default().into()), ..unknown(60, VmCheck::NotAsked) }, false)]
    fn mc_129_the_driver_is_asked(#[case] seen: Observation, #[case] asked: bool) {
        assert_eq!(decide(&seen).effects.contains(&Effect::Start(Call::Status)), asked);
    }

    #[rstest]
    #[case::missing_for_the_first_time(VmCheck::NotAsked, missing(), VmCheck::MissingOnce(at(60)))]
    #[case::missing_again(VmCheck::MissingOnce(at(0)), missing(), VmCheck::Gone)]
    #[case::a_single_absence_then_there(
        VmCheck::MissingOnce(at(0)),
        Ok(VmIdentity::default()),
        VmCheck::NoEvidence(at(60))
    )]
    #[case::an_error_is_no_evidence(
        VmCheck::MissingOnce(at(0)),
        Err(Status::new(Code::Unavailable, "busy")),
        VmCheck::NoEvidence(at(60))
    )]
    fn mc_129_only_two_absences_in_a_row_count(
        #[case] before: VmCheck,
        #[case] answer: Result<VmIdentity, Status>,
        #[case] expected: VmCheck,
    ) {
        assert_eq!(answered(unknown(60, before), answer), Some(expected));
    }

    #[test]
    fn mc_129_a_machine_without_vm_fails_before_its_health_timeout_when_its_siblings_let_it() {
        let mut gone = unknown(121, VmCheck::Gone);
        assert_eq!(decide(&gone).next, Next::TakePermit);
        gone.permit = crate::machine::observation::Permit::Held;
        let failed = after_plan(&gone);
        assert_eq!(*failed.phase(), MachinePhase::Failed);
        assert!(failed.last_operation().description.contains("no VM"), "{:?}", failed.last_operation());
        gone.siblings = Some(vec![crate::machine::observation::Sibling {
            name: "s".to_owned(),
            phase: "Pending".to_owned(),
            preserved: false,
        }]);
        assert_eq!(*after_plan(&gone).phase(), MachinePhase::Unknown);
    }

    fn after_plan(seen: &Observation) -> MachineSnapshot {
        crate::machine::testing::after(&decide(seen), &seen.machine)
    }
}
