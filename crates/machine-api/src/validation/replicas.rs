//! Rules for the numbers of a set or deployment (spec/api-and-admission §5.3, REP-1 to REP-5 and MS-1).

use serde_json::Value;

use super::{
    Object,
    node::Node,
    rule::{Part, Rule, field, original, refuses, warns},
};
use crate::kind::{ApiVersion, Kind};
use kube_values::{
    field::{FieldPath, Findings, RuleId},
    json::Members,
};

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

/// Runs all rules for numbers.
pub fn rules(object: &Object<'_>, found: &mut Findings) {
    let spec = object.root().get("spec");
    let path = FieldPath::new("spec");
    number_is_not_negative(REP_1.id, spec, "replicas", &path, found);
    for field in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds", "autoPreserveFailedMachineMax"]
    {
        number_is_not_negative(REP_3.id, spec, field, &path, found);
    }
    progress_deadline_is_longer_than_readiness(spec, &path, found);
    preserved_machines_fit_into_replicas(spec, &path, found);
}

pub const MS_1: Rule = warns("MS-1", "The field `machineClass` of a set is not used.", &["V84"]);

/// MS-1: the second class field of a set is never read.
pub fn machine_class_is_not_used(object: &Object<'_>, found: &mut Findings) {
    let spec = object.root().get("spec");
    let Some(class) =
        spec.get("machineClass").value().filter(|class| !class.as_object().is_some_and(Members::is_empty))
    else {
        return;
    };
    let of_template = spec.at(&["template", "spec", "class"]).value();
    if object.version == ApiVersion::V1alpha1 && object.kind == Kind::MachineSet && of_template != Some(class) {
        let path = FieldPath::new("spec.machineClass");
        found.warn(MS_1.id, path, Value::Null, "is ignored; spec.template.spec.class decides");
    }
}

pub const REP_1: Rule = original("REP-1", "The number of replicas is not negative.", &["V78", "V114"]);

pub const REP_3: Rule = refuses("REP-3", "Counts and seconds are not negative.", &["V106"]);

fn number_is_not_negative(rule: RuleId, spec: Node<'_>, field: &str, path: &FieldPath, found: &mut Findings) {
    if let Some(number) = spec.get(field).integer().filter(|number| *number < 0) {
        found.invalid(rule, path.child(field), number, NOT_NEGATIVE);
    }
}

pub const REP_4: Rule = Rule {
    crd_cel: &[field(
        Part::DeploymentSpec,
        ".progressDeadlineSeconds",
        "!has(self.progressDeadlineSeconds) || self.progressDeadlineSeconds > (has(self.minReadySeconds) ? self.minReadySeconds : 0) || (oldSelf.hasValue() && has(oldSelf.value().progressDeadlineSeconds) && oldSelf.value().progressDeadlineSeconds == self.progressDeadlineSeconds)",
        "must be greater than minReadySeconds",
    )],
    ..refuses("REP-4", "The progress deadline is longer than the time until a machine counts as available.", &["V105"])
};

/// REP-4: a machine that becomes ready must have enough time to become available.
fn progress_deadline_is_longer_than_readiness(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let (Some(deadline), Some(ready)) =
        (spec.get("progressDeadlineSeconds").integer(), spec.get("minReadySeconds").integer_or_zero())
    else {
        return;
    };
    if deadline >= 0 && deadline <= ready {
        let (path, detail) = (path.child("progressDeadlineSeconds"), "must be greater than minReadySeconds");
        found.given(&(deadline, ready)).invalid(REP_4.id, path, deadline, detail);
    }
}

pub const REP_5: Rule = warns("REP-5", "No more machines are preserved than there are replicas.", &["REP-5"]);

/// REP-5.
fn preserved_machines_fit_into_replicas(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let max = spec.get("autoPreserveFailedMachineMax").integer();
    let (Some(max), Some(replicas)) = (max, spec.get("replicas").integer_or_zero()) else { return };
    if max > replicas.max(0) {
        found.warn(REP_5.id, path.child("autoPreserveFailedMachineMax"), max, "is larger than replicas");
    }
}
