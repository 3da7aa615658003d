//! The machines that count as available in a rollout.
//!
//! By default, as in the original: every machine whose VM exists (phase Available or Running; `minReadySeconds` is not
//! read). With `--strict-availability`: only Running machines whose Node has been Ready for `minReadySeconds`. The
//! counts in the status do not depend on this. Source: spec/deployment-and-set D-22, decisions.md 4. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::{
    set::counts::{is_available, is_ready},
    snapshots::{DeploymentSnapshot, MachineSnapshot},
};

/// The machines that count as available in rollouts (`--strict-availability`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum AvailabilityRule {
    /// Machines whose VM exists, as in the original.
    #[default]
    VmExists,
    /// Machines whose Node has been Ready for `minReadySeconds`.
    NodeReady,
}

/// The rule together with the deployment's `minReadySeconds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    /// The VM exists.
    #[default]
    VmExists,
    /// The Node has been Ready for at least this time.
    ReadyFor(SignedDuration),
}

impl Availability {
    /// Applies the rule to a deployment.
    pub fn of(rule: AvailabilityRule, deployment: &DeploymentSnapshot) -> Self {
        match rule {
            AvailabilityRule::VmExists => Self::VmExists,
            AvailabilityRule::NodeReady => {
                Self::ReadyFor(SignedDuration::from_secs(i64::from(deployment.min_ready_seconds().max(0))))
            }
        }
    }

    /// Whether the machine counts as available in a rollout.
    pub fn holds(self, machine: &MachineSnapshot, now: Timestamp) -> bool {
        match self {
            Self::VmExists => is_available(machine),
            Self::ReadyFor(_) => is_ready(machine) && self.still_to_wait(machine, now).is_none(),
        }
    }

    /// How long a running machine must stay Ready until it counts as available. `None` if it counts already, or if the
    /// time is unknown.
    pub fn still_to_wait(self, machine: &MachineSnapshot, now: Timestamp) -> Option<Duration> {
        let Self::ReadyFor(time) = self else { return None };
        let mut conditions = machine.conditions().iter();
        let ready = conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True");
        let since = ready.and_then(|ready| ready.last_transition_time.as_ref())?.0;
        let left = time.saturating_sub(now.duration_since(since));
        Duration::try_from(left).ok().filter(|left| !left.is_zero() && is_ready(machine))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
    use rstest::rstest;

    use super::*;
    use crate::set::testing::{at, machine, now};
    use machine_api::v1alpha1::MachinePhase::{self, Available, Pending, Running};

    const STRICT: Availability = Availability::ReadyFor(SignedDuration::from_secs(60));

    #[rstest]
    #[case::d_22_a_vm_is_enough(Availability::VmExists, Available, 0, true)]
    #[case::a_vm_is_not_there_yet(Availability::VmExists, Pending, 0, false)]
    #[case::d_22_strictly_the_node_must_be_ready(STRICT, Available, 100, false)]
    #[case::d_22_and_for_long_enough(STRICT, Running, 59, false)]
    #[case::d_22_it_is(STRICT, Running, 60, true)]
    fn a_rollout_counts_on_a_machine(
        #[case] availability: Availability,
        #[case] phase: MachinePhase,
        #[case] ready_for: i64,
        #[case] expected: bool,
    ) {
        let ready = NodeCondition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            last_transition_time: Some(Time(at(-ready_for))),
            ..NodeCondition::default()
        };
        let machine = machine("m").phase(phase).with(|m| m.status.conditions = vec![ready]).build();
        let machine = MachineSnapshot::from(machine);
        assert_eq!(availability.holds(&machine, now()), expected);
        let waits = availability.still_to_wait(&machine, now());
        assert_eq!(waits, (ready_for == 59).then_some(Duration::from_secs(1)));
    }
}
