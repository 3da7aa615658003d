//! Rules over a machine's specification, in a Machine or in the template of a set or deployment
//! (spec/api-and-admission §5.2).

use std::str::FromStr;

use kube_values::syntax;

use super::{Object, conditions, labels, node::Node, node_template};
use crate::{
    kind::{ApiVersion, Kind},
    names,
};
use kube_values::{
    duration::GoDuration,
    field::{FieldPath, Findings, Located, PathRef},
};

/// What a time limit may be.
#[derive(Clone, Copy)]
enum Bound {
    /// Zero has a meaning: at once.
    FromZero,
    /// Zero would make the limit pass before it is set.
    AboveZero,
}

/// Runs all rules of a machine specification.
pub fn rules(object: &Object<'_>, found: &mut Findings) {
    let Some((spec, path)) = object.machine_spec() else { return };
    class_is_referred_to(object.version, spec, &path, found);
    if object.kind != Kind::Machine {
        template_has_no_provider_id(spec, &path, found);
    }
    node_template::rules(spec.get("nodeTemplate"), path.place().child("nodeTemplate"), found);
    let (settings, settings_path) = match object.version {
        ApiVersion::V1alpha1 => (spec, path),
        ApiVersion::V1beta1 => (spec.get("lifecycle"), path.child("lifecycle")),
    };
    time_limits_are_durations(object.version, settings, &settings_path, found);
    max_evict_retries_is_not_negative(settings, &settings_path, found);
    match object.version {
        ApiVersion::V1alpha1 => {
            let path = || settings_path.child("nodeConditions");
            conditions::text_names_conditions(settings.get("nodeConditions"), path, found);
        }
        ApiVersion::V1beta1 => {
            let (conditions, path) = (settings.get("unhealthyNodeConditions"), settings_path.place());
            conditions::list_names_conditions(conditions, path.child("unhealthyNodeConditions"), found);
        }
    }
    failed_machines_are_replaced(object, settings, &settings_path, found);
}

/// The rules of a machine specification that may stop a controller, and few others.
pub fn rules_that_stop_controllers(object: &Object<'_>, found: &mut Findings) {
    let Some((spec, path)) = object.machine_spec() else { return };
    class_is_referred_to(object.version, spec, &path, found);
    time_limits_are_durations(object.version, spec, &path, found);
}

fn class_is_referred_to(version: ApiVersion, spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let field = match version {
        ApiVersion::V1alpha1 => "class",
        ApiVersion::V1beta1 => "classRef",
    };
    let (class, path) = (spec.get(field), || path.child(field));
    class_group_is_ours(class, path, found);
    class_kind_is_machine_class(class, path, found);
    class_is_named(class, path, found);
}

/// Rules over the metadata of a machine template: MCH-24, MCH-25.
pub fn template_rules(object: &Object<'_>, found: &mut Findings) {
    let metadata = object.root().at(&["spec", "template", "metadata"]);
    let path = PathRef::new("spec.template.metadata");
    labels::labels_are_wellformed("MCH-24", metadata.get("labels"), path.child("labels"), found);
    labels::annotations_are_wellformed("MCH-24", metadata.get("annotations"), path.child("annotations"), found);
    labels::finalizers_are_qualified("MCH-24", metadata.get("finalizers"), path.child("finalizers"), found);
    for field in ["name", "namespace", "generateName"] {
        if let Some(value) = metadata.get(field).text().filter(|value| !value.is_empty()) {
            found.warn("MCH-25", path.child(field), value, "is ignored in a template");
        }
    }
}

/// MCH-4: there is no other group of classes.
fn class_group_is_ours(class: Node<'_>, path: impl Fn() -> FieldPath, found: &mut Findings) {
    if let Some(group) = class.get("apiGroup").text().filter(|group| !group.is_empty() && *group != names::GROUP) {
        found.not_supported("MCH-4", path().child("apiGroup"), group, &[names::GROUP]);
    }
}

