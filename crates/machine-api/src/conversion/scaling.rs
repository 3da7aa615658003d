//! `MachineSet` and `MachineDeployment`.

use super::{
    Object, annotations,
    conditions::{self, UpdateTime},
    machine, nested, object_of, operation, put_annotation, remove_annotation,
};
use crate::names::annotation;
use kube_values::json::Json;

pub(super) fn set_up(set: &mut Object<'_>) {
    if let Some(spec) = nested(set, "spec") {
        spec.remove("machineClass");
        template(spec, machine::spec_up);
    }
    if let Some(status) = nested(set, "status") {
        status.remove("conditions");
        if let Some(list) = status.remove("machineSetCondition").as_ref().and_then(conditions::up) {
            status.insert("conditions", list);
        }
        operation::up(status);
        failed_machines(status, operation::up);
    }
}

/// `origin` is the object that the set was converted from, when it is mapped back.
pub(super) fn set_down<'a>(set: &mut Object<'a>, origin: Option<&Object<'a>>) {
    if let Some(spec) = nested(set, "spec") {
        spec.remove("machineClass");
        template(spec, machine::spec_down);
    }
    if let Some(status) = nested(set, "status") {
        status.remove("machineSetCondition");
        let list = status.remove("conditions");
        if let Some(list) = list
            .as_ref()
            .and_then(|list| conditions::down(list, UpdateTime::Absent, of_status(origin, "machineSetCondition")))
        {
            status.insert("machineSetCondition", list);
        }
        operation::down(status);
        failed_machines(status, operation::down);
    }
}

pub(super) fn deployment_up(deployment: &mut Object<'_>) {
    let mut rollback = None;
    if let Some(spec) = nested(deployment, "spec") {
        rollback = spec.remove("rollbackTo").as_ref().and_then(revision);
        template(spec, machine::spec_up);
        name_strategy(spec);
    }
    if let Some(status) = nested(deployment, "status") {
        if let Some(list) = status.remove("conditions").as_ref().and_then(conditions::up) {
            status.insert("conditions", list);
        }
        failed_machines(status, operation::up);
    }
    if let Some(revision) = rollback {
        put_annotation(deployment, annotation::ROLLBACK_TO, revision.to_string());
    }
}

/// `origin` is the object that the deployment was converted from, when it is mapped back.
pub(super) fn deployment_down<'a>(deployment: &mut Object<'a>, origin: Option<&Object<'a>>) {
    if let Some(status) = nested(deployment, "status") {
        let list = status.remove("conditions");
        if let Some(list) =
            list.as_ref().and_then(|list| conditions::down(list, UpdateTime::Kept, of_status(origin, "conditions")))
        {
            status.insert("conditions", list);
        }
        failed_machines(status, operation::down);
    }
    let rollback = rollback_annotation(deployment);
    let Some(spec) = nested(deployment, "spec") else { return };
    template(spec, machine::spec_down);
    spec.remove("rollbackTo");
    if let Some(revision) = rollback {
        // Go leaves out a zero.
        let rollback_to = if revision == 0 { object_of([]) } else { object_of([("revision", Json::from(revision))]) };
        spec.insert("rollbackTo", rollback_to);
        remove_annotation(deployment, annotation::ROLLBACK_TO);
    }
}

fn of_status<'o, 'a>(object: Option<&'o Object<'a>>, field: &str) -> Option<&'o Json<'a>> {
    object?.get("status")?.get(field)
}

fn template(spec: &mut Object<'_>, convert: impl FnOnce(&mut Object<'_>)) {
    if let Some(machine_spec) = nested(spec, "template").and_then(|template| nested(template, "spec")) {
        convert(machine_spec);
    }
}

fn failed_machines(status: &mut Object<'_>, convert: impl Fn(&mut Object<'_>)) {
    let Some(list) = status.get_mut("failedMachines").and_then(Json::as_array_mut) else { return };
    list.iter_mut().filter_map(Json::as_object_mut).for_each(convert);
}

/// Sets the type of the strategy, which v1beta1 requires. An absent type has the default of v1alpha1.
fn name_strategy(spec: &mut Object<'_>) {
    let Some(strategy) = spec.get_or_insert_object("strategy").as_object_mut() else { return };
    if strategy.get("type").is_none_or(|name| *name == "") {
        strategy.insert("type", "RollingUpdate");
    }
}

/// The revision of `rollbackTo`. An absent revision means 0.
fn revision(rollback_to: &Json<'_>) -> Option<i64> {
    match rollback_to.as_object()?.get("revision") {
        None => Some(0),
        Some(revision) => revision.as_i64(),
    }
}

/// The revision in the annotation, if it is a plain number. Other texts stay in the annotation.
fn rollback_annotation(deployment: &Object<'_>) -> Option<i64> {
    let text = annotations(deployment)?.get(annotation::ROLLBACK_TO)?.as_str()?;
    text.parse::<i64>().ok().filter(|revision| revision.to_string() == text)
}
