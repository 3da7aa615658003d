//! Makes the patches of effects; no other file of this folder does.
//!
//! The condition is written first, as in the original: a reader that finds the label also finds the reason. The patch
//! replaces the whole list of conditions, so it fails in any version but the observed one (D-15). Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

use super::{
    decide::{Effect, Why},
    freeze::{Marks, is_deployment_freeze, is_set_freeze, marks_of_deployment, marks_of_set},
};
use crate::snapshots::{DeploymentSnapshot, Metadata, SetSnapshot};
use controller_runtime::objects::{Part, Patch};
use machine_api::{
    names::{FROZEN, annotation, label},
    v1alpha1::{
        ConditionStatus, MachineDeploymentCondition, MachineDeploymentConditionType, MachineSetCondition,
        MachineSetConditionType,
    },
};

/// The patches of an effect, in order.
pub fn of_effect(effect: &Effect, now: Timestamp) -> Vec<(Part, Patch)> {
    match effect {
        Effect::FreezeSet(set, why) => frozen_set(set, why, now),
        Effect::ThawSet(set) => thawed_set(set),
        Effect::FreezeDeployment(deployment, why) => frozen_deployment(deployment, why, now),
        Effect::ThawDeployment(deployment) => thawed_deployment(deployment),
    }
}

fn frozen_set(set: &SetSnapshot, why: &Why, now: Timestamp) -> Vec<(Part, Patch)> {
    let marks = marks_of_set(set);
    let mut patches = Vec::new();
    if !marks.condition {
        let mut all = set.status().conditions.clone();
        all.push(MachineSetCondition {
            condition_type: MachineSetConditionType::Frozen,
            status: ConditionStatus::True,
            last_transition_time: Some(Time(now)),
            reason: why.reason.to_owned(),
            message: why.message.clone(),
        });
        patches.push(conditions(set.metadata(), &json!({ "machineSetCondition": all })));
    }
    patches.extend(labelled(marks));
    patches
}

fn thawed_set(set: &SetSnapshot) -> Vec<(Part, Patch)> {
    let marks = marks_of_set(set);
    let mut patches = Vec::new();
    if marks.condition {
        let left: Vec<_> = set.status().conditions.iter().filter(|condition| !is_set_freeze(condition)).collect();
        patches.push(conditions(set.metadata(), &json!({ "machineSetCondition": left })));
    }
    patches.extend(unlabelled(marks));
    patches
}

fn frozen_deployment(deployment: &DeploymentSnapshot, why: &Why, now: Timestamp) -> Vec<(Part, Patch)> {
    let marks = marks_of_deployment(deployment);
    let mut patches = Vec::new();
    if !marks.condition {
        let mut all = deployment.status().conditions.clone();
        all.push(MachineDeploymentCondition {
            condition_type: MachineDeploymentConditionType::Frozen,
            status: ConditionStatus::True,
            last_update_time: Some(Time(now)),
            last_transition_time: Some(Time(now)),
            reason: why.reason.to_owned(),
            message: why.message.clone(),
        });
        patches.push(conditions(deployment.metadata(), &json!({ "conditions": all })));
    }
    patches.extend(labelled(marks));
    patches
}

fn thawed_deployment(deployment: &DeploymentSnapshot) -> Vec<(Part, Patch)> {
    let marks = marks_of_deployment(deployment);
    let mut patches = Vec::new();
    if marks.condition {
        let all = &deployment.status().conditions;
        let left: Vec<_> = all.iter().filter(|condition| !is_deployment_freeze(condition)).collect();
        patches.push(conditions(deployment.metadata(), &json!({ "conditions": left })));
    }
    patches.extend(unlabelled(marks));
    patches
}

fn conditions(meta: Metadata<'_>, status: &Value) -> (Part, Patch) {
    let patch = Patch::Merge(json!({ "status": status }));
    (Part::Status, patch.guarded_by(meta.resource_version))
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