/// MCH-1 and MCH-3: there is one kind of class. The in-tree kinds of old are gone; machines naming them never reconcile.
fn class_kind_is_machine_class(class: Node<'_>, path: impl Fn() -> FieldPath, found: &mut Findings) {
    match class.get("kind").text_or_empty() {
        Some("") => found.required("MCH-1", path().child("kind"), "Kind is required"),
        Some(names::MACHINE_CLASS_KIND) | None => {}
        Some(other) => found.not_supported("MCH-3", path().child("kind"), other, &[names::MACHINE_CLASS_KIND]),
    }
}

/// MCH-2 and MCH-5: the class is named, by a name that an object can have.
fn class_is_named(class: Node<'_>, path: impl Fn() -> FieldPath, found: &mut Findings) {
    match class.get("name").text_or_empty() {
        Some("") => found.required("MCH-2", path().child("name"), "Name is required"),
        Some(name) => {
            for objection in syntax::dns1123_subdomain(name) {
                found.invalid("MCH-5", path().child("name"), name, objection);
            }
        }
        None => {}
    }
}

/// MCH-22: a provider id in a template would give all machines the same VM.
fn template_has_no_provider_id(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if let Some(id) = spec.get("providerID").text().filter(|id| !id.is_empty()) {
        found.given(&id).forbidden("MCH-22", path.child("providerID"), "may not be set in a template");
    }
}

/// MCH-7 and MCH-8 over the five time limits.
fn time_limits_are_durations(version: ApiVersion, settings: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let preserve = match version {
        ApiVersion::V1alpha1 => "machinePreserveTimeout",
        ApiVersion::V1beta1 => "preserveTimeout",
    };
    let limits = [
        ("drainTimeout", Bound::FromZero),
        ("healthTimeout", Bound::AboveZero),
        ("creationTimeout", Bound::AboveZero),
        ("inPlaceUpdateTimeout", Bound::AboveZero),
        (preserve, Bound::AboveZero),
    ];
    for (name, bound) in limits {
        if let Some(text) = settings.get(name).text() {
            time_limit_is_a_duration(text, bound, || path.child(name), found);
        }
    }
}

/// MCH-7: a duration as Go reads it. MCH-8: of a length that makes sense.
fn time_limit_is_a_duration(text: &str, bound: Bound, path: impl Fn() -> FieldPath, found: &mut Findings) {
    let duration = match GoDuration::from_str(text) {
        Ok(duration) => duration,
        Err(error) => return found.invalid("MCH-7", path(), text, error.to_string()),
    };
    match bound {
        Bound::FromZero if duration.is_negative() => {
            found.invalid("MCH-8", path(), text, "must be greater than or equal to 0");
        }
        Bound::AboveZero if duration <= GoDuration::ZERO => {
            found.invalid("MCH-8", path(), text, "must be greater than 0");
        }
        Bound::FromZero | Bound::AboveZero => {}
    }
}

/// MCH-9.
fn max_evict_retries_is_not_negative(settings: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if let Some(retries) = settings.get("maxEvictRetries").integer().filter(|retries| *retries < 0) {
        found.invalid("MCH-9", path.child("maxEvictRetries"), retries, "must be greater than or equal to 0");
    }
}

/// MCH-23: a deployment that switches health off and does not update in place never gets rid of a broken machine.
fn failed_machines_are_replaced(object: &Object<'_>, settings: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let (field, off) = match object.version {
        ApiVersion::V1alpha1 => ("disableHealthTimeout", settings.get("disableHealthTimeout").is_true()),
        ApiVersion::V1beta1 => ("healthCheck", settings.get("healthCheck").text() == Some("Disabled")),
    };
    let in_place = object.root().at(&["spec", "strategy", "type"]).text() == Some("InPlaceUpdate");
    if object.kind == Kind::MachineDeployment && off && !in_place {
        let value = settings.get(field).value_or_null();
        found.warn("MCH-23", path.child(field), value, "failed machines will never be replaced");
    }
}
