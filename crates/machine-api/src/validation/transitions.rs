//! Rules for the change between two states of an object (spec/api-and-admission §5, marked T or U).
//!
//! They prevent changes that can't be undone: a machine that loses its VM, or a set that loses its machines. An unchanged value always satisfies
//! these rules, so that stored mistakes need no forgiveness. Controllers are exempt.

use serde_json::{Value, json};

use super::{
    ValidationRequest,
    node::Node,
    rule::{Level, Rule, skippable, transition, warns},
    selector,
};
use crate::{
    kind::{ApiVersion, Kind},
    names::label,
};
use kube_values::{
    field::{FieldPath, Findings},
    json::Json,
};

/// Runs all transition rules.
pub fn rules(request: &ValidationRequest<'_>, old: &Json<'_>, new: &Json<'_>, found: &mut Findings) {
    if request.comes_from_controller() {
        return;
    }
    let step = Step { old: Node::of(old), new: Node::of(new) };
    match request.kind {
        Kind::Machine => {
            provider_id_stays(&step, found);
            class_of_a_made_machine_stays(&step, request.version, found);
            node_label_stays(&step, found);
        }
        Kind::MachineSet | Kind::MachineDeployment => {
            selector_stays(&step, found);
            frozen_object_makes_no_machines(&step, found);
            if request.kind == Kind::MachineDeployment {
                strategy_changes_at_rest(&step, found);
            } else {
                controlled_set_is_left_alone(&step, found);
            }
        }
        Kind::MachineClass => {}
    }
}

/// Runs the rules that also apply while the object is being deleted. They prevent the deletion of a foreign VM.
pub fn of_terminating(request: &ValidationRequest<'_>, old: &Json<'_>, new: &Json<'_>, found: &mut Findings) {
    if request.kind == Kind::Machine && !request.comes_from_controller() {
        let step = Step { old: Node::of(old), new: Node::of(new) };
        provider_id_stays(&step, found);
        node_label_stays(&step, found);
    }
}

struct Step<'a> {
    old: Node<'a>,
    new: Node<'a>,
}

impl<'a> Step<'a> {
    /// The old and the new text of a place, if there was a text before and the text changes.
    fn replaced(&self, place: &[&str]) -> Option<(&'a str, &'a str)> {
        let old = self.old.at(place).text().filter(|old| !old.is_empty())?;
        let new = self.new.at(place).text_or_empty()?;
        (old != new).then_some((old, new))
    }

    fn differs(&self, place: &[&str]) -> bool {
        self.old.at(place).value() != self.new.at(place).value()
    }
}

pub const MCH_19: Rule = Rule {
    policy_cel: &[transition(
        "!variables.is_machine || 'MCH-19' in variables.skips || variables.old_provider_id == '' || variables.old_provider_id == variables.provider_id",
        "spec.providerID: field is immutable once set",
    )],
    ..skippable("MCH-19", "A machine keeps its provider id.", &["V45", "V46", "V47", "V48", "V49", "V50"])
};

/// MCH-19.
fn provider_id_stays(step: &Step<'_>, found: &mut Findings) {
    if let Some((_, new)) = step.replaced(&["spec", "providerID"]) {
        found.invalid(MCH_19.id, FieldPath::new("spec.providerID"), new, "field is immutable once set");
    }
}

pub const MCH_20: Rule = Rule {
    policy_cel: &[transition(
        "!variables.is_machine || 'MCH-20' in variables.skips || has(object.metadata.deletionTimestamp) || variables.old_provider_id == '' || variables.old_class_name == '' || variables.old_class_name == variables.class_name",
        "spec.class.name: may not be changed once spec.providerID is set",
    )],
    ..skippable("MCH-20", "A machine that has a provider id keeps its class.", &["V51", "V52"])
};

/// MCH-20: the VM was made with the old class, and must be deleted with it.
fn class_of_a_made_machine_stays(step: &Step<'_>, version: ApiVersion, found: &mut Findings) {
    let class = match version {
        ApiVersion::V1alpha1 => "class",
        ApiVersion::V1beta1 => "classRef",
    };
    let made = step.old.at(&["spec", "providerID"]).text().is_some_and(|id| !id.is_empty());
    if let Some((old, _)) = step.replaced(&["spec", class, "name"]).filter(|_| made) {
        let path = FieldPath::new("spec").child(class).child("name");
        let detail = format!(
            "may not be changed once spec.providerID is set; the machine was created from MachineClass {old:?}"
        );
        found.forbidden(MCH_20.id, path, detail);
    }
}

pub const META_8: Rule = Rule {
    level: Level::RefuseOrWarn,
    policy_cel: &[transition(
        "!variables.is_machine || 'META-8' in variables.skips || variables.node == '' || variables.old_node == '' || variables.old_node == variables.node || (variables.old_provider_id == '' && variables.provider_id != '')",
        "metadata.labels[node]: field is immutable once set",
    )],
    ..skippable("META-8", "A machine keeps its Node.", &["V54", "V54b", "V54c", "V55"])
};

