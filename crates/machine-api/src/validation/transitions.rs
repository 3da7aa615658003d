//! Rules over what changes between two states of an object (spec/api-and-admission §5, marked T or U).
//!
//! They guard what cannot be undone: a machine that forgets its VM, a set that forgets its machines. An unchanged value
//! satisfies them by construction, so they are never ratcheted; controllers are exempt.

use serde_json::{Value, json};

use super::{ValidationRequest, node::Node, selector};
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
            step.provider_id_stays(found);
            step.class_of_a_made_machine_stays(request.version, found);
            step.node_label_stays(found);
        }
        Kind::MachineSet | Kind::MachineDeployment => {
            step.selector_stays(found);
            step.frozen_object_makes_no_machines(found);
            if request.kind == Kind::MachineDeployment {
                step.strategy_changes_at_rest(found);
            } else {
                step.controlled_set_is_left_alone(found);
            }
        }
        Kind::MachineClass => {}
    }
}

/// The rules that also hold while the object is being deleted: they keep it from deleting a foreign VM.
pub fn of_terminating(request: &ValidationRequest<'_>, old: &Json<'_>, new: &Json<'_>, found: &mut Findings) {
    if request.kind == Kind::Machine && !request.comes_from_controller() {
        let step = Step { old: Node::of(old), new: Node::of(new) };
        step.provider_id_stays(found);
        step.node_label_stays(found);
    }
}

struct Step<'a> {
    old: Node<'a>,
    new: Node<'a>,
}

impl<'a> Step<'a> {
    /// The texts at a place before and after, if the place held one before and holds another now.
    fn replaced(&self, place: &[&str]) -> Option<(&'a str, &'a str)> {
        let old = self.old.at(place).text().filter(|old| !old.is_empty())?;
        let new = self.new.at(place).text_or_empty()?;
        (old != new).then_some((old, new))
    }

    fn differs(&self, place: &[&str]) -> bool {
        self.old.at(place).value() != self.new.at(place).value()
    }

    /// MCH-19.
    fn provider_id_stays(&self, found: &mut Findings) {
        if let Some((_, new)) = self.replaced(&["spec", "providerID"]) {
            found.invalid("MCH-19", FieldPath::new("spec.providerID"), new, "field is immutable once set");
        }
    }

    /// MCH-20: the VM was made from the old class and must be deleted with it.
    fn class_of_a_made_machine_stays(&self, version: ApiVersion, found: &mut Findings) {
        let class = match version {
            ApiVersion::V1alpha1 => "class",
            ApiVersion::V1beta1 => "classRef",
        };
        let made = self.old.at(&["spec", "providerID"]).text().is_some_and(|id| !id.is_empty());
        if let Some((old, _)) = self.replaced(&["spec", class, "name"]).filter(|_| made) {
            let path = FieldPath::new("spec").child(class).child("name");
            let detail = format!(
                "may not be changed once spec.providerID is set; the machine was created from MachineClass {old:?}"
            );
            found.forbidden("MCH-20", path, detail);
        }
    }

    /// META-8. The update that tells a machine of its VM names its Node too, whatever stood in the label before: a template may have
    /// brought a label of this name.
    fn node_label_stays(&self, found: &mut Findings) {
        let identified = |object: Node<'_>| object.at(&["spec", "providerID"]).text().is_some_and(|id| !id.is_empty());
        if identified(self.new) && !identified(self.old) {
            return;
        }
        let path = || FieldPath::new("metadata.labels").key(label::NODE);
        match self.replaced(&["metadata", "labels", label::NODE]) {
            Some((old, "")) => found.warn("META-8", path(), old, "the machine loses its node"),
            Some((_, new)) => found.invalid("META-8", path(), new, "field is immutable once set"),
            None => {}
        }
    }

    /// SEL-7. A selector that selects nothing in particular may still be set.
    fn selector_stays(&self, found: &mut Findings) {
        let place = ["spec", "selector"];
        let (old, new) = (self.old.at(&place), self.new.at(&place));
        if !selector::is_usable(old) || selector::same(old, new) || selector::only_hash_was_added(old, new) {
            return;
        }
        found.invalid("SEL-7", FieldPath::new("spec.selector"), new.value_or_null(), "field is immutable");
    }

    /// REP-6.
    fn controlled_set_is_left_alone(&self, found: &mut Findings) {
        let Some(deployment) = controller(self.new, Kind::MachineDeployment) else { return };
        if !self.differs(&["spec"]) {
            return;
        }
        let path = if self.differs(&["spec", "replicas"]) { "spec.replicas" } else { "spec" };
        let detail = format!(
            "is controlled by MachineDeployment {deployment:?}; the change will be overwritten or start a rollout"
        );
        found.warn("REP-6", FieldPath::new(path), Value::Null, detail);
    }

    /// REP-7.
    fn frozen_object_makes_no_machines(&self, found: &mut Findings) {
        let replicas = |object: Node<'_>| object.at(&["spec", "replicas"]).integer_or_zero();
        let (Some(old), Some(new)) = (replicas(self.old), replicas(self.new)) else { return };
        if new > old && self.new.at(&["metadata", "labels", label::FREEZE]).text() == Some("True") {
            let detail = "the object is frozen; no machine will be created until it is unfrozen";
            found.warn("REP-7", FieldPath::new("spec.replicas"), new, detail);
        }
    }

    /// STR-14.
    fn strategy_changes_at_rest(&self, found: &mut Findings) {
        let place = ["spec", "strategy", "type"];
        let (old, new) = (self.old.at(&place).text(), self.new.at(&place).text());
        let in_place = |name: Option<&str>| name == Some("InPlaceUpdate");
        let number = |place: &[&str]| self.old.at(place).integer_or_zero().unwrap_or(0);
        let rolling = number(&["status", "updatedReplicas"]) < number(&["spec", "replicas"]);
        if in_place(old) != in_place(new) && rolling {
            let detail = "a rollout is in progress; machines already selected for update keep their state";
            found.warn("STR-14", FieldPath::new("spec.strategy.type"), json!(new), detail);
        }
    }
}

/// The name of the object's controller, if it is of this kind.
pub fn controller(object: Node<'_>, kind: Kind) -> Option<&str> {
    let owners = object.at(&["metadata", "ownerReferences"]).elements();
    owners
        .iter()
        .map(Node::of)
        .find(|owner| owner.get("controller").is_true() && owner.get("kind").text() == Some(kind.as_str()))?
        .get("name")
        .text()
}
