//! Rules that need facts about other objects (spec/api-and-admission §5, "reference rules"), and the interface to these facts.
//!
//! The facts come from data in memory (caches of watches, or the documents of one input) and must be returned at once. `None` always means "unknown",
//! and then the rules report nothing: no finding may depend on a cache that is not filled yet.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Change, Dependents, OwnerKey, ValidationRequest,
    node::Node,
    rule::{Rule, refuses_or_warns, skippable, warns},
    transitions,
};
use crate::{
    kind::{ApiVersion, Kind},
    names::{annotation, finalizer},
};
use kube_values::{
    field::{FieldPath, Findings},
    json::Json,
};

/// The key of the user data in a Secret.
const USER_DATA: &str = "userData";
/// A fact about a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassFact {
    /// The class does not exist.
    Missing,
    /// The class exists.
    Present,
    /// The class is being deleted.
    Terminating,
}

/// A fact about a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretFact {
    /// The Secret does not exist.
    Missing,
    /// The Secret exists and has values that are not blank for these keys. Rules don't see the values.
    Holding(BTreeSet<String>),
}

/// A set or deployment whose selector selects given labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectingFact {
    /// The kind.
    pub kind: Kind,
    /// The name.
    pub name: String,
    /// Whether the object has a controlling owner.
    pub is_controlled: bool,
}

/// Another machine with the instance of a provider id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HolderFact {
    /// The machine has the instance.
    Holds(Holder),
    /// The provider id of the machine has the same end. Whether both ids name the same instance is unknown.
    MayHold(Holder),
}

/// A machine with its provider id, which may be spelt differently.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The name of the machine.
    pub name: String,
    /// The provider id of the machine.
    pub provider_id: String,
}

/// Facts about other objects. Every method returns at once, without I/O. `None` means "unknown".
pub trait References: Send + Sync {
    /// A class by name.
    fn machine_class(&self, _namespace: &str, _name: &str) -> Option<ClassFact> {
        None
    }

    /// A Machine that is not `except`, is not being deleted, and has the instance of this provider id in any spelling. If there is none, a Machine
    /// that may have it. `Some(None)` means that there is none.
    fn holder_of_provider_id(&self, _namespace: &str, _provider_id: &str, _except: &str) -> Option<Option<HolderFact>> {
        None
    }

    /// The sorted names of the machines of this class.
    fn machines_of_class(&self, _namespace: &str, _class: &str) -> Option<Vec<String>> {
        None
    }

    /// The sorted names of the machines that a set or deployment controls.
    fn machines_of(&self, _kind: Kind, _namespace: &str, _name: &str) -> Option<Vec<String>> {
        None
    }

    /// The sorted sets and deployments that are not being deleted and whose selectors select these labels.
    fn selecting(&self, _namespace: &str, _labels: Node<'_>) -> Option<Vec<SelectingFact>> {
        None
    }

    /// The sorted sets and deployments that are not being deleted and whose templates name this class. For a controlled set, its deployment is
    /// listed.
    fn templates_of_class(&self, _namespace: &str, _class: &str) -> Option<Vec<(Kind, String)>> {
        None
    }

    /// The stored owner in v1alpha1. `None` if it is unknown here or does not exist.
    fn owner(&self, _key: &OwnerKey) -> Option<Value> {
        None
    }

    /// A Secret by name.
    fn secret(&self, _namespace: &str, _name: &str) -> Option<SecretFact> {
        None
    }
}

/// References without any facts.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReferences;

impl References for NoReferences {}

/// Runs all reference rules for a creation or update. Controllers are exempt.
pub fn rules(request: &ValidationRequest<'_>, found: &mut Findings) {
    let Some(new) = request.change.new_object().filter(|_| !request.comes_from_controller()) else { return };
    let step = Facts { request, old: Node::of_option(request.change.old_object()), new: Node::of(new) };
    match request.kind {
        Kind::Machine => {
            class_exists(&step, &["spec"], found);
            provider_id_is_held_once(&step, found);
            machine_is_not_adopted(&step, found);
        }
        Kind::MachineSet | Kind::MachineDeployment => {
            class_exists(&step, &["spec", "template", "spec"], found);
            machines_are_selected_once(&step, found);
        }
        Kind::MachineClass => {
            secrets_exist(&step, found);
            if let Change::Update { .. } = request.change {
                class_in_use_is_stable(&step, found);
            }
        }
    }
}

pub const DELETE: Rule = warns("DELETE", "A deletion takes nothing along.", &["V134"]);

