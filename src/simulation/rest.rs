//! What the world must look like when nothing moves any more.

use super::{api::Api, checks::is_of_new_set, cloud::Cloud};
use crate::{
    api::{
        names::{finalizer, label},
        v1alpha1::{MachineDeploymentConditionType, MachinePhase, MachineSetConditionType},
    },
    controllers::set::counts::{is_terminating, label_of},
};

/// What a Node has during its update only.
const UPDATE_LABELS: [&str; 3] = [label::CANDIDATE_FOR_UPDATE, label::SELECTED_FOR_UPDATE, label::UPDATE_RESULT];

/// How the world differs from what the specification wants; empty when it does not.
pub fn unlike(api: &Api, cloud: &Cloud) -> Vec<String> {
    let mut found = Vec::new();
    let wanted = api.deployments.values().next().map_or(0, |deployment| deployment.spec.replicas);
    let staying = api.machines.values().filter(|machine| !is_terminating(machine)).count();
    let mut expect = |holds: bool, text: &dyn Fn() -> String| {
        if !holds {
            found.push(text());
        }
    };
    expect(i32::try_from(staying) == Ok(wanted), &|| format!("{staying} machines stay, {wanted} are wanted"));
    for (name, machine) in &api.machines {
        let phase = &machine.status.current_status.phase;
        expect(!is_terminating(machine), &|| format!("machine {name} still ends: {:?}", machine.status.last_operation));
        expect(*phase == MachinePhase::Running, &|| format!("machine {name} is {phase:?}"));
        expect(is_of_new_set(api, machine), &|| format!("machine {name} is of an old template"));
        expect(cloud.vms.contains_key(name), &|| format!("machine {name} has no VM"));
        let is_marked = label_of(machine, label::UPDATE_RESULT).is_some();
        expect(!is_marked, &|| format!("machine {name} was handed over and its label was left"));
    }
    for name in cloud.vms.keys() {
        expect(api.machines.contains_key(name), &|| format!("VM {name} has no machine"));
    }
    for (name, node) in &api.nodes {
        // A Node that joined unseen while its VM was being deleted was never ours; it is left to the node lifecycle.
        let is_ours = node.metadata.finalizers.iter().flatten().any(|one| one == finalizer::NODE);
        expect(!is_ours || api.machines.contains_key(name), &|| format!("node {name} has no machine"));
        let labels = node.metadata.labels.iter().flat_map(|labels| labels.keys());
        let left: Vec<&String> = labels.filter(|key| UPDATE_LABELS.contains(&key.as_str())).collect();
        expect(left.is_empty(), &|| format!("node {name} was updated and has {left:?} left"));
    }
    for (name, set) in &api.sets {
        expect(!api.deployments.is_empty(), &|| format!("set {name} has no deployment"));
        expect(set.metadata.deletion_timestamp.is_none(), &|| format!("set {name} still ends"));
        let told = (set.status.replicas, set.status.ready_replicas, set.status.observed_generation);
        let true_ones = (set.spec.replicas, set.spec.replicas, set.metadata.generation.unwrap_or_default());
        expect(told == true_ones, &|| format!("set {name} tells {told:?} and not {true_ones:?}"));
        let is_frozen = set.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label::FREEZE))
            || set.status.conditions.iter().any(|one| one.condition_type == MachineSetConditionType::Frozen);
        expect(!is_frozen, &|| format!("set {name} is frozen"));
    }
    for (name, deployment) in &api.deployments {
        expect(deployment.metadata.deletion_timestamp.is_none(), &|| format!("deployment {name} still ends"));
        let status = &deployment.status;
        let told = (status.replicas, status.updated_replicas, status.ready_replicas, status.observed_generation);
        let true_ones = (wanted, wanted, wanted, deployment.metadata.generation.unwrap_or_default());
        expect(told == true_ones, &|| format!("deployment {name} tells {told:?} and not {true_ones:?}"));
        let is_frozen = deployment.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label::FREEZE))
            || status.conditions.iter().any(|one| one.condition_type == MachineDeploymentConditionType::Frozen);
        expect(!is_frozen, &|| format!("deployment {name} is frozen"));
    }
    found
}
