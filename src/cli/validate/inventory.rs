//! The documents of an input as a source of facts about other objects.
//!
//! An absent class or Secret counts as missing only when the input holds objects of that kind at all: a manifest of a
//! single deployment says nothing about which classes there are.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::{
    kind::{ApiVersion, Kind},
    names,
    validation::{ClassFact, Node, References, SecretFact},
};

/// What tells an object from others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    group: String,
    kind: String,
    /// Its namespace, or the one it gets when it names none.
    pub namespace: String,
    /// Its name; empty while it is to be generated.
    pub name: String,
}

impl Identity {
    /// The identity of an object.
    pub fn of(object: &Value, default_namespace: &str) -> Self {
        let node = Node::of(object);
        let text = |place: &[&str]| node.at(place).text().unwrap_or_default().to_owned();
        let group = text(&["apiVersion"]).split_once('/').map(|(group, _)| group.to_owned()).unwrap_or_default();
        let own = text(&["metadata", "namespace"]);
        let namespace = if own.is_empty() { default_namespace.to_owned() } else { own };
        Self { group, kind: text(&["kind"]), namespace, name: text(&["metadata", "name"]) }
    }
}

/// A machine, as far as other objects care.
struct MachineFact {
    namespace: String,
    name: String,
    class: String,
    provider_id: String,
    is_terminating: bool,
}

/// What the input holds.
#[derive(Default)]
pub struct Inventory {
    classes: BTreeMap<(String, String), ClassFact>,
    secrets: BTreeMap<(String, String), SecretFact>,
    machines: Vec<MachineFact>,
}

impl Inventory {
    /// The inventory of these objects.
    pub fn of<'a>(objects: impl Iterator<Item = &'a Value>, default_namespace: &str) -> Self {
        let mut inventory = Self::default();
        for object in objects {
            let identity = Identity::of(object, default_namespace);
            let node = Node::of(object);
            let is_terminating = node.at(&["metadata", "deletionTimestamp"]).is_present();
            let key = (identity.namespace.clone(), identity.name.clone());
            match (identity.group.as_str(), identity.kind.as_str()) {
                (names::GROUP, kind) if kind == Kind::MachineClass.as_str() => {
                    let fact = if is_terminating { ClassFact::Terminating } else { ClassFact::Present };
                    inventory.classes.insert(key, fact);
                }
                (names::GROUP, kind) if kind == Kind::Machine.as_str() => {
                    let beta =
                        node.get("apiVersion").text().is_some_and(|it| it.ends_with(ApiVersion::V1beta1.as_str()));
                    let text = |place: &[&str]| node.at(place).text().unwrap_or_default().to_owned();
                    inventory.machines.push(MachineFact {
                        namespace: identity.namespace,
                        name: identity.name,
                        class: text(&["spec", if beta { "classRef" } else { "class" }, "name"]),
                        provider_id: text(&["spec", "providerID"]),
                        is_terminating,
                    });
                }
                ("", "Secret") => {
                    let holds_user_data =
                        ["data", "stringData"].iter().any(|field| !node.get(field).get("userData").is_absent());
                    let fact = if holds_user_data { SecretFact::WithUserData } else { SecretFact::WithoutUserData };
                    inventory.secrets.insert(key, fact);
                }
                _ => {}
            }
        }
        inventory
    }
}

impl References for Inventory {
    fn machine_class(&self, namespace: &str, name: &str) -> Option<ClassFact> {
        let fact = self.classes.get(&(namespace.to_owned(), name.to_owned())).copied();
        fact.or_else(|| (!self.classes.is_empty()).then_some(ClassFact::Missing))
    }

    fn holder_of_provider_id(&self, namespace: &str, provider_id: &str, except: &str) -> Option<Option<String>> {
        let holder = self.machines.iter().find(|machine| {
            machine.namespace == namespace
                && machine.provider_id == provider_id
                && machine.name != except
                && !machine.is_terminating
        });
        Some(holder.map(|machine| machine.name.clone()))
    }

    fn machines_of_class(&self, namespace: &str, class: &str) -> Option<Vec<String>> {
        let users = self.machines.iter().filter(|machine| machine.namespace == namespace && machine.class == class);
        let names: BTreeSet<_> = users.map(|machine| machine.name.clone()).collect();
        Some(names.into_iter().collect())
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<SecretFact> {
        let fact = self.secrets.get(&(namespace.to_owned(), name.to_owned())).copied();
        fact.or_else(|| (!self.secrets.is_empty()).then_some(SecretFact::Missing))
    }
}