/// Announces the consequences of a deletion (§5.6). Never refuses.
pub fn deletion_is_announced(
    request: &ValidationRequest<'_>,
    old: Option<&Json<'_>>,
    dependents: Dependents,
    found: &mut Findings,
) {
    let Some(old) = old.map(Node::of) else { return };
    let name = old.at(&["metadata", "name"]).text().unwrap_or_default();
    let mut say = |detail: String| found.warn(DELETE.id, FieldPath::default(), Value::Null, detail);
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
            for (kind, template) in request.references.templates_of_class(request.namespace, name).unwrap_or_default() {
                say(format!("{kind} {template:?} still refers to this class"));
            }
        }
        Kind::MachineSet | Kind::MachineDeployment => {
            let machines = request.references.machines_of(request.kind, request.namespace, name).unwrap_or_default();
            if !machines.is_empty() && dependents == Dependents::Collected {
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
    if dependents == Dependents::Orphaned {
        say("orphaned objects keep their finalizers and their virtual machines".to_owned());
    }
}

fn has_finalizer(object: Node<'_>) -> bool {
    object.at(&["metadata", "finalizers"]).elements().iter().any(|name| *name == finalizer::MACHINE)
}

/// `3 machines (a, b, c)`, with at most three names.
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
    /// The text at a place, if it is not empty and differs from the stored text.
    fn fresh(&self, place: &[&str]) -> Option<&'a str> {
        let new = self.new.at(place).text().filter(|text| !text.is_empty())?;
        (self.old.at(place).text() != Some(new)).then_some(new)
    }

    /// The payload of the class in the shape of v1alpha1, and the path to it.
    fn class(&self, object: Node<'a>) -> (Node<'a>, FieldPath) {
        match self.request.version {
            ApiVersion::V1alpha1 => (object, FieldPath::default()),
            ApiVersion::V1beta1 => (object.get("spec"), FieldPath::new("spec")),
        }
    }
}

pub const MCH_6: Rule = warns("MCH-6", "The class exists.", &["V8", "V9"]);

/// MCH-6: never refuses, because manifests may be applied in any order.
fn class_exists(facts: &Facts<'_>, spec: &[&str], found: &mut Findings) {
    let class = match facts.request.version {
        ApiVersion::V1alpha1 => "class",
        ApiVersion::V1beta1 => "classRef",
    };
    let place = [spec, &[class, "name"]].concat();
    let Some(name) = facts.fresh(&place) else { return };
    let namespace = facts.request.namespace;
    let detail = match facts.request.references.machine_class(namespace, name) {
        Some(ClassFact::Missing) => format!("MachineClass {name:?} not found in namespace {namespace:?}"),
        Some(ClassFact::Terminating) => format!("MachineClass {name:?} is being deleted"),
        Some(ClassFact::Present) | None => return,
    };
    found.warn(MCH_6.id, FieldPath::new(place.join(".")), name, detail);
}

pub const MCH_21: Rule = refuses_or_warns("MCH-21", "No two machines have the same instance.", &["V42", "V43", "V44"]);

/// MCH-21: two machines with one VM would both delete it. If it is unknown whether the VM is the same, the result is only a warning.
fn provider_id_is_held_once(facts: &Facts<'_>, found: &mut Findings) {
    let Some(id) = facts.fresh(&["spec", "providerID"]) else { return };
    let own = facts.new.at(&["metadata", "name"]).text().unwrap_or_default();
    let path = FieldPath::new("spec.providerID");
    match facts.request.references.holder_of_provider_id(facts.request.namespace, id, own).flatten() {
        Some(HolderFact::Holds(holder)) if holder.provider_id == id => found.duplicate(MCH_21.id, path, id, ""),
        Some(HolderFact::Holds(Holder { name, provider_id })) => {
            let detail = format_args!("it is the instance of Machine {name:?}, spelled {provider_id:?} there");
            found.duplicate(MCH_21.id, path, id, detail);
        }
        Some(HolderFact::MayHold(Holder { name, .. })) => {
            found.warn(MCH_21.id, path, id, format_args!("may be the instance of Machine {name:?}"));
        }
        None => {}
    }
}

pub const MCH_26: Rule = warns("MCH-26", "A machine without an owner is not selected by a set.", &["MCH-26"]);

/// MCH-26: a set adopts all machines without a controller that its selector selects.
fn machine_is_not_adopted(facts: &Facts<'_>, found: &mut Findings) {
    let labels = ["metadata", "labels"];
    let is_controlled = |machine: Node<'_>| {
        let owners = machine.at(&["metadata", "ownerReferences"]).elements();
        owners.iter().any(|owner| Node::of(owner).get("controller").is_true())
    };
    let as_before = facts.old.at(&labels).value() == facts.new.at(&labels).value();
    if is_controlled(facts.new) || (facts.old.is_present() && as_before && !is_controlled(facts.old)) {
        return;
    }
    let selecting = facts.request.references.selecting(facts.request.namespace, facts.new.at(&labels));
    if let Some(set) = selecting.into_iter().flatten().find(|fact| fact.kind == Kind::MachineSet) {
        let detail = format!("will be adopted by MachineSet {:?} and may be deleted to match its replicas", set.name);
        found.warn(MCH_26.id, FieldPath::new("metadata.labels"), Value::Null, detail);
    }
}

