//! An unclear owner of a Node: shown in a condition of the machine and counted from this condition, but never a verdict.
//!
//! Source: decisions.md 44. `ownership` decides which machine the Node counts for meanwhile.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    machine::{
        observation::{NodeIdentity, NodeView, Observation},
        plan::{
            Effect, Next, RuleResult,
            status_change::{Doubt, StatusChange},
        },
    },
    snapshots::MachineSnapshot,
};
use machine_api::{names::machine_condition, v1alpha1::MachinePhase};

/// Reports that the driver can't decide the owner of the Node, and withdraws the report when the driver can.
pub fn node_identity(seen: &Observation) -> RuleResult {
    if *seen.phase() == MachinePhase::Unset {
        return RuleResult::NOTHING;
    }
    let stored = stored_doubt(&seen.machine);
    match (doubt(seen), stored) {
        (Some((reason, message)), stored)
            if stored.is_none_or(|stored| stored.reason != reason || stored.message != message) =>
        {
            let doubt = Doubt::Because { reason, message: message.clone() };
            let warn = Effect::Warn { reason, message };
            RuleResult::act("node-not-identified", vec![write_doubt(seen, doubt), warn], Next::Again)
        }
        // Only a Node that is seen removes the doubt: a Node that is gone may come back.
        (None, Some(_)) if matches!(seen.node, NodeView::Ours(_) | NodeView::Foreign { .. }) => {
            RuleResult::act("node-identified", vec![write_doubt(seen, Doubt::None)], Next::Again)
        }
        _ => RuleResult::NOTHING,
    }
}

/// Why the owner is unclear.
fn doubt(seen: &Observation) -> Option<(&'static str, String)> {
    let ours = seen.machine.provider_id();
    match (&seen.node, &seen.node_identity) {
        (NodeView::Contested { name, why }, _) => Some((
            machine_condition::REASON_NODE_CONTESTED,
            format!(
                "whether Node {name} is this machine's can't be told: {why}; nothing is done to it for this machine"
            ),
        )),
        (_, NodeIdentity::Unknown { node }) => Some((
            machine_condition::REASON_IDS_NOT_COMPARABLE,
            format!(
                "the driver can't tell whether providerID {node:?} of Node {} names the same instance as {ours:?}; the label \
                 node decides",
                seen.node_label()
            ),
        )),
        (_, NodeIdentity::Told) => None,
    }
}

/// The stored condition.
fn stored_doubt(machine: &MachineSnapshot) -> Option<&Condition> {
    machine.machine_conditions().iter().find(|condition| condition.type_ == machine_condition::NODE_IDENTIFIED)
}

fn write_doubt(seen: &Observation, doubt: Doubt) -> Effect {
    StatusChange::new().doubt(doubt).effect(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{decide::decide, plan::Plan, testing::*};

    fn undecided() -> Observation {
        let mut seen = with_node(seen(running(), 60), node(vec![condition("Ready", "True")]));
        seen.node_identity = NodeIdentity::Unknown { node: "metal://1".to_owned() };
        seen
    }

    fn conditions(machine: &MachineSnapshot) -> Vec<(String, String)> {
        let all = machine.machine_conditions().iter();
        all.map(|condition| (condition.type_.clone(), condition.reason.clone())).collect()
    }

    fn as_pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(kind, reason)| ((*kind).to_owned(), (*reason).to_owned())).collect()
    }

    #[test]
    fn ids_that_cannot_be_compared_are_reported_once_and_the_machine_stays_running() {
        let seen = undecided();
        let plan = decide(&seen);
        assert_eq!(plan.rule, "node-not-identified");
        let reported = after(&plan, &seen.machine);
        assert_eq!(*reported.phase(), MachinePhase::Running);
        let expected = as_pairs(&[("NodeIdentified", "ProviderIDsNotComparable")]);
        assert_eq!(conditions(&reported), expected);
        let again = Observation { machine: reported, ..seen };
        assert_eq!(node_identity(&again), RuleResult::NOTHING);
    }

    #[test]
    fn the_condition_goes_once_the_driver_can_tell_and_others_stay() {
        let mut seen = undecided();
        let progress =
            crate::machine::plan::status_change::StatusChange::new().settled(machine_condition::REASON_SETTLED, "x");
        seen.machine = after(&Plan::new("test", vec![progress.effect(&seen)], Next::Settled), &seen.machine);
        let reported = after(&decide(&seen), &seen.machine);
        assert_eq!(conditions(&reported).len(), 2);
        seen.machine = reported;
        seen.node_identity = NodeIdentity::Told;
        let plan = decide(&seen);
        assert_eq!(plan.rule, "node-identified");
        assert_eq!(conditions(&after(&plan, &seen.machine)), as_pairs(&[("Progressing", "Settled")]));
    }

    #[test]
    fn a_node_that_another_machine_may_have_leads_to_no_verdict() {
        let contested = || NodeView::Contested { name: "n".to_owned(), why: "machine a has it".to_owned() };
        let mut seen = undecided();
        seen.node = contested();
        let reported = after(&decide(&seen), &seen.machine);
        assert_eq!(*reported.phase(), MachinePhase::Running);
        assert_eq!(conditions(&reported), as_pairs(&[("NodeIdentified", "NodeContested")]));
        seen.machine = reported;
        assert_eq!(decide(&seen).effects, [], "it is reported; nothing else is done");

        // Unhealthy for long enough to fail, if the Node were certain to be the machine's.
        let mut ill = in_phase(
            MachinePhase::Unknown,
            0,
            machine_api::v1alpha1::OperationType::HealthCheck,
            machine_api::v1alpha1::OperationState::Processing,
        );
        ill.status.machine_conditions = seen.machine.machine_conditions().to_vec();
        let mut seen = crate::machine::testing::seen(ill, 100_000);
        seen.node = contested();
        seen.siblings = Some(Vec::new());
        let plan = decide(&seen);
        assert_eq!(plan.rule, "timeout-contested");
        assert_eq!(*after(&plan, &seen.machine).phase(), MachinePhase::Unknown);
    }
}
