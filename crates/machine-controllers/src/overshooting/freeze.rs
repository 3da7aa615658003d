//! The marks of a freeze on an object. Pure.

use crate::snapshots::{DeploymentSnapshot, Metadata, SetSnapshot};
use machine_api::{
    names::{FROZEN, annotation, label},
    v1alpha1::{
        MachineDeploymentCondition, MachineDeploymentConditionType, MachineSetCondition, MachineSetConditionType,
    },
};

/// The marks of a freeze.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The label that stops creations.
    pub label: bool,
    /// The condition with the reason.
    pub condition: bool,
    /// The annotation that requests a thaw.
    pub thaw_asked: bool,
}

impl Marks {
    fn of(meta: Metadata<'_>, condition: bool) -> Self {
        Self {
            label: meta.labels.get(label::FREEZE).is_some_and(|value| value == FROZEN),
            condition,
            thaw_asked: meta.annotations.contains_key(annotation::UNFREEZE),
        }
    }
}

/// The marks of a freeze on a set.
pub fn marks_of_set(set: &SetSnapshot) -> Marks {
    Marks::of(set.metadata(), set.status().conditions.iter().any(is_set_freeze))
}

/// The marks of a freeze on a deployment.
pub fn marks_of_deployment(deployment: &DeploymentSnapshot) -> Marks {
    Marks::of(deployment.metadata(), deployment.status().conditions.iter().any(is_deployment_freeze))
}

/// Whether a condition of a set is about a freeze.
pub fn is_set_freeze(condition: &MachineSetCondition) -> bool {
    condition.condition_type == MachineSetConditionType::Frozen
}

/// Whether a condition of a deployment is about a freeze.
pub fn is_deployment_freeze(condition: &MachineDeploymentCondition) -> bool {
    condition.condition_type == MachineDeploymentConditionType::Frozen
}
