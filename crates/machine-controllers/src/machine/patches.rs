//! The patches that effects write. No other file of this module makes patches.
//!
//! A list is replaced whole, and only in the version that was observed. Fields that an effect does not name are not touched,
//! so that fields unknown to this program survive.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use serde_json::{Map, Value, json};

use super::{
    observation::Observation,
    plan::{
        Effect, Link, VersionGuard,
        node_dress::NodeDress,
        status_change::{Doubt, Preservation, StatusChange, TimeoutClock},
    },
};
use crate::{
    finalizer_patches::without,
    snapshots::{MachineSnapshot, NodeSnapshot},
    times::rfc3339,
};
use controller_runtime::{
    objects::{Part, Patch},
    snapshot::Snapshot,
};
use machine_api::names::{annotation, finalizer, label, machine_condition};
use machine_driver::Code;

/// The write of an effect to an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Nothing: the object is already as it should be, or the effect is about another object.
    Nothing,
    /// Nothing, because the object differs from what was observed: decide again.
    Void,
    /// This patch of this part of the object.
    This(Part, Patch),
}

impl Write {
    fn of(part: Part, patch: Option<Patch>) -> Self {
        patch.map_or(Self::Nothing, |patch| Self::This(part, patch))
    }
}

/// The write of an effect to the machine. `newest` is the machine after the effects before this one.
pub fn of_machine(effect: &Effect, seen: &Observation, newest: &MachineSnapshot) -> Write {
    let version = newest.resource_version();
    match effect {
        Effect::AddMachineFinalizer => {
            Write::This(Part::Main, Patch::Merge(claimed(&seen.machine)).guarded_by(version))
        }
        Effect::Link(link) => {
            // Another client may set a priority at this moment; its value must win.
            let guard = if link.priority.is_some() { VersionGuard::Observed } else { VersionGuard::Any };
            Write::This(Part::Main, guarded(linked(link), guard, version))
        }
        Effect::ForgetPreservation(guard) => Write::This(Part::Main, guarded(forgotten(), *guard, version)),
        Effect::RememberNodesWish(value) => Write::This(Part::Main, Patch::Merge(remembered(value))),
        Effect::WriteStatus { change, at } => {
            if !lists_are_as_seen(change, &seen.machine, newest) {
                return Write::Void;
            }
            let guard = if change.replaces_lists() { VersionGuard::Observed } else { VersionGuard::Any };
            Write::This(Part::Status, guarded(status(change, *at, &seen.machine), guard, version))
        }
        Effect::RemoveMachineFinalizer => {
            Write::of(Part::Main, without(newest.metadata().finalizers, finalizer::MACHINE))
        }
        Effect::DeleteMachine
        | Effect::RereadMachine
        | Effect::CheckInputs
        | Effect::RereadNode
        | Effect::LookForNode
        | Effect::Cordon
        | Effect::Dress { .. }
        | Effect::MirrorCapacity(_)
        | Effect::AddNodeCondition(_)
        | Effect::SetNodeCondition { .. }
        | Effect::RemoveNodeFinalizer
        | Effect::DeleteNode { .. }
        | Effect::DeleteAttachment { .. }
        | Effect::EnsureToken
        | Effect::DeleteToken
        | Effect::Start(_)
        | Effect::Warn { .. }
        | Effect::Tell { .. }
        | Effect::TellNode { .. }
        | Effect::Remember(_)
        | Effect::Measure(_) => Write::Nothing,
    }
}

/// The write of an effect to the Node. `newest` is the Node after the effects before this one.
pub fn of_node(effect: &Effect, newest: &NodeSnapshot) -> Write {
    let version = newest.resource_version();
    match effect {
        Effect::Cordon => Write::This(Part::Main, Patch::Merge(json!({ "spec": { "unschedulable": true } }))),
        Effect::Dress { dress, .. } => Write::This(Part::Main, Patch::Merge(dressed(dress)).guarded_by(version)),
        Effect::MirrorCapacity(capacity) => {
            Write::This(Part::Status, Patch::Merge(json!({ "status": { "capacity": capacity } })))
        }
        Effect::AddNodeCondition(condition) => Write::This(Part::Status, added_condition(newest, condition)),
        Effect::SetNodeCondition { condition, .. } => Write::This(Part::Status, set_condition(newest, condition)),
        Effect::RemoveNodeFinalizer => Write::of(Part::Main, without(newest.finalizers(), finalizer::NODE)),
        Effect::AddMachineFinalizer
        | Effect::Link(_)
        | Effect::ForgetPreservation(_)
        | Effect::RememberNodesWish(_)
        | Effect::WriteStatus { .. }
        | Effect::RemoveMachineFinalizer
        | Effect::DeleteMachine
        | Effect::RereadMachine
        | Effect::CheckInputs
        | Effect::RereadNode
        | Effect::LookForNode
        | Effect::DeleteNode { .. }
        | Effect::DeleteAttachment { .. }
        | Effect::EnsureToken
        | Effect::DeleteToken
        | Effect::Start(_)
        | Effect::Warn { .. }
        | Effect::Tell { .. }
        | Effect::TellNode { .. }
        | Effect::Remember(_)
        | Effect::Measure(_) => Write::Nothing,
    }
}

