//! `MachineSet` and `MachineDeployment`.

use serde_json::{Map, Value, json};

use super::{
    Object, annotations,
    conditions::{self, UpdateTime},
    machine, nested, operation, put_annotation, remove_annotation,
};
use crate::api::names::annotation;

pub(super) fn set_up(set: &mut Object) {
    if let Some(spec) = nested(set, "spec") {
        spec.remove("machineClass");
        template(spec, machine::spec_up);
    }
    if let Some(status) = nested(set, "status") {
        status.remove("conditions");
        if let Some(list) = status.remove("machineSetCondition").as_ref().and_then(conditions::up) {
            status.insert("conditions".to_owned(), list);
        }
        operation::up(status);
        failed_machines(status, operation::up);
    }
}

pub(super) fn set_down(set: &mut Object) {
    if let Some(spec) = nested(set, "spec") {
        spec.remove("machineClass");
        template(spec, machine::spec_down);
    }
    if let Some(status) = nested(set, "status") {
        status.remove("machineSetCondition");
        let list = status.remove("conditions");
        if let Some(list) = list.as_ref().and_then(|list| conditions::down(list, UpdateTime::Absent)) {
            status.insert("machineSetCondition".to_owned(), list);
        }
        operation::down(status);
        failed_machines(status, operation::down);
    }
}

pub(super) fn deployment_up(deployment: &mut Object) {
    let mut rollback = None;
    if let Some(spec) = nested(deployment, "spec") {
        rollback = spec.remove("rollbackTo").as_ref().and_then(revision);
        template(spec, machine::spec_up);
        name_strategy(spec);
    }
    if let Some(status) = nested(deployment, "status") {
        if let Some(list) = status.remove("conditions").as_ref().and_then(conditions::up) {
            status.insert("conditions".to_owned(), list);
        }
        failed_machines(status, operation::up);
    }
    if let Some(revision) = rollback {
        put_annotation(deployment, annotation::ROLLBACK_TO, revision.to_string());
    }
}

pub(super) fn deployment_down(deployment: &mut Object) {
    if let Some(status) = nested(deployment, "status") {
        let list = status.remove("conditions");
        if let Some(list) = list.as_ref().and_then(|list| conditions::down(list, UpdateTime::Kept)) {
            status.insert("conditions".to_owned(), list);
        }
        failed_machines(status, operation::down);
    }
    let rollback = rollback_annotation(deployment);
    let Some(spec) = nested(deployment, "spec") else { return };
    template(spec, machine::spec_down);
    spec.remove("rollbackTo");
    if let Some(revision) = rollback {
        // Go leaves out a zero.
        let rollback_to = if revision == 0 { json!({}) } else { json!({"revision": revision}) };
        spec.insert("rollbackTo".to_owned(), rollback_to);
        remove_annotation(deployment, annotation::ROLLBACK_TO);
    }
}

fn template(spec: &mut Object, convert: impl FnOnce(&mut Object)) {
    if let Some(machine_spec) = nested(spec, "template").and_then(|template| nested(template, "spec")) {
        convert(machine_spec);
    }
}

fn failed_machines(status: &mut Object, convert: impl Fn(&mut Object)) {
    let Some(Value::Array(list)) = status.get_mut("failedMachines") else { return };
    list.iter_mut().filter_map(Value::as_object_mut).for_each(convert);
}

/// v1beta1 names the strategy; an absent one means what the documentation of v1alpha1 says.
fn name_strategy(spec: &mut Object) {
    let strategy = spec.entry("strategy").or_insert_with(|| Value::Object(Map::new()));
    let Some(strategy) = strategy.as_object_mut() else { return };
    if strategy.get("type").is_none_or(|name| name == "") {
        strategy.insert("type".to_owned(), "RollingUpdate".into());
    }
}

/// The revision of `rollbackTo`, which is 0 when it is absent.
fn revision(rollback_to: &Value) -> Option<i64> {
    match rollback_to.as_object()?.get("revision") {
        None => Some(0),
        Some(revision) => revision.as_i64(),
    }
}

/// The revision in the annotation, if it is written as a plain number; other texts stay annotations.
fn rollback_annotation(deployment: &mut Object) -> Option<i64> {
    let text = annotations(deployment)?.get(annotation::ROLLBACK_TO)?.as_str()?;
    text.parse::<i64>().ok().filter(|revision| revision.to_string() == text)
}
