//! The wanted conditions of machines, sets and deployments at rest. The conditions of Nodes are in [`super::nodes`].

use super::Differences;
use machine_api::{
    names::{deployment_reason, machine_condition, machine_reason},
    v1alpha1::{
        ConditionStatus, Machine, MachineDeployment, MachineDeploymentConditionType, MachineSet, OperationState,
    },
};

/// The reasons of a machine that waits for nothing: everything is done, or its preservation has ended.
const AT_REST: [&str; 2] = [machine_condition::REASON_SETTLED, machine_reason::PRESERVATION_STOPPED];

/// A running machine waits for nothing, and no operation has failed.
pub(super) fn of_machine(found: &mut Differences, name: &str, machine: &Machine) {
    let last = &machine.status.last_operation;
    found.expect(last.state == OperationState::Successful, || format!("machine {name} last did {last:?}"));
    found.expect(last.error_code.is_empty(), || format!("machine {name} still has the code {:?}", last.error_code));
    let mut tells_of_progress = false;
    for condition in &machine.status.machine_conditions {
        let is_settled = condition.type_ == machine_condition::PROGRESSING
            && condition.status == "False"
            && AT_REST.contains(&condition.reason.as_str());
        found.expect(is_settled, || format!("machine {name} says {condition:?}"));
        tells_of_progress |= is_settled;
    }
    found.expect(tells_of_progress, || format!("machine {name} does not say that it is settled"));
}

/// A set has conditions only in case of a failure.
pub(super) fn of_set(found: &mut Differences, name: &str, set: &MachineSet) {
    let conditions = &set.status.conditions;
    found.expect(conditions.is_empty(), || format!("set {name} says {conditions:?}"));
}

/// A deployment at rest is available and has progressed; it has other conditions only in case of a failure.
pub(super) fn of_deployment(found: &mut Differences, name: &str, deployment: &MachineDeployment) {
    let available = (MachineDeploymentConditionType::Available, deployment_reason::MINIMUM_AVAILABLE);
    let progressing = (MachineDeploymentConditionType::Progressing, deployment_reason::NEW_SET_AVAILABLE);
    for (kind, reason) in [&available, &progressing] {
        let told = deployment.status.conditions.iter().find(|condition| condition.condition_type == *kind);
        let holds = told.is_some_and(|told| told.status == ConditionStatus::True && told.reason == *reason);
        found.expect(holds, || format!("deployment {name} says {told:?} where {reason} is true"));
    }
    let others: Vec<_> = deployment
        .status
        .conditions
        .iter()
        .filter(|condition| ![&available.0, &progressing.0].contains(&&condition.condition_type))
        .collect();
    found.expect(others.is_empty(), || format!("deployment {name} says {others:?}"));
}