/// The patch, bound to the observed version where the guard demands it.
fn guarded(patch: Value, guard: VersionGuard, version: Option<&str>) -> Patch {
    let patch = Patch::Merge(patch);
    match guard {
        VersionGuard::Any => patch,
        VersionGuard::Observed => patch.guarded_by(version),
    }
}

/// Adds our finalizer after the existing ones.
fn claimed(machine: &MachineSnapshot) -> Value {
    let mut all = machine.metadata().finalizers.to_vec();
    all.push(finalizer::MACHINE.to_owned());
    json!({ "metadata": { "finalizers": all } })
}

/// Records the machine's VM and Node.
fn linked(link: &Link) -> Value {
    let mut metadata = Map::new();
    if let Some(node) = &link.node {
        metadata.insert("labels".to_owned(), json!({ label::NODE: node }));
    }
    if let Some(priority) = link.priority {
        metadata.insert("annotations".to_owned(), json!({ annotation::MACHINE_PRIORITY: priority.to_string() }));
    }
    let mut patch = Map::new();
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), Value::Object(metadata));
    }
    if let Some(id) = &link.provider_id {
        patch.insert("spec".to_owned(), json!({ "providerID": id }));
    }
    Value::Object(patch)
}

/// Removes the preservation annotations of the machine.
fn forgotten() -> Value {
    let gone = json!({ annotation::PRESERVE: null, annotation::LAST_APPLIED_NODE_PRESERVE_VALUE: null });
    json!({ "metadata": { "annotations": gone } })
}

/// Stores the Node's preservation value on the machine and removes the machine's own annotation.
fn remembered(value: &str) -> Value {
    let annotations = json!({ annotation::PRESERVE: null, annotation::LAST_APPLIED_NODE_PRESERVE_VALUE: value });
    json!({ "metadata": { "annotations": annotations } })
}

/// Adds what a Node lacks.
fn dressed(dress: &NodeDress) -> Value {
    let mut metadata = Map::new();
    if let Some(finalizers) = &dress.finalizers {
        metadata.insert("finalizers".to_owned(), json!(finalizers));
    }
    for (field, changes) in [("labels", &dress.labels), ("annotations", &dress.annotations)] {
        if !changes.is_empty() {
            metadata.insert(field.to_owned(), json!(changes));
        }
    }
    let mut patch = Map::new();
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), Value::Object(metadata));
    }
    if let Some(taints) = &dress.taints {
        patch.insert("spec".to_owned(), json!({ "taints": taints }));
    }
    Value::Object(patch)
}

/// Adds the condition at the end of the Node's list.
fn added_condition(node: &NodeSnapshot, condition: &NodeCondition) -> Patch {
    Patch::Json(vec![if node.conditions().is_empty() {
        json!({ "op": "add", "path": "/status/conditions", "value": [condition] })
    } else {
        json!({ "op": "add", "path": "/status/conditions/-", "value": condition })
    }])
}

/// Replaces the condition of the same type by one at the end of the list; other conditions are not touched (spec §1.6).
fn set_condition(node: &NodeSnapshot, condition: &NodeCondition) -> Patch {
    let Some(place) = node.conditions().iter().position(|stored| stored.type_ == condition.type_) else {
        return added_condition(node, condition);
    };
    let path = format!("/status/conditions/{place}");
    Patch::Json(vec![
        json!({ "op": "test", "path": format!("{path}/type"), "value": condition.type_ }),
        json!({ "op": "remove", "path": path }),
        json!({ "op": "add", "path": "/status/conditions/-", "value": condition }),
    ])
}