pub const SEL_8: Rule = warns("SEL-8", "No two sets or deployments select the same machines.", &["SEL-8"]);

/// SEL-8: two owners of the same machines delete each other's machines.
fn machines_are_selected_once(facts: &Facts<'_>, found: &mut Findings) {
    let (labels, selector) = (["spec", "template", "metadata", "labels"], ["spec", "selector"]);
    let same = |place: &[&str]| facts.old.at(place).value() == facts.new.at(place).value();
    if facts.old.is_present() && same(&labels) && same(&selector) {
        return;
    }
    let kind = facts.request.kind;
    let name = facts.new.at(&["metadata", "name"]).text().unwrap_or_default();
    let owner = transitions::controller(facts.new, Kind::MachineDeployment);
    let is_another = |fact: &SelectingFact| match fact.kind {
        Kind::MachineDeployment => owner != Some(&fact.name),
        _ => !fact.is_controlled,
    };
    let selecting = facts.request.references.selecting(facts.request.namespace, facts.new.at(&labels));
    let others = selecting.into_iter().flatten().filter(|fact| (fact.kind, fact.name.as_str()) != (kind, name));
    for other in others.filter(is_another).take(3) {
        let detail = format!("also selects machines of {} {:?}", other.kind, other.name);
        found.warn(SEL_8.id, FieldPath::new("spec.selector"), Value::Null, detail);
    }
}

pub const CLS_9: Rule = warns("CLS-9", "The Secrets exist and hold what the driver needs.", &["V130"]);

/// CLS-9. The keys of all Secrets count together, because the driver gets the Secrets merged.
fn secrets_exist(facts: &Facts<'_>, found: &mut Findings) {
    let (class, path) = facts.class(facts.new);
    let mut keys = BTreeSet::new();
    let mut all_are_known = true;
    let mut first = None;
    for field in ["secretRef", "userDataSecretRef", "credentialsSecretRef"] {
        let reference = class.get(field);
        let (Some(name), Some(namespace)) = (reference.get("name").text(), reference.get("namespace").text()) else {
            continue;
        };
        first = first.or(Some(field));
        match facts.request.references.secret(namespace, name) {
            Some(SecretFact::Missing) => {
                all_are_known = false;
                let detail = format!("Secret \"{namespace}/{name}\" not found");
                found.warn(CLS_9.id, path.child(field), Value::Null, detail);
            }
            Some(SecretFact::Holding(held)) => keys.extend(held),
            None => all_are_known = false,
        }
    }
    let Some(path) = first.filter(|_| all_are_known).map(|field| path.child(field)) else { return };
    if !keys.contains(USER_DATA) {
        found.warn(CLS_9.id, path.clone(), Value::Null, "no userData found in the referenced secrets");
    }
    let provider = class.get("provider").text().unwrap_or_default();
    // The missing user data is reported above for every provider.
    let missing = facts.request.providers.missing_in_secret(provider, &keys);
    for detail in missing.into_iter().filter(|detail| !detail.ends_with(USER_DATA)) {
        found.warn(CLS_9.id, path.clone(), Value::Null, detail);
    }
}

pub const CLS_16: Rule =
    skippable("CLS-16", "A class that machines use keeps its provider.", &["V132", "V132b", "V133"]);

pub const CLS_17: Rule =
    warns("CLS-17", "A class that machines use keeps its specification and its Secrets.", &["V131", "V132", "V132b"]);

/// CLS-16 and CLS-17.
fn class_in_use_is_stable(facts: &Facts<'_>, found: &mut Findings) {
    let name = facts.new.at(&["metadata", "name"]).text().unwrap_or_default();
    let Some(machines) = facts.request.references.machines_of_class(facts.request.namespace, name) else { return };
    if machines.is_empty() {
        return;
    }
    let ((old, _), (new, path)) = (facts.class(facts.old), facts.class(facts.new));
    if old.get("provider").text() != new.get("provider").text() {
        let value = new.get("provider").value_or_null();
        let detail = "field is immutable while machines use the class";
        found.invalid(CLS_16.id, path.child("provider"), value, detail);
    }
    for field in ["providerSpec", "secretRef", "userDataSecretRef", "credentialsSecretRef"] {
        if old.get(field).value() != new.get(field).value() {
            let detail = format!(
                "used by {} machines: they are not re-created, but will be deleted with the new values",
                machines.len()
            );
            found.warn(CLS_17.id, path.child(field), Value::Null, detail);
        }
    }
}
