//! Rules that need to know other objects (spec/api-and-admission §5, "reference rules"), and the seam they ask through.
//!
//! Answers come from whatever the process has at hand (watch caches, the documents of one input) and must be instant.
//! `None` always means "cannot tell", and then nothing is said: an answer must never depend on a cold cache.

use serde_json::Value;

use super::{Change, ValidationRequest, node::Node, transitions};
use crate::api::{
    field::{FieldPath, Findings},
    kind::{ApiVersion, Kind},
    names::{annotation, finalizer},
};

/// What is known of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassFact {
    /// There is none of this name.
    Missing,
    /// It is there.
    Present,
    /// It is being deleted.
    Terminating,
}

/// What is known of a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretFact {
    /// There is none of this name.
    Missing,
    /// It is there and holds user data.
    WithUserData,
    /// It is there without user data.
    WithoutUserData,
}

/// What is known of other objects. Every method answers at once, without I/O; `None` means "cannot tell".
pub trait References: Send + Sync {
    /// A class by name.
    fn machine_class(&self, _namespace: &str, _name: &str) -> Option<ClassFact> {
        None
    }

    /// The name of a Machine, other than `except`, that is not being deleted and holds this provider id. `Some(None)`:
    /// there is none.
    fn holder_of_provider_id(&self, _namespace: &str, _provider_id: &str, _except: &str) -> Option<Option<String>> {
        None
    }

    /// Names of the machines that name this class, sorted.
    fn machines_of_class(&self, _namespace: &str, _class: &str) -> Option<Vec<String>> {
        None
    }

    /// Names of the machines that a set or deployment controls, sorted.
    fn machines_of(&self, _kind: Kind, _namespace: &str, _name: &str) -> Option<Vec<String>> {
        None
    }

    /// A Secret by name.
    fn secret(&self, _namespace: &str, _name: &str) -> Option<SecretFact> {
        None
    }
}

/// Nothing is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReferences;

impl References for NoReferences {}

/// Runs all reference rules of a creation or update. Controllers are exempt.
pub fn rules(request: &ValidationRequest<'_>, found: &mut Findings) {
    let Some(new) = request.change.new_object().filter(|_| !request.comes_from_controller()) else { return };
    let step = Facts { request, old: Node::of_option(request.change.old_object()), new: Node::of(new) };
    match request.kind {
        Kind::Machine => {
            step.class_exists(&["spec"], found);
            step.provider_id_is_held_once(found);
        }
        Kind::MachineSet | Kind::MachineDeployment => step.class_exists(&["spec", "template", "spec"], found),
        Kind::MachineClass => {
            step.secrets_exist(found);
            if let Change::Update { .. } = request.change {
                step.class_in_use_is_stable(found);
            }
        }
    }
}

/// What a deletion sets off (§5.6). Never refused.
pub fn deletion_is_announced(request: &ValidationRequest<'_>, old: Option<&Value>, found: &mut Findings) {
    let Some(old) = old.map(Node::of) else { return };
    let name = old.at(&["metadata", "name"]).text().unwrap_or_default();
    let mut say = |detail: String| found.warn("DELETE", FieldPath::default(), Value::Null, detail);
    match request.kind {
        Kind::MachineClass => {
            let machines = request.references.machines_of_class(request.namespace, name).unwrap_or_default();
            if !machines.is_empty() {
                let end = if has_finalizer(old) {
                    "it stays until they are gone"
                } else {
                    "and has no finalizer: machines using it cannot be deleted afterwards"
                };
                let separator = if has_finalizer(old) { "; " } else { " " };
                say(format!("MachineClass is used by {}{separator}{end}", counted(&machines)));
            }
        }
        Kind::MachineSet | Kind::MachineDeployment => {
            let machines = request.references.machines_of(request.kind, request.namespace, name).unwrap_or_default();
            if !machines.is_empty() {
                say(format!("deletes {} machines", machines.len()));
            }
            if let Some(owner) = transitions::controller(old, Kind::MachineDeployment) {
                say(format!("will be created again by MachineDeployment {owner:?}"));
            }
        }
        Kind::Machine => {
            if let Some(owner) = transitions::controller(old, Kind::MachineSet) {
                say(format!("will be replaced by MachineSet {owner:?}"));
            }
            let preserved = old.at(&["status", "currentStatus", "preserveExpiryTime"]).is_present()
                || old.at(&["metadata", "annotations", annotation::PRESERVE]).text() == Some("now");
            if preserved {
                say("preservation does not prevent deletion".to_owned());
            }
        }
    }
}

