//! What a freeze looks like on an object, and the patches that make and end one.
//!
//! The condition is written first, as in the original: who finds the label finds the reason. Lists of conditions are
//! replaced whole, so that patch is refused when anybody has changed the object meanwhile (D-15). Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Map, Value, json};

use super::decide::Why;
use controller_runtime::objects::{Part, Patch};
use machine_api::{
    names::{FROZEN, annotation, label},
    v1alpha1::{
        ConditionStatus, MachineDeployment, MachineDeploymentCondition, MachineDeploymentConditionType, MachineSet,
        MachineSetCondition, MachineSetConditionType,
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

fn is_set_freeze(condition: &MachineSetCondition) -> bool {
    condition.condition_type == MachineSetConditionType::Frozen
}

fn is_deployment_freeze(condition: &MachineDeploymentCondition) -> bool {
    condition.condition_type == MachineDeploymentConditionType::Frozen
}

/// Freezes a set.
pub fn frozen_set(set: &MachineSet, why: &Why, now: Timestamp) -> Vec<(Part, Patch)> {
    let marks = marks_of_set(set);
    let mut patches = Vec::new();
    if !marks.condition {
        let mut all = set.status.conditions.clone();
        all.push(MachineSetCondition {
            condition_type: MachineSetConditionType::Frozen,
            status: ConditionStatus::True,
            last_transition_time: Some(Time(now)),
            reason: why.reason.to_owned(),
            message: why.message.clone(),
        });
        patches.push(conditions(&set.metadata, &json!({ "machineSetCondition": all })));
    }
    patches.extend(labelled(marks));
    patches
}

/// Thaws a set.
pub fn thawed_set(set: &MachineSet) -> Vec<(Part, Patch)> {
    let marks = marks_of_set(set);
    let mut patches = Vec::new();
    if marks.condition {
        let left: Vec<_> = set.status.conditions.iter().filter(|condition| !is_set_freeze(condition)).collect();
        patches.push(conditions(&set.metadata, &json!({ "machineSetCondition": left })));
    }
    patches.extend(unlabelled(marks));
    patches
}

/// Freezes a deployment.
pub fn frozen_deployment(deployment: &MachineDeployment, why: &Why, now: Timestamp) -> Vec<(Part, Patch)> {
    let marks = marks_of_deployment(deployment);
    let mut patches = Vec::new();
    if !marks.condition {
        let mut all = deployment.status.conditions.clone();
        all.push(MachineDeploymentCondition {
            condition_type: MachineDeploymentConditionType::Frozen,
            status: ConditionStatus::True,
            last_update_time: Some(Time(now)),
            last_transition_time: Some(Time(now)),
            reason: why.reason.to_owned(),
            message: why.message.clone(),
        });
        patches.push(conditions(&deployment.metadata, &json!({ "conditions": all })));
    }
    patches.extend(labelled(marks));
    patches
}

/// Thaws a deployment.
pub fn thawed_deployment(deployment: &MachineDeployment) -> Vec<(Part, Patch)> {
    let marks = marks_of_deployment(deployment);
    let mut patches = Vec::new();
    if marks.condition {
        let all = &deployment.status.conditions;
        let left: Vec<_> = all.iter().filter(|condition| !is_deployment_freeze(condition)).collect();
        patches.push(conditions(&deployment.metadata, &json!({ "conditions": left })));
    }
    patches.extend(unlabelled(marks));
    patches
}

fn conditions(meta: &ObjectMeta, status: &Value) -> (Part, Patch) {
    let patch = Patch::Merge(json!({ "status": status }));
    (Part::Status, patch.guarded_by(meta.resource_version.as_deref()))
}

fn labelled(marks: Marks) -> Option<(Part, Patch)> {
    let patch = || Patch::Merge(json!({ "metadata": { "labels": { label::FREEZE: FROZEN } } }));
    (!marks.label).then(|| (Part::Main, patch()))
}

fn unlabelled(marks: Marks) -> Option<(Part, Patch)> {
    let mut metadata = Map::new();
    if marks.label {
        metadata.insert("labels".to_owned(), json!({ label::FREEZE: null }));
    }
    if marks.thaw_asked {
        metadata.insert("annotations".to_owned(), json!({ annotation::UNFREEZE: null }));
    }
    (!metadata.is_empty()).then(|| (Part::Main, Patch::Merge(json!({ "metadata": metadata }))))
}
