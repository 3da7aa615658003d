//! What a freeze looks like on an object. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use machine_api::{
    names::{FROZEN, annotation, label},
    v1alpha1::{
        MachineDeployment, MachineDeploymentCondition, MachineDeploymentConditionType, MachineSet, MachineSetCondition,
        MachineSetConditionType,
    },
};

/// What an object carries of a freeze.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The label that stops creations.
    pub label: bool,
    /// The condition that says why.
    pub condition: bool,
    /// The annotation that asks for a thaw.
    pub thaw_asked: bool,
}

impl Marks {
    fn of(meta: &ObjectMeta, condition: bool) -> Self {
        let label = meta.labels.as_ref().and_then(|labels| labels.get(label::FREEZE));
        Self {
            label: label.is_some_and(|value| value == FROZEN),
            condition,
            thaw_asked: meta.annotations.as_ref().is_some_and(|all| all.contains_key(annotation::UNFREEZE)),
        }
    }
}

/// What a set carries of a freeze.
pub fn marks_of_set(set: &MachineSet) -> Marks {
    Marks::of(&set.metadata, set.status.conditions.iter().any(is_set_freeze))
}

/// What a deployment carries of a freeze.
pub fn marks_of_deployment(deployment: &MachineDeployment) -> Marks {
    Marks::of(&deployment.metadata, deployment.status.conditions.iter().any(is_deployment_freeze))
}

/// Whether a condition of a set tells of a freeze.
pub fn is_set_freeze(condition: &MachineSetCondition) -> bool {
    condition.condition_type == MachineSetConditionType::Frozen
}

/// Whether a condition of a deployment tells of a freeze.
pub fn is_deployment_freeze(condition: &MachineDeploymentCondition) -> bool {
    condition.condition_type == MachineDeploymentConditionType::Frozen
}