/// Whether the lists that a change replaces are still as observed: otherwise another client's new entry would be lost.
fn lists_are_as_seen(change: &StatusChange, seen: &MachineSnapshot, newest: &MachineSnapshot) -> bool {
    let (before, now) = (seen.status(), newest.status());
    (change.conditions.is_none() || before.conditions == now.conditions)
        && (change.addresses.is_none() || before.addresses == now.addresses)
        && (!change.replaces_machine_conditions() || before.machine_conditions == now.machine_conditions)
}

/// The merge patch of a change of this machine's status.
pub fn status(change: &StatusChange, at: Timestamp, machine: &MachineSnapshot) -> Value {
    let stored = machine.status();
    let now = rfc3339(at);
    let mut status = Map::new();
    if let Some(operation) = &change.operation {
        status.insert(
            "lastOperation".to_owned(),
            json!({
                "description": operation.description,
                "errorCode": operation.code.map(Code::as_str),
                "lastUpdateTime": now,
                "state": operation.state,
                "type": operation.operation,
            }),
        );
    }
    let current = current_status(change, &now, machine);
    if !current.is_empty() {
        status.insert("currentStatus".to_owned(), Value::Object(current));
    }
    if let Some(conditions) = &change.conditions {
        status.insert("conditions".to_owned(), json!(conditions));
    }
    if let Some(addresses) = &change.addresses {
        status.insert("addresses".to_owned(), json!(addresses));
    }
    if let Some(state) = &change.last_known_state {
        status.insert("lastKnownState".to_owned(), if state.is_empty() { Value::Null } else { json!(state) });
    }
    if change.replaces_machine_conditions() {
        let mut all: Vec<Value> = stored.machine_conditions.iter().map(|condition| json!(condition)).collect();
        if let Some(condition) = change.progressing(at, machine) {
            all = without_type(all, machine_condition::PROGRESSING);
            all.push(json!(condition));
        }
        if let Some(doubt) = &change.doubt {
            all = with_doubt(all, doubt, &now, machine);
        }
        status.insert("machineConditions".to_owned(), Value::Array(all));
    }
    json!({ "status": status })
}

fn current_status(change: &StatusChange, now: &str, machine: &MachineSnapshot) -> Map<String, Value> {
    let stored = &machine.status().current_status;
    let mut current = Map::new();
    if let Some((phase, clock)) = &change.phase {
        if *phase != stored.phase {
            current.insert("phase".to_owned(), json!(phase));
            current.insert("lastUpdateTime".to_owned(), json!(now));
        }
        let active = *clock == TimeoutClock::Active;
        if active != stored.timeout_active {
            current.insert("timeoutActive".to_owned(), if active { json!(true) } else { Value::Null });
        }
    }
    let is_preserved = stored.preserve_expiry_time.is_some();
    match change.preservation {
        Some(Preservation::Ends) if is_preserved => {
            current.insert("preserveExpiryTime".to_owned(), Value::Null);
        }
        Some(Preservation::Stops) if is_preserved => {
            current.insert("preserveExpiryTime".to_owned(), Value::Null);
            current.insert("lastUpdateTime".to_owned(), json!(now));
        }
        Some(Preservation::Until(until)) => {
            current.insert("preserveExpiryTime".to_owned(), json!(rfc3339(until)));
            current.insert("lastUpdateTime".to_owned(), json!(now));
        }
        Some(Preservation::Ends | Preservation::Stops) | None => {}
    }
    current
}

/// The machine's own conditions with this doubt in place of the earlier one, or without one.
fn with_doubt(all: Vec<Value>, doubt: &Doubt, now: &str, machine: &MachineSnapshot) -> Vec<Value> {
    let stored = machine.machine_conditions();
    let since = stored
        .iter()
        .find(|condition| condition.type_ == machine_condition::NODE_IDENTIFIED)
        .map_or_else(|| now.to_owned(), |condition| rfc3339(condition.last_transition_time.0));
    let mut all = without_type(all, machine_condition::NODE_IDENTIFIED);
    match doubt {
        Doubt::None => {}
        Doubt::Because { reason, message } => all.push(json!({
            "type": machine_condition::NODE_IDENTIFIED,
            "status": "Unknown",
            "reason": reason,
            "message": message,
            "observedGeneration": machine.generation().unwrap_or_default(),
            "lastTransitionTime": since,
        })),
    }
    all
}

fn without_type(mut all: Vec<Value>, name: &str) -> Vec<Value> {
    all.retain(|condition| condition["type"] != name);
    all
}