fn has_finalizer(object: Node<'_>) -> bool {
    object.at(&["metadata", "finalizers"]).elements().iter().any(|name| name == finalizer::MACHINE)
}

/// `3 machines (a, b, c)`; at most three are named.
fn counted(machines: &[String]) -> String {
    let named = machines.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if machines.len() > 3 { ", …" } else { "" };
    format!("{} machines ({named}{more})", machines.len())
}

struct Facts<'a> {
    request: &'a ValidationRequest<'a>,
    old: Node<'a>,
    new: Node<'a>,
}

impl<'a> Facts<'a> {
    /// The text at a place, if it is not empty and not the one that was there before.
    fn fresh(&self, place: &[&str]) -> Option<&'a str> {
        let new = self.new.at(place).text().filter(|text| !text.is_empty())?;
        (self.old.at(place).text() != Some(new)).then_some(new)
    }

    /// MCH-6: never refused, since the order in which manifests are applied is free.
    fn class_exists(&self, spec: &[&str], found: &mut Findings) {
        let class = match self.request.version {
            ApiVersion::V1alpha1 => "class",
            ApiVersion::V1beta1 => "classRef",
        };
        let place = [spec, &[class, "name"]].concat();
        let Some(name) = self.fresh(&place) else { return };
        let namespace = self.request.namespace;
        let detail = match self.request.references.machine_class(namespace, name) {
            Some(ClassFact::Missing) => format!("MachineClass {name:?} not found in namespace {namespace:?}"),
            Some(ClassFact::Terminating) => format!("MachineClass {name:?} is being deleted"),
            Some(ClassFact::Present) | None => return,
        };
        found.warn("MCH-6", FieldPath::new(place.join(".")), name, detail);
    }

    /// MCH-21: two machines with one VM would both delete it.
    fn provider_id_is_held_once(&self, found: &mut Findings) {
        let Some(id) = self.fresh(&["spec", "providerID"]) else { return };
        let own = self.new.at(&["metadata", "name"]).text().unwrap_or_default();
        if let Some(Some(_)) = self.request.references.holder_of_provider_id(self.request.namespace, id, own) {
            found.duplicate("MCH-21", FieldPath::new("spec.providerID"), id, "");
        }
    }

    /// The class as v1alpha1 places it, and the path in front of it.
    fn class(&self, object: Node<'a>) -> (Node<'a>, FieldPath) {
        match self.request.version {
            ApiVersion::V1alpha1 => (object, FieldPath::default()),
            ApiVersion::V1beta1 => (object.get("spec"), FieldPath::new("spec")),
        }
    }

    /// CLS-9.
    fn secrets_exist(&self, found: &mut Findings) {
        let (class, path) = self.class(self.new);
        let mut any_user_data = false;
        let mut complete = true;
        let mut first = None;
        for field in ["secretRef", "userDataSecretRef", "credentialsSecretRef"] {
            let reference = class.get(field);
            let (Some(name), Some(namespace)) = (reference.get("name").text(), reference.get("namespace").text())
            else {
                continue;
            };
            first = first.or(Some(field));
            match self.request.references.secret(namespace, name) {
                Some(SecretFact::Missing) => {
                    complete = false;
                    let detail = format!("Secret \"{namespace}/{name}\" not found");
                    found.warn("CLS-9", path.child(field), Value::Null, detail);
                }
                Some(SecretFact::WithUserData) => any_user_data = true,
                Some(SecretFact::WithoutUserData) => {}
                None => complete = false,
            }
        }
        if let Some(field) = first.filter(|_| complete && !any_user_data) {
            found.warn("CLS-9", path.child(field), Value::Null, "no userData found in the referenced secrets");
        }
    }

    /// CLS-16 and CLS-17.
    fn class_in_use_is_stable(&self, found: &mut Findings) {
        let name = self.new.at(&["metadata", "name"]).text().unwrap_or_default();
        let Some(machines) = self.request.references.machines_of_class(self.request.namespace, name) else { return };
        if machines.is_empty() {
            return;
        }
        let ((old, _), (new, path)) = (self.class(self.old), self.class(self.new));
        if old.get("provider").text() != new.get("provider").text() {
            let value = new.get("provider").value_or_null();
            let detail = "field is immutable while machines use the class";
            found.invalid("CLS-16", path.child("provider"), value, detail);
        }
        for field in ["providerSpec", "secretRef", "userDataSecretRef", "credentialsSecretRef"] {
            if old.get(field).value() != new.get(field).value() {
                let detail = format!(
                    "used by {} machines: they are not re-created, but will be deleted with the new values",
                    machines.len()
                );
                found.warn("CLS-17", path.child(field), Value::Null, detail);
            }
        }
    }
}
