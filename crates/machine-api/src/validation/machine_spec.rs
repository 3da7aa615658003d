//! Rules for the specification of a machine, in a Machine or in the template of a set or deployment (spec/api-and-admission §5.2).

use std::str::FromStr;

use kube_values::syntax;

use super::{
    Object, conditions, labels,
    node::Node,
    node_template,
    rule::{CrdCel, Part, Reason, Rule, check, original, refuses, required, value, warns},
};
use crate::{
    kind::{ApiVersion, Kind},
    names,
};
use kube_values::{
    duration::GoDuration,
    field::{FieldPath, Findings, Located, PathRef},
};

/// The message of an API server for an invalid name.
const RFC_1123: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// The lower bound of a time limit.
#[derive(Clone, Copy)]
enum Bound {
    /// Zero is allowed and means "at once".
    FromZero,
    /// Zero is not allowed, because the limit would already be exceeded at its start.
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

/// Runs the rules of a machine specification that can stop a controller, and a few others.
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

pub const MCH_24: Rule = Rule {
    policy_cel: &[check(
        "template_metadata",
        "variables.template_metadata.?labels.orValue({}).all(k, k.matches(<name>) && variables.template_metadata.labels[k].matches(<label>)) && variables.template_metadata.?annotations.orValue({}).all(k, k.lowerAscii().matches(<name>)) && variables.template_metadata.?finalizers.orValue([]).all(f, f.contains('/') && f.matches(<name>))",
        "spec.template.metadata: labels, annotations and finalizers must be well formed",
    )],
    ..refuses("MCH-24", "The labels, annotations and finalizers of a template are well-formed.", &["MCH-24"])
};

pub const MCH_25: Rule = warns("MCH-25", "A template has no name.", &["MCH-25"]);

/// Runs the rules for the metadata of a machine template: MCH-24, MCH-25.
pub fn template_rules(object: &Object<'_>, found: &mut Findings) {
    let metadata = object.root().at(&["spec", "template", "metadata"]);
    let path = PathRef::new("spec.template.metadata");
    labels::labels_are_wellformed(MCH_24.id, metadata.get("labels"), path.child("labels"), found);
    labels::annotations_are_wellformed(MCH_24.id, metadata.get("annotations"), path.child("annotations"), found);
    labels::finalizers_are_qualified(MCH_24.id, metadata.get("finalizers"), path.child("finalizers"), found);
    for field in ["name", "namespace", "generateName"] {
        if let Some(value) = metadata.get(field).text().filter(|value| !value.is_empty()) {
            found.warn(MCH_25.id, path.child(field), value, "is ignored in a template");
        }
    }
}

pub const MCH_4: Rule = Rule {
    crd_cel: &[value(
        Part::ClassReference,
        "apiGroup",
        "self in ['', 'machine.sapcloud.io']",
        "supported values: \"machine.sapcloud.io\"",
    )],
    ..refuses("MCH-4", "The API group of the class is `machine.sapcloud.io`.", &["V7"])
};

/// MCH-4: there is no other group of classes.
fn class_group_is_ours(class: Node<'_>, path: impl Fn() -> FieldPath, found: &mut Findings) {
    if let Some(group) = class.get("apiGroup").text().filter(|group| !group.is_empty() && *group != names::GROUP) {
        found.not_supported(MCH_4.id, path().child("apiGroup"), group, &[names::GROUP]);
    }
}

pub const MCH_1: Rule = Rule {
    policy_cel: &[check(
        "class",
        "variables.is_class || variables.class.?kind.orValue('') != ''",
        "class.kind: Kind is required",
    )],
    ..original("MCH-1", "The kind of the class is set.", &["V2", "V3", "V140"])
};

pub const MCH_3: Rule = Rule {
    crd_cel: &[value(
        Part::ClassReference,
        "kind",
        "self in ['', 'MachineClass']",
        "supported values: \"MachineClass\"",
    )],
    ..refuses("MCH-3", "The kind of the class is `MachineClass`.", &["V5", "V53"])
};

/// MCH-1 and MCH-3: there is one kind of class. The former in-tree kinds no longer exist, and machines that name them are never reconciled.
fn class_kind_is_machine_class(class: Node<'_>, path: impl Fn() -> FieldPath, found: &mut Findings) {
    match class.get("kind").text_or_empty() {
        Some("") => found.required(MCH_1.id, path().child("kind"), "Kind is required"),
        Some(names::MACHINE_CLASS_KIND) | None => {}
        Some(other) => found.not_supported(MCH_3.id, path().child("kind"), other, &[names::MACHINE_CLASS_KIND]),
    }
}

pub const MCH_2: Rule = Rule {
    crd_cel: &[required(
        Part::ClassReference,
        ".name",
        "has(self.name) && self.name != '' || (oldSelf.hasValue() && (!has(oldSelf.value().name) || oldSelf.value().name == ''))",
        "Name is required",
    )],
    policy_cel: &[check("class", "variables.is_class || variables.class_name != ''", "class.name: Name is required")],
    ..original("MCH-2", "The name of the class is set.", &["V2", "V3", "V140"])
};

pub const MCH_5: Rule = Rule {
    crd_cel: &[value(
        Part::ClassReference,
        "name",
        "self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$') && size(self) <= 253",
        RFC_1123,
    )],
    ..refuses("MCH-5", "The name of the class is a name that an object can have.", &["V6"])
};

/// MCH-2 and MCH-5: the class has a name that an object can have.
fn class_is_named(class: Node<'_>, path: impl Fn() -> FieldPath, found: &mut Findings) {
    match class.get("name").text_or_empty() {
        Some("") => found.required(MCH_2.id, path().child("name"), "Name is required"),
        Some(name) => {
            for objection in syntax::dns1123_subdomain(name) {
                found.invalid(MCH_5.id, path().child("name"), name, objection);
            }
        }
        None => {}
    }
}

pub const MCH_22: Rule = Rule {
    crd_cel: &[CrdCel {
        reason: Reason::Forbidden,
        ..value(Part::ScaledSpec, "template.spec.providerID", "self == ''", "may not be set in a template")
    }],
    ..refuses("MCH-22", "A template has no provider id.", &["V85"])
};

/// MCH-22: a provider id in a template would give all machines the same VM.
fn template_has_no_provider_id(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if let Some(id) = spec.get("providerID").text().filter(|id| !id.is_empty()) {
        found.given(&id).forbidden(MCH_22.id, path.child("providerID"), "may not be set in a template");
    }
}

/// MCH-7 and MCH-8 for the five time limits.
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

pub const MCH_7: Rule = original(
    "MCH-7",
    "A time limit is a duration as Go reads it.",
    &["V10", "V11", "V12", "V16", "V17", "V17b", "V18", "V86", "V137", "V139"],
);

pub const MCH_8: Rule =
    refuses("MCH-8", "A time limit is above zero. That of a drain may be zero.", &["V13", "V14", "V15"]);

/// MCH-7: a duration in Go's syntax. MCH-8: a length within the bound.
fn time_limit_is_a_duration(text: &str, bound: Bound, path: impl Fn() -> FieldPath, found: &mut Findings) {
    let duration = match GoDuration::from_str(text) {
        Ok(duration) => duration,
        Err(error) => return found.invalid(MCH_7.id, path(), text, error.to_string()),
    };
    match bound {
        Bound::FromZero if duration.is_negative() => {
            found.invalid(MCH_8.id, path(), text, "must be greater than or equal to 0");
        }
        Bound::AboveZero if duration <= GoDuration::ZERO => {
            found.invalid(MCH_8.id, path(), text, "must be greater than 0");
        }
        Bound::FromZero | Bound::AboveZero => {}
    }
}

pub const MCH_9: Rule = refuses("MCH-9", "The number of retries of evictions is not negative.", &["V20", "V21"]);

/// MCH-9.
fn max_evict_retries_is_not_negative(settings: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if let Some(retries) = settings.get("maxEvictRetries").integer().filter(|retries| *retries < 0) {
        found.invalid(MCH_9.id, path.child("maxEvictRetries"), retries, "must be greater than or equal to 0");
    }
}

pub const MCH_23: Rule = warns("MCH-23", "Machines that have failed are replaced.", &["MCH-23"]);

/// MCH-23: a deployment without health checks and without in-place updates never replaces a broken machine.
fn failed_machines_are_replaced(object: &Object<'_>, settings: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let (field, off) = match object.version {
        ApiVersion::V1alpha1 => ("disableHealthTimeout", settings.get("disableHealthTimeout").is_true()),
        ApiVersion::V1beta1 => ("healthCheck", settings.get("healthCheck").text() == Some("Disabled")),
    };
    let in_place = object.root().at(&["spec", "strategy", "type"]).text() == Some("InPlaceUpdate");
    if object.kind == Kind::MachineDeployment && off && !in_place {
        let value = settings.get(field).value_or_null();
        found.warn(MCH_23.id, path.child(field), value, "failed machines will never be replaced");
    }
}