/// META-8. The update that sets the provider id of a machine also sets its Node, and may replace an earlier value of the label, because a template
/// may have set it.
fn node_label_stays(step: &Step<'_>, found: &mut Findings) {
    let identified = |object: Node<'_>| object.at(&["spec", "providerID"]).text().is_some_and(|id| !id.is_empty());
    if identified(step.new) && !identified(step.old) {
        return;
    }
    let path = || FieldPath::new("metadata.labels").key(label::NODE);
    match step.replaced(&["metadata", "labels", label::NODE]) {
        Some((old, "")) => found.warn(META_8.id, path(), old, "the machine loses its node"),
        Some((_, new)) => found.invalid(META_8.id, path(), new, "field is immutable once set"),
        None => {}
    }
}

pub const SEL_7: Rule = Rule {
    policy_cel: &[transition(
        "!variables.is_scaled || 'SEL-7' in variables.skips || has(object.metadata.deletionTimestamp) || size(variables.old_match_labels) + size(variables.old_expressions) == 0 || (variables.old_match_labels.all(k, variables.match_labels[?k].orValue('') == variables.old_match_labels[k]) && variables.match_labels.all(k, k in variables.old_match_labels || k == 'machine-template-hash') && size(variables.expressions) == size(variables.old_expressions) && variables.expressions.all(e, variables.old_expressions.exists(o, o.?key == e.?key && o.?operator == e.?operator && sets.equivalent(o.?values.orValue([]), e.?values.orValue([])))))",
        "spec.selector: field is immutable",
    )],
    ..skippable("SEL-7", "The selector stays as it is.", &["V79", "V80"])
};

/// SEL-7. A selector without labels and expressions may still be set.
fn selector_stays(step: &Step<'_>, found: &mut Findings) {
    let place = ["spec", "selector"];
    let (old, new) = (step.old.at(&place), step.new.at(&place));
    if !selector::is_usable(old) || selector::same(old, new) || selector::only_hash_was_added(old, new) {
        return;
    }
    found.invalid(SEL_7.id, FieldPath::new("spec.selector"), new.value_or_null(), "field is immutable");
}

pub const REP_6: Rule = warns("REP-6", "A set that a deployment controls is not changed by hand.", &["V83", "V83b"]);

/// REP-6.
fn controlled_set_is_left_alone(step: &Step<'_>, found: &mut Findings) {
    let Some(deployment) = controller(step.new, Kind::MachineDeployment) else { return };
    if !step.differs(&["spec"]) {
        return;
    }
    let path = if step.differs(&["spec", "replicas"]) { "spec.replicas" } else { "spec" };
    let detail =
        format!("is controlled by MachineDeployment {deployment:?}; the change will be overwritten or start a rollout");
    found.warn(REP_6.id, FieldPath::new(path), Value::Null, detail);
}

pub const REP_7: Rule = warns("REP-7", "A frozen object is not scaled up.", &["V113"]);

/// REP-7.
fn frozen_object_makes_no_machines(step: &Step<'_>, found: &mut Findings) {
    let replicas = |object: Node<'_>| object.at(&["spec", "replicas"]).integer_or_zero();
    let (Some(old), Some(new)) = (replicas(step.old), replicas(step.new)) else { return };
    if new > old && step.new.at(&["metadata", "labels", label::FREEZE]).text() == Some("True") {
        let detail = "the object is frozen; no machine will be created until it is unfrozen";
        found.warn(REP_7.id, FieldPath::new("spec.replicas"), new, detail);
    }
}

pub const STR_14: Rule = warns(
    "STR-14",
    "The strategy changes to or from updates in place while no rollout is in progress.",
    &["the_strategy_changes_during_a_rollout"],
);

/// STR-14.
fn strategy_changes_at_rest(step: &Step<'_>, found: &mut Findings) {
    let place = ["spec", "strategy", "type"];
    let (old, new) = (step.old.at(&place).text(), step.new.at(&place).text());
    let in_place = |name: Option<&str>| name == Some("InPlaceUpdate");
    let number = |place: &[&str]| step.old.at(place).integer_or_zero().unwrap_or(0);
    let rolling = number(&["status", "updatedReplicas"]) < number(&["spec", "replicas"]);
    if in_place(old) != in_place(new) && rolling {
        let detail = "a rollout is in progress; machines already selected for update keep their state";
        found.warn(STR_14.id, FieldPath::new("spec.strategy.type"), json!(new), detail);
    }
}

/// The name of the controlling owner of the object, if it has this kind.
pub fn controller(object: Node<'_>, kind: Kind) -> Option<&str> {
    let owners = object.at(&["metadata", "ownerReferences"]).elements();
    owners
        .iter()
        .map(Node::of)
        .find(|owner| owner.get("controller").is_true() && owner.get("kind").text() == Some(kind.as_str()))?
        .get("name")
        .text()
}
